"""Operators of torch's database called with sizes that vary: after three of them nothing more is captured.

A tenth of the operators, as in `test_operators.py`. Each size of a sample's tensors is multiplied in turn, by repeating
what is there, so that indices stay in range; what eager refuses says nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

pytest.importorskip("expecttest", reason="torch's operator database needs it")

from operators_compare import Skip, own_code, seeded
from run_operators import name_of
from test_operators import CHOSEN

import dynajit
from dynajit.report import records

SIZES = range(1, 7)
# operator -> why sizes that vary are captured late
KNOWN = {
    "tensor_split": "a number of parts is settled for a few sizes at a time",
    "_chunk_cat": "a number of parts is settled for a few sizes at a time",
}

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def samples(op: Any) -> Iterator[Arguments]:
    """The first sample of each kind of arguments."""
    known = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in known else min(known, key=str, default=None)
    kinds = set()
    for sample in op.sample_inputs("cpu", dtype) if known else ():
        arguments = (sample.input, *sample.args), sample.kwargs
        kind = str(tree_map(lambda part: part.dim() if isinstance(part, Tensor) else type(part), arguments))
        if kind not in kinds and len(kinds) < 4:
            kinds.add(kind)
            yield arguments


def sizes_in(arguments: Arguments) -> list[int]:
    tensors = [part for part in tree_leaves(arguments) if isinstance(part, Tensor)]
    if any(tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() > 4000 for tensor in tensors):
        return []
    return sorted({size for tensor in tensors for size in tensor.shape if size > 1})[-2:]


def resized(arguments: Arguments, size: int, times: int) -> Arguments:
    def larger(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        return part.detach().repeat([times if each == size else 1 for each in part.shape])

    made: Arguments = tree_map(larger, arguments)
    return made


def captured_at(op: Callable[..., Any], arguments: Arguments, size: int) -> list[int]:
    """At which calls something is captured. Raises Skip where eager mode refuses a size."""
    calls = [resized(arguments, size, times) for times in SIZES]
    for args, kwargs in calls:
        try:
            op(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            raise Skip(str(error)) from None
    dynajit.reset()
    compiled, found = dynajit.compile(own_code(op, "sample"), backend="eager"), []
    for number, (args, kwargs) in enumerate(calls, 1):
        seen: list[records.CompileRecord] = []
        with records.listen(seen.append):
            compiled(*args, **kwargs)
        found += [number] if seen else []
    return found


@pytest.mark.parametrize("op", CHOSEN, ids=name_of)
def test_three_sizes_are_enough(op: Any) -> None:
    late = []
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for arguments in samples(op):
            for size in sizes_in(arguments):
                try:
                    found = captured_at(op.op, arguments, size)
                except Skip:
                    continue
                late += [(size, found)] if found[-1] > 3 else []
    assert not late or name_of(op) in KNOWN, late
