"""Call plans run natively, on the CPU, with a small C library as the CUDA driver: steps, operators, views, errors."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from typing import Any

import pytest
import torch

import dynajit
from dynajit import _C
from dynajit.codegen.plan import (
    AllocStep,
    Buffer,
    BufferRef,
    ExternStep,
    FreeStep,
    GpuKernel,
    KernelStep,
    Plan,
    SizeStep,
    Step,
    ViewStep,
)
from dynajit.loopir.size import Size, SizeSymbol
from dynajit.runtime import gpu, native, triton_compiler
from dynajit.runtime.plan_sizes import TooLarge
from dynajit.runtime.triton_worker import Binary

aten = torch.ops.aten
CPU = torch.device("cpu")


@torch.library.custom_op("dynajit_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x + 1, x.numel()


def kernel(symbol: str, make_unaligned: Any = None) -> Any:
    return _C.GpuKernel(b"code", symbol, 0, 32, make_unaligned)


def plan(
    steps: list[Step], outputs: list[Any], inputs: tuple[str, ...] = ("x",), size: int = 8, **buffers: Any
) -> Plan:
    names = {"x", *inputs, *buffers}
    for step in steps:
        if isinstance(step, AllocStep):
            names.add(step.buffer)
        elif isinstance(step, ExternStep):
            names.update(name for name in step.outputs if name)
    made = {name: Buffer(name, *buffers.get(name, ((size,), (1,))), torch.float32, CPU) for name in names}
    info = (GpuKernel("one", "", ("*fp32", "*fp32"), 1), GpuKernel("two", "", ("*fp32", "*fp32"), 1))
    return Plan("test", "", info, made, inputs, {}, tuple(steps), tuple(outputs))


def build(made: Plan, **kernels: Any) -> Any:
    return native.build(made, {"one": kernels.get("one") or kernel("add_one"), "two": kernel("twice")})


def test_kernels_and_memory(driver: ctypes.CDLL) -> None:
    """Memory taken over from a dead buffer, memory that only kernels see, and freed memory."""
    steps: list[Step] = [
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), 8),
        AllocStep("b"),
        KernelStep("two", ("a", "b"), ("b",), 8),
        AllocStep("c", "a"),
        FreeStep(("a",)),
        KernelStep("one", ("b", "c"), ("c",), 8),
        FreeStep(("b",)),
    ]
    run = build(plan(steps, [BufferRef("c"), 3, None]))
    before = driver.fake_launches()
    x = torch.randn(8)
    for _ in range(3):
        result, three, nothing = run(x)
        torch.testing.assert_close(result, (x + 1) * 2 + 1)
        assert (three, nothing) == (3, None)
    assert driver.fake_launches() == before + 9


def test_sizes_are_arguments_of_kernels(driver: ctypes.CDLL) -> None:
    """As many programs as the input has elements: none for none, and no more than 32 bits can count."""
    size = Size({(SizeSymbol("s0", 0, 8),): 1})
    steps = (
        SizeStep("s0", "size", "x"),
        SizeStep("small0", "expression", "small(1000, [s0])"),
        SizeStep("grid0", "expression", "((s0 + 0) // 1)"),
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), "grid0"),
    )
    buffers: Any = {name: Buffer(name, (size,), (1,), torch.float32, CPU) for name in ("x", "a")}  # type: ignore[arg-type]
    info = (GpuKernel("one", "", ("*fp32", "*fp32"), 1, sizes=("s0",)),)
    run: Any = native.build(
        Plan("test", "", info, buffers, ("x",), {}, steps, (BufferRef("a"),)), {"one": kernel("add_size")}
    )
    before = driver.fake_launches()
    for count in (8, 8, 5, 0, 1, 300):
        x = torch.randn(count)
        torch.testing.assert_close(run(x)[0], x + count)
    assert driver.fake_launches() == before + 5
    with pytest.raises(TooLarge):
        run(torch.randn(1000))
    assert driver.fake_launches() == before + 5


def test_kernels_that_start_early(driver: ctypes.CDLL) -> None:
    steps: list[Step] = [
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), 8),
        AllocStep("b"),
        KernelStep("two", ("a", "b"), ("b",), 8),
    ]
    early = _C.GpuKernel(b"code", "add_one", 0, 32, None, 0, True)
    run = build(plan(steps, [BufferRef("b")]), one=early)
    before = driver.fake_early()
    x = torch.randn(8)
    torch.testing.assert_close(run(x)[0], (x + 1) * 2)
    assert driver.fake_early() == before + 1


def test_operators(driver: ctypes.CDLL) -> None:
    """Defaults, keyword arguments, lists of tensors, several results."""
    ref = BufferRef
    steps: list[Step] = [
        ExternStep(aten.cat.default, ([ref("x"), ref("x")],), {}, ("two",)),
        ExternStep(aten.add.Tensor, (ref("x"), ref("x")), {"alpha": 3}, ("sum",)),
        ExternStep(aten.topk.default, (ref("sum"), 2), {}, ("values", "places"), single=False),
        ExternStep(aten.split.Tensor, (ref("two"), 6), {}, ("first", None, "third"), single=False),
    ]
    made = plan(steps, [ref(name) for name in ("two", "sum", "values", "places", "first", "third")])
    made.buffers = {"x": made.buffers["x"]}
    for name in ("two", "sum", "first", "third", "values"):
        made.buffers[name] = Buffer(name, (), (), torch.float32, CPU)
    made.steps = tuple(
        ExternStep(s.target, s.args, s.kwargs, s.outputs, s.single, check=False)
        for s in made.steps  # type: ignore
    )
    x = torch.randn(8)
    two, total, values, places, first, third = build(made)(x)
    torch.testing.assert_close(two, torch.cat([x, x]))
    torch.testing.assert_close(total, 4 * x)
    torch.testing.assert_close((values, places), tuple(torch.topk(4 * x, 2)))
    torch.testing.assert_close((first, third), (two[:6], two[12:]))


def test_views_get_the_strides_they_expect_and_the_user_the_operator_s_own(driver: ctypes.CDLL) -> None:
    steps: list[Step] = [ExternStep(aten.t.default, (BufferRef("x"),), {}, ("y",)), ViewStep("v", "y", 1)]
    square = {"x": ((3, 3), (3, 1)), "y": ((3, 3), (3, 1)), "v": ((8,), (1,))}
    x = torch.randn(3, 3)
    y, v = build(plan(steps, [BufferRef("y"), BufferRef("v")], **square))(x)
    assert y.stride() == (1, 3) and torch.equal(y, x.t())
    assert torch.equal(v, x.t().flatten()[1:])


def test_views_and_aliases(driver: ctypes.CDLL) -> None:
    made = plan([ViewStep("v", "x", 2)], [BufferRef("v"), BufferRef("x")], v=((3,), (2,)))
    x = torch.randn(8)
    view, same = build(made)(x)
    assert same is x and view._base is x and view._is_view()
    torch.testing.assert_close(view, x[2:8:2])


def test_functions_that_are_no_operators(driver: ctypes.CDLL) -> None:
    def function(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, float]:
        return x * factor, factor + 1

    steps: list[Step] = [ExternStep(function, (BufferRef("x"), BufferRef("n")), {}, ("y", "m"), single=False)]
    made = plan(steps, [BufferRef("y"), BufferRef("m")], inputs=("x", "n"))
    made.buffers.pop("n")
    made.buffers.pop("m")
    x = torch.randn(8)
    y, m = build(made)(x, 2.5)
    assert m == 3.5 and torch.equal(y, x * 2.5)


def test_unaligned_addresses_get_another_kernel(driver: ctypes.CDLL) -> None:
    made_for: list[str] = []

    def other() -> tuple[bytes, str, int, int]:
        made_for.append("unaligned")
        return b"code", "twice", 0, 32

    steps: list[Step] = [AllocStep("a"), KernelStep("one", ("x", "a"), ("a",), 8)]
    run = build(plan(steps, [BufferRef("a")]), one=kernel("add_one", other))
    base = torch.randn(16)
    torch.testing.assert_close(run(base[4:12])[0], base[4:12] + 1)
    for _ in range(2):
        torch.testing.assert_close(run(base[1:9])[0], base[1:9] * 2)
    assert made_for == ["unaligned"]


def test_errors(driver: ctypes.CDLL) -> None:
    """Torch's own keep their type and text; the program goes on."""
    steps: list[Step] = [ExternStep(aten.index_select.default, (BufferRef("x"), 0, BufferRef("i")), {}, ("y",))]
    run = build(plan(steps, [BufferRef("y")], inputs=("x", "i")))
    with pytest.raises(IndexError, match="out of range"):
        run(torch.randn(8), torch.tensor([9]))
    with pytest.raises(TypeError, match="takes 2 inputs, not 1"):
        run(torch.randn(8))

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        build(plan([ExternStep(broken, (BufferRef("x"),), {}, ("y",))], [BufferRef("y")]))(torch.randn(8))
    with pytest.raises(RuntimeError, match="disagree about a result's shape"):
        steps = [ExternStep(aten.sin.default, (BufferRef("x"),), {}, ("y",)), ViewStep("v", "y", 0)]
        build(plan(steps, [BufferRef("v")], v=((8,), (1,))))(torch.randn(3))


