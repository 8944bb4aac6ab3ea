"""A backend of one's own: what gets a captured graph, and returns what is called in its place.

It shows the whole protocol: a callable from a `torch.fx.GraphModule` and its example inputs to a callable. This one
times each operation, which tells where a program's time goes by the lines of its source, not by the names of kernels.

    python examples/custom_backend.py
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

import dynajit

SECONDS: Counter[str] = Counter()


class Timed(fx.Interpreter):
    """Runs a graph node by node; adds the time of each to `SECONDS`."""

    def run_node(self, n: fx.Node) -> Any:
        begin = time.perf_counter()
        result = super().run_node(n)
        if n.op not in ("placeholder", "output"):
            SECONDS[getattr(n.target, "__name__", str(n.target))] += time.perf_counter() - begin
        return result


@dynajit.register_backend
def timed(graph: fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
    """Known as `backend="timed"` from here on; `lookup_backend("codegen")(graph, example_inputs)` would hand it on."""
    print(f"a graph of {len(graph.graph.nodes)} nodes, {len(example_inputs)} inputs")
    return Timed(graph).run


def main(rows: int = 1024, width: int = 256) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    compiled = dynajit.compile(model, backend="timed")
    x = torch.randn(rows, width)
    SECONDS.clear()
    apart = (compiled(x) - model(x)).abs().max().item()
    whole = sum(SECONDS.values())
    for name, seconds in SECONDS.most_common():
        print(f"{name:12} {seconds * 1e3:7.2f} ms {seconds / whole:5.0%}")
    return {"apart": apart, "operations": len(SECONDS)}


if __name__ == "__main__":
    main()
