"""What a trace found in Python's own library and in torch: a change is seen by the next call, and so is its end."""

import builtins
import contextlib
import gc
import math
import random
import types
import weakref
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynajit
from dynajit import _C
from dynajit.guards.assumed import ABSENT, Assumptions, Facts, attribute_of
from dynajit.guards.guard import Guard
from dynajit.guards.program import CallValues, GuardSet
from dynajit.report import records

WARM = 12


class Base:
    value = "a"

    def method(self):
        return 1


class Derived(Base):
    pass


def facts_of(kind, names, namespace=None, entries=()):
    namespaces = [] if namespace is None else [(namespace, "m", {n: namespace.get(n, ABSENT) for n in entries})]
    return Facts([(kind, {name: attribute_of(kind, name) for name in names})], namespaces)


def agree(facts):
    """The leaf and its twin say the same."""
    holds = facts.in_c.check()
    assert holds == (facts.changed() is None) == facts.in_c.check()
    return holds


@contextlib.contextmanager
def put(owner, name, value):
    old = vars(owner).get(name, ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if old is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, old)


def test_attributes_replaced_added_hidden_and_put_back():
    facts = facts_of(Derived, ["value", "method", "missing"])
    assert agree(facts)
    for owner, name, value in (
        (Derived, "value", "b"),  # hides a base's
        (Base, "value", "c"),
        (Base, "method", lambda self: 2),
        (Base, "missing", 1),
        (Derived, "missing", 1),
    ):
        with put(owner, name, value):
            assert not agree(facts)
            assert facts.changed().rpartition(".")[2] == f"{name} was {'added' if name == 'missing' else 'replaced'}"
        assert agree(facts)
    with put(Base, "other", 1), put(Derived, "another", 2):
        assert agree(facts)
    Derived.__bases__ = (type("Other", (Base,), {"value": "d"}),)
    assert not agree(facts)
    Derived.__bases__ = (Base,)
    assert agree(facts)


def test_entries_of_namespaces():
    namespace = {"f": len, "g": math.sqrt}
    facts = facts_of(Base, [], namespace, ["f", "missing"])
    assert agree(facts)
    namespace["g"] = 3
    namespace["h"] = 4
    assert agree(facts)
    namespace["f"] = max
    assert not agree(facts) and facts.changed() == "m.f was replaced"
    namespace["f"] = len
    assert agree(facts)
    del namespace["f"]
    assert not agree(facts) and facts.changed() == "m.f is gone"
    namespace["f"] = len
    namespace["missing"] = None
    assert not agree(facts) and facts.changed() == "m.missing was added"
    del namespace["missing"]
    assert agree(facts)


def test_nothing_is_looked_up_while_nothing_changes():
    namespace = {"f": len}
    facts = facts_of(Derived, ["method"], namespace, ["f"])
    assert agree(facts)
    before = facts.in_c.searches
    for _ in range(WARM):
        assert facts.in_c.check()
    assert facts.in_c.searches == before
    namespace["counter"] = 1
    assert facts.in_c.check() and facts.in_c.check()
    assert facts.in_c.searches <= before + 1
    with put(Base, "method", None):
        assert not facts.in_c.check()
        failing = facts.in_c.searches
        assert not facts.in_c.check()
        assert facts.in_c.searches == failing  # it is known of this version


def test_functions_are_not_kept_alive_and_none_is_not_one_that_died():
    def method(self):
        return 3

    with put(Base, "method", method):
        facts, reference = facts_of(Base, ["method"]), weakref.ref(method)
        assert agree(facts)
    del method
    gc.collect()
    assert reference() is None
    assert not facts.in_c.check()
    with put(Base, "method", None):
        assert not facts.in_c.check()


def test_bad_facts_are_refused():
    for classes, dicts, error in (
        ([], (), TypeError),
        ((3,), (), TypeError),
        (((3, ()),), (), TypeError),
        (((Base, []),), (), TypeError),
        (((Base, (3,)),), (), TypeError),
        (((Base, ((3,),)),), (), TypeError),
        (((Base, (("method", Base.method, True),)),), (), TypeError),
        ((), ((Base, ()),), TypeError),
    ):
        with pytest.raises(error):
            _C.Assumed(classes, dicts)


