"""Run random programs against eager and print what differs, shrunk.

    python tests/fuzz/run.py --seeds 0 1000 --backend eager
    python tests/fuzz/run.py --seeds 0 1000000 --backend codegen --minutes 60

The exit status is 1 if anything differs. A crash of the process shows the seed as the file name `<fuzz SEED>` in the
traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import torch  # noqa: E402
from fuzz_broad import BROAD  # noqa: E402
from fuzz_compare import Finding, check  # noqa: E402
from fuzz_generate import program  # noqa: E402
from fuzz_shrink import shrink  # noqa: E402
from fuzz_wide import WIDE  # noqa: E402
from fuzz_world import Call, random_calls  # noqa: E402

TRY_S = 10.0  # for one try of a smaller program


def run_seed(seed: int, backend: str) -> Finding | None:
    """The finding of one seed, if any."""
    return check(program(seed), random_calls(seed, seed >= BROAD, seed >= WIDE), backend, f"<fuzz {seed}>")


class TookTooLong(BaseException):
    """Not an Exception: programs catch those."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the block once it has taken so long: a smaller program may be one without an end."""

    def stop(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise TookTooLong

    former = signal.signal(signal.SIGALRM, stop)
    # Again each second until the handler runs: CPython's interpreter now and then misses a signal's wake-up.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def report(seed: int, backend: str, finding: Finding, seconds: float) -> str:
    """The finding with its program, shrunk to the same kind of finding."""

    def fails(source: str, calls: list[Call]) -> bool:
        found = None
        if "def main(" in source:
            with contextlib.suppress(TookTooLong), at_most(TRY_S):
                found = check(source, calls, backend)
        return found is not None and found.kind == finding.kind

    source, calls = shrink(program(seed), random_calls(seed, seed >= BROAD, seed >= WIDE), fails, seconds)
    final = check(source, calls, backend) or finding
    shown = "\n".join(f"    {call}" for call in calls)
    return f"seed {seed}: {final.kind} at call {final.call}\n  {final.detail}\n  calls:\n{shown}\n\n{source}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seeds", nargs=2, type=int, default=(0, 200), metavar=("FIRST", "LAST"), help="LAST is left out"
    )
    parser.add_argument("--backend", default="eager", help="a backend's name: eager, codegen, aot_eager, ...")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument(
        "--shrink", type=float, default=30.0, help="seconds to spend on making one finding small; 0 for none"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    faulthandler.enable()
    end = time.monotonic() + options.minutes * 60
    kinds: Counter[str] = Counter()
    count = 0
    for seed in range(*options.seeds):
        if time.monotonic() > end:
            break
        count += 1
        finding = run_seed(seed, options.backend)
        if finding is not None:
            kinds[finding.kind] += 1
            print(report(seed, options.backend, finding, options.shrink), flush=True)
    print(f"{options.backend}: {count} programs from seed {options.seeds[0]}, {kinds.total()} findings {dict(kinds)}")
    return min(1, kinds.total())


if __name__ == "__main__":
    sys.exit(main())
