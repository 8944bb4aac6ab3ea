"""The reasons against tracing a captured graph again, each with its smallest program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import dynajit
from dynajit.aot.legality import NOT_DIFFERENTIABLE, NOT_TRACEABLE, GraphFacts
from dynajit.testing import assert_same

Program = tuple[Callable[..., Any], Callable[[], Sequence[Any]]]


def _x(requires_grad: bool = False) -> tuple[torch.Tensor]:
    return (torch.ones(4, 4, requires_grad=requires_grad),)


def _leaf() -> tuple[torch.Tensor]:
    return _x(requires_grad=True)


def _autocast_dtypes(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        first = x @ x
        with torch.autocast("cpu", torch.float16):
            return first, x @ x


def _writes_cast_weights(w: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        first = w @ w
        with torch.no_grad():
            w.add_(1)
        return first, w @ w


def _differentiated_inside(x: torch.Tensor) -> Any:
    y = x * 2
    z = (y * 3).sum()
    print(end="")
    return torch.autograd.grad(z, y)


def _versions_read(x: torch.Tensor) -> Any:
    y = x + 1
    y.add_(1)
    print(end="")
    return y._version


def _strided_memory(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:1].add_(1)
    return y.as_strided((2,), (1,))


def _random_order(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).t()
    y.masked_fill_(x > 5, 0.5)
    return torch.dropout(y, 0.5, True)


def _view_of_leaf() -> tuple[torch.Tensor]:
    return (_leaf()[0].view(-1),)


def _out_view(x: torch.Tensor) -> torch.Tensor:
    torch.add(x[1], 1, out=x[0])
    return x * 2


def _out_dtype(x: torch.Tensor) -> torch.Tensor:
    return torch.sum(x, 1, out=torch.empty(x.shape[:1], dtype=torch.float64))


def _hooked_result(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 2)
    return y


def _views_without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.view(-1)


def _default_dtype(x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    y = x + torch.ones(4)
    torch.set_default_dtype(torch.float32)
    return y


def _while_loop(x: torch.Tensor) -> Any:
    return torch.while_loop(lambda y: y.sum() < 100, lambda y: (y * 2,), (x,))  # type: ignore[attr-defined]


def _inference_mode(x: torch.Tensor) -> Any:
    y = x + 1
    with torch.inference_mode():
        return y, x * 2


def _views_with_gradients_on(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        return x.view(-1) if y is not None else y


def _data_write(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    x.data.add_(1)
    return y


def _one_of_many(x: torch.Tensor) -> torch.Tensor:
    first, *_ = (x * 2).unbind()
    with torch.no_grad():
        first.add_(1)
    return x * 3


def _out(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(4, 4)
    torch.add(x.detach(), 1, out=y)
    return x * y


_SCALE = torch.tensor(2.0)


class _Scaling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * (1 + _SCALE)


class _InPlace(_Scaling):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.mul_(2)


class _WritesResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.result = x * 2
        return ctx.result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.result.zero_()
        return gradient * 2


_LIBRARY = torch.library.Library("legality_doubled", "DEF")
_LIBRARY.define("doubled(Tensor x) -> Tensor")
_LIBRARY.impl("doubled", lambda x: x * 2, "CPU")
_LIBRARY.impl("doubled", torch.empty_like, "Meta")


def _unused_in_body(x: torch.Tensor) -> torch.Tensor:
    def tripled(x: torch.Tensor) -> torch.Tensor:
        torch.ops.legality_doubled.doubled(x)
        return x * 3

    return torch.cond(x.sum() > 0, tripled, torch.clone, (x,))  # type: ignore[no-any-return]


def _unused_in_level(x: torch.Tensor) -> torch.Tensor:
    torch.func.vmap(lambda row: row[torch.tensor([1, 0])])(x)
    return x * 2


def _no_gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.legality_doubled.doubled(x) * x  # type: ignore[no-any-return]


TRACING: dict[str, Program] = {
    "autocast_dtypes": (_autocast_dtypes, _x),
    "writes_cast_weights": (_writes_cast_weights, _leaf),
    "differentiated_inside": (_differentiated_inside, _leaf),
    "versions_read": (_versions_read, _x),
    "strided_memory": (_strided_memory, _x),
    "random_order": (_random_order, _x),
    "unused_in_body": (_unused_in_body, _x),
    "unused_in_level": (_unused_in_level, _x),
    "detached_leaf": (lambda x: x.detach().add_(1), _view_of_leaf),
    "operand_overlap": (lambda x: x[0].copy_(x[:, 0]), _x),
    "self_overlap": (lambda x: x.add_(1), lambda: (torch.arange(3.0).as_strided((2, 2), (1, 1)),)),
    "data": (lambda x: (x.data, x * 2), _leaf),
    "relaid_input": (lambda x: x.unsqueeze_(0).add_(1), _x),
    "out_view": (_out_view, _x),
    "out_dtype": (_out_dtype, _x),
    "hooked_result": (_hooked_result, _leaf),
    "views_without_gradients": (_views_without_gradients, _leaf),
    "leaves": (lambda x: x * torch.ones(4, requires_grad=True), _x),
    "default_dtype": (_default_dtype, _x),
    "while_loop": (_while_loop, _x),
    "inference_mode": (_inference_mode, _x),
    "views_with_gradients_on": (_views_with_gradients_on, _leaf),
}
DIFFERENTIATING: dict[str, Program] = {
    "data_write": (_data_write, _leaf),
    "out": (_out, _leaf),
    "one_of_many": (_one_of_many, _leaf),
    "detached_write": (lambda x: x.detach().add_(x), _leaf),
    "no_gradient": (_no_gradient, _leaf),
    "read_later": (lambda x: _Scaling.apply(x), _leaf),  # type: ignore[no-untyped-call]
    "written_later": (lambda x: _WritesResult.apply(x), _leaf),  # type: ignore[no-untyped-call]
    "written_gradient": (lambda x: _InPlace.apply(x), _leaf),  # type: ignore[no-untyped-call]
    "view_of_several": (lambda x: x.unbind()[0], _leaf),
}


def _reasons(function: Callable[..., Any], inputs: Sequence[Any]) -> Iterator[str]:
    """The names of those that hold for the graphs of a program."""
    found: list[str] = []

    def backend(gm: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
        graph = GraphFacts(gm)
        found.extend(reason.name for reason in (*NOT_TRACEABLE, *NOT_DIFFERENTIABLE) if reason.holds(graph))
        return gm.forward

    dynajit.compile(function, backend=backend)(*inputs)
    yield from found


@pytest.mark.parametrize("name", TRACING | DIFFERENTIATING)
def test_the_reason_is_found(name: str) -> None:
    function, inputs = (TRACING | DIFFERENTIATING)[name]
    assert name in list(_reasons(function, inputs()))


@pytest.mark.parametrize("name", TRACING | DIFFERENTIATING)
def test_the_program_gives_what_eager_gives(name: str) -> None:
    function, inputs = (TRACING | DIFFERENTIATING)[name]
    torch.manual_seed(0)
    expected = function(*inputs())
    torch.manual_seed(0)
    found = dynajit.compile(function)(*inputs())
    torch.testing.assert_close(found, expected)


def test_each_reason_has_a_program() -> None:
    assert [reason.name for reason in NOT_TRACEABLE] == list(TRACING)
    assert [reason.name for reason in NOT_DIFFERENTIABLE] == list(DIFFERENTIATING)


def test_none_for_plain_graphs() -> None:
    assert list(_reasons(lambda x: (x @ x).relu().sum(), _leaf())) == []


def _shift(x: torch.Tensor, into: torch.Tensor) -> None:
    into.copy_(x.clone() + 1)


def test_an_operator_that_writes_without_a_name_that_says_so() -> None:
    with torch.library._scoped_library("legality_test", "DEF") as library:
        library.define("shift(Tensor x, Tensor(a!) into) -> ()")
        library.impl("shift", _shift, "CompositeExplicitAutograd")
        library.impl("shift", lambda x, into: None, "Meta")
        shift = torch.ops.legality_test.shift.default

        def program(x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            shift(x, y)
            return y.as_strided((2,), (1,))

        assert list(_reasons(program, _x())) == ["strided_memory"]
        assert_same(program, *_x())


def test_a_write_of_all_of_a_memory_that_keeps_its_layout() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y /= 3
        return y.t().as_strided((2, 2), (1, 1)) * 2

    assert list(_reasons(program, _x())) == []
    assert_same(program, *_x(), backend="aot_eager")


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_one_of_many_views_read_after_its_base_was_written(backend: str) -> None:
    """Autograd refuses that; in a functional graph it is like any other read."""

    def returned(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        views = y.unbind()
        y.add_(1)
        return views[1]

    def read(x: torch.Tensor) -> torch.Tensor:
        return returned(x) * 2

    x = torch.ones(2, 2, requires_grad=True)
    for fn in (read, lambda x: returned(x).sum().backward()):
        errors = []
        for call in (fn, dynajit.compile(fn, backend=backend)):
            with pytest.raises(RuntimeError, match="view and its base or another view of its base") as caught:
                call(x)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
    before = dynajit.counters["as_captured"].total()
    plain = torch.ones(2, 2)
    torch.testing.assert_close(dynajit.compile(lambda x, y: read(x) * y, backend=backend)(plain, x), read(plain) * x)
    assert dynajit.counters["as_captured"].total() == before
