"""Tensors made of Python's data on the way, and small questions about torch's state that end no graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import BACKENDS
from torch import nn

import dynajit
from dynajit.testing import assert_same

x = torch.arange(16.0).reshape(4, 4)


def lists_of_computed_numbers(x: torch.Tensor) -> Any:
    mixed = torch.tensor([[x[0, 0], 1.5], [2, True]])
    return mixed, torch.tensor([x[1, 1], 2], dtype=torch.float64), torch.tensor([x.sum().long(), 3])


def old_constructors(x: torch.Tensor) -> Any:
    made = torch.Tensor([[1, 2.5], [True, 3]]), torch.LongTensor([3]), torch.FloatTensor([1.0]), torch.Tensor([])
    return *made, torch.Tensor(2, 3).shape, torch.Tensor(x.shape).shape, torch.Tensor().shape, x + 1


def parameters(x: torch.Tensor) -> Any:
    weight, fixed = nn.Parameter(x * 2), nn.Parameter(x, requires_grad=False)
    facts = weight.is_leaf, weight.grad_fn, type(weight) is nn.Parameter, isinstance(fixed, nn.Parameter)
    return weight, fixed, facts, weight * 2


def modules(x: torch.Tensor) -> Any:
    layers = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.LayerNorm(3))
    return layers(x), nn.BatchNorm1d(4)(x), layers


def arrays_as_indices(x: torch.Tensor) -> Any:
    y = x.clone()
    y[np.array([1])] = 3
    return x[np.array([0, 2])], x[:, np.arange(2)], x[x[0].long().numpy() * 0], y


def numpy_facts(x: torch.Tensor) -> Any:
    limits = np.iinfo(np.int16).max, np.finfo(np.float32).eps, np.finfo("float16").max, np.finfo(np.float32).tiny
    return x * np.iinfo(np.int8).min, limits, np.dtype("float")


def questions(x: torch.Tensor) -> Any:
    found = torch.onnx.is_in_onnx_export(), torch.distributed.is_available(), torch.backends.mps.is_available()
    return found, torch.jit.annotate(Any, x + 1), torch.jit._unwrap_optional(x), torch.accelerator.is_available()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [lists_of_computed_numbers, old_constructors, parameters, modules, arrays_as_indices, numpy_facts, questions],
)
def test_no_break(program: Any, backend: str) -> None:
    assert_same(program, x, breaks=0, graphs=1, backend=backend)


def reversed_tensor(x: torch.Tensor) -> Any:
    return reversed(x), list(reversed(x.unbind()))


def errors(x: torch.Tensor) -> Any:
    found = []
    for make in (
        lambda: divmod(x, 2),  # type: ignore[operator]
        lambda: divmod(2, x),  # type: ignore[operator]
        lambda: {}[(x.shape, "key")],
        lambda: set[int]().pop(),
    ):
        try:
            make()
        except (TypeError, KeyError) as error:
            found.append((type(error).__name__, str(error), error.args))
    return found, x + 1


def popping(x: torch.Tensor) -> Any:
    items = {3, 1, 2}
    return items.pop(), items.pop(), {"one"}.pop(), items, x + 1


def ordered_views(x: torch.Tensor) -> Any:
    import collections

    mapping = collections.OrderedDict(a=x)
    return type(mapping.keys()), type(mapping.items()), mapping.keys(), x + 1


def foreach(x: torch.Tensor) -> Any:
    rows = list((x + 1).unbind())
    same = torch._foreach_add_(rows, 1) is rows
    rows = torch._foreach_lerp_(rows, rows[::-1], torch.tensor(0.5))
    return same, rows, torch._foreach_pow(torch.tensor(2.0), rows), torch._foreach_neg(rows)


@pytest.mark.parametrize("program", [reversed_tensor, errors, popping, ordered_views, foreach])
def test_same_as_eager(program: Any) -> None:
    assert_same(program, x, breaks=0, graphs=1)


def test_leafness_of_inputs_is_guarded() -> None:
    def program(weight: torch.Tensor, y: torch.Tensor) -> Any:
        y.mul_(weight)
        return weight * (2 if weight.is_leaf else 3), weight.is_leaf and weight.grad_fn is None, y.is_leaf

    leaf = torch.ones(3, requires_grad=True)
    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(program, backend=counter, fullgraph=True)
    for weight in (leaf, leaf * 1, leaf):
        expected = program(weight, torch.ones(3))
        dynajit.testing.compare(compiled(weight, torch.ones(3)), expected)
    assert counter.frame_count == 2


# numbers and flags of a call, of which some are others at the next
DATA: dict[str, list[Any]] = {
    "flags": [[True, False, True], [False, False, True], [True, True, False], [True, False, False]],
    "zeros": [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.5, -0.0, 0.0]],
    "no numbers": [[0.5, float("inf")], [float("nan"), 0.5], [0.0, -float("inf")], [1e300, 5e-324]],
    "ints": [[0, 1, 2], [1, 1, 2], [0, 0, 0], [7, -3, 1 << 40]],
    "many": [[*range(20)], [*range(1, 21)], [0] * 20, [*range(40, 20, -1)]],
    "mixed": [[True, 2, 0.5], [False, 2, 0.5], [True, 3, 0.0], [True, 2, 0.0]],
    "nested": [[[0.0, 1.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [2.0, 3.0]], [[1.0, 0.0], [2.0, 4.0]]],
    "tuples": [((True, 0), (0, 1)), ((False, 0), (0, 1)), ((True, 5), (0, 0)), ((True, 0), (0, 0))],
}


def of_list(x: torch.Tensor, data: Any) -> Any:
    return x, torch.tensor(data)


def written(x: torch.Tensor, data: Any) -> Any:
    made = torch.as_tensor(data)
    made[0] = 1
    return made, made.sum(), torch.tensor(data).is_leaf


def as_floats(x: torch.Tensor, data: Any) -> Any:
    return x[0, 0] * torch.tensor(data, dtype=torch.float32), torch.tensor([data[0], data[1]], dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("made", [of_list, written, as_floats])
def test_tensors_of_what_varies_outside(made: Any, kind: str, backend: str) -> None:
    assert_same(made, x, DATA[kind][0], then=[(x, data) for data in DATA[kind][1:]], backend=backend)
