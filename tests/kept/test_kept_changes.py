"""A kept variant is taken where nothing has changed, and only there: some forty kinds of change are noticed.

A process is played by importing a program's files anew, with nothing compiled; what differs between real processes
(addresses, the order of sets) is in `test_kept_processes.py`.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit import torch_compat
from dynajit.kept import key
from dynajit.runtime import toolchain

PROGRAM = """\
import os
import torch
import kept_library as library
from torch import nn
from torch.nn import functional as F

SCALE = 2.0
TABLE = {"a": 1.0, "b": 2.0}
LAYERS = ("first", "second")


def helper(x, by=1.5, *, more=0.5):
    return x * by + more


def outer(factor):
    def inner(x):
        return x * factor
    return inner


closure = outer(2.0)


class Config:
    width = 4
    flag = True
    offset = 1.0


class Base(nn.Module):
    gain = 3.0

    def scaled(self, x):
        return x * self.gain

    @property
    def bias(self):
        return 0.25

    @staticmethod
    def shift(x):
        return x + 0.125

    @classmethod
    def named(cls, x):
        return x * len(cls.__name__)


class Model(Base):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.dropout = nn.Dropout(0.5)
        self.mode = "relu"
        self.steps = [1.0, 2.0]
        self.config = Config()
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x):
        y = self.named(self.shift(self.scaled(self.dropout(self.linear(x))) + self.bias))
        y = closure(helper(self.norm(y))) * SCALE + TABLE["a"] + len(LAYERS) + library.OFFSET
        y = library.act(y) if self.config.flag else y
        if self.mode == "relu":
            y = F.silu(y)
        for step in self.steps:
            y = y + step * self.config.offset
        if os.environ.get("KEPT_TEST"):
            y = y * 3
        return library.Table().look(y) * library.decorated(y) + self.table


def unused(x):
    return x + 1


def make():
    return Model().eval(), torch.linspace(-1, 1, 8).reshape(2, 4)
"""
LIBRARY = """\
import enum
import functools
import torch

OFFSET = 0.75


class Kind(enum.Enum):
    SMALL = 1
    LARGE = 2


CHOSEN = Kind.SMALL


def twice(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args) + fn(*args)
    return wrapper


@twice
def decorated(x):
    return x.tanh() + (CHOSEN.value if CHOSEN is Kind.SMALL else 10)


def act(x):
    return torch.where(x > 0, x, x * 0.1)


class Table:
    factor = 1.25

    def __init__(self):
        self.rate = self.factor * 2

    def look(self, x):
        return x * self.rate + torch.sin(x)
"""
NAMES = {"program": "kept_program", "library": "kept_library"}


class World:
    """A folder with the program and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts = {"program": PROGRAM, "library": LIBRARY}

    def process(self, change: Callable[[Any, Any], Any] | None = None) -> dict[str, int]:
        """What a process does at its first call: `counters["kept"]`. `change(module, made)` comes before the call, and
        may give a context for it. The result is compared with eager's."""
        for name, text in self.texts.items():
            (self.folder / f"{NAMES[name]}.py").write_text(text, encoding="utf-8")
        forget()
        with imported(self.folder) as module, contextlib.ExitStack() as stack:
            stack.enter_context(dynajit.config.patch(cache_dir=str(self.folder / "cache"), keep_variants=True))
            stack.enter_context(torch.no_grad())
            made = list(module.make())
            found = change(module, made) if change is not None else None
            if found is not None:
                stack.enter_context(found)
            expected = called(*made)
            actual = called(dynajit.compile(made[0]), made[1])
            torch.testing.assert_close(actual, expected)
        counts = dict(dynajit.counters["kept"])
        counts["frames"] = dynajit.counters["frames"]["total"]
        return counts

    def edited(self, name: str, before: str, after: str) -> None:
        """The text of one file with a change."""
        assert self.texts[name].count(before) == 1, before
        self.texts[name] = self.texts[name].replace(before, after)


def called(fn: Any, x: Any) -> Any:
    torch.manual_seed(1)
    return fn(x)


def forget() -> None:
    dynajit.reset()
    dynajit.counters.clear()
    for name in NAMES.values():
        sys.modules.pop(name, None)


@contextlib.contextmanager
def imported(folder: Path) -> Iterator[Any]:
    former, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(NAMES["program"])
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = former


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose cache has the unchanged program's variant."""
    folder = tmp_path_factory.mktemp("world")
    assert World(folder).process() == {"missed": 1, "written": 1, "frames": 1}
    forget()
    return folder


@pytest.fixture
def world(kept: Path) -> Iterator[World]:
    """A copy of the cache, beside the same files: where a file lies is part of its code."""
    spare = kept / "spare"
    shutil.copytree(kept / "cache", spare)
    yield World(kept)
    forget()
    shutil.rmtree(kept / "cache")
    spare.rename(kept / "cache")


