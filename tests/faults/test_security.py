"""Strings of the program and of the environment stay data: in names of folders and files, generated code, commands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import dynajit
from dynajit.config import config
from dynajit.runtime import toolchain

PACKAGE = Path(dynajit.__file__).parent
NASTY = "a b;touch pwned $(touch pwned) `touch pwned` 'q\" %s {x} \\"
# what runs text, or data that says what to run
FORBIDDEN = {"os.system", "os.popen", "pickle.load", "pickle.loads", "marshal.loads", "marshal.load", "torch.load"}


def test_folders_with_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NASTY).mkdir()
    settings = {"cache_dir": str(tmp_path / NASTY / "cache"), "debug_dir": str(tmp_path / NASTY / "debug")}
    with config.patch(debug=True, **settings):
        x = torch.rand(5)
        torch.testing.assert_close(dynajit.compile(lambda x: x.sin() * 3)(x), x.sin() * 3)
    assert [*(tmp_path / NASTY / "cache").rglob("*.so")] and [*(tmp_path / NASTY / "debug").rglob("output_code.c")]
    assert not [*tmp_path.rglob("pwned*")]


def test_functions_and_lines_with_any_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file whose name and lines would end a comment of C, and by a name that would leave the debug folder."""
    monkeypatch.chdir(tmp_path)
    name = "x */ #include </etc/passwd> ??/ \\.py"
    text = "def f(x):\n    return x.cos() + 1  # */ int evil(void) { return 1; } /* \\\n"
    (tmp_path / name.replace("/", "_")).write_text(text)
    scope: dict[str, object] = {}
    exec(compile(text, str(tmp_path / name.replace("/", "_")), "exec"), scope)
    function = scope["f"]
    function.__code__ = function.__code__.replace(co_name="../../../evil\n; touch pwned")  # type: ignore[attr-defined]
    x = torch.rand(5)
    with config.patch(debug=True, debug_dir=str(tmp_path / "debug"), cache_dir=str(tmp_path / "cache")):
        torch.testing.assert_close(dynajit.compile(function)(x), x.cos() + 1)  # type: ignore[type-var]
    (code,) = (tmp_path / "debug").rglob("output_code.c")
    assert "evil(void)" not in "".join(line.partition("//")[0] for line in code.read_text().splitlines())
    assert not [*tmp_path.rglob("pwned*")] and not [*tmp_path.parent.glob("evil*")]


def test_a_compiler_is_a_program_and_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with config.patch(compiler="cc; touch pwned"), pytest.raises(toolchain.ToolchainError):
        toolchain.find()
    assert not [*tmp_path.rglob("pwned*")]


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return ""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_shell_and_no_pickle(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            assert _called(node) not in FORBIDDEN, f"{path}:{node.lineno}"
            assert not any(keyword.arg == "shell" for keyword in node.keywords), f"{path}:{node.lineno}"
