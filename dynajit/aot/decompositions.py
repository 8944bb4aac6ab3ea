"""Which ATen operators are rewritten in terms of simpler ones, with torch's own rules.

In:  the kind of device. Out: `for_codegen()`, a table operator -> decomposition, for `compile_joint`.
To have one more decomposed: its name in `_NAMES`, or a rule of dynajit's own in `_OWN`. An operator that draws random
numbers has to draw the same ones in the same order as in eager: torch's own rules don't.
"""

from __future__ import annotations

import functools
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes, suggest_memory_format
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.utils.hooks import RemovableHandle

from dynajit.exc import ConfigError
from dynajit.op_facts import LOW_PRECISION, facts
from dynajit.torch_compat import at_hand

Decompositions = dict[Any, Callable[..., Any]]


# a handle refers to it weakly, which a plain dictionary does not allow
_lowerings: OrderedDict[int, tuple[torch._ops.OpOverload, Callable[..., Any]]] = OrderedDict()


def register_lowering(operator: Any, function: Callable[..., Any]) -> RemovableHandle:
    """Have kernels made of an operator of the user's, in what the backend `codegen` compiles from now on.

    Args:
        operator: what `torch.library.custom_op` gives, or a `torch.ops.library.name`, with or without its overload.
            It has a fake implementation; what autograd does of it stays what is registered for it.
        function: computes with torch's operations what the operator does, of the same arguments, and writes none.
            The loop IR takes these operations, so that there are kernels of them, in C for CPUs and in Triton for GPUs,
            with what comes before and after fused. It may give NotImplemented for arguments that it is not for.

    Returns:
        A handle; its `remove()` takes the lowering away. What is compiled already stays as it is in both cases.

    Raises:
        ConfigError: it is no operator, has several overloads, or writes an argument.
    """
    overload = getattr(operator, "_opoverload", operator)
    if isinstance(overload, torch._ops.OpOverloadPacket):
        names: list[str] = overload.overloads()  # type: ignore[no-untyped-call]
        if len(names) != 1:
            raise ConfigError(f"{overload} has the overloads {', '.join(names)}: which one?")
        overload = getattr(overload, names[0])
    if not isinstance(overload, torch._ops.OpOverload):
        raise ConfigError(
            f"register_lowering takes an operator of torch.ops or a torch.library.custom_op, not {operator!r}"
        )
    if facts(overload).writes:
        raise ConfigError(f"{overload} writes an argument: only operators that write none have lowerings")
    handle = RemovableHandle(_lowerings)
    _lowerings[handle.id] = overload, function
    return handle


def any_lowerings() -> bool:
    """Whether any are registered by the user."""
    return bool(_lowerings)


def for_codegen(device: str = "cpu", eager_rounding: bool = False) -> Decompositions:
    """The table for generated kernels on such a device, what the user registered included."""
    return {**_own_table(device, eager_rounding), **dict([*_lowerings.values()])}


@functools.cache
def _own_table(device: str, eager_rounding: bool) -> Decompositions:
    """The table for generated kernels on such a device. With `eager_rounding`, operators that are one loop in eager
    stay whole: their rules round where eager does not, or not where it does."""
    from torch._decomp import get_decompositions

    from dynajit.aot.passes import convolution, foreach, group_norm, mixed_norms, sixteen_bits, weight_norm
    from dynajit.aot.passes.batch_norm import CPU_RULES, RULES, in_its_format

    # A release that lacks one of them has nothing to decompose there.
    def rules(names: Sequence[str]) -> Decompositions:
        return get_decompositions([getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)])

    names = _POINTWISE if device == "cpu" else (*_POINTWISE, *_OF_KERNELS)
    pointwise = {} if eager_rounding else {at: _integers_rounded(rule) for at, rule in rules(names).items()}
    others = rules(_NAMES if device == "cpu" else (*_NAMES, *_GPU_NAMES))
    if device == "cpu":
        norms = {at: rule for at, rule in others.items() if "native_batch_norm" in str(at)}
        others = {**others, **{at: in_its_format(rule) for at, rule in norms.items()}}
    entropy = torch.ops.aten.binary_cross_entropy.default
    if device == "cpu":
        pointwise = sixteen_bits.with_rounding(pointwise)
    if device == "cpu" and entropy in pointwise:
        pointwise[entropy] = _refusing(pointwise[entropy])
    own = RULES if device != "cpu" else {**_OWN, **mixed_norms.rules(), **({} if eager_rounding else CPU_RULES)}
    if device != "cpu":
        own = {**own, **group_norm.RULES, **({} if eager_rounding else convolution.RULES | weight_norm.RULES)}
    table: Decompositions = {**pointwise, **others, **_CODEGEN, **own, **foreach.RULES}
    return {operator: rule for operator, rule in table.items() if isinstance(operator, torch._ops.OpOverload)}


