"""Programs that misuse the language: endless recursion, patching while they run, classes changed, attributes deleted.

Methods that raise where Python calls them unasked, and exceptions in the middle of a mutation. The same exception and
the same state as in eager, at the first call and at the second.
"""

# mypy: ignore-errors
# (the programs do what a type checker is there to refuse)

from __future__ import annotations

import functools
import linecache
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.testing import assert_same


def endless(x: Tensor) -> Any:
    return endless(x + 1)


def endless_mut(x: Tensor, log: list[Any]) -> Any:
    log.append(1) if len(log) < 5 else None
    return endless_mut(x + 1, log)


def endless_caught(x: Tensor) -> Any:
    try:
        return endless(x)
    except RecursionError as e:
        return x.sin(), type(e).__name__


class RecProp:
    @property
    def v(self) -> Any:
        return self.v


def endless_prop(x: Tensor) -> Any:
    x = x.sin()
    return RecProp().v + x


class RecGA:
    def __getattr__(self, n: Any) -> Any:
        return getattr(self, n + "x"[:0])


def endless_ga(x: Tensor) -> Any:
    x = x.sin()
    return RecGA().v + x


class RecRepr:
    def __repr__(self) -> Any:
        return repr(self)


def endless_repr(x: Tensor) -> Any:
    x = x.sin()
    return repr(RecRepr()), x


def mutual_a(x: Tensor) -> Any:
    return mutual_b(x + 1)


def mutual_b(x: Tensor) -> Any:
    return mutual_a(x * 2)


class RecEq:
    def __eq__(self, o: Any) -> Any:
        return self == o


def endless_eq(x: Tensor) -> Any:
    x = x.sin()
    return RecEq() == 3


