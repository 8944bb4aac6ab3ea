"""Tensor subclasses that wrap tensors (`__torch_dispatch__`, `__tensor_flatten__`): one graph, with eager's results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import dynajit
from dynajit.report import records
from dynajit.report.counters import counters
from dynajit.report.explain import ExplainReport

BACKENDS = ["eager", "aot_eager", "codegen"]


class Int8(torch.Tensor):
    """A weight of eight bits with a scale for each row; what computes with it sees floats."""

    int_data: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, data: Any, scale: Any, shape: Any, dtype: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=data.device)  # type: ignore

    def __init__(self, data: Any, scale: Any, shape: Any, dtype: Any) -> None:
        self.int_data, self.scale = data, scale

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self) -> Any:
        return ["int_data", "scale"], (self.dtype,)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["int_data"], inner["scale"], size, context[0])

    @classmethod
    def quantize(cls, weight: torch.Tensor) -> Any:
        scale = weight.abs().amax(1) / 127
        return cls((weight / scale[:, None]).round().to(torch.int8), scale, weight.shape, weight.dtype)

    def dequantize(self) -> Any:
        return self.int_data.to(self.dtype) * self.scale[:, None]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            made = cls(func(args[0].int_data), func(args[0].scale), args[0].shape, args[0].dtype)
            return return_and_correct_aliasing(func, args, kwargs, made)
        args, kwargs = pytree.tree_map_only(Int8, lambda part: part.dequantize(), (args, kwargs))
        return func(*args, **kwargs)


class Int8ByFunction(Int8):
    """The same for linear layers by `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            x, weight, bias = args
            return x @ weight.int_data.to(x.dtype).t() * weight.scale + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Pair(torch.Tensor):
    """Two tensors and a number; every operation is made on both."""

    a: torch.Tensor
    b: torch.Tensor
    factor: float

    @staticmethod
    def __new__(cls, a: Any, b: Any, factor: float) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: Any, b: Any, factor: float) -> None:
        self.a, self.b, self.factor = a, b, factor

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], {"factor": self.factor}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Pair(inner["a"], inner["b"], context["factor"])

    def total(self) -> Any:
        return self.a + self.b * self.factor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        if func is torch.ops.aten.cos.default:
            raise NotImplementedError("a pair has no cosine")
        if func is torch.ops.aten.exp.default:
            return args[0].a * float(args[0].b.sum().item())
        first = next(part for part in pytree.tree_leaves(given) if isinstance(part, Pair))
        (args_a, kwargs_a) = pytree.tree_map_only(Pair, lambda pair: pair.a, given)
        (args_b, kwargs_b) = pytree.tree_map_only(Pair, lambda pair: pair.b, given)
        made_a, spec = pytree.tree_flatten(func(*args_a, **kwargs_a))
        made_b = pytree.tree_leaves(func(*args_b, **kwargs_b))
        made = [Pair(a, b, first.factor) for a, b in zip(made_a, made_b, strict=True)]
        return return_and_correct_aliasing(func, *given, pytree.tree_unflatten(made, spec))


def pair(*shape: int, factor: float = 2.0, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return Pair(torch.rand(shape, generator=generator), torch.rand(shape, generator=generator), factor)


def seen_of(value: Any) -> Any:
    """What a program sees of a result: of tensors the class, the flags, and what they consist of."""
    if isinstance(value, (tuple, list)):
        return [seen_of(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    said = [type(value), value.shape, value.stride(), value.dtype, value.requires_grad, value._is_view()]
    if hasattr(value, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        return [*said, context, *(seen_of(getattr(value, name)) for name in names)]
    return [*said, value.detach().double().tolist()]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == pytest.approx(other) if isinstance(one, float) else one == other)


def check(
    program: Callable[[Callable[..., Any]], Any],
    function: Any,
    backend: str = "eager",
    graphs: int | None = 1,
    breaks: int | None = 0,
    captures: int | None = None,
) -> None:
    """Compare what the program, given the function and given it compiled, sees; three times, compiled once."""
    dynajit.reset()
    expected = seen_of(program(function))
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        compiled = dynajit.compile(function, backend=backend)
        for _ in range(2):
            actual = seen_of(program(compiled))
            assert same(actual, expected), f"{actual}\n{expected}"
        report = ExplainReport(seen)
        before = len(seen)
        assert same(seen_of(program(compiled)), expected)
    assert graphs in (None, report.graph_count), str(report)
    assert breaks in (None, report.graph_break_count), str(report)
    assert len(seen) == before, "the same program is compiled again"
    if captures is not None:
        assert before == captures


class Net(nn.Module):
    """Two linear layers with weights of the class."""

    def __init__(self, cls: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        for layer in self.layers:
            layer.weight = nn.Parameter(cls.quantize(layer.weight.detach()), requires_grad=False)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = torch.relu(layer(x)) if isinstance(layer.weight, nn.Parameter) else x
        return x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cls", [Int8, Int8ByFunction])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_quantised_weights_in_inference(backend: str, cls: Any, mode: Any) -> None:
    def program(net: Any) -> Any:
        with mode():
            return net(torch.arange(16.0).reshape(2, 8) / 7)

    check(program, Net(cls), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_inputs_beside_quantised_weights(backend: str) -> None:
    net = Net(Int8)

    def program(call: Any) -> Any:
        x = (torch.arange(16.0).reshape(2, 8) / 7).requires_grad_()
        net.zero_grad()
        result = call(x)
        result.sum().backward()
        return result, x.grad, [layer.bias.grad for layer in net.layers]

    check(program, net, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_subclasses_are_subclasses(backend: str) -> None:
    net = nn.Module()
    net.weight = nn.Parameter(pair(3))
    net.forward = lambda x: ((net.weight * x).relu(), x + 1)

    def program(call: Any) -> Any:
        net.weight.grad = None
        x = pair(3, seed=1).requires_grad_()
        result, other = call(x)
        result.backward(pair(3, seed=2))
        return result.detach(), net.weight.grad, x.grad, other.detach()

    check(program, net.forward, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_read_and_set(backend: str) -> None:
    def function(s: Any, t: Any) -> Any:
        found = s.grad * 2
        s.grad = None if t.grad is None else t.grad + 1
        t.grad = s.grad
        return found, s.grad is t.grad, (s * 2).detach().grad is None

    def program(call: Any) -> Any:
        s, t, plain = pair(3).requires_grad_(), pair(3, seed=1).requires_grad_(), pair(3).requires_grad_()
        for one in (s, t):
            one.grad = pair(3, seed=2)
        plain.grad = pair(3, seed=3)
        return [*call(s, t), s.grad is t.grad, s.grad, *call(plain, pair(3)), plain.grad]

    check(program, function, backend, graphs=2)


def test_the_gradient_of_one_whose_class_is_asked() -> None:
    asked: list[str] = []

    class Asked(Pair):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    def program(call: Any) -> Any:
        asked.clear()
        s = Asked(torch.ones(3), torch.ones(3), 2.0)
        return call(s), asked.count("__get__")

    check(program, lambda s: (s.grad is None, s.shape[0]), graphs=None, breaks=None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_and_parts(backend: str) -> None:
    def function(s: Any, x: torch.Tensor) -> Any:
        t = (s * 2 + s).sin()
        kinds = isinstance(t, Pair), type(t) is Pair, t.factor, tuple(t.shape)
        return t, t.total() + s.total(), t.a * x, s.b - 1, s[0], kinds

    check(lambda call: call(pair(2, 3), torch.arange(3.0)), function, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_are_the_objects_themselves(backend: str) -> None:
    def function(s: Any) -> Any:
        return s.a, s.b + 1

    s = pair(3)
    check(lambda call: [call(s)[0] is s.a, call(s)[1]], function, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_and_views(backend: str) -> None:
    def writes(s: Any) -> Any:
        s.mul_(2)
        return s + 1

    def writes_part(s: Any) -> Any:
        s.a.add_(1)
        return s * 2

    def views(s: Any) -> Any:
        return s.view(6)[1:], s.t()

    def writes_own(s: Any) -> Any:
        t = s + 1
        t[0].mul_(3)
        t.add_(s)
        return t

    def program(call: Any) -> Any:
        s = pair(2, 3)
        result = call(s)
        seen = seen_of((result, s, s._version))
        return seen, s.mul_(2), result, [part._base is s for part in result] if isinstance(result, tuple) else None

    for function in (writes, writes_part, views, writes_own):
        check(program, function, backend)


class Rebinding(Pair):
    """What writes an instance gives it other tensors, and another factor."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Rebinding(inner["a"], inner["b"], context["factor"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mul_.Tensor:
            args[0].a, args[0].factor = args[0].a * args[1], args[0].factor + 1
            return args[0]
        return func(*pytree.tree_map_only(Pair, lambda pair: pair.a, args), **(kwargs or {}))


def _scaled(s: Any, t: Any, x: torch.Tensor) -> None:
    s.mul_(2)
    t.add_(s).mul_(0.5)
    x.add_(s.a)


def _part_scaled(s: Any, t: Any, x: torch.Tensor) -> None:
    s.a.mul_(3)
    t[1:].add_(x[1:])


def _data_scaled(s: Any, t: Any, x: torch.Tensor) -> None:
    s.data.mul_(3)
    t.copy_(s.data + 1)


def _by_out(s: Any, t: Any, x: torch.Tensor) -> None:
    torch.mul(x, 2, out=x)
    s.mul_(2)


def _with_one_made(s: Any, t: Any, x: torch.Tensor) -> Any:
    made = s + t
    s.copy_(made)
    return made.mul_(2), x * 2


def _on_condition(s: Any, t: Any, x: torch.Tensor) -> None:
    s.add_(1)
    x.index_add_(0, torch.tensor([0, 2]), t.a[:2])


WRITERS = [_scaled, _part_scaled, _data_scaled, _by_out, _with_one_made, _on_condition]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, None])
def test_writes_of_instances_are_compiled(backend: str, writer: Any, mode: Any) -> None:
    """Also where it is the program that turns gradients off; instances of one memory follow, and all versions."""

    def function(s: Any, t: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return writer(s, t, x)

    def program(call: Any) -> Any:
        results = []
        for kind in ("apart", "same memory", "leaves"):
            with mode() if mode is not None else contextlib.nullcontext():
                s, t, x = pair(3), pair(3, seed=1), torch.ones(3)
                if kind == "same memory":
                    t, x = Pair(s.a, s.b * 2, 2.0), s.b
                if kind == "leaves" and mode is not torch.inference_mode:
                    s.requires_grad_()
                results.append(seen_of([call(s, t, x), s, t, x]))
                if mode is not torch.inference_mode:
                    results.append([one._version for one in (s, s.b, t, t.b, x)])
        return results

    counters.clear()
    check(program, writer if mode is not None else function, backend, graphs=None)
    assert backend == "eager" or not counters["as_captured"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_changes_more_of_an_instance_than_its_tensors_elements(backend: str) -> None:
    def function(s: Any) -> None:
        s.mul_(2)

    def program(call: Any) -> Any:
        s = Rebinding(torch.ones(3), torch.ones(3), 2.0)
        before = s.a
        with torch.no_grad():
            call(s)
        return s.a is before, before, s.a, s.factor

    check(program, function, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_of_what_backward_needs_is_noticed(backend: str) -> None:
    def function(s: Any) -> None:
        s.mul_(2)

    for written, kept in ((False, "instance"), (True, "instance"), (True, "part")):
        s = pair(3).requires_grad_()
        x = torch.ones(3, requires_grad=True)
        result = s * s if kept == "instance" else x * s.a
        with torch.no_grad():
            dynajit.compile(function, backend=backend)(s if written else pair(3))
        if written and kept == "instance":
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.backward(pair(3))
        else:  # of a part the write of the instance is not counted, in eager either
            result.backward(pair(3) if kept == "instance" else torch.ones(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_made_inside(backend: str) -> None:
    def function(x: torch.Tensor) -> Any:
        made = Pair(x, x + 1, 3.0)
        quantized = Int8.quantize(x)
        return made * 2, made.total(), made.a is x, made, x @ quantized.t(), isinstance(quantized, Int8)

    check(lambda call: call(torch.rand(3, 3, generator=torch.Generator().manual_seed(0)) + 1), function, backend)


def test_made_inside_with_more_than_it_consists_of() -> None:
    class Noted(Pair):
        def __init__(self, a: Any, b: Any, factor: float) -> None:
            super().__init__(a, b, factor)
            self.note = "made"

    def function(x: torch.Tensor) -> Any:
        made = Noted(x, x + 1, 3.0)
        return made.note, made.a * 2

    # made for real, whose `__init__` sets attributes of what is no whole instance yet
    check(lambda call: call(torch.ones(3)), function, graphs=2, breaks=None)


def test_a_break_while_one_is_made() -> None:
    class Printed(Pair):
        def __init__(self, a: Any, b: Any, factor: float) -> None:
            print(end="")
            super().__init__(a, b, factor)

    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return Printed(y, x + 1, 3.0) + 1

    check(lambda call: call(torch.ones(3)), function, graphs=2, breaks=None)


def test_compiled_again_for_another_context_or_other_parts() -> None:
    def function(s: Any) -> Any:
        return s * 2, s.factor, s.total()

    odd = Pair(torch.rand(3), torch.rand(3, dtype=torch.float64), 2.0)
    calls = [pair(3), pair(3, factor=3.0), odd, pair(3, seed=4)]
    check(lambda call: [call(s) for s in calls], function, "codegen", graphs=3, captures=3)


def test_a_part_that_is_reached_by_another_way_too() -> None:
    def part_first(s: Any, t: torch.Tensor) -> Any:
        return s.a * 2 + t, t.contiguous()

    def part_last(s: Any, t: torch.Tensor) -> Any:
        return t * 2 - s.a, s.a.contiguous()

    def writes(s: Any, t: torch.Tensor) -> Any:
        t.add_(1)
        return s + 1, s.a * 1

    for function, graphs in ((part_first, 2), (part_last, 2), (writes, 2)):

        def program(call: Any) -> Iterator[Any]:
            s, other = pair(3), torch.ones(3)
            return [*call(s, s.a), *call(s, other), s, other]  # type: ignore[return-value]

        check(program, function, "codegen", graphs=graphs)


def test_what_breaks() -> None:
    def sets(s: Any) -> Any:
        s.factor = 5.0
        return s * 2

    def depends_on_data(s: Any) -> Any:
        return (s * 2).exp()

    check(lambda call: call(pair(3)), sets, graphs=1, breaks=1)
    check(lambda call: call(pair(3)), depends_on_data, graphs=1, breaks=1)


def test_what_raises() -> None:
    def function(s: Any) -> Any:
        return (s * 2).cos()

    with pytest.raises(NotImplementedError, match="no cosine"):
        dynajit.compile(function, backend="eager")(pair(3))


def test_a_break_between() -> None:
    def function(s: Any) -> Any:
        t = s * 2
        print(end="")
        return t + s, t.a, t.factor

    check(lambda call: call(pair(3)), function, "codegen", graphs=2, breaks=1)
