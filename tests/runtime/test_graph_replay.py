"""Recorded plans, with a small C library as the CUDA driver: addresses that change, copies, outputs that are kept."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dynajit import _C
from dynajit.codegen.plan import (
    AllocStep,
    Buffer,
    BufferRef,
    ExternStep,
    GpuKernel,
    KernelStep,
    NumberStep,
    Plan,
    SizeStep,
    Step,
    ViewStep,
)
from dynajit.loopir.size import Size, SizeSymbol
from dynajit.report.explain import ExplainReport
from dynajit.report.records import CodeRecord, CompileRecord, GraphRecord
from dynajit.runtime import cuda_graphs, native

CPU = torch.device("cpu")


@pytest.fixture
def executor(driver: ctypes.CDLL) -> Iterator[Any]:
    """x + 1, and a view of it; x itself; 2 x. (Memory between kernels would not outlive the recording here.)"""
    steps: list[Step] = [
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), 8),
        AllocStep("b"),
        KernelStep("two", ("x", "b"), ("b",), 8),
        ViewStep("v", "a", 2),
    ]
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, CPU) for name in "xab"}
    buffers["v"] = Buffer("v", (3,), (2,), torch.float32, CPU)
    info = tuple(GpuKernel(name, "", ("*fp32", "*fp32"), 1) for name in ("one", "two"))
    outputs = (BufferRef("a"), BufferRef("v"), BufferRef("x"), 5, BufferRef("b"))
    plan = Plan("test", "", info, buffers, ("x",), {}, tuple(steps), outputs)
    kernels = {
        "one": _C.GpuKernel(b"code", "add_one", 0, 32),
        "two": _C.GpuKernel(b"code", "twice", 0, 32),
    }
    yield native.build(plan, kernels)


def recorded(driver: ctypes.CDLL, executor: Any, x: torch.Tensor, static: Any = None, mutated: Any = ()) -> Any:
    driver.fake_capture(1)
    try:
        replay = _C.GraphReplay(executor, (x,), (static,), mutated)
    finally:
        driver.fake_capture(0)
    replay.ready(1)
    return replay


def test_addresses_are_put_into_the_nodes(driver: ctypes.CDLL, executor: Any) -> None:
    x = torch.randn(8)
    replay = recorded(driver, executor, x)
    assert replay.patched == (2, 0)
    kept = []
    for _ in range(5):
        x = torch.randn(8)
        a, v, same, five, b = replay(x)
        assert same is x and five == 5
        assert v.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
        kept.append((a, v, b, x))
    for a, v, b, x in kept:
        torch.testing.assert_close(a, x + 1)
        torch.testing.assert_close(v, (x + 1)[2:8:2])
        torch.testing.assert_close(b, x * 2)
    before = driver.fake_updates()
    replay(x)
    replay(x)
    assert driver.fake_updates() - before <= 4


def test_numbers_are_put_into_the_nodes(driver: ctypes.CDLL) -> None:
    """Floats that vary, what is computed of them, and tensors that hold one number."""
    bits = Size({(SizeSymbol("w1", -5, 0),): 1})
    steps: list[Step] = [
        SizeStep("zf0", "float", "rate"),
        SizeStep("w0", "expression", "zf0*0.5"),
        SizeStep("w1", "expression", "float_bits(w0)"),
        NumberStep("half", bits),
        AllocStep("a"),
        KernelStep("scale", ("x", "a", "half"), ("a",), 8),
        NumberStep("count", "n"),
        AllocStep("b"),
        KernelStep("scale", ("x", "b", "count"), ("b",), 8),
    ]
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, CPU) for name in "xab"}
    buffers["n"] = Buffer("n", (), (), torch.float32, CPU)
    buffers |= {name: Buffer(name, (), (), torch.int64, CPU) for name in ("half", "count")}
    info = (GpuKernel("scale", "", ("*fp32", "*fp32", "i64"), 1),)
    outputs = (BufferRef("a"), BufferRef("b"))
    plan = Plan("test", "", info, buffers, ("x", "rate", "n"), {}, tuple(steps), outputs)
    assert cuda_graphs.obstacle(plan) == ""
    executor = native.build(plan, {"scale": _C.GpuKernel(b"code", "scale", 0, 32)})
    x, n = torch.randn(8), torch.tensor(3.0)
    driver.fake_capture(1)
    try:
        replay = _C.GraphReplay(executor, (x, 1.0, n), (None, None, None), ())
    finally:
        driver.fake_capture(0)
    replay.ready(1)
    for rate, count in ((1.0, 3.0), (4.0, 0.0), (0.0, -2.0), (1.5, 1.5)):
        x = torch.randn(8)
        n.fill_(count)
        for call in (replay, executor):
            a, b = call(x, rate, n)
            torch.testing.assert_close(a, x * (rate / 2))
            torch.testing.assert_close(b, x * count)
    with pytest.raises(TypeError, match="float"):
        replay(x, 1, n)


def test_copied_inputs(driver: ctypes.CDLL, executor: Any) -> None:
    """The graph reads a copy of its own, made by a node in front; written inputs are copied back."""
    x = torch.randn(8)
    static = torch.zeros(8)
    replay = recorded(driver, executor, x, static, (0,))
    assert replay.patched[1] == 2
    for _ in range(3):
        x = torch.randn(8)
        expected = x.clone()
        torch.testing.assert_close(replay(x)[0], x + 1)
        assert torch.equal(static, expected) and torch.equal(x, expected)


def test_what_is_kept_for_a_backward_graph_stays_in_the_graph(driver: ctypes.CDLL, executor: Any) -> None:
    """Its addresses never change, so the graph does not run again while somebody holds it."""
    driver.fake_capture(1)
    try:
        replay = _C.GraphReplay(executor, (torch.randn(8),), (None,), (), 4)
    finally:
        driver.fake_capture(0)
    replay.ready(1)
    first = replay(torch.randn(8))
    assert replay.busy and replay(torch.randn(8)) is NotImplemented
    address = first[4].data_ptr()
    first = first[:4]
    assert not replay.busy
    x = torch.randn(8)
    second = replay(x)
    assert second[4].data_ptr() == address and second[0].data_ptr() != first[0].data_ptr()
    torch.testing.assert_close(second[4], x * 2)
    torch.testing.assert_close(second[0], x + 1)


def test_what_does_not_fit_is_left_to_the_caller(driver: ctypes.CDLL, executor: Any) -> None:
    base = torch.randn(32)
    replay = recorded(driver, executor, base[:8])
    assert replay(base[1:9]) is NotImplemented  # kernels were chosen for multiples of 16
    assert replay(base[4:12]) is not NotImplemented
    with pytest.raises(RuntimeError, match="another number of inputs"):
        replay(base[:8], base[:8])


def test_nothing_is_recorded_outside_of_a_capture(driver: ctypes.CDLL, executor: Any) -> None:
    with pytest.raises(RuntimeError, match="not being captured"):
        _C.GraphReplay(executor, (torch.randn(8),), (None,), ())


def test_obstacles(executor: Any) -> None:
    """What can be seen to be no matter for a graph."""
    buffers = {
        "x": Buffer("x", (), (), torch.float32, CPU),
        "y": Buffer("y", (), (), torch.float32, torch.device("meta")),
    }

    def plan(
        inputs: tuple[str, ...], names: tuple[str, ...], steps: tuple[Any, ...], outputs: tuple[Any, ...] = ()
    ) -> Plan:
        return Plan("test", "", (), {name: buffers[name] for name in names}, inputs, {}, steps, outputs)

    assert "y is on meta" in cuda_graphs.obstacle(plan(("x",), ("x", "y"), ()))
    assert "n is no tensor" in cuda_graphs.obstacle(plan(("x", "n"), ("x",), (), (BufferRef("n"),)))
    assert cuda_graphs.obstacle(plan(("x", "n"), ("x",), (AllocStep("x"),))) == ""  # nothing takes it
    assert "nothing to launch" in cuda_graphs.obstacle(plan(("x",), ("x",), ()))
    assert cuda_graphs.obstacle(plan(("x",), ("x",), (AllocStep("x"),))) == ""


def test_inputs_that_python_reads_are_not_put_into_the_nodes(driver: ctypes.CDLL) -> None:
    """What a function of Python's launches hides its addresses, as what an operator launches does."""
    steps: list[Step] = [
        ExternStep(lambda x: x.clone(), (BufferRef("x"),), {}, ("c",)),
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), 8),
    ]
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, CPU) for name in "xac"}
    info = (GpuKernel("one", "", ("*fp32", "*fp32"), 1),)
    plan = Plan("test", "", info, buffers, ("x",), {}, tuple(steps), (BufferRef("a"),))
    x = torch.randn(8)
    replay = recorded(driver, native.build(plan, {"one": _C.GpuKernel(b"code", "add_one", 0, 32)}), x)
    torch.testing.assert_close(replay(x)[0], x + 1)
    assert replay(torch.randn(8)) is NotImplemented


