"""Soundness of kept variants by mutation: what a process keeps is read by one in which one thing is another one.

Every program of the tables in `tests/programs` and `tests/torch_features`, every change of `tests/mutation`. The
variants of the unchanged program are kept once; then, for each change, everything compiled is forgotten, the program
is made anew with the change, and its call compared with eager's. Nothing is captured: what does not fit runs eagerly,
so that a wrong answer can only come from a kept variant.

    python tests/kept/mutate.py [PATTERN] [--every N] [--seconds S] [--save]
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "mutation"))

import test_mutation  # noqa: E402
from mutations import mutations  # noqa: E402

import dynajit  # noqa: E402
from dynajit import outcomes  # noqa: E402
from dynajit.capture.capture import FrameCapture  # noqa: E402

RESULTS = HERE.parent.parent / "benchmarks" / "results" / "kept_mutation.md"
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


def keep(case: Any) -> int:
    """Keep the variants of the unchanged program; how many."""
    dynajit.reset()
    dynajit.counters.clear()
    fn, args, _ = test_mutation.fresh(case)
    test_mutation.outcome(dynajit.compile(fn), fn, args)
    return dynajit.counters["kept"]["written"] + dynajit.counters["kept"]["loaded"]


def trial(case: Any, number: int) -> tuple[str, int] | None:
    """The number-th change's name, and how many variants were taken in its presence; None if eager itself doesn't give
    the same twice."""
    results = []
    name = ""
    for side in ("eager", "eager again", "kept"):
        dynajit.reset()
        dynajit.counters.clear()
        fn, args, _ = test_mutation.fresh(case)
        found = list(mutations(fn, args))
        if number >= len(found):
            return None
        name, change = found[number]
        undo = change()
        try:
            run = dynajit.compile(fn) if side == "kept" else fn
            results.append(test_mutation.outcome(run, fn, args))
        finally:
            undo()
    try:
        outcomes.compare(results[1], results[0], name, exact=True, rtol=None, atol=None)
    except AssertionError:
        return None
    outcomes.compare(results[2], results[0], f"after the change {name!r}", exact=False, **TOLERANCE)
    return name, dynajit.counters["kept"]["loaded"]


def changes(case: Any, every: int, offset: int, counts: collections.Counter[str], program: str) -> None:
    """Every n-th change of one program; prints what slips through."""
    if not keep(case):
        counts["without"] += 1
        return
    counts["programs"] += 1
    whole = FrameCapture.run
    FrameCapture.run = lambda capture: None  # type: ignore[method-assign]
    try:
        for change in range(offset % every, test_mutation.count_of(case), every):
            counts["changes"] += 1
            try:
                found = trial(case, change)
                counts["unstable"] += found is None
                counts["taken"] += found is not None and found[1] > 0
            except AssertionError as error:
                counts["wrong"] += 1
                print(f"{program} #{change}: {str(error).splitlines()[0]}", flush=True)
            except Exception as error:  # a change that makes the trial itself fail is worth seeing, not ending for
                counts["failed"] += 1
                print(f"{program} #{change}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    finally:
        FrameCapture.run = whole  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + options.seconds
    counts = collections.Counter[str]()
    with tempfile.TemporaryDirectory(prefix="kept-", ignore_cleanup_errors=True) as cache:
        dynajit.config.cache_dir, dynajit.config.keep_variants = cache, True
        for number, (program, case) in enumerate(sorted(test_mutation.PROGRAMS.items())):
            if test_mutation.usable(case) and options.pattern in program and time.monotonic() < end:
                changes(case, options.every, number, counts, program)
    text = (
        f"{counts['programs']} programs with kept variants ({counts['without']} without), {counts['changes']} changes, "
        f"**{counts['wrong']} wrong answers**; a variant was taken after {counts['taken']} of the changes, which none "
        f"of its conditions is about; {counts['unstable']} after which eager itself gives something else each time; "
        f"{counts['failed']} that the trial itself did not survive."
    )
    print(text)
    if options.save:
        test_mutation.save(RESULTS, "Changes between two processes", "tests/kept/mutate.py", options.every, text)
    return counts["wrong"] > 0


if __name__ == "__main__":
    raise SystemExit(main())
