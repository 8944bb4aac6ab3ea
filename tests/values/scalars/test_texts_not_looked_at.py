"""Texts made of numbers and texts from outside, which nothing depends on: one variant for all of them."""

from __future__ import annotations

import operator
import os
import re
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


VOCABULARY = {f"w{i}": i for i in range(9)}


def numbered(x: Tensor, s: str) -> Any:
    before, _, after = s.partition(".")
    return x * int(s.split(".")[1]), before, after.rpartition("."), s.rsplit(".", 1)[0], s.encode()


def looked_up(x: Tensor, s: str) -> Any:
    return x * sum([VOCABULARY.get(word, 7) for word in s.split(sep=".", maxsplit=1)]), s.splitlines()


def of_parts(x: Tensor, s: str) -> Any:
    parts = s.split(".")
    parts.append("end")
    parts[0] = parts[0] + "!"
    return x + len(parts), parts, "/".join(parts), parts is s.split(".")


@pytest.mark.parametrize("program", [numbered, looked_up, of_parts])
def test_parts_of_a_text_vary_as_it_does(program: Callable[..., Any]) -> None:
    given = [(x, f"w{i}.{i}") for i in range(1, 9)]
    assert_same(program, x, "w0.0", then=given, repeat=1, breaks=0, recompiles=1)


def test_a_text_of_ever_other_numbers_of_parts() -> None:
    """The graph ends where it is split, and the rest fits all lists."""

    def counted(x: Tensor, s: str) -> Any:
        words = s.split()
        return x * len(words), words[0]

    texts = ["a b", "a b c d", "q", "b c d", "a b c d e f", "x y z", "a", "k l m n o"]
    report = assert_same(counted, x, texts[0], then=[(x, text) for text in texts[1:]], repeat=1)
    assert len(report.recompile_reasons) <= 3


def test_what_refuses_to_split() -> None:
    def refused(x: Tensor, s: str, by: str) -> Any:
        try:
            return x, s.split(by), s.partition(by)
        except ValueError as error:
            return x, str(error)

    assert_same(refused, x, "a b", " ", then=[(x, "a,b", ","), (x, "c", ""), (x, "a;c", ";")], repeat=1)


def test_a_made_text_is_asked() -> None:
    def asked(x: Tensor, n: int) -> Any:
        name = "/".join(["runs", f"step_{n:05d}.pt"])
        return x * n, name.endswith(".pt"), name.find("_"), name.isascii(), name.split("/"), name.count("0") > 1

    assert_same(asked, x, 2, then=[(x, n) for n in range(3, 12)], repeat=1, breaks=0, recompiles=1)


def test_pieces_of_a_text_that_varies() -> None:
    def cut(x: Tensor, s: str) -> Any:
        return x * int(s[5:]), s[:4], s[-1], s[::2], s[1:-1].upper(), s[100:]

    assert_same(cut, x, "item-000", then=[(x, f"item-{n:03}") for n in range(1, 9)], repeat=1, breaks=0, recompiles=1)
    assert_same(lambda x, s: (x, s[0]), x, "ab", then=[(x, s) for s in ("cd", "", "e")])


def test_matches_of_a_text_that_varies() -> None:
    """What the search gives is another one at each call: what follows does not rely on it."""

    def matched(x: Tensor, s: str) -> Any:
        found = re.match(r"(\w+)-(\d+)", s)
        return x * int(found.group(2)), found.groups(), found.start()  # type: ignore[union-attr]

    report = assert_same(matched, x, "item-000", then=[(x, f"it{n}-{n:03}") for n in range(1, 12)], repeat=1)
    assert len(report.recompile_reasons) <= 9


def test_texts_that_vary_in_order() -> None:
    def ordered(x: Tensor, names: list[str]) -> Any:
        names.sort(reverse=True)
        return x * 2, sorted([*names, "m"]), names, ", ".join(sorted(names))

    given = [[f"w{n * 7 % 5}", f"a{n}", f"z{n * 3 % 4}", "w1"] for n in range(9)]
    report = assert_same(ordered, x, given[0], then=[(x, each) for each in given[1:]], never_repeats="sorts in place")
    assert len(report.recompile_reasons) <= 2
