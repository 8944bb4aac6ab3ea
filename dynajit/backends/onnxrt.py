"""`backend="onnxrt"`: ONNX Runtime runs what it knows of the ATen graphs, torch the rest.

In:  a torch-level graph. Out: a callable whose parts are sessions of ONNX Runtime on CPUs; tensors go in and come out
     by DLPack, without a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import onnxruntime
import torch

from dynajit.aot import compile_joint
from dynajit.backends.onnx_parts import OnnxEngine, Session
from dynajit.backends.parts import run_in_parts
from dynajit.backends.registry import register_backend

# dtypes whose operators it computes as torch does; of the others some are rounded elsewhere
_DTYPES = frozenset({torch.float32, torch.float64, torch.int32, torch.int64, torch.bool, torch.uint8, torch.int8})


def _tensor(value: Any, is_bool: bool) -> torch.Tensor:
    """The tensor of a result's memory; ONNX Runtime 1.30 hands truth values over as bytes."""
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(value)
    return tensor.view(torch.bool) if is_bool else tensor


def _session(model: bytes) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    wanted = [given.name for given in session.get_inputs()]

    def run(inputs: dict[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        binding = session.io_binding()
        for name in wanted:
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.from_dlpack(inputs[name]))
        for result in session.get_outputs():
            binding.bind_output(result.name)
        session.run_with_iobinding(binding)
        values = zip(session.get_outputs(), binding.get_outputs(), strict=True)
        return [_tensor(value, is_bool=result.type == "tensor(bool)") for result, value in values]

    return run


_ENGINE = OnnxEngine("onnxrt", _DTYPES, _session)


@register_backend(name="onnxrt")
def onnxrt(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Functionalise `gm`, differentiate it if need be, and run its ATen graphs by ONNX Runtime."""
    return compile_joint(gm, example_inputs, functools.partial(run_in_parts, _ENGINE))
