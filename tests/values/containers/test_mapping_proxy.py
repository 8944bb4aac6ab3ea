"""Read-only views of dictionaries, as inspect.signature gives them."""

import inspect
from typing import Any

import torch
from torch import Tensor

from dynajit.testing import assert_same


def target(a: int, b: int = 1) -> None:
    """Has two parameters."""


def test_parameters_of_a_signature_are_read_while_tracing() -> None:
    def program(x: Tensor) -> Any:
        parameters = inspect.signature(target).parameters
        return x * len(parameters), list(parameters), parameters["a"].name, "b" in parameters

    assert_same(program, torch.ones(2), graphs=1, breaks=0)
