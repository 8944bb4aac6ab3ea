"""Each guard kind: the C leaf and its Python twin give the same answer; the words say what differs."""

import collections
import enum
import gc
import re
import types
import weakref

import numpy as np
import pytest
import torch

from dynajit import _C
from dynajit.guards.assumed import Facts
from dynajit.guards.guard import Guard, kinds
from dynajit.guards.program import CallValues, GuardSet
from dynajit.guards.source import ConstSource, LocalSource

X, Y, Z = (LocalSource(i, name) for i, name in enumerate("xyz"))
NAN = float("nan")


class Text(str):
    pass


class Sub(list):
    def __len__(self):
        return 99


class Color(enum.Enum):
    RED = 1


class Angry:
    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = object.__hash__

    def __bool__(self):
        raise RuntimeError("asked")


class WithDict:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Inline:
    def __init__(self):
        self.a = 1


def coded() -> int:
    return 1


def recoded() -> int:
    return 2


HOOKED = torch.nn.ReLU()
HOOKED.register_forward_hook(lambda *args: None)
ORDERED = collections.OrderedDict(a=1, b=2)
REORDERED = collections.OrderedDict(a=1, b=2)
REORDERED.move_to_end("a")

LEAF = torch.ones(2, requires_grad=True)
with torch.no_grad():
    SILENT_VIEW = LEAF[:]  # it needs gradients, as its base does, and doesn't say so itself
with torch.inference_mode():
    INFERENCE = torch.ones(2)
VALUES = [
    None, True, False, 0, 1, 2, -1, 2**70, 2**70 + 1, 0.0, -0.0, 1.0, NAN, -NAN, float("inf"), 1j, complex(0.0, -0.0),
    "", "a", "b", "ab", "ä", "日", Text("a"), b"", b"a", (), (1,), (True,), (1.0,), (1, (2, NAN)), [], [1], [1, 2],
    Sub([1]), {}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {1: 2}, {True: 2}, {1.0: 2}, ORDERED, REORDERED,
    collections.defaultdict(int, a=1), set(), {1}, {True}, {1, 2}, frozenset({1, 2}), frozenset(), slice(1, 2),
    slice(True, 2), slice(None), range(3), int, list, Sub, Color.RED, Angry(), Ellipsis, len, types.CellType(),
    types.CellType(1), types.CellType(None), WithDict(), WithDict(a=1), Inline(), torch.ones(2), torch.ones(3),
    torch.ones(2).double(), LEAF, LEAF[:], LEAF * 1, LEAF.detach(), LEAF.detach()[:], SILENT_VIEW, SILENT_VIEW[None],
    torch.nn.Parameter(LEAF.detach()), INFERENCE, torch.ones(4)[::2], torch.ones(2).to(torch.complex64),
    torch.ones(2).to(torch.complex64).conj(), torch.ones(2).to(torch.complex64).conj().imag,
    torch.nn.ReLU(), HOOKED, coded, torch.float32, torch.device("cpu"), torch.Size([1]), Angry,
]  # fmt: skip

GUARDS = [
    *[("TYPE", kind) for kind in (int, bool, str, Text, list, Sub, type(None), type, Angry, torch.Tensor)],
    *[("ID", value) for value in VALUES],
    *[("EQUALS", value) for value in VALUES if type(value) in (int, float, complex, str, bytes, bool, tuple, slice)],
    *[("LEN", n) for n in (0, 1, 2, 99)],
    *[("DICT_KEYS", keys) for keys in ((), ("a",), ("a", "b"), ("b", "a"), (1,), (True,), (1.0,))],
    *[(kind, key) for kind in ("DICT_CONTAINS", "DICT_MISSING") for key in ("a", 1, None, (1, 2))],
    *[("SET_EQUALS", members) for members in ((), (1,), (True,), (1, 2), ("a",))],
    *[(kind, name) for kind in ("HAS_NO_INSTANCE_ATTR", "HAS_NO_TYPE_ATTR") for name in ("a", "__len__", "_modules")],
    ("NO_HOOKS",),
    *[("TENSOR", value) for value in VALUES if isinstance(value, torch.Tensor)],
    ("TENSOR", torch.ones(2), (None,)),
    ("CELL_EMPTY",),
    *[("CODE", function.__code__) for function in (coded, recoded)],
    ("PREDICATE", lambda value: value == 1, "== 1"),
    ("PREDICATE", lambda value: value, "is true"),
]


