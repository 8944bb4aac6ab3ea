"""torch's process-wide state as the traced program reads and changes it: grad mode, autocast, compile flags, devices.

In: the C functions behind torch's context managers (the managers themselves are traced). Out: their models: a change
is made for real while tracing, so that operations see it, becomes a graph node, and is undoable; `EntryState` puts
everything back at the end of a capture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from dynajit.guards.source import ConstSource
from dynajit.torch_compat import settle_attention
from dynajit.values.core.registry import builtin, models_of, pure
from dynajit.values.core.slots import raising
from dynajit.values.core.value import Tracer, Value
from dynajit.values.effects.deferred import DeferredCall
from dynajit.values.scalars.constant import ConstVal, is_none

_CPU: Any = torch._C._cpu  # type: ignore[attr-defined]
# what the processor can, which stays as it is
pure(*(getattr(_CPU, name) for name in dir(_CPU) if name.startswith(("_get_", "_is_"))))


def autocast_nesting() -> int:
    """How many autocast contexts this thread is in. At the outermost's end torch forgets the weights it has cast."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


_HOOKS: Any = torch._C._autograd


def set_hooks_refused(message: str | None) -> None:
    """Refuse hooks on saved tensors with this message, or allow them."""
    if message is None:
        _HOOKS._saved_tensors_hooks_enable()
    else:
        _HOOKS._saved_tensors_hooks_disable(message, False)  # also inside of hooks: it may be to put back what was


class Setting(NamedTuple):
    """A piece of torch's state that a graph may change. chosen: what tells which one it is, before the value that is
    written; of_thread: whether each thread has its own."""

    write: Callable[..., Any]
    read: Callable[..., Any]
    chosen: tuple[Any, ...] = ()
    of_thread: bool = False

    def now(self) -> Any:
        return self.read(*self.chosen)


# setter and getter in torch._C of what is the process's, where this build has them
_NAMED_SETTINGS = [
    ("_set_sdp_use_flash", "_get_flash_sdp_enabled"),
    ("_set_sdp_use_mem_efficient", "_get_mem_efficient_sdp_enabled"),
    ("_set_sdp_use_math", "_get_math_sdp_enabled"),
    ("_set_sdp_use_cudnn", "_get_cudnn_sdp_enabled"),
    ("_set_sdp_use_overrideable", "_get_overrideable_sdp_enabled"),
    ("_set_sdp_priority_order", "_get_sdp_priority_order"),
    ("_set_cudnn_enabled", "_get_cudnn_enabled"),
    ("_set_cudnn_benchmark", "_get_cudnn_benchmark"),
    ("_set_cudnn_deterministic", "_get_cudnn_deterministic"),
    ("_set_mkldnn_enabled", "_get_mkldnn_enabled"),
]
_LEVELS: Any = torch._C._functorch
SETTINGS = [
    Setting(torch._C._set_grad_enabled, torch.is_grad_enabled, of_thread=True),
    Setting(torch._C._set_default_dtype, torch.get_default_dtype),
    Setting(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled, of_thread=True),
    *(Setting(torch.set_autocast_enabled, torch.is_autocast_enabled, (kind,), True) for kind in ("cpu", "cuda")),
    *(Setting(torch.set_autocast_dtype, torch.get_autocast_dtype, (kind,), True) for kind in ("cpu", "cuda")),
    Setting(set_hooks_refused, _HOOKS._saved_tensors_hooks_get_disabled_error_message, of_thread=True),
    Setting(_LEVELS.set_inplace_requires_grad_allowed, _LEVELS.get_inplace_requires_grad_allowed),
    Setting(torch._C._set_fwd_grad_enabled, torch._C._is_fwd_grad_enabled, of_thread=True),
    *(
        Setting(getattr(torch._C, setter), getattr(torch._C, getter))
        for setter, getter in _NAMED_SETTINGS
        if hasattr(torch._C, setter) and hasattr(torch._C, getter)
    ),
]


