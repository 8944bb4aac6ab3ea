"""Operators between sets, views of dictionaries and other containers: the same result, or the same error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynajit

SIDES = ["d.keys()", "d.values()", "d.items()", "{1}", "frozenset([1])", "[1]", "d"]
OPERATORS = ["|", "&", "-", "^", "<=", "<", ">", "==", "!="]


def outcome(call: Any) -> Any:
    try:
        found = call(torch.ones(2), {"a": 1})[1]
    except Exception as error:
        return type(error), str(error)
    return type(found), found


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("made_inside", [False, True])
def test_between_all_kinds(operator: str, made_inside: bool) -> None:
    for left in SIDES:
        for right in SIDES:
            made = "d = {**d, 'b': 1}" if made_inside else "pass"
            namespace: dict[str, Any] = {}
            exec(f"def program(x, d):\n    {made}\n    return x + 1, {left} {operator} {right}", namespace)
            program = namespace["program"]
            compiled = dynajit.compile(program, backend="eager")
            assert outcome(compiled) == outcome(program), (left, operator, right)
