"""What the real kernel of an operation refuses and the fake one does not.

In: an ATen operation with its fake arguments, before it runs. Out: None, or why the real one will raise: the line then
runs for real, and raises in eager's words. Two checks that fake kernels leave out: tensors that overlap where one is
written (those that check less are named too, which costs a graph and is right), and the dtypes that a kernel is
compiled for and the numbers that fit them, found by running it on one element.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dynajit.op_facts import always_fits, facts
from dynajit.symbols import last_position
from dynajit.torch_compat import at_hand
from dynajit.torch_warnings import unwarned

_SCALARS = (bool, int, float, complex, str, type(None), torch.dtype)
_KNOWN_TO_WORK = 4096
# operations that read in an order of their own: no element that they read may be one that they write
_BY_PLACE = re.compile(r"aten\.(index_(put|add|copy|fill|reduce)|scatter(_add|_reduce)?|put)_?\.")
_BY_ROW = re.compile(r"aten\.index_(add|copy|reduce)_?\.")
_MATRICES = re.compile(r"aten\.(mm|bmm|mv|dot|vdot|addmm|addmv|addr|addbmm|baddbmm)_?\.")
# what other operations than these say of dtypes; what they say of shapes is about the single element
_ABOUT_DTYPES = re.compile(r"not implemented for|support|dtype|scalar.type|\bbool\b|Bool|Long|without overflow")
_USUAL_DTYPES = (torch.float32, torch.float64)
_SMALL = 1 << 12
_WARNS = re.compile(r"aten\.(var|std)(_mean)?\.")  # of a single element, and a warning reaches the program
_COUNTED = re.compile(r"aten\.(topk|kthvalue)\.")  # their second argument is at most the number of elements
_SUMMED = re.compile(r"aten\.(addmm|addmv|addr|addbmm|baddbmm)_?\.")
_SHAPES_OF_SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]]] = {
    "addmm": lambda a, b: (a.shape[0], b.shape[1]),
    "addmv": lambda a, b: (a.shape[0],),
    "addr": lambda a, b: (a.shape[0], b.shape[0]),
    "addbmm": lambda a, b: (a.shape[1], b.shape[2]),
    "baddbmm": lambda a, b: (a.shape[0], a.shape[1], b.shape[2]),
}
_RANKS = {"addmm": (2, 2), "addmv": (2, 1), "addr": (1, 1), "addbmm": (3, 3), "baddbmm": (3, 3)}
# what they choose from must not be empty
_CHOOSING = re.compile(
    r"aten\.(max|min|median|nanmedian|mode)\.(default|dim|unary_out|dim_max|dim_min|dim_values|values)$"
)
# those of a tensor without elements, and of one without dimensions, take any dimension
_ALONG = re.compile(r"aten\.(_softmax|_log_softmax|sort)\.")
# what raises for some values, on CPUs: places, numbers to divide integers by, probabilities, matrices without inverse
_LOOKING = re.compile(
    r"aten\.(_unsafe_)?(index|index_(put|add|copy|fill|reduce|select)|gather|scatter\w*|take|put|embedding\w*|nll_loss\w*"
    r"|_embedding_bag\w*|multinomial|bernoulli|binary_cross_entropy|bincount|histc|repeat_interleave|masked_scatter|normal"
    r"|poisson|binomial|(nan)?quantile|_pack_padded_sequence|max_unpool\w*|segment_reduce|_?histogram\w*|searchsorted"
    r"|multi_margin_loss\w*|multilabel_margin_loss\w*|fake_quantize\w*"
    r"|\w*cholesky\w*|linalg_\w*|_linalg_\w*|lu_\w*|triangular_solve|_ctc_loss|_assert\w*)_?\."
)
_DIVIDING = re.compile(r"aten\.(floor_divide|remainder|fmod|div|gcd)_?\.")
_INDEXED = frozenset({torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default})
# those that fill a tensor with one number, and where that is among their arguments; a single element takes any number
_FILLED = {
    torch.ops.aten.full.default: 1,
    torch.ops.aten.full_like.default: 1,
    torch.ops.aten.new_full.default: 2,
    torch.ops.aten.fill.Scalar: 1,
    torch.ops.aten.fill_.Scalar: 1,
}
_VIEW = torch.ops.aten.view.default
_SELECTED = torch.ops.aten.select_scatter.default
_STRIDED = frozenset({torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_.default})
# those that make a number of a tensor's, and raise where their dtype cannot hold it
_MASKED = frozenset({torch.ops.aten.masked_fill.Tensor, torch.ops.aten.masked_fill_.Tensor})


def refused_view(func: Any, args: Sequence[Any]) -> str | None:
    """Why a view that the program takes raises: inside of torch's fake kernels some are taken of no memory at all."""
    if func in _STRIDED and not _lies_inside(*args):
        return f"{func}: it reaches beyond the memory"
    if func is _VIEW and not _has_steps(*args):
        return f"{func}: there are no steps through the memory that give this shape"
    return None