class EntryState:
    """The state at the start of a capture."""

    def __init__(self) -> None:
        settle_attention()
        self.values = [setting.now() for setting in SETTINGS]
        self.nesting = autocast_nesting()
        self.changed: set[Callable[..., Any]] = set()  # the setters of what the trace has changed for all threads

    def changes(self) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
        """The calls that make the present state of that at the start."""
        return [(setting.write, (*setting.chosen, setting.now())) for setting, _ in self._changes()]

    def _changes(self) -> Iterator[tuple[Setting, Any]]:
        """What has changed, and what it was. What is the process's, another thread may change."""
        for setting, old in zip(SETTINGS, self.values, strict=True):
            if (setting.of_thread or setting.write in self.changed) and setting.now() != old:
                yield setting, old

    def restore(self) -> None:
        """Put everything back, whatever was traced."""
        for setting, old in self._changes():
            setting.write(*setting.chosen, old)
        if autocast_nesting() != self.nesting:
            for _ in range(autocast_nesting(), self.nesting):
                torch.autocast_increment_nesting()
            for _ in range(self.nesting, autocast_nesting()):
                torch.autocast_decrement_nesting()
            if self.nesting == 0:
                torch.clear_autocast_cache()


_GETTERS = {setting.write: (setting.read, len(setting.chosen)) for setting in SETTINGS}


@models_of(*_GETTERS)
def _change(setter: Callable[..., Any], tx: Tracer, *args: Value) -> None:
    """The first arguments may choose which state; the last is the new value."""
    reals = [arg.real() for arg in args]
    getter, selects = _GETTERS[setter]
    chosen = reals[:selects]
    with raising(tx, TypeError, RuntimeError):
        old = getter(*chosen)
        setter(*reals)
    tx.entry_state.changed.add(setter)
    tx.journal.record(lambda: setter(*chosen, old))
    if old != getter(*chosen) and setter is not set_hooks_refused:  # where there are hooks there is no graph
        tx.graph.create("call_function", setter, reals, {}, {"example_value": None})


@builtin(_HOOKS._saved_tensors_hooks_disable)
def refuse_hooks(tx: Tracer, message: Value) -> Value:
    made = tx.call(tx.from_real(set_hooks_refused), [message], {})
    with raising(tx, RuntimeError):
        _HOOKS._saved_tensors_hooks_disable(message.const())  # raises inside of hooks, having refused further ones
    return made


@builtin(_HOOKS._saved_tensors_hooks_enable)
def allow_hooks(tx: Tracer) -> Value:
    return tx.call(tx.from_real(set_hooks_refused), [ConstVal(None)], {})


@builtin(torch.device.__enter__)
def enter_device(tx: Tracer, device: Value) -> Value:
    """`with torch.device(...)`: until it is left, what makes tensors is given the device (`ops.torch_op`)."""
    tx.overrides.push(device)
    return device


@builtin(torch.device.__exit__)
def leave_device(tx: Tracer, device: Value, *exception: Value) -> None:
    tx.overrides.pop(is_device=True)


@models_of(torch.autocast_increment_nesting, torch.autocast_decrement_nesting)
def _change_nesting(function: Any, tx: Tracer) -> Value:
    opens = function is torch.autocast_increment_nesting
    if opens:
        tx.opening()
    depth = function()
    tx.journal.record(torch.autocast_decrement_nesting if opens else torch.autocast_increment_nesting)
    tx.graph.create("call_function", function, [], {}, {"example_value": None})
    return ConstVal(depth)


@builtin(torch.clear_autocast_cache)
def clear_cache(tx: Tracer) -> None:
    torch.clear_autocast_cache()
    tx.graph.create("call_function", torch.clear_autocast_cache, [], {}, {"example_value": None})


