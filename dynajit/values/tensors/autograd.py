"""Models of what users build on the autograd engine: autograd.Function.

In: calls of `Function.apply` as values. Out: a `Function` stays one node of the graph, which calls the real `apply`, so
that its backward is the user's; its forward and backward are traced on the side to learn what they rely on. Tensors
that they read from outside are arguments of the node, too: where it runs on what stands for tensors, forward is
given these in place of the real ones. Backward is not, for they may be written before it runs: where it reads any, the
graph is not traced for gradients. Neither is it where backward writes what it did not make: a functional graph would
give what forward returns as backward leaves it.
"""

from __future__ import annotations

import contextlib
import itertools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from dynajit.graph.builder import GraphInput
from dynajit.graph.shared_state import SharedState
from dynajit.graph.written_collectives import FunctionalCollectives, functionally, is_functional
from dynajit.nested import leaves_in
from dynajit.report import breaks
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value, parts_to_graph
from dynajit.values.objects.local_classes import reads_empty_cells
from dynajit.values.objects.mutation_snapshot import without_effects
from dynajit.values.objects.objects import ClassVal, lookup_type
from dynajit.values.polyfills.autograd import autograd_function, operator_autograd
from dynajit.values.scalars.constant import ConstVal, constant_of, is_none
from dynajit.values.tensors import overrides
from dynajit.values.tensors.function_arguments import Build, function_recipe, is_held
from dynajit.values.tensors.python_code import check_order, note_code
from dynajit.values.tensors.tensor import TensorVal, may_be_differentiated


