"""NumPy's arrays and scalars that a graph computes.

In: `tensor.numpy()`, a real array with its source, or a NumPy function of such arrays. Out: `GraphArrayVal`, a tensor
of the graph that the program knows as an array. The operation becomes a node (`graph/numpy_call.py`). What NumPy
would give, its type, dtype, shape, strides and whose memory it looks at, is found by calling NumPy on arrays of ones;
where torch would give something else, and where the shape depends on the numbers, the graph ends.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy
import torch

from dynajit.graph.numpy_call import array_as_tensor, is_known, numpy_call
from dynajit.guards.source import CallSource, ConstSource, Source
from dynajit.report import breaks
from dynajit.symbols import is_symbolic, last_position
from dynajit.torch_compat import memory_of
from dynajit.torch_warnings import unwarned
from dynajit.values.containers.sequence import ListVal, SequenceVal, TupleVal
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.operations import BINARY
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors import arrays, numpy_numbers
from dynajit.values.tensors.arrays import ArrayVal
from dynajit.values.tensors.tensor import TensorVal

# What NumPy is asked about is computed while tracing, on ones.
MAX_ELEMENTS = 1 << 22

# Left out: functions whose results have shapes by the numbers, those that write or give arrays that can't be written,
# and those that torch computes differently (the sign of NaN). What is right: tests/values/tensors/test_graph_arrays.py.
_FUNCTIONS_TEXT = """
abs absolute add all amax amin any append arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort
around array array_split asarray ascontiguousarray atleast_1d atleast_2d atleast_3d average bitwise_and bitwise_or
bitwise_xor ceil clip column_stack concatenate copy copysign cos cosh count_nonzero cross cumprod cumsum deg2rad
degrees diff divide dot dstack einsum empty_like equal exp exp2 expand_dims expm1 fabs flip floor fmax fmin full_like
gradient greater greater_equal hsplit hstack hypot inner invert isclose isfinite isinf isnan kron less less_equal log
log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor matmul max maximum mean meshgrid
min minimum moveaxis multiply nan_to_num negative not_equal ones_like outer positive prod ptp rad2deg radians ravel
repeat reshape rint roll rollaxis round sin sinc sinh sort split sqrt square squeeze stack std subtract sum swapaxes
take tan tanh tensordot tile trace transpose tril triu trunc var vdot vsplit vstack where zeros_like
"""
# Of numpy.linalg and numpy.fft. Left out besides: decompositions, whose signs and order are the library's own.
_INNER_TEXT = """
linalg.det linalg.inv linalg.multi_dot linalg.norm linalg.solve
fft.fft fft.fft2 fft.fftn fft.fftshift fft.ifft fft.ifft2 fft.ifftn fft.ifftshift fft.irfft fft.rfft
"""
_FUNCTIONS = frozenset([*_FUNCTIONS_TEXT.split(), *_INNER_TEXT.split()])
# Integers divided by zero give zero in NumPy and raise in torch, and negative powers of integers raise in NumPy.
_OF_FLOATS = frozenset({"floor_divide", "remainder", "mod", "power", "float_power", "fmod", "reciprocal"})
_METHODS_TEXT = """
all any argmax argmin argsort astype clip copy cumprod cumsum dot flatten max mean min prod ravel repeat reshape round
squeeze std sum swapaxes take trace transpose var
"""
_METHODS = frozenset(_METHODS_TEXT.split())
_AS_NUMBERS = ("item", "tolist")
_INTEGER = numpy.dtype(int)
_CONSTANT_ATTRIBUTES = frozenset({"dtype", "itemsize", "ndim", "nbytes", "shape", "size", "strides"})
# what an array's `**` calls for these exponents
_QUICK_POWERS: dict[float, Any] = {2: numpy.square, 0.5: numpy.sqrt}
UFUNCS: dict[Any, Any] = {
    operator.add: numpy.add,
    operator.sub: numpy.subtract,
    operator.mul: numpy.multiply,
    operator.truediv: numpy.divide,
    operator.floordiv: numpy.floor_divide,
    operator.mod: numpy.remainder,
    operator.pow: numpy.power,
    operator.matmul: numpy.matmul,
    operator.and_: numpy.bitwise_and,
    operator.or_: numpy.bitwise_or,
    operator.xor: numpy.bitwise_xor,
    operator.invert: numpy.invert,
    operator.neg: numpy.negative,
    abs: numpy.absolute,
    operator.pos: numpy.positive,
    operator.eq: numpy.equal,
    operator.ne: numpy.not_equal,
    operator.lt: numpy.less,
    operator.le: numpy.less_equal,
    operator.gt: numpy.greater,
    operator.ge: numpy.greater_equal,
}


def computed(value: object) -> TypeGuard[GraphArrayVal]:
    """Whether it is an array or scalar that the graph computes."""
    return isinstance(value, GraphArrayVal)


class ArrayMemory:
    """Whose memory an array is in that NumPy would have made: its own, until another one looks at it."""

    def __init__(self, owned: bool) -> None:
        self.owned = owned


class GraphArrayVal(Value):
    """An array in a tensor's memory, or a scalar: what an item or a sum of an array is. `memory` is None for the array
    that a tensor gives, whose `base` is the tensor, and `alias` that tensor as it was then, which the program does not
    know: it may give its own another shape, other memory or gradients."""

    array_priority = 2
    child_names = ("tensor",)

    def __init__(
        self,
        tensor: TensorVal,
        is_scalar: bool = False,
        source: Source | None = None,
        memory: ArrayMemory | None = None,
        alias: TensorVal | None = None,
    ) -> None:
        self.given = tensor
        self.is_scalar = is_scalar
        self.source = source
        self.memory = memory
        self.alias = alias

    @property
    def tensor(self) -> TensorVal:
        return self.given if self.alias is None or _is_alike(self.given, self.alias) else self.alias

    def is_looked_at(self) -> None:
        """Another array or a tensor is in its memory."""
        if self.memory is not None:
            self.memory.owned = False

    @property
    def dtype(self) -> Any:
        return numpy_dtype(self.tensor.fake.dtype)

    def py_type(self) -> type:
        return self.dtype.type if self.is_scalar else numpy.ndarray  # type: ignore[no-any-return]

    def describe(self) -> str:
        return f"a NumPy {'scalar' if self.is_scalar else 'array'} of {self.dtype}, computed by the graph"

    def sample(self) -> Any:
        """An array or scalar of ones, laid out like this one."""
        if self.is_scalar:
            return self.dtype.type(1)
        shape, strides = hints(self.tensor.fake.shape), hints(self.tensor.fake.stride())
        if math.prod(shape) > MAX_ELEMENTS:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a NumPy function of an array of {math.prod(shape)} elements")
        extent = last_position(shape, strides) + 1 if math.prod(shape) else 0
        memory = numpy.ones(extent, self.dtype)
        return numpy.ndarray(shape, self.dtype, memory, strides=[step * memory.itemsize for step in strides])

    def truth(self, tx: Tracer) -> bool:
        raise GraphBreak(breaks.DATA_DEPENDENT, f"the truth of {self.describe()}")

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in _CONSTANT_ATTRIBUTES and not self._varies():
            return tx.from_real(getattr(self.sample(), name))
        if name == "shape":
            return TupleVal(tx.unpack(self.tensor.getattr(tx, "shape")))
        if name in ("T", "real", "imag"):
            return compute(tx, operator.attrgetter(name), f"ndarray.{name}", [self], {})
        if name in _AS_NUMBERS and tx.graph.shapes.captures_scalars:
            return BoundMethod(self, name)
        if name in (*_AS_NUMBERS, "__float__", "__int__", "__bool__"):
            raise GraphBreak(breaks.DATA_DEPENDENT, f"{name}() of {self.describe()}")
        if name in _METHODS or name == "fill":
            return BoundMethod(self, name)
        return super().getattr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name == "fill" and len(args) == 1 and not kwargs and not self.is_scalar:
            self.write(tx, args[0])
            return ConstVal(None)
        if name in _AS_NUMBERS and not kwargs and not args and tx.graph.shapes.captures_scalars:
            return self.tensor.call_method(tx, name, [], {})
        if name not in _METHODS:
            return super().call_method(tx, name, args, kwargs)

        def method(owner: Any, *rest: Any, **named: Any) -> Any:
            return getattr(owner, name)(*rest, **named)

        return compute(tx, method, f"ndarray.{name}", [self, *args], kwargs)

    def _varies(self) -> bool:
        return any(map(is_symbolic, (*self.tensor.fake.shape, *self.tensor.fake.stride())))

    def length(self, tx: Tracer) -> Value:
        if self.is_scalar or self.tensor.fake.dim() == 0:
            self.unsupported("len()")
        return self.tensor.length(tx)

    def iterate(self, tx: Tracer) -> Value:
        if self.is_scalar or self.tensor.fake.dim() == 0 or self._varies():
            self.unsupported("iteration")
        count = self.tensor.fake.shape[0]
        return tx.iterator([self.getitem(tx, ConstVal(at)) for at in range(count)], type(iter(numpy.ones(1))))

    def getitem(self, tx: Tracer, key: Value) -> Value:
        parts = _parts(tx, key)
        if not self.is_scalar and any(map(_is_varying_index, parts)):
            hint = tuple(map(_at_hand, parts))
            # a new dimension's stride is none of torch's
            if not any(map(_chooses, hint)) and not (None in hint and any(type(part) is slice for part in hint)):
                return self._at_numbers(tx, key, hint)
        return compute(tx, operator.getitem, "ndarray.__getitem__", [self, _index(tx, key)], {})

    def _at_numbers(self, tx: Tracer, key: Value, hint: tuple[Any, ...]) -> Value:
        """What is where integers and slices that vary say, among those that are known."""
        _index(tx, TupleVal([part for part in _parts(tx, key) if not _is_varying_index(part)]))
        sample = self.sample()
        with ending_graph(breaks.OP_RAISES, "numpy.ndarray.__getitem__", TypeError, ValueError, IndexError):
            expected = sample[hint]
        found = self.tensor.getitem(tx, key)
        if type(expected) is not numpy.ndarray:  # a scalar, which keeps its number
            found = tx.torch_op("call_method", "clone", [found], {})
        return _matched(tx, "ndarray.__getitem__", found, expected, [(self, sample)])

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        if self._chosen(tx, key, value):
            return
        place = self.getitem(tx, key)
        assert computed(place)
        if place.is_scalar or not _shares(place.tensor, self.tensor):
            key = TupleVal([*_parts(tx, key), ConstVal(...)])
            place = self.getitem(tx, key)
            assert computed(place)
        if not _shares(place.tensor, self.tensor):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "writing items of an array that an array chooses")
        place.write(tx, value)

    def _chosen(self, tx: Tracer, key: Value, value: Value) -> bool:
        """Write one number where a mask, or an array or list of indices, chooses; whether it was that."""
        number = self._to_write(value)
        keys = _parts(tx, key)
        parts = [_at_hand(part) for part in keys]
        if numpy.ndim(number) or not any(map(_chooses, parts)):
            return False
        self._check_fit(number, value)
        if any(getattr(part, "dtype", _INTEGER).kind not in "bi" for part in parts):
            raise GraphBreak(breaks.OP_RAISES, "an index that is no integer")
        plain = [key for key, part in zip(keys, parts, strict=True) if not _chooses(part)]
        _index(tx, TupleVal(plain))
        memory = self.tensor.getattr(tx, "data")
        index = TupleVal([_index_tensor(tx, part) for part in keys])
        tx.torch_op("call_function", operator.setitem, [memory, index, as_tensor(tx, value, self.dtype)], {})
        return True

    def _to_write(self, value: Value) -> Any:
        """What is going to be written, as it is in this capture."""
        if _is_number_for(value, self.dtype):
            return hints([value.number])[0]  # type: ignore[attr-defined]
        return value.sample() if computed(value) else _constant(value)

    def _check_fit(self, new: Any, value: Value) -> None:
        """Break where NumPy would refuse to convert."""
        if not numpy.can_cast(getattr(new, "dtype", self.dtype), self.dtype, "same_kind"):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"writing {value.describe()} into {self.describe()}")
        with ending_graph(breaks.OP_RAISES, "writing an array", TypeError, ValueError, OverflowError):
            self.sample()[...] = new

    def operate(self, tx: Tracer, function: Callable[..., Any], operands: Sequence[Value]) -> Value:
        ufunc = UFUNCS.get(function, function)
        if ufunc is numpy.power and _computes_floats(operands) and type(operands[1]) is ConstVal:
            quick = _QUICK_POWERS.get(operands[1].const())
            ufunc, operands = (ufunc, operands) if quick is None else (quick, operands[:1])
        if not isinstance(ufunc, numpy.ufunc):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{function.__name__} of {operands[0].describe()}")
        return call(tx, ufunc, operands, {})

    def ibinary(self, tx: Tracer, symbol: str, right: Value) -> bool:
        if not self.is_scalar:  # which don't change
            self.write(tx, self.operate(tx, BINARY[symbol][0], [self, right]))
        return not self.is_scalar

    def write(self, tx: Tracer, value: Value) -> None:
        """`array[...] = value`."""
        self._check_fit(self._to_write(value), value)
        # NumPy tells autograd of no write
        memory = self.tensor.getattr(tx, "data")
        tx.torch_op("call_method", "copy_", [memory, as_tensor(tx, value, self.dtype)], {})

    def rebuild(self, out: Any) -> None:
        out.call_on(self._maker(), self.tensor)

    def _maker(self) -> Callable[[torch.Tensor], Any]:
        if self.is_scalar:
            return _scalar_of
        if self.memory is None:
            return torch.Tensor.numpy
        return _owner_of_a_copy if self.memory.owned else _view_of


def _index_tensor(tx: Tracer, key: Value) -> Value:
    """An index of torch's for one of NumPy's."""
    return as_tensor(tx, key) if _chooses(_at_hand(key)) else key


def _is_varying_index(key: Value) -> bool:
    if key.is_const() or key.py_type() is not slice:
        return key.varies and key.py_type() is int
    *bounds, step = key.slice_parts  # type: ignore[attr-defined]
    known = all(_is_varying_index(bound) or bound.is_const() for bound in bounds) and step.is_const()
    return known and any(map(_is_varying_index, bounds)) and (step.const() or 1) > 0


def _at_hand(key: Value) -> Any:
    """A part of an index as it is in this capture."""
    if key.py_type() is slice and _is_varying_index(key):
        return slice(*map(_at_hand, key.slice_parts))  # type: ignore[attr-defined]
    return hints([key.number])[0] if _is_varying_index(key) else _sample(key)  # type: ignore[attr-defined]


def _chooses(index: object) -> bool:
    return isinstance(index, (list, numpy.ndarray))


def _scalar_of(tensor: torch.Tensor) -> Any:
    """In generated code: a NumPy scalar."""
    return tensor.numpy()[()]


def _owner_of_a_copy(tensor: torch.Tensor) -> Any:
    """In generated code: an array that owns its memory, as one that NumPy computed does: it has no `base` and can be
    resized. That takes a copy, for NumPy frees what is its own in a way of its own."""
    return tensor.numpy().copy(order="K")


def _view_of(tensor: torch.Tensor) -> Any:
    """In generated code: an array whose `base` is an array."""
    return tensor.numpy().view()


# ---------------------------------------------------------------------------------------------- where arrays come from


def _joins_graph(self: ArrayVal, tx: Tracer, operands: Sequence[Value]) -> bool:
    if self.is_scalar or self.owner is not None or self.viewed or self.lent or not holds(operands):
        return False
    before = dict(vars(self))
    made = GraphArrayVal(_tensor(as_tensor(tx, self)), memory=ArrayMemory(True))

    def become(kind: type, state: dict[str, Any]) -> None:
        """Whoever has the array has the same one still."""
        vars(self).clear()
        vars(self).update(state)
        self.__class__ = kind  # type: ignore[assignment]

    tx.journal.record(lambda: become(ArrayVal, before))
    become(GraphArrayVal, vars(made))
    return True


ArrayVal.joins_graph = _joins_graph  # type: ignore[method-assign]


def outside(tx: Tracer, array: Any, source: Source) -> GraphArrayVal | None:
    """The model of a real array, or None if torch can't look at its memory, or may write there unseen."""
    try:
        real = array_as_tensor(array)
    except (TypeError, ValueError):
        return None
    memory = CallSource(source, array_as_tensor, "the memory of {}")
    tensor = tx.wrap(real, memory)
    assert isinstance(tensor, TensorVal)
    next(entry for entry in tx.graph.inputs if entry.node is tensor.node).foreign = True
    if tx.graph.conflict():
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "an array that may share memory with a tensor written before")
    return GraphArrayVal(tensor, source=source)


