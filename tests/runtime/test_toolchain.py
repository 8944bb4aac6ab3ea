"""Finding and running a C compiler, and what happens when it is missing, broken or hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynajit.config import config
from dynajit.runtime import toolchain
from dynajit.runtime.toolchain import ToolchainError


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_compiles(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int f(void) { return 3; }")
    toolchain.find().compile(source, tmp_path / "a.so")
    assert (tmp_path / "a.so").read_bytes()[:4] == b"\x7fELF"


def test_a_refused_file_says_why(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int f(void) { return nonsense; }")
    with pytest.raises(ToolchainError, match=r"command: .*a\.c[\s\S]*nonsense"):
        toolchain.find().compile(source, tmp_path / "a.so")


def test_missing_compiler_says_what_to_do() -> None:
    with config.patch(compiler="/nowhere/cc"), pytest.raises(ToolchainError, match=r"/nowhere/cc: not found.*DYNAJIT"):
        toolchain.find()


def test_what_is_no_compiler(tmp_path: Path) -> None:
    other = script(tmp_path / "cc", "echo a teapot")
    with config.patch(compiler=other), pytest.raises(ToolchainError, match="does not say"):
        toolchain.find()


def test_cc_variable_with_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = script(tmp_path / "my cc", 'shift; echo "gcc version 99"')
    monkeypatch.setenv("CC", f"'{mine}' --wrapped")
    assert toolchain.find().command == (mine, "--wrapped")


def test_a_cc_variable_that_does_not_work_is_passed_over_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/their-cc")
    with pytest.warns(UserWarning, match=r"\$CC is passed over for .*/nowhere/their-cc: not found"):
        toolchain.find()


def test_the_compiler_of_the_package_ziglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import sys; assert sys.argv[1] == 'cc'; print('clang version 99')")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "")
    toolchain._find.cache_clear()
    found = toolchain.find()
    toolchain._find.cache_clear()
    assert (found.command, found.family) == ((sys.executable, "-m", "ziglang", "cc"), "clang")


def test_configured_path_with_blanks(tmp_path: Path) -> None:
    mine = script(tmp_path / "my cc", 'echo "clang version 99"')
    with config.patch(compiler=mine):
        found = toolchain.find()
    assert (found.command, found.family) == ((mine,), "clang")
    assert not found.openmp
    assert "-fopenmp" not in found.flags


def test_a_hanging_compiler_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = script(tmp_path / "cc", '[ "$1" = --version ] && echo gcc && exit\nsleep 1000 &\nwait')
    monkeypatch.setattr(toolchain, "COMPILE_TIMEOUT_S", 0.2)
    with config.patch(compiler=mine), pytest.raises(ToolchainError, match="too long"):
        toolchain.find().compile(tmp_path / "a.c", tmp_path / "a.so")


def test_the_fingerprint_follows_the_settings() -> None:
    prints = set()
    for simd in ("auto", "none", "avx2"):
        with config.patch(simd=simd):
            prints.add(toolchain.find().fingerprint)
    assert len(prints) == 3


def test_openmp_is_torchs() -> None:
    found = toolchain.find()
    if found.family != "gcc":
        pytest.skip("clang's OpenMP calls need clang's runtime, which torch does not bring")
    assert found.openmp
    assert any("libgomp" in item or "omp" in item for item in found.link)
