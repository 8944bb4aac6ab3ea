"""Which functions are traced, and which end the graph.

In: a function. Out: None to trace it, or the kind of break and its detail. The tables below are short on purpose: a
module is listed with the reason why its functions are not traced, or are computed; everything else is traced. Users
add to them with `module_policy`, public as `dynajit.module_policy`.
"""

from __future__ import annotations

import _thread
import builtins
import collections
import functools
import inspect
import itertools
import math
import operator
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit import _C
from dynajit.exc import ConfigError
from dynajit.report import breaks
from dynajit.report.breaks import BreakKind
from dynajit.values.core.registry import Model, models_of_named
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.lookup import MODULE_CALL_IMPL
from dynajit.values.polyfills.func_transforms import no_context
from dynajit.values.scalars.constant import ConstVal

# module prefix → why its Python functions are not traced
SKIPPED_MODULES: dict[str, str] = {
    "torch._dynamo": "torch's own compiler",
    "torch._inductor": "torch's own compiler",
    "torch._functorch": "torch's own compiler",
    "torch._subclasses": "fake tensors",
    "torch.fx": "graph tools",
    "torch.autograd": "the autograd engine",
    "torch.optim.lbfgs": "chooses by what its closure gave",
    "torch.distributed": "talks to other processes",
    "torch.utils.data": "loads data",
    "torch.serialization": "reads files",
    "torch.multiprocessing": "starts processes",
    "torch.profiler": "looks at the running program",
    "torch.cuda": "talks to the device",
    "torch.jit": "another compiler",
    "torch.export": "another compiler",
    "torch.onnx": "another compiler",
    "torch.testing": "test tools",
    "torch.hub": "reads files",
    "torch.library": "registers operators",
    "torch._ops": "calls operators",
    "torch._tensor_str": "prints tensors",
    "torch._logging": "writes output",
    "logging": "writes output",
    "warnings": "writes output",
    "threading": "starts threads",
    "multiprocessing": "starts processes",
    "subprocess": "starts processes",
    "asyncio": "runs coroutines",
    "concurrent": "starts threads",
    "socket": "talks to the network",
    "inspect": "looks at frames and code",
    "traceback": "looks at frames",
    "linecache": "reads files",
    "io": "reads and writes files",
    "random": "changes the random state",
    "tempfile": "writes files",
    "shutil": "writes files",
    "pdb": "a debugger",
    "unittest": "test tools",
    "_pytest": "test tools",
    "pytest": "test tools",
    "importlib": "imports modules",
    "pickle": "serialises",
    "ast": "reads code",
    "dis": "reads code",
    "tokenize": "reads code",
    "numpy": "computes on arrays outside of torch",
    "pandas": "computes outside of torch",
    "triton": "compiles kernels",
    "dynajit": "the compiler itself",
    "sympy": "symbolic algebra",
    "typing": "type annotations",
    "weakref": "object life times",
    "gc": "object life times",
    "ctypes": "calls foreign code",
    "email": "not tensor code",
    "urllib": "talks to the network",
    "http": "talks to the network",
    "argparse": "text processing",
    "datetime": "the clock",
    "time": "the clock",
    "os": "the operating system",
    "pathlib": "the operating system",
    "copy": "copies objects with their identity",
    "abc": "class machinery",
    "cffi": "calls foreign code",
    "pycparser": "calls foreign code",
    "networkx": "not tensor code",
    "mpmath": "symbolic algebra",
    "tqdm": "writes output",
    "rich": "writes output",
    "torch._jit_internal": "another compiler",
    "torch.nn.parallel": "talks to other processes and devices",
    "torch.nn.modules.lazy": "makes a module's parameters",
}
# traced although a shorter prefix above covers them: the longest prefix in any of the tables counts
TRACED_MODULES = (
    "torch.autograd.grad_mode",
    "torch.autograd.forward_ad",
    "torch.autograd.functional",
    "torch.autograd.profiler",
    "torch._functorch.apis",
    "torch._functorch.vmap",
    "torch._functorch.eager_transforms",
    "torch._functorch.functional_call",
    "torch._functorch.utils",
    "torch._functorch.predispatch",
    "torch.cuda.amp",
    "dynajit.values.polyfills",
    "dynajit.bytecode.return_action",
    "dynajit.values.tensors.break_errors",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",  # calls `checkpoint`
    "torch.distributed.algorithms.model_averaging",
    "torch.distributed.nn.functional",
    "torch.distributed.optim.post_localSGD_optimizer",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "torch.distributed.tensor._dtensor_spec",
    "torch.distributed.tensor.parallel.style",
    "torch.distributed.tensor.placement_types",
    # calling a GraphModule
    "torch.fx.graph_module",
    "torch.fx._pytree",
    # functions that torch's tables of operators wrap around operators
    "torch.testing._internal.common_methods_invocations",
    "torch.testing._internal.opinfo",
)
# functions that are traced although their module is not: they only look at their arguments
TRACED_FUNCTIONS = frozenset(
    {
        "inspect.BoundArguments.__init__",
        "inspect.BoundArguments.apply_defaults",
        "inspect.BoundArguments.args",
        "inspect.BoundArguments.kwargs",
        "inspect.Signature._bind",
        "inspect.Signature.bind",
        "inspect.Signature.bind_partial",
        "inspect.isbuiltin",
        "inspect.iscode",
        "inspect.isgenerator",
        "inspect.ismodule",
        "inspect.isroutine",
        "os.getenv",
        "torch.distributed.algorithms.join.Join.notify_join_context",
        "torch.distributed.distributed_c10d.Backend.__new__",
        "torch.distributed.distributed_c10d.P2POp.__init__",
        "torch.distributed.distributed_c10d.P2POp.__new__",
        "torch.distributed.distributed_c10d._CoalescingManager.__init__",
        "torch.distributed.distributed_c10d._CoalescingManager.append",
        "torch.distributed.distributed_c10d._CoalescingManager.wait",
        "torch.distributed.distributed_c10d._canonicalize_group_rank",
        "torch.distributed.distributed_c10d._check_op",
        "torch.distributed.distributed_c10d._check_single_tensor",
        "torch.distributed.distributed_c10d._get_default_group",
        "torch.distributed.distributed_c10d._group_or_default_group",
        "torch.distributed.distributed_c10d._rank_not_in_group",
        "torch.distributed.tensor._api.distribute_module.<locals>.<lambda>",
        "torch.distributed.tensor.experimental._func_map._local_map_wrapped",
        "torch.autograd.graph.disable_saved_tensors_hooks",
        "torch.autograd.graph.save_on_cpu.__init__",
        "torch.autograd.graph.saved_tensors_hooks.__init__",
        "torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex.__torch_function__",
        "typing.assert_type",
        "weakref.WeakValueDictionary.__contains__",
        "weakref.WeakValueDictionary.__getitem__",
        "weakref.WeakValueDictionary.get",
    }
)
# torch's modules whose functions raise where they hear that they are compiled
REFUSING_MODULES = frozenset({"torch.distributed.nn.functional"})
# functions that are not traced although their module is, and why
SKIPPED_FUNCTIONS: dict[str, str] = {
    "torch.nn.utils.parametrize.register_parametrization": "makes a class for the module",
    "torch.nn.utils.parametrize.remove_parametrizations": "gives the module its class back",
    "torch.utils.swap_tensors": "exchanges what two tensors are",
}
# module prefix → why its functions are run while tracing when all their arguments are plain data known then
COMPUTED_MODULES: dict[str, str] = {
    "re": "text in, text out",
    "json": "text and plain data",
    "textwrap": "text in, text out",
    "base64": "bytes in, bytes out",
    "_struct": "numbers and bytes",
    "struct": "numbers and bytes",
    "binascii": "bytes in, bytes out",
    "html": "text in, text out",
    "fnmatch": "text in, text out",
    "difflib": "text in, text out",
    "statistics": "numbers in, numbers out",
    "keyword": "a fixed list",
    "colorsys": "numbers in, numbers out",
    "unicodedata": "a fixed table",
    "urllib.parse": "text in, text out",
    "zlib": "bytes in, bytes out",
}
TREATMENTS = ("trace", "skip", "compute")
_by_user: dict[str, tuple[str, str]] = {}


