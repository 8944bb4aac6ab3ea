"""Every Python block of the documentation runs, in the order of its page; the page's asserts are the tests.

In: the pages. A block starts where its page has it, so that reports and tracebacks show the page's own lines.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import dynajit
from dynajit.report.breaks import KINDS

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dynajit.reset()
    text = page.read_text()
    names: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    for block in BLOCK.finditer(text):
        above = text.count("\n", 0, block.start(1))
        exec(compile("\n" * above + block[1], str(page), "exec"), names)


def test_every_kind_of_break_is_explained() -> None:
    page = (DOCS / "why_breaks.md").read_text()
    titles = {kind for title in re.findall(r"^## (.*)$", page, re.MULTILINE) for kind in title.split(", ")}
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE))
    assert set(KINDS) - titles - rows == set()
