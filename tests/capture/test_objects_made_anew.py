"""Objects made anew at each call: told by what the trace read of them, or left out of the graph. Never compiled at
each call."""

from __future__ import annotations

import contextvars
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from objects_made_anew import BY_CONTENTS, LEFT_OUT, Kind, closure, namespace
from torch import Tensor

import dynajit
from dynajit.report import records
from dynajit.testing import assert_same

Call = Callable[[Any, Tensor], Any]


def as_argument(use: Any) -> Call:
    return dynajit.compile(lambda o, x: use(o, x), backend="eager")


def behind_a_break(use: Any) -> Call:
    def program(o: Any, x: Tensor) -> Any:
        y = x + 0
        dynajit.graph_break()
        return use(o, y)

    return dynajit.compile(program, backend="eager")


def as_global(use: Any) -> Call:
    names = {"use": use}
    exec("def program(x): return use(o, x)", names)
    compiled: Any = dynajit.compile(names["program"], backend="eager")

    def call(o: Any, x: Tensor) -> Any:
        names["o"] = o
        return compiled(x)

    return call


def in_a_closure(use: Any) -> Call:
    held = None
    compiled = dynajit.compile(lambda x: use(held, x), backend="eager")

    def call(o: Any, x: Tensor) -> Any:
        nonlocal held
        held = o
        return compiled(x)

    return call


def as_attribute(use: Any) -> Call:
    compiled = dynajit.compile(lambda holder, x: use(holder.o, x), backend="eager")
    holder = types.SimpleNamespace()

    def call(o: Any, x: Tensor) -> Any:
        holder.o = o
        return compiled(holder, x)

    return call


OTHERS = (as_global, in_a_closure, as_attribute)


def captures(kind: Kind, place: Any, roles: tuple[int, ...], calls: int) -> list[int]:
    """How many frames were looked at in each call; each result like eager's."""
    make, use = kind
    dynajit.reset()
    call = place(use)
    x = torch.ones(3)
    counts: list[int] = []
    alive: list[Any] = []  # so that none is at the address of a former one, which a guard may take it for
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", ".*config.recompile_limit|.*made anew at each call|.*are given")
        for number in range(calls):
            k = roles[number % len(roles)]
            seen: list[Any] = []
            alive.append(make(k))
            with records.listen(seen.append):
                got = call(alive[-1], x)
            torch.testing.assert_close(got, use(make(k), x), rtol=0, atol=0, equal_nan=True)
            counts.append(len(seen))
    return counts


def places_for(name: str) -> list[Any]:
    return [as_argument, behind_a_break, OTHERS[sum(map(ord, name)) % len(OTHERS)]]


@pytest.mark.parametrize("name", BY_CONTENTS)
def test_the_third_call_compiles_nothing(name: str) -> None:
    for place in places_for(name):
        counts = captures(BY_CONTENTS[name], place, (1,), 5)
        assert not any(counts[2:]), (place, counts)
        counts = captures(BY_CONTENTS[name], place, (1, 2), 8)  # two roles in turn, which differ
        assert not any(counts[4:]), (place, counts)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_needs_identity_is_left_out_of_the_graph(name: str) -> None:
    for place in places_for(name):
        for roles in ((1,), (1, 2)):
            counts = captures(LEFT_OUT[name], place, roles, 12)
            assert not any(counts[8:]), (place, roles, counts)


