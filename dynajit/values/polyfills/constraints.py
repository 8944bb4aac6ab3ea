"""Checks of torch.distributions that look at a tensor to see whether to look further.

In: a constraint on matrices, and a tensor. Out: what its `check` gives, of all that it may look at.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import constraints

_Classes: Any = constraints


def symmetric(self: Any, value: torch.Tensor) -> torch.Tensor:
    """`_Symmetric.check`."""
    square: torch.Tensor = super(_Classes._Symmetric, self).check(value)
    if value.shape[-2] != value.shape[-1] and square.numel():
        return square
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def positive_semidefinite(self: Any, value: torch.Tensor) -> torch.Tensor:
    """`_PositiveSemidefinite.check`. Of what is not symmetric nothing is computed that may raise."""
    found: torch.Tensor = super(_Classes._PositiveSemidefinite, self).check(value)
    if value.shape[-2] != value.shape[-1] and found.numel():
        return found
    given = torch.where(found.all(), value, torch.zeros_like(value))
    return torch.where(found.all(), torch.linalg.eigvalsh(given).ge(0).all(-1), found)


def positive_definite(self: Any, value: torch.Tensor) -> torch.Tensor:
    """`_PositiveDefinite.check`."""
    found: torch.Tensor = super(_Classes._PositiveDefinite, self).check(value)
    if value.shape[-2] != value.shape[-1] and found.numel():
        return found
    return torch.where(found.all(), torch.linalg.cholesky_ex(value).info.eq(0), found)
