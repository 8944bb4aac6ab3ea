"""A break at each kind of instruction that can run user code, in straight-line code: eager's results, two graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_harness import skipped
from torch import Tensor

import dynajit
from dynajit.graph.builder import GraphBuilder
from dynajit.testing import assert_same


class Noisy:
    """Prints whatever is done to it, so that each operation breaks the graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.items: dict[Any, Any] = {}

    @property
    def value(self) -> Tensor:
        print("get")
        return self.tensor + 1

    @value.setter
    def value(self, value: Tensor) -> None:
        print("set")
        self.tensor = value

    @value.deleter
    def value(self) -> None:
        print("delete")
        self.tensor = self.tensor * 3

    def method(self, other: Tensor, scale: float = 1.0) -> Tensor:
        print("method", scale)
        return self.tensor * other * scale

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        print("call", len(args), sorted(kwargs))
        return sum([*args, *kwargs.values()], self.tensor)

    def __getitem__(self, key: Any) -> Tensor:
        print("getitem", key)
        return self.tensor + 2

    def __setitem__(self, key: Any, value: Any) -> None:
        print("setitem", key)
        self.items[str(key)] = value

    def __delitem__(self, key: Any) -> None:
        print("delitem", key)
        del self.items[str(key)]

    def __add__(self, other: Tensor) -> Tensor:
        print("add")
        return self.tensor + other

    def __radd__(self, other: Tensor) -> Tensor:
        print("radd")
        return other + self.tensor

    def __iadd__(self, other: Tensor) -> Noisy:
        print("iadd")
        self.tensor = self.tensor + other
        return self

    def __matmul__(self, other: Tensor) -> Tensor:
        print("matmul")
        return self.tensor @ other

    def __neg__(self) -> Tensor:
        print("neg")
        return -self.tensor

    def __pos__(self) -> Tensor:
        print("pos")
        return self.tensor + 5

    def __invert__(self) -> Tensor:
        print("invert")
        return self.tensor * 7

    def __bool__(self) -> bool:
        print("bool")
        return False

    def __len__(self) -> int:
        print("len")
        return 2

    def __contains__(self, item: object) -> bool:
        print("contains")
        return True

    def __lt__(self, other: Any) -> Tensor:
        print("less")
        return self.tensor < other

    def __iter__(self) -> Iterator[Tensor]:
        print("iter")
        return iter([self.tensor, self.tensor * 2])

    def __format__(self, spec: str) -> str:
        print("format", spec)
        return f"<{spec}>"

    def __str__(self) -> str:
        print("str")
        return "noisy"

    def __repr__(self) -> str:
        print("repr")
        return "Noisy"


