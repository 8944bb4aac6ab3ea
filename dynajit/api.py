"""What users call: compile, explain, reset, disable and their like.

In: functions, modules and choices. Out: compiled callables that behave as the originals. `compile` makes a call object
of C (or, for a module, a module that shares the original's state); everything after the first call is in `capture/`.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import torch

from dynajit import _C
from dynajit.backends.registry import check_options, lookup_backend
from dynajit.capture.capture import make_capture
from dynajit.capture.session import Choices, Owner, Session, reset_caches
from dynajit.capture.shared import forget_shared, shared_session, unshared
from dynajit.exc import ConfigError
from dynajit.graph import seen
from dynajit.report import breaks, records
from dynajit.report.counters import counters
from dynajit.report.explain import ExplainReport
from dynajit.report.times import compile_times
from dynajit.torch_compat import METHODS_LOSE_THEIR_OBJECT
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.library import builtin
from dynajit.values.scalars.constant import ConstVal

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_ARGUMENTS = ("model", "fullgraph", "dynamic", "backend", "mode", "options", "disable")
# what takes the place of torch.compile's other arguments
_TORCHS = {
    "recompile_limit": "dynajit.config.recompile_limit",
    "shapes_spec": "mark_dynamic says it of a tensor",
    "name": "an argument of torch.compile's that means nothing here; leave it out",
    "isolate_recompiles": "equal calls of compile share their variants; leave it out",
}
F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable[..., Any] | None = ...,
    mode: str | None = ...,
    options: dict[str, Any] | None = ...,
    disable: bool = ...,
) -> F: ...
@overload
def compile(
    model: None = ...,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable[..., Any] | None = ...,
    mode: str | None = ...,
    options: dict[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[F], F]: ...
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = "codegen",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    **others: Any,
) -> Any:
    """Compile a function, method or nn.Module; also a decorator, with or without arguments.

    Args:
        model: what to compile. A module gives a module that shares all state with the original.
        fullgraph: raise `Unsupported` at a graph break instead of breaking the graph.
        dynamic: None compiles for the sizes at hand, and makes symbolic what is found to change; True makes sizes
            and numbers among the arguments symbolic at once; False never, so that each new size is compiled.
        backend: a name (`list_backends()`), or a callable `(GraphModule, example_inputs) -> callable`; None for the
            default.
        mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs".
        options: settings of the backend, by name; and for every backend `verify`: True, or N for one call in N, to
            compare with eager and a float64 reference (`AccuracyError`); `guard_filter_fn`: called with the list of a
            variant's guards (each with `kind`, `source`, `params`), gives for each whether to keep it. A guard left out
            is a promise that what it looks at never changes. `background`: True to run each graph as captured until
            another thread has compiled it; see `wait`.
        disable: return `model` as it is.

    Returns:
        A callable with the original's behaviour. Equal calls share what they compile, as long as the model, the backend
        and the guard filter are there, and until `reset`. Functions made anew of one code are equal.

    Raises:
        TypeError: `model` is not callable, or an argument is unknown; the message lists those that are known.
        ConfigError: the backend, mode or an option is unknown; the message lists what is known.
    """
    _check_arguments(others)
    if not isinstance(disable, bool):
        raise ConfigError(f"disable takes True or False, not {disable!r}")
    backend = "codegen" if backend is None else backend
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    if not callable(model):
        raise TypeError(
            "dynajit.compile takes a function, a method, an nn.Module or another callable, "
            f"not {type(model).__name__}: {model!r}"
        )
    if disable or (getattr(model, "_dynajit_disable", False) and getattr(model, "_dynajit_recursive", True)):
        return model
    return _compiled(model, _choices(fullgraph, dynamic, backend, mode, options))


def _check_arguments(others: Iterable[str]) -> None:
    for name in others:
        raise TypeError(str(ConfigError.unknown("argument of compile", name, _ARGUMENTS, _TORCHS.get(name, ""))))


def _choices(
    fullgraph: bool,
    dynamic: bool | None,
    backend: str | Callable[..., Any],
    mode: str | None,
    options: dict[str, Any] | None,
) -> Choices:
    if mode is not None and mode not in MODES:
        raise ConfigError.unknown("mode", mode, MODES)
    if mode is not None and options is not None:
        raise ConfigError("mode and options exclude each other: a mode is a set of options")
    if not (dynamic is None or isinstance(dynamic, bool)):
        raise ConfigError(f"dynamic takes None, True or False, not {dynamic!r}")
    if not isinstance(fullgraph, bool):
        raise ConfigError(f"fullgraph takes True or False, not {fullgraph!r}")
    if options is not None and not isinstance(options, dict):
        raise ConfigError(f"options takes a dictionary, not {options!r}")
    found = lookup_backend(backend)
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    named: dict[str, Any] = {}
    if mode not in (None, "default"):
        named["mode"] = mode
    own = dict(options or {})
    verify = own.pop("verify", 0)
    if type(verify) not in (bool, int) or verify < 0:
        raise ConfigError(f"the option verify takes True, False or a number of calls, not {verify!r}")
    guard_filter = own.pop("guard_filter_fn", None)
    if guard_filter is not None and not callable(guard_filter):
        raise ConfigError(f"the option guard_filter_fn takes a function, not {guard_filter!r}")
    background = own.pop("background", False)
    if type(background) is not bool:
        raise ConfigError(f"the option background takes True or False, not {background!r}")
    if background:
        _check_background(found, name, own)
    if own:
        _check_options(found, own)
        named["options"] = own
    settings = {"fullgraph": fullgraph, "dynamic": dynamic, "backend": backend, "mode": mode, "options": options}
    return Choices(found, name, fullgraph, dynamic, named, guard_filter, verify, settings, background)


def _check_background(backend: Callable[..., Any], name: str, options: dict[str, Any]) -> None:
    """Only a backend that looks at the graph and fake tensors alone can do so while the program runs."""
    if not getattr(backend, "works_apart", False):
        raise ConfigError(
            f"the backend {name!r} can't compile in the background, for it may run the graph on the program's tensors; "
            "codegen and aot_eager can"
        )
    for other in ("freezing", "max_autotune"):
        if options.get(other):
            raise ConfigError(f"the options background and {other} exclude each other: it reads or times live tensors")


def _new_session(choices: Choices) -> Session:
    session = Session(choices)
    make_capture(session)
    return session


def _check_options(backend: Callable[..., Any], options: dict[str, Any]) -> None:
    """Known options and what they take are listed by the backend itself, if it lists any."""
    known = getattr(backend, "known_options", None)
    if known is not None:
        check_options(options, known, also=("verify", "guard_filter_fn", "background"))


def _compiled(model: Any, choices: Choices) -> Any:
    if isinstance(model, _C.CompiledFunction):
        model = model.function
    if isinstance(model, type):
        raise TypeError(
            f"dynajit.compile does not compile the class {model.__name__}: compile its instances or methods"
        )
    original = getattr(type(model), "_dynajit_original", model)
    session, owner = shared_session(original, choices, _new_session)
    if isinstance(model, torch.nn.Module):
        return _compiled_module(original, session, owner)
    if getattr(model, "_dynajit_disable", False):
        return _call_object(_entry_function(model, session), session, owner)  # not itself, but what it calls
    if isinstance(model, types.FunctionType):
        return _call_object(model, session, owner)
    if isinstance(model, types.MethodType) and isinstance(model.__func__, types.FunctionType):
        call = _call_object(model.__func__, session, owner)
        call.inlined_statically = METHODS_LOSE_THEIR_OBJECT
        return types.MethodType(call, model.__self__)
    return _call_object(_entry_function(model, session), session, owner)


def _call_object(function: types.FunctionType, session: Session, owner: Owner) -> _C.CompiledFunction:
    assert session.capture is not None
    session.add_root(function.__code__)
    return _C.CompiledFunction(function, session.capture, owner, session, _reduce)


def _reduce(compiled: _C.CompiledFunction) -> tuple[Any, ...]:
    """Pickle as a call of compile on the original, which pickle finds by name."""
    return functools.partial(_restore, **compiled.key.choices.settings), (compiled.__module__, compiled.__qualname__)


def _restore(module: str, qualname: str, **settings: Any) -> Any:
    found: Any = __import__(module, fromlist=["_"])
    for part in qualname.split("."):
        found = getattr(found, part)
    return found if isinstance(found, _C.CompiledFunction) else compile(found, **settings)


def _entry_function(target: Callable[..., Any], session: Session) -> types.FunctionType:
    """A Python function that calls any callable."""

    def entry(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return _own_code(entry, getattr(target, "__name__", type(target).__name__), session)


def _own_code(function: Any, name: str, session: Session) -> types.FunctionType:
    """The function with the session's own code object, since variants belong to code objects."""
    if session.entry is None:
        globals_ = {"__name__": "dynajit_entry", "__builtins__": __builtins__}
        session.entry = function.__code__.replace(co_name=name), globals_
    code, globals_ = session.entry
    return types.FunctionType(code, globals_, name, function.__defaults__, function.__closure__)


