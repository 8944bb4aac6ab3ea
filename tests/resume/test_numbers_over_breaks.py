"""Numbers handed over at a break: a loop's counter is symbolic from the first iteration on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import CompileCounter, assert_same


def told(value: Any) -> Any:
    print("told", value)
    return value


def while_counter(x: Tensor) -> Tensor:
    x, n = x.sin(), 0
    while n < 9:
        x = x * 2
        told(n)
        x = x + 1
        n += 1
    return x.cos()


def for_counter(x: Tensor) -> Tensor:
    x = x.sin()
    for i in range(9):
        x = x * i
        told(i)
        x = x + i
    return x.cos()


def enumerated(x: Tensor) -> Tensor:
    x = x.sin()
    for i, part in enumerate([x, x + 1, x + 2, x + 3]):
        x = x * i
        told(i)
        x = x + part * i
    return x.cos()


def zipped(x: Tensor) -> Tensor:
    x = x.sin()
    for i, (a, b) in zip(range(4), [(1, 7), (2, 7), (3, 7), (4, 7)], strict=True):
        x = x * a
        told(i)
        x = x + i * a + b
    return x.cos()


def shrinking(x: Tensor) -> Tensor:
    x, rate = x.sin(), 1.0
    for _ in range(5):
        x = x * rate
        told(rate)
        rate *= 0.5
    return x.cos()


@pytest.mark.parametrize("fn", [while_counter, for_counter, enumerated, zipped, shrinking])
def test_like_eager(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.linspace(-1.0, 2.0, 6))


@pytest.mark.parametrize("fn", [while_counter, for_counter])
def test_four_graphs(fn: Callable[..., Any]) -> None:
    counter = CompileCounter()
    dynajit.compile(fn, backend=counter)(torch.ones(3))
    assert counter.frame_count == 4


def test_a_mark_is_kept_behind_a_break() -> None:
    def fn(x: Tensor, n: int) -> Tensor:
        x = x * n
        told("here")
        return x + n

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for n in (2, 3, 4, 5):
        assert torch.equal(compiled(torch.ones(3), n), fn(torch.ones(3), n))
    assert counter.frame_count == 4  # with a constant and with a symbol, on both sides


def test_reset_forgets_the_graphs_of_parts() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(while_counter, backend=counter)
    compiled(torch.ones(3))
    dynajit.reset()
    compiled(torch.ones(3))
    assert counter.frame_count == 8


def test_graphs_of_other_inputs_are_other_graphs() -> None:
    def fn(x: Tensor, flag: list[int]) -> Tensor:
        told("here")
        return x + 1 if flag else x + 2

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for flag in ([], [1], []):
        for x in (torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(2, requires_grad=True)):
            assert_same_tensor(compiled(x, flag), fn(x, flag))
        with torch.no_grad():
            assert_same_tensor(compiled(torch.ones(2), flag), fn(torch.ones(2), flag))


def assert_same_tensor(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype and found.requires_grad == expected.requires_grad
    assert torch.equal(found, expected)


TEXTS = {
    "an f-string": lambda n: f"step {n} of {n * 2 + 1:03d}: {n / 4:.2f} {n!r:>6}",
    "percent": lambda n: "step %d" % n + "|%5.1f of %s" % (n, n),  # noqa: UP031
    "format": lambda n: "{}-{:>4}".format(n, n) + format(n, "x"),  # noqa: UP032
    "str": lambda n: "n=" + str(n) + repr(n),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_of_a_number_that_is_only_passed_on_fits_all_numbers(kind: str) -> None:
    """Each number made a variant of its own, and after eight of them the function ran eagerly."""
    text = TEXTS[kind]

    def told(x: torch.Tensor, step: int) -> Any:
        y = x * 2
        print(text(step))
        for number in range(step):
            print(text(number))
            y = y + 1
        return y, text(step)

    x = torch.randn(3)
    report = assert_same(told, x, 3, then=[(x, step) for step in range(4, 16)])
    assert report.graph_count <= 4
    assert len(report.recompile_reasons) <= 2
    assert_same(told, x, 3, then=[(x, True), (x, -1), (x, 2)] if kind == "str" else [])


def test_a_text_of_a_number_that_the_program_reads_is_guarded() -> None:
    def read(x: torch.Tensor, step: Any) -> Any:
        name = f"layer_{step}"
        found = {"layer_1": x + 1, "layer_2": x * 2}.get(name)
        print(name)
        return found, name.upper(), len(name), f"{name:>10}", name == "layer_2"

    x = torch.randn(3)
    assert_same(read, x, 1, then=[(x, 2), (x, 10), (x, "2"), (x, 2.0), (x, None), (x, 1)])


def test_a_text_that_a_number_does_not_fit_raises() -> None:
    def wrong(x: torch.Tensor, step: Any) -> Any:
        y = x + 1
        print(y.shape)
        return f"{step:c}", "%d" % step, f"{step:d}"  # noqa: UP031

    x = torch.randn(3)
    assert_same(wrong, x, 65, then=[(x, 66), (x, -1), (x, 1.5), (x, "a"), (x, 1 << 40)])
