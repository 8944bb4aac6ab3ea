"""Operators between tensors and NumPy's arrays: given, or made in the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dynajit.testing import assert_same

OPERANDS = {
    "array": np.ones((2, 3), np.float32),
    "wide": np.arange(6.0).reshape(2, 3),
    "no dimension": np.array(1.0),
    "number": np.float32(1),
    "whole": np.int64(1),
    "other shape": np.ones(4),
    "text": "x",
    "None": None,
    "list": [1.0],
}


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("op", (operator.eq, operator.ne, operator.lt, operator.add, operator.and_, operator.mod))
def test_either_way_round(name: str, op: Callable[[Any, Any], Any]) -> None:
    other = OPERANDS[name]
    x = torch.arange(6.0).reshape(2, 3)
    made = (lambda a, b: op(a, b * 1)) if isinstance(other, np.ndarray | np.generic) else op
    for fn in (lambda a, b: op(a, b), lambda a, b: op(b, a), made):
        assert_same(fn, x, other)
