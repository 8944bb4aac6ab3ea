"""Objects that hold, directly or not, what they are part of, and live over a break: each is made once, in an order."""

from __future__ import annotations

import collections
import functools
import weakref
from typing import Any

import pytest
import torch

from dynajit import graph_break
from dynajit.testing import assert_same


class Node:
    """Something with attributes."""

    link: Any


class Ticket:
    """Takes itself out of the table that it was put into, which it doesn't keep alive."""

    def __init__(self, table: dict[int, Any]) -> None:
        self.table = weakref.ref(table)
        self.number = len(table)

    def leave(self) -> None:
        table = self.table()
        if table is not None:
            del table[self.number]


def tuple_of_the_list(x: torch.Tensor) -> Any:
    node = Node()
    nodes = [node]
    node.link = (nodes,)
    graph_break()
    return x + len(nodes), nodes[0].link[0] is nodes


def tuple_of_the_dictionary(x: torch.Tensor) -> Any:
    node = Node()
    nodes = {"a": node}
    node.link = (nodes, 1)
    graph_break()
    return x + len(nodes), nodes["a"].link[0] is nodes


def partial_of_the_closure(x: torch.Tensor) -> Any:
    node = Node()

    def follow() -> Any:
        return node.link()

    node.link = functools.partial(len, [follow])
    graph_break()
    return x + follow(), node.link.args[0][0] is follow


def ticket_of_the_table(x: torch.Tensor) -> Any:
    table: dict[int, Any] = collections.OrderedDict()
    ticket = Ticket(table)
    table[ticket.number] = ticket
    graph_break()
    before = len(table)
    ticket.leave()
    return x + before, len(table)


def hook_of_its_handle(x: torch.Tensor) -> Any:
    table: dict[int, Any] = {}
    calls = []

    def hook() -> None:
        calls.append(ticket.number)
        ticket.leave()

    ticket = Ticket(table)
    table[ticket.number] = hook
    graph_break()
    hook()
    return x + len(calls), len(table)


PROGRAMS = [
    tuple_of_the_list,
    tuple_of_the_dictionary,
    partial_of_the_closure,
    ticket_of_the_table,
    hook_of_its_handle,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_an_object_holds_may_be_built_from_what_holds_it(program: Any) -> None:
    assert_same(program, torch.ones(2), breaks=1)
