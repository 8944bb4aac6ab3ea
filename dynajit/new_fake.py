"""A new fake tensor of known metadata, in new memory or in that of another one, without history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConfig, FakeTensorMode

# What torch's constructor, which takes ten times as long as to make the tensor, gives every fake on a device
_states: dict[torch.device, dict[str, Any]] = {}


def new_fake(
    mode: FakeTensorMode,
    device: torch.device,
    dtype: torch.dtype,
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int | torch.SymInt = 0,
    storage: torch.UntypedStorage | None = None,
) -> FakeTensor:
    """A fake on a device. `storage`: the meta memory that it lies in, `offset` elements from its begin; by default its
    own, of just the size that it needs."""
    with torch._C._DisableTorchDispatch():
        if storage is None:
            meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        else:
            meta = torch.empty(0, dtype=dtype, device="meta")
            meta.set_(storage, offset, shape, stride)
    state = _states.get(device)
    if state is None or FakeTensorConfig.debug:
        made = FakeTensor(mode, meta, device)
        # a device without an index is that which is current, and not every mode has fakes on the meta device
        if made.fake_device == device and device.type != "meta" and not FakeTensorConfig.debug:
            _states[device] = {name: value for name, value in vars(made).items() if name != "fake_mode"}
        return made
    made = torch.Tensor._make_subclass(  # type: ignore[call-arg]
        FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
    )
    if mode._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
    else:
        torch._C._set_throw_on_mutable_data_ptr(made)
    vars(made).update(state, fake_mode=mode)
    return made
