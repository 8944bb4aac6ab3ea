"""Runs a function through a backend as the front would, and compares everything that can be seen with eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dynajit.backends import lookup_backend

Function = Callable[..., Any]


def capture(
    fn: Function | torch.fx.GraphModule, inputs: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """A torch-level graph of `fn`, and fake inputs."""
    gm = fn if isinstance(fn, torch.fx.GraphModule) else torch.fx.symbolic_trace(fn)
    fake_mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    return gm, [fake_mode.from_tensor(value) for value in inputs]


def compile_with(backend: str | Function, fn: Function, inputs: Sequence[torch.Tensor]) -> Function:
    """`fn` compiled for inputs like these."""
    return lookup_backend(backend)(*capture(fn, inputs))


def check(
    backend: str | Function, fn: Function, *inputs: torch.Tensor, tolerance: dict[str, float] | None = None
) -> Function:
    """Compare two calls of the compiled `fn` with eager: results, aliasing, mutation, gradients, random state."""
    compiled = compile_with(backend, fn, inputs)
    for _ in range(2):
        torch.manual_seed(7)
        eager_inputs = copy.deepcopy(list(inputs))
        expected = _observe(fn, eager_inputs)
        torch.manual_seed(7)
        got = _observe(compiled, copy.deepcopy(list(inputs)))
        _assert_same(got, expected, tolerance or {})
    return compiled


def _observe(fn: Function, inputs: list[torch.Tensor]) -> dict[str, Any]:
    outputs = list(fn(*inputs))
    rng = torch.get_rng_state()
    aliasing = _aliasing([*inputs, *outputs])
    differentiable = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
    if differentiable:
        total = sum((value * (index + 1)).abs().sum() for index, value in enumerate(differentiable))
        total.backward()
    return {
        "outputs": outputs,
        "inputs": inputs,
        "grads": [value.grad for value in inputs],
        "rng": rng,
        "aliasing": aliasing,
        "requires_grad": [isinstance(value, torch.Tensor) and value.requires_grad for value in outputs],
    }


def _aliasing(values: Sequence[Any]) -> list[tuple[int, int, str]]:
    """Pairs of values that are one object, or that share memory."""
    found = []
    for i, a in enumerate(values):
        for j, b in enumerate(values[:i]):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                if a is b:
                    found.append((j, i, "same"))
                elif a.numel() and b.numel() and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
                    found.append((j, i, f"shared at {a.storage_offset() - b.storage_offset()}"))
    return found


def _assert_same(got: dict[str, Any], expected: dict[str, Any], tolerance: dict[str, float]) -> None:
    assert len(got["outputs"]) == len(expected["outputs"])
    for key in ("outputs", "inputs", "grads"):
        for mine, theirs in zip(got[key], expected[key], strict=True):
            assert type(mine) is type(theirs)
            if isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(mine, theirs, equal_nan=True, check_stride=key == "outputs", **tolerance)
            else:
                assert mine == theirs
    assert torch.equal(got["rng"], expected["rng"])
    assert got["aliasing"] == expected["aliasing"]
    assert got["requires_grad"] == expected["requires_grad"]
