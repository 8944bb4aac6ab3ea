"""Every operator of torch's own database against eager, for every dtype it has on CPUs, or for some on a GPU.

    python tests/operators/run_operators.py                          all operators, up to 6 samples each
    python tests/operators/run_operators.py --only softmax --all     every sample of operators named like that
    python tests/operators/run_operators.py --save FILE              also writes the table
    python tests/operators/run_operators.py --device cuda            on a GPU: float32, float16, bfloat16, int64, bool

Each operator runs in a process of its own, so a crash is a finding like any other. The exit status is 1 if there is a
finding that `operators_known.py` does not give a reason for.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

# Asking whether there is a GPU must not open it: processes forked after that could not.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch  # noqa: E402
from operators_compare import VARIANTS, Case, Finding, Skip, findings  # noqa: E402
from operators_known import METADATA_ONLY, reason_for  # noqa: E402
from torch.testing._internal import common_methods_invocations  # noqa: E402

op_db = common_methods_invocations.op_db

SECONDS_PER_OPERATOR = 900
GPU_DTYPES = ("float32", "float16", "bfloat16", "int64", "bool")


def _without_seed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Random operators of the database set the seed themselves; here the comparison does, before the compiled call."""
    return op(*args, **kwargs)


common_methods_invocations.wrapper_set_seed = _without_seed


@dataclass
class Outcome:
    """What came of one operator: counts of what was compared, and the findings as (dtype, sample, finding)."""

    name: str
    compared: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    found: list[tuple[str, str, Finding]] = field(default_factory=list)
    seconds: float = 0.0


def name_of(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def dtypes_of(op: Any, device: str = "cpu") -> list[torch.dtype]:
    """In a fixed order."""
    return sorted(op.supported_dtypes(device), key=str)


def chosen(samples: list[Any], limit: int) -> list[tuple[int, Any]]:
    """At most `limit` of the samples (0: all), evenly spread, the first and the last among them."""
    if not limit or len(samples) <= limit:
        return list(enumerate(samples))
    places = sorted({round(i * (len(samples) - 1) / max(limit - 1, 1)) for i in range(limit)})
    return [(place, samples[place]) for place in places]


def run_operator(
    op: Any,
    limit: int,
    backend: str,
    dtypes: set[str] | None = None,
    variants: Any = VARIANTS,
    device: str = "cpu",
) -> Outcome:
    """Everything about one operator."""
    outcome = Outcome(name_of(op))
    start = time.monotonic()
    for dtype in dtypes_of(op, device):
        if dtypes and str(dtype).removeprefix("torch.") not in dtypes:
            continue
        torch.manual_seed(1)
        differentiable = op.supports_autograd and dtype in (torch.float32, torch.float64)
        try:
            samples = list(op.sample_inputs(device, dtype, requires_grad=differentiable))
        except Exception as error:
            outcome.skipped[f"no samples: {type(error).__name__}"] += 1
            continue
        for place, sample in chosen(samples, limit):
            case = Case(op.op, op.inplace_variant, sample, differentiable, op.name in METADATA_ONLY, backend)
            for variant in variants:
                _compare(outcome, case, variant, str(dtype).removeprefix("torch."), place)
    outcome.seconds = time.monotonic() - start
    return outcome


def _compare(outcome: Outcome, case: Case, variant: str, dtype: str, place: int) -> None:
    try:
        found = findings(case, variant)
    except Skip as skip:
        outcome.skipped[str(skip)] += 1
        return
    outcome.compared[variant] += 1
    if found is not None:
        outcome.found.append((dtype, str(place), found))


# ---- processes


def _child(pipe: Any, numbers: list[int], options: Any) -> None:
    torch.set_num_threads(1)
    for number in numbers:
        pipe.send(("start", name_of(op_db[number])))
        dtypes = set(options.dtypes) if options.dtypes else None
        variants = options.variants or VARIANTS
        limit = 0 if options.all else options.samples
        outcome = run_operator(op_db[number], limit, options.backend, dtypes, variants, options.device)
        pipe.send(("done", outcome))
    pipe.send(("end", None))


def run_all(numbers: list[int], options: Any, each: Any) -> list[Outcome]:
    """The outcome of each operator, from processes that may crash."""
    outcomes: list[Outcome] = []
    # A GPU that this process has opened is of no use to a fork of it; a process of its own takes seconds to start.
    on_cpu = options.device == "cpu"
    context: Any = multiprocessing.get_context("fork" if on_cpu else "spawn")
    size = 8 if on_cpu else 64
    left = list(numbers)
    while left:
        batch, left = left[:size], left[size:]
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(theirs, batch, options))
        process.start()
        theirs.close()
        at = 0
        running = ""
        while True:
            try:
                if not ours.poll(SECONDS_PER_OPERATOR):
                    process.kill()
                    raise EOFError
                kind, value = ours.recv()
            except EOFError:
                process.join()
                crashed = Outcome(running)
                crashed.found.append(("", "", Finding("", "crash", f"the process ended with {process.exitcode}")))
                outcomes.append(crashed)
                each(crashed)
                left = batch[at + 1 :] + left
                break
            if kind == "start":
                running = value
            elif kind == "done":
                at += 1
                outcomes.append(value)
                each(value)
            else:
                process.join()
                break
    return outcomes


