"""From a real object and its source to its model, guarded.

In: an object that the traced program reads from outside (`wrap`), or one computed while tracing from constants
(`from_real`). Out: the model. The guard that makes it right next time is recorded here: type, identity or equality.
To give a type a model of its own, add a function behind `@wraps_type`.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import inspect
import itertools
import re
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import torch
from torch.torch_version import TorchVersion

from dynajit import _C, torch_compat
from dynajit.config import config
from dynajit.graph.lazy_dynamo import package_of
from dynajit.graph.seen import has_symbol
from dynajit.guards.kinds_tensor import has_history
from dynajit.guards.source import (
    AttrSource,
    CallSource,
    ConstSource,
    InstanceAttrSource,
    ItemSource,
    Source,
)
from dynajit.report import breaks
from dynajit.report.breaks import BreakKind
from dynajit.report.shown import short
from dynajit.symbols import is_symbolic
from dynajit.values.containers.deque import DequeVal
from dynajit.values.containers.iterators import LONGEST, OutsideCount, check_length
from dynajit.values.containers.joined import outside_tuple
from dynajit.values.containers.lazy_list import OutsideList
from dynajit.values.containers.lazy_set import OutsideSet, asked_alone
from dynajit.values.containers.mapping import DictVal, DictViewVal
from dynajit.values.containers.sequence import Lazy, ListVal, TupleVal, is_named_tuple
from dynajit.values.containers.set_history import guard_members, is_known
from dynajit.values.containers.sets import SetVal
from dynajit.values.core.finalizers import has_finaliser
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.functions import CompiledVal, FunctionVal, MethodVal
from dynajit.values.objects.lookup import CYTHON_FUNCTION, hides_dict
from dynajit.values.objects.modules import LibraryMethod, LibraryVal, ModuleVal, NamespaceVal, ProxyVal, is_namespace
from dynajit.values.objects.objects import BuiltinVal, ClassVal, ObjVal, RealVal
from dynajit.values.objects.opaque import OpaqueVal, VaryingObject
from dynajit.values.objects.partials import PartialVal
from dynajit.values.objects.subclasses import PLAIN, payload_of_real
from dynajit.values.objects.suspended_generator import SuspendedGenerator, suspension_of
from dynajit.values.objects.thread_local import ThreadLocalVal, only_sets_attributes
from dynajit.values.scalars.constant import VALUE_TYPES, ConstVal, UnreadConst, is_literal, literal_identity
from dynajit.values.scalars.members import UnreadMember
from dynajit.values.scalars.slices import PARTS, make_slice
from dynajit.values.scalars.symbolic import from_symbolic
from dynajit.values.tensors import graph_arrays
from dynajit.values.tensors.arrays import NUMPY_CALLABLES, NUMPY_TYPES, SCALARS, from_numpy
from dynajit.values.tensors.dtensors import is_placement
from dynajit.values.tensors.numpy_numbers import wrap_scalar
from dynajit.values.tensors.opaque_tensor import OpaqueTensorVal
from dynajit.values.tensors.ragged_inputs import assembled, is_assembled
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_subclass import SubTensorVal, traceable
from dynajit.values.tensors.wrapper_subclass import (
    WrapperVal,
    guard_ragged,
    guard_wrapper,
    traceable_wrapper,
)
from dynajit.wrappers import is_wrapper

Wrapper = Callable[[Tracer, Any, Source], Value]
WRAPPERS: dict[type, Wrapper] = {}
# Immutable, and their methods are pure.
LIBRARY_TYPES = (inspect.Signature, inspect.Parameter, re.Pattern, re.Match, dataclasses.Field, TorchVersion)
# immutable, and equal ones are alike
_EQUAL_ALIKE = (re.Pattern, types.GenericAlias, types.UnionType)
_KNOWN_CALLABLES = (
    functools._lru_cache_wrapper,
    torch._ops.OpOverloadPacket,
    torch._ops.OpOverload,
    torch._ops.HigherOrderOperator,
    *NUMPY_CALLABLES,
)
_VIEWS = ("keys", "values", "items")
# whose attributes are another object's
_STAND_INS = (super, weakref.ProxyType, weakref.CallableProxyType, threading.local)
_C_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
    CYTHON_FUNCTION,
)


MAX_DIMENSIONS = 64


def wraps_type(*kinds: type) -> Callable[[Wrapper], Wrapper]:
    """Register the model of exactly these types."""

    def register(fn: Wrapper) -> Wrapper:
        for kind in kinds:
            WRAPPERS[kind] = fn
        return fn

    return register


wraps_type(*SCALARS)(wrap_scalar)


def wrap(tx: Tracer, obj: Any, source: Source) -> Value:
    """The model of an outside object; records its guards."""
    kind = type(obj)  # never isinstance(): it would run a user's __getattribute__
    if kind in (int, float, complex):
        return _number(tx, obj, source)
    if is_literal(obj):
        return _literal(tx, obj, source)
    known = tx.known_object(obj, source)
    if known is not None:
        return known
    wrapper = _varying if source in tx.seen.varying else WRAPPERS.get(kind)
    made = wrapper(tx, obj, source) if wrapper is not None else _wrap_other(tx, obj, kind, source)
    tx.remember_object(obj, made)
    return made


def _number(tx: Tracer, obj: Any, source: Source) -> Value:
    """The model of a number: a symbol of the graph, if it was another one in an earlier capture."""
    tx.guard(source, "TYPE", type(obj))
    if tx.static_numbers or not tx.seen.number(source, obj):
        return UnreadConst(tx, obj, source)
    if not has_symbol(obj, type(source) is CallSource):
        return UnreadConst(tx, obj, source, changes=type(obj) is not float, differs=True)
    if type(obj) is float:  # symbolic ones are real numbers, of which none is infinite or not a number
        tx.guard(source, "RELATION", ("eq", ("mul", "number", 0.0), 0.0), ("number",), (), "it is finite")
    return from_symbolic(tx, tx.graph.add_number(source, obj), source)


def _literal(tx: Tracer, obj: Any, source: Source) -> Value:
    """The model of what is immutable all the way down."""
    kind = type(obj)
    if kind in (str, bytes) or kind in VALUE_TYPES:
        tx.guard(source, "TYPE", kind)
        return UnreadConst(tx, obj, source, changes=_changes(tx, obj, source))
    if kind is slice:
        found = _varying_slice(tx, obj, source)
    else:
        found = _varying_flag(tx, obj, source) if not isinstance(source, ConstSource) else None
    if found is not None:
        return found
    if source in tx.seen.varying and isinstance(obj, (slice, range, frozenset)):
        return _varying(tx, obj, source)
    guard_literal(tx, obj, source)
    tx.seen.stood(source, obj)
    return ConstVal(obj, source)


def _varying_flag(tx: Tracer, obj: Any, source: Source) -> Value | None:
    """The model of a member of an enumeration, or a truth value, that may be another one at other calls."""
    if issubclass(type(obj), enum.Enum):
        tx.guard(source, "TYPE", type(obj))  # a class that is made anew is told by it
        return UnreadMember(tx, obj, source) if not tx.static_numbers and tx.seen.member(source, obj) else None
    if type(obj) is bool:
        differs = _differs(tx, obj, source)
        if differs or type(getattr(source, "key", None)) is int:
            tx.guard(source, "TYPE", bool)  # one of a list may only be passed on, to a tensor of flags, say
            return UnreadConst(tx, obj, source, differs=differs)
    return None


def _changes(tx: Tracer, obj: Any, source: Source) -> bool:
    """Whether a text or time is another one than before, so that what follows from it is computed at run time: by
    functions that are made here, and are not kept for other processes."""
    return not config.keep_variants and _differs(tx, obj, source)


def _differs(tx: Tracer, obj: Any, source: Source) -> bool:
    """Whether a text, time or flag is another one than before."""
    return not tx.static_numbers and tx.seen.text(source, obj)


def _varying_slice(tx: Tracer, obj: slice, source: Source) -> Value | None:
    """The model of a slice that is another one than before: its parts vary by themselves."""
    parts = [(getattr(obj, name), AttrSource(source, name)) for name in PARTS]
    if not _changes(tx, obj, source):
        for part, place in parts:
            tx.seen.stood(place, part)
        return None
    tx.guard(source, "TYPE", slice)
    made = make_slice([tx.wrap(part, place) for part, place in parts])
    made.source = source
    return made


def _varying(tx: Tracer, obj: Any, source: Source) -> Value:
    """The model of an object that was another one in each variant so far."""
    tx.guard(source, "TYPE", type(obj))
    return VaryingObject(type(obj), source)


def guard_literal(tx: Tracer, obj: Any, source: Source) -> None:
    """Identity for singletons, equality for the rest."""
    if isinstance(obj, (slice, range, frozenset, torch.device)):
        tx.guard(source, "PREDICATE", functools.partial(_same_literal, obj), f"== {obj!r}")
    else:
        tx.guard(source, "ID", obj)


def _guard_immutable(tx: Tracer, obj: Any, source: Source) -> None:
    """The very object, or one that does the same, where equal ones are made again and again."""
    if type(obj) is re.Match and issubclass(type(obj.string), (str, bytes)):
        tx.guard(source, "PREDICATE", functools.partial(_same_match, obj), f"is {short(obj)}")
    elif source in tx.seen.made_anew and issubclass(type(obj), _EQUAL_ALIKE):
        _guard_equal(tx, obj, source)
    else:
        tx.guard(source, "ID", obj)


def _same_match(expected: re.Match[Any], found: Any) -> bool:
    """Whether all that a match can be asked gives the same."""
    if type(found) is not re.Match or found.re != expected.re or found.regs != expected.regs:
        return False
    if (found.pos, found.endpos, found.lastindex) != (expected.pos, expected.endpos, expected.lastindex):
        return False
    old, new = expected.string, found.string
    return new is old or (type(new) is type(old) and type(new) in (str, bytes) and new == old)


def _equal_alike(expected: Any, found: Any) -> bool:
    return type(found) is type(expected) and bool(found == expected)


def _same_literal(expected: Any, found: Any) -> bool:
    return type(found) is type(expected) and literal_identity(found) == literal_identity(expected)


def _opaque(tx: Tracer, obj: Any, source: Source, reason: BreakKind, detail: str) -> Value:
    tx.guard(source, "TYPE", type(obj))
    return OpaqueVal(type(obj), source, reason, detail)


@wraps_type(torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
def _tensor(tx: Tracer, obj: torch.Tensor, source: Source) -> Value:
    jagged = torch_compat.COMPARES_RAGGED_SIZES and obj.is_nested and is_wrapper(obj)
    special = obj.layout is not torch.strided or obj.is_nested or obj.is_quantized
    if is_assembled(tx, obj, source) if jagged else special:
        made = assembled(tx, obj, source) if jagged else None
        if made is not None:
            return made
        tx.guard(source, "TYPE", type(obj))
        return OpaqueTensorVal(obj, source)
    refusal = _why_opaque(tx, obj)
    if refusal is not None:
        return _opaque(tx, obj, source, breaks.UNSUPPORTED_TENSOR, refusal)
    entry = tx.graph.add_input(source, obj, None if is_wrapper(obj) else tx.seen.tensor(source, obj))
    if jagged:
        tx.guard(source, "TYPE", type(obj))  # its sizes are those of the tensors in it
    else:
        tx.guard(source, "TENSOR", obj, entry.sizes, entry.strides)
    guard_ragged(tx, entry)
    found = TensorVal(entry.node, entry.fake, type(obj), source, obj)
    tx.remember_tensor(found)
    return found


# what keeps a tensor out of graphs, by what torch says of it
_KEPT_OUT: tuple[tuple[Callable[[torch.Tensor], bool], str], ...] = (
    (torch._C._functorch.is_functorch_wrapped_tensor, "a tensor inside of a functorch transform"),
    (torch._C._functorch.is_legacy_batchedtensor, "one of gradients that are batched (is_grads_batched)"),
    (torch._is_functional_tensor, "a tensor that functionalization wraps"),
    (lambda obj: obj._is_zerotensor(), "a tensor of zeros that has no memory"),
    (lambda obj: not has_history(obj), "a view that outlived a write to its base"),
)


def _why_opaque(tx: Tracer, obj: torch.Tensor) -> str | None:
    """What keeps a tensor out of graphs."""
    for is_so, words in _KEPT_OUT:
        if is_so(obj):
            return words
    whole = torch_compat.base_of(obj)
    refusal = None if whole is None else _why_no_view(obj, whole)
    if refusal is not None:
        return refusal
    if obj.dim() > MAX_DIMENSIONS:
        return f"a tensor of more than {MAX_DIMENSIONS} dimensions, which most kernels refuse and fakes allow"
    if obj.requires_grad and not (obj.dtype.is_floating_point or obj.dtype.is_complex):
        # only a write of what requires gradients makes one of these; it has no fake
        return f"a tensor of dtype {obj.dtype} with gradients"
    if tx.graph.is_outdated(obj):
        return "a tensor that the graph has written through another one"
    return None


def _why_no_view(obj: torch.Tensor, whole: torch.Tensor) -> str | None:
    """What keeps a view of this tensor out of graphs."""
    if type(whole).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not is_wrapper(obj):
        return f"a view of a {type(whole).__name__}"
    if is_wrapper(obj) and is_wrapper(whole):  # a jagged tensor's parts are views of the other's
        return None
    if whole.is_nested:
        return "a view of a nested tensor"
    return None if whole.layout is torch.strided else f"a view of a tensor with layout {whole.layout}"


def _sub_tensor(tx: Tracer, obj: torch.Tensor, source: Source) -> Value:
    """The graph computes on the object itself, with `__torch_function__` off."""
    try:
        with torch._C.DisableTorchFunction():
            plain = _tensor(tx, obj, source)
            if is_wrapper(obj) and isinstance(plain, TensorVal) and plain.node.op == "placeholder":
                guard_wrapper(tx, obj, source)
    except Exception as error:  # whatever code of the class, asked for its metadata, raises
        return _opaque(tx, obj, source, breaks.UNSUPPORTED_TENSOR, f"its class raises {type(error).__name__}")
    if not isinstance(plain, TensorVal):
        return plain
    plain.kind = torch.Tensor
    made = (WrapperVal if is_wrapper(obj) else SubTensorVal)(type(obj), plain, obj, source)
    tx.remember_tensor(made)
    return made


def _computes_plainly(kind: type) -> bool:
    """Whether operations take the subclass's instances for plain tensors, as they do parameters."""
    function, dispatch = torch._C._disabled_torch_function_impl, torch.Tensor.__torch_dispatch__
    return (
        getattr(kind, "__torch_function__", None) is function
        and getattr(kind, "__torch_dispatch__", None) is dispatch
        and getattr(kind, "__getattribute__", None) is object.__getattribute__
    )


