"""The public functions: what can be compiled, how compiled things behave as objects, bad input, explain, logs."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import io
import logging
import os
import pickle
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit import exc
from dynajit.testing import CompileCounter, assert_same, compare


def double(x: Tensor, /, y: int = 2, *rest: Any, scale: float = 1.0, **named: Any) -> Tensor:
    """Doubles."""
    return (x * y + len(rest)) * scale + len(named)


# ------------------------------------------------------------------------------------------------ what can be compiled


def test_decorator_forms() -> None:
    counter = CompileCounter()

    @dynajit.compile(backend=counter)
    def with_arguments(x: Tensor) -> Tensor:
        return x.sin()

    @dynajit.compile
    def without(x: Tensor) -> Tensor:
        return x + 1

    called = dynajit.compile(lambda x: x.cos(), backend=counter)
    x = torch.randn(3)
    assert torch.equal(with_arguments(x), x.sin()) and torch.equal(called(x), x.cos())
    assert torch.allclose(without(x), x + 1)
    assert counter.frame_count == 2


def test_arguments_are_bound_as_by_the_function() -> None:
    compiled = dynajit.compile(double, backend="eager")
    x = torch.randn(3)
    for args, kwargs in [
        ((x,), {}),
        ((x, 3), {}),
        ((x, 3, 1, 2), {"scale": 2.0}),
        ((x,), {"y": 5, "a": 1, "b": 2}),
        ((x,), {"x": 1}),
    ]:
        for _ in range(2):
            assert torch.equal(compiled(*args, **kwargs), double(*args, **kwargs))
    for args, kwargs in [((), {}), ((x, 1), {"y": 2}), ((), {"x": x})]:
        with pytest.raises(TypeError) as expected:
            double(*args, **kwargs)
        with pytest.raises(TypeError) as actual:
            compiled(*args, **kwargs)
        assert str(actual.value) == str(expected.value)


def test_looks_like_the_function() -> None:
    compiled = dynajit.compile(double, backend="eager")
    assert compiled.__name__ == "double" and compiled.__doc__ == "Doubles." and compiled.__wrapped__ is double
    assert compiled.__module__ == double.__module__ and compiled.__qualname__ == double.__qualname__
    assert inspect.signature(compiled) == inspect.signature(double)
    assert callable(compiled) and "double" in repr(compiled)
    compiled.note = 1
    assert compiled.note == 1 and not hasattr(double, "note")


class Methods:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @dynajit.compile(backend="eager")
    def method(self, x: Tensor) -> Tensor:
        return x * self.factor

    @staticmethod
    @dynajit.compile(backend="eager")
    def static(x: Tensor) -> Tensor:
        return x + 1

    @classmethod
    @dynajit.compile(backend="eager")
    def of_class(cls, x: Tensor) -> Tensor:
        return x * len(cls.__name__)

    @property
    @dynajit.compile(backend="eager")
    def value(self) -> Tensor:
        return torch.ones(2) * self.factor

    def plain(self, x: Tensor) -> Tensor:
        return x - self.factor

    def __call__(self, x: Tensor) -> Tensor:
        return x / self.factor


def test_methods() -> None:
    x = torch.randn(2)
    a, b = Methods(2.0), Methods(3.0)
    for _ in range(2):
        assert torch.equal(a.method(x), x * 2.0) and torch.equal(b.method(x), x * 3.0)
        assert torch.equal(a.static(x), x + 1) and torch.equal(Methods.static(x), x + 1)
        assert torch.equal(Methods.of_class(x), x * 7) and torch.equal(a.of_class(x), x * 7)
        assert torch.equal(a.value, torch.ones(2) * 2.0)
        assert torch.equal(Methods.method(b, x), x * 3.0)
    bound = dynajit.compile(a.plain, backend="eager")
    assert torch.equal(bound(x), x - 2.0) and bound.__self__ is a


@pytest.mark.parametrize(
    "target",
    [
        torch.sin,
        torch.Tensor.sin,
        torch.nn.functional.gelu,
        torch.nn.functional.relu,
        Methods(2.0),
        functools.partial(torch.add, alpha=2, other=torch.ones(3)),
        functools.partial(double, y=3),
        lambda x: x.sin() + 1,
        torch.ops.aten.sin.default,
        abs,
        torch.nn.functional.softplus,
    ],
    ids=[
        "torch.sin",
        "Tensor.sin",
        "F.gelu",
        "F.relu",
        "object",
        "partial",
        "partial of own",
        "lambda",
        "aten.sin",
        "abs",
        "F.softplus",
    ],
)
def test_other_callables(target: Callable[..., Any]) -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(target, backend=counter)
    x = torch.randn(3)
    for _ in range(2):
        assert torch.equal(compiled(x), target(x))
    assert counter.frame_count == 1


def test_compiled_of_compiled() -> None:
    first, second = CompileCounter(), CompileCounter()
    once = dynajit.compile(lambda x: x.sin(), backend=first)
    twice = dynajit.compile(once, backend=second)
    x = torch.randn(3)
    assert torch.equal(twice(x), x.sin()) and torch.equal(once(x), x.sin())
    assert (first.frame_count, second.frame_count) == (1, 1)


def test_compiled_functions_call_each_other() -> None:
    first, second = CompileCounter(), CompileCounter()
    inner = dynajit.compile(lambda x: x.sin() * 2, backend=first)

    @dynajit.compile(backend=second)
    def outer(x: Tensor) -> Tensor:
        return inner(x + 1) + inner(x - 1)

    x = torch.randn(3)
    for _ in range(2):
        assert torch.equal(outer(x), (x + 1).sin() * 2 + (x - 1).sin() * 2)
    assert second.frame_count >= 1 and first.frame_count + second.frame_count <= 3


def test_recursion_through_the_compiled_function() -> None:
    @dynajit.compile(backend="eager")
    def down(x: Tensor, n: int) -> Tensor:
        return x if n == 0 else down(x + 1, n - 1) * 2

    @dynajit.compile(backend="eager")
    def noisy_down(x: Tensor, n: int) -> Tensor:
        y = x + 1
        print(n)
        return y if n == 0 else noisy_down(y, n - 1) * 2

    def plain(x: Tensor, n: int) -> Tensor:
        return x if n == 0 else plain(x + 1, n - 1) * 2

    for n in (0, 3, 5):
        assert torch.equal(down(torch.ones(2), n), plain(torch.ones(2), n))
        noisy_down(torch.ones(2), n)
    with pytest.raises(RecursionError):

        @dynajit.compile(backend="eager")
        def forever(x: Tensor) -> Tensor:
            return forever(x + 1)

        forever(torch.ones(1))


def test_generators_and_coroutines() -> None:
    @dynajit.compile(backend="eager")
    def generate(x: Tensor) -> Iterator[Tensor]:
        for i in range(3):
            yield work(x + i)

    @dynajit.compile(backend="eager")
    async def wait(x: Tensor) -> Tensor:
        await asyncio.sleep(0)
        return work(x)

    def work(x: Tensor) -> Tensor:
        return x.sin()

    x = torch.randn(3)
    for _ in range(2):
        assert all(torch.equal(a, (x + i).sin()) for i, a in enumerate(generate(x)))
        assert torch.equal(asyncio.run(wait(x)), x.sin())
    assert inspect.isgeneratorfunction(inspect.unwrap(generate))


def test_bad_input() -> None:
    for target in (3, "text", torch.ones(3), [abs]):
        with pytest.raises(TypeError, match="callable"):
            dynajit.compile(target)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="Methods"):
        dynajit.compile(Methods)
    with pytest.raises(exc.ConfigError, match=r"'nothing'.*codegen.*eager"):
        dynajit.compile(double, backend="nothing")
    with pytest.raises(exc.ConfigError, match=r"mode 'fast'.*default.*max-autotune.*reduce-overhead"):
        dynajit.compile(double, mode="fast")
    with pytest.raises(exc.ConfigError, match="exclude each other"):
        dynajit.compile(double, mode="default", options={})
    with pytest.raises(exc.ConfigError, match="dynamic"):
        dynajit.compile(double, dynamic="yes")  # type: ignore[call-overload]
    with pytest.raises(exc.ConfigError, match="fullgraph"):
        dynajit.compile(double, fullgraph=3)  # type: ignore[call-overload]
    with pytest.raises(exc.ConfigError, match="backend"):
        dynajit.compile(double, backend=3)  # type: ignore[call-overload]
    with pytest.raises(exc.ConfigError, match=r"option 'no_such'"):
        dynajit.compile(double, options={"no_such": 1})
    with pytest.raises(exc.ConfigError, match=r"max_autotune is one of False, True, not 'always'"):
        dynajit.compile(double, options={"max_autotune": "always"})
    with pytest.raises(exc.ConfigError, match=r"'everything'.*bytecode.*graph_breaks.*guards"):
        dynajit.set_logs("everything")


# ------------------------------------------------------------------------------------------------ disable, reset, state


def test_disable() -> None:
    counter = CompileCounter()

    @dynajit.disable
    def left_alone(x: Tensor) -> Tensor:
        assert not dynajit.is_compiling()
        return inner(x) + 1

    def inner(x: Tensor) -> Tensor:
        return x.tan()

    @dynajit.compile(backend=counter)
    def outer(x: Tensor) -> Tensor:
        y = x.sin()
        return left_alone(y).cos()

    x = torch.randn(3)
    for _ in range(2):
        assert torch.equal(outer(x), (x.sin().tan() + 1).cos())
    assert (counter.frame_count, counter.op_count) == (2, 2)
    assert left_alone.__name__ == "left_alone"


def test_disable_not_recursive() -> None:
    counter = CompileCounter()

    @dynajit.disable(recursive=False)
    def left_alone(x: Tensor) -> Tensor:
        y = inner(x) + 1
        return y

    def inner(x: Tensor) -> Tensor:
        return x.tan() * 2

    @dynajit.compile(backend=counter)
    def outer(x: Tensor) -> Tensor:
        y = x.sin()
        return left_alone(y).cos()

    x = torch.randn(3)
    assert torch.equal(outer(x), (x.sin().tan() * 2 + 1).cos())
    assert (counter.frame_count, counter.op_count) == (3, 4)


def test_disabled_modules_and_compiled_functions() -> None:
    module = nn.Linear(3, 3)
    x = torch.randn(3)
    counter = CompileCounter()
    alone = dynajit.disable(dynajit.compile(lambda x: x.sin(), backend=counter))
    assert torch.equal(alone(x), x.sin()) and counter.frame_count == 0
    disabled = dynajit.disable(module)
    assert torch.equal(disabled(x), module(x))
    assert isinstance(disabled, nn.Linear) and disabled.weight is module.weight
    parent = nn.Sequential(nn.ReLU(), disabled, nn.ReLU())
    report = dynajit.explain(lambda x: disabled(x.sin()).cos())(x)
    assert (report.graph_count, report.break_reasons[0].kind) == (2, "disabled")
    assert torch.equal(dynajit.compile(parent, backend="eager")(x), parent(x))
    assert torch.equal(copy.deepcopy(disabled)(x), module(x))
    assert dynajit.compile(alone) is alone
    same = dynajit.compile(double, disable=True)
    assert same is double
    with pytest.raises(exc.ConfigError, match="disable takes True or False, not 'no'"):
        dynajit.compile(double, disable="no")  # type: ignore[call-overload]


def test_graph_break_and_is_compiling() -> None:
    def fn(x: Tensor) -> Any:
        y = x.sin()
        dynajit.graph_break()
        return y.cos(), dynajit.is_compiling()

    counter = CompileCounter()
    _, compiling = dynajit.compile(fn, backend=counter)(torch.randn(3))
    assert compiling and counter.frame_count == 2
    assert fn(torch.randn(3))[1] is False and dynajit.is_compiling() is False


def test_reset() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(noisy, backend=counter)
    compiled(torch.randn(3))
    compiled(torch.randn(3))
    assert counter.frame_count == 2
    dynajit.reset()
    assert dynajit.counters()["unique_graphs"] == 0
    compiled(torch.randn(3))
    compiled(torch.randn(3))
    assert counter.frame_count == 4


def noisy(x: Tensor) -> Tensor:
    y = x.sin()
    print("break")
    return y.cos()


def test_counters() -> None:
    compiled = dynajit.compile(noisy, backend="eager")
    for n in (3, 3, 4):
        compiled(torch.randn(n))
    totals = dynajit.counters()
    assert totals["unique_graphs"] == 4 and totals["graph_break_events"] == 2 and totals["calls_captured"] == 4
    assert dynajit.counters["graph_breaks"]["input-output"] == 2 and totals["recompiles"] == 2


# ------------------------------------------------------------------------------------------------ explain


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    report = dynajit.explain(noisy)(torch.randn(3))
    assert capsys.readouterr().out == "break\n"
    assert (report.graph_count, report.graph_break_count, report.op_count) == (2, 1, 2)
    assert report.break_reasons[0].kind == "input-output" and report.guard_count > 0
    text = str(report)
    assert 'print("break")' in text and "2 graphs, 1 graph break" in text and "What to do" in text
    assert report.to_dict()["graph_count"] == 2


def test_explain_leaves_compiled_functions_as_they_were() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(noisy, backend=counter)
    compiled(torch.randn(3))
    for _ in range(2):
        assert dynajit.explain(compiled)(torch.randn(3)).graph_count == 2
        assert dynajit.explain(noisy)(torch.randn(3)).graph_count == 2
    compiled(torch.randn(3))
    assert counter.frame_count == 2


def test_explain_on_modules_and_methods() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(module.state_dict())
    report = dynajit.explain(module)(torch.randn(4, 3))
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    assert module[1].num_batches_tracked == before["1.num_batches_tracked"] + 1
    compiled = dynajit.compile(module, backend="eager")
    compiled(torch.randn(4, 3))
    assert dynajit.explain(compiled)(torch.randn(4, 3)).graph_count == 1
    assert dynajit.explain(Methods(2.0).plain)(torch.randn(3)).graph_count == 1
    assert torch.equal(dynajit.explain(torch.sin)(torch.ones(3)).result, torch.ones(3).sin())


def test_explain_when_the_function_raises() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("mine")

    report = dynajit.explain(fails)(torch.randn(3))
    assert isinstance(report.error, ValueError) and str(report.error) == "mine"


# ------------------------------------------------------------------------------------------------ errors, threads


def test_tracebacks_show_the_users_lines() -> None:
    def deep(x: Tensor) -> Tensor:
        y = x + 1
        print("break")
        return y @ torch.ones(9)

    def outer(x: Tensor) -> Tensor:
        return deep(x) * 2

    assert_same(outer, torch.randn(3))


def test_exception_objects_are_the_users() -> None:
    class Mine(Exception):
        def __init__(self, code: int, *, more: str) -> None:
            super().__init__(code)
            self.more = more

    @dynajit.compile(backend="eager")
    def fails(x: Tensor) -> Tensor:
        y = x + 1
        raise Mine(len(y), more="more")

    with pytest.raises(Mine) as caught:
        fails(torch.randn(3))
    assert caught.value.args == (3,) and caught.value.more == "more"


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_under_a_tracer_everything_runs_eagerly_or_right(install: Any) -> None:
    compiled = dynajit.compile(noisy, backend="eager")
    x = torch.randn(3)
    events: list[str] = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        events.append(event)
        return tracer

    before = compiled(x)
    install(tracer)
    try:
        during = compiled(x)
    finally:
        install(None)
    assert torch.equal(during, before) and torch.equal(compiled(x), before) and events


def test_threads_share_a_compiled_function() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(lambda x, n: (x + n).sin(), backend=counter)
    failures: list[str] = []

    def run(number: int) -> None:
        for i in range(30):
            x = torch.full((number % 3 + 1,), float(i))
            if not torch.equal(compiled(x, number % 2), (x + number % 2).sin()):
                failures.append(f"{number} {i}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(0)  # those that ran beside the first capture may have been through before it was
    run(1)
    assert not failures and counter.frame_count >= 2


def test_beside_torch_compile() -> None:
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        print("break")
        return y.cos()

    x = torch.randn(3)
    theirs = torch.compile(step, backend="eager")
    ours = dynajit.compile(step, backend="eager")
    for fn in (
        ours,
        theirs,
        ours,
        dynajit.compile(lambda x: theirs(x) + 1, backend="eager"),
        theirs,
        torch.compile(lambda x: ours(x) + 1, backend="eager"),
        ours,
    ):
        result = fn(x)
        assert torch.equal(result, step(x)) or torch.equal(result, step(x) + 1)
    torch.compiler.reset()


@pytest.mark.filterwarnings("error")
def test_torch_compile_called_after_a_break_is_left_to_itself() -> None:
    """Neither compiler looks at the other: torch's would warn about what it meets in ours."""
    theirs = torch.compile(lambda x: x.sin() * 2, backend="eager")
    report = dynajit.explain(lambda x: theirs(x + 1) + 1)(torch.ones(3))
    assert torch.equal(report.result, torch.ones(3).add(1).sin() * 2 + 1)
    assert {frame.filename for frame in report.frames} == {__file__}
    assert (report.graph_count, report.break_reasons[0].kind) == (2, "compiled-by-another")
    torch.compiler.reset()


