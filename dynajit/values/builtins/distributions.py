"""torch.distributions: the checks of parameters and samples, which look at tensors' values.

In: `torch._is_all_true(valid)` as torch.distributions asks it before it raises. Out: yes, and a node that raises if
not, upon which the original frame is run (`resume/rerun.py`) and raises in its own words.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributions.utils

from dynajit.values.base import Tracer, Value
from dynajit.values.builtins.registry import builtin, constructor
from dynajit.values.constant import ConstVal
from dynajit.values.ops import torch_op
from dynajit.values.tensor import TensorVal

_UTILS: Any = torch.distributions.utils


@builtin(torch._is_all_true)
def is_all_true(tx: Tracer, valid: Value) -> Value:
    checked = (
        isinstance(valid, TensorVal)
        and tx.caller_module() == "torch.distributions.distribution"
        and valid.fake.device.type == "cpu"
        and not tx.open_levels
        and all(entry.symbol is not None or entry.real.device.type == "cpu" for entry in tx.graph.inputs)
    )
    found = torch_op(tx, "call_function", torch._is_all_true, [valid], {})
    if not checked:
        return found
    impure = tx.graph.impure
    torch_op(tx, "call_function", torch._assert_async, [found, ConstVal("a value is not valid")], {})
    tx.graph.impure = impure
    tx.graph.checks = True
    return ConstVal(True)


if hasattr(_UTILS, "_lazy_property_and_property"):

    @constructor(_UTILS._lazy_property_and_property)
    def lazy_property(tx: Tracer, wrapped: Value) -> Value:
        """What a lazy property is when it is read from the class; only its type is looked at."""
        return tx.new_instance(_UTILS._lazy_property_and_property)