def names_a_difference(text):
    assert text.strip() and "and holds" not in text, text
    for then, now in re.findall(r"(?:was|were) (.+?), (?:is|are) ([^;]+)", text):
        assert then != now, text


@pytest.mark.parametrize("index", range(len(GUARDS)))
def test_leaf_and_twin_agree(index):
    guard = Guard(X, *GUARDS[index])
    guards = GuardSet()
    guards.add(guard)
    program = guards.build(1)
    held = 0
    for value in VALUES:
        found = program.check((value,))
        assert found == guards.check_python((value,)), (guard, value)
        assert found in (0, -1)
        if found == 0:
            names_a_difference(guards.failure_reason(0, CallValues((value,))))
        held += found == -1
    assert held < len(VALUES)
    assert "L['x']" in guard.describe()


def test_constants_are_equal_only_to_themselves():
    plain = (int, float, complex, str, bytes, bool)
    for value in VALUES:
        if type(value) in plain:
            guards = GuardSet()
            guards.add(Guard(X, "EQUALS", value))
            program = guards.build(1)
            fitting = [other for other in VALUES if program.check((other,)) == -1]
            assert len(fitting) == 1, (value, fitting)


def test_equal_constants_made_anew():
    for expected, value in [(2**70, 2**70 * 1), ("añ", "".join("añ")), (1.5, float("1.5")), (NAN, float("nan"))]:
        guards = GuardSet()
        guards.add(Guard(X, "EQUALS", expected))
        assert guards.build(1).check((value,)) == guards.check_python((value,)) == -1


def test_several_objects():
    a, b = [], []
    guards = GuardSet()
    guards.add(Guard(X, "NOT_ALIASED", Y, Z))
    guards.add(Guard(X, "SAME_OBJECT", ConstSource(a, "a")))
    program = guards.build(3)
    for values in [(a, b, []), (b, a, []), (a, b, a), (a, a, b), (a, b, b)]:
        assert program.check(values) == guards.check_python(values)
    assert program.check((a, b, [])) == -1
    assert program.check((b, a, [])) == 1
    assert program.check((a, b, b)) == 0
    assert (
        guards.failure_reason(0, CallValues((a, b, b)))
        == "L['y'] and L['z'] were distinct objects and are now the same"
    )


@pytest.mark.parametrize("n", [2, 12, 13, 200, 600])
def test_many_distinct_objects(n):
    sources = [LocalSource(i, f"v{i}") for i in range(n)]
    guards = GuardSet()
    guards.add(Guard(sources[0], "NOT_ALIASED", *sources[1:]))
    program = guards.build(n)
    values = [object() for _ in range(n)]
    assert program.check(tuple(values)) == -1
    values[n // 2] = values[-1] if n // 2 != n - 1 else values[0]
    assert program.check(tuple(values)) == 0


def test_global_state():
    guards = GuardSet()
    guards.add(Guard(None, "GLOBAL_STATE"))
    program = guards.build(0)
    assert program.check(()) == guards.check_python(()) == -1
    with torch.no_grad():
        assert program.check(()) == guards.check_python(()) == 0
        assert guards.failure_reason(0, CallValues(())) == "grad mode was 1, is 0"


def test_guards_keep_no_object_alive():
    class Local:
        pass

    model = torch.nn.Linear(2, 2)
    instance = Local()
    guards = GuardSet()
    guards.add(Guard(X, "ID", model))
    guards.add(Guard(Y, "TYPE", Local))
    guards.add(Guard(Z, "TENSOR", model.weight))
    program = guards.build(3)
    assert program.check((model, instance, model.weight)) == -1
    refs = [weakref.ref(model), weakref.ref(Local), weakref.ref(model.weight)]
    del model, instance, Local
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]
    assert program.check((None, None, None)) == guards.check_python((None, None, None)) == 2
    fitting = torch.zeros_like(torch.nn.Linear(2, 2).weight)
    assert program.check((None, None, torch.nn.Parameter(fitting))) == 0


