"""Peak memory of a call on the CPU: eager, torch.compile and dynajit, for models of a registry outside of this folder.

    python benchmarks/memory_peak.py FOLDER [--mode infer|train] [--models REGEX] [--save]

FOLDER and what a call is: see models_cpu.py. Each measurement is a process of its own, in turns. Tensors: the most
bytes that allocators had given out during one call, over what they had before it, as torch.profiler hears of them; the
same each time. Resident: free memory is given back to the system, the kernel's mark of the highest resident memory
reset, the call made, and the mark read, over what was resident before; the median of a few calls.
"""

import argparse
import ctypes
import gc
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from models_cpu import Runner, case_of, tensors_at_once

HEADER = (
    *("model", "mode", "eager MB", "torch.compile MB", "dynajit MB", "dynajit/eager", "dynajit/torch.compile"),
    *("resident: /eager", "/torch.compile"),
)
EVERYONE = ("eager", "torch.compile", "dynajit")
WARM_CALLS, CALLS = 4, 7


def status(name: str) -> float:
    """Megabytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise LookupError(name)


def settle() -> None:
    """Give what is free back to the system."""
    gc.collect()
    if "dynajit" in sys.modules:
        from dynajit.runtime import memory

        memory.trim()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def measure(name: str, folder: str, mode: str, who: str) -> dict[str, Any]:
    """What a child measures: megabytes of a call."""
    case = case_of(name, folder, mode)
    if case is None:
        return {"skipped": "no training"}
    run = Runner(case, mode, None if who == "eager" else who)
    for _ in range(WARM_CALLS):
        run()
    tensors = tensors_at_once(run)
    found = []
    for _ in range(CALLS):
        settle()
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        run()
        found.append(status("VmHWM") - before)
    return {"tensors": tensors, "resident": statistics.median(found)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--mode", default="train", choices=["infer", "train"])
    parser.add_argument("--models", default="", help="a regular expression; default: all")
    parser.add_argument("--rounds", type=int, default=1, help="processes for each; the median of the ratios counts")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/memory_peak.md")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--who", default=",".join(EVERYONE), help="of these, for a quick look")
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        sbs.finish_child(options.out, measure(options.models, options.folder, options.mode, options.who))
    sys.path.insert(0, options.folder)
    from models import REGISTRY

    table = sbs.Table(HEADER, max(REGISTRY, key=len), "train")
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    for name in (name for name in REGISTRY if re.search(options.models, name)):
        cells = row(name, options)
        if cells:
            print(table.add(cells), flush=True)
    if options.save:
        how = "python benchmarks/memory_peak.py FOLDER --save"
        print("written:", sbs.save("memory_peak", "Peak memory of a call on the CPU", str(table), how))
    return 0


def row(name: str, options: argparse.Namespace) -> list[str]:
    """A model's line; empty where it cannot run here."""
    found: dict[str, list[dict[str, float]]] = {who: [] for who in options.who.split(",")}
    for _ in range(options.rounds):
        for who in found:
            child = [options.folder, "--models", name, "--mode", options.mode, "--who", who]
            try:
                with tempfile.TemporaryDirectory(prefix="memory-", ignore_cleanup_errors=True) as cache:
                    result = sbs.run_child(__file__, child, Path(cache), timeout=900)
            except sbs.ChildFailed as error:
                print(f"{name}: {error}", flush=True)
                return []
            if "skipped" in result:
                return []
            found[who].append(result)
    numbers = [f"{found[who][0]['tensors']:.1f}" if who in found else "" for who in EVERYONE]
    ratios = [ratio(found, who, what) for what in ("tensors", "resident") for who in EVERYONE[:2]]
    return [name, options.mode, *numbers, *ratios]


def ratio(found: dict[str, list[dict[str, float]]], who: str, what: str) -> str:
    """dynajit's over another's, the median over the rounds."""
    if who not in found or "dynajit" not in found:
        return ""
    pairs = zip(found["dynajit"], found[who], strict=True)
    return f"{statistics.median(ours[what] / theirs[what] for ours, theirs in pairs):.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
