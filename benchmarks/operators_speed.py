"""Each operator of torch's own database alone: eager and dynajit in turns, torch.compile too if asked.

In: nothing but the machine. Out: for each operator, dtype, size and layout the median time of each and dynajit's time
over eager's; the worst twenty, and how many are slower by 3% and by 10%. `--save` writes these to benchmarks/results/.
A database sample becomes a case by replacing the tensors that have its input's shape by large ones; an operator without
such a sample (products of matrices, sparse tensors, factories) is left out, and counted.

    python benchmarks/operators_speed.py --seconds 500 --state FILE   500 seconds of it; again: goes on where it ended
    python benchmarks/operators_speed.py --only softplus mish --dtypes float16 --layouts transposed --elements 16000000
    python benchmarks/operators_speed.py --device cuda --elements 16000000 --compilers dynajit torch.compile
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from torch.testing import make_tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import dynajit

DTYPES = ("float32", "bfloat16", "float16", "int64")
OTHER_DTYPES = ("float64", "int32", "int16", "int8", "uint8", "bool")
LAYOUTS = ("contiguous", "transposed", "broadcast")
SMALL = 1000
# Eager calls longer than this are of other algorithms than a loop over the elements: decompositions, sorting networks.
LONGEST_CALL = 0.25
# Arguments and results lie in so many places in turn.
PLACEMENTS = 3
# So many samples of an operator are tried.
SAMPLES = 12


def name_of(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


# ---- cases


def tensor(like: torch.Tensor, elements: int, layout: str, first: bool, op: Any) -> torch.Tensor:
    """A tensor with about as many elements as asked for, of the dtype of `like`, within the operator's domain."""
    low, high = getattr(op, "domain", (None, None))
    if like.dtype.is_floating_point:
        low = max(-9.0 if low is None else low, -9.0)
        high = min(9.0 if high is None else high, 9.0)
    else:
        low, high = (1, 9) if like.dtype is not torch.bool else (0, 2)
    if like.dim() == 0:
        return make_tensor((), dtype=like.dtype, device=like.device, low=low, high=high)
    side = math.isqrt(elements)
    shape = (side, elements // side) if like.dim() > 1 or layout != "contiguous" else (elements,)
    if like.dim() > 2:
        shape = (side // 4, elements // (side // 4) // 4, 4, *[1] * (like.dim() - 3))
    if layout == "broadcast" and not first:
        return make_tensor(shape[-1:], dtype=like.dtype, device=like.device, low=low, high=high).expand(shape)
    made = make_tensor(shape, dtype=like.dtype, device=like.device, low=low, high=high)
    return made.transpose(0, 1).contiguous().transpose(0, 1) if layout == "transposed" else made


def alike(sample: Any) -> int:
    """How many tensors have the shape of the sample's input, itself among them."""
    values = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return sum(isinstance(value, torch.Tensor) and value.shape == sample.input.shape for value in values)


def can_be_large(sample: Any) -> bool:
    """Are its tensors of the input's shape, or numbers? What has a channel for each would be too short: some of eager's
    kernels then read and write outside of it."""
    values = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not isinstance(sample.input, torch.Tensor) or not sample.input.dim():
        return False
    strided = all(value.layout is torch.strided for value in tensors)
    return strided and all(value.dim() == 0 or value.shape == sample.input.shape for value in tensors)


def enlarged(sample: Any, elements: int, layout: str, op: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The sample's arguments with large tensors for those that have the shape of its input."""
    shape = sample.input.shape
    seen = 0
    several = alike(sample) > 1

    def large(value: Any) -> Any:
        nonlocal seen
        if not isinstance(value, torch.Tensor) or value.shape != shape:
            return value
        seen += 1
        return tensor(value, elements, layout, seen == 1 and several, op)

    return tree_map(large, (sample.input, *sample.args)), tree_map(large, sample.kwargs)


def find_call(
    op: Any, dtype: torch.dtype, elements: int, layout: str, device: str
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Arguments under which eager runs; None if no sample gives any."""
    try:
        samples = list(zip(range(SAMPLES), op.sample_inputs(device, dtype, requires_grad=False), strict=False))
    except (RuntimeError, TypeError, ValueError):
        return None
    usable = [sample for _, sample in samples if can_be_large(sample)]
    # with a mask before without, rows before everything, matrices before vectors
    usable.sort(key=lambda sample: (-alike(sample), "dim" not in sample.kwargs, -min(sample.input.dim(), 2)))
    for sample in usable:
        args, kwargs = enlarged(sample, elements, layout, op)
        try:
            start = time.perf_counter()
            op.op(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError):
            continue
        if time.perf_counter() - start < LONGEST_CALL:
            return args, kwargs
        return None
    return None


def own_code(op: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """A function with a code object of its own that calls the operator."""

    def call(*args: Any) -> Any:
        return op(*args, **kwargs)

    return types.FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)


def when_done() -> float:
    """The time when the GPU has done what it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(op: Any, dtype: torch.dtype, elements: int, layout: str, options: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of each contender; or why there are none."""
    torch.manual_seed(0)
    found = find_call(op, dtype, elements, layout, options.device)
    if found is None:
        return {"skipped": "no sample"}
    args, kwargs = found
    calls = {"eager": own_code(op.op, kwargs)}
    for name in options.compilers:
        calls[name] = sbs.COMPILERS[name](own_code(op.op, kwargs), None)
        try:
            calls[name](*args)
        except Exception as error:
            return {"skipped": f"{name}: {type(error).__name__}: {str(error)[:80]}"}
    clock = sbs.clock_for(options.threads) if options.device == "cpu" else when_done
    times: dict[str, list[float]] = {name: [] for name in calls}
    held: list[Any] = []
    for _ in range(PLACEMENTS):
        # what is held makes the next arguments and results lie elsewhere: caches and pages favour some places
        held += [args, *(call(*args) for call in calls.values())]
        args = tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, args)
        fns = {name: functools.partial(call, *args) for name, call in calls.items()}
        seconds = options.each / PLACEMENTS
        found_times = sbs.interleave(
            fns, seconds=seconds, slice_seconds=0.002, min_rounds=5, max_rounds=30, clock=clock
        )
        for name, values in found_times.items():
            times[name] += values
    row = {name: statistics.median(values) for name, values in times.items()}
    return row | {"ratio": row["dynajit"] / row["eager"]} if "dynajit" in row else row


def cases(options: argparse.Namespace) -> Iterator[tuple[Any, str, str, str]]:
    """Operator, size, layout, dtype in the order in which they are measured."""
    for size in options.sizes:
        for layout in options.layouts:
            for dtype in options.dtypes:
                for op in op_db:
                    wanted = not options.only or any(text in name_of(op) for text in options.only)
                    if wanted and getattr(torch, dtype) in op.supported_dtypes(options.device):
                        yield op, size, layout, dtype


# ---- the table


def summary(rows: dict[str, dict[str, Any]]) -> str:
    """The counts, for each size, layout and dtype, and the worst twenty of all as Markdown."""
    groups: dict[str, list[float]] = {}
    for key, row in rows.items():
        if "ratio" in row:
            groups.setdefault(key.partition(" ")[2], []).append(row["ratio"])
    table = sbs.Table(["size, layout, dtype", "operators", "slower by 3%", "by 10%", "mean speed"], "x" * 30)
    for group, ratios in groups.items():
        slower = [sum(ratio > limit for ratio in ratios) for limit in (1.03, 1.1)]
        table.add([group, str(len(ratios)), *map(str, slower), f"{1 / sbs.geometric_mean(ratios):.2f}"])
    measured = {key: row for key, row in rows.items() if "ratio" in row}
    rivals = [name for name in sbs.COMPILERS if name != "dynajit" and any(name in row for row in measured.values())]
    worst = sbs.Table(["worst twenty", "eager", *rivals, "dynajit", "dynajit / eager"], "x" * 50)
    for key in sorted(measured, key=lambda key: -measured[key]["ratio"])[:20]:
        row = measured[key]
        times = [f"{row[name] * 1e6:.1f} µs" if name in row else "" for name in ("eager", *rivals, "dynajit")]
        worst.add([key, *times, f"{row['ratio']:.2f}"])
    left_out = len(rows) - len(measured)
    return f"{table}\n\n{worst}\n\n{left_out} cases left out: no sample that can be made large, or eager is no loop."


def run(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What is known with what is measured in the time given."""
    rows: dict[str, dict[str, Any]] = {}
    if options.state and options.state.exists():
        rows = json.loads(options.state.read_text())
    end = time.monotonic() + options.seconds
    done = 0
    for op, size, layout, dtype in cases(options):
        key = f"{name_of(op)} {size} {layout} {dtype}"
        if key in rows and not options.again:
            continue
        if time.monotonic() > end:
            print("time is over: run it again with the same --state to go on")
            break
        elements = SMALL if size == "small" else options.elements
        row = rows[key] = measure(op, getattr(torch, dtype), elements, layout, options)
        if "ratio" in row and (row["ratio"] > 1.03 or options.only):
            print(
                f"{key}: eager {row['eager'] * 1e6:.1f} µs, dynajit {row['dynajit'] * 1e6:.1f} µs, {row['ratio']:.2f}",
                flush=True,
            )
        elif row.get("skipped", "no sample") != "no sample":
            print(f"{key}: {row['skipped']}", flush=True)
        done += 1
        if done % 50 == 0:
            dynajit.reset()
        if options.state:
            options.state.write_text(json.dumps(rows, indent=0))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="operators whose name holds one of these")
    parser.add_argument("--sizes", nargs="*", default=["large", "small"], choices=["large", "small"])
    parser.add_argument("--layouts", nargs="*", default=[*LAYOUTS], choices=LAYOUTS)
    parser.add_argument("--dtypes", nargs="*", default=[*DTYPES], choices=[*DTYPES, *OTHER_DTYPES])
    parser.add_argument("--elements", type=int, default=1_000_000, help="of the large size; the issue's is 16000000")
    parser.add_argument("--compilers", nargs="*", default=["dynajit"], choices=[*sbs.COMPILERS])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--each", type=float, default=0.15, help="seconds of timing for each case")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--state", type=Path, help="results so far; what is in it is not measured again")
    parser.add_argument("--again", action="store_true", help="measure what is in the state again")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    rows = run(options)
    body = summary(rows)
    print(body)
    on_cpu = options.device == "cpu"
    if options.save:
        sbs.save(
            "operators_speed" if on_cpu else "operators_speed_gpu",
            f"Operators alone on the {'CPU' if on_cpu else 'GPU'}",
            body,
            f"python benchmarks/operators_speed.py --device {options.device} --elements {options.elements} "
            f"--threads {options.threads}",
        )


if __name__ == "__main__":
    main()
