"""The text of a list, tuple, dictionary or `torch.Size`, of whose items' texts the program may be asked.

In: the container's model. Out: its text; where numbers or texts in it vary, or nothing depends on them yet, generated
code makes the text of theirs: a line that prints shapes serves all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.standin import StandIn
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.library.text import placeholder, with_texts
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.unread import has_unread, is_unread

CONTAINERS = (list, tuple, dict, torch.Size)


def container_text(tx: Tracer, value: Value) -> Value:
    """`repr(value)`, which is `str(value)`, too."""
    if not has_unread(value, set()) and not _is_in_itself(value, ()):
        try:
            return ConstVal(repr(value.real()))
        except NotReal:
            pass
    texts: list[Value] = []
    made = repr(_stood_for(tx, value, {}, texts))
    return with_texts(tx, made if value.py_type() is not torch.Size else f"torch.Size({made})", texts)


def _is_in_itself(value: Value, around: tuple[int, ...]) -> bool:
    return id(value) in around or any(_is_in_itself(part, (*around, id(value))) for part in value.children())


class _Shown(StandIn):
    """Stands for an item: its text is put off if it isn't known."""

    __slots__ = ("texts",)

    def __init__(self, tx: Tracer, value: Value, texts: list[Value]) -> None:
        super().__init__(tx, value)
        self.texts = texts

    def __repr__(self) -> str:
        text = self.tx.call(self.tx.from_real(repr), [self.value], {})
        return placeholder(text, self.texts) if is_unread(text) else str(text.const())


def _stood_for(tx: Tracer, value: Value, made: dict[int, Any], texts: list[Value]) -> Any:
    """A list, tuple or dictionary of stand-ins; `made`: those that it is in, and what they contain."""
    kind = value.py_type()
    if kind not in CONTAINERS or (kind is torch.Size and made):
        return _Shown(tx, value, texts)
    if id(value) not in made:
        made[id(value)] = kind() if kind in (list, dict) else None
        if isinstance(value, DictVal):
            pairs = [(_Shown(tx, key, texts), _stood_for(tx, item, made, texts)) for key, item in value.items(tx)]
            made[id(value)].update(pairs)
        else:
            parts = [_stood_for(tx, item, made, texts) for item in tx.unpack(value)]
            if kind is list:
                made[id(value)].extend(parts)
            else:
                made[id(value)] = tuple(parts) if kind is tuple else parts
    if made[id(value)] is None:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "the text of a tuple that contains itself")
    return made[id(value)]