# ------------------------------------------------------------------------------------------------ pickling, memory


def test_pickle_and_copy() -> None:
    compiled = dynajit.compile(double, backend="eager")
    again = pickle.loads(pickle.dumps(compiled))
    assert torch.equal(again(torch.ones(2)), double(torch.ones(2)))
    assert copy.copy(compiled) is compiled and copy.deepcopy({"f": compiled})["f"] is compiled


def test_dropped_functions_are_freed() -> None:
    def make() -> list[weakref.ref[Any]]:
        big = torch.zeros(1000)

        def fn(x: Tensor) -> Tensor:
            y = x + big.sum()
            print("", end="")
            return y * 2

        compiled = dynajit.compile(fn, backend="eager")
        compiled(torch.ones(3))
        return [weakref.ref(fn), weakref.ref(compiled), weakref.ref(big)]

    references = [reference for _ in range(5) for reference in make()]
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []


def test_dropped_code_and_modules_are_freed() -> None:
    def make() -> list[weakref.ref[Any]]:
        space: dict[str, Any] = {}
        exec(compile("def fn(x):\n    y = x + 1\n    print('', end='')\n    return y * 2\n", "<made>", "exec"), space)
        compiled = dynajit.compile(space["fn"], backend="eager")
        compiled(torch.ones(3))
        module = nn.Linear(3, 3)
        compiled_module = dynajit.compile(module, backend="eager")
        compiled_module(torch.ones(3))
        return [
            weakref.ref(space["fn"].__code__),
            weakref.ref(module),
            weakref.ref(compiled_module),
            weakref.ref(module.weight),
        ]

    references = [reference for _ in range(3) for reference in make()]
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []


