"""The programs of examples/, each with small sizes: they run, and their figures are what their pages say of them.

One more example: a row in `SMALL`, and a section in docs/examples.md.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "timing")

# The arguments of main, the packages that it needs, and what its figures have to be.
SMALL: dict[str, tuple[dict[str, int], tuple[str, ...], Callable[[dict[str, Any]], bool]]] = {
    "train_gpt": ({"steps": 8, "width": 32, "layers": 2}, (), lambda f: f["apart"] < 1e-4 and f["loss"] < 4),
    "lora": (
        {"steps": 20, "rows": 64, "width": 32},
        (),
        lambda f: f["apart"] < 1e-5 and f["last"] < f["first"] and f["merged"] < 1e-4 and f["again"] == 0,
    ),
    "gnn": (
        {"steps": 30, "nodes": 300, "width": 32},
        (),
        lambda f: f["apart"] < 1e-5 and f["right"] > 0.4 and f["compiles"] == 2,
    ),
    "rl_policy": (
        {"episodes": 6, "carts": 64, "horizon": 60},
        (),
        lambda f: f["apart"] < 1e-4 and f["last"] > f["first"],
    ),
    "quantised_llm": (
        {"count": 8, "width": 64, "layers": 2, "words": 200},
        (),
        lambda f: f["same"] == f["count"] and f["compiles"] == 2,
    ),
    "diffusers_unet": (
        {"steps": 2, "size": 16, "width": 32},
        ("diffusers",),
        lambda f: f["apart"] < 1e-4 and f["compiles"] == 1,
    ),
    "serve_concurrently": (
        {"requests": 60, "threads": 4},
        (),
        lambda f: f["apart"] < 1e-5 and f["calls"] < 60,
    ),
    "serve_fastapi": (
        {"requests": 20, "threads": 4},
        ("fastapi", "httpx"),
        lambda f: f["apart"] < 1e-5 and f["compiles"] == 0 and f["refused"] == 422,
    ),
    "export_and_serve": ({}, (), lambda f: f["apart"] < 1e-5 and f["refused"]),
    "custom_backend": ({"rows": 64, "width": 32}, (), lambda f: f["apart"] < 1e-5 and f["operations"] == 3),
    "rewrite_pattern": ({"rows": 64, "width": 32}, (), lambda f: f["apart"] < 1e-4 and f["replaced"] == 2),
    "custom_operator": (
        {},
        (),
        lambda f: f["apart"] < 1e-5 and f["gradients_apart"] < 1e-5 and f["breaks"] == 0,
    ),
}


@pytest.fixture
def path_of_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples import each other as scripts do; what they import is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in (*PROGRAMS, "timing"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_shows_what_it_says(name: str, path_of_examples: None, capsys: pytest.CaptureFixture[str]) -> None:
    sizes, packages, shown = SMALL[name]
    for package in packages:
        pytest.importorskip(package)
    figures = importlib.import_module(name).main(**sizes)
    assert shown(figures), f"{figures}\n{capsys.readouterr().out}"
    assert len(capsys.readouterr().out.splitlines()) >= 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_page_has_it_whole(name: str) -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    assert f"```{{literalinclude}} ../examples/{name}.py" in page
    assert (EXAMPLES / f"{name}.py").read_text().startswith('"""')


def test_the_page_includes_what_there_is() -> None:
    included = re.findall(r"\{literalinclude\} (\S+)", (ROOT / "docs" / "examples.md").read_text())
    assert [file for file in included if not (ROOT / "docs" / file).exists()] == []
