"""Every operator of torch's own database against eager, for every dtype it has on CPUs, or for some on a GPU.

    python tests/operators/run_operators.py                          all operators, up to 6 samples each
    python tests/operators/run_operators.py --only softmax --all     every sample of operators named like that
    python tests/operators/run_operators.py --save FILE              also writes the table
    python tests/operators/run_operators.py --device cuda            on a GPU: float32, float16, bfloat16, int64, bool
    ... --processes 14 --minutes 8 --state FILE                      eight minutes of it; again: goes on where it ended

Operators run in processes of their own (`operators_workers.py`), so a crash is a finding like any other. The exit
status is 1 if there is a finding that `operators_known.py` does not give a reason for.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

# Asking whether there is a GPU must not open it: processes forked after that could not.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch  # noqa: E402
from operators_calls import VARIANTS, findings  # noqa: E402
from operators_compare import Case, Skip  # noqa: E402
from operators_known import METADATA_ONLY, reason_for  # noqa: E402
from operators_workers import Outcome, State, Unit, run_units  # noqa: E402
from torch.testing._internal import common_methods_invocations  # noqa: E402

op_db = common_methods_invocations.op_db

GPU_DTYPES = ("float32", "float16", "bfloat16", "int64", "bool")


def _without_seed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Random operators of the database set the seed themselves; here the comparison does, before the compiled call."""
    return op(*args, **kwargs)


common_methods_invocations.wrapper_set_seed = _without_seed


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
        if dtypes and _short(dtype) not in dtypes:
            continue
        torch.manual_seed(1)
        differentiable = op.supports_autograd and dtype in (torch.float32, torch.float64)
        try:
            samples = list(op.sample_inputs(device, dtype, requires_grad=differentiable))
        except Exception as error:
            outcome.skipped[f"no samples: {type(error).__name__}"] += 1
            continue
        for place, sample in chosen(samples, limit):
            for variant in variants:
                if variant != "raises":
                    _compare(outcome, case_of(op, sample, differentiable, backend), variant, _short(dtype), place)
        if "raises" in variants and dtype is torch.float32 and op.error_inputs_func is not None:
            refused = [error.sample_input for error in op.error_inputs(device)]
            for place, sample in chosen(refused, limit):
                _compare(outcome, case_of(op, sample, False, backend), "raises", _short(dtype), place)
    outcome.seconds = time.monotonic() - start
    return outcome


def case_of(op: Any, sample: Any, differentiable: bool, backend: str) -> Case:
    """A sample of an operator of the database."""
    unspecified = op.name in METADATA_ONLY
    return Case(op.op, op.inplace_variant, sample, differentiable, unspecified, backend, op.supports_out)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _compare(outcome: Outcome, case: Case, variant: str, dtype: str, place: int) -> None:
    try:
        found = findings(case, variant)
    except Skip as skip:
        outcome.skipped[str(skip)] += 1
        return
    outcome.compared[variant, dtype] += 1
    if found is not None:
        outcome.found.append((dtype, str(place), found))


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


def merged(outcomes: list[Outcome]) -> list[Outcome]:
    """One outcome for each operator, of those of its dtypes; in the database's order."""
    whole: dict[str, Outcome] = {}
    for outcome in outcomes:
        into = whole.setdefault(outcome.name, Outcome(outcome.name))
        into.compared += outcome.compared
        into.skipped += outcome.skipped
        into.found += outcome.found
        into.seconds += outcome.seconds
    return [whole[name] for name in dict.fromkeys(map(name_of, op_db)) if name in whole]