def of_tensor(tx: Tracer, tensor: TensorVal) -> GraphArrayVal:
    """`tensor.numpy()`."""
    fake = tensor.fake
    if (
        fake.requires_grad
        or fake.device.type != "cpu"
        or torch._C._functorch.peek_interpreter_stack() is not None  # a transform may refuse it
        or fake.is_conj()
        or fake.is_neg()
        or tensor.kind not in (torch.Tensor, torch.nn.Parameter)
        or numpy_dtype(fake.dtype) is None
    ):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "Tensor.numpy()")
    return GraphArrayVal(tensor, alias=_tensor(tx.torch_op("call_method", "detach", [tensor], {})))


def numpy_dtype(dtype: torch.dtype) -> Any:
    """NumPy's name for the dtype, None if it has none."""
    try:
        with torch._C._DisableFuncTorch():  # inside of a transform the tensor would be wrapped
            return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def as_tensor(tx: Tracer, value: Value, dtype: Any = None) -> Value:
    """The tensor with an array's numbers, of `dtype` if one is given; what is known is a constant of the graph."""
    if computed(value):
        found: Value = value.tensor
    elif dtype is not None and _is_number_for(value, dtype):
        read = ConstVal(torch.int64 if value.py_type() is int else torch.float64)
        found = tx.torch_op("call_function", torch.full, [TupleVal([]), value], {"dtype": read})
    else:
        known = numpy.array(_constant(value), dtype)
        named: dict[str, Value] = {"dtype": _torch_dtype(known.dtype)}
        if known.ndim:
            made = torch.from_numpy(known)
            found = tx.torch_op("call_method", "clone", [tx.wrap(made, ConstSource(made, "a NumPy array"))], {})
        else:
            found = tx.torch_op("call_function", torch.tensor, [tx.from_real(known.item())], named)
    wanted = None if dtype is None else _torch_dtype(dtype).const()
    if wanted is None or (isinstance(found, TensorVal) and found.fake.dtype is wanted):
        return found
    return tx.torch_op("call_method", "to", [found, ConstVal(wanted)], {})


