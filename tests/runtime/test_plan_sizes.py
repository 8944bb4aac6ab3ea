"""Plans of symbolic sizes run natively: sizes are found anew at each call, by each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit import _C, testing
from dynajit.codegen.plan import AllocStep, Buffer, BufferRef, ExternStep, Plan, SizeStep, ViewStep
from dynajit.loopir.size import RuntimeFloat, Size, SizeSymbol
from dynajit.runtime import native

CPU = torch.device("cpu")
aten = torch.ops.aten


def softened(x: torch.Tensor, n: int) -> Any:
    halves = torch.softmax(x.reshape(-1, x.shape[1] // 2) * n, -1)
    product = torch.mm(halves, halves.t())
    return torch.cat([product, product])[1:].sum(0), x.shape[0] + n, halves.view(2 * x.shape[0], -1), x[:, 2:] + 1


def reshaped(x: torch.Tensor, n: int) -> Any:
    wide = torch.nn.functional.pad(x.new_zeros(x.shape[1], n), (0, x.shape[0]))
    return wide + 1, torch.arange(n + x.shape[0]) * 2, x.expand(n, *x.shape).transpose(1, 2).flatten(1).cumsum(1)


def test_floats_and_sizes_as_operators_take_them() -> None:
    """Of complex numbers and by names of scalars: operators of torch's, with numbers in the place of tensors too."""

    def fn(z: torch.Tensor, rate: float, n: int) -> Any:
        return z * rate + n, torch.special.polygamma(1, z.real + rate), z.sum() * (rate * 0.5), rate * 2, z.real * rate

    compiled = dynajit.compile(fn, fullgraph=True)
    for rate, n in ((0.5, 3), (-2.0, 4), (float("inf"), 5), (0.25, 6)):
        z = torch.randn(n, dtype=torch.complex64)
        torch.testing.assert_close(compiled(z, rate, n), fn(z, rate, n), equal_nan=True)
    assert compiled(z, 1.0, 6)[3] == 2.0


@pytest.mark.parametrize("fn", [softened, reshaped])
def test_sizes_that_change(fn: Callable[..., Any]) -> None:
    compiled = dynajit.compile(fn, fullgraph=True)
    for rows, columns, n in [
        (4, 8, 3),
        (5, 8, 4),
        (5, 12, 5),
        (7, 6, 2),
        (2, 8, 9),
        (64, 32, 2),
        (3, 10, 1),
        (0, 8, 3),
    ]:
        x = torch.randn(rows, columns)
        if rows == 0 and fn is softened:
            continue  # eager can't tell what -1 stands for
        testing.compare(compiled(x, n), fn(x, n), exact=False)
        testing.compare(compiled(x, n), fn(x, n), exact=False)