def module_policy(module: str, treatment: str, reason: str = "") -> None:
    """Say how calls of a module's Python functions are captured; it holds for the modules below it, too.

    Args:
        module: the module's name, such as "mylib.io".
        treatment: "trace" follows calls into the functions' code; "skip" ends the graph at them and runs them as they
            are; "compute" runs them while tracing when all arguments are plain data known then (only for functions
            whose result depends on their arguments alone).
        reason: for the message at graph breaks.

    What was compiled before stays as it is until `dynajit.reset()`.

    Raises:
        ConfigError: an unknown treatment.
    """
    if treatment not in TREATMENTS:
        raise ConfigError.unknown("treatment of a module", treatment, TREATMENTS)
    _by_user[module] = (treatment, reason or "as module_policy() says")
    treatment_of.cache_clear()


@functools.lru_cache(maxsize=4096)
def treatment_of(module: str) -> tuple[str, str]:
    """(treatment, reason) of a module: what the user says of the nearest prefix, else what the tables say."""
    name = module
    while name:
        if name in _by_user:
            return _by_user[name]
        name = name.rpartition(".")[0]
    name = module
    while name:
        if name in TRACED_MODULES:
            return "trace", ""
        if name in COMPUTED_MODULES:
            return "compute", COMPUTED_MODULES[name]
        if name in SKIPPED_MODULES:
            return "skip", SKIPPED_MODULES[name]
        name = name.rpartition(".")[0]
    return "trace", ""


