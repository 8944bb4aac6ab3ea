"""Writes that autograd does not hear of, writes that its backward can't live with, and others AOTAutograd refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit


def through_data(w: torch.Tensor) -> torch.Tensor:
    result = w.exp() + w.var()
    w.data.mul_(torch.arange(1.0, 4.0))
    return result


def through_a_view_of_data(w: torch.Tensor) -> torch.Tensor:
    result = w.sin()
    part = w.data[1:]
    part += 2
    return result


def result_is_data(w: torch.Tensor) -> torch.Tensor:
    held = w.data
    result = w.sin()
    held.add_(1)
    return result * held


def saved_and_written(w: torch.Tensor) -> torch.Tensor:
    y = w + 1
    y *= y
    return y


def saved_and_written_aside(w: torch.Tensor) -> torch.Tensor:
    y = w + 1
    kept = y.exp()
    kept.add_(1)
    return w * 2 + kept.detach()


def outcome(fn: Callable[..., Any]) -> list[Any]:
    w = torch.tensor([0.5, 2.0, 1.0], requires_grad=True)
    result = fn(w)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return [result.detach(), w.detach(), str(error).partition(":")[0]]
    return [result.detach(), w.detach(), w._version, w.grad]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize(
    "fn", [through_data, through_a_view_of_data, result_is_data, saved_and_written, saved_and_written_aside]
)
def test_backward_sees_what_it_sees_in_eager(fn: Callable[..., Any], backend: str) -> None:
    compiled = dynajit.compile(fn, backend=backend)
    wanted = outcome(fn)
    for _ in range(2):
        for want, got in zip(wanted, outcome(compiled), strict=True):
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want)
            else:
                assert got == want


def test_data_without_gradients_stays_in_the_compiled_graph() -> None:
    def clip(w: torch.Tensor) -> torch.Tensor:
        w.data.clamp_(-1, 1)
        return w * 2

    with torch.no_grad():
        w, other = (torch.tensor([0.5, 2.0, 1.0], requires_grad=True) for _ in range(2))
        assert torch.equal(dynajit.compile(clip, fullgraph=True)(w), clip(other))
        assert torch.equal(w, other)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("write", [lambda y: y.mul_(0.9), lambda y: y[1:].sin_(), lambda y: torch.exp_(y)])
def test_a_write_through_data_leaves_the_others_to_autograd(write: Callable[[torch.Tensor], Any], backend: str) -> None:
    def step(y: torch.Tensor, x: torch.Tensor) -> None:
        write(y)
        x.data.add_(1)

    def program(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = w * 1
        run(y, x)
        return torch.autograd.grad(y.sum(), w)[0]

    w = torch.tensor([0.5, 2.0, 1.0], requires_grad=True)
    run = step
    wanted = program(w, torch.zeros(3))
    run = dynajit.compile(step, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(program(w, torch.zeros(3)), wanted)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
def test_a_write_through_data_is_an_effect_of_its_own(backend: str) -> None:
    def write(x: torch.Tensor) -> None:
        x.data.add_(1)

    x = torch.zeros(3)
    dynajit.compile(write, backend=backend)(x)
    assert x.tolist() == [1, 1, 1]


def diagonal_of_a_transposed_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.fill_diagonal_(0.0)
    return x[0] + y


def resized_by_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.add(y, 1, out=x)
    return x * 2


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("fn", [diagonal_of_a_transposed_one, resized_by_out])
def test_what_aotautograd_refuses_runs(fn: Callable[..., Any], backend: str) -> None:
    x, other = (torch.arange(9.0).reshape(3, 3) if fn is diagonal_of_a_transposed_one else torch.ones(()) for _ in "ab")
    y, other_y = (t.t() if t.dim() else torch.ones(3, 2) for t in (x, other))
    wanted, got = fn(x, y), dynajit.compile(fn, backend=backend)(other, other_y)
    assert torch.equal(wanted, got) and torch.equal(x, other) and x.stride() == other.stride()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
def test_a_view_is_made_in_the_mode_of_its_line(backend: str) -> None:
    def fn(x: torch.Tensor) -> None:
        torch.set_grad_enabled(True)
        v = x.view(-1)
        v.mul_(2)

    with torch.no_grad(), pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        dynajit.compile(fn, backend=backend)(torch.ones(3, requires_grad=True))


def gradient_of_a_result(x: torch.Tensor) -> torch.Tensor:
    hidden = x * 2
    loss = (hidden**2).sum()
    dynajit.graph_break()
    return torch.autograd.grad(loss, hidden)[0]


def gradient_kept(x: torch.Tensor) -> torch.Tensor:
    hidden = x * 2
    loss = (hidden**2).sum()
    dynajit.graph_break()
    hidden.retain_grad()
    loss.backward()
    assert hidden.grad is not None
    return hidden.grad + x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("fn", [gradient_of_a_result, gradient_kept])
def test_results_differentiated_by_each_other(fn: Callable[..., Any], backend: str) -> None:
    x, other = (torch.tensor([0.5, 2.0], requires_grad=True) for _ in range(2))
    assert torch.equal(dynajit.compile(fn, backend=backend)(other), fn(x))


def products(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w[:2] * x).exp() @ w[:2] + w[:2].sin() * w[:2].relu()


def normalised(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = F.gelu(F.softmax(x @ w[:2], -1) * w[2:] + w[:2].tanh())
    return F.layer_norm(y, (2,), w[0], w[1], eps=0.1)


def views(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w[1:3] * x.t() + x / w[:2].t()).pow(2)


def kept_casts(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w[:2].double() * x).sin() * w.sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("fn", [products, normalised, views, kept_casts])
def test_weights_written_between_forward_and_backward(fn: Callable[..., Any], backend: str) -> None:
    def gradients(call: Callable[..., Any]) -> list[Any]:
        w = (torch.arange(8.0).reshape(4, 2) / 8 + 1).requires_grad_()
        x = (torch.arange(4.0).reshape(2, 2) / 4 - 1).requires_grad_()
        total = call(w, x).square().sum()
        w.data.mul_(1.5)
        x.data.add_(0.25)
        total.backward()
        return [total.detach(), w.grad, x.grad]

    torch.testing.assert_close(gradients(dynajit.compile(fn, backend=backend)), gradients(fn))


@pytest.mark.parametrize("shape", [(3,), (1 << 17,)])
@pytest.mark.parametrize(
    "fn",
    [
        lambda w, x: (w.exp() * x).sin() * (w + x).cos() / w,
        lambda w, x: w.clamp(-1.6, 1.6) * x,
    ],
)
def test_a_large_weight_written_between_forward_and_backward(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    def gradients(call: Callable[..., Any]) -> list[Any]:
        w, x = (torch.linspace(1, 2, shape[0]).requires_grad_() for _ in "wx")
        total = call(w, x).sum()
        w.data.mul_(1.5)
        total.backward()
        return [w.grad, x.grad]

    torch.testing.assert_close(gradients(dynajit.compile(fn, backend="codegen")), gradients(fn))


@pytest.mark.parametrize("size", [4, 300])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, buffer: x * buffer.detach().sin() * buffer,
        lambda x, buffer: (x * buffer).sin(),
        lambda x, buffer: torch.where(buffer > 0, x * buffer, x),
        lambda x, buffer: (x * buffer.double().float()).sin() * buffer,
        lambda x, buffer: buffer * buffer * x,
    ],
)
def test_what_has_no_gradients_written_between_forward_and_backward(fn: Callable[..., Any], size: int) -> None:
    """Backward computed from it again what eager had kept, of what the program had made of it meanwhile."""

    def gradient(call: Callable[..., Any], change: Callable[[torch.Tensor], Any]) -> Any:
        torch.manual_seed(0)
        x, buffer = torch.randn(size, size).requires_grad_(), torch.randn(size, size)
        total = call(x, buffer).sum()
        change(buffer)
        total.backward()
        return x.grad

    for change in (lambda tensor: tensor.data.mul_(2), _given_other_data):
        torch.testing.assert_close(gradient(dynajit.compile(fn), change), gradient(fn, change))


class _Prepared(torch.autograd.Function):
    """Computes in forward what only backward needs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.factor = x.sigmoid() * 2
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * ctx.factor


