"""One graph to one C function: all operations in one loop, nothing stored in between.

In: a graph and the nodes that are wanted. Out: a callable of the frame's arguments that returns their tensors.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tiny.build import build
from tiny.graph import Graph, Node

# each gives eager's answer to the bit, NaN and infinities included
IN_C = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}"}
IN_C |= {"neg": "-{}", "abs": "fabsf({})", "sqrt": "sqrtf({})", "relu": "{0} < 0.0f ? 0.0f : {0}"}


def source_of(graph: Graph, outputs: Sequence[Node]) -> str:
    """The kernel's C source: inputs, then outputs, are its pointers."""
    inputs = [node for node in graph.nodes if node.op == "input"]
    names = {node: f"v{number}" for number, node in enumerate(graph.nodes)}
    body = []
    for node in graph.nodes:
        operands = (names[each] if isinstance(each, Node) else f"((float){float(each)!r})" for each in node.operands)
        value = IN_C[node.op].format(*operands) if node.op != "input" else f"in{inputs.index(node)}[i]"
        body.append(f"        const float {names[node]} = {value};")
    body += [f"        out{number}[i] = {names[node]};" for number, node in enumerate(outputs)]
    pointers = [f"const float *in{number}" for number in range(len(inputs))]
    pointers += [f"float *restrict out{number}" for number in range(len(outputs))]
    loop = "    for (long i = 0; i < n; i++) {"
    head = f"void kernel({', '.join(['long n', *pointers])})"
    return "\n".join(["#include <math.h>", "", head, "{", loop, *body, "    }", "}", ""])


def compile_graph(graph: Graph, outputs: Sequence[Node]) -> Callable[..., list[torch.Tensor]]:
    """Build and load the kernel. `outputs` are no inputs."""
    if not outputs:
        return lambda *args: []
    kernel = ctypes.CDLL(str(build(source_of(graph, outputs)))).kernel
    places = [node.operands[0] for node in graph.nodes if node.op == "input"]

    def run(*args: Any) -> list[torch.Tensor]:
        made = [torch.empty_like(args[places[0]]) for _ in outputs]
        tensors = [*(args[place] for place in places), *made]
        kernel(ctypes.c_long(made[0].numel()), *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors))
        return made

    return run
