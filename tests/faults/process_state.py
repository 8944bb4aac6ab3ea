"""All of the process's state that a capture may change and should put back, as one dictionary that can be compared."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.fx.experimental._config as symbol_config

import dynajit
from dynajit import locks

# what may be replaced for a while: by itself, or by its value
_BY_VALUE = (bool, int, float, str, type(None))
_BY_IDENTITY = (types.FunctionType, types.BuiltinFunctionType, type, classmethod, staticmethod, property)
_PACKAGES = ("torch", "dynajit", "warnings", "builtins", "logging", "gc", "sys", "functools", "contextlib")
# numbers that grow, and what torch does once
_COUNTED = ("cache_hits", "cache_misses", "nth_graph", "DESCRIBER_NEXT_ID", "_order", "next_id", "callback_set")
_ASKED = ("_get_", "get_", "_is_", "is_", "_only_", "_len_")
# they need an argument or a device, or wake one up
_NOT_ASKED = (
    "cuda",
    "accelerator",
    "mtia",
    "xpu",
    "schema",
    "operation",
    "tracing_state",
    "default_device",
    "autocast_",
)


def _kept(value: Any) -> Any:
    return repr(value) if type(value) in _BY_VALUE else id(value)


def _attributes() -> Iterator[tuple[Any, Any]]:
    """Of modules and their classes."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _PACKAGES or type(module) is not types.ModuleType:
            continue
        for key, value in list(vars(module).items()):
            if type(value) in (*_BY_VALUE, *_BY_IDENTITY) and key not in _COUNTED:
                yield (name, key), _kept(value)
            if issubclass(type(value), type) and value.__module__ == name:
                for inner, member in list(vars(value).items()):
                    if type(member) in (*_BY_VALUE, *_BY_IDENTITY) and inner not in _COUNTED:
                        yield (name, key, inner), _kept(member)


def _asked() -> Iterator[tuple[Any, Any]]:
    for name in dir(torch._C):
        if name.startswith(_ASKED) and not any(part in name for part in _NOT_ASKED):
            try:
                value = getattr(torch._C, name)()
            except (TypeError, RuntimeError):
                continue
            if isinstance(value, (*_BY_VALUE, torch.dtype)):
                yield name, value


def state() -> dict[Any, Any]:
    """What there is now, of the process and of torch in this thread."""
    loggers = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return {
        **dict(_attributes()),
        **dict(_asked()),
        "dispatch keys": (
            str(torch._C._dispatch_tls_local_include_set()),
            str(torch._C._dispatch_tls_local_exclude_set()),
        ),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "levels": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "collector": (gc.get_threshold(), gc.isenabled()),
        "interpreter": (sys.getrecursionlimit(), sys.getprofile(), sys.gettrace(), sys.excepthook, sys.exc_info()),
        "threads": torch.get_num_threads(),
        "settings": (functorch_config.get_config_copy(), symbol_config.get_config_copy()),
        "filters": (id(warnings.filters), list(warnings.filters)),
        "handlers": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "environment": dict(os.environ),
        "loggers": sorted((each.name, each.level, each.disabled, len(each.filters)) for each in loggers),
        "saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "locks": [lock for lock in locks._all if lock._is_owned()],
        "dynajit": dynajit.config.describe(),
    }


def differences(before: dict[Any, Any], now: dict[Any, Any]) -> list[tuple[Any, Any, Any]]:
    """What is other than before; what came to be since, such as a module, is none."""
    return [(key, old, now.get(key, "gone")) for key, old in before.items() if now.get(key, "gone") != old]
