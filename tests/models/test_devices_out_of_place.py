"""What can't run as it is given: a prompt longer than its cache, modules on other devices than their inputs, weights
that hooks bring in, a device that a child process does not see. Eager's result, or eager's error."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit

BACKENDS = ("eager", "codegen")


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What a call gives, or the type and first line of its error."""
    try:
        with torch.no_grad():
            return "result", call()
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]


def same(found: tuple[str, Any], expected: tuple[str, Any]) -> bool:
    if found[0] != expected[0] or found[0] != "result":
        return found == expected
    one, other = found[1], expected[1]
    if one.device.type == "meta":
        return other.device == one.device and other.shape == one.shape and other.dtype == one.dtype
    return other.device == one.device and torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prompt_longer_than_a_static_cache(backend: str) -> None:
    transformers = pytest.importorskip("transformers", reason="the cache is transformers'")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    compiled = dynajit.compile(model, backend=backend)

    def run(called: Any, length: int) -> tuple[str, Any]:
        cache = transformers.StaticCache(config=config, max_cache_len=6)
        words = torch.arange(length)[None] % 32
        return outcome(lambda: called(words, past_key_values=cache).logits)

    for length in (4, 9, 5, 8, 6, 7, 3):
        expected = run(model, length)
        assert (expected[0] == "result") == (length <= 6)
        assert same(run(compiled, length), expected), length


class Halves(nn.Module):
    def __init__(self, first: str, second: str, moves: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, device=first), nn.Linear(4, 4, device=second)
        self.moves = moves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.second(y.to(self.second.weight.device) if self.moves else y)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize(("first", "second"), [("cpu", "meta"), ("meta", "cpu"), ("meta", "meta")])
def test_a_model_on_two_devices(first: str, second: str, moves: bool, backend: str) -> None:
    torch.manual_seed(0)
    model = Halves(first, second, moves)
    compiled = dynajit.compile(model, backend=backend)
    for device in (first, "cpu", "meta", first):
        x = torch.randn(3, 4, device=device)
        assert same(outcome(functools.partial(compiled, x)), outcome(functools.partial(model, x))), device


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_whose_halves_change_devices_between_calls(backend: str) -> None:
    torch.manual_seed(0)
    model = Halves("cpu", "cpu", False)
    compiled = dynajit.compile(model, backend=backend)
    x = torch.randn(3, 4)
    kept = model.second.weight, model.second.bias
    for turn in range(6):
        if turn % 2:
            model.second.to("meta")
        else:
            model.second.weight, model.second.bias = kept
        expected = outcome(lambda: model(x))
        assert (expected[0] == "result") == (turn % 2 == 0)
        assert same(outcome(lambda: compiled(x)), expected), turn


def offload(module: nn.Module) -> None:
    """As accelerate does: weights are on `meta`, and come in for a call of the module, whose `forward` is replaced."""
    stored = {name: parameter.detach().clone() for name, parameter in module.named_parameters(recurse=False)}
    forward = module.forward

    def place(device: str) -> None:
        for name, value in stored.items():
            module._parameters[name] = nn.Parameter(value.to(device), requires_grad=False)

    def with_weights(*args: Any, **kwargs: Any) -> Any:
        place("cpu")
        try:
            return forward(*args, **kwargs)
        finally:
            place("meta")

    place("meta")
    module.forward = with_weights  # type: ignore[method-assign]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("broken", [False, True])
def test_weights_that_hooks_bring_in(broken: bool, backend: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    plain.load_state_dict(model.state_dict())
    for module in (model[0], model[2]):
        offload(module)
    if broken:
        model[1].register_forward_hook(lambda module, args, result: print(end=""))
    compiled = dynajit.compile(model, backend=backend)
    for size in (3, 3, 5, 2, 3):
        x = torch.randn(size, 4)
        assert same(outcome(lambda: compiled(x)), outcome(lambda: plain(x)))  # noqa: B023
        assert model[0].weight.is_meta and model[2].weight.is_meta


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_that_move_what_a_module_is_given(backend: str) -> None:
    torch.manual_seed(0)
    model = Halves("cpu", "meta", False)
    handle = model.second.register_forward_pre_hook(lambda module, args: (args[0].to(module.weight.device),))
    compiled = dynajit.compile(model, backend=backend)
    x = torch.randn(3, 4)
    for _ in range(2):
        assert same(outcome(lambda: compiled(x)), ("result", torch.empty(3, 4, device="meta")))
    handle.remove()
    assert same(outcome(lambda: compiled(x)), outcome(lambda: model(x)))


CHILD = """
import os, sys
import torch, dynajit

def f(x, device):
    return (x.to(device) * 2).cpu() + 1, torch.cuda.device_count()

def outcome(call, device):
    try:
        return repr(call(torch.ones(2), device))
    except Exception as error:
        return type(error).__name__ + str(error).partition("\\n")[0]

compiled = dynajit.compile(f, backend=sys.argv[1])
for device in ("cpu", "cuda:0"):
    assert outcome(compiled, device) == outcome(f, device), (device, outcome(compiled, device), outcome(f, device))
if "CHILD" not in os.environ:
    os.environ.update(CHILD="1", CUDA_VISIBLE_DEVICES=sys.argv[2])
    for device in ("cpu", "cuda:0"):
        assert outcome(compiled, device) == outcome(f, device), device
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
print("same")
"""


@pytest.mark.parametrize("visible", ["", "-1", "7"])
def test_a_child_process_that_sees_other_devices(visible: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CHILD"}
    command = [sys.executable, "-c", CHILD, "codegen", visible]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert found.stdout == "same\n", found.stderr
