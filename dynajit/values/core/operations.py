"""Python's operators by their symbols: the function that computes one, and the special methods that define it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from dynajit.values.polyfills.operators import NAMES

BINARY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    symbol: (getattr(operator, f"__{name}__"), name) for symbol, name in NAMES.items()
}
INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    symbol: getattr(operator, f"__i{name}__") for symbol, name in NAMES.items()
}
COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "UNARY_NEGATIVE": (operator.neg, "__neg__"),
    "UNARY_POSITIVE": (operator.pos, "__pos__"),
    "UNARY_INVERT": (operator.invert, "__invert__"),
}
