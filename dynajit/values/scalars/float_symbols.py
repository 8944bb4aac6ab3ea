"""Sums, products and extremes of symbolic floats that keep the order and the rounding of the program's.

In: torch's symbolic numbers and Python's. Out: a SymFloat whose expression no algebra takes apart: sympy's own sums and
products are those of real numbers, where `x + y - x` is `y`, `x * 0.0` is 0 and `x * 0.1 * 3.0` is `x * 0.3`, and the
larger one of `0.0` and `-0.0` is either. Sympy has one zero: here it is `0.0`.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from dynajit.torch_compat import register_expression


@functools.cache
def _classes() -> dict[Any, Any]:
    """By function. sympy is imported only with symbols."""
    import sympy  # type: ignore[import-untyped]

    def rounded(name: str, fn: Callable[[float, float], float], meaning: str) -> Any:
        """The function `fn(a, b)`, rounded; torch's analysis takes it for `meaning`."""

        def evaluated(cls: Any, left: Any, right: Any) -> Any:
            known = isinstance(left, sympy.Number) and isinstance(right, sympy.Number)
            return sympy.Float(fn(float(left), float(right))) if known else None

        made = type(sympy.Function)(name, (sympy.Function,), {"is_real": True, "eval": classmethod(evaluated)})
        register_expression(made, meaning)
        return made

    return {
        operator.add: rounded("FloatAdd", operator.add, "add"),
        operator.mul: rounded("FloatMul", operator.mul, "mul"),
        builtins.max: rounded("FloatMax", builtins.max, "maximum"),
        builtins.min: rounded("FloatMin", builtins.min, "minimum"),
    }


def float_sum(left: Any, right: Any) -> Any:
    """`left + right`"""
    return _combine(operator.add, left, right)


def float_difference(left: Any, right: Any) -> Any:
    """`left - right`, which is `left + (-right)` to the last bit."""
    return float_sum(left, -right)


def float_product(left: Any, right: Any) -> Any:
    """`left * right`"""
    return _combine(operator.mul, left, right)


def _float_extreme(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`max` or `min`, which give the first of equal ones."""
    return lambda *numbers: functools.reduce(functools.partial(_combine, fn), numbers)


FLOAT_OPERATIONS: dict[Any, Callable[..., Any]] = {
    operator.add: float_sum,
    operator.sub: float_difference,
    operator.mul: float_product,
    builtins.max: _float_extreme(builtins.max),
    builtins.min: _float_extreme(builtins.min),
}


def _combine(fn: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    import sympy  # type: ignore[import-untyped]

    exprs, hints, like = [], [], None
    for number in (left, right):
        if isinstance(number, (int, float)):
            if fn is operator.mul and number == 0:
                raise NotImplementedError("a product with 0, which torch takes for 0.0")
            exprs.append(sympy.Float(_with_sign(float(number))))
            hints.append(float(number))
        else:
            like = torch.sym_float(number).node  # type: ignore[no-untyped-call]
            exprs.append(like.expr)
            hints.append(like.hint)
    if like is None:
        return fn(left, right)
    hint = None if None in hints else fn(*hints)
    if hint is not None:
        _with_sign(hint)
        if hint == 0:
            raise NotImplementedError("a zero, which torch takes for 0.0 wherever it finds a factor that is 0")
    made = type(like)(_classes()[fn](*exprs), like.shape_env, float, hint)
    return torch.SymFloat(made)  # type: ignore[no-untyped-call]


def _with_sign(number: float) -> float:
    """A number that sympy can tell from others: of zeros, the positive one. Raises NotImplementedError."""
    if is_negative_zero(number) or not math.isfinite(number):
        raise NotImplementedError(f"{number} in an expression")
    return number


def is_negative_zero(number: Any) -> bool:
    """Whether it is -0.0, for which sympy has no number of its own."""
    return type(number) is float and number == 0 and math.copysign(1.0, number) < 0


def beside_zero(fn: Any, numbers: list[Any]) -> Any:
    """What `fn` gives where one of two numbers is the constant 0, if that is the other one, also where it is a zero:
    `x - 0`, and `n + 0.0` of an int. None: it is not known to be."""
    if fn is operator.sub and _is_zero(numbers[1]):
        return torch.sym_float(numbers[0])  # type: ignore[no-untyped-call]
    if fn is operator.add and any(map(_is_zero, numbers)):
        other = next((number for number in numbers if not _is_zero(number)), None)
        return torch.sym_float(other) if isinstance(other, torch.SymInt) else None  # type: ignore[no-untyped-call]
    return None


def _is_zero(number: Any) -> bool:
    return isinstance(number, (int, float)) and number == 0


def is_float_operation(fn: Any, numbers: list[Any]) -> bool:
    """Whether it is one of those, of floats of which one is symbolic."""
    return (
        fn in FLOAT_OPERATIONS
        and any(isinstance(number, (float, torch.SymFloat)) for number in numbers)
        and all(isinstance(number, (int, float, torch.SymInt, torch.SymFloat)) for number in numbers)
    )
