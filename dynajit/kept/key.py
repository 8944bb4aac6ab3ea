"""What a kept variant is found by: everything about a process and a call that is cheap to ask and decides the trace.

In: the session's choices, the frame's code and its values. Out: a hex digest. What is expensive to ask, or differs from
call to call in ways that a variant may be for, is among the conditions in the file.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from dynajit import _C, torch_compat
from dynajit.backends import kept_plan
from dynajit.config import config, fields
from dynajit.graph.seen import marks_of
from dynajit.kept.describe import Describer, digest
from dynajit.kept.parts import identity

# Bump when the same file would mean something else.
FORMAT = 1
# settings that decide where files are and what is told, and nothing of a trace
_NOT_OF_TRACE = frozenset(
    {
        *("cache_dir", "cache_read", "cache_size_mb", "remote_cache", "remote_key", "keep_variants"),
        *("progress", "recompile_limit", "compile_workers"),
    }
)
# environment variables that torch and its libraries read once, at the start
_VARIABLES = ("TORCH_", "PYTORCH_", "ATEN_", "MKL_", "OMP_", "KMP_", "DNNL_", "ONEDNN_", "CUDA_VISIBLE")
_MAX_TEXT = 200


@functools.cache
def _installed() -> tuple[Any, ...]:
    """Versions, variables, and what is in the files of this package: they change while the version stays, where it is
    worked on."""
    variables = sorted((name, text) for name, text in os.environ.items() if name.startswith(_VARIABLES))
    contents = contents_of(Path(_C.__file__).parent)
    return contents, *torch_compat.exact_release(), numpy.__version__, variables


def contents_of(folder: Path) -> str:
    """The digest of the code in a folder, equal on every machine that has the same: times and places of files are
    not."""
    rows = []
    for path in sorted(_files(str(folder))):
        with open(path, "rb") as file:
            rows.append((os.path.relpath(path, folder), hashlib.sha256(file.read()).digest()))
    return digest(rows)


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".so")):
                yield entry.path
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path)


def of_process() -> list[Any]:
    """What every variant of the process depends on. Raises ToolchainError where no kernels can be compiled."""
    return [
        *(FORMAT, sys.version, tuple(sys.flags), sys.platform, *_installed()),
        *(torch.backends.cpu.get_cpu_capability(), kept_plan.machine()),
        [(name, repr(getattr(config, name))) for name in fields() if name not in _NOT_OF_TRACE],
    ]


def of_call(settings: Sequence[Any], function: types.FunctionType, values: Sequence[Any]) -> str:
    """The digest for a call of the function with these parameters and cells under a session's settings."""
    what = identity(function, Describer())
    return digest([*of_process(), list(settings), what, [_look(value) for value in values]])


def _look(value: Any, depth: int = 2) -> Any:
    """What an argument looks like; asked without running code of its class."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind in (torch.Tensor, torch.nn.Parameter):
        return name, str(value.dtype), str(value.device), tuple(value.shape), value.requires_grad, repr(marks_of(value))
    if value is None or kind in (bool, int, float, str):
        return name, repr(value)[:_MAX_TEXT]
    if kind is types.CellType:
        return name, _look(value.cell_contents, depth) if value != types.CellType() else None
    if kind in (list, tuple) and depth:
        return name, [_look(item, depth - 1) for item in value[:16]], len(value)
    if kind is dict and depth:
        keys = [key for key in [*value][:16] if type(key) is str]
        return name, len(value), [(key[:_MAX_TEXT], _look(value[key], depth - 1)) for key in keys]
    return name
