"""Settings: one typed object, `config`.

In: the defaults below, the environment (`DYNAJIT_<FIELD>`, read once at import), assignments. Out: `config.<field>`,
read once per compile. One more setting: a field with a default, its `_doc`, and a test in `tests/test_config.py`. Few
is better: a field needs a reason.
"""

import contextlib
import dataclasses
import difflib
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dynajit.exc import ConfigError

_PREFIX = "DYNAJIT_"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


def _doc(default: Any, text: str, secret: bool = False) -> Any:
    return dataclasses.field(default=default, metadata={"doc": text, "secret": secret}, repr=not secret)


def _default_cache_dir() -> str:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path("~").expanduser() / ".cache")
    return str(Path(root) / "dynajit")


@dataclasses.dataclass
class Config:
    """The settings. Unknown names and values of the wrong type raise `ConfigError`."""

    recompile_limit: int = _doc(8, "variants kept for one code object before it runs eagerly")
    suppress_errors: bool = _doc(
        False, "where a backend raises, run the frame eagerly instead of raising BackendCompilerFailed"
    )
    capture_scalar_outputs: bool = _doc(
        False, "x.item(), int(x) and x.tolist() give symbols in the graph rather than graph breaks"
    )
    capture_dynamic_output_shape_ops: bool = _doc(
        False, "operators whose result's size depends on data give symbolic sizes rather than graph breaks"
    )
    replay_logging: bool = _doc(
        True, "calls of a logger's methods are made after the graph, in their order, rather than breaking it"
    )
    replay_warnings: bool = _doc(
        True, "warnings.warn and changes of filters are made after the graph, in their order, rather than breaking it"
    )
    share_layers: bool = _doc(
        True, "what was found out about one layer is used for equal ones, which are found while tracing"
    )
    cache_dir: str = _doc(_default_cache_dir(), "folder of compiled kernels; private to the user, safe to delete")
    cache_read: str = _doc(
        "", "a second folder of compiled kernels that is only read, as in an image or on a shared file system"
    )
    remote_cache: str = _doc(
        "",
        "a URL where kernels are shared between machines: what fsspec reaches (file, s3, gs, https ...), redis://..., "
        "or group:// (the process group's store)",
        secret=True,
    )
    remote_key: str = _doc(
        "", "the secret, of 16 bytes at least, that entries of remote_cache are signed with", secret=True
    )
    keep_variants: bool = _doc(
        False, "keep what is compiled for CPUs in cache_dir with its guards: the next process does not trace"
    )
    cache_size_mb: int = _doc(1024, "the least recently used kernels beyond this many megabytes are deleted")
    compiler: str = _doc("", "path of the C compiler; empty: the first of $CC, cc, gcc, clang that works")
    threads: int = _doc(0, "threads of generated CPU kernels; 0: torch.get_num_threads() at compile time")
    compile_workers: int = _doc(
        0,
        "kernels for GPUs compiled at once, in processes of their own; 0: as many as there are cores (below four: in "
        "threads), 1: in this one",
    )
    simd: str = _doc(
        "auto", "vector instructions of CPU kernels: auto (what this machine has), avx512, avx2, neon, none"
    )
    memory_pool_mb: int = _doc(
        1024, "memory of dead CPU tensors of compiled graphs kept for the next ones, at most so many megabytes; 0: none"
    )
    debug: bool = _doc(False, "write each compile's graphs, code, guards and times into a folder of its own")
    debug_dir: str = _doc("dynajit_debug", "where these folders are made")
    debug_inputs: bool = _doc(
        False, "with debug: also save each graph's inputs and parameters, for fx_graph_runnable.py"
    )
    progress: str = _doc(
        "auto",
        "a line on stderr while a compile takes longer than two seconds: auto (on a terminal), on, off",
    )
    verify: int = _doc(
        0, "compare one in this many calls of each compiled graph with eager and a float64 reference; 0: none, 1: all"
    )
    planted_bug: str = _doc(
        "", 'an ATen operation ("aten.tanh.default") whose generated code is made wrong on purpose, to test verify'
    )

    def __setattr__(self, name: str, value: Any) -> None:
        field = _FIELDS.get(name)
        if field is None:
            raise ConfigError.unknown("configuration field", name, _FIELDS)
        if type(value) is not field.type:
            expected = getattr(field.type, "__name__", field.type)
            shown = "" if field.metadata["secret"] else f": {value!r}"
            raise ConfigError(f"config.{name} takes {expected}, not {type(value).__name__}{shown}")
        if name == "simd" and value not in SIMD:
            raise ConfigError.unknown("value of config.simd", value, SIMD)
        if name == "progress" and value not in PROGRESS:
            raise ConfigError.unknown("value of config.progress", value, PROGRESS)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # Reached only where ordinary lookup fails. AttributeError keeps hasattr() and copy working.
        raise AttributeError(f"unknown configuration field {name!r}; known: {', '.join(sorted(_FIELDS))}")

    def patch(self, **values: Any) -> "_Patch":
        """Context manager and decorator: these values inside, the former ones afterwards."""
        for name in values:
            if name not in _FIELDS:
                raise ConfigError.unknown("configuration field", name, _FIELDS)
        return _Patch(self, values)

    def load_environment(self, environ: dict[str, str] | None = None) -> None:
        """Take each field's `DYNAJIT_<FIELD>` from `environ` (default: the process's) where it is set."""
        source = os.environ if environ is None else environ
        for name, field in _FIELDS.items():
            text = source.get(f"DYNAJIT_{name.upper()}")
            if text is not None:
                setattr(self, name, _parse(name, field.type, text))
        _warn_of_misspelt(name for name in source if name.startswith(_PREFIX))

    def describe(self) -> str:
        """One line for each field: value, environment variable, meaning."""
        return "\n".join(
            f"{name} = {self._shown(name)}  (DYNAJIT_{name.upper()}): {field.metadata['doc']}"
            for name, field in _FIELDS.items()
        )

    def _shown(self, name: str) -> str:
        value = getattr(self, name)
        return "(set)" if value and _FIELDS[name].metadata["secret"] else repr(value)


