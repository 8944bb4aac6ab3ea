"""Exported programs: equal results here and from a file, for arguments that they are for; whatever else is refused."""

from __future__ import annotations

import collections
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dynajit
from dynajit.exc import ArtifactError, ConfigError, ConstraintViolation, ExportError, Unsupported
from dynajit.exported import inspect_file
from dynajit.runtime import toolchain

close = torch.testing.assert_close


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.conv = nn.Conv2d(1, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.tied = self.inner
        self.register_buffer("table", torch.arange(5.0), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 2.0) -> dict[str, Any]:
        y = torch.nn.functional.gelu(self.norm(self.inner(x))) * scale
        if mask is not None:
            y = y.masked_fill(mask, 0)
        image = self.conv(y[:, None, :, None])
        pair = Pair(y.sum(0), self.tied(x).softmax(-1))
        return {"y": y, "pair": pair, "many": [image, (x, None, 3)], "table": self.table + x.shape[0]}


def saved(exported: Any, folder: Path, **settings: Any) -> Any:  # type: ignore[name-defined]
    exported.save(folder / "program.djt")
    return dynajit.load(folder / "program.djt", **settings)


def test_a_module_gives_the_same_from_a_file(tmp_path: Path) -> None:
    net, x, mask = Net().eval(), torch.randn(4, 8), torch.rand(4, 16) > 0.5
    exported = dynajit.export(net, (x,), {"mask": mask, "scale": 3.0})
    loaded = saved(exported, tmp_path)
    assert set(loaded.weights) == set(exported.weights) == {*dict(net.named_parameters()), "table"}
    for _ in range(2):
        x, mask = torch.randn(4, 8), torch.rand(4, 16) > 0.5
        expected = net(x, mask=mask, scale=3.0)
        for program in (exported, loaded):
            found = program(x, mask=mask, scale=3.0)
            assert list(found) == list(expected) and found["pair"]._fields == ("first", "second")
            assert found["many"][1] == (x, None, 3) and isinstance(found["many"], list)
            close(list(found["pair"]), list(expected["pair"]))
            close(
                [found["y"], found["many"][0], found["table"]], [expected["y"], expected["many"][0], expected["table"]]
            )
            assert found["many"][0].stride() == expected["many"][0].stride()
            close(program(scale=3.0, mask=mask, x=x)["y"], expected["y"])


class Model(nn.Module):
    def forward(self, x: Tensor, others: dict[str, list[Tensor]]) -> Tensor:
        return torch.cat([x.flatten(1), *others["parts"]], 1).softmax(1) * x.shape[0] + x.size(1) // 2


def test_sizes_vary_as_asked(tmp_path: Path) -> None:
    batch, width = Dim("batch", max=64), Dim("width", min=3)
    args = torch.randn(4, 6, 2), {"parts": [torch.randn(4, 5), torch.randn(4, 7)]}
    shapes = {"x": {0: batch, 1: width}, "others": {"parts": [{0: batch}, {0: batch, 1: Dim.DYNAMIC}]}}
    exported = dynajit.export(Model(), args, dynamic_shapes=shapes)
    loaded = saved(exported, tmp_path)
    for rows, wide, last in ((4, 6, 7), (2, 3, 2), (64, 11, 30), (5, 4, 4)):
        args = torch.randn(rows, wide, 2), {"parts": [torch.randn(rows, 5), torch.randn(rows, last)]}
        close(loaded(*args), Model()(*args))
        close(exported(*args), Model()(*args))
    for rows, other, wide, message in (
        (65, 65, 6, r"x: size 65 in dimension 0 \(batch\); expected is 2 to 64"),
        (1, 1, 6, r"x: size 1 in dimension 0 \(batch\); expected is 2 to 64"),
        (4, 4, 2, r"x: size 2 in dimension 1 \(width\); expected is at least 3"),
        (4, 5, 6, r"expected is .*size\(0\) == .*size\(0\).* is 5"),
    ):
        with pytest.raises(ArtifactError, match=message):
            loaded(torch.randn(rows, wide, 2), {"parts": [torch.randn(other, 5), torch.randn(rows, 7)]})


def test_dimensions_that_can_not_vary_are_refused() -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def fixed(x: Tensor) -> Tensor:
        return x.view(2, 3) + 1

    args = torch.randn(6), torch.randn(6)
    with pytest.raises(ConstraintViolation, match=r"x.size\(0\) is a, y.size\(0\) is b, and they have to be equal"):
        dynajit.export(add, args, dynamic_shapes=({0: Dim("a")}, {0: Dim("b")}))
    with pytest.raises(ConstraintViolation, match="only 6 fits"):
        dynajit.export(fixed, (torch.randn(6),), dynamic_shapes=({0: Dim("a")},))
    assert dynajit.export(fixed, (torch.randn(6),), dynamic_shapes=({0: Dim.AUTO},))(args[0]).shape == (2, 3)
    for wrong in ({"z": None}, 3, {"x": {2: Dim("a")}}, {"x": [Dim("a"), Dim("b")]}):
        with pytest.raises(ConfigError, match="dynamic_shapes"):
            dynajit.export(add, args, dynamic_shapes=wrong)


def test_wrong_arguments_are_named() -> None:
    def add(x: Tensor, y: list[Tensor], flag: bool = True) -> Tensor:
        return x + y[0] if flag else x

    program = dynajit.export(add, (torch.randn(2, 3), [torch.randn(3)]))
    x, y = torch.randn(2, 3), torch.randn(3)
    for args, kwargs, message in (
        ((x.double(), [y]), {}, r"x: float64\[2, 3\] on cpu is given; expected is float32\[2, 3\] on cpu"),
        ((x.to("meta"), [y]), {}, r"x: float32\[2, 3\] on meta is given"),
        ((x[0], [y]), {}, r"x: float32\[3\] on cpu is given; expected is float32\[2, 3\]"),
        ((x, [torch.randn(4)]), {}, r"y\[0\]: float32\[4\] on cpu is given"),
        ((x, y), {}, "y: expected is a list of 1, not Tensor of 3"),
        ((x, [y, y]), {}, "y: expected is a list of 1, not list of 2"),
        ((x, [3]), {}, r"y\[0\]: expected is a tensor, not int 3"),
        ((x,), {}, "the argument 'y' is missing; expected are"),
        ((x, [y]), {"z": 1}, "argument 'z' is not expected"),
        ((x, [y]), {"x": x}, "argument 'x' is not expected"),
        ((x, [y], False), {}, "'flag' was not given at export"),
        ((x, [y], 1, 2), {}, "4 arguments are given; expected are at most 3"),
        ((x.to_sparse(), [y]), {}, "x: expected is a strided"),
    ):
        with pytest.raises(ArtifactError, match=message):
            program(*args, **kwargs)
    close(program(x.t().contiguous().t(), y=[y]), x + y)  # other strides are no matter
    with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        found = program(nn.Parameter(x), [y])
    assert not found.requires_grad and found.dtype is torch.float32


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        self.calls += 1
        out.copy_(x * self.calls)
        return x + self.calls


def test_writes_of_buffers_and_arguments_are_part_of_it(tmp_path: Path) -> None:
    net, x, out = Counting(), torch.ones(3), torch.zeros(3)
    exported = dynajit.export(net, (x, out))
    assert net.calls == 0 and torch.equal(out, torch.zeros(3)), "exporting changes nothing"
    loaded = saved(exported, tmp_path)
    for step in (1, 2):
        assert torch.equal(loaded(x, out), x + step) and torch.equal(out, x * step)
    assert loaded.weights["calls"] == 2 and dynajit.load(tmp_path / "program.djt").weights["calls"] == 0
    with pytest.raises(ArtifactError, match="out is written and shares memory with x"):
        loaded(x, x)
    wide = torch.zeros(6)
    with pytest.raises(ArtifactError, match=r"out is written, and has strides \[2\]; expected are \[1\]"):
        loaded(x, wide[::2])


class Switch:
    on, depth = None, 0

    def __init__(self) -> None:
        self.on, self.depth = False, 0

    def __enter__(self) -> None:
        self.on, self.depth = True, 1

    def __exit__(self, *_: object) -> None:
        self.on, self.depth = False, 0


SEEN: list[int] = []
NUMBER = 0
SWITCH = Switch()


def test_effects_on_python_objects_are_refused() -> None:
    def appends(x: Tensor) -> Tensor:
        SEEN.append(1)
        return x + 1

    def counts(x: Tensor) -> Tensor:
        global NUMBER
        NUMBER += 1
        return x + 1

    def fills(x: Tensor, found: list[Tensor]) -> Tensor:
        found.append(x + 1)
        return x * 2

    def switches_on(x: Tensor) -> Tensor:
        global NUMBER
        NUMBER, SWITCH.on = 0, True
        return x + 1

    for target, args in ((appends, ()), (counts, ()), (fills, ([],)), (switches_on, ())):
        with pytest.raises(ExportError, match=r"calling it changes .*, which a file can't do again"):
            dynajit.export(target, (torch.ones(2), *args))
    made = dynajit.export(lambda x: [x + one for one in [1, 2]], (torch.ones(2),))
    assert torch.equal(made(torch.zeros(2))[1], torch.full((2,), 2.0))


def test_what_a_call_puts_back_is_no_effect() -> None:
    """As transformers does with what collects the states of layers."""

    def function(x: Tensor) -> Tensor:
        global NUMBER
        before, NUMBER = NUMBER, 1
        with SWITCH:
            x = x * (2 if SWITCH.on else 3)
        NUMBER = before
        return x

    SWITCH.on, SWITCH.depth = False, 0
    made = dynajit.export(function, (torch.ones(2),))
    assert torch.equal(made(torch.ones(2)), torch.full((2,), 2.0)) and not SWITCH.on
    SWITCH.on = True  # which the call turns off
    with pytest.raises(ExportError, match="calling it changes"):
        dynajit.export(function, (torch.ones(2),))
    SWITCH.on = False


def test_tensors_made_by_calls_are_refused() -> None:
    drawn = torch.Generator()
    with pytest.raises(ExportError, match=r"changes or makes torch\.rand"):
        dynajit.export(lambda x: x * torch.rand(3, generator=drawn), (torch.ones(3),))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2, x.shape[0]),
        lambda x: [x * 2, {"n": len(x) * 2 + 1}],
        lambda x: (x * 2, x.shape),
        lambda x: (x * 2, x.shape[0] >= 2, x.numel() / 2),
        lambda x: (x * 2, f"{x.shape[0]} rows"),
    ],
)
def test_results_that_are_sizes_which_vary_are_refused(fn: Any) -> None:
    with pytest.raises(ExportError, match="a number or text of sizes in its result"):
        dynajit.export(fn, (torch.ones(4, 3),), dynamic_shapes=({0: Dim("n", min=2, max=20)},))
    made = dynajit.export(fn, (torch.ones(4, 3),))
    (tensor, *sizes), (wanted, *others) = made(torch.ones(4, 3)), fn(torch.ones(4, 3))
    assert torch.equal(tensor, wanted) and sizes == others


