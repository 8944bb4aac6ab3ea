"""`python -m dynajit survey` and `dynajit.testing.survey`: what each kind of program is told."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit import __main__ as cli
from dynajit.config import config
from dynajit.exc import ConfigError
from dynajit.report.survey import SurveyReport
from dynajit.testing import survey


def quick(fn: Callable[..., Any], inputs: Any = (), backend: Any = "eager", **options: Any) -> SurveyReport:
    return survey(fn, inputs, seconds=0, backend=backend, **options)


def doubled(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that is wrong by rounding's tenfold and more."""
    return lambda *args: tuple(out * 1.01 if isinstance(out, Tensor) else out for out in gm.forward(*args))


def test_a_right_program() -> None:
    report = survey(nn.Sequential(nn.Linear(8, 8), nn.GELU()), (torch.randn(4, 8),), seconds=0.05)
    assert report.right and report.reference and report.calls == 3 and not report.repeated
    assert report.explained.graph_count == 1 and report.explained.graph_break_count == 0
    (times,), (kept,) = report.times, report.kept
    assert times.eager > 0 and times.compiled > 0 and times.eager_step is not None
    assert kept.eager > 0 and kept.compiled > 0
    text = str(report)
    assert text.startswith(
        "Sequential: right: what eager gives, as close to float64 as eager (3 calls, 1 set of inputs)"
    )
    for part in ("1 graphs, 0 breaks", "with backward", "Memory kept", "Versions:", "torch"):
        assert part in text, part


def test_a_wrong_program_is_told_with_call_and_place() -> None:
    report = quick(lambda x: {"loss": x.sum()}, (torch.randn(4),), backend=doubled)
    assert report.right is False and not report.times
    assert report.difference.startswith("call 1: result['loss']: 1 of 1 elements differ")
    assert "WRONG" in str(report)


def test_wrong_gradients_are_found() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient * 2

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *args: tuple(Wrong.apply(out) for out in gm.forward(*args))

    report = quick(nn.Linear(3, 2), (torch.randn(4, 3),), backend=backend)
    assert report.right is False and "gradients" in report.difference and "weight" in report.difference


def test_a_breaking_and_printing_program() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x + 1
        print("between")
        return y * 2

    report = quick(fn, (torch.ones(3),))
    assert report.right and report.explained.graph_break_count == 1
    assert 'print("between")' in str(report) and "What to do: move it out" in str(report)


def test_a_recompiling_program_is_told_why_and_at_which_call() -> None:
    def fn(x: Tensor, mode: str) -> Tensor:
        return x + len(mode)

    report = quick(fn, [(torch.ones(3), "a"), (torch.ones(3), "bcd")])
    assert report.right and report.sets == 2 and not report.repeated
    assert "at call 2: [0/0]" in str(report) and "'bcd'" in str(report)


def test_what_a_repeated_call_compiles_is_a_defect() -> None:
    def fn(x: Tensor) -> Tensor:
        dynajit.reset()  # what was compiled is lost: each call compiles
        return x + 1

    report = quick(fn, (torch.ones(2),))
    assert report.right
    assert [capture.call for capture in report.repeated if not capture.record.skipped][:1] == [2]
    assert "repeats an earlier one: a defect" in str(report) and "at call 2" in str(report)


def test_a_raising_program_is_right_if_it_raises_the_same() -> None:
    def fn(x: Tensor, names: list[str]) -> Tensor:
        names.append("called")
        return x @ x

    report = quick(fn, (torch.ones(3, 4), []))
    assert report.right and report.error is not None and report.error.startswith("RuntimeError: mat1 and mat2")
    assert not report.times and "eager raises RuntimeError" in str(report)