def table(outcomes: list[Outcome], units: list[Unit], options: Any, minutes: float) -> str:
    """The result as Markdown."""
    compared: Counter[tuple[str, str]] = Counter()
    skipped: Counter[str] = Counter()
    known: dict[str, set[str]] = {}
    unknown: list[str] = []
    for outcome in merged(outcomes):
        compared += outcome.compared
        skipped += outcome.skipped
        for dtype, place, finding in outcome.found:
            reason = reason_for(outcome.name, finding)
            if reason:
                known.setdefault(reason, set()).add(outcome.name)
            else:
                unknown.append(f"{outcome.name} {dtype} #{place} {finding.variant} {finding.kind}: {finding.detail}")
    columns = [variant for variant in VARIANTS if any(key[0] == variant for key in compared)]
    dtypes = sorted({key[1] for key in compared})
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    lines = [
        "# Operators",
        "",
        f"`python tests/operators/run_operators.py` with torch {torch.__version__}, {device}, backend "
        f"`{options.backend}`, {datetime.date.today()}: {len(outcomes)} of {len(units)} pairs of an operator and a "
        f"dtype ({len({unit.name for unit in units})} operators), "
        f"{'all' if options.all else f'up to {options.samples}'} samples of each, {minutes:.0f} minutes in "
        f"{options.processes} process{'es' if options.processes > 1 else ''}.",
        "",
        f"| compared | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
        *(f"| {dtype} | {' | '.join(str(compared[variant, dtype]) for variant in columns)} |" for dtype in dtypes),
        f"| all | {' | '.join(str(sum(compared[variant, d] for d in dtypes)) for variant in columns)} |",
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


def units_of(options: Any) -> list[Unit]:
    """What the options ask for, operators and dtypes mixed: what is done when the time is over tells of all."""
    part, parts = (int(number) for number in options.part.split("/"))
    units = [
        Unit(number, name_of(op), _short(dtype))
        for number, op in enumerate(op_db)
        if number % parts == part
        and (not options.only or any(text in name_of(op) for text in options.only))
        and (not options.exact or name_of(op) in options.exact)
        for dtype in dtypes_of(op, options.device)
        if not options.dtypes or _short(dtype) in options.dtypes
    ]
    random.Random(0).shuffle(units)
    return units


def run_unit(options: Any, unit: Unit) -> Outcome:
    """One operator in one dtype, in a worker. An error that the GPU reports later is raised here."""
    torch.set_num_threads(1)
    limit = 0 if options.all else options.samples
    variants = options.variants or VARIANTS
    outcome = run_operator(op_db[unit.number], limit, options.backend, {unit.dtype}, variants, options.device)
    if options.device == "cuda":
        torch.cuda.synchronize()
    return outcome


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
    parser.add_argument("--processes", type=int, default=1, help="how many operators at once")
    parser.add_argument("--minutes", type=float, default=0, help="end after so long (0: when all is done)")
    parser.add_argument("--state", help="keep what is done in this file, and go on from there")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU")
    if options.device != "cpu" and not options.dtypes:
        options.dtypes = list(GPU_DTYPES)
    units = units_of(options)
    state = State(options.state, [torch.__version__, options.device, options.backend, options.samples, options.all,
                                  options.variants])  # fmt: skip
    done = {unit: state.done[unit.key] for unit in units if unit.key in state.done}
    for outcome in done.values():
        show(outcome, options.verbose)

    def each(unit: Unit, outcome: Outcome) -> None:
        done[unit] = outcome
        state.add(unit, outcome)
        show(outcome, options.verbose)

    # A GPU that this process has opened is of no use to a fork of it; a process of its own takes seconds to start.
    method = "fork" if options.device == "cpu" else "spawn"
    work = functools.partial(run_unit, options)
    left = [unit for unit in units if unit not in done]
    start = time.monotonic()
    run_units(left, work, each, method, options.processes, options.minutes * 60 or float("inf"))
    minutes = state.minutes(time.monotonic() - start)
    outcomes = list(done.values())
    text = table(outcomes, units, options, minutes)
    print(text)
    for outcome in sorted(merged(outcomes), key=lambda o: -o.seconds)[:10]:
        print(f"{outcome.seconds:8.1f} s {outcome.name}")
    if options.save:
        Path(options.save).write_text(text)
    return int(any(not reason_for(o.name, finding) for o in outcomes for _, _, finding in o.found))


if __name__ == "__main__":
    sys.exit(main())
