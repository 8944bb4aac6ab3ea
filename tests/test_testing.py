"""`assert_same` notices each kind of difference. The compilers here are fakes that go wrong in one way each."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.report import records
from dynajit.testing import CompileCounter, CompileCounterWithBackend, EagerAndRecordGraphs, assert_same, compare

Fake = Callable[[Callable[[Callable[..., Any]], Callable[..., Any]]], None]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replace `dynajit.compile` by a function from the original to what is called instead."""

    def use(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        monkeypatch.setattr(dynajit, "compile", lambda fn, **options: wrap(fn), raising=False)
        monkeypatch.setattr(dynajit, "reset", lambda: None, raising=False)

    return use


def update(x: Tensor, out: list[Tensor]) -> tuple[Tensor, Tensor]:
    print("updating", len(out))
    out.append(x * 2)
    x.add_(torch.rand(3))
    return x, x[1:]


def test_the_same_passes(compiler: Fake) -> None:
    compiler(lambda fn: fn)
    assert_same(update, torch.ones(3), [])
    assert_same(update, torch.ones(3), [], then=[(torch.zeros(3), [torch.ones(1)])])
    assert_same(nn.Linear(2, 2), torch.ones(2))
    assert_same(nn.BatchNorm1d(2), torch.randn(4, 2), repeat=3)


def wrong_value(x: Tensor, out: list[Tensor]) -> Any:
    a, _ = update(x, out)
    x[0] += 1e-6
    return a, a[1:]


def no_mutation(x: Tensor, out: list[Tensor]) -> Any:
    return update(x, list(out))


def new_object(x: Tensor, out: list[Tensor]) -> Any:
    a, b = update(x, out)
    return a.view(3), b


def lost_alias(x: Tensor, out: list[Tensor]) -> Any:
    a, b = update(x, out)
    return a, b.clone()


def printed_twice(x: Tensor, out: list[Tensor]) -> Any:
    print("updating", len(out))
    return update(x, out)


def other_type(x: Tensor, out: list[Tensor]) -> Any:
    return list(update(x, out))


def random_numbers_used(x: Tensor, out: list[Tensor]) -> Any:
    result = update(x, out)
    torch.rand(1)
    return result


def python_random_numbers_used(x: Tensor, out: list[Tensor]) -> Any:
    random.random()
    return update(x, out)


def raises(x: Tensor, out: list[Tensor]) -> Any:
    raise ValueError("no")


def second_call_wrong(x: Tensor, out: list[Tensor]) -> Any:
    return update(x, out) if not out else update(x, out)[::-1]


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        (wrong_value, r"call 1\.result\[0\]: Tensor-likes are not equal"),
        (no_mutation, r"call 1\.inputs\[0\]\[1\]: has \[\], expected \['\[0\]'\]"),
        (new_object, r"call 1\.sharing"),
        (lost_alias, r"call 1\.sharing"),
        (printed_twice, r"call 1\.stdout: 'updating 0\\nupdating 0\\n'"),
        (other_type, r"call 1\.result: type <class 'list'>"),
        (random_numbers_used, r"call 1\.random_state"),
        (python_random_numbers_used, r"call 1\.random_state"),
        (raises, r"call 1\.result|call 1\.error"),
        (second_call_wrong, r"call 2\.result"),
    ],
)
def test_a_difference_is_found(compiler: Fake, wrong: Callable[..., Any], place: str) -> None:
    compiler(lambda fn: wrong)
    with pytest.raises(AssertionError, match=place):
        assert_same(update, torch.ones(3), [])


def transposed(x: Tensor) -> Tensor:
    return x.t()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.t().contiguous(),
        lambda x: x.t().detach(),
        lambda x: x.t().double(),
        lambda x: x.t()[:1],
    ],
)
def test_tensor_properties_are_compared(compiler: Fake, wrong: Callable[[Tensor], Tensor]) -> None:
    compiler(lambda fn: wrong)
    with pytest.raises(AssertionError, match=r"strides|requires_grad|dtype|shape"):
        assert_same(transposed, torch.randn(2, 3, requires_grad=True))


def backward(x: Tensor) -> Tensor:
    loss = (x * x).sum()
    loss.backward()
    return loss.detach()


def test_gradients_are_compared(compiler: Fake) -> None:
    compiler(lambda fn: fn)
    assert_same(backward, torch.randn(3, requires_grad=True))
    compiler(lambda fn: lambda x: (x * x).sum().detach())
    with pytest.raises(AssertionError, match=r"\.grad"):
        assert_same(backward, torch.randn(3, requires_grad=True))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def test_module_state_is_compared(compiler: Fake) -> None:
    compiler(lambda fn: fn)
    assert_same(Scaled(), torch.ones(2))
    assert_same(Scaled().forward, torch.ones(2))
    calls = iter([1, 2])
    compiler(lambda fn: lambda x: x * next(calls))
    with pytest.raises(AssertionError, match=r"call 1\.inputs.*calls"):
        assert_same(Scaled(), torch.ones(2))


