"""Soundness by mutation: after a program was compiled, one thing that it can observe changes, and the next call still
gives what eager gives. Every program of `tests/programs` and `tests/torch_features`, every change that fits it.

`python tests/mutation/test_mutation.py` runs all of them and prints the counts; the test runs a part that rotates
over the changes, so that each program sees each kind.
"""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "programs", HERE.parent / "torch_features"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from mutations import mutations  # noqa: E402
from program_cases import Cases  # noqa: E402

import dynajit  # noqa: E402
from dynajit import testing  # noqa: E402

A_PROGRAM = 2


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


def count_of(case: Any) -> int:
    return sum(1 for _ in mutations(case.fn, list(fresh(case)[1])))


def fresh(case: Any) -> tuple[Any, list[Any]]:
    fn, calls = testing._copies(case.fn, case.args, case.options.get("kwargs"), (), 1)
    return fn, list(calls[0][0])


def outcome(fn: Any, owner: Any, args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = testing._run(fn, owner, tuple(args), {}, seed=7)
    # exceptions by type and message: which lines a traceback shows is tested elsewhere
    return found if found.error is None else dataclasses.replace(found, error=found.error[:2])


def trial(case: Any, number: int) -> str | None:
    """Compile, change the number-th thing, compare the next call with eager's; the change's name, or None if eager
    itself doesn't give the same twice."""
    results = []
    name = ""
    for side in ("eager", "eager again", "compiled"):
        dynajit.reset()
        fn, args = fresh(case)
        run = dynajit.compile(fn, backend="eager") if side == "compiled" else fn
        outcome(run, fn, args)
        outcome(run, fn, args)
        found = list(mutations(fn, args))
        if number >= len(found):
            return None  # the program itself changed what could be changed
        name, change = found[number]
        undo = change()
        try:
            results.append(outcome(run, fn, args))
        finally:
            undo()
    try:
        testing.compare(results[1], results[0], name, exact=True, rtol=None, atol=None)
    except AssertionError:
        return None
    testing.compare(results[2], results[0], f"after the change {name!r}", exact=True, rtol=None, atol=None)
    return name


def usable(case: Any) -> bool:
    return isinstance(case.fn, (types.FunctionType, types.MethodType)) and not case.options.get("kwargs")


@pytest.mark.parametrize("program", [name for name, case in PROGRAMS.items() if usable(case)])
def test_the_next_call_is_eagers(program: str) -> None:
    case = PROGRAMS[program]
    count = count_of(case)
    chosen = random.Random(program).sample(range(count), min(A_PROGRAM, count))
    for number in chosen:
        trial(case, number)


def main() -> int:
    """Everything; prints what slips through."""
    trials = wrong = unstable = 0
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    for program, case in PROGRAMS.items():
        if not usable(case) or pattern not in program:
            continue
        for number in range(count_of(case)):
            trials += 1
            try:
                unstable += trial(case, number) is None
            except AssertionError as error:
                wrong += 1
                print(f"{program} #{number}: {str(error).splitlines()[0]}", flush=True)
            except Exception as error:  # a change that makes the trial itself fail is worth seeing, not ending for
                print(f"{program} #{number}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    print(f"{len(PROGRAMS)} programs, {trials} changes, {wrong} wrong answers, {unstable} that eager gives differently")
    return wrong > 0


if __name__ == "__main__":
    raise SystemExit(main())