def show(outcome: Outcome, verbose: bool) -> None:
    """The findings of one operator, those alike once."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for dtype, place, finding in outcome.found:
        key = (finding.variant, finding.kind, "" if finding.kind == "wrong" else finding.detail)
        seen[key] += 1
        if seen[key] <= (1000 if verbose else 3):
            reason = reason_for(outcome.name, finding)
            print(f"{outcome.name} {dtype} #{place} {finding.variant} {finding.kind}: {finding.detail}"
                  + (f"  [known: {reason}]" if reason else ""), flush=True)  # fmt: skip
    left_out = sum(count for count in seen.values()) - sum(
        min(count, 1000 if verbose else 3) for count in seen.values()
    )
    if left_out:
        print(f"{outcome.name}: and {left_out} more like these")


def table(outcomes: list[Outcome], options: Any) -> str:
    """The result as Markdown."""
    compared: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    known: dict[str, set[str]] = {}
    unknown: list[str] = []
    for outcome in outcomes:
        compared += outcome.compared
        skipped += outcome.skipped
        for dtype, place, finding in outcome.found:
            reason = reason_for(outcome.name, finding)
            if reason:
                known.setdefault(reason, set()).add(outcome.name)
            else:
                unknown.append(f"{outcome.name} {dtype} #{place} {finding.variant} {finding.kind}: {finding.detail}")
    lines = [
        "# Operators",
        "",
        f"`python tests/operators/run_operators.py` with torch {torch.__version__}, "
        f"{options.device}, backend `{options.backend}`: "
        f"{len(outcomes)} operators, {'all' if options.all else f'up to {options.samples}'} samples for each dtype, "
        f"{sum(o.seconds for o in outcomes) / 60:.0f} minutes.",
        "",
        "| way of calling | compared |",
        "|---|---|",
        *(f"| {variant} | {count} |" for variant, count in sorted(compared.items())),
        "",
        f"Findings without a reason: {len(unknown)}",
        "",
        *(f"* {line}" for line in unknown),
        "",
        "## Known, with reasons",
        "",
        *(f"* {reason}: {', '.join(sorted(names))}" for reason, names in sorted(known.items())),
        "",
        "## Not compared",
        "",
        *(f"* {reason}: {count}" for reason, count in sorted(skipped.items())),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="operators whose name holds one of these")
    parser.add_argument("--exact", nargs="*", default=[], help="operators of exactly these names")
    parser.add_argument("--dtypes", nargs="*", default=[], help="float32, int64, ...")
    parser.add_argument("--variants", nargs="*", default=[], choices=[*VARIANTS], help="ways of calling")
    parser.add_argument("--samples", type=int, default=6, help="how many for each dtype")
    parser.add_argument("--all", action="store_true", help="every sample")
    parser.add_argument("--part", default="0/1", help="I/N: the Ith part of N of the operators")
    parser.add_argument("--backend", default="codegen")
    parser.add_argument("--verbose", action="store_true", help="every finding")
    parser.add_argument("--save", help="write the table to this file")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    if options.device != "cpu" and not options.dtypes:
        options.dtypes = list(GPU_DTYPES)
    torch.set_num_threads(1)
    part, parts = (int(number) for number in options.part.split("/"))
    numbers = [
        number
        for number, op in enumerate(op_db)
        if number % parts == part
        and (not options.only or any(text in name_of(op) for text in options.only))
        and (not options.exact or name_of(op) in options.exact)
    ]
    outcomes = run_all(numbers, options, lambda outcome: show(outcome, options.verbose))
    text = table(outcomes, options)
    print(text)
    for outcome in sorted(outcomes, key=lambda o: -o.seconds)[:10]:
        print(f"{outcome.seconds:8.1f} s {outcome.name}")
    if options.save:
        Path(options.save).write_text(text)
    return int(any(not reason_for(o.name, finding) for o in outcomes for _, _, finding in o.found))


if __name__ == "__main__":
    sys.exit(main())
