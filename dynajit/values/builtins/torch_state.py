"""torch's process-wide state as the traced program reads and changes it: grad mode, autocast, compile flags, devices.

In: the C functions behind torch's context managers (the managers themselves are traced). Out: their models: a change
is made for real while tracing, so that operations see it, becomes a graph node, and is undoable; `EntryState` puts
everything back at the end of a capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynajit.values.base import Tracer, Value
from dynajit.values.builtins.registry import builtin
from dynajit.values.constant import ConstVal


def autocast_nesting() -> int:
    """How many autocast contexts this thread is in. At the outermost's end torch forgets the weights it has cast."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


class EntryState:
    """The state at the start of a capture."""

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.devices = ["cpu", "cuda"]
        self.autocast = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in self.devices
        }
        self.cache = torch.is_autocast_cache_enabled()
        self.nesting = autocast_nesting()

    def restore(self) -> None:
        """Put everything back, whatever was traced."""
        torch._C._set_grad_enabled(self.grad)
        for kind, (enabled, dtype) in self.autocast.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        if autocast_nesting() != self.nesting:
            for _ in range(autocast_nesting(), self.nesting):
                torch.autocast_increment_nesting()
            for _ in range(self.nesting, autocast_nesting()):
                torch.autocast_decrement_nesting()
            if self.nesting == 0:
                torch.clear_autocast_cache()


def _change(setter: Callable[..., Any], getter: Callable[..., Any], selects: int) -> None:
    """Model of a state setter. The first `selects` arguments choose which state; the last is the new value."""

    @builtin(setter)
    def model(tx: Tracer, *args: Value) -> Value:
        reals = [arg.const() for arg in args]
        chosen = reals[:selects]
        old = getter(*chosen)
        setter(*reals)
        tx.journal.record(lambda: setter(*chosen, old))
        if old != reals[-1]:
            tx.graph.create("call_function", setter, reals, {}, {"example_value": None})
        return ConstVal(None)


_change(torch._C._set_grad_enabled, torch.is_grad_enabled, 0)
_change(torch.set_autocast_enabled, torch.is_autocast_enabled, 1)
_change(torch.set_autocast_dtype, torch.get_autocast_dtype, 1)
_change(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled, 0)


def _quietly(fn: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        fn()

    return run


@builtin(torch.autocast_increment_nesting)
def increment_nesting(tx: Tracer) -> Value:
    depth = torch.autocast_increment_nesting()
    tx.journal.record(_quietly(torch.autocast_decrement_nesting))
    tx.graph.create("call_function", torch.autocast_increment_nesting, [], {}, {"example_value": None})
    return ConstVal(depth)


@builtin(torch.autocast_decrement_nesting)
def decrement_nesting(tx: Tracer) -> Value:
    depth = torch.autocast_decrement_nesting()
    tx.journal.record(_quietly(torch.autocast_increment_nesting))
    tx.graph.create("call_function", torch.autocast_decrement_nesting, [], {}, {"example_value": None})
    return ConstVal(depth)


@builtin(torch.clear_autocast_cache)
def clear_cache(tx: Tracer) -> Value:
    torch.clear_autocast_cache()
    tx.graph.create("call_function", torch.clear_autocast_cache, [], {}, {"example_value": None})
    return ConstVal(None)


def _reads(*functions: Any) -> None:
    """Functions whose result the GLOBAL_STATE guard covers, or that never changes while a process runs."""
    for function in functions:

        def model(tx: Tracer, *args: Value, function: Any = function) -> Value:
            return tx.from_real(function(*(arg.const() for arg in args)))

        builtin(function)(model)


_reads(
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled,
    torch.get_autocast_dtype,
    torch.is_autocast_cache_enabled,
    torch.get_default_dtype,
    torch.get_num_threads,
    torch.cuda.is_available,
    torch.backends.cuda.is_built,
    torch.cuda.device_count,
    torch.are_deterministic_algorithms_enabled,
    torch._C._get_deterministic_algorithms,
    torch._C._is_torch_function_enabled,
    torch._C._get_privateuse1_backend_name,
    torch.amp.is_autocast_available,
    torch._C._is_any_autocast_enabled,
    torch._C._cuda_getDeviceCount if hasattr(torch._C, "_cuda_getDeviceCount") else id,
    torch._C._len_torch_function_stack,
    torch._C._len_torch_dispatch_stack,
    torch._C._is_autocast_available,
    torch._C._get_cudnn_enabled,
    torch._C._get_mkldnn_enabled,
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
)


if hasattr(torch._C, "_is_torch_function_mode_enabled"):
    _reads(torch._C._is_torch_function_mode_enabled)


# names that these modules have without exporting them
_JIT: Any = torch.jit
_AUTOGRAD: Any = torch.autograd


def _constant(result: object, *functions: Any) -> None:
    """Functions that have one answer while dynajit traces."""
    for function in functions:

        def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
            return ConstVal(result)

        builtin(function)(model)


_constant(True, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch._utils.is_compiling)
_constant(
    False,
    torch.compiler.is_exporting,
    _JIT.is_scripting,
    _JIT.is_tracing,
    torch._jit_internal.is_scripting,
    torch._C._is_tracing,
)
_constant(None, torch._C._get_tracing_state, torch._C._log_api_usage_once)
if hasattr(torch._C, "_profiler_enabled"):
    _constant(False, _AUTOGRAD._profiler_enabled)
