"""What the trace of a call depends on besides what is called: arguments, torch's modes, the trace's tables.

In: a call of a module or function from outside that is about to be traced. Out: `CallState`, whose key is equal for
calls that it, or an equal module, answers alike; None where more would have to be known. Whatever is not listed here
has no place in it: such a call is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dynajit.guards.source import ConstSource, RunTimeSource, key_identity
from dynajit.values.containers.attributes import AttributeDict
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.value import Value
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal, Unread, is_none
from dynajit.values.tensors.known_truth import may_be_known
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.torch_state import SETTINGS, autocast_nesting

_NUMBERS = (bool, int, float, type(None))


class CallState(NamedTuple):
    """A call that may have a summary.

    Attributes:
        key: what has to be equal.
        leaves: the arguments and what is in them, in order.
    """

    key: tuple[Any, ...]
    leaves: list[Value]


class Unknown(Exception):
    """Something that summaries know nothing of."""


def call_state(tx: Any, callee: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> CallState | None:
    """What a call depends on; None: it has to be traced. `callee`: what is called, of a module what is known of it."""
    if not _is_plain(tx):
        return None
    leaves: list[Value] = []
    key: list[Any] = [callee, len(args), *kwargs]
    try:
        for value in (*args, *kwargs.values()):
            describe(value, key, leaves)
        _describe_written(tx, key, leaves)
        key.append(sharing(value.fake_for_keys for value in leaves if type(value) is TensorVal))
        key.append(identities(leaves))
    except Unknown:
        return None
    return CallState((*key, modes(tx)), leaves)


def is_untouched(tx: Any, module: ObjVal) -> bool:
    """Whether nothing of the module was read or written so far: all that is relied on of it is its class, and what the
    call itself will rely on."""
    if id(module.real_object) in tx.summaries.relied_on:
        return False
    read = module._dict is not None and (module._dict.entries or module._dict.changed_names or module._dict.complete)
    if read or module.slots or module.payload is not None or module.source is None:
        return False
    root = module.source.root()
    return not isinstance(root, RunTimeSource) and not isinstance(module.source, ConstSource)


def _is_plain(tx: Any) -> bool:
    """Whether the program has written nothing that a call may see without being given it, and nothing special is on."""
    return not (
        tx.graph.shapes.active
        or tx.graph.watch is not None
        or tx.overrides.modes
        or tx.open_levels
        or tx.runs_elsewhere
        or tx.made_classes
        or tx.class_writes
        or tx.globals_written
        or tx.making_wrapper
        or tx.static_numbers
        or tx.warning_filters is not None
        or tx.dropped is not None
        or not all(map(is_none, (tx.exceptions.current, *tx.exceptions.callers)))
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def modes(tx: Any) -> tuple[Any, ...]:
    """torch's modes."""
    settings = str([setting.now() for setting in SETTINGS])
    return settings, autocast_nesting(), torch.is_inference_mode_enabled(), tx.overrides.off


def tables(tx: Any) -> tuple[Any, ...]:
    """What tells that a call left nothing behind but its result, its graph and its guards."""
    lengths = (tx.journal.dirty, tx.distinct_pairs, tx.distinct_groups, tx.tables, tx.keyed, tx.calls)
    more = (tx.cached_calls, tx.open_generators, tx.needed, tx.recorded, tx.saved_filters)
    return (
        *map(len, (*lengths, *more, tx.context_values, tx.class_writes, tx.globals_written, tx.made_classes)),
        *(tx.addresses_are_keys, tx.ids_are_keys, tx.graph.effects, tx.graph.checks, tx.graph.shapes.active),
        *(tx.journal.hidden_reads, tx.opened_at, tx.warning_filters, tx.dropped, tx.open_levels, tx.overrides.modes),
        *(is_none(tx.exceptions.current), tx.exceptions.callers),
    )