def refusal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why the real kernel raises for these arguments; None as far as can be told."""
    if not isinstance(func, torch._ops.OpOverload) or not args:
        return None
    by_place = _BY_PLACE.search(str(func)) is not None
    if facts(func).writes:
        refused = _refused_write(func, args, kwargs, by_place)
        if refused is not None:
            return f"{func}: {refused}"
    if func in _FILLED:
        return _refused_filling(func, args, kwargs)
    if not isinstance(args[0], torch.Tensor):
        return None
    refused = _refused_shapes(func, args, kwargs)
    return f"{func}: {refused}" if refused is not None else _refused_dtypes(func, args, kwargs, by_place)


# of which operations, what has to fit (of the arguments' shapes and dtypes), and what it is called if it does not
_FITTING: tuple[tuple[Callable[[Any], object], Callable[..., bool], str], ...] = (
    (_INDEXED.__contains__, lambda x, at, *_: _masks_fit(x, at), "a mask's shape is not that of what it chooses from"),
    (
        _INDEXED.__contains__,
        lambda x, at, values, *_: _values_fit(x, at, values),
        "the values' shape does not fit the places they go to",
    ),
    (
        _INDEXED.__contains__,
        lambda x, at, values, *_: _dtypes_fit(x, at, values),
        "the values' dtype is not that of where they go to",
    ),
    (
        lambda func: _BY_ROW.search(str(func)),
        lambda *args: _rows_fit(*args[:4]),
        "the source has not the shape of the rows it goes to",
    ),
)


def _refused_shapes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why the shapes of the arguments, or places given by numbers, do not fit each other."""
    # a size that is a symbol is not decided here
    is_empty = any(type(size) is int and size == 0 for size in args[0].shape)
    empty = _refused_empty(func, args, kwargs) if is_empty or args[0].dim() == 0 else None
    if empty is not None:
        return empty
    if func is _SELECTED:
        torch.ops.aten.select.int(args[0], *args[2:])  # which says so where there is no such place, but for torch 2.11
        size, place = args[0].shape[args[2]], args[3]
        if type(place) is int and not -size <= place < size:
            return f"there is no place {place} among {size}"
    for concerns, fits, words in _FITTING:
        if concerns(func) and not fits(*args):
            return words
    summed = _SUMMED.search(str(func))
    if summed is not None and not _summand_fits(summed[1], args[0], args[1], args[2]):
        return "the first summand's shape does not expand to the other's"
    return None


def _refused_dtypes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], by_place: bool) -> str | None:
    """Why the real kernel takes no such dtypes, numbers or memory."""
    given = (*args, *kwargs.values())
    is_known = by_place or facts(func).pointwise or _MATRICES.search(str(func)) is not None
    if is_known and not (kwargs and "out" in func._schema.overload_name):
        return _said(func, given, by_place, tuple(kwargs))
    if _WARNS.search(str(func)) or _trusts_places(func, given) or not _has_odd_dtypes(func, given):
        return None
    if _COUNTED.search(str(func)) and len(args) > 1:
        args = (args[0], 1, *args[2:])
    said = _said(func, (*args, *kwargs.values()), True, tuple(kwargs))
    return said if said is not None and _ABOUT_DTYPES.search(said) else None


def looks_at_values(func: Any, args: Sequence[Any]) -> bool:
    """Whether the operation raises for some values of its tensors. On GPUs that ends the process."""
    divides = _divides(func)
    if divides is None:
        return False
    tensors = [tensor for arg in args for tensor in _tensors(arg)]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return False
    if func in _MASKED:
        return not always_fits(args[2].dtype, args[0].dtype)
    if divides:
        return not any(tensor.is_floating_point() for tensor in tensors)
    return not (func in _INDEXED and _fills_where_masks_say(args))


