"""A break at each kind of instruction that can run user code, in straight-line code: eager's results, two graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
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
    text = f"{len('ab')} {n:>8} {n!r} {n!s:x}"
    return y.cos(), text


def import_inside(x: Tensor, n: Noisy) -> Any:
    import sys
    y = x.sin()
    sys.modules.pop("this_module_is_read_late", None)
    import colorsys
    return y.cos() * colorsys.ONE_THIRD


def match_sequence(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    match [n(y), y]:
        case [a, b]:
            return a + b
    return None


def assert_statement(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    assert n < 100 is not None, "message"
    return y.cos()


def print_several(x: Tensor, n: Noisy) -> Any:
    y = x.sin()
    print(y.shape, n.tensor.shape, sep=", ", end=";\n")
    return y.cos()


INSTRUCTIONS: list[tuple[Callable[..., Any], int, int]] = [
    (call, 2, 1), (call_with_keywords, 2, 1), (call_with_unpacking, 2, 1), (method_call, 2, 1), (get_attribute, 2, 1),
    (set_attribute, 2, 1), (delete_attribute, 2, 1), (subscript, 2, 1), (store_subscript, 2, 1), (delete_subscript, 2, 1),
    (slice_subscript, 3, 2), (store_slice, 2, 1), (augmented_subscript, 3, 2), (augmented_attribute, 3, 2), (binary, 2, 1),
    (binary_reflected, 2, 1), (binary_in_place, 2, 1), (matrix_product, 2, 1), (unary, 2, 1), (unary_positive, 2, 1),
    (unary_invert, 2, 1), (unary_not, 2, 1), (truth, 2, 1), (length, 2, 1), (contains, 2, 1), (compare, 2, 1), (unpack, 2, 1),
    (unpack_star, 2, 1), (list_display, 2, 1), (f_string, 2, 1), (f_string_with_format, 2, 3), (match_sequence, 2, 1),
    (print_several, 2, 1), (import_inside, 1, 1),
]


@pytest.mark.parametrize(("fn", "graphs", "breaks"), INSTRUCTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_break_at(fn: Callable[..., Any], graphs: int, breaks: int) -> None:
    assert_same(fn, torch.randn(3, 3), Noisy(torch.randn(3, 3)), graphs=graphs, breaks=breaks, recompiles=0)
