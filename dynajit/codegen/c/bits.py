"""Elements of 16-bit floats that are only moved, chosen between, or given another sign: as integers.

In:  a kernel of the schedule. Out: the same kernel, in which such values have the dtype int16: nothing is converted to
     float32 and back, which for float16 is dear where elements do not lie in rows (padding, gathers, flips).
"""

from __future__ import annotations

import dataclasses

import torch

from dynajit.loopir import nodes
from dynajit.loopir.nodes import Const, Op, Scalar, Scan
from dynajit.op_facts import LOW_PRECISION
from dynajit.schedule.kernel import Kernel, Load, LoadAt, Store, load, load_at

_BITS = torch.int16
# What a change of sign does to the bits.
_SIGNS = {"neg": ("xor", -0x8000), "abs": ("and", 0x7FFF)}


def with_bits(kernel: Kernel) -> Kernel:
    """The kernel with values that are only moved as integers."""
    running = isinstance(kernel.group.members[0], Scan)  # its elements are summed, whatever they come from
    if running or not any(tensor.dtype in LOW_PRECISION for tensor in kernel.writes):
        return kernel
    sections = [
        dataclasses.replace(
            section,
            stores=[_stored(store) for store in section.stores],
            row_stores=[_stored(store) for store in section.row_stores],
            updates=[
                dataclasses.replace(update, value=_bits(update.value) or update.value)
                if update.kind == "set"
                else update
                for update in section.updates
            ],
        )
        for section in kernel.sections
    ]
    return dataclasses.replace(kernel, sections=sections)


def _stored(store: Store) -> Store:
    value = _bits(store.value) if store.value.dtype is store.tensor.dtype else None
    return store if value is None else dataclasses.replace(store, value=value)


def _bits(value: Scalar) -> Scalar | None:
    """The bits of a 16-bit float that is only moved; None of one that is computed."""
    return _bits_as(value, value.dtype) if value.dtype in LOW_PRECISION else None


def _bits_as(value: Scalar, dtype: torch.dtype) -> Scalar | None:
    """The bits of a value of that dtype, or of one of it that is widened to float32, or of a float32 that is rounded
    to it in the end: only numbers can be others, and rounding comes to the same before a choice or a change of sign."""
    if isinstance(value, Const):
        return nodes.const(int(torch.tensor(value.value, dtype=dtype).view(_BITS)), _BITS)
    if isinstance(value, Load):
        return load(value.tensor, value.address, _BITS) if value.dtype is dtype else None
    if isinstance(value, LoadAt):
        return load_at(value.tensor, value.arguments[0], value.even, _BITS) if value.dtype is dtype else None
    if not isinstance(value, Op):
        return None
    first = value.arguments[0]
    if value.name == "convert":
        return _bits_as(first, dtype) if first.dtype in (dtype, torch.float32) else None
    if value.name in _SIGNS:
        name, mask = _SIGNS[value.name]
        bits = _bits_as(first, dtype)
        return None if bits is None else nodes.op(name, (bits, nodes.const(mask, _BITS)), _BITS)
    if value.name not in ("where", "guard"):
        return None
    then, otherwise = (_bits_as(argument, dtype) for argument in value.arguments[1:])
    return None if then is None or otherwise is None else nodes.op(value.name, (first, then, otherwise), _BITS)
