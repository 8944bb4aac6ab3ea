"""Where torch's releases differ, or where what dynajit needs of torch is no public function.

In:  nothing. Out: functions that mean the same under every torch dynajit supports. The only file that may ask which
torch runs. One more difference: a function here, named for what it does.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import keyword
import linecache
import logging
import pathlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch
import torch.fx._lazy_graph_module
from torch.fx.experimental import _config as _symbol_config
from torch.utils._python_dispatch import _disable_current_modes

# Whether numbers too large for float8_e4m3fn, infinities among them, become the largest there is; else NaN.
FLOAT8_E4M3FN_SATURATES = torch.tensor(1e4, device="cpu").to(torch.float8_e4m3fn).float().item() == 448

# Whether torch.compile calls what a method's function names as inlined without the method's object: it asks the method,
# which passes on what its function has.
METHODS_LOSE_THEIR_OBJECT = torch.__version__.startswith("2.11.")
# Ragged sizes are compared by code of torch's that is not traced, so that a break may carry a size of the trace's.
COMPARES_RAGGED_SIZES = not torch.__version__.startswith(("2.11.", "2.12."))

# Where there is no GPU, torch 2.11 puts something in the place of CUDA's devices when it first traces, and frees it
# with the thread that it was in, though others use it. The thread that imports dynajit lives longer than most.
if torch.__version__.startswith("2.11.") and torch.cuda._device_count_nvml() <= 0:
    torch._C._ensureCUDADeviceGuardSet()


def check() -> None:
    """Refuse, at import, a torch older than dynajit knows, and one that the extension was not built against."""
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    if (int(major), int(minor)) < (2, 11):
        raise ImportError(f"dynajit works with torch 2.11 and newer; this is torch {torch.__version__}")
    build = (
        "It is built for one release of CPython and of torch. In a checkout: python setup.py build_ext --inplace; "
        "else: pip install --force-reinstall --no-deps --no-build-isolation dynajit"
    )
    try:
        from dynajit import _C
    except ImportError as error:
        text = f"dynajit's extension can't be loaded with torch {torch.__version__}: {error}. {build}"
        raise ImportError(text) from error
    built = getattr(_C, "TORCH_RELEASE", f"{major}.{minor}")  # extensions from before dynajit 0.2 don't say
    if built != f"{major}.{minor}":
        raise ImportError(
            f"dynajit's extension was built against torch {built}; this is torch {torch.__version__}. {build}"
        )


def memory_of(value: Any) -> int | None:
    """What tells tensors apart that share memory from those that don't; None for those without memory of their own."""
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return value.untyped_storage()._cdata  # type: ignore[no-any-return]
    except NotImplementedError:  # inside of torch.func's transforms, and sparse
        return None


