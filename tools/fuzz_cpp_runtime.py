"""Loads changed files of exported programs with libdynajit_runtime under AddressSanitizer and UBSan.

In: how many files (`--files`). Out: how many were refused; status 1, and the file's copy, where one ended the process.
Three of four files have bytes changed, left out or put in; of the others facts or plan say something else, with right
checksums, as whoever writes a file can make them.

    python tools/fuzz_cpp_runtime.py --files 100000
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "exported")]

import test_cpp_runtime as tests  # noqa: E402

from dynajit.runtime import container  # noqa: E402

AT_ONCE = 400
SEEDS = ("transformer", "images", "buffers", "several kinds")


def build(folder: Path) -> Path:
    """`call_program`, with the runtime's sources and the sanitizers."""
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize=vptr", f"-I{ROOT}/cpp/include"]
    flags += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    objects = []
    for source in (*sorted((ROOT / "cpp/src").glob("*.cpp")), ROOT / "tests/exported/call_program.cpp"):
        objects.append(folder / f"{source.stem}.o")
        subprocess.run(["g++", *flags, "-c", source, "-o", objects[-1]], check=True)
    (libraries,) = cpp_extension.library_paths()
    command = ["g++", "-fsanitize=address,undefined", *objects, "-o", folder / "call_program", f"-L{libraries}"]
    command += ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl", "-lpthread", f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True)
    return folder / "call_program"


def changed(path: Path, at: Path, number: int, choose: random.Random) -> None:
    """Write a changed copy of the file."""
    if number % 4:
        new = bytearray(path.read_bytes())
        for _ in range(choose.randint(1, 4)):
            new[choose.randrange(len(new) if number % 8 > 3 else 6000)] = choose.randrange(256)
        if number % 16 == 5:
            del new[choose.randrange(len(new)) :]
        at.write_bytes(new)
        return
    file = container.Container(path, "program")
    sections = {name: file.read(name) for name in file.sections}
    facts, plan = json.loads(json.dumps(file.facts)), json.loads(sections["plan.json"])
    for _ in range(choose.randint(1, 3)):
        tests.changed_somewhere(plan if choose.random() < 0.6 else facts, choose)
    sections["plan.json"] = json.dumps(plan).encode()
    container.write(at, "program", facts, list(sections.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    choose, counts = random.Random(options.seed), collections.Counter[str]()
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # of libtorch's
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, good = build(folder), []
        for case in SEEDS:
            (folder / case).mkdir()
            good.append(tests.exported(case, folder / case)[0])
        while counts.total() < options.files:
            paths = [folder / f"{number}.djt" for number in range(AT_ONCE)]
            for number, path in enumerate(paths):
                changed(choose.choice(good), path, number, choose)
            done = subprocess.run(
                [program, "load", *paths], capture_output=True, text=True, env=environment, check=False
            )
            lines = done.stdout.splitlines()
            if done.returncode != 0 or len(lines) != AT_ONCE or "runtime error" in done.stderr:
                shutil.copy(paths[min(len(lines), AT_ONCE - 1)], "ended.djt")
                print(f"after {counts.total() + len(lines)} files, see ended.djt: {done.stderr[-3000:]}")
                return 1
            counts.update("fine" if line == "fine" else "refused" for line in lines)
    print(f"{counts.total()} files: {counts['refused']} refused, {counts['fine']} loaded, none ended the process")
    return 0


if __name__ == "__main__":
    sys.exit(main())
