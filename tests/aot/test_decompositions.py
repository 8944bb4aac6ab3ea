"""Each decomposition against eager, forward and backward, run op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aot_harness import check

from dynajit.aot import compile_joint, decompositions
from dynajit.testing import assert_same

UNARY: dict[str, Callable] = {
    name: getattr(F, name)
    for name in (
        *("celu", "elu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid"),
        *("mish", "selu", "gelu", "silu", "softplus", "softshrink", "tanhshrink"),
    )
}
UNARY |= {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "logit": lambda x: torch.logit(x.sigmoid()),
    "threshold": lambda x: F.threshold(x, 0.1, 20),
    "nan_to_num": lambda x: torch.nan_to_num(x.log()),
    "sinc": torch.sinc,
    "norm": lambda x: x.norm(dim=1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 1, dim=0),
    "logsumexp": lambda x: x.logsumexp(1),
    "std": lambda x: x.std(1),
    "std_mean": lambda x: torch.std_mean(x, 0)[1],
    "masked_fill": lambda x: x.masked_fill(x > 0, 3.0),
    "rsub": lambda x: 1 - x,
    "rad2deg": torch.rad2deg,
    "trace": torch.trace,
    "count_nonzero": torch.count_nonzero,
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0),
    "prelu": lambda x: F.prelu(x, torch.tensor(0.3)),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "cat_of_nothing_and": lambda x: torch.cat([torch.tensor([]), x * 2, x[:0]], 0),
    "cat_of_other_types": lambda x: torch.cat([torch.tensor([], dtype=torch.float64), x], 1),
    "cat_of_channels_last": lambda x: torch.cat([x[0, :0], x.view(2, 2, 3, 2).to(memory_format=torch.channels_last)]),
    "group_norm": lambda x: F.group_norm(x.view(2, 2, 6), 2),
}
MEAN, VAR = torch.linspace(-1, 1, 6), torch.linspace(1, 2, 6)
BINARY: dict[str, Callable] = {
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.detach().sigmoid()),
    "bce_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach().sigmoid()),
    "huber_loss": F.huber_loss,
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 1),
    "hypot": torch.hypot,
    "dist": torch.dist,
    "layer_norm_affine": lambda x, y: F.layer_norm(x, (6,), y[0], y[1]),
    "batch_norm_eval": lambda x, y: F.batch_norm(x, MEAN, VAR, y[2], y[3]),
}


def decomposed(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable:
    return compile_joint(gm, inputs, lambda graph, inputs, phase: graph.forward, decompositions.for_codegen())


def pair(grad: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 6, generator=generator).requires_grad_(grad) for _ in range(2)]


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, grad: bool) -> None:
    check(decomposed, lambda x: (UNARY[name](x),), pair(grad)[0])


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, grad: bool) -> None:
    check(decomposed, lambda x, y: (BINARY[name](x, y),), *pair(grad))


def test_nothing_in_the_table_draws_random_numbers() -> None:
    table = decompositions.for_codegen()
    assert table
    drawing = {operator for operator in table if torch.Tag.nondeterministic_seeded in operator.tags}
    assert drawing <= set(decompositions._OWN)  # whose rules draw the same numbers


def test_names_are_decomposed() -> None:
    found = {operator._schema.name.removeprefix("aten::") for operator in decompositions.for_codegen()}
    assert [name for name in decompositions._NAMES if name not in found and hasattr(torch.ops.aten, name)] == []


def operators_of(fn: Callable, *args: torch.Tensor) -> list[str]:
    """What is left of a function, which gives what it gives in eager."""
    called = []

    def compile_fn(gm: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Callable:
        called.extend(str(node.target) for node in gm.graph.nodes if node.op == "call_function")
        return gm.forward

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable:
        return compile_joint(gm, inputs, compile_fn, decompositions.for_codegen())

    assert_same(fn, *args, backend=backend, graphs=1)
    return called


def test_cat_leaves_out_what_is_empty() -> None:
    called = operators_of(lambda x: torch.cat([x[0, :0], x * 2], 0), torch.randn(2, 3))
    assert called == ["aten.mul.Tensor", "aten.cat.default"]


@pytest.mark.parametrize("fn", [F.linear, lambda x, w: x @ w.t(), lambda x, w: torch.bmm(x, w.t().expand(7, 5, 3))])
def test_one_matrix_for_a_batch_is_one_product(fn: Callable) -> None:
    called = operators_of(lambda x, w: fn(x.transpose(0, 1), w), torch.randn(2, 7, 5), torch.randn(3, 5))
    assert called.count("aten.mm.default") == 1 and "aten.bmm.default" not in called


def test_one_matrix_for_a_batch_of_nothing() -> None:
    operators_of(lambda x, w: torch.bmm(x, w.expand(0, 5, 3)), torch.randn(0, 2, 5), torch.randn(5, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda i, x: torch.addcmul(i, x, x),
        lambda i, x: torch.addcmul(x, i, i),
        lambda i, x: torch.addcdiv(i, x, x),
        torch.xlogy,
        F.mse_loss,
        F.smooth_l1_loss,
        lambda i, x: i + x * 3,
    ],
)
def test_integers_beside_short_floats_are_rounded_first(function: Callable, dtype: torch.dtype) -> None:
    integers, floats = torch.tensor([2049, 2051, 100003, -70000, 5, 7]), torch.tensor([1, 1, 1, 1, 3, -2], dtype=dtype)
    assert_same(function, integers, floats, backend="codegen", rtol=1e-4, atol=0)
