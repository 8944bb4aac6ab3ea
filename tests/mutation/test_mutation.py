"""Soundness by mutation: after a program was compiled, one thing that it can observe changes, and the next call still
gives what eager gives; and after the change is taken back, the old variant fits again: nothing is captured. Every
program of `tests/programs` and `tests/torch_features`, every change that fits it.

`python tests/mutation/test_mutation.py --save` runs all of them and writes the counts; the test runs a part that
rotates over the changes, so that each program sees each kind.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib
import random
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent, HERE.parent / "programs", HERE.parent / "torch_features"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from cases import Cases  # noqa: E402
from mutations import KINDS, mutations, nothing  # noqa: E402

import dynajit  # noqa: E402
from dynajit import outcomes  # noqa: E402
from dynajit.report import records  # noqa: E402
from dynajit.testing import require_no_capture  # noqa: E402

A_PROGRAM = 2
# Programs that make a class at each call: what is guarded by it is given up after two variants, for each state anew.
MAKES_CLASSES = {f"test_lang_objects.{name}" for name in ("namedtuples_inside", "classes_capturing", "enums_inside")}
RESULTS = HERE.parent.parent / "benchmarks" / "results" / "mutation.md"


def programs() -> dict[str, Any]:
    """name -> case, of every table of programs."""
    found = {}
    for folder in ("programs", "torch_features"):
        for path in sorted((HERE.parent / folder).glob("test_*.py")):
            table = getattr(importlib.import_module(path.stem), "cases", None)
            if isinstance(table, Cases):
                for case in table:
                    found[f"{path.stem}.{case.fn.__name__}"] = case
    return found


PROGRAMS = programs()


def count_of(case: Any, kinds: tuple[str, ...] = tuple(KINDS)) -> int:
    fn, args, _ = fresh(case)
    return sum(1 for _ in mutations(fn, args, kinds))


def fresh(case: Any) -> tuple[Any, list[Any], list[Any]]:
    """The program, its arguments, and equal ones."""
    fn, calls, rounds = outcomes.copies(case.program(), case.args, case.options.get("kwargs"), (), 2)
    return fn, list(calls[0][0]), list(rounds[0][0][0])


def outcome(fn: Any, owner: Any, args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = outcomes.run(fn, owner, tuple(args), {}, seed=7)
    # exceptions by type and message: which lines a traceback shows is tested elsewhere
    return found if found.error is None else dataclasses.replace(found, error=found.error[:2])


def compiled_for(fn: Any, kinds: tuple[str, ...]) -> Any:
    """Compiled without kernels. What libraries are made of is still looked up when captured operations run one by one,
    so that where it changes the graph is taken apart."""
    return dynajit.compile(fn, backend="aot_eager" if kinds == ("library",) else "eager")


def captured_again(case: Any, number: int | None, kinds: tuple[str, ...]) -> list[records.CompileRecord]:
    """What is captured by a call of the first arguments, after a call with the number-th thing changed (None: nothing)
    and the change taken back."""
    dynajit.reset()
    fn, args, again = fresh(case)
    run = compiled_for(fn, kinds)
    outcome(run, fn, args)
    outcome(run, fn, args)
    if number is not None:
        _, change = list(mutations(fn, args, kinds))[number]
        undo = change()
        try:
            outcome(run, fn, args)
        finally:
            undo()
        if undo is nothing and not isinstance(fn, types.FunctionType):
            return []  # it may have been a change of the program, and stays
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        outcome(run, fn, again)
    return seen


def trial(case: Any, number: int, kinds: tuple[str, ...] = tuple(KINDS)) -> str | None:
    """Compile, change the number-th thing, compare the next call with eager's; the change's name, or None if eager
    itself doesn't give the same twice. Then the change is taken back."""
    results = []
    name = ""
    for side in ("eager", "eager again", "compiled"):
        dynajit.reset()
        fn, args, _ = fresh(case)
        run = compiled_for(fn, kinds) if side == "compiled" else fn
        outcome(run, fn, args)
        outcome(run, fn, args)
        found = list(mutations(fn, args, kinds))
        if number >= len(found):
            return None  # the program itself changed what could be changed
        name, change = found[number]
        undo = change()
        try:
            results.append(outcome(run, fn, args))
        finally:
            undo()
    try:
        outcomes.compare(results[1], results[0], name, exact=True, rtol=None, atol=None)
    except AssertionError:
        return None
    outcomes.compare(results[2], results[0], f"after the change {name!r}", exact=True, rtol=None, atol=None)
    if f"{case.fn.__module__}.{getattr(case.fn, '__name__', '')}" in MAKES_CLASSES:
        return name
    seen = captured_again(case, number, kinds)
    if seen and not captured_again(case, None, kinds):  # else the program itself changes what it depends on
        require_no_capture(seen, f"after the change {name!r} was taken back, the first call made again")
    return name


