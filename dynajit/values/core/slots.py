"""What CPython makes of what a special method returned: the rule of its slot.

In: what the method returned, and the `Landing` whose `finish` is the slot's rule in plain Python (`bool` takes truth
values alone, `len` no negative numbers, `hash` makes -2 of -1). Out: the result's model, or the slot's own error. Every
model that calls a special method for a slot passes what that gave through here, symbolic or not.
"""

from __future__ import annotations

from dynajit.bytecode.landing import Landing
from dynajit.values.core.value import Tracer, Value

_PLAIN = frozenset({int, float, complex, str, bytes, type(None)})


def by_rule(tx: Tracer, found: Value, landing: Landing) -> Value:
    """What the slot makes of `found`."""
    kind = found.py_type()
    if landing.finish is None or kind is landing.takes:
        return found
    if not (found.is_const() and kind in _PLAIN):  # of which no rule warns
        with tx.indirect():
            return tx.run_python(landing.finish, [found])
    value = found.const()
    try:
        made = landing.finish(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise tx.raised(type(error), *error.args) from None
    return found if made is value else tx.from_real(made)


__all__ = ["by_rule"]
