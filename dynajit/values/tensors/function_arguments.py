"""Functions and objects among the arguments of a node: what a graph can't hold is made anew where the node runs.

In: the model of a function or object. Out: a recipe: what makes it at each call of the node, of what the graph computes
(tensors and numbers that its variables hold). A function or object from outside is itself; a function made while
tracing has its code and globals. Its variables have to stay what they are, for backward may call it, too.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from dynajit.report import breaks
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.objects.functions import FunctionVal, MethodVal, make_function
from dynajit.values.objects.objects import BuiltinVal, ObjVal
from dynajit.values.objects.partials import PartialVal
from dynajit.values.scalars.symbolic import SymVal
from dynajit.values.tensors.tensor import TensorVal

# what the function could be handed with other contents later
_CHANGING = frozenset({list, dict, set, bytearray, collections.deque, collections.OrderedDict})
#: takes what the graph computed, and gives the function
Build: TypeAlias = Callable[[Iterator[Any]], Any]


def is_held(value: Value) -> bool:
    """Whether it is something that only a recipe gives to a node."""
    return isinstance(value, (BuiltinVal, FunctionVal, MethodVal, PartialVal)) or (
        type(value) is ObjVal and value.source is not None and value.payload is None and value.real_object is not None
    )


def function_recipe(tx: Tracer, value: Value, parts: list[Value], inside: tuple[Value, ...] = ()) -> Build:
    """How a node makes the function; what it takes of the graph for it is added to `parts`, in order.

    Raises:
        GraphBreak: the function holds something that is neither known nor in the graph, or itself.
    """
    if type(value) in (TensorVal, SymVal):
        parts.append(value)
        return next
    part = functools.partial(function_recipe, tx, parts=parts, inside=(*inside, value))
    if any(value is outer for outer in inside):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{value.describe()}, which holds itself, as an argument")
    if type(value) is TupleVal and value.py_type() is tuple:
        items = [part(item) for item in value.values(tx)]
        return lambda given: tuple(item(given) for item in items)
    with contextlib.suppress(NotReal):
        found = value.real()
        if type(found) not in _CHANGING:
            return lambda given: found
    if type(value) is ObjVal and is_held(value) and not value.changed():
        return _object(tx, value)
    if type(value) is PartialVal and not value.attributes.items(tx):
        function, before = part(value.function), part(value.args)
        named = {name: part(item) for name, item in value.named(tx).items()}
        return lambda given: functools.partial(
            function(given), *before(given), **{name: item(given) for name, item in named.items()}
        )
    if type(value) is FunctionVal and value.real_function is None and not value.changed():
        return _made_function(tx, value, part)
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{value.describe()} in a function that an operation is given")


def _object(tx: Tracer, value: ObjVal) -> Build:
    """An object from outside, this very one. It may go when the program drops it: then no call reaches the node."""
    real, source = value.real_object, value.source
    assert source is not None
    tx.guard(source, "ID", real)
    with contextlib.suppress(TypeError):
        reference = weakref.ref(real)
        return lambda given: reference()
    return lambda given: real


def _made_function(tx: Tracer, value: FunctionVal, part: Callable[[Value], Build]) -> Build:
    """Defaults, then what its variables hold."""
    defaults = part(value.defaults) if value.defaults is not None else None
    keywords: dict[str, Build] = {}
    if value.kwdefaults is not None:
        named_defaults: Any = value.kwdefaults
        keywords = {key.const(): part(item) for key, item in named_defaults.items(tx)}
    held = [cell.get(tx) for cell in value.closure]
    for cell in value.closure:
        if cell.source is not None:  # a loop's, or another function's, which may bind it anew
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{value.describe()}, which reads a variable from outside")
        if cell.read_later_at is None:
            tx.journal.set_attr(cell, "read_later_at", tx.snapshot())
    if any(contents is None for contents in held):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{value.describe()}, which reads a variable without a value")
    contents = [part(each) for each in held if each is not None]

    def build(given: Iterator[Any]) -> types.FunctionType:
        positional = defaults(given) if defaults is not None else None
        named = {name: item(given) for name, item in keywords.items()} or None
        cells = [types.CellType(each(given)) for each in contents]
        return make_function(value_code, globals_, name, qualname, positional, named, None, cells)

    value_code, globals_, name, qualname = value.code, value.globals, value.name, value.qualname
    return build