def is_computed_by_user(function: Any) -> bool:
    """Whether `module_policy` was called for the function's module, or one above it."""
    module = str(getattr(function, "__module__", None) or "")
    return any(module == name or module.startswith(name + ".") for name in _by_user)


_SETS_TRACE = frozenset({"settrace", "setprofile", "settrace_all_threads", "setprofile_all_threads"})


def sets_trace_function(code: types.CodeType) -> bool:
    """Whether the function turns a debugger or profiler on or off: what that is told of has to be the function itself,
    not code that was made of it."""
    return not _SETS_TRACE.isdisjoint(code.co_names)


_OUTPUT = frozenset({"print", "input", "open", "breakpoint", "write", "flush"})
_FRAMES = frozenset(
    {"locals", "globals", "vars", "dir", "exec", "eval", "_getframe", "compile", "__import__", "exc_info"}
)


_TRACED_THOUGH_DISABLED = ("torch.optim", "torch.utils.checkpoint", "torch.random")


def undisabled(function: types.FunctionType) -> types.FunctionType | None:
    """What torch's own compiler wraps or hides from itself, and is traced here: its optimizers, `Module.__init__`,
    `torch.manual_seed`."""
    where = function.__globals__.get("__name__")
    original: Any = None
    if where == "torch._compile":
        original = function.__dict__.get("__wrapped__")
    elif where == "torch._dynamo.eval_frame":
        original = function.__dict__.get("_torchdynamo_orig_callable")
    elif where == "torch.jit._trace":
        # scripted where torch.jit traces, else as it stands
        inner = function.__dict__.get("__original_fn")
        return inner if isinstance(inner, types.FunctionType) else None
    elif where == "torch._dynamo.mutation_guard":
        # it numbers modules for torch.compile, which does not see those made while tracing
        parts = [cell.cell_contents for cell in function.__closure__ or ()]
        return next((part for part in parts if isinstance(part, types.FunctionType)), None)
    elif where == "torch._dynamo.decorators":
        # marks that say how torch.compile traces a function, and what it may take for granted of a tensor
        inner = function.__dict__.get("__wrapped__") if "nonstrict" in function.__code__.co_qualname else function
        if isinstance(inner, types.FunctionType) and (inner is not function or inner.__name__ == "mark_static_address"):
            return inner
        return None
    if isinstance(original, types.FunctionType) and (original.__module__ or "").startswith(_TRACED_THOUGH_DISABLED):
        return original
    return None


