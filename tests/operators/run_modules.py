"""Every module of torch's own table (`torch.testing._internal.common_modules`), eager beside compiled.

In: `python tests/operators/run_modules.py` for all samples of each module, in training and evaluation, with forward and
backward; `--samples N`, `--only WORD ...`, `--backend NAME`. Out: a line for each sample that differs, counts, and
status 1 if one differs. `tests/operators/test_module_db.py` runs one sample of each.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree

import dynajit
from dynajit.testing import assert_same


class Sample(NamedTuple):
    """A module and arguments for it."""

    name: str
    training: bool
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def leaf(value: Any) -> Any:
    """A leaf with the tensor's values; anything else as it is."""
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def samples(info: Any, limit: int = 0) -> Iterator[Sample]:
    """A module's samples, in training and evaluation, at most `limit` of each (0: all)."""
    dtype = torch.float32 if torch.float32 in info.dtypes else info.dtypes[0]
    for training in (True, False):
        torch.manual_seed(1)
        made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        usable = [sample for sample in made if sample.forward_input is not None]
        for sample in usable[: limit or None]:
            given = sample.constructor_input
            module = info.module_cls(*given.args, **given.kwargs).to(dtype).train(training)
            args, kwargs = _pytree.tree_map(leaf, (tuple(sample.forward_input.args), sample.forward_input.kwargs))
            yield Sample(f"{info.name} {sample.desc or ''}".strip(), training, module, args, kwargs)


def step(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result, and all gradients of its sum."""
    result = module(*args, **kwargs)
    total = torch.zeros((), dtype=torch.float64)
    for part in _pytree.tree_leaves(result):
        if isinstance(part, torch.Tensor) and part.requires_grad:
            total = total + (part.real if part.is_complex() else part).double().sum()
    if not total.requires_grad:
        return result
    total.backward()
    inputs = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    return result, [leaf.grad for leaf in inputs], [parameter.grad for parameter in module.parameters()]


def compare(sample: Sample, backend: str | Callable[..., Any]) -> str:
    """How the compiled module differs; an empty text if it doesn't. A module that eager refuses is refused alike."""
    dynajit.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="dynajit failed")
        try:
            assert_same(step, copy.deepcopy(sample.module), sample.args, sample.kwargs, backend=backend, repeat=1)
        except (AssertionError, UserWarning) as error:
            return str(error)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="modules whose name holds one of these")
    parser.add_argument("--samples", type=int, default=0, help="how many of each; 0: all")
    parser.add_argument("--backend", default="codegen")
    options = parser.parse_args()
    count = bad = 0
    for info in module_db:
        if options.only and not any(word in info.name for word in options.only):
            continue
        for sample in samples(info, options.samples):
            count += 1
            found = compare(sample, options.backend)
            if found:
                bad += 1
                print(f"{sample.name} {'training' if sample.training else 'evaluation'}: {found[:500]}", flush=True)
    print(f"{count} samples compared, {bad} differ")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
