"""Checks that look at tensors' values: torch.distributions' of parameters and samples, `torch._assert_async`, and
branches that raise (`assert (x > 0).all()`).

In: `torch._is_all_true(valid)` as torch.distributions asks it before it raises, or the truth that a program goes on
with. Out: yes, and a node that raises if not, upon which the original frame is run (`resume/rerun.py`) and raises in
its own words.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributions.utils

from dynajit.report import breaks
from dynajit.values.core.registry import builtin, constructor, models_of
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.objects import ObjVal
from dynajit.values.polyfills import constraints as polyfills
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.ops import torch_op
from dynajit.values.tensors.tensor import TensorVal

_UTILS: Any = torch.distributions.utils


@builtin(torch._is_all_true)
def is_all_true(tx: Tracer, valid: Value) -> Value:
    checked = tx.caller_module() == "torch.distributions.distribution" and _can_check(tx, valid)
    found = torch_op(tx, "call_function", torch._is_all_true, [valid], {})
    if not checked:
        return found
    _check(tx, found)
    return ConstVal(True)


@builtin(torch._assert_async)
def assert_async(tx: Tracer, input: Value, assert_msg: Value | None = None) -> None:
    """The graph checks the tensor; where it is false the frame runs again as written, which raises."""
    if tx.graph.has_written() and tx.graph.undo() is None:  # then the frame can't run again
        raise GraphBreak(breaks.MAY_RAISE, "torch._assert_async")
    if not _can_check(tx, input):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "torch._assert_async of a tensor that is not on the CPU")
    _check(tx, input)


def check_truth(tx: Tracer, valid: Value, wanted: bool) -> bool:
    """Whether the graph checks that a tensor's truth is the one wanted, for the program raises if it is not."""
    if not _can_check(tx, valid) or valid.fake.numel() != 1 or valid.fake.requires_grad:  # type: ignore[attr-defined]
        return False
    _check(tx, valid if wanted else torch_op(tx, "call_function", torch.logical_not, [valid], {}))
    return True


def _can_check(tx: Tracer, valid: Value) -> bool:
    return (
        isinstance(valid, TensorVal)
        and valid.fake.device.type == "cpu"
        and not tx.open_levels
        and (not tx.graph.has_written() or tx.graph.undo() is not None)
        and all(entry.symbol is not None or entry.real.device.type == "cpu" for entry in tx.graph.inputs)
    )


def _check(tx: Tracer, valid: Value) -> None:
    """The message is nobody's, for the frame that runs again raises its own; AOTAutograd drops a check without one."""
    impure = tx.graph.impure
    torch_op(tx, "call_function", torch._assert_async, [valid, ConstVal("a value is not valid")], {})
    tx.graph.impure = impure
    tx.graph.checks = True


_MATRICES: Any = torch.distributions.constraints
_CHECKS = {
    _MATRICES._Symmetric: polyfills.symmetric,
    _MATRICES._PositiveSemidefinite: polyfills.positive_semidefinite,
    _MATRICES._PositiveDefinite: polyfills.positive_definite,
}


@models_of(*(kind.check for kind in _CHECKS))
def _matrix_check(function: Any, tx: Tracer, self: Value, value: Value) -> Value:
    """Without the branch on what was found so far."""
    if self.py_type() not in _CHECKS or type(value) is not TensorVal:
        return tx.inline_body(function, [self, value], {})
    found = next(polyfill for kind, polyfill in _CHECKS.items() if kind.check is function)
    return tx.run_python(found, [self, value], {})


if hasattr(_UTILS, "_lazy_property_and_property"):

    @constructor(_UTILS._lazy_property_and_property)
    def lazy_property(tx: Tracer, wrapped: Value) -> Value:
        """What a lazy property is when it is read from the class; only its type is looked at."""
        return ObjVal(_UTILS._lazy_property_and_property)