def test_what_operators_give_is_lent(driver: ctypes.CDLL) -> None:
    """In the graph's memory, without a copy, as long as nobody holds it at the next call."""
    steps: list[Step] = [
        ExternStep(lambda x: x.clone(), (BufferRef("x"),), {}, ("c",)),
        ViewStep("v", "c", 2),
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), 8),
    ]
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, CPU) for name in "xac"}
    buffers["v"] = Buffer("v", (3,), (1,), torch.float32, CPU)
    info = (GpuKernel("one", "", ("*fp32", "*fp32"), 1),)
    plan = Plan("test", "", info, buffers, ("x",), {}, tuple(steps), tuple(map(BufferRef, "acv")))
    executor = native.build(plan, {"one": _C.GpuKernel(b"code", "add_one", 0, 32)})
    x = torch.randn(8)
    copies = {}
    for lends in (False, True):
        driver.fake_capture(1)
        try:
            replay = _C.GraphReplay(executor, (x,), (None,), (), -1, lends)
        finally:
            driver.fake_capture(0)
        replay.ready(1)
        copies[lends] = replay.patched[1]
        a, c, v = replay(x)
        torch.testing.assert_close(a, x + 1)
        if lends:  # else what is copied has not outlived the recording here
            torch.testing.assert_close((c, v), (x, x[2:5]))
        assert replay.busy is lends and (replay(x) is NotImplemented) is lends
        address = c.data_ptr()
        del c
        assert replay.busy is lends  # its view
        del v
        assert not replay.busy and (replay(x)[1].data_ptr() == address) is lends
    assert copies == {False: 1, True: 0}


