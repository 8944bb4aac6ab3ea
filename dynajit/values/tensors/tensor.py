"""Tensors while tracing: an fx node, a fake tensor with the metadata, and a source if the tensor came from outside.

In: graph inputs (from `wrap.py`) and results of operations (from `ops.py`). Out: `TensorVal`. An attribute or method
that is known while tracing is an entry in `CONSTANT_ATTRIBUTES` or `CONSTANT_METHODS`; one that has to end the graph
is an entry in `BREAKING_METHODS`; the rest becomes graph nodes.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
import torch
from torch import fx

from dynajit import _C
from dynajit.guards.source import AttrSource, Source
from dynajit.report import breaks
from dynajit.report.breaks import BreakKind
from dynajit.values.containers.identity import object_key
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.lookup import MISSING, bind, class_value, lookup_type
from dynajit.values.polyfills.autograd import history_with_data
from dynajit.values.scalars.constant import ConstVal, constant_of, is_literal, is_none
from dynajit.values.scalars.slices import SliceVal, make_slice
from dynajit.values.scalars.symbolic import SymVal, decide
from dynajit.values.tensors import chosen, overrides
from dynajit.values.tensors.known_truth import known_truth
from dynajit.values.tensors.ragged_sizes import numbers
from dynajit.values.tensors.tensor_class import METHOD_KINDS, is_programs
from dynajit.values.tensors.tensor_data import is_differentiated
from dynajit.values.tensors.tensor_memory import StorageVal, base_of, version_of

_ARRAY: type = numpy.ndarray
_BASE: type = torch._C.TensorBase
_FLAG = "requires_grad"
CONSTANT_ATTRIBUTES = {"dtype", "device", "layout", "ndim", "requires_grad", "itemsize", "names"} | {
    # what kind of tensor it is, for each kind that this build has
    *(name for name, found in vars(_BASE).items() if name.startswith("is_") and not callable(found)),
} - {"is_leaf"}
CONSTANT_METHODS = frozenset(
    {
        "dim",
        "numel",
        "nelement",
        "element_size",
        "is_contiguous",
        "stride",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "get_device",
        "storage_offset",
        "ndimension",
        "is_inference",
        "is_conj",
        "is_neg",
        "is_same_size",
        "type",
        "has_names",
        "is_coalesced",
        "dense_dim",
        "sparse_dim",
        "_is_view",
        "is_distributed",
        "is_shared",
        "is_pinned",
    }
)
NODE_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
# What the TENSOR guard does not cover; results of operations inherit it from the inputs.
UNGUARDED_METHODS = frozenset({"storage_offset", "_is_view", "is_inference", "is_shared", "is_pinned"})
BREAKING_METHODS: dict[str, BreakKind] = {
    "backward": breaks.BACKWARD,
    "item": breaks.DATA_DEPENDENT,
    "tolist": breaks.DATA_DEPENDENT,
    "data_ptr": breaks.UNSUPPORTED_TENSOR,
    "is_set_to": breaks.UNSUPPORTED_TENSOR,  # no two fake tensors share memory as the real ones may
    "storage": breaks.UNSUPPORTED_TENSOR,
    "storage_type": breaks.UNSUPPORTED_TENSOR,
    "retain_grad": breaks.UNSUPPORTED_TENSOR,
    "requires_grad_": breaks.UNSUPPORTED_TENSOR,
    "resize_": breaks.UNSUPPORTED_TENSOR,
    "share_memory_": breaks.UNSUPPORTED_TENSOR,
    "apply_": breaks.UNSUPPORTED_TENSOR,
    "map_": breaks.UNSUPPORTED_TENSOR,
    "__dlpack__": breaks.UNSUPPORTED_TENSOR,
    "__reduce_ex__": breaks.UNSUPPORTED_TENSOR,
    "__deepcopy__": breaks.UNSUPPORTED_TENSOR,
    "pin_memory": breaks.UNSUPPORTED_TENSOR,
    "nonzero": breaks.DYNAMIC_OUTPUT,
    "resize_as_": breaks.UNSUPPORTED_TENSOR,
}


_EVERY: Value = ConstVal(slice(None))


def _captured(tx: Tracer, name: str) -> bool:
    """Whether a method whose result depends on data is part of the graph."""
    if name in ("item", "tolist"):
        return tx.graph.shapes.captures_scalars
    return name == "nonzero" and tx.graph.shapes.captures_sizes


def _is_tensor_input(entry: Any) -> bool:
    return entry.symbol is None


def _still(method: str, expected: object, tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.Tensor) and asked_plainly(tensor, method) == expected


def has_leafness(expected: bool, tensor: Any) -> bool:
    """Whether it is a tensor that is a leaf, or that is none."""
    return isinstance(tensor, torch.Tensor) and tensor.is_leaf == expected


def asked_plainly(tensor: torch.Tensor, method: str) -> Any:
    """What a method says, whatever the tensor's class makes of it."""
    with torch._C.DisableTorchFunction():
        return getattr(tensor, method)()