def usable(case: Any) -> bool:
    fits = isinstance(case.program(), (types.FunctionType, types.MethodType, torch.nn.Module))
    return fits and not case.options.get("kwargs")


@pytest.mark.parametrize("program", [name for name, case in PROGRAMS.items() if usable(case)])
def test_the_next_call_is_eagers(program: str) -> None:
    case = PROGRAMS[program]
    count = count_of(case)
    chosen = random.Random(program).sample(range(count), min(A_PROGRAM, count))
    for number in chosen:
        trial(case, number)
    for kind in ("ties", "library"):
        found = count_of(case, (kind,))
        if found:
            trial(case, random.Random(program).randrange(found), (kind,))


TIED = Cases()


@TIED(torch.ones(()), torch.ones(()), {"key": torch.ones(())})
def counts_members(x: torch.Tensor, y: torch.Tensor, z: dict[str, torch.Tensor]) -> Any:
    return x + len({x, y}), {x: 1}.get(z["key"], 2)


@TIED(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)), torch.ones(2))
def counts_parameters(model: torch.nn.Module, x: torch.Tensor) -> Any:
    return x * len(list(model.parameters())), len(list(model.modules()))


@pytest.mark.parametrize("case", TIED, ids=lambda case: case.fn.__name__)
def test_what_is_tied_or_untied_after_compiling(case: Any) -> None:
    found = [trial(case, number, ("ties",)) for number in range(count_of(case, ("ties",)))]
    assert sum(name is not None for name in found) >= 3


def save(path: Path, title: str, script: str, every: int, text: str) -> None:
    """Write the page of a run."""
    python = f"CPython {sys.version.split()[0]}, torch {torch.__version__}"
    how = f"`python {script}{f' --every {every}' if every > 1 else ''} --save`"
    path.write_text(f"# {title}\n\n{python}. Made by {how}.\n\n{text}\n", encoding="utf-8")


def main() -> int:
    """Everything, or programs whose name has a text in it, or every n-th change of each; prints what slips through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", default=tuple(KINDS), choices=tuple(KINDS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    counts = collections.Counter[str]()
    for number, (program, case) in enumerate(sorted(PROGRAMS.items())):
        if not usable(case) or options.pattern not in program or time.monotonic() > end:
            continue
        counts["programs"] += 1
        kinds = tuple(options.kinds)
        for change in range(number % options.every, count_of(case, kinds), options.every):
            counts["changes"] += 1
            try:
                counts["unstable"] += trial(case, change, kinds) is None
            except AssertionError as error:
                counts["wrong"] += 1
                print(f"{program} #{change}: {str(error).splitlines()[0]}", flush=True)
            except Exception as error:  # a change that makes the trial itself fail is worth seeing, not ending for
                counts["failed"] += 1
                print(f"{program} #{change}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    text = (
        f"{counts['programs']} programs of {len(PROGRAMS)}, {counts['changes']} changes, **{counts['wrong']} wrong "
        f"answers**; {counts['unstable']} changes after which eager itself gives something else each time, or that the "
        f"program had made impossible; {counts['failed']} that the trial itself did not survive."
    )
    print(text)
    if options.save:
        what = "Each program is compiled, one thing that it observes is changed, and the next call compared with eager."
        save(RESULTS, "Changes after compiling", "tests/mutation/test_mutation.py", options.every, f"{what}\n\n{text}")
    return counts["wrong"] > 0


if __name__ == "__main__":
    raise SystemExit(main())
