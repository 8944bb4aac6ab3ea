"""NumPy's scalars and arrays that were computed while tracing from what is known then.

In: a NumPy function, or an array's method, on constants. Out: `ArrayVal`, which holds the real scalar or array. NumPy's
functions are run, not put in the graph; what torch makes of an array is a constant of the graph. Arrays from outside
have no model (their contents may change between calls). One more function of NumPy: its name in `_FUNCTIONS`.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from dynajit.guards.source import ConstSource, Source
from dynajit.report import breaks
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.operations import INPLACE
from dynajit.values.core.slots import ending_graph, raising
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.scalars.constant import ConstVal

# Their results depend on their arguments alone, which they leave as they are.
_FUNCTIONS_TEXT = """
abs all allclose amax amin any append arange argmax argmin argsort array array_equal array_split asarray
ascontiguousarray atleast_1d atleast_2d atleast_3d average bartlett bincount blackman block broadcast_shapes
broadcast_to can_cast clip column_stack concatenate convolve corrcoef count_nonzero cov cross cumprod cumsum diag
diagonal diff digitize dot dstack einsum expand_dims eye flip fliplr flipud full full_like geomspace gradient
hamming hanning histogram hsplit hstack identity indices inner interp isclose isin isscalar issubdtype kron linspace
logspace matmul max mean median meshgrid min moveaxis nan_to_num ndim nonzero ones ones_like outer pad percentile
prod promote_types ptp quantile ravel repeat reshape result_type roll rollaxis rot90 round searchsorted shape size
sort split sqrt squeeze stack std sum swapaxes take tensordot tile trace transpose trapezoid tri tril tril_indices
triu triu_indices unique unravel_index unwrap vander var vdot vsplit vstack where zeros zeros_like
"""
_FUNCTIONS = frozenset(_FUNCTIONS_TEXT.split())
_INNER_TEXT = """
fft.fft fft.fft2 fft.fftfreq fft.fftn fft.fftshift fft.ifft fft.ifft2 fft.ifftn fft.ifftshift fft.irfft fft.rfft
fft.rfftfreq linalg.cholesky linalg.cond linalg.det linalg.eig linalg.eigh linalg.eigvals linalg.eigvalsh linalg.inv
linalg.lstsq linalg.matrix_power linalg.matrix_rank linalg.multi_dot linalg.norm linalg.pinv linalg.qr linalg.slogdet
linalg.solve linalg.svd linalg.tensorinv linalg.tensorsolve
"""
_INNER = frozenset(operator.attrgetter(name)(numpy) for name in _INNER_TEXT.split())
_METHODS_TEXT = """
all any argmax argmin argsort astype clip copy cumprod cumsum diagonal dot flatten item max mean min nonzero prod
ravel repeat reshape round squeeze std sum swapaxes take tobytes tolist trace transpose var view
"""
_METHODS = frozenset(_METHODS_TEXT.split())
_ATTRIBUTES = frozenset({"T", "dtype", "imag", "itemsize", "nbytes", "ndim", "real", "shape", "size"})
_DISPATCHER: type = type(numpy.concatenate)
SCALARS = tuple(
    kind
    for name in ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "float16", "float32", "float64")
    if (kind := getattr(numpy, name, None)) is not None
)


class ArrayVal(Value):
    """A scalar or an array. `owner`: the array whose memory this one looks at, if that was made while tracing too."""

    lent = False  # whether a tensor shares the memory, and may change it
    viewed = False  # whether another array looks at the memory

    array_priority = 1
    child_names = ("owner",)

    def __init__(self, array: Any, owner: ArrayVal | None = None, source: Source | None = None) -> None:
        self.array = array
        self.owner = owner
        self.source = source

    def _is_lent(self) -> bool:
        return self.lent if self.owner is None else self.owner._is_lent()

    def rebuildable(self) -> bool:
        return not self._is_lent()

    def py_type(self) -> type:
        return type(self.array)

    @property
    def is_scalar(self) -> bool:
        return isinstance(self.array, numpy.generic)

    def describe(self) -> str:
        return f"a NumPy {'scalar' if self.is_scalar else 'array'} of {self.array.dtype}"

    def real(self) -> Any:
        if self._is_lent():
            raise NotReal("an array whose memory a tensor shares")
        return self.array

    def const(self) -> Any:
        return self.array if self.is_scalar else super().const()

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        """NumPy's scalars count as Python's numbers, its truth values as floats."""
        if not self.is_scalar:
            self.unsupported("a torch operation")
        number = self.array.item()
        return (float(number) if type(number) is bool else number,) * 2

    def truth(self, tx: Tracer) -> bool:
        with raising(tx, ValueError):
            return bool(self.array)

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in _ATTRIBUTES:
            return tx.from_real(getattr(self.array, name))
        if name in _METHODS:
            return BoundMethod(self, name)
        return super().getattr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name not in _METHODS:
            return super().call_method(tx, name, args, kwargs)
        return compute(tx, operator.methodcaller, [ConstVal(name), *args], kwargs, self)

    def length(self, tx: Tracer) -> Value:
        return tx.fold(len, [self])

    def iterate(self, tx: Tracer) -> Value:
        if self.is_scalar or self.array.ndim == 0:
            return super().iterate(tx)
        return tx.iterator([tx.from_real(item) for item in self.array], type(iter(self.array)))

    def getitem(self, tx: Tracer, key: Value) -> Value:
        return compute(tx, operator.getitem, [self, key], {})

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        if self.joins_graph(tx, [key, value]):
            self.setitem(tx, key, value)  # as what it is now
        else:
            self._write(tx, operator.setitem, [self, key, value])

    def joins_graph(self, tx: Tracer, operands: Sequence[Value]) -> bool:
        """Whether the array, in which the graph is to write, is one of the graph's from here on (`graph_arrays.py`)."""
        return False

    def ibinary(self, tx: Tracer, symbol: str, right: Value) -> bool:
        if self.joins_graph(tx, [right]):
            return self.ibinary(tx, symbol, right)
        if not self.is_scalar:
            self._write(tx, INPLACE[symbol], [self, right])
        return not self.is_scalar

    def _write(self, tx: Tracer, fn: Callable[..., Any], args: Sequence[Value]) -> None:
        """Write into the real array, which nobody but the trace knows; views of it see that. Taken back by copy."""
        root = self
        while root.owner is not None:
            root = root.owner
        before = root.array.copy()
        tx.journal.record(lambda: numpy.copyto(root.array, before))
        compute(tx, _without_result(fn), args, {})

    def hash_key(self, tx: Tracer) -> object:
        return self.array if self.is_scalar else super().hash_key(tx)

    def rebuild(self, out: Any) -> None:
        owner = self.owner
        if self._is_lent():
            super().rebuild(out)
        elif self.is_scalar:
            out.const(self.array)
        elif owner is None:
            out.call_on(self.array.copy)
        else:
            out.call_on(_view_like(self.array, owner.array), owner)


