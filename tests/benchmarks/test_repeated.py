"""The check of repeated calls finds what compiles at each call and what fails, and goes on from its file."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODELS = """
import types

import torch

import dynajit


class Case:
    args, kwargs, args2, kwargs2, grad = (torch.ones(3),), {}, (torch.ones(5),), {}, False

    def __init__(self, fn):
        self.fn = fn


def restless():
    def f(x):
        new = (lambda x: x + 1).__code__.replace(co_name="new")
        return dynajit.compile(types.FunctionType(new, {}), backend="eager")(x)

    return Case(dynajit.disable(f, recursive=False))


def failing():
    def f(x):
        if torch.is_inference_mode_enabled():
            raise ValueError("not here")
        return x + 1

    return Case(f)


REGISTRY = {"restless": restless, "failing": failing, "quiet": lambda: Case(torch.nn.Flatten(0))}
"""


def test_what_compiles_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, str(ROOT / "benchmarks" / "repeated.py"), "models", "--rows", str(rows)]
    command += [
        "--registry",
        str(tmp_path / "models.py"),
        "--backend",
        "eager",
        "--only",
        "restless",
        "failing",
        "quiet",
    ]
    command += ["--modes", "no_grad", "inference_mode", "in turn"]
    done = subprocess.run([*command, "--shard", "1", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("1/1") == 1  # the rest was there
    made = {row["name"]: row for row in map(json.loads, rows.read_text().splitlines())}
    assert made["restless"]["again"]["no_grad"] and made["restless"]["again"]["in turn"]
    assert made["failing"]["failed"] == dict.fromkeys(("inference_mode", "in turn"), "ValueError: not here")
    assert not made["failing"]["again"]
    assert not made["quiet"]["again"] and not made["quiet"]["failed"]
