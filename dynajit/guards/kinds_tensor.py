"""The guard kind on a tensor's metadata.

In: an example tensor; sizes and strides with None where they may vary. Out: see guard.py. The example isn't kept.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from dynajit import _C
from dynajit.guards.guard import EARLY, GuardKind, guard_kind
from dynajit.report.shown import dtype_name, short


def _fits(expected: tuple[int | None, ...], actual: tuple[int, ...]) -> bool:
    return len(expected) == len(actual) and all(e is None or e == a for e, a in zip(expected, actual, strict=True))


def has_history(tensor: torch.Tensor) -> bool:
    """Whether autograd can tell where it comes from: not of one of many views, or one made in no_grad, once its memory
    was written."""
    try:
        return tensor.is_leaf in (True, False)
    except RuntimeError:
        return False


def _metadata(value: torch.Tensor) -> dict[str, Any]:
    """As torch keeps it, whatever a subclass says of itself; no mode of the program's sees that it is asked."""
    base: Any = torch.Tensor
    with torch._C.DisableTorchFunction():
        return {
            "class": type(value),
            "dtype": base.dtype.__get__(value),
            "device": base.device.__get__(value),
            "requires_grad": base.requires_grad.__get__(value),
            "forward-mode tangent": _C.tensor_is_dual(value),
            "known to autograd": has_history(value),
            "sizes": tuple(base.shape.__get__(value)),
            "strides": base.stride(value) if base.layout.__get__(value) is torch.strided else None,
            "dispatch keys": torch._C._dispatch_keys(value).raw_repr(),
        }


def _expected(spec: _C.TensorSpec) -> dict[str, Any]:
    return {
        "class": spec.type,
        "dtype": spec.dtype,
        "device": spec.device,
        "requires_grad": spec.requires_grad,
        "forward-mode tangent": spec.dual,
        "known to autograd": True,
        "sizes": spec.sizes,
        "strides": spec.strides,
        "dispatch keys": spec.key_set,
    }


def _differences(value: torch.Tensor, spec: _C.TensorSpec) -> list[str]:
    now, then = _metadata(value), _expected(spec)
    texts = []
    for field, expected in then.items():
        if field in ("sizes", "strides"):
            # sparse tensors have no strides to compare
            same = expected is None or (now[field] is not None and _fits(expected, now[field]))
        else:
            same = now[field] == expected
        if not same:
            texts.append(f"{field} was {_show(expected)}, is {_show(now[field])}")
    return texts


def resized(value: Any, spec: _C.TensorSpec) -> tuple[list[int | None], list[int | None]] | None:
    """Sizes and strides of a module's parameter, None for those that are others than wanted; None if no size is."""
    if type(value) is not torch.nn.Parameter or spec.type is not torch.nn.Parameter or spec.strides is None:
        return None
    now, then = _metadata(value), _expected(spec)
    if now["strides"] is None or len(now["sizes"]) != len(spec.sizes) or _fits(spec.sizes, now["sizes"]):
        return None
    sizes, strides = (
        [found if found == wanted else None for found, wanted in zip(now[field], then[field], strict=True)]
        for field in ("sizes", "strides")
    )
    return sizes, strides


def _show(value: Any) -> str:
    return short(value) if isinstance(value, type) else str(value)


@guard_kind("TENSOR")
class TensorMetadata(GuardKind):
    """Class, dispatch keys, dtype, device, requires_grad, sizes and strides."""

    rank = EARLY

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        if len(params) == 1 and isinstance(params[0], _C.TensorSpec):
            return params
        return (_C.TensorSpec(*params),)

    def key(self, params: tuple[Any, ...]) -> Hashable:
        return tuple(_expected(params[0]).values())

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        # the class first: asking anything of another class's object could run its code
        return type(value) is params[0].type and not _differences(value, params[0])

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        spec = params[0]
        return (
            f"{name}: {short(spec.type)} {dtype_name(spec.dtype)} {spec.sizes} strides {spec.strides} "
            f"on {spec.device}, requires_grad={spec.requires_grad}"
        )

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        if not isinstance(value, torch.Tensor):
            return f"{name} was a tensor, is {short(value)}"
        if type(value) is not params[0].type:
            return f"type({name}) was {short(params[0].type)}, is {short(type(value))}"
        return f"{name}: " + "; ".join(_differences(value, params[0]))
