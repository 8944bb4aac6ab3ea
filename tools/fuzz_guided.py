"""Fuzz the guard program and the bytecode assembler with bytes, guided by what they reach in Python and in C.

    python tools/fuzz_guided.py guards --minutes 60     also: code, damaged (see tests/fuzz/fuzz_bytes.py), all
    python tools/fuzz_guided.py all --minutes 1 --keep  what reached something new goes to tests/fuzz/corpus/

In:  gcc, and the package atheris (pip install atheris): libFuzzer for Python.
Out: exit status 1 where something was found; the input that shows it is in build/guided/found.

The extension is built with a counter at each branch of its C files, in build/guided, apart from the ordinary build.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

from sanitize import ROOT, build

BUILD = ROOT / "build" / "guided"
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
TARGETS = ("guards", "code", "damaged")
_MAX_KEPT = 100  # inputs of one target


def counters() -> Path:
    """The library that counts."""
    made = BUILD / "libcounters.so"
    BUILD.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("coverage_counters.c")
    command = [os.environ.get("CC", "gcc"), "-O2", "-shared", "-fPIC", str(source), "-o", str(made)]
    subprocess.run(command, check=True)
    return made


def fuzz(target: str, seconds: int, environment: dict[str, str]) -> int:
    """Run the engine on one target; its exit status."""
    working, found = BUILD / "corpus" / target, BUILD / "found" / target
    working.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    start = kept(target) or [random.Random(number).randbytes(8 * number) for number in range(1, 50)]
    for number, data in enumerate(start):
        (working / f"kept{number}").write_bytes(data)
    command = [sys.executable, str(ROOT / "tests/fuzz/guided.py"), target, str(working)]
    command += [
        f"-max_total_time={seconds}",
        "-max_len=512",
        "-len_control=0",
        "-timeout=60",
        "-print_final_stats=1",
        "-rss_limit_mb=0",
    ]
    return subprocess.run([*command, f"-artifact_prefix={found}/"], check=False, env=environment).returncode


def keep(target: str) -> None:
    """Inputs that reached something new, small and large ones, as lines of hexadecimal digits."""
    found = {path.read_bytes() for path in (BUILD / "corpus" / target).iterdir()}
    inputs = sorted(found, key=lambda data: (len(data), data))
    chosen = inputs[:: max(1, -(-len(inputs) // _MAX_KEPT))]
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{target}.txt").write_text("".join(f"{data.hex()}\n" for data in chosen))
    print(f"{target}: {len(inputs)} inputs reached something new, {len(chosen)} are kept")


def kept(target: str) -> list[bytes]:
    """The inputs that are kept."""
    path = CORPUS / f"{target}.txt"
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--keep", action="store_true", help="write tests/fuzz/corpus/")
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit("atheris is not installed: pip install atheris")
    library = build(BUILD, {"DYNAJIT_COVERAGE": "1"})
    environment = {
        **os.environ,
        "PYTHONPATH": f"{library}{os.pathsep}{ROOT / 'tests/fuzz'}{os.pathsep}{ROOT / 'tests/bytecode'}",
        "PYTHONSAFEPATH": "1",
        "DYNAJIT_COUNTERS": str(counters()),
        "LD_PRELOAD": str(counters()),
    }
    failed = 0
    for target in TARGETS if options.target == "all" else [options.target]:
        failed += fuzz(target, int(options.minutes * 60), environment) != 0
        if options.keep:
            keep(target)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
