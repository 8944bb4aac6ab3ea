"""What ran on fakes of the same metadata before gives, made anew, what it would give if it ran again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.graph.fake import FakeMode, fake_of
from dynajit.testing import assert_same

OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, y: x + y,
    "number": lambda x, y: (x + 1, x + 1.0, x + True),
    "product": lambda x, y: x @ y.T,
    "view": lambda x, y: x.view(2, 2, 6),
    "part": lambda x, y: x[1:, ::2],
    "reshaped view": lambda x, y: y.T.reshape(3, 8),
    "reshaped copy": lambda x, y: y.reshape(3, 8),
    "two views": lambda x, y: x.split(2),
    "several": lambda x, y: torch.max(x, 0),
    "made": lambda x, y: torch.zeros(3, dtype=torch.int32),
    "other dtype": lambda x, y: x.to(torch.float64),
    "its own dtype": lambda x, y: x.to(torch.float32),
    "contiguous": lambda x, y: (x.contiguous(), y.contiguous()),
    "in place": lambda x, y: x.clone().mul_(2),
    "another's view": lambda x, y: y.view_as(x.T.T),
    "conjugate": lambda x, y: torch.complex(x, x).conj(),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "norm": lambda x, y: F.layer_norm(x, (6,)),
    "looks": lambda x, y: x.gather(1, torch.zeros(4, 1, dtype=torch.int64)),
    "drawn": lambda x, y: F.dropout(x, 0.5),
    "embedding": lambda x, y: F.embedding(torch.zeros(3, dtype=torch.int64), x),
}
GRAD = {"no gradients": torch.no_grad, "gradients": torch.enable_grad, "inference": torch.inference_mode}


def _described(result: Any, inputs: list[torch.Tensor]) -> Any:
    if isinstance(result, tuple):
        return [_described(one, inputs) for one in result]
    own = [one.untyped_storage()._cdata for one in inputs]
    memory = result.untyped_storage()._cdata
    where = own.index(memory) if memory in own else None
    return (
        *(type(result), result.shape, result.stride(), result.storage_offset(), result.dtype, result.device, where),
        *(result.untyped_storage().nbytes(), result.requires_grad, result._is_view(), result.is_conj()),
        *(result.is_inference(), result.grad_fn and result.grad_fn.name()),
    )


def _run(name: str, grad: str, requires_grad: bool) -> tuple[list[Any], bool | None]:
    mode = FakeMode(allow_non_fake_inputs=False)
    found = []
    for _ in range(3):
        inputs = [fake_of(mode, torch.randn(4, 6).requires_grad_(requires_grad)), fake_of(mode, torch.randn(6, 4).T)]
        mode.looked_at_values = False
        with mode, GRAD[grad]():
            found.append(_described(OPERATIONS[name](*inputs), inputs))
    return found, mode.looked_at_values


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("grad", GRAD)
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_made_anew_is_what_runs(name: str, grad: str, requires_grad: bool) -> None:
    found = _run(name, grad, requires_grad)
    assert found[0][1:] == found[0][:-1]
    with dynajit.config.patch(share_layers=False):
        assert _run(name, grad, requires_grad) == found


def test_equal_operations_run_once() -> None:
    class Counting(FakeMode):
        ran = 0

        def dispatch(self, *args: Any, **kwargs: Any) -> Any:
            self.ran += 1
            return super().dispatch(*args, **kwargs)

    mode = Counting(allow_non_fake_inputs=False)
    three, four = fake_of(mode, torch.randn(3)), fake_of(mode, torch.randn(4))
    with mode:
        for _ in range(5):
            three + 1
        assert mode.ran == 1
        four + 1
        three + 1.0
        assert mode.ran == 3


def test_what_depends_on_values_is_asked_each_time() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        first, second = torch.nonzero(x), torch.nonzero(x)
        return first.sum() + second.sum()

    assert_same(f, torch.tensor([1.0, 0.0, 2.0]))


def test_a_default_dtype_that_changes_is_noticed() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        made = [torch.zeros(3) + x]
        torch.set_default_dtype(torch.float64)
        made.append(torch.zeros(3) + x)
        torch.set_default_dtype(torch.float32)
        return made

    assert_same(f, torch.ones(3, dtype=torch.int32))


def test_tensors_without_memory_of_their_own() -> None:
    x = torch.eye(3)
    assert_same(lambda x: (x.to_sparse().to_dense(), x.to_sparse().values() * 2, (x.to_sparse() * 2).to_dense()), x)
