"""Kept files that are not as they were written: each is a miss with one line in the log, and never a crash.

A few programs are kept; then their files are damaged, cut short, exchanged for one another, or given a newer format,
again and again, and looked up each time. Where `--checked`, the checksum beside the file is made to fit, so that what
reads the contents sees them: such a file may be taken (a number of no meaning may have changed), nothing else.

    python tests/kept/fuzz_files.py [--times N] [--seed N] [--checked]
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))

import kept_programs  # noqa: E402

import dynajit  # noqa: E402
from dynajit.capture import keeping  # noqa: E402
from dynajit.kept.folder import Lookup  # noqa: E402
from dynajit.report import logs  # noqa: E402
from dynajit.runtime import store  # noqa: E402

PROGRAMS = ("network", "sizes", "a list that grows", "a break in a loop", "a break in a call", "training", "random")


def kept(names: Sequence[str] = PROGRAMS) -> list[tuple[Lookup, Any, Path]]:
    """Lookups of calls, the session of each, and the file that each finds, in the store of the settings."""
    found: list[tuple[Lookup, Any, Path]] = []
    original = keeping.lookup

    def noting(session: Any, *call: Any) -> Lookup | None:
        made = original(session, *call)
        if made is not None:
            found.append((made, session, store.find()._path(made._name(0), ".variant")))
        return made

    keeping.lookup = noting
    try:
        for name in names:
            torch.manual_seed(1)
            fn, *args = (kept_programs.PROGRAMS | kept_programs.TRAINING)[name]()
            compiled = dynajit.compile(fn)
            with torch.set_grad_enabled(name in kept_programs.TRAINING):
                kept_programs.training_step(compiled, *args) if name in kept_programs.TRAINING else compiled(*args)
    finally:
        keeping.lookup = original
    return [row for row in found if row[2].exists()]


def damaged(contents: bytes, others: list[bytes], chance: random.Random) -> tuple[str, bytes]:
    """What is done to a file, and what it holds then."""
    kind = chance.choice(("bits", "cut", "lost", "twice", "foreign", "newer", "value", "empty", "noise"))
    place, length = chance.randrange(len(contents)), chance.randrange(1, 64)
    match kind:
        case "bits":
            made = bytearray(contents)
            for _ in range(chance.randrange(1, 5)):
                made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
            return kind, bytes(made)
        case "cut":
            return kind, contents[:place]
        case "lost":
            return kind, contents[:place] + contents[place + length :]
        case "twice":
            return kind, contents[:place] + contents[place : place + length] * 2 + contents[place + length :]
        case "foreign":
            return kind, chance.choice(others)
        case "newer":
            return kind, json.dumps({**json.loads(contents), "key": "another", "more": 1}).encode()
        case "value":
            data = json.loads(contents)
            _replace_one(data, chance)
            return kind, json.dumps(data, separators=(",", ":")).encode()
        case "empty":
            return kind, b""
    return kind, chance.randbytes(length)


_VALUES: tuple[Any, ...] = (None, -1, 1 << 70, "", "x", [], {}, ["named", "os", ["system"], 0], 0.5, True)


def _replace_one(data: Any, chance: random.Random) -> None:
    """Put another value somewhere."""
    while True:
        places = list(data) if isinstance(data, dict) else list(range(len(data)))
        place = chance.choice(places)
        inner = data[place]
        if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.1:
            data[place] = chance.choice(_VALUES)
            return
        data = inner


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checked", action="store_true", help="with a checksum that fits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="kept-", ignore_cleanup_errors=True) as cache:
        dynajit.config.cache_dir, dynajit.config.keep_variants = cache, True
        return run(kept(), options.times, random.Random(options.seed), options.checked)


def run(rows: list[tuple[Lookup, Any, Path]], times: int, chance: random.Random, checked: bool) -> int:
    """How many files were not a miss with one line, printed each."""
    contents = [path.read_bytes() for *_, path in rows]
    sums = [path.with_name(path.name + ".sum").read_bytes() for *_, path in rows]
    counts, wrong = collections.Counter[str](), 0
    lines: list[str] = []
    original, logs.emit = logs.emit, lambda name, text, *rest: lines.append(text)
    try:
        for _ in range(times):
            place = chance.randrange(len(rows))
            lookup, session, path = rows[place]
            kind, made = damaged(contents[place], contents, chance)
            if made == contents[place]:
                continue
            path.write_bytes(made)
            if checked:
                path.with_name(path.name + ".sum").write_text(store._digest(path), encoding="ascii")
            lines.clear()
            lookup.missed.clear()
            found = lookup.load(session)
            counts[f"{kind}, {'taken' if found is not None else 'missed'}"] += 1
            if len(lines) != 1 or (found is not None and not checked):
                wrong += 1
                result = "missed" if found is None else "taken"
                print(f"{kind} in {lookup.function.__qualname__}: {result}, {lines}", flush=True)
            path.write_bytes(contents[place])
            path.with_name(path.name + ".sum").write_bytes(sums[place])
    finally:
        logs.emit = original
    print(f"{sum(counts.values())} files of {len(rows)} variants, {wrong} wrong", dict(sorted(counts.items())))
    return wrong


if __name__ == "__main__":
    raise SystemExit(main() > 0)
