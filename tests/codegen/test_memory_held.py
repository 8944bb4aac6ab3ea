"""Memory that is used again is not held where more would be in use at once for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from memory_in_use import most_in_use
from torch import Tensor, nn

import dynajit
from dynajit.codegen.memory import plan_memory
from dynajit.codegen.plan import AllocStep, Buffer, BufferRef, ExternStep, FreeStep, KernelStep, Plan, Step

aten = torch.ops.aten
SIZES = {"x": 8, "a": 1024, "b": 1024, "c": 1024, "d": 1024, "e": 1024, "large": 4096}


def kernel(reads: str, writes: str) -> KernelStep:
    return KernelStep("k", (reads, writes), (writes,))


def call(reads: str, writes: str) -> ExternStep:
    return ExternStep(aten.sin.default, (BufferRef(reads),), {}, (writes,))


def planned(*steps: Step, output: str) -> list[Step]:
    buffers = {name: Buffer(name, (size,), (1,), torch.float32, torch.device("cpu")) for name, size in SIZES.items()}
    return list(plan_memory(Plan("p", "", (), buffers, ("x",), {}, steps, (BufferRef(output),))).steps)


@pytest.mark.parametrize(
    ("steps", "output", "donates"),
    [
        pytest.param((), "a", True, id="nothing else"),
        pytest.param((call("a", "b"),), "b", True, id="its reader goes on"),
        pytest.param((call("x", "b"),), "a", False, id="the input is read later"),
        pytest.param((), "x", False, id="the input is returned"),
    ],
)
def test_an_input_that_is_stored_over(steps: tuple[Step, ...], output: str, donates: bool) -> None:
    found = planned(AllocStep("a", donors=("x",)), kernel("x", "a"), *steps, output=output)
    assert found[0] == AllocStep("a", donors=("x",) if donates else ())


def test_calls_with_results_come_between() -> None:
    """a would be held while c and d are there."""
    steps = (AllocStep("a"), kernel("x", "a"), call("a", "b"), call("b", "c"), call("c", "d"))
    found = planned(*steps, AllocStep("e"), kernel("d", "e"), output="e")
    assert AllocStep("e") in found
    assert found[found.index(steps[2]) + 1] == FreeStep(("a",))


def test_nothing_comes_between() -> None:
    found = planned(*(AllocStep("a"), kernel("x", "a"), call("a", "b"), AllocStep("c"), kernel("b", "c")), output="c")
    assert AllocStep("c", reuse="a") in found


def test_there_was_more_in_use_before() -> None:
    found = planned(
        *(AllocStep("large"), kernel("x", "large"), AllocStep("a"), kernel("large", "a")),
        *(call("a", "b"), call("b", "c"), AllocStep("d"), kernel("c", "d")),
        output="d",
    )
    assert AllocStep("d", reuse="a") in found


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 16), nn.BatchNorm2d(16).eval(), nn.InstanceNorm2d(16)])
def test_a_block_of_convolutions(norm: nn.Module) -> None:
    """Two images at once, and the weights in another order."""
    one, two = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
    x = torch.randn(2, 16, 32, 32)

    def block(x: Tensor) -> Tensor:
        return x + two(F.silu(norm(one(F.silu(norm(x))))))

    compiled = dynajit.compile(block)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), block(x), rtol=1e-4, atol=1e-4)
        compiled(x)
        assert most_in_use(compiled, x) < 2.5 * x.numel() * x.element_size()
