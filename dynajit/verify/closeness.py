"""Is a result as good as eager's?

In:  the compiled result, eager's, and the same computed in float64 (or None where that is not possible).
Out: None, or a `Difference` with the numbers. A compiled result may round otherwise than eager, never worse than a
     small multiple of eager's own error, or of the precision of its dtype.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

# The error against float64 may be this many times eager's largest one ...
_TIMES_EAGER = 4.0
# ... or this much of the element and of the largest element, for each dtype.
_RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_OF_LARGEST = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclasses.dataclass(frozen=True)
class Difference:
    """What is wrong: a sentence, the error of the compiled result and of eager against the reference."""

    text: str
    compiled_error: float = float("nan")
    eager_error: float = float("nan")

    def __str__(self) -> str:
        if self.compiled_error != self.compiled_error:
            return self.text
        return (
            f"{self.text}: off by {self.compiled_error:.3g} from the float64 reference, eager by {self.eager_error:.3g}"
        )


def difference(compiled: Any, eager: Any, reference: Any = None) -> Difference | None:
    """Compare one value; None if `compiled` is as good as `eager`. Sequences and dictionaries are compared by item."""
    if isinstance(eager, torch.Tensor):
        return _tensors(compiled, eager, reference)
    if isinstance(eager, (list, tuple)):
        if not isinstance(compiled, (list, tuple)) or len(compiled) != len(eager):
            return Difference(f"{_what(compiled)} instead of {_what(eager)}")
        references = reference if isinstance(reference, (list, tuple)) else [None] * len(eager)
        for number, (mine, theirs, exact) in enumerate(zip(compiled, eager, references, strict=True)):
            found = difference(mine, theirs, exact)
            if found is not None:
                return dataclasses.replace(found, text=f"[{number}] {found.text}")
        return None
    if isinstance(eager, dict):
        if not isinstance(compiled, dict) or list(compiled) != list(eager):
            return Difference(f"{_what(compiled)} instead of {_what(eager)}")
        return difference([*compiled.values()], [*eager.values()])
    if isinstance(eager, float):
        return difference(torch.tensor(compiled, dtype=torch.float64), torch.tensor(eager, dtype=torch.float64))
    if isinstance(eager, (int, str, bool, bytes, type(None))) and compiled != eager:
        return Difference(f"{compiled!r} instead of {eager!r}")
    return None


def _what(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (list, tuple, dict)) else "")


def _tensors(compiled: Any, eager: torch.Tensor, reference: Any) -> Difference | None:
    if not isinstance(compiled, torch.Tensor):
        return Difference(f"{_what(compiled)} instead of a tensor")
    for name in ("dtype", "shape", "device", "layout"):
        if getattr(compiled, name) != getattr(eager, name):
            return Difference(f"{name} {getattr(compiled, name)} instead of {getattr(eager, name)}")
    if eager.layout is not torch.strided or not eager.numel():
        return None
    compiled, eager = compiled.detach(), eager.detach()
    if not (isinstance(reference, torch.Tensor) and reference.shape == eager.shape):
        reference = eager
    reference = reference.detach()
    if not (eager.dtype.is_floating_point or eager.dtype.is_complex):
        # where eager itself does not find the exact answer, both were decided by rounding
        wrong = (compiled != eager) & (eager == reference.to(eager.dtype))
        return Difference(f"{int(wrong.sum())} of {eager.numel()} elements differ") if bool(wrong.any()) else None
    if eager.dtype.is_complex:
        mine, theirs, exact = (torch.view_as_real(t.resolve_conj()) for t in (compiled, eager, reference))
        return _tensors(mine, theirs, exact)
    return _floats(compiled.double(), eager.double(), reference.double(), eager.dtype)


def _floats(compiled: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> Difference | None:
    special = ~torch.isfinite(eager) | ~torch.isfinite(exact)
    same = (compiled == eager) | (compiled.isnan() & eager.isnan())
    # where eager overflows and the reference does not, the compiled result may be either
    odd = special & ~same & ~(torch.isfinite(compiled) & torch.isfinite(exact))
    odd |= ~torch.isfinite(compiled) & torch.isfinite(eager)
    if bool(odd.any()):
        at = int(odd.flatten().nonzero()[0])
        return Difference(f"{compiled.flatten()[at].item()} instead of {eager.flatten()[at].item()} at element {at}")
    finite = torch.where(special, 0.0, exact)
    mine = torch.where(special, 0.0, compiled - exact).abs()
    theirs = torch.where(special, 0.0, eager - exact).abs()
    largest = float(finite.abs().max())
    relative, floor = _RELATIVE.get(dtype, 0.1), _OF_LARGEST.get(dtype, 0.05)
    allowed = _TIMES_EAGER * float(theirs.max()) + relative * finite.abs() + floor * largest
    if bool((mine <= allowed).all()):
        return None
    wrong = int((mine > allowed).sum())
    return Difference(f"{wrong} of {mine.numel()} elements differ", float(mine.max()), float(theirs.max()))
