"""torch._dynamo stays unloaded until somebody uses it.

torch's fake mode reads settings of `torch._dynamo.config`, and some of torch's functions that compute metadata are
hidden from `torch._dynamo`. For either Python imports the package, a compiler with everything it can trace: 1.5 seconds
of a process's first capture, most of it.
In:  nothing. Out: `postpone()`, after which a module stands in the package's place that has the settings and can hide
     functions. Whatever else is asked of it imports the package, which then takes its place. The package would also
     replace `torch.manual_seed`, perhaps in the middle of a capture that relies on it: that is done at once.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

_PACKAGE = "torch._dynamo"
_CONFIG = "torch._dynamo.config"
_lock = threading.Lock()
_wanted = False  # somebody uses the package


class _Postponed(ModuleType):
    """Stands in the package's place."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)  # asked of any module there is
        if name == "disable" and sys._getframe(1).f_globals.get("__name__") == "torch._compile":
            return _disable
        return getattr(_package(), name)


def postpone() -> None:
    """Load the settings alone, if nothing of the package is loaded yet. Otherwise do nothing."""
    with _lock:
        if _wanted or _PACKAGE in sys.modules:
            return
        spec = importlib.util.find_spec(_PACKAGE)
        assert spec is not None
        postponed = importlib.util.module_from_spec(spec)
        postponed.__class__ = _Postponed
        sys.modules[_PACKAGE] = torch._dynamo = postponed  # type: ignore[assignment]
        try:
            importlib.import_module(_CONFIG)
        except BaseException:
            _forget()
            raise
        sys.meta_path.insert(0, _Finder)
        if torch.manual_seed is torch.random.manual_seed:  # as the package does
            torch.manual_seed = torch._compile._disable_dynamo(torch.manual_seed)
            torch.jit._builtins._register_builtin(torch.manual_seed, "aten::manual_seed")


def package_of(module: ModuleType) -> ModuleType:
    """The package, for what stands in its place; any other module itself, none of its attributes looked at."""
    return _package() if type(module) is _Postponed else module


def _forget() -> None:
    sys.modules.pop(_PACKAGE, None)
    vars(torch).pop("_dynamo", None)


def _package() -> ModuleType:
    """The package itself."""
    global _wanted
    with _lock:
        _wanted = True
        if isinstance(sys.modules.get(_PACKAGE), _Postponed):
            _forget()
    return importlib.import_module(_PACKAGE)


class _Finder:
    """Finds the package with the settings in it, and the package before its modules."""

    importing: int | None = None  # the thread that imports the package

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name == _PACKAGE:
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module = functools.partial(cls._execute, spec.loader.exec_module)  # type: ignore[method-assign]
            return spec
        if not name.startswith(f"{_PACKAGE}.") or cls.importing == threading.get_ident():
            return None
        # Python has looked for the package and found what stands in its place.
        _package()
        module = sys.modules.get(name)
        if module is None:
            return None
        # Python takes the specification of a module that came to be meanwhile, to load it once more.
        module.__spec__ = ModuleSpec(name, _Loaded(module))
        return module.__spec__

    @classmethod
    def _execute(cls, execute: Callable[[ModuleType], None], package: ModuleType) -> None:
        cls.importing = threading.get_ident()
        try:
            package.config = sys.modules[_CONFIG]  # type: ignore[attr-defined]
            execute(package)
            sys.meta_path.remove(cls)
        finally:
            cls.importing = None


class _Loaded(Loader):
    """Gives a module that is there, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


def _disable(function: Callable[..., Any], recursive: bool = True, **options: Any) -> Callable[..., Any]:
    """The function, hidden from the package once that is there."""
    hidden: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal hidden
        if hidden is None:
            package = sys.modules[_PACKAGE]
            if isinstance(package, _Postponed) or not hasattr(package, "disable"):  # or about to be imported
                return function(*args, **kwargs)
            hidden = package.disable(function, recursive, **options)
        return hidden(*args, **kwargs)

    return call
