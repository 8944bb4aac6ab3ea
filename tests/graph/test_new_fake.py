"""What `new_fake` makes is what torch's constructor does, the first time and after that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynajit import new_fake as module
from dynajit.new_fake import new_fake

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_states", {})


def seen(fake: FakeTensor) -> dict[str, Any]:
    return {
        "state": vars(fake),
        "type": type(fake),
        "keys": torch._C._dispatch_keys(fake).raw_repr(),
        "layout": (fake.shape, fake.stride(), fake.storage_offset(), fake.dtype, fake.device, fake.layout),
        "memory": fake.untyped_storage().nbytes(),
        "autograd": (fake.requires_grad, fake.grad_fn, fake.is_leaf, fake._is_view()),
        "version": None if fake.is_inference() else fake._version,
    }


def constructed(mode: FakeTensorMode, dtype: torch.dtype) -> FakeTensor:
    meta = torch.empty_strided((3, 4), (1, 3), dtype=dtype, device="meta")
    return FakeTensor(mode, meta, torch.device("cpu"))


@pytest.mark.parametrize("inference", [False, True])
def test_the_same_as_the_constructor(inference: bool) -> None:
    mode, other = FakeTensorMode(), FakeTensorMode()
    with torch.inference_mode(inference):
        for owner in (mode, mode, other):
            for dtype in DTYPES:
                made = new_fake(owner, torch.device("cpu"), dtype, (3, 4), (1, 3))
                assert seen(made) == seen(constructed(owner, dtype))
                assert made.fake_mode is owner


def test_an_operation_goes_to_its_mode() -> None:
    mode = FakeTensorMode()
    new_fake(mode, torch.device("cpu"), torch.float32, (2,), (1,))
    made = new_fake(mode, torch.device("cpu"), torch.float32, (3, 4), (4, 1))
    made.requires_grad_(True)
    result = (made @ made.t()).sum()
    assert type(result) is FakeTensor
    assert result.device.type == "cpu"
    assert result.requires_grad
    assert not constructed(mode, torch.float32).requires_grad


def test_memory_is_shared_where_asked_for() -> None:
    mode = FakeTensorMode()
    whole = new_fake(mode, torch.device("cpu"), torch.float32, (12,), (1,))
    part = new_fake(mode, torch.device("cpu"), torch.float32, (3,), (2,), 4, whole.untyped_storage())
    assert part.untyped_storage()._cdata == whole.untyped_storage()._cdata
    assert part.storage_offset() == 4
    assert part.stride() == (2,)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("allowed", [False, True])
def test_pointers_are_refused_as_the_mode_wants(allowed: bool) -> None:
    mode = FakeTensorMode()
    mode._allow_unsafe_data_ptr_access = allowed
    told = []
    for fake in (
        constructed(mode, torch.float32),
        *(new_fake(mode, torch.device("cpu"), torch.float32, (3, 4), (1, 3)) for _ in range(2)),
    ):
        try:
            told.append(fake.data_ptr())
        except RuntimeError as error:
            told.append(str(error))
    assert len(set(told)) == 1
    assert isinstance(told[0], int) == allowed


def test_the_meta_device_is_refused_where_the_mode_does() -> None:
    lax, strict = FakeTensorMode(), FakeTensorMode()
    lax.allow_meta, strict.allow_meta = True, False
    for _ in range(2):
        assert new_fake(lax, torch.device("meta"), torch.float32, (2,), (1,)).device.type == "meta"
        with pytest.raises(AssertionError, match="meta"):
            new_fake(strict, torch.device("meta"), torch.float32, (2,), (1,))
