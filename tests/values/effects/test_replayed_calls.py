"""Calls of loggers and of `warnings` are made behind the graph: what they tell, from which line, is eager's."""

# ruff: noqa: B028 -- most programs warn without a stack level, and each level is another case

from __future__ import annotations

import functools
import logging
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.interp.policy import real_signature
from dynajit.testing import assert_same
from dynajit.torch_warnings import unwarned

X = torch.arange(6.0).reshape(2, 3)
LOGGER = logging.getLogger("dynajit_test_replayed")


class Lines(logging.Handler):
    """Keeps what is logged, as it is then: text, level, function, line, file, exception."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        where = record.funcName, record.lineno, record.pathname
        self.lines.append((record.getMessage(), record.levelname, *where, error))


@pytest.fixture
def handler() -> Iterator[Lines]:
    handler = Lines()
    logging.root.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler
    logging.root.removeHandler(handler)
    LOGGER.setLevel(logging.NOTSET)


def logged(handler: Lines, fn: Callable[..., Any], *args: Any, **counts: int) -> list[Any]:
    """What eager and compiled log has to be the same: texts, functions, lines."""
    handler.lines.clear()
    assert_same(fn, *args, repeat=1, **counts)
    of_one_call = handler.lines[: len(handler.lines) // 6]  # eager and compiled, thrice each
    assert handler.lines == of_one_call * 6
    assert of_one_call
    return of_one_call


def warned(fn: Callable[..., Any], *args: Any, filters: tuple[Any, ...] = ("always",), **counts: int) -> list[Any]:
    """What eager and compiled warn of has to be the same: texts, categories, lines, and the filters left behind."""
    shown = []
    for run in (fn, dynajit.compile(fn, backend="eager")):
        dynajit.reset()
        fn.__globals__.pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(*filters)
            before = warnings.filters, list(warnings.filters)
            results = [repr(run(*args)) for _ in range(2)]
            assert warnings.filters is before[0] or run is fn
        lines = [(str(w.message), w.category, w.filename, w.lineno) for w in seen]
        registry = {k: v for k, v in fn.__globals__.get("__warningregistry__", {}).items() if k != "version"}
        shown.append((lines, list(registry.items()), results))
    assert shown[0] == shown[1]
    with warnings.catch_warnings(record=True):
        warnings.simplefilter(*filters)
        report = dynajit.explain(dynajit.compile(fn, backend="eager"))(*args)
    assert (report.graph_count, report.graph_break_count) == (counts.get("graphs", 1), counts.get("breaks", 0))
    return [text for text, *_ in shown[0][0]]


def inner(x: Tensor, number: int) -> Tensor:
    LOGGER.info("inner %d", number)
    return x + number


def test_a_call_in_an_inlined_function_tells_its_line(handler: Lines) -> None:
    def outer(x: Tensor) -> Tensor:
        LOGGER.info("outer %s", tuple(x.shape))
        for number in range(2):
            x = inner(x, number)
        LOGGER.warning("done", stacklevel=1)
        return x

    told = logged(handler, outer, X, graphs=1, breaks=0)
    assert [(text, name) for text, _, name, *_ in told] == [
        ("outer (2, 3)", "outer"),
        ("inner 0", "inner"),
        ("inner 1", "inner"),
        ("done", "outer"),
    ]


def higher(x: Tensor) -> Tensor:
    LOGGER.info("of my caller", stacklevel=2)
    return x * 2


def test_the_stack_level_counts_inlined_frames(handler: Lines) -> None:
    def caller(x: Tensor) -> Tensor:
        return higher(x) + 1

    assert logged(handler, caller, X, graphs=1, breaks=0)[0][2] == "caller"


def test_arguments_that_change_later_end_the_graph(handler: Lines) -> None:
    def listed(x: Tensor) -> Any:
        found = [1]
        LOGGER.info("found %s", found)
        found.append(2)
        return x + 1, found

    def written(x: Tensor) -> Tensor:
        y = x + 1
        LOGGER.info("y %s", y)
        y.mul_(2)
        return y

    def argument(x: Tensor) -> Tensor:
        LOGGER.info("x %s", x)
        return x.mul_(2) + 1

    assert logged(handler, listed, X, breaks=1)[0][0] == "found [1]"
    assert logged(handler, written, X, graphs=2, breaks=1)[0][0].startswith("y tensor([[1., 2., 3.]")
    assert logged(handler, argument, X.clone(), graphs=1, breaks=1)[0][0].startswith("x tensor([[0., 1., 2.]")


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def __repr__(self) -> str:
        return f"Counter({self.count})"


def test_an_object_is_printed_as_it_was(handler: Lines) -> None:
    def counted(x: Tensor, counter: Counter) -> Tensor:
        counter.count += 1
        LOGGER.info("before %s", counter)
        counter.count += 1
        y = x + counter.count
        LOGGER.info("after %s", counter)
        return y

    told = logged(handler, counted, X, Counter(), breaks=1)
    assert [text for text, *_ in told] == ["before Counter(1)", "after Counter(2)"]


def test_what_the_logger_drops_is_not_looked_at(handler: Lines) -> None:
    def quiet(x: Tensor) -> Any:
        found = [1]
        y = x.sin()
        LOGGER.debug("y %s of %s", y, found)
        found.append(2)
        return y.cos(), found

    compiled = dynajit.compile(quiet, backend="eager")
    report = dynajit.explain(compiled)(X)
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    compiled(X)
    assert handler.lines == []
    LOGGER.setLevel(logging.DEBUG)
    compiled(X)
    assert [text for text, *_ in handler.lines] == [f"y {X.sin()} of [1]"]


def test_functions_of_the_module_and_adapters(handler: Lines) -> None:
    adapter = logging.LoggerAdapter(LOGGER, {"a": 1})

    def several(x: Tensor) -> Tensor:
        logging.getLogger("dynajit_test_replayed").info("by name")
        adapter.info("by adapter %d", 3)
        logging.warning("of the root")
        return x + 1

    told = logged(handler, several, X, graphs=1, breaks=0)
    assert [text for text, *_ in told] == ["by name", "by adapter 3", "of the root"]


def test_the_exception_that_is_handled_is_logged(handler: Lines) -> None:
    def handling(x: Tensor) -> Tensor:
        try:
            raise KeyError("a")
        except KeyError:
            LOGGER.exception("bad")
        return x + 1

    assert logged(handler, handling, X)[0][-1] is KeyError


# -- warnings


def checked(x: Tensor, dims: int) -> Tensor:
    if x.dim() != dims:
        warnings.warn(f"expected {dims} dimensions, got {x.dim()}", RuntimeWarning)
    return x + 1


def deprecated(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        warnings.warn(f"{fn.__name__} is old", DeprecationWarning, stacklevel=2)
        return fn(*args)

    return wrapper


@deprecated
def old(x: Tensor) -> Tensor:
    return x * 2


class Own(UserWarning):
    pass


@pytest.mark.parametrize("action", ["always", "default", "once", "module", "ignore"])
def test_warnings_are_shown_once_or_always_as_filters_say(action: str) -> None:
    def several(x: Tensor) -> Tensor:
        warnings.warn("own", Own)
        y = checked(x, 3)
        warnings.warn(Own("made"))
        for _ in range(2):
            y = old(y)
        return y.sin()

    texts = warned(several, X, filters=(action,))
    counts = {"always": 10, "default": 5, "once": 4, "module": 4, "ignore": 0}
    # both calls of `old` are on one line; two lines warn of "own" and "made"
    assert len(texts) == {**counts, "default": 4}[action]


def test_filters_are_changed_and_restored_in_order() -> None:
    def contexts(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("hidden")
            y = x + 1
            with warnings.catch_warnings():
                warnings.filterwarnings("always", message="sh", category=UserWarning)
                warnings.warn("shown inside")
                warnings.warn("hidden, too")
        with warnings.catch_warnings(action="ignore"):
            warnings.warn("hidden by the argument")
        warnings.warn("shown")
        return y * 2

    assert warned(contexts, X) == ["shown inside", "shown"] * 2


def test_a_break_where_filters_are_changed() -> None:
    def broken(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x + 1
            dynajit.graph_break()
            warnings.warn("hidden")
            y = y * 2
        warnings.warn("shown")
        return y.sin()

    assert warned(broken, X, graphs=2, breaks=1) == ["shown"] * 2


@pytest.mark.parametrize("inside", [True, False])
def test_a_filter_makes_an_exception_of_a_warning(inside: bool) -> None:
    def raising(x: Tensor) -> Tensor:
        y = x + 1
        try:
            if inside:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    warnings.warn("raised", Own)
            else:
                warnings.warn("raised", Own)
        except Own as error:
            y = y * len(error.args[0])
        return y - 1

    assert warned(raising, X, filters=("always" if inside else "error",), graphs=2, breaks=1) == []


def test_filters_that_raise_from_a_later_call_on() -> None:
    def warning(x: Tensor) -> Tensor:
        warnings.warn("late", Own)
        return x + 1

    compiled = dynajit.compile(warning, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(X)
        warnings.simplefilter("error")
        with pytest.raises(Own, match="late"):
            compiled(X)
        warnings.simplefilter("ignore")
        assert torch.equal(compiled(X), X + 1)


def test_what_is_recorded_is_read() -> None:
    def recording(x: Tensor) -> Any:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warnings.warn("one")
            y = x + 1
            warnings.warn("two", Own)
        return y * 2, [str(each.message) for each in seen], [each.lineno for each in seen]

    assert_same(recording, X)


class Recorder:
    def __init__(self, seen: list[warnings.WarningMessage]) -> None:
        self.seen = seen


def test_what_is_recorded_is_read_through_an_object() -> None:
    def recording(x: Tensor, recorder: Recorder) -> Any:
        before = len(recorder.seen) if x.dim() == 3 else 0
        warnings.warn("one")
        y = x + 1
        return y * 2, [str(each.message) for each in recorder.seen[before:]]

    compiled = dynajit.compile(recording, backend="eager")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert compiled(X, Recorder(seen))[1] == ["one"]
        assert compiled(X, Recorder(seen))[1] == ["one"] * 2


def test_a_list_that_records_only_in_a_later_call() -> None:
    def recording(x: Tensor, seen: list[Any]) -> Any:
        warnings.warn("one")
        return x + 1, len(seen)

    compiled = dynajit.compile(recording, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert compiled(X, [])[1] == 0
    for _ in range(2):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert compiled(X, [])[1] == 0
            assert len(seen) == 1
            assert compiled(X, seen)[1] == 2


def test_an_operation_that_warns_under_changed_filters() -> None:
    def implicit(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = torch.nn.functional.softmax(x)
        return y * 2

    def grid(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = torch.meshgrid(x[0], x[1])[0]
        return y * 2

    assert warned(implicit, X, graphs=1, breaks=0) == []
    assert warned(grid, X, graphs=2, breaks=1) == []


def test_a_function_of_torchs_warns_of_the_programs_line() -> None:
    def implicit(x: Tensor) -> Tensor:
        return torch.nn.functional.softmax(x) * 2

    assert len(warned(implicit, X, graphs=1, breaks=0)) == 2


class Warns(torch.nn.Module):
    def forward(self, x: Tensor, level: int) -> Tensor:
        warnings.warn("of the module", Own, stacklevel=level)
        return x.sin()


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_torchs_frames_around_forward_are_counted(level: int) -> None:
    module = Warns()

    def outer(x: Tensor) -> Tensor:
        return module(x + 1, level) * 2

    warned(outer, X, graphs=1 if level == 1 else 3, breaks=int(level > 1))


class WarnsAndBreaks(torch.nn.Module):
    def forward(self, x: Tensor, named: dict[str, Any]) -> Tensor:
        warnings.warn("of the module", Own, **named)
        return x.sin()


_SINCE_312 = pytest.mark.skipif(
    "skip_file_prefixes" not in real_signature(warnings.warn).parameters, reason="an argument since CPython 3.12"
)


@pytest.mark.parametrize(
    "named",
    [
        {"stacklevel": 2, "source": LOGGER},
        pytest.param({"skip_file_prefixes": ("/nothing",)}, marks=_SINCE_312),
    ],
    ids=["source", "skipping"],
)
def test_torchs_frames_around_forward_are_counted_where_the_call_breaks(named: dict[str, Any]) -> None:
    module = WarnsAndBreaks()

    def outer(x: Tensor) -> Tensor:
        return module(x + 1, named) * 2

    warned(outer, X, graphs=3, breaks=1)


class LogsAndBreaks(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        LOGGER.info("of the module", stacklevel=2, stack_info=False)
        return x.sin()


def test_torchs_frames_around_forward_are_counted_where_a_logger_breaks(handler: Lines) -> None:
    module = LogsAndBreaks()

    def outer(x: Tensor) -> Tensor:
        return module(x + 1) * 2

    told = logged(handler, outer, X)
    assert [name for _, _, name, *_ in told] == ["_call_impl"]


def test_what_was_shown_is_not_shown_again_after_a_compile() -> None:
    def warning(x: Tensor) -> Tensor:
        warnings.warn("once for a line")
        return torch.nn.functional.gelu(x) * x.sum()

    compiled = dynajit.compile(warning, backend="codegen", dynamic=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for size in (2, 3, 4):
            compiled(torch.ones(size, requires_grad=True))
    assert [str(each.message) for each in seen] == ["once for a line"]


def test_variables_of_the_module_are_written() -> None:
    def replaced(x: Tensor) -> Any:
        shown: list[str] = []
        before = warnings.showwarning
        warnings.showwarning = lambda message, *rest, **more: shown.append(str(message))
        warnings.warn("to the program's")
        warnings.showwarning = before
        return x + 1, shown

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert_same(replaced, X)


def test_another_module_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def quiet(x: Tensor) -> Any:
        with warnings.catch_warnings() as context:
            y = x + 1
        return y, context

    compiled = dynajit.compile(quiet, backend="eager")
    compiled(X)
    other: Any = types.SimpleNamespace(**vars(warnings))
    other.filters = []
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):  # whichever the release calls
        setattr(other, name, lambda: entered.append(other.filters))
    entered: list[Any] = []
    monkeypatch.setitem(sys.modules, "warnings", other)
    compiled(X)
    assert entered == [[], []]


def test_a_context_is_entered_twice() -> None:
    def twice(x: Tensor) -> Any:
        context = warnings.catch_warnings()
        try:
            with context, context:
                pass
        except RuntimeError as error:
            return x + 1, str(error)

    assert_same(twice, X)


def test_a_logger_that_is_changed_around_a_call(handler: Lines) -> None:
    def switched(x: Tensor) -> Tensor:
        LOGGER.info("one")
        LOGGER.disabled = True
        LOGGER.info("two")
        LOGGER.disabled = False
        LOGGER.info("three")
        return x + 1

    assert [text for text, *_ in logged(handler, switched, X)] == ["one", "three"]


def test_a_message_that_does_not_fit_its_arguments(handler: Lines) -> None:
    def wrong(x: Tensor) -> Any:
        try:
            LOGGER.info("number %d", "a")
        except TypeError as error:
            return x + 1, str(error)

    assert_same(wrong, X)


@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_in_a_message(handler: Lines, dynamic: bool) -> None:
    def f(x: Tensor, step: int, rate: float) -> Tensor:
        LOGGER.info(
            "step %05d of %s: %.3f, %5.2e %+g %-6r|%d%%", step, "ten", rate * 2, rate, step, x.dim(), x.shape[0]
        )
        return x * rate + step

    run = dynajit.compile(f, backend="eager", dynamic=dynamic, fullgraph=True)
    for step, rate in ((1, 0.5), (2, 0.25), (3, -1.5), (4, float("inf"))):
        x = torch.ones(step + 2, 3)
        handler.lines.clear()
        assert torch.equal(run(x, step, rate), f(x, step, rate))
        assert len(handler.lines) == 2 and handler.lines[0] == handler.lines[1]


def test_numbers_behind_a_break(handler: Lines) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        mean = y.mean().item()
        LOGGER.info("mean %.2f", mean)
        return y + mean

    assert [text for text, *_ in logged(handler, f, X, breaks=1)] == ["mean 5.00"]


@pytest.mark.parametrize("message", ["%d", "%x", "%.1f %d", "%q", "%*d", "%(a)s", "%", "%c"])
def test_numbers_that_a_message_does_not_take(handler: Lines, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Tensor, value: float) -> Tensor:
        LOGGER.info(message, value)
        return x * value

    run = dynajit.compile(f, backend="eager", dynamic=True)
    told = []
    for value in (0.5, float("nan"), float("inf")):
        for fn in (run, f):
            handler.lines.clear()
            try:
                told.append((fn(X[:1, :1] * 0 + 1, value).isnan().item(), [line[0] for line in handler.lines]))
            except (TypeError, ValueError, OverflowError) as error:
                told.append((type(error), str(error)))
    assert told[::2] == told[1::2]


def test_warnings_break_the_graph_if_configured() -> None:
    def warning(x: Tensor) -> Tensor:
        y = x + 1
        warnings.warn("here")
        return y * 2

    with dynajit.config.patch(replay_warnings=False):
        assert warned(warning, X, graphs=2, breaks=1) == ["here"] * 2


@pytest.mark.parametrize("replaced", [False, True])
def test_warnings_of_other_threads_are_shown_while_operations_are_tried(replaced: bool) -> None:
    shown: list[str] = []

    def show(message: Any, *_: Any) -> None:
        shown.append(str(message))

    with warnings.catch_warnings(record=not replaced) as recorded:
        if replaced:
            warnings.showwarning = show
        with unwarned() as warned:
            warnings.warn("here", stacklevel=1)
            thread = threading.Thread(target=warnings.warn, args=("there",))
            thread.start()
            thread.join()
        shown.extend(str(each.message) for each in recorded or ())
    assert (warned.texts, shown) == (["here"], ["there"])


class Counting(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        COUNTED.append(record.getMessage())


COUNTED: list[str] = []


def test_what_a_handler_changes_is_read_behind_the_call(handler: Lines) -> None:
    """The lines were counted before the call that adds one."""

    def kept(x: Tensor) -> Any:
        y = x + 1
        LOGGER.info("one more")
        return y * 2, len(handler.lines)

    def named(x: Tensor) -> Any:
        logging.info("of all loggers")
        return x * 2, COUNTED[-1], len(COUNTED)

    for program in (kept, named):
        compiled = dynajit.compile(program, backend="eager")
        for counting in (False, True):
            added = Counting()
            COUNTED[:] = ["start"]
            handler.lines.clear()
            if counting:
                logging.root.addHandler(added)
            logging.root.setLevel(logging.INFO)
            try:
                found = [run(X)[1:] for run in (program, compiled, program, compiled)]
            finally:
                logging.root.removeHandler(added)
                logging.root.setLevel(logging.WARNING)
            if program is kept:
                assert found == [(1,), (2,), (3,), (4,)]
            else:
                told = "of all loggers" if counting else "start"
                assert found == [(told, 1 + counting * count) for count in (1, 2, 3, 4)]
