"""Further ways of calling an operator in which eager and compiled calls must agree, to the exception and the warning;
and `VARIANTS`, all of them.

In: an operator's sample input. Out: an empty text, a `Finding` or what differs. `out`: results into memory of every
kind that a program may hand over. `layouts`: arguments in other memory formats than the database's, lazily conjugated
or negated. `raises`: what the operator refuses. `out` and `raises` call twice, so that a capture and a guarded call
are both compared. One more way of calling: a function, and its line in `VARIANTS`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from operators_compare import (
    Case,
    Finding,
    Skip,
    arguments_of,
    backward,
    difference,
    forward,
    inplace,
    over_break,
    own_code,
    tensors_in,
    widened,
)
from torch.utils._pytree import tree_map

import dynajit


@dataclasses.dataclass(frozen=True)
class Told:
    """What a call gave: its result, or its exception's type and text; and its warnings."""

    result: Any
    error: tuple[str, str] | None
    warned: list[tuple[str, str]]


def told(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Told:
    """Call, and note everything that the program could notice."""
    torch.manual_seed(7)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else the first of the two calls takes the other's warning
    result, error = None, None
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = call(*args, **kwargs)
            except Exception as raised:  # whatever it is, it is compared
                error = (type(raised).__name__, str(raised))
    finally:
        torch.set_warn_always(always)
    return Told(result, error, [(warning.category.__name__, str(warning.message)) for warning in caught])


def told_difference(actual: Told, expected: Told) -> str:
    """Empty, or what the exceptions or warnings differ by."""
    if actual.error != expected.error:
        return f"raises {actual.error} for eager's {expected.error}"
    if actual.warned != expected.warned:
        return f"warns {actual.warned} for eager's {expected.warned}"
    return ""


# ---- results into memory that the program hands over


def _exact(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, 1)


def _without_elements(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype)


def _of_another_size(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(*like.shape, 2, dtype=like.dtype)


def _every_second(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(*like.shape, 2, dtype=like.dtype)[..., 1]


def _reversed_strides(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(like.shape[::-1], dtype=like.dtype).permute(tuple(range(like.dim() - 1, -1, -1)))


def _wider(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(like.shape, dtype=torch.complex128 if like.is_complex() else torch.float64)


def _integers(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(like.shape, dtype=torch.int64)


def _truths(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(like.shape, dtype=torch.bool)


OUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    _exact,
    _without_elements,
    _of_another_size,
    _every_second,
    _reversed_strides,
    _wider,
    _integers,
    _truths,
)


def _as_computed(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What is stored in float64 is computed no better than in float32 where the operands are narrower."""
    if like.dtype in (torch.float64, torch.complex128) or x.dtype not in (torch.float64, torch.complex128):
        return x
    return x.to(torch.complex64 if x.is_complex() else torch.float32)


def _identities(result: Any, given: Sequence[torch.Tensor]) -> list[bool]:
    return [x is y for x, y in zip(tensors_in(result), given, strict=False)]


def out(case: Case) -> str | Finding:
    """Results into `out=` memory of each kind: values, strides, identity, exceptions, warnings."""
    if not case.supports_out:
        raise Skip("no out=")
    args, kwargs = arguments_of(case, False)
    plain = told(case.op, *args, **kwargs)
    results = tensors_in(plain.result)
    if plain.error is not None or not results or not all(isinstance(x, torch.Tensor) for x in results):
        raise Skip("no tensors to hand over")

    def into(given: Any, args: Any, kwargs: Any) -> Any:
        return case.op(*args, out=given, **kwargs)

    call = dynajit.compile(own_code(into, "sample"), backend=case.backend)
    for make in OUTS:
        for which in ("capture", "call"):
            made = [(make(x), make(x)) for x in results]
            mine, theirs = ([pair[i] for pair in made] for i in range(2))
            args, kwargs = arguments_of(case, False)
            expected = told(into, tuple(theirs) if len(theirs) > 1 else theirs[0], args, kwargs)
            args, kwargs = arguments_of(case, False)
            actual = told(call, tuple(mine) if len(mine) > 1 else mine[0], args, kwargs)
            unspecified = case.metadata_only or expected.error is not None
            ours, eager = ([_as_computed(x, like) for x, like in zip(o, results, strict=True)] for o in (mine, theirs))
            text = told_difference(actual, expected) or difference(
                ours, eager, unspecified, lambda: widened(case, case.op)
            )
            if not text and expected.error is None:
                mine, theirs = _identities(actual.result, mine), _identities(expected.result, theirs)
                text = "" if mine == theirs else f"which results are out=: {mine} for eager's {theirs}"
            if text:
                return f"{make.__name__} ({which}): {text}"
    return ""


# ---- arguments in other memory formats


def _spread(x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(*x.shape, 2, dtype=x.dtype, device=x.device)
    wide[..., 1] = x
    return wide[..., 1]


def _permuted(x: torch.Tensor) -> torch.Tensor:
    order = tuple(range(x.dim() - 1, -1, -1))
    return x.permute(order).contiguous().permute(order)


def _negated(x: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-x) if x.dtype.is_floating_point or x.is_complex() else x


def _conjugated(x: torch.Tensor) -> torch.Tensor:
    return x.conj().resolve_conj().conj() if x.is_complex() else x


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _other_bytes(x: torch.Tensor) -> torch.Tensor:
    """Bools whose bytes are not 0 and 1, as files and `view` give them: all but 0 are true."""
    if x.dtype is not torch.bool:
        return x
    bytes_ = torch.randint(1, 256, x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    return torch.where(x, bytes_.to(x.device), 0).view(torch.bool)


LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    _spread,
    _permuted,
    _negated,
    _conjugated,
    _channels_last,
    _other_bytes,
)


def _same_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Are two tensors of the same numbers the same in memory, too?"""
    if x.stride() != y.stride() or x.is_neg() != y.is_neg() or x.is_conj() != y.is_conj():
        return False
    return x.dtype is not torch.bool or torch.equal(x.view(torch.uint8), y.view(torch.uint8))


def layouts(case: Case) -> str | Finding:
    """`forward` for arguments in each memory format."""
    compared = 0
    for change in LAYOUTS:

        def changed(value: Any, change: Any = change) -> Any:
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
                return value
            return change(value.detach()).requires_grad_(value.requires_grad)

        sample = case.sample
        inner = Changed(*(tree_map(changed, part) for part in (sample.input, sample.args, sample.kwargs)))
        before, after = (
            tensors_in((sample.input, sample.args, sample.kwargs)),
            tensors_in((inner.input, inner.args, inner.kwargs)),
        )
        if all(_same_memory(x, y) for x, y in zip(before, after, strict=True) if isinstance(x, torch.Tensor)):
            continue
        try:
            text = forward(dataclasses.replace(case, sample=inner))
        except Skip:
            continue
        compared += 1
        if isinstance(text, Finding):
            return Finding("", text.kind, f"{change.__name__}: {text.detail}")
        if text:
            return f"{change.__name__}: {text}"
    if not compared:
        raise Skip("no other memory format")
    return ""


@dataclasses.dataclass(frozen=True)
class Changed:
    """A sample input with other tensors."""

    input: Any
    args: Any
    kwargs: Any


# ---- what is refused


def raises(case: Case) -> str | Finding:
    """An input that the operator refuses: the same exception, the same text, whether its result is used or not."""
    args, kwargs = arguments_of(case, False)
    expected = told(case.op, *args, **kwargs)

    def unused(*args: Any, **kwargs: Any) -> int:
        case.op(*args, **kwargs)
        return 1

    for op, name in ((case.op, "used"), (unused, "unused")):
        call = dynajit.compile(own_code(op, "sample"), backend=case.backend)
        for which in ("capture", "call"):
            args, kwargs = arguments_of(case, False)
            actual = told(call, *args, **kwargs)
            text = told_difference(actual, expected)
            if text:
                return f"{name} ({which}): {text}"
    return ""


VARIANTS: dict[str, Callable[[Case], str | Finding]] = {
    "forward": forward,
    "inplace": inplace,
    "backward": backward,
    "over_break": over_break,
    "out": out,
    "layouts": layouts,
    "raises": raises,
}


def findings(case: Case, variant: str) -> Finding | None:
    """What is wrong with one way of calling; None if nothing. Raises Skip."""
    found = VARIANTS[variant](case)
    if isinstance(found, Finding):
        return Finding(variant, found.kind, found.detail)
    return Finding(variant, "wrong", found) if found else None
