"""`python -m dynajit`: each command does what it says."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dynajit import __main__ as cli
from dynajit.config import config
from dynajit.demo import PROGRAMS
from dynajit.report import records
from dynajit.runtime import store


def test_doctor_names_versions_settings_and_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for part in ("Python", "torch", "extension", "C compiler", "recompile_limit", config.cache_dir):
        assert part in out, part


def test_doctor_without_a_compiler_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(compiler="/nowhere/cc"):
        assert cli.main(["doctor"]) == 1
    assert "/nowhere/cc: not found" in capsys.readouterr().out


def test_demo_has_a_line_for_each_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[-4] for line in out.splitlines()[1:-1]] == ["yes"] * len(PROGRAMS)


def test_demo_fails_where_a_program_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared() -> tuple[Any, tuple[Any, ...]]:
        """counts its calls in what both sides share"""
        calls: list[int] = []
        return (lambda x: calls.append(0) or x + len(calls)), (torch.ones(2),)

    monkeypatch.setattr("dynajit.demo.PROGRAMS", (shared,))
    assert cli.main(["demo", "--seconds", "0"]) == 1


def test_explain_runs_the_script_and_reports_even_when_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", ["", *sys.path])
    (tmp_path / "helper.py").write_text("NAME = 'helper'\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, helper\nprint(__name__, sys.argv[1:], helper.NAME)\nraise ValueError('end')\n")
    with pytest.raises(ValueError, match="end"):
        cli.main(["explain", str(script), "--flag", "3"])
    captured = capsys.readouterr()
    assert captured.out == "__main__ ['--flag', '3'] helper\n"
    assert "\n0 graphs, 0 graph breaks" in captured.err
    assert not records._listeners()


def test_cache_lists_and_clears(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(cache_dir=str(tmp_path / "kernels")):
        kept = store.find()
        kept.put("ab12", ".so", Path.touch)
        assert cli.main(["cache", "list"]) == 0
        assert "ab12.so" in capsys.readouterr().out
        assert cli.main(["cache"]) == 0
        summary = capsys.readouterr().out
        assert "1 .so" in summary and "libraries of C kernels" in summary and "ab12" not in summary
        assert cli.main(["cache", "clear"]) == 0
        assert "deleted" in capsys.readouterr().out
        assert kept.get("ab12", ".so") is None
        assert cli.main(["cache", "list"]) == 0
        assert capsys.readouterr().out.startswith("0 files")


def test_cache_travels_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = str(tmp_path / "packed.djc")
    with config.patch(cache_dir=str(tmp_path / "here")):
        store.find().put("ab" * 32, ".so", lambda path: path.write_bytes(b"code"))
        assert cli.main(["cache", "pack", packed]) == 0
        assert "packed 1 files" in capsys.readouterr().out
    with config.patch(cache_dir=str(tmp_path / "there")):
        assert cli.main(["cache", "unpack", packed]) == 0
        assert cli.main(["cache", "unpack", packed]) == 0
        assert "unpacked 0 files, 0.0 MB; 1 were there already" in capsys.readouterr().out
        found = store.find().get("ab" * 32, ".so")
        assert found is not None and found.read_bytes() == b"code"
        Path(packed).write_bytes(b"something else, long enough for the prefix of such a file" * 9)
        assert cli.main(["cache", "unpack", packed]) == 1
        assert "it is no dynajit file" in capsys.readouterr().err


def test_a_program_is_exported_shown_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, file = tmp_path / "exported_model.py", str(tmp_path / "model.djt")
    source.write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(3, 2), (torch.randn(4, 3),)\n"
        "def breaks():\n    return (lambda x: print(x) or x + 1), (torch.ones(2),)\n"
    )
    assert cli.main(["export", f"{source}:make", "-o", file, "--dynamic", "input:0=batch"]) == 0
    assert cli.main(["inspect", file]) == 0
    assert cli.main(["run", file, "--size", "7"]) == 0
    out = capsys.readouterr().out
    assert "batch, 2 or more" in out and "loaded in" in out and "weights  2 tensors, 8 numbers, in the file" in out
    assert cli.main(["export", f"{source}:breaks", "-o", file]) == 1
    assert "graph break" in capsys.readouterr().err
    assert cli.main(["inspect", str(source)]) == cli.main(["inspect", file + "x"]) == 1
    with pytest.raises(SystemExit):
        cli.main(["export", f"{source}:make", "-o", file, "--dynamic", "input"])
    assert "ARGUMENT:DIM" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["pack"], ["unpack"], ["list", "file"]])
def test_cache_says_where_a_file_is_wanted(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["cache", *arguments])
    assert "FILE" in capsys.readouterr().err or arguments[0] == "list"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.strip() == f"dynajit {cli.__version__}"


def test_unknown_command_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["frobnicate"])
    assert "doctor" in capsys.readouterr().err


SCRIPT = """import sys
import torch

