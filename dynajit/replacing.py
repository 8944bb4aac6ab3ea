"""dynajit in the place of torch.compile, for a program that calls it, or whose libraries do.

In:  nothing. Out: `as_torch_compile()`, which sets functions of `torch` and `torch.compiler`, and sets them back.
One more function of torch.compiler: a line in `_IN_COMPILER`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from dynajit import api
from dynajit.backends import codegen
from dynajit.backends.registry import instead_of, list_backends
from dynajit.capture.stance import set_stance
from dynajit.exc import ConfigError
from dynajit.interp import marks

_OPTIONS = (*codegen.codegen.known_options, "verify", "guard_filter_fn")  # type: ignore[attr-defined]
# backends of torch.compile that mean its own code generator, as none does
_OWN = ("inductor", "dynajit")
_ONLY_TORCHS_MODES = ("lite",)
_passed_over: set[str] = set()


def _compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    **others: Any,
) -> Any:
    """torch.compile's arguments, answered by `dynajit.compile`. Options of Inductor's and arguments that mean nothing
    here are named in a warning, once each."""
    same: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": dynamic, "mode": mode, "disable": disable}
    if model is None:
        return functools.partial(_compile, backend=backend, options=options, **same, **others)
    for name in others:
        _pass_over(f"the argument {name}")
    if mode in _ONLY_TORCHS_MODES:
        _pass_over(f"the mode {mode}")
        same["mode"] = None
    if backend is None or (isinstance(backend, str) and backend in _OWN):
        backend = "codegen"
    if backend == "codegen" and isinstance(options, dict):
        theirs = {name for name in options.keys() - set(_OPTIONS) if instead_of(name)}
        for name in theirs:
            _pass_over(f"the option {name}")
        options = {name: value for name, value in options.items() if name not in theirs} or None
    return api.compile(model, backend=backend, options=options, **same)


def _pass_over(what: str) -> None:
    if what not in _passed_over:
        _passed_over.add(what)
        warnings.warn(f"dynajit in the place of torch.compile: {what} means nothing here", stacklevel=4)


def _disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    return api.disable(fn, recursive=recursive, reason=reason)


def _set_stance(stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None) -> Any:
    if skip_guard_eval_unsafe or force_backend is not None:
        raise ConfigError("dynajit in the place of torch.compile: set_stance takes the name of a stance only")
    return set_stance(stance)


def _substitute_in_graph(original_fn: Any, *, can_constant_fold_through: bool = False, **others: Any) -> Any:
    return marks.substitute_in_graph(original_fn, **others)


def _list_backends(exclude_tags: Any = ("debug", "experimental")) -> list[str]:
    return list_backends(tuple(exclude_tags or ()))


_IN_COMPILER: dict[str, Callable[..., Any]] = {
    "compile": _compile,
    "reset": api.reset,
    "disable": _disable,
    "allow_in_graph": marks.allow_in_graph,
    "substitute_in_graph": _substitute_in_graph,
    "assume_constant_result": marks.assume_constant_result,
    "cudagraph_mark_step_begin": api.cudagraph_mark_step_begin,
    "set_stance": _set_stance,
    "list_backends": _list_backends,
}


class Replacement:
    """dynajit in the place of torch.compile, from when this is made until `undo()` or the end of a `with` block."""

    def __init__(self) -> None:
        self._former: list[tuple[Any, str, Any]] = []
        self._set(torch, "compile", _compile)
        for name, function in _IN_COMPILER.items():
            self._set(torch.compiler, name, function)

    def _set(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        self._former.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)

    def undo(self) -> None:
        """Set torch's functions back; a second time does nothing. What was compiled stays compiled."""
        while self._former:
            setattr(*self._former.pop())

    def __enter__(self) -> Replacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()


def as_torch_compile() -> Replacement:
    """Put dynajit in the place of torch.compile for the whole process.

    From the call on `torch.compile`, `nn.Module.compile`, and of `torch.compiler` what dynajit has too (`reset`,
    `disable`, `allow_in_graph`, `set_stance` and their like) are dynajit's. The backends "inductor" and "dynajit", and
    none, mean `codegen`; other names and callables mean what they mean to `dynajit.compile`. What a module has imported
    by `from torch import compile` before stays torch's.

    Returns:
        An object that is a context manager, and whose `undo()` sets torch's functions back.
    """
    return Replacement()
