"""Programs of a generator by their seeds, from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch


def run(description: str, finding: Callable[[int, str], str | None]) -> int:
    """1 if `finding(seed, backend)` tells of any seed that is asked for that something differs from eager, else 0."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="is left out")
    parser.add_argument("--backend", default="codegen")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = 0
    for seed in range(options.first, options.last):
        text = finding(seed, options.backend)
        if text is not None:
            count += 1
            print(f"seed {seed}: {text}", flush=True)
    print(f"{options.backend}: {options.last - options.first} programs from seed {options.first}, {count} findings")
    return min(1, count)