@wraps_type(numpy.ndarray)
def _array(tx: Tracer, obj: Any, source: Source) -> Value:
    found = graph_arrays.outside(tx, obj, source)
    if found is None:
        return _opaque(tx, obj, source, breaks.UNSUPPORTED_VALUE, "a NumPy array that torch can't look at")
    return found


@wraps_type(tuple, torch.Size)
def _tuple(tx: Tracer, obj: tuple[Any, ...], source: Source) -> Value:
    if len(obj) > LONGEST:
        return _opaque(tx, obj, source, breaks.TOO_LONG, f"a tuple of {len(obj)} items")
    tx.guard(source, "TYPE", type(obj))
    lazy = outside_tuple(tx, obj, source) if type(obj) is tuple else None
    if lazy is not None:
        return lazy
    tx.guard(source, "LEN", len(obj))
    items = [Lazy(item, ItemSource(source, index)) for index, item in enumerate(obj)]
    return TupleVal(items, type(obj), source)


@wraps_type(list)
def _list(tx: Tracer, obj: list[Any], source: Source) -> Value:
    tx.guard(source, "TYPE", list)
    if id(obj) in tx.recorded:
        return _opaque(tx, obj, source, breaks.OUTPUT_CALL, "the list that warnings are appended to")
    return OutsideList(tx, obj, source)


