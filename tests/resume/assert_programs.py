"""Programs with assert statements: pytest rewrites those of test modules."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def asserts_tensor(x: Tensor, arg: Any) -> Tensor:
    y = x.cos()
    assert y.sum() > arg, f"too small {arg}"
    return y.sin()


def asserts_python(x: Tensor, arg: Any) -> Tensor:
    y = x.cos()
    assert arg < 0
    return y.sin()
