"""Entries of an instance's dictionary that hide behind a data descriptor of its class."""

from __future__ import annotations

from typing import Any

import torch

from dynajit.testing import assert_same


class Doubled:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else instance.__dict__.get(self.name, 1) * 2

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value


class Holder:
    a = Doubled()
    b = Doubled()

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @property
    def c(self) -> Any:
        return vars(self)["c"] * 3


x = torch.arange(3.0)


def reading(holder: Holder) -> Any:
    return (
        holder.a,
        holder.__dict__["a"] + 1,
        vars(holder).get("b", x),
        [v + 1 for v in vars(holder).values()],
        holder.c,
    )


def writing(holder: Holder) -> Any:
    holder.a = x + 1
    print(end="")
    holder.__dict__["b"] = holder.a * 2
    print(end="")
    return holder.a, holder.b, sorted(vars(holder))


def inside() -> Any:
    class Loud(Doubled):
        def __get__(self, instance: Any, owner: Any = None) -> Any:
            print("get", self.name)
            return super().__get__(instance, owner)

    class Local:
        a = Loud()
        b = Loud()

    holder = Local()
    holder.a = x + 1  # type: ignore[assignment]
    return holder.a, holder.b, Local.a.name


def test_entries_are_read_past_the_descriptor() -> None:
    assert_same(reading, Holder(a=x, c=x + 2))
    assert_same(reading, Holder(a=x, b=x - 1, c=x))


def test_entries_are_written_past_the_descriptor() -> None:
    assert_same(writing, Holder(c=x))


def test_descriptors_of_a_local_class(capsys: Any) -> None:
    assert_same(inside, never_repeats="each call makes a class of its own")
