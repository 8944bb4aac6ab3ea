"""dynajit/constants.py: what is written is read again, as JSON; what has no form is refused."""

import json
from typing import Any

import pytest
import torch

from dynajit.constants import NotData, decode, encode
from dynajit.outcomes import compare

VALUES: list[Any] = [
    *(None, True, 1, 1.0, -0.0, 1e-300, float("inf"), float("-inf"), float("nan"), 1 - 2j, complex("-0-0j"), "a\ud800"),
    *(b"\xff\x00", Ellipsis, NotImplemented, slice(1, None, 2), range(3, 9, 2), (1, (2.5, "x")), torch.Size([2, 3])),
    *(frozenset({1}), (frozenset({("a", 2)}),)),
    *(torch.float32, torch.strided, torch.channels_last, torch.device("cuda", 1)),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_there_and_back(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value))))
    compare(found, value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", [[1], {}, Exception(), int, (1, [2]), torch.zeros(1)], ids=repr)
def test_without_a_form(value: Any) -> None:
    with pytest.raises(NotData):
        encode(value)


@pytest.mark.parametrize("data", [{}, ["torch", "zeros"], ["torch", "nn.Linear"], ["device", 1], ["list", 1], ["x"]])
def test_what_nobody_wrote(data: Any) -> None:
    with pytest.raises(NotData):
        decode(data)