def test_what_has_not_changed_is_not_traced(world: World) -> None:
    assert world.process() == {"loaded": 1, "frames": 0}
    assert world.process() == {"loaded": 1, "frames": 0}


def test_what_was_not_read_may_change(world: World) -> None:
    world.edited("program", "return x + 1\n", "return x + 2\n")
    assert world.process() == {"loaded": 1, "frames": 0}


EDITS = {
    "the compiled function": ("program", "y = y + step *", "y = y - step *"),
    "an inlined function": ("program", "return x * by + more", "return x * by - more"),
    "a line's place": ("program", "SCALE = 2.0", "SCALE = 2.0\n"),
    "a global number": ("program", "SCALE = 2.0", "SCALE = 2.5"),
    "a global dictionary": ("program", '{"a": 1.0,', '{"a": 1.25,'),
    "a global tuple": ("program", '("first", "second")', '("first", "second", "third")'),
    "a default": ("program", "by=1.5", "by=1.75"),
    "a keyword's default": ("program", "more=0.5", "more=0.75"),
    "what a closure holds": ("program", "outer(2.0)", "outer(3.0)"),
    "a function in a closure": ("program", "return x * factor", "return x / factor"),
    "a class's attribute": ("program", "gain = 3.0", "gain = 3.5"),
    "another class's attribute": ("program", "flag = True", "flag = False"),
    "a number of a class": ("program", "offset = 1.0", "offset = 1.5"),
    "a base's method": ("program", "return x * self.gain", "return x + self.gain"),
    "a property": ("program", "return 0.25", "return 0.5"),
    "a static method": ("program", "return x + 0.125", "return x - 0.125"),
    "a class method": ("program", "len(cls.__name__)", "len(cls.__qualname__) * 2"),
    "a class's name": ("program", "class Model(Base):", "class Models(Base):"),
    "another base": ("program", "class Model(Base):", "class Model(type('Mine', (Base,), {})):"),
    "a new method that hides a base's": (
        "program",
        "    def forward(self, x):",
        "    def scaled(self, x):\n        return x * 5\n\n    def forward(self, x):",
    ),
    "an attribute of the module": ("program", 'self.mode = "relu"', 'self.mode = "none"'),
    "a list of the module": ("program", "[1.0, 2.0]", "[1.0, 2.0, 3.0]"),
    "a layer's kind": ("program", "nn.LayerNorm(4)", "nn.RMSNorm(4)"),
    "a layer's setting": ("program", "nn.LayerNorm(4)", "nn.LayerNorm(4, eps=0.5)"),
    "a parameter that is missing": ("program", "nn.Linear(4, 4)", "nn.Linear(4, 4, bias=False)"),
    "the mode": ("program", "Model().eval()", "Model().train()"),
    "a buffer's dtype": ("program", "torch.arange(4.0)", "torch.arange(4)"),
    "an argument's shape": ("program", "reshape(2, 4)", "reshape(1, 2, 4)"),
    "a library's constant": ("library", "OFFSET = 0.75", "OFFSET = 0.5"),
    "a library's function": ("library", "x * 0.1", "x * 0.2"),
    "a library's class": ("library", "factor = 1.25", "factor = 1.5"),
    "a library's constructor": ("library", "self.factor * 2", "self.factor * 3"),
    "a decorator": ("library", "fn(*args) + fn(*args)", "fn(*args) * fn(*args)"),
    "a decorated function": ("library", "x.tanh()", "x.cos()"),
    "an enumeration's member": ("library", "CHOSEN = Kind.SMALL", "CHOSEN = Kind.LARGE"),
    "a member's value": ("library", "SMALL = 1", "SMALL = 4"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_file_is_noticed(world: World, what: str) -> None:
    if what == "a class's name":
        world.edited("program", "return Model()", "return Models()")
    world.edited(*EDITS[what])
    counts = world.process()
    assert counts["missed"] == 1 and counts["frames"] >= 1 and "loaded" not in counts


def _hook(module: Any, made: list[Any]) -> None:
    made[0].linear.register_forward_hook(lambda self, args, result: result * 2)


def _own_forward(module: Any, made: list[Any]) -> None:
    made[0].norm.forward = lambda x: x * 2


def _frozen(module: Any, made: list[Any]) -> None:
    made[0].linear.weight.requires_grad_(False)


def _another_dtype(module: Any, made: list[Any]) -> None:
    made[0].double()
    made[1] = made[1].double()


def _strided(module: Any, made: list[Any]) -> None:
    made[1] = made[1].t().contiguous().t()


def _set_on_class(module: Any, made: list[Any]) -> None:
    module.Model.gain = 7.0


def _set_on_library(module: Any, made: list[Any]) -> None:
    sys.modules["kept_library"].act = lambda x: x * 3  # type: ignore[attr-defined]


def _another_code(module: Any, made: list[Any]) -> None:
    module.helper.__code__ = (lambda x, by=0.0, *, more=0.0: x - by).__code__


def _another_default(module: Any, made: list[Any]) -> None:
    module.helper.__defaults__ = (9.0,)


def _marked(module: Any, made: list[Any]) -> None:
    dynajit.maybe_mark_dynamic(made[1], 0)


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    former = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, former)


def _silu(x: Any) -> Any:
    return x * 0.5


def _linear(self: Any, x: Any) -> Any:
    return x @ self.weight.t() * 2


RUNTIME: dict[str, Callable[[Any, Any], Any]] = {
    "a hook": _hook,
    "a forward of the instance's own": _own_forward,
    "a parameter without gradient": _frozen,
    "another dtype": _another_dtype,
    "other strides": _strided,
    "an attribute that a class was given": _set_on_class,
    "a function that a module was given": _set_on_library,
    "a function's code": _another_code,
    "a function's defaults": _another_default,
    "a mark on a dimension": _marked,
    "a function of torch's that was replaced": lambda *_: _attribute(nn.functional, "silu", _silu),
    "a method of torch's that was replaced": lambda *_: _attribute(nn.Linear, "forward", _linear),
    "autocast": lambda *_: torch.autocast("cpu", torch.bfloat16),
    "inference mode": lambda *_: torch.inference_mode(),
}


@pytest.mark.parametrize("what", RUNTIME)
def test_a_change_while_the_program_runs_is_noticed(world: World, what: str) -> None:
    counts = world.process(RUNTIME[what])
    assert counts["missed"] == 1 and counts["frames"] >= 1 and "loaded" not in counts


def _another_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch_compat, "exact_release", lambda: ("9.9.9", "abc"))
    patch.setattr(key, "_installed", key._installed.__wrapped__)


