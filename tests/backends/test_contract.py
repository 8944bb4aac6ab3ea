"""The contract suite: every backend passes it, each kind of fault is found, and a user's backend can be run through."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import dynajit
from dynajit import __main__ as cli
from dynajit import backend_contract
from dynajit.aot import compile_joint
from dynajit.backend_contract import PROGRAMS, ContractProgram
from dynajit.backends import lookup_backend, parts, registry
from dynajit.backends.parts import PartRefused, run_in_parts
from dynajit.exc import ConfigError
from dynajit.report.counters import counters

NAMES = [asked.name for asked in PROGRAMS]
ALWAYS = ("eager", "aot_eager", "codegen", "ofi")
OPTIONAL = ("onnxrt", "openvino")
FLOATS = frozenset({torch.float32})


def by_name(name: str) -> ContractProgram:
    return PROGRAMS[NAMES.index(name)]


def require(backend: str) -> None:
    try:
        lookup_backend(backend)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("asked", PROGRAMS, ids=NAMES)
@pytest.mark.parametrize("backend", [*ALWAYS, *OPTIONAL])
def test_built_in_backends(backend: str, asked: ContractProgram) -> None:
    require(backend)
    backend_contract.check_program(backend, asked)


@pytest.mark.parametrize("backend", OPTIONAL)
def test_what_they_know_is_theirs(backend: str) -> None:
    require(backend)
    for name, count in (("pointwise", 1), ("sizes that are equal by chance", 3), ("gradients", 2)):
        backend_contract.check_program(backend, by_name(name))  # which begins to count anew
        assert counters[backend] == {"parts": count}


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    monkeypatch.delitem(registry._registered, name, raising=False)
    with pytest.raises(ConfigError, match=rf"'{name}' needs onnx, onnxscript, \w+: pip install 'dynajit\[{name}\]'"):
        lookup_backend(name)


def test_ofi_folds_a_batch_norm_and_sees_a_changed_weight() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
    compiled, x = dynajit.compile(model, backend="ofi"), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        counters["ofi"].clear()
        for _ in range(3):  # TorchScript looks at the first calls, and makes other code of them
            torch.testing.assert_close(compiled(x), model(x))
        assert counters["ofi"] == {"parts": 1}
        model[1].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))


def test_what_is_elsewhere_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=r"'tensorrt' needs torch_tensorrt, .*: pip install torch-tensorrt$"):
        dynajit.compile(lambda x: x, backend="tensorrt")
    with pytest.raises(ConfigError, match=r"'nvfuser' is not there: nvFuser left torch .* 'codegen', the default"):
        dynajit.compile(lambda x: x, backend="nvfuser")


# ---- faults are found


def changed(change: Callable[[list[Any]], list[Any]]) -> Any:
    """A backend that runs the graph and changes its results."""

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        return lambda *inputs: change([*gm.forward(*inputs)])

    return backend


def each(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return changed(lambda results: [function(r) if isinstance(r, torch.Tensor) else r for r in results])


def on_copies(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    return lambda *inputs: gm.forward(*(i.clone() if isinstance(i, torch.Tensor) else i for i in inputs))


def with_first_sizes(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    first: list[Any] = []

    def call(*inputs: Any) -> Any:
        first[:] = first or gm.forward(*inputs)
        return first if sum(isinstance(i, torch.SymInt) for i in example_inputs) else gm.forward(*inputs)

    return call


def drawing(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        torch.rand(1)
        return gm.forward(*inputs)

    return call


def failing(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    raise NotImplementedError("this graph")


FAULTS: dict[str, tuple[Any, str]] = {
    "wrong numbers": (each(lambda r: r + 1e-3 if r.is_floating_point() else r), "pointwise"),
    "nan lost": (each(torch.nan_to_num), "not a number"),
    "wider dtype": (each(lambda r: r.double() if r.is_floating_point() else r), "dtypes"),
    "strides lost": (each(torch.Tensor.contiguous), "layouts"),
    "sharing lost": (each(torch.Tensor.clone), "sharing"),
    "writes lost": (on_copies, "writes"),
    "gradients lost": (each(torch.Tensor.detach), "gradients"),
    "sizes of the first call": (with_first_sizes, "sizes"),
    "random numbers drawn": (drawing, "random numbers"),
    "failing": (failing, "pointwise"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    backend, program = FAULTS[fault]
    verdicts = [verdict for verdict in backend_contract.check(backend, program) if verdict.program.name == program]
    assert len(verdicts) == 1 and verdicts[0].fault


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_backends.py").write_text(
        "def right(gm, example_inputs):\n    return gm.forward\n"
        "def wrong(gm, example_inputs):\n    return lambda *inputs: [x * 2 for x in gm.forward(*inputs)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["check-backend", "user_backends:right", "--only", "reductions"]) == 0
    assert "1 of 1 programs are right" in capsys.readouterr().out
    assert cli.main(["check-backend", "user_backends:wrong", "--only", "pointwise"]) == 1
    text = capsys.readouterr().out
    assert "WRONG  pointwise: Arithmetic" in text and "call 1.result" in text
    assert cli.main(["check-backend", "eager", "--only", "no such program"]) == 1
    for name in ("no_such_backend", "user_backends:none", "no_such_module:f"):
        with pytest.raises(SystemExit):
            cli.main(["check-backend", name])


# ---- parts


class TorchEngine:
    """Runs parts by torch, on some operators; results are contiguous and share no memory, as other engines' are."""

    name = "torch engine"
    dtypes = FLOATS

    def __init__(self, refuse: bool = False, *without: str) -> None:
        self.refuse = refuse
        self.without = without
        self.built: list[list[str]] = []

    def takes(self, target: torch._ops.OpOverload) -> bool:
        return str(target.overloadpacket) not in self.without

    def build(self, part: torch.fx.GraphModule, examples: Sequence[Any]) -> parts.Part:
        if self.refuse:
            raise PartRefused("it may not")
        self.built.append([str(node.target.overloadpacket) for node in part.graph.nodes if node.op == "call_function"])

        def call(*inputs: Any) -> Sequence[torch.Tensor]:
            assert all(i.is_contiguous() and not i.requires_grad for i in inputs if isinstance(i, torch.Tensor))
            found = part(*inputs)
            results = found if isinstance(found, (tuple, list)) else [found]
            return [r.clone(memory_format=torch.contiguous_format) for r in results]

        return call