def _compiled_module(original: torch.nn.Module, session: Session, owner: Owner) -> torch.nn.Module:
    """A module that shares `__dict__` with the original and whose call is compiled."""

    def entry(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    call = _call_object(_own_code(entry, type(original).__name__, session), session, owner)
    again = functools.partial(compile, **session.choices.settings)
    made = _with_call(original, types.MethodType(call, original), again)
    _tell_tracers(call, original, made)
    return made


def _tell_tracers(call: _C.CompiledFunction, original: torch.nn.Module, made: torch.nn.Module) -> None:
    """What other tracers see of a compiled module's call: its class's call of the module that they know, for they know
    modules by identity."""
    plain_call = type(original).__call__
    reference = weakref.ref(made)

    def recorded(original: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return plain_call(reference() or original, *args, **kwargs)

    call.recorded, call.inlined, call.inlined_statically = recorded, _inlined, METHODS_LOSE_THEIR_OBJECT


def _inlined(original: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What torch.compile traces for a compiled module's call. It takes the method for a function, and gives the module
    that it knows as well. A closure could not be guarded: torch 2.11 looks for it in a function of Python's."""
    plain_call = type(original).__call__
    if args and getattr(type(args[0]), "_dynajit_original", None) is original:
        return plain_call(*args, **kwargs)
    return plain_call(original, *args, **kwargs)


def _with_call(
    original: torch.nn.Module,
    call: Callable[..., Any],
    again: Callable[[torch.nn.Module], torch.nn.Module],
) -> torch.nn.Module:
    """A module of a subclass of the original's class that shares all state with it, but is called by `call`. Copies are
    made by `again` of the copied original, pickles hold both."""

    def deepcopy(self: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
        return again(copy.deepcopy(original, memo))

    def shallow_copy(self: torch.nn.Module) -> torch.nn.Module:
        return again(copy.copy(original))

    def reduce(self: torch.nn.Module, protocol: Any = 2) -> tuple[Any, ...]:
        return again, (original,)

    cls = type(original)
    namespace = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_dynajit_original": original,
        "__call__": call,
        "__copy__": shallow_copy,
        "__deepcopy__": deepcopy,
        "__reduce_ex__": reduce,
    }
    make_class: Any = type(cls)
    compiled_class = make_class(cls.__name__, (cls,), namespace)
    made = object.__new__(compiled_class)  # a class's own __new__ makes objects anew: a GraphModule's, a class even
    object.__setattr__(made, "__dict__", original.__dict__)
    return made  # type: ignore[no-any-return]


class Explain:
    """`explain(fn)`, waiting for arguments."""

    def __init__(self, fn: Callable[..., Any], settings: dict[str, Any]) -> None:
        self.fn = fn
        self.settings = settings

    def __call__(self, *args: Any, **kwargs: Any) -> ExplainReport:
        """Run the function once, compiled by itself, and report what was captured; an exception of the call ends up in
        the report."""
        found: list[records.CompileRecord] = []
        with unshared():
            compiled = compile(self.fn, **self.settings)
        result, error = None, None
        with records.listen(found.append):
            try:
                result = compiled(*args, **kwargs)
            except Exception as raised:
                error = raised
        return ExplainReport(found, result, error)


def explain(fn: Callable[..., Any], **settings: Any) -> Explain:
    """`explain(fn)(*args, **kwargs)` runs `fn` once and returns an `ExplainReport`: graphs, breaks, guards, kernels,
    compile time.

    `settings` are those of `compile`; default: those that `fn` was compiled with, if it was.
    """
    if not callable(fn):
        raise TypeError(f"dynajit.explain takes a callable, not {type(fn).__name__}: {fn!r}")
    _check_arguments(settings.keys() - {*_ARGUMENTS})
    return Explain(fn, {**_settings_of(fn), **settings})


def _settings_of(fn: Any) -> dict[str, Any]:
    """The arguments of the `compile` call that made `fn`; none if it is not compiled."""
    call = type(fn).__dict__.get("__call__") if isinstance(fn, torch.nn.Module) else fn
    call = getattr(call, "__func__", call)
    if not isinstance(call, _C.CompiledFunction):
        return {}
    settings: dict[str, Any] = {**call.key.choices.settings, "fullgraph": False}
    if not isinstance(settings["backend"], str):
        settings["backend"], settings["options"] = "eager", None  # a backend of the user's own sees its own graphs only
    if settings["options"]:  # what is reported is to be complete
        settings["options"] = {name: value for name, value in settings["options"].items() if name != "background"}
    return settings


def reset() -> None:
    """Forget all compiled variants and counts; the next call of anything compiled compiles again. Memory kept for CPU
    tensors goes back to the system."""
    forget_shared()
    reset_caches()
    _C.memory_pool_trim()
    counters.clear()
    compile_times().clear()


def disable(fn: F | None = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Never compile `fn`; with `recursive`, nor anything it calls. Also a decorator.

    Args:
        fn: the function.
        recursive: False compiles what the function calls, though not the function itself: also where it is what
            `compile` is given.
        reason: for the reader of reports.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if not callable(fn):
        raise TypeError(f"dynajit.disable takes a callable, not {type(fn).__name__}: {fn!r}")
    if isinstance(fn, type):
        # what making an instance runs, and calling it
        cls: Any = fn
        for name in ("__init__", "__call__"):
            if isinstance(getattr(cls, name), types.FunctionType):
                setattr(cls, name, _disabled(getattr(cls, name), recursive, reason))
        return cls
    if isinstance(fn, torch.nn.Module):
        original = getattr(type(fn), "_dynajit_original", fn)
        again = functools.partial(disable, recursive=recursive, reason=reason)
        return _with_call(original, staticmethod(_disabled(original, recursive, reason)), again)
    return _disabled(fn.function if isinstance(fn, _C.CompiledFunction) else fn, recursive, reason)


def _disabled(target: Any, recursive: bool, reason: str | None) -> Callable[..., Any]:
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return _C.call_eager(target, args, kwargs) if recursive else target(*args, **kwargs)

    _C.mark_skip(disabled.__code__)
    made: Any = disabled
    if not isinstance(target, torch.nn.Module):
        made = functools.wraps(target)(disabled)
        if not recursive and isinstance(target, types.FunctionType):
            _C.mark_skip(target.__code__)
    made._dynajit_disable = True
    made._dynajit_recursive = recursive
    made._dynajit_reason = reason
    return made  # type: ignore[no-any-return]


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Make a dimension symbolic from the first compile on.

    Args:
        tensor: the tensor that will be passed to compiled code.
        dim: one dimension or several.
        min, max: the sizes to expect; others are compiled again.

    A program that holds for one size of the dimension only is an error, `exc.ConstraintViolation`, that names the line.
    """
    seen.mark(tensor, dim, "dynamic", min, max)


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int | Sequence[int]) -> None:
    """Make a dimension symbolic from the first compile on, if the program allows it."""
    seen.mark(tensor, dim, "maybe")


def mark_static(tensor: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Compile again for each size of a dimension (None: of all), also where it changes."""
    seen.mark(tensor, range(tensor.dim()) if dim is None else dim, "static")


def mark_unbacked(tensor: torch.Tensor, dim: int | Sequence[int]) -> None:
    """Make a dimension symbolic from the first compile on, and whatever decides by its size an error, as
    `mark_dynamic` does; torch.compile takes such a size for one that only data tell."""
    seen.mark(tensor, dim, "dynamic")


def mark_static_address(tensor: torch.Tensor, guard: bool = False) -> None:
    """Promise that compiled code is always given this tensor at this place in memory.

    A hint for CUDA graphs, which dynajit needs none of: it writes the addresses of inputs into a recorded graph where
    they change. `guard` is accepted for the same reason.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is marked, not {type(tensor).__name__}")


def cudagraph_mark_step_begin() -> None:
    """Say that an iteration begins. Results of CUDA graphs live as long as the program holds them, so that there is
    nothing to do; programs written for torch.compile call it."""


@builtin(mark_static_address, cudagraph_mark_step_begin)
def _hint(tx: Tracer, tensor: Value | None = None, guard: Value | None = None) -> None:
    if tensor is not None and not issubclass(tensor.py_type(), torch.Tensor):
        raise tx.raised(TypeError, f"a tensor is marked, not {tensor.py_type().__name__}")


@builtin(mark_dynamic, maybe_mark_dynamic, mark_static, mark_unbacked)
def _mark(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    raise GraphBreak(breaks.USER_BREAK, "marking a tensor's dimensions")


def graph_break() -> None:
    """End the graph here; does nothing in eager code."""


@builtin(graph_break)
def _graph_break(tx: Tracer) -> Value:
    raise GraphBreak(breaks.USER_BREAK)


def is_compiling() -> bool:
    """True in code that dynajit is tracing, False in eager code. (`torch.compiler.is_compiling` is True only where what
    the program does otherwise can't be captured whole: `capture/answers.py`.)"""
    return False


@builtin(is_compiling)
def _is_compiling(tx: Tracer) -> Value:
    return ConstVal(True)
