"""Gradients that hooks wait for are handed out while the rest of the backward graph still runs, as in eager mode."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit.report import records

WIDTH = 160  # gradients of weights are larger than what dies with them


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * torch.nn.functional.gelu(self.up(self.norm(x)))


class Tied(nn.Module):
    """A weight used twice, parameters with one gradient between them, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.one, self.other = nn.Parameter(torch.ones(8, WIDTH)), nn.Parameter(torch.zeros(8, WIDTH))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(x + (self.one + self.other))
        return x @ self.blocks[0].up.weight @ self.blocks[1].up.weight.t()


def _models() -> tuple[nn.Module, nn.Module, Callable[..., Any]]:
    torch.manual_seed(0)
    made = Tied()
    other = copy.deepcopy(made)
    return other, made, dynajit.compile(made)


def _heard(model: nn.Module, heard: list[str]) -> None:
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: heard.append(name))


def _x() -> torch.Tensor:
    return torch.linspace(-1, 1, 8 * WIDTH).reshape(8, WIDTH)


def _same(eager: nn.Module, compiled: nn.Module) -> None:
    for p, q in zip(eager.parameters(), compiled.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None and q.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5)
            assert q.grad.stride() == p.grad.stride()


def test_the_last_layers_gradients_come_first() -> None:
    model = nn.Sequential(Block(), Block(), Block())
    there: list[bool] = []
    model[2].up.weight.register_post_accumulate_grad_hook(lambda p: there.append(model[0].up.weight.grad is None))
    compiled = dynajit.compile(model)
    for _ in range(3):
        compiled(_x()).square().mean().backward()
        model.zero_grad()
    assert there == [True] * 3


def test_each_hook_runs_once_and_gradients_add_up() -> None:
    eager, model, compiled = _models()
    expected: list[str] = []
    heard: list[str] = []
    _heard(eager, expected)
    _heard(model, heard)
    for _ in range(3):
        eager(_x()).square().mean().backward()
        compiled(_x()).square().mean().backward()
    _same(eager, model)
    assert sorted(heard) == sorted(expected)


def test_a_graph_that_is_kept_runs_again() -> None:
    eager, model, compiled = _models()
    _heard(model, [])
    for call in (eager, compiled):
        loss = call(_x()).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    _same(eager, model)


def test_gradients_of_some() -> None:
    eager, model, compiled = _models()
    heard: list[str] = []
    _heard(model, heard)
    for names in (["blocks.1.scale"], ["blocks.0.norm.weight", "one"], ["blocks.0.up.weight"]):
        found = []
        for module, call in ((eager, eager), (model, compiled)):
            wanted = [dict(module.named_parameters())[name] for name in names]
            x = _x().requires_grad_()
            found.append(torch.autograd.grad(call(x).square().mean(), [*wanted, x]))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert heard == []
    for module, call in ((eager, eager), (model, compiled)):
        call(_x()).square().mean().backward(inputs=[dict(module.named_parameters())["blocks.1.norm.bias"]])
    _same(eager, model)
    assert heard == ["blocks.1.norm.bias"]


def test_gradients_that_have_a_history() -> None:
    eager, model, compiled = _models()
    _heard(model, [])
    found = []
    for module, call in ((eager, eager), (model, compiled)):
        (first,) = torch.autograd.grad(call(_x()).square().mean(), [module.one], create_graph=True)
        first.square().sum().backward()
        found.append(first)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    _same(eager, model)


@pytest.mark.parametrize("tied", [False, True])
def test_steps_inside_of_backward(tied: bool) -> None:
    """A hook writes its parameter, of which the graph has no use any more."""
    torch.manual_seed(0)
    eager: nn.Module = nn.Sequential(Block(), Block(), Block())
    if tied:
        eager[2].up.weight = eager[0].up.weight
    model = copy.deepcopy(eager)
    compiled = dynajit.compile(model)

    def step(p: torch.Tensor) -> None:
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    for module, call in ((eager, eager), (model, compiled)):
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            call(_x()).square().mean().backward()
    for p, q in zip(eager.parameters(), model.parameters(), strict=True):
        assert p.grad is None and q.grad is None
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)


def test_what_is_still_to_be_read_may_not_be_written() -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(Block(), Block(), Block())
    model = copy.deepcopy(eager)
    compiled = dynajit.compile(model)
    for module, call in ((eager, eager), (model, compiled)):

        def write(p: torch.Tensor, module: Any = module) -> None:
            with torch.no_grad():
                module[0].up.weight.zero_()

        handle = module[2].up.weight.register_post_accumulate_grad_hook(write)
        x = _x().requires_grad_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(x).square().mean().backward()
        handle.remove()