def test_all_kinds_of_contents_are_noticed() -> None:
    """What two fresh objects differ in changes the answer: each pair once, in turn."""
    programs: list[tuple[Any, list[Any]]] = [
        (lambda f, x: f(x), [lambda x: x + 1, lambda x: x * 3, lambda x, a=5: x + a, lambda x, a=6: x + a]),
        (lambda f, x: f(x), [closure(1), closure(2), torch.relu, torch.neg, closure(3)]),
        (lambda m, x: x + len(m.group()), [re.match("a+", "aab"), re.match("a+", "aaab"), re.match("a+", "aab")]),
        (lambda m, x: x + m.end(), [re.match("a+", "aab"), re.compile("a+").search("baa"), re.match("b", "b")]),
        (lambda f, x: x + f.__defaults__[0], [lambda a=1: a, lambda a=2: a, lambda a=1: a]),
        (lambda f, x: f(x), [namespace(f"def f(x): return x + {k}").f for k in (1, 2, 1, 3)]),
        (lambda f, x: f(x), [eval("lambda x: g(x)", {"g": closure(k)}) for k in (1, 2, 1, 3)]),
        (lambda f, g: f is g, [(len, len), (closure(1), closure(1))]),
    ]
    for program, values in programs:
        dynajit.reset()
        compiled = dynajit.compile(program, backend="eager")
        for value in values * 2:
            args = value if isinstance(value, tuple) else (value, torch.ones(3))
            torch.testing.assert_close(compiled(*args), program(*args), rtol=0, atol=0)


def test_what_is_known_of_one_function_is_not_taken_for_another() -> None:
    """Marks are on the very function; its code is another's too."""

    def number(k: int) -> Any:
        return dynajit.assume_constant_result(lambda: k)

    compiled = dynajit.compile(lambda f, x: f(x), backend="eager")
    constant = dynajit.compile(lambda f, x: x + f(), backend="eager")
    for k in (1, 2, 3):
        assert torch.equal(compiled(dynajit.allow_in_graph(closure(k)), torch.ones(2)), torch.ones(2) + k)
        assert torch.equal(constant(number(k), torch.ones(2)), torch.ones(2) + k)


def test_functions_that_differ_by_their_globals() -> None:
    code = compile("lambda x: x + k", "made", "eval")
    compiled = dynajit.compile(lambda f, x: f(x), backend="eager")
    for k in (1, 2, 1, 5):
        assert torch.equal(compiled(eval(code, {"k": k}), torch.ones(2)), torch.ones(2) + k)


def test_two_functions_that_are_used_in_turn_have_variants() -> None:
    def other(x: Tensor) -> Tensor:
        return x * 2

    functions = [torch.relu, torch.sigmoid, closure(1), other]
    compiled = dynajit.compile(lambda f, x: f(x) + 1, backend="eager", fullgraph=True)
    seen: list[Any] = []
    for turn in range(3):
        with records.listen(seen.append):
            for function in functions:
                assert torch.equal(compiled(function, torch.ones(2)), function(torch.ones(2)) + 1)
        assert len(seen) == len(functions), turn


def test_identity_across_calls_is_the_programs() -> None:
    """A fresh object that the program keeps, or compares with one that it kept."""
    kept: list[Any] = []

    def program(f: Any, x: Tensor) -> tuple[Tensor, bool]:
        same = bool(kept) and kept[-1] is f
        kept.append(f)
        return f(x), same

    compiled = dynajit.compile(program, backend="eager")
    first = closure(1)
    for function, same in ((first, False), (first, True), (closure(1), False), (closure(2), False), (first, False)):
        result, found = compiled(function, torch.ones(2))
        assert found is same and kept[-1] is function
        assert torch.equal(result, function(torch.ones(2)))