class TensorVal(Value):
    """A tensor in the graph."""

    def __init__(
        self,
        node: fx.Node,
        fake: torch.Tensor,
        kind: type = torch.Tensor,
        source: Source | None = None,
        real: torch.Tensor | None = None,
    ) -> None:
        self._node = node
        self._fake = fake
        self._real = real
        # whether anything may rely on what it is like; of one that is only handed on that is its class
        self.looked_at = False
        self.kind = kind
        self.source = source
        self.attrs: dict[str, Value] = {}
        # after a write to its `.data` or `.requires_grad`: what it stands for, without and with its history
        self.replacement: TensorVal | None = None
        self.differentiable: TensorVal | None = None
        # whether the program has its storage as an object, which is read late
        self.storage_given = False

    @property
    def fake(self) -> torch.Tensor:
        self.looked_at = True
        return self._fake

    @fake.setter
    def fake(self, fake: torch.Tensor) -> None:
        self._fake = fake

    @property
    def fake_for_keys(self) -> torch.Tensor:
        """For tables, of which nobody relies on what they hold until it is found there."""
        return self._fake

    @property
    def real_tensor(self) -> torch.Tensor | None:
        self.looked_at = True
        return self._real

    @real_tensor.setter
    def real_tensor(self, real: torch.Tensor | None) -> None:
        self._real = real

    @property
    def placeholder(self) -> fx.Node:
        """The node that gave it to the program, whatever it stands for by now."""
        return self._node

    @property
    def node(self) -> fx.Node:
        self.looked_at = True
        if self.replacement is None:
            return self._node
        if self.fake.requires_grad and torch.is_grad_enabled():
            if self.differentiable is not None:
                return self.differentiable.node
            raise GraphBreak(
                breaks.UNSUPPORTED_TENSOR, "gradients of a tensor behind a line that sets its data or requires_grad"
            )
        return self.replacement.node

    def rebuildable(self) -> bool:
        lost = self.replacement is not None and self.differentiable is None and self.fake.requires_grad
        return self.source is not None or not (lost and torch.is_grad_enabled())

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, self.fake

    @property
    def marks(self) -> tuple[tuple[type, str], ...]:
        """Torch's classes that an attribute makes it an instance of, where nothing else tells."""
        told = self.real_tensor is None or self.replacement is not None
        return () if told else ((torch.nn.Buffer, "_is_buffer"),)

    def describe(self) -> str:
        return f"a tensor of shape {tuple(self.fake.shape)} and dtype {self.fake.dtype}"

    def truth(self, tx: Tracer) -> bool:
        if self.fake.numel() != 1:
            raise GraphBreak(breaks.OP_RAISES, "the truth value of a tensor with more than one value")
        known = known_truth(self.node)
        if known is not None:
            return known
        raise GraphBreak(breaks.TENSOR_BRANCH, self.describe())

    def length(self, tx: Tracer) -> Value:
        if self.fake.dim() == 0:
            raise tx.raised(TypeError, "len() of a 0-d tensor")
        return tx.from_real(self.fake.shape[0])

    def iterate(self, tx: Tracer) -> Value:
        if self.fake.dim() == 0:
            raise tx.raised(TypeError, "iteration over a 0-d tensor")
        parts = tx.torch_op("call_method", "unbind", [self, ConstVal(0)], {})
        return tx.iterator(tx.unpack(parts), type(iter(())))

    def iterate_backwards(self, tx: Tracer) -> Value:
        return self.call_method(tx, "__reversed__", [], {})

    def getitem(self, tx: Tracer, key: Value) -> Value:
        key = _without_arrays(tx, key)
        parts = self._index(tx, key)
        around = self._around(tx, parts)
        if around is not None:
            whole, dims, told, rest = around
            item = chosen.load(tx, whole, dims, told)
            rest = [part for part in rest if not is_loader(part)]
            if item is not None:
                return tx.torch_op("call_function", operator.getitem, [item, TupleVal(rest)], {}) if rest else item
        of, others = self._selected(tx, key, parts)
        return of if others is None else tx.torch_op("call_function", operator.getitem, [of, others], {})

    def _index(self, tx: Tracer, key: Value) -> list[Value]:
        return key.values(tx) if isinstance(key, TupleVal) and key.kind is tuple else [key]

    def _around(
        self, tx: Tracer, key: list[Value]
    ) -> tuple[Any, list[tuple[int, Value]], list[int], list[Value]] | None:
        """For an index in which tensors of one choose, and kernels may load: what its None and its integers make of the
        tensor, along which dimensions of that the tensors choose, their places in the index, and the rest of it, the
        tensors too, if that takes a part of what is chosen. None if torch's indexing would do something else."""
        loaders = [*filter(is_loader, key)]
        if not loaders or not chosen.can_be_loaded(tx, self, loaders):
            return None
        if not all(is_loader(part) or _is_index(tx, part) for part in key):
            return None
        if _places(_known(key), self.fake.dim()) is None:
            return None
        whole: Any = self
        parts = [_EVERY if is_none(part) else part for part in key]
        if any(map(is_none, key)):
            whole = self._widened(tx, key)
        places = _places(_known(parts), whole.fake.dim())
        assert places is not None
        rest: list[Value] = []
        dims, told = [], []
        for place, (dim, part) in enumerate(zip(places, parts, strict=True)):
            along = dim - (place - len(rest))  # each integer before it has taken a dimension away
            if part.py_type() is int:
                whole = tx.torch_op("call_method", "select", [whole, ConstVal(along), part], {})
                continue
            if is_loader(part):
                dims.append((along, part))
                told.append(place)
            rest.append(part)
        return whole, dims, told, [] if all(is_loader(part) or _takes_all(part) for part in rest) else rest

    def _widened(self, tx: Tracer, key: list[Value]) -> Any:
        """The tensor with what each None of an index makes: the stride there is told by what is still whole."""
        wide = [part if is_none(part) or part.py_type() is type(...) else _EVERY for part in key]
        return tx.torch_op("call_function", operator.getitem, [self, TupleVal(wide)], {})

    def _selected(self, tx: Tracer, key: Value, given: list[Value]) -> tuple[Value, Value | None]:
        """The part of the tensor that the symbolic integers of an index choose, and the rest of the index: slices,
        None, `...` and tensors. The tensor and the whole index if there are none, or if it raises.

        torch's own indexing would take the integers for what they are now. A tensor of one is an integer to it."""
        if tx.overrides.modes or not all(_is_index(tx, part) for part in given):
            return self, key
        parts = [_with_numbers(tx, part) for part in given]
        vary = [isinstance(part, SymVal) for part in parts]
        if all(map(operator.is_, parts, given)) and not any(vary):
            return self, key
        known = [part.const() if isinstance(part, ConstVal) else part for part in parts]
        places = _places(known, self.fake.dim())
        if places is None:
            return self, key
        if None in known and any(vary[known.index(None) :]):
            parts = [_EVERY if part is None else each for part, each in zip(known, parts, strict=True)]
            return self._widened(tx, given)._selected(tx, TupleVal(parts), parts)  # type: ignore[no-any-return]
        numbers: list[tuple[int, SymVal]] = []
        for dim, part in zip(places, known, strict=True):
            if isinstance(part, SymVal):
                if not _is_there(tx, part, self.fake.shape[dim]):
                    return self, key
                numbers.append((dim - len(numbers), part))
        found: Value = self
        for dim, number in numbers:
            found = tx.torch_op("call_method", "select", [found, ConstVal(dim), number], {})
        rest = [part for part in parts if not isinstance(part, SymVal)]
        return found, TupleVal(rest) if rest else None

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        key = _without_arrays(tx, key)
        parts = self._index(tx, key)
        around = self._around(tx, parts)
        if around is not None and all(is_loader(part) or part.py_type() in (slice, type(...)) for part in around[3]):
            whole, dims, told, rest = around
            if rest:
                left = [_EVERY if is_loader(part) else part for part in rest]
                whole = tx.torch_op("call_function", operator.getitem, [whole, TupleVal(left)], {})
            if chosen.put(tx, whole, dims, told, value):
                return
        of, others = self._selected(tx, key, parts)
        tx.torch_op("call_function", operator.setitem, [of, ConstVal(...) if others is None else others, value], {})

    def contains(self, tx: Tracer, item: Value) -> bool:
        raise GraphBreak(breaks.TENSOR_BRANCH, "'in' on a tensor")

    def hash_key(self, tx: Tracer) -> object:
        return object_key(tx, self)

    # -- attributes

    def getattr(self, tx: Tracer, name: str) -> Value:
        if tx.overrides.modes and name != "__class__" and isinstance(vars(_BASE).get(name), types.GetSetDescriptorType):
            answer = overrides.attribute(tx, self, name)
            if answer is not None:
                return answer
        if name in self.attrs and name != "data":
            return self.attrs[name]
        if name in CONSTANT_ATTRIBUTES and hasattr(_BASE, name):
            return tx.from_real(getattr(self.fake, name))
        if name in NODE_ATTRIBUTES:
            return tx.torch_op("call_function", getattr, [self, ConstVal(name)], {})
        return _ATTRIBUTES[name](self, tx) if name in _ATTRIBUTES else self._python_attribute(tx, name)

    def _shape(self, tx: Tracer) -> TupleVal:
        if self.fake.is_nested:
            return TupleVal(tx.unpack(numbers(tx, self, "_size", self.fake)), torch.Size)
        return TupleVal([tx.from_real(size) for size in self.fake.shape], torch.Size)

    def _class(self, tx: Tracer) -> Value:
        return tx.from_real(self.kind)

    def _grad_fn(self, tx: Tracer) -> Value:
        return ConstVal(None) if self._is_leaf(tx).const() else self._python_attribute(tx, "grad_fn")

    def _retains_grad(self, tx: Tracer) -> Value:
        if self.source is not None and self.fake.requires_grad:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "retains_grad of an input that requires grad")
        return ConstVal(False)

    def _data(self, tx: Tracer) -> Value:
        """Like detach(), but autograd does not hear of writes. The tracer has to, so its own fake is detach()'s."""
        value = tx.torch_op("call_method", "detach", [self.replacement or self], {})
        plain = value if value.payload is None else value.payload  # of an instance of a wrapper subclass its own node
        if isinstance(plain, TensorVal) and plain.node.target == "detach":
            node = plain.node
            node.op, node.target, node.args = "call_function", getattr, (node.args[0], "data")
        return value

    def _grad(self, tx: Tracer) -> Value:
        if self.source is not None and self.real_tensor is not None:
            return tx.wrap(self.real_tensor.grad, AttrSource(self.source, "grad"))
        if self.source is None and self.fake.is_leaf:
            return ConstVal(None)  # backward() ends graphs
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "the gradient of a result")

    def _is_leaf(self, tx: Tracer) -> Value:
        if not self.fake.requires_grad or issubclass(self.kind, torch.nn.Parameter):
            return ConstVal(True)
        if self.source is None or self.real_tensor is None or not self.real_tensor.requires_grad:
            with ending_graph(breaks.OP_RAISES, "is_leaf of a view whose base was written", RuntimeError):
                return ConstVal(self.fake.is_leaf)  # of an input that a write has given a history, too
        known = functools.partial(has_leafness, self.real_tensor.is_leaf)
        tx.guard(self.source, "PREDICATE", known, f"is_leaf is {self.real_tensor.is_leaf}")
        return ConstVal(self.real_tensor.is_leaf)

    def _python_attribute(self, tx: Tracer, name: str) -> Value:
        """An attribute set on the tensor object, or one of its class."""
        found, where = lookup_type(self.kind, name)  # what only the metaclass has, instances lack
        if is_programs(self.kind, name):
            return bind(tx, self, self.kind, name, found, where)
        if isinstance(found, METHOD_KINDS):
            return TensorMethod(self, name)
        if self.source is not None and self.real_tensor is not None:
            attributes = self.real_tensor.__dict__
            if name in attributes:
                return tx.wrap(attributes[name], AttrSource(self.source, name))
            if found is MISSING:
                tx.guard(self.source, "HAS_NO_INSTANCE_ATTR", name)
        if found is MISSING:
            raise tx.raised(AttributeError, f"'{self.kind.__name__}' object has no attribute '{name}'")
        if hasattr(found, "__get__"):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"the attribute {name!r} of a tensor")
        return class_value(tx, self.kind, where, name, found)

    def _set_data(self, tx: Tracer, value: Value) -> None:
        """From here on the tensor stands for what it was given; generated code sets it for real."""
        if not isinstance(value, TensorVal) or tx.runs_elsewhere or tx.open_levels:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "setting 'data' in a branch, or to no plain tensor")
        self._keep_memory()
        if value is self:  # as a module's `to` has it, where nothing is to be changed
            return
        requires_grad = self.fake.requires_grad
        if not _takes_data(self.fake, value.fake):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "setting 'data' to a tensor of another kind")
        if tx.seen.data_ends_graphs or is_differentiated((self.differentiable or self.replacement or self)._node):
            tx.seen.data_ends_graphs |= self.differentiable is not None
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "setting 'data' of what backward may read")
        if value.source is not None or value.fake.requires_grad:
            made = value._data(tx)
            assert isinstance(made, TensorVal)
            value = made
        if self.source is None and self.kind is torch.nn.Parameter:  # made by the program; no gradient reads it yet
            made = self._of_its_kind(tx, value, requires_grad)
            self._stand_for(tx, made, requires_grad, made)
            return
        self._stand_for(tx, value, requires_grad, self._with_data(tx, value))
        if self.source is not None:
            tx.journal.set_item(self.attrs, "data", value)
            tx.journal.touch(self)

    def _of_its_kind(self, tx: Tracer, value: Value, requires_grad: bool) -> TensorVal:
        """A parameter where it is one."""
        if self.kind is torch.nn.Parameter:
            value = tx.call(tx.from_real(self.kind), [value, ConstVal(requires_grad)], {})
        assert isinstance(value, TensorVal)
        return value

    def _stand_for(self, tx: Tracer, value: TensorVal, requires_grad: bool, differentiable: Value | None) -> None:
        with tx.graph.running_fake(), torch.no_grad():
            fake = value.fake.detach().requires_grad_(requires_grad)
        tx.journal.set_attr(self, "replacement", value)
        tx.journal.set_attr(self, "differentiable", differentiable)
        tx.journal.set_attr(self, "fake", fake)
        tx.remember_tensor(self)

    def _with_data(self, tx: Tracer, value: TensorVal) -> Value | None:
        """What gradients flow through to where they flowed before; None if none do, or they would not fit."""
        old, new = self.fake, value.fake
        if not old.requires_grad or (old.shape, old.dtype) != (new.shape, new.dtype):
            return None
        if self.replacement is not None and self.differentiable is None:
            return None
        before = self.differentiable or TensorVal(self._node, old)
        return tx.torch_op("call_function", history_with_data, [before, value], {})

    def _detach_(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """Of what the graph computes: from here on it stands for what `detach` gives."""
        if not self._may_stand_for_another(tx) or self.fake._is_view() or args or kwargs:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "detach_ changes what autograd knows of a tensor")
        if self._has_views(tx):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "detach_ of a tensor with views, whose base it stays")
        if self.fake.requires_grad:
            value = tx.torch_op("call_method", "detach", [self], {})
            self._stand_for(tx, self._of_its_kind(tx, value, False), False, None)
        return self

    def _set_(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """`a.set_(b)` of what the graph computes: from here on it stands for `b.data`."""
        given = args[0] if len(args) == 1 and not kwargs else None
        if not (isinstance(given, TensorVal) and self._may_stand_for_another(tx)):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "Tensor.set_()")
        self._keep_memory()
        ours, theirs = self.fake, given.fake
        alike = (ours.dtype, ours.device, theirs.layout) == (theirs.dtype, theirs.device, torch.strided)
        if not alike or ours.requires_grad or theirs.requires_grad or ours._is_view() or theirs.is_inference():
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "Tensor.set_()")
        self._stand_for(tx, self._of_its_kind(tx, given._data(tx), False), False, None)
        return self

    def _untyped_storage(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        tx.journal.set_attr(self, "storage_given", True)
        return StorageVal(self)

    def _keep_memory(self) -> None:
        if self.storage_given:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "other memory for a tensor whose storage the program has")

    def _may_stand_for_another(self, tx: Tracer) -> bool:
        """Whether nobody but the program has it, and what it is does not depend on what is traced elsewhere."""
        plain = self.fake.layout is torch.strided and not self.fake.is_inference()
        return self.source is None and plain and not (tx.runs_elsewhere or tx.open_levels or tx.overrides.modes)

    def _has_views(self, tx: Tracer) -> bool:
        """Whether the program took views of it, which autograd looks up again where their memory is written."""
        return any(other.fake._base is self.fake for other in tx.tensors.values() if other is not self)

    def _set_requires_grad(self, tx: Tracer, flag: bool) -> None:
        """An input's own flag. Behind it the graph computes with a view that has no history, and the input's count of
        writes; where a gradient would have to find its way to the input itself, the graph ends."""
        if self._has_views(tx):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "setting 'requires_grad' of a tensor that has views")
        with tx.graph.running_fake(), torch.no_grad():
            replacement = tx.torch_op("call_method", "detach", [self], {})
        assert isinstance(replacement, TensorVal)
        self._stand_for(tx, replacement, flag, None)
        tx.journal.set_item(self.attrs, "requires_grad", ConstVal(flag))
        tx.journal.touch(self)

    def _flag_to_set(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value]) -> bool | None:
        """What `requires_grad_` sets an input's flag to, if it may do so."""
        said = [*args, *kwargs.values()] or [ConstVal(True)]
        if len(said) != 1 or not said[0].is_const() or type(said[0].const()) is not bool or not set(kwargs) <= {_FLAG}:
            return None
        plain = self.fake.layout is torch.strided and not self.fake.is_inference()
        if self.source is None or not plain or tx.runs_elsewhere or tx.open_levels or tx.overrides.modes:
            return None
        if not (self.fake.is_floating_point() or self.fake.is_complex()) or not self._is_leaf(tx).const():
            return None
        return bool(said[0].const())

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if name == "data":
            return self._set_data(tx, value)
        if name == "requires_grad" and self.requires_as_said([value], {}) and self._is_leaf(tx).const():
            return None
        if name == "requires_grad" and (self._becomes_leaf(value) or self._flag_to_set(tx, [value], {}) is not None):
            self.call_method(tx, "requires_grad_", [value], {})
            return None
        if name in ("requires_grad", "names") or (name != "grad" and hasattr(torch.Tensor, name)):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"setting {name!r} of a tensor")
        if name == "grad" and self.source is None:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "setting the gradient of a result")
        if name == "grad" and not self._takes_gradient(value):
            # it is set after the graph, where no handler around the assignment is
            raise GraphBreak(breaks.OP_RAISES, f"setting the gradient of a tensor to {value.describe()}")
        tx.journal.set_item(self.attrs, name, value)
        tx.journal.touch(self)

    def _takes_gradient(self, value: Value) -> bool:
        """Whether it may be set as the gradient, for all that is known."""
        if value.fake is None:
            return value.is_const() and value.const() is None
        own, given = self.fake, value.fake
        is_like = (own.dtype, own.device, own.layout) == (given.dtype, given.device, given.layout)
        return is_like and given is not own and given.shape == own.shape

    # -- calls

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name in self.attrs or not hasattr(self.kind, name) or is_programs(self.kind, name):
            return tx.call(self.getattr(tx, name), args, kwargs)
        if tx.overrides.modes or any(map(overrides.is_overriding, args)):
            answer = overrides.dispatch(tx, "call_method", name, [self, *args], kwargs)
            if answer is not None:
                return answer
        if name == "detach" and self.replacement is not None:
            return self.replacement.call_method(tx, name, args, kwargs)
        if name == "requires_grad_" and self._took_flag(tx, args, kwargs):
            return self
        if name in _BY_BUILTIN:
            return tx.call_builtin(getattr(torch.Tensor, name), [self, *args], kwargs)
        if self._ends_graph(tx, name):
            raise GraphBreak(BREAKING_METHODS[name], f"Tensor.{name}()")
        if name in _METHODS:
            return _METHODS[name](self, tx, args, kwargs)
        return self._operation(tx, name, args, kwargs)

    def _operation(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """A method known while tracing, one of the class's own, which is traced, or one that is a node of the graph."""
        if name in CONSTANT_METHODS and not (name == "type" and (args or kwargs)):
            return self._constant_method(tx, name, args, kwargs)
        function = getattr(self.kind, name)
        owner = getattr(torch.Tensor, name, None)
        if owner is None or (isinstance(function, types.FunctionType) and function is not owner):
            return tx.inline(tx.from_real(function), [self, *args], kwargs)
        return tx.torch_op("call_method", name, [self, *args], kwargs)

    def _took_flag(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value]) -> bool:
        """Whether `requires_grad_` needs no operation: it changes nothing, or no more than an input's flag."""
        flag = self._flag_to_set(tx, args, kwargs)
        if flag is None or flag is self.fake.requires_grad:
            return not tx.open_levels and self.requires_as_said(args, kwargs)  # refused inside of a transform
        self._set_requires_grad(tx, flag)
        return True

    def _ends_graph(self, tx: Tracer, name: str) -> bool:
        """Whether the method is not part of graphs. Only what the program made may become a leaf: an input's own flag
        is its owner's, and guarded."""
        becomes_leaf = name == "requires_grad_" and self.source is None and self.replacement is None
        return name in BREAKING_METHODS and not _captured(tx, name) and not becomes_leaf

    def _becomes_leaf(self, value: Value) -> bool:
        """Whether `x.requires_grad = True` does what the method does: the attribute refuses more than that."""
        return self.source is None and not self.fake.requires_grad and value.is_const() and value.const() is True

    def requires_as_said(self, args: Sequence[Value], kwargs: dict[str, Value]) -> bool:
        """Whether `requires_grad_` changes nothing."""
        said = [*args, *kwargs.values()] or [ConstVal(True)]
        return len(said) == 1 and said[0].is_const() and said[0].const() is self.fake.requires_grad

    def _tolist(self, tx: Tracer) -> Value:
        if self.fake.dim() == 0:
            return self.call_method(tx, "item", [], {})
        parts = tx.unpack(self.iterate(tx))
        return tx.new_list([part.call_method(tx, "tolist", [], {}) for part in parts])

    def _size(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        shape = self._shape(tx)
        dim = args[0] if args else kwargs.get("dim")
        if dim is None or (dim.is_const() and dim.const() is None):
            return shape
        index = constant_of(dim, "a dimension")
        if not -len(shape.items) <= index < len(shape.items):
            raise GraphBreak(breaks.OP_RAISES, f"size({index}) of {self.describe()}")
        return shape.items[index]

    def _constant_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name == "storage_offset" and chosen.may_lie_anywhere(tx.graph.graph, self.fake):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "where an item that a tensor chose begins")
        if name in UNGUARDED_METHODS:
            for entry in filter(_is_tensor_input, tx.graph.inputs):
                known = functools.partial(_still, name, asked_plainly(entry.real, name))
                tx.guard(entry.source, "PREDICATE", known, f"has the same {name}()")
        try:
            reals = [arg.fake if isinstance(arg, TensorVal) else arg.const() for arg in args]
            named = {key: arg.const() for key, arg in kwargs.items()}
            asked = self.fake
            if name in UNGUARDED_METHODS and self.source is not None and self.replacement is None:
                asked = self.real_tensor if self.real_tensor is not None else asked  # a symbolic fake is made anew
            with torch._C.DisableTorchFunction():
                return tx.from_real(getattr(asked, name)(*reals, **named))
        except (RuntimeError, TypeError, IndexError) as error:
            raise GraphBreak(breaks.OP_RAISES, f"Tensor.{name}(): {error}", error) from None

    # -- generated code

    def rebuild(self, out: Any) -> None:
        out.graph_output(self)

    def emit_effect(self, out: Any) -> None:
        for name, value in self.attrs.items():
            out.set_attr(self, name, value)

    def effect_children(self) -> Sequence[Value]:
        return [*self.attrs.values(), self]