def fails(x: Tensor) -> Tensor:
    try:
        raise KeyError("inner")
    except KeyError as inner:
        raise ValueError(f"bad shape {tuple(x.shape)}") from inner


def other_message(x: Tensor) -> Tensor:
    raise ValueError("bad shape") from KeyError("inner")


def no_cause(x: Tensor) -> Tensor:
    raise ValueError(f"bad shape {tuple(x.shape)}")


@pytest.mark.parametrize("wrong", [other_message, no_cause, lambda x: x])
def test_exceptions_are_compared(compiler: Fake, wrong: Callable[[Tensor], Tensor]) -> None:
    compiler(lambda fn: fn)
    assert_same(fails, torch.ones(2))
    compiler(lambda fn: wrong)
    with pytest.raises(AssertionError, match=r"call 1\.(error|result)"):
        assert_same(fails, torch.ones(2))


def test_other_backends_get_a_tolerance(compiler: Fake) -> None:
    compiler(lambda fn: lambda x: fn(x) * (1 + 1e-6))
    with pytest.raises(AssertionError, match="not equal"):
        assert_same(torch.sin, torch.randn(5))
    assert_same(torch.sin, torch.randn(5), backend="codegen")
    assert_same(torch.sin, torch.randn(5), rtol=1e-4, atol=0)


def test_counts_are_pinned(compiler: Fake) -> None:
    def publishing(fn: Callable[..., Any]) -> Callable[..., Any]:
        record = records.CompileRecord("[0/0]", "f", "m.py", 1, graphs=[records.GraphRecord("[0/0]", 1, None)])
        record.breaks.append(records.BreakRecord("call", "print() was called"))
        records.publish(record)
        return fn

    compiler(publishing)
    report = assert_same(torch.sin, torch.ones(2), graphs=1, breaks=1, recompiles=0)
    assert report.graph_count == 1
    for wrong in ({"graphs": 2}, {"breaks": 0}, {"recompiles": 1}):
        with pytest.raises(AssertionError, match=r"expected (.|\n)*print"):
            assert_same(torch.sin, torch.ones(2), **wrong)  # type: ignore[arg-type]


def test_arguments_that_share_stay_shared_and_the_callers_are_untouched(compiler: Fake) -> None:
    compiler(lambda fn: fn)
    base = torch.zeros(4)
    weight = torch.ones(4, requires_grad=True) * 2

    def f(a: Tensor, view: Tensor, weight: Tensor) -> Tensor:
        a.add_(1)
        return view * weight

    assert_same(f, base, base[:], weight)
    assert torch.equal(base, torch.zeros(4))
    compiler(lambda fn: lambda a, view, weight: (a.add_(1), torch.zeros(4) * weight)[1])
    with pytest.raises(AssertionError, match="result"):
        assert_same(f, base, base[:], weight)


def test_compare_scalars_and_cycles() -> None:
    compare([math.nan, 0.0, {"a": {1, 2}}], [math.nan, 0.0, {"a": {2, 1}}])
    for actual, expected in [(0.0, -0.0), (1, True), (1, 1.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1}, {2})]:
        with pytest.raises(AssertionError):
            compare(actual, expected)
    loop: list[Any] = [1]
    loop.append(loop)
    twin: list[Any] = [1]
    twin.append(twin)
    compare(loop, twin)


def test_counting_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.relu(x + 1)

    gm = torch.fx.symbolic_trace(f)
    x = torch.randn(3)
    counter = CompileCounter()
    assert torch.equal(counter(gm, [x])(x), f(x))
    assert (counter.frame_count, counter.op_count) == (1, 2)
    counter.clear()
    assert (counter.frame_count, counter.op_count) == (0, 0)
    monkeypatch.setattr(dynajit, "lookup_backend", lambda name: lambda gm, inputs: gm.forward, raising=False)
    with_backend = CompileCounterWithBackend("eager")
    with_backend(gm, [x])
    assert (with_backend.frame_count, with_backend.op_count, len(with_backend.graphs)) == (1, 2, 1)
    recorder = EagerAndRecordGraphs()
    assert torch.equal(recorder(gm, [x])(x), f(x))
    assert recorder.graphs == [gm]


def test_a_call_made_again_compiles_nothing() -> None:
    """A program that is compiled for a value that it changes at each call is found out, unless it says so."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = "."

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += "."
            return x * sum(1 for _ in self.calls)

    with pytest.raises(AssertionError, match=r"made again captured frames(.|\n)*Counting: .*calls"):
        assert_same(Counting(), torch.ones(2))
    assert_same(Counting(), torch.ones(2), never_repeats="it counts its calls in a text")


@pytest.mark.parametrize("error", [None, ValueError, IndexError])
def test_addresses_in_texts_are_not_compared(compiler: Fake, error: type[Exception] | None) -> None:
    def shows(alive: list[Any]) -> str:
        alive.append(object())
        print(alive)
        if error is not None:
            raise error(alive[-1])
        return f"{alive[-1]!r}"

    compiler(lambda fn: fn)
    assert_same(shows, [])