@wraps_type(itertools.count)
def _count(tx: Tracer, obj: itertools.count[Any], source: Source) -> Value:
    return OutsideCount.outside(tx, obj, source) or _instance(tx, obj, itertools.count, source)


@wraps_type(collections.deque)
def _deque(tx: Tracer, obj: collections.deque[Any], source: Source) -> Value:
    return DequeVal.outside(tx, obj, source)


@wraps_type(dict, collections.OrderedDict)
def _dict(tx: Tracer, obj: dict[Any, Any], source: Source) -> Value:
    if not isinstance(source, ConstSource):
        tx.guard(source, "TYPE", type(obj))
    if is_namespace(obj):
        return NamespaceVal(type(obj), source, obj)
    if type(obj) is collections.OrderedDict and vars(obj):
        # it has attributes, such as what a state_dict says of versions
        return ObjVal(type(obj), obj, source, DictVal(type(obj), source, obj, raw=True))
    return DictVal(type(obj), source, obj)


@wraps_type(*(type(getattr(kind(), what)()) for kind in (dict, collections.OrderedDict) for what in _VIEWS))
def _dict_view(tx: Tracer, obj: Any, source: Source) -> Value:
    tx.guard(source, "TYPE", type(obj))
    inner = _dict_of(obj)
    if type(inner) not in (dict, collections.OrderedDict) or getattr(inner, "__dict__", None):
        return _opaque(tx, obj, source, breaks.UNSUPPORTED_VALUE, "a view of a dictionary of a type of its own")
    if not all(type(key) in (str, int) for key in inner):  # others are compared by identity, and made anew
        return _opaque(tx, obj, source, breaks.UNSUPPORTED_VALUE, "a view of a dictionary of objects")
    mapping = wrap(tx, inner, CallSource(source, _dict_of, "the dict behind {}"))
    if not isinstance(mapping, DictVal):  # another one at each call
        return _opaque(tx, obj, source, breaks.VARYING_VALUE, source.name())
    made = DictViewVal(mapping, type(obj).__name__.rpartition("_")[2])
    made.source = source
    return made


