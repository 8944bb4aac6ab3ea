"""Logs by artifact, switched by `DYNAJIT_LOGS` or `set_logs`.

In: `emit(name, message, compile_id, location)` from anywhere in dynajit. Out: lines on stderr through Python's
logging (loggers `dynajit.<artifact>`), each with the compile id `[frame/variant]` and the user's file and line; in a
process of several (torch.distributed) with the rank before them.

The specification is a comma-separated list, `DYNAJIT_LOGS="guards,+graph_breaks,-perf"`: `name` turns an artifact on,
`+name` adds detail, `-name` turns it off, `all` means every artifact, `help` prints what there is. One more artifact:
a line in `ARTIFACTS`.
"""

import logging
import os
import sys

from dynajit.exc import ConfigError
from dynajit.report import records

ARTIFACTS: dict[str, str] = {
    "guards": "the guards of each compiled variant; + adds the text of the line that made each",
    "graph_breaks": "where and why a graph ended; + shows the line of each frame of the user's stack",
    "recompiles": "which guard of the latest variant failed when a frame is compiled again; + those of all variants",
    "bytecode": "the bytecode before and after",
    "graph_code": "the captured torch graph as Python; + adds strides and devices",
    "aot_graphs": "the ATen graphs and the passes that changed them; + adds strides and devices, graphs after passes",
    "patterns": "where what `register_pattern` registered was found, replaced or not, and why not",
    "fusion": "which operations share a kernel; + adds their lines and the bytes that are moved",
    "output_code": "the generated kernels; + adds the plan that calls them",
    "kept": "which compiled variants are kept for the next process, or taken from an earlier one, and why not",
    "remote": "what came from the remote cache or went there, and why not",
    "perf": "milliseconds by compile phase; + adds when each began and ended",
}

_OFF, _ON, _VERBOSE = 0, 1, 2
_LOGGING_LEVEL = {_OFF: logging.WARNING, _ON: logging.INFO, _VERBOSE: logging.DEBUG}
_KEYWORD_LEVEL: dict[bool | str, int] = {True: _ON, False: _OFF, "+": _VERBOSE, "-": _OFF}
_levels: dict[str, int] = dict.fromkeys(ARTIFACTS, _OFF)


class _StderrHandler(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment, which a handler made at import would not."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


_handler = _StderrHandler()
_handler.setFormatter(logging.Formatter("%(message)s"))


def enabled(name: str) -> bool:
    """Is the artifact on? One dictionary lookup: ask before building a message."""
    return _level(name) != _OFF


def verbose(name: str) -> bool:
    """Was the artifact asked for with `+`?"""
    return _level(name) == _VERBOSE


def emit(name: str, message: str, compile_id: str | None = None, location: tuple[str, int] | None = None) -> None:
    """Log `message` if the artifact is on, each line prefixed with rank, compile id, location (file, line), artifact.

    Without these two: those of the frame that this thread compiles, if it does.
    """
    level = _level(name)
    if level == _OFF:
        return
    record = records.current()
    if record is not None:
        compile_id = compile_id or record.compile_id
        location = location or (record.filename, record.firstlineno)
    parts = _rank()
    if compile_id:
        parts.append(compile_id if compile_id.startswith("[") else f"[{compile_id}]")
    if location:
        parts.append(f"{location[0]}:{location[1]}")
    parts.append(f"[{name}]")
    prefix = " ".join(parts)
    text = "\n".join(f"{prefix} {line}".rstrip() for line in message.rstrip("\n").split("\n"))
    logging.getLogger(f"dynajit.{name}").log(_LOGGING_LEVEL[level], "%s", text)


def warn(name: str, message: str) -> None:
    """Log `message` even where the artifact is off."""
    logging.getLogger(f"dynajit.{name}").warning("%s", " ".join([*_rank(), f"[{name}] dynajit: {message}"]))


def _rank() -> list[str]:
    known = rank()
    return [] if known is None else [f"[rank{known}]"]


def rank() -> int | None:
    """Which of the job's processes this is, if it is one of several that have a group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank())


def set_logs(spec: str | None = None, **artifacts: bool | str) -> None:
    """Choose the artifacts anew; what is not named is turned off.

    `set_logs("guards,+graph_breaks")`, or by keyword: `set_logs(guards=True, graph_breaks="+")`. `set_logs()` turns
    all off. Raises `ConfigError` for an unknown name, before anything changes.
    """
    wanted = _parse(spec or "")
    for name, value in artifacts.items():
        _check(name)
        if value not in _KEYWORD_LEVEL:
            raise ConfigError(f"the log {name!r} takes True, False, '+' or '-', not {value!r}")
        wanted[name] = _KEYWORD_LEVEL[value]
    for name in ARTIFACTS:
        _set(name, wanted.get(name, _OFF))


def help_text() -> str:
    """What `DYNAJIT_LOGS=help` prints."""
    lines = ["DYNAJIT_LOGS takes a comma-separated list of (+name: more detail, -name: off, all: every one):"]
    lines += [f"  {name:<13} {text}" for name, text in ARTIFACTS.items()]
    return "\n".join(lines)


def _level(name: str) -> int:
    try:
        return _levels[name]
    except KeyError:
        raise ConfigError.unknown("log", name, ARTIFACTS) from None


def _check(name: str) -> None:
    if name not in ARTIFACTS:
        raise ConfigError.unknown("log", name, (*ARTIFACTS, "all", "help"))


def _parse(spec: str) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in spec.split(","))):
        if item == "help":
            sys.stderr.write(help_text() + "\n")
            continue
        level = {"+": _VERBOSE, "-": _OFF}.get(item[0], _ON)
        name = item.lstrip("+-")
        if name == "all":
            wanted.update(dict.fromkeys(ARTIFACTS, level))
            continue
        _check(name)
        wanted[name] = level
    return wanted


def _set(name: str, level: int) -> None:
    _levels[name] = level
    logging.getLogger(f"dynajit.{name}").setLevel(_LOGGING_LEVEL[level])
    root = logging.getLogger("dynajit")
    if level != _OFF and _handler not in root.handlers:
        # As with torch's logs: the lines go to stderr once, whatever the program's root logger does. A program that
        # wants them elsewhere adds a handler to the logger "dynajit".
        root.addHandler(_handler)
        root.propagate = False


set_logs(os.environ.get("DYNAJIT_LOGS"))
