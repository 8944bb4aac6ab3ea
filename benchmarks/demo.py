"""Real models through dynajit, beside eager and torch.compile.

    python benchmarks/demo.py [--quick] [--only REGEX] [--threads N] [--save]

For each program: milliseconds a call of eager, dynajit and torch.compile, interleaved in one process; seconds from
`compile` to the first result of both compilers, each in a fresh process with empty caches (imports of the compiler
included, building the model not); the graphs and graph breaks of dynajit; the largest difference to eager's results,
parameters after training steps included.
"""

import argparse
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from models import PROGRAMS, Case, tensors_in

HEADER = (
    "model",
    "eager ms",
    "dynajit ms",
    "torch.compile ms",
    "speedup",
    "dynajit 1st s",
    "torch.compile 1st s",
    "graphs",
    "breaks",
    "largest error",
)
# float32 results may differ by rounding: other summation orders, fused multiply-add. Scaled by the largest value of the
# tensor.
TOLERANCE = 2e-5
STEPS = 3  # calls compared


def compare(case: Case, fn: Any, expected: list[torch.Tensor]) -> tuple[float, bool]:
    """Largest difference over STEPS calls and the state after them; is it within TOLERANCE of each tensor's scale?"""
    largest, fine = 0.0, True
    got = results(case, fn)
    if len(got) != len(expected):
        return float("inf"), False
    for a, b in zip(got, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf"), False
        difference = (a.double() - b.double()).abs().max().item() if a.numel() else 0.0
        largest = max(largest, difference)
        fine = fine and difference <= TOLERANCE * max(1.0, b.double().abs().max().item())
    return largest, fine


def results(case: Case, fn: Any) -> list[torch.Tensor]:
    """The tensors that STEPS calls return, and the state after them, copied."""
    out = [tensor.detach().clone() for _ in range(STEPS) for tensor in tensors_in(case.call_with(fn))]
    return out + [tensor.detach().clone() for tensor in case.state()]


def first_result(name: str, compiler: str) -> dict[str, Any]:
    """Child: seconds from compile to first result."""
    case = PROGRAMS[name].build()
    with torch.set_grad_enabled(case.grad):
        start = time.perf_counter()
        fn = sbs.COMPILERS[compiler](case.fn, None)
        case.call_with(fn)
        seconds = time.perf_counter() - start
    result: dict[str, Any] = {"seconds": seconds}
    if compiler == "dynajit":
        import dynajit

        flat = dynajit.counters()
        result.update(graphs=flat["unique_graphs"], breaks=flat["graph_break_events"])
    return result


def steady(name: str, threads: int, seconds: float) -> dict[str, Any]:
    """Child: correctness, then interleaved timing of eager and the compilers, each with a copy of the program."""
    cases = {who: PROGRAMS[name].build() for who in ("eager", *sbs.COMPILERS)}
    fns = {who: case.fn for who, case in cases.items()}
    result: dict[str, Any] = {"failed": {}}
    with torch.set_grad_enabled(cases["eager"].grad):
        expected = results(cases["eager"], fns["eager"])
        for who, compile_with in sbs.COMPILERS.items():
            try:
                fns[who] = compile_with(cases[who].fn, None)
                error, fine = compare(cases[who], fns[who], expected)
            except Exception as error_raised:  # a compiler that fails costs its own columns only, and is shown
                result["failed"][who] = (
                    f"{type(error_raised).__name__}: {str(error_raised).strip().splitlines()[0][:200]}"
                )
                del fns[who]
            else:
                result[f"{who} error"], result[f"{who} correct"] = error, fine
        calls = {who: (lambda case=cases[who], fn=fn: case.call_with(fn)) for who, fn in fns.items()}
        result["times"] = sbs.interleave(calls, seconds=seconds, clock=sbs.clock_for(threads))
    return result


def run_program(
    name: str, options: argparse.Namespace, progress: sbs.Progress, label: str
) -> tuple[list[str], dict[str, Any]]:
    """All children of one program; the table's row and the facts behind it."""
    facts: dict[str, Any] = {"problems": []}
    common = ["--model", name, "--threads", str(options.threads)]
    with tempfile.TemporaryDirectory(prefix="demo-cache-", ignore_cleanup_errors=True) as folder:
        for who in sbs.COMPILERS:
            progress.step(f"{label} {name}: {who}, first result in a fresh process")
            try:
                facts[who] = sbs.run_child(__file__, [*common, "--phase", "first", "--compiler", who], Path(folder))
            except sbs.ChildFailed as error:
                facts["problems"].append(f"{name}: {who}: {error}")
        progress.step(f"{label} {name}: checking and timing")
        seconds = ["--seconds", str(options.seconds)]
        try:
            facts["steady"] = sbs.run_child(__file__, [*common, "--phase", "steady", *seconds], Path(folder))
        except sbs.ChildFailed as error:
            facts["problems"].append(f"{name}: timing: {error}")
            facts["steady"] = {"failed": {}, "times": {}}
    steady_facts = facts["steady"]
    facts["problems"] += [f"{name}: {who}: {text}" for who, text in steady_facts["failed"].items()]
    for who in sbs.COMPILERS:
        if steady_facts.get(f"{who} correct") is False:
            facts["problems"].append(f"{name}: {who}: differs from eager by {steady_facts[f'{who} error']:.3g}")
    return row(name, facts), facts


def row(name: str, facts: dict[str, Any]) -> list[str]:
    times = facts["steady"]["times"]

    def milliseconds(who: str) -> str:
        if who not in times:
            return "failed"
        noisy = "~" if sbs.spread(times[who]) > 0.3 else ""
        return f"{noisy}{statistics.median(times[who]) * 1e3:.3f}"

    def seconds(who: str) -> str:
        return f"{facts[who]['seconds']:.2f}" if who in facts else "failed"

    ratio = f"{sbs.paired_ratio(times['eager'], times['dynajit']):.2f}" if "dynajit" in times else "-"
    error = facts["steady"].get("dynajit error")
    return [
        name,
        milliseconds("eager"),
        milliseconds("dynajit"),
        milliseconds("torch.compile"),
        ratio,
        seconds("dynajit"),
        seconds("torch.compile"),
        str(facts.get("dynajit", {}).get("graphs", "-")),
        str(facts.get("dynajit", {}).get("breaks", "-")),
        "-" if error is None else f"{error:.1e}",
    ]


def summary(all_facts: list[dict[str, Any]]) -> str:
    """Geometric means over the programs where both compilers worked."""
    pairs = [f for f in all_facts if all(who in f and who in f["steady"]["times"] for who in sbs.COMPILERS)]
    if not pairs:
        return "No program ran with both compilers."
    times = [f["steady"]["times"] for f in pairs]
    eager = sbs.geometric_mean([sbs.paired_ratio(t["eager"], t["dynajit"]) for t in times])
    rival = sbs.geometric_mean([sbs.paired_ratio(t["torch.compile"], t["dynajit"]) for t in times])
    first = sbs.geometric_mean([f["torch.compile"]["seconds"] / f["dynajit"]["seconds"] for f in pairs])
    return (
        f"Geometric means over {len(pairs)} programs: dynajit runs at {eager:.2f} times eager's speed and {rival:.2f} "
        f"times that of torch.compile; its first result comes {first:.1f} times sooner than torch.compile's. "
        "A ~ marks timings too noisy to quote."
    )


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("--quick", action="store_true", help="fewer programs, shorter timing")
    parser.add_argument("--only", default="", help="regular expression over the names")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1: less noise)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/demo.md")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    for hidden in ("--model", "--compiler", "--phase"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(options.threads)
        if options.phase == "first":
            sbs.finish_child(options.out, first_result(options.model, options.compiler))
        sbs.finish_child(options.out, steady(options.model, options.threads, options.seconds))
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    names = [p.name for p in PROGRAMS.values() if (p.quick or not options.quick) and re.search(options.only, p.name)]
    if options.list:
        print("\n".join(names))
        return 0
    return run_all(names, options)


def run_all(names: list[str], options: argparse.Namespace) -> int:
    print(sbs.machine(), f"{options.threads} thread(s)", sep="; ", flush=True)
    progress = sbs.Progress()
    table = sbs.Table(HEADER, max(names, key=len))
    print("\n".join(table.lines), flush=True)
    all_facts = []
    for number, name in enumerate(names, 1):
        cells, facts = run_program(name, options, progress, f"[{number}/{len(names)}]")
        all_facts.append(facts)
        progress.clear()
        print(table.add(cells), flush=True)
    print(f"\n{summary(all_facts)}")
    problems = [problem for facts in all_facts for problem in facts["problems"]]
    if problems:
        print("\nProblems:\n" + "\n".join(f"  {problem}" for problem in problems))
    if options.save:
        print("\nwritten:", sbs.save("demo", "Models side by side", f"{table}\n\n{summary(all_facts)}", "make bench"))
    return 1 if any("torch.compile:" not in problem for problem in problems) else 0


if __name__ == "__main__":
    raise SystemExit(main())