@wraps_type(types.MappingProxyType)
def _mapping_proxy(tx: Tracer, obj: Any, source: Source) -> Value:
    inner = gc.get_referents(obj)
    if len(inner) != 1 or type(inner[0]) not in (dict, collections.OrderedDict):
        return _opaque(tx, obj, source, breaks.UNSUPPORTED_VALUE, "a mapping proxy of a type of its own")
    if source in tx.seen.made_anew:
        tx.guard(source, "TYPE", types.MappingProxyType)
        return ProxyVal(wrap(tx, inner[0], CallSource(source, _dict_of, "the dict behind {}")), source)
    tx.guard(source, "ID", obj)
    return ProxyVal(wrap(tx, inner[0], ConstSource(inner[0], f"dict behind {source.name()}")), source)


def _dict_of(view: Any) -> Any:
    return gc.get_referents(view)[0]


@wraps_type(set, frozenset)
def _set(tx: Tracer, obj: Any, source: Source) -> Value:
    tx.guard(source, "TYPE", type(obj))
    members: list[Value] = []
    for member in obj:
        if is_literal(member):
            members.append(ConstVal(member))
        elif isinstance(member, (type, types.FunctionType, *_C_CALLABLES)) or is_known(member):
            members.append(from_real(tx, member))
        else:
            return _opaque(
                tx, obj, source, breaks.UNSUPPORTED_VALUE, f"a set with objects of type {type(member).__name__}"
            )
    if type(obj) in (set, frozenset) and asked_alone(tx, obj, source):
        return OutsideSet(tx, obj, {member.hash_key(tx): member for member in members}, source)
    guard_members(tx, type(obj), obj, source)
    return SetVal.outside(type(obj), obj, {member.hash_key(tx): member for member in members}, source)


