"""Programs of the packages that people use with PyTorch: do they work under dynajit, are they right, are they fast?

    python benchmarks/clients.py [REGEX] [--rows FILE] [--fresh] [--only dynajit] [--save]

Random weights, small sizes, one thread, nothing is downloaded; a package that isn't installed is a row that says so.
Each client has a process of its own with empty caches; eager, torch.compile and dynajit make the client anew from the
same seed, and call it several times. `--rows` keeps what was measured in a JSON file, from which a later run goes on
(`--fresh` measures anew what REGEX matches). One more client: a function behind `@client`, see client_table.py.

Right means: what the first calls return, and how far all parameters moved in them, is eager's up to rounding.
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side as sbs
import torch
from client_table import CLIENTS
from torch import Tensor, nn

# Calls whose answers are compared, and calls after them in which nothing should be compiled.
FIRST, AGAIN = 3, 3
# Distances, relative to eager's: of an answer, and of all that parameters moved together.
CLOSE, MOVED = 1e-3, 2e-2
HEADER = ("client", "works", "equal", "first: eager s", "torch.compile s", "dynajit s")
HEADER += ("eager / dynajit", "torch.compile / dynajit", "breaks", "torch.compile's", "again", "torch.compile's", "why")

# Why a frame without an operation of torch is skipped: no break.
NOTHING = "nothing to compile in it"

Row = dict[str, Any]

# ------------------------------------------------------------------------------------------------ answers


def leaves(tree: Any) -> Iterator[Any]:
    """Tensors, numbers and texts of nested containers, in order."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from leaves(value)
    elif isinstance(tree, Tensor):
        yield tree.detach().clone()
    elif isinstance(tree, np.ndarray) or (isinstance(tree, (int, float, np.number)) and not isinstance(tree, bool)):
        yield torch.as_tensor(tree)
    elif tree is not None:
        yield tree


def differs(got: list[Any], expected: list[Any]) -> str:
    """In which place two answers differ by more than rounding, or nothing."""
    if len(got) != len(expected):
        return f"{len(got)} values instead of {len(expected)}"
    for place, (ours, eager) in enumerate(zip(got, expected, strict=True)):
        if not isinstance(eager, Tensor):
            if ours != eager:
                return f"value {place}: {ours!r} instead of {eager!r}"[:160]
            continue
        if (ours.shape, ours.dtype) != (eager.shape, eager.dtype):
            return f"value {place}: {ours.dtype} {[*ours.shape]} instead of {eager.dtype} {[*eager.shape]}"
        if why := distance(ours, eager):
            return f"value {place}: {why}"
    return ""


def distance(ours: Tensor, eager: Tensor) -> str:
    if not eager.is_floating_point() and not eager.is_complex():
        share = float((ours != eager).double().mean()) if eager.numel() else 0.0
        return f"{share:.1%} of the integers differ" if share else ""
    a, b = (torch.view_as_real(x) if x.is_complex() else x for x in (ours, eager))
    a, b = a.double().flatten(), b.double().flatten()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return "finite elsewhere"
    a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
    bound = CLOSE * (10 if eager.dtype in (torch.bfloat16, torch.float16) else 1)
    far = float((a - b).norm() / (b.norm() + 1e-6))
    return f"{far:.1e} from eager" if far > bound else ""


def parameters(module: nn.Module | None) -> list[Tensor]:
    return [each.detach().double().clone() for each in module.parameters()] if module is not None else []


def moved_elsewhere(ours: list[list[Tensor]], eager: list[list[Tensor]]) -> str:
    """Whether all parameters together moved as eager's did, from equal starts."""
    if not eager[0]:
        return ""
    way = [[end - start for start, end in zip(*each, strict=True)] for each in (ours, eager)]
    length = sum(float(step.pow(2).sum()) for step in way[1]) ** 0.5
    apart = sum(float((a - b).pow(2).sum()) for a, b in zip(*way, strict=True)) ** 0.5
    return f"parameters moved {apart / (length + 1e-12):.1e} elsewhere" if apart > MOVED * length + 1e-9 else ""


# ------------------------------------------------------------------------------------------------ one compiler


