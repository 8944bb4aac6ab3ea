"""The package as it is installed: one version, extras, and a refusal of a torch that the extension is not built for.

What is in a wheel, and that it works in a fresh environment, is checked by `make wheel` (tools/check_wheel.py).
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import dynajit
from dynajit import _C, torch_compat

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_in_one_place():
    assert "version" in PROJECT["dynamic"]
    assert not any(dynajit.__version__ in line for line in (ROOT / "setup.py").read_text().splitlines())


def test_the_changelog_and_the_citation_know_the_version():
    assert f"## {dynajit.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {dynajit.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_extras():
    extras = {"triton", "compiler", "onnxrt", "openvino", "remote", "dev", "docs", "examples"}
    assert extras == set(PROJECT["optional-dependencies"])


def test_a_torch_that_the_extension_is_not_built_against_is_refused(monkeypatch):
    monkeypatch.setattr(_C, "TORCH_RELEASE", "2.9", raising=False)
    with pytest.raises(ImportError, match=r"built against torch 2\.9; this is torch 2\."):
        torch_compat.check()


def test_a_torch_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1")
    with pytest.raises(ImportError, match=r"torch 2\.11 and newer; this is torch 2\.10\.1"):
        torch_compat.check()


def test_without_an_extension_the_error_says_how_to_build_it():
    program = "import sys; sys.modules['dynajit._C'] = None; import dynajit"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "dynajit's extension can't be loaded" in done.stderr
    assert "build_ext --inplace" in done.stderr


def test_an_import_brings_what_an_artifact_needs_and_no_more():
    program = "import sys, torch; before = {*sys.modules}; import dynajit; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()}.isdisjoint({"sympy", "triton", "transformers"})


def test_an_environment_that_is_a_link_is_not_made_anew(tmp_path):
    kept = tmp_path / "real" / "kept"
    kept.parent.mkdir()
    kept.touch()
    (tmp_path / "link").symlink_to(kept.parent)
    command = [sys.executable, str(ROOT / "tools" / "setup_env.py"), str(tmp_path / "link")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "is a link" in done.stderr
    assert kept.exists()