@wraps_type(types.FunctionType)
def _function(tx: Tracer, obj: types.FunctionType, source: Source) -> Value:
    made = FunctionVal.outside(tx, obj, source)
    if isinstance(source, ConstSource):
        return made
    if "<" in obj.__qualname__ or source in tx.seen.made_anew:  # <lambda>, <locals>
        # made anew at each call of the function around it: the code is what counts, its cells are guarded one by one
        tx.guard(source, "TYPE", types.FunctionType)
        tx.guard(AttrSource(source, "__code__"), "ID", obj.__code__)
        tx.guard(AttrSource(source, "__globals__"), "ID", obj.__globals__)
        made.pin = functools.partial(tx.guard, source, "ID", obj)
    else:
        tx.guard(source, "ID", obj)
        if not (obj.__module__ or "").startswith("torch."):
            tx.guard(source, "CODE", obj.__code__)
    return made


@wraps_type(_C.CompiledFunction)
def _compiled(tx: Tracer, obj: _C.CompiledFunction, source: Source) -> Value:
    inner: Any = obj.function
    if isinstance(source, ConstSource) or source not in tx.seen.made_anew:
        if not isinstance(source, ConstSource):
            tx.guard(source, "ID", obj)
        return CompiledVal(obj, FunctionVal.outside(tx, inner, ConstSource(inner, inner.__qualname__)), source)
    tx.guard(source, "TYPE", _C.CompiledFunction)
    function = wrap(tx, inner, AttrSource(source, "function"))
    assert isinstance(function, FunctionVal)
    made = CompiledVal(obj, function, source)
    made.pin = functools.partial(tx.guard, source, "ID", obj)
    return made


