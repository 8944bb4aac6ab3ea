"""Exported programs with gradients: steps of an optimizer give what those of the compiled module give, also from a file
in a process without the model's source."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import dynajit
from dynajit.exc import ArtifactError, ExportError
from dynajit.exported import inspect_file


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.parts, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        q, k, v = self.parts(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        weights = F.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.2)
        y = x + F.dropout(self.out((weights @ v).transpose(1, 2).flatten(2)), 0.1)
        return {"y": y, "weights": weights.detach()}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.out.weight = self.words.weight

    def forward(self, at: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.words(at)).flatten(0, 1), target.flatten())


def loss_of(result: Any) -> Tensor:
    result = result["y"] if isinstance(result, dict) else result
    return result.square().mean() if result.dim() else result


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    arguments: Callable[[int], tuple[Tensor, ...]]  # of a batch


CASES = {
    "batch norm": Case(Images, lambda n: (torch.randn(n, 3, 8, 8),)),
    "attention with dropout": Case(Block, lambda n: (torch.randn(n, 6, 16).requires_grad_(),)),
    "embedding": Case(Words, lambda n: (torch.randint(20, (n, 7)), torch.randint(20, (n, 7)))),
}


def saved(program: Any, folder: Path, **settings: Any) -> Any:  # type: ignore[name-defined]
    program.save(folder / "program.djt")
    return dynajit.load(folder / "program.djt", **settings)


@pytest.mark.parametrize("sizes", [(4,) * 5, (4, 7, 2, 4, 15)], ids=["one size", "many"])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_compiled_module(name: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    case, dynamic = CASES[name], len(set(sizes)) > 1
    net, args = case.make(), case.arguments(4)
    shapes = tuple({0: Dim("batch", min=2, max=15)} for _ in args) if dynamic else None
    loaded = saved(dynajit.export(net, args, dynamic_shapes=shapes, gradients=True), tmp_path)
    compiled = copy.deepcopy(net)
    run = dynajit.compile(compiled)
    assert dict(loaded.named_parameters()).keys() == dict(net.named_parameters()).keys()
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (compiled, loaded)]
    for step, batch in enumerate(sizes):
        given, results = case.arguments(batch), []
        for call, optimizer in zip((run, loaded), optimizers, strict=True):
            own = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in given)
            for x in own if dynamic else ():
                dynajit.mark_dynamic(x, 0, min=2, max=15)
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = loss_of(call(*own))
            loss.backward()
            optimizer.step()
            results.append([loss, *(x.grad for x in own), torch.rand(1)])
        assert all(theirs is ours or torch.equal(theirs, ours) for theirs, ours in zip(*results, strict=True))
        state = compiled.state_dict()
        assert all(torch.equal(tensor, state[key]) for key, tensor in loaded.weights.items())
    assert any(not torch.equal(tensor, loaded.weights[key]) for key, tensor in net.named_parameters())


def test_without_gradients_it_runs_forward_alone(tmp_path: Path) -> None:
    net, x = Images(), torch.randn(4, 3, 8, 8)
    loaded = saved(dynajit.export(net, (x,), gradients=True), tmp_path)
    with torch.no_grad():
        found = loaded(x)
        assert not found.requires_grad
        torch.testing.assert_close(found, net(x))
    torch.testing.assert_close(loaded.weights["norm.running_mean"], net.norm.running_mean)
    with torch.autocast("cpu", torch.bfloat16):
        assert loaded(x).dtype is torch.float32


def test_parameters_are_those_of_the_export(tmp_path: Path) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4)
    net[0].weight.requires_grad_(False)
    exported = dynajit.export(net, (x,), gradients=True)
    loaded = saved(exported, tmp_path, weights=net.state_dict())
    for program in (exported, loaded):
        assert {name: one.requires_grad for name, one in program.named_parameters()} == {
            name: one.requires_grad for name, one in net.named_parameters()
        }
        program(x).sum().backward()
        net.zero_grad()
        net(x).sum().backward()
        for name, parameter in net.named_parameters():
            ours = program.weights[name].grad
            assert ours is parameter.grad or torch.allclose(ours, parameter.grad)
        with torch.no_grad():
            program.weights["2.bias"].add_(1)
        assert torch.allclose(program(x), net(x))  # whose memory they have
    assert "gradients of 3 parameters" in inspect_file(tmp_path / "program.djt")
    assert not [*dynajit.export(net, (x,)).parameters()]


def test_gradients_of_some_results_of_views_and_of_gradients(tmp_path: Path) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = (x * y).tanh()
        return z, z.square()[0], x.view(2, 6) * 2

    def tensors() -> list[Tensor]:
        return [torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(), torch.linspace(0, 2, 12).view(3, 4)]

    def outcome(call: Any, which: tuple[int, ...], again: bool) -> list[Tensor]:
        x, y = tensors()
        results = call(x, y)
        (gradient,) = torch.autograd.grad(sum(results[at].sum() for at in which), [x], create_graph=again)
        return [gradient, *torch.autograd.grad(gradient.square().sum(), [x])] if again else [gradient]

    loaded = saved(dynajit.export(function, tensors(), gradients=True), tmp_path)
    for which in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        torch.testing.assert_close(outcome(loaded, which, False), outcome(function, which, False))
        if which != (2,):  # whose gradient has none
            torch.testing.assert_close(outcome(loaded, which, True), outcome(function, which, True))


def test_calls_that_it_was_not_exported_for(tmp_path: Path) -> None:
    def scale(x: Tensor, y: Tensor) -> Tensor:
        return x * y.t()

    x, y = torch.ones(2, 3), torch.ones(3, 2)
    loaded = saved(dynajit.export(scale, (x.requires_grad_(), y), gradients=True), tmp_path)
    with pytest.raises(ArtifactError, match=r"x does not require a gradient; expected is a tensor that does$"):
        loaded(x.detach(), y)
    with pytest.raises(ArtifactError, match="y does require a gradient; expected is a tensor that does not"):
        loaded(x, y.clone().requires_grad_())
    wide = torch.ones(3, 2, requires_grad=True)
    loaded((wide * 2).t(), y).sum().backward()  # other strides, and no leaf
    assert torch.equal(wide.grad, torch.full((3, 2), 2.0))


def test_what_has_no_gradients_in_a_file_is_refused() -> None:
    x = torch.ones(3, requires_grad=True)
    hooked = nn.Linear(3, 3)
    hooked.weight.register_hook(lambda gradient: gradient * 2)
    for target, args, message in (
        (lambda x: x * 2, (x.detach(),), "no result needs a gradient: export it without gradients=True"),
        (lambda y, own=x * 2: y * own, (x,), "own is a|is computed from others|require"),
        (hooked, (x,), "hooks"),
    ):
        with pytest.raises((ExportError, ArtifactError), match=message):
            dynajit.export(target, args, gradients=True)


TRAIN = """
import sys, torch, dynajit
loaded = dynajit.load(sys.argv[1])
assert not {"torch._dynamo", "tests"} & sys.modules.keys()
optimizer = torch.optim.SGD(loaded.parameters(), 0.5)
x = torch.linspace(-1, 1, 4 * 3 * 64).view(4, 3, 8, 8)
for _ in range(3):
    optimizer.zero_grad()
    loaded(x).square().mean().backward()
    optimizer.step()
print(loaded(x).square().mean().item(), loaded.weights["norm.running_var"].sum().item())
"""


def test_a_process_without_source_and_compiler_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Images()
    dynajit.export(net, (torch.ones(4, 3, 8, 8),), gradients=True).save(tmp_path / "program.djt")
    nowhere = {"DYNAJIT_COMPILER": "/nowhere/cc", "DYNAJIT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", TRAIN, str(tmp_path / "program.djt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **nowhere})
    assert done.returncode == 0, done.stderr
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    x = torch.linspace(-1, 1, 4 * 3 * 64).view(4, 3, 8, 8)
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    expected = [net(x).square().mean().item(), net.norm.running_var.sum().item()]
    torch.testing.assert_close([*map(float, done.stdout.split())], expected)
