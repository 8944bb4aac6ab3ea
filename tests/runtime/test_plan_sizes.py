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
from dynajit.loopir.size import Size, SizeSymbol
from dynajit.runtime import executor, native
from dynajit.runtime.plan_sizes import NotNative

CPU = torch.device("cpu")
aten = torch.ops.aten


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which executor each plan got."""
    found: list[str] = []
    for module in (executor, native):

        def build(*args: Any, build: Any = module.build, name: str = module.__name__) -> Any:
            call = build(*args)
            found.append(name.rpartition(".")[2])
            return call

        monkeypatch.setattr(module, "build", build)
    return found


def softened(x: torch.Tensor, n: int) -> Any:
    halves = torch.softmax(x.reshape(-1, x.shape[1] // 2) * n, -1)
    product = torch.mm(halves, halves.t())
    return torch.cat([product, product])[1:].sum(0), x.shape[0] + n, halves.view(2 * x.shape[0], -1), x[:, 2:] + 1


def reshaped(x: torch.Tensor, n: int) -> Any:
    wide = torch.nn.functional.pad(x.new_zeros(x.shape[1], n), (0, x.shape[0]))
    return wide + 1, torch.arange(n + x.shape[0]) * 2, x.expand(n, *x.shape).transpose(1, 2).flatten(1).cumsum(1)


def test_floats_and_sizes_as_operators_take_them(executors: list[str]) -> None:
    """Of complex numbers and by names of scalars: operators of torch's, with numbers in the place of tensors too."""

    def fn(z: torch.Tensor, rate: float, n: int) -> Any:
        return z * rate + n, torch.special.polygamma(1, z.real + rate), z.sum() * (rate * 0.5), rate * 2, z.real * rate

    compiled = dynajit.compile(fn, fullgraph=True)
    for rate, n in ((0.5, 3), (-2.0, 4), (float("inf"), 5), (0.25, 6)):
        z = torch.randn(n, dtype=torch.complex64)
        executors.clear()
        torch.testing.assert_close(compiled(z, rate, n), fn(z, rate, n), equal_nan=True)
    assert compiled(z, 1.0, 6)[3] == 2.0
    assert set(executors) <= {"native"}


@pytest.mark.parametrize("fn", [softened, reshaped])
def test_sizes_that_change(fn: Callable[..., Any], executors: list[str]) -> None:
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
    assert set(executors) == {"native"}


def test_gradients(executors: list[str]) -> None:
    compiled = dynajit.compile(softened, dynamic=True)
    for rows, columns in [(4, 8), (5, 12), (9, 6), (4, 8)]:
        inputs = [torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
        for x, fn in zip(inputs, (compiled, softened), strict=True):
            x.requires_grad_()
            result = fn(x, 3)
            (result[0].sum() + (result[2] * result[2]).sum() + result[3].sum()).backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    assert set(executors) == {"native"}


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


def test_what_is_not_native() -> None:
    with pytest.raises(NotNative):
        native.build(sized_plan([SizeStep("w0", "number", "y")], [None]), {})
    with pytest.raises(NotNative):
        native.build(sized_plan([SizeStep("w1", "expression", "float_bits(s0)")], [None]), {})
    with pytest.raises(NotNative):
        native.build(sized_plan([AllocStep("y"), SizeStep("u0", "size", "y", 0)], [None]), {})
    with pytest.raises(NotNative):
        native.build(sized_plan([], [Size({(SizeSymbol("u5", 0, 4),): 1})]), {})


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
