"""Run random guards on random objects against their Python twins, and random kernels against the reference interpreter.

python tests/fuzz/run_guards.py --seeds 0 100000
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from fuzz_guards import check_guards  # noqa: E402
from fuzz_kernels import check_kernels  # noqa: E402

CHECKS = {"guards": check_guards, "kernels": check_kernels}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=CHECKS)
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 2000), metavar=("FIRST", "LAST"))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    options = parser.parse_args()
    faulthandler.enable()
    end = time.monotonic() + options.minutes * 60
    count = failed = 0
    for seed in range(*options.seeds):
        if time.monotonic() > end:
            break
        count += 1
        try:
            found = CHECKS[options.part](seed)
        except Exception:
            found = traceback.format_exc()
        if found is not None:
            failed += 1
            print(f"seed {seed}: {found}", flush=True)
    print(f"{options.part}: {count} programs from seed {options.seeds[0]}, {failed} findings")
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
