"""Models on the CPU: eager, torch.compile and dynajit in turns, for models of a registry outside of this repository.

    python benchmarks/models_cpu.py FOLDER [--mode infer|train] [--models REGEX] [--save]

FOLDER holds `models.py` with `REGISTRY`: name -> a function that makes a case with `fn`, `args`, `kwargs`,
`train_kwargs` (more keyword arguments in training, or None) and `grad` (whether it trains by itself). Each model has
a process of its own; one thread, so that the clock is the process's CPU time. In training a call is forward, the loss
(the model's own, or the mean square of what it returns), backward, and a step of SGD.
"""

import argparse
import copy
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from torch import Tensor, nn

HEADER = ("model", "mode", "eager ms", "torch.compile ms", "dynajit ms", "eager/dynajit", "torch.compile/dynajit")


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [found for item in items for found in tensors(item)]


def loss_of(result: Any) -> Tensor:
    loss = getattr(result, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    floats = [found for found in tensors(result) if found.requires_grad]
    return torch.stack([found.float().pow(2).mean() for found in floats]).sum()


class Runner:
    """One copy of a model, and one call of it."""

    def __init__(self, case: Any, mode: str, compiler: str | None) -> None:
        self.model = copy.deepcopy(case.fn)
        self.call = sbs.COMPILERS[compiler](self.model, None) if compiler else self.model
        self.case, self.train = case, mode == "train" and not case.grad
        self.kwargs = {**case.kwargs, **(case.train_kwargs[0] if self.train and case.train_kwargs else {})}
        weights = [each for each in self.model.parameters() if each.requires_grad] if self.train else []
        self.optimizer = torch.optim.SGD(weights, lr=1e-4) if weights else None

    def __call__(self) -> None:
        with torch.set_grad_enabled(self.train or self.case.grad):
            result = self.call(*self.case.args, **self.kwargs)
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
            loss_of(result).backward()
            self.optimizer.step()


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
    """What a child measures: milliseconds of each, and the paired ratios."""
    case = case_of(name, folder, mode)
    if case is None:
        return {"skipped": "no training"}
    runs = {"eager": Runner(case, mode, None), **{who: Runner(case, mode, who) for who in sbs.COMPILERS}}
    for run in runs.values():
        run()
        run()
    times = sbs.interleave(dict(runs), seconds=seconds, clock=sbs.clock_for(1))
    found: dict[str, Any] = {who: statistics.median(each) * 1e3 for who, each in times.items()}
    for who in ("eager", "torch.compile"):
        found[f"{who}/dynajit"] = sbs.paired_ratio(times[who], times["dynajit"])
    return found


def row(name: str, mode: str, found: dict[str, Any]) -> list[str]:
    milliseconds = [f"{found[who]:.2f}" for who in ("eager", "torch.compile", "dynajit")]
    return [name, mode, *milliseconds, *(f"{found[f'{who}/dynajit']:.2f}" for who in ("eager", "torch.compile"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--mode", default="infer", choices=["infer", "train"])
    parser.add_argument("--models", default="", help="a regular expression; default: all")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/models.md")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        sbs.finish_child(options.out, measure(options.models, options.folder, options.mode, options.seconds))
    sys.path.insert(0, options.folder)
    from models import REGISTRY

    table = sbs.Table(HEADER, max(REGISTRY, key=len), "infer")
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    ratios = []
    for name in (name for name in REGISTRY if re.search(options.models, name)):
        child = [options.folder, "--models", name, "--mode", options.mode, "--seconds", str(options.seconds)]
        try:
            with tempfile.TemporaryDirectory(prefix="models-", ignore_cleanup_errors=True) as cache:
                found = sbs.run_child(__file__, child, Path(cache), timeout=900)
        except sbs.ChildFailed as error:
            print(f"{name}: {error}", flush=True)
            continue
        if "skipped" not in found:
            ratios.append(found["torch.compile/dynajit"])
            print(table.add(row(name, options.mode, found)), flush=True)
    verdict = f"geometric mean over torch.compile: {sbs.geometric_mean(ratios):.2f} (bar: 1.05)" if ratios else ""
    print(f"\n{verdict}")
    if options.save:
        how = "python benchmarks/models_cpu.py FOLDER --save"
        print("written:", sbs.save("models", "Models on the CPU", f"{table}\n\n{verdict}", how))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
