"""Sources: interned, frozen, and their three readings (emitted code, guard access, Python) agree."""

import copy
import gc
import types
from collections import OrderedDict, namedtuple

import pytest
import torch

from dynajit import _C
from dynajit.bytecode.assemble import Emitter
from dynajit.guards.guard import Guard
from dynajit.guards.program import CallValues, GuardSet
from dynajit.guards.source import (
    AttrSource,
    CallSource,
    CellContentsSource,
    CellSource,
    ClosureCellSource,
    ConstSource,
    DictKeySource,
    Environment,
    GlobalSource,
    InstanceAttrSource,
    ItemSource,
    LocalSource,
    TogetherSource,
    TypeAttrSource,
    TypeSource,
    Unreachable,
)

GLOBAL_LIST = [1, 2, 3]
Pair = namedtuple("Pair", "left right")


class Thing:
    constant = "class"

    def __init__(self):
        self.items = {"a": [10, 20], 3: "three", True: "yes"}
        self.pair = Pair(1, 2)
        self.ordered = OrderedDict(x=1, y=2)
        self.ordered.move_to_end("x")


def closure_function():
    inside = "captured"
    return lambda: inside


X = LocalSource(0, "x")
C = CellSource(1, "c")
FUNCTION = closure_function()

REACHABLE = {
    "local": (X, None),
    "cell": (C, None),
    "cell contents": (CellContentsSource(C), None),
    "attribute": (AttrSource(X, "constant"), None),
    "instance attribute": (InstanceAttrSource(X, "items"), None),
    "class attribute": (InstanceAttrSource(X, "constant"), None),
    "dict item": (ItemSource(InstanceAttrSource(X, "items"), "a"), None),
    "int key": (ItemSource(InstanceAttrSource(X, "items"), 3), None),
    "list item": (ItemSource(ItemSource(InstanceAttrSource(X, "items"), "a"), 1), None),
    "raw item": (ItemSource(InstanceAttrSource(X, "items"), "a", raw=True), None),
    "named tuple item": (ItemSource(InstanceAttrSource(X, "pair"), -1), None),
    "type": (TypeSource(X), None),
    "type attribute": (TypeAttrSource(TypeSource(X), "constant"), None),
    "dict key": (DictKeySource(InstanceAttrSource(X, "ordered"), 1), None),
    "global": (GlobalSource("GLOBAL_LIST"), None),
    "builtin": (GlobalSource("len"), None),
    "constant": (ConstSource(Thing, "Thing"), None),
    "call": (CallSource(ConstSource(Thing, "Thing"), type, "type({})"), None),
    "closure cell": (ClosureCellSource(ConstSource(FUNCTION, "f"), 0), None),
    "closure contents": (CellContentsSource(ClosureCellSource(ConstSource(FUNCTION, "f"), 0)), None),
}


def read(source, local_values):
    base = None if source.base is None else read(source.base, local_values)
    return source.read(base, Environment(local_values, globals()))


def emitted(source):
    """A function of (x, c) that returns what the source's code pushes."""
    emitter = Emitter()

    def load(inner):
        inner.emit(emitter, load)

    load(source)
    emitter.return_value()
    code = emitter.assemble("fetch", ["x", "c"], {"c"}, read.__code__)
    return types.FunctionType(code, globals())


@pytest.mark.parametrize("name", REACHABLE)
def test_all_readings_agree(name):
    source = REACHABLE[name][0]
    local_values = (Thing(), types.CellType("content"))
    expected = read(source, local_values)
    assert emitted(source)(*local_values) is expected
    guards = GuardSet()
    guards.add(Guard(source, "ID", expected))
    program = guards.build(2, globals())
    assert program.check(local_values) == guards.check_python(local_values, globals()) == -1
    assert program.check((object(), 5)) == guards.check_python((object(), 5), globals())


UNREACHABLE = {
    "attribute": AttrSource(X, "missing"),
    "instance attribute": InstanceAttrSource(X, "missing"),
    "key": ItemSource(InstanceAttrSource(X, "items"), "b"),
    "index": ItemSource(InstanceAttrSource(X, "pair"), 2),
    "item of what has none": ItemSource(X, 0),
    "dict key": DictKeySource(InstanceAttrSource(X, "ordered"), 2),
    "dict key of what is no dict": DictKeySource(X, 0),
    "type attribute": TypeAttrSource(TypeSource(X), "missing"),
    "type attribute of what is no type": TypeAttrSource(X, "constant"),
    "global": GlobalSource("no_such_name"),
    "cell contents": CellContentsSource(C),
    "cell contents of what is no cell": CellContentsSource(X),
    "closure": ClosureCellSource(X, 0),
    "closure index": ClosureCellSource(ConstSource(FUNCTION, "f"), 1),
}


