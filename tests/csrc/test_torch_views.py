"""TensorSpec and GlobalState against what torch's Python side says."""

import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dynajit import _C

BASE = torch.arange(24.0).reshape(2, 3, 4)


def test_spec_reads_the_example():
    spec = _C.TensorSpec(BASE.transpose(0, 1), (3, None, 4), None)
    assert spec.type is torch.Tensor
    assert spec.dtype is torch.float32
    assert spec.device == torch.device("cpu")
    assert spec.requires_grad is False
    assert spec.sizes == (3, None, 4)
    assert spec.strides == (4, 12, 1)
    assert spec.key_set == torch._C._dispatch_keys(BASE).raw_repr()


class Sub(torch.Tensor):
    pass


DIFFERENT = {
    "size": torch.zeros(2, 3, 5),
    "rank": torch.zeros(2, 3),
    "stride": torch.zeros(3, 2, 4).transpose(0, 1),
    "dtype": BASE.double(),
    "requires_grad": BASE.clone().requires_grad_(),
    "device": BASE.to("meta"),
    "layout": BASE.to_sparse(),
    "parameter": torch.nn.Parameter(BASE, requires_grad=False),
    "subclass": BASE.as_subclass(Sub),
    "conjugate": BASE.to(torch.complex64).conj(),
    "negative": torch._neg_view(BASE),
    "no tensor": 3,
    "none": None,
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_spec_tells_apart(name):
    assert not _C.TensorSpec(BASE).check(DIFFERENT[name])


def test_spec_tells_inference_tensors_apart():
    with torch.inference_mode():
        inside = torch.zeros_like(BASE)
    assert not _C.TensorSpec(BASE).check(inside)


def test_spec_fits():
    spec = _C.TensorSpec(BASE, (None, 3, None), (None, None, 1))
    assert spec.check(BASE)
    assert spec.check(torch.zeros(7, 3, 9))
    assert not spec.check(torch.zeros(7, 4, 9))
    assert not spec.check(torch.zeros(7, 9, 3).transpose(1, 2))
    assert _C.TensorSpec(BASE).check(torch.rand(2, 3, 4))
    sparse = BASE.to_sparse()
    assert _C.TensorSpec(sparse).strides is None
    assert _C.TensorSpec(sparse).check(sparse.clone())
    assert _C.TensorSpec(BASE.as_subclass(Sub)).check(BASE.as_subclass(Sub))


def test_spec_follows_in_place_changes():
    x = torch.zeros(2, 3)
    spec = _C.TensorSpec(x)
    assert spec.check(x)
    x.requires_grad_()
    assert not spec.check(x)
    x.requires_grad_(False)
    assert spec.check(x)
    x.resize_(3, 2)
    assert not spec.check(x)


def test_spec_refuses():
    with pytest.raises(TypeError, match="must be a tensor"):
        _C.TensorSpec(3)
    with pytest.raises(ValueError, match="2 given for a tensor with 3"):
        _C.TensorSpec(BASE, (1, 2))
    with pytest.raises(TypeError):
        _C.TensorSpec(BASE, ("a", "b", "c"))


class FunctionMode(TorchFunctionMode):
    pass


class DispatchMode(TorchDispatchMode):
    pass


CHANGES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "device": lambda: torch.device("meta"),
    "function mode": FunctionMode,
    "dispatch mode": DispatchMode,
    "function disabled": torch._C.DisableTorchFunctionSubclass,
    "saved tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "forward grad": lambda: torch.autograd.forward_ad._set_fwd_grad_enabled(False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_state_notices(name):
    outside = _C.GlobalState()
    assert outside.check()
    assert outside.difference() == []
    with CHANGES[name]():
        assert not outside.check()
        assert outside.difference()
        inside = _C.GlobalState()
        assert inside.check()
    assert outside.check()
    assert not inside.check()
    with CHANGES[name]():
        assert inside.check()


@pytest.mark.parametrize(
    ("change", "restore"),
    [
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1)),
        (lambda: torch.set_float32_matmul_precision("high"), lambda: torch.set_float32_matmul_precision("highest")),
        (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    ],
)
def test_state_notices_settings(change, restore):
    before = _C.GlobalState()
    change()
    try:
        assert not before.check()
        assert len(before.difference()) >= 1
    finally:
        restore()
    assert before.check()


def test_default_device_is_compared_by_value():
    with torch.device("meta"):
        state = _C.GlobalState()
        assert state.modes[0][1] == torch.device("meta")
    with torch.device("cpu"):
        assert not state.check()
    with torch.device("meta"):
        assert state.check()


def test_autocast_dtype_counts_only_where_autocast_is_on():
    outside = _C.GlobalState()
    with torch.autocast("cpu", dtype=torch.float16):
        inside = _C.GlobalState()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not inside.check()
    assert outside.check()


def test_state_is_the_threads_own():
    state = _C.GlobalState()
    found = []
    thread = threading.Thread(target=lambda: found.append(state.check()))
    with torch.no_grad():
        thread.start()
        thread.join()
        assert not state.check()
    assert found == [True]