def recursive_text(function: types.FunctionType) -> types.FunctionType | None:
    """What `reprlib.recursive_repr` wraps, and dataclasses' own form of it: the wrapper keeps a set of what is being
    printed. One that prints itself is traced too deep and breaks."""
    if function.__globals__.get("__name__") not in ("dataclasses", "reprlib"):
        return None
    qualname = function.__qualname__ + str(getattr(function.__code__, "co_qualname", ""))
    names = function.__code__.co_freevars
    if "recursive_repr.<locals>" not in qualname or "user_function" not in names:
        return None
    inner = (function.__closure__ or ())[names.index("user_function")].cell_contents
    return inner if isinstance(inner, types.FunctionType) else None


@models_of_named("torch._dynamo.external_utils", "is_compiling")
def _is_compiling(function: types.FunctionType, tx: Tracer) -> Value:
    return ConstVal(tx.is_compiling())


@models_of_named("torch.fx.traceback", "annotate")
@models_of_named("torch.fx.experimental.proxy_tensor", "maybe_enable_thunkify")
def _annotate(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """A context that labels the nodes of torch's tracers."""
    return tx.run_python(no_context, args, kwargs)


@models_of_named("torch._dynamo.decorators", "mark_static")
def _mark_static(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> None:
    """torch's own code tells its own compiler."""
    if tx.caller_module().startswith("torch."):
        return
    raise GraphBreak(breaks.SKIPPED_CALL, "torch._dynamo.mark_static")


@models_of_named("torch._dynamo.decorators", "graph_break")
@models_of_named("torch._dynamo", "graph_break")
def _graph_break(function: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> None:
    """torch's optimizers ask for breaks that only its own compiler needs."""
    if tx.caller_module().startswith("torch.optim"):
        return
    raise GraphBreak(breaks.USER_BREAK)


def is_marked_constant(function: types.FunctionType) -> bool:
    """Whether the program promises that equal arguments give the same result for as long as the process lives: by
    `dynajit.assume_constant_result`, or by torch's function of that name, whose mark libraries set without torch."""
    return any(getattr(function, mark, False) is True for mark in ("_dynajit_constant", "_dynamo_marked_constant"))


def skip_reason(function: types.FunctionType) -> tuple[BreakKind, str] | None:
    """Why the function is not traced, or None."""
    if getattr(function, "_dynajit_disable", False) or getattr(function, "_torchdynamo_disable", False):
        inner = function.__dict__.get("_torchdynamo_orig_callable")
        if isinstance(inner, types.FunctionType) and not function.__dict__.get("_torchdynamo_disable_recursive", True):
            _C.mark_skip(inner.__code__)  # what it calls is compiled, it is not
        elif inner is not None and _C.code_flags(function.__code__):
            _C.reset_code(function.__code__)  # all that torch disables share it: the mark was meant for another one
        return breaks.DISABLED, function.__qualname__
    if hasattr(function, "_torchdynamo_orig_callable"):
        return breaks.COMPILED_CALL, function.__qualname__
    if sets_trace_function(function.__code__):
        return breaks.FRAME_INTROSPECTION, f"{function.__qualname__} sets a trace function"
    module = module_of(function)
    treatment, reason = treatment_of(module)
    named = f"{module}.{function.__qualname__}"
    if named in SKIPPED_FUNCTIONS and module not in _by_user:
        return breaks.SKIPPED_CALL, f"{named} ({SKIPPED_FUNCTIONS[named]})"
    if treatment == "trace" or (named in TRACED_FUNCTIONS and module not in _by_user):
        return None
    if function is torch.nn.modules.lazy.LazyModuleMixin._infer_parameters:
        return breaks.FIRST_CALL, ""
    kind = breaks.OUTPUT_CALL if reason == "writes output" else breaks.SKIPPED_CALL
    return kind, f"{named} ({reason})"


def never_traced_around(function: types.FunctionType, args: Sequence[Value]) -> tuple[BreakKind, str] | None:
    """Why a module is called as it is: hooks before and after its forward are never traced, so that a graph can't go
    across either of its ends. Its forward is captured by itself, under the code that equal modules share."""
    module = getattr(args[0], "real_object", None) if function is MODULE_CALL_IMPL else None
    found = None
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        hooks = [getattr(hook, "__func__", hook) for hook in getattr(module, name, {}).values()]
        reasons = (skip_reason(hook) for hook in hooks if isinstance(hook, types.FunctionType))
        found = next(filter(None, reasons), None)
        if found is None:
            return None
    return found and (found[0], f"{found[1]}, a hook of {type(module).__name__}")


def module_of(function: types.FunctionType) -> str:
    """The module whose entry in the tables holds for a function."""
    return str(function.__globals__.get("__name__") or function.__module__ or "")


def builtin_kind(fn: Any) -> BreakKind:
    """The kind of break at a C function without a model."""
    name = getattr(fn, "__name__", "")
    if name in _OUTPUT:
        return breaks.OUTPUT_CALL
    if name in _FRAMES:
        return breaks.FRAME_INTROSPECTION
    return breaks.UNKNOWN_CALL


def name_of(fn: Any) -> str:
    """A function's name for messages."""
    module = getattr(fn, "__module__", None)
    name = getattr(fn, "__qualname__", None) or repr(fn)
    return f"{module}.{name}" if module else str(name)


@functools.cache
def signature_of(handler: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(handler)


def check_fits(handler: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises TypeError where the arguments don't fit a model. A keyword that is named as a parameter given by position
    only is one of the model's others (`dict(other=1)`), which CPython 3.11's `bind` refuses."""
    signature = signature_of(handler)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        first = {name for name, parameter in signature.parameters.items() if parameter.kind is _FIRST}
        kwargs = {name: value for name, value in kwargs.items() if name not in first}
    signature.bind(*args, **kwargs)


@functools.cache
def positions_of(handler: Callable[..., Any]) -> tuple[int, float]:
    """How many arguments given by position fit a model, after the interpreter: at least, and fewer than."""
    fewest, most = -1, 0.0
    for parameter in signature_of(handler).parameters.values():
        needed = parameter.default is parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            most = math.inf
        elif parameter.kind is parameter.KEYWORD_ONLY:
            fewest += 1_000_000 if needed else 0
        elif parameter.kind is not parameter.VAR_KEYWORD:
            fewest += needed
            most += 1
    return fewest, most


_FIRST, _BOTH, _NAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
_ANY_NAME = "(*args, **kwargs)"
# what the library's reference says of functions written in C that take names and have no signature to ask for
_DOCUMENTED: dict[Any, str] = {
    max: "(*args, key=None, default=None)",
    min: "(*args, key=None, default=None)",
    int: "(x=0, /, base=10)",
    str: "(object='', encoding='utf-8', errors='strict')",
    str.format: "(self, /, *args, **kwargs)",
    **dict.fromkeys((slice, range), "(start, stop=None, step=None, /)"),
    zip: "(*iterables, strict=False)",
    dict: "(other=(), /, **kwargs)",
    dict.update: "(self, other=(), /, **kwargs)",
    collections.OrderedDict: "(other=(), /, **kwargs)",
    collections.OrderedDict.update: "(self, other=(), /, **kwargs)",
    collections.defaultdict: "(default_factory=None, /, *args, **kwargs)",
    collections.deque: "(iterable=(), maxlen=None)",
    functools.partial: "(func, /, *args, **kwargs)",
    functools.cmp_to_key: "(mycmp)",
    map: map.__text_signature__ or "(function, iterable, /, *iterables)",  # with `strict` since CPython 3.14
    filter: "(function, iterable, /)",
    itertools.zip_longest: "(*iterables, fillvalue=None)",
    itertools.repeat: "(object, times=None)",
    itertools.product: "(*iterables, repeat=1)",
    operator.methodcaller: "(name, /, *args, **kwargs)",
    **dict.fromkeys((_thread.LockType.acquire, _thread.RLock.acquire), "(self, blocking=True, timeout=-1)"),
    **dict.fromkeys((builtins.__build_class__, object.__init_subclass__, type, super), _ANY_NAME),
}


@functools.cache
def real_signature(fn: Any) -> inspect.Signature | None:
    """What a function or class takes; None if that is not known."""
    text = _DOCUMENTED.get(fn)
    if text is None:
        try:
            return inspect.signature(fn)
        except (TypeError, ValueError):  # written in C: it says nothing of it, or not what a default is
            owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None) or fn
            module = str(getattr(owner, "__module__", None) or getattr(owner, "__name__", ""))
            if module.partition(".")[0] not in sys.stdlib_module_names:
                return None
            text = re.sub(r"\$module,( /,)?|\$", "", getattr(fn, "__text_signature__", None) or "(*args)")
    world: dict[str, Any] = {}
    exec(f"def takes{text.replace('<unrepresentable>', 'None')}: ...", world)
    return inspect.signature(world["takes"])


def arranged(
    fn: Any, handler: Model, args: Sequence[Value], kwargs: dict[str, Value]
) -> tuple[Sequence[Value], dict[str, Value]] | None:
    """The arguments of a call as the model takes them: those given by the function's own names by the model's, whose
    positions are the same. None if the function itself does not take them so."""
    fewest, most, positions, named, is_open = _shape_of(fn)
    if not kwargs:
        return (args, kwargs) if fewest <= len(args) <= most else None
    if len(args) > most or not (is_open or named.issuperset(kwargs)):
        return None
    if len(args) + sum(name in positions for name in kwargs) < fewest:
        return None
    own, takes_more, takes_any = _names_of(handler)
    found: dict[str, Value] = {}
    for name, value in kwargs.items():
        at = positions.get(name)
        if at is not None and at < len(args):
            return None  # given twice
        if at is not None and at == len(args) >= len(own) and takes_more and not takes_any and name not in own:
            args = [*args, value]
        else:
            inner = name if at is None or takes_any or name in own or at >= len(own) else own[at]
            found[inner] = value
    return args, found


@functools.cache
def _shape_of(fn: Any) -> tuple[int, float, dict[str, int], frozenset[str], bool]:
    """How many arguments by position a function takes at least (some maybe by name) and at most, at which positions
    those are that may be given by name, which may be given so, and whether any may."""
    signature = real_signature(fn)
    if signature is None:
        return 0, math.inf, {}, frozenset(), True
    parameters = list(signature.parameters.values())
    kinds = [parameter.kind for parameter in parameters]
    positions = [parameter for parameter in parameters if parameter.kind in (_FIRST, _BOTH)]
    return (
        sum(parameter.default is parameter.empty for parameter in positions),
        math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else len(positions),
        {parameter.name: at for at, parameter in enumerate(positions) if parameter.kind is _BOTH},
        frozenset(parameter.name for parameter in parameters if parameter.kind in (_BOTH, _NAMED)),
        inspect.Parameter.VAR_KEYWORD in kinds,
    )


@functools.cache
def _names_of(handler: Callable[..., Any]) -> tuple[list[str], bool, bool]:
    """The names of a model's parameters that stand for arguments, in order, whether it takes any more by position, and
    whether any by name."""
    parameters = list(signature_of(handler).parameters.values())[1:]
    own = [parameter.name for parameter in parameters if parameter.kind in (_FIRST, _BOTH, _NAMED)]
    kinds = {parameter.kind for parameter in parameters}
    return own, inspect.Parameter.VAR_POSITIONAL in kinds, inspect.Parameter.VAR_KEYWORD in kinds
