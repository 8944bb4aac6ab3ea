"""Put one's own operation in the place of a pattern, in programs that know nothing of it.

It shows a backend that rewrites the captured graph with `torch.fx.replace_pattern` and hands it on to dynajit's own.
The pattern is a norm that a model has written out; the replacement is torch's operator for it.

    python examples/rewrite_pattern.py
"""

from collections.abc import Callable
from typing import Any

import torch
from timing import medians
from torch import Tensor, fx, nn
from torch.nn import functional as F

import dynajit


def written_out(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def one_operator(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


replaced: list[int] = []


@dynajit.register_backend
def with_rms_norm(graph: fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
    replaced.append(len(fx.replace_pattern(graph, written_out, one_operator)))
    return dynajit.lookup_backend("codegen")(graph, example_inputs)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def main(rows: int = 2048, width: int = 256) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(Norm(width), nn.Linear(width, width), nn.GELU(), Norm(width))
    compiled = dynajit.compile(model, backend="with_rms_norm")
    x = torch.randn(rows, width)
    replaced.clear()
    apart = (compiled(x) - model(x)).abs().max().item()
    found = sum(replaced)
    print(f"{found} norms found in {len(replaced)} graph; results {apart:.1e} from eager's")
    with torch.no_grad():
        times = medians(lambda: model(x), lambda: compiled(x), seconds=rows / 2000)
    print(f"a call: {times[0]:.2f} ms in eager mode, {times[1]:.2f} ms rewritten and compiled")
    return {"apart": apart, "replaced": found}


if __name__ == "__main__":
    main()