for _kind in ("cpu", "gpu"):
    _device = {"gpu": "cuda"}.get(_kind, _kind)
    for _what in ("enabled", "dtype"):
        _old = getattr(torch, f"set_autocast_{_kind}_{_what}", None)
        _new = getattr(torch, f"set_autocast_{_what}")

        def _set_for_device(tx: Tracer, value: Value, setter: Any = _new, device: str = _device) -> Value:
            return tx.call_builtin(setter, [ConstVal(device), value], {})

        if _old is not None:
            builtin(_old)(_set_for_device)


def _same_answer(function: Callable[..., Any], asked: tuple[Any, ...], expected: Any, _: object) -> bool:
    return bool(function(*asked) == expected)


def _in_build(*names: str) -> list[Any]:
    """Functions of torch._C, where this build has them."""
    return [getattr(torch._C, name) for name in names if hasattr(torch._C, name)]


# what the GLOBAL_STATE guard covers
_COVERED = ("_get_cudnn_enabled", "_get_mkldnn_enabled")
_SETUP = _in_build(
    *(getter for _, getter in _NAMED_SETTINGS if getter not in _COVERED),
    "_is_fwd_grad_enabled",
    "_are_functorch_transforms_active",
    "_mps_is_available",
    "_accelerator_getAccelerator",
    "_get_cudnn_allow_tf32",
    "_get_cublas_allow_tf32",
    "_get_cublas_allow_fp16_accumulation",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_deterministic_algorithms_warn_only",
    "_get_float32_matmul_precision",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_linalg_preferred_backend",
    "_get_blas_preferred_backend",
    "_get_rocm_fa_preferred_backend",
    "_get_fp32_precision_getter",
    "_accelerator_getDeviceIndex",
    "_cuda_getDevice",
)
# names that these modules have without exporting them
_JIT: Any = torch.jit
_AUTOGRAD: Any = torch.autograd


@models_of(
    *_SETUP,
    *(torch.cuda.is_current_stream_capturing, torch.cuda.is_initialized, torch.cuda.current_device),
    *(torch.distributed.is_available, _AUTOGRAD._is_checkpoint_valid),
    *([torch.distributed.is_initialized] if torch.distributed.is_available() else []),
)
def _setup(function: Any, tx: Tracer, *args: Value) -> Value:
    """Functions that say how torch is set up; the answer is guarded by asking again."""
    asked = tuple(arg.const() for arg in args)
    with raising(tx, RuntimeError, AssertionError):  # of a device that this torch was not built for
        found = function(*asked)
    known = functools.partial(_same_answer, function, asked, found)
    words = f"{function.__name__}({', '.join(map(repr, asked))}) is {found}"
    tx.guard(ConstSource(torch, "torch"), "PREDICATE", known, words)
    return tx.from_real(found)