class _Patch(contextlib.ContextDecorator):
    """What `Config.patch` returns. A stack of saved values lets one object be entered while it is active."""

    def __init__(self, config: Config, values: dict[str, Any]) -> None:
        self._config = config
        self._values = values
        self._saved: list[dict[str, Any]] = []

    def __enter__(self) -> Config:
        saved = {name: getattr(self._config, name) for name in self._values}
        try:
            for name, value in self._values.items():
                setattr(self._config, name, value)
        except ConfigError:
            self._restore(saved)
            raise
        self._saved.append(saved)
        return self._config

    def __exit__(self, *exc_info: object) -> None:
        self._restore(self._saved.pop())

    def _restore(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            setattr(self._config, name, value)


def _warn_of_misspelt(variables: Iterable[str]) -> None:
    """Say which variables of the environment are like one that means something, and mean nothing."""
    known = [*(_PREFIX + name.upper() for name in _FIELDS), _PREFIX + "LOGS"]
    for name in sorted(set(variables).difference(known)):
        alike = difflib.get_close_matches(name.removeprefix(_PREFIX), [each.removeprefix(_PREFIX) for each in known], 1)
        if alike:
            warnings.warn(f"dynajit: {name} means nothing; did you mean {_PREFIX}{alike[0]}?", stacklevel=4)


def _parse(name: str, kind: Any, text: str) -> Any:
    if kind is bool:
        lowered = text.strip().lower()
        if lowered in _TRUE or lowered in _FALSE:
            return lowered in _TRUE
        raise ConfigError(
            f"DYNAJIT_{name.upper()} takes one of {', '.join(filter(None, _TRUE + _FALSE))}, not {text!r}"
        )
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"DYNAJIT_{name.upper()} takes a whole number, not {text!r}") from None
    return text


def fields() -> Iterator[str]:
    """The names of the settings."""
    return iter(_FIELDS)


PROGRESS = ("auto", "on", "off")
SIMD = ("auto", "avx512", "avx2", "neon", "none")
_FIELDS: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(Config)}

config = Config()
config.load_environment()
