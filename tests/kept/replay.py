"""Programs in one process, and again in a second one over its cache: equal results, and what was kept is not captured.

Every program of `tests/programs` and `tests/torch_features` (their tables of cases), without gradients and with, and
families of `transformers` in inference and a training step. In each process a call is compared with eager.

    python tests/kept/replay.py [PATTERN] [--every N] [--families N] [--save]

Prints what is wrong, and which programs a second process captures although it wrote them down; counts the reasons for
which something is not kept. `--save` writes benchmarks/results/kept.md.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT, HERE.parent / "mutation", ROOT / "benchmarks"):
    sys.path.append(str(folder))

import dynajit  # noqa: E402
from dynajit import outcomes  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "kept.md"
# families of several kinds of model
FAMILIES = (
    *("gpt2", "llama", "bert", "t5", "vit", "mixtral", "mamba", "whisper", "clip", "resnet", "convnext", "opt"),
    *("qwen2", "gemma", "phi", "falcon", "bloom", "distilbert", "roberta", "electra", "albert", "bart", "swin"),
    *("beit", "deit", "wav2vec2", "detr", "segformer", "mistral", "gpt_neox"),
)
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


def programs(pattern: str, every: int, families: int) -> Iterator[tuple[str, Any]]:
    """Names, and functions that run a program and raise AssertionError where it is not as eager."""
    import test_mutation

    cases = [(name, case) for name, case in sorted(test_mutation.PROGRAMS.items()) if pattern in name]
    for name, case in cases[::every]:
        if case.options.get("never_repeats"):
            continue  # each call is compiled for something else
        yield name, lambda case=case: run_case(case)
    for family in [name for name in FAMILIES if pattern in name][:families]:
        for train in (False, True):
            name = f"{family}, {'training' if train else 'inference'}"
            yield name, lambda family=family, train=train: run_family(family, train)


def run_case(case: Any) -> None:
    """Two calls of a program, compared with eager's."""
    kwargs = case.options.get("kwargs")
    eager, expected, _ = outcomes.copies(case.program(), case.args, kwargs, (), 2)
    original, actual, _ = outcomes.copies(case.program(), case.args, kwargs, (), 2)
    others = {name: case.options[name] for name in ("dynamic", "fullgraph") if name in case.options}
    compiled = dynajit.compile(original, **others)
    for number, (there, here) in enumerate(zip(expected, actual, strict=True), 1):
        wanted = outcomes.run(eager, eager, *there, seed=number)
        found = outcomes.run(compiled, original, *here, seed=number)
        outcomes.compare(found, wanted, f"call {number}", exact=False, **TOLERANCE)


def run_family(family: str, train: bool) -> None:
    """A small model of the family: two calls without gradients, or the gradients of a step, compared with eager's."""
    import survey

    class_name, kind = survey.families()[family]
    torch.manual_seed(0)
    model = survey.make(family, class_name)
    model.train(train)
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    compiled = dynajit.compile(model)
    for rows in (2, 2):
        one = survey._inputs(model, kind, rows, 16)
        measure = survey._gradients if train else survey._results
        wanted, found = measure(model, model, one), measure(compiled, model, one)
        assert wanted.keys() == found.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}")


def measured(run: Any) -> dict[str, Any]:
    """What a program's run gives."""
    dynajit.reset()
    dynajit.counters.clear()
    torch.manual_seed(0)
    wrong = ""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            run()
    except AssertionError as error:
        wrong = str(error)[:500]
    except Exception as error:  # one program's failure is a row of the table
        wrong = f"{type(error).__name__}: {str(error)[:500]}"
    counts = {**dynajit.counters["kept"], "frames": dynajit.counters["frames"]["total"]}
    faults = dict(dynajit.counters["internal_errors"])
    return {"wrong": wrong, "counts": counts, "faults": faults}


def child(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dynajit.config.cache_dir, dynajit.config.keep_variants = options.cache, not options.off
    with open(options.out, "w", encoding="utf-8") as out:
        for name, run in programs(options.pattern, options.every, options.families):
            print(json.dumps([name, measured(run)]), file=out, flush=True)


def in_new_process(options: argparse.Namespace, cache: str, off: bool = False) -> dict[str, Any]:
    """Name -> what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows"
        command = [sys.executable, __file__, options.pattern, "--cache", cache, "--out", str(out)]
        command += ["--every", str(options.every), "--families", str(options.families)] + ["--off"] * off
        environment = {**os.environ, "PYTHONHASHSEED": "random", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        code = subprocess.run(command, env=environment, check=False).returncode
        rows = dict(map(json.loads, out.read_text(encoding="utf-8").splitlines()))
        if code:
            rows["the process"] = {"wrong": f"ended with {code} after {len(rows)} programs", "counts": {}, "faults": {}}
        return rows


def table(first: dict[str, Any], second: dict[str, Any]) -> tuple[list[str], bool]:
    """Lines of the report, and whether nothing is wrong."""
    lines, fine = [], True
    reasons = collections.Counter[str]()
    whole = captured = loaded = nothing = 0
    for name, row in second.items():
        former = first.get(name, row)
        for process, found in (("first", former), ("second", row)):
            if found["wrong"] or found["faults"]:
                fine = False
                lines.append(f"WRONG {name} ({process} process): {found['wrong'] or found['faults']}")
        before, after = former["counts"], row["counts"]
        missing = {key: count for key, count in after.items() if key.startswith("not kept: ")}
        reasons.update(key.removeprefix("not kept: ") for key in missing)
        loaded += after.get("loaded", 0)
        whole += after.get("frames") == 0 and after.get("loaded", 0) > 0
        nothing += after.get("frames") == 0 and not after.get("loaded", 0)
        if after.get("written", 0):
            fine, captured = False, captured + 1
            lines.append(f"CAPTURED AGAIN {name}: first {before}, second {after}")
    lines.append(
        f"{len(second)} programs; in the second process {whole} are not captured at all ({loaded} variants are taken), "
        f"{nothing} have nothing to capture, {captured} write anew what they had written."
    )
    lines += [f"{count} programs: {reason}" for reason, count in reasons.most_common()]
    return lines, fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--families", type=int, default=len(FAMILIES))
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    for name in ("--cache", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--off", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        child(options)
        return 0
    with tempfile.TemporaryDirectory(prefix="kept-", ignore_cleanup_errors=True) as cache:
        first, second = (in_new_process(options, cache) for _ in range(2))
    lines, fine = table(first, second)
    print(*lines, sep="\n")
    if options.save:
        python = f"CPython {sys.version.split()[0]}, torch {torch.__version__}"
        how = f"`python tests/kept/replay.py --every {options.every} --families {options.families} --save`"
        body = "\n".join(f"* {line}" for line in lines)
        text = f"# Programs in a second process\n\n{python}. Made by {how}.\n\n{body}\n"
        RESULTS.write_text(text, encoding="utf-8")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
