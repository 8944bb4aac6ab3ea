"""What is computed of numbers and texts from outside, and nothing depends on yet: `f"step {step}"`.

In: a function in C that gives a text for whatever arguments of these types, and the arguments. Out: `UnreadCall`:
generated code makes the call where the result is needed; where the trace needs it, its arguments are guarded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import TIME_TYPES, ConstVal, Unread, number_method
from dynajit.values.scalars.symbolic import SymVal


class UnreadCall(Unread):
    """The result of a call that was not looked at."""

    source = None

    def __init__(self, tx: Tracer, function: Callable[..., Any], parts: Sequence[Value], kind: type) -> None:
        super().__init__(tx, kind)
        self.function = function
        self._parts = list(parts)

    def getattr(self, tx: Tracer, name: str) -> Value:
        made = number_method(tx, self, name) if not self.is_read else None
        return made if made is not None else super().getattr(tx, name)

    def read(self) -> Any:
        return self.function(*(part.const() for part in self._parts))

    @property
    def hint(self) -> Any:
        return self.value if self.is_read else self.function(*map(_hint, self._parts))

    def describe(self) -> str:
        return f"a {self._kind.__name__} made of values from outside"

    def children(self) -> Sequence[Value]:
        return self._parts

    def rebuild(self, out: Any) -> None:
        out.call_on(self.function, *self._parts)


def is_unread(value: Value) -> bool:
    """Whether nothing depends yet on a number or text that is known at run time only, or was computed of such."""
    if isinstance(value, ConstVal):
        return not value.is_read
    return value.varies


def has_unread(value: Value, seen: set[int]) -> bool:
    """Whether that holds for the value, or for something in the container that it is; `seen`: what was looked at."""
    if id(value) in seen:
        return False
    seen.add(id(value))
    return is_unread(value) or any(has_unread(part, seen) for part in value.children())


def _hint(value: Value) -> Any:
    return value.number.node.hint if isinstance(value, SymVal) else value.hint  # type: ignore[attr-defined]


_TYPES = (int, float, str, *TIME_TYPES)
# the letter of a format that makes a character of a number
_CHARACTER = re.compile(r"^[^{}%]*c$|%[^%a-zA-Z]*c")


def unread_text(tx: Tracer, function: Callable[..., Any], parts: Sequence[Value], formats: bool = True) -> Value | None:
    """The text that `function` gives, if some of its arguments are not looked at and the others are known. `formats`:
    it goes by letters of a template or specification."""
    if not any(map(is_unread, parts)) or not all(map(_may_be_text, parts)):
        return None
    known = [part.value for part in parts if isinstance(part, ConstVal) and not is_unread(part)]
    texts = [text for text in (getattr(function, "__self__", ""), *known) if isinstance(text, str)]
    formats = formats and any(part.py_type() in (int, float) for part in parts)
    if formats and any(map(_CHARACTER.search, texts)):
        return None  # whether it raises depends on the number
    try:
        if type(function(*map(_hint, parts))) is not str:
            return None
    except (TypeError, ValueError, LookupError, OverflowError):
        return None  # which it will raise again
    return UnreadCall(tx, function, parts, str)


def _may_be_text(part: Value) -> bool:
    """Whether the text can be made at run time, whatever the number or text is."""
    return isinstance(part, (ConstVal, SymVal)) and (not is_unread(part) or part.py_type() in _TYPES)


def join_texts(tx: Tracer, pieces: Sequence[Value]) -> Value:
    """The texts behind each other; the only one that is not empty as it is, if its class is a subclass."""
    if any(piece.py_type() is not str for piece in pieces):
        pieces = [piece for piece in pieces if piece.truth(tx)]
        if len(pieces) == 1:
            return pieces[0]
    made = unread_text(tx, ("{}" * len(pieces)).format, pieces)
    return made if made is not None else tx.fold(lambda *parts: "".join(parts), pieces)
