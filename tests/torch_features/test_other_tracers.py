"""Tracers and compilers of torch around compiled functions, methods and modules: they see the original.

Each tracer's own result says what it saw: the text of its graph, or the operations it was handed. It must be the same
for the compiled object, called before or not, as for the original.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dynajit
from dynajit.report.counters import counters

Tracer = Callable[[Callable[..., Any]], Any]
TRACERS: dict[str, Tracer] = {}
CAPTURED = ("function_mode", "functional_tensors")  # calls that are captured, and break the graph


def tracer(found: Tracer) -> Tracer:
    """A function that traces what it is given and returns what can be compared."""
    TRACERS[found.__name__] = found
    return found


def inputs() -> Tensor:
    """The same numbers at each call, (3, 8)."""
    return torch.linspace(-2, 2, 24).reshape(3, 8)


def function(x: Tensor) -> Tensor:
    return torch.relu(x) * 2 + x.sum()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.first(x))) * 2


class Outer(nn.Module):
    """Calls what it is given, which is a module of its own if it is a module."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) - 1


def without_numbers(graph: Any) -> str:
    """Its text without those that TorchScript numbers classes of the same name by."""
    return re.sub(r"\.___torch_mangle_\d+", "", str(graph))


@tracer
def jit_trace(call: Callable[..., Any]) -> Any:
    traced = torch.jit.trace(call, inputs())
    graph = traced.inlined_graph if isinstance(call, nn.Module) else traced.graph
    return without_numbers(graph), traced(inputs())


@tracer
def jit_trace_without_grad(call: Callable[..., Any]) -> Any:
    with torch.no_grad():
        return torch.jit.trace(call, inputs())(inputs())


@tracer
def jit_trace_from_outside(call: Callable[..., Any]) -> Any:
    return torch.jit.trace(Outer(call), inputs())(inputs())


@tracer
def jit_script(call: Callable[..., Any]) -> Any:
    return without_numbers(torch.jit.script(call).graph), torch.jit.script(call)(inputs())


@tracer
def onnx_by_tracing(call: Callable[..., Any]) -> Any:
    written = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Outer(call), (inputs(),), written, dynamo=False)
    return len(written.getvalue())


@tracer
def fx_trace(call: Callable[..., Any]) -> Any:
    return str(fx.symbolic_trace(call).graph)


@tracer
def fx_trace_from_outside(call: Callable[..., Any]) -> Any:
    traced = fx.symbolic_trace(Outer(call))
    return str(traced.graph), traced(inputs())


@tracer
def fx_trace_of_modules_call_on_a_constant(call: Callable[..., Any]) -> Any:
    constant = inputs()
    outer = Outer(call)
    return str(fx.symbolic_trace(lambda x: outer.inner(x) + 1, {"x": constant}).graph).count("add")


@tracer
def fx_proxies(call: Callable[..., Any]) -> Any:
    return str(make_fx(call)(inputs()).graph)


@tracer
def fx_proxies_of_symbolic_sizes(call: Callable[..., Any]) -> Any:
    return make_fx(call, tracing_mode="symbolic")(inputs())(inputs())


@tracer
def fx_proxies_before_dispatch(call: Callable[..., Any]) -> Any:
    return str(make_fx(call, pre_dispatch=True)(inputs()).graph)


@tracer
def export(call: Callable[..., Any]) -> Any:
    exported = torch.export.export(Outer(call), (inputs(),), strict=False)
    return str(exported.graph), exported.module()(inputs())


@tracer
def strict_export(call: Callable[..., Any]) -> Any:
    exported = torch.export.export(Outer(call), (inputs(),), strict=True)
    return str(exported.graph), exported.module()(inputs())