def _is_number_for(value: Value, dtype: Any) -> bool:
    """Whether it is a number that varies, and an array of this dtype takes any such."""
    kinds = (int, float) if dtype == numpy.float64 else (int,) if dtype == numpy.int64 else ()
    return value.varies and value.py_type() in kinds


def _torch_dtype(dtype: Any) -> ConstVal:
    with ending_graph(breaks.UNSUPPORTED_VALUE, f"a NumPy array of {dtype}", TypeError):
        return ConstVal(torch.from_numpy(numpy.empty(0, dtype)).dtype)


def _constant(value: Value) -> Any:
    """What is known while tracing."""
    if holds([value]):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a NumPy function of a list of what the graph computes")
    return _sample(value)


def _sample(value: Value) -> Any:
    """What NumPy is asked about in place of the value."""
    if computed(value):
        return value.sample()
    if isinstance(value, SequenceVal):
        found = [_sample(item) for item in value.items if isinstance(item, Value)]
        if len(found) != len(value.items):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a NumPy function of a list not looked at yet")
        return found if isinstance(value, ListVal) else tuple(found)
    return value.const() if value.symbolic else value.real()


_WITH_DTYPE = (torch.tensor, torch.as_tensor)


def make_tensor(
    tx: Tracer, function: Any, array: GraphArrayVal, rest: Sequence[Value], kwargs: dict[str, Value]
) -> Value:
    """`torch.from_numpy(array)` and its like: a tensor in the same memory, or in its own for `torch.tensor`, or of
    another dtype."""
    dtype = kwargs["dtype"].real() if kwargs.keys() == {"dtype"} and function in _WITH_DTYPE else None
    if type(dtype) is torch.dtype and not rest:
        plain = make_tensor(tx, function, array, (), {})
        # a copy already, or one that this makes
        return tx.torch_op("call_method", "to", [plain, kwargs["dtype"]], {})
    if rest or kwargs or (array.is_scalar and function is torch.from_numpy):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a tensor of {array.describe()} with options")
    name = "clone" if function is torch.tensor or array.is_scalar else "detach"
    if name == "detach":
        array.is_looked_at()
    return tx.torch_op("call_method", name, [array.tensor], {})


