"""Higher-order operators and custom operators as nodes of one graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import BACKENDS, Case, Cases, leaf, rand
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dynajit.testing import assert_same

cases = Cases(backward=True)


@cases(rand(3))
def cond_of_tensors(x):
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))


@cases(leaf(3), rand(4))
def cond_with_closures_and_structure(x, y):
    w = x * 2
    found = torch.cond(
        y.sum() > 100,
        lambda a: {"a": a.sin() * w, "b": [w + 1]},
        lambda a: {"a": a.cos() - x, "b": [x * 3]},
        (x,),
    )
    return found["a"] + found["b"][0], w


@cases(leaf(3))
def cond_within_cond(x):
    def inner(a):
        return torch.cond(a.max() > 0.5, lambda b: b * 2, lambda b: b * 3, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: inner(-a), (x,))


@cases(rand(3))
def cond_on_a_number(x):
    return torch.cond(x.shape[0] > 2, lambda a: a.sin(), lambda a: a.cos(), (x,))


@cases(leaf(2, 4), make=True)
def cond_in_a_module():
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, self.left, self.right, (x,))

    return Gate()


@cases(rand(3))
def loop_until(x):
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * x), (torch.tensor(0), x))


@cases(rand(4, 3))
def map_over_rows(x):
    return torch_map(lambda a, b: a * b, x, torch.ones(3))


@cases(rand(3), rand(4, 3))  # older releases of torch differentiate scan wrongly
def scan_rows(start, x):
    return scan(lambda carry, a: (carry + a, {"y": carry * a}), start, x)


@cases(leaf(1, 2, 8, 4), graphs=None)
def chosen_attention(x):
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(x, x, x)
    return y


@torch.library.custom_op("dynajit_tests::twice", mutates_args=())
def twice(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * 2 * factor


@twice.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


twice.register_autograd(lambda ctx, grad: (grad * 2 * ctx.factor, None), setup_context=_keep)


@torch.library.custom_op("dynajit_tests::increase", mutates_args=("x",))
def increase(x: torch.Tensor) -> None:
    x.add_(1)


@cases(leaf(3))
def custom_operator(x):
    return twice(x, 2.0) + torch.ops.dynajit_tests.twice(x, 1.0) + torch.ops.dynajit_tests.twice.default(x, factor=1.0)


@cases(rand(3))
def custom_operator_that_writes(x):
    increase(x)
    torch.ops.dynajit_tests.increase(x)
    return x * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_program(case: Case, backend: str) -> None:
    case.check(backend)


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


BIAS = torch.linspace(-1, 1, 48).reshape(2, 4, 6)
FLEX: dict[str, dict[str, Any]] = {
    "plain": {},
    "scored": {"score_mod": lambda score, b, h, q, k: score + (k - q) * 0.1},
    "captured": {"score_mod": lambda score, b, h, q, k: score * BIAS[h, q, k] + BIAS[h][0][1]},
    "masked": {"block_mask": create_block_mask(_causal, None, None, 4, 6, device="cpu")},
    "nothing_left": {"block_mask": create_block_mask(lambda b, h, q, k: q > k + 1, None, None, 4, 6, device="cpu")},
    "scaled": {"scale": 0.5},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FLEX)
@pytest.mark.parametrize("backend", BACKENDS)
def test_flex_attention(name: str, backend: str) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q + 1, k, v, **FLEX[name]).sin()

    q = rand(3, 2, 4, 8)
    k, v = rand(3, 2, 6, 8), rand(1, 2, 6, 8).expand(3, 2, 6, 8)
    assert_same(attend, q, k, v, graphs=1, breaks=0, backend=backend, rtol=1e-4, atol=1e-5)
    # fewer heads of keys, the heads innermost but one
    turned = rand(3, 4, 2, 8).transpose(1, 2)
    assert_same(
        lambda q, k: flex_attention(q, k, k, enable_gqa=True), turned, k[:, :1], backend=backend, rtol=1e-4, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore")
def test_a_block_mask_is_made_in_the_graph() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 16, 16, device="cpu")
        return flex_attention(q, q, q, block_mask=mask)

    assert_same(attend, rand(1, 2, 16, 8), graphs=1, breaks=0)


@pytest.mark.filterwarnings("ignore")
def test_a_block_mask_of_documents() -> None:
    documents = torch.tensor([0] * 6 + [1] * 10)

    def attend(q: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(lambda b, h, q, k: documents[q] == documents[k], 1, 2, 16, 16, device="cpu")
        return flex_attention(q, q, q, block_mask=mask)

    by_identity = "each call makes a lambda that is guarded by identity"
    assert_same(attend, rand(1, 2, 16, 8), graphs=1, never_repeats=by_identity)
