"""Lists of other lengths, tables of other names: what is met for the first time beside numbers and sizes that are known
to vary varies, too, so each length is compiled once. A number with a name of its own has to be seen to change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.report import records
from dynajit.testing import compare

X = torch.linspace(-1, 1, 8)
LENGTHS = (2, 3, 4, 5)
CALLS = 3 * len(LENGTHS)


def rows(size: int) -> Tensor:
    return torch.linspace(-1, 1, size * 4).reshape(size, 4)


def scaled_by_layer(x: Tensor, layers: dict[str, dict[str, float]]) -> Tensor:
    for layer in layers.values():
        x = x * layer["scale"] + layer["shift"]
    return x


# name -> a function, and its arguments at a call, of a length
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "floats": (lambda x, ns: x * sum(ns), lambda call, n: (X, [call + 0.5 + k for k in range(n)])),
    "ints": (lambda x, ns: x * sum(n * n for n in ns), lambda call, n: (X, tuple(call + 2 + k for k in range(n)))),
    "texts": (lambda x, names: x + sum(map(len, names)), lambda call, n: (X, [f"{call}{k}" for k in range(n)])),
    "flags": (
        lambda x, flags: x + torch.tensor(flags, dtype=torch.float32).sum(),
        lambda call, n: (X, [bool(call * 7 >> k & 1) for k in range(n)]),
    ),
    "pairs": (
        lambda x, pairs: x + sum(a * b for a, b in pairs),
        lambda call, n: (X, [(call + 2, k + call + 0.5) for k in range(n)]),
    ),
    "objects": (
        lambda x, items: x * sum(item.n for item in items),
        lambda call, n: (X, [SimpleNamespace(n=call + 2 + k) for k in range(n)]),
    ),
    "tables of tables": (
        scaled_by_layer,
        lambda call, n: (X, {f"layer{k}": {"scale": call + 0.5, "shift": k + call + 0.1} for k in range(n)}),
    ),
    "tensors": (lambda xs: torch.cat(xs).sum(0), lambda call, n: ([rows(call * 3 + k * 5 + 2) for k in range(n)],)),
    "transposed tensors": (
        lambda xs: [x.cos() for x in xs],
        lambda call, n: ([rows(call * 3 + k * 5 + 2).T for k in range(n)],),
    ),
}


def captures(fn: Callable[..., Any], backend: str, calls: list[tuple[Any, ...]]) -> list[int]:
    """At which calls something is compiled; each is compared with eager."""
    dynajit.reset()
    compiled, compiled_at = dynajit.compile(fn, backend=backend), []
    for number, arguments in enumerate(calls, 1):
        seen: list[records.CompileRecord] = []
        with records.listen(seen.append):
            found = compiled(*arguments)
        compare(found, fn(*arguments), exact=backend == "eager")
        compiled_at += [number] * len(seen)
    return compiled_at


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_length_is_compiled_once(name: str, backend: str) -> None:
    """Once more the first, which was compiled before anything was seen to vary."""
    fn, given = PROGRAMS[name]
    lengths = itertools.islice(itertools.cycle(LENGTHS), CALLS)
    found = captures(fn, backend, [given(call, length) for call, length in enumerate(lengths)])
    assert found == [*range(1, len(LENGTHS) + 2)][: len(found)], found


def test_a_number_of_another_name_is_taken_as_it_is() -> None:
    def f(x: Tensor, table: dict[str, float]) -> Tensor:
        return x * table["scale"] + table.get("times", 1)

    tables = [{"scale": 0.5}, {"scale": 1.5}, *({"scale": call + 0.5, "times": 3 + call} for call in range(2, 6))]
    assert captures(f, "eager", [(X, table) for table in tables]) == [1, 2, 3, 4]


def test_numbers_of_dimensions_in_turn_each_vary() -> None:
    """Batches with and without heads: a number of dimensions forgets nothing of another one."""

    def f(x: Tensor) -> Tensor:
        return x.softmax(-1) * 2

    shapes = [(call + 2, call + 2) if call % 2 else (2, call + 2, call + 2) for call in range(10)]
    assert captures(f, "eager", [(torch.ones(shape),) for shape in shapes]) == [1, 2, 3, 4]
