"""Equal calls of `compile` share what they compile; others don't, and nothing lives longer for it."""

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit import _C
from dynajit.capture.shared import MAX_PARKED, unshared
from dynajit.config import config
from dynajit.testing import CompileCounter, EagerAndRecordGraphs


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dynajit.graph_break()
    return y + 1


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.factor


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: int = 1) -> torch.Tensor:
        y = self.linear(x)
        dynajit.graph_break()
        return y * n


TARGETS: dict[str, Callable[[], Any]] = {
    "function": lambda: add_one,
    "function that breaks": lambda: broken,
    "method": lambda: Scaled(2.0).run,
    "callable object": lambda: Scaled(2.0),
    "partial": lambda: functools.partial(torch.add, torch.ones(3, 4)),
    "module": Model,
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
def test_equal_calls_compile_once(target: Callable[[], Any], kept: bool) -> None:
    called, backend, x = target(), CompileCounter(), torch.randn(3, 4)
    expected = called(x)
    made = [dynajit.compile(called, backend=backend)]
    assert torch.equal(made[0](x), expected)
    graphs = backend.frame_count
    assert graphs > 0
    for _ in range(10):
        again = dynajit.compile(called, backend=backend)
        assert torch.equal(again(x), expected)
        if kept:
            made.append(again)
        else:
            made.clear()
            del again
            gc.collect()
    assert backend.frame_count == graphs


def test_calls_with_other_choices_compile_for_themselves() -> None:
    x = torch.randn(3)
    recorded: list[int] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
        recorded.append(1)
        return gm.forward

    def other(gm: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
        return backend(gm, example_inputs)

    def all_guards(guards: list[Any]) -> list[bool]:
        return [True] * len(guards)

    choices: list[dict[str, Any]] = [
        {"backend": backend},
        {"backend": other},
        {"backend": backend, "fullgraph": True},
        {"backend": backend, "dynamic": True},
        {"backend": backend, "dynamic": False},
        {"backend": backend, "mode": "reduce-overhead"},
        {"backend": backend, "options": {"a": 1}},
        {"backend": backend, "options": {"a": True}},
        {"backend": backend, "options": {"a": [1, {"b": 2.0}]}},
        {"backend": backend, "options": {"verify": 2}},
        {"backend": backend, "options": {"guard_filter_fn": all_guards}},
    ]
    for _ in range(3):
        for number, choice in enumerate(choices, 1):
            assert torch.equal(dynajit.compile(add_one, **choice)(x), x + 1)
            assert len(recorded) >= number
    assert len(recorded) == len(choices)
    with config.patch(recompile_limit=3):
        dynajit.compile(add_one, backend=backend)(x)
    assert len(recorded) == len(choices) + 1


def test_choices_that_cannot_be_compared_are_not_shared() -> None:
    backend = CompileCounter()
    for _ in range(3):
        dynajit.compile(add_one, backend=backend, options={"a": torch.float32})(torch.ones(3))
    assert backend.frame_count == 3


def test_reset_forgets() -> None:
    backend, x = CompileCounter(), torch.ones(3)
    kept = dynajit.compile(add_one, backend=backend)
    kept(x)
    dynajit.reset()
    dynajit.compile(add_one, backend=backend)(x)
    dynajit.compile(add_one, backend=backend)(x)
    assert backend.frame_count == 2
    assert torch.equal(kept(x), x + 1)


def test_explain_compiles_again() -> None:
    compiled = dynajit.compile(add_one, backend="eager")
    compiled(torch.ones(3))
    assert dynajit.explain(compiled)(torch.ones(3)).graph_count == 1


def test_pickled_settings_are_those_of_the_call() -> None:
    named = dynajit.compile(add_one, backend="eager")
    given = dynajit.compile(add_one, backend=dynajit.lookup_backend("eager"))
    assert named.key is not given.key and named.key.choices.settings["backend"] == "eager"


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("target", [Model, lambda: Scaled(2.0), lambda: Scaled(2.0).run, lambda: lambda x: x + 1])
def test_a_target_dies_as_it_does_in_eager(target: Callable[[], Any], backend: str) -> None:
    called = target()
    compiled = dynajit.compile(called, backend=backend)
    compiled(torch.randn(3, 4)).sum()
    code = getattr(getattr(type(called), "forward", getattr(called, "__func__", None)), "__code__", None)
    gone = weakref.ref(getattr(called, "__self__", called))
    del compiled
    gc.collect()
    del called
    gc.collect()
    assert gone() is None
    assert code is None or not _C.variants(code)


def test_a_function_dies_with_the_globals_that_it_is_in() -> None:
    space: dict[str, Any] = {"graph_break": dynajit.graph_break}
    exec("def f(x):\n    y = x + 1\n    graph_break()\n    return y * 2\n", space)
    assert dynajit.compile(space["f"], backend="eager")(torch.ones(2)).tolist() == [4.0, 4.0]
    gone = weakref.ref(space["f"])
    del space
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("bound", [False, True], ids=["object", "method"])
def test_a_backend_dies_as_it_does_in_eager(bound: bool) -> None:
    class Backend(EagerAndRecordGraphs):
        def run(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
            return self(gm, example_inputs)

    backend = Backend()
    for _ in range(2):
        dynajit.compile(broken, backend=backend.run if bound else backend)(torch.ones(3))
    assert len(backend.graphs) == 2
    gone = weakref.ref(backend)
    del backend
    gc.collect()
    assert gone() is None
    assert not _C.variants(broken.__code__)


def test_another_backend_at_the_same_address_compiles_for_itself() -> None:
    for count in range(20):
        backend = CompileCounter()
        dynajit.compile(add_one, backend=backend)(torch.ones(3))
        assert backend.frame_count == 1, count
        del backend


def test_what_a_dropped_function_left_is_still_compiled() -> None:
    def items(x: torch.Tensor) -> Any:
        yield x + 1
        yield x + 2

    backend = CompileCounter()
    left = dynajit.compile(items, backend=backend)(torch.zeros(2))
    gc.collect()
    assert [item.tolist() for item in left] == [[1.0, 1.0], [2.0, 2.0]]


def test_threads_that_compile_the_same_share_one_session() -> None:
    backend, start, made = CompileCounter(), threading.Barrier(8), []

    def work() -> None:
        start.wait()
        for _ in range(50):
            compiled = dynajit.compile(add_one, backend=backend)
            assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
        made.append(compiled.key)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8 and len(set(made)) == 1


def test_unshared_in_unshared() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    counter = CompileCounter()
    with unshared():
        with unshared():
            pass
        for _ in range(2):
            dynajit.compile(f, backend=counter)(torch.ones(3))
    assert counter.frame_count == 2


class Block(nn.Module):
    def __init__(self, width: int = 4, power: int = 2, tied: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.power, self.known = power, {"scale": [2.0]}
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) * self.known["scale"][0]
        dynajit.graph_break()
        return self.second(y) ** self.power


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("called", [lambda block: block, lambda block: block.forward], ids=["module", "method"])
def test_modules_of_one_structure_compile_once(called: Callable[[Block], Any], kept: bool) -> None:
    backend, x, made = CompileCounter(), torch.randn(3, 4), []
    for _ in range(10):
        block = Block()
        compiled = dynajit.compile(called(block), backend=backend)
        for _ in range(2):
            assert torch.equal(compiled(x), block(x))
        made += [compiled] if kept else []
    assert backend.frame_count == 2
    for compiled in made:
        assert torch.equal(compiled(x), getattr(type(compiled), "_dynajit_original", compiled)(x))
    assert backend.frame_count == 2


def test_modules_that_become_unlike_are_still_right() -> None:
    x, blocks = torch.randn(3, 4), [Block() for _ in range(4)]
    compiled = [dynajit.compile(block, backend="eager") for block in blocks]
    blocks[1].power = 3
    blocks[2].second.weight = blocks[2].first.weight
    blocks[3].known["scale"].insert(0, 5.0)
    for _ in range(3):
        for block, call in zip(blocks, compiled, strict=True):
            assert torch.equal(call(x), block(x))


def test_modules_of_other_structures_each_compile() -> None:
    backend = CompileCounter()
    for width in range(2, 30):
        block = Block(width)
        assert torch.equal(dynajit.compile(block, backend=backend)(x := torch.randn(3, width)), block(x))
        del block
    assert backend.frame_count == 2 * 28  # beyond the limit of one function's variants
    for other in (Block(power=3), Block(tied=True), Block().double(), Block().requires_grad_(False)):
        before = backend.frame_count
        dynajit.compile(other, backend=backend)(torch.randn(3, 4).to(other.first.weight.dtype))
        assert backend.frame_count == before + 2


def test_few_sessions_of_dropped_modules_are_kept() -> None:
    class Own(Block):
        pass

    kept = []
    for width in range(2, 40):
        compiled = dynajit.compile(Own(width), backend="eager")
        compiled(torch.randn(3, width))
        kept.append(weakref.ref(session_of(compiled)))
        del compiled
        gc.collect()
    assert sum(reference() is not None for reference in kept) <= MAX_PARKED


def session_of(compiled: nn.Module) -> Any:
    return type(compiled).__call__.__func__.key  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("choices", "shared"),
    [
        ({}, True),
        ({"mode": "max-autotune-no-cudagraphs"}, True),
        ({"mode": "reduce-overhead"}, False),
        ({"options": {"freezing": True}}, False),
        ({"backend": "cudagraphs"}, False),
    ],
)
def test_what_knows_where_a_module_is_is_for_that_one(choices: dict[str, Any], shared: bool) -> None:
    first, second = (dynajit.compile(Block(), **choices) for _ in range(2))
    assert (session_of(first) is session_of(second)) == shared


def test_structures_that_refer_to_themselves() -> None:
    def knot() -> nn.Module:
        made = Block()
        made.known["self"] = [made, made.known]
        return made

    first, second = (dynajit.compile(knot(), backend="eager") for _ in range(2))
    assert session_of(first) is session_of(second)
    deep: list[Any] = [Block(), Block()]  # too deep to be looked at
    for _ in range(200):
        deep = [nn.Sequential(each) for each in deep]
    first, second = (dynajit.compile(each, backend="eager") for each in deep)
    assert session_of(first) is not session_of(second)
