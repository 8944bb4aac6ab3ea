"""Which torch functions are operations of the graph.

In: a function. Out: `is_operation` (becomes one node, not traced into) and `is_tensor_method`. The set is read once
from torch's own namespaces; functions in `_NOT_OPERATIONS` have models of their own or are traced.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
import torch.nn.functional

from dynajit.graph.opaque import OPAQUE
from dynajit.guards.kinds_module import HOOK_DICTS
from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.core.registry import builtin, models_of, pure, tail_call
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.lookup import MODULE_CALL_IMPL
from dynajit.values.objects.objects import ObjVal, lookup_type, payload_of
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_subclass import SubTensorVal

_TORCH_C: Any = torch._C
_NAMESPACES: tuple[Any, ...] = (
    _TORCH_C._VariableFunctions,
    _TORCH_C._nn,
    _TORCH_C._nested,
    _TORCH_C._linalg,
    _TORCH_C._fft,
    _TORCH_C._special,
    _TORCH_C._sparse,
    torch.functional,
    torch.nn.functional,
)
_NOT_OPERATIONS = frozenset(
    {
        "is_grad_enabled",
        "set_grad_enabled",
        "is_inference_mode_enabled",
        "get_default_dtype",
        "set_default_dtype",
        "manual_seed",
        "seed",
        "from_numpy",
        "frombuffer",
        "from_file",
        "_assert_async",
        # torch's rewrite of it for autograd counts targets after the first -1
        "multilabel_margin_loss",
        "_C",
        "has_torch_function",
        "has_torch_function_unary",
        "has_torch_function_variadic",
        "handle_torch_function",
        "boolean_dispatch",
        "Tensor",
        "is_vulkan_available",
        "result_type",
        "can_cast",
        "promote_types",
        "_has_compatible_shallow_copy_type",
        "nonzero_static_",
        "set_",
        "resize_as_",
        "as_strided_copy_",
        "multi_head_attention_forward_",
    }
)


@functools.cache
def operations() -> frozenset[Any]:
    """All functions that become graph nodes."""
    found: set[Any] = set()
    for namespace in _NAMESPACES:
        for name in dir(namespace):
            if name.startswith("__") or name in _NOT_OPERATIONS:
                continue
            value = getattr(namespace, name)
            if isinstance(value, types.FunctionType):
                modules = ("torch.nn.functional", "torch.functional", "torch._jit_internal")
                own = str(value.__globals__.get("__name__"))  # a wrapper says that it is of the function's module
                if (value.__module__ or "").startswith(modules) and own.startswith("torch."):
                    found.add(value)
            elif isinstance(value, types.BuiltinFunctionType):
                found.add(value)
                public = getattr(torch, name, None)
                if public is not None and isinstance(public, types.BuiltinFunctionType):
                    found.add(public)
    for name in ("sym_not", "sym_int", "sym_float", "sym_max", "sym_min"):
        found.discard(getattr(torch, name, None))
    return frozenset(found)


def is_operation(fn: Any) -> bool:
    """Whether a call of the function is one node of the graph."""
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    try:
        return (fn in operations() and _is_under_its_name(fn)) or fn in OPAQUE
    except TypeError:
        return False


def _is_under_its_name(fn: Any) -> bool:
    """Whether a function is what its module has under its name: else some modes of torch's are told of that one."""
    return type(fn) is not types.FunctionType or fn.__globals__.get(fn.__name__, fn) is fn


@functools.cache
def _tensor_methods() -> frozenset[Any]:
    found: set[Any] = set()
    for cls in (torch.Tensor, torch._C.TensorBase):
        found.update(
            value
            for value in vars(cls).values()
            if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType))
        )
    return frozenset(found)


def is_tensor_method(fn: Any) -> bool:
    """Whether the function is a method of torch.Tensor written in C."""
    return isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)) and fn in _tensor_methods()


@builtin(torch.is_tensor)
def is_tensor(tx: Tracer, obj: Value) -> Value:
    return ConstVal(isinstance(obj, TensorVal) or issubclass(obj.py_type(), torch.Tensor))


@models_of(
    *(torch.is_floating_point, torch.is_complex, torch.is_signed, torch.is_conj, torch.is_neg, torch.is_inference),
    torch.numel,
)
def _method(function: Any, tx: Tracer, input: Value, *rest: Value) -> Value:
    return input.call_method(tx, function.__name__, list(rest), {})


pure(torch.promote_types, torch.can_cast)


