"""setup.py refuses what it does not know, and says what it knows; a built extension imports by itself."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dynajit.bytecode.target import KNOWN

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup_py() -> ModuleType:
    pytest.importorskip("setuptools")
    spec = importlib.util.spec_from_file_location("dynajit_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_unknown_python_is_refused(setup_py, monkeypatch):
    monkeypatch.setattr(setup_py, "sys", SimpleNamespace(version_info=(3, 10, 4)))
    with pytest.raises(SystemExit, match=r"knows the insides of CPython 3.11, 3.12, 3.13, 3.14; this is 3.10"):
        setup_py.python_compat()


def test_old_or_missing_torch_is_refused(setup_py, monkeypatch, tmp_path):
    (tmp_path / "version.py").write_text("__version__ = '2.6.0+cpu'\n")
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(setup_py.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(SystemExit, match=r"needs torch 2.11 or newer"):
        setup_py.installed_torch()
    monkeypatch.setattr(setup_py.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="torch is not installed"):
        setup_py.installed_torch()


def test_every_known_python_has_its_file(setup_py):
    for name in setup_py.KNOWN_PYTHONS.values():
        assert (ROOT / "csrc" / "python" / name).exists()


@pytest.mark.parametrize("order", ["import torch, dynajit._C", "import dynajit._C, torch"])
def test_imports_in_either_order(order):
    subprocess.run([sys.executable, "-c", order], check=True, cwd=ROOT)


def test_an_unknown_python_is_refused_at_import_before_the_extension():
    program = "import sys, torch; sys.version_info = (3, 10, 4); sys.modules['dynajit._C'] = None; import dynajit"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    known = "3.11, 3.12, 3.13, 3.14"
    assert f"ImportError: dynajit knows the bytecode of CPython {known}; this is cpython 3.10" in done.stderr


def test_build_and_import_know_the_same_pythons(setup_py):
    assert setup_py.KNOWN_PYTHONS.keys() == KNOWN.keys()