@wraps_type(types.CellType)
def _cell(tx: Tracer, obj: types.CellType, source: Source) -> Value:
    tx.guard(source, "TYPE", types.CellType)
    return tx.wrap_cell(obj, source)  # type: ignore[no-any-return]


@wraps_type(types.MethodType)
def _method(tx: Tracer, obj: types.MethodType, source: Source) -> Value:
    tx.guard(source, "TYPE", types.MethodType)
    owner = wrap(tx, obj.__self__, AttrSource(source, "__self__"))
    made = MethodVal(owner, wrap(tx, obj.__func__, AttrSource(source, "__func__")))
    made.source = source  # the very object, which weak references and `is` tell from another one
    return made


@wraps_type(functools.partial)
def _partial(tx: Tracer, obj: functools.partial[Any], source: Source) -> Value:
    tx.guard(source, "TYPE", functools.partial)
    function = wrap(tx, obj.func, AttrSource(source, "func"))
    args = wrap(tx, obj.args, AttrSource(source, "args"))
    named = wrap(tx, obj.keywords, AttrSource(source, "keywords"))
    assert isinstance(args, TupleVal) and isinstance(named, DictVal)
    return PartialVal(function, args, named, source, obj)


@wraps_type(types.ModuleType)
def _module(tx: Tracer, obj: types.ModuleType, source: Source) -> Value:
    obj = package_of(obj)
    if not isinstance(source, ConstSource):
        tx.guard(source, "ID", obj)
    return ModuleVal(obj, source)


@wraps_type(types.GeneratorType)
def _generator(tx: Tracer, obj: types.GeneratorType[Any, Any, Any], source: Source) -> Value:
    tx.guard(source, "TYPE", types.GeneratorType)
    found = suspension_of(obj)
    return ObjVal(types.GeneratorType, obj, source) if found is None else SuspendedGenerator(obj, found, source)