class RecMod(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return self(x + 1)


def endless_gen(x: Tensor) -> Any:
    def g(n: Any) -> Any:
        yield x + n
        yield from g(n + 1)

    t = 0
    for i, v in enumerate(g(0)):
        t = t + v
        if i > 5:
            break
    return t


# monkeypatch while traced
HELP = types.ModuleType("helpmod")


def helper(x: Tensor) -> Any:
    return x + 1


HELP.helper = helper


def patch_global(x: Tensor) -> Any:
    global helper
    old = helper

    def helper2(y: Tensor) -> Any:
        return y * 10

    a = helper(x)
    globals()["helper"] = helper2
    b = helper(x)
    globals()["helper"] = old
    return a, b, helper(x)


def patch_global2(x: Tensor) -> Any:
    global helper
    old = helper
    a = helper(x)
    helper = lambda y: y * 10  # noqa: E731
    try:
        b = helper(x)
    finally:
        helper = old
    return a, b, helper(x)


def patch_module(x: Tensor) -> Any:
    old = HELP.helper
    a = HELP.helper(x)
    HELP.helper = lambda y: y * 10
    try:
        b = HELP.helper(x)
    finally:
        HELP.helper = old
    return a, b


def patch_torch(x: Tensor) -> Any:
    old = torch.sin
    a = torch.sin(x)
    torch.sin = torch.cos
    try:
        b = torch.sin(x)
    finally:
        torch.sin = old
    return a, b, torch.sin(x)


def patch_method(x: Tensor) -> Any:
    m = nn.ReLU()
    a = m(x - 3)
    m.forward = lambda y: y * 7
    b = m(x - 3)
    return a, b


class C:
    def f(self, x: Tensor) -> Any:
        return x + 1


def patch_class_method(x: Tensor) -> Any:
    old = C.f
    o = C()
    a = o.f(x)
    C.f = lambda self, y: y * 9
    try:
        b = o.f(x)
    finally:
        C.f = old
    return a, b, o.f(x)


def patch_builtin(x: Tensor) -> Any:
    import builtins

    old = builtins.len
    a = len([1, 2])
    builtins.len = lambda o: 42
    try:
        b = len([1, 2])
    finally:
        builtins.len = old
    return x.sin() * a + b


def patch_tensor(x: Tensor) -> Any:
    old = torch.Tensor.sin
    torch.Tensor.sin = lambda self: self * 100
    try:
        a = x.sin()
    finally:
        torch.Tensor.sin = old
    return a, x.sin()


def patch_code(x: Tensor) -> Any:
    def f(y: Tensor) -> Any:
        return y + 1

    def g(y: Tensor) -> Any:
        return y * 5

    a = f(x)
    f.__code__ = g.__code__
    return a, f(x)


def patch_defaults(x: Tensor) -> Any:
    def f(y: Tensor, k=2) -> Any:
        return y * k

    a = f(x)
    f.__defaults__ = (7,)
    return a, f(x)


# change class
class A(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Any:
        return x * self.w


class B(A):
    def forward(self, x: Tensor) -> Any:
        return x * self.w + 100


def change_class(x: Tensor, m: Any) -> Any:
    a = m(x)
    m.__class__ = B
    b = m(x)
    return a, b


def change_class_between(x: Tensor, m: Any) -> Any:
    r = m(x)
    m.__class__ = A if type(m) is B else B
    return r


class P1:
    def f(self, x: Tensor) -> Any:
        return x + 1


class P2:
    def f(self, x: Tensor) -> Any:
        return x + 2


def change_class_plain(x: Tensor) -> Any:
    o = P1()
    a = o.f(x)
    o.__class__ = P2
    return a, o.f(x), type(o).__name__


def change_class_bad(x: Tensor) -> Any:
    o = P1()
    o.x = x.sin()
    try:
        o.__class__ = int
    except TypeError as e:
        return o.x, str(e)


# delete attributes
def del_attr(x: Tensor, m: Any) -> Any:
    a = m(x)
    del m.w
    return m(x)


def del_attr_caught(x: Tensor, m: Any) -> Any:
    a = m(x)
    del m.w
    try:
        return m(x)
    except AttributeError as e:
        return a, str(e)


def del_attr_missing(x: Tensor, m: Any) -> Any:
    x = x.sin()
    del m.nothing
    return x


def del_twice(x: Tensor) -> Any:
    o = P1()
    o.v = x.sin()
    del o.v
    try:
        del o.v
    except AttributeError as e:
        return x.cos(), str(e)


def del_class_attr(x: Tensor) -> Any:
    class Q:
        k = 2

    a = x * Q.k
    del Q.k
    try:
        return a * Q.k
    except AttributeError as e:
        return a, str(e)


def del_local(x: Tensor) -> Any:
    y = x.sin()
    del y
    try:
        return y  # noqa: F821
    except UnboundLocalError as e:
        return str(e)


def del_item(x: Tensor, d: dict[Any, Any]) -> Any:
    d["r"] = x.sin()
    del d["a"]
    del d["zz"]


# raise in special methods
class Bad:
    def __init__(self, x: Tensor, log: list[Any]) -> None:
        self.x, self.log = x, log

    def __bool__(self) -> Any:
        self.log.append(self.x * 2)
        raise ValueError("bool")

    def __eq__(self, o: Any) -> Any:
        self.log.append(self.x * 3)
        raise ValueError("eq")

    def __hash__(self) -> Any:
        self.log.append(self.x * 4)
        raise ValueError("hash")

    def __len__(self) -> Any:
        self.log.append(self.x * 5)
        raise ValueError("len")

    def __contains__(self, o: Any) -> Any:
        self.log.append(self.x * 6)
        raise ValueError("contains")

    def __lt__(self, o: Any) -> Any:
        self.log.append(self.x * 6)
        raise ValueError("lt")

    def __iter__(self) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("iter")

    def __getitem__(self, k: Any) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("getitem")

    def __setitem__(self, k: Any, v: Any) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("setitem")

    def __add__(self, k: Any) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("add")

    def __getattr__(self, k: Any) -> Any:
        if k.startswith("__") or k in ("x", "log"):
            raise AttributeError(k)
        self.log.append(1)
        raise ValueError("getattr")

    def __enter__(self) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("enter")

    def __exit__(self, *a: Any) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("exit")

    def __call__(self) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("call")

    def __repr__(self) -> Any:
        return "Bad()"

    def __str__(self) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("str")

    def __index__(self) -> Any:
        self.log.append(self.x * 7)
        raise ValueError("index")


BODIES = [
    "1 if b else 2",
    "not b",
    "b and 1",
    "b == 1",
    "b != 1",
    "1 == b",
    "b in [1, 2]",
    "[b] == [1]",
    "{b: 1}",
    "{b}",
    "hash(b)",
    "d[b]",
    "len(b)",
    "3 in b",
    "b < 1",
    "sorted([b, b])",
    "list(b)",
    "b[0]",
    "b + 1",
    "1 + b",
    "b.foo",
    "getattr(b, 'foo', 3)",
    "hasattr(b, 'foo')",
    "b()",
    "str(b)",
    "f'{b}'",
    "[1,2,3][b]",
    "x[b]",
    "max(b, b)",
    "[1, b].index(3)",
    "[1, 2].count(b)",
    "[1,b].remove(5)",
    "all([b])",
    "any([b])",
    "bool(b)",
    "dict([(b, 1)])",
    "{**b}",
    "[*b]",
    "(lambda *a: a)(*b)",
    "(lambda p, q: p)(*b)",
    "x * b",
    "b * x",
    "x == b",
    "b == x",
    "min([b], [b])",
    "(1, b) < (1, b)",
    "set([b])",
    "d.get(b)",
    "d.pop(b, 1)",
    "b is b and b == b",
]
HEAD = "def bad_fn(x: Tensor, log: list[Any], d: dict[Any, Any]) -> Any:\n    x = x.sin()\n    log.append(x)\n    b = Bad(x, log)\n"
CAUGHT = """    try:
        r = {body}
    except (ValueError, TypeError) as e:
        log.append(str(e))
        return x.cos(), type(e).__name__, str(e), len(log)
    return x.cos(), r is None, len(log)
"""
UNCAUGHT = "    r = {body}\n    return x.cos(), len(log)\n"


def program(body: str, rest: str) -> Callable[..., Any]:
    source, name = HEAD + rest.format(body=body), f"<bad input {body}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: dict[str, Any] = {"Bad": Bad}
    exec(compile(source, name, "exec"), space)
    return space["bad_fn"]  # type: ignore[no-any-return]


def mut_raise(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    items.append(x.sin())
    d["k"] = items[-1]
    x.add_(1)
    items.append(2)
    d["m"] = 1 // 0
    items.append(3)


def mut_raise_list(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    items.extend([x.sin(), *(1 // (2 - i) for i in range(4))])


def mut_raise_dict(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    d.update((k, 1 // (2 - k)) for k in range(4))


def mut_raise_sort(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    items.extend([3, 1, "a", 2])
    x.mul_(2)
    items.sort()


def mut_raise_unpack(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    x.mul_(2)
    items[:], d["q"], *_ = [1, 2], *(None for _ in (1 // 0,))


def mut_shape(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    items.append(x.add_(1))
    d["z"] = 1
    return x + torch.ones(7)


def mut_loop(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    for i in range(5):
        x.add_(i)
        items.append(i)
        if i == 3:
            raise KeyError(i)


def mut_finally(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    try:
        items.append(1)
        x.add_(1)
        raise KeyError("a")
    finally:
        items.append(2)
        x.mul_(2)
        d["f"] = 1


def mut_dict_iter(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    for k in d:
        x.add_(1)
        d[k + "n"] = x.sin()


def mut_list_iter(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    items.extend([1, 2, 3])
    for v in items:
        x.add_(1)
        if v < 3:
            items.append(v + 2)
    return x.sin()


def mut_set_iter(x: Tensor, items: list[Any], d: dict[Any, Any]) -> Any:
    s = {1, 2}
    for v in s:
        x.add_(1)
        s.add(v + 10)


RECURSIVE = [endless, endless_caught, endless_prop, endless_ga, endless_repr, mutual_a, endless_eq]
PATCHING = [
    endless_gen,
    patch_global,
    patch_global2,
    patch_module,
    patch_torch,
    patch_method,
    patch_class_method,
    patch_builtin,
    patch_tensor,
    patch_code,
    patch_defaults,
    change_class_plain,
    change_class_bad,
    del_twice,
    del_class_attr,
    del_local,
]
WITH_MODULE = [change_class, change_class_between, del_attr_missing]
MUTATING = [
    mut_raise,
    mut_raise_list,
    mut_raise_dict,
    mut_raise_sort,
    mut_raise_unpack,
    mut_shape,
    mut_loop,
    mut_finally,
    mut_dict_iter,
    mut_list_iter,
    mut_set_iter,
]


def tensor() -> Tensor:
    return torch.arange(6.0).reshape(2, 3) + 1


def same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, tuple) and isinstance(actual, tuple):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    return torch.equal(actual, expected) if isinstance(expected, Tensor) else bool(actual == expected)


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except (RecursionError, AttributeError) as error:
        return type(error), str(error) if isinstance(error, AttributeError) else ""


@pytest.mark.parametrize("fn", RECURSIVE)
def test_endless_recursion(fn: Callable[..., Any]) -> None:
    """Which words CPython adds depends on where exactly the stack ends."""
    compiled = dynajit.compile(fn, backend="eager")
    for _ in range(2):
        assert same(outcome(compiled, tensor()), outcome(fn, tensor()))


def test_endless_recursion_with_effects() -> None:
    logs: list[list[int]] = [[], []]
    assert outcome(endless_mut, tensor(), logs[0])[0] is RecursionError
    assert outcome(dynajit.compile(endless_mut, backend="eager"), tensor(), logs[1])[0] is RecursionError
    assert logs[0] == logs[1]


def _from_below(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else _from_below(depth - 1, call)


def test_compiled_near_the_end_of_the_stack() -> None:
    """Wherever there is no room left: eager's result, or its error."""

    def many(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x.add(1)
        return x

    used = sum(1 for _ in traceback.walk_stack(None))
    ran = 0
    for left in (400, 200, 100, 60, *range(40, 0, -3)):
        dynajit.reset()
        compiled = dynajit.compile(many, backend="eager")
        found = outcome(_from_below, sys.getrecursionlimit() - used - left, functools.partial(compiled, tensor()))
        assert found == (RecursionError, "") or torch.equal(found, many(tensor())), (left, found)
        ran += isinstance(found, Tensor)
    assert ran >= 4


def test_a_backend_that_recurses_is_at_fault() -> None:
    def backend(gm: Any, examples: Any) -> Any:
        return backend(gm, examples)

    with pytest.raises(dynajit.exc.BackendCompilerFailed, match="recursion depth"):
        dynajit.compile(lambda x: x + 1, backend=backend)(tensor())


def test_endless_recursion_of_a_module() -> None:
    assert outcome(RecMod(), tensor())[0] is RecursionError
    assert outcome(dynajit.compile(RecMod(), backend="eager"), tensor())[0] is RecursionError


@pytest.mark.parametrize("fn", PATCHING)
def test_patching_while_it_runs(fn: Callable[..., Any]) -> None:
    assert_same(fn, tensor())


@pytest.mark.parametrize("fn", WITH_MODULE)
def test_a_module_changed_while_it_runs(fn: Callable[..., Any]) -> None:
    assert_same(fn, tensor(), A())


@pytest.mark.parametrize("fn", [del_attr, del_attr_caught])
def test_a_parameter_deleted(fn: Callable[..., Any]) -> None:
    """Tracebacks differ in torch's own frames: those of a module's call."""
    eager, compiled = A(), A()
    run = dynajit.compile(fn, backend="eager")
    for _ in range(2):
        assert same(outcome(run, tensor(), compiled), outcome(fn, tensor(), eager))
        assert eager.__dict__.keys() == compiled.__dict__.keys() and not compiled._parameters


def test_an_item_deleted_that_is_not_there() -> None:
    assert_same(del_item, tensor(), {"a": 1})


@pytest.mark.parametrize("fn", MUTATING)
def test_an_exception_in_the_middle_of_mutating(fn: Callable[..., Any]) -> None:
    assert_same(fn, tensor(), [], {"a": 0})


@pytest.mark.parametrize("rest", [CAUGHT, UNCAUGHT], ids=["caught", "uncaught"])
@pytest.mark.parametrize("body", BODIES)
def test_special_methods_that_raise(body: str, rest: str) -> None:
    assert_same(program(body, rest), tensor(), [], {1: 2})


class NoIterator:
    def __iter__(self):
        return 3


def unpacks(x, found):
    first, second = found
    return x + first


@pytest.mark.parametrize("use", [iter, list, lambda found: [*found], lambda found: [item for item in found]])
def test_an_iter_that_returns_no_iterator(use):
    def caught(x, found):
        try:
            return use(found)
        except TypeError as error:
            return x + 1, str(error)

    assert_same(caught, tensor(), NoIterator())
    assert_same(unpacks, tensor(), NoIterator())