def test_gradients() -> None:
    compiled = dynajit.compile(softened, dynamic=True)
    for rows, columns in [(4, 8), (5, 12), (9, 6), (4, 8)]:
        inputs = [torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
        for x, fn in zip(inputs, (compiled, softened), strict=True):
            x.requires_grad_()
            result = fn(x, 3)
            (result[0].sum() + (result[2] * result[2]).sum() + result[3].sum()).backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def test_threads_have_sizes_of_their_own() -> None:
    compiled = dynajit.compile(softened, dynamic=True)
    compiled(torch.randn(4, 8), 2)
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(30):
            x = torch.randn(2 + (number + turn) % 7, 4 + 2 * ((number * turn) % 5))
            for got, expected in zip(compiled(x, 2 + turn), softened(x, 2 + turn), strict=True):
                if not (got == expected if isinstance(got, int) else torch.allclose(got, expected, atol=1e-5)):
                    wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def sized_plan(steps: list[Any], outputs: list[Any], *extra: Buffer) -> Plan:
    s0 = Size({(SizeSymbol("s0", 0, 4),): 1})
    x, y = (Buffer(name, (s0, 3), (3, 1), torch.float32, CPU) for name in "xy")  # type: ignore[arg-type]
    buffers = {buffer.name: buffer for buffer in (x, y, *extra)}
    known = [SizeStep("s0", "size", "x", 0), SizeStep("z0", "expression", "s0//2")]
    return Plan("sized", "", (), buffers, ("x",), {}, (*known, *steps), tuple(outputs))


def test_views_calls_and_numbers() -> None:
    s0, z0 = (Size({(SizeSymbol(name, 0, 4),): 1}) for name in ("s0", "z0"))
    view = Buffer("v", (z0, 3), (6, 1), torch.float32, CPU)  # type: ignore[arg-type]
    steps = [
        ExternStep(aten.new_full.default, (BufferRef("x"), [s0, 3], z0), {}, ("y",)),
        ViewStep("v", "y", 3),
    ]
    call = native.build(sized_plan(steps, [BufferRef("y"), BufferRef("v"), 2 * s0 + z0, None], view), {})
    for rows in (4, 6, 2, 4):
        y, v, number, nothing = call(torch.zeros(rows, 3))
        torch.testing.assert_close(y, torch.full((rows, 3), float(rows // 2)))
        assert (tuple(v.shape), v.stride(), v.storage_offset()) == ((rows // 2, 3), (6, 1), 3)
        assert (number, nothing) == (2 * rows + rows // 2, None)


def test_an_operator_that_gives_another_shape_is_seen() -> None:
    call = native.build(
        sized_plan([ExternStep(aten.new_ones.default, (BufferRef("x"), [2, 3]), {}, ("y",)), AllocStep("w"),
                    ViewStep("v", "y", 0)], [BufferRef("v")],
                   *(Buffer(name, (2, 3), (3, 1), torch.float32, CPU) for name in "vw")), {},
    )  # fmt: skip
    call(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="disagree"):
        call(torch.zeros(3, 3))
    call(torch.zeros(2, 3))


def test_inputs_that_tell_no_size() -> None:
    call = native.build(sized_plan([], [None]), {})
    for wrong in (3, torch.tensor(1.0)):
        with pytest.raises(TypeError):
            call(wrong)
    assert call(torch.zeros(2, 3)) == (None,)


def test_what_results_tell() -> None:
    """A size of a result, a number, a float and what is computed of them; layouts are put right once they are known."""
    u0, u1, w0, v0 = (Size({(SizeSymbol(name, 0, 4),): 1}) for name in ("u0", "u1", "w0", "v0"))
    float_bits = RuntimeFloat("f0", w0)
    kept = Buffer("kept", (u0, 2), (1, u0), torch.int64, CPU)  # type: ignore[arg-type]
    seen = Buffer("seen", (u0,), (1,), torch.int64, CPU)  # type: ignore[arg-type]
    grown = Buffer("grown", (v0, 3), (3, 1), torch.float32, CPU)  # type: ignore[arg-type]
    said: list[Any] = []

    def say(sizes: list[int], number: float, where: slice) -> None:
        said.append((sizes, number, where))

    steps = [
        ExternStep(aten.nonzero.default, (BufferRef("x"),), {}, ("kept",)),
        SizeStep("u0", "size", "kept", 0),
        ViewStep("seen", "kept", u0),  # type: ignore[arg-type]
        ExternStep(aten.sum.default, (BufferRef("x"),), {}, ("total",)),
        ExternStep(aten._local_scalar_dense.default, (BufferRef("total"),), {}, ("f0",)),
        SizeStep("f0", "float", "f0"),
        SizeStep("w0", "expression", "float_bits(f0)"),
        ExternStep(aten.sym_size.int, (BufferRef("kept"), 0), {}, ("u1",)),
        SizeStep("u1", "number", "u1"),
        SizeStep("v0", "expression", "s0 + u1*2"),
        ExternStep(aten.new_full.default, (BufferRef("x"), [v0, 3], float_bits), {}, ("grown",)),
        ExternStep(say, ([u0, v0], float_bits, slice(u1, None)), {}, (None,)),
    ]
    outputs = [BufferRef("seen"), BufferRef("grown"), u0 + v0, float_bits, BufferRef("kept")]
    total = Buffer("total", (), (), torch.float32, CPU)
    call = native.build(sized_plan(steps, outputs, kept, seen, grown, total), {})
    for rows, hits in ((4, 3), (4, 3), (4, 1), (2, 5), (2, 0), (3, 9)):
        x = torch.zeros(rows, 3)
        x.view(-1)[:hits] = 0.5
        columns, full, number, value, whole = call(x)
        assert columns.tolist() == x.nonzero()[:, 1].tolist() and torch.equal(whole, x.nonzero())
        torch.testing.assert_close(full, torch.full((rows + 2 * hits, 3), hits / 2))
        assert (number, value) == (rows + 3 * hits, hits / 2)
        assert said.pop() == ([hits, rows + 2 * hits], hits / 2, slice(hits, None))


def test_a_result_that_is_no_number() -> None:
    steps = [ExternStep(lambda x: "text", (BufferRef("x"),), {}, ("n",)), SizeStep("u0", "number", "n")]
    call = native.build(sized_plan(steps, [Size({(SizeSymbol("u0", 0, 4),): 1})]), {})
    with pytest.raises(TypeError, match="an int is needed"):
        call(torch.zeros(2, 3))


@pytest.mark.parametrize(
    "sizes",
    [
        ([(0, 5, 0, None, ())], [], []),
        ([(7, 0, 0, None, ())], [], []),
        ([(3, -1, 0, None, ())], [], []),
        ([(0, 0, 0, None, ())], [[(1, [3])]], []),
        ([(0, 0, 0, None, ())], [[(1, [0])]], [(0, 0, 4, 0)]),
        ([(0, 0, 0, None, ())], [[(1, [0])]], [(9, 0, 0, 0)]),
        ([(0, 0, 0, None, ())], [[(1, [0])]], [(0, 0, 0, 9)]),
        ([],),
    ],
)
def test_malformed(sizes: Any) -> None:
    buffers = [((0,), (1,), torch.float32, 0)]
    with pytest.raises(ValueError, match="malformed"):
        _C.PlanExecutor(CPU, 1, buffers, [], [], [], sizes)
