"""What CPython raises where a variable has no value.

In: the variable's name, and whether it is a free variable of the code that reads it. Out: the exception's text, or the
exception.
"""

from __future__ import annotations

from dynajit.bytecode.comprehensions import shown


def unbound_text(name: str, free: bool) -> str:
    """What the exception says."""
    if free:
        return f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
    return f"cannot access local variable '{shown(name)}' where it is not associated with a value"


def unbound_local(name: str) -> UnboundLocalError:
    """Of a local, or of a cell variable in the function that it belongs to."""
    return UnboundLocalError(unbound_text(name, free=False))


def empty_free_variable(name: str) -> NameError:
    """Of a variable of an enclosing function."""
    return NameError(unbound_text(name, free=True), name=name)
