"""Tables of programs, each compared with eager in everything a caller can see.

In: functions behind `@cases(*args)`; with `make=True` the function makes a module, which is what is compiled. Out: a
parametrized test has `dynajit.testing.assert_same` check each of them. One graph and no break are expected, if the case
does not say otherwise.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

import dynajit
from dynajit.testing import assert_same

Function = Callable[..., Any]
BACKENDS = ("eager", "aot_eager", "codegen")


def rand(*shape: int, grad: bool = False) -> torch.Tensor:
    """Always the same tensor of a shape."""
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


def leaf(*shape: int) -> torch.Tensor:
    """The same that requires grad."""
    return rand(*shape, grad=True)


@dataclasses.dataclass
class Case:
    """One program, its arguments, and what is expected of its capture (options of `assert_same`)."""

    fn: Function
    args: tuple[Any, ...]
    options: dict[str, Any]
    make: bool = False

    def program(self) -> Function:
        """What is compiled."""
        torch.manual_seed(99)
        program: Function = self.fn() if self.make else self.fn
        return program

    def check(self, backend: str = "eager") -> None:
        assert_same(self.program(), *self.args, backend=backend, **self.options)


class Cases(list[Case]):
    """The programs of one test module. `options`: what is expected of each that does not say otherwise."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = {"graphs": 1, "breaks": 0, **options}

    def __call__(self, *args: Any, make: bool = False, **options: Any) -> Callable[[Function], Function]:
        def register(fn: Function) -> Function:
            self.append(Case(fn, args, self.options | options, make))
            return fn

        return register

    @property
    def names(self) -> Sequence[str]:
        return [case.fn.__name__ for case in self]


def same(fn: Function, *args: Any) -> Any:
    """What `fn` gives, twice compiled as in eager; the arguments are not copied."""
    expected = fn(*args)
    compiled = dynajit.compile(fn, backend="eager")
    assert compiled(*args) == expected
    assert compiled(*args) == expected
    return expected


@dynajit.disable
def outside(*values: Any) -> Any:
    """A break."""
    return values[0] if values else None
