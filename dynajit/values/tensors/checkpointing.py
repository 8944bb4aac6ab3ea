"""Activation checkpointing: a region of the graph of which backward keeps the inputs, and computes the rest again.

In: calls of `torch.utils.checkpoint.checkpoint` as values. Out: where something is differentiated, one node, whose body
is what the function computes: it calls torch's own `checkpoint`, which keeps what it keeps in eager mode, draws the
same random numbers again, and asks the program's policy. Elsewhere the function is traced like any other.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx

from dynajit.graph.checkpointed import region
from dynajit.graph.meta import note
from dynajit.report import breaks
from dynajit.torch_warnings import unwarned
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.effects.table import running_elsewhere
from dynajit.values.effects.warning_filters import warns_through
from dynajit.values.objects.functions import CellVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.higher_order import Body, outputs, trace_body
from dynajit.values.tensors.tensor import TensorVal, may_be_differentiated

_WHAT = "a checkpointed function, which backward runs again"
_OPTIONS = ("determinism_check", "debug", "early_stop", "preserve_rng_state")
_NOOP_CONTEXT = torch.utils.checkpoint.noop_context_fn
_CONTEXTS: Any = torch.utils.checkpoint.create_selective_checkpoint_contexts


class SavingContext(Value):
    """One of the contexts of `create_selective_checkpoint_contexts`: they choose what backward keeps, and compute
    nothing. Only `checkpoint` is given them. `make` makes both anew; None where only the program's own function can,
    whose policy is another object each time."""

    kind = object

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def describe(self) -> str:
        return "a context of selective checkpointing"


_asking = threading.local()


@builtin(_CONTEXTS)
def selective_contexts(tx: Tracer, policy: Value, allow_cache_entry_mutation: Value | None = None) -> Value:
    if not getattr(_asking, "by_checkpoint", False):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "contexts of selective checkpointing made outside of a checkpoint")
    if policy.py_type() is list:
        tx.unpack(policy)
    try:
        real = _real_policy(policy)
    except NotReal:
        return tx.new_tuple([SavingContext(None)] * 2)
    if policy.source is not None and not isinstance(real, list):
        tx.guard(policy.source, "ID", real)
    allowed = allow_cache_entry_mutation is not None and allow_cache_entry_mutation.truth(tx)
    made = SavingContext(functools.partial(_CONTEXTS, real, allowed))
    return tx.new_tuple([made, made])


def _real_policy(policy: Any) -> Any:
    """The policy itself, or a function like one that is made while tracing and reads only variables from outside."""
    if getattr(policy, "closure", None) is None or policy.real_function is not None:
        return policy.real()
    cells = [cell.real_cell for cell in policy.closure]
    if policy.defaults or policy.kwdefaults or policy.written or not all(map(_is_kept, policy.closure)):
        raise NotReal(policy.describe())
    return types.FunctionType(policy.code, policy.globals, policy.name, closure=tuple(cells))


def _is_kept(cell: CellVal) -> bool:
    """Whether it is a cell from outside that holds what it held."""
    if cell.real_cell is None:
        return False
    if not cell.known:
        return True
    try:
        return cell.contents is not None and cell.contents.real() is cell.real_cell.cell_contents
    except (NotReal, ValueError):
        return False


def _contexts_of(tx: Tracer, context_fn: Value | None) -> Any:
    """What makes the contexts around a checkpointed function; a break unless they only choose what is kept."""
    if context_fn is None or getattr(context_fn, "real_function", None) is _NOOP_CONTEXT:
        return None
    _asking.by_checkpoint = True
    try:
        with tx.not_resumable():
            made = tx.call(context_fn, [], {})
    finally:
        _asking.by_checkpoint = False
    parts = made.values(tx) if isinstance(made, TupleVal) else []
    if len(parts) != 2 or not all(isinstance(each, SavingContext) for each in parts):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "checkpoint with contexts of the program's own")
    make = parts[0].make  # type: ignore[attr-defined]
    if make is not None:
        return make
    try:
        real = context_fn.real()
    except NotReal:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a policy of selective checkpointing that is made here") from None
    if tx.journal.dirty:  # which it may read, or has written
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a policy of selective checkpointing made where state has changed")
    if context_fn.source is not None:
        tx.guard(context_fn.source, "ID", real)
    return real


def _default_kind(tx: Tracer) -> Value:
    """The kind of checkpoint that torch takes where none is said: the older one, of which it warns."""
    said = _warned_of_default()
    if len(said) != 1 or torch.is_inference_mode_enabled():
        raise GraphBreak(breaks.OUTPUT_CALL, "checkpoint without use_reentrant")
    warns_through(tx, _ask_for_default, said[0], UserWarning)
    return ConstVal(True)


@functools.cache
def _warned_of_default() -> list[str]:
    with unwarned() as warned, torch.inference_mode(False):
        try:
            _ask_for_default()
        except ValueError:  # as later releases of torch do
            return []
    return warned.texts


def _ask_for_default() -> None:
    """In generated code: have torch warn, whose own line the warning tells."""
    torch.utils.checkpoint.checkpoint(_same, torch.ones(1, requires_grad=True), preserve_rng_state=False)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


@builtin(torch.utils.checkpoint.checkpoint)
def checkpoint(
    tx: Tracer,
    function: Value,
    *args: Value,
    use_reentrant: Value | None = None,
    context_fn: Value | None = None,
    **kwargs: Value,
) -> Value:
    said = {name: kwargs.pop(name) for name in filter(kwargs.__contains__, _OPTIONS)}
    if use_reentrant is None:
        use_reentrant = _default_kind(tx)
    if torch.is_grad_enabled() and any(map(_is_inference, args)):
        raise GraphBreak(breaks.OP_RAISES, "checkpoint of tensors made in inference mode")
    make_contexts = _contexts_of(tx, context_fn)
    reentrant = use_reentrant.truth(tx)
    if torch._C._functorch.peek_interpreter_stack() is not None:  # which raise depends on torch's version
        raise GraphBreak(breaks.OP_RAISES, "checkpoint inside of a transform of torch.func")
    if tx.runs_elsewhere or tx.open_levels or not torch.is_grad_enabled():
        # inside of another region that one's inputs are kept, and nothing else
        with running_elsewhere(tx, _WHAT):
            return tx.call(function, args, kwargs)
    if reentrant and not may_be_differentiated(args):
        # the older kind gives its result no gradient unless an argument has one
        raise GraphBreak(
            breaks.UNSUPPORTED_VALUE, "checkpoint(use_reentrant=True) without an argument that requires grad"
        )
    if not all(value.is_const() for value in said.values()):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "checkpoint with options that vary")
    options = {name: value.const() for name, value in said.items()}
    if make_contexts is not None:
        options["context_fn"] = make_contexts
    return _region(tx, function, args, kwargs, {"use_reentrant": reentrant, **options})


def _is_inference(value: Value) -> bool:
    return isinstance(value, TensorVal) and bool(value.fake.is_inference())


def _region(
    tx: Tracer, function: Value, args: Sequence[Value], kwargs: dict[str, Value], options: dict[str, Any]
) -> Value:
    """A node that calls torch's `checkpoint` of what the function computes."""
    body = trace_body(tx, function, args, _WHAT, kwargs, writes=True)
    made = list(dict.fromkeys(leaf for leaf in body.leaves if leaf.node not in body.cut.free))
    if options["use_reentrant"] and not all(_has_gradient(leaf.fake) for leaf in made):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "checkpoint(use_reentrant=True) of what has no gradient")
    if options["use_reentrant"] and len(made) < len(body.leaves):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "checkpoint(use_reentrant=True) that returns an argument")
    if not made:
        return body.result
    given = list(dict.fromkeys(arg.node for arg in args if isinstance(arg, TensorVal)))
    node = _node(tx, body, given, made, options)
    parts = dict(zip(made, outputs(tx, node, [leaf.fake for leaf in made]), strict=True))
    return body.rebuilt(tx, [parts.get(leaf, leaf) for leaf in body.leaves])


def _has_gradient(fake: torch.Tensor) -> bool:
    return fake.requires_grad or not (fake.is_floating_point() or fake.is_complex())


def _node(
    tx: Tracer, body: Body, given: Sequence[fx.Node], made: Sequence[TensorVal], options: dict[str, Any]
) -> fx.Node:
    inputs = list(dict.fromkeys([*given, *body.cut.free]))
    body.cut.results = [leaf.node for leaf in made]
    module = tx.graph.attach(body.cut.build(inputs, "region"), "region")
    meta = tx.node_meta([leaf.fake for leaf in made])
    node = tx.graph.create("call_function", region(len(given), options), [module, *inputs], {}, meta)
    note(node, **body.cut.effects, asks_policy="context_fn" in options)
    return node
