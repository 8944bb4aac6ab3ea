"""Does a call that repeats one before it compile nothing? Over models, families of models, and operators.

    python benchmarks/repeated.py models --rows FILE [--registry models.py]     the demo's programs, and a file's
    python benchmarks/repeated.py families --rows FILE                          transformers' families (survey.py)
    python benchmarks/repeated.py operators --rows FILE                         torch's operators (run_operators.py)
    ... --shard 3 16        the third part of sixteen: each part takes a --rows FILE of its own
    ... --only bert t5      those whose name holds one of these
    python benchmarks/repeated.py summary FILE...           what was found, of all parts; status 1 if there is anything

Each model is called in each of `_MODES` with two sets of inputs in turn, three rounds, arguments copied anew for each
call. The third round may capture nothing, and no guard may fail on the state it was made from. FILE has a line of JSON
for each model; what is there is not run again. A registry is a Python file with `REGISTRY`: name -> a function without
arguments, whose result has `fn`, `args`, `kwargs`, and `args2`, `kwargs2` (None: one set of inputs), and `grad`:
it is a whole training step. One more mode: a function behind `@mode`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import closeness
import numpy
import survey
import torch
from models import PROGRAMS
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dynajit  # noqa: E402
from dynajit.report import records  # noqa: E402

ROUNDS = 3
_OPERATORS = ROOT / "tests" / "operators" / "run_operators.py"
Call = tuple[tuple[Any, ...], dict[str, Any]]
Way = Callable[[Call], Any]


@dataclasses.dataclass
class Subject:
    """Something to call, and its inputs. `modes`: those in which it can be called."""

    fn: Any
    calls: list[Call]
    modes: list[str]


@dataclasses.dataclass
class Row:
    """What one model gave: `again` by mode what the last round captured, `settled` how many captures the second had."""

    name: str
    again: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    settled: dict[str, int] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: str = ""
    seconds: float = 0.0

    @property
    def findings(self) -> list[str]:
        """What should not be, a line each."""
        again = [f"{mode}: {text}" for mode, texts in self.again.items() for text in texts]
        return again + [f"{mode}: {text}" for mode, text in self.failed.items()]


# ------------------------------------------------------------------------------------------------- what is called


def subject_of(kind: str, name: str, registry: Path | None) -> Subject:
    """The model of that name, made anew."""
    if kind == "families":
        class_name, inputs = survey.families()[name]
        model = survey.make(name, class_name)
        return Subject(model, [((), survey._inputs(model, inputs, *sizes)) for sizes in survey.SIZES], [*_MODES])
    case: Any = PROGRAMS[name].build() if name in PROGRAMS else _registry(registry)[name]()
    calls = [(tuple(case.args), dict(case.kwargs))]
    if getattr(case, "args2", None) is not None:
        calls.append((tuple(case.args2), dict(case.kwargs2 or {})))
    if case.grad:  # a whole training step
        return Subject(case.fn, calls, ["as it is"])
    trains = isinstance(case.fn, nn.Module) and getattr(case, "train", True)
    return Subject(case.fn, calls, [name for name in _MODES if trains or name not in _TRAINING])


def _registry(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    spec = importlib.util.spec_from_file_location("registry", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["registry"] = module
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.REGISTRY
    return found


def names_of(kind: str, registry: Path | None) -> list[str]:
    """In a fixed order, that of `--shard`."""
    return [*survey.families()] if kind == "families" else [*PROGRAMS, *_registry(registry)]


# ------------------------------------------------------------------------------------------------- how it is called

_MODES: dict[str, Callable[[Any, str], Way]] = {}
_TRAINING = ("training", "whole step")


def mode(name: str) -> Callable[[Callable[[Any, str], Way]], Callable[[Any, str], Way]]:
    """Register: (function or module, backend) -> what makes one call."""

    def register(make: Callable[[Any, str], Way]) -> Callable[[Any, str], Way]:
        _MODES[name] = make
        return make

    return register


def _inside(fn: Any, compiled: Any, *contexts: Callable[[], Any]) -> Way:
    def call(inputs: Call) -> Any:
        if isinstance(fn, nn.Module):
            fn.eval()
        with contextlib.ExitStack() as entered:
            for context in contexts:
                entered.enter_context(context())
            return compiled(*inputs[0], **inputs[1])

    return call


def _autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@mode("as it is")
def _as_it_is(fn: Any, backend: str) -> Way:
    return _inside(fn, dynajit.compile(fn, backend=backend))


@mode("no_grad")
def _no_grad(fn: Any, backend: str) -> Way:
    return _inside(fn, dynajit.compile(fn, backend=backend), torch.no_grad)


@mode("inference_mode")
def _inference_mode(fn: Any, backend: str) -> Way:
    return _inside(fn, dynajit.compile(fn, backend=backend), torch.inference_mode)


@mode("autocast")
def _in_autocast(fn: Any, backend: str) -> Way:
    return _inside(fn, dynajit.compile(fn, backend=backend), torch.no_grad, _autocast)


def _loss(result: Any) -> torch.Tensor:
    loss = getattr(result, "loss", None)
    if loss is None:
        parts = [each for each in closeness.tensors(result) if each.requires_grad]
        loss = sum((each.pow(2).mean() for each in parts), torch.zeros(()))
    return loss


@mode("training")
def _training(fn: Any, backend: str) -> Way:
    """The model is compiled, the loop around it is not."""
    compiled = dynajit.compile(fn, backend=backend)
    optimizer = torch.optim.SGD(fn.parameters(), lr=1e-3, momentum=0.9)

    def call(inputs: Call) -> None:
        fn.train()
        optimizer.zero_grad()
        _loss(compiled(*inputs[0], **inputs[1])).backward()
        optimizer.step()

    return call


@mode("whole step")
def _whole_step(fn: Any, backend: str) -> Way:
    """The step is compiled with its backward and its optimizer."""
    optimizer = torch.optim.AdamW(fn.parameters(), lr=1e-4)

    @dynajit.compile(backend=backend)
    def step(*args: Any, **kwargs: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(fn(*args, **kwargs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    def call(inputs: Call) -> None:
        fn.train()
        step(*inputs[0], **inputs[1])

    return call


@mode("in turn")
def _in_turn(fn: Any, backend: str) -> Way:
    """One compiled object without gradients, in inference mode and with gradients, one after the other."""
    compiled = dynajit.compile(fn, backend=backend)
    ways = [_inside(fn, compiled, *contexts) for contexts in ((torch.no_grad,), (torch.inference_mode,), ())]

    def call(inputs: Call) -> None:
        for way in ways:
            way(_copied(inputs))

    return call


# ------------------------------------------------------------------------------------------------- the check


def _copied(inputs: Call) -> Call:
    return copy.deepcopy(inputs)


def measure(name: str, subject: Subject, backend: str, modes: list[str]) -> Row:
    """Call the subject in each mode."""
    row = Row(name)
    begun = time.monotonic()
    for each in modes:
        if each in subject.modes:
            dynajit.reset()
            _rounds(row, each, copy.deepcopy(subject), backend)
    row.seconds = round(time.monotonic() - begun, 1)
    return row


def _rounds(row: Row, name: str, subject: Subject, backend: str) -> None:
    try:
        way = _MODES[name](subject.fn, backend)
        for number in range(ROUNDS):
            for inputs in subject.calls:
                found: list[records.CompileRecord] = []
                _seed()
                with records.listen(found.append), warnings.catch_warnings():
                    warnings.filterwarnings("error", message="dynajit failed while compiling")
                    warnings.filterwarnings("error", message="dynajit: a guard fails on the very state")
                    way(_copied(inputs))
                if number == ROUNDS - 1 and found:
                    row.again.setdefault(name, []).extend(map(_told, found))
                elif number == ROUNDS - 2:
                    row.settled[name] = row.settled.get(name, 0) + len(found)
    except Exception as error:  # any error is a finding
        row.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _seed() -> None:
    torch.manual_seed(1)
    numpy.random.seed(1)


def _told(record: records.CompileRecord) -> str:
    return f"{record.code_name}: {record.recompile_reason or record.skipped or 'first capture'}"


def _in_process(name: str, given: argparse.Namespace) -> Row:
    """The row, measured in a process of its own."""
    command = [sys.executable, __file__, given.what, "--one", name, "--backend", given.backend]
    command += ["--registry", str(given.registry)] if given.registry else []
    command += ["--modes", *given.modes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit, check=False)
    except subprocess.TimeoutExpired:
        return Row(name, left_out=f"not done after {given.limit:.0f} s")
    line = next((line for line in done.stdout.splitlines() if line.startswith('{"name"')), None)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return Row(**json.loads(line)) if line else Row(name, failed={"process": f"exit status {done.returncode}: {last}"})


def _one(given: argparse.Namespace) -> Row:
    try:
        subject = subject_of(given.what, given.one, given.registry)
        for inputs in subject.calls:
            _seed()
            with torch.no_grad() if "no_grad" in subject.modes else contextlib.nullcontext():
                copy.deepcopy(subject.fn)(*_copied(inputs)[0], **inputs[1])
    except Exception as error:  # what is not installed, or a configuration that does not fit the family
        return Row(given.one, left_out=f"{type(error).__name__}: {error}".splitlines()[0][:200])
    return measure(given.one, subject, given.backend, given.modes)


def _read(path: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _run(given: argparse.Namespace) -> None:
    part, parts = given.shard
    names = [
        name for name in names_of(given.what, given.registry) if not given.only or any(o in name for o in given.only)
    ]
    known = {row.name for row in _read(given.rows)}
    left = [name for name in names[part - 1 :: parts] if name not in known]
    with ThreadPoolExecutor(given.processes) as pool:
        for number, done in enumerate(as_completed([pool.submit(_in_process, n, given) for n in left]), 1):
            row = done.result()
            with given.rows.open("a") as file:
                print(json.dumps(dataclasses.asdict(row)), file=file)
            told = row.left_out or "; ".join(row.findings) or "nothing compiled twice"
            print(f"{number}/{len(left)} {row.name} ({row.seconds:.0f} s): {told}", flush=True)


def _run_operators(given: argparse.Namespace) -> None:
    """What is done is kept in FILE.state, in run_operators.py's own form; FILE has the operators with findings."""
    part, parts = given.shard
    state = given.rows.with_suffix(".state")
    command = [sys.executable, str(_OPERATORS), "--part", f"{part - 1}/{parts}", "--state", str(state)]
    command += ["--samples", str(given.samples), "--backend", given.backend, "--processes", str(given.processes)]
    command += ["--only", *given.only] if given.only else []
    subprocess.run(command, check=False)
    rows: dict[str, Row] = {}
    for line in state.read_text().splitlines()[1:]:
        made = json.loads(line)
        if "name" not in made:
            continue
        row = rows.setdefault(made["name"], Row(made["name"]))
        row.seconds += made["seconds"]
        for dtype, place, (variant, kind, detail) in made["found"]:
            if kind == "captured again":
                row.again.setdefault(f"{variant} {dtype} #{place}", []).append(detail)
    given.rows.write_text("".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows.values()))


