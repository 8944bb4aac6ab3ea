"""torch.func: the C functions under its transforms, whose Python is traced.

In: calls that enter and leave a level (vmap's, grad's, jvp's), wrap tensors for it and unwrap them. Out: a level is
entered for real while tracing, so that operations see it, is a node of the graph, and is undoable. Generated code can't
stand inside of a level: a break in there is lifted to the transform's call (`Interpreter.can_stop_here`). Inference
mode is of the same kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.apis
import torch._functorch.eager_transforms
import torch._functorch.predispatch
import torch.autograd.forward_ad
import torch.autograd.grad_mode
from torch import fx

from dynajit._C import tensor_is_dual
from dynajit.report import breaks
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.registry import asked_first, builtin, by_tracing, constructor, models_of
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.deferred import DeferredCall
from dynajit.values.polyfills import func_transforms as polyfills
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal
from dynajit.values.tensors.ops import torch_op
from dynajit.values.tensors.tensor import TensorVal, has_leafness
from dynajit.values.tensors.tensor_subclass import SubTensorVal

_C: Any = torch._C._functorch
_GRAD_MODE: Any = torch.autograd.grad_mode
_FORWARD_AD: Any = torch.autograd.forward_ad
_WRAPPERS: Any = torch._functorch.predispatch


def _both(name: str, home: Any = _C) -> list[Any]:
    """The C function and the Python function that comes before it, where torch has one."""
    return [getattr(place, name) for place in (home, _WRAPPERS) if place is home or hasattr(place, name)]


def _record(
    tx: Tracer, target: Callable[..., Any], args: Sequence[Any], change: int, undo: Callable[[], Any]
) -> fx.Node:
    """The node for a level entered (change 1) or left (-1), which was done already."""
    tx.journal.record(undo)
    tx.journal.set_attr(tx, "open_levels", tx.open_levels + change)
    return tx.graph.create("call_function", target, list(args), {}, {"example_value": None})


def _level(kind: str, enter: Any, leave: Any, spellings: Sequence[Sequence[Any]]) -> None:
    """Models of entering and leaving levels of one kind."""
    entered: list[tuple[Any, ...]] = []

    @builtin(*spellings[0])
    def entering(tx: Tracer, *args: Value) -> Value:
        # the size of a vmap's dimension may vary
        reals = tuple(arg.number if isinstance(arg, SymVal) else arg.real() for arg in args)
        nodes = [arg.node if isinstance(arg, SymVal) else arg.real() for arg in args]
        tx.opening()
        with ending_graph(breaks.OP_RAISES, f"entering a {kind}", RuntimeError):
            level = enter(*reals)
        entered.append(reals)

        def undo() -> None:
            entered.pop()
            leave()

        _record(tx, enter, nodes, 1, undo)
        return ConstVal(level)

    @builtin(*spellings[1])
    def leaving(tx: Tracer, **kwargs: Value) -> Value:
        if not entered:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"leaving a {kind} that was entered outside")
        level = leave()
        reals = entered.pop()

        def undo() -> None:
            entered.append(reals)
            enter(*reals)

        _record(tx, leave, (), -1, undo)
        return ConstVal(level)


for _kind in ("vmap", "grad", "jvp"):
    _names = [f"_{_kind}_increment_nesting", f"_{_kind}_decrement_nesting"]
    _level(f"level of {_kind}", getattr(_C, _names[0]), getattr(_C, _names[1]), [_both(name) for name in _names])


def _exit_dual_level() -> None:
    torch._C._exit_dual_level(level=0)


_level(
    "level of forward-mode differentiation",
    torch._C._enter_dual_level,
    _exit_dual_level,
    [_both(name, torch._C) for name in ("_enter_dual_level", "_exit_dual_level")],
)


# -- inference mode

_ENTER, _LEAVE = _GRAD_MODE._enter_inference_mode, _GRAD_MODE._exit_inference_mode
_CONTEXT = ("__enter__", "__exit__")


class InferenceGuard(Value):
    """The context object of torch.inference_mode. It has no place in generated code."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.real_guard: Any = None
        #: that enters the mode, while it is entered
        self.node: fx.Node | None = None

    def py_type(self) -> type:
        kind: type = torch._C._InferenceMode
        return kind

    def rebuildable(self) -> bool:
        return False

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if name not in _CONTEXT:
            return super().call_method(tx, name, args, kwargs)
        (self._enter if name == "__enter__" else self._exit)(tx)
        return ConstVal(None)

    def getattr(self, tx: Tracer, name: str) -> Value:
        return BoundMethod(self, name) if name in _CONTEXT else super().getattr(tx, name)

    def _enter(self, tx: Tracer) -> None:
        tx.opening()
        guard = _ENTER(self.mode)
        tx.journal.set_attr(self, "node", _record(tx, _ENTER, [self.mode], 1, lambda: _LEAVE(guard)))
        tx.journal.set_attr(self, "real_guard", guard)

    def _exit(self, tx: Tracer) -> None:
        if self.real_guard is None:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "leaving an inference mode that was entered outside")
        _LEAVE(self.real_guard)
        _record(tx, _LEAVE, [self.node], -1, lambda: setattr(self, "real_guard", _ENTER(self.mode)))
        tx.journal.set_attr(self, "node", None)


