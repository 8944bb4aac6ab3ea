"""Each kind of node of the loop IR that has no other test for GPUs: printed as a kernel, or left to torch by one clear
extern call with what stands around it fused. Under Triton's interpreter and through its compiler for sm_90."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import check, compile_all, plan_of, run

from dynajit.codegen.plan import ExternStep

F = torch.nn.functional
randn = torch.randn


def places(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, size, shape)


ROWS = torch.arange(9)[torch.randperm(9)][:4].clone()
COLUMNS = torch.arange(20)[torch.randperm(20)][:7].expand(9, 7).contiguous()

# Extremes' places, combinations, running sums, what is read or written where indices say: function, arguments.
PRINTED: dict[str, Any] = {
    "argmax": (lambda x: x.argmax(1), (randn(9, 50),)),
    "argmin, kept": (lambda x: x.argmin(1, keepdim=True), (randn(9, 50),)),
    "argmax of all": (lambda x: x.argmax(), (randn(9, 50),)),
    "argmax down": (lambda x: x.argmax(0), (randn(40, 50),)),
    "argmax, equal and NaN": (lambda x: x.argmax(1), (torch.tensor([[1.0, 2, 2], [1, float("nan"), 3]]),)),
    "max with places": (lambda x: x.max(1), (randn(9, 50),)),
    "extremes of integers": (lambda x: (x.amax(1), x.amin(1)), (places(100, 9, 20),)),
    "product": (lambda x: x.prod(1), (randn(9, 20),)),
    "count": (lambda x: (x > 0).sum(1), (randn(9, 50),)),
    "mean pooling": (lambda x: F.avg_pool2d(x, 2) * 2, (randn(1, 2, 8, 8),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2) * 2, (randn(1, 2, 4, 4),)),
    "gather": (lambda x, i: x.gather(1, i) * 2, (randn(9, 20), places(20, 9, 7))),
    "gather rows": (lambda x, i: x.gather(0, i) + 1, (randn(9, 20), places(9, 5, 20))),
    "index_select": (lambda x, i: x.index_select(1, i) * 2, (randn(9, 20), places(20, 5))),
    "embedding": (lambda w, i: F.embedding(i, w) + 1, (randn(30, 16), places(30, 4, 5))),
    "index": (lambda x, i: x[i] * 2, (randn(9, 20), places(9, 5) - 4)),
    "index, two": (lambda x, i, j: x[i, j] * 2, (randn(9, 20), places(9, 5, 1), places(20, 4))),
    "index, sliced": (lambda x, i: x[:, i] * 2, (randn(9, 20), places(20, 4))),
    "nll": (lambda x, i: F.cross_entropy(x, i), (randn(9, 20), places(20, 9))),
    "cumsum": (lambda x: (x * 2).cumsum(1) + 1, (randn(9, 50),)),
    "cumsum down": (lambda x: x.cumsum(0), (randn(40, 50),)),
    "cumprod": (lambda x: x.cumprod(1), (randn(9, 20),)),
    "cumsum in steps": (lambda x: x.cumsum(1), (places(100, 3, 5000).float(),)),
    "cumsum down in steps": (lambda x: x.cumsum(0), (places(100, 100, 9).float(),)),
    "cumsum between": (lambda x: x.cumsum(1) * 2, (randn(3, 70, 4),)),
    "count so far": (lambda x: (x > 0).cumsum(1), (randn(9, 50),)),
    "cumsum of float64": (lambda x: x.cumsum(0), (randn(9).double(),)),
    "cumprod of integers": (lambda x: x.cumprod(0), (places(3, 40, 5) + 1,)),
    "truth values": (lambda x, i: (x > 0)[i], (randn(9, 20), places(9, 4))),
    "embedding, normalised": (
        lambda w, i: F.layer_norm(F.embedding(i, w).float(), (16,)),
        (randn(30, 16).bfloat16(), places(30, 4, 5)),
    ),
    "cross entropy, one left out": (
        lambda x, w, i: F.cross_entropy(x, i, w, ignore_index=3),
        (randn(9, 20), torch.rand(20), places(20, 9)),
    ),
    "padded with what was fetched": (lambda x, i: F.pad(x[i], (0, 3, 1, 0)), (randn(9, 20), places(9, 4))),
    "scatter": (lambda x, i, s: x.scatter(1, i, s) * 2, (randn(9, 20), COLUMNS, randn(9, 7))),
    "scatter a number": (lambda x, i: x.scatter(1, i, 3.5), (randn(9, 20).half(), COLUMNS)),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s) * 2, (randn(9, 20), places(20, 9, 7), randn(9, 7))),
    "histogram": (lambda i: torch.zeros(10).scatter_add(0, i, torch.ones(100)), (places(10, 100),)),
    "index_put": (lambda x, i, s: x.index_put((i - 9,), s * 2) * 2, (randn(9, 20), ROWS, randn(4, 20))),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2) * 2, (randn(9, 20), places(9, 4), randn(4, 20))),
    "added integers": (
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        (places(9, 9, 20), places(9, 30), places(9, 30, 20)),
    ),
    "float64": (lambda x: x.sum(1), (randn(9, 50).double(),)),
    "float16": (lambda x: x.sum(1), (randn(9, 50).half(),)),
}

# Other scans, other ways to combine what is written where indices say, orders: function, arguments, operator, kernels.
LEFT: dict[str, Any] = {
    "cummax": (lambda x: x.cummax(1), (randn(9, 20),), "cummax", 0),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (randn(9, 20),), "logcumsumexp", 0),
    "scatter_reduce": (
        lambda x, i, s: x.scatter_reduce(1, i, s, "amax") * 2,
        (randn(9, 20), COLUMNS, randn(9, 7)),
        "scatter_reduce",
        1,
    ),
    "half sums": (
        lambda x, i, s: x.scatter_add(1, i, s) * 2,
        (randn(9, 20).half(), COLUMNS, randn(9, 7).half()),
        "scatter_add",
        1,
    ),
    "sort": (lambda x: (x * 2).sort(1), (randn(9, 20),), "sort", 1),
    "topk": (lambda x: (x * 2).topk(3, 1), (randn(9, 20),), "topk", 1),
}


@pytest.mark.parametrize("name", PRINTED)
def test_printed(name: str) -> None:
    function, args = PRINTED[name]
    tolerances = {"rtol": 1e-5, "atol": 1e-5} if args[0].dtype is torch.float32 else {}
    compile_all(check(function, *args, externs=0, **tolerances))


@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name: str) -> None:
    function, args, operator, kernels = LEFT[name]
    plan = check(function, *args, externs=1, kernels=kernels, rtol=1e-5, atol=1e-5)
    (call,) = [step for step in plan.steps if isinstance(step, ExternStep)]
    assert call.target.__name__.partition(".")[0] == operator
    compile_all(plan)


@pytest.mark.parametrize("name", ("gather", "embedding", "index, two"))
def test_indices_outside_stop_the_program(name: str) -> None:
    function, (x, *indices) = PRINTED[name]
    plan = plan_of(function, x, *indices)
    with pytest.raises(Exception, match="refused"):
        run(plan, x, *(index + 100 for index in indices))


def test_long_running_sums_of_few_rows_are_left_to_torch() -> None:
    plan = plan_of(lambda x: (x * 2).cumsum(1) + 1, randn(2, 100_000))
    assert [step.target.__name__ for step in plan.steps if isinstance(step, ExternStep)] == ["cumsum.default"]


def test_without_an_order_of_their_own_sums_are_left_to_torch() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        plan = plan_of(lambda x, i, s: x.scatter_add(1, i, s) * 2, randn(9, 20), places(20, 9, 7), randn(9, 7))
    finally:
        torch.use_deterministic_algorithms(False)
    assert [step.target.__name__ for step in plan.steps if isinstance(step, ExternStep)] == ["scatter_add.default"]
