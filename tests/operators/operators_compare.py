"""Is one compiled operator call the eager call? In: an operator's sample input. Out: a list of `Finding`s.

Four ways of calling are compared: `forward` (results in value, dtype, shape, strides, aliasing of inputs; arguments
unchanged), `inplace` (result and the argument written to), `backward` (the gradients of every floating argument) and
`over_break` (results kept over a graph break, in each grad mode); `operators_calls.py` has further ones. A call made
again must compile nothing.
A floating result may differ from eager's by rounding; where it differs by more it must be at least as close to the
float64 result as eager's is.
"""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import dynajit
from dynajit.exc import DynajitError
from dynajit.report import records

TOLERANCES = {
    torch.float16: (4e-3, 1e-3),
    torch.bfloat16: (3e-2, 1e-2),
    torch.float32: (2e-5, 2e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (4e-3, 1e-3),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (1e-7, 1e-7),
}
# How much further than eager from the float64 result: a few roundings of the dtype.
ORACLE_SLACK = 4.0


@dataclass(frozen=True)
class Finding:
    """`kind`: wrong (a difference), refused (dynajit says it can't), error (raises something else), captured again."""

    variant: str
    kind: str
    detail: str


class Skip(Exception):
    """This sample says nothing: eager itself fails, or it is of a kind that is not compared. The text says why."""


@dataclass(frozen=True)
class Case:
    """One sample of one operator. `metadata_only`: values are unspecified (`empty`). `supports_out`: it takes
    `out=`."""

    op: Callable[..., Any]
    inplace: Callable[..., Any] | None
    sample: Any
    differentiable: bool
    metadata_only: bool
    backend: str
    supports_out: bool = False


def copy_of(value: Any) -> Any:
    """A tensor with the same strides and storage offset over a copy of the storage."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided:
        raise Skip("layout other than strided")
    if value.is_quantized:
        raise Skip("quantised")
    made = torch.empty(0, dtype=value.dtype, device=value.device)
    with torch.no_grad():
        made.set_(value.detach().untyped_storage().clone(), value.storage_offset(), value.shape, value.stride())
        # conjugate and negative bits are part of what a tensor is
        if value.is_conj():
            made = made.conj()
        if value.is_neg():
            made = torch._neg_view(made)
    return made.requires_grad_(value.requires_grad) if value.is_leaf else made


def arguments_of(case: Case, grad: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Fresh copies of the sample's arguments; floating ones ask for gradients if `grad`."""

    def fresh(value: Any) -> Any:
        copied = copy_of(value)
        if isinstance(copied, torch.Tensor):
            copied = copied.detach()
            if grad and value.requires_grad and copied.dtype in (torch.float32, torch.float64):
                copied.requires_grad_(True)
        return copied

    sample = case.sample
    return tree_map(fresh, (sample.input, *sample.args)), tree_map(fresh, sample.kwargs)


def own_code(op: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that calls `op` and has a code object of its own, so that no other sample's variants are there."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    code = call.__code__.replace(co_name=name)
    return types.FunctionType(code, call.__globals__, name, None, call.__closure__)


def compiled(case: Case, op: Callable[..., Any]) -> Callable[..., Any]:
    """The operator compiled as a program would compile it."""
    return dynajit.compile(own_code(op, "sample"), fullgraph=True, backend=case.backend)


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Both sides draw the same random numbers; what depends on values is captured, too."""
    torch.manual_seed(7)
    asked = dynajit.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
    with asked, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, message="(?!dynajit)")
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        # the call would run eagerly then, and equal itself
        warnings.filterwarnings("error", message="dynajit failed while compiling")
        warnings.filterwarnings("error", message="dynajit: a guard fails on the very state")
        warnings.filterwarnings("error", message="dynajit: Triton .* refuses a kernel")
        yield


# ---- comparison


def tensors_in(tree: Any) -> list[Any]:
    """The leaves of nested results."""
    return tree_flatten(tree)[0]


def layout(value: torch.Tensor) -> tuple[Any, ...]:
    """What has to be equal exactly. Strides of a tensor without elements mean nothing."""
    strides = value.stride() if value.numel() else None
    return (value.dtype, tuple(value.shape), strides, value.is_conj(), value.is_neg())


def storage_of(value: torch.Tensor) -> int:
    """The storage's identity."""
    return int(value.untyped_storage()._cdata)


def aliases(results: list[Any], arguments: list[Any]) -> list[Any]:
    """For each result the first argument or earlier result whose memory it lies in, and where."""
    known: dict[int, int] = {}
    for number, tensor in enumerate([*arguments, *results]):
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            known.setdefault(storage_of(tensor), number)
    return [
        (known[storage_of(tensor)], tensor.storage_offset() if known[storage_of(tensor)] < len(arguments) else 0)
        for tensor in results
        if isinstance(tensor, torch.Tensor) and tensor.numel()
    ]


def same_numbers(actual: torch.Tensor, expected: torch.Tensor, oracle: Callable[[], Any]) -> str:
    """Empty, or what differs."""
    if expected.dtype not in TOLERANCES:
        if expected.dtype.is_floating_point:  # of 8 bits; `equal` knows no NaN of theirs
            actual, expected = actual.float().nan_to_num(1e9), expected.float().nan_to_num(1e9)
        return "" if torch.equal(actual, expected) else _shown(actual, expected)
    rtol, atol = TOLERANCES[expected.dtype]
    if torch.allclose(_wide(actual), _wide(expected), rtol, atol, equal_nan=True):
        return ""
    exact = oracle()
    if isinstance(exact, torch.Tensor) and exact.shape == expected.shape:
        exact = _wide(exact)
        ours = torch.nan_to_num((_wide(actual) - exact).abs(), 0.0, 0.0, 0.0)
        eager = torch.nan_to_num((_wide(expected) - exact).abs(), 0.0, 0.0, 0.0)
        finite = torch.equal(torch.isfinite(actual), torch.isfinite(expected))
        epsilon = torch.finfo(expected.dtype).eps
        if finite and bool((ours <= 2 * eager + ORACLE_SLACK * epsilon * exact.abs()).all()):
            return ""
    return _shown(actual, expected)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _shown(actual: torch.Tensor, expected: torch.Tensor) -> str:
    def text(tensor: torch.Tensor) -> str:
        flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
        if flat.numel() > 6:
            wrong = (actual.detach() != expected.detach()).reshape(-1).nonzero().reshape(-1)[:6]
            flat = flat[wrong] if wrong.numel() else flat[:6]
        return str(flat.tolist())

    return f"{tuple(expected.shape)} {expected.dtype}: {text(actual)} for eager's {text(expected)}"


def difference(actual: Any, expected: Any, metadata_only: bool, oracle: Callable[[], list[Any]]) -> str:
    """Empty, or the first difference of two trees of results."""
    ours, eager = tensors_in(actual), tensors_in(expected)
    if len(ours) != len(eager) or type(actual) is not type(expected):
        return f"{type(actual).__name__} of {len(ours)} for {type(expected).__name__} of {len(eager)}"
    for number, (a, e) in enumerate(zip(ours, eager, strict=True)):
        if type(a) is not type(e):
            return f"result {number} is {type(a).__name__}, not {type(e).__name__}"
        if not isinstance(e, torch.Tensor):
            if a != e and not (a != a and e != e):
                return f"result {number} is {a!r}, not {e!r}"
            continue
        if e.layout is not torch.strided:
            raise Skip("layout other than strided")
        if layout(a) != layout(e):
            return f"result {number}: {layout(a)} for eager's {layout(e)}"
        if not metadata_only and (text := same_numbers(a, e, lambda n=number: _item(oracle(), n))):
            return f"result {number}: {text}"
    return ""


def _item(items: list[Any], number: int) -> Any:
    return items[number] if number < len(items) else None


def widened(case: Case, op: Callable[..., Any]) -> list[Any]:
    """The results in float64, for the arguments of the sample; empty where eager can't."""

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().to(torch.float64)
        return torch.float64 if value in (torch.float16, torch.bfloat16, torch.float32) else value

    try:
        args, kwargs = arguments_of(case, False)
        with seeded():
            return tensors_in(op(*tree_map(wide, args), **tree_map(wide, kwargs)))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return []


# ---- ways of calling


def run_compiled(case: Case, op: Callable[..., Any], args: Any, kwargs: Any, grad: bool = False) -> Any:
    """The compiled call's result, or a Finding. The call is made twice, with arguments that ask for gradients if
    `grad`."""
    call = compiled(case, op)
    more, more_keywords = arguments_of(case, grad)
    seen: list[records.CompileRecord] = []
    try:
        with seeded():
            result = call(*args, **kwargs)
        with seeded(), records.listen(seen.append):
            call(*more, **more_keywords)
        return result if not seen else captured_again(seen)
    except DynajitError as error:
        return Finding("", "refused", _first_lines(error))
    except Exception as error:  # whatever it is, it is a finding
        return Finding("", "error", f"{type(error).__name__}: {_first_lines(error)}")


def _first_lines(error: BaseException) -> str:
    return " | ".join(line.strip() for line in str(error).splitlines()[:4])[:400]


def captured_again(seen: list[records.CompileRecord]) -> Finding:
    """What a call captured that had been made before."""
    return Finding("", "captured again", "; ".join(f"{record.code_name}: {record.recompile_reason}" for record in seen))


def run_eager(case: Case, op: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Eager's result; Skip where it fails."""
    try:
        with seeded():
            return op(*args, **kwargs)
    except Exception as error:
        raise Skip(f"eager raises {type(error).__name__}") from None


def forward(case: Case) -> str | Finding:
    """The call without gradients."""
    args, kwargs = arguments_of(case, False)
    expected = run_eager(case, case.op, args, kwargs)
    own_args, own_kwargs = arguments_of(case, False)
    actual = run_compiled(case, case.op, own_args, own_kwargs)
    if isinstance(actual, Finding):
        return actual
    text = difference(actual, expected, case.metadata_only, lambda: widened(case, case.op))
    if text:
        return text
    inputs, own_inputs = tensors_in((args, kwargs)), tensors_in((own_args, own_kwargs))
    if aliases(tensors_in(actual), own_inputs) != aliases(tensors_in(expected), inputs):
        return f"memory: {aliases(tensors_in(actual), own_inputs)} for eager's {aliases(tensors_in(expected), inputs)}"
    text = difference((own_args, own_kwargs), (args, kwargs), False, list)
    return text and f"argument: {text}"


def inplace(case: Case) -> str | Finding:
    """The in-place variant: result and argument."""
    if case.inplace is None or getattr(case.sample, "broadcasts_input", False):
        raise Skip("no in-place variant")
    args, kwargs = arguments_of(case, False)
    expected = run_eager(case, case.inplace, args, kwargs)
    own_args, own_kwargs = arguments_of(case, False)
    actual = run_compiled(case, case.inplace, own_args, own_kwargs)
    if isinstance(actual, Finding):
        return actual
    text = difference(actual, expected, case.metadata_only, lambda: widened(case, case.op))
    if text:
        return text
    if (actual is own_args[0]) != (expected is args[0]):
        return "the result is not the argument"
    text = difference((own_args, own_kwargs), (args, kwargs), case.metadata_only, list)
    # the argument is the result, which has been compared with the oracle's help
    return "" if text.startswith("result 0") and actual is own_args[0] else text and f"argument: {text}"


def backward(case: Case) -> str | Finding:
    """Gradients of everything that asks for them."""
    if not case.differentiable:
        raise Skip("not differentiable")
    args, kwargs = arguments_of(case, True)
    wanted = [x for x in tensors_in((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not wanted:
        raise Skip("nothing asks for gradients")
    expected = run_eager(case, case.op, args, kwargs)
    try:
        gradients = _gradients(expected, wanted)
    except RuntimeError as error:
        raise Skip(f"eager's backward raises {type(error).__name__}") from None
    if gradients is None:
        raise Skip("eager has no gradient here")
    own_args, own_kwargs = arguments_of(case, True)
    own_wanted = [x for x in tensors_in((own_args, own_kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    actual = run_compiled(case, case.op, own_args, own_kwargs, grad=True)
    if isinstance(actual, Finding):
        return actual
    text = difference(actual, expected, case.metadata_only, lambda: widened(case, case.op))
    if text:
        return text
    flags = [[x.requires_grad for x in tensors_in(r) if isinstance(x, torch.Tensor)] for r in (actual, expected)]
    if flags[0] != flags[1]:
        return f"requires_grad {flags[0]} for eager's {flags[1]}"
    try:
        own = _gradients(actual, own_wanted)
    except Exception as error:
        return Finding("", "error", f"backward: {type(error).__name__}: {_first_lines(error)}")
    if own is None:
        return "no gradient where eager has one"
    for number, (a, e) in enumerate(zip(own, gradients, strict=True)):
        # an unused argument's gradient is None in eager and may be zeros here
        if e is None or a is None:
            zero = a if e is None else e
            if zero is not None and bool(zero.any()):
                return f"gradient {number} is None on one side"
            continue
        if layout(a)[:2] != layout(e)[:2]:
            return f"gradient {number}: {layout(a)} for eager's {layout(e)}"
        if not case.metadata_only and (text := same_numbers(a, e, lambda: None)):
            return f"gradient {number}: {text}"
    return ""


def _gradients(results: Any, wanted: list[torch.Tensor]) -> tuple[Any, ...] | None:
    floating = [x for x in tensors_in(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not floating:
        return None
    generator = torch.Generator().manual_seed(3)
    weights = [torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device, x.dtype) for x in floating]
    with seeded():
        return torch.autograd.grad(floating, wanted, weights, allow_unused=True)


def over_break(case: Case) -> str | Finding:
    """The results, kept over a graph break and read after it; each grad mode, three calls of equal arguments.

    The graphs run eagerly: what is asked is whether the guards know what the operator really gives.
    """

    def keep(*args: Any, **kwargs: Any) -> Any:
        result = case.op(*args, **kwargs)
        dynajit.graph_break()
        return [value.clone() if isinstance(value, torch.Tensor) else value for value in tensors_in(result)]

    modes = [torch.no_grad, torch.inference_mode, *([torch.enable_grad] if case.differentiable else [])]
    for mode in modes:
        call = dynajit.compile(own_code(keep, "sample"), backend="eager")
        seen: list[records.CompileRecord] = []
        for _ in range(3):
            args, kwargs = arguments_of(case, True)
            own_args, own_kwargs = arguments_of(case, True)
            with mode():
                expected = run_eager(case, keep, args, kwargs)
                seen.clear()
                try:
                    with seeded(), records.listen(seen.append):
                        actual = call(*own_args, **own_kwargs)
                except Exception as error:  # whatever it is, it is a finding
                    return Finding("", "error", f"{mode.__name__}: {type(error).__name__}: {_first_lines(error)}")
            text = difference(actual, expected, case.metadata_only, lambda: widened(case, keep))
            if text:
                return f"{mode.__name__}: {text}"
        if seen:
            return captured_again(seen)
    return ""
