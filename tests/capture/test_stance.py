"""Stances, and guards that the user filters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import dynajit
from dynajit.exc import ConfigError, RecompileForbidden
from dynajit.testing import CompileCounter


@pytest.fixture(autouse=True)
def default_stance() -> Iterator[None]:
    yield
    dynajit.set_stance("default")


def scale(x: torch.Tensor, factor: str) -> torch.Tensor:
    return x * len(factor)


def test_an_unknown_stance_is_refused() -> None:
    with pytest.raises(ConfigError, match="eager_on_recompile"):
        dynajit.set_stance("eagre")


def test_eager_on_recompile() -> None:
    counter, x = CompileCounter(), torch.ones(2)
    compiled = dynajit.compile(scale, backend=counter)
    with dynajit.set_stance("eager_on_recompile"):
        assert torch.equal(compiled(x, "a"), x)  # a first compile is none again
        assert torch.equal(compiled(x, "ab"), 2 * x)
        assert counter.frame_count == 1
    assert torch.equal(compiled(x, "ab"), 2 * x)
    assert counter.frame_count == 2


def test_fail_on_recompile() -> None:
    compiled, x = dynajit.compile(scale, backend="eager"), torch.ones(2)
    compiled(x, "a")
    with dynajit.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(x, "a"), x)
        with pytest.raises(RecompileForbidden, match="'ab'"):
            compiled(x, "ab")
    assert torch.equal(compiled(x, "ab"), 2 * x)


def test_force_eager_runs_nothing_compiled() -> None:
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        def run(*args: torch.Tensor) -> object:
            calls.append(1)
            return graph(*args)

        return run

    compiled, x = dynajit.compile(scale, backend=backend), torch.ones(2)
    compiled(x, "a")
    dynajit.set_stance("force_eager")
    assert torch.equal(compiled(x, "a"), x)
    assert torch.equal(dynajit.compile(lambda y: y + 1, backend=backend)(x), x + 1)
    assert calls == [1]
    dynajit.set_stance("default")
    compiled(x, "a")
    assert calls == [1, 1]


def test_a_stance_as_decorator_holds_during_calls() -> None:
    compiled, x = dynajit.compile(scale, backend="eager"), torch.ones(2)
    compiled(x, "a")

    @dynajit.set_stance("fail_on_recompile")
    def careful(text: str | list[str]) -> torch.Tensor:
        return compiled(x, text)

    assert torch.equal(compiled(x, "ab"), 2 * x)
    assert torch.equal(careful("ab"), 2 * x)
    with pytest.raises(RecompileForbidden):
        careful(["a", "b", "c"])
    assert torch.equal(compiled(x, ["a", "b", "c"]), 3 * x)


def test_guards_that_the_user_leaves_out() -> None:
    counter, x = CompileCounter(), torch.ones(2)
    seen = []

    def keep(guards: list[object]) -> list[bool]:
        seen.extend(guard.kind for guard in guards)  # type: ignore[attr-defined]
        return [guard.kind != "EQUALS" for guard in guards]  # type: ignore[attr-defined]

    compiled = dynajit.compile(scale, backend=counter, options={"guard_filter_fn": keep})
    assert torch.equal(compiled(x, "a"), x)
    assert torch.equal(compiled(x, "ab"), x)  # as was promised not to happen
    assert counter.frame_count == 1
    assert "EQUALS" in seen and "GLOBAL_STATE" in seen


def test_a_filter_that_raises() -> None:
    """As those do that are written for torch.compile's entries."""
    compiled = dynajit.compile(scale, options={"guard_filter_fn": lambda guards: [one.guard_type for one in guards]})
    with pytest.raises(ConfigError, match="guard_filter_fn raised AttributeError"):
        compiled(torch.ones(2), "a")


def test_a_filter_answers_for_each_guard() -> None:
    with pytest.raises(ConfigError, match="guard_filter_fn"):
        dynajit.compile(scale, options={"guard_filter_fn": 3})