# ------------------------------------------------------------------------------------------------ operations


def holds(values: Sequence[Value]) -> bool:
    """Whether an array of the graph is among arguments, or in a list of them."""
    return any(computed(value) or (isinstance(value, SequenceVal) and holds(value.children())) for value in values)


def model_of(function: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Callable[..., Value] | None:
    """How a function of NumPy's is called: by a node of the graph if one of its arrays is among the arguments, or while
    tracing. None for other functions."""
    module = getattr(function, "__module__", None) or ("numpy" if isinstance(function, numpy.ufunc) else "")
    if module.partition(".")[0] == "numpy" and holds([*args, *kwargs.values()]):
        return call
    return numpy_numbers.run if arrays.is_known(function) else None


def call(tx: Tracer, function: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy's, with an array of the graph among its arguments."""
    name = "conj" if function is numpy.conjugate else _name_of(function)
    known = name in _FUNCTIONS or (name in _OF_FLOATS and _computes_floats(args))
    if not known or _named(name) is not function or "out" in kwargs or "where" in kwargs:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"the NumPy function {name} of what the graph computes")
    if function in (numpy.array, numpy.asarray) and not kwargs and len(args) == 1 and _are_scalars(tx, args[0]):
        return compute(tx, numpy.stack, "stack", args, {})
    if isinstance(function, numpy.ufunc) and not kwargs and function.signature is None:
        args = _common(tx, function, args)
    return compute(tx, function, name, args, kwargs)


def _are_scalars(tx: Tracer, value: Value) -> bool:
    """Whether it is a list of scalars of one dtype, all of which the graph computes."""
    items = tx.unpack(value) if value.py_type() in (list, tuple) else []
    kinds = {item.dtype if item.is_scalar else None for item in items if computed(item)}
    return len(kinds) == 1 and None not in kinds and all(computed(item) for item in items)


def _name_of(function: Any) -> str:
    """As `numpy_call` knows it."""
    inner = str(getattr(function, "__module__", "")).removeprefix("numpy").removeprefix(".")
    return f"{inner}.{function.__name__}" if inner in ("linalg", "fft") else str(function.__name__)


def _named(name: str) -> Any:
    try:
        return operator.attrgetter(name)(numpy)
    except AttributeError:
        return None


def _computes_floats(args: Sequence[Value]) -> bool:
    """Whether NumPy computes in floats, to whose dtype Python's numbers are converted."""
    kinds = [arg.dtype.kind if computed(arg) else type(_constant(arg)) for arg in args]
    return all(kind == "f" or kind is int or kind is float for kind in kinds)


def _common(tx: Tracer, ufunc: Any, args: Sequence[Value]) -> Sequence[Value]:
    """The arguments in the dtypes that the ufunc computes in."""
    given = [arg.dtype if computed(arg) else _weak(_constant(arg)) for arg in args]
    with ending_graph(breaks.OP_RAISES, f"numpy.{ufunc.__name__}", TypeError, AttributeError):
        wanted = ufunc.resolve_dtypes((*given, *(None for _ in range(ufunc.nout))))
    return [
        GraphArrayVal(_tensor(as_tensor(tx, arg, dtype)), _is_scalar(arg))
        for arg, dtype in zip(args, wanted[: len(args)], strict=True)
    ]


def _weak(known: Any) -> Any:
    """What NumPy calls a Python number that takes the dtype of the others, or the dtype."""
    return type(known) if type(known) in (int, float, complex) else numpy.asarray(known).dtype


def _is_scalar(value: Value) -> bool:
    if computed(value):
        return value.is_scalar
    return numpy.ndim(_constant(value)) == 0 and not isinstance(_constant(value), numpy.ndarray)


def _tensor(value: Value) -> TensorVal:
    assert isinstance(value, TensorVal)
    return value


def compute(
    tx: Tracer, function: Callable[..., Any], name: str, args: Sequence[Value], kwargs: dict[str, Value]
) -> Value:
    """The node that computes `function`, which `numpy_call` knows by `name`."""
    if not is_known(name):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"torch has no numpy.{name}")
    samples, named = [_sample(arg) for arg in args], {key: _sample(arg) for key, arg in kwargs.items()}
    if name.startswith("linalg."):
        for sample in samples:
            _make_regular(sample)
    refused = ending_graph(breaks.OP_RAISES, f"numpy.{name}", TypeError, ValueError, IndexError, ArithmeticError)
    with refused, numpy.errstate(all="ignore"), unwarned():
        expected = function(*samples, **named)
    found = tx.torch_op(
        "call_function",
        numpy_call,
        [ConstVal(name), *(_lowered(tx, arg) for arg in args)],
        {key: _lowered(tx, arg) for key, arg in kwargs.items()},
    )
    owners = [(arg, sample) for arg, sample in zip(args, samples, strict=True) if computed(arg) and not arg.is_scalar]
    return _matched(tx, name, found, expected, owners)