def test_copies_do_not_wait_for_one_another(driver: ctypes.CDLL) -> None:
    """Those of inputs in front, and those of results behind all else; kernels wait for all in front."""
    steps: list[Step] = [
        *(ExternStep(lambda x: x.clone(), (BufferRef(name),), {}, (f"{name}_copy",)) for name in "xyz"),
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), 8),
    ]
    names = [*"xyz", "x_copy", "y_copy", "z_copy", "a"]
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, CPU) for name in names}
    info = (GpuKernel("one", "", ("*fp32", "*fp32"), 1),)
    plan = Plan("test", "", info, buffers, tuple("xyz"), {}, tuple(steps), tuple(map(BufferRef, names[3:])))
    executor = native.build(plan, {"one": _C.GpuKernel(b"code", "add_one", 0, 32)})
    given = tuple(torch.randn(8) for _ in range(3))
    statics = tuple(torch.zeros(8) for _ in range(3))
    driver.fake_capture(1)
    try:
        replay = _C.GraphReplay(executor, given, statics, (2,))
    finally:
        driver.fake_capture(0)
    assert replay.patched[1] == driver.fake_nodes() - 1 == 7
    waits = [[driver.fake_waits(node, n) for n in range(4)] for node in range(8)]
    nothing = [-1] * 4
    first, kernel, back, results = [nothing] * 3, [0, 1, 2, -1], [3, -1, -1, -1], [[4, -1, -1, -1]] * 3
    assert waits == [*first, kernel, back, *results] and driver.fake_latest() == 3
    replay.ready(1)
    again = tuple(torch.randn(8) for _ in range(3))
    torch.testing.assert_close(replay(*again)[3], again[0] + 1)
    assert all(map(torch.equal, statics, again))