def _summary(paths: list[Path]) -> Iterator[str]:
    rows = [row for path in paths for row in _read(path)]
    measured = [row for row in rows if not row.left_out]
    again = [row for row in measured if row.findings]
    yield f"{len(measured)} measured, {len(rows) - len(measured)} left out; {len(again)} with findings"
    for row in rows:
        yield from (f"{row.name}: {text}" for text in row.findings)
    yield from (f"left out: {row.name}: {row.left_out}" for row in rows if row.left_out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["models", "families", "operators", "summary"])
    parser.add_argument("files", nargs="*", type=Path, help="of a summary")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines that is gone on with")
    parser.add_argument("--registry", type=Path, help="a Python file of more models")
    parser.add_argument("--only", nargs="*", default=[], help="names")
    parser.add_argument("--modes", nargs="*", default=[*_MODES], choices=[*_MODES])
    parser.add_argument("--shard", nargs=2, type=int, default=(1, 1), metavar=("I", "N"))
    parser.add_argument("--limit", type=float, default=600, help="seconds for one model")
    parser.add_argument("--backend", default="codegen")
    parser.add_argument("--samples", type=int, default=2, help="of each operator and dtype")
    parser.add_argument("--processes", type=int, default=1, help="how many at a time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if given.one:
        print(json.dumps(dataclasses.asdict(_one(given))))
        return 0
    if given.what == "summary":
        print("\n".join(_summary(given.files)))
        return int(any(row.findings for path in given.files for row in _read(path)))
    if given.rows is None:
        parser.error("--rows FILE is needed")
    _run_operators(given) if given.what == "operators" else _run(given)
    print("\n".join(_summary([given.rows])))
    return int(any(row.findings for row in _read(given.rows)))


if __name__ == "__main__":
    sys.exit(main())