def _make_regular(sample: Any) -> None:
    """Matrices of ones have no inverse."""
    if isinstance(sample, numpy.ndarray) and sample.ndim > 1 and sample.shape[-1] == sample.shape[-2]:
        sample += (sample.shape[-1] * numpy.eye(sample.shape[-1])).astype(sample.dtype)


def _lowered(tx: Tracer, value: Value) -> Value:
    """An argument of `numpy_call`: tensors for arrays, names for dtypes."""
    if computed(value):
        return value.tensor
    if isinstance(value, SequenceVal):
        items = [_lowered(tx, item) for item in value.items]
        return ListVal(items) if isinstance(value, ListVal) else TupleVal(items)
    known = value.const() if value.symbolic else None if isinstance(value, ArrayVal) else _constant(value)
    if isinstance(value, ArrayVal):
        return as_tensor(tx, value)
    if isinstance(known, numpy.dtype) or (isinstance(known, type) and issubclass(known, numpy.generic)):
        return ConstVal(numpy.dtype(known).name)
    return value


def _matched(tx: Tracer, name: str, found: Value, expected: Any, owners: Sequence[tuple[GraphArrayVal, Any]]) -> Value:
    """The model of a result, if it is what NumPy gave for the samples."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, SequenceVal) or len(found.items) != len(expected):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"what numpy.{name} returns")
        parts = [_matched(tx, name, part, each, owners) for part, each in zip(found.values(tx), expected, strict=True)]
        return ListVal(parts) if isinstance(expected, list) else TupleVal(parts)
    if not isinstance(found, TensorVal) or not isinstance(expected, (numpy.ndarray, numpy.generic)):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"what numpy.{name} returns")
    if numpy_dtype(found.fake.dtype) != expected.dtype or hints(found.fake.shape) != expected.shape:
        raise GraphBreak(
            breaks.UNSUPPORTED_VALUE,
            f"numpy.{name}, which gives {expected.dtype}{list(expected.shape)}, and "
            f"{found.fake.dtype}{list(found.fake.shape)} in torch",
        )
    if isinstance(expected, numpy.generic):
        return GraphArrayVal(found, is_scalar=True)
    return _in_memory(tx, name, found, expected, owners)


def _in_memory(
    tx: Tracer, name: str, found: TensorVal, expected: Any, owners: Sequence[tuple[GraphArrayVal, Any]]
) -> Value:
    """An array of the memory that NumPy's would be in: an argument's, or its own."""
    looks_at = [owner for owner, sample in owners if numpy.shares_memory(expected, sample)]
    strides = tuple(step // expected.itemsize for step in expected.strides)
    if looks_at:
        for owner in looks_at:
            owner.is_looked_at()
        if not all(_shares(found, owner.tensor) for owner in looks_at) or not _same_steps(found, strides):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"numpy.{name}, which gives a view")
    elif any(_shares(found, owner.tensor) for owner, _ in owners) or not _same_steps(found, strides):
        found = _copied(tx, name, found, strides)
    alias = next((owner.alias for owner, _ in owners if found is owner.given), None)  # `asarray` gives it as it is
    return GraphArrayVal(found, memory=ArrayMemory(not looks_at and expected.flags.owndata), alias=alias)


def _copied(tx: Tracer, name: str, found: TensorVal, strides: Sequence[int]) -> TensorVal:
    """In memory of its own, laid out as NumPy would."""
    for layout in (torch.contiguous_format, torch.preserve_format):
        made = _tensor(tx.torch_op("call_method", "clone", [found], {"memory_format": ConstVal(layout)}))
        if _same_steps(made, strides):
            return made
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"the layout of what numpy.{name} gives")


def _same_steps(tensor: TensorVal, strides: Sequence[int]) -> bool:
    shape = hints(tensor.fake.shape)
    steps = zip(shape, hints(tensor.fake.stride()), strides, strict=True)
    return 0 in shape or all(size == 1 or mine == step for size, mine, step in steps)


def _is_alike(tensor: TensorVal, alias: TensorVal) -> bool:
    """Whether an array of either is the same one."""
    one, other = tensor.fake, alias.fake
    same = one.storage_offset() == other.storage_offset() and not one.requires_grad and _shares(tensor, alias)
    return same and one.shape == other.shape and one.stride() == other.stride()


def _shares(tensor: TensorVal, other: TensorVal) -> bool:
    return memory_of(tensor.fake) == memory_of(other.fake)


def hints(numbers: Sequence[Any]) -> tuple[int, ...]:
    """Sizes or strides, symbolic ones as they are in this capture."""
    found = [number.node.hint if is_symbolic(number) else number for number in numbers]
    if None in found:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a NumPy array whose size depends on data")
    return tuple(found)


def _parts(tx: Tracer, key: Value) -> list[Value]:
    """What an index says of each dimension."""
    return list(key.values(tx)) if isinstance(key, TupleVal) else [key]


def _index(tx: Tracer, key: Value) -> Value:
    """A key that torch's indexing takes for the same: no steps backwards, no masks."""
    for part in _parts(tx, key):
        if computed(part) and part.dtype.kind == "b":
            raise GraphBreak(breaks.DYNAMIC_OUTPUT, "indexing an array with a mask")
        known = None if computed(part) else _constant(part)
        if isinstance(known, slice) and (known.step or 1) < 0:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a slice of an array with a negative step")
        if isinstance(known, bool) or (isinstance(known, numpy.ndarray) and known.dtype.kind == "b"):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "indexing an array with a mask")
    return key
