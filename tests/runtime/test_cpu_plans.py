"""Call plans for CPUs by hand: each kind of step, strides, errors."""

from __future__ import annotations

import pytest
import torch

from dynajit.codegen.plan import (
    AllocStep,
    Buffer,
    BufferRef,
    ExternStep,
    FreeStep,
    KernelInfo,
    KernelStep,
    Plan,
    SizeStep,
    ViewStep,
)
from dynajit.runtime import cpu

aten = torch.ops.aten

SOURCE = """
void twice(const float *x, float *out) {
#pragma omp parallel for
    for (long i = 0; i < 6; i++) out[i] = 2 * x[i];
}
int must_be_small(const float *x) { return x[0] > 10 ? 1 : x[0] > 5 ? 2 : 0; }
"""
TWICE = KernelInfo("twice", 2)
SMALL = KernelInfo("must_be_small", 1, checked=True)


def buffer(name: str, *shape: int, stride: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32) -> Buffer:
    return Buffer(name, shape, stride or torch.empty(shape).stride(), dtype, torch.device("cpu"))


def plan(buffers: list[Buffer], inputs: tuple[str, ...], steps: tuple, outputs: tuple, **more) -> Plan:
    kernels = tuple(k for k in (TWICE, SMALL) if any(isinstance(s, KernelStep) and s.kernel == k.name for s in steps))
    table = {item.name: item for item in buffers}
    source = SOURCE if kernels else ""
    return Plan("test", source, kernels, table, inputs, more.pop("constants", {}), steps, outputs, **more)


def refuse(x: torch.Tensor) -> None:
    """What runs where a kernel refused its input."""
    raise ValueError(f"{x.flatten()[0]:.0f} is too large")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(6.0).view(2, 3)


def test_kernel_extern_view(x: torch.Tensor) -> None:
    call = cpu.build(
        plan(
            [buffer("x", 2, 3), buffer("t", 2, 3), buffer("t2", 2, 3), buffer("v", 3, 2, stride=(1, 3))],
            ("x",),
            (
                AllocStep("t"),
                KernelStep("twice", ("x", "t"), ("t",)),
                ExternStep(aten.add.Tensor, (BufferRef("t"), 1), {"alpha": 3}, ("t2",)),
                FreeStep(("t",)),
                ViewStep("v", "t2", 0),
            ),
            (BufferRef("t2"), BufferRef("v"), BufferRef("t2"), None, 3),
        )
    )
    for _ in range(2):
        t2, v, again, nothing, three = call(x)
        torch.testing.assert_close(t2, x * 2 + 3)
        torch.testing.assert_close(v, t2.t())
        assert v.untyped_storage().data_ptr() == t2.untyped_storage().data_ptr()
        assert again is t2
        assert (nothing, three) == (None, 3)


def test_input_with_a_storage_offset() -> None:
    base = torch.arange(10.0)
    call = cpu.build(
        plan(
            [buffer("x", 6), buffer("t", 6), buffer("v", 2)],
            ("x",),
            (AllocStep("t"), KernelStep("twice", ("x", "t"), ("t",)), ViewStep("v", "x", 1)),
            (BufferRef("t"), BufferRef("v")),
        )
    )
    for offset in (0, 3):
        twice, view = call(base[offset : offset + 6])
        torch.testing.assert_close(twice, base[offset : offset + 6] * 2)
        torch.testing.assert_close(view, base[offset + 1 : offset + 3])


@pytest.mark.parametrize("seen", [False, True], ids=["kernels only", "as a tensor"])
def test_reused_memory(x: torch.Tensor, seen: bool) -> None:
    steps = [
        AllocStep("a"),
        KernelStep("twice", ("x", "a"), ("a",)),
        AllocStep("b", reuse="a"),
        FreeStep(("a",)),
        KernelStep("twice", ("x", "b"), ("b",)),
        AllocStep("c"),
        KernelStep("twice", ("b", "c"), ("c",)),
    ]
    outputs = (BufferRef("c"), BufferRef("b")) if seen else (BufferRef("c"),)
    call = cpu.build(
        plan([buffer("x", 2, 3), buffer("a", 2, 3), buffer("b", 6), buffer("c", 6)], ("x",), tuple(steps), outputs)
    )
    got = call(x)
    torch.testing.assert_close(got[0], x.view(-1) * 4)
    if seen:
        torch.testing.assert_close(got[1], x.view(-1) * 2)


def test_memory_reused_as_another_dtype(x: torch.Tensor) -> None:
    call = cpu.build(
        plan(
            [buffer("x", 2, 3), buffer("a", 6), buffer("b", 3, dtype=torch.float64)],
            ("x",),
            (
                AllocStep("a"),
                KernelStep("twice", ("x", "a"), ("a",)),
                AllocStep("b", reuse="a"),
                ExternStep(aten.fill_.Scalar, (BufferRef("b"), 0.5), {}, (None,)),
            ),
            (BufferRef("b"),),
        )
    )
    torch.testing.assert_close(call(x)[0], torch.full((3,), 0.5, dtype=torch.float64))


