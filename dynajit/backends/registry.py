"""Names of backends.

In:  a name (or a callable, which is its own backend).
Out: the backend: `(GraphModule, example_inputs, **options) -> callable(*inputs) -> tuple | list`.
Looked up in this order: registered by `register_backend`, built in (imported when first asked for), entry points of the
group `dynajit_backends`, backends that other packages registered with torch.
To add a built-in one: a file in this folder, its module's name in `_BUILTIN`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from dynajit.exc import ConfigError
from dynajit.locks import process_lock
from dynajit.torch_compat import inductor_options

Backend = Callable[..., Callable[..., Any]]
_B = TypeVar("_B", bound=Backend)

ENTRY_POINT_GROUP = "dynajit_backends"

# name -> (module that registers it when imported, tags)
_BUILTIN: dict[str, tuple[str, tuple[str, ...]]] = {
    "eager": ("dynajit.backends.eager", ("debug",)),
    "aot_eager": ("dynajit.backends.aot_eager", ("debug",)),
    "codegen": ("dynajit.backends.codegen", ()),
    "cudagraphs": ("dynajit.backends.cudagraphs", ()),
    "inductor": ("dynajit.backends.inductor", ()),
    "ofi": ("dynajit.backends.ofi", ()),
    "onnxrt": ("dynajit.backends.onnxrt", ()),
    "openvino": ("dynajit.backends.openvino", ()),
}
# name -> the packages that it needs beside torch
_NEEDS: dict[str, tuple[str, ...]] = {
    "onnxrt": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}
# name -> (package that registers it with torch when imported, its name on PyPI)
_REGISTERED_BY = {"tensorrt": ("torch_tensorrt", "torch-tensorrt")}
# name -> why there is none
_REFUSED = {
    "nvfuser": "nvFuser left torch with release 2.2, and registers no backend for graphs; 'codegen', the default, "
    "fuses for NVIDIA GPUs, and a callable of your own can build an nvfuser.FusionDefinition of its graph"
}

_registered: dict[str, Backend] = {}
_tags: dict[str, tuple[str, ...]] = {name: tags for name, (_, tags) in _BUILTIN.items()}
_lock = process_lock()


@overload
def register_backend(fn: _B, *, name: str | None = ..., tags: Sequence[str] = ...) -> _B: ...
@overload
def register_backend(fn: None = ..., *, name: str | None = ..., tags: Sequence[str] = ...) -> Callable[[_B], _B]: ...
def register_backend(fn: Any = None, *, name: str | None = None, tags: Sequence[str] = ()) -> Any:
    """Make `fn` known as `name` (its `__name__` by default); plain call or decorator.

    Registering a name again replaces it. `tags` sort backends for `list_backends` ("debug", "experimental").
    Raises ConfigError when `fn` can't be called or has no name to go by.
    """
    if fn is None:
        return lambda decorated: register_backend(decorated, name=name, tags=tags)
    if not callable(fn):
        raise ConfigError(f"register_backend: a backend must be callable, got {type(fn).__name__}: {fn!r}")
    name = name or getattr(fn, "__name__", None)
    if not name:
        raise ConfigError(f"register_backend: {fn!r} has no __name__; give one with name=...")
    with _lock:
        _registered[name] = fn
        _tags[name] = tuple(tags)
    return fn


def lookup_backend(backend: str | Backend) -> Backend:
    """The backend called `backend`; a callable is returned as it is.

    Raises ConfigError, listing the known names, for an unknown one.
    """
    if not isinstance(backend, str):
        if callable(backend):
            return backend
        raise ConfigError(f"backend must be a name or a callable, got {type(backend).__name__}: {backend!r}")
    with _lock:
        found = _registered.get(backend) or _load_builtin(backend) or _load_entry_point(backend)
    found = found or _lookup_in_torch(backend)
    if found is None and backend in _REFUSED:
        raise ConfigError(f"the backend {backend!r} is not there: {_REFUSED[backend]}")
    if found is None:
        unknown = ConfigError.unknown("backend", backend, list_backends())
        raise ConfigError(
            f"{unknown}. Any callable (GraphModule, example_inputs) -> callable will do, and register_backend or an "
            f"entry point in the group {ENTRY_POINT_GROUP!r} gives it a name"
        )
    return found


_NOTHING = "an option of Inductor's that means nothing here; leave it out, or use as_torch_compile()"
# what takes the place of Inductor's options
_INSTEAD = {
    "max_autotune_gemm": "max_autotune is for all kernels",
    "max_autotune_pointwise": "max_autotune is for all kernels",
    "triton.cudagraph_trees": "triton.cudagraphs does that",
    "emulate_precision_casts": 'numerics: "eager" does that',
    "cpp.threads": "dynajit.config.threads",
    "cpp.simdlen": "dynajit.config.simd",
    "compile_threads": "dynajit.config.compile_workers",
    "fx_graph_cache": "kernels are kept in dynajit.config.cache_dir",
    "force_disable_caches": "kernels are kept in dynajit.config.cache_dir",
    **dict.fromkeys(("trace.enabled", "debug"), "dynajit.config.debug writes such a folder"),
    "fallback_random": "random numbers are always eager's; leave it out",
    **dict.fromkeys(("pre_grad_custom_pass", "joint_custom_pre_pass"), "pre_passes, a list, or register_pattern"),
    **dict.fromkeys(("post_grad_custom_pre_pass", "post_grad_custom_post_pass"), "post_passes, a list"),
}

# options that take functions which change graphs
USER_PASSES = ("pre_passes", "post_passes")


def instead_of(option: Any) -> str:
    """What takes the place of an option of Inductor's, or that nothing does; empty if it is none of Inductor's."""
    return _INSTEAD.get(option, _NOTHING if option in inductor_options() else "")


def check_options(
    options: Mapping[str, Any], known: Mapping[str, Sequence[Any]] | Iterable[str], also: Sequence[str] = ()
) -> None:
    """Raise ConfigError for an option that is not `known`, or a value that is not among those it takes, if `known`
    gives them. `also` are names that the message lists with the others."""
    for name, value in options.items():
        if name not in known:
            raise ConfigError.unknown("option", name, [*known, *also], instead_of(name))
        if name in USER_PASSES:
            if not isinstance(value, (list, tuple)) or not all(map(callable, value)):
                raise ConfigError(f"options: {name} takes a list of functions of a torch.fx.Graph, not {value!r}")
        elif isinstance(known, Mapping) and value not in known[name]:
            raise ConfigError(f"options: {name} is one of {', '.join(map(repr, known[name]))}, not {value!r}")


def list_backends(exclude_tags: Sequence[str] = ()) -> list[str]:
    """Sorted names of the backends that `lookup_backend` finds, those registered with torch only if torch.compile
    was used in this process (asking torch is slow)."""
    with _lock:
        names = {*_registered, *_BUILTIN, *(point.name for point in _entry_points()), *_names_in_torch()}
        return sorted(name for name in names if not set(exclude_tags) & set(_tags.get(name, ())))


def _load_builtin(name: str) -> Backend | None:
    if name not in _BUILTIN:
        return None
    missing = [package for package in _NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"the backend {name!r} needs {', '.join(missing)}: pip install 'dynajit[{name}]', or {' '.join(missing)}"
        )
    module, tags = _BUILTIN[name]
    importlib.import_module(module)
    _tags[name] = tags
    return _registered[name]


def _entry_points() -> Sequence[importlib.metadata.EntryPoint]:
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def _load_entry_point(name: str) -> Backend | None:
    for point in _entry_points():
        if point.name == name:
            return register_backend(point.load(), name=name)
    return None


def _lookup_in_torch(name: str) -> Backend | None:
    """A backend that another package (or torch itself: cudagraphs, onnxrt, openvino) registered with torch."""
    from torch._dynamo.backends import registry as torch_registry
    from torch._dynamo.exc import InvalidBackend

    if name in _REGISTERED_BY:
        package, on_pypi = _REGISTERED_BY[name]
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"the backend {name!r} needs {package}, which registers it with torch: pip install {on_pypi}"
            )
        importlib.import_module(package)
    try:
        return torch_registry.lookup_backend(name)
    except InvalidBackend:
        return None


def _names_in_torch() -> list[str]:
    import sys

    torch_registry = sys.modules.get("torch._dynamo.backends.registry")
    return torch_registry.list_backends() if torch_registry is not None else []
