"""Models of recurrent networks over packed sequences.

In: the call of a network's `forward`. Out: a break at the call where what it is given is a packed sequence: its sizes
are in a tensor, and each step looks at them. Anything else is traced.
"""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import PackedSequence

from dynajit.report import breaks
from dynajit.values.core.registry import asked_first
from dynajit.values.core.value import GraphBreak, Tracer, Value


@asked_first(torch.nn.RNN.forward, torch.nn.LSTM.forward, torch.nn.GRU.forward)
def forward(tx: Tracer, self: Value, input: Value, *args: Value, **kwargs: Value) -> None:
    if input.py_type() is PackedSequence:
        raise GraphBreak(breaks.DATA_DEPENDENT, f"{self.py_type().__name__} of a packed sequence")
