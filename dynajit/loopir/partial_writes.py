"""Writes of a part of an input: functional graphs give the whole input anew, which is then copied to it.

In:  the copies at the end of a functional ATen graph. Out: `PartialWrites`, what they change of the inputs, and what
was written where a part is read again. One more operator: a row in `_VIEWS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

# Operators that give a tensor with a part of it exchanged -> the view that is that part.
_VIEWS: dict[Any, Any] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
}
# More parts than this are not worth a copy each, nor are parts that are more of the input than one in so many elements.
MAX_PARTS, SHARE = 8, 2

# A view: its operator, its arguments but for the first, and a node of its shape.
View = tuple[Any, tuple[Any, ...], Node]
Part = tuple[tuple[View, ...], Node]


class PartialWrites:
    """What the copies into inputs at the end of a graph change of them.

    parts: for each copy that changes little, the parts in order, each with its value. What is returned of such an input
    is made a view of it by the caller, so that a part may be read from other memory.
    """

    def __init__(self, copies: Iterable[Node]) -> None:
        self.parts: dict[Node, list[Part]] = {}
        self._exchanged: set[Node] = set()
        for copy in copies:
            chain: list[Node] = []
            parts = _parts_written(copy, chain)
            if parts is not None:
                self.parts[copy] = parts
                self._exchanged.update(chain)

    def value_of(self, node: Node) -> Node | None:
        """The node whose value the view has, if it is the part that was written last of what it is a view of."""
        return _value_of_part(node) if node.args and node.args[0] in self._exchanged else None


def reads_written(node: Node) -> bool:
    """Whether the node is a view of a tensor with a part exchanged: it may follow the copies."""
    base = node.args[0] if node.args else None
    return isinstance(base, Node) and base.target in _VIEWS and node.target in _VIEWS.values()


def _value_of_part(node: Node) -> Node | None:
    base = node.args[0] if node.args else None
    if not isinstance(base, Node) or _VIEWS.get(base.target) is not node.target or base.kwargs or node.kwargs:
        return None
    return base.args[1] if base.args[2:] == node.args[1:] else None  # type: ignore[return-value]


def _parts_written(copy: Node, chain: list[Node]) -> list[Part] | None:
    """None if that is most of the input, or if all that is copied is needed besides."""
    given, whole = copy.args[:2]
    parts = _parts(whole, lambda node: node is given, chain)
    if parts is None or not 0 < len(parts) <= MAX_PARTS:
        return None
    sizes = [_size(node) for node in (given, *(value for _, value in parts))]
    if not all(type(size) is int for size in sizes) or 0 in sizes or SHARE * sum(sizes[1:]) > sizes[0]:
        return None
    within = {copy, *chain}
    for node in chain:
        if not all(user in within or _value_of_part(user) or _only_shape_counts(user) for user in node.users):
            return None
    return parts


def _only_shape_counts(view: Node) -> bool:
    """Whether the view is there for what is copied to it, and not read."""
    copies = all(user.target is aten.copy.default and user.args[1] is not view for user in view.users)
    return view.target in _VIEWS.values() and copies


def _parts(whole: Any, begins: Callable[[Any], bool], chain: list[Node]) -> list[Part] | None:
    """What was exchanged one after the other of the node where it begins; None if it begins elsewhere."""
    parts: list[Part] = []
    while not begins(whole):
        if not isinstance(whole, Node) or whole.target not in _VIEWS or whole.kwargs:
            return None
        before, value, *rest = whole.args
        if not isinstance(value, Node):
            return None
        view = (_VIEWS[whole.target], tuple(rest), value)
        inner = _parts(value, functools.partial(_is_view, before, view), [])
        parts[:0] = [((view, *views), written) for views, written in (inner if inner is not None else [((), value)])]
        chain.append(whole)
        whole = before
    return _last_of_each(parts)


def _is_view(of: Any, view: View, node: Any) -> bool:
    if not isinstance(node, Node) or node.kwargs:
        return False
    if node.target is view[0] and node.args == (of, *view[1]):
        return True
    # the value that an earlier write of the same part gave
    return isinstance(of, Node) and _VIEWS.get(of.target) is view[0] and of.args[1:] == (node, *view[1])


def _last_of_each(parts: list[Part]) -> list[Part]:
    """Without those that a later one of the same place replaces."""
    last = {tuple((target, rest) for target, rest, _ in views): at for at, (views, _) in enumerate(parts)}
    return [parts[at] for at in sorted(last.values())]


def _size(node: Any) -> Any:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.numel() if isinstance(value, torch.Tensor) else None