def test_kernels_that_do_not_load(driver: ctypes.CDLL) -> None:
    with pytest.raises(RuntimeError, match="no binary for gpu"):
        _C.GpuKernel(b"bad code", "add_one", 0, 32)
    with pytest.raises(RuntimeError, match="finding a kernel"):
        kernel("unknown")
    with pytest.raises(RuntimeError, match="no CUDA driver"):
        _C.open_cuda_driver("/nonexistent/libcuda.so")


def test_plans_whose_kernels_do_not_load_say_so(driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the error for which a graph runs operator by operator."""
    _C.open_cuda_driver(driver._name)
    bad = Binary(b"bad code", "add_one", 0, 32)
    monkeypatch.setattr(triton_compiler, "compile_kernels", lambda kernels, level: [bad for _ in kernels])
    monkeypatch.setattr(gpu, "capability", lambda device: 90)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    with pytest.raises(triton_compiler.TritonError, match=r"can't be loaded: CUDA error .* no binary for gpu"):
        gpu.load_kernels(plan([], [BufferRef("x")]))


def test_an_error_of_the_gpu_is_raised_and_nothing_is_kept(driver: ctypes.CDLL) -> None:
    """As after an illegal access in another kernel, which every call after it is told of."""
    steps: list[Step] = [AllocStep("a"), KernelStep("one", ("x", "a"), ("a",), 8)]
    run = build(plan(steps, [BufferRef("a")]))
    x = torch.randn(8)
    references = sys.getrefcount(x)
    driver.fake_failure(700)
    try:
        for _ in range(3):
            with pytest.raises(RuntimeError, match=r"launching a kernel: an illegal memory access .*\(700\)"):
                run(x)
    finally:
        driver.fake_failure(0)
    assert sys.getrefcount(x) == references
    torch.testing.assert_close(run(x)[0], x + 1)


def test_malformed_plans_are_refused() -> None:
    for steps in (
        [(0, 5, True)],
        [(9,)],
        [(2, "kernel", (), (), 1)],
        [(3, "aten::nothing", "", [], [], (), (), False)],
    ):
        with pytest.raises((ValueError, RuntimeError)):
            _C.PlanExecutor(CPU, 1, [None], [], steps, [])


def test_threads_share_a_plan(driver: ctypes.CDLL) -> None:
    steps: list[Step] = [
        AllocStep("a"),
        KernelStep("one", ("x", "a"), ("a",), 8),
        ExternStep(aten.mul.Tensor, (BufferRef("a"), BufferRef("a")), {}, ("b",)),
    ]
    run = build(plan(steps, [BufferRef("b")]))
    wrong: list[float] = []

    def work(value: float) -> None:
        x = torch.full((8,), value)
        wrong.extend(value for _ in range(200) if not torch.equal(run(x)[0], (x + 1) ** 2))

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_is_leaked(driver: ctypes.CDLL) -> None:
    import gc
    import weakref

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    steps: list[Step] = [ExternStep(function, (BufferRef("x"),), {}, ("y",))]
    run = build(plan(steps, [BufferRef("y"), "text"]))
    run.me = run
    x = torch.randn(8)
    run(x)
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None


def test_numbers_among_results_that_nothing_reads_need_no_python(driver: ctypes.CDLL) -> None:
    """As those of torch's attention."""
    steps: list[Step] = [ExternStep(torch.ops.dynajit_tests.counted.default, (BufferRef("x"),), {}, ("y", "n"), False)]
    for outputs in (["y"], ["y", "n"]):
        made = plan(steps, [BufferRef(name) for name in outputs])
        made.buffers.pop("n")
        writer = native._NativeWriter(made, {})
        assert (writer.step(steps[0])[0] == native._EXTERN) == (outputs == ["y"])
        x = torch.randn(8)
        found = build(made)(x)
        torch.testing.assert_close(found[0], x + 1)
        assert found[1:] == ((8,) if len(outputs) > 1 else ())


def test_a_kernel_writes_no_memory_that_is_shared_until_written():
    """torch's lazy clones: whoever writes to one of two tensors gets memory of its own."""
    double = dynajit.compile(lambda x, y: x.mul_(2) + y)
    for _ in range(3):
        x = torch.ones(300, 300)
        clone = torch._lazy_clone(x)
        result = double(x, x.view(-1)[:300])
        assert clone.eq(1).all() and x.eq(2).all() and result.eq(4).all()
        double(clone, x)
        assert clone.eq(2).all() and x.eq(2).all()
