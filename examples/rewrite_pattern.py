"""Put one's own operation in the place of a pattern, in programs that know nothing of it.

It shows `dynajit.register_pattern`: the pattern is a norm that a model has written out, the replacement torch's
operator for it, and a function decides at each place (here it counts them). Gradients are those of the replacement.

    python examples/rewrite_pattern.py
"""

import torch
from timing import medians
from torch import Tensor, nn
from torch.nn import functional as F

import dynajit


def written_out(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def one_operator(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def main(rows: int = 2048, width: int = 256) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(Norm(width), nn.Linear(width, width), nn.GELU(), Norm(width))
    compiled = dynajit.compile(model)
    x = torch.randn(rows, width)
    places = []

    def is_wanted(match: object) -> bool:
        places.append(match)
        return True

    pattern = dynajit.register_pattern(written_out, one_operator, extra_check=is_wanted)
    apart = (compiled(x) - model(x)).abs().max().item()
    found = len(places)
    print(f"{found} norms found; results {apart:.1e} from eager's")
    with torch.no_grad():
        times = medians(lambda: model(x), lambda: compiled(x), seconds=rows / 2000)
    print(f"a call: {times[0]:.2f} ms in eager mode, {times[1]:.2f} ms rewritten and compiled")
    pattern.remove()
    return {"apart": apart, "replaced": found}


if __name__ == "__main__":
    main()