_ATTRIBUTES: dict[str, Callable[[TensorVal, Tracer], Value]] = {
    "_base": lambda tensor, tx: base_of(tx, tensor),
    "_version": lambda tensor, tx: version_of(tx, tensor),
    "shape": TensorVal._shape,
    "data": TensorVal._data,
    "grad": TensorVal._grad,
    "is_leaf": TensorVal._is_leaf,
    "nbytes": lambda tensor, tx: tx.from_real(tensor.fake.numel() * tensor.fake.itemsize),  # a symbolic fake has none
    "grad_fn": TensorVal._grad_fn,
    "retains_grad": TensorVal._retains_grad,
    "__class__": TensorVal._class,
}
_METHODS: dict[str, Callable[[TensorVal, Tracer, Sequence[Value], dict[str, Value]], Value]] = {
    "size": TensorVal._size,
    "untyped_storage": TensorVal._untyped_storage,
    "detach_": TensorVal._detach_,
    "set_": TensorVal._set_,
    "tolist": lambda tensor, tx, args, kwargs: tensor._tolist(tx),
    "__len__": lambda tensor, tx, args, kwargs: tensor.length(tx),
    "__iter__": lambda tensor, tx, args, kwargs: tensor.iterate(tx),
}
# of which there are models by the function
_BY_BUILTIN = frozenset(
    {"as_subclass", "numpy", "__array__", "register_hook", "register_post_accumulate_grad_hook", "istft"}
)


