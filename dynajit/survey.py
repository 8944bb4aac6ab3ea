"""A net for cliffs: run a program a few times eagerly and compiled, and say in one page what came of it.

In: a program and its inputs; or, for `python -m dynajit survey`, where a function is that gives both. Out: a
`SurveyReport` (`report/survey.py`): right or not, graphs, breaks, what was compiled again and why, times, memory.
How: each side (eager, eager once more, compiled, float64) has a program and inputs of its own, copied or made anew. All
sets of inputs are called in turn, `rounds` times; what is compiled by a call that repeats an earlier one is a defect.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import importlib.metadata
import importlib.util
import io
import platform
import random
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import dynajit
from dynajit import outcomes
from dynajit.exc import ConfigError
from dynajit.nested import reached
from dynajit.report import records
from dynajit.report.survey import Capture, SavedBytes, SurveyReport, Times
from dynajit.runtime import memory, toolchain
from dynajit.verify import difference, random_gradients

Call = tuple[tuple[Any, ...], dict[str, Any]]

_SEED = 20
_REACHED = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, list, dict, int, float, str)
_TIMED_SETS = 4  # of inputs
_ROUNDS = 300  # of timing, at most


@dataclass
class Side:
    """One side's own program, uncompiled, and its calls. `own`: so is what the program reaches as globals."""

    program: Callable[..., Any]
    calls: list[Call]
    own: bool = True

    def reached(self) -> dict[str, Any]:
        """What a plain function, and those in its closure (it may be decorated), have in closure and globals: modules,
        tensors, optimizers, containers, numbers, texts. Names of inner functions follow a dot."""
        found: dict[str, Any] = {}
        waiting = [("", self.program)]
        seen: set[int] = set()
        while waiting:
            prefix, fn = waiting.pop()
            fn = fn.__func__ if isinstance(fn, types.MethodType) else fn
            if not isinstance(fn, types.FunctionType) or id(fn) in seen:
                continue
            seen.add(id(fn))
            cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
            closure = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
            globals_ = {name: fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__}
            waiting += [(f"{prefix}{name}.", value) for name, value in closure.items()]
            found |= {f"{prefix}{name}": value for name, value in {**closure, **globals_}.items()}
        return {name: value for name, value in found.items() if isinstance(value, _REACHED)}

    def state(self, number: int) -> list[tuple[str, Any]]:
        """What tells one call from the next but the numbers in tensors: numbers, texts, which gradients there are."""
        everything = (self.program, getattr(self.program, "__self__", None), self.calls[number], self.reached())
        return [
            (where, value.is_leaf and value.grad is None if isinstance(value, torch.Tensor) else value)
            for where, value in outcomes.walk(everything, "")
            if isinstance(value, (torch.Tensor, int, float, str, type(None)))
        ]


MakeSide = Callable[[], Side]


def survey(
    fn: Callable[..., Any],
    inputs: Any = (),
    *,
    rounds: int = 3,
    seconds: float = 2.0,
    backend: str | Callable[..., Any] = "codegen",
    **options: Any,
) -> SurveyReport:
    """Run `fn` eagerly and compiled, compare, and report.

    Args:
        fn: a function, bound method or module, uncompiled. It and the inputs are deep-copied for each side; what a
            plain function changes in its globals or closure is shared by all sides, so that the report says
            "undecided": use a module, or `python -m dynajit survey`.
        inputs: the arguments as a tuple, keyword arguments as a dictionary, or a list of such, one for each call.
        rounds: how often all of them are called, at least 2; a repeated call should compile nothing.
        seconds: for measuring times, about; 0 measures none.
        backend, options: as for `dynajit.compile`.

    Returns:
        The report. `report.right` is True, False, or None where eager itself does not give the same twice.

    Raises:
        ConfigError: `inputs` is none of these, or an option is unknown.
        TypeError: `fn` is not callable.
    """
    calls = _calls(inputs)

    def side() -> Side:
        # one deep copy, so that what program and inputs share stays shared
        own, made, _ = outcomes.copies(fn, (), None, [(args, kwargs) for args, kwargs in calls], 0)
        return Side(own, [(call[0], call[1]) for call, _ in made], own=False)

    name = getattr(fn, "__qualname__", type(fn).__name__)
    return _Survey(name, side, backend, options).run(rounds, seconds)