def step(x):
    return torch.sin(x) + 1

class Net(torch.nn.Module):
    def forward(self, x):
        return step(self.same(x)) * 2

    @staticmethod
    def same(x):
        return x * 1

    @classmethod
    def zeros(cls, n):
        return torch.zeros(n) + len(cls.__name__) - 3

if __name__ == "__main__":
    net = Net()
    print(net(net.zeros(2)).tolist(), sys.argv[1:], type(net).__name__)
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("step", "torch.sin(x) + 1"),
        ("net", "torch.sin(x) + 1"),
        ("Net.forward", "torch.sin(x) + 1"),
        ("Net.same", "return x * 1"),
        ("Net.zeros", "return torch.zeros(n)"),
    ],
)
def test_run_compiles_what_is_named(
    name: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", ["", *sys.path])
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        assert cli.main(["run", "-c", name, "--backend", "eager", str(script), "-v"]) == 0
    assert capsys.readouterr().out == "[2.0, 2.0] ['-v'] Net\n"
    assert sum(len(record.graphs) for record in seen) == 1
    assert cli.main(["explain", "-c", name, "--html", str(tmp_path / "page.html"), str(script)]) == 0
    assert line in (tmp_path / "page.html").read_text()


def test_run_refuses_what_the_script_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(SystemExit):
        cli.main(["run", "-c", "nothing", str(script)])
    assert "binds no nothing at its top level; it binds Net, net, step" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["run", "--backend", "nobody", str(script)])
    assert "unknown backend 'nobody'; known: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["run", str(tmp_path / "missing.py")])
    assert "there is no file" in capsys.readouterr().err


def test_cache_survives_files_that_vanish(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.ArtifactStore, "files", lambda _: iter([Path("/nowhere/v1/ta/taken-away.so")]))
    assert cli.main(["cache"]) == 0
    assert capsys.readouterr().out.startswith("0 files")


def test_the_help_is_for_users(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert "doctor" in text and "COMMANDS" not in text


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("run", ["-c NAME", "--mode", "train_step", "not edited", "examples:"]),
        ("explain", ["--html FILE", "kernels, guards", "examples:"]),
        ("doctor", ["C compiler", "Exit status 1"]),
        ("cache", ["clear", "DYNAJIT_CACHE_DIR"]),
    ],
)
def test_each_command_has_help(command: str, parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert [part for part in parts if part not in text] == []
    assert max(map(len, text.splitlines())) <= 120


def test_explain_of_a_program_that_compiles_nothing_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", ["", *sys.path])
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert cli.main(["explain", str(script)]) == 0
    assert "say what to compile with -c NAME" in capsys.readouterr().err


def test_doctor_and_cache_tell_the_remote_caches_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    assert "remote      none: DYNAJIT_REMOTE_CACHE names no URL" in capsys.readouterr().out
    shared, secret = str(tmp_path / "shared"), "a secret that nobody shows"
    with config.patch(cache_dir=str(tmp_path / "cache"), remote_cache=shared, remote_key=secret):
        assert cli.main(["doctor"]) == cli.main(["cache"]) == 0
        text = capsys.readouterr().out
        assert text.count(f"{shared}: answers; read and written") == 2 and secret not in text
        store.get_or_make("ab" * 32, ".so", store.written(b"code"), travels=False)
        assert cli.main(["cache", "publish"]) == cli.main(["cache", "publish"]) == 0
        assert capsys.readouterr().out.count("published 1 files") == 2
    assert len([path for path in Path(shared).rglob("*.so") if path.is_file()]) == 1
    with config.patch(cache_dir=str(tmp_path / "cache"), remote_cache=shared, remote_key=""):
        assert cli.main(["cache", "publish"]) == 1
        assert "there is no key" in capsys.readouterr().err
    with config.patch(cache_dir=str(tmp_path / "cache"), remote_cache="nonsense://x", remote_key=secret):
        assert cli.main(["cache", "publish"]) == 1
        assert "fsspec knows no nonsense://" in capsys.readouterr().err