def test_strides_that_the_operator_chose_are_corrected(x: torch.Tensor) -> None:
    """For what is kept for the backward graph; the user gets what the operator gave."""
    step = ExternStep(aten.t.default, (BufferRef("x"),), {}, ("t",))
    made = plan([buffer("x", 2, 3), buffer("t", 3, 2)], ("x",), (step,), (BufferRef("t"), BufferRef("t")))
    made.returns = 1
    given, kept = cpu.build(made)(x)
    assert (given.stride(), kept.stride()) == ((1, 3), (2, 1))
    torch.testing.assert_close(given, x.t())
    torch.testing.assert_close(kept, x.t())


def test_several_results_and_constants(x: torch.Tensor) -> None:
    call = cpu.build(
        plan(
            [buffer("x", 2, 3), buffer("w", 3), buffer("a", 2), buffer("i", 2, dtype=torch.int64), buffer("s", 2, 3)],
            ("x",),
            (
                ExternStep(aten.max.dim, (BufferRef("x"), 1), {}, ("a", "i"), single=False),
                ExternStep(aten.max.dim, (BufferRef("x"), 1), {}, (None, "i"), single=False),
                ExternStep(aten.mul.Tensor, (BufferRef("x"), BufferRef("w")), {}, ("s",)),
                ExternStep(aten.cat.default, ([BufferRef("x"), BufferRef("s")], 1), {}, ("c",)),
            ),
            (BufferRef("a"), BufferRef("i"), BufferRef("s"), BufferRef("c")),
            constants={"w": torch.tensor([1.0, 10.0, 100.0])},
        )
    )
    a, i, s, c = call(x)
    torch.testing.assert_close(a, x.max(1).values)
    torch.testing.assert_close(i, x.max(1).indices)
    torch.testing.assert_close(s, x * torch.tensor([1.0, 10.0, 100.0]))
    torch.testing.assert_close(c, torch.cat([x, s], 1))


def test_arguments_of_all_kinds() -> None:
    seen = []

    def take(*args, **kwargs):
        seen.append((args, kwargs))

    values = (
        1,
        2.5,
        float("inf"),
        float("nan"),
        -0.0,
        1j,
        "text",
        None,
        True,
        (1, (2,)),
        [3],
        torch.float32,
        ...,
        {"k": 1},
    )
    step = ExternStep(take, values, {"device": torch.device("cpu"), "dims": [1, 2]}, (None,))
    cpu.build(plan([], (), (step,), ()))()
    args, kwargs = seen[0]
    assert repr(args) == repr(values)
    assert [type(arg) for arg in args] == [type(value) for value in values]
    assert kwargs == {"device": torch.device("cpu"), "dims": [1, 2]}


def test_checked_kernel(x: torch.Tensor) -> None:
    step = KernelStep("must_be_small", ("x",), ())
    call = cpu.build(plan([buffer("x", 2, 3)], ("x",), (step,), (), eager=refuse))
    assert call(x) == ()
    with pytest.raises(ValueError, match=r"^6 is too large"):
        call(x + 6)


def test_kernels_of_very_many_arguments(x: torch.Tensor) -> None:
    """The addresses in an array; so are sizes, which come after them."""
    names = [f"y{n}" for n in range(cpu.MAX_ARGUMENTS)]
    parameters = ", ".join(f"float *{name}" for name in names)
    source = f"""
int tell(const float *x, {parameters}, long s0) {{
    {" ".join(f"{name}[0] = x[0] + {n} * s0;" for n, name in enumerate(names))}
    return x[0] > 5;
}}
void all(const float *x, {parameters}) {{
    {" ".join(f"{name}[0] += x[1];" for name in names)}
}}
"""
    arity = len(names) + 1
    kernels = (KernelInfo("tell", arity, checked=True, sizes=("s0",)), KernelInfo("all", arity))
    steps = (
        SizeStep("s0", "size", "x", 0),
        *map(AllocStep, names),
        KernelStep("tell", ("x", *names), tuple(names)),
        KernelStep("all", ("x", *names), tuple(names)),
    )
    table = {item.name: item for item in (buffer("x", 2, 3), *(buffer(name, 1) for name in names))}
    outputs = tuple(map(BufferRef, names))
    call = cpu.build(Plan("test", source, kernels, table, ("x",), {}, steps, outputs, eager=refuse))
    assert [int(value) for value in call(x + 1)] == [3 + 2 * n for n in range(len(names))]
    with pytest.raises(ValueError, match=r"^6 is too large"):
        call(x + 6)