@functools.lru_cache(maxsize=_KNOWN_TO_WORK)
def _divides(func: Any) -> bool | None:
    """Of what raises for some values: whether it divides. None: it raises for none."""
    name = str(func)
    return True if _DIVIDING.search(name) else False if func in _MASKED or _LOOKING.search(name) else None


def _fills_where_masks_say(args: Sequence[Any]) -> bool:
    """Whether one value is written wherever a mask, whose shape has been looked at, is true: nothing raises then."""
    _, places, value = args[:3]
    masks = [place for place in places if place is not None]
    return len(masks) == 1 and masks[0].dtype in (torch.bool, torch.uint8) and value.dim() == 0


def _refused_empty(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why an operation refuses a tensor without elements, or without dimensions."""
    rank = args[0].dim()
    dim = kwargs.get("dim", next((arg for arg in args[1:] if type(arg) is int), None))
    if str(func).startswith("aten.mode."):
        dim = -1 if dim is None else dim
    is_empty = any(type(size) is int and size == 0 for size in args[0].shape)
    chooses = is_empty and _CHOOSING.search(str(func))
    if chooses and (dim is None or (-rank <= dim < rank and str(args[0].shape[dim]) == "0")):
        return "there is nothing to choose from"
    if _ALONG.search(str(func)) and type(dim) is int and not -max(rank, 1) <= dim < max(rank, 1):
        return f"there is no dimension {dim}"
    return None


def _trusts_places(func: Any, args: Sequence[Any]) -> bool:
    """Whether its kernel may read or write wherever integers say, as torch's private ones and LAPACK's (pivots, which
    it counts from one) do: places that are not what it has been promised end the process, or harm its memory. So do
    sizes that oneDNN's kernels are told of their arguments, and dimensions that Fourier transforms go through twice."""
    if str(func.name()).startswith(("aten::mkldnn_", "aten::_fft_")):
        return True
    places = (arg for arg in args[1:] if isinstance(arg, FakeTensor))
    return str(func.name()).startswith(("aten::_", "aten::linalg_", "aten::lu_")) and any(
        not place.dtype.is_floating_point and place.dtype is not torch.bool for place in places
    )


def _refused_write(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], by_place: bool) -> str | None:
    """What is wrong with the memory of the tensors that an operation writes, alone or beside those it reads."""
    named = {argument.name: arg for argument, arg in zip(func._schema.arguments, args)} | dict(kwargs)
    names = [name for _, name in facts(func).writes]
    read = [tensor for name, arg in named.items() if name not in names for tensor in _tensors(arg)]
    pointwise = facts(func).pointwise
    for name in names:
        written = named.get(name)
        if not isinstance(written, torch.Tensor):
            continue
        if written.is_inference() and not torch.is_inference_mode_enabled():
            return "the tensor written was made in inference mode"
        if torch.Tag.inplace_view in func.tags or func.namespace == "prims":
            continue  # prims.as_strided is said to write to what it is a view of
        is_out = name not in ("self", func._schema.arguments[0].name)
        if _meets_itself(written) or any(
            _overlap(written, other, by_place or (is_out and not pointwise)) for other in read
        ):
            return "the tensor written shares memory with itself or with one that is read"
        if is_out and any(written is other for other in read) and not _has_common_shape(written, read):
            return "an operand of another size than the result is out="
    return None


def _tensors(arg: Any) -> list[torch.Tensor]:
    if isinstance(arg, (list, tuple)):
        return [item for item in arg if isinstance(item, torch.Tensor)]
    return [arg] if isinstance(arg, torch.Tensor) else []


def _has_common_shape(tensor: torch.Tensor, operands: Sequence[torch.Tensor]) -> bool:
    """Whether it has the shape that the operands broadcast to."""
    shapes = [operand.shape for operand in operands]
    if not _have_hints([size for shape in shapes for size in shape]):
        return True
    try:
        return tensor.shape == torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call, no-any-return]
    except RuntimeError:
        return True  # that is for the operation to say


def _has_odd_dtypes(func: Any, args: Sequence[Any]) -> bool:
    """Whether a kernel of torch's for the CPU is asked for dtypes that not every one is compiled for."""
    tensors = [arg for arg in args if isinstance(arg, FakeTensor)]
    dtypes = {tensor.dtype for tensor in tensors}
    if func.namespace != "aten" or func.is_view or any(tensor.fake_device.type != "cpu" for tensor in tensors):
        return False
    return len(dtypes) > 1 or not dtypes.issubset(_USUAL_DTYPES)


