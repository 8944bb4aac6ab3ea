"""`backend="aot_eager"`: functionalised ATen graph, forward and backward, run op by op by torch.

It tells a fault of the aot layer (wrong here too) from one of code generation (right here).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.aot import compile_joint
from dynajit.backends.registry import register_backend
from dynajit.graph.meta import notes
from dynajit.torch_compat import copy_version_exempt, make_writable


def _run_op_by_op(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], phase: str) -> Callable[..., Any]:
    for node in gm.graph.nodes:
        if notes(node).version_exempt:
            node.target = copy_version_exempt
    make_writable(gm)
    return gm.forward


@register_backend(name="aot_eager", tags=("debug",))
def aot_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The ATen graphs of `gm` without decompositions, each run by its own generated Python."""
    return compile_joint(gm, example_inputs, _run_op_by_op)


aot_eager.works_apart = True  # type: ignore[attr-defined]  # it needs neither the program's tensors nor its thread
