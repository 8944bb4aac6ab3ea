"""Memory of a call on the CPU: eager, torch.compile and dynajit, for models of a registry outside of this folder.

    python benchmarks/memory_peak.py FOLDER [--mode infer train] [--models REGEX] [--rows FILE] [--save]

FOLDER and what a call is: see models_cpu.py. Each measurement is a process of its own, in turns. Peak: the most bytes
that allocators had given out during one call, over what they had before it, as torch.profiler hears of them; the same
each time. Kept: what they have given out and not got back when forward has returned, its results among it. Resident:
free memory is given back to the system, the kernel's mark of the highest resident memory reset, the call made, and the
mark read, over what was resident before; the median of a few calls. `--rows` keeps what was measured in a JSON file, in
which later runs replace what they measure (`--who`) of their models.
"""

import argparse
import ctypes
import gc
import json
import math
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from models_cpu import Runner, case_of, kept_rows, tensors_at_once, tensors_kept

HEADER = (
    *("model", "mode", "peak MB: eager", "torch.compile", "dynajit", "kept MB: eager", "torch.compile", "dynajit"),
    *("peak: /eager", "/torch.compile", "kept: /eager", "/torch.compile", "resident: /eager", "/torch.compile"),
)
EVERYONE = ("eager", "torch.compile", "dynajit")
KINDS = ("peak", "kept", "resident")
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
    peak, kept = tensors_at_once(run), tensors_kept(run.forward)
    found = []
    for _ in range(CALLS):
        settle()
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        run()
        found.append(status("VmHWM") - before)
    return {"peak": peak, "kept": kept, "resident": statistics.median(found)}


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("folder")
    parser.add_argument("--mode", nargs="*", default=["infer", "train"], choices=["infer", "train"])
    parser.add_argument("--models", default="", help="a regular expression; default: all")
    parser.add_argument("--rows", help="a JSON file with what was measured so far")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/memory_peak.md")
    parser.add_argument("--who", default=",".join(EVERYONE), help="of these; for the others what --rows has")
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        sbs.finish_child(options.out, measure(options.models, options.folder, options.mode[0], options.who))
    sys.path.insert(0, options.folder)
    from models import REGISTRY

    names = list(REGISTRY)
    table = sbs.Table(HEADER, max(names, key=len), "train")
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    rows = kept_rows(options.rows)
    for mode in options.mode:
        for name in (name for name in names if re.search(options.models, name)):
            found = row(name, mode, options)
            if found:
                rows[f"{mode} {name}"] = found = {**rows.get(f"{mode} {name}", {}), **found}
                print(table.add(cells(name, mode, found)), flush=True)
                if options.rows:
                    Path(options.rows).write_text(json.dumps(rows, indent=1))
    if options.save:
        whole = sbs.Table(HEADER, max(names, key=len), "train")
        for mode in ("infer", "train"):
            for name in (name for name in names if f"{mode} {name}" in rows):
                whole.add(cells(name, mode, rows[f"{mode} {name}"]))
        how = "python benchmarks/memory_peak.py FOLDER --save"
        text = f"{whole}\n\n{verdict(rows)}"
        print("written:", sbs.save("memory_peak", "Memory of a call on the CPU", text, how))
    return 0


def row(name: str, mode: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What was measured of a model, by who; empty where it cannot run here."""
    found: dict[str, dict[str, float]] = {}
    for who in options.who.split(","):
        child = [options.folder, "--models", name, "--mode", mode, "--who", who]
        try:
            with tempfile.TemporaryDirectory(prefix="memory-", ignore_cleanup_errors=True) as cache:
                found[who] = sbs.run_child(__file__, child, Path(cache), timeout=900)
        except sbs.ChildFailed as error:
            print(f"{name}: {error}", flush=True)
            return {}
        if "skipped" in found[who]:
            return {}
    return found


def cells(name: str, mode: str, found: dict[str, dict[str, float]]) -> list[str]:
    numbers = [f"{found[who][kind]:.1f}" if who in found else "" for kind in KINDS[:2] for who in EVERYONE]
    ratios = [ratio(found, who, kind) for kind in KINDS for who in EVERYONE[:2]]
    return [name, mode, *numbers, *("" if each is None else f"{each:.2f}" for each in ratios)]


def ratio(found: dict[str, dict[str, float]], who: str, kind: str) -> float | None:
    """dynajit's over another's; None where one is not known, or nothing."""
    if who not in found or "dynajit" not in found or not found[who][kind]:
        return None
    return found["dynajit"][kind] / found[who][kind]


def verdict(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """Who takes more than another by half a per cent and 0.05 MB."""
    lines = []
    for who in EVERYONE[:2]:
        for kind in KINDS[:2]:
            more = [
                f"{name} ({ratio(found, who, kind) or math.inf:.2f})"
                for name, found in rows.items()
                if {who, "dynajit"} <= found.keys() and found["dynajit"][kind] > 1.005 * found[who][kind] + 0.05
            ]
            lines.append(f"* {kind}, more than {who}: {', '.join(more) or 'none'}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