def test_the_reason_names_what_was_replaced():
    guards = GuardSet([Guard(None, "ASSUMED", facts_of(Base, ["method"]))])
    program, call = guards.build(0), CallValues(())
    assert program.check(()) == guards.check_python(()) == -1
    with put(Base, "method", None):
        assert program.check(()) == guards.check_python(()) == 0
        assert guards.failure_reason(0, call).endswith("Base.method was replaced")


# ------------------------------------------------------------------------------------------------- whole programs

LINEAR, X = nn.Linear(3, 3), torch.ones(2, 3)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.drop = nn.Linear(3, 3), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.inner(x))


MODEL = Model().eval()
ATTENTION = nn.MultiheadAttention(3, 1, batch_first=True)  # with gradients it calls functions of its own
NO_EINSUM = types.SimpleNamespace(einsum=lambda text, operands: torch.zeros(2))


def plus(function):
    return lambda *args, **kwargs: function(*args, **kwargs) + 1


def sets(x):
    MODEL.zz = 3
    return x * MODEL.zz


PATCHES = {
    "a method of a class": (lambda x: LINEAR(x), nn.Linear, "forward", plus),
    "of a module's module": (lambda x: MODEL(x), nn.Linear, "forward", plus),
    "of a module that is called itself": (MODEL, nn.Linear, "forward", plus),
    "what all modules inherit": (lambda x: LINEAR(x), nn.Module, "__call__", plus),
    "what that calls": (lambda x: LINEAR(x), nn.Module, "_call_impl", plus),
    "what hides the inherited": (lambda x: LINEAR(x), nn.Linear, "__call__", lambda f: lambda self, x: x * 7),
    "reading attributes": (
        lambda x: MODEL.inner(x),
        *(nn.Module, "__getattr__", lambda f: lambda self, name: f(self, name) if name != "inner" else torch.exp),
    ),
    "writing attributes": (
        sets,
        nn.Module,
        "__setattr__",
        lambda f: lambda self, name, value: f(self, name, value if name != "zz" else 5),
    ),
    "the length of a container": (lambda x: x * len(nn.Sequential(LINEAR)), nn.Sequential, "__len__", plus),
    "a function of a module": (lambda x: LINEAR(x), F, "linear", plus),
    "one that is called by its name": (lambda x: torch.relu(x), torch, "relu", plus),
    "what a function calls": (lambda x: F.relu(x), torch, "relu", plus),
    "what it calls elsewhere": (lambda x: F.dropout(x), torch._VF, "dropout", lambda f: lambda x, *args: x * 3),
    "what one calls that it calls": (lambda x: ATTENTION(x, x, x)[0], F, "softmax", plus),
    "a module in a module": (lambda x: torch.einsum("ij,kj->ik", x, x), torch.functional, "_VF", lambda f: NO_EINSUM),
    "a class in a module": (lambda x: nn.Identity()(x), nn, "Identity", lambda cls: nn.Tanh),
    "one that is asked for": (lambda x: x + isinstance(LINEAR, nn.Linear), nn, "Linear", lambda cls: nn.Tanh),
    "a dtype": (lambda x: torch.ones(2, dtype=torch.float32), torch, "float32", lambda f: torch.float64),
    "a builtin": (lambda x: x + len((1, 2)), builtins, "len", lambda f: lambda it: 7 if it == (1, 2) else f(it)),
    "a builtin written out": (lambda x: sum([x, x]), builtins, "sum", lambda f: lambda items: items[0]),
    "a function of C": (lambda x: x * math.sqrt(4.0), math, "sqrt", plus),
    "a method of tensors": (lambda x: x.relu(), torch.Tensor, "relu", plus),
    "one that is known while tracing": (
        lambda x: x.new_zeros(x.size()),
        torch.Tensor,
        "size",
        lambda f: lambda x: (1,),
    ),
    "one written in Python": (lambda x: x.norm(), torch.Tensor, "norm", plus),
    "an operator of tensors": (lambda x: x + 1, torch.Tensor, "__add__", lambda f: lambda self, other: self * 7),
    "their length": (lambda x: x * len(x), torch.Tensor, "__len__", plus),
    "an attribute of tensors": (
        lambda x: x.new_zeros(x.shape),
        *(torch.Tensor, "shape", lambda f: property(lambda self: (1, 1))),
    ),
    "what tensors have not": (lambda x: x + (1 if hasattr(x, "zz") else 2), torch.Tensor, "zz", lambda f: 1),
    "what parameters have not": (
        lambda x: x + (1 if hasattr(LINEAR.weight, "zz") else 2),
        *(nn.Parameter, "zz", lambda f: lambda self: 1),
    ),
}


