"""The debug folder: every file is there, runs by itself, and never harms the program."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.config import config
from dynajit.report import debug
from dynajit.runtime import toolchain

PYTHON = {**os.environ, "PYTHONPATH": str(Path(dynajit.__file__).parent.parent)}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    dynajit.reset()
    yield
    dynajit.reset()


def program(x: Tensor, w: Tensor) -> Tensor:
    y = torch.sin(x) + 1
    dynajit.graph_break()
    return torch.relu(y @ w).softmax(-1)


def written(tmp_path: Path, inputs: bool = False) -> dict[str, Path]:
    with config.patch(debug=True, debug_dir=str(tmp_path), debug_inputs=inputs):
        dynajit.compile(program)(torch.randn(4, 5), torch.randn(5, 5, requires_grad=True))
    return {
        f"{path.parent.name.split('_', 2)[2]}{path.parent.name[0]}/{path.name}": path for path in tmp_path.rglob("*.*")
    }


def test_every_file_of_the_table_is_written(tmp_path: Path) -> None:
    names = {path.name for path in written(tmp_path).values()}
    for name in debug.FILES:
        stem, suffix = name.split(".")
        assert name in names or f"{stem}_forward.{suffix}" in names, name


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dynajit.compile(program)(torch.randn(4, 5), torch.randn(5, 5))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("inputs", [False, True])
def test_the_runnable_graph_runs_by_itself(tmp_path: Path, inputs: bool) -> None:
    scripts = [path for path in written(tmp_path, inputs).values() if path.name == "fx_graph_runnable.py"]
    assert len(scripts) == 2
    for script in scripts:
        assert (script.parent / "inputs.pt").exists() == inputs
        ran = subprocess.run([sys.executable, str(script)], env=PYTHON, capture_output=True, text=True)
        assert ran.stdout == "equal\n", ran.stderr


def test_the_output_code_compiles_and_runs_by_itself(tmp_path: Path) -> None:
    files = [path for path in written(tmp_path).values() if path.suffix == ".c"]
    assert {"output_code.c", "output_code_2.c"} <= {file.name for file in files}
    command = toolchain.find().command[0]
    for file in files:
        first = file.read_text().splitlines()[0].removeprefix("// gcc ").partition(" && ")[0]
        subprocess.run([command, *first.split()], cwd=file.parent, check=True, capture_output=True)
        ran = subprocess.run([f"./{file.stem}"], cwd=file.parent, check=True, capture_output=True, text=True)
        assert "us" in ran.stdout


def test_times_and_trace_are_json(tmp_path: Path) -> None:
    files = written(tmp_path)
    for path in files.values():
        if path.suffix == ".json":
            content = json.loads(path.read_text())
            assert content.get("seconds") or content["traceEvents"]


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with config.patch(debug=True, debug_dir=str(tmp_path / "file" / "below")):
        with pytest.warns(UserWarning, match="no debug files are written"):
            dynajit.compile(program)(torch.randn(4, 5), torch.randn(5, 5))
        dynajit.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dynajit.compile(program)(torch.randn(4, 5), torch.randn(5, 5))


def test_a_module_with_constants_is_runnable(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([1.0, 2.0, float("inf")]) + torch.arange(3, device="cpu")

    with config.patch(debug=True, debug_dir=str(tmp_path)):
        dynajit.compile(Net(), backend="eager")(torch.randn(2, 3))
    script = next(iter(tmp_path.rglob("fx_graph_runnable.py")))
    ran = subprocess.run([sys.executable, str(script)], env=PYTHON, capture_output=True, text=True)
    assert ran.stdout == "equal\n", ran.stderr