@pytest.mark.parametrize("name", UNREACHABLE)
def test_unreachable_is_a_failed_guard(name):
    source = UNREACHABLE[name]
    local_values = (Thing(), types.CellType())
    with pytest.raises(Unreachable):
        read(source, local_values)
    guards = GuardSet()
    guards.add(Guard(X, "TYPE", Thing))
    guards.add(Guard(source, "ID", None))
    assert guards.build(2, globals()).check(local_values) == guards.check_python(local_values, globals()) == 1
    assert "can't be reached" in guards.failure_reason(1, CallValues(local_values, globals()))


def test_an_error_in_user_code_is_a_failed_guard():
    class Bad:
        @property
        def attribute(self):
            raise ZeroDivisionError

    guards = GuardSet()
    guards.add(Guard(AttrSource(X, "attribute"), "ID", 1))
    assert guards.build(1).check((Bad(),)) == guards.check_python((Bad(),)) == 0


def test_interned():
    assert LocalSource(0, "x") is X
    assert AttrSource(X, "a") is AttrSource(X, "a")
    assert AttrSource(X, "a") is not InstanceAttrSource(X, "a")
    different = [ItemSource(X, key) for key in (1, True, 1.0, "1", 0.0, -0.0, (1,), (True,), None)]
    assert len(set(different)) == len(different)
    assert ItemSource(X, (1, "a")) is ItemSource(X, (1, "a"))
    one, other = object(), object()
    assert ConstSource(one, "o") is not ConstSource(other, "o")
    assert ItemSource(X, one) is not ItemSource(X, other)


def test_a_class_that_is_gone():
    made = type("Made", (), {"constant": 5})
    source = TypeAttrSource(ConstSource(made, "Made"), "constant")
    guards = GuardSet()
    guards.add(Guard(source, "EQUALS", 5))
    program = guards.build(1)
    for _ in range(4):  # from memory, too
        assert program.check((None,)) == guards.check_python((None,)) == -1
    made = None
    gc.collect()
    assert program.check((None,)) == guards.check_python((None,)) == 0
    again = type("Made", (), {"constant": 5})  # perhaps where the other was
    assert ConstSource(again, "Made") is not source.base
    assert program.check((None,)) == 0


def test_frozen():
    with pytest.raises(AttributeError, match="frozen"):
        X.index = 5
    with pytest.raises(TypeError, match="one process"):
        copy.copy(X)


def test_names():
    weight = AttrSource(ItemSource(AttrSource(X, "layers"), 0), "weight")
    assert weight.name() == "L['x'].layers[0].weight"
    assert CellContentsSource(C).name() == "L['c']"
    assert GlobalSource("g").name() == "G['g']"
    assert TypeSource(X).name() == "type(L['x'])"
    assert weight.root() is X


def test_raw_item_passes_over_getitem():
    class Own(dict):
        def __getitem__(self, key):
            return "own"

    fetch = emitted(ItemSource(X, "a", raw=True))
    assert fetch(Own(a=1), None) == 1


def test_const_source_keeps_its_object():
    source = ConstSource([1, 2], "list")
    assert source.obj == [1, 2]
    assert emitted(source)(None, None) is source.obj


def test_tensor_attributes():
    x = torch.ones(2, requires_grad=True)
    guards = GuardSet()
    guards.add(Guard(AttrSource(X, "grad"), "ID", None))
    program = guards.build(1)
    assert program.check((x,)) == -1
    x.sum().backward()
    assert program.check((x,)) == 0
    assert isinstance(program, _C.GuardProgram)


def test_a_function_of_what_several_sources_lead_to():
    """By the program and by its Python twin, for the objects at hand at each check."""
    item = ItemSource(X, 0)
    together = TogetherSource([item, LocalSource(1, "y"), ConstSource(5, "five")])
    assert together is TogetherSource([item, LocalSource(1, "y"), ConstSource(5, "five")])
    guards = GuardSet()
    guards.add(Guard(CallSource(together, sum, "sum({})"), "EQUALS", 8))
    program = guards.build(2)
    for locals_, holds in (
        (([1], 2), True),
        (([2], 1), True),
        (([2], 2), False),
        (([], 2), False),
        ((["a"], 2), False),
    ):
        assert program.check(locals_) == guards.check_python(locals_) == (-1 if holds else 0)


def test_names_of_what_is_made_of_numbers_that_are_used_twice() -> None:
    def made(first: LocalSource, steps: int) -> CallSource | LocalSource:
        source: CallSource | LocalSource = first
        for _ in range(steps):
            source = CallSource(TogetherSource([source, ItemSource(source, 0)]), sum, "sum({0}, {1})")
        return source

    x, y = LocalSource(0, "x"), LocalSource(1, "y")
    assert made(x, 1).name() == "sum(L['x'], L['x'][0])"
    far = made(x, 60)
    assert len(far.name()) < 1000
    assert made(x, 60) is far and made(y, 60) is not far
    assert len({made(each, steps).name() for each in (x, y) for steps in range(60)}) == 120