class Counts:
    """Graph breaks and compilations of a compiler since the process began."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._records: list[Any] = []
        if who == "dynajit":
            from dynajit.report import records

            records.subscribe(self._records.append)

    def breaks(self) -> list[str]:
        if self._who == "dynajit":
            from dynajit.report.explain import ExplainReport

            told = [f"{each.kind}: {each.reason}" for each in ExplainReport(self._records).break_reasons]
            skipped = [record.skipped for record in self._records if record.skipped not in (None, NOTHING)]
            return told + [f"skipped: {each}" for each in skipped]
        counted = torch._dynamo.utils.counters["graph_break"] if self._who == "torch.compile" else {}
        return [text.split("\n")[0] for text, count in counted.items() for _ in range(count)]

    def compiled(self) -> list[str]:
        """A text for each frame that was compiled, with the reason if it was again."""
        if self._who == "dynajit":
            return [f"{record.code_name}: {record.recompile_reason}" for record in self._records]
        frames = torch._dynamo.utils.counters["frames"]["total"] if self._who == "torch.compile" else 0
        return [""] * frames


def compiler_of(who: str) -> Callable[[Any], Any]:
    if who == "eager":
        return lambda fn: fn
    return lambda fn: sbs.COMPILERS[who](fn, None)


def run_one(who: str, name: str) -> tuple[Row, Any]:
    """Make the client for one compiler and call it; what was found, and the call."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    counts = Counts(who)
    made = CLIENTS[name][1](compiler_of(who))
    call, module = made if isinstance(made, tuple) else (made, None)
    before = parameters(module)
    start = sbs.tree_cpu_seconds()
    answers = [list(leaves(call()))]
    first = sbs.tree_cpu_seconds() - start
    answers += [list(leaves(call())) for _ in range(FIRST - 1)]
    moves = [before, parameters(module)]
    done = len(counts.compiled())
    for _ in range(AGAIN):
        call()
    found = {"first": first, "breaks": counts.breaks(), "again": counts.compiled()[done:]}
    return found | {"answers": answers, "moves": moves}, call


def measure(name: str, who: list[str], seconds: float) -> Row:
    """What a child measures."""
    sides: dict[str, Row] = {}
    calls: dict[str, Any] = {}
    for each in who:
        try:
            sides[each], calls[each] = run_one(each, name)
        except ModuleNotFoundError as error:
            if each == "eager":
                return {"missing": str(error)}
            raise
        except Exception as error:
            traceback.print_exc()
            sides[each] = {"error": f"{type(error).__name__}: {error}"[:400]}
    eager = sides["eager"]
    for side in sides.values():
        if "error" not in side and "error" not in eager:
            wrong = [text for text in map(differs, side["answers"], eager["answers"]) if text]
            side["wrong"] = "; ".join(filter(None, [*wrong[:1], moved_elsewhere(side["moves"], eager["moves"])]))
    for side in sides.values():
        side.pop("answers", None)
        side.pop("moves", None)
    row: Row = {"sides": sides}
    if seconds and "dynajit" in calls:
        times = sbs.interleave(calls, seconds=seconds, slice_seconds=0.02, min_rounds=7, clock=sbs.clock_for(1))
        row["ms"] = {each: statistics.median(taken) * 1e3 for each, taken in times.items()}
        row["ratios"] = {each: sbs.paired_ratio(taken, times["dynajit"]) for each, taken in times.items()}
    return row


# ------------------------------------------------------------------------------------------------ the table


def cells(name: str, row: Row) -> list[str]:
    if "missing" in row:
        return [name, "not installed", *[""] * (len(HEADER) - 2)]
    sides = row["sides"]
    eager, theirs, ours = (sides.get(who, {}) for who in ("eager", "torch.compile", "dynajit"))
    works = {"": "yes"}.get(ours.get("error", ""), "**no**")
    works += " (torch.compile: no)" if "error" in theirs else ""
    equal = "" if "error" in ours else "**no**" if ours.get("wrong") else "yes"
    equal += " (torch.compile: no)" if theirs.get("wrong") else ""
    ratios = row.get("ratios", {})
    why = ours.get("error") or ours.get("wrong") or next(iter(ours.get("breaks", [])), "")
    return [
        name,
        works,
        equal,
        *(f"{side['first']:.2f}" if side.get("first") else "" for side in (eager, theirs, ours)),
        *(f"{ratios[who]:.2f}" if who in ratios else "" for who in ("eager", "torch.compile")),
        *(str(len(side[what])) if what in side else "" for what in ("breaks", "again") for side in (ours, theirs)),
        why.replace("|", "/").replace("\n", " ")[:100],
    ]


