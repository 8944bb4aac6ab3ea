"""The user's lines are comments in generated code, whatever is in them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import dynajit


# fmt: off
def continued(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y.sin() \
        + x
# fmt: on


def trigraph(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1  # really ??/
    return y.sin()


def end_of_comment(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1  # */ #error "here"
    return y.sin()


@pytest.mark.parametrize("fn", [continued, trigraph, end_of_comment])
def test_a_line_stays_a_comment(fn: Any) -> None:
    x = torch.rand(64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = dynajit.explain(fn)(x)
    assert torch.allclose(report.result, fn(x))
    (graph,) = report.graph_records
    assert [len(code.kernels) for code in graph.code] == [1]
