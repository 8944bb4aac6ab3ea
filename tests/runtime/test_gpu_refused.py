"""What a GPU's kernels can't be made or recorded for is said, and runs without."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dynajit.codegen.plan import Buffer, BufferRef, ExternStep, Plan
from dynajit.codegen.triton.generate import Launches
from dynajit.codegen.triton.printer import PrintedTriton
from dynajit.config import config
from dynajit.loopir.nodes import Origin, StoredTensor
from dynajit.report import logs
from dynajit.runtime import autotune, cuda_graphs, gpu, triton_compiler

GPU = torch.device("cuda", 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """One with a GPU of today and Triton; tests take something away."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.6.0")
    caches = (gpu.capability, triton_compiler.version)
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    for cache in caches:
        cache.cache_clear()


def test_a_gpu_of_today(machine: pytest.MonkeyPatch) -> None:
    assert gpu.unsupported(GPU) == ""


def test_no_cuda(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.version, "cuda", None)
    assert "no code is generated for tensors on cuda" in gpu.unsupported(GPU)


def test_old_gpu(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert gpu.unsupported(GPU) == "A GPU has compute capability 7.0; kernels need 7.5"


def test_no_triton(machine: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    machine.setattr(importlib.metadata, "version", missing)
    assert "pip install triton" in gpu.unsupported(GPU)


@pytest.mark.parametrize("found", ["2.3.1", "4.0.0"])
def test_another_triton(machine: pytest.MonkeyPatch, found: str) -> None:
    machine.setattr(importlib.metadata, "version", lambda name: found)
    assert f"Triton {found} is installed" in gpu.unsupported(GPU)


# ---- timing


def test_no_memory_to_time_with(
    machine: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first way is taken, and timing is tried again by the next process."""
    tensor = StoredTensor("x", (1 << 19,), (1,), torch.float32, 0, Origin("", ""), GPU)
    ways = [Launches([PrintedTriton(f"way {n}", (tensor,), (tensor,), 8, 4)], []) for n in range(2)]
    tried: list[Any] = []

    def fastest(device: torch.device, given: Any) -> int:
        tried.append(given)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    machine.setattr(autotune, "_fastest", fastest)
    logs.set_logs(perf=True)
    try:
        with config.patch(cache_dir=str(tmp_path)):
            assert [autotune.chooser(GPU)(ways) for _ in range(2)] == [0, 0]
    finally:
        logs.set_logs(perf=False)
    assert tried == [ways, ways]
    assert "no memory left to time kernels" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# ---- recording


class Graph:
    """A recorded graph."""

    busy = False

    def __init__(self, *inputs: torch.Tensor) -> None:
        self.addresses = [x.data_ptr() for x in inputs]

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return ("replayed",) if [x.data_ptr() for x in inputs] == self.addresses else NotImplemented


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda_graphs, "_told", set())
    steps = (ExternStep(torch.ops.aten.relu.default, (BufferRef("x"),), {}, ("y",)),)
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, GPU) for name in "xy"}
    return Plan("test", "", (), buffers, ("x",), {}, steps, (BufferRef("y"),), device=GPU)


@pytest.mark.parametrize(
    ("backward", "expected"),
    [
        # what an operator reads, and what lay elsewhere at the first call, is copied
        (False, [("ran", set()), ("replayed", {0}), ("replayed", {0})]),
        # what a forward graph keeps lies where it will stay from that graph's recording on
        (True, [("ran", set()), ("ran", set()), ("replayed", set())]),
    ],
)
def test_when_it_is_known_what_moves(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, backward: bool, expected: list[Any]
) -> None:
    monkeypatch.setattr(cuda_graphs._Recorded, "_record", lambda self, inputs, stream: Graph(*inputs))
    run = cuda_graphs._Recorded(plan, lambda *inputs: ("ran",), backward)
    first, later = torch.ones(8), torch.ones(8)
    seen = [(run(x)[0], set(run.copied)) for x in (first, later, later)]
    assert seen == expected


def test_no_memory_to_record(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(self: Any, inputs: Any, stream: int) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nDetails follow")

    monkeypatch.setattr(cuda_graphs._Recorded, "_record", record)
    run = cuda_graphs._Recorded(plan, lambda *inputs: ("ran",), False)
    x = torch.ones(8)
    assert run(x) == ("ran",)
    with pytest.warns(UserWarning, match="without CUDA graphs: CUDA out of memory. Tried to allocate 2.00 GiB.$"):
        assert run(x) == ("ran",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(x) == ("ran",)
    assert not run.graphs and not run.alive
