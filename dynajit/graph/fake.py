"""Fake tensors: metadata without memory, on which operations are run while tracing.

In: a real tensor. Out: its fake, of a `FakeMode`. torch's own `FakeTensorMode` does the work; what is here is the short
way in for ordinary tensors, and for operations, which needn't be hidden from torch's own compiler.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._higher_order_ops.utils import registered_hop_fake_fns
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter, FakeTensorMode
from torch.nested._internal.nested_int import NestedIntNode
from torch.utils import _python_dispatch

from dynajit import _C, torch_compat
from dynajit.config import config
from dynajit.graph.fake_memo import KnownResult, key_of, remember
from dynajit.graph.refusals import looks_at_values, refusal, refused_view
from dynajit.nested import leaves_in
from dynajit.new_fake import new_fake
from dynajit.op_facts import facts, is_wait
from dynajit.optimizer_steps import STEPS
from dynajit.process_state import changed
from dynajit.torch_warnings import program_warns_always, unwarned
from dynajit.wrappers import is_wrapper, is_wrapper_class

# higher-order operators that the mode knows itself; for the others there is a rule under its class
_BY_FUNCTION: Any = registered_hop_fake_fns
# binary operations whose fakes are written in Python, which orders dimensions otherwise than torch's iterator does
_ITERATED = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        *((name, "default") for name in ("logical_and", "logical_or", "logical_xor")),
        *((name, "default") for name in ("logaddexp", "logaddexp2", "heaviside", "special_xlog1py")),
        *((name, "default") for name in ("complex", "polar", "floor_divide")),
        *((name, "Tensor") for name in ("copysign", "xlogy")),
        *((f"{name}_backward", "default") for name in ("softplus", "elu", "hardswish", "hardsigmoid")),
    )
)
_ITERATED_ON_CPU = frozenset({torch.ops.aten.native_dropout_backward.default})
# operations whose real kernels give rows of elements whatever their operands' strides are; and those of CPUs alone
_ROW_MAJOR = frozenset({torch.ops.aten.pow.Scalar, torch.ops.aten.isin.Tensor_Tensor})
_ROW_MAJOR_ON_CPU = frozenset({torch.ops.aten.log_sigmoid_forward.default, torch.ops.aten.rrelu_with_noise.default})
# what real kernels on CPUs give in one of torch's own memory formats, the nearest to their input's
_FORMATTED = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("native_batch_norm", "default"),
        *(("_native_batch_norm_legit", overload) for overload in ("default", "no_stats")),
        ("_native_batch_norm_legit_functional", "default"),
        ("_native_batch_norm_legit_no_training", "default"),
        *(("channel_shuffle", "default"), ("native_channel_shuffle", "default")),
    )
)
# places and counts beside the elements that are found, which are int64; torch 2.11's fakes have the elements' dtype
_FOUND = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
)
# the operators of these have no effect that a capture may not have
_COMPUTES = frozenset({"aten", "prim", "prims"})
_DEVICE, _META = torch.ops.prim.device.default, torch.device("meta")
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's mode. One lives as long as one capture."""

    # rules for these are registered by the mode's class
    supports_higher_order_operators = True
    # whether an operation ran that raises for some values, since somebody who asks set it to False
    looked_at_values: bool | None = None
    made_numbers = False  # whether one ran that makes a number of a tensor, since somebody who asks set it to False
    _inside = False  # of one of torch's fake kernels
    _converts = False  # a real tensor into a fake one
    _made_ragged = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        always = program_warns_always()  # what is remembered of an operation is its result, not what it warned of
        self.cache_enabled = self.cache_enabled and not always
        shares = config.share_layers and not always
        self._known: dict[tuple[Any, ...], KnownResult | None] | None = {} if shares else None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each operation goes through a wrapper of __torch_dispatch__ that hides it

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        if func is _DEVICE and type(args[0]) is FakeTensor:  # asked for by torch's C++, several times an operation
            return _META if args[0].fake_mode.in_kernel_invocation else args[0].fake_device
        if any(map(is_wrapper_class, types)):
            return NotImplemented  # the class is asked, and computes with fakes
        key = None
        if self._known is not None and not self._converts:
            key = key_of(self, func, args, kwargs or {})
        if key is None:
            return self._run(func, types, args, kwargs)
        assert self._known is not None
        known = self._known.get(key)
        if known is not None:
            if known.looks and self.looked_at_values is False:
                self.looked_at_values = True
            return known.made(self, args)
        before, self.looked_at_values = self.looked_at_values, False
        try:
            result = self._run(func, types, args, kwargs)
            looks = self.looked_at_values
        finally:
            self.looked_at_values = before if before is None else before or self.looked_at_values
        if key not in self._known:
            self._known[key] = remember(self, args, result, looks)
        return result

    def _run(
        self, func: Any, types: Sequence[type], args: Sequence[object], kwargs: Mapping[str, object] | None
    ) -> object:
        if isinstance(func, torch._ops.HigherOrderOperator) and func not in _BY_FUNCTION:
            rule = func.python_key_table.get(FakeTensorMode)
            if rule is not None:
                return rule(self, *args, **(kwargs or {}))
        if self._converts and func is torch.ops.aten.view_as_complex.default:
            # torch makes the base of a complex view complex, whatever its shape, and cuts the view out of its memory
            base: Any = args[0]
            with self:
                args = (torch.ops.aten.as_strided.default(base, [base.numel() // 2, 2], [2, 1]),)
        refused = refusal(func, args, kwargs or {}) or (None if self._inside else refused_view(func, args))
        if refused is not None:
            raise RuntimeError(refused)
        if self.looked_at_values is False:
            self.looked_at_values = looks_at_values(func, args)
        self.made_numbers |= func is torch.ops.aten._local_scalar_dense.default
        if func in STEPS:
            return None
        self._not_of_values(func, args, kwargs)
        if func is torch.ops.aten.ldexp.Tensor:  # what it is made of, and torch's rule in Python for it is not
            with self:
                if _shifts_exponents(*args):
                    return torch.ops.aten.mul.Tensor(*args)
                return torch.ops.aten.mul.Tensor(args[0], torch.ops.aten.pow.Scalar(2.0, args[1]))
        inside, self._inside = self._inside, True
        try:
            result = self.dispatch(func, types, args, kwargs or {})
        finally:
            self._inside = inside
        return self._as_in_eager(func, args, result)

    def _as_in_eager(self, func: Any, args: Sequence[Any], result: Any) -> Any:
        """The result with the strides and dtypes that the real kernel gives it."""
        if func in _ITERATED or (func in _ITERATED_ON_CPU and result.device.type == "cpu"):
            return self._iterated(args, result)
        if func in _ROW_MAJOR or func in _ROW_MAJOR_ON_CPU:
            results = result if isinstance(result, tuple) else (result,)
            made = tuple(self._row_major(one, func in _ROW_MAJOR) for one in results)
            return made if isinstance(result, tuple) else made[0]
        if func in _FORMATTED:
            if isinstance(result, torch.Tensor):
                return self._formatted(args[0], result)
            return self._formatted(args[0], result[0]), *result[1:]
        if func in _FOUND:
            with self:
                return result[0], *(each.new_empty(each.shape, dtype=torch.int64) for each in result[1:])
        if func is torch.ops.aten.index.Tensor:
            return self._indexed(args[0], args[1], result)
        return self._expanded(args, result) if func is torch.ops.aten.expand.default else result

    def _not_of_values(self, func: Any, args: Sequence[object], kwargs: Mapping[str, object] | None) -> None:
        """torch computes while tracing what has known values alone (`torch.tensor(3)`). A collective would communicate
        then, and what others have registered may do anything: the values are no longer known."""
        if not isinstance(func, torch._ops.OpOverload) or func.namespace in _COMPUTES:
            return
        if not (facts(func).foreign or facts(func).communicates or is_wait(func)):
            return
        fakes = [each for each in leaves_in((args, kwargs)) if isinstance(each, FakeTensor)]
        if any(fake.constant is None for fake in fakes):
            return  # which it doesn't run
        for fake in fakes:
            if fake.constant is not None:
                self.fake_tensor_converter.invalidate_constant_aliases(fake.constant)
                fake.constant = None

    def from_tensor(self, tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        """torch's own, behind which operations run as they do inside of its kernels."""
        with self._converting(tensor):
            return super().from_tensor(tensor, *args, **options)

    def anew(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake of the tensor as it is now. The mode remembers which fake stands for a tensor; a converter of its own
        does not."""
        with self._converting(tensor):
            return FakeTensorConverter().from_real_tensor(self, tensor)  # type: ignore[no-untyped-call, no-any-return]

    @contextmanager
    def _converting(self, tensor: torch.Tensor) -> Iterator[None]:
        """The memory of what views are made of may be smaller by now than when they were taken."""
        before, self._inside, self._converts = (self._inside, self._converts), True, True
        try:
            with _gradients_read_in_silence(tensor):
                yield
        finally:
            self._inside, self._converts = before

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> Any:
        """A jagged tensor's ragged size: a number that is equal to itself alone. torch makes a symbol for it."""
        if not torch_compat.COMPARES_RAGGED_SIZES:
            return super().create_symbolic_nested_int(nt_tensor_id=nt_tensor_id)  # which ends the graph
        if nt_tensor_id is None:  # that of a tensor which the graph makes: outside there is no such number
            self._made_ragged -= 1
            nt_tensor_id = self._made_ragged
        return torch.SymInt(NestedIntNode(nt_tensor_id, 1))  # type: ignore[no-untyped-call]

    def forget_tensors(self) -> None:
        """Let go of the weak references to what was converted: `torch.utils.swap_tensors` refuses tensors that have
        one, and the mode outlives the capture in the graph's fakes."""
        describer = self.fake_tensor_converter.meta_converter.describer
        describer.lookup_tensor.clear()
        describer.lookup_storage.clear()

    def _expanded(self, args: Sequence[Any], result: Any) -> Any:
        """A tensor without dimensions has no steps: with symbols about, torch's rule in Python has others for sizes of
        one, and whether a tensor may be written over another is decided by them."""
        if args[0].dim() > 0 or not any(result.stride()):
            return result
        with self:
            return torch.ops.aten.as_strided.default(result, result.shape, [0] * result.dim())

    def _indexed(self, given: torch.Tensor, indices: Sequence[torch.Tensor | None], result: torch.Tensor) -> Any:
        """The result with the strides that the real kernel gives it, which decides by those of the places, too."""
        from torch._prims_common import compute_elementwise_output_logical_to_physical_perm as order_of
        from torch._prims_common import make_contiguous_strides_for

        used = [at for at, places in enumerate(indices) if places is not None]
        found = [places for places in indices if places is not None]
        if any(places.dtype in (torch.bool, torch.uint8) for places in found):
            return result
        if used != list(range(used[0], used[-1] + 1)):
            given = given.permute(*used, *(at for at in range(given.dim()) if at not in used))
            used = list(range(len(used)))
        before, after = given.stride()[: used[0]], given.stride()[used[-1] + 1 :]
        with self:
            found = list(torch.broadcast_tensors(*found))  # type: ignore[no-untyped-call]
            if given.device.type != "cpu" and len({str(places.stride()) for places in found}) > 1:
                found = [places.contiguous() for places in found]
            shape = *[1] * len(before), *found[0].shape, *[1] * len(after)
            operands = [(*before, *[0] * found[0].dim(), *after)]
            operands += [_steps(places.reshape(shape), result) for places in found]
            order, _ = order_of(*(torch.empty_strided(result.shape, each, device="meta") for each in operands))
            rows: Any = make_contiguous_strides_for([result.shape[at] for at in order])
            wanted = [rows[order.index(at)] for at in range(result.dim())]
            if list(map(str, wanted)) == list(map(str, result.stride())):
                return result
            return torch.empty_strided(result.shape, wanted, dtype=result.dtype, device=result.device)

    def _row_major(self, result: torch.Tensor, everywhere: bool) -> torch.Tensor:
        """The result with the strides that the real kernel gives it."""
        if result.device.type != "cpu" and not everywhere:
            return result
        with self:
            made = torch.empty(result.shape, dtype=result.dtype, device=result.device)
        return result if list(map(str, made.stride())) == list(map(str, result.stride())) else made

    def _formatted(self, given: Any, result: torch.Tensor) -> torch.Tensor:
        """The result with the strides that the real kernel gives it."""
        if result.device.type != "cpu":
            return result
        with self:
            return result.contiguous(memory_format=suggest_memory_format(given))

    def _iterated(self, args: Sequence[Any], result: Any) -> Any:
        """The result with the strides that the real kernel gives it."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if len(tensors) != 2:
            return result
        like = torch.ops.aten.eq.Tensor(*tensors)
        if list(map(str, like.stride())) == list(map(str, result.stride())):
            return result
        with self:
            return torch.empty_strided(result.shape, like.stride(), dtype=result.dtype, device=result.device)


def _steps(operand: torch.Tensor, result: torch.Tensor) -> tuple[Any, ...]:
    """An operand's strides where ATen iterates over a result: 0 where it is broadcast."""
    pairs = zip(operand.shape, operand.stride(), result.shape, strict=True)
    return tuple(0 if _is_one(own) and not _is_one(size) else step for own, step, size in pairs)


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1  # those that vary are 2 at least


# a mode sets them and puts back what was there before, which another thread's mode may have set
_OF_MODES = changed(
    (torch._C._only_lift_cpu_tensors, torch._C._set_only_lift_cpu_tensors),
    (_python_dispatch, "_is_in_torch_dispatch_mode"),
    (_python_dispatch, "_is_in_non_infra_torch_dispatch_mode"),
    (_python_dispatch, "_is_in_any_mode_without_ignore_compile_internals"),
)


@contextmanager
def modes_left() -> Iterator[None]:
    """Where the body raises, no mode of torch entered there stays on: an interrupt may come while torch is about to
    enter or leave one."""
    with _OF_MODES, _C.ThreadState():
        try:
            yield
        except KeyboardInterrupt as error:
            # what its frames hold leaves modes when it goes, which would be later, and onto what has been put back
            traceback.clear_frames(error.__traceback__)
            raise


def _gradients_read_in_silence(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """torch reads `grad` of tensors that aren't leaves, too, and hides the warning only where it would be shown."""
    return nullcontext() if tensor.is_leaf else unwarned("The .grad attribute of a Tensor")


def fake_of(mode: FakeTensorMode, real: torch.Tensor) -> torch.Tensor:
    """A fake tensor with the real one's metadata, sizes static; tensors that share memory get fakes that do."""
    if isinstance(real, torch.nn.Parameter) and type(real) not in _PLAIN and not is_wrapper(real):
        # a subclass that computes as parameters do
        real = torch.nn.Parameter(real.detach(), real.requires_grad)
    if not _is_ordinary(real):
        _base_has_its_gradient(mode, real)
        return mode.from_tensor(real, static_shapes=True)
    converter = mode.fake_tensor_converter.meta_converter
    key = converter.describer.get_tensor_id(real)
    known = converter.tensor_memo.get(key)
    if known is not None:
        return known  # type: ignore[no-any-return]
    storage_key = converter.describer.get_storage_id(real.untyped_storage())
    storage = converter.storage_memo.get(storage_key)
    if storage is None:
        bytes_ = real.untyped_storage().nbytes()
        storage = torch.UntypedStorage(bytes_, device="meta")  # type: ignore[no-untyped-call]
        converter.storage_memo[storage_key] = storage
    fake = new_fake(mode, real.device, real.dtype, real.size(), real.stride(), real.storage_offset(), storage)
    if real.requires_grad:
        fake.requires_grad_(True)
    if type(real) is torch.nn.Parameter:
        fake._is_param = True  # type: ignore[attr-defined]
    converter.tensor_memo[key] = fake
    return fake


def _base_has_its_gradient(mode: FakeTensorMode, real: torch.Tensor) -> None:
    """torch wants a view's base to have a gradient where the real one has; an ordinary base got none."""
    base = torch_compat.base_of(real)
    if base is None or not base.is_leaf or base.grad is None:
        return
    fake = fake_of(mode, base)
    if fake.grad is None:
        fake.grad = fake_of(mode, base.grad)


def _is_ordinary(real: torch.Tensor) -> bool:
    """A leaf with memory of its own, of no special kind."""
    return (
        type(real) in _PLAIN
        and real.layout is torch.strided
        and real.device.type in ("cpu", "cuda")
        and real.is_leaf
        and not real._is_view()
        and not (real.is_inference() or torch.is_inference_mode_enabled())
        and not (real.is_conj() or real.is_neg() or real.is_quantized or real.is_nested or real.is_mkldnn)
        and not torch._is_functional_tensor(real)
        and not torch._C._functorch.is_functorch_wrapped_tensor(real)
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and (not real.requires_grad or getattr(real, "grad_dtype", real.dtype) == real.dtype)
    )


def _shifts_exponents(x: Any, exponent: Any) -> bool:
    """Whether this torch's `ldexp` has a kernel of its own for such tensors, which keeps the first one's dtype."""
    composite = torch._C._dispatch_has_kernel_for_dispatch_key("aten::ldexp.Tensor", "CompositeImplicitAutograd")
    integral = not (exponent.is_floating_point() or exponent.is_complex())
    return not composite and x.is_floating_point() and integral
