"""Operations that ran on fakes of the same metadata before: equal layers give the same results, made anew each time.

In:  an ATen operation and its arguments, as a `FakeMode` gets them. Out: what it gave for such arguments before, as new
fakes. Kept as long as one capture. Only what depends on the metadata of ordinary tensors of known sizes, and on
constants, is kept, and only where what is made anew was seen to be the very same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynajit.nested import tensors_in
from dynajit.new_fake import new_fake
from dynajit.op_facts import CONSTANT_TYPES, facts

# what they give depends on how large the memory is, too
_BY_MEMORY = frozenset({torch.ops.aten.as_strided.default})


class _NoKey(Exception):
    """An argument that can't be part of a key."""


class FakeSpec(NamedTuple):
    """A result: what has to be made, and whether it lies in the first argument's memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    shares: bool


class KnownResult(NamedTuple):
    """What an operation gave.

    Attributes:
        results: one for each tensor; None where the operation gives none there.
        several: whether it gives a tuple of them.
        looks: whether it raises for some values of its tensors.
    """

    results: tuple[FakeSpec | None, ...]
    several: bool
    looks: bool

    def made(self, mode: FakeTensorMode, args: Sequence[Any]) -> Any:
        """The same as new fakes."""
        memory = next((arg for arg in args if type(arg) is FakeTensor), None)
        found = tuple(None if one is None else make(mode, one, memory) for one in self.results)
        return found if self.several else found[0]


def key_of(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What the operation's result depends on; None where that can't be told."""
    if type(func) is not torch._ops.OpOverload or func in _BY_MEMORY:
        return None
    known = facts(func)
    if not (known.known and known.pure):
        return None
    key: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
    try:
        _add(mode, key, args)
        if kwargs:
            key.append(tuple(kwargs))
            _add(mode, key, kwargs.values())
    except _NoKey:
        return None
    return tuple(key)


def _add(mode: FakeTensorMode, key: list[Any], args: Iterable[Any]) -> None:
    for arg in args:
        kind = type(arg)
        if kind is FakeTensor:
            if arg.fake_mode is not mode or not _is_ordinary(arg):
                raise _NoKey
            key += (arg.shape, arg.stride(), arg.storage_offset(), arg.dtype, arg.fake_device, _kind(arg))
        elif kind in CONSTANT_TYPES:
            key += (kind, arg)
        elif kind in (list, tuple):
            key += (kind, len(arg))
            _add(mode, key, arg)
        else:
            raise _NoKey


def _is_ordinary(fake: FakeTensor) -> bool:
    """Whether it has memory, known sizes and unknown values."""
    return fake.layout is torch.strided and fake.constant is None and not fake._has_symbolic_sizes_strides


def _kind(tensor: torch.Tensor) -> int:
    """What torch dispatches on: layout, device, conjugate or negative bits, inference tensors."""
    return torch._C._dispatch_keys(tensor).raw_repr()


def remember(mode: FakeTensorMode, args: Sequence[Any], result: Any, looks: bool) -> KnownResult | None:
    """What to keep of a call, if the same can be made anew."""
    several = type(result) is tuple
    known: list[FakeSpec | None] = []
    for one in result if several else (result,):
        if one is None:
            known.append(None)
            continue
        if type(one) is not FakeTensor or not _is_ordinary(one):
            return None
        sharing = [arg for arg in tensors_in(args) if arg is one or _memory(arg) == _memory(one)]
        if sharing and (sharing[0] is not args[0] or len(tensors_in(args)) > 1 or sharing[0] is one):
            return None  # which memory it is would have to be told by more than the metadata
        spec = _spec(one, bool(sharing))
        if not _same(make(mode, spec, args[0] if sharing else None), one):
            return None
        known.append(spec)
    if several and len({_memory(one) for one in result if one is not None}) < len([s for s in known if s is not None]):
        return None  # they share memory with each other
    return KnownResult(tuple(known), several, looks)


def spec_of(mode: FakeTensorMode, fake: Any) -> FakeSpec | None:
    """What to make for a fake like this one, with memory of its own and no history; None where that is not all."""
    if type(fake) is not FakeTensor or not _is_ordinary(fake):
        return None
    spec = _spec(fake, False)
    return spec if _same(make(mode, spec, None), fake) else None


def _spec(fake: FakeTensor, shares: bool) -> FakeSpec:
    offset = int(fake.storage_offset())
    return FakeSpec(tuple(fake.shape), fake.stride(), offset, fake.dtype, fake.fake_device, shares)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def make(mode: FakeTensorMode, spec: FakeSpec, memory: torch.Tensor | None) -> FakeTensor:
    """A new fake; `memory`: the tensor whose memory it shares, if it shares any."""
    storage = None
    if spec.shares:
        assert memory is not None
        storage = memory.untyped_storage()
    return new_fake(mode, spec.device, spec.dtype, spec.shape, spec.stride, spec.offset, storage)


def _same(made: FakeTensor, given: FakeTensor) -> bool:
    return (
        _kind(made) == _kind(given)
        and made.storage_offset() == given.storage_offset()
        and made.untyped_storage().nbytes() == given.untyped_storage().nbytes()
        and made.requires_grad == given.requires_grad
        and made._is_view() == given._is_view()
        and vars(made).keys() == vars(given).keys()
    )