def test_a_thousand_compiled_functions_do_not_pile_up() -> None:
    def make() -> None:
        compiled = dynajit.compile(lambda x: x + 1, backend="eager")
        compiled(torch.ones(2))

    for _ in range(100):
        make()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(400):
        make()
    gc.collect()
    # linecache keeps three to five objects (by Python) for the text of each of torch.fx's graphs; nothing else may stay
    assert len(gc.get_objects()) - before < 400 * 5 + 200


# ------------------------------------------------------------------------------------------------ logs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("guards", ["L['x']"]),
        ("graph_breaks", ['print("break")', "^^^^", "input-output"]),
        ("recompiles", ["compiled again", "size"]),
        ("bytecode", ["becomes", "LOAD_FAST"]),
        ("graph_code", ["class DynajitGraph", "sin"]),
        ("perf", ["ms"]),
    ],
)
def test_logs(name: str, expected: list[str], caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger(f"dynajit.{name}")
    dynajit.set_logs(name)
    logger.addHandler(handler)
    try:
        compiled = dynajit.compile(noisy, backend="eager")
        compiled(torch.randn(3))
        compiled(torch.randn(4))
    finally:
        logger.removeHandler(handler)
        dynajit.set_logs("")
    text = stream.getvalue()
    for part in expected:
        assert part in text, text


def test_logs_of_generated_code() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("dynajit.output_code")
    dynajit.set_logs("output_code")
    logger.addHandler(handler)
    try:
        compare(dynajit.compile(lambda x: x.sin() + 1)(torch.ones(8)), torch.ones(8).sin() + 1, exact=False)
    finally:
        logger.removeHandler(handler)
        dynajit.set_logs("")
    assert "for (" in stream.getvalue()


def test_logs_from_the_environment(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = {
        **os.environ,
        "DYNAJIT_LOGS": "graph_breaks,recompiles",
        "PYTHONPATH": str(Path(dynajit.__file__).parents[1]),
    }
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "break\nbreak\n"
    assert "[0/0]" in done.stderr and "program.py:6" in done.stderr and "compiled again" in done.stderr
    assert "program.py" in done.stderr and "^^^^" in done.stderr


PROGRAM = """import torch
import dynajit

def noisy(x):
    y = x.sin()
    print("break")
    return y.cos()

compiled = dynajit.compile(noisy, backend="eager")
compiled(torch.ones(3))
compiled(torch.ones(4))
"""


def test_compile_of_what_is_disabled_alone_compiles_what_it_calls() -> None:
    def callee(x: Tensor) -> Tensor:
        return x.sin() * 2

    def outer(x: Tensor, *, more: int = 1) -> Tensor:
        return callee(x + more) - 1

    counter, x = CompileCounter(), torch.randn(3)
    compiled = dynajit.compile(dynajit.disable(outer, recursive=False), backend=counter)
    for _ in range(3):
        assert torch.equal(compiled(x, more=2), outer(x, more=2))
    assert (counter.frame_count, counter.op_count) == (1, 2)  # sine and product of the callee
    whole = dynajit.compile(dynajit.disable(outer), backend=counter)
    assert torch.equal(whole(x), outer(x))
    assert counter.frame_count == 1


def test_options_of_inductors_are_told_what_is_here_instead() -> None:
    for name, hint in (
        ("max_autotune_gemm", "max_autotune is for all kernels"),
        ("epilogue_fusion", "means nothing here"),
        ("max_autotun", r"did you mean max_autotune\?"),
    ):
        with pytest.raises(exc.ConfigError, match=f"'{name}': .*{hint}.*known: .*freezing"):
            dynajit.compile(double, options={name: True})


def test_an_error_about_a_break_shows_none_of_the_interpreters_frames() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        print(x.shape)
        return x

    with pytest.raises(exc.Unsupported) as caught:
        dynajit.compile(fn, fullgraph=True)(torch.ones(2))
    assert caught.value.__suppress_context__
    assert len([entry for entry in caught.traceback if "dynajit/capture" in str(entry.path)]) <= 1


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"full_graph": True}, "did you mean fullgraph?"),
        ({"mod": "default"}, "did you mean mode?"),
        ({"recompile_limit": 3}, "dynajit.config.recompile_limit"),
        ({"shapes_spec": None}, "mark_dynamic"),
        ({"isolate_recompiles": True}, "leave it out"),
        ({"nothing": 1}, "known: backend, disable, dynamic, fullgraph, mode, model, options"),
    ],
)
def test_an_unknown_argument_is_told_with_what_is_known(named: dict[str, Any], told: str) -> None:
    for call in (dynajit.compile, functools.partial(dynajit.compile, abs), functools.partial(dynajit.explain, abs)):
        with pytest.raises(TypeError, match=f"unknown argument of compile .*{re.escape(told)}"):
            call(**named)


def test_no_backend_is_the_default_one() -> None:
    compiled = dynajit.compile(lambda x: x + 1, backend=None, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_only_callables_are_disabled() -> None:
    with pytest.raises(TypeError, match=r"disable takes a callable, not int: 3"):
        dynajit.disable(3)  # type: ignore[call-overload]
