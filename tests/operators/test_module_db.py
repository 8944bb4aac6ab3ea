"""One sample of each module of torch's own table, in training and in evaluation: forward and backward as in eager."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from run_modules import compare, module_db, samples

PARTS = 8


def _first_samples(info: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that a module makes nothing of
        return list(samples(info, 1))


@pytest.mark.parametrize("part", range(PARTS))
def test_modules_agree_with_eager(part: int) -> None:
    chosen = [sample for info in module_db[part::PARTS] for sample in _first_samples(info)]
    assert chosen
    assert {sample.name: found for sample in chosen if (found := compare(sample, "eager"))} == {}


def off_by_one(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend that is wrong."""
    return lambda *args: [result + 1 if isinstance(result, torch.Tensor) else result for result in gm(*args)]


def test_a_backend_that_is_wrong_is_told() -> None:
    linear = next(info for info in module_db if info.module_cls is torch.nn.Linear)
    assert all("result" in compare(sample, off_by_one) for sample in samples(linear, 1))
