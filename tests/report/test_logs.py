"""Logs: the specification's grammar, the line format, unknown names."""

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.exc import ConfigError
from dynajit.report import logs


@pytest.fixture(autouse=True)
def _logs_off() -> Iterator[None]:
    yield
    logs.set_logs()


def test_off_by_default_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs()
    logs.emit("guards", "not shown")
    assert not any(logs.enabled(name) for name in logs.ARTIFACTS)
    assert capsys.readouterr().err == ""


def test_every_line_has_compile_id_location_and_artifact(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs("guards")
    logs.emit("guards", "first\nsecond", "3/1", ("model.py", 12))
    logs.emit("guards", "no id")
    logs.emit("graph_breaks", "off")
    assert (
        capsys.readouterr().err
        == "[3/1] model.py:12 [guards] first\n[3/1] model.py:12 [guards] second\n[guards] no id\n"
    )


def test_brackets_are_not_doubled(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs("perf")
    logs.emit("perf", "x", "[0/0]")
    assert capsys.readouterr().err == "[0/0] [perf] x\n"


def test_plus_and_minus() -> None:
    logs.set_logs("all, -perf ,+guards")
    assert logs.enabled("fusion") and not logs.verbose("fusion")
    assert not logs.enabled("perf")
    assert logs.verbose("guards")
    logs.set_logs("bytecode")
    assert [name for name in logs.ARTIFACTS if logs.enabled(name)] == ["bytecode"]


def test_keywords() -> None:
    logs.set_logs("perf", guards=True, recompiles="+", perf=False)
    assert [name for name in logs.ARTIFACTS if logs.enabled(name)] == ["guards", "recompiles"]
    assert logs.verbose("recompiles") and not logs.verbose("guards")
    with pytest.raises(ConfigError, match="takes True, False"):
        logs.set_logs(guards="loud")


def test_percent_signs_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs("guards")
    logs.emit("guards", "x % 2 == 0 and '%s'")
    assert "x % 2 == 0 and '%s'" in capsys.readouterr().err


@pytest.mark.parametrize("spec", ["guard", "guards,+graph_break", "-nothing"])
def test_unknown_name_lists_all_and_changes_nothing(spec: str) -> None:
    logs.set_logs("perf")
    with pytest.raises(ConfigError) as error:
        logs.set_logs(spec)
    assert all(name in str(error.value) for name in logs.ARTIFACTS)
    assert logs.enabled("perf") and not logs.enabled("guards")
    with pytest.raises(ConfigError, match=r"known: .*guards"):
        logs.enabled("guard")
    with pytest.raises(ConfigError):
        logs.emit("guard", "x")
    with pytest.raises(ConfigError):
        logs.set_logs(guard=True)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs("help")
    err = capsys.readouterr().err
    assert all(name in err and text in err for name, text in logs.ARTIFACTS.items())


def test_environment_variable() -> None:
    code = (
        "from dynajit.report import logs; print(logs.enabled('guards'), logs.verbose('perf'), logs.enabled('fusion'))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], env=_environment("guards,+perf"), capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == ["True", "True", "False"]
    bad = subprocess.run(
        [sys.executable, "-c", code], env=_environment("nonsense"), capture_output=True, text=True, check=False
    )
    assert bad.returncode != 0 and "unknown log 'nonsense'" in bad.stderr and "recompiles" in bad.stderr


def _environment(spec: str) -> dict[str, str]:
    return {**os.environ, "DYNAJIT_LOGS": spec, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


# ------------------------------------------------------------------------------------------------ from a compile


def inner(x: Tensor) -> Tensor:
    y = x.sin()
    print(end="")
    return y + 1


def outer(x: Tensor, by: float) -> Tensor:
    return inner(x) * by


def logged(spec: str, capsys: pytest.CaptureFixture[str], folder: str = ".") -> list[str]:
    dynajit.reset()
    logs.set_logs(spec)
    compiled = dynajit.compile(outer, dynamic=False)
    settings: dict[str, dict[str, Any]] = {
        "kept": {"keep_variants": True},
        "remote": {"cache_dir": folder, "remote_cache": "memory://logged", "remote_key": "sixteen bytes ..."},
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(dynajit.config.patch(**settings.get(spec, {})))
        if spec == "patterns":
            stack.callback(dynajit.register_pattern(lambda x: x.sin(), lambda x: x.sin() + 0).remove)
        for by in (2.0, 3.0, 4.0):
            compiled(torch.ones(3), by)
    logs.set_logs()
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("name", logs.ARTIFACTS)
def test_each_artifact_logs_with_compile_id_file_and_line(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = logged(name, capsys, str(tmp_path))
    assert lines
    for line in lines:
        assert re.match(rf"\[\d+/\d+\] {re.escape(__file__)}:\d+ \[{name}\]", line), line


MORE = {
    "guards": r"L\['by'\] == 2\.0  # .*test_logs\.py:\d+: return inner\(x\) \* by",
    "graph_breaks": r'File ".*test_logs\.py", line \d+, in outer',
    "recompiles": r"\[1/1\] L\['by'\] was 3\.0, is 4\.0 .*; \[1/0\] L\['by'\] was 2\.0, is 4\.0",
    "graph_code": r"f32\[3\]\[1\]cpu",
    "aot_graphs": r"f32\[3\]\[1\]cpu",
    "fusion": r"moves \d+ bytes",
    "output_code": r"k0_sin",
    "perf": r"\d+\.\d\d to +\d+\.\d\d  interpretation",
}


@pytest.mark.parametrize("name", MORE)
def test_plus_adds(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = re.compile(MORE[name])
    plain, more = logged(name, capsys), logged(f"+{name}", capsys)
    assert any(pattern.search(line) for line in more), more
    assert len("\n".join(more)) > len("\n".join(plain))
    if name != "output_code":
        assert not any(pattern.search(line) for line in plain), plain


def test_a_handler_of_the_programs_gets_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("dynajit").addHandler(handler)
    try:
        logs.set_logs("perf")
        dynajit.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    finally:
        logging.getLogger("dynajit").removeHandler(handler)
    assert "[perf]" in stream.getvalue()
    assert logging.getLogger("dynajit.perf").level == logging.INFO
    assert logging.getLogger("dynajit.guards").level == logging.WARNING
