"""`%` of a text or bytes: with a template that converts nothing, what has items may be left over, all else is too much;
with conversions, tuples of every class are their items, and tensors are asked for their text last."""

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import same

from dynajit.testing import assert_same

Pair = collections.namedtuple("Pair", "left right")


class Items(list[Any]):
    pass


class Both(tuple[Any, ...]):
    pass


class Text(str):
    pass


OPERANDS: list[Callable[[torch.Tensor], Any]] = [
    *(lambda x: [x, 1.0], lambda x: Items([x]), lambda x: {"a": x}, lambda x: (x,), lambda x: (), lambda x: Pair(x, 1)),
    *(lambda x: 1, lambda x: None, lambda x: "a", lambda x: Text("a"), lambda x: b"a", lambda x: {1}),
    *(lambda x: range(2), lambda x: int, lambda x: object(), lambda x: x),
    *(lambda x: x.sum(), lambda x: torch.nn.Parameter(x), lambda x: x.shape, lambda x: x.view(1, 2).shape),
    *(lambda x: (x, 1), lambda x: Both((1, x)), lambda x: torch.max(x, 0), lambda x: x.numpy()),
]


@pytest.mark.parametrize(
    "template", ["", "100 %%", "%s", "%r", "%d", "%.1f", "%s %s", "%(a)s", b"", b"%s", Text("%s"), bytearray(b"%r %d")]
)
@pytest.mark.parametrize("operand", OPERANDS)
def test_operands(template: Any, operand: Callable[[torch.Tensor], Any]) -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        y, found = x + 1, []
        for each in (given, operand(y)):
            try:
                found.append(template % each)
            except (TypeError, ValueError, RuntimeError) as error:
                found.append(str(error))
        return y, found

    x = torch.ones(2)
    assert_same(program, x, operand(x))


def test_subclasses_of_str_are_formatted_by_their_own_text() -> None:
    class Text(str):
        def __str__(self) -> str:
            return "own text"

    def program(text: Text) -> Any:
        return "%s|%5.3s" % (text, text), "%s" % text, f"{text}"  # noqa: UP031

    assert same(program, Text("x"))[1] == "own text"
