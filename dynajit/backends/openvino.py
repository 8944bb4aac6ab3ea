"""`backend="openvino"`: OpenVINO runs what it knows of the ATen graphs, torch the rest.

In:  a torch-level graph. Out: a callable whose parts are OpenVINO models, on CPUs in float32. OpenVINO would compute
     whole numbers in 32 bits and float64 in float32: what has such tensors stays with torch.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import openvino
import torch

from dynajit.aot import compile_joint
from dynajit.backends.onnx_parts import OnnxEngine, Session
from dynajit.backends.parts import run_in_parts
from dynajit.backends.registry import register_backend

_DTYPES = frozenset({torch.float32, torch.bool})
_ACCURATE = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


@functools.cache
def _core() -> Any:
    return openvino.Core()


def _session(model: bytes) -> Session:
    settings = {**_ACCURATE, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = _core().compile_model(_core().read_model(model=io.BytesIO(model)), "CPU", settings)
    names = [given.get_names() for given in compiled.inputs]

    def run(inputs: dict[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        given = [inputs[next(name for name in each if name in inputs)].numpy() for each in names]
        request = compiled.create_infer_request()  # threads may call at once, and results are this call's
        found = request.infer(given, share_inputs=True, share_outputs=False)
        return [torch.from_numpy(found[place]) for place in range(len(compiled.outputs))]

    return run


_ENGINE = OnnxEngine("openvino", _DTYPES, _session)


@register_backend(name="openvino")
def openvino_backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Functionalise `gm`, differentiate it if need be, and run its ATen graphs by OpenVINO."""
    return compile_joint(gm, example_inputs, functools.partial(run_in_parts, _ENGINE))