def test_memory_that_other_streams_use_is_lost(driver: ctypes.CDLL) -> None:
    """Nobody holds it, and still it may be in use: the graph is not run again."""
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, CPU) for name in "xac"}
    info = (GpuKernel("one", "", ("*fp32", "*fp32"), 1),)
    steps: list[Step] = [
        ExternStep(lambda x: x.clone(), (BufferRef("x"),), {}, ("c",)),
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), 8),
    ]
    plan = Plan("test", "", info, buffers, ("x",), {}, tuple(steps), (BufferRef("a"), BufferRef("c")))
    executor = native.build(plan, {"one": _C.GpuKernel(b"code", "add_one", 0, 32)})
    x = torch.randn(8)
    for use in ("record_stream", "resize", "other"):
        for returns, lends in ((-1, True), (1, False)):
            driver.fake_capture(1)
            try:
                replay = _C.GraphReplay(executor, (x,), (None,), (), returns, lends)
            finally:
                driver.fake_capture(0)
            replay.ready(1)
            a, c = replay(x)
            if use == "resize":
                c.untyped_storage().resize_(4096)
            else:  # CPU tensors can't: the operator raises when it has been seen
                with pytest.raises(NotImplementedError):
                    (c[2:] if use == "record_stream" else a).record_stream(torch.Stream(device="cpu"))
            del c
            assert replay.lost is (use != "other")
            assert use == "resize" or not replay.busy  # that Python has looked at a storage counts as holding it
            assert (replay(x) is NotImplemented) is replay.lost


def test_copies_are_counted() -> None:
    """Those of a plan, before it is recorded: `explain` shows them."""
    add = torch.ops.aten.add.Tensor
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, CPU) for name in "xywabcdv"}
    steps: list[Step] = [
        ViewStep("v", "x", 0),
        ExternStep(add, (BufferRef("v"), BufferRef("w")), {}, ("a",)),
        AllocStep("b"),
        KernelStep("one", ("y", "b"), ("b",), 8),
        AllocStep("c"),
        KernelStep("one", ("y", "c"), ("c",), 8),
        ExternStep(add, (BufferRef("c"), BufferRef("c")), {}, ("d",)),
    ]
    outputs = (BufferRef("a"), BufferRef("b"), BufferRef("c"), BufferRef("y"), None, BufferRef("d"))
    plan = Plan("test", "", (), buffers, ("x", "y", "w"), {}, tuple(steps), outputs, returns=5)
    moved = ["the input x (32 bytes), if it lies elsewhere", "the input w (32 bytes), if it lies elsewhere"]
    assert cuda_graphs.copies(plan) == ["the result a (32 bytes)", "the result c (32 bytes)", *moved]
    backward = cuda_graphs.copies(dataclasses.replace(plan, returns=None), backward=True)
    assert backward == [*(f"the gradient {name} (32 bytes), if it is still held by then" for name in "acd"), *moved]
    code = CodeRecord("f", "forward", "", "triton", copies=moved)
    record = CompileRecord("0/0", "f", "f.py", 1, graphs=[GraphRecord("0/0", 1, None, code=[code])])
    assert "copied at each replay of the recorded graph: the input x" in str(ExplainReport([record]))
