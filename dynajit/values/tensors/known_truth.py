"""Truth values of tensors that are known before they are computed.

In: the node of a tensor that a branch asks. Out: the answer, or None. Random numbers of `torch.rand` are at least 0 and
below 1, whatever is drawn: `torch.rand([]) < self.layerdrop` is False where nothing is dropped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

# a comparison of random numbers with a number -> what it is where the number is at most 0, and at least 1
_Answers = dict[Callable[..., Any], bool]
_AT_MOST_0: _Answers = {operator.lt: False, operator.ge: True}
_AT_LEAST_1: _Answers = {operator.lt: True, operator.le: True, operator.gt: False, operator.ge: False}
_READING = _AT_LEAST_1.keys()


def known_truth(node: fx.Node) -> bool | None:
    """What `bool` of the tensor gives, if nothing has written to it or to what it is computed from."""
    if node.target not in _READING or node.kwargs or node.users:
        return None
    drawn, bound = node.args
    if not isinstance(drawn, fx.Node) or drawn.target is not torch.rand or "out" in drawn.kwargs:
        return None
    if type(bound) not in (int, float) or any(user.target not in _READING for user in drawn.users):
        return None
    assert isinstance(bound, (int, float)) and callable(node.target)
    answers = _AT_MOST_0 if bound <= 0 else _AT_LEAST_1 if bound >= 1 else {}
    return answers.get(node.target)


def may_be_known(node: fx.Node) -> bool:
    """Whether an answer may be known of the tensor, or of what is computed from it."""
    return node.target is torch.rand or node.target in _READING