def survey_named(
    name: str, *, rounds: int = 3, seconds: float = 2.0, backend: str = "codegen", **options: Any
) -> SurveyReport:
    """The survey of what `name` says: MODULE:FUNCTION or FILE.py:FUNCTION.

    FUNCTION takes no arguments. It returns `(program, inputs)`, with `inputs` as for `survey`, or `(program, args,
    kwargs)`; it is called once for each side, from the same random state. If it returns anything else it is the program
    itself, called without arguments; its file is then run once for each side, so that no side sees another's changes.

    Raises:
        ConfigError: there is no such module, file or function, it needs arguments, or it raises.
    """
    return _Survey(name, _loader(name), backend, options).run(rounds, seconds)


def program_named(name: str) -> tuple[Any, Call]:
    """The program that `name` says, as for `survey_named`, and the first of its calls. Raises ConfigError."""
    side = _loader(name)()
    return side.program, side.calls[0]


def _calls(inputs: Any) -> list[Call]:
    """Sets of inputs as (args, kwargs)."""
    if not isinstance(inputs, list):
        inputs = [inputs]
    found: list[Call] = []
    for each in inputs:
        if isinstance(each, tuple):
            found.append((each, {}))
        elif isinstance(each, dict) and all(isinstance(key, str) for key in each):
            found.append(((), each))
        else:
            raise ConfigError(
                "inputs are a tuple of arguments, a dictionary of keyword arguments, or a list of such; "
                f"not {type(each).__name__}: {each!r:.100}"
            )
    if not found:
        raise ConfigError("the list of inputs is empty")
    return found


# ------------------------------------------------------------------------------------------------ by name


def _loader(name: str) -> MakeSide:
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise ConfigError(f"say what as MODULE:FUNCTION or FILE.py:FUNCTION, not {name!r}")
    load = _file_loader(Path(where)) if where.endswith(".py") else _module_loader(where)
    module = _load(load, where)
    factory: Any = module
    for part in attribute.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        public = ", ".join(sorted(key for key, value in vars(module).items() if _is_own(value, module)))
        raise ConfigError(f"{where} has no function {attribute}; it has {public or 'none'}")
    try:
        _seed(_SEED)
        with contextlib.redirect_stdout(io.StringIO()):
            given = factory()
    except Exception as error:  # whatever the user's function raises
        raise ConfigError(f"{name}, called without arguments, raised {type(error).__name__}: {error}") from error
    if not _is_program(given):

        def fresh() -> Side:
            again: Any = _load(load, where)
            for part in attribute.split("."):
                again = getattr(again, part)
            return Side(again, [((), {})])

        return fresh

    def made() -> Side:
        _seed(_SEED)
        with contextlib.redirect_stdout(io.StringIO()):
            program, *rest = factory()
        return Side(program, [(tuple(rest[0]), rest[1])] if len(rest) == 2 else _calls(rest[0]))

    return made


def _is_program(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) in (2, 3) and callable(given[0]) and _is_inputs(*given[1:])


def _is_inputs(first: Any, *keywords: Any) -> bool:
    return isinstance(first, (tuple, list, dict)) and all(isinstance(each, dict) for each in keywords)


def _is_own(value: Any, module: types.ModuleType) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__ == module.__name__


def _file_loader(path: Path) -> Callable[[], types.ModuleType]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for `python path`

    def load() -> types.ModuleType:
        return _executed(importlib.util.spec_from_file_location(path.stem, path))

    return load


def _module_loader(name: str) -> Callable[[], types.ModuleType]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"there is no module {name}: {error}") from error
    if spec is None:
        raise ConfigError(f"there is no module {name} (looked for in {', '.join(sys.path[:3])} ...)")
    return lambda: _executed(importlib.util.find_spec(name))


def _executed(spec: Any) -> types.ModuleType:
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


