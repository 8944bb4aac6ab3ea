"""dynajit: a just-in-time compiler for PyTorch programs.

`dynajit.compile(fn)` makes a function or module faster without changing what it does; `dynajit.explain(fn)(*args)`
tells what was compiled; `DYNAJIT_LOGS` shows it while it happens. docs/tour.md follows one call through the code.
"""

import gc

import dynajit.bytecode  # noqa: F401  first, for it refuses a Python that dynajit does not know
from dynajit import torch_compat

torch_compat.check()

# A full collection in the middle of these imports, over all that torch has made, would take a third of their time.
_collects = gc.isenabled()
gc.disable()

from dynajit import exc, testing  # noqa: E402
from dynajit.aot.decompositions import register_lowering  # noqa: E402
from dynajit.aot.patterns import register_pattern  # noqa: E402
from dynajit.api import (  # noqa: E402
    compile,
    cudagraph_mark_step_begin,
    disable,
    explain,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    mark_static_address,
    mark_unbacked,
    maybe_mark_dynamic,
    reset,
)
from dynajit.backends.registry import list_backends, lookup_backend, register_backend  # noqa: E402
from dynajit.bisection import bisect  # noqa: E402
from dynajit.capture.background import wait  # noqa: E402
from dynajit.capture.stance import run, set_stance  # noqa: E402
from dynajit.config import config  # noqa: E402
from dynajit.exported import compile_exported, export  # noqa: E402
from dynajit.exported import load_program as load  # noqa: E402
from dynajit.interp.marks import (  # noqa: E402
    allow_in_graph,
    assume_constant_result,
    disallow_in_graph,
    nonstrict_trace,
    substitute_in_graph,
)
from dynajit.interp.policy import module_policy  # noqa: E402
from dynajit.replacing import as_torch_compile  # noqa: E402
from dynajit.report.counters import counters  # noqa: E402
from dynajit.report.logs import set_logs  # noqa: E402
from dynajit.report.times import compile_times  # noqa: E402
from dynajit.runtime.memory import stats as memory_stats  # noqa: E402
from dynajit.values.tensors.break_errors import error_on_graph_break  # noqa: E402

if _collects:
    gc.enable()

__version__ = "0.1.0"
__all__ = [
    "allow_in_graph",
    "as_torch_compile",
    "assume_constant_result",
    "bisect",
    "compile",
    "compile_exported",
    "compile_times",
    "config",
    "counters",
    "cudagraph_mark_step_begin",
    "disable",
    "disallow_in_graph",
    "error_on_graph_break",
    "exc",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "list_backends",
    "load",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "memory_stats",
    "module_policy",
    "nonstrict_trace",
    "register_backend",
    "register_lowering",
    "register_pattern",
    "reset",
    "run",
    "set_logs",
    "set_stance",
    "substitute_in_graph",
    "testing",
    "wait",
]
