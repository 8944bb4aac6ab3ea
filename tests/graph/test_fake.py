"""Fakes of ordinary tensors are what torch's own converter makes, memory shared alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import dynajit
from dynajit.graph.fake import FakeMode, fake_of
from dynajit.testing import CompileCounter, assert_same

MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.empty_strided((3, 4), (1, 3)),
    "expanded": lambda: torch.empty_strided((3, 4), (0, 1)),
    "empty": lambda: torch.empty(0, 5),
    "number": lambda: torch.tensor(3),
    "parameter": lambda: nn.Parameter(torch.randn(2)),
    "frozen parameter": lambda: nn.Parameter(torch.randn(2), requires_grad=False),
    "buffer": lambda: nn.Buffer(torch.randn(2)),
    "leaf": lambda: torch.randn(2, dtype=torch.float64, requires_grad=True),
    "view": lambda: torch.randn(3, 4)[1:],
    "view of a leaf": lambda: torch.randn(3, 4, requires_grad=True)[1:],
    "detached": lambda: torch.randn(3, 4)[1:].detach(),
    "result": lambda: torch.randn(2, requires_grad=True) * 2,
    "conjugate": lambda: torch.randn(2, dtype=torch.complex64).conj(),
    "inference": lambda: torch.inference_mode()(torch.ones)(3),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_fake_is_torchs_own(name: str) -> None:
    real = MAKERS[name]()
    made = fake_of(FakeMode(allow_non_fake_inputs=False), real)
    expected = FakeTensorMode(allow_non_fake_inputs=False).from_tensor(real, static_shapes=True)
    assert type(made) is FakeTensor
    for attribute in ("shape", "dtype", "device", "requires_grad", "is_leaf", "layout"):
        assert getattr(made, attribute) == getattr(expected, attribute)
    assert made.stride() == expected.stride()
    assert made.storage_offset() == expected.storage_offset()
    assert isinstance(made, nn.Parameter) == isinstance(expected, nn.Parameter)
    assert made._is_view() == expected._is_view()
    assert made.is_conj() == expected.is_conj()
    assert made.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert made.grad_fn is None or made.grad_fn.name() != ""


@pytest.mark.parametrize("relation", [lambda x: x[1:], lambda x: x.detach(), lambda x: x.data, lambda x: x.view(-1)])
@pytest.mark.parametrize("whole_first", [True, False])
def test_tensors_that_share_memory_have_fakes_that_do(
    relation: Callable[[torch.Tensor], torch.Tensor], whole_first: bool
) -> None:
    whole = torch.randn(3, 4)
    part = relation(whole)
    mode = FakeMode(allow_non_fake_inputs=False)
    fakes = [fake_of(mode, each) for each in ((whole, part) if whole_first else (part, whole))]
    assert fakes[0].untyped_storage()._cdata == fakes[1].untyped_storage()._cdata
    other = fake_of(mode, torch.randn(3, 4))
    assert other.untyped_storage()._cdata != fakes[0].untyped_storage()._cdata


def test_one_tensor_has_one_fake() -> None:
    mode, real = FakeMode(allow_non_fake_inputs=False), torch.randn(2)
    assert fake_of(mode, real) is fake_of(mode, real)


def test_operations_on_fakes_stay_fake() -> None:
    mode = FakeMode(allow_non_fake_inputs=False)
    x = fake_of(mode, torch.randn(3, 4))
    with mode:
        y = torch.softmax(x @ x.t(), -1)
    assert isinstance(y, FakeTensor)
    assert y.shape == (3, 3)


def test_a_fake_made_in_inference_mode_is_no_inference_tensor() -> None:
    real, mode = torch.randn(2), FakeMode(allow_non_fake_inputs=False)
    with torch.inference_mode():
        assert not fake_of(mode, real).is_inference()


def test_view_of_a_leaf_that_has_a_gradient() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.sum().backward()
        return x * y

    def run(called: Any) -> list[torch.Tensor]:
        x = torch.ones(3, 3, requires_grad=True)
        made = called(x, x.t())
        made.sum().backward()
        return [made.detach(), x.grad]

    dynajit.counters["internal_errors"].clear()
    assert all(map(torch.equal, run(dynajit.compile(function, backend="eager")), run(function)))
    assert not dynajit.counters["internal_errors"]


def test_view_that_outlived_a_write_to_its_base() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        y = x * 2
        return y, x.shape, x.detach().sum()

    def run(called: Any) -> list[Any]:
        base = torch.ones(3, 3, requires_grad=True) * 1
        with torch.no_grad():
            view = base[0]
        base.mul_(2)
        with torch.no_grad():
            try:
                return list(called(view))
            except RuntimeError as error:
                return [str(error)]

    dynajit.counters["internal_errors"].clear()
    assert repr(run(dynajit.compile(function, backend="eager"))) == repr(run(function))
    assert not dynajit.counters["internal_errors"]


def test_view_read_once_its_base_requires_gradients() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[Any, ...]:
        x -= weight
        return y > 0, y.requires_grad, y * 2

    def run(called: Any) -> list[Any]:
        x = torch.ones(3, 3)
        over, requires_grad, made = called(x, x.t(), torch.ones(3, 3, requires_grad=True))
        return [over, requires_grad, made.detach(), made.requires_grad]

    dynajit.counters["internal_errors"].clear()
    assert repr(run(dynajit.compile(function, backend="eager"))) == repr(run(function))
    assert not dynajit.counters["internal_errors"]


def test_view_made_and_written_without_gradients() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in x:
            x.scatter_(0, torch.zeros(1, 1, dtype=torch.long), 1.25)
        return x

    def run(called: Any) -> torch.Tensor:
        base = torch.ones(2, 2) * torch.ones(2, 2, requires_grad=True)
        with torch.no_grad():
            called(base[:1])
        return base.detach()

    dynajit.counters["internal_errors"].clear()
    assert torch.equal(run(dynajit.compile(function, backend="eager")), run(function))
    assert not dynajit.counters["internal_errors"]


@pytest.mark.parametrize("view_first", [False, True])
def test_a_view_into_memory_of_symbolic_size_relies_on_no_size(view_first):
    def fn(first, whole):
        return first + whole * 2 if view_first else whole * 2 + first

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for size in (8, 7, 6, 5, 9, 20):
        whole = torch.arange(size)
        assert torch.equal(compiled(whole[1], whole), fn(whole[1], whole))
    assert counter.frame_count == 2


def test_a_write_through_a_view_into_memory_of_symbolic_size_is_seen():
    def fn(part, whole):
        whole = whole * 1
        part.add_(1)
        return whole + part.sum()

    def through(part, whole):
        total = whole.sum()
        part.mul_(2)
        return total, whole + 1

    for program in (fn, through):
        compiled = dynajit.compile(program, backend="codegen")
        for size in (8, 7, 6, 9):
            mine, theirs = torch.arange(float(size)), torch.arange(float(size))
            got, want = compiled(mine[2:4], mine), program(theirs[2:4], theirs)
            assert torch.equal(mine, theirs)
            for one, other in zip(got, want, strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["logical_or", "copysign", "xlogy", "logaddexp", "heaviside", "ldexp"])
def test_order_of_dimensions_of_a_binary_operation(name: str) -> None:
    operation = getattr(torch, name)
    x = torch.rand(3, 4).t()
    with FakeMode() as mode:
        fake = mode.from_tensor(x)
        made = operation(fake, fake[:, None])
    assert made.stride() == operation(x, x[:, None]).stride()


@pytest.mark.parametrize("name", ["softplus", "elu", "hardswish", "silu", "mish", "leaky_relu", "hardsigmoid"])
def test_gradients_of_a_transposed_tensor(name: str) -> None:
    def f(w: torch.Tensor) -> torch.Tensor:
        rows = getattr(torch.nn.functional, name)(w.view(3, 2, 4).transpose(0, 1))
        return rows @ rows.transpose(1, 2)

    w = torch.randn(6, 4)
    mine, theirs = w.clone().requires_grad_(), w.clone().requires_grad_()
    dynajit.compile(f, backend="aot_eager")(mine.sin()).sum().backward()
    f(theirs.sin()).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((3,), ()), ((2, 3), (3,))])
@pytest.mark.parametrize("exponent", [torch.int32, torch.int64, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_dtype_of_ldexp(dtype: torch.dtype, exponent: torch.dtype, shapes: Any) -> None:
    x, y = torch.ones(shapes[0], dtype=dtype), torch.ones(shapes[1], dtype=exponent)
    with FakeMode() as mode:
        made = torch.ldexp(mode.from_tensor(x), mode.from_tensor(y))
    assert made.dtype == torch.ldexp(x, y).dtype


OF_ANY_LAYOUT = {
    "pow": lambda x: 2.0**x,
    "float_power": lambda x: torch.float_power(2.0, x),
    "isin": lambda x: torch.isin(x, torch.ones(3)),
    "ldexp": lambda x: torch.ldexp(x[0], x),
    "floor_divide": lambda x: torch.floor_divide(x.contiguous(), x),
    "complex": lambda x: torch.complex(x[0].expand(x.shape), x),
    "logsigmoid": torch.nn.functional.logsigmoid,
    "rrelu": lambda x: torch.rrelu(x, training=True),
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", OF_ANY_LAYOUT)
def test_strides_of_a_transposed_tensors_function(name: str, backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        result = OF_ANY_LAYOUT[name](x)
        return result, result.stride()

    assert_same(f, torch.rand(3, 4).t() + 1, backend=backend, graphs=1)


_ROW, _COLUMN = torch.tensor([0, 2]), torch.tensor([[0], [1], [2]])
_TURNED = torch.tensor([[0, 1], [1, 2], [2, 0]]).t()
PLACES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x[_ROW],
    lambda x: x[:, _ROW],
    lambda x: x[..., _ROW],
    lambda x: x[None, _ROW],
    lambda x: x[_ROW, None],
    lambda x: x[None, :, None, _ROW],
    lambda x: x[1:, _ROW],
    lambda x: x[_TURNED],
    lambda x: x[:, _TURNED],
    lambda x: x[None, _TURNED],
    lambda x: x[_COLUMN, _ROW],
    lambda x: x[_ROW, _COLUMN],
    lambda x: x[_COLUMN, :, _ROW],
    lambda x: x[_TURNED, None, :, _TURNED],
    lambda x: x[_COLUMN.expand(3, 2), :, _ROW],
    lambda x: x[torch.tensor(1)],
]


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 3, 3), (5, 3, 4), (4, 5, 3)])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_strides_of_items_at_places(order: Any, shape: Any) -> None:
    def f(x: torch.Tensor) -> list[Any]:
        found = [items(x) for items in PLACES]
        return [[step for step, size in zip(y.stride(), y.shape, strict=True) if size > 1] for y in found]

    for gaps in (1, 2):
        x = torch.ones(*(shape[at] for at in order), gaps)[..., 0].permute(*map(order.index, range(3)))
        assert_same(f, x, repeat=1, graphs=None)  # strides alone are read, which a graph need not compute


def _gets_a_dimension(base: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    seen.unsqueeze_(0)
    return seen * 2


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_a_view_that_gets_another_shape_after_its_base_became_smaller(backend: str) -> None:
    base = torch.randn(3, 3)
    seen = base.t()
    base.resize_(1, 1)
    compiled = dynajit.compile(_gets_a_dimension, backend=backend)
    dynajit.counters["internal_errors"].clear()
    assert torch.equal(compiled(base, seen), seen * 2)
    assert seen.shape == (1, 3, 3)
    assert not dynajit.counters["internal_errors"]


def test_an_operator_of_others_is_not_run_while_tracing() -> None:
    """Also where torch knows the values of all its arguments."""
    seen: list[float] = []

    @torch.library.custom_op("dynajit_test_fake::note", mutates_args=())
    def note(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.item())
        return x + 1

    @note.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def noted(x: torch.Tensor) -> torch.Tensor:
        return x * note(torch.tensor(3.0))

    assert_same(noted, torch.ones(2), graphs=1, breaks=0)
    seen.clear()
    compiled = dynajit.compile(noted)
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    assert seen == [3.0, 3.0]


@pytest.mark.parametrize("device", ("cpu", "cuda"))
def test_items_at_places_of_sizes_that_vary(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a GPU too, which need not be there: nothing is decided about sizes."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    sizes = ShapeEnv()
    mode = FakeMode(shape_env=sizes)

    def like(real: torch.Tensor) -> torch.Tensor:
        varying = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * real.dim())
        made = mode.from_tensor(real, symbolic_context=varying)
        with mode:
            return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=device)

    def row_major(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    monkeypatch.setattr(torch.Tensor, "contiguous", row_major)  # torch's own asks for the device
    x, rows = like(torch.randn(7, 9)), like(torch.ones(3, 4).long())
    with mode:
        steps = (1, rows.shape[0]), (x.shape[1], 1)
        turned, apart = (torch.empty_strided(rows.shape, each, dtype=rows.dtype, device=device) for each in steps)
        cases = [[rows], [rows, turned], [turned, turned], [None, turned]]
        # on CPUs the result's order is that of the larger strides
        for places in [*cases, [rows, apart]] if device == "cuda" else cases:
            found = torch.ops.aten.index.Tensor(x, places)
            assert found.dim() == 4 - sum(at is not None for at in places)
    assert not sizes.guards
