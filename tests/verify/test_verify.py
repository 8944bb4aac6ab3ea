"""`verify` finds what is wrong and nothing else; `bisect` narrows it to one operation."""

import ast
import functools
import operator
import runpy
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.config import config
from dynajit.exc import AccuracyError, ConfigError
from dynajit.interp import dispatch
from dynajit.report import standalone
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


def test_inputs_that_overlap_pass() -> None:
    """The copies that eager and the reference run on overlap in the same way."""

    def program(x: Tensor, y: Tensor, rest: Tensor) -> Tensor:
        x.add_(1)
        y.mul_(rest.sum())
        return x.sum() + y.sum()

    memory = torch.randn(6, 4)
    mine, theirs = memory.clone(), memory.clone()
    f = dynajit.compile(program, options={"verify": True})
    torch.testing.assert_close(f(mine[:4], mine[2:], mine[5]), program(theirs[:4], theirs[2:], theirs[5]))
    torch.testing.assert_close(mine, theirs)


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


def test_a_backend_that_changes_the_graph_itself_is_found() -> None:
    """What the graph is compared with is taken before the backend sees it."""

    def backend(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        for node in gm.graph.find_nodes(op="call_function", target=operator.mul):
            node.target = operator.add
        gm.recompile()
        return gm.forward

    f = dynajit.compile(lambda x: x * 3 + 1, backend=backend, options={"verify": True})
    with pytest.raises(AccuracyError, match="output 0"):
        f(torch.ones(6))


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
    shows_it(report.script, "aten.tanh.default")


def shows_it(script: Path, bug: str) -> None:
    """The script fails with the planted bug, and passes without."""
    run = [sys.executable, str(script)]
    environment = {"PYTHONPATH": str(Path(dynajit.__file__).parent.parent), "PATH": "/usr/bin:/bin"}
    start = functools.partial(subprocess.run, run, capture_output=True, text=True, timeout=300)
    right = start(env=environment)
    assert right.stdout == "equal\n", right.stderr
    wrong = start(env={**environment, "DYNAJIT_PLANTED_BUG": bug})
    assert wrong.returncode != 0 and "not close" in wrong.stderr


@pytest.mark.parametrize("bug", ["aten.cos.default", "aten.sin.default"], ids=["in the forward", "in the backward"])
def test_a_bug_in_training_is_found_and_narrowed(bug: str, tmp_path: Path) -> None:
    """The sine is in the backward of the cosine only: results are right, and gradients wrong."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))

    def step(x: Tensor) -> Tensor:
        loss = torch.cos(net(x)).square().sum()
        loss.backward()
        return loss.detach()

    x = torch.randn(6, 4)
    with config.patch(planted_bug=bug):
        with pytest.raises(AccuracyError, match="gradient of input" if "sin" in bug else "output 0"):
            dynajit.compile(step, options={"verify": True})(x)
        report = dynajit.bisect(step, folder=tmp_path)(x)
    assert (report.stage, report.operations) == ("backend", ("cos",))
    assert report.lines[0].startswith(__file__) and report.kernels
    assert report.script is not None and len(report.script.read_text().splitlines()) < 40
    if "sin" in bug:
        shows_it(report.script, bug)


def test_bisect_blames_the_front_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def inner(x: Tensor) -> Tensor:
        y = x * 2
        return -y

    def negated(x: Tensor) -> Tensor:
        seen = [x.sum()]
        for _ in range(3):
            x = x + 1
        dynajit.graph_break()
        seen.append(x)
        z = inner(x + 1)
        return z + len(seen)

    monkeypatch.setitem(dispatch.HANDLERS, "UNARY_NEGATIVE", lambda tx, frame, instr: None)
    report = dynajit.bisect(negated, folder=tmp_path)(torch.ones(3))
    assert report.stage == "frontend" and "3 of 3 elements differ" in str(report)
    first = inner.__code__.co_firstlineno
    assert report.operations == ("UNARY_NEGATIVE",)
    assert report.lines == (f"{__file__}:{first + 2}", f"{__file__}:{negated.__code__.co_firstlineno + 6}")
    assert report.script is not None and len(report.script.read_text().splitlines()) < 40
    assert "def inner" in report.script.read_text() and "graph_break" not in report.script.read_text()
    with pytest.raises(AssertionError, match="call 1"):
        runpy.run_path(str(report.script))
    monkeypatch.undo()
    runpy.run_path(str(report.script))


FACTOR, TABLE = 3, {"scale": 2.0, "names": ["a", "b"]}


class Scaled:
    """What a function under test makes and uses."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def of(self, x: Tensor) -> Tensor:
        return functools.reduce(operator.mul, [x, self.factor, TABLE["scale"]])


def helper(x: Tensor, factor: int = FACTOR) -> Tensor:
    return Scaled(factor).of(x)


def test_the_script_of_a_front_end_fault_has_what_the_function_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offset = 0.5

    def program(x: Tensor, numbers: dict[str, list[int]], *more: Tensor, flag: bool = False) -> Tensor:
        kept = []
        for number in numbers["all"]:
            kept.append(number)
            x = x + number * offset
        if flag:
            x = helper(x) + more[0].sum()
            first = ~numbers["all"][0]
            x = x * first
        kept.clear()
        return x

    monkeypatch.setitem(dispatch.HANDLERS, "UNARY_INVERT", lambda tx, frame, instr: None)
    report = dynajit.bisect(program, folder=tmp_path)(torch.randn(5, 4), {"all": [1, 2]}, torch.ones(2), flag=True)
    assert report.stage == "frontend" and report.operations == ("UNARY_INVERT",)
    assert report.script is not None and f"script: {report.script}" in str(report)
    text = report.script.read_text()
    assert len(text.splitlines()) < 40 and "kept" not in text and "helper" not in text
    with pytest.raises(AssertionError, match="call 1"):
        runpy.run_path(str(report.script))
    monkeypatch.undo()
    runpy.run_path(str(report.script))


def test_what_no_script_can_have_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def program(x: Tensor, held: Any) -> Tensor:
        return x * ~held.number

    monkeypatch.setitem(dispatch.HANDLERS, "UNARY_INVERT", lambda tx, frame, instr: None)
    report = dynajit.bisect(program, folder=tmp_path)(torch.ones(3), types.SimpleNamespace(number=2))
    assert report.stage == "frontend" and report.script is None and not [*tmp_path.iterdir()]
    assert report.no_script == "it would need an instance of types.SimpleNamespace"
    assert f"script: none: {report.no_script}" in str(report)


def test_definitions_stand_before_what_uses_them(tmp_path: Path) -> None:
    before, tree = standalone.definitions(helper)
    assert tree.name == "helper" and "class Scaled" in before and "TABLE = {" in before and "import operator" in before
    scope: dict[str, Any] = {}
    exec(f"from __future__ import annotations\nimport torch\n{before}\n{ast.unparse(tree)}", scope)
    assert scope["helper"](torch.ones(2)).tolist() == [6.0, 6.0]
    value = [torch.tensor([1, 2]), (1.5, float("inf")), {"a": torch.float16}]
    made = eval(standalone.argument(value), {"torch": torch})
    assert made[0].tolist() == [1, 2] and made[1:] == [(1.5, float("inf")), {"a": torch.float16}]
    with pytest.raises(standalone.CannotWrite, match="SimpleNamespace"):
        standalone.argument([types.SimpleNamespace()])


def test_bisect_finds_a_wrong_instruction_of_a_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def summed(x: Tensor, items: list[int]) -> Tensor:
        for item in items:
            x = x + item
            items[0] = ~item
        return x * 2

    monkeypatch.setitem(dispatch.HANDLERS, "UNARY_INVERT", lambda tx, frame, instr: None)
    report = dynajit.bisect(summed, folder=tmp_path)(torch.ones(3), [1, 2, 3])
    first = summed.__code__.co_firstlineno
    assert report.stage == "frontend"
    assert report.lines[0] in {f"{__file__}:{first + number}" for number in (1, 2, 3)}


def test_gradients_are_compared_in_float64() -> None:
    """A sum of numbers that nearly cancel: eager's own gradient is far off, and a better one is no fault."""

    def program(x: Tensor) -> Tensor:
        y = x.double() if x.dtype is torch.float64 else x
        return ((y + 1e4) - 1e4).square().sum()

    def exact(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        return lambda x: [x.double().square().sum().float()]

    x = torch.rand(64, requires_grad=True)
    dynajit.compile(program, backend=exact, options={"verify": True})(x)
    with pytest.raises(AccuracyError, match="float64 reference"):
        wrong = lambda gm, examples: lambda x: [x.double().square().sum().float() * 1.5]  # noqa: E731
        dynajit.compile(program, backend=wrong, options={"verify": True})(x)


def test_bisect_names_the_graph_behind_a_break(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.sin()
        dynajit.graph_break()
        return torch.sigmoid(y) + 1

    with config.patch(planted_bug="aten.sigmoid.default"):
        report = dynajit.bisect(program, folder=tmp_path)(torch.randn(9))
    assert (report.graph, report.operations) == (1, ("sigmoid",))


@pytest.mark.parametrize(
    ("bug", "operations"), [("aten.sigmoid.default", ("sigmoid",)), ("aten.cat.default", ("cat",))]
)
def test_bisect_cuts_around_what_writes_in_place(bug: str, operations: tuple[str, ...], tmp_path: Path) -> None:
    """An item that is written has no result of its own: the cut is not behind it; it is left out where it can be."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        x[0] = y[1].sigmoid()
        return torch.cat([x, y]) + 1

    with config.patch(planted_bug=bug):
        report = dynajit.bisect(program, folder=tmp_path)(torch.randn(2, 3), torch.randn(2, 3))
    assert (report.graph, report.operations) == (0, operations)
    assert report.script is not None
    shows_it(report.script, bug)


def test_bisect_takes_names_of_backends_only() -> None:
    with pytest.raises(ConfigError):
        dynajit.bisect(network(), backend=broken(_output))  # type: ignore[arg-type]