class _Constant(NamedTuple):
    """How objects of classes are modelled that are constants, wherever they come from: `guard` says from outside."""

    kinds: tuple[type, ...]
    model: Callable[..., Value]
    guard: Callable[[Tracer, Any, Source], None]


def _guard_identity(tx: Tracer, obj: Any, source: Source) -> None:
    tx.guard(source, "ID", obj)


def _guard_equal(tx: Tracer, obj: Any, source: Source) -> None:
    tx.guard(source, "PREDICATE", functools.partial(_equal_alike, obj), f"is {short(obj)}")


_TYPING = _Constant((types.GenericAlias, types.UnionType), RealVal, _guard_immutable)
_PLACEMENT = _Constant((), LibraryVal, _guard_equal)
_CONSTANTS = (
    _Constant(LIBRARY_TYPES, LibraryVal, _guard_immutable),
    _Constant((type,), ClassVal, _guard_identity),
    _Constant((types.GetSetDescriptorType,), BuiltinVal, _guard_identity),
    _TYPING,
)


def _constant(kind: type) -> _Constant | None:
    for row in _CONSTANTS:
        if issubclass(kind, row.kinds):
            return row
    return _PLACEMENT if is_placement(kind) else _TYPING if kind.__module__ == "typing" else None


def _wrap_other(tx: Tracer, obj: Any, kind: type, source: Source) -> Value:
    """Classes, C functions, subclasses of containers, and instances of user classes."""
    constant = _constant(kind)
    if constant is not None:
        constant.guard(tx, obj, source)
        return constant.model(obj, source)
    if issubclass(kind, _C_CALLABLES):
        return _wrap_c_callable(tx, obj, source)
    if issubclass(kind, types.ModuleType):
        return _module(tx, obj, source)
    if issubclass(kind, torch.Tensor):
        if _computes_plainly(kind) and obj.is_leaf:
            return _tensor(tx, obj, source)
        if traceable(kind) or traceable_wrapper(kind):
            return _sub_tensor(tx, obj, source)
        return _opaque(tx, obj, source, breaks.UNSUPPORTED_TENSOR, f"the tensor subclass {kind.__name__}")
    if issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields"):
        return _tuple(tx, obj, source)
    if is_named_tuple(kind) and not (kind.__dictoffset__ and vars(obj)):
        if kind.__dictoffset__:
            tx.guard(InstanceAttrSource(source, "__dict__"), "LEN", 0)
        return _tuple(tx, obj, source)
    return _instance(tx, obj, kind, source)


def _instance(tx: Tracer, obj: Any, kind: type, source: Source) -> Value:
    """An object of a class that has no model of its own, with the builtin part that it may have."""
    if issubclass(kind, threading.local) and only_sets_attributes(kind):
        tx.guard(source, "TYPE", kind)
        return ThreadLocalVal(kind, obj, source)
    if hides_dict(kind) or issubclass(kind, _STAND_INS):
        return _opaque(tx, obj, source, breaks.UNSUPPORTED_VALUE, f"a {kind.__name__}, which hides its attributes")
    tx.guard(source, "TYPE", kind)
    payload: Value | None = None
    if issubclass(kind, dict):
        base = collections.OrderedDict if issubclass(kind, collections.OrderedDict) else dict
        payload = DictVal(base, source, obj, raw=True)
    elif issubclass(kind, list):
        payload = OutsideList(tx, obj, source, raw=True)
    elif issubclass(kind, (tuple, set, frozenset, *PLAIN)):
        payload = payload_of_real(tx, obj, kind, source)
        if payload is None:
            return _opaque(
                tx, obj, source, breaks.UNSUPPORTED_VALUE, f"an instance of {kind.__name__}, a subclass of a builtin"
            )
    if payload is not None and has_finaliser(kind):
        # iterators over it may be the last to hold it
        return _opaque(tx, obj, source, breaks.UNKNOWN_CALL, f"a {kind.__name__}, which runs code when it dies")
    if (callable(obj) and kind.__module__ == "torch._C") or issubclass(kind, _KNOWN_CALLABLES):
        tx.guard(source, "ID", obj)
        return BuiltinVal(obj, source)
    return ObjVal(kind, obj, source, payload)


