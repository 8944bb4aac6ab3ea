"""Random numbers in kernels for GPUs: against the reference, under Triton's interpreter and through its compiler.

That they are the numbers of torch's own kernels is tested on a GPU, in `tests/gpu/test_cuda_random.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from reference_interpreter import interpret
from triton_harness import GPU, compile_all, plan_of, run, trace
from well_formed import verify

from dynajit.codegen.plan import DrawStep, ExternStep
from dynajit.loopir import lower_graph, philox
from dynajit.loopir.philox import Draw

dropout = torch.native_dropout
SEED, OFFSET = -3_000_000_007, 40


def softmax(x: torch.Tensor) -> Any:
    kept, mask = dropout(x.softmax(1), 0.3, True)
    return kept, mask


CASES: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "pointwise": (lambda x: dropout(x.sin(), 0.5, True), (torch.randn(40, 36),)),
    "half, eight to a thread": (lambda x: dropout(x + 1, 0.1, True), (torch.randn(64, 40).half(),)),
    "rows": (softmax, (torch.randn(24, 100),)),
    "long rows": (softmax, (torch.randn(3, 9000),)),
    "turned": (lambda x: dropout(x.t().exp(), 0.25, True), (torch.randn(36, 40),)),
    "copied to another layout": (
        lambda x: (dropout(x.exp(), 0.5, True)[0].t() + 1).contiguous(),
        (torch.randn(8, 12),),
    ),
    "reduced across": (lambda x: dropout(x.exp(), 0.5, True)[0].sum(0), (torch.randn(40, 36),)),
    "two": (lambda x: dropout(dropout(x.exp(), 0.5, True)[0] + x, 0.5, True), (torch.randn(16, 8),)),
    "numbers": (lambda x: torch.rand_like(x) * x + torch.rand(7, 1), (torch.randn(7, 5),)),
    "bernoulli": (lambda x: x * torch.ops.aten.bernoulli.p(x[:, :1], 0.4), (torch.randn(30, 5),)),
    "half numbers": (lambda x: torch.rand_like(x) + x, (torch.randn(7, 5).half(),)),
}


def draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on states of a generator that begins at `OFFSET`; how far it has moved."""
    moved = [0]

    def call(self: Draw) -> tuple[torch.Tensor, ...]:
        offset = OFFSET + sum(moved)
        moved.append(self.increment)
        return tuple(torch.tensor(number) for number in (SEED, offset, 0, 0))

    monkeypatch.setattr(Draw, "__call__", call)
    return moved


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, args = CASES[name]
    gm, _ = trace(function, *args)
    program = lower_graph.lower(gm, "test", GPU)
    try:
        verify(program)
        moved = draws(monkeypatch)
        expected = interpret(program, dict(zip(program.inputs, args, strict=True)))
    finally:
        lower_graph.forget()
    plan = plan_of(function, *args)
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    assert [step.increment for step in plan.steps if isinstance(step, DrawStep)] == moved[1:]
    moved[:] = [0]
    for ours, theirs in zip(run(plan, *args), expected, strict=True):
        torch.testing.assert_close(ours, theirs.expand(ours.shape), check_stride=False)
    compile_all(plan)


def test_known_numbers() -> None:
    """Those that Random123 gives for zeros and for ones."""
    assert philox.philox(0, 0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = (1 << 64) - 1
    assert philox.philox(ones, ones, ones) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def test_more_elements_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread draws again: numbers of another step, one behind the other's."""
    monkeypatch.setattr(philox, "_at_once", lambda device: 512)
    test_numbers("pointwise", monkeypatch)
    test_numbers("rows", monkeypatch)
    test_numbers("half, eight to a thread", monkeypatch)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: dropout(x, 0.5, True)[0],  # where an input begins is not known
        lambda x: dropout(x.exp()[:, 1:], 0.5, True)[0],
        lambda x: dropout(x.double().exp(), 0.5, True)[0],
        lambda x: dropout(x.exp()[:1], 0.5, True)[0],  # five elements: one to a thread
        lambda x: torch.randn_like(x) * 2,
        lambda x: torch.rand_like(x.expand(100_000, 7, 5)) * 2,
    ],
)
def test_left_to_torch(function: Any) -> None:
    plan = plan_of(function, torch.randn(7, 5))
    assert any(isinstance(step, ExternStep) for step in plan.steps)
    assert not any(isinstance(step, DrawStep) for step in plan.steps)