class _PreparedAndKept(torch.autograd.Function):
    """Keeps its argument, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = x.sigmoid() * 2
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * ctx.factor * ctx.saved_tensors[0]


@pytest.mark.parametrize("size", [4, 1 << 17])
@pytest.mark.parametrize("function", [_Prepared, _PreparedAndKept])
def test_what_a_function_computes_in_forward_for_backward(function: Any, size: int) -> None:
    """It was computed in backward, of what the argument held by then; a write that counts made that fail."""

    def outcome(call: Callable[..., Any], change: Callable[[torch.Tensor], Any]) -> Any:
        x = torch.linspace(-1, 1, size).requires_grad_()
        total = call(x).sum()
        change(x)
        try:
            total.backward()
        except RuntimeError as error:
            return str(error).partition(":")[0]
        return x.grad

    def fn(x: torch.Tensor) -> torch.Tensor:
        return function.apply(x).sin()  # type: ignore[no-any-return]

    compiled = dynajit.compile(fn)
    for change in (lambda tensor: tensor.data.mul_(2), _given_other_data, _written):
        wanted, found = outcome(fn, change), outcome(compiled, change)
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted)


def test_weights_are_read_beside_sizes_that_vary() -> None:
    """Backward takes sizes and tensors, and the copy of a weight stood where a size belongs."""

    def fn(x: torch.Tensor, weight: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[:2]
        y = (x * weight).tanh()
        return (y.view(rows * columns, 4).exp() * other).view(rows, columns, 4).sin().sum()

    weights = tuple(torch.rand(4, dtype=torch.double, requires_grad=True) for _ in range(2))
    compiled = dynajit.compile(fn)
    for sizes in ((2, 6, 4), (3, 5, 4)):
        x = torch.rand(sizes, dtype=torch.double)
        expected = torch.autograd.grad(fn(x, *weights), weights)
        torch.testing.assert_close(torch.autograd.grad(compiled(x, *weights), weights), expected)


KEPT: list[Callable[..., torch.Tensor]] = [
    lambda x, w, u: x * w.data,
    lambda x, w, u: x * w.detach(),
    lambda x, w, u: (x * w).sin() * u,
    lambda x, w, u: (x @ w.t()).relu(),
    lambda x, w, u: F.linear(x, w).sigmoid() * u.data,
    lambda x, w, u: (x * u.view(9).view(3, 3)).exp(),
    lambda x, w, u: (x @ w).tanh() @ u,
    lambda x, w, u: x @ u.data.t(),
    lambda x, w, u: x / (w.data * u),
    lambda x, w, u: x * w + x * w.data,
    lambda x, w, u: x * w.data + x * w.detach(),
    lambda x, w, u: (x * w.detach()).tanh() * w,
    lambda x, w, u: F.linear(x, w).sigmoid() * x + x @ w,
    lambda x, w, u: x * x.data + F.linear(w, x).sigmoid(),
]


def _given_other_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data * 2


def _written(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("fn", KEPT, ids=map(str, range(len(KEPT))))
@pytest.mark.parametrize("change", [_given_other_data, _written])
def test_backward_reads_what_eager_keeps(
    change: Callable[[torch.Tensor], None], fn: Callable[..., torch.Tensor], backend: str
) -> None:
    """The argument itself, or an alias, which stays what it was where the argument is given other data."""

    def outcome(call: Callable[..., torch.Tensor], changed: int) -> Any:
        given = [torch.randn(3, 3, generator=torch.Generator().manual_seed(number)) for number in range(3)]
        x, w = (tensor.requires_grad_() for tensor in given[:2])
        result = call(*given)
        change(given[changed])
        try:
            result.sum().backward()
        except RuntimeError as error:
            return str(error).partition(":")[0]
        return [result.detach(), x.grad, w.grad]

    compiled = dynajit.compile(fn, backend=backend)
    for changed in range(3):
        wanted, got = outcome(fn, changed), outcome(compiled, changed)
        if isinstance(wanted, str):
            assert got == wanted
        else:
            torch.testing.assert_close(got, wanted)