def _wrap_c_callable(tx: Tracer, obj: Any, source: Source) -> Value:
    owner = getattr(obj, "__self__", None)
    if owner is not None and not isinstance(owner, (types.ModuleType, type)) and not _is_record(owner):
        tx.guard(source, "TYPE", type(obj))
        bound = wrap(tx, owner, AttrSource(source, "__self__"))
        tx.guard(AttrSource(source, "__name__"), "EQUALS", obj.__name__)
        try:
            made = bound.getattr(tx, obj.__name__)
        except GraphBreak as stop:
            # the owner has no model: it is the call that breaks, not the read
            return _opaque(tx, obj, source, stop.kind, stop.detail)
        if made.source is None and made.py_type() is type(obj):
            made.source = source  # the very object: each read of the owner's attribute makes another
        return made
    tx.guard(source, "ID", obj)
    return BuiltinVal(obj, source)


def _is_record(owner: Any) -> bool:
    """Whether this is what pybind11 gives its functions for `__self__`."""
    name = type(owner).__name__
    return name == "PyCapsule" or name.startswith("pybind11_detail_function_record")


def from_real(tx: Tracer, obj: Any) -> Value:
    """The model of an object computed while tracing, which is a constant of the trace."""
    if is_literal(obj):
        return ConstVal(obj)
    if is_symbolic(obj):
        return from_symbolic(tx, obj)
    kind = type(obj)
    made = _computed_container(tx, obj, kind)
    if made is not None:
        return made
    constant = _constant(kind)
    if constant is not None:
        return constant.model(obj)
    if kind is types.FunctionType:
        return FunctionVal.outside(tx, obj, ConstSource(obj, obj.__qualname__))
    if issubclass(kind, types.ModuleType):
        return ModuleVal(obj)
    if kind in (types.MappingProxyType, functools.partial):
        return wrap(tx, obj, ConstSource(obj, f"a {kind.__name__}"))
    if issubclass(kind, property):
        return LibraryVal(obj)
    if issubclass(kind, _C_CALLABLES):
        return LibraryMethod(obj) if isinstance(getattr(obj, "__self__", None), LIBRARY_TYPES) else BuiltinVal(obj)
    if issubclass(kind, _KNOWN_CALLABLES) and not issubclass(kind, NUMPY_CALLABLES):
        return BuiltinVal(obj)
    if issubclass(kind, types.MethodType):
        return MethodVal(from_real(tx, obj.__self__), from_real(tx, obj.__func__))
    if issubclass(kind, NUMPY_TYPES):
        return from_numpy(tx, obj)
    return ObjVal(kind, obj, ConstSource(obj, f"<{kind.__qualname__}>"))


def _computed_container(tx: Tracer, obj: Any, kind: type) -> Value | None:
    """The model of a container computed while tracing; None for other objects."""
    if kind in (tuple, torch.Size) or (
        issubclass(kind, tuple) and (is_named_tuple(kind) or hasattr(kind, "n_sequence_fields"))
    ):
        return TupleVal([from_real(tx, item) for item in obj], kind)
    if kind is list:
        check_length(len(obj))
        return ListVal([from_real(tx, item) for item in obj])
    if kind in (dict, collections.OrderedDict):
        made = DictVal(kind)
        for key, value in obj.items():
            wrapped = from_real(tx, key)
            made.entries[wrapped.hash_key(tx)] = (wrapped, from_real(tx, value))
        return made
    if kind in (set, frozenset):
        members = [from_real(tx, item) for item in obj]
        return SetVal.outside(kind, obj, {member.hash_key(tx): member for member in members})
    return None
