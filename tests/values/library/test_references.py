"""Weak references made by compiled functions, and whether what they refer to is still there."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same, compare

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


X = torch.arange(3.0)


class Keyed:
    def __init__(self) -> None:
        self.items: Any = weakref.WeakKeyDictionary()
        self.members: Any = weakref.WeakSet()
        self.named: Any = weakref.WeakValueDictionary()


def looks_up(x: Tensor, holder: Keyed, key: Node, other: Node) -> Any:
    found = holder.items[key] if key in holder.items else None  # noqa: SIM401
    missing = holder.items.get(other, 5), holder.items.get(other)
    return x * 2, found, missing, key in holder.members, other in holder.members


def counts(x: Tensor, holder: Keyed, key: Node, other: Node) -> Any:
    return x * 2, len(holder.items), len(holder.members), len(holder.named)


def clears(x: Tensor, holder: Keyed, key: Node, other: Node) -> Any:
    before = key in holder.items
    holder.items.data.clear()
    return x * 2, before, key in holder.items, len(holder.items)


def adds(x: Tensor, holder: Keyed, key: Node, other: Node) -> Any:
    holder.members.add(other)
    holder.items[other] = 7
    return x * 2, other in holder.members, holder.items[other], len(holder.items)


def drops(x: Tensor, holder: Keyed, key: Node, other: Node) -> Any:
    before = len(holder.items)
    local = Node()
    holder.items[local] = 3
    during = len(holder.items)
    del local
    return x * 2, before, during, len(holder.items)


def missing(x: Tensor, holder: Keyed, key: Node, other: Node) -> Any:
    try:
        return holder.items[other]
    except KeyError:
        return x + 1


@pytest.mark.parametrize("program", [looks_up, counts, clears, adds, drops, missing])
def test_containers_of_weak_references(program: Any) -> None:
    def outcomes(run: Any) -> list[Any]:
        holder, key, other = Keyed(), Node(), Node()
        seen: list[Any] = []
        for step in range(6):
            if step == 1:
                holder.items[key] = 3
                holder.members.add(key)
                holder.named["k"] = key
            if step == 3:
                holder.items[key] = 4
            if step == 4:
                key = Node()
            seen.append(run(X, holder, key, other))
            seen.append((len(holder.items), len(holder.members), len(holder.named)))
        return seen

    compare(outcomes(dynajit.compile(program, backend="eager")), outcomes(program))


@pytest.mark.parametrize("program", [looks_up, counts])
def test_reading_weak_containers_is_in_the_graph(program: Any) -> None:
    holder, key = Keyed(), Node()
    holder.items[key] = 3
    run = dynajit.compile(program, backend="eager", fullgraph=True)
    assert [*map(str, run(X, holder, key, Node()))] == [*map(str, program(X, holder, key, Node()))]
    gone = weakref.ref(key)
    del key
    assert gone() is None and len(holder.items) == 0


def looks_up_two(x: Tensor, items: Any, first: Node, second: Node) -> Tensor:
    result: Tensor = items[first] * x + 10 * items[second]
    return result


def test_values_of_two_weak_keys_are_two_values() -> None:
    keys = [Node(), Node(), Node()]
    items = weakref.WeakKeyDictionary({key: torch.full((2,), number + 1.0) for number, key in enumerate(keys)})
    compiled = dynajit.compile(looks_up_two, backend="eager")
    for first, second in ((0, 1), (1, 0), (2, 2), (0, 2)):
        args = torch.ones(2), items, keys[first], keys[second]
        torch.testing.assert_close(compiled(*args), looks_up_two(*args))


def test_a_weak_key_made_at_each_call(recwarn: pytest.WarningsRecorder) -> None:
    def made_inside(x: Tensor) -> Tensor:
        key, items = Node(), weakref.WeakKeyDictionary()  # type: ignore[var-annotated]
        items[key] = x * 2
        found: Tensor = items[key]
        return found + len(items)

    compiled = dynajit.compile(made_inside, backend="eager")
    for number in range(3):
        x = torch.full((2,), float(number))
        torch.testing.assert_close(compiled(x), made_inside(x))
    assert not [str(each.message) for each in recwarn if "report the program" in str(each.message)]