def test_numbers_beside_sizes() -> None:
    class Scaled(nn.Module):
        factors = (2.0, 3)

        def forward(self, x: Tensor) -> Tensor:
            few = x.shape[0] < 30
            return x * torch.tensor([x.shape[0], self.factors[0], self.factors[1], few]).sum()

    made = dynajit.export(Scaled().eval(), (torch.rand(5, 3),), dynamic_shapes={"x": {0: Dim("n", min=2, max=20)}})
    for n in (2, 5, 7):
        x = torch.rand(n, 3)
        assert torch.allclose(made(x), Scaled()(x))


def test_what_can_not_be_exported_says_why() -> None:
    class Attribute(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x
            return x + 1

    def broken(x: Tensor) -> Tensor:
        print("no", end="")
        return x + 1

    for target, message in (
        (Attribute(), "calling it changes the attribute last"),
        (lambda x: 3, "no operation on tensors"),
        (lambda x: x.sin().tolist, "has no form in a file"),
    ):
        with pytest.raises(ExportError, match=message):
            dynajit.export(target, (torch.ones(2),))
    with pytest.raises(Unsupported, match="graph break"):
        dynajit.export(broken, (torch.ones(2),))
    with pytest.raises(ExportError, match="x is a set"):
        dynajit.export(lambda x: x, ({1},))


def test_weights_may_be_left_out(tmp_path: Path) -> None:
    net, x, path = nn.Linear(4, 4), torch.randn(2, 4), tmp_path / "program.djt"
    exported = dynajit.export(net, (x,))
    exported.save(path, weights=False)
    with pytest.raises(ArtifactError, match="saved without weights: give the 2"):
        dynajit.load(path)
    other = nn.Linear(4, 4)
    close(dynajit.load(path, weights=other.state_dict())(x), other(x))
    for wrong, message in (
        ({}, r"the weight bias is missing: expected is float32\[4\]|the weight weight is missing"),
        (
            {**net.state_dict(), "bias": torch.ones(5)},
            r"the weight bias is float32\[5\] on cpu; expected is float32\[4\]",
        ),
        (net.double().state_dict(), "is float64"),
    ):
        with pytest.raises(ArtifactError, match=message):
            dynajit.load(path, weights=wrong)


def test_a_process_without_the_source_runs_it(tmp_path: Path) -> None:
    exported = dynajit.export(Net().eval(), (torch.ones(4, 8),))
    exported.save(tmp_path / "program.djt")
    text = (
        "import torch, dynajit, sys\n"
        "found = dynajit.load(sys.argv[1])(torch.ones(4, 8))\n"
        "print(type(found['pair']).__name__, found['y'].double().sum().item())\n"
        "assert not {'torch._dynamo', 'transformers', 'tests'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / "program.djt")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kind, total = done.stdout.split()
    assert kind == "Pair"
    close(float(total), exported(torch.ones(4, 8))["y"].double().sum().item())


def test_the_best_target_that_the_processor_has_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("other processors have no levels")
    args = tuple(torch.full((4,), float(number)) for number in range(3))
    exported = dynajit.export(chain, args, simd=["none", "avx512", "auto", "avx2"])
    exported.save(tmp_path / "program.djt")
    here = toolchain.instruction_sets()
    v3 = toolchain.for_level("avx2")[1]
    for has, taken in (
        (here, "auto"),
        (toolchain.for_level("avx512")[1], "avx512"),
        (v3, "avx2"),
        (v3 | {"avx512f"}, "avx2"),
        (v3 - {"fma"}, "none"),
    ):
        monkeypatch.setattr(toolchain, "instruction_sets", lambda has=has: has)
        loaded = dynajit.load(tmp_path / "program.djt")
        assert loaded.target == taken
        if has <= here:
            assert torch.equal(loaded(*args), chain(*args))
    monkeypatch.undo()
    assert "kernels  for auto, avx512, avx2, none" in inspect_file(tmp_path / "program.djt")


def test_targets_that_there_are_not() -> None:
    for simd, message in (
        ("sm_80", "unknown target 'sm_80': programs are exported for CPUs"),
        (["avx2", "avx3"], "unknown target 'avx3': did you mean avx2"),
        ([], "at least one target"),
    ):
        with pytest.raises(ConfigError, match=message):
            dynajit.export(chain, (torch.ones(2), torch.ones(2)), simd=simd)


@pytest.mark.parametrize("inputs", [1, 100], ids=["few arguments", "more than a call takes"])
def test_kernels_come_from_the_file_where_there_is_no_compiler(inputs: int, tmp_path: Path) -> None:
    """Another process has an empty cache, and the kernels of this one must not be what is found."""
    args = tuple(torch.full((4,), float(number)) for number in range(inputs))
    dynajit.export(chain, args).save(tmp_path / "program.djt")
    text = (
        "import torch, dynajit, sys\n"
        "args = [torch.full((4,), float(number)) for number in range(int(sys.argv[2]))]\n"
        "print(dynajit.load(sys.argv[1])(*args).tolist())\n"
    )
    command = [sys.executable, "-c", text, str(tmp_path / "program.djt"), str(inputs)]
    nowhere = {"DYNAJIT_COMPILER": "/nowhere/cc", "DYNAJIT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **nowhere})
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{chain(*args).tolist()}\n"


def chain(*args: Tensor) -> Tensor:
    y = args[0] * 2
    for x in args[1:]:
        y = y * 0.5 + x
    return y


def test_programs_of_torchs_own_export() -> None:
    net, x = nn.Sequential(nn.Linear(4, 8), nn.GELU()), torch.randn(3, 4)
    theirs = torch.export.export(net, (x,), dynamic_shapes=({0: Dim("batch", min=2, max=32)},), strict=False)
    ours = dynajit.compile_exported(theirs)
    for rows in (3, 2, 20):
        y = torch.randn(rows, 4)
        close(ours(y), net(y))
    with pytest.raises(ArtifactError, match="expected is 2 to 32"):
        ours(torch.randn(33, 4))
    back = dynajit.export(net, (x,), dynamic_shapes=({0: Dim("batch")},)).to_exported_program()
    close(back.module()(torch.randn(5, 4)).shape, torch.Size((5, 8)))


def test_mappings_with_attributes(tmp_path: Path) -> None:
    def output(x: Tensor) -> Any:
        return dynajit.exported.trees.Output(logits=x + 1, hidden=(x * 2,))  # type: ignore[attr-defined]

    found = collections.OrderedDict(logits=torch.ones(1), hidden=(torch.ones(1),))
    from dynajit.exported import trees

    leaves: Any = []
    structure = trees.flatten(trees.Output(found), "out", leaves)
    again = trees.rebuild(structure, iter([tensor for _, tensor in leaves]))
    assert again.logits is again[0] is again["logits"] and again.to_tuple()[1][0] is again.hidden[0]
    with pytest.raises(AttributeError):
        _ = again.nothing
