"""Model of `torch.istft`, which looks at the sum of its windows.

In: its arguments. Out: its operations (`polyfills/spectral.py`), a check of the sum among them. What torch refuses or
warns of, which it is asked on tensors of ones, and what is not on the CPU, it is called for.
"""

from __future__ import annotations

from typing import Any

import torch

from dynajit.torch_warnings import unwarned
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import Tracer, Value
from dynajit.values.polyfills import spectral as polyfills
from dynajit.values.tensors.graph_arrays import hints
from dynajit.values.tensors.ops import torch_op


@builtin(torch.istft, torch.Tensor.istft)
def istft(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    checkable = not tx.open_levels and (not tx.graph.has_written() or tx.graph.undo() is not None)
    samples = [_sample(arg) for arg in (*args, *kwargs.values())]
    if checkable and _accepts(samples[: len(args)], dict(zip(kwargs, samples[len(args) :], strict=True))):
        return tx.run_python(polyfills.istft, args, kwargs)
    return torch_op(tx, "call_function", torch.istft, args, kwargs)


def _sample(value: Value) -> Any:
    """What torch is asked about in the value's place."""
    fake = getattr(value, "fake", None)
    if fake is None:
        return value.const() if value.is_const() else value
    return torch.ones(hints(fake.shape), dtype=fake.dtype) if fake.device.type == "cpu" else value


def _accepts(args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether torch transforms what is like this, without a warning."""
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False), torch.no_grad(), unwarned() as warned:
        try:
            torch.istft(*args, **kwargs)
        except (RuntimeError, TypeError):
            return False
    return not warned.texts
