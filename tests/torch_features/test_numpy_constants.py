"""NumPy on what is known while tracing: results are constants of the graph; arrays that leave it are new each time."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dynajit
from dynajit.testing import assert_same

x = torch.arange(16.0).reshape(2, 2, 4)


def scalars(x: torch.Tensor) -> Any:
    scale = np.sqrt(x.shape[-1])
    number = float(np.log(3.0)) * np.float32(2) + np.int64(1)
    return x / scale, np.pi * np.float32(2) * x, x * number, scale, x.reshape(int(np.prod(x.shape[:2])), -1)


def scalars_of_scalars(x: torch.Tensor) -> Any:
    elements = np.float64(np.prod(x.shape))
    levels = int(np.floor(np.log2(np.float32(8)))) + int(np.ceil(np.int64(5) / 2))
    return x * float(np.log(elements)) + levels, np.sqrt(elements), np.exp(-np.float32(2))


def decompositions(x: torch.Tensor) -> Any:
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    values, vectors = np.linalg.eigh(matrix)
    apart = x.reshape(8, 2).double() @ torch.from_numpy(vectors) * values.sum()
    frequencies = torch.as_tensor(np.fft.fftfreq(4), dtype=x.dtype)
    solved = torch.from_numpy(np.linalg.solve(matrix, np.linalg.inv(matrix)))
    return apart, x * frequencies * float(np.linalg.norm([3, 4])), solved, np.linalg.svd(matrix)[1]


def tables(x: torch.Tensor) -> Any:
    mask = torch.from_numpy(np.triu(np.ones((1, 4, 4)), k=1).astype("uint8")) == 0
    places = np.arange(4)[:, None] / np.power(10000, np.arange(4)[None] / 4)
    places[:, 0::2] = np.sin(places[:, 0::2])
    places[:, 1::2] = np.cos(places[:, 1::2])
    return x[0, 0] + torch.as_tensor(places, dtype=torch.float32), mask


def loops_and_questions(x: torch.Tensor) -> Any:
    for step in np.linspace(0.0, 1.0, 4):
        x = x * step + 1
    names = {np.int64(1): "one"}
    return (
        x,
        names[1],
        (np.array([1, 2]) == np.array([1, 3])).tolist(),
        bool(np.any([0, 1])),
        f"{np.float64(1.5):.2f}",
        -np.float64(2),
    )


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("program", [scalars, scalars_of_scalars, tables, decompositions, loops_and_questions])
def test_no_break(program: Any, backend: str) -> None:
    assert_same(program, x, breaks=0, graphs=1, backend=backend)


def test_scalars_kept_by_a_module_are_guarded_by_value() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale: Any = np.sqrt(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / self.scale  # type: ignore[no-any-return]

    module = Scaled()
    compiled = dynajit.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x / 4)
    module.scale = np.sqrt(4)
    torch.testing.assert_close(compiled(x), x / 2)


def test_arrays_that_leave_the_graph_share_memory_as_in_eager_mode() -> None:
    def f(x: torch.Tensor, factor: int) -> Any:
        table = np.zeros((4, 2))
        row = table[1]
        table[0, 1] = 3
        row += 2
        table[2:] = np.ones(2) * factor
        copied = torch.tensor(table)
        if factor == 2:
            dynajit.graph_break()
        table *= 2
        return x.sum() * copied, table.tolist(), row.tolist(), row.base is table

    assert_same(f, x, 1, then=[(x, 2), (x, 2)])


def test_memory_that_a_tensor_shares() -> None:
    def f(x: torch.Tensor) -> Any:
        array = np.arange(6.0)
        shared = torch.from_numpy(array)
        shared.add_(1)
        total = array.sum()
        array[0] = 100.0
        return x.sum() + shared, float(total), array.tolist()

    assert_same(f, x)


def test_errors_are_numpys() -> None:
    assert_same(lambda x: x + np.zeros(3).reshape(5, 5), x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize(
    "call",
    [
        "torch.tensor(k)",
        "torch.as_tensor(k)",
        "torch.asarray(k)",
        "torch.tensor(k, dtype=torch.int32)",
        "torch.tensor([k, 1])",
        "torch.as_tensor([[k], [1.5]])",
        "torch.tensor((k, k), dtype=torch.float32)",
        "torch.tensor([k, x.sum()])",
        "x.new_tensor([k])",
        "torch.scalar_tensor(k)",
        "torch.full((2,), k)",
        "torch.full_like(x.int(), k)",
        "torch.where(x > 0, k, 1)",
        "torch.arange(k)",
        "x.int() * k",
        "k + x.half()",
        "x.bool() | k",
        "x.sum(0, keepdim=k)",
        "x[k]",
        "torch.result_type(x, k)",
    ],
)
def test_scalars_are_to_torch_what_they_are_in_eager_mode(call: str, kind: Any) -> None:
    values = torch.tensor([1.0, 2.0])
    assert_same(eval(f"lambda x, k: {call}"), values, kind(1), then=[(values, kind(2)), (values, kind(3))])


DIVIDED: dict[str, Any] = {
    "/": lambda x, n: (x * (n / 4), n / 2, 3 / (n + 20)),
    "//": lambda x, n: (x, n // 3, n // -2, -7 // (n + 20)),
    "%": lambda x, n: (x + n % 3, n % -4, n % 2.5),
    "**": lambda x, n: (x, n**2, 1.5**n),
    "abs, round": lambda x, n: (x * abs(n), abs(n), round(n, 1)),
    "several": lambda x, n: x * ((n % 5) / 3 + abs(n) // 2),
}


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float64, np.float32])
@pytest.mark.parametrize("name", DIVIDED)
def test_what_is_computed_of_a_scalar_that_varies_varies(name: str, kind: Any) -> None:
    fn = DIVIDED[name]
    dynajit.reset()
    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for number in (3, 4, 5, -6, 9, 11, 2, 17, 8, -3, 12):
        scalar = kind(number) if issubclass(kind, np.integer) else kind(number + 0.25)
        found, expected = compiled(x, scalar), fn(x, scalar)
        dynajit.testing.compare(found, expected)
    assert counter.frame_count <= 3


WARNING: dict[str, Any] = {
    "a scalar": lambda x, n: (x + 1, np.float64(1) / n),
    "integers": lambda x, n: (x + 1, np.int8(100) + np.int8(100)),
    "an array": lambda x, n: (x + 1, np.arange(3) / n),
    "a function": lambda x, n: (x + 1, np.log(n)),
}


@pytest.mark.parametrize("kind", [float, np.float64, np.int64])
@pytest.mark.parametrize("name", WARNING)
def test_numpy_warns_at_each_call(name: str, kind: Any) -> None:
    fn = WARNING[name]
    dynajit.reset()
    compiled = dynajit.compile(fn, backend="eager")
    for number in (2, 0, 0, 3, 0, 4):
        told = []
        for each in (fn, compiled):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                each(x, kind(number))
            told.append([str(one.message) for one in seen])
        assert told[0] == told[1], number


def test_ignored_warnings_break_nothing() -> None:
    with np.errstate(all="ignore"):
        assert_same(lambda x: (x + 1, np.float64(1) / np.float64(0)), x, breaks=0, graphs=1)
