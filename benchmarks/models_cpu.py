"""Models on the CPU: eager, torch.compile and dynajit in turns, for models of a registry outside of this repository.

    python benchmarks/models_cpu.py FOLDER [--mode infer train] [--models REGEX] [--rows FILE] [--cache FOLDER] [--save]

FOLDER holds `models.py` with `REGISTRY`: name -> a function that makes a case with `fn`, `args`, `kwargs`,
`train_kwargs` (more keyword arguments in training, or None) and `grad` (whether it trains by itself). Each model has
a process of its own; one thread, so that the clock is the process's CPU time. In training a call is forward, the loss
(the model's own, or the mean square of what it returns), backward, and a step of SGD; dropout is 0, so that numbers can
be compared (see closeness.py). Memory is that of tensors: the most bytes given out at once during a call, over what
there was before it. `--rows` keeps what was measured in a JSON file, in which later runs replace their own rows.
"""

import argparse
import contextlib
import copy
import itertools
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from closeness import in_double, tensors, whats_wrong, without_dropout
from torch import Tensor, nn

from dynajit.report import records

HEADER = (
    *("model", "mode", "correct", "eager ms", "torch.compile ms", "dynajit ms", "eager/dynajit"),
    *("torch.compile/dynajit", "eager MB", "torch.compile MB", "dynajit MB"),
)


