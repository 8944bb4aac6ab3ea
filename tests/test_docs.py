"""The documentation speaks of what exists: files, settings, logs, errors, folders; and its first example runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dynajit import exc
from dynajit.config import fields
from dynajit.report import debug
from dynajit.report.logs import ARTIFACTS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FOLDERS = sorted(p.name for p in (ROOT / "dynajit").iterdir() if p.is_dir() and not p.name.startswith("__"))
# Each room of values has a page of its own.
ROOMS = sorted(f"values/{p.parent.name}" for p in (ROOT / "dynajit" / "values").glob("*/__init__.py"))

NATIVE = ("csrc", "cpp")

# `dynajit/report/logs.py`, `csrc/module.c`, or a bare `logs.py`. py3NN.py is no file's name.
FILE = re.compile(r"`((?:[\w.]+/)*\w+\.(?:py|c|cpp|h|md|toml))`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


# Bare names of the files there are, and of those that dynajit writes.
EXISTING = (
    {*debug.FILES, "dynajit_bisect.py"}
    | {
        p.name
        for folder in ("dynajit", *NATIVE, "tests", "benchmarks", "docs", "tools")
        for p in (ROOT / folder).rglob("*.*")
    }
    | {p.name for p in ROOT.iterdir()}
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_files_exist(page: Path) -> None:
    folder = page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/folders/")
    home = ROOT / (folder if folder in NATIVE else f"dynajit/{folder}")
    names = {name for name in FILE.findall(page.read_text()) if "3NN" not in name}
    bare = {name for name in names if "/" not in name}
    missing = bare - EXISTING | {name for name in names - bare if not any((at / name).exists() for at in (ROOT, home))}
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_tests_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []
    if page.stem == "trust":
        assert len(named) > 15


def test_the_tour_visits_every_folder() -> None:
    tour = (ROOT / "docs" / "tour.md").read_text()
    assert [folder for folder in [*FOLDERS, *NATIVE] if f"{folder}/" not in tour] == []
    assert len(FILE.findall(tour)) > 15


@pytest.mark.parametrize("folder", [*FOLDERS, *ROOMS, *NATIVE])
def test_every_folder_has_a_page_naming_its_files(folder: str) -> None:
    page = (ROOT / "docs" / "folders" / f"{folder}.md").read_text()
    source = ROOT / (folder if folder in NATIVE else f"dynajit/{folder}")
    paths = source.glob("*") if folder == "values" else source.rglob("*")
    files = {p.name for p in paths if p.suffix in (".py", ".c", ".cpp")} - {"__init__.py"}
    if folder == "values":
        assert [room for room in ROOMS if f"({room}.md)" not in page] == []
    unnamed = {name for name in files if name not in page and not re.match(r"(py|compat_)3\d\d\.", name)}
    assert unnamed == set()


def test_the_user_guide_has_every_setting_log_and_error() -> None:
    guide = (ROOT / "docs" / "user_guide.md").read_text()
    errors = [name for name, value in vars(exc).items() if isinstance(value, type) and value.__module__ == exc.__name__]
    names = [*fields(), *ARTIFACTS, *errors]
    assert [name for name in names if f"`{name}`" not in guide and name != "DynajitError"] == []


def test_the_readme_is_short_and_its_example_runs(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < 300
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = tmp_path / "example.py"
    program.write_text(example)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch.Size([64, 256])\n1 graph, 0 graph breaks")


def test_every_result_table_says_what_made_it() -> None:
    page = (ROOT / "docs" / "speed.md").read_text()
    made = dict(re.findall(r"^\| `benchmarks/results/(\w+)\.md` \| (.*?) \|", page, re.MULTILINE))
    assert set(made) == {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    scripts = re.findall(r"`python (\S+\.py)", " ".join(made.values()))
    assert len(scripts) > 20 and [script for script in scripts if not (ROOT / script).exists()] == []


def test_plots_are_drawn_from_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import plots

    old = [plot.name for plot in plots.PLOTS if (plots.FOLDER / f"{plot.name}.svg").read_text() != plots.drawn(plot)]
    assert old == [], "python tools/plots.py draws them again"
    assert all(len(plots.ratios(plot)) > 3 for plot in plots.PLOTS)


def test_no_line_of_documentation_is_endless() -> None:
    lines = [(page.name, n, line) for page in PAGES for n, line in enumerate(page.read_text().splitlines(), 1)]
    assert [(name, n) for name, n, line in lines if len(line) > 160] == []


def test_dead_links_of_the_site_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_links

    (tmp_path / "b.html").write_text('<h1 id="there">B</h1>')
    links = ("b.html", "b.html#there", "b.html#gone", "c.html", "#gone", "https://x.org/c.html#gone")
    (tmp_path / "a.html").write_text("".join(f'<a href="{link}">' for link in links))
    assert check_links.dead_links(tmp_path) == ["a.html: b.html#gone", "a.html: c.html", "a.html: #gone"]
