"""Hundreds of changed files: each is refused with `ArtifactError`, or gives what it gave before; none ends the process.

Changes that keep the checksums right, as whoever writes a file can make them, are refused by the checks of what the
file says.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dynajit
from dynajit.constants import NotData
from dynajit.exc import ArtifactError
from dynajit.exported import inspect_file
from dynajit.runtime import container, plan_data
from dynajit.runtime.container import Container


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor, flag: bool) -> dict[str, Any]:
        y = self.inner(x).softmax(-1)
        return {"y": y, "parts": (y.sum(0), y.shape[1]), "rows": y.reshape(-1) * x.shape[0]}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "good.djt"
    dynajit.export(Net(), (torch.randn(3, 6), True), dynamic_shapes=({0: Dim("rows", max=50)}, None)).save(path)
    return path


X = torch.linspace(-1, 1, 30).view(5, 6)


def outcome(path: Path, expected: dict[str, Any]) -> str:
    """ "refused" or "same"; anything else is an error."""
    try:
        found = dynajit.load(path)(X, True)
    except ArtifactError as error:
        assert str(path) in str(error) or "expected" in str(error)
        return "refused"
    torch.testing.assert_close(found, expected)
    return "same"


def test_changed_bytes(good: Path, tmp_path: Path) -> None:
    old, choose, path = good.read_bytes(), random.Random(0), tmp_path / "changed.djt"
    expected = dynajit.load(good)(X, True)
    counts = {"refused": 0, "same": 0}
    for number in range(300):
        new = bytearray(old)
        for _ in range(choose.randint(1, 4)):
            at = choose.randrange(len(new) if number % 2 else 4000)
            new[at] = choose.randrange(256)
        if number % 5 == 0:
            del new[choose.randrange(len(new)) :]
        elif number % 7 == 0:
            at = choose.randrange(len(new))
            new[at:at] = bytes(choose.randrange(1, 9))
        path.write_bytes(new)
        counts[outcome(path, expected)] += 1
    assert counts["refused"] > 250


def rewritten(good: Path, path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], object]) -> Path:
    """The file with other facts and sections, all checksums right."""
    file = Container(good, "program")
    facts, sections = json.loads(json.dumps(file.facts)), {name: file.read(name) for name in file.sections}
    change(facts, sections)
    container.write(path, "program", facts, list(sections.items()))
    return path


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to every value in a tree of JSON."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] * bool(path) + [place for key, item in items for place in places(item, (*path, key))]


def replace(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree[key]
    if value is KeyError:
        del tree[path[-1]]
    else:
        tree[path[-1]] = value


VALUES: list[Any] = [None, -1, 10**30, 0.5, "x", "sin", [], ["tuple"], {}, [None], ["ref", "x"], True, KeyError]


def test_changed_facts_with_right_checksums(good: Path, tmp_path: Path) -> None:
    """What the header says of inputs, results and weights is checked beyond its checksum."""
    facts, choose = Container(good, "program").facts, random.Random(1)
    known = [place for place in places(facts) if place[0] not in ("targets", "threads", "name")]
    for _ in range(300):
        place, value = choose.choice(known), choose.choice(VALUES)
        path = rewritten(good, tmp_path / "changed.djt", lambda facts, _: replace(facts, place, value))  # noqa: B023
        for act in (lambda: dynajit.load(path)(X, True), lambda: inspect_file(path)):  # noqa: B023
            try:
                act()
            except ArtifactError:
                continue


def test_changed_programs_with_gradients(tmp_path: Path) -> None:
    """What their header says of a call, and the data of both halves, with right checksums."""
    good, choose = tmp_path / "trains.djt", random.Random(2)
    dynajit.export(Net(), (torch.randn(5, 6), True), gradients=True).save(good)
    file, refused = Container(good, "program"), 0
    for number in range(300):
        facts, plan = json.loads(json.dumps(file.facts)), json.loads(file.read("plan.json"))
        changed = facts if number % 2 else plan
        known = [place for place in places(changed) if place[0] not in ("targets", "threads", "name")]
        replace(changed, choose.choice(known), choose.choice(VALUES))
        sections = {name: file.read(name) for name in file.sections} | {"plan.json": json.dumps(plan).encode()}
        container.write(tmp_path / "changed.djt", "program", facts, list(sections.items()))
        try:
            loaded = dynajit.load(tmp_path / "changed.djt")
            if changed is facts:  # else kernels may be given other memory
                loaded(X, True)
        except ArtifactError:
            refused += 1
    assert refused > 150


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f, s: f["versions"].update(torch="1.13"), "exported with torch 1.13; this is torch 2"),
        (lambda f, s: f["versions"].update(machine="pdp11"), "exported with machine pdp11"),
        (lambda f, s: s.pop("plan.json"), "no section 'plan.json'; it has"),
        (lambda f, s: s.update({"plan.json": b"[]"}), "not as dynajit writes it"),
        (lambda f, s: s.update(weights=b"12"), "not in the safetensors format"),
        (lambda f, s: s.update(weights=(5).to_bytes(8, "little") + b"[" * 5), "not in the safetensors format"),
        (lambda f, s: s.pop("weights"), "saved without weights: give the 2"),
        (lambda f, s: s.update({"kernels/0.auto.so": b"no library", "kernels/0.c": b"no C"}), "can't be compiled anew"),
        (lambda f, s: f["weights"].update(more=["float32", [3], [1]]), "the weight more is missing"),
    ],
)
def test_what_is_missing_or_foreign_is_named(good: Path, tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(ArtifactError, match=says):
        dynajit.load(rewritten(good, tmp_path / "changed.djt", change))


def test_kernels_for_another_processor_are_compiled_anew(good: Path, tmp_path: Path) -> None:
    def foreign(facts: dict[str, Any], sections: dict[str, bytes]) -> None:
        facts["targets"][0][1].append("avx2048")
        sections["kernels/0.auto.so"] = b"machine code of another machine"

    expected = dynajit.load(good)(X, True)
    path = rewritten(good, tmp_path / "foreign.djt", foreign)
    assert outcome(path, expected) == "same"
    with (
        dynajit.config.patch(compiler="/nowhere/cc"),
        pytest.raises(ArtifactError, match="use avx2048"),
    ):
        dynajit.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "().__class__", "s0.real", "[x for x in s0]", "lambda: 0", "s0 + 'x'", "open(s0)",
        "math.__name__", "small(1, *s0)", "(s0 := 3)", "1 +", "math.floor(s0).x", "(1).bit_length()",
    ],
)  # fmt: skip
def test_text_that_is_no_arithmetic_is_not_evaluated(text: str) -> None:
    with pytest.raises(NotData, match="the text of a size"):
        plan_data.check_arithmetic(text)
    plan_data.check_arithmetic("(s0 // 2 + 1) * min(s1, 3) if s0 > 1 else math.floor(float(s1))")


@pytest.mark.parametrize(
    "name", ["os::system.x", "os:system", "dynajit.api:compile.x", "dynajit.nowhere:x", "aten::nothing.default", "x", 3]
)
def test_only_known_operators_are_called(name: Any) -> None:
    with pytest.raises(NotData):
        plan_data.target_named(name)


def test_a_file_is_shown_without_running_it(good: Path) -> None:
    text = inspect_file(good)
    for part in ("program Net", "x: float32[", "rows, 2 to 50", "dict(y=tensor, parts=tuple(tensor, 4)", "28 numbers"):
        assert part in text, text
    with pytest.raises(ArtifactError, match="there is no such file"):
        inspect_file(good.with_name("nothing.djt"))