def test_what_is_told_by_contents_or_left_out_is_still_the_same_object_or_not() -> None:
    pairs: list[Callable[[], tuple[Any, Any]]] = [
        lambda: (closure(1), closure(1)),
        lambda: (re.match("a", "a"), re.match("a", "a")),
        lambda: (re.compile("ab+"), re.compile("ab+")),
        lambda: (list[int], list[int]),
        lambda: (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 1})),
        lambda: (dynajit.compile(closure(1)), dynajit.compile(closure(1))),
        lambda: (np.int64(5), np.int64(5)),
        lambda: (namespace("a = 1"), namespace("a = 1")),
    ]
    programs: list[Any] = [
        lambda a, b, x: (x + 1, a is b),
        lambda a, b, x: (x + 1, a == b),
        lambda a, b, x: (x + 1, a in [b]),
        lambda a, b, x: (x + 1, len({id(a), id(b)}), a is not b),
    ]
    for make in pairs:
        for program in programs:
            dynajit.reset()
            compiled = dynajit.compile(program, backend="eager")
            for turn in range(8):
                a, b = make()
                for one, other in ((a, b), (a, a)) if turn % 2 else ((a, a), (a, b)):
                    assert compiled(one, other, torch.ones(1)) == program(one, other, torch.ones(1)), (make(), turn)
        hashed = dynajit.compile(lambda a, b, x: (x + 1, len({a: 1, b: 2})), backend="eager")
        if not isinstance(make()[0], types.MappingProxyType):
            for turn in range(8):
                a, b = make()
                for one, other in ((a, b), (a, a)) if turn % 2 else ((a, a), (a, b)):
                    assert hashed(one, other, torch.ones(1))[1] == len({one: 1, other: 2}), (make(), turn)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.float64, np.float32, np.float16])
def test_numpy_numbers_that_change_have_two_variants(kind: Any) -> None:
    def program(x: Tensor, n: Any) -> Any:
        return x + n, x.new_ones(int(n)), x[: int(n)], float(n), n.dtype, n

    compiled = dynajit.compile(program, backend="eager")
    seen: list[Any] = []
    x = torch.arange(12.0)
    with records.listen(seen.append):
        for number in range(2, 9):
            got, expected = compiled(x, kind(number)), program(x, kind(number))
            torch.testing.assert_close(got[:3], expected[:3], rtol=0, atol=0)
            assert got[3:] == expected[3:] and type(got[-1]) is kind
    assert len(seen) == 2