class TensorMethod(BoundMethod):
    """`x.relu`, not yet called."""

    def rebuild(self, out: Any) -> None:
        if self.name == "backward":
            # what the autograd engine runs is compiled already, or not the program's
            out.call_const(_C.GraphCall, lambda: super(TensorMethod, self).rebuild(out), 1)
        else:
            super().rebuild(out)


# of which torch's indexing reads the number of a tensor without dimensions; uint8 and bool are masks
_INDICES = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_there(tx: Tracer, index: SymVal, size: Any) -> bool:
    """Whether a dimension of this size has the item, guarded."""
    if index.from_graph:  # `select` asks when it runs
        return True
    return decide(tx.graph, bool, index.number < size) and decide(tx.graph, bool, index.number >= -size)


def _takes_data(fake: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether `tensor.data = other` is one of those that are followed here, and does not raise."""
    if any(each.is_inference() or each.layout is not torch.strided for each in (fake, other)):
        return False
    if fake.requires_grad and not (other.is_floating_point() or other.is_complex()):
        return False
    return fake.device == other.device and torch._has_compatible_shallow_copy_type(fake, other)


def _without_arrays(tx: Tracer, key: Value) -> Value:
    """An index with tensors for NumPy's arrays, and for lists of integers that vary."""
    if isinstance(key, TupleVal) and any(_makes_tensor(tx, item) for item in key.values(tx)):
        return TupleVal([_without_arrays(tx, item) for item in key.values(tx)])
    if _lists_numbers(tx, key):
        return tx.call_builtin(torch.tensor, [key], {})
    return tx.call_builtin(torch.as_tensor, [key], {}) if issubclass(key.py_type(), _ARRAY) else key


def _makes_tensor(tx: Tracer, part: Value) -> bool:
    return issubclass(part.py_type(), _ARRAY) or _lists_numbers(tx, part)


def _lists_numbers(tx: Tracer, part: Value) -> bool:
    """Whether it is a list of integers of which some vary: torch's own indexing would take them for what they are."""
    if part.py_type() is not list:
        return False
    items = tx.unpack(part)
    return any(item.symbolic for item in items) and all(item.py_type() is int for item in items)


def _places(parts: Sequence[Any], dims: int) -> list[int] | None:
    """The dimension that each part of an index is for; None if there are too few, or more than one `...`."""
    wide = sum(part is not None and part is not ... for part in parts)
    if wide > dims or sum(part is ... for part in parts) > 1:
        return None
    places, dim = [], 0
    for part in parts:
        places.append(dim)
        dim += dims - wide if part is ... else part is not None
    return places


def _known(parts: Sequence[Value]) -> list[Any]:
    return [part.const() if part.is_const() else part for part in parts]


def _takes_all(part: Value) -> bool:
    return part.is_const() and part.const() in (slice(None), ...)


def is_loader(part: Value) -> bool:
    """Whether a part of an index is a tensor of one integer."""
    return (
        type(part) is TensorVal
        and part.kind is torch.Tensor
        and part.fake.dim() == 0
        and part.fake.dtype in _INDICES
        and not torch._C._functorch.is_batchedtensor(part.fake)
    )


def _is_index(tx: Tracer, part: Value) -> bool:
    """Whether it chooses along one dimension, or none: no mask or truth value, no list of those."""
    if isinstance(part, ConstVal):
        return part.py_type() in (int, slice, type(None), type(...))
    if type(part) is TensorVal:
        indices = part.fake.dtype in _INDICES and part.kind is torch.Tensor
        return indices and (part.fake.dim() > 0 or tx.graph.shapes.captures_scalars)
    if part.py_type() is list:
        return all(type(item) is ConstVal and item.py_type() is int for item in tx.unpack(part))
    is_number = part.py_type() is int and (part.varies or (type(part) is SymVal and part.from_graph))
    return is_number or part.py_type() is slice


def _with_numbers(tx: Tracer, part: Value) -> Value:
    """A part of an index, with numbers of the graph for tensors of one."""
    if type(part) is SliceVal:
        parts = [_with_numbers(tx, each) if _is_index(tx, each) else each for each in part.slice_parts]
        return part if all(map(operator.is_, parts, part.slice_parts)) else make_slice(parts)
    if is_loader(part):
        return part.call_method(tx, "item", [], {})
    return part


def may_be_differentiated(values: Iterable[Value]) -> bool:
    """Whether a tensor among these requires gradients, and they are on."""
    return torch.is_grad_enabled() and any(isinstance(part, TensorVal) and part.fake.requires_grad for part in values)


def is_constant_result(result: object) -> bool:
    """Whether an operation's result needs no node: a number, a dtype, a tuple of these."""
    if isinstance(result, (tuple, list)):
        return all(is_constant_result(part) for part in result)
    return is_literal(result)
