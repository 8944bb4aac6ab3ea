"""Immutable objects of libraries, whose methods are run while tracing: torch's version, patterns, signatures."""

import inspect
import re
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same

x = torch.arange(6.0)


def compared(x: torch.Tensor) -> Any:
    version = torch.__version__
    return x * (version >= (2, 5)), version < "3.0", version == "x", version != torch.__version__, version > "parrot"  # type: ignore[operator]


def matched(x: torch.Tensor) -> Any:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert found is not None
    return x * int(found.group(1)), re.sub(r"\+.*", "", torch.__version__), re.compile("2|1").findall(torch.__version__)


def taken_apart(x: torch.Tensor) -> Any:
    version = torch.__version__
    parts = [int(part) for part in version.split("+")[0].split(".")[:2]]
    return x * parts[0], version[:1], "." in version, len(version), str(version), f"{version}", {version: 1}


def given_back(x: torch.Tensor) -> Any:
    return x + 1, torch.__version__, type(torch.__version__).__name__, isinstance(torch.__version__, str)


def chooses(x: torch.Tensor) -> Any:
    return x + 1 if torch.__version__ else x - 1


def without_length(x: torch.Tensor) -> Any:
    signature = inspect.signature(chooses)
    try:
        len(signature)  # type: ignore[arg-type]
    except TypeError as error:
        return x * len(signature.parameters), str(error)
    return x


@pytest.mark.parametrize("program", [compared, matched, taken_apart, given_back, chooses])
def test_torch_version(program: Any) -> None:
    assert_same(program, x, graphs=1, breaks=0)


def test_what_has_no_length_raises() -> None:
    assert_same(without_length, x)