@tracer
def whole_graph_of_torch_compile(call: Callable[..., Any]) -> Any:
    graphs: list[str] = []

    def backend(module: fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(str([(node.op, str(node.target)) for node in module.graph.nodes if node.op != "placeholder"]))
        return module.forward

    compiled = torch.compile(lambda x: call(x + 1) - 1, backend=backend, fullgraph=True)
    return compiled(inputs()), compiled(inputs()), graphs


@tracer
def fake_tensors(call: Callable[..., Any]) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = call(mode.from_tensor(inputs()))
    return type(found), found.shape, found.requires_grad


@tracer
def gradient(call: Callable[..., Any]) -> Any:
    return torch.func.grad(lambda x: call(x).sum())(inputs())


@tracer
def batches(call: Callable[..., Any]) -> Any:
    return torch.vmap(call)(inputs()[None])


@tracer
def forward_mode(call: Callable[..., Any]) -> Any:
    return torch.func.jvp(call, (inputs(),), (inputs(),))


@tracer
def functionalised(call: Callable[..., Any]) -> Any:
    return torch.func.functionalize(call)(inputs())


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """As torch's own wrappers of programs turn it on, without a level of torch.func's."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


@tracer
def functionalised_by_its_key(call: Callable[..., Any]) -> Any:
    x = torch._to_functional_tensor(inputs())
    with functionalization():
        found = call(x[:2])
    torch._sync(found)
    return torch._is_functional_tensor(found), torch._from_functional_tensor(found)


@tracer
def functional_tensors(call: Callable[..., Any]) -> Any:
    found = call(torch._to_functional_tensor(inputs())[:2])  # wrapped, with the key off
    torch._sync(found)
    return torch._is_functional_tensor(found), torch._from_functional_tensor(found)


@tracer
def functional_tensors_of_python(call: Callable[..., Any]) -> Any:
    with FunctionalTensorMode():
        found = call(FunctionalTensor.to_functional(inputs())[:2])
    return type(found), FunctionalTensor.from_functional(found)


@tracer
def python_dispatcher(call: Callable[..., Any]) -> Any:
    with enable_python_dispatcher():
        return call(inputs())


@tracer
def dispatch_mode(call: Callable[..., Any]) -> Any:
    seen: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Record():
        found = call(inputs())
    return found, seen


@tracer
def function_mode(call: Callable[..., Any]) -> Any:
    seen: list[Any] = []

    class Record(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Record():
        found = call(inputs())
    return found, len(seen)


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


def original(kind: str) -> Callable[..., Any]:
    torch.manual_seed(0)
    net = Net()
    return {"function": function, "method": net.forward, "module": net}[kind]


def outcome(trace: Tracer, call: Callable[..., Any]) -> Any:
    """The result; or an exception's type and first words, for some of it names objects by address."""
    try:
        return trace(call)
    except Exception as error:
        return type(error).__name__, str(error).strip()[:20]


def captured() -> int:
    return sum(counters["frames"].values())


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("kind", ["function", "method", "module"])
@pytest.mark.parametrize("name", TRACERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sees_the_original(name: str, kind: str, warm: bool) -> None:
    trace = TRACERS[name]
    expected = outcome(trace, original(kind))
    for backend in ("codegen", "eager", "aot_eager"):
        torch.compiler.reset()
        compiled = dynajit.compile(original(kind), backend=backend)
        for _ in range(2 if warm else 0):
            compiled(inputs())
        before = captured()
        assert_equal(outcome(trace, compiled), expected)
        if name not in CAPTURED and not name.startswith("jit_trace"):  # which calls it without tracing, to check
            assert captured() == before  # nothing was captured meanwhile
        torch.testing.assert_close(compiled(inputs()), original(kind)(inputs()))


@pytest.mark.parametrize("name", sorted(TRACERS.keys() - {"jit_script", "strict_export"}))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_called_in_a_compiled_function(name: str) -> None:
    """What the tracer calls is reached with the frame hook on."""
    trace = TRACERS[name]
    net = original("module")
    expected = outcome(trace, net)
    compiled = dynajit.compile(lambda x: (outcome(trace, net), x + 1), backend="eager")
    for _ in range(2):
        torch.compiler.reset()
        found, after = compiled(inputs())
        assert_equal(found, expected)
        assert torch.equal(after, inputs() + 1)


# Those that come after are devices': torch leaves a device's bit behind where one of these is taken out again.
_KEYS = [*itertools.takewhile(lambda key: key is not DispatchKey.Dense, DispatchKey.__members__.values())]


@pytest.mark.parametrize("key", [key for key in _KEYS if key is not DispatchKey.Undefined])
def test_nothing_is_captured_under_a_dispatch_key_that_torch_does_not_include_by_default(key: DispatchKey) -> None:
    """The keys of the tracers above, and those of whatever else asks to be handed all operations."""
    if torch._C._dispatch_tls_is_dispatch_key_included(key):
        return
    compiled = dynajit.compile(lambda number: number + 1, backend="eager")
    before = captured()
    with torch._C._IncludeDispatchKeyGuard(key):
        assert compiled(1) == 2
    assert captured() == before
    assert compiled(1) == 2
    assert captured() > before


@pytest.mark.filterwarnings("error:Dynamo")
@pytest.mark.parametrize("kind", ["function", "method", "module"])
def test_torch_compile_around_breaks_nowhere_and_never_meets_the_compiler(kind: str) -> None:
    """Also where torch.compile's own graph breaks, or its frame is skipped, so that the call is made natively."""
    call = original(kind)
    compiled = dynajit.compile(call)

    def around(x: Tensor, inner: Callable[..., Any]) -> Tensor:
        y = inner(x + 1) - 1
        torch._dynamo.graph_break()
        for _ in range(2):
            y = inner(y) + inner(x)
            torch._dynamo.graph_break()  # in a loop, for which torch.compile skips the frame
        return y

    graphs: list[int] = []

    def backend(module: fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(len(module.graph.nodes))
        return module.forward

    outer = torch.compile(around, backend=backend)
    expected, before = outer(inputs(), call), list(graphs)
    graphs.clear()
    torch.compiler.reset()
    frames = captured()
    for _ in range(2):
        torch.testing.assert_close(outer(inputs(), compiled), expected)
    assert graphs == before
    assert captured() == frames


def test_compiled_again_after_the_tracer() -> None:
    compiled = dynajit.compile(Net(), backend="eager")
    torch.jit.trace(compiled, inputs())
    make_fx(compiled)(inputs())
    report = dynajit.explain(compiled)(inputs())
    assert report.graph_count == 1


@pytest.mark.parametrize("kind", ["function", "method", "module"])
def test_torch_compile_of_a_module_that_has_it_as_an_attribute(kind: str) -> None:
    call = original(kind)
    compiled = torch.compile(Outer(dynajit.compile(call)), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs()), Outer(call)(inputs()))


def test_torch_compile_of_a_wrapper_traces_the_wrapper() -> None:
    inner = dynajit.compile(function)

    @functools.wraps(inner)
    def wrapper(x: Tensor) -> Tensor:
        return inner(x) * 2

    compiled = torch.compile(wrapper, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs()), function(inputs()) * 2)
