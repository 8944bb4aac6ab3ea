"""Models of recurrent networks over packed sequences.

In: the call of a network's `forward`. Out: a break at the call where what it is given is a packed sequence: its sizes
are in a tensor, and each step looks at them. Anything else is traced.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from dynajit.report import breaks
from dynajit.values.core.registry import builtin, tail_call
from dynajit.values.core.value import GraphBreak, Tracer, Value


def _network(kind: type[torch.nn.RNNBase]) -> None:
    function: Any = kind.forward
    assert isinstance(function, types.FunctionType)

    @builtin(function)
    @tail_call
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        direct = tx.take_direct()
        given = args[1] if len(args) > 1 else kwargs.get("input")
        if given is not None and given.py_type() is PackedSequence:
            raise GraphBreak(breaks.DATA_DEPENDENT, f"{kind.__name__} of a packed sequence")
        return tx.inline_body(function, args, kwargs, direct)


for _kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
    _network(_kind)