@builtin(torch._has_compatible_shallow_copy_type)
def compatible_for_data(tx: Tracer, left: Value, right: Value) -> Value:
    """Whether one tensor's `.data` may be set to the other: asked by `nn.Module.to` and its like."""
    if not (isinstance(left, TensorVal) and isinstance(right, TensorVal)):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"comparing the kinds of {left.describe()} and {right.describe()}")
    return ConstVal(torch._has_compatible_shallow_copy_type(left.fake, right.fake))


@builtin(torch.result_type)
def result_type(tx: Tracer, left: Value, right: Value) -> Value:
    reals = [value.fake if isinstance(value, TensorVal) else value.real() for value in (left, right)]
    return ConstVal(torch.result_type(*reals))


@builtin(torch._C._group_tensors_by_device_and_dtype)
def group_tensors(tx: Tracer, lists: Value, with_indices: Value) -> Value:
    """Equal positions of all lists together, by device and dtype of the first list's tensor; for foreach functions."""
    rows = [tx.unpack(part) for part in tx.unpack(lists)]
    positions: dict[tuple[Any, ...], list[int]] = {}
    for position, first in enumerate(rows[0] if rows else []):
        if not isinstance(first, (TensorVal, SubTensorVal)):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"grouping {first.describe()}")
        positions.setdefault((first.fake.device, first.fake.dtype), []).append(position)
    made = DictVal()
    for key, members in positions.items():
        parts = [tx.new_list([row[position] for position in members] if row else []) for row in rows]
        indices = [ConstVal(position) for position in members] if with_indices.truth(tx) else []
        made.setitem(tx, tx.from_real(key), tx.new_tuple([tx.new_list(parts), tx.new_list(indices)]))
    return made


@builtin(torch._assert)
def torch_assert(tx: Tracer, condition: Value, message: Value | None = None) -> None:
    if isinstance(condition, TensorVal):
        raise GraphBreak(breaks.DATA_DEPENDENT, "torch._assert on a tensor")
    if not condition.truth(tx):
        raise tx.raised(AssertionError, *([message.const()] if message is not None else []))


@builtin(torch.nn.Module.__call__)
@tail_call
def module_call(tx: Tracer, self: Value, *args: Value, **kwargs: Value) -> Value:
    """`module(x)` without hooks is `module.forward(x)`; with hooks torch's own code is traced."""
    assert isinstance(self, ObjVal)
    real, direct = self.real_object, tx.resumable_call()
    if _has_own_call(tx, self, real):
        return tx.call(self.getattr(tx, "_call_impl"), args, kwargs, direct)
    if (
        real is not None
        and self.source is not None
        and not has_hooks(real)
        and "_compiled_call_impl" not in real.__dict__
        and not _written(tx, self, real)
    ):
        tx.guard(self.source, "NO_HOOKS")
        for name, hooks in _GLOBAL_HOOKS.items():
            tx.guard(ConstSource(hooks, name), "LEN", 0)
        return tx.call(self.getattr(tx, "forward"), args, kwargs, direct)
    return tx.inline(tx.from_real(MODULE_CALL_IMPL), [self, *args], kwargs, direct)


def _has_own_call(tx: Tracer, module: ObjVal, real: torch.nn.Module | None) -> bool:
    """Whether the module or its class has another method for what torch does around forward."""
    if lookup_type(module.cls, "_call_impl")[0] is not MODULE_CALL_IMPL:
        return True
    if real is None:
        return module.instance_dict(tx).lookup(tx, ConstVal("_call_impl")) is not None
    changed = module._dict.changed_names if module._dict is not None else {}
    return "_call_impl" in real.__dict__ or "_call_impl" in changed


_GLOBAL_HOOKS: dict[str, Any] = {
    name: torch.nn.modules.module.__dict__[name]
    for name in (
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
    )
}


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module runs more than its forward."""
    return any(module.__dict__.get(name) for name in HOOK_DICTS) or any(_GLOBAL_HOOKS.values())


def _written(tx: Tracer, module: ObjVal, real: torch.nn.Module) -> bool:
    """Whether the traced program has changed the module's hooks, or those of all modules."""
    changed = module._dict.changed_names if module._dict is not None else {}
    if any(name in changed for name in HOOK_DICTS):
        return True
    for hooks in (*(real.__dict__.get(name) for name in HOOK_DICTS), *_GLOBAL_HOOKS.values()):
        known = tx.known_object(hooks, ConstSource(hooks, "<hooks>"))
        if known is not None and not tx.journal.dirty.keys().isdisjoint((id(known), id(payload_of(known)))):
            return True
    return False
