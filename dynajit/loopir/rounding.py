"""Which pointwise operators have eager's bits in bfloat16 and float16: `options={"numerics": "eager"}`.

In:  an operator of which there is a lowering, and whether it works on such numbers. Out: `rounds_as_eager`.
Results are rounded after each operator as eager rounds them, so arithmetic, comparisons and selections agree to the
bit. Functions that are computed in float32 may differ in its last places, of which few are seen after rounding, but
some: with that option they are left to torch. One more of these: its name in `_INEXACT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dynajit.loopir import lower_gradients, lower_pointwise
from dynajit.loopir.ops import MATH_FUNCTIONS
from dynajit.op_facts import LOW_PRECISION

_INEXACT = frozenset(
    {
        *MATH_FUNCTIONS,
        *("rsqrt", "sigmoid", "silu", "gelu", "hypot", "logaddexp", "logaddexp2"),
        *("pow", "atan2", "fmod", "remainder", "addcmul", "addcdiv", "lerp"),
        *("sigmoid_backward", "tanh_backward", "silu_backward", "mish_backward"),
    }
)
_POINTWISE = (lower_pointwise.__name__, lower_gradients.__name__)


def rounds_as_eager(target: Any, function: Callable[..., Any], values: Iterable[Any]) -> bool:
    """Does the operator's lowering give eager's bits? `values` are its result and arguments."""
    if function.__module__ not in _POINTWISE or target.overloadpacket.__name__ not in _INEXACT:
        return True
    return not any(getattr(value, "dtype", None) in LOW_PRECISION for value in values)
