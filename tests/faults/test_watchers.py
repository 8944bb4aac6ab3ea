"""What watches the objects that guards have seen runs while they change or die: with an exception on its way, in a
destructor, beside callbacks that raise. The exception arrives, the change is seen, nothing else is said."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynajit

WARM = 12  # from then on a check that passed is remembered


class Model:
    def __init__(self) -> None:
        self.scale = 2.0
        self.table = {"a": 1}


class Key:
    """A key that can't be compared."""

    def __hash__(self) -> int:
        return hash("a")

    def __eq__(self, other: object) -> bool:
        raise KeyError("compared")


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What could not be raised anywhere."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(args.exc_value))
    yield seen


def step(model: Model, x: torch.Tensor) -> torch.Tensor:
    return x * model.scale + model.table["a"]


def warmed(model: Model) -> Any:
    compiled = dynajit.compile(step, backend="eager")
    x = torch.ones(3)
    for _ in range(WARM):
        assert torch.equal(compiled(model, x), step(model, x))
    return compiled


def test_a_change_while_an_exception_is_on_its_way(unraisable: list[Any]) -> None:
    model, x = Model(), torch.ones(3)
    compiled = warmed(model)

    class Owner:
        def __del__(self) -> None:
            model.scale = 5.0
            model.table["a"] = 7

    def fails() -> None:
        owner = Owner()
        assert owner
        raise ValueError("the program's own")

    with pytest.raises(ValueError, match="own"):
        fails()
    gc.collect()
    assert torch.equal(compiled(model, x), x * 5 + 7)
    assert not unraisable


def test_a_change_that_fails_half_way(unraisable: list[Any]) -> None:
    model, x = Model(), torch.ones(3)
    compiled = warmed(model)
    with pytest.raises(KeyError, match="compared"):
        model.table[Key()] = 3  # type: ignore[index]
    with pytest.raises(KeyError, match="compared"):
        del model.table[Key()]  # type: ignore[arg-type]
    assert torch.equal(compiled(model, x), x * 2 + 1)
    model.table["a"] = 4
    assert torch.equal(compiled(model, x), x * 2 + 4)
    assert not unraisable


def test_what_was_guarded_dies_beside_a_callback_that_raises(unraisable: list[Any]) -> None:
    model, x = Model(), torch.ones(3)
    compiled = warmed(model)

    def raises(reference: Any) -> None:
        raise RuntimeError("the program's callback")

    kept = weakref.ref(model, raises)
    del model
    gc.collect()
    assert kept() is None
    assert [str(error) for error in unraisable] == ["the program's callback"]
    for _ in range(WARM):
        assert torch.equal(compiled(Model(), x), x * 2 + 1)
    assert len(unraisable) == 1


def test_a_generator_closed_by_the_collector_changes_what_is_guarded(unraisable: list[Any]) -> None:
    model, x = Model(), torch.ones(3)
    compiled = warmed(model)

    def generator() -> Iterator[int]:
        try:
            yield 1
        finally:
            model.scale = 9.0

    running = generator()
    next(running)
    holder = [running]
    holder.append(holder)  # type: ignore[arg-type]
    del running, holder
    gc.collect()
    assert torch.equal(compiled(model, x), x * 9 + 1)
    assert not unraisable