def through_levels(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, and what torch.func's levels wrap in it, also levels that were left."""
    yield value
    while _LEVELS.is_functorch_wrapped_tensor(value):
        value = _LEVELS.get_unwrapped(value)
        yield value


def innermost(value: torch.Tensor) -> torch.Tensor:
    """What torch.func's levels wrap; the tensor itself if none does."""
    return [*through_levels(value)][-1]


def is_batched(value: torch.Tensor) -> bool:
    """Whether there is another number for each item that some level of vmap goes over."""
    return any(map(_LEVELS.is_batchedtensor, through_levels(value)))


def memory_below(value: Any) -> int | None:
    """As `memory_of`; of what is wrapped by levels, what the innermost has."""
    return memory_of(innermost(value)) if isinstance(value, torch.Tensor) else None


_LEVELS: Any = torch._C._functorch
_LEAVES: dict[Any, Callable[[], Any]] = {
    getattr(_LEVELS.TransformType, kind): getattr(_LEVELS, f"_{name}_decrement_nesting")
    for kind, name in (("Vmap", "vmap"), ("Grad", "grad"), ("Jvp", "jvp"), ("Functionalize", "func"))
}


def leave_levels(depth: int, dual: bool) -> None:
    """Leave the levels of torch.func's transforms that were entered since there were so many, and one of forward-mode
    differentiation, if `dual`."""
    # `pop_dynamic_layer_stack_and_undo_to_depth` has an internal assert that fails in torch 2.11
    while _LEVELS.get_dynamic_layer_stack_depth() > depth:
        _LEAVES[_LEVELS.peek_interpreter_stack().key()]()
    if dual and in_dual_level():
        torch._C._exit_dual_level(level=0)


def in_dual_level() -> bool:
    """Whether a level of forward-mode differentiation is open: there is one at most, and entering another one fails."""
    try:
        torch._C._enter_dual_level()
    except RuntimeError:
        return True
    torch._C._exit_dual_level(level=0)
    return False


def settle_attention() -> None:
    """Have torch order its kernels for attention, where a GPU is in use. It does so at the first call of the process;
    in the middle of a capture that would be a change of its settings, made by the traced program."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        _order_attention_kernels()


@functools.cache
def _order_attention_kernels() -> None:
    with _disable_current_modes(), torch.no_grad():
        some = torch.empty(1, 1, 8, 64, dtype=torch.float16, device="cuda")
        torch._fused_sdp_choice(some, some, some)


def any_autocast_enabled() -> bool:
    """Whether autocast is on for any device type."""
    return bool(torch._C._is_any_autocast_enabled())


def aot_options() -> dict[str, Any]:
    """What `torch._functorch.config.patch` is given while AOTAutograd compiles.

    Donated buffers make backward(retain_graph=True) an error that eager doesn't raise. A backward graph compiled when
    backward is first called would be compiled under whatever frame hook is active there, and its failure would be
    nobody's. Equal nodes are merged by a pass of ours.
    """
    return {"donated_buffer": False, "force_non_lazy_backward_lowering": True, "cse": False}


def exact_release() -> tuple[str, str]:
    """torch's version, and the commit that it was built from."""
    return str(torch.__version__), str(torch.version.git_version)


def release() -> str:
    """The minor release of torch: "2.13". Operators keep their meaning and schema within one."""
    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def group_store() -> Any:
    """The store in which the ranks of torch.distributed's default group met; None without a group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()


@functools.cache
def lazy_graphs() -> Any:
    """Inside, AOTAutograd's graphs get their Python code when they are called: they are copied and rewritten many
    times, and hardly ever called."""
    from dynajit.process_state import changed  # needs the extension, of which `check` tells first

    return changed((torch.fx._lazy_graph_module, "_use_lazy_graph_module_flag", True))


class _Here(threading.local):
    """What stands for functions of torch's in this thread, by their owners and names."""

    def __init__(self) -> None:
        self.functions: dict[tuple[Any, str], Callable[..., Any]] = {}


_here = _Here()


@functools.cache
def _replaceable(owner: Any, names: tuple[str, ...]) -> Any:
    """Inside, these functions may have others in their place in each thread."""
    from dynajit.process_state import changed

    def chosen(name: str) -> Callable[..., Any]:
        given, key = getattr(owner, name), (owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            here = _here.functions.get(key)
            return given(*args, **kwargs) if here is None else here(given, *args, **kwargs)

        return call

    return changed(*((owner, name, chosen(name)) for name in names))


@contextlib.contextmanager
def _replaced_here(owner: Any, **replacements: Callable[..., Any]) -> Iterator[None]:
    """Inside, and in this thread alone, functions of torch's are others: each is called with the given one first. A
    release that has no function of that name needs none."""
    names = tuple(name for name in replacements if owner is not None and hasattr(owner, name))
    outer = _here.functions
    with _replaceable(owner, names):
        try:
            _here.functions = {**outer, **{(owner, name): replacements[name] for name in names}}
            yield
        finally:
            _here.functions = outer


def first_calls_unwatched() -> contextlib.AbstractContextManager[None]:
    """Inside, in this thread, AOTAutograd makes functions whose first call is like the others. Else that runs in a
    dispatch mode, which looks for aliases among what custom operators give and refuses tensors of the user's classes.
    """
    import torch._functorch._aot_autograd.runtime_wrappers as runtime_wrappers

    def unwatched(given: Callable[..., Any], context: Any) -> None:
        given(context)
        context._is_first = False

    return _replaced_here(getattr(runtime_wrappers, "_FirstInvocationContext", None), __init__=unwatched)


@functools.cache
def interpolation_whole() -> Any:
    """Inside, AOTAutograd differentiates interpolations as eager mode does, by their operators for it, which need the
    sizes as numbers. Else they become reads at computed places, and their gradients a sum over the image for each."""
    from dynajit.process_state import changed

    names = [f"upsample_{name}" for name in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d")]
    names += [f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)] + ["upsample_trilinear3d", "upsample_bicubic2d"]
    taken_apart = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    settings: list[tuple[Any, str, Any]] = []
    for name in names:
        packet = getattr(torch.ops.aten, name)
        for operator in (packet.default, packet.vec):
            kernels = {key: kernel for key, kernel in operator.py_kernels.items() if key not in taken_apart}
            if len(kernels) < len(operator.py_kernels):
                settings.append((operator, "py_kernels", kernels))
                settings.append((operator, "_dispatch_cache", {None: None}))  # no key: equal to no other, full or empty
    return changed(*settings)


def generators_untouched() -> contextlib.AbstractContextManager[None]:
    """Inside, in this thread, AOTAutograd does not put the random generators back to where they were: it traces with
    fake tensors, which draw nothing, and another thread may draw meanwhile."""
    import torch._functorch.aot_autograd as aot_autograd

    return _replaced_here(aot_autograd, preserve_rng_state=lambda given: contextlib.nullcontext())


def effects_in_place(stays: Callable[[Any], bool]) -> contextlib.AbstractContextManager[None]:
    """Inside, in this thread, AOTAutograd leaves operators that give nothing where they are in its graphs, if `stays`
    says so. Else it has a token go in at each call, through each of them and out again; a release that knows nothing
    of their effects drops them."""
    import torch._higher_order_ops.effects as effects
    from torch.fx.node import has_side_effect

    def with_token(given: Callable[..., bool], op: Any, *args: Any) -> bool:
        if not stays(op):
            return given(op, *args)
        has_side_effect(op)  # what no one reads stays in a graph
        return False

    return _replaced_here(effects, has_effects=with_token)


@contextlib.contextmanager
def masks_put_back() -> Iterator[None]:
    """Afterwards, masks of embeddings whose rows are divided between processes are what they were. Such a DTensor has
    its mask, until it is summed up, in its placement, which the process shares: tracing would leave a fake one."""
    found: dict[int, tuple[Any, Any, int]] = {}

    def noted(given: Callable[..., Any], buffer: Any, *args: Any) -> None:
        found.setdefault(id(buffer), (buffer, buffer.data, buffer.refcount))
        given(buffer, *args)

    module = sys.modules.get("torch.distributed.tensor._ops._mask_buffer")
    with _replaced_here(getattr(module, "MaskBuffer", None), materialize_mask=noted, release_mask=noted):
        try:
            yield
        finally:
            for buffer, data, count in found.values():
                buffer.data, buffer.refcount = data, count


def failures_unreported() -> contextlib.AbstractContextManager[Any]:
    """Inside, anomaly mode, which AOTAutograd traces in, prints no tracebacks where a backward can't be traced: whoever
    traces it goes another way."""
    from dynajit.torch_warnings import unwarned

    return unwarned(r"Error detected in|\s*Previous calculation was induced by")


def gradients_of_functions(seen: Callable[[Any], Any]) -> contextlib.AbstractContextManager[None]:
    """Inside, in this thread, the backward of each `autograd.Function` gives what `seen` makes of what it gives."""

    def after(given: Callable[..., Any], *args: Any) -> Any:
        return seen(given(*args))

    return _replaced_here(torch.autograd.function.BackwardCFunction, apply=after, apply_boxed=after)


def graphs_shown_on_demand() -> contextlib.AbstractContextManager[None]:
    """Inside, in this thread, AOTAutograd makes a text of its graphs where a log of torch's is on that shows it. By
    itself it prints the joint, the forward and the backward graph for each."""
    import torch._functorch._aot_autograd.graph_compile as graph_compile

    stages: Any = graph_compile
    logs = stages.aot_joint_log, stages.aot_graphs_log

    def shown() -> bool:
        return bool(torch._logging._internal.trace_log.handlers) or any(log.isEnabledFor(logging.INFO) for log in logs)

    return _replaced_here(
        stages,
        _log_joint_graph=lambda given, *args: given(*args) if shown() else None,
        _log_fw_bw_graphs=lambda given, *args: given(*args) if shown() else (None, None),
    )


def floats_stay_symbolic() -> contextlib.AbstractContextManager[None]:
    """Inside, in this thread, AOTAutograd leaves symbolic floats in its inference graphs. Its own pass makes tensors of
    those that meet the operators it knows, and constants of the others: an optimizer whose learning rate follows a
    schedule would be compiled at each step, for the foreach operators are not among them."""
    import torch._functorch._aot_autograd.graph_compile as graph_compile

    def of_training(given: Callable[..., Any], module: torch.fx.GraphModule, *args: Any) -> Any:
        if not any(node.name.startswith("tangents") for node in module.graph.find_nodes(op="placeholder")):
            return None
        try:
            return given(module, *args)
        except AttributeError as error:  # its table of functions has no remainders, among others
            if "ReferenceAnalysis" not in str(error):
                raise
            raise RuntimeError(f"a computation with a symbolic float has no operator: {error}") from error

    return _replaced_here(graph_compile, tensorify_python_scalars=of_training)


class NumberNeeded(RuntimeError):
    """An operation takes one number alone, where the number was another one in each variant so far."""


def quiet_shape_env(**options: Any) -> Any:
    """A ShapeEnv with these options that does not write down where each symbol and guard was made: torch walks the
    stack for that, and imports its compilers to know which files to leave out, which takes seconds."""
    return _quiet_shape_env()(**options)


@functools.cache
def _quiet_shape_env() -> Callable[..., Any]:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, SLoc  # type: ignore[attr-defined]

    class QuietShapeEnv(ShapeEnv):
        #: symbols that are not to be settled: what would rely on the number at hand of one raises NumberNeeded
        unsettled: Set[Any] = frozenset()
        #: what it said of them: some kernels catch the error, and go another way
        refused: list[str]

        def _get_stack_summary(self, *args: Any, **options: Any) -> tuple[SLoc, str]:
            return SLoc("", None), ""

        def evaluate_expr(self, orig_expr: Any, *args: Any, **options: Any) -> Any:
            settles = self.unsettled and not (orig_expr.is_Boolean or orig_expr.is_Relational)
            if settles and not self._suppress_guards_tls():
                found = self.replace(orig_expr).free_symbols & self.unsettled
                if found:
                    self.refused.append(f"takes one number, and {orig_expr} was another one in each variant so far")
                    raise NumberNeeded(self.refused[-1])
            return super().evaluate_expr(orig_expr, *args, **options)

    return QuietShapeEnv


def symbol_hints(env: Any) -> dict[Any, Any]:
    """The value at hand of each symbol of a ShapeEnv that has one."""
    found: dict[Any, Any] | None = getattr(env, "backed_var_to_val", None)
    return env.var_to_val if found is None else found  # type: ignore[no-any-return]


def at_hand(number: int | torch.SymInt) -> int | None:
    """The number that a symbolic one is in the call that is compiled for; None if that is not known."""
    if isinstance(number, int):
        return number
    found = number.node.expr.xreplace(symbol_hints(number.node.shape_env))
    return int(found) if found.is_number else None


def asks_to_start_again(error: Exception) -> bool:
    """Whether AOTAutograd raised this to be called again with what it learnt. Its class is of torch's compiler, which
    is not imported here."""
    return type(error).__name__ == "TensorifyScalarRestartAnalysis"


def _gets_new_values(info: Any) -> bool:
    """Whether a mutated input stays what it is but for its values, and may be written with gradients on."""
    return info.mutates_data and not (info.mutates_metadata or info.mutates_storage_metadata or info.is_leaf)


def plain_training(metadata: Any) -> tuple[list[bool], int, int, list[int]] | None:
    """Of AOTAutograd's findings on a graph: which returns have a gradient; how many of the tensors saved for backward,
    the last ones, are the graph's own; how many numbers are saved; which inputs get new values, the first returns, with
    autograd. None if inputs are mutated in other ways that the graph itself does not see to, if outputs alias, if there
    are tensor subclasses, tokens or random states: whatever something else has to be done about at each call."""
    from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

    own = (OutputType.non_alias, OutputType.unsafe_view_alias)
    updated = [metadata.input_info[place] for place in metadata.mutated_inp_runtime_indices]
    metas = (*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta, *metadata.subclass_tangent_meta)
    plain = (
        all(map(_gets_new_values, updated))
        and all(info.output_type in own for info in metadata.output_info)
        and all(type(meta) is PlainTensorMeta for meta in metas)
        and not metadata.num_intermediate_bases
        and metadata.num_forward_returns == metadata.num_forward == len(updated) + len(metadata.output_info)
        and not metadata.tokens
        and not metadata.num_backward_tokens
        and not metadata.is_rng_op_functionalized
        and not metadata.num_graphsafe_rng_states
        and not getattr(metadata, "num_opaque_objects_saved_for_bw", None)
        and not metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        and metadata.num_tensors_saved_with_no_vc_check is not None
    )
    if not plain:
        return None
    asked = [getattr(info, "requires_grad_for_backward", info.requires_grad) for info in metadata.output_info]
    differentiable = [
        bool(wanted and issubclass(info.raw_type, torch.Tensor))
        for wanted, info in zip(asked, metadata.output_info, strict=True)
    ]
    if differentiable != [bool(info.requires_grad) for info in metadata.output_info]:
        return None
    differentiable = [*(bool(info.requires_grad) for info in updated), *differentiable]
    numbers = metadata.num_tensors_saved_with_no_vc_check, metadata.num_symints_saved_for_bw or 0
    return differentiable, *numbers, list(metadata.mutated_inp_runtime_indices)


def has_user_saved_tensor_hooks() -> bool:
    """Whether a program's own hooks for saved tensors are on. torch's own (checkpoint, save_on_cpu) give back what they
    were given; a program's may do anything."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None:
        return False
    module = getattr(hooks[0], "__globals__", {}).get("__name__")
    return not (isinstance(module, str) and module.startswith("torch."))


def takes_writes(tensor: torch.Tensor) -> bool:
    """Whether autograd lets an operation with a history write a tensor that requires gradients: no leaf, no view of
    one, and no view of those that may not be written, such as one of several made by one operation."""
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may have something to say of each of these
        if tensor.is_leaf:
            return False
        if not tensor._is_view():
            return True
        base = tensor._base
        refused = base is not None and base.is_leaf and base.requires_grad
        return not refused and torch._C._autograd._get_creation_meta(tensor) == torch._C._autograd.CreationMeta.DEFAULT


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What autograd has it as a view of; no class that overrides torch's functions is asked."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor._base if tensor._is_view() else None


def is_lost_by_writes(tensor: torch.Tensor) -> bool:
    """Whether it is a view, such as one of several made by one operation, of which autograd can't tell where it comes
    from once its memory was written and there is a history."""
    with torch._C.DisableTorchFunctionSubclass():
        usual = torch._C._autograd.CreationMeta.DEFAULT
        return tensor._is_view() and torch._C._autograd._get_creation_meta(tensor) != usual


class _Generated:
    """An attribute of a graph module that comes with its Python text, generated when somebody first asks for it, of the
    module or of its class, which is for it alone."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, owner: Any) -> Any:
        if module is None and (self.name != "forward" or owner.of_module is None):
            raise AttributeError(self.name)
        (owner.of_module() if module is None else module).recompile()
        return getattr(owner if module is None else module, self.name)


class _Unwritten(torch.fx.GraphModule):
    """A graph module without Python text: most are read and never run. torch.fx's own lazy one is slower to call."""

    # recompile hides these behind the class's and the instance's own
    forward, _code, _lineno_map, _prologue_start = (_Generated() for _ in range(4))
    of_module = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        type(self).of_module = weakref.ref(self)  # type: ignore[assignment]

    def _deepcopy_init(self) -> Any:
        return _Unwritten.__init__

    def recompile(self) -> Any:
        if self.of_module is None:
            return None  # it is being made
        written = super().recompile()
        code = type(self).forward.__code__
        weakref.finalize(code, _forget_text, code.co_filename).atexit = False
        return written

    def __reduce__(self) -> Any:
        self.recompile()
        return super().__reduce__()


def graph_module(root: Any, graph: torch.fx.Graph, name: str = "GraphModule") -> torch.fx.GraphModule:
    """`torch.fx.GraphModule(root, graph, name)`, whose Python text is generated when it is first asked for, and is kept
    for tracebacks only as long as its code lives; torch.fx keeps it for ever."""
    for node in graph.nodes:
        if node.op == "call_function" and type(node.target) is types.BuiltinFunctionType:
            node.target = _called_by_name(node.target)
    return _Unwritten(root, graph, name)


def _called_by_name(function: Any) -> Any:
    """The function, which a graph's text calls by its name if it is torch's; where a program has put another one under
    the name, one that is not torch's and calls it."""
    module = function.__module__
    places = [torch, torch.nn.functional] if module is None else [sys.modules.get(module)]
    under = [vars(place).get(function.__name__) for place in places if place is not None]
    if any(found is function for found in under) or not any(under):
        return function
    return _in_python(function)


def make_writable(gm: torch.fx.GraphModule) -> None:
    """Have Python text of the graph call operators whose overload is a word of Python's own (`aten.random.from`)."""
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and keyword.iskeyword(node.target._overloadname):
            node.target = _in_python(node.target)
    gm.recompile()


def _in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    def original(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return original


def forward_of(module: torch.fx.GraphModule) -> types.MethodType:
    """A graph module's forward, for who most likely never calls it: its text is generated then."""
    return types.MethodType(_forward, module)


def _forward(module: torch.fx.GraphModule, *args: Any) -> Any:
    return module.forward(*args)


def file_of(module: torch.fx.GraphModule) -> str:
    """The file that frames of a graph module's forward are in; none where it was not asked for."""
    code = getattr(vars(type(module)).get("forward"), "__code__", None)
    return code.co_filename if code is not None else ""


def _forget_text(filename: str) -> None:
    loader = getattr(torch.fx.graph_module, "_loader", None)
    getattr(loader, "eval_cache", {}).pop(filename, None)
    linecache.cache.pop(filename, None)


@functools.cache
def register_expression(kind: Any, meaning: str) -> None:
    """Have torch's analysis of symbolic expressions read a class of ours as the operation `meaning`."""
    from torch.utils._sympy.interp import handlers

    handlers()[kind] = meaning


def foreach_returns_what_it_writes() -> bool:
    """Whether `torch._foreach_add_(tensors, 1)` and its like return the list; else None."""
    return torch._foreach_zero_([torch.zeros(1)]) is not None  # type: ignore[func-returns-value]


def copy_version_exempt(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`target.copy_(source)`, of which autograd does not hear."""
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(target):
        return target.copy_(source)


# The largest upper bound that torch gives a size which has none is above this.
NO_UPPER_BOUND = 1 << 60


class NoHint(Exception):
    """A size was never seen: it depends on data."""


def example_of(value: Any) -> Any:
    """A real tensor or number such as a fake or symbolic one was made from. Raises NoHint."""
    if isinstance(value, torch.Tensor):
        return torch.zeros([example_of(size) for size in value.shape], dtype=value.dtype)
    if not isinstance(value, torch.SymInt):
        return value
    hint = at_hand(value)
    if hint is None:
        raise NoHint(str(value))
    return hint


@contextlib.contextmanager
def apart_from_tracing() -> Iterator[None]:
    """Trace something else in the middle of a compile: no mode, fake mode or context of it is seen; and sizes that
    happen to be equal are not taken to be so always."""
    apart = _symbol_config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    with _disable_current_modes(), torch._guards.tracing(None), apart:
        yield


@functools.cache
def _onnx_names() -> frozenset[str]:
    from torch.onnx._internal.exporter import _registration

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it tells of packages that are not installed
    try:
        return frozenset(map(str, _registration.ONNXRegistry.from_torchlib().functions))
    finally:
        logger.setLevel(level)


def has_onnx_form(target: Any) -> bool:
    """Whether torch's ONNX exporter has a rule for the ATen operator, or torch takes it apart before that."""
    names = (target.name(), str(target), str(target.overloadpacket))
    return not _onnx_names().isdisjoint(names) or target in torch._decomp.decomposition_table


@functools.cache
def inductor_options() -> frozenset[str]:
    """Names of the options of torch.compile's own compiler. They are read from its source: it is not imported."""

    classes: dict[str, list[ast.stmt]] = {}

    def assigned(statements: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for statement in statements:
            if isinstance(statement, ast.ClassDef):
                inherited = [each for base in statement.bases for each in classes.get(ast.unparse(base), [])]
                classes[statement.name] = [*inherited, *statement.body]
                yield from assigned(classes[statement.name], f"{prefix}{statement.name}.")
            elif isinstance(statement, ast.If):
                yield from assigned([*statement.body, *statement.orelse], prefix)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                yield from (f"{prefix}{target.id}" for target in targets if isinstance(target, ast.Name))

    source = pathlib.Path(torch.__file__).parent / "_inductor" / "config.py"
    return frozenset(assigned(ast.parse(source.read_text()).body))
