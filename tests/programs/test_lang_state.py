"""Programs that change what others see, and programs that misbehave: the same state and the same exception as eager."""

import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import Case, Cases
from torch import Tensor, nn

import dynajit
from dynajit.testing import assert_same

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


class Box:
    total: Any = 0
    shared: list[Any] = []

    def __init__(self, **kw: Any) -> None:
        self.__dict__.update(kw)

    def __repr__(self) -> str:
        return "Box"


@cases(x, [1, [2]], {"a": 1, "b": [1]}, {1, 2}, Box(v=1, items=[]), repeat=1)
def arguments_changed(x: Tensor, items: Any, table: Any, members: Any, box: Any) -> Any:
    alias = items
    inner = items[1]
    items.append(x)
    inner.append(items)
    alias.insert(0, "first")
    items.reverse()
    table["b"].append(box)
    table["new"] = table.pop("a")
    table.update(z=x)
    members.add(3)
    members.discard(1)
    box.v += 1
    box.items.append(box)
    box.w = inner
    del table["z"]
    return items is alias, inner, table["b"], x + box.v


@cases(x, Box(), repeat=1)
def class_attributes(x: Tensor, b: Any) -> Any:
    Box.total += 1
    b.total += 5
    Box.shared.append(b.total)
    Box.extra = x
    seen = Box.total, b.total, Box.extra is x, type(b).total
    del Box.extra
    Box.total = 0
    Box.shared.clear()
    return seen, x + 1, hasattr(Box, "extra")


@cases(x)
def self_containing(x: Tensor) -> Any:
    a: list[Any] = [x + 1]
    a.append(a)
    d: dict[str, Any] = {}
    d["me"] = d
    d["a"] = a
    b = Box()
    b.me = b
    b.d = d
    t = (a, b)
    a.append(t)
    return a, d, b, t


@cases(x, breaks=1)
def order_of_effects(x: Tensor) -> Any:
    log: list[Any] = []

    def say(v: Any) -> Any:
        log.append(v)
        return v

    d = {say("k1"): say("v1"), say("k2"): say("v2")}
    say("f") if say("") else say("else")
    b = Box()
    b.a, b.b = say(1), say(2)
    made = [say(3), *[say(4)], say(5)]
    say(0) and say("no")
    say(9) < say(8) < say("not reached")
    print("printed", say("arg"), sep=say("|"))
    return x + 1, log, d, made


@cases(x, {"a": 1, "b": 2}, [3, 4], repeat=1)
def changed_while_iterated(x: Tensor, d: Any, items: Any) -> Any:
    out = []
    try:
        for k in d:
            d[k + k] = 0
    except RuntimeError as e:
        out.append(str(e))
    for i in items:
        out.append(i)
        if len(items) < 6:
            items.append(i + 10)
    for k in list(d):
        d.pop(k)
    s = {1, 2}
    try:
        for v in s:
            s.add(v + 10)
    except RuntimeError as e:
        out.append(str(e))
    return x + 1, out


@cases(x, Box(items=[]), repeat=1, breaks=1)
def half_done(x: Tensor, b: Any) -> Any:
    """State changed before an exception that leaves stays changed."""
    b.items.append(1)
    b.y = x + 1
    b.y += 1
    b.items.append({}["missing"])
    b.items.append("not reached")
    return x


@cases(x, Box(items=[]), repeat=1)
def half_done_inside(x: Tensor, b: Any) -> Any:
    def change() -> None:
        b.items.append(1)
        raise ValueError(b.items)

    try:
        change()
    except ValueError as e:
        b.caught = e.args[0] is b.items
    finally:
        b.z = x * 2
    return b.z + 1


@cases(x.clone(), repeat=2)
def input_mutated(x: Tensor) -> Any:
    v = x[0]
    v += 1
    x[1].mul_(2)
    w = x.view(-1)
    w[0] = 9
    return v, w, x.t()


