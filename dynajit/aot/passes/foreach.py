"""Operators over lists of tensors, as torch's optimizers and gradient clipping call them: one operator for each tensor,
so that what is done to a parameter is one kernel.

In:  `aten._foreach_add.Scalar` and its like, as functional graphs have them.
Out: `RULES`: what they are for each tensor of their lists. Those with other overloads (factors in a tensor) stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

_ONE = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma"),
    *("log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt"),
    *("tan", "tanh", "trunc"),
)
_TWO = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_max", "clamp_min")
_THREE = ("addcdiv", "addcmul")


def _each(one: Callable[..., Any]) -> Callable[..., list[Any]]:
    """`one` for each tensor, with the item of each list beside it."""

    def rule(*args: Any, **kwargs: Any) -> list[Any]:
        length = len(next(arg for arg in args if _is_list(arg)))

        def at(value: Any, place: int) -> Any:
            return value[place] if _is_list(value) else value

        return [
            one(*(at(arg, n) for arg in args), **{name: at(value, n) for name, value in kwargs.items()})
            for n in range(length)
        ]

    return rule


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _with_factor(one: Callable[..., Any]) -> Callable[..., Any]:
    """`addcmul` and `addcdiv` take the factor by name."""
    return lambda x, a, b, value=1: one(x, a, b, value=value)


def _norm(x: torch.Tensor, order: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return aten.linalg_vector_norm(x, order, dtype=dtype)  # type: ignore[no-any-return]


def _rules() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {}

    def put(name: str, overloads: Sequence[str], one: Callable[..., Any]) -> None:
        packet: Any = getattr(aten, f"_foreach_{name}", None)
        known = packet.overloads() if packet is not None else ()  # a release may lack one
        found.update({getattr(packet, overload): _each(one) for overload in overloads if overload in known})

    for name in _ONE:
        put(name, ["default"], getattr(aten, name))
    for name in _TWO:
        put(name, ["Scalar", "List", "ScalarList", "Tensor", "ScalarAndTensor"], getattr(aten, name))
    for name, limit in (("maximum", "clamp_min"), ("minimum", "clamp_max")):
        put(name, ["Scalar", "ScalarList"], getattr(aten, limit))
    for name in _THREE:
        put(name, ["Scalar", "ScalarList"], _with_factor(getattr(aten, name)))
    put("lerp", ["List", "Scalar", "ScalarList"], aten.lerp)
    put("norm", ["Scalar"], _norm)
    return found


RULES = _rules()