def test_a_hook_that_raises() -> None:
    eager, model, compiled = _models()
    fails = [True]

    def check(p: torch.Tensor) -> None:
        if fails[0]:
            raise ValueError("no")

    dying = []
    for module, call in ((eager, eager), (model, compiled)):
        module.blocks[1].scale.register_post_accumulate_grad_hook(check)  # type: ignore[index]
        fails[0] = True
        x = _x()
        with pytest.raises(ValueError, match="no"):
            call(x).square().mean().backward()
        dying.append(weakref.ref(x))
        del x
        fails[0] = False
        module.zero_grad()
        call(_x()).square().mean().backward()
    gc.collect()
    assert [ref() for ref in dying] == [None, None]
    _same(eager, model)


def test_results_that_are_differentiated_by_themselves() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.ModuleList([Block(), Block()])

    def forward(module: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = module[0](x)
        return first.square().mean(), module[1](first).square().mean()

    eager, model = make(), make()
    compiled = dynajit.compile(forward)
    heard: list[str] = []
    _heard(model, heard)
    for module, call in ((eager, forward), (model, compiled)):
        for which in ((0,), (1,), (0, 1), (1,)):
            results = call(module, _x())
            sum(results[number] for number in which).backward()  # type: ignore[union-attr]
    _same(eager, model)
    assert heard.count("0.scale") == 4 and heard.count("1.scale") == 3


def test_hooks_that_come_later_and_go() -> None:
    """Whether somebody waits is found at each call, and compiles nothing."""
    eager, model, compiled = _models()
    _heard(eager, [])
    heard: list[str] = []
    seen: list[records.CompileRecord] = []
    handle: Any = None
    with records.listen(seen.append):
        for step in range(4):
            if step == 1:
                handle = model.blocks[1].scale.register_post_accumulate_grad_hook(lambda _: heard.append("scale"))  # type: ignore
            if step == 3:
                handle.remove()
            eager(_x()).square().mean().backward()
            compiled(_x()).square().mean().backward()
    _same(eager, model)
    assert heard == ["scale"] * 2
    assert len(seen) == 1


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(*parts))


class Mixed(nn.Module):
    """Operations that have gradients for several parameters at once, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Parameter(torch.linspace(-1, 1, 16) + at) for at in range(3))
        self.bilinear = nn.Bilinear(16, 16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addcmul(self.one, x * self.three, self.two)
        return self.bilinear(x, y) * self.three


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.inner = kind(16, 16, 2, batch_first=True)  # type: ignore[call-arg]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


class Convolved(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 1), nn.GroupNorm(2, 8)
        )


PIECES: tuple[Callable[[], nn.Module], ...] = (
    *(
        lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU()),
        lambda: nn.Linear(16, 16, bias=False),
        lambda: nn.LayerNorm(16),
    ),
    *(Attention, Mixed, Convolved, lambda: Recurrent(nn.LSTM), lambda: Recurrent(nn.GRU)),
)


class Chain(nn.Module):
    """Pieces in a row; heads, each a result; the loss beside them, or not; perhaps a break, or a tied weight."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.pieces = nn.Sequential(*(rng.choice(PIECES)() for _ in range(rng.randint(1, 4))))
        self.heads = nn.ModuleList(rng.choice(PIECES)() for _ in range(rng.randint(1, 3)))
        self.first = nn.Linear(16, 16)
        self.breaks, self.adds = rng.random() < 0.2, rng.random() < 0.3
        linear = [each for each in self.heads.modules() if isinstance(each, nn.Linear) and each.out_features == 16]
        if linear and rng.random() < 0.3:
            linear[0].weight = self.first.weight

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.pieces(self.first(x))
        if self.breaks:
            dynajit.graph_break()
        results = [head(x) for head in self.heads]
        return [sum(result.square().mean() for result in results), *results] if self.adds else results  # type: ignore


def _arrivals(model: nn.Module, call: Callable[..., Any], way: str) -> list[str]:
    """The names of the parameters in the order in which their gradients were heard of, in the second of two passes."""
    heard: list[str] = []
    for name, p in model.named_parameters():
        add = p.register_hook if way == "before" else p.register_post_accumulate_grad_hook
        add(lambda _, name=name: heard.append(name))
    for _ in range(2):
        heard.clear()
        results = call(torch.linspace(-1, 1, 256).reshape(2, 8, 16))
        (results[0] if len(results) > 1 and model.adds else sum(each.sin().sum() for each in results)).backward()  # type: ignore
    return heard


@pytest.mark.parametrize("way", ["before", "behind"])
@pytest.mark.parametrize("seed", range(12))
def test_gradients_arrive_in_eagers_order(seed: int, way: str) -> None:
    """Which DistributedDataParallel fills its buckets in, and what compresses them draws in."""
    eager, model = Chain(seed), Chain(seed)
    assert _arrivals(model, dynajit.compile(model), way) == _arrivals(eager, eager, way)
