"""Sums and products of symbolic floats that keep the order and the rounding of the program's.

In: torch's symbolic numbers and Python's. Out: a SymFloat whose expression no algebra takes apart: sympy's own sums and
products are those of real numbers, where `x + y - x` is `y`, `x * 0.0` is 0 and `x * 0.1 * 3.0` is `x * 0.3`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from dynajit.torch_compat import register_expression


@functools.cache
def _classes() -> tuple[Any, Any]:
    """sympy is imported only with symbols."""
    import sympy  # type: ignore[import-untyped]

    def rounded(name: str, fn: Callable[[float, float], float]) -> Any:
        """The function `fn(a, b)`, rounded."""

        def evaluated(cls: Any, left: Any, right: Any) -> Any:
            known = isinstance(left, sympy.Number) and isinstance(right, sympy.Number)
            return sympy.Float(fn(float(left), float(right))) if known else None

        made = type(sympy.Function)(name, (sympy.Function,), {"is_real": True, "eval": classmethod(evaluated)})
        register_expression(made, fn.__name__)
        return made

    return rounded("FloatAdd", operator.add), rounded("FloatMul", operator.mul)


def float_sum(left: Any, right: Any) -> Any:
    """`left + right`"""
    return _combine(_classes()[0], operator.add, left, right)


def float_difference(left: Any, right: Any) -> Any:
    """`left - right`, which is `left + (-right)` to the last bit."""
    return float_sum(left, -right)


def float_product(left: Any, right: Any) -> Any:
    """`left * right`"""
    return _combine(_classes()[1], operator.mul, left, right)


FLOAT_OPERATIONS: dict[Any, Callable[[Any, Any], Any]] = {
    operator.add: float_sum,
    operator.sub: float_difference,
    operator.mul: float_product,
}


def _combine(kind: Any, fn: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    import sympy  # type: ignore[import-untyped]

    exprs, hints, like = [], [], None
    for number in (left, right):
        if isinstance(number, (int, float)):
            exprs.append(sympy.Float(_with_sign(float(number))))
            hints.append(float(number))
        else:
            like = torch.sym_float(number).node  # type: ignore[no-untyped-call]
            exprs.append(like.expr)
            hints.append(like.hint)
    assert like is not None
    hint = None if None in hints else fn(*hints)
    if hint is not None:
        _with_sign(hint)
    made = type(like)(kind(*exprs), like.shape_env, float, hint)
    return torch.SymFloat(made)  # type: ignore[no-untyped-call]


def _with_sign(number: float) -> float:
    """A number that sympy can tell from others: it has one zero. Raises NotImplementedError."""
    if number == 0 or not math.isfinite(number):
        raise NotImplementedError(f"{number} in an expression")
    return number


def beside_zero(fn: Any, left: Any, right: Any) -> tuple[Any, bool] | None:
    """What `fn` gives where one of the numbers is the constant 0: the other one or its negative, and whether that is
    true of zero as well, whose sign may come out differently. None if neither is 0, or `fn` is no sum."""
    if fn is operator.sub and _is_zero(right):
        return torch.sym_float(left), True  # type: ignore[no-untyped-call]
    if fn is operator.sub and _is_zero(left):
        return -torch.sym_float(right), False  # type: ignore[no-untyped-call]
    if fn is operator.add and (_is_zero(left) or _is_zero(right)):
        other = right if _is_zero(left) else left
        return torch.sym_float(other), isinstance(other, torch.SymInt)  # type: ignore[no-untyped-call]
    return None


def _is_zero(number: Any) -> bool:
    return isinstance(number, (int, float)) and number == 0


def is_float_operation(fn: Any, numbers: list[Any]) -> bool:
    """Whether it is one of those, of floats of which one is symbolic."""
    return (
        fn in FLOAT_OPERATIONS
        and len(numbers) == 2
        and any(isinstance(number, (float, torch.SymFloat)) for number in numbers)
        and all(isinstance(number, (int, float, torch.SymInt, torch.SymFloat)) for number in numbers)
    )
