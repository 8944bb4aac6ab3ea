"""The road through torch's AOTAutograd: joint graph, partition, and a runtime that knows every mutation and alias.

In:  a torch-level graph whose outputs may require gradients (or that the short road refused).
Out: a callable; forward and backward are what `compile_fn` made of the partitioned graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from dynajit.aot.decompositions import Decompositions
    from dynajit.aot.joint import CompileFn


def compile_with_autograd(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_fn: CompileFn,
    decompositions: Decompositions | None,
) -> Callable[..., Any]:
    """`gm` through AOTAutograd, with the min-cut partitioner deciding what forward keeps for backward."""
    import torch._functorch.config as functorch_config
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compiler(phase: str) -> Callable[..., Any]:
        def compile_phase(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[[list[Any]], Any]:
            return _boxed(compile_fn(graph, inputs, phase))

        return compile_phase

    # Donated buffers make backward(retain_graph=True) an error that eager doesn't raise.
    with functorch_config.patch(donated_buffer=False):
        return aot_module_simplified(
            gm,
            list(example_inputs),
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=min_cut_rematerialization_partition,
            decompositions=decompositions,
            keep_inference_input_mutations=True,
        )


def _boxed(fn: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """AOTAutograd's calling convention: one list, emptied by the callee so that inputs can die early."""

    def call(args: list[Any]) -> Any:
        inputs = tuple(args)
        args.clear()
        return fn(*inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
