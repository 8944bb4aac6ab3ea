"""The rules for weights that are normed against torch's own kernels on the CPU."""

from __future__ import annotations

import pytest
import torch

from dynajit.aot import decompositions
from dynajit.aot.passes.weight_norm import RULES

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("shape", "dim"), [((4, 3, 5), 0), ((4, 3, 5), 2), ((6, 7), 0), ((6, 7), 1)])
def test_as_torchs_kernels(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    v = torch.randn(shape).to(dtype)
    g = torch.randn([size if place == dim else 1 for place, size in enumerate(shape)]).to(dtype)
    grad = torch.randn(shape).to(dtype)
    forward, backward = aten._weight_norm_interface.default, aten._weight_norm_interface_backward.default
    found, wanted = RULES[forward](v, g, dim), forward(v, g, dim)
    assert [(one.dtype, one.shape, one.stride()) for one in found] == [
        (one.dtype, one.shape, one.stride()) for one in wanted
    ]
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(RULES[backward](grad, v, g, wanted[1], dim), backward(grad, v, g, wanted[1], dim))


def test_kernels_for_gpus_are_made_of_them_where_rounding_is_free() -> None:
    assert RULES.items() <= decompositions.for_codegen("cuda").items()
    assert not RULES.keys() & decompositions.for_codegen("cuda", eager_rounding=True).keys()
