"""The debug folder: `DYNAJIT_DEBUG=1`, or `config.debug = True`.

In: `write("guards.txt", text)` from anywhere while a frame is compiled. Out: a file in that compile's own folder,
`<config.debug_dir>/run_<time>_<process>/<frame>_<variant>_<function>/`. Off, `write` does nothing; ask `enabled()`
before building a long text. A folder that can't be written is reported once, and the program continues.
One more file: a call of `write` and its line in `FILES`.
"""

import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dynajit.config import config
from dynajit.report import records

FILES = {
    "fx_graph_readable.py": "the captured torch graph, with the user's lines and the shapes",
    "fx_graph_runnable.py": "the same as a program: `python fx_graph_runnable.py` compares dynajit with eager",
    "fx_graph_transformed.py": "the ATen graph that the backend was given (…_forward, …_backward in training)",
    "fx_graph_pass.py": "an ATen graph, or forward and backward, after each pass that changed it",
    "ir_pre_fusion.txt": "the loop IR before fusion",
    "ir_post_fusion.txt": "which operations share a kernel",
    "output_code.c": "the kernels; the first line says how to compile and run the file by itself",
    "guards.txt": "the guards, each with the user's line that made it",
    "bytecode.txt": "the frame's bytecode before and after",
    "timings.json": "seconds by compile phase",
    "compile_trace.json": "the compile's phases in time, for chrome://tracing or Perfetto",
}

_run: dict[str, str] = {}
_failed: set[str] = set()


def enabled() -> bool:
    """Is there a compile under way whose files are wanted?"""
    return config.debug and records.current() is not None


def folder() -> Path | None:
    """The folder of the compile under way, made if need be; None if there is none or it can't be made."""
    record = records.current()
    if not config.debug or record is None or config.debug_dir in _failed:
        return None
    run = _run.setdefault(config.debug_dir, f"run_{time.strftime('%Y%m%d_%H%M%S')}_{os.getpid()}")
    name = re.sub(r"\W+", "_", f"{record.compile_id.strip('[]')}_{record.code_name}").strip("_")
    path = Path(config.debug_dir) / run / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _tell(error)
        return None
    return path


def write(name: str, text: str | Callable[[str], str]) -> None:
    """Put a file into the compile's folder. A second graph of one compile gets `name` with a number. `text`: what the
    file holds, or what makes that of its name."""
    where = folder()
    if where is None:
        return
    path = where / name
    number = 1
    while path.exists():
        number += 1
        path = where / f"{Path(name).stem}_{number}{Path(name).suffix}"
    try:
        path.write_text(text if isinstance(text, str) else text(path.name), encoding="utf-8")
    except OSError as error:
        _tell(error)


def write_times(record: records.CompileRecord) -> None:
    """`timings.json` and `compile_trace.json` of a finished compile."""
    if config.debug:
        write("timings.json", json.dumps({"compile_id": record.compile_id, "seconds": record.phases}, indent=1))
        write("compile_trace.json", json.dumps(trace_events({f"{record.compile_id} {record.code_name}": record.spans})))


def trace_events(compiles: Mapping[str, Iterable[tuple[str, float, float]]]) -> dict[str, list[dict[str, object]]]:
    """The phases of some compiles, by name, in the trace-event format that chrome://tracing and Perfetto read."""
    events: list[dict[str, object]] = [
        {
            "name": name,
            "cat": "compile",
            "ph": "X",
            "ts": start * 1e6,
            "dur": (end - start) * 1e6,
            "pid": os.getpid(),
            "tid": 0,
            "args": {"compile": compiled},
        }
        for compiled, spans in compiles.items()
        for name, start, end in spans
    ]
    return {"traceEvents": events}


def _tell(error: OSError) -> None:
    _failed.add(config.debug_dir)
    warnings.warn(f"dynajit: no debug files are written: {error}", stacklevel=3)
