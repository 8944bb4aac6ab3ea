"""Tables of user-like programs.

In: functions behind `@cases(*args)`. Out: a parametrized test compares each with eager in everything a caller can see
(`dynajit.testing.assert_same`) and pins its graphs and breaks: one graph and no break unless the case says otherwise.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.testing import assert_same

Function = Callable[..., Any]


@dataclasses.dataclass
class Case:
    """One program, its arguments, and what is expected of its capture."""

    fn: Function
    args: tuple[Any, ...]
    options: dict[str, Any]

    def check(self) -> None:
        assert_same(self.fn, *self.args, **self.options)


class Cases(list[Case]):
    """The programs of one test module."""

    def __call__(
        self, *args: Any, graphs: int | None = 1, breaks: int | None = 0, recompiles: int | None = None, **options: Any
    ) -> Callable[[Function], Function]:
        def register(fn: Function) -> Function:
            pinned = {"graphs": graphs, "breaks": breaks, "recompiles": recompiles, **options}
            self.append(Case(fn, args, pinned))
            return fn

        return register

    @property
    def names(self) -> Sequence[str]:
        return [case.fn.__name__ for case in self]
