"""The page for users of torch.compile names all that the installed torch has: arguments, modes, functions, logs."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

import dynajit
from dynajit.backends.registry import _INSTEAD, instead_of
from dynajit.exc import ConfigError
from dynajit.report.logs import ARTIFACTS

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "coming_from_torch_compile.md").read_text()
of_the_pages_torch = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13), reason="the page names what torch 2.13 has"
)
# Not for users: torch's own tests print it.
NOT_FOR_USERS = {"custom_format_test_artifact"}
# Asked in another process: torch's tables of modes and logs are in modules that dynajit's tests don't import.
ASK = """
import json, torch, torch._inductor, torch._logging._internal as logging
known = logging.log_registry
print(json.dumps([[*torch._inductor.list_mode_options()], [*known.artifact_names, *known.log_alias_to_log_qnames],
                  torch._inductor.list_options()]))
"""


def unnamed(names: Iterable[str]) -> set[str]:
    """Those that are in no code span of the page, as a whole or before `=`."""
    spans = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))
    words = spans | {span.partition("=")[0] for span in spans} | {word for span in spans for word in span.split('"')}
    return set(names) - words


@pytest.fixture(scope="module")
def modes_and_logs() -> list[list[str]]:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    found: list[list[str]] = json.loads(done.stdout)
    return found


@of_the_pages_torch
def test_every_argument_is_there() -> None:
    assert unnamed(inspect.signature(torch.compile).parameters.keys() - {"model"}) == set()


@of_the_pages_torch
def test_every_function_of_torch_compiler_is_there() -> None:
    assert unnamed(torch.compiler.__all__) == set()


@of_the_pages_torch
def test_every_mode_is_there(modes_and_logs: list[list[str]]) -> None:
    assert unnamed(modes_and_logs[0]) == set() and len(modes_and_logs[0]) >= 4


@of_the_pages_torch
def test_every_log_is_there(modes_and_logs: list[list[str]]) -> None:
    assert unnamed({*modes_and_logs[1]} - NOT_FOR_USERS) == set() and len(modes_and_logs[1]) > 40


def test_logs_that_take_their_place_are_ours() -> None:
    rows = re.findall(r"^\| (.*) \| (.*) \|$", PAGE.partition("## Logs")[2], re.MULTILINE)[2:]
    ours = {name for _, there in rows for name in re.findall(r"`\+?([a-z_]+)`", there)}
    assert ours - set(ARTIFACTS) == {"max_autotune", "dynamo"}  # an option; a log of torch's that the row speaks of


def test_options_of_inductors_are_answered_with_what_takes_their_place() -> None:
    for name, instead in {**_INSTEAD, "epilogue_fusion": "an option of Inductor's that means nothing here"}.items():
        with pytest.raises(ConfigError, match=re.escape(f"unknown option {name!r}: {instead}")):
            dynajit.compile(lambda x: x, options={name: True})


def test_every_option_of_inductors_is_known_as_such(modes_and_logs: list[list[str]]) -> None:
    real = {name for name in modes_and_logs[2] if name != "TYPE_CHECKING"}
    assert len(real) > 300 and [name for name in real if not instead_of(name)] == []
    assert instead_of("epilogue_fusing") == instead_of(3) == ""


def test_a_mode_that_is_only_torchs_is_passed_over() -> None:
    with dynajit.as_torch_compile(), pytest.warns(UserWarning, match="the mode lite means nothing here"):
        compiled = torch.compile(lambda x: x + 1, mode="lite")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