@asked_first(torch.inference_mode.__enter__)
def enter_inference_mode(tx: Tracer, self: Value) -> None:
    held = tx.find_attribute(self, "_inference_mode_context")
    if isinstance(held, InferenceGuard) and held.node is not None:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "entering an inference mode again, which forgets what to go back to")


@asked_first(torch.inference_mode.__exit__)
def leave_inference_mode(tx: Tracer, self: Value, *args: Value, **kwargs: Value) -> None:
    """The mode that code before a break entered is left for real."""
    if self.source is not None:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "leaving an inference mode that was entered outside")


@constructor(torch._C._InferenceMode)
def inference_mode(tx: Tracer, mode: Value) -> Value:
    return InferenceGuard(mode.const())


# -- tensors at a level


def _operation(target: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """Functions of a tensor that become nodes, under the first of their names."""
    if not args or not isinstance(args[0], TensorVal):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{target.__name__} of {args[0].describe() if args else ''}")
    if target in _UNPACKS and any(
        tensor_is_dual(real) for value in tx.tensors.values() if (real := value.real_tensor) is not None
    ):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "unpack_dual(), where tensors come with tangents from outside")
    return torch_op(tx, "call_function", target, args, kwargs)


_OF_LEVELS = ("_remove_batch_dim", "_wrap_for_grad", "_unwrap_for_grad", "get_unwrapped", "_unwrap_batched")
_UNPACKS = _both("_unpack_dual", torch._VF)
for _spellings in (*map(_both, _OF_LEVELS), *(_both(name, torch._VF) for name in ("_make_dual", "_unpack_dual"))):
    builtin(*_spellings)(functools.partial(_operation, _spellings[0]))


@builtin(*_both("_add_batch_dim"))
def add_batch_dim(tx: Tracer, tensor: Value, dim: Value, level: Value) -> Value:
    if not isinstance(tensor, TensorVal):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a batch dimension for {tensor.describe()}")
    at = dim.const()
    at = at + tensor.fake.dim() if at < 0 else at
    return torch_op(tx, "call_function", _C._add_batch_dim, [tensor, ConstVal(at), level], {})


@models_of(
    *(_C.is_batchedtensor, _C.is_gradtrackingtensor, _C.is_functorch_wrapped_tensor),
    *(_C.maybe_get_level, _C.maybe_get_bdim, _C.get_inplace_requires_grad_allowed),
)
def _question(function: Any, tx: Tracer, *args: Value) -> Value:
    """Functions whose answer is known while tracing."""
    if args and isinstance(args[0], SubTensorVal):
        return ConstVal(False) if function.__name__.startswith("is_") else ConstVal(-1)
    if args and not isinstance(args[0], TensorVal):  # no tensor, or one that no graph takes, maybe for what is asked
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{function.__name__} of {args[0].describe()}")
    return ConstVal(function(*(arg.fake for arg in args if isinstance(arg, TensorVal))))