def loss_of(result: Any) -> Tensor:
    loss = getattr(result, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    floats = [found for found in tensors(result) if found.requires_grad]
    return torch.stack([found.float().pow(2).mean() for found in floats]).sum()


class Runner:
    """One copy of a model, and one call of it."""

    def __init__(self, case: Any, mode: str, compiler: str | None, dtype: torch.dtype | None = None) -> None:
        self.model = copy.deepcopy(case.fn)
        self.train = mode == "train" and not case.grad
        self.args, self.kwargs = case.args, {**case.kwargs, **(_of_training(case) if self.train else {})}
        if isinstance(self.model, nn.Module) and (self.train or case.grad):
            without_dropout(self.model)
        if dtype is not None:
            self.model = self.model.to(dtype) if isinstance(self.model, nn.Module) else self.model
            self.args, self.kwargs = in_double((self.args, self.kwargs))
        self.call = sbs.COMPILERS[compiler](self.model, None) if compiler else self.model
        self.grad = self.train or case.grad
        weights = [each for each in self.model.parameters() if each.requires_grad] if self.train else []
        self.optimizer = torch.optim.SGD(weights, lr=1e-4) if weights else None

    def forward(self) -> Any:
        with torch.set_grad_enabled(self.grad):
            return self.call(*self.args, **self.kwargs)

    def __call__(self) -> Any:
        result = self.forward()
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
            loss_of(result).backward()
            self.optimizer.step()
        return result

    def results(self) -> dict[str, Tensor]:
        """Of one call: what it returns, and the gradients it leaves."""
        found = {f"result {i}": each.detach().clone() for i, each in enumerate(tensors(self()))}
        if self.optimizer is not None:
            named = self.model.named_parameters()
            found |= {f"grad {name}": each.grad.clone() for name, each in named if each.grad is not None}
        return found


def _of_training(case: Any) -> dict[str, Any]:
    return case.train_kwargs[0] if case.train_kwargs else {}


def tensors_at_once(call: Callable[[], Any]) -> float:
    """Megabytes (of 2^20 bytes) of tensors at once, over those from before."""
    return max(0, *_allocations(call)) / 2**20


def tensors_kept(call: Callable[[], Any]) -> float:
    """Megabytes of tensors, over those from before, while what a call returned is held."""
    return (_allocations(call) or [0])[-1] / 2**20


def _allocations(call: Callable[[], Any]) -> list[int]:
    """Bytes of tensors, over those from before, after each time that some were given out or came back."""
    with torch.profiler.profile(profile_memory=True) as profile:
        result = call()
    del result
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return list(itertools.accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def case_of(name: str, folder: str, mode: str) -> Any:
    """A model of the folder with its inputs, ready for training or not; None if it has no training."""
    sys.path.insert(0, folder)
    from models import REGISTRY  # type: ignore[attr-defined]

    case = REGISTRY[name]()
    if isinstance(case.fn, nn.Module):
        case.fn.train(mode == "train" or case.grad)
    elif mode == "train":
        return None
    return case


def measure(name: str, folder: str, mode: str, seconds: float) -> dict[str, Any]:
    """What a child measures: whether results are right, milliseconds, the paired ratios, and megabytes of each."""
    case = case_of(name, folder, mode)
    if case is None:
        return {"skipped": "no training"}
    runs = {"eager": Runner(case, mode, None), **{who: Runner(case, mode, who) for who in sbs.COMPILERS}}
    first = {who: run.results() for who, run in runs.items()}
    found: dict[str, Any] = {}
    try:
        double = Runner(case, mode, None, torch.float64).results()
    except RuntimeError as error:  # a model that has float32 written in it
        print(f"{name}: no float64: {error}", file=sys.stderr)
        double = {key: value.double() for key, value in first["eager"].items()}
    for who in sbs.COMPILERS:
        found[f"{who} wrong"] = whats_wrong(first[who], first["eager"], double)
    del first, double
    again: list[records.CompileRecord] = []
    for run in runs.values():
        run()
        with records.listen(again.append):
            run()
    found["captured again"] = [f"{record.code_name}: {record.recompile_reason}" for record in again]
    times = sbs.interleave(dict(runs), seconds=seconds, clock=sbs.clock_for(1))
    found |= {who: statistics.median(each) * 1e3 for who, each in times.items()}
    for who in ("eager", "torch.compile"):
        found[f"{who}/dynajit"] = sbs.paired_ratio(times[who], times["dynajit"])
    return found | {f"{who} MB": tensors_at_once(run) for who, run in runs.items()}


def row(found: dict[str, Any]) -> list[str]:
    milliseconds = [f"{found[who]:.2f}" for who in ("eager", "torch.compile", "dynajit")]
    ratios = [f"{found[f'{who}/dynajit']:.2f}" for who in ("eager", "torch.compile")]
    memory = [f"{found[f'{who} MB']:.1f}" for who in ("eager", "torch.compile", "dynajit")]
    correct = "yes" if found["dynajit wrong"] is None else "NO"
    return [found["model"], found["mode"], correct, *milliseconds, *ratios, *memory]


def verdict(rows: list[dict[str, Any]]) -> str:
    """The bars, and who misses them."""
    lines = []
    for mode in ("infer", "train"):
        chosen = [each for each in rows if each["mode"] == mode]
        if not chosen:
            continue
        mean = sbs.geometric_mean([each["torch.compile/dynajit"] for each in chosen])
        misses = {
            "wrong": [f"{each['model']} ({each['dynajit wrong']})" for each in chosen if each["dynajit wrong"]],
            "compiled in a third call": [each["model"] for each in chosen if each.get("captured again")],
            "torch.compile wrong": [each["model"] for each in chosen if each["torch.compile wrong"]],
            "below 0.9 of torch.compile": [e["model"] for e in chosen if e["torch.compile/dynajit"] < 0.9],
            "slower than eager by more than 3%": [e["model"] for e in chosen if e["eager/dynajit"] < 0.97],
            "more memory than torch.compile": [
                f"{each['model']} ({each['dynajit MB'] / each['torch.compile MB']:.2f})"
                for each in chosen
                if each["dynajit MB"] > 1.005 * each["torch.compile MB"] + 0.01
            ],
        }
        lines.append(f"{mode}: {len(chosen)} models, geometric mean over torch.compile {mean:.2f} (bar: 1.05).")
        lines += [f"* {what}: {', '.join(names) or 'none'}" for what, names in misses.items()]
        lines.append("")
    return "\n".join(lines)


def kept_rows(path: str | None) -> dict[str, dict[str, Any]]:
    return json.loads(Path(path).read_text()) if path and Path(path).exists() else {}


@contextlib.contextmanager
def cache_folder(given: str | None) -> Iterator[Path]:
    if given:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="models-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def run_models(options: argparse.Namespace, names: list[str]) -> dict[str, dict[str, Any]]:
    """Every row, those kept from before among them."""
    rows = kept_rows(options.rows)
    table = sbs.Table(HEADER, max(names, key=len), "infer")
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    for mode in options.mode:
        for name in names:
            child = [options.folder, "--models", name, "--mode", mode, "--seconds", str(options.seconds)]
            try:
                with cache_folder(options.cache) as cache:
                    found = sbs.run_child(__file__, child, cache, timeout=900)
            except sbs.ChildFailed as error:
                print(f"{name}: {error}", flush=True)
                continue
            if "skipped" in found:
                continue
            found |= {"model": name, "mode": mode}
            rows = {**kept_rows(options.rows), f"{mode} {name}": found} if options.rows else rows
            rows[f"{mode} {name}"] = found
            print(table.add(row(found)), flush=True)
            if options.rows:
                Path(options.rows).write_text(json.dumps(rows, indent=1))
    return rows


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("folder")
    parser.add_argument("--mode", nargs="*", default=["infer", "train"], choices=["infer", "train"])
    parser.add_argument("--models", default="", help="a regular expression; default: all")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rows", help="a JSON file with the rows measured so far")
    parser.add_argument("--cache", help="a folder for the compilers' caches; default: an empty one for each model")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/models.md")
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        sbs.finish_child(options.out, measure(options.models, options.folder, options.mode[0], options.seconds))
    sys.path.insert(0, options.folder)
    from models import REGISTRY

    names = [name for name in REGISTRY if re.search(options.models, name)]
    rows = run_models(options, names)
    order = {name: place for place, name in enumerate(REGISTRY)}
    ordered = sorted(rows.values(), key=lambda found: (found["mode"], order.get(found["model"], 0)))
    table = sbs.Table(HEADER, max(REGISTRY, key=len), "infer")
    for found in ordered:
        table.add(row(found))
    text = f"{table}\n\n{verdict(ordered)}"
    print(verdict(ordered))
    if options.save:
        how = "python benchmarks/models_cpu.py FOLDER --save"
        print("written:", sbs.save("models", "Models on the CPU", text, how))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
