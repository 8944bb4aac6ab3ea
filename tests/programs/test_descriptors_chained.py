"""Class methods around other descriptors, loops that only an exception ends, patterns that read attributes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.ones(2)


class Bound:
    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __call__(self, *args: Any) -> Any:
        return self.wrapped(*args)


class Wrapper:
    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __get__(self, instance: Any, owner: Any) -> Any:
        return Bound(self.wrapped.__get__(instance, owner))

    def __call__(self, *args: Any) -> Any:
        return self.wrapped(*args)


class Subject:
    @classmethod
    @Wrapper
    def outer(cls) -> Any:
        return cls.__name__

    @Wrapper
    @classmethod
    def inner(cls) -> Any:
        return cls.__name__

    @classmethod
    @classmethod
    def twice(cls) -> Any:
        return cls


def test_class_methods_around_descriptors() -> None:
    def program(x: Tensor) -> Any:
        found = []
        for name in ("outer", "inner", "twice"):
            try:
                found.append(getattr(Subject, name)())
                found.append(getattr(Subject(), name)())
            except TypeError as error:
                found.append(type(error))
        return x + 1, found

    assert_same(program, X)


def test_a_loop_that_only_an_exception_ends() -> None:
    def clear(items: list[int]) -> int:
        count = 0
        try:
            while True:
                items.pop()
                print(count)
                count += 1
        except IndexError:
            return count

    def program(x: Tensor) -> Any:
        return x + clear([1, 2, 3])

    assert_same(program, X)


class Counted:
    __match_args__ = ("first",)

    def __init__(self) -> None:
        self.reads = 0

    @property
    def first(self) -> int:
        self.reads += 1
        return self.reads


def test_a_pattern_reads_each_attribute_once() -> None:
    def program(x: Tensor) -> Any:
        made = Counted()
        match made:
            case Counted(n):
                return x * n, made.reads
        return x

    assert_same(program, X)


def test_an_implementation_is_registered_and_called() -> None:
    def program(x: Tensor) -> Any:
        @functools.singledispatch
        def described(value: object) -> str:
            return "object"

        before = described(1)
        described.register(int, lambda value: "int")
        return x + 1, before, described(1), described("a")

    assert_same(program, X, never_repeats="each call makes a function that is guarded by identity")


def test_objects_die_though_a_key_function_is_compiled_meanwhile() -> None:
    import weakref

    class Thing:
        size = 1

    def things(*given: Thing) -> Any:
        yield from given

    made_elsewhere = dynajit.disable(things)
    is_dead = dynajit.disable(lambda reference: reference() is None)

    def program() -> Any:
        thing = Thing()
        reference = weakref.ref(thing)
        (same,) = sorted(made_elsewhere(thing), key=lambda each: each.size)
        del thing, same
        return is_dead(reference)

    assert program() is True and dynajit.compile(program, backend="eager")() is True
