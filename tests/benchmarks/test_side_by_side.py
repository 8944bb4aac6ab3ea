"""The measuring tools measure what they say. No assertion here depends on how fast the machine is."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def sbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import side_by_side

    yield side_by_side


class Clock:
    """Moves only when the timed functions say so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


def test_interleave_gives_seconds_per_call_in_rounds(sbs: ModuleType) -> None:
    clock = Clock()
    order: list[str] = []

    def slow() -> None:
        order.append("slow")
        clock.work(0.5)

    def fast() -> None:
        order.append("fast")
        clock.work(0.001)

    times = sbs.interleave({"slow": slow, "fast": fast}, seconds=0, min_rounds=4, slice_seconds=0.01, clock=clock)
    assert times["slow"] == pytest.approx([0.5] * 4)
    assert times["fast"] == pytest.approx([0.001] * 4)
    assert sbs.paired_ratio(times["slow"], times["fast"]) == pytest.approx(500)
    assert sbs.paired_difference(times["slow"], times["fast"]) == pytest.approx(0.499)
    # A fast function is called many times in a slice; the order of the slices rotates.
    assert order.count("fast") > 30
    runs = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert runs[-4:] in (["slow", "fast", "slow", "fast"], ["fast", "slow", "fast", "slow"])


def test_slices_are_about_as_long_as_asked(sbs: ModuleType) -> None:
    clock = Clock()
    assert sbs.calls_filling(lambda: clock.work(0.002), 0.1, clock) == 50
    assert sbs.calls_filling(lambda: clock.work(7), 0.1, clock) == 1


def test_table(sbs: ModuleType) -> None:
    table = sbs.Table(("name", "ms"), "a longer name")
    line = table.add(["x", "1.25"])
    assert line == "| x             |    1.25 |"
    assert len({len(text) for text in str(table).splitlines()}) == 1


def test_cpu_seconds_of_children_count(sbs: ModuleType) -> None:
    import subprocess

    before = sbs.tree_cpu_seconds()
    subprocess.run([sys.executable, "-c", "import os, time\nwhile sum(os.times()[:2]) < 0.2: pass"], check=True)
    # times are whole clock ticks; their difference as a float is not
    assert round(sbs.tree_cpu_seconds() - before, 6) >= 0.2


@pytest.fixture
def script(tmp_path: Path) -> str:
    text = f"""
import os, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import side_by_side as sbs
out = sys.argv[sys.argv.index("--out") + 1]
if "fail" in sys.argv:
    raise KeyError("nothing here")
if "hang" in sys.argv:
    while True:
        pass
sbs.finish_child(out, {{"cache": os.environ["DYNAJIT_CACHE_DIR"], "argv": sys.argv[1:3]}})
"""
    path = tmp_path / "script.py"
    path.write_text(text)
    return str(path)


def test_child_gets_its_own_caches(sbs: ModuleType, script: str, tmp_path: Path) -> None:
    result = sbs.run_child(script, ["ok"], tmp_path / "cache")
    assert result == {"cache": str(tmp_path / "cache" / "dynajit"), "argv": ["--child", "ok"]}


def test_child_that_fails_says_why(sbs: ModuleType, script: str, tmp_path: Path) -> None:
    with pytest.raises(sbs.ChildFailed, match=r"^KeyError: 'nothing here'$"):
        sbs.run_child(script, ["fail"], tmp_path)


def test_child_that_hangs_is_ended(sbs: ModuleType, script: str, tmp_path: Path) -> None:
    with pytest.raises(sbs.ChildFailed, match="not finished after 2 s"):
        sbs.run_child(script, ["hang"], tmp_path, timeout=2)


def test_saved_page_names_versions(sbs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbs, "RESULTS", tmp_path)
    path = sbs.save("x", "Title", "body", "make bench")
    text = path.read_text()
    assert text.startswith("# Title\n") and "torch 2." in text and "CPython 3." in text and "`make bench`" in text


def test_programs_are_built_alike_each_time(sbs: ModuleType) -> None:
    import torch
    from models import PROGRAMS, tensors_in

    assert len(PROGRAMS) == 10
    assert sum(program.quick for program in PROGRAMS.values()) >= 5
    for name, program in PROGRAMS.items():
        first, second = program.build(), program.build()
        with torch.set_grad_enabled(first.grad):
            results = [tensors_in(case.call_with(case.fn)) + case.state() for case in (first, second)]
        assert len(results[0]) == len(results[1]) > 0, name
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), name