def _load(load: Callable[[], types.ModuleType], where: str) -> types.ModuleType:
    _seed(_SEED)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return load()
    except Exception as error:  # whatever the user's file raises
        raise ConfigError(f"importing {where} raised {type(error).__name__}: {error}") from error


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)


# ------------------------------------------------------------------------------------------------ comparing


class _Closeness(outcomes.Comparison):
    """Numbers may differ from eager's as rounding explains; classes of files that were run twice are alike."""

    def __init__(self, references: dict[str, torch.Tensor], eager: dict[str, torch.Tensor]) -> None:
        super().__init__(True, None, None)
        self._references = references
        # a gradient that is nothing but what rounding left (of a bias before a batch norm, say) is judged by the others
        lengths = [float(value.abs().max()) for where, value in eager.items() if _counts_as_gradient(where, value)]
        self._of_gradients = 1e-6 * max(lengths, default=0.0)

    def same_type(self, actual: type, expected: type) -> bool:
        return actual is expected or (
            (actual.__module__, actual.__qualname__) == (expected.__module__, expected.__qualname__)
        )

    def equal(self, actual: Any, expected: Any) -> bool:
        if isinstance(expected, float):
            # most are what `item()` gives of a tensor of float32
            return difference(*(torch.tensor(value, dtype=torch.float32) for value in (actual, expected))) is None
        return super().equal(actual, expected)

    def close(self, actual: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        found = difference(actual, expected, self._references.get(where))
        if found is not None and _counts_as_gradient(where, expected):
            found = found if float((actual - expected).abs().max()) > self._of_gradients else None
        self._require(found is None, where, str(found))


def _counts_as_gradient(where: str, value: torch.Tensor) -> bool:
    plain = value.is_floating_point() and value.layout is torch.strided and value.numel()
    return "grad" in where and bool(plain)


def _require_same_error(ours: _CallOutcome, eager: _CallOutcome) -> None:
    """The message of an exception says more than that there is no result."""
    mine, theirs = (
        error and f"raised {error[0].__name__}: {error[1]}" for error in (ours.outcome.error, eager.outcome.error)
    )
    if mine != theirs:
        raise AssertionError(f"{mine or 'did not raise'}; eager {theirs or 'did not raise'}")


@dataclass
class _CallOutcome:
    """One call's outcome and its gradients, by the place of what they are of."""

    outcome: outcomes.Outcome
    gradients: dict[str, Any]

    def tensors(self) -> dict[str, torch.Tensor]:
        """By the place that a comparison gives them."""
        found = outcomes.walk(self, "call")
        return {where: value for where, value in found if isinstance(value, torch.Tensor)}


def _called(side: Side, program: Callable[..., Any], number: int, seed: int) -> _CallOutcome:
    args, kwargs = side.calls[number]
    reached = side.reached()
    outcome = outcomes.run(program, side.program, args, kwargs, seed, reached)
    leaves = {
        where: value
        for where, value in outcomes.walk((args, kwargs, side.program, reached), "")
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    }
    return _CallOutcome(outcome, _gradients(outcome.result, leaves))


def _gradients(result: Any, leaves: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Of random sums of the results; the class of the error where a backward pass is refused (the program ran it)."""
    roots = outcomes.differentiable(result)
    if not roots or not leaves:
        return {}
    try:
        found = random_gradients(roots, [*leaves.values()])
    except RuntimeError as error:
        return {"error": type(error).__name__}
    return dict(zip(leaves, found, strict=True))


class _Survey:
    def __init__(self, name: str, side: MakeSide, backend: Any, options: dict[str, Any]) -> None:
        self._side = side
        self._compile = {"backend": backend, **options}
        self.report = SurveyReport(name)
        self._now = (0, False)
        self._differentiable: set[int] = set()  # the sets of inputs whose results have gradients

    def run(self, rounds: int, seconds: float) -> SurveyReport:
        if rounds < 2:
            raise ConfigError(f"a survey takes at least 2 rounds, not {rounds}")
        dynajit.reset()
        sides = [self._side() for _ in range(3)]
        report = self.report
        report.sets = len(sides[0].calls)
        compiled = dynajit.compile(sides[2].program, **self._compile)
        exact = self._in_double()
        with warnings.catch_warnings(record=True) as warned, records.listen(self._note):
            warnings.simplefilter("always")
            report.right = True
            states: list[list[Any]] = [[] for _ in range(report.sets)]
            for number in range(rounds * report.sets):
                state = sides[2].state(number % report.sets)
                self._now = (number + 1, state in states[number % report.sets])
                states[number % report.sets].append(state)
                if not self._one_call(sides, compiled, exact, number):
                    break
            if report.right and report.error is None:
                self._now = (report.calls + 1, sides[2].state(0) in states[0])
                self._measure(sides, compiled, seconds)
        texts = [str(warning.message) for warning in warned]
        report.notes = [*dict.fromkeys(text for text in texts if text.startswith("dynajit"))]
        report.versions = versions(sides[0].program)
        return report

    def _note(self, record: records.CompileRecord) -> None:
        self.report.captures.append(Capture(*self._now, record))

    def _in_double(self) -> Side | None:
        """A side with float64 in the place of other floating-point numbers; None for what can't be copied."""
        side = self._side()
        memo: dict[int, Any] = {}
        owner = getattr(side.program, "__self__", side.program)
        for _, value in outcomes.walk((owner, side.calls), ""):
            if type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_floating_point():
                double = value.detach().double()
                plain = type(value) is torch.Tensor
                memo[id(value)] = (
                    double.requires_grad_(value.requires_grad)
                    if plain
                    else torch.nn.Parameter(double, value.requires_grad)
                )
        try:
            program, calls = copy.deepcopy((side.program, side.calls), memo)
        except Exception:  # whatever an object of the user's raises
            return None
        for value in side.reached().values() if side.own else ():
            if isinstance(value, torch.nn.Module):
                value.double()
        return Side(program, calls, side.own)

    def _one_call(self, sides: list[Side], compiled: Any, exact: Side | None, number: int) -> bool:
        """Call each side and compare; False where there is nothing more to compare."""
        report = self.report
        place, seed = number % report.sets, _SEED + number
        times, seen = [], []
        for side, program in zip(sides, (sides[0].program, sides[1].program, compiled), strict=True):
            start = time.perf_counter()
            seen.append(_called(side, program, place, seed))
            times.append(time.perf_counter() - start)
        if number == 0:
            report.first_call = times[0], times[2]
        report.calls += 1
        eager, again, ours = seen
        if eager.gradients and "error" not in eager.gradients:
            self._differentiable.add(place)
        if eager.outcome.error is not None:
            report.error = f"{eager.outcome.error[0].__name__}: {eager.outcome.error[1]}"
        references = self._references(exact, place, seed, eager)
        report.reference = bool(references)
        try:
            _Closeness({}, {}).visit(again, eager, "call")
        except AssertionError as error:
            report.right, report.difference = None, f"call {number + 1}, eager: {_told(error)}"
            return False
        try:
            _require_same_error(ours, eager)
            _Closeness(references, eager.tensors()).visit(ours, eager, "call")
        except AssertionError as error:
            report.right, report.difference = False, f"call {number + 1}: {_told(error)}"
            return False
        return True

    def _references(self, side: Side | None, place: int, seed: int, eager: _CallOutcome) -> dict[str, torch.Tensor]:
        """float64's numbers by their places; none where the program can't be run so, or draws random numbers."""
        if side is None or eager.outcome.error is not None:
            return {}
        _seed(seed)
        if eager.outcome.random_state[0] != torch.get_rng_state().numpy().tobytes():
            return {}
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            found = _called(side, side.program, place, seed)
        finally:
            torch.set_default_dtype(before)
        return {} if found.outcome.error is not None else found.tensors()

    # -- times and memory

    def _measure(self, sides: list[Side], compiled: Any, seconds: float) -> None:
        report = self.report
        share = seconds / min(report.sets, _TIMED_SETS)
        for place in range(min(report.sets, _TIMED_SETS)):
            runs = [
                _caller(side, program, place) for side, program in ((sides[0], sides[0].program), (sides[2], compiled))
            ]
            with contextlib.redirect_stdout(io.StringIO()):
                kept = [_bytes_kept(run) for run in runs if place in self._differentiable]
                if kept and all(each is not None for each in kept):
                    report.kept.append(SavedBytes(place + 1, *kept))  # type: ignore[arg-type]
                if seconds > 0:
                    eager, ours = _interleaved(runs, share)
                    times = Times(place + 1, eager, ours)
                    if place in self._differentiable:
                        steps = [_with_backward(run) for run in runs]
                        times.eager_step, times.compiled_step = _interleaved(steps, share)
                    report.times.append(times)


def _told(error: AssertionError) -> str:
    text = str(error).replace("call.outcome.", "", 1).replace("call.", "", 1)
    return "\n".join(text.splitlines()[:12])


def _caller(side: Side, program: Callable[..., Any], place: int) -> Callable[[], Any]:
    args, kwargs = side.calls[place]
    return lambda: program(*args, **kwargs)


def _with_backward(run: Callable[[], Any]) -> Callable[[], None]:
    def step() -> None:
        roots = outcomes.differentiable(run())
        leaves = [root.sum() for root in roots]
        torch.autograd.grad(leaves, _leaves_of(roots), allow_unused=True)

    return step


def _leaves_of(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The variables whose gradients a backward pass from there computes."""

    def following(node: Any) -> list[Any]:
        return [each for each, _ in node.next_functions if each is not None]

    starts: list[Any] = [root.grad_fn for root in roots]
    leaves = (node.variable for node in reached(starts, following) if hasattr(node, "variable"))
    return [*{id(leaf): leaf for leaf in leaves}.values()]


def _interleaved(runs: list[Callable[[], Any]], seconds: float) -> tuple[float, float]:
    """Median seconds of a call of each of two, called in turn."""
    counts = [_filling(run) for run in runs]
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + seconds
    with _no_collection():
        while len(times[0]) < _ROUNDS and (len(times[0]) < 5 or time.perf_counter() < end):
            for run, count, found in zip(runs, counts, times, strict=True):
                start = time.perf_counter()
                for _ in range(count):
                    run()
                _synchronize()
                found.append((time.perf_counter() - start) / count)
    return statistics.median(times[0]), statistics.median(times[1])


def _filling(run: Callable[[], Any]) -> int:
    """How many calls take about a millisecond."""
    start = time.perf_counter()
    run()
    _synchronize()
    return max(1, min(1000, round(1e-3 / max(time.perf_counter() - start, 1e-7))))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _synchronize() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _bytes_kept(run: Callable[[], Any]) -> int | None:
    """What a call's results and autograd's memory of it take; None if no gradient can be asked for, or unknown."""
    gc.collect()  # what is garbage by now would be freed in between
    before = memory.allocated()
    result = run()
    _synchronize()
    after = memory.allocated()
    roots = outcomes.differentiable(result)
    return None if not roots or before is None or after is None else max(0, after - before)


# ------------------------------------------------------------------------------------------------ versions


def versions(program: Any = None) -> dict[str, str]:
    """What a bug report needs: of Python, torch, the machine, the compiler, and the packages of the program's file."""
    found = {
        "dynajit": dynajit.__version__,
        "Python": sys.version.split()[0],
        "torch": importlib.metadata.version("torch"),
        "on": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
    }
    with contextlib.suppress(toolchain.ToolchainError):
        found["compiler"] = " ".join(toolchain.find().command)
    if torch.cuda.is_available():
        found["GPU"] = torch.cuda.get_device_name()
    installed = importlib.metadata.packages_distributions()
    for package in sorted(_packages(program) - {"torch", "dynajit"}):
        for name in installed.get(package, [])[:1]:
            found[name] = importlib.metadata.version(name)
    return found


def _packages(program: Any) -> set[str]:
    """The top-level packages that the program's module uses by name, and its classes come from."""
    owner = program if isinstance(program, (types.FunctionType, types.MethodType)) else type(program)
    module = sys.modules.get(owner.__module__)
    names = {owner.__module__, *(base.__module__ for base in type(program).__mro__)}
    for value in vars(module).values() if module is not None else ():
        names.add(value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or "")
    return {name.partition(".")[0] for name in names if isinstance(name, str)}
