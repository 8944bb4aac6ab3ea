"""libdynajit_runtime: exported programs in a process without Python give what they give in one with it.

The library, a package of CMake's, is built and installed once; `examples/serve_cpp` and `call_program.cpp` use it so.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import dynajit
from dynajit.exported import trees
from dynajit.runtime import container
from dynajit.runtime.container import Container

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def ran(*command: Any) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


# torch's own package of CMake's wants the toolkit that such a torch was built with
NO_TOOLKIT = torch.version.cuda is not None and shutil.which("nvcc") is None and "CUDA_HOME" not in os.environ
pytestmark = [
    pytest.mark.skipif(CMAKE is None, reason="cmake is not installed"),
    pytest.mark.skipif(NO_TOOLKIT, reason="torch was built for CUDA, whose toolkit is not installed"),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `serve` and `call_program`, built against the installed package."""
    folder = tmp_path_factory.mktemp("cpp")
    torch_at, installed = torch.utils.cmake_prefix_path, folder / "installed"
    options = ("-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={installed};{torch_at}")
    ran(CMAKE, "-S", ROOT / "cpp", "-B", folder / "library", *options)
    ran(CMAKE, "--build", folder / "library", "-j2")
    ran(CMAKE, "--install", folder / "library", "--prefix", installed)
    (folder / "calls").mkdir()
    text = (ROOT / "examples/serve_cpp/CMakeLists.txt").read_text()
    (folder / "calls/CMakeLists.txt").write_text(text.replace("serve.cpp", str(ROOT / "examples/serve_cpp/serve.cpp")))
    with (folder / "calls/CMakeLists.txt").open("a") as file:
        file.write(f"add_executable(call_program {ROOT}/tests/exported/call_program.cpp)\n")
        file.write("target_link_libraries(call_program PRIVATE dynajit::runtime)\n")
    ran(CMAKE, "-S", folder / "calls", "-B", folder / "made", *options)
    ran(CMAKE, "--build", folder / "made", "-j2")
    return folder / "made"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.parts, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, at: Tensor) -> dict[str, Tensor]:
        x = self.words(at)
        q, k, v = self.parts(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return {"logits": self.head(F.gelu(x + self.out(y))), "places": at + 1}


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.norm(self.two(self.one(x))))
        pooled = F.max_pool2d(y, 2)
        return F.interpolate(pooled, scale_factor=2.0, mode="bilinear"), y.mean((2, 3)).softmax(-1)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen += x.shape[0]
        self.mean.lerp_(x.double().mean(0), 0.5)
        return self.seen * 2, x - self.mean


def mixed(x: Tensor, at: Tensor) -> list[Tensor]:
    rows = x[at].sort(-1, descending=True)
    return [rows.values.half() * 2, rows.indices, x.t() @ x, torch.cat([x, -x], 1).cumsum(0), x.new_ones(2, 3)]


def changed(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return (x + y).flip(0)


BATCH, LENGTH = Dim("batch", max=512), Dim("length", max=64)
# module or function, dynamic sizes, the arguments of several calls
CASES: dict[str, tuple[Callable[[], Any], Any, Callable[[], list[tuple[Tensor, ...]]]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU()), None, lambda: [(torch.randn(4, 8),)] * 2),
    "transformer": (
        Block,
        ({0: BATCH, 1: LENGTH},),
        lambda: [(torch.randint(50, shape),) for shape in ((4, 7), (2, 60), (9, 3))],
    ),
    "images": (
        Images,
        ({0: Dim("few", max=15), 2: Dim("height", min=9, max=64), 3: Dim("width", min=9, max=64)},),
        lambda: [(torch.randn(shape),) for shape in ((2, 3, 32, 32), (3, 3, 19, 24), (5, 3, 11, 64))],
    ),
    "buffers": (Counts, ({0: BATCH},), lambda: [(torch.randn(n, 4),) for n in (3, 5, 2)]),
    "several kinds": (
        lambda: mixed,
        ({0: BATCH}, {0: LENGTH}),
        lambda: [(torch.randn(n, 6), torch.randint(n, (m,))) for n, m in ((5, 3), (8, 11), (4, 2))],
    ),
    "written": (lambda: changed, None, lambda: [(torch.randn(4, 3), torch.randn(4, 3)) for _ in range(2)]),
    "other strides": (lambda: nn.Linear(6, 5), ({0: BATCH},), lambda: [(torch.randn(6, n).t(),) for n in (4, 7)]),
    "float64": (lambda: nn.Linear(6, 5).double(), None, lambda: [(torch.randn(3, 6).double(),)]),
}


