"""`verify` finds what is wrong and nothing else; `bisect` narrows it to one operation."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.config import config
from dynajit.exc import AccuracyError, ConfigError
from dynajit.verify import difference


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    dynajit.reset()
    yield
    dynajit.reset()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 4))


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_right_results_pass_in_training_and_inference(backend: str, dtype: torch.dtype) -> None:
    net = network().to(dtype)
    compiled = dynajit.compile(net, backend=backend, options={"verify": True})
    x = torch.randn(5, 8).to(dtype)
    torch.manual_seed(3)
    loss = compiled(x).sum()
    loss.backward()
    found = [p.grad.clone() for p in net.parameters()]  # type: ignore[union-attr]
    net.zero_grad()
    torch.manual_seed(3)
    net(x).sum().backward()
    for mine, theirs in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.grad)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))


def test_mutated_inputs_and_integers_pass() -> None:
    def program(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1).sin_()
        return (x > 0).sum(), n // 2

    f = dynajit.compile(program, options={"verify": 1})
    x, y, n = torch.randn(40), torch.zeros(40), torch.arange(5)
    y.copy_(x)
    assert [*map(Tensor.tolist, f(x, n))] == [*map(Tensor.tolist, program(y, n))]
    torch.testing.assert_close(x, y)


def broken(change: Callable[[list[Any], Sequence[Any]], None]) -> Callable[..., Any]:
    """A backend whose graphs run eagerly and are then changed."""

    def backend(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> list[Any]:
            results = list(gm.forward(*inputs))
            change(results, inputs)
            return results

        return run

    return backend


def _output(results: list[Any], inputs: Sequence[Any]) -> None:
    results[0] = results[0] + 0.001


def _nan(results: list[Any], inputs: Sequence[Any]) -> None:
    results[0] = results[0] * float("nan")


def _dtype(results: list[Any], inputs: Sequence[Any]) -> None:
    results[0] = results[0].double()


def _input(results: list[Any], inputs: Sequence[Any]) -> None:
    with torch.no_grad():
        inputs[0].mul_(2)


def _gradient(results: list[Any], inputs: Sequence[Any]) -> None:
    results[0] = results[0] + (inputs[0] - inputs[0].detach())


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (_output, "output 0"),
        (_nan, "nan instead of"),
        (_dtype, "dtype"),
        (_input, "input arg_l_x after the call"),
        (_gradient, "gradient of input arg_l_x"),
    ],
)
def test_each_kind_of_wrong_result_is_found(change: Callable[..., None], where: str) -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 3).tanh()

    f = dynajit.compile(program, backend=broken(change), options={"verify": True})
    with pytest.raises(AccuracyError, match=where) as caught:
        f(torch.randn(6, requires_grad=True))
    assert "graph 1 of [" in caught.value.graph and "program" in caught.value.graph


def test_one_call_in_n_is_checked() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 3

    f = dynajit.compile(program, backend=broken(_output), options={"verify": 3})
    with pytest.raises(AccuracyError):
        f(torch.ones(3))
    f(torch.ones(3))
    f(torch.ones(3))
    with pytest.raises(AccuracyError):
        f(torch.ones(3))


def test_the_setting_verifies_every_compiled_function() -> None:
    with config.patch(verify=1):
        f = dynajit.compile(lambda x: x + 1, backend=broken(_output))
        with pytest.raises(AccuracyError):
            f(torch.ones(3))


def test_verify_takes_a_number_of_calls() -> None:
    with pytest.raises(ConfigError, match="verify"):
        dynajit.compile(lambda x: x, options={"verify": "yes"})


def test_rounding_is_no_difference() -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    eager = exact.float()
    assert difference(eager * (1 + 3e-7), eager, exact) is None
    assert difference(eager * 1.001, eager, exact) is not None
    assert difference(eager.half(), eager.half(), exact) is None
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])) is not None
    assert difference({"a": 1.0}, {"a": 1.0}) is None
    assert difference({"a": 1.0}, {"b": 1.0}) is not None
    infinite = torch.tensor([float("inf"), float("nan"), 1.0])
    assert difference(infinite, infinite.clone(), infinite.double()) is None
    assert difference(-infinite, infinite, infinite.double()) is not None


# ------------------------------------------------------------------------------------------------ bisect


def test_bisect_of_a_right_program_says_so(tmp_path: Path) -> None:
    report = dynajit.bisect(network().eval(), folder=tmp_path)(torch.randn(5, 8))
    assert report.stage == "none" and "nothing is wrong" in str(report)


def test_a_planted_bug_is_found_by_verify_and_narrowed_to_a_short_script(tmp_path: Path) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        y = torch.relu(x @ w) + 1
        for _ in range(3):
            y = y / 2 + torch.tanh(y)
        return y.softmax(-1) * y

    args = torch.randn(6, 4), torch.randn(4, 4)
    with config.patch(planted_bug="aten.tanh.default"):
        with pytest.raises(AccuracyError, match="output 0"):
            dynajit.compile(program, options={"verify": True})(*args)
        report = dynajit.bisect(program, folder=tmp_path)(*args)
    assert (report.stage, report.graph, report.operations) == ("backend", 0, ("tanh",))
    assert any("tanh" in kernel for kernel in report.kernels)
    assert report.script is not None
    assert report.lines and report.lines[0].startswith(__file__)
    assert len(report.script.read_text().splitlines()) < 40
    run = [sys.executable, str(report.script)]
    environment = {"PYTHONPATH": str(Path(dynajit.__file__).parent.parent), "PATH": "/usr/bin:/bin"}
    right = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert right.stdout == "equal\n", right.stderr
    wrong = subprocess.run(
        run, env={**environment, "DYNAJIT_PLANTED_BUG": "aten.tanh.default"}, capture_output=True, text=True
    )
    assert wrong.returncode != 0 and "not close" in wrong.stderr


def test_bisect_names_the_graph_behind_a_break(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.sin()
        dynajit.graph_break()
        return torch.sigmoid(y) + 1

    with config.patch(planted_bug="aten.sigmoid.default"):
        report = dynajit.bisect(program, folder=tmp_path)(torch.randn(9))
    assert (report.graph, report.operations) == (1, ("sigmoid",))


def test_bisect_takes_names_of_backends_only() -> None:
    with pytest.raises(ConfigError):
        dynajit.bisect(network(), backend=broken(_output))  # type: ignore[arg-type]