def call(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    z = n(y, x + 1)
    return z + y


def call_with_keywords(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return (y + 1) * n(y, x + 1, extra=y * 2) + y


def call_with_unpacking(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    args, kwargs = [y, y + 1], {"a": y * 2}
    return n(*args, x, **kwargs) + y


def method_call(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return [y * 2, n.method(y, scale=2.0) + y]


def get_attribute(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return y * n.value * y.cos()


def set_attribute(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    n.value = y + 1
    return n.tensor * y


def delete_attribute(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    del n.value
    return n.tensor * y


def subscript(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return (y, n["key"] + y)


def store_subscript(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    n["key"] = y
    return y + n.items["key"]


def delete_subscript(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    n.items["key"] = y
    del n["key"]
    return y.cos(), len(n.items)


def slice_subscript(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return y + n[1:2] + n[1:2:3]


def store_slice(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    n[0:2] = y
    return y.cos()


def augmented_subscript(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    n["k"] += y
    return y.cos()


def augmented_attribute(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    n.value += y
    return y.cos() + n.tensor


def binary(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return (n + y) * y


def binary_reflected(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return [1, 2][0] + (y.size(0) + n) * y


def binary_in_place(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    n += y
    return n.tensor * y


def matrix_product(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return y * (n @ y)


def unary(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return y + -n, y


def unary_positive(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return y + +n


def unary_invert(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return y + ~n


def unary_not(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    z = not n
    return y.cos(), z


def truth(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    z = y.cos() if n else y.tan()
    return z + y


def length(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    return y * len(n)


def contains(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    flag = y in n
    return y.cos(), flag


def compare(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    z = n < y
    return y.where(z, y + 1)


def unpack(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    a, b = n
    return a * b + y


def unpack_star(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    a, *b = n
    return a * b[0] + y


def list_display(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    made = [y, *n, y + 1]
    return made[1] * y


def f_string(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    text = f"a {n} b"
    return y.cos(), text


def f_string_with_format(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    text = f"{len('ab')} {n:>8} {n!r} {n!s:>9}"
    return y.cos(), text


def import_inside(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    import this_module_is_read_late as late  # type: ignore[import-not-found]

    return y.cos() * late.FACTOR


def match_sequence(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    match [n(y), y]:
        case [a, b]:
            return a + b
    return None


def print_several(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    print(y.shape, n.tensor.shape, sep=", ", end=";\n")
    return y.cos()


INSTRUCTIONS: list[tuple[Callable[..., Any], int, int]] = [
    (call, 2, 1),
    (call_with_keywords, 2, 1),
    (call_with_unpacking, 2, 1),
    (method_call, 2, 1),
    (get_attribute, 2, 1),
    (set_attribute, 2, 1),
    (delete_attribute, 2, 1),
    (subscript, 2, 1),
    (store_subscript, 2, 1),
    (delete_subscript, 2, 1),
    (slice_subscript, 3, 2),
    (store_slice, 2, 1),
    (augmented_subscript, 3, 2),
    (augmented_attribute, 3, 2),
    (binary, 2, 1),
    (binary_reflected, 2, 1),
    (binary_in_place, 2, 1),
    (matrix_product, 2, 1),
    (unary, 2, 1),
    (unary_positive, 2, 1),
    (unary_invert, 2, 1),
    (unary_not, 2, 1),
    (truth, 2, 1),
    (length, 2, 1),
    (contains, 2, 1),
    (compare, 2, 1),
    (unpack, 3, 1),
    (unpack_star, 3, 1),
    (list_display, 3, 1),
    (f_string, 2, 1),
    (f_string_with_format, 2, 3),
    (match_sequence, 2, 1),
    (print_several, 2, 1),
]


# these add a key to a dictionary that a later frame looks at
GROWING = (store_subscript, delete_subscript, store_slice, augmented_subscript)


@pytest.mark.parametrize(("fn", "graphs", "breaks"), INSTRUCTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_break_at(fn: Callable[..., Any], graphs: int, breaks: int) -> None:
    recompiles = 0 if fn not in GROWING else None
    assert_same(fn, torch.randn(3, 3), Noisy(torch.randn(3, 3)), graphs=graphs, breaks=breaks, recompiles=recompiles)


def test_import_of_a_module_that_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "this_module_is_read_late.py").write_text("print('loading')\nFACTOR = 3.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    x = torch.randn(3)
    report = dynajit.explain(import_inside)(x, None)
    assert (report.graph_count, [brk.kind for brk in report.break_reasons]) == (2, ["import"])
    assert torch.equal(report.result, x.sin().cos() * 3.0)
    sys.modules.pop("this_module_is_read_late")


def several(x: Tensor, count: int) -> Tensor:
    if count > 0:
        x = (x + 1).sin()
        print("1")
    if count > 1:
        x = (x + 1).sin()
        print("2")
    if count > 2:
        x = (x + 1).sin()
        print("3")
    if count > 3:
        x = (x + 1).sin()
        print("4")
    if count > 4:
        x = (x + 1).sin()
        print("5")
    if count > 5:
        x = (x + 1).sin()
        print("6")
    if count > 6:
        x = (x + 1).sin()
        print("7")
    if count > 7:
        x = (x + 1).sin()
        print("8")
    return x.cos()


@pytest.mark.parametrize("count", range(9))
def test_several_breaks_in_a_row(count: int) -> None:
    assert_same(several, torch.randn(3), count, graphs=count + 1, breaks=count, recompiles=0)


def straight(x: Tensor, noisy: bool) -> Tensor:
    for _ in range(30):
        x = (x + 1).sin()
    x = step(x, noisy)
    x = step(x, noisy)
    x = step(x, noisy)
    x = step(x, noisy)
    return x


def step(x: Tensor, noisy: bool) -> Tensor:
    for _ in range(30):
        x = (x + 1).sin()
    if noisy:
        print("step")
    for _ in range(30):
        x = (x + 1).sin()
    return x


def test_everything_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four breaks cost a few instructions more than none: nothing is interpreted twice but the breaking instruction."""
    traced = []
    original = GraphBuilder.create
    monkeypatch.setattr(GraphBuilder, "create", lambda *args, **kwargs: traced.append(1) or original(*args, **kwargs))
    counts = []
    for noisy in (False, True):
        traced.clear()
        report = dynajit.explain(straight)(torch.randn(3), noisy)
        counts.append((len(traced), report.op_count, report.graph_count))
    assert counts == [(540, 540, 1), (540, 540, 5)]


def g(x: Tensor) -> Tensor:
    print("g")
    return x * 2


def h(x: Tensor, k: int = 3) -> Tensor:
    print("h", k)
    return x * k


def nested_calls(x: Tensor) -> Any:
    a = x.sin()
    return torch.stack([a + g(h(a)), h(x, k=int(len(a) + 1))]) + g(a) * h(g(a) + h(a))


def operands_below(x: Tensor) -> Any:
    return [x + 1, (x * 2, {"k": x + 3, "p": print("in the middle")}, x.sin()), f"{x.shape[0]}" + str(h(x).shape)]


def operands_with_nulls(x: Tensor) -> Any:
    return torch.add(
        torch.mul(x, 2, out=None), torch.sin(x.clone().add_(g(x).max(dim=0, keepdim=True).values)), alpha=h(x).dim()
    )


def star_and_keywords(x: Tensor) -> Any:
    named = {"b": x}
    return {"a": x + 1, **named, "c": [*(x, h(x))]}, (lambda *a, **k: (a, k))(*[x, g(x)], z=h(x), **named)


def chained(x: Tensor) -> Any:
    return x.sin().add(g(x)).mul(h(x)).cos()


def comparisons(x: Tensor) -> Any:
    y = x.sin()
    return 1 < len(g(y)) <= len(h(y)) < 100, y.cos()


def conditional(x: Tensor, flag: bool) -> Any:
    return (x.sin() + (g(x) if flag else h(x))) * (x.cos() if not flag else h(x) and 2)


@pytest.mark.parametrize(
    "fn", [nested_calls, operands_below, operands_with_nulls, star_and_keywords, chained, comparisons]
)
def test_operands_wait_on_the_stack(fn: Callable[..., Any]) -> None:
    report = assert_same(fn, torch.randn(3), recompiles=0)
    assert not skipped(report), report


@pytest.mark.parametrize("flag", [True, False])
def test_break_in_a_conditional_expression(flag: bool) -> None:
    assert_same(conditional, torch.randn(3) + 10, flag, recompiles=0)