def test_explanations():
    def explain(value, *guard):
        guards = GuardSet()
        guards.add(Guard(X, *guard))
        return guards.failure_reason(0, CallValues((value,)))

    assert explain(3, "EQUALS", 2) == "L['x'] was 2, is 3"
    assert explain(3, "TYPE", str) == "type(L['x']) was str, is int"
    assert explain([1], "LEN", 2) == "len(L['x']) was 2, is 1"
    assert explain(True, "ID", False) == "L['x'] was False, is True"
    assert explain({"b": 1}, "DICT_KEYS", ("a",)) == "the keys of L['x'] were ['a'], are ['b']"
    assert explain(torch.ones(3), "TENSOR", torch.ones(2)) == "L['x']: sizes was (2,), is (3,)"
    assert explain(torch.ones(2).double(), "TENSOR", torch.ones(2)) == (
        "L['x']: dtype was torch.float32, is torch.float64"
    )
    assert explain(None, "TENSOR", torch.ones(2)) == "L['x'] was a tensor, is None"
    assert explain(HOOKED, "NO_HOOKS") == "L['x'] has hooks now"


@pytest.mark.parametrize("guard", ["EQUALS", "ID", "TYPE", "DICT_KEYS", "SET_EQUALS"])
def test_explanations_of_what_looks_the_same(guard):
    """Values whose short texts are equal."""
    long = "a" * 200
    alike = [
        *[(long + "b", long + "c"), (b"x" * 90, b"x" * 91), (2**600, 2**600 + 1), ("a", Text("a"))],
        *[(tuple(range(20)), (*range(19), 0)), ((long,), (long + "b",)), (1.0, np.float64(1.0))],
        (WithDict(), WithDict()),
    ]
    for old, new in alike:
        guards = GuardSet()
        if guard == "TYPE":
            old, new = (type("Same", (), {"__module__": "m"}) for _ in range(2))
            guards.add(Guard(X, guard, old))
            new = new()
        elif guard in ("DICT_KEYS", "SET_EQUALS"):
            guards.add(Guard(X, guard, [old]))
            new = {new: 1} if guard == "DICT_KEYS" else {new}
        else:
            guards.add(Guard(X, guard, old))
        assert guards.build(1).check((new,)) == 0
        names_a_difference(guards.failure_reason(0, CallValues((new,))))


def test_bad_guards_are_refused():
    with pytest.raises(ValueError, match="kinds are ASSUMED, CELL_EMPTY, CODE, DICT_CONTAINS"):
        Guard(X, "NO_SUCH_KIND")
    with pytest.raises(ValueError, match="needs a source"):
        Guard(None, "TYPE", int)
    with pytest.raises(ValueError, match="has no source"):
        Guard(X, "GLOBAL_STATE")
    with pytest.raises(TypeError, match="needs a type"):
        Guard(X, "TYPE", 3)
    with pytest.raises(TypeError, match="must be a tensor"):
        Guard(X, "TENSOR", 3)
    with pytest.raises(TypeError):
        Guard(X, "DICT_CONTAINS", [])
    with pytest.raises(AttributeError, match="frozen"):
        Guard(X, "LEN", 1).kind = "TYPE"


# two leaves: arithmetic and functions of math are done in C, rounding in Python
RELATIONS = {"RELATION": [(("ge", "s0", 2), ("s0",), (), ""), (("eq", ("round", "s0"), "f0"), ("s0", "f0"), (Y,), "")]}


def test_every_leaf_has_a_kind():
    encoded = set()
    for name, kind in kinds.items():
        samples = [guard[1:] for guard in GUARDS if guard[0] == name] or RELATIONS.get(name) or [(Y,)]
        of_process = [(Facts([], []),) if name == "ASSUMED" else ()]
        for params in samples if kind.reads_source else of_process:
            encoded.add(kind.encode(kind.normalize(*params))[0])
    accesses = {"CONST", "CONST_WEAK", "GLOBAL", "ATTR", "INSTANCE_ATTR", "TYPE_OF", "TYPE_ATTR", "ITEM",
                "SEQUENCE_ITEM", "DICT_KEY", "CELL_CONTENTS", "CLOSURE_CELL", "CALL", "TOGETHER", "TENSOR_SIZE",
                "TENSOR_STRIDE"}  # fmt: skip
    assert encoded | accesses == set(_C.GUARD_OPS)
