"""`%` with a template that converts nothing: what has items may be left over, all else is too much."""

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same

Pair = collections.namedtuple("Pair", "left right")


class Items(list[Any]):
    pass


class Text(str):
    pass


OPERANDS: list[Callable[[torch.Tensor], Any]] = [
    *(lambda x: [x, 1.0], lambda x: Items([x]), lambda x: {"a": x}, lambda x: (x,), lambda x: (), lambda x: Pair(x, 1)),
    *(lambda x: 1, lambda x: None, lambda x: "a", lambda x: Text("a"), lambda x: b"a", lambda x: {1}),
    *(lambda x: range(2), lambda x: int, lambda x: object(), lambda x: x),
]


@pytest.mark.parametrize("template", ["", "100 %%"])
@pytest.mark.parametrize("operand", OPERANDS)
def test_a_template_without_conversions(template: str, operand: Callable[[torch.Tensor], Any]) -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        y, found = x + 1, []
        for each in (given, operand(y)):
            try:
                found.append(template % each)
            except TypeError as error:
                found.append(str(error))
        return y, found

    x = torch.ones(2)
    assert_same(program, x, operand(x))