def test_arithmetic_of_numpy_numbers() -> None:
    programs: list[Any] = [
        lambda x, n: (x * (n * 2 + 1), n + 1, -n, n - 1.5, 2.5 * n),
        lambda x, n: x + 1 if n > 3 else x - n,
        lambda x, n: (x, n / 2, n // 2, n % 3, n**2, np.sqrt(n), np.maximum(n, 3)),
        lambda x, n: (x + [1, 2, 3, 4, 5, 6, 7][int(n) % 7], {4: 1}.get(n)),
        lambda x, n: (x * 2, n == 4, n != 4.0, bool(n), n < np.int64(5), str(n), hash(n)),
        lambda x, n: (x, n * n * n * n * n * n * n * n * n * n * n * n * n),
    ]
    for program in programs:
        for values in ((2, 3, 4, 5, 6), (2, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, -(1 << 62), 0, 1)):
            for kind in (np.int64, np.float64, np.int32, np.float32):
                if kind is np.int32 and max(values) > 1 << 30:
                    continue
                dynajit.reset()
                compiled = dynajit.compile(program, backend="eager")
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    for value in values:
                        got, expected = (each(torch.ones(2), kind(value)) for each in (compiled, program))
                        assert repr(got) == repr(expected) and [*map(type, got)] == [*map(type, expected)]


def test_numpy_zeros_keep_their_sign() -> None:
    compiled = dynajit.compile(lambda x, n: (x * n, n), backend="eager")
    for number in (1.0, 2.0, -0.0, 0.0, float("nan"), float("inf"), 3.0):
        got, expected = compiled(torch.ones(1), np.float64(number)), (torch.ones(1) * number, np.float64(number))
        assert repr(got) == repr(expected)


INDEXED: dict[str, Any] = {
    "last": lambda a, n: a[n - 1],
    "from the end": lambda a, n: a[-n],
    "of two": lambda a, n: a[n, 0],
    "second": lambda a, n: a[0, n],
    "both": lambda a, n: a[n, n - 1],
    "beside a slice": lambda a, n: a[1:3, n],
    "slice of n": lambda a, n: a[n:, n],
    "new dimension": lambda a, n: a[None, n],
    "behind an ellipsis": lambda a, n: a[..., n],
    "before an ellipsis": lambda a, n: a[n, ...],
    "written": lambda a, n: a.clone().index_fill_(0, torch.tensor(0), a[n, n].item()),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_that_vary_have_two_variants(name: str) -> None:
    index = INDEXED[name]
    a = torch.arange(81.0).reshape(9, 9)

    def program(a: Tensor, b: Tensor) -> Tensor:
        return index(a, b.size(0)) * 2  # type: ignore[no-any-return]

    for backend in ("eager", "codegen"):
        dynajit.reset()
        compiled = dynajit.compile(program, backend=backend)
        seen: list[Any] = []
        with records.listen(seen.append):
            for size in range(2, 8):
                assert torch.equal(compiled(a, torch.ones(size)), program(a, torch.ones(size)))
        assert len(seen) <= 2 + 2 * ("item" in index.__code__.co_names)
        with pytest.raises(IndexError) as raised:
            compiled(a, torch.ones(12))
        with pytest.raises(IndexError, match=re.escape(str(raised.value))):
            program(a, torch.ones(12))


def test_an_index_that_varies_gives_a_view_with_a_gradient() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        row = a[b.size(0)]
        row.add_(1)
        return row * 2

    compiled = dynajit.compile(program, backend="eager")
    for size in (2, 3, 4):
        leaves = [torch.ones(6, 2, requires_grad=True) for _ in range(2)]
        for leaf, call in zip(leaves, (compiled, program), strict=True):
            call(leaf.clone(), torch.ones(size)).sum().backward()
        assert torch.equal(*(leaf.grad for leaf in leaves if leaf.grad is not None))


@pytest.mark.parametrize("make", [tuple, list])
def test_a_loop_over_an_iterator_across_a_break_compiles_its_body_once(make: Any) -> None:
    def inside(items: Any, x: Tensor) -> Tensor:
        for item in iter(items):
            x = x + item
            dynajit.graph_break()
        return x

    def handed_over(items: Any, x: Tensor) -> Tensor:
        iterator = iter(items)
        x = x * next(iterator)
        dynajit.graph_break()
        for item in iterator:
            x = x + item
        return x

    for program in (inside, handed_over):
        dynajit.reset()
        compiled = dynajit.compile(program, backend="eager")
        seen: list[Any] = []
        with records.listen(seen.append):
            for _ in range(2):
                assert torch.equal(compiled(make(range(5, 10)), torch.ones(2)), program(range(5, 10), torch.ones(2)))
        bodies = {record.compile_id.split("/")[0] for record in seen}
        assert len(bodies) == len(seen)


def _hooked(x: Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = x * 2
    handle = y.register_hook(lambda gradient: gradient * 3)
    y.sum().backward()
    handle.remove()
    return x.grad


def _hooked_leaf(x: Tensor) -> Any:
    leaf = x.detach().requires_grad_()
    with leaf.register_hook(lambda gradient: gradient * 3):
        y = leaf * x
    y.sum().backward()
    return leaf.grad


def _context_variables(x: Tensor) -> Any:
    one, other = (contextvars.ContextVar(name, default=2) for name in "ab")
    one.set(3)
    dynajit.graph_break()
    token = other.set(4)
    y = x * one.get() + other.get()
    dynajit.graph_break()
    other.reset(token)
    return y + other.get()


def _scheduled(x: Tensor) -> Any:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(2):
        (weight * x).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return weight.detach() * optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("program", [_hooked, _hooked_leaf, _context_variables, _scheduled])
def test_what_the_function_itself_makes_at_each_call(program: Any) -> None:
    assert_same(program, torch.ones(3))


def test_two_context_variables_that_become_one() -> None:
    def program(x: Tensor, one: Any, other: Any) -> Any:
        token = one.set(5)
        y = x * other.get()
        one.reset(token)
        return y

    one, other = (contextvars.ContextVar(name, default=2) for name in "ab")
    compiled = dynajit.compile(program, backend="eager")
    x = torch.ones(3)
    for pair in ((one, other), (one, one), (other, one), (other, other)):
        torch.testing.assert_close(compiled(x, *pair), program(x, *pair), rtol=0, atol=0)
