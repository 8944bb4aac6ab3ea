"""Functions that lead to nothing but parts past their limit of variants run as they were written, where no variant of
these parts may fit; where one may, it is still found, and what else was compiled is still called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit import _C
from dynajit.report import records

LIMIT = 3
calls = [0]
Program = Callable[[torch.Tensor, Any], Any]


def counting(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """Counts the calls of graphs."""

    def run(*inputs: Any) -> Any:
        calls[0] += 1
        return module(*inputs)

    return run


@dynajit.disable
def outside() -> None:
    pass


def looping(x: torch.Tensor, flag: Any) -> Any:
    for _ in range(2):
        x = x * 2
        outside()
    return x


def nested(x: torch.Tensor, flag: Any) -> Any:
    for _ in range(2):
        for _ in range(2):
            x = x + 1
            outside()
    return x


def calling_one(x: torch.Tensor, flag: Any) -> Any:
    """The callee's loop is past its limit before the callee is a frame of its own."""
    for function in (looping,):
        x = function(x, flag)
    return x


def calling(x: torch.Tensor, flag: Any) -> Any:
    for function in (looping, nested):
        x = function(x, flag)
    return x


def unread_until_then(x: torch.Tensor, flag: Any) -> Any:
    for _ in range(2):
        x = x * len(flag) if flag > "b" else x - 1
        outside()
    return x


def loop_behind_a_break(x: torch.Tensor, flag: Any) -> Any:
    y = x * 3
    outside()
    for _ in range(2):
        y = y * 2
        outside()
    return [y]


def graph_behind_the_loop(x: torch.Tensor, flag: Any) -> Any:
    for _ in range(2):
        x = x * 2
        outside()
    return x.sum() + torch.arange(3.0)


def by_item(x: torch.Tensor, flag: Any) -> Any:
    results = []
    for function in (torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid):
        results.append(function(x))
        outside()
    return results


def made(x: torch.Tensor, flag: Any) -> Iterator[torch.Tensor]:
    for _ in range(2):
        x = x * 2
        outside()
        yield x


def sizes(count: int) -> list[tuple[torch.Tensor, str]]:
    return [(torch.arange(float(size + 2)), "a") for size in range(count)]


def flags(count: int) -> list[tuple[torch.Tensor, str]]:
    return [(torch.ones(3), chr(ord("a") + n) * (n + 1)) for n in range(count)]


@pytest.fixture(autouse=True)
def few_variants() -> Iterator[None]:
    with dynajit.config.patch(recompile_limit=LIMIT):
        yield
    dynajit.reset()


def compiled_past_limit(program: Program, given: list[tuple[torch.Tensor, str]]) -> Program:
    dynajit.reset()
    compiled = dynajit.compile(program, backend=counting, dynamic=False)
    with pytest.warns(UserWarning, match="recompile_limit"):
        for _ in range(2):
            for x, flag in given:
                same(compiled(x.clone(), flag), program(x, flag))
    return compiled


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def graphs_called(compiled: Program, program: Program, x: torch.Tensor, flag: str) -> int:
    """How many graphs a call runs, which compiles nothing."""
    before, seen = calls[0], list[records.CompileRecord]()
    with records.listen(seen.append):
        same(compiled(x.clone(), flag), program(x, flag))
    assert not seen
    return calls[0] - before


def runs_as_written(program: Program, compiled: Program, x: torch.Tensor, flag: str) -> bool:
    variants = _C.variants(program.__code__)
    before = [variant.hits for variant in variants if variant.data.eager]
    compiled(x, flag)
    return before != [variant.hits for variant in variants if variant.data.eager]


@pytest.mark.parametrize(
    ("program", "given"),
    [
        *((program, sizes) for program in (looping, nested, calling_one, calling)),
        (unread_until_then, flags),
    ],
)
def test_what_no_variant_fits_runs_as_written(program: Program, given: Callable[[int], Any]) -> None:
    every = given(10)
    compiled = compiled_past_limit(program, every[:8])
    for x, flag in every[:LIMIT]:
        assert graphs_called(compiled, program, x, flag) > 0
    assert not runs_as_written(program, compiled, *every[0])
    for x, flag in every[7:]:
        assert graphs_called(compiled, program, x, flag) == 0
        assert runs_as_written(program, compiled, x, flag)


def test_a_continuation() -> None:
    """That only leads to a loop past its limit, behind a graph."""
    compiled = compiled_past_limit(loop_behind_a_break, sizes(8))
    for x, flag in sizes(LIMIT):
        assert graphs_called(compiled, loop_behind_a_break, x, flag) == 3
    for x, flag in sizes(10)[7:]:
        assert graphs_called(compiled, loop_behind_a_break, x, flag) == 0


def test_a_graph_behind_the_loop_is_still_called() -> None:
    compiled = compiled_past_limit(graph_behind_the_loop, sizes(8))
    for x, flag in sizes(LIMIT):
        assert graphs_called(compiled, graph_behind_the_loop, x, flag) == 3
    assert not runs_as_written(graph_behind_the_loop, compiled, *sizes(9)[8])


def test_items_that_variants_fit_are_still_found() -> None:
    compiled = compiled_past_limit(by_item, sizes(1))
    assert graphs_called(compiled, by_item, *sizes(1)[0]) == LIMIT
    assert graphs_called(compiled, by_item, *sizes(1)[0]) == LIMIT


def test_other_kinds_of_calls_are_compiled() -> None:
    """A call that the function's own guards don't fit is another variant."""

    def program(x: torch.Tensor, flag: Any) -> Any:
        if flag is None:
            return x + 1
        for _ in range(2):
            x = x * 2
            outside()
        return x

    compiled = compiled_past_limit(program, sizes(8))
    compiled(torch.ones(3), None)
    assert graphs_called(compiled, program, torch.ones(3), None) == 1  # type: ignore[arg-type]


def test_an_unbound_free_variable() -> None:
    def make() -> tuple[Program, Callable[[], None]]:
        other = 1

        def unbind() -> None:
            nonlocal other
            del other

        def program(x: torch.Tensor, flag: Any) -> Any:
            for _ in range(2):
                x = x * 2
                outside()
            return x, other

        return program, unbind

    program, unbind = make()
    compiled = compiled_past_limit(program, sizes(8))
    unbind()
    for x, flag in sizes(9)[::4]:
        with pytest.raises(NameError) as wanted:
            program(x, flag)
        with pytest.raises(NameError) as found:
            compiled(x, flag)
        assert str(found.value) == str(wanted.value)


def test_generators() -> None:
    def program(x: torch.Tensor, flag: Any) -> Any:
        return [y + 1 for y in made(x, flag)]

    compiled = compiled_past_limit(program, sizes(8))
    for x, flag in sizes(10):
        graphs_called(compiled, program, x, flag)
