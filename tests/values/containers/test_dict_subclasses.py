"""What C code does with instances of subclasses of dict: it passes over their own methods."""

from collections.abc import Iterator
from typing import Any

import torch

from dynajit.testing import assert_same

x = torch.arange(6.0).reshape(2, 3)


class Marking(dict[str, Any]):
    """`|=` and `reversed` of C's, which never call `__setitem__`."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, (value, "set"))


class Own(dict[str, Any]):
    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        self["own"] = other
        return self

    def __reversed__(self) -> Iterator[Any]:
        return iter("zz")


def test_update_in_place() -> None:
    def program(x: torch.Tensor) -> Any:
        made = Marking(a=3)
        alias = made
        made |= {"z": x}
        made |= [("q", 1)]
        made["w"] = 2
        return made["z"] * 2, made, alias is made, list(reversed(made))

    assert_same(program, x, graphs=1, breaks=0)


def test_update_in_place_of_an_argument() -> None:
    def program(x: torch.Tensor, given: Marking) -> Any:
        given |= Marking(b=5, c=6)
        return x * given["c"], given, list(reversed(given))

    assert_same(program, x, Marking(a=1, b=2), breaks=0)


def test_update_with_what_is_no_mapping() -> None:
    def program(x: torch.Tensor) -> Any:
        made, said = Marking(a=3), []
        for bad in (3, [(1, 2, 3)], [1]):
            try:
                made |= bad  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                said.append((type(error).__name__, str(error)))
        return x + 1, made, said

    assert_same(program, x)


def test_reversed_over_a_break() -> None:
    def program(x: torch.Tensor, given: Marking) -> Any:
        made = Marking(a=1, b=2)
        first, second = reversed(made), reversed(given)
        print(next(first), next(second))
        return x + 1, list(first), list(second), made

    assert_same(program, x, Marking(c=1, d=2))


def test_own_methods_come_first() -> None:
    def program(x: torch.Tensor) -> Any:
        made = Own()
        made |= {"a": x}
        return made["own"]["a"] * 2, list(reversed(made))

    assert_same(program, x, graphs=1, breaks=0)