def _integers_rounded(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, given integers beside floats of 16 bits as such floats: eager's kernels round them first, torch's own
    rules compute with them in float32."""

    @functools.wraps(rule)
    def rounded(*args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if len({tensor.dtype for tensor in tensors}) > 1:
            _, dtype = elementwise_dtypes(*tensors, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)
            if dtype in LOW_PRECISION:
                args = tuple(arg if _is_float(arg) else arg.to(dtype) for arg in args)
        return rule(*args, **kwargs)

    return rounded


def _is_float(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex()


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """As `torch.dropout` on a CPU: the same draws, none where nothing can be kept, and the same rounding."""
    if train is False or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0, torch.zeros_like(x, dtype=torch.bool)
    mask = torch.ops.aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1 - p)
    return x * (mask.to(x.dtype) * (1 / (1 - p))), mask


def _bernoulli(x: torch.Tensor, p: float, generator: torch.Generator | None = None) -> Any:
    """`bernoulli_` draws in the order of memory. What it becomes without the write gives a contiguous tensor, so for
    another one the draws are turned to its order."""
    sizes, strides = (tuple(map(at_hand, numbers)) for numbers in (x.shape, x.stride()))
    if generator is not None or None in sizes or None in strides or _is_contiguous(sizes, strides):
        return NotImplemented
    # of sizes that vary, the guards keep the order of the strides, if not their values
    order = sorted(range(x.dim()), key=lambda place: strides[place] or 0, reverse=True)
    if not _is_contiguous([sizes[place] for place in order], [strides[place] for place in order]):
        return NotImplemented
    drawn = torch.ops.aten.bernoulli.p(x.permute(order), p)
    return drawn.permute([order.index(place) for place in range(x.dim())])


def _is_contiguous(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    expected = 1
    for size, stride in reversed(list(zip(sizes, strides, strict=True))):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _unique(x: torch.Tensor, *_: Any) -> Any:
    """Its size depends on values, which its fake in some releases denies. Gradients of `index_fill` have it."""
    raise DynamicOutputShapeException(torch.ops.aten._unique.default)


def _zero_tensor(size: Any, **options: Any) -> torch.Tensor:
    """Forward-mode gradients of zero have no memory, and torch sees to it where its dispatcher meets one of them.
    The views and kernels of a graph do not pass there."""
    return torch.ops.aten.zeros.default(size, **options)  # type: ignore[no-any-return]


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """Eager leaves out tensors without elements, as new caches are; no kernel can have them."""
    kept = [one for one in tensors if not any(type(size) is int and size == 0 for size in one.shape)]
    same = len({one.dtype for one in tensors}) == 1 and all(
        suggest_memory_format(one) is torch.contiguous_format for one in kept
    )
    return torch.ops.aten.cat.default(kept, dim) if same and 0 < len(kept) < len(tensors) else NotImplemented


def _refusing(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of `binary_cross_entropy`; what is no probability is refused, as by a CPU's kernel."""

    @functools.wraps(rule)
    def checked(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        torch.ops.aten._assert_async.msg(((x >= 0) & (x <= 1)).all(), "all elements of input should be between 0 and 1")
        return rule(x, *args, **kwargs)

    return checked


def _variance_of_nothing(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """No number where there are no elements. Eager's kernel would warn of them, as the graph does already."""
    if x.is_complex() or not any(type(size) is int and size == 0 for size in x.shape):
        return NotImplemented  # of complex numbers it is real, their mean is not
    return torch.ops.aten.sum.dim_IntList(x, dim, keepdim) / 0


def _moments_of_nothing(*args: Any, **kwargs: Any) -> Any:
    made = _variance_of_nothing(*args, **kwargs)
    return made if made is NotImplemented else (made, made.clone())


def _bmm(one: torch.Tensor, other: torch.Tensor) -> Any:
    """One matrix for the whole batch: the batch's rows are those of one product. `matmul` makes batches of it where it
    takes a transposed tensor and weights without gradients, and libraries copy the matrix for each of them."""
    batch, rows, inner = one.shape
    if type(other.stride(0)) is not int or other.stride(0) != 0 or not at_hand(batch):
        return NotImplemented
    return (one.reshape(batch * rows, inner) @ other[0]).view(batch, rows, other.shape[-1])


# In every graph, also those that run operator by operator.
ALWAYS: Decompositions = {
    torch.ops.aten.bernoulli.p: _bernoulli,
    torch.ops.aten._unique.default: _unique,
    torch.ops.aten._efficientzerotensor.default: _zero_tensor,
}
_CODEGEN: Decompositions = {
    torch.ops.aten.cat.default: _cat,
    torch.ops.aten.var.correction: _variance_of_nothing,
    torch.ops.aten.std.correction: _variance_of_nothing,
    torch.ops.aten.var_mean.correction: _moments_of_nothing,
    torch.ops.aten.std_mean.correction: _moments_of_nothing,
}


def _hardsigmoid_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The kernel's sixth is a float32, of float64 too. Only whether an element is inside is kept for it."""
    return torch.where((x > -3) & (x < 3), grad * _SIXTH, 0)


_SIXTH = struct.unpack("f", struct.pack("f", 1 / 6))[0]
# On CPUs; a GPU draws in another way.
_OWN: Decompositions = {
    torch.ops.aten.native_dropout.default: _native_dropout,
    torch.ops.aten.bmm.default: _bmm,
    torch.ops.aten.hardsigmoid_backward.default: _hardsigmoid_backward,
}

# What has a lowering in loopir is not listed: one well-known kernel beats ten fused ones. Neither is what would become
# many operators that don't fuse (training batch norm on CPUs, embedding and index backward, pooling, upsampling).
_POINTWISE: tuple[str, ...] = (
    # activations
    *("celu", "elu", "elu_backward", "glu", "glu_backward", "hardshrink", "hardsigmoid"),
    *("hardswish", "hardtanh_backward", "leaky_relu_backward"),
    *("log_sigmoid_forward", "log_sigmoid_backward", "logit", "logit_backward", "mish", "selu"),
    *("gelu_backward", "softplus", "softplus_backward", "softshrink"),
    *("threshold", "prelu", "_prelu_kernel", "_prelu_kernel_backward"),
    # losses
    *("binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "huber_loss"),
    *("huber_loss_backward", "mse_loss", "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward"),
    *("soft_margin_loss", "soft_margin_loss_backward"),
    # arithmetic
    *("sinc", "xlogy", "special_xlog1py", "special_entr", "deg2rad", "rad2deg"),
)
# On GPUs. On CPUs `loopir` has these in the order of eager's kernels.
_OF_KERNELS: tuple[str, ...] = (
    *("hardsigmoid_backward", "hardswish_backward", "mish_backward", "sigmoid_backward", "silu_backward"),
    *("tanh_backward", "addcdiv", "addcmul", "lerp"),
)
_NAMES: tuple[str, ...] = (
    # normalisation
    *("native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
    # The second is what torch rewrites the first to, and rewrites again.
    *(
        "_native_batch_norm_legit_no_training",
        "_native_batch_norm_legit",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
    ),
    # arithmetic
    *("nan_to_num", "heaviside", "linalg_vector_norm", "norm", "logsumexp", "nansum"),
    *("native_dropout_backward", "zero", "fill", "rsub", "trace", "count_nonzero", "dist"),
)
# What torch's kernels for GPUs spend more passes over memory on than the generated ones.
_GPU_NAMES: tuple[str, ...] = ("native_batch_norm_backward", "batch_norm_backward", "masked_fill")
