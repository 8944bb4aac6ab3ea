"""Which modules of CPython's own test-suite are run, and the differences that are known.

In: nothing. Out: `MODULES`, names of modules of the package `test`; `known()`, the table in `known.toml`. One more
module: its name in `modules.txt`.
"""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
MODULES = tuple(
    word
    for line in (HERE / "modules.txt").read_text().splitlines()
    if not line.startswith("#")
    for word in line.split()
)


class Known(NamedTuple):
    """One entry of known.toml: a pattern of test identifiers, the Pythons it is about (none: all), and why."""

    test: str
    reason: str
    pythons: tuple[str, ...]
    only: str


def known() -> list[Known]:
    """The differences that are accepted."""
    data = tomllib.loads((HERE / "known.toml").read_text())
    return [
        Known(entry["test"], entry["reason"], tuple(entry.get("pythons", ())), entry.get("only", ""))
        for entry in data.get("difference", [])
    ]


def reason_for(test: str, table: list[Known], mode: str = "") -> str | None:
    """Why a test's outcome may differ on this Python, or None."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for entry in table:
        if (
            fnmatchcase(test, entry.test)
            and (not entry.pythons or version in entry.pythons)
            and entry.only in ("", mode)
        ):
            return entry.reason
    return None


def exists(module: str) -> bool:
    """Whether this Python's copy of the suite has the module."""
    return importlib.util.find_spec(f"test.{module}") is not None
