"""Operations that give several tensors, into tensors that they are told to fill."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import dynajit

RESULTS_IN = {
    "sort": (lambda x, out: torch.sort(x, out=out), torch.int64),
    "topk": (lambda x, out: torch.topk(x, 2, 0, out=out), torch.int64),
    "max": (lambda x, out: torch.max(x, 0, out=out), torch.int64),
    "qr": (lambda x, out: torch.linalg.qr(x, out=out), torch.float32),
}
SIZES = [((0,), (0,)), ((3,), (0,)), ((0,), (4,)), ((4, 4), (4, 4)), ((4,), (4,))]


@pytest.mark.parametrize("name", RESULTS_IN)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_results_resize_what_they_go_to(name: str) -> None:
    """Two tensors given as `out=`, each of a size that fits or doesn't."""
    function, kind = RESULTS_IN[name]
    x = torch.arange(16.0).sin().view(4, 4)
    for backend, given, (first, second) in itertools.product(("eager", "codegen"), (x, x.T), SIZES):

        def program(x: torch.Tensor, first: Any = first, second: Any = second) -> Any:
            out = torch.empty(first), torch.empty(second, dtype=kind)
            function(x, out)
            return [(part + 0, part.shape, part.stride()) for part in out]

        dynajit.reset()
        torch.testing.assert_close(dynajit.compile(program, backend=backend)(given), program(given))