def in_parts(engine: Any) -> Any:
    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        return compile_joint(gm, example_inputs, lambda *graph: run_in_parts(engine, *graph))

    return backend


@pytest.mark.parametrize("without", [(), ("aten.exp", "aten.mm", "aten.view", "aten.add")], ids=["all", "some"])
@pytest.mark.parametrize("asked", PROGRAMS, ids=NAMES)
def test_graphs_in_parts(asked: ContractProgram, without: tuple[str, ...]) -> None:
    backend_contract.check_program(in_parts(TorchEngine(False, *without)), asked)


def test_what_it_does_not_take_stays_with_torch() -> None:
    engine = TorchEngine(False, "aten.exp")
    found = dynajit.compile(lambda x: ((x * 2).tanh().exp() + 1).sin(), backend=in_parts(engine))(torch.ones(3))
    torch.testing.assert_close(found, ((torch.ones(3) * 2).tanh().exp() + 1).sin())
    assert sorted(engine.built) == [["aten.add", "aten.sin"], ["aten.mul", "aten.tanh"]]


def test_a_part_that_is_refused_runs_by_torch() -> None:
    counters["torch engine"].clear()
    backend_contract.check_program(in_parts(TorchEngine(True)), by_name("gradients"))
    assert counters["torch engine"]["parts refused"] >= 2 and not counters["torch engine"]["parts"]
