"""The operator runner's processes: crashes, hangs and the end of the time are seen, and what is done is kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database needs it")

from operators_compare import Finding
from operators_workers import Outcome, State, Unit, run_units


def work(unit: Unit) -> Outcome:
    """What each kind of unit does."""
    if unit.name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if unit.name == "hangs":
        signal.pause()
    if unit.name == "raises":
        raise RuntimeError("the GPU is of no use any more\nbecause")
    outcome = Outcome(unit.name)
    outcome.compared["forward", unit.dtype] += 1
    return outcome


def run(names: list[str], processes: int, **limits: float) -> dict[str, Outcome]:
    made: dict[str, Outcome] = {}
    units = [Unit(number, name, "float32") for number, name in enumerate(names)]
    run_units(units, work, lambda unit, outcome: made.__setitem__(unit.name, outcome), "fork", processes, **limits)
    return made


@pytest.mark.parametrize("processes", [1, 3])
def test_a_crash_is_a_finding_of_its_unit(processes: int) -> None:
    made = run(["a", "dies", "b", "raises", "c"], processes)
    assert set(made) == {"a", "dies", "b", "raises", "c"}
    assert made["dies"].found == [("float32", "", Finding("", "crash", "the process ended with -9"))]
    assert made["raises"].found[0][2].detail == "RuntimeError: the GPU is of no use any more"
    assert all(made[name].compared == {("forward", "float32"): 1} for name in "abc")


def test_what_hangs_is_ended() -> None:
    made = run(["hangs", "a"], 1, seconds_for_one=0.5)
    assert made["hangs"].found[0][2].kind == "crash" and not made["a"].found


def test_the_end_of_the_time_is_no_finding() -> None:
    assert set(run(["a", "hangs", "b"], 1, seconds=0.5)) == {"a"}


def test_state_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    state = State(path, [torch.__version__, "cpu"])
    outcome = Outcome("add")
    outcome.compared["forward", "int64"] += 2
    outcome.skipped["layout"] += 1
    outcome.found.append(("int64", "0", Finding("forward", "wrong", "text")))
    state.add(Unit(0, "add", "int64"), outcome)
    assert state.minutes(60) == 1
    again = State(path, [torch.__version__, "cpu"])
    assert again.done == {"add int64": outcome}
    assert again.minutes(60) == 2
    with pytest.raises(SystemExit):
        State(path, [torch.__version__, "cuda"])
