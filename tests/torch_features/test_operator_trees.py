"""Higher-order operators over trees: every operator with every container that torch's pytree knows, as operand and as
result. What an operator means in plain Python is the oracle: torch runs these by its own compiler, which refuses some.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import dynajit
from dynajit.testing import assert_same, compare

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Both:
    left: torch.Tensor
    right: torch.Tensor


pytree.register_dataclass(Both)

TREES: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda left, right: (left, right),
    "dict": lambda left, right: {"u": left, "v": right},
    "named": Pair,
    "dataclass": Both,
    "nested": lambda left, right: [{"k": (left,)}, [right]],
    "ordered": lambda left, right: collections.OrderedDict(z=left, a=right),
    "default": lambda left, right: collections.defaultdict(list, z=left, a=right),
    "deque": lambda left, right: collections.deque([left, right]),
}
X = torch.arange(12.0).reshape(4, 3) / 7 - 0.5


def _leaves(tree: Any) -> Any:
    return pytree.tree_leaves(tree)


def _stacked(trees: list[Any]) -> Any:
    _, structure = pytree.tree_flatten(trees[0])
    return pytree.tree_unflatten([torch.stack(list(parts)) for parts in zip(*map(_leaves, trees))], structure)


def choose(make: Any, x: Any) -> tuple[Any, Any]:
    def yes(tree: Any) -> Any:
        left, right = _leaves(tree)
        return make(left + 1, right * 2)

    def no(tree: Any) -> Any:
        left, right = _leaves(tree)
        return make(left - 1, right * 3)

    operand = make(x, x * 2)
    return lambda: torch.cond(x.sum() > 0, yes, no, (operand,)), lambda: (yes if x.sum() > 0 else no)(operand)


def loop(make: Any, x: Any) -> tuple[Any, Any]:
    def body(count: Any, tree: Any) -> Any:
        left, right = _leaves(tree)
        return count + 1, make(left * 2, right + 1)

    start = (torch.tensor(0), make(x, x * 3))

    def plain() -> Any:
        state = start
        while state[0] < 3:
            state = body(*state)
        return state

    return lambda: while_loop(lambda count, tree: count < 3, body, start), plain


def running(make: Any, x: Any) -> tuple[Any, Any]:
    def step(carry: Any, tree: Any) -> Any:
        (left, right), (first, second) = _leaves(carry), _leaves(tree)
        return make(left + first, right * 2), make(second * 2, right.clone())

    start = make(x[0] * 0, x[0] * 0 + 1)

    def plain() -> Any:
        carry, results = start, []
        for row in x:
            carry, result = step(carry, make(row, row * 2))
            results.append(result)
        return carry, _stacked(results)

    return lambda: scan(step, start, make(x, x * 2)), plain


def over(make: Any, x: Any) -> tuple[Any, Any]:
    def each(tree: Any) -> Any:
        left, right = _leaves(tree)
        return make(left * 2, right + 1)

    return (
        lambda: torch_map(each, make(x, x * 3)),
        lambda: _stacked([each(make(row, row * 3)) for row in x]),
    )


def combining(make: Any, x: Any) -> tuple[Any, Any]:
    def combine(before: Any, after: Any) -> Any:
        (left, right), (first, second) = _leaves(before), _leaves(after)
        return make(left + first, torch.maximum(right, second))

    def plain() -> Any:
        states = [make(x[0], x[0] * 3)]
        for row in x[1:]:
            states.append(combine(states[-1], make(row, row * 3)))
        return _stacked(states)

    return lambda: associative_scan(combine, make(x, x * 3), 0, combine_mode="generic"), plain


@pytest.mark.parametrize("operator", [choose, loop, running, over, combining], ids=lambda one: one.__name__)
@pytest.mark.parametrize("tree", TREES)
def test_trees_as_operands_and_results(operator: Callable[..., Any], tree: str) -> None:
    make = TREES[tree]
    report = dynajit.explain(lambda x: operator(make, x)[0](), backend="eager")(X)
    found = dynajit.compile(lambda x: operator(make, x)[0](), backend="eager", fullgraph=True)(X)
    compare(found, operator(make, X)[1](), exact=False)
    assert report.graph_count == 1


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_where_a_scan_starts_and_what_it_stacks(dim: int, reverse: bool) -> None:
    def program(x):
        start = x.select(dim, 0) * 0
        return scan(lambda carry, part: (carry + part, (part * 2, part.sum())), start, x, dim=dim, reverse=reverse)

    assert_same(program, X, repeat=1, graphs=1, breaks=0)


def test_a_scan_of_leaves_in_another_order() -> None:
    def program(x):
        def combine(left, right):
            return {"a": left["a"] + right["a"], "b": left["b"] * right["b"]}

        return associative_scan(combine, {"b": x, "a": x * 2}, 0, combine_mode="generic")

    assert_same(program, X, repeat=1, graphs=1, breaks=0)


def _largest(parts: Any) -> Any:
    return max(parts["g"].sum(), parts["h"].sum()) * parts["g"]


@pytest.mark.parametrize(
    "program",
    [
        # a branch that can't be captured
        lambda x: torch.cond(x.sum() > 0, lambda d: d["g"] + 1, _largest, [{"g": x, "h": x * 2}]),
        lambda x: torch.cond(x.sum() > 0, _largest, lambda d: d["g"] + 1, [{"g": x, "h": x * 2}]),
        # results that differ in structure, in kind or in order
        lambda x: torch.cond(x.sum() > 5, lambda y: (y * 1, 3), lambda y: (y * 2, 4), (x,)),
        # what is carried is no tensor
        lambda x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x)),
        # operands that torch refuses
        lambda x: torch.cond(x.sum() > 5, lambda y, n: y * n, lambda y, n: y, (x, 3)),
        lambda x: torch.cond(x.sum() > 5, lambda y, n: y * 2, lambda y, n: y, (x, None)),
        lambda x: scan(lambda carry, part: (carry, part * 2), 1, x),
        lambda x: scan(lambda carry, part: (carry + part, part * 2), x[0], x[:0]),
    ],
)
def test_what_is_not_captured_is_torchs_own(program: Callable[..., Any]) -> None:
    assert_same(program, X, repeat=1)
    assert dynajit.explain(program, backend="eager")(X).graph_break_count == 1 or _raises(program)


def _raises(program: Callable[..., Any]) -> bool:
    with pytest.raises(RuntimeError):
        program(X)
    return True


def test_branches_of_another_structure_are_refused() -> None:
    for other in (lambda y: [y * 1, y * 2], lambda y: {"b": y * 1, "a": y * 2}, lambda y: (y * 2, None)):
        with pytest.raises(Exception, match="higher order operator"):
            dynajit.compile(lambda x, other=other: torch.cond(x.sum() > 5, lambda y: (y * 1, y * 2), other, (x,)))(X)
