"""Texts made of numbers and texts from outside, which nothing depends on: one variant for all of them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same

x = torch.ones(2)


class Rude(str):
    def upper(self) -> str:
        return "no"


def methods(x: Tensor, s: str) -> Any:
    return x * 2, s.lower(), s.strip() + "!", "ab".replace("a", s), s.join(["x", "y"]), s.rjust(8, "*"), s.zfill(5)


def of_a_number(x: Tensor, s: str) -> Any:
    return x * 2, f"s{s}".upper().replace("S", "q"), "-".join(["a", str(s)]), "_".join(("b", f"{s}", "c"))


def paths(x: Tensor, s: str) -> Any:
    return x + 1, os.path.join("/tmp", f"a{s}.pt"), os.path.basename(f"/a/b{s}"), os.path.dirname(f"/a{s}/b")


TEXTS = ["aB", "c ", " d", "", "%c{}"]


@pytest.mark.parametrize("program", [methods, of_a_number, paths])
def test_one_variant(program: Callable[..., Any]) -> None:
    assert_same(program, x, TEXTS[0], then=[(x, s) for s in TEXTS[1:]], repeat=1, graphs=1, breaks=0, recompiles=0)


@pytest.mark.parametrize("program", [of_a_number, paths])
def test_one_variant_for_numbers(program: Callable[..., Any]) -> None:
    assert_same(program, x, 3, then=[(x, i) for i in range(4, 9)], repeat=1, graphs=1, breaks=0, recompiles=0)


def test_digits_of_a_number() -> None:
    def digits(x: Tensor, n: int) -> Any:
        return x * n, hex(n), bin(n) + oct(n)

    assert_same(digits, x, 3, then=[(x, i) for i in range(4, 9)], repeat=1, recompiles=1)
    assert_same(lambda x, n: (x, hex(n)), x, 3, then=[(x, 4), (x, True), (x, 5)])


class Odd(int):
    def __index__(self) -> int:
        return int(str(self)) + 1


def test_an_int_is_the_index_that_it_is() -> None:
    def asked(x: Tensor, n: int) -> Any:
        return x * operator.index(n), operator.index(Odd(n)), Odd(n).__index__(), hex(Odd(n)), [*range(9)][Odd(n)]

    assert_same(asked, x, 3, then=[(x, Odd(4)), (x, True)])


def test_a_number_for_a_text_raises() -> None:
    def joined(x: Tensor, s: Any) -> Any:
        try:
            return x + 1, "a".join([s, 3])
        except TypeError as error:
            return x + 2, str(error)

    def moved(x: Tensor, s: Any) -> Any:
        try:
            return x + 1, s.rjust("a")
        except TypeError as error:
            return x + 2, str(error)

    assert_same(joined, x, "a", then=[(x, "b")])
    assert_same(moved, x, "a", then=[(x, "b")])


def test_what_is_looked_at_is_relied_on() -> None:
    def measured(x: Tensor, s: str) -> Any:
        return x * len(s.strip()), s.lower() == "ab", {s.upper(): 1}, "-".join(c for c in s)

    assert_same(measured, x, "aB", then=[(x, " Ab"), (x, "q")], repeat=1, recompiles=2)


def test_other_classes_go_their_own_way() -> None:
    def called(x: Tensor, s: str) -> Any:
        return x, Rude(s).upper(), Rude(s).lower(), str.upper(Rude(s)), os.path.join(Path("/a"), s)

    assert_same(called, x, "ab", then=[(x, "cd")])