@cases(x)
def identities(x: Tensor) -> Any:
    a = [1]
    b = a
    c = list(a)
    t = (a, x)
    box = Box(v=x, a=a)
    y = x + 1
    return y, y, a, b, c, t, box, box.v is x, a is b, a is c, box.a is t[0], None, True, t is t, box


@cases(x, Box(cache={}), repeat=3, graphs=2)
def cached_by_hand(x: Tensor, b: Any) -> Any:
    key = tuple(x.shape)
    if key not in b.cache:
        b.cache[key] = torch.ones(key)
    return x + b.cache[key]


class Guarded:
    def __init__(self) -> None:
        self.__dict__["store"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise AttributeError(f"private {name}")
        self.store[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["store"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __delattr__(self, name: str) -> None:
        del self.store[name]

    def __setitem__(self, k: Any, v: Any) -> None:
        self.store[k] = (v, len(self.store))

    def __delitem__(self, k: Any) -> None:
        self.store.pop(k)

    def __getitem__(self, k: Any) -> Any:
        return self.store[k]


@cases(x, Guarded(), repeat=1)
def custom_setters(x: Tensor, g: Any) -> Any:
    g.a = x
    g["k"] = 2
    g["gone"] = 3
    del g["gone"], g.a
    try:
        g._p = 1
    except AttributeError as e:
        text = str(e)
    h = Guarded()
    h.q = x + 1
    return h, h.q * 2, text, g["k"], hasattr(g, "a")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(()))
        self.calls = 0
        self.history: list[Any] = []

    def forward(self, t: Tensor) -> Tensor:
        self.calls += 1
        self.steps += 1
        self.history.append(t.shape)
        self.last = t
        return self.lin(t) * self.calls


def test_module_state() -> None:
    assert_same(Model(), x, repeat=4, breaks=0)


COUNT = 0
REGISTRY: dict[str, Any] = {}


@cases(x, repeat=1)
def globals_made(x: Tensor) -> Any:
    global COUNT, MADE  # noqa: PLW0603
    COUNT = COUNT + 1
    MADE = [x]
    MADE.append(COUNT)
    REGISTRY["x"] = MADE
    out = MADE, REGISTRY["x"] is MADE, COUNT
    COUNT = 0
    del MADE
    REGISTRY.clear()
    return out, x + 1, "MADE" in globals()


@cases(x)
def made_inside_stored_outside(x: Tensor) -> Any:
    def make() -> Any:
        state = {"n": 0}

        def step(t: Any) -> Any:
            state["n"] += 1
            return t + state["n"]

        step.state = state  # type: ignore[attr-defined]
        return step

    s = make()
    s(x)
    return s(x), s.state, s.state["n"]


# ---------------------------------------------------------------------------------------------------------- bad input


class Rude:
    def __init__(self, what: str, log: Any = None) -> None:
        self.what = what
        self.log = [] if log is None else log

    def _do(self, name: str, value: Any) -> Any:
        self.log.append(name)
        if self.what == name:
            raise ZeroDivisionError(f"rude {name}")
        return value

    def __bool__(self) -> bool:
        return self._do("bool", True)

    def __eq__(self, o: object) -> bool:
        return self._do("eq", self is o)

    def __hash__(self) -> int:
        return self._do("hash", 5)

    def __len__(self) -> int:
        return self._do("len", 2)

    def __iter__(self) -> Any:
        return self._do("iter", iter([1]))

    def __getattr__(self, name: str) -> Any:
        if name == "q":
            raise ValueError("rude getattr")
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "bad":
            raise OSError("rude setattr")

    def __contains__(self, v: Any) -> Any:
        return self._do("contains", True)

    def __repr__(self) -> str:
        return "Rude"


def rude_use(x: Tensor, r: Any, items: Any) -> Any:
    items.append("before")
    y = x + 1
    if r:
        items.append("true")
    items.append(len(r))
    items.append(r == 3)
    items.append([*r])
    items.append(3 in r)
    items.append({r: 1}[r])
    return y * 2


@pytest.mark.parametrize("what", ["bool", "eq", "hash", "len", "iter", "contains", "none"])
@pytest.mark.parametrize("caught", [False, True])
def test_rude_objects(what: str, caught: bool) -> None:
    def outer(x: Tensor, r: Any, items: Any) -> Any:
        try:
            return rude_use(x, r, items), r.log
        except ZeroDivisionError as e:
            return str(e), r.log

    assert_same(outer if caught else rude_use, x, Rude(what), [], repeat=1)


@pytest.mark.parametrize("name", ["q", "nope", "bad"])
def test_rude_attributes(name: str) -> None:
    def use(x: Tensor, r: Any) -> Any:
        y = x + 1
        r.before = y
        if name == "bad":
            r.bad = y
        return y + getattr(r, name)

    assert_same(use, x, Rude("none"), repeat=1)


def endless(x: Tensor) -> Any:
    return endless(x + 1)


def mutual(x: Tensor, n: int = 0) -> Any:
    return [mutual(x, n + 1)]


@pytest.mark.parametrize("fn", [endless, mutual])
def test_endless_recursion(fn: Callable[..., Any]) -> None:
    compiled = dynajit.compile(fn, backend="eager")
    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        compiled(x)
    assert sys.getrecursionlimit() == limit
    assert torch.equal(dynajit.compile(lambda t: t + 1, backend="eager")(x), x + 1)


def patched_target(t: Any) -> Any:
    return t + 1


def replacement(t: Any) -> Any:
    return t + 100


def test_monkeypatching_while_traced() -> None:
    def patching(x: Tensor) -> Any:
        y = patched_target(x)
        globals()["patched_target"] = replacement
        z = patched_target(x)
        globals()["patched_target"] = original
        return y, z, patched_target(x)

    original = patched_target
    assert_same(patching, x)


def test_method_patched_between_calls() -> None:
    class Thing:
        def go(self, t: Any) -> Any:
            return t + 1

    compiled = dynajit.compile(lambda t, o: o.go(t), backend="eager")
    thing = Thing()
    assert torch.equal(compiled(x, thing), x + 1)
    Thing.go = lambda self, t: t + 2  # type: ignore[method-assign]
    assert torch.equal(compiled(x, thing), x + 2)
    thing.go = lambda t: t + 3  # type: ignore[method-assign]
    assert torch.equal(compiled(x, thing), x + 3)
    Thing.go = property(lambda self: lambda t: t + 4)  # type: ignore[method-assign, assignment]
    assert torch.equal(compiled(x, thing), x + 4)
    del Thing.go
    assert torch.equal(compiled(x, thing), x + 3)


def test_method_patched_inside() -> None:
    class Thing:
        def go(self, t: Any) -> Any:
            return t + 1

    def patch(x: Tensor) -> Any:
        thing = Thing()
        a = thing.go(x)
        Thing.go = lambda self, t: t + 2  # type: ignore[method-assign]
        b = thing.go(x)
        thing.go = lambda t: t + 3  # type: ignore[method-assign]
        c = thing.go(x)
        Thing.go = first  # type: ignore[method-assign]
        return a, b, c

    first = Thing.go
    assert_same(patch, x)


def test_data_descriptor_arrives_later() -> None:
    class Thing:
        pass

    thing = Thing()
    thing.v = 3  # type: ignore[attr-defined]
    compiled = dynajit.compile(lambda t, o: t * o.v, backend="eager")
    assert torch.equal(compiled(x, thing), x * 3)
    Thing.v = property(lambda self: 7)  # type: ignore[attr-defined]
    assert torch.equal(compiled(x, thing), x * 7)
    del Thing.v  # type: ignore[attr-defined]
    assert torch.equal(compiled(x, thing), x * 3)
    Thing.__getattribute__ = lambda self, name: 9  # type: ignore[method-assign, assignment]
    assert torch.equal(compiled(x, thing), x * 9)


class First:
    def go(self, t: Any) -> Any:
        return t + 1


class Second:
    def go(self, t: Any) -> Any:
        return t + 2


def test_class_of_instance_changed() -> None:
    def turn(x: Tensor, o: Any) -> Any:
        a = o.go(x)
        o.__class__ = Second
        return a, o.go(x), type(o).__name__, isinstance(o, Second)

    assert_same(turn, x, First(), repeat=2)


def test_attributes_deleted() -> None:
    def deleting(x: Tensor, o: Any) -> Any:
        y = x + o.v
        del o.v
        return y + o.v

    both_raise = "the second call's variant, which breaks earlier, fits the first call's arguments too"
    assert_same(deleting, x, Box(v=1), repeat=2, never_repeats=both_raise)


def test_deleted_between_calls() -> None:
    box = Box(v=2)
    compiled = dynajit.compile(lambda t, o: t * o.v if hasattr(o, "v") else t, backend="eager")
    assert torch.equal(compiled(x, box), x * 2)
    del box.v
    assert torch.equal(compiled(x, box), x)
    box.v = None
    with pytest.raises(TypeError):
        compiled(x, box)


def test_exception_from_the_graph() -> None:
    def mismatched(x: Tensor, items: Any) -> Any:
        items.append(1)
        y = x @ x
        items.append(2)
        return y

    assert_same(mismatched, x, [], repeat=1)


def test_function_replaced_code() -> None:
    def inner(t: Any) -> Any:
        return t + 1

    def other(t: Any) -> Any:
        return t * 5

    compiled = dynajit.compile(lambda t: inner(t), backend="eager")
    assert torch.equal(compiled(x), x + 1)
    inner.__code__ = other.__code__
    assert torch.equal(compiled(x), x * 5)
    inner.__defaults__ = (1,)
    assert torch.equal(compiled(x), x * 5)


def test_global_replaced_by_another_kind() -> None:
    names: dict[str, Any] = {"__builtins__": __builtins__, "k": 2}
    exec("def f(t):\n    return t * k", names)
    compiled = dynajit.compile(names["f"], backend="eager")
    assert torch.equal(compiled(x), x * 2)
    names["k"] = x
    assert torch.equal(compiled(x), x * x)
    del names["k"]
    with pytest.raises(NameError, match="name 'k' is not defined"):
        compiled(x)
    names["k"] = 3
    assert torch.equal(compiled(x), x * 3)


def test_builtin_shadowed_later() -> None:
    names: dict[str, Any] = {"__builtins__": __builtins__}
    exec("def f(t):\n    return t * len([1, 2])", names)
    compiled = dynajit.compile(names["f"], backend="eager")
    assert torch.equal(compiled(x), x * 2)
    names["len"] = lambda v: 10
    assert torch.equal(compiled(x), x * 10)


@cases(x, Box(n=0), graphs=None, breaks=None, repeat=1)
def stop_iteration_escapes(x: Tensor, b: Any) -> Any:
    def gen() -> Any:
        b.n += 1
        yield next(iter([]))

    try:
        list(gen())
    except RuntimeError as e:
        return str(e), x + 1, b.n
    return None


@cases(x, graphs=None, breaks=None)
def finally_overrides(x: Tensor) -> Any:
    def f() -> Any:
        try:
            raise ValueError("lost")
        finally:
            return "kept"  # noqa: B012

    return f(), x + 1


@dataclasses.dataclass
class Validated:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"negative: {self.n}")


@cases(x)
def validation(x: Tensor) -> Any:
    try:
        Validated(-1)
    except ValueError as e:
        return str(e), Validated(2), x + 1
    return None


@cases(x)
def imports_inside(x: Tensor) -> Any:
    import math
    import os.path as path
    from collections import OrderedDict as Ordered

    return math.floor(2.5), path.join("a", "b"), Ordered(a=1), x + 1


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_state(case: Case) -> None:
    case.check()


__all__ = ["functools", "types"]