@builtin(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def apply_function(tx: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    """`Function.apply`."""
    if not isinstance(cls, ClassVal):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"autograd.Function.apply of {cls.describe()}")
    if reads_empty_cells(tx, cls.obj):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{cls.obj.__qualname__}.apply, which reads variables made here")
    check_order(tx, cls.obj, f"{cls.obj.__qualname__}.apply")
    named = [value for value in kwargs.values() if is_held(value)]
    if named:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{cls.obj.__qualname__}.apply of a function or object by keyword")
    parts: list[Value] = []
    functions: dict[int, Build] = {
        place: function_recipe(tx, arg, parts) for place, arg in enumerate(args) if is_held(arg)
    }
    if overrides.user_modes(tx) or overrides.asked(tx, [*args, *kwargs.values()]):
        # nobody is asked about the call itself, but about each operation of forward, which autograd does not see
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{cls.obj.__qualname__}.apply where a __torch_function__ is asked")
    others = [arg for place, arg in enumerate(args) if place not in functions]
    read, reliance, communicates = _learn(tx, cls, args, kwargs)
    known = []
    for place in functions:
        with contextlib.suppress(NotReal):
            known.append(args[place].real())
    reals = {entry.node: entry.real for entry in tx.graph.inputs}
    call = _applied(cls.obj, functions, len(parts), known, [reals[each.node] for each in read], communicates)
    vars(call).update(reliance)
    return tx.torch_op("call_function", call, [*read, *parts, *others], kwargs)


def _applied(
    cls: Any,
    functions: Mapping[int, Build],
    count: int,
    known: Sequence[Any],
    outside: Sequence[Any],
    communicates: bool,
) -> Callable[..., Any]:
    """`cls.apply` as a function of a name of its own: torch.fx takes the method for one of torch's functions. Its first
    arguments are what stands for the tensors `outside`, which it reads by itself. `functions` make those of the rest
    that a graph can't hold, by position, of `count` more arguments; `known` are those that come from outside.
    `communicates`: it makes collectives, which are functional ones where a functional graph is made of it."""
    read = [weakref.ref(tensor) for tensor in outside]
    traced = functionally(cls) if communicates else cls

    def call(*args: Any, **kwargs: Any) -> Any:
        substitutes, args = args[: len(read)], args[len(read) :]
        if functions:
            given, rest = iter(args[:count]), iter(args[count:])
            places = range(len(args) - count + len(functions))
            args = tuple(functions[at](given) if at in functions else next(rest) for at in places)
        with contextlib.ExitStack() as contexts:
            if any(map(_is_substitute, substitutes)):
                others = {id(ref()): tensor for ref, tensor in zip(read, substitutes, strict=True)}
                contexts.enter_context(_InPlaceOf(others))
            if not communicates or not any(map(is_functional, (*args, *kwargs.values()))):
                return cls.apply(*args, **kwargs)
            contexts.enter_context(FunctionalCollectives())  # type: ignore[no-untyped-call]
            return traced.apply(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"{cls.__name__}_apply"
    vars(call).update(functions=known, communicates=communicates)  # backward may call the functions, too
    return call


def _is_substitute(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) or is_functional(tensor)


class _InPlaceOf(TorchFunctionMode):
    """Hands torch's functions other tensors for those with these ids."""

    def __init__(self, others: dict[int, Any]) -> None:
        super().__init__()
        self._others = {at: other for at, other in others.items() if at != id(None)}  # what is gone nobody reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda part: self._others.get(id(part), part), (args, kwargs or {}))
        return func(*args, **kwargs)


def _learn(
    tx: Tracer, cls: ClassVal, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> tuple[list[Any], dict[str, bool], bool]:
    """What forward and backward rely on.

    Returns:
        The tensors from outside that they read by themselves; whether backward reads any (`backward_reads`), writes
        what it did not make (`backward_writes`) or the gradients it is given (`backward_writes_gradients`); and whether
        they make collectives.
    """
    parts = [_method(tx, cls, name) for name in ("forward", "setup_context", "backward")]
    if not may_be_differentiated([*args, *kwargs.values()]):
        parts[2] = ConstVal(None)
    given = {part.node for part in (*args, *kwargs.values()) if isinstance(part, TensorVal)}
    traced = _trace_aside(tx, autograd_function, cls.obj, parts, args, kwargs)
    read = itertools.chain.from_iterable(traced.read)
    entries = {entry.node: entry for entry in read if entry.node not in given}
    reads = writes = writes_gradients = False
    if (entries or traced.written) and not is_none(parts[2]):
        start = _start_of_backward(tx, autograd_function, cls.obj, parts, args, kwargs)
        reads = any(entry.node in entries for each in traced.read[start:] for entry in each)
        writes = traced.writes_earlier(start, -1, start - traced.gradients)
        writes_gradients = traced.writes_earlier(start, start - traced.gradients, start)
    values = [tx.wrap(entry.real, entry.source) for entry in entries.values()]
    reliance = {"backward_reads": reads, "backward_writes": writes, "backward_writes_gradients": writes_gradients}
    return [value for value in values if type(value) is TensorVal], reliance, traced.communicates


def learn_operator(tx: Tracer, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
    """What the backward relies on that `register_autograd` gave an operator, where the call is differentiated: it is
    traced with the graph, once."""
    schema = getattr(getattr(target, "default", target), "_schema", None)
    definition = OPDEFS.get(getattr(schema, "name", ""))
    if schema is None or definition is None or definition._backward_fn is None:
        return
    _, fakes = parts_to_graph(tx, [*args, *kwargs.values()])
    if not torch.is_grad_enabled() or not any(getattr(fake, "requires_grad", False) for fake in leaves_in(fakes)):
        return
    note_code(tx, target)
    parts = [tx.from_real(part) for part in (target, definition._setup_context_fn, definition._backward_fn)]
    by_place, by_name = _filled_in(tx, schema, args, kwargs)
    traced = _trace_aside(tx, operator_autograd, target, parts, by_place, by_name)
    if traced.written:
        start = _start_of_backward(tx, operator_autograd, target, parts, by_place, by_name)
        if traced.writes_earlier(start, -1, start):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{target}, whose backward writes what it did not make")


class _TracedAside(NamedTuple):
    """Of each operation the graph's inputs that it reads; whether one of them is a collective; of each write the place
    of the operation, and of the one that made the memory: -1 where it was there before; and how many gradients backward
    is given, which are made right before it."""

    read: list[list[GraphInput]]
    communicates: bool
    written: list[tuple[int, int]]
    gradients: int

    def writes_earlier(self, start: int, first: int, end: int) -> bool:
        """Whether the operations from `start` on write memory that those from `first` up to `end` made."""
        return any(writer >= start and first <= made < end for writer, made in self.written)


def _filled_in(
    tx: Tracer, schema: Any, args: Sequence[Value], kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    """An operator's arguments with the defaults, as torch fills them in for `setup_context`."""
    given = {**dict(zip((each.name for each in schema.arguments), args, strict=False)), **kwargs}
    for each in schema.arguments:
        if each.name not in given and each.has_default_value():
            given[each.name] = tx.from_real(each.default_value)
    filled = [each for each in schema.arguments if each.name in given]
    by_name = {each.name: given[each.name] for each in filled if each.kwarg_only}
    return [given[each.name] for each in filled if not each.kwarg_only], by_name


def _start_of_backward(tx: Tracer, polyfill: Callable[..., int], called: Any, parts: list[Value], *given: Any) -> int:
    """How many operations come before backward's, by the trace without it."""
    return len(_trace_aside(tx, polyfill, called, [*parts[:2], ConstVal(None)], *given).read)


def _trace_aside(
    tx: Tracer,
    polyfill: Callable[..., int],
    called: Any,
    parts: list[Value],
    args: Sequence[Value],
    kwargs: dict[str, Value],
) -> _TracedAside:
    """Trace a forward and a backward for their guards, and what their operations do; an effect on something outside is
    a graph break."""
    journal, graph = tx.journal.mark(), tx.graph.mark()
    needs = [isinstance(value, TensorVal) and bool(value.fake.requires_grad) for value in args]
    static, tx.static_numbers = tx.static_numbers, True
    codes, tx.assumed.codes = tx.assumed.codes, {}
    try:
        with (
            tx.not_resumable(),
            without_effects(tx, getattr(called, "__qualname__", str(called)), [*parts, *args, *kwargs.values()]),
        ):
            count = tx.run_python(polyfill, [*parts, tx.new_tuple([ConstVal(need) for need in needs]), *args], kwargs)
        done, given = tx.graph, constant_of(count, "a count")
        return _TracedAside(done.read_since(graph), done.communicates_since(graph), done.written_since(graph), given)
    finally:
        state = tx.python_code.setdefault(called, SharedState())
        for code, _ in tx.assumed.codes.values():
            state.reads.update(code.co_names, code.co_freevars)
        tx.assumed.codes = {**codes, **tx.assumed.codes}
        tx.static_numbers = static
        tx.journal.rollback(journal)
        tx.graph.rollback(graph)


def _method(tx: Tracer, cls: ClassVal, name: str) -> Value:
    """The user's static method, or None where torch's own stands."""
    found, where = lookup_type(cls.obj, name)
    if where is None or (where.__module__ or "").startswith("torch.autograd"):
        return ConstVal(None)
    function: Any = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    if isinstance(function, types.FunctionType) and function.__globals__["__name__"] == "torch.autograd.function":
        return tx.from_real(function.__wrapped__)  # type: ignore[attr-defined]  # behind once_differentiable
    return cls.getattr(tx, name)
