"""`backend="ofi"`: for inference; TorchScript, frozen and optimised for it, runs what it can of the ATen graphs.

In:  a torch-level graph. Out: a callable. Batch norms are folded into convolutions, and what depends on weights alone
     is computed once, as `freezing` says. Graphs that train, and parts with free sizes, run operator by operator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit import torch_compat
from dynajit.aot import compile_joint
from dynajit.aot.inference import freezing
from dynajit.backends.parts import Part, PartRefused, run_in_parts
from dynajit.backends.registry import check_options, register_backend

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class ScriptEngine:
    """Parts of graphs as TorchScript."""

    name = "ofi"
    dtypes = frozenset((*_FLOATS, *_WHOLE))

    def takes(self, target: torch._ops.OpOverload) -> bool:
        """TorchScript calls the operators themselves."""
        return target.namespace == "aten"

    def build(self, part: torch.fx.GraphModule, examples: Sequence[Any]) -> Part:
        """Raises PartRefused for sizes that are free, and where TorchScript raises."""
        sizes = [size for value in examples for size in (value.shape if isinstance(value, torch.Tensor) else (value,))]
        if any(type(size) is not int for size in sizes) or not all(isinstance(v, torch.Tensor) for v in examples):
            raise PartRefused("TorchScript's graphs are of one size")
        given = tuple(map(torch_compat.example_of, examples))
        try:
            with warnings.catch_warnings(), torch_compat.apart_from_tracing(), torch.no_grad():
                warnings.simplefilter("ignore")  # it is to go, in favour of compilers such as this one
                traced = torch.jit.trace(part.eval(), given, check_trace=False)  # type: ignore[no-untyped-call]
                script = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
        except Exception as error:  # its passes raise what they like; it is counted and told in the log
            raise PartRefused(f"{type(error).__name__}: {str(error).strip()[:300]}") from error

        def run(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
            found = script(*inputs)
            results = found if isinstance(found, (tuple, list)) else (found,)
            return [result.contiguous() for result in results]

        return run


def _compile(gm: torch.fx.GraphModule, inputs: Sequence[Any], phase: str) -> Callable[..., Any]:
    return run_in_parts(ScriptEngine(), gm, inputs, phase) if phase == "inference" else gm.forward


@register_backend(name="ofi")
def ofi(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Functionalise `gm`, fold what its weights alone decide, and run its ATen graphs by TorchScript."""
    check_options(options.get("options") or {}, ())
    weights = freezing.weights_of(gm, example_inputs)
    if not weights:
        return compile_joint(gm, example_inputs, _compile)
    compile_fn = freezing.frozen(_compile, weights, len(example_inputs))
    return compile_joint(freezing.fold_batch_norm(gm, weights), example_inputs, compile_fn)