def _said(func: Any, args: Sequence[Any], zeros: bool, names: tuple[str, ...] = ()) -> str | None:
    types = {argument.name: str(argument.type) for argument in func._schema.arguments}
    given = [*types.values()][: len(args) - len(names)] + [types[name] for name in names]
    elements = tuple(_element(arg, kind in _NUMBERS) for arg, kind in zip(args, given, strict=True))
    return None if _UNKNOWN in elements else _tried(func, elements, zeros, names)


def _refused_filling(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """What a tensor of the dtype says to the number that is to fill it."""
    place = _FILLED[func]
    value = args[place] if len(args) > place else kwargs.get("fill_value", kwargs.get("value"))
    like = args[0] if isinstance(args[0], torch.Tensor) else None
    dtype = kwargs.get("dtype") or (None if like is None else like.dtype)
    shape = args[place - 1] if like is None or place > 1 else like.shape
    if dtype is None or type(value) not in (bool, int, float, complex):
        return None
    return _tried_filling(dtype, value, all(type(size) is int and size == 1 for size in shape))


@functools.lru_cache(maxsize=_KNOWN_TO_WORK, typed=True)
def _tried_filling(dtype: torch.dtype, value: complex, is_single: bool) -> str | None:
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False), torch.no_grad():
        try:
            torch.empty(1 if is_single else 2, dtype=dtype, device="cpu").fill_(value)
        except (RuntimeError, NotImplementedError) as error:
            return str(error)
    return None


_UNKNOWN = object()
_NUMBERS = ("number", "Optional[number]", "Tensor")


def _element(arg: Any, is_number: bool = False) -> Any:
    """What stands for an argument: a tensor's dtype, device and number of dimensions; a scalar itself; a list of these
    under its type. Sizes in lists are one. `is_number`: it is one to compute with, no size."""
    if isinstance(arg, FakeTensor):
        return (arg.dtype, arg.fake_device, arg.dim()) if arg.layout is torch.strided else _UNKNOWN
    if type(arg) in (list, tuple) and all(item is None or isinstance(item, FakeTensor) for item in arg):
        items = tuple(_element(item) for item in arg)
        return _UNKNOWN if _UNKNOWN in items else (list, items)
    if type(arg) in (list, tuple) and all(type(item) in (int, torch.SymInt) for item in arg):
        return (list, tuple((int, 1 if type(item) is not int or item > 1 else item) for item in arg))
    if isinstance(arg, (torch.SymInt, torch.SymFloat)):
        return (int, 1) if isinstance(arg, torch.SymInt) else (float, 1.0)
    if type(arg) is int and abs(arg) > _SMALL and not is_number:
        return _UNKNOWN  # it might be a size
    return (type(arg), arg) if type(arg) in _SCALARS else _UNKNOWN


def _made(element: Any, fill: int) -> Any:
    """An argument again."""
    if element[0] is list:
        return [_made(item, fill) for item in element[1]]
    if isinstance(element[0], torch.dtype):
        return torch.full([1] * element[2], fill, dtype=element[0], device=element[1])
    return element[1]


@functools.lru_cache(maxsize=_KNOWN_TO_WORK)
def _tried(func: Any, elements: tuple[Any, ...], zeros: bool, names: tuple[str, ...]) -> str | None:
    """What the operation says to arguments of one element. Places are numbered from zero; elsewhere a zero might be
    divided by. The last arguments are `names`."""
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False), torch.no_grad(), unwarned():
        try:
            made = [_made(element, int(not zeros)) for element in elements]
        except (RuntimeError, NotImplementedError):
            return None  # a dtype or device that has no ones; what it can do instead is not known
        count = len(made) - len(names)
        state = torch.get_rng_state() if names or facts(func).draws else None
        try:
            func(*made[:count], **dict(zip(names, made[count:], strict=True)))
        except (RuntimeError, NotImplementedError) as error:
            return str(error)
        except (IndexError, TypeError, ValueError):
            return None  # about the single element
        finally:
            if state is not None:
                torch.set_rng_state(state)
    return None