def _another_variable(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("TORCH_KEPT_TEST", "1")
    patch.setattr(key, "_installed", key._installed.__wrapped__)


def _another_package(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(key, "_installed", lambda: ("others",))


def _another_processor(patch: pytest.MonkeyPatch) -> None:
    chain = toolchain.find()
    other = toolchain.dataclasses.replace(chain, fingerprint=chain.fingerprint[::-1])
    patch.setattr(toolchain, "find", lambda: other)


ELSEWHERE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "another Python": lambda patch: patch.setattr(sys, "version", "3.99"),
    "another torch": _another_release,
    "another dynajit": _another_package,
    "another processor or compiler": _another_processor,
    "a variable that torch reads": _another_variable,
    "a variable that the program reads": lambda patch: patch.setenv("KEPT_TEST", "1"),
    "a setting": lambda patch: patch.setattr(dynajit.config, "capture_scalar_outputs", True),
    "vector instructions": lambda patch: patch.setattr(dynajit.config, "simd", "none"),
    "another format": lambda patch: patch.setattr(key, "FORMAT", key.FORMAT + 1),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_another_installation_is_noticed(world: World, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ELSEWHERE[what](monkeypatch)
    counts = world.process()
    assert counts["missed"] == 1 and counts["frames"] >= 1 and "loaded" not in counts


def test_the_package_is_known_by_its_contents(tmp_path: Path) -> None:
    """A cache that machines share serves all that have the same code: when and where it was installed is their own."""
    digests = []
    for place, text in (("one", "a = 1"), ("other", "a = 1"), ("edited", "a = 2")):
        inner = tmp_path / place / "inner"
        inner.mkdir(parents=True)
        (inner / "code.py").write_text(text)
        os.utime(inner / "code.py", (len(digests), len(digests)))
        digests.append(key.contents_of(tmp_path / place))
    (tmp_path / "other" / "inner" / "code.py").rename(tmp_path / "other" / "moved.py")
    digests.append(key.contents_of(tmp_path / "other"))
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_variants_of_several_states_are_kept(world: World) -> None:
    def larger(module: Any, made: list[Any]) -> None:
        made[0].steps.append(4.0)

    assert world.process(larger) == {"missed": 1, "written": 1, "frames": 1}
    assert world.process(larger) == {"loaded": 1, "frames": 0}
    assert world.process() == {"loaded": 1, "frames": 0}


def test_other_weights_are_those_of_the_process(world: World) -> None:
    def others(module: Any, made: list[Any]) -> None:
        for parameter in made[0].parameters():
            parameter.add_(0.5)

    def tied(module: Any, made: list[Any]) -> None:
        made[0].norm.bias = made[0].linear.bias

    assert world.process(others) == {"loaded": 1, "frames": 0}
    assert world.process(tied) == {"loaded": 1, "frames": 0}


def listed(x: Any, numbers: set[int]) -> Any:
    return x * 2, list(numbers)


def test_the_order_of_a_set_of_numbers_is_a_condition(tmp_path: Path) -> None:
    """It follows from what was added first."""
    with dynajit.config.patch(cache_dir=str(tmp_path), keep_variants=True):
        for numbers in ({8, 0}, {0, 8}, {8, 0}):
            dynajit.reset()
            x, expected = torch.ones(2), list(numbers)
            assert dynajit.compile(listed)(x, numbers)[1] == expected
    assert dynajit.counters["kept"]["loaded"] == 1


class Holder:
    def __init__(self) -> None:
        self.__dict__["number"] = 2.0


def reads_number(x: Any, holder: Any) -> Any:
    return x * holder.number


def test_what_became_a_property_is_not_asked_for_the_comparison(tmp_path: Path) -> None:
    """An attribute is read when it is known what reading it does."""
    asked: list[int] = []
    with dynajit.config.patch(cache_dir=str(tmp_path), keep_variants=True):
        dynajit.compile(reads_number)(torch.ones(2), Holder())
        dynajit.reset()
        Holder.number = property(lambda self: asked.append(1) or 3.0)  # type: ignore[attr-defined, func-returns-value]
        try:
            result = dynajit.compile(reads_number)(torch.ones(2), Holder())
        finally:
            del Holder.number  # type: ignore[attr-defined]
    assert asked == [1] and result.tolist() == [3.0, 3.0]


LOGGER = logging.getLogger("dynajit_kept")


class Collects(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler of the program's: what it keeps may be anything."""


def logs(x: Any, handler: Any) -> Any:
    LOGGER.warning("called")
    return x * 2, handler.level


@pytest.mark.parametrize(("kind", "loaded"), [(logging.StreamHandler, 1), (Collects, 0)])
def test_who_is_told_of_records_is_found_anew(tmp_path: Path, kind: Any, loaded: int) -> None:
    """Handlers have other addresses in each process. Those that print are as good as others; not where the program
    looks at one."""
    unused = logging.NullHandler()
    with dynajit.config.patch(cache_dir=str(tmp_path), keep_variants=True), open(tmp_path / "log", "w") as file:
        for _ in range(2):
            dynajit.reset()
            LOGGER.handlers[:], LOGGER.propagate = [kind(file)], False
            assert dynajit.compile(logs)(torch.ones(2), unused)[0].tolist() == [2.0, 2.0]
        assert dynajit.counters["kept"]["loaded"] == loaded
        dynajit.reset()
        dynajit.counters.clear()
        LOGGER.handlers[:] = [unused]
        assert dynajit.compile(logs)(torch.ones(2), unused)[1] == 0
        assert dynajit.counters["kept"]["loaded"] == 0
    assert (tmp_path / "log").read_text() == "called\n" * 2


def ordered(x: Any, table: Any) -> Any:
    table["b"].append(x)
    table["a"].append(2)
    return x + len(table)


def test_a_default_dict_gets_no_item_from_the_comparison(tmp_path: Path) -> None:
    full, empty = collections.defaultdict(list, {"a": [1]}), collections.defaultdict(list)
    with dynajit.config.patch(cache_dir=str(tmp_path), keep_variants=True):
        dynajit.compile(ordered)(torch.ones(2), full)
        dynajit.reset()
        dynajit.compile(ordered)(torch.ones(2), empty)
    assert list(full) == ["a", "b"] and list(empty) == ["b", "a"]


@pytest.mark.parametrize("size", [0, 100, 2000])
def test_a_file_that_was_cut_short_is_none(world: World, size: int) -> None:
    for file in (world.folder / "cache").rglob("*.variant"):
        file.write_bytes(file.read_bytes()[:size])
    assert world.process() == {"missed": 1, "written": 1, "frames": 1}
    assert world.process() == {"loaded": 1, "frames": 0}


def test_a_file_of_other_contents_is_none(world: World) -> None:
    """Also where its checksum holds: what is not as it is written here is not believed."""
    for contents in (b"[]", b"{}", b'{"sources": [["Source", null]]}', b'{"sources": 3}', b"\xff"):
        for file in (world.folder / "cache").rglob("*.variant"):
            file.write_bytes(contents)
            file.with_name(file.name + ".sum").write_text(dynajit.runtime.store._digest(file))
        counts = world.process()
        assert counts["missed"] == 1 and counts["frames"] == 1


def test_nothing_is_kept_unless_asked_for(tmp_path: Path) -> None:
    with dynajit.config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        dynajit.compile(nn.Linear(2, 2))(torch.ones(2))
    assert not [*tmp_path.rglob("*.variant")] and not dynajit.counters["kept"]