def describe(value: Any, key: list[Any], leaves: list[Value], closed: bool = False) -> None:
    """Add an argument to the key, and to the leaves with all that is in it; of objects made while tracing, and of
    `closed` lists, what is in them is not added. Raises Unknown."""
    if not isinstance(value, Value):
        raise Unknown
    leaves.append(value)
    kind = type(value)
    key.append(kind)
    if kind is TensorVal:
        key.append(_tensor_key(value))  # type: ignore[arg-type]
    elif isinstance(value, ConstVal):
        if isinstance(value, Unread) and not value.is_read:
            key.append(id(value))  # nothing was relied on so far, nor may be
        elif kind in (ConstVal, *Unread.__subclasses__()):
            known = value.value
            key.append(key_identity(known) if type(known) in _NUMBERS else id(known))
        else:
            raise Unknown
    elif isinstance(value, (TupleVal, ListVal)) and kind in (TupleVal, ListVal) and value.source is None:
        key.append(value.kind)
        if kind is TupleVal or not closed:
            key.append(len(value.items))
            for item in value.items:
                describe(item, key, leaves, closed)
    elif isinstance(value, DictVal) and kind is DictVal and value.source is None and value.complete:
        key += (value.kind, len(value.entries))
        for name, item in value.entries.values():
            if type(name) is not ConstVal or type(name.value) is not str:
                raise Unknown
            key.append(name.value)
            describe(item, key, leaves, closed)
    elif isinstance(value, ObjVal) and kind is ObjVal:
        _describe_object(value, key)
    else:
        raise Unknown


def _describe_object(value: ObjVal, key: list[Any]) -> None:
    """One from outside is that very object; of one made while tracing, what is read of it will be asked."""
    if value.source is not None and value.real_object is not None:
        key.append(id(value))
    elif value.source is None and value.real_object is None and not value.slots and value.payload is None:
        key.append(value.cls)
    else:
        raise Unknown


def _describe_written(tx: Any, key: list[Any], leaves: list[Value]) -> None:
    """Add what the program has written to objects from outside, which the call may read. Raises Unknown."""
    key.append(frozenset(at for at, held in tx.context_values.items() if held is not None))
    for value in tx.journal.dirty.values():
        if value.source is None:
            continue  # a call that generated code makes
        if not isinstance(value, AttributeDict):
            raise Unknown
        for name in value.changed_names:
            key += (id(value), name)
            entry = value.entries.get(name)
            if entry is not None:
                describe(entry[1], key, leaves)


def _tensor_key(value: TensorVal) -> tuple[Any, ...]:
    """What is known of a tensor. One from outside is that very tensor."""
    if value.attrs or value.replacement is not None or may_be_known(value.placeholder):
        raise Unknown
    return (*fake_key(value.fake_for_keys), value.kind, None if value.source is None else id(value))


def fake_key(fake: Any) -> tuple[Any, ...]:
    """The metadata of an ordinary fake tensor. Raises Unknown for others."""
    if type(fake) is not FakeTensor or fake.layout is not torch.strided:
        raise Unknown
    if fake.constant is not None and fake.constant.numel():
        raise Unknown
    if fake._has_symbolic_sizes_strides:
        raise Unknown
    return (
        *(tuple(fake.shape), fake.stride(), fake.storage_offset(), fake.dtype, fake.fake_device),
        *(torch._C._dispatch_keys(fake).raw_repr(), fake.requires_grad, fake._is_view()),
        *(fake.untyped_storage().nbytes(), fake.is_leaf, fake.is_leaf and fake.grad is not None),
    )


def sharing(fakes: Any) -> tuple[int, ...]:
    """Which of the tensors lie in the same memory: for each the place of the first that does."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(fake.untyped_storage()._cdata, place) for place, fake in enumerate(fakes))


def identities(leaves: Sequence[Value]) -> tuple[int, ...]:
    """Which of the objects are the same: for each the place of the first that is. Constants have no identity here."""
    first: dict[int, int] = {}
    return tuple(
        -1 if isinstance(value, ConstVal) else first.setdefault(id(value), place) for place, value in enumerate(leaves)
    )