def _masks_fit(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> bool:
    dimension = 0
    for index in indices:
        if index is None or index.dtype is not torch.bool:
            dimension += 1
            continue
        if tensor.shape[dimension : dimension + index.dim()] != index.shape:
            return False
        dimension += index.dim()
    return True


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _values_fit(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor) -> bool:
    if _has_mask(indices):
        return True  # how many places a mask chooses is known when it is there
    places = torch.ops.aten.index.Tensor(tensor, indices)
    return _expands(values, places.shape)


def _dtypes_fit(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor) -> bool:
    if tensor.dtype is values.dtype:
        return True
    # one value fills the places of a mask
    return _has_mask(indices) and _have_hints(values.shape) and values.numel() == 1


def _rows_fit(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> bool:
    if tensor.dim() != source.dim() or tensor.dim() == 0 or not _have_hints((*tensor.shape, *source.shape)):
        return tensor.dim() == source.dim() or tensor.dim() * source.dim() == 0
    dim %= tensor.dim()
    return all(at == dim or a == b for at, (a, b) in enumerate(zip(tensor.shape, source.shape, strict=True)))


def _summand_fits(name: str, summand: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether what a product is added to has its shape; products that there are not are the fake kernel's to refuse."""
    return (a.dim(), b.dim()) != _RANKS[name] or _expands(summand, _SHAPES_OF_SUMS[name](a, b))


def _expands(tensor: torch.Tensor, shape: Sequence[Any]) -> bool:
    """Whether it can be read as one of the shape; taken for granted where a size is not known yet."""
    if tensor.dim() > len(shape):
        return False
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return not _have_hints((*tensor.shape, *shape)) or all(size == 1 or size == there for size, there in sizes)


def _meets_itself(tensor: torch.Tensor) -> bool:
    """Whether two of its elements are one in memory for sure: it was expanded."""
    return tensor.layout is torch.strided and any(
        type(step) is int and step == 0 and _have_hints((size,)) and bool(size > 1)
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _have_hints(numbers: Sequence[Any]) -> bool:
    """Whether a comparison of the numbers can be decided: none comes from a tensor's elements."""
    if all(type(number) is int for number in numbers):
        return True
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    return not has_free_unbacked_symbols(numbers)


def _overlap(written: torch.Tensor, read: torch.Tensor, by_place: bool) -> bool:
    """Whether they share memory and, unless written `by_place`, are not the same elements in the same places."""
    if written.layout is not torch.strided or read.layout is not torch.strided:
        return False
    if written.untyped_storage()._cdata != read.untyped_storage()._cdata:
        return False
    span, other = _span(written), _span(read)
    if span is None or other is None:
        return False
    same = not by_place and written.shape == read.shape and written.stride() == read.stride() and span == other
    return span[0] < other[1] and other[0] < span[1] and not same


def _span(tensor: torch.Tensor) -> tuple[int | torch.SymInt, int | torch.SymInt] | None:
    """First byte in the storage and the one after the last; None with no elements, gaps, or sizes known to no one yet.

    Where sizes are symbolic the comparisons become guards: views of one storage are few, so they are worth it.
    """
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if not _have_hints(numbers) or tensor.numel() == 0:
        return None
    extent = last_position(tensor.shape, tensor.stride()) + 1
    if extent != tensor.numel():
        return None
    first = tensor.storage_offset()
    return first * tensor.element_size(), (first + extent) * tensor.element_size()


def _has_steps(x: torch.Tensor, shape: Sequence[Any]) -> bool:
    """Whether the elements can be seen in another shape where they are, in the call that is compiled for: torch's rule
    in Python forgets steps beside sizes of one, and what was expanded."""
    if x.layout is not torch.strided:
        return True
    given = (*x.shape, *x.stride(), *shape)
    numbers = [number for number in map(at_hand, given) if number is not None]
    if len(numbers) < len(given):
        return True
    rank = x.dim()
    with torch._C._DisableTorchDispatch(), torch._C._DisablePythonDispatcher():
        seen = torch.empty_strided(numbers[:rank], numbers[rank : 2 * rank], device="meta")
        try:
            seen.view(numbers[2 * rank :])
        except RuntimeError:
            return False
    return True


def _lies_inside(x: torch.Tensor, shape: Sequence[Any], strides: Sequence[Any], offset: Any = None) -> bool:
    """Whether a view's last element is in the memory of what it is taken of; taken for granted where a size is not
    known yet. Of sizes that vary the answer becomes a guard: no other call may go beyond either."""
    offset = x.storage_offset() if offset is None else offset
    nbytes: Any = x.untyped_storage().nbytes()
    if not _have_hints((*shape, *strides, offset, nbytes)) or any(size == 0 for size in shape):
        return True
    return bool((offset + last_position(shape, strides) + 1) * x.element_size() <= nbytes)
