"""GuardSet: deduplication, taking back, order, shared prefixes; random programs against the Python twin."""

import random

import pytest
import torch

from dynajit import _C
from dynajit.guards.guard import Guard
from dynajit.guards.program import CallValues, GuardSet
from dynajit.guards.source import AttrSource, InstanceAttrSource, ItemSource, LocalSource, TypeSource
from dynajit.report.records import FrameLoc

X, Y = LocalSource(0, "x"), LocalSource(1, "y")


def test_equal_guards_are_one():
    guards = GuardSet()
    guards.add(Guard(X, "EQUALS", 1))
    guards.add(Guard(X, "EQUALS", 1, user_loc=FrameLoc("f.py", 3)))
    guards.add(Guard(X, "TENSOR", torch.ones(2)))
    guards.add(Guard(X, "TENSOR", torch.zeros(2)))
    assert len(guards) == 2
    guards.add(Guard(X, "EQUALS", True))
    guards.add(Guard(X, "EQUALS", 1.0))
    guards.add(Guard(Y, "EQUALS", 1))
    assert len(guards) == 5
    assert Guard(X, "EQUALS", 1) in guards
    assert [guard.kind for guard in guards][:2] == ["EQUALS", "TENSOR"]


def test_truncate():
    guards = GuardSet()
    for value in range(5):
        guards.add(Guard(X, "DICT_CONTAINS", value))
    copy = guards.copy()
    guards.truncate(2)
    assert len(guards) == 2
    assert len(copy) == 5
    guards.add(Guard(X, "DICT_CONTAINS", 4))
    assert [guard.params for guard in guards] == [(0,), (1,), (4,)]


def test_prefixes_are_shared():
    modules = InstanceAttrSource(X, "_modules")
    guards = GuardSet()
    for name in "abc":
        guards.add(Guard(ItemSource(modules, name), "TYPE", int))
        guards.add(Guard(ItemSource(modules, name), "EQUALS", 1))
    program = guards.build(1)
    assert len(program) == 1 + 3 + 6
    assert program.n_slots == 1 + 1 + 3


def test_modes_are_checked_first_and_aliasing_last():
    guards = GuardSet()
    guards.add(Guard(X, "NOT_ALIASED", Y))
    guards.add(Guard(X, "LEN", 1))
    guards.add(Guard(None, "GLOBAL_STATE"))
    program = guards.build(2)
    bad = []
    with torch.no_grad():
        assert program.check((bad, bad)) == 2
    assert program.check((bad, bad)) == 1
    bad.append(1)
    assert program.check((bad, bad)) == 0


def test_reason_names_the_users_line():
    guards = GuardSet()
    guards.add(Guard(X, "EQUALS", 1, user_loc=FrameLoc("model.py", 12)))
    assert guards.failure_reason(0, CallValues((2,))) == "L['x'] was 1, is 2  (model.py:12)"


def test_locals_beyond_the_frame_are_refused():
    guards = GuardSet()
    guards.add(Guard(Y, "LEN", 1))
    with pytest.raises(ValueError, match="is local 1, and there are 1"):
        guards.build(1)


def test_large_programs():
    guards = GuardSet()
    sources = [ItemSource(X, i) for i in range(1000)]
    for i, source in enumerate(sources):
        guards.add(Guard(source, "EQUALS", i))
    program = guards.build(1)
    values = list(range(1000))
    assert program.check((values,)) == -1
    values[777] = 0
    assert program.check((values,)) == 777


@pytest.mark.parametrize(
    ("instruction", "error"),
    [
        (("NO_SUCH", 0, 0, -1, None), "no guard instruction"),
        (("LAST_ACCESS", 0, 0, -1, None), "no guard instruction"),
        (("TYPE", 0, 5, -1, int), "does not fit"),
        (("TYPE", -1, 0, -1, int), "does not fit"),
        (("ATTR", 0, 0, 0, "a"), "does not fit"),
        (("ATTR", 0, 1, 1, "a"), "does not fit"),
        (("ATTR", 0, 1, 0, 3), "needs a str"),
        (("LEN", 0, 0, -1, "3"), "needs an int"),
        (("ID_WEAK", 0, 0, -1, 3), "needs a weak reference"),
        (("TENSOR", 0, 0, -1, 3), "needs a TensorSpec"),
        (("GLOBAL_STATE", 0, -1, -1, 3), "needs a GlobalState"),
        (("ASSUMED", 0, -1, -1, 3), "needs an Assumed"),
        (("NOT_ALIASED", 0, -1, -1, (0, 1)), "reads slot 1"),
        (("SAME_OBJECT", 0, 0, 4, None), "does not fit"),
        (("ITEM", 0, 1, 0, []), "unhashable"),
        ("TYPE", "is a tuple"),
        ((), "argument"),
    ],
)
def test_malformed_instructions_are_refused(instruction, error):
    with pytest.raises((TypeError, ValueError), match=error):
        _C.GuardProgram([instruction], 1)


def test_check_wants_all_locals():
    program = _C.GuardProgram([], 2)
    with pytest.raises(ValueError, match="2 locals"):
        program.check((1,))


class Node:
    """A tree to guard at random."""

    def __init__(self, rng, level):
        self.number = rng.choice([0, 1, True, 1.0, "one", None])
        self.children = [Node(rng, level - 1) for _ in range(rng.randrange(3))] if level else []
        self.table = {key: rng.random() < 0.5 for key in rng.sample(["a", "b", 1, 2], rng.randrange(4))}
        self.tensor = torch.zeros(rng.randrange(1, 3), rng.randrange(1, 3))


def random_guard(rng, node, source):
    """A guard on something in the tree, true now."""
    if node.children and rng.random() < 0.6:
        index = rng.randrange(len(node.children))
        children = InstanceAttrSource(source, "children")
        return random_guard(rng, node.children[index], ItemSource(children, index))
    choice = rng.randrange(8)
    if choice == 0:
        return Guard(source, "TYPE", Node)
    if choice == 1:
        return Guard(AttrSource(source, "number"), "EQUALS", node.number)
    if choice == 2:
        return Guard(InstanceAttrSource(source, "children"), "LEN", len(node.children))
    if choice == 3:
        return Guard(InstanceAttrSource(source, "table"), "DICT_KEYS", tuple(node.table))
    if choice == 4:
        return Guard(InstanceAttrSource(source, "tensor"), "TENSOR", node.tensor)
    if choice == 5:
        kind = "DICT_CONTAINS" if "a" in node.table else "DICT_MISSING"
        return Guard(InstanceAttrSource(source, "table"), kind, "a")
    if choice == 6:
        return Guard(TypeSource(source), "HAS_NO_TYPE_ATTR", "missing")
    return Guard(source, "HAS_NO_INSTANCE_ATTR", "missing")


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_against_the_twin(seed):
    rng = random.Random(seed)
    tree = Node(rng, 3)
    guards = GuardSet()
    for _ in range(rng.randrange(1, 30)):
        guards.add(random_guard(rng, tree, X))
    program = guards.build(1)
    assert program.check((tree,)) == guards.check_python((tree,)) == -1
    for other_seed in range(20):
        other = Node(random.Random(other_seed), 3)
        found = program.check((other,))
        assert found == guards.check_python((other,))
        if found >= 0:
            assert guards.failure_reason(found, CallValues((other,)))