def outcome(fn):
    torch.manual_seed(3)
    return fn(X)


def alike(one, other):
    assert type(one) is type(other)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_and_its_end(name, backend):
    fn, owner, attribute, make = PATCHES[name]
    compiled = dynajit.compile(fn, backend=backend)
    plain = outcome(fn)
    for _ in range(WARM):
        alike(outcome(compiled), plain)
    replacement = make(getattr(owner, attribute, None))
    seen = []
    for _ in range(3):
        with mock.patch.object(owner, attribute, replacement, create=True):
            wanted = outcome(fn)
            assert wanted.dtype != plain.dtype or wanted.shape != plain.shape or not torch.equal(wanted, plain)
            alike(outcome(compiled), wanted)
            with records.listen(seen.append):
                alike(outcome(compiled), wanted)
        with records.listen(seen.append):
            alike(outcome(compiled), plain)
    assert not seen  # the same again: nothing is captured


def test_another_patch_each_time_ends_at_the_limit():
    compiled = dynajit.compile(lambda x: LINEAR(x), backend="eager")
    seen = []
    with records.listen(seen.append), pytest.warns(UserWarning, match="recompile_limit"):
        for number in range(3 * dynajit.config.recompile_limit):
            with mock.patch.object(nn.Linear, "forward", lambda self, x, number=number: x * number):
                alike(compiled(X), X * number)
            alike(compiled(X), LINEAR(X))
    assert len([record for record in seen if record.compile_id.startswith("[0/")]) <= dynajit.config.recompile_limit
    assert "torch.nn.modules.linear.Linear.forward was replaced" in seen[1].recompile_reason


def test_a_method_that_a_program_gives_tensors_is_its_own_code():
    told = []

    def mine(self, k=1):
        told.append(k)
        return self * 2 + k

    def fn(x):
        return x.mine() + x.mine(k=5)

    with mock.patch.object(torch.Tensor, "mine", mine, create=True):
        compiled = dynajit.compile(fn)
        for _ in range(3):
            alike(compiled(X), X * 4 + 6)
    assert told == [1, 5] * 3


def test_what_counts_in_a_class_of_a_library_makes_no_difference():
    compiled = dynajit.compile(lambda x: LINEAR(x), backend="eager")
    compiled(X)
    seen = []
    with records.listen(seen.append):
        for _ in range(WARM):
            MODEL.register_forward_hook(lambda *_: None).remove()  # counts in RemovableHandle
            random.zz = 1  # type: ignore[attr-defined]
            del random.zz  # type: ignore[attr-defined]
            with mock.patch.object(nn.Module, "zz", 1, create=True), mock.patch.object(torch, "zz", 1, create=True):
                compiled(X)
    assert not seen


def test_facts_of_a_trace_are_of_classes_and_modules_that_last():
    assumed = Assumptions()
    assert len(assumed.facts()) == 0
    assumed.of_member(vars(math), "math", "sqrt", math.sqrt)
    assumed.of_import("math", math)
    assert len(assumed.facts()) == 2 and agree(assumed.facts())
