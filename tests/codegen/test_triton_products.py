"""What GPUs compute by kernels of their own and CPUs leave to libraries: small products, products with vectors, max
pooling; under Triton's interpreter and through its compiler for sm_90."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import check, compile_all, plan_of

F = torch.nn.functional
randn = torch.randn


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


# function, arguments, number of kernels
PRODUCTS: dict[str, Any] = {
    "softmax of a small one": (lambda a, b: torch.softmax(a @ b, -1), (randn(20, 30), randn(30, 40)), 2),
    "linear, gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (randn(8, 16), randn(24, 16), randn(24)), 1),
    "row times rows": (F.linear, (randn(1, 300), randn(50, 300)), 1),
    "row times columns": (lambda x, w: x @ w, (randn(1, 300), randn(300, 50)), 1),
    "row times columns, in pieces": (lambda x, w: x @ w, (randn(1, 3000), randn(3000, 20)), 2),
    "gated": (gated, (randn(1, 64), randn(96, 64), randn(96, 64)), 1),
    "matrix times vector": (lambda a, x: a @ x, (randn(30, 40), randn(40)), 1),
    "batch": (lambda a, b: a @ b, (randn(3, 4, 5), randn(3, 5, 6)), 1),
    "scaled": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (randn(6), randn(4, 5), randn(5, 6)), 1),
    "nothing added": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0),
        (torch.full((6,), float("nan")), randn(4, 5), randn(5, 6)),
        1,
    ),
    "float64": (lambda a, b: a @ b, (randn(4, 5).double(), randn(5, 6).double()), 1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    function, args, kernels = PRODUCTS[name]
    compile_all(check(function, *args, kernels=kernels, rtol=1e-4, atol=1e-4))


def test_bfloat16_is_rounded_once() -> None:
    x, w = randn(1, 200).bfloat16(), randn(30, 200).bfloat16()
    check(F.linear, x, w, kernels=1, rtol=1e-2, atol=1e-2)


def test_large_ones_are_left_to_libraries() -> None:
    plan = plan_of(lambda a, b: a @ b, randn(300, 300), randn(300, 300))
    assert not plan.kernels


WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 1, "padding": 1},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": (3, 2), "stride": (1, 2), "padding": (0, 1)},
]


@pytest.mark.parametrize("number", range(len(WINDOWS)))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_max_pool(number: int, layout: torch.memory_format) -> None:
    x = randn(2, 3, 9, 10)
    x[0, 0] = float("-inf")
    x[1, 1, 3:5, 4] = float("nan")
    x = x.to(memory_format=layout)
    window = WINDOWS[number]
    check(lambda x: F.max_pool2d(x, return_indices=True, **window), x, kernels=1)
    compile_all(check(lambda x: F.max_pool2d(x, **window), x, kernels=1))


@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_max_pool_backward(number: int) -> None:
    window = {"stride": WINDOWS[number]["kernel_size"], "padding": 0, "ceil_mode": False} | WINDOWS[number]
    x = randn(2, 3, 9, 10)
    out, indices = F.max_pool2d(x, return_indices=True, **window)
    sizes = [
        [n, n] if isinstance(n, int) else list(n) for n in (window[k] for k in ("kernel_size", "stride", "padding"))
    ]

    def backward(grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        function = torch.ops.aten.max_pool2d_with_indices_backward
        return function(grad, x, *sizes, [1, 1], window["ceil_mode"], indices)

    compile_all(check(backward, torch.randn_like(out), x, indices, kernels=1))
