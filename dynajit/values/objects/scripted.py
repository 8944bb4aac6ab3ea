"""Functions that the program gave to `torch.jit.script`.

In: such a function, and the arguments. Out: the trace of what it was made from, which computes the same: as
torch.compile sees them. Where another compiler's rules could be told from Python's, the graph ends and the function
itself is called: containers, which it copies, and exceptions, which it words otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynajit.guards.source import AttrSource
from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Raised, Tracer, Value

_ORIGINAL = "_torchdynamo_inline"  # as torch names it
_PLAIN = (torch.Tensor, int, float, bool, str, type(None), torch.dtype, torch.device)


def is_scripted(real: Any) -> bool:
    """Whether it is what `torch.jit.script` made of a function that is still known."""
    return type(real) is torch.jit.ScriptFunction and hasattr(real, _ORIGINAL)


def call_scripted(tx: Tracer, function: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """Call the model of a scripted function from outside."""
    if not all(issubclass(arg.py_type(), _PLAIN) for arg in (*args, *kwargs.values())):
        raise GraphBreak(breaks.UNKNOWN_CALL, "a scripted function, with a container")
    original = getattr(function.real_object, _ORIGINAL)
    with tx.not_resumable():
        try:
            return tx.call(tx.wrap(original, AttrSource(function.source, _ORIGINAL)), args, kwargs)
        except Raised:
            raise GraphBreak(breaks.UNKNOWN_CALL, "a scripted function that raises") from None