def test_a_backend_that_raises_is_wrong() -> None:
    def broken(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        raise RuntimeError("no code today")

    report = quick(lambda x: x + 1, (torch.ones(3),), backend=broken)
    assert report.right is False and "raised BackendCompilerFailed: " in report.difference


def test_eager_that_differs_from_itself_is_undecided() -> None:
    calls = iter(range(1000))
    report = quick(lambda x: x + next(calls), (torch.ones(3),))
    assert report.right is None and "two eager runs differ" in str(report)


def test_the_limit_and_eager_frames_are_told() -> None:
    def fn(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    with config.patch(recompile_limit=2):
        dtypes = (torch.float64, torch.int32, torch.int64, torch.float16)
        report = quick(fn, [(torch.ones(3), dtype) for dtype in dtypes])
    assert report.right and any("was compiled 2 times" in note for note in report.notes)
    assert "dynajit's warnings" in str(report)


def test_what_can_not_be_copied_is_compared_without_float64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", ["", *sys.path])
    path = tmp_path / "uncopied_program.py"
    path.write_text(
        "import torch\n"
        "class Names(dict):\n"
        "    __getattr__ = dict.__getitem__  # raises KeyError where copy looks for __deepcopy__\n"
        "def make():\n"
        "    return (lambda x, names: x * names.scale), (torch.ones(3), Names(scale=2.0))\n"
    )
    assert cli.main(["survey", "--seconds", "0", "--backend", "eager", f"{path}:make"]) == 0
    assert "equal up to rounding" in capsys.readouterr().out


def test_arrays_and_numbers_are_compared_too() -> None:
    def fn(x: Tensor) -> Any:
        return numpy.asarray(x.detach()) + 1, x.sum().item(), float("nan")

    assert quick(fn, (torch.ones(3),)).right
    report = quick(fn, (torch.ones(3),), backend=doubled)
    assert report.right is False and report.difference.startswith("call 1: the array: 3 of 3 elements differ")


@pytest.mark.parametrize("inputs", [5, [5], [], {1: 2}, torch.ones(2)])
def test_inputs_that_are_none(inputs: Any) -> None:
    with pytest.raises(ConfigError, match="inputs"):
        quick(lambda x: x, inputs)
    with pytest.raises(ConfigError, match="rounds"):
        quick(lambda x: x, (1,), rounds=1)


# ------------------------------------------------------------------------------------------------ the command

PROGRAMS = """
import dataclasses
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x, scale=1.0):
        return self.linear(x) * scale

def make():
    return Net(), [(torch.randn(3, 4),), (torch.randn(5, 4), 2.0)]

def keywords():
    return Net(), (torch.randn(3, 4),), {"scale": 3.0}

net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
losses = []

@dataclasses.dataclass
class Step:
    loss: float
    weight: torch.Tensor

def step():
    optimizer.zero_grad()
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    return Step(losses[-1], net.linear.weight)

def needs(x):
    return x

def raises():
    raise KeyError("nothing here")

def other_each_time():
    import os
    return os.urandom(8)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", ["", *sys.path])
    path = tmp_path / "surveyed_program.py"
    path.write_text(PROGRAMS)
    return path


def command(*arguments: str) -> int:
    return cli.main(["survey", "--seconds", "0", "--backend", "eager", *arguments])


def test_the_command_surveys_programs_of_a_file(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(f"{program}:make", f"{program}:keywords") == 0
    out = capsys.readouterr().out
    assert out.count(": right: ") == 2 and "6 calls, 2 sets" in out


def test_the_command_surveys_a_training_step(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(program.parent))
    assert command("--json", "surveyed_program:step") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["right"] is True and found["calls"] == 3
    assert found["repeated_captures"] == 0 and found["explain"]["graph_count"] > 1
    assert any("was None" in (each["reason"] or "") for each in found["captures"])
    assert found["versions"]["torch"] in torch.__version__


def test_the_commands_exit_status(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(planted_bug="aten.mul.Tensor"):
        assert cli.main(["survey", "--seconds", "0", f"{program}:keywords"]) == 1
    assert "WRONG" in capsys.readouterr().out
    assert command(f"{program}:other_each_time") == 2
    assert "undecided" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{path}", "MODULE:FUNCTION"),
        ("{path}:", "MODULE:FUNCTION"),
        ("{path}:nothing", "has no function nothing; it has keywords, make, needs"),
        ("{path}:losses", "has no function losses"),
        ("{path}:needs", "raised TypeError: needs() missing 1 required positional argument"),
        ("{path}:raises", "raised KeyError: 'nothing here'"),
        ("/nowhere/model.py:make", "there is no file /nowhere/model.py"),
        ("surely_no_module:make", "there is no module surely_no_module"),
        ("surely.no.module:make", "there is no module surely.no.module"),
        ("{broken}:make", "raised SyntaxError"),
    ],
)
def test_what_can_not_be_surveyed(name: str, message: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = program.with_name("broken_program.py")
    broken.write_text("def make(:\n")
    with pytest.raises(SystemExit) as ended:
        command(name.format(path=program, broken=broken))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
