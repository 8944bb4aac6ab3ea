"""Weak references made by compiled functions, and whether what they refer to is still there."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

Tensor = torch.Tensor


class Node:
    child: Any = None


def to_what_it_made(x: Tensor) -> Any:
    node = Node()
    node.child = x
    reference = weakref.ref(node)
    found = reference()
    assert found is not None
    return found.child + 1, found is node, reference is weakref.ref(node), type(reference) is weakref.ref


def to_what_can_have_none(x: Tensor) -> Any:
    try:
        weakref.ref({})  # type: ignore[call-overload]
    except TypeError as error:
        return x + 1, str(error)


def to_an_argument_that_is_changed(x: Tensor, node: Node) -> Any:
    reference = weakref.ref(node)
    node.child = 1
    return x + 1, reference() is node


@pytest.mark.parametrize("program", [to_what_it_made, to_what_can_have_none])
def test_no_break(program: Any) -> None:
    assert_same(program, torch.ones(2), graphs=1, breaks=0)


def to_a_result_of_an_operation(x: Tensor) -> Any:
    y = x.view(-1)
    return x + 1, weakref.ref(y) is weakref.ref(y)


def to_an_argument_across_a_break(x: Tensor, node: Node) -> Any:
    reference = weakref.ref(node)
    print("break")
    return x + 1, weakref.ref(node) is reference, weakref.ref(node, print) is reference


@pytest.mark.parametrize("program", [to_a_result_of_an_operation, to_an_argument_across_a_break])
def test_the_one_made_before(program: Any) -> None:
    node = Node()
    assert_same(program, *(torch.ones(2), node)[: program.__code__.co_argcount])


def test_arguments_live() -> None:
    assert_same(to_an_argument_that_is_changed, torch.ones(2), Node(), graphs=1, breaks=0, repeat=1)


def test_what_nothing_else_holds_is_gone() -> None:
    def f(x: Tensor) -> Any:
        node = Node()
        reference = weakref.ref(node)
        del node
        return x + 1, reference() is None

    assert_same(f, torch.ones(2), breaks=1)


@pytest.mark.parametrize("slots", [False, True])
def test_an_object_from_outside_that_is_let_go_of(slots: bool) -> None:
    def f(x: Tensor, holder: Any) -> Any:
        reference = weakref.ref(holder["child"] if slots else holder.child)
        if slots:
            holder["child"] = None
        else:
            holder.child = None
        return x + 1, reference() is None

    compiled = dynajit.compile(f, backend="eager")
    for _ in range(2):
        holder: Any = Node()
        holder.child = Node()
        assert compiled(torch.ones(2), {"child": Node()} if slots else holder)[1]


def test_the_reference_is_returned() -> None:
    def f(x: Tensor) -> Any:
        node = Node()
        node.child = x * 2
        return node, weakref.ref(node)

    node, reference = dynajit.compile(f, backend="eager")(torch.ones(2))
    assert reference() is node
    del node
    assert reference() is None
