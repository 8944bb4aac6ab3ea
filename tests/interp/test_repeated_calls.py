"""Calls of one function on the same objects: traced once where nothing tells them apart, else again."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.interp.machine import Interpreter


class Config:
    names = ("by", "more")

    def __init__(self) -> None:
        self.by, self.more, self.part = 2.0, 1e6, [1]

    def __getattribute__(self, name: str) -> Any:
        if name in super().__getattribute__("names"):
            return super().__getattribute__(name)
        return super().__getattribute__(name)

    @property
    def fresh(self) -> list[int]:
        return [1]

    @property
    def computed(self) -> float:
        return self.more + 1

    @property
    def counted(self) -> int:
        CALLS.append(1)
        return len(CALLS)


CONFIG, OTHER = Config(), Config()
CALLS: list[int] = []


def traced(function: Callable[..., Any], *args: Any) -> tuple[Any, Counter[str]]:
    """What the compiled function gives, and how often each function was traced."""
    frames: Counter[str] = Counter()
    run = Interpreter.run

    def counting(self: Interpreter, frame: Any) -> Any:
        frames[frame.code_object.co_name] += 1
        return run(self, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interpreter, "run", counting)
        return dynajit.compile(function, backend="eager", fullgraph=True)(*args), frames


def test_a_call_is_traced_once() -> None:
    def program(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x * config.by + config.by - config.by

    x = torch.ones(3)
    found, frames = traced(program, x, CONFIG)
    assert torch.equal(found, program(x, CONFIG))
    assert frames["__getattribute__"] == 1


def test_what_was_read_is_guarded() -> None:
    def program(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x * config.by + config.by

    compiled, x, config = dynajit.compile(program, backend="eager", fullgraph=True), torch.ones(3), Config()
    for value in (2.0, 3.0, 2.0):
        config.by = value
        assert torch.equal(compiled(x, config), program(x, config))


# program -> how often __getattribute__ is traced
PROGRAMS: dict[str, tuple[Callable[[torch.Tensor, Any, Any], Any], int]] = {
    "other object": (lambda x, one, other: x * one.by + other.by, 2),
    "other name": (lambda x, one, other: x * one.by + one.more, 2),
    "object from outside": (lambda x, one, other: (x, one.part is one.part, one.part is other.part), 2),
    "new object": (lambda x, one, other: (x, one.fresh is one.fresh), 2),
    "number that is computed": (lambda x, one, other: (x, one.computed is one.computed), 3),
    "changed in between": (lambda x, one, other: (x * one.by, setattr(one, "by", 5.0), x * one.by), 2),
    "class changed in between": (lambda x, one, other: (x, one.names, setattr(Config, "names", ()), one.names), 2),
    "changed by the call": (lambda x, one, other: (x, one.counted, one.counted), 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_that_are_told_apart(name: str) -> None:
    program, times = PROGRAMS[name]
    found = []
    for compiled in (False, True):
        CALLS.clear()
        one, other = Config(), Config()
        x = torch.ones(3)
        found.append(traced(program, x, one, other) if compiled else (program(x, one, other), Counter()))
        Config.names = ("by", "more")
    assert str(found[1][0]) == str(found[0][0])
    assert found[1][1]["__getattribute__"] == times
