"""What CPython makes of what a special method returned: the rule of its slot.

In: what the method returned, and the `ReturnAction` whose `finish` is the slot's rule in plain Python (`bool` takes
truth values alone, `len` no negative numbers, `hash` makes -2 of -1). Out: the result's model, or the slot's own error.
Every model that calls a special method for a slot passes what that gave through here, symbolic or not.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator

from dynajit.bytecode.return_action import MEASURED, TRUTH, ReturnAction
from dynajit.report import breaks
from dynajit.report.breaks import BreakKind
from dynajit.values.core.value import GraphBreak, Raised, Tracer, Value

_PLAIN = frozenset({int, float, complex, str, bytes, type(None)})


def by_rule(tx: Tracer, found: Value, action: ReturnAction) -> Value:
    """What the slot makes of `found`."""
    kind = found.py_type()
    if action.finish is None or kind is action.takes:
        return found
    if not (found.is_const() and kind in _PLAIN):  # of which no rule warns
        with tx.not_resumable():
            return tx.run_python(action.finish, [found])
    value = found.const()
    with raising(tx, TypeError, ValueError, OverflowError):
        made = action.finish(value)
    return found if made is value else tx.from_real(made)


class AsksClass(Value):
    """A model of a real object whose class may have special methods written in Python; C code does the rest."""

    def own(self, tx: Tracer, name: str) -> Value | None:
        """A special method that the program wrote, bound; None: there is none."""
        return None

    def plain_truth(self) -> bool:
        """What the object counts as without such methods."""
        return True

    def truth(self, tx: Tracer) -> bool:
        for name, action in (("__bool__", TRUTH), ("__len__", MEASURED)):
            own = self.own(tx, name)
            if own is not None:
                return by_rule(tx, tx.call(own, [], {}), action).truth(tx)
        return self.plain_truth()

    def length(self, tx: Tracer) -> Value:
        own = self.own(tx, "__len__")
        return tx.fold(len, [self]) if own is None else by_rule(tx, tx.call(own, [], {}), MEASURED)

    def contains(self, tx: Tracer, item: Value) -> bool:
        own = self.own(tx, "__contains__")
        if own is not None:
            return tx.call(own, [item], {}).truth(tx)
        return bool(tx.fold(operator.contains, [self, item]).const())


@contextlib.contextmanager
def raising(tx: Tracer, *kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds that real code raises in the body are the program's."""
    try:
        yield
    except kinds as error:
        raise tx.raised(type(error), *error.args) from None


@contextlib.contextmanager
def ending_graph(kind: BreakKind, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Errors of these kinds that real code raises in the body end the graph, so that the program's own call raises
    them. `what`: what was tried."""
    try:
        yield
    except errors as error:
        raise GraphBreak(kind, f"{what}: {type(error).__name__}: {error}") from None


@contextlib.contextmanager
def left_to_real_call(kind: type[BaseException] = BaseException) -> Iterator[None]:
    """Where the program raises such an error in the body, the graph ends: the real call has changed something by then,
    or has words of its own for it."""
    try:
        yield
    except Raised as raised:
        found = raised.value.py_type()
        if not issubclass(found, kind):
            raise
        raise GraphBreak(breaks.RAISES, found.__name__) from None
