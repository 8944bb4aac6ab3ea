"""What tests of plans for GPUs run on where there is none."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from dynajit import _C


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A small C library as the CUDA driver."""
    path = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = Path(__file__).with_name("fake_cuda_driver.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(path)], check=True)
    _C.open_cuda_driver(str(path))
    return ctypes.CDLL(str(path))