_LOADS = _FORWARD_AD._maybe_load_decompositions, getattr(_WRAPPERS, "lazy_load_decompositions", None)


@models_of(*filter(None, _LOADS))
def _load(load: Callable[[], None], tx: Tracer) -> None:
    load()


builtin(torch._functorch.eager_transforms._autograd_grad)(by_tracing(polyfills.autograd_grad))
if hasattr(torch._functorch.apis, "_wraps_without_dynamo_attrs"):
    builtin(torch._functorch.apis._wraps_without_dynamo_attrs)(by_tracing(polyfills.wraps))


# -- torch.autograd.grad


def _has_no_hooks(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and not tensor._backward_hooks


@builtin(torch.autograd.grad)
def autograd_grad(tx: Tracer, outputs: Value, inputs: Value, *args: Value, **kwargs: Value) -> Value:
    """A node of the graph, if all that lies between the inputs and the outputs is in the graph too."""
    wanted = {id(value) for value in _tensors(tx, inputs)}
    results = _tensors(tx, outputs)
    _check(all(value.source is None for value in results), "of a tensor made outside")
    for value in results:
        if not value.fake.requires_grad and not tx.open_levels:
            raise GraphBreak(breaks.OP_RAISES, "torch.autograd.grad of a tensor that requires no grad")
    replaced = any(value.replacement is not None for value in _tensors(tx, inputs))
    _check(not replaced, "of a tensor after a line that sets its data")
    refuses = any(getattr(node.target, "refuses_grad", False) for node in tx.graph.graph.nodes)
    _check(not refuses, "beside checkpoint(use_reentrant=True), which refuses it")
    _check_ends(tx, wanted)
    pair = [_listed(tx, outputs), _listed(tx, inputs)]
    return tx.torch_op("call_function", torch.autograd.grad, [*pair, *args], kwargs)


def _check_ends(tx: Tracer, wanted: set[int]) -> None:
    """Break unless each gradient that is `wanted` comes from the graph alone, as is guarded."""
    # tensors from outside that the gradient may flow to: were two of them one, it would have both parts
    ends = [entry for entry in tx.graph.inputs if isinstance(entry.fake, torch.Tensor) and entry.fake.requires_grad]
    models = [tx.tensors[id(entry.fake)] for entry in ends]
    outside = [model for model in models if id(model) in wanted]
    deferred = [effect for effect in tx.journal.dirty.values() if isinstance(effect, DeferredCall)]
    hooked = {id(arg) for effect in deferred for arg in effect.args}
    _check(hooked.isdisjoint(map(id, outside)), "of a tensor that was just given a hook")
    if outside:
        tx.guard_all_distinct(models)
    for entry, model in zip(ends, models, strict=True):
        if model in outside:
            tx.guard(entry.source, "PREDICATE", _has_no_hooks, "has no hooks on its gradient")
            _check(_has_no_hooks(entry.real), "of a tensor with hooks")
        if outside != [model]:
            _check(entry.real.is_leaf, "through a tensor made outside")
            known = functools.partial(has_leafness, True)
            tx.guard(entry.source, "PREDICATE", known, "is a leaf of the autograd graph")


def _check(fits: bool, what: str) -> None:
    """End the graph unless the call `fits` into it."""
    if not fits:
        raise GraphBreak(breaks.BACKWARD, f"torch.autograd.grad {what}")


def _listed(tx: Tracer, value: Value) -> Value:
    return value if isinstance(value, TensorVal) else tx.new_tuple(tx.unpack(value))


def _tensors(tx: Tracer, value: Value) -> list[TensorVal]:
    found = [value] if isinstance(value, TensorVal) else tx.unpack(value)
    for item in found:
        if not isinstance(item, TensorVal):
            raise GraphBreak(breaks.BACKWARD, f"torch.autograd.grad with {item.describe()}")
    return found  # type: ignore[return-value]
