"""Operations told by `out=` where to write. Some of torch's C++ for operations made of others writes a tensor of its
own instead where it is given wrapped ones, or a view that autograd knows nothing of; some compute in the dtype of
`out=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

LINALG = torch.linalg
MATRIX = torch.arange(9.0).sin().view(3, 3) + 2 * torch.eye(3)

WRITING: dict[str, Callable[..., Any]] = {
    "matrix_rank": lambda x, out: LINALG.matrix_rank(x, out=out),
    "matrix_rank_tol": lambda x, out: LINALG.matrix_rank(x, 0.01, out=out),
    "matrix_rank_hermitian": lambda x, out: LINALG.matrix_rank(x, hermitian=True, out=out),
    "kron": lambda x, out: torch.kron(x, x[:2], out=out),
    "kron_of_vectors": lambda x, out: torch.kron(x[0], x[1], out=out),
    "norm": lambda x, out: LINALG.norm(x, out=out),
    "matrix_norm": lambda x, out: LINALG.matrix_norm(x, "nuc", out=out),
    "cond": lambda x, out: LINALG.cond(x, out=out),
    "det": lambda x, out: LINALG.det(x, out=out),
    "inv": lambda x, out: LINALG.inv(x, out=out),
    "pinv": lambda x, out: LINALG.pinv(x, out=out),
    "matrix_power": lambda x, out: LINALG.matrix_power(x, 3, out=out),
    "multi_dot": lambda x, out: LINALG.multi_dot([x, x, x], out=out),
    "matmul": lambda x, out: torch.matmul(x, x, out=out),
    "inner": lambda x, out: torch.inner(x, x, out=out),
    "outer": lambda x, out: torch.outer(x[0], x[1], out=out),
    "tensordot": lambda x, out: torch.tensordot(x, x, 1, out=out),
    "nanmean": lambda x, out: torch.nanmean(x, 0, out=out),
    "diff": lambda x, out: torch.diff(x, out=out),
    "hstack": lambda x, out: torch.hstack([x, x], out=out),
    "float_power": lambda x, out: torch.float_power(x, 2, out=out),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", WRITING)
def test_what_is_written(name: str, backend: str) -> None:
    function = WRITING[name]
    made = function(MATRIX, None)
    size, dtype = made.shape, made.dtype

    def inside(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mine = torch.full(size, 77, dtype=dtype)
        return function(x, mine), mine + 1

    def outside(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        function(x, out)
        return out * 2

    for program in (inside, outside):
        compiled = dynajit.compile(program, backend=backend)
        for x in (MATRIX, MATRIX + 1):
            mine, theirs = torch.full((2, *size), 77, dtype=dtype)
            torch.testing.assert_close(compiled(x, mine), program(x, theirs))
            torch.testing.assert_close(mine, theirs)
            assert mine._version == theirs._version


OF_ONE_DTYPE: dict[str, Callable[..., Any]] = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "all": lambda x, out: torch.all(x, 0, out=out),
    "any": lambda x, out: torch.any(x, 0, out=out),
    "bucketize": lambda x, out: torch.bucketize(x, x[0].sort().values, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "gt": lambda x, out: torch.gt(x, 1, out=out),
    "isin": lambda x, out: torch.isin(x, x[0], out=out),
    "mean": lambda x, out: torch.mean(x, 0, out=out),
    "nansum": lambda x, out: torch.nansum(x, 0, out=out),
    "prod": lambda x, out: torch.prod(x, 0, out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "vector_norm": lambda x, out: LINALG.vector_norm(x, out=out),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", [*OF_ONE_DTYPE, *WRITING])
def test_out_of_another_dtype_than_the_result(name: str, dtype: torch.dtype) -> None:
    function = (OF_ONE_DTYPE | WRITING)[name]
    out = torch.zeros_like(function(MATRIX, None), dtype=dtype)
    assert_same(function, MATRIX, out, backend="aot_eager", graphs=None)  # eager mode raises for some dtypes