def verdict(rows: dict[str, Row]) -> str:
    ran = {name: row["sides"] for name, row in rows.items() if "sides" in row and "error" not in row["sides"]["eager"]}
    theirs = {n: s for n, s in ran.items() if "error" not in s.get("torch.compile", {"error": ""})}
    right = {n: s for n, s in theirs.items() if not s["torch.compile"].get("wrong")}
    good = [n for n in right if "error" not in ran[n]["dynajit"] and not ran[n]["dynajit"].get("wrong")]
    listed = {
        "fail under dynajit": [n for n, s in ran.items() if "error" in s["dynajit"]],
        "fail under torch.compile": [n for n, s in ran.items() if "error" in s.get("torch.compile", {})],
        "not equal to eager under dynajit": [n for n, s in ran.items() if s["dynajit"].get("wrong")],
        "not equal to eager under torch.compile": [n for n, s in theirs.items() if s["torch.compile"].get("wrong")],
        "breaks where torch.compile has none": [
            f"{n} ({len(s['dynajit']['breaks'])})"
            for n, s in theirs.items()
            if s["dynajit"].get("breaks") and not s["torch.compile"].get("breaks")
        ],
        "compiled in the fourth to sixth call": [n for n, s in ran.items() if s["dynajit"].get("again")],
        "eager itself fails": [n for n, row in rows.items() if "sides" in row and n not in ran],
        "not installed": [n for n, row in rows.items() if "missing" in row],
    }
    lines = [f"Of {len(right)} clients that work and are right under torch.compile, {len(good)} do under dynajit."]
    both = [n for n, row in rows.items() if "torch.compile" in row.get("ratios", {})]
    for what in ("eager", "torch.compile"):
        if both:
            mean = sbs.geometric_mean([rows[n]["ratios"][what] for n in both])
            lines.append(f"Later calls, {what} / dynajit, geometric mean of {len(both)}: {mean:.2f}.")
    if both:
        sooner = [ran[n]["torch.compile"]["first"] / ran[n]["dynajit"]["first"] for n in both]
        lines.append(f"First result, torch.compile / dynajit, geometric mean: {sbs.geometric_mean(sooner):.1f}.")
    return "\n".join([*lines, "", *(f"* {what}: {', '.join(names) or 'none'}" for what, names in listed.items())])


def run_client(name: str, options: argparse.Namespace) -> Row:
    """The client in a process of its own; where that one crashes, each compiler by itself."""
    asked = [options.only] if options.only else ["torch.compile", "dynajit"]

    def child(who: list[str], seconds: float) -> Row:
        arguments = [f"^{re.escape(name)}$", "--who", *who, "--seconds", str(seconds)]
        with tempfile.TemporaryDirectory(prefix="clients-", ignore_cleanup_errors=True) as cache:
            return sbs.run_child(__file__, arguments, Path(cache), timeout=options.timeout)

    try:
        return child(["eager", *asked], options.seconds)
    except sbs.ChildFailed as error:
        if len(asked) == 1:
            return {"sides": {"eager": {"breaks": []}, asked[0]: {"error": f"process: {error}"}}}
    sides: Row = {}
    for who in asked:
        try:
            sides |= child(["eager", who], 0.0).get("sides", {})
        except sbs.ChildFailed as error:
            sides[who] = {"error": f"process: {error}"}
    return {"sides": {"eager": {"error": "not run"}, **sides}}


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("clients", nargs="?", default="", metavar="REGEX", help="which clients; default: all")
    parser.add_argument("--seconds", type=float, default=3, help="for timing; 0: none")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one client's process")
    parser.add_argument("--rows", help="a JSON file with the rows measured so far")
    parser.add_argument("--fresh", action="store_true", help="measure rows that --rows has, too")
    parser.add_argument("--only", choices=list(sbs.COMPILERS), help="one compiler beside eager")
    parser.add_argument("--who", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/clients.md")
    options = parser.parse_args()
    chosen = [name for name in CLIENTS if re.search(options.clients, name)]
    if options.child:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        sbs.finish_child(options.out, measure(chosen[0], options.who, options.seconds))
    kept = Path(options.rows) if options.rows else None
    rows: dict[str, Row] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    table = sbs.Table(HEADER, max(CLIENTS, key=len))
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    for name in chosen:
        if name not in rows or options.fresh:
            rows[name] = run_client(name, options)
            if kept:
                kept.write_text(json.dumps(rows, indent=1))
        print(table.add(cells(name, rows[name])), flush=True)
    whole = sbs.Table(HEADER, max(CLIENTS, key=len))
    ordered = {name: rows[name] for name in CLIENTS if name in rows}
    for name, row in ordered.items():
        whole.add(cells(name, row))
    print(verdict(ordered))
    if options.save:
        about = (
            "First: CPU seconds to the first result, of the process and its compilers, caches empty. Ratios: median\n"
            "over interleaved rounds of later calls; above 1 dynajit is faster. Breaks: graph breaks; again: frames\n"
            "compiled in the fourth to sixth call. An empty cell was not measured."
        )
        text = f"{about}\n\n{whole}\n\n{verdict(ordered)}"
        print("written:", sbs.save("clients", "Clients", text, "python benchmarks/clients.py --save"))
    return 0


import clients_language  # noqa: E402, F401 - fills CLIENTS
import clients_more  # noqa: E402, F401 - fills CLIENTS
import clients_science  # noqa: E402, F401 - fills CLIENTS
import clients_training  # noqa: E402, F401 - fills CLIENTS
import clients_vision  # noqa: E402, F401 - fills CLIENTS

if __name__ == "__main__":
    sys.exit(main())