def _without_result(fn: Callable[..., Any]) -> Callable[..., None]:
    def run(*args: Any) -> None:
        fn(*args)

    return run


def _view_like(view: Any, owner: Any) -> Callable[[Any], Any]:
    """What makes the same view of a copy of the owner."""
    offset = view.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return functools.partial(_view, view.shape, view.dtype, offset, view.strides)


def _view(shape: Any, dtype: Any, offset: int, strides: Any, owner: Any) -> Any:
    return numpy.ndarray(shape, dtype, owner, offset, strides)


def is_known(fn: Any) -> bool:
    """Whether a function of NumPy's may be run while tracing."""
    if isinstance(fn, numpy.ufunc):
        return True
    written = isinstance(fn, (_DISPATCHER, types.BuiltinFunctionType, types.FunctionType))
    name = str(getattr(fn, "__name__", ""))
    of_numpy = written and (fn.__module__ or "").startswith("numpy")
    return of_numpy and (fn in _INNER or (name in _FUNCTIONS and getattr(numpy, name, None) is fn))


def compute(
    tx: Tracer, fn: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value], owner: ArrayVal | None = None
) -> Value:
    """Run a function of NumPy's, or `fn(*args)` on `owner`; what it raises, the program raises."""
    if any(name in kwargs for name in ("out", "where")):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a NumPy function that writes into its argument")
    reals = [_real(arg) for arg in args]
    named = {name: _real(arg) for name, arg in kwargs.items()}

    def run() -> Any:
        found = fn(*reals, **named)
        return found if owner is None else found(owner.array)

    return tx.fold(run, [])


def _real(value: Value) -> Any:
    return value.const() if value.symbolic else value.real()


def from_numpy(tx: Tracer, obj: Any) -> Value:
    """The model of what a NumPy function returned."""
    if isinstance(obj, numpy.dtype):
        return tx.wrap(obj, ConstSource(obj, f"numpy.{obj}"))
    if isinstance(obj, numpy.generic):
        return ArrayVal(obj)
    if obj.dtype.hasobject or type(obj) is not numpy.ndarray:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a NumPy array of {obj.dtype}")
    source = ConstSource(obj, "a NumPy array")
    known = tx.known_object(obj, source)
    if known is not None:
        return known
    owner = obj.base if isinstance(obj.base, numpy.ndarray) else None
    known = None if owner is None else tx.known_object(owner, source)
    made = ArrayVal(obj, known if isinstance(known, ArrayVal) else None)
    if made.owner is not None:
        tx.journal.set_attr(made.owner, "viewed", True)
    tx.remember_object(obj, made)
    return made


def make_tensor(tx: Tracer, fn: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """`fn(array, ...)` for a function of torch's that makes a tensor of an array."""
    first, *rest = args
    assert isinstance(first, ArrayVal)
    reals = [_real(arg) for arg in (first, *rest)]
    named = {name: _real(arg) for name, arg in kwargs.items()}
    if named.get("requires_grad"):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "making a tensor that requires grad of an array")
    with ending_graph(breaks.OP_RAISES, f"a tensor of {first.describe()}", TypeError, ValueError, RuntimeError):
        made = fn(*reals, **named).clone()
    if fn is not torch.tensor:
        owner = first
        while owner.owner is not None:
            owner = owner.owner
        tx.journal.set_attr(owner, "lent", True)
    return tx.torch_op("call_method", "clone", [tx.wrap(made, ConstSource(made, "a NumPy array"))], {})


def same_scalar(expected: Any, found: Any) -> bool:
    """Whether they are of one class and the same, bit for bit."""
    return type(found) is type(expected) and found.tobytes() == expected.tobytes()


TENSOR_MAKERS = (torch.from_numpy, torch.tensor, torch.as_tensor, torch.asarray)
NUMPY_CALLABLES = (numpy.ufunc, _DISPATCHER)
NUMPY_TYPES = (numpy.generic, numpy.ndarray, numpy.dtype)