@models_of(
    torch.cuda.get_device_capability,
    torch.cuda.get_device_properties,
    torch.cuda.get_device_name,
    torch.cuda.get_arch_list,
    torch.cuda.is_bf16_supported,
    torch.cuda.is_tf32_supported,
)
def _of_device(function: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """Functions that say what a device is, which is the same for as long as the process lives. Without an index it is
    the current device that they speak of, which is guarded."""
    reals = [arg.const() for arg in args]
    named = {name: arg.const() for name, arg in kwargs.items()}
    with raising(tx, RuntimeError, AssertionError, ValueError, TypeError):
        found = function(*reals, **named)
    if torch.cuda.is_available() and not any(map(_has_index, (*reals, *named.values()))):
        tx.call(tx.from_real(torch.cuda.current_device), [], {})
    return tx.from_real(found)


def _has_index(device: object) -> bool:
    """Does this name one device, not whichever is the current one?"""
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    return type(index) is int and index >= 0


# what this build of torch and this machine have, and the covered settings
_BUILT_IN = _in_build(
    *("_cuda_getDeviceCount", "_get_cpu_capability", "_is_flash_attention_available", "_is_ck_sdpa_available"),
    *_COVERED,
)


@models_of(
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
    torch._C._get_privateuse1_backend_name,
    torch.amp.is_autocast_available,
    torch._C._is_any_autocast_enabled,
    torch._C._len_torch_dispatch_stack,
    torch._C._is_autocast_available,
    torch.get_autocast_cpu_dtype,
    torch.get_autocast_gpu_dtype,
    torch.is_autocast_cpu_enabled,
    torch.get_deterministic_debug_mode,
    torch.is_deterministic_algorithms_warn_only_enabled,
    torch.get_num_interop_threads,
    torch.get_float32_matmul_precision,
    _HOOKS._saved_tensors_hooks_get_disabled_error_message,
    *_BUILT_IN,
)
def _read(function: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """Functions whose result the GLOBAL_STATE guard covers, or that never changes while a process runs."""
    reals, named = [arg.const() for arg in args], {name: arg.const() for name, arg in kwargs.items()}
    with raising(tx, RuntimeError, TypeError):
        found = function(*reals, **named)
    return tx.from_real(found)


def _constant(result: object, *functions: Any) -> None:
    """Functions that have one answer while dynajit traces."""
    builtin(*functions)(lambda tx, *args, **kwargs: ConstVal(result))


@builtin(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch._utils.is_compiling)
def _is_compiling(tx: Tracer) -> Value:
    """Where torch's modules compute something else for a compiler, they are told that there is none."""
    if tx.caller_module() == _MODULE.__name__:
        return ConstVal(not _calls_hooks_always(tx))
    return ConstVal(tx.caller_module() not in _SAME_AS_EAGER and tx.is_compiling())


def _calls_hooks_always(tx: Tracer) -> bool:
    """Whether the module that is being called has hooks to be called after an exception, too. Under a compiler torch
    leaves out the `try` that they need, in which operations that may raise end the graph."""
    everywhere = _MODULE._global_forward_hooks_always_called
    if tx.wrap(everywhere, ConstSource(everywhere, "_global_forward_hooks_always_called")).truth(tx):
        return True
    frame = tx.frames[-1]
    module = frame.cells["self"].contents if "self" in frame.cells else frame.locals.get("self")
    return module is not None and bool(tx.getattr(module, "_forward_hooks_always_called").truth(tx))


_MODULE: Any = torch.nn.modules.module
# the encoder: rows that a mask hides are zero in eager mode, where it packs its input, and not under a compiler;
# torch.func: what vmap and grad make bears the name of its function in eager mode alone; functional collectives: their
# older names warn in eager mode alone
_SAME_AS_EAGER = frozenset(
    {"torch.nn.modules.transformer", "torch._functorch.apis", "torch.distributed._functional_collectives"}
)


@builtin(torch.compiler.cudagraph_mark_step_begin)
def _mark_step(tx: Tracer) -> None:
    """Nothing of dynajit's needs to be told; what is compiled by others does."""
    tx.journal.touch(DeferredCall(tx.from_real(torch.compiler.cudagraph_mark_step_begin), [], {}))


_constant(
    False,
    torch.compiler.is_exporting,
    _JIT.is_scripting,
    _JIT.is_tracing,
    torch._jit_internal.is_scripting,
    torch._C._is_tracing,
    torch.onnx.is_in_onnx_export,
    torch.fx._symbolic_trace.is_fx_tracing,
)


@builtin(_JIT.annotate)
def jit_annotate(tx: Tracer, the_type: Value, the_value: Value) -> Value:
    """Says a type to torch.jit, and is its second argument."""
    return the_value


@builtin(_JIT._unwrap_optional)
def jit_unwrap_optional(tx: Tracer, x: Value) -> Value:
    if is_none(x):
        raise tx.raised(AssertionError, "Unwrapping null optional")
    return x


_constant(None, torch._C._get_tracing_state, torch._C._log_api_usage_once)


if hasattr(torch._C, "_profiler_enabled"):
    _constant(False, _AUTOGRAD._profiler_enabled)