def exported(name: str, folder: Path) -> tuple[Path, list[tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    make, sizes, calls = CASES[name]
    target, given = make(), calls()
    target = target.eval() if isinstance(target, nn.Module) else target
    path = folder / "program.djt"
    first = tuple(x.contiguous() for x in given[0])
    dynajit.export(target, first, dynamic_shapes=sizes).save(path)
    return path, given


def called(programs: Path, path: Path, calls: list[tuple[Tensor, ...]], *more: Path) -> list[list[Tensor]]:
    given, found = path.with_suffix(".in"), path.with_suffix(".out")
    torch.save([list(call) for call in calls], given)
    ran(programs / "call_program", "run", path, given, found, *more)
    return torch.load(found, weights_only=False)  # type: ignore[no-any-return]  # lists that libtorch wrote


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_with_python(name: str, programs: Path, tmp_path: Path) -> None:
    path, given = exported(name, tmp_path)
    loaded = dynajit.load(path)
    found = called(programs, path, given)
    for ours, call in zip(found, given, strict=True):
        leaves: list[tuple[str, Tensor]] = []
        trees.flatten(loaded(*(x.clone() for x in call)), "", leaves)
        for one, (_, other) in zip(ours, leaves, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
            assert torch.equal(one, other)


def test_names_and_threads(programs: Path, tmp_path: Path) -> None:
    path, _ = exported("transformer", tmp_path)
    text = ran(programs / "serve", path, 8, 40)
    assert "takes at: Long[2, 2]" in text and "gives logits: Float[2, 2, 5]" in text and "gives places" in text
    assert "from 8 threads, 0 results differ, 0 threads failed" in text


def test_weights_are_replaced_between_calls(programs: Path, tmp_path: Path) -> None:
    path, given = exported("linear", tmp_path)
    loaded = dynajit.load(path)
    other = {name: -2 * tensor for name, tensor in loaded.weights.items()}
    torch.save(other, tmp_path / "weights")
    first, second = called(programs, path, given, tmp_path / "weights")
    assert torch.equal(first[0], loaded(*given[0]))
    assert torch.equal(second[0], dynajit.load(path, weights=other)(*given[1]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ((torch.zeros(2, 7).double(),), "at: float64[2, 7] is given; expected is int64[batch, length] on cpu"),
        ((torch.zeros(2, 7, 1).long(),), "at: int64[2, 7, 1] is given; expected is int64[batch, length] on cpu"),
        ((torch.zeros(2, 65).long(),), "at: size 65 in dimension 1 (length); expected is 2 to 64"),
        ((torch.full((2, 7), 50),), "an index is outside of its tensor"),
        ((), "0 tensors are given; expected are 1"),
    ],
)
def test_wrong_calls(call: tuple[Tensor, ...], text: str, programs: Path, tmp_path: Path) -> None:
    path, _ = exported("transformer", tmp_path)
    torch.save([list(call)] if call else [[]], tmp_path / "in")
    command = [programs / "call_program", "run", path, tmp_path / "in", tmp_path / "out"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and text in done.stderr


def changed_somewhere(value: Any, choose: random.Random) -> Any:
    """The JSON with one part of it another."""
    if isinstance(value, (dict, list)) and value and choose.random() < 0.95:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        at = choose.choice(keys)
        value[at] = changed_somewhere(value[at], choose)
        return value
    return choose.choice([None, True, -1, 0, 7, 1 << 62, 0.5, "", "x", [], {}, ["ref", "x"], ["size", [], []]])


def test_files_that_are_none(programs: Path, tmp_path: Path) -> None:
    """Damaged ones, and ones with right checksums that nobody wrote so, are refused; none ends the process."""
    path, _ = exported("transformer", tmp_path)
    whole, choose, names = path.read_bytes(), random.Random(0), []
    for number in range(200):
        new = bytearray(whole)
        new[choose.randrange(len(new) if number % 2 else 4000)] ^= 1 + choose.randrange(255)
        names.append(tmp_path / f"{number}.djt")
        names[-1].write_bytes(new[: choose.randrange(len(new))] if number % 5 == 0 else new)
    file = Container(path, "program")
    sections = {name: file.read(name) for name in file.sections}
    for number in range(400):
        facts, plan = json.loads(json.dumps(file.facts)), json.loads(file.read("plan.json"))
        for _ in range(choose.randint(1, 3)):
            changed_somewhere(plan if number % 2 else facts, choose)
        names.append(tmp_path / f"plan{number}.djt")
        container.write(
            names[-1], "program", facts, list((sections | {"plan.json": json.dumps(plan).encode()}).items())
        )
    lines = ran(programs / "call_program", "load", *names, path).splitlines()
    assert len(lines) == len(names) + 1 and lines[-1] == "fine"
    assert sum(line != "fine" for line in lines[:200]) > 180  # the others have another byte between sections
    assert sum(line != "fine" for line in lines[200:]) > 200
    assert ran(programs / "call_program", "load", "/nowhere").startswith("/nowhere: it can't be read: No such file")


def expression(choose: random.Random, depth: int) -> str:
    """Text of arithmetic on the size s0, as Python writes it."""
    if depth == 0:
        return choose.choice(["s0", str(choose.randint(0, 9)), "True", "2.5", "1e-05"])
    one, two, three = (expression(choose, depth - choose.randint(1, depth)) for _ in range(3))
    return choose.choice(
        [
            *(f"({one} {op} {two})" for op in ("+", "-", "*", "//", "%", "/", "==", "<", ">=", "and", "or")),
            *(f"{name}({one}, {two})" for name in ("min", "max")),
            *(f"{name}({one})" for name in ("abs", "int", "round", "math.floor", "bool", "float")),
            *(f"({two} if {one} else {three})", f"{one} if {two} else {three} if {one} else {two}"),
            *(f"not {one}", f"-{one}", f"({one} or {two} and {three})", f"{one} - {two} * -{three} + s0"),
        ]
    )


def with_sizes(path: Path, steps: list[str], relations: list[Any]) -> Path:
    """The file, whose plan computes these texts, and whose inputs have to fit these trees."""
    file = Container(path, "program")
    sections, facts = {name: file.read(name) for name in file.sections}, json.loads(json.dumps(file.facts))
    plan = json.loads(sections["plan.json"])
    (symbol,) = facts["inputs"]["symbols"]
    rows = [
        ["SizeStep", {"symbol": f"made{at}", "what": "expression", "source": text.replace("s0", symbol), "at": 0}]
        for at, text in enumerate(steps)
    ]
    at = next(
        (at + 1 for at, step in enumerate(plan["steps"]) if step[0] == "SizeStep" and step[1]["symbol"] == symbol), 0
    )
    plan["steps"][at:at] = rows
    facts["inputs"]["relations"] += json.loads(json.dumps(relations).replace('"s0"', json.dumps(symbol)))
    changed = path.with_name("sizes.djt")
    container.write(changed, "program", facts, list((sections | {"plan.json": json.dumps(plan).encode()}).items()))
    return changed


def test_sizes_are_what_python_computes(programs: Path, tmp_path: Path) -> None:
    path, _ = exported("other strides", tmp_path)
    choose, steps = random.Random(0), list[str]()
    while len(steps) < 400:
        text = expression(choose, 4)
        try:
            value = eval(text, {"math": math}, {"s0": 7})
        except (ZeroDivisionError, OverflowError, ValueError, SyntaxError):  # a condition, or `not`, as an operand
            continue
        if not isinstance(value, complex) and abs(value) < 1 << 62:
            steps.append(f"1 // (({text}) == {value!r})")
    given = (torch.randn(6, 7).t(),)
    found = called(programs, with_sizes(path, steps, []), [given])
    assert torch.equal(found[0][0], dynajit.load(path)(*given))
    with pytest.raises(AssertionError, match="a size is divided by zero"):
        called(programs, with_sizes(path, ["1 // (s0 == 8)"], []), [given])


def test_one_arm_of_a_condition_is_computed(programs: Path, tmp_path: Path) -> None:
    path, _ = exported("other strides", tmp_path)
    zero = ["add", "s0", -7]
    steps = ["8 // (s0 - 7) if s0 != 7 else s0", "s0 if s0 == 7 else 1 // (s0 - 7)", "s0 == 7 or 1 // (s0 - 7)"]
    relations = [
        ["where", ["eq", "s0", 7], True, ["floordiv", 1, zero]],
        ["or", ["eq", "s0", 7], ["floordiv", 1, zero]],
        ["not", ["and", ["ne", "s0", 7], ["floordiv", 1, zero]]],
    ]
    given = (torch.randn(6, 7).t(),)
    changed = with_sizes(path, steps, relations[:1])
    expected = dynajit.load(path)(*given)
    assert torch.equal(dynajit.load(changed)(*given), expected)
    assert torch.equal(called(programs, with_sizes(path, steps, relations), [given])[0][0], expected)


def test_the_best_target_that_the_processor_has_is_taken(programs: Path, tmp_path: Path) -> None:
    path, given = tmp_path / "program.djt", [(torch.randn(4, 8),)]
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).eval()
    program = dynajit.export(net, given[0], simd=["none", "avx2"])
    for missing, taken in (([], "avx2"), ([0], "none"), ([0, 1], "")):
        for at in missing:
            program.facts["targets"][at][1] = ["x86_64", "avx2048"]
        program.save(path)
        lines = ran(programs / "call_program", "target", path).splitlines()
        assert lines == ([taken] if taken else [f"{path}: its kernels use avx2048, which this processor lacks"])
        if taken:
            torch.testing.assert_close(called(programs, path, given)[0][0], net(*given[0]))


def test_other_releases_training_and_weights_left_out(programs: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path, without = tmp_path / "old.djt", tmp_path / "without.djt"
    program = dynajit.export(nn.Linear(3, 2), (torch.randn(4, 3),))
    program.save(without, weights=False)
    program.facts["versions"]["torch"] = "1.0"
    program.save(path)
    trained = tmp_path / "trained.djt"
    dynajit.export(nn.Linear(3, 2), (torch.randn(4, 3),), gradients=True).save(trained)
    first, second, third = ran(programs / "call_program", "load", path, without, trained).splitlines()
    assert third.startswith(f"{trained}: it was exported with gradients=True, for training, which needs Python")
    assert "it was exported with torch 1.0" in first and "Export it anew here" in first
    assert second == f"{without}: it was saved without weights, and none are given"
