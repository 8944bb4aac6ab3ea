"""An operator of one's own, written in C++, in compiled programs.

It shows `torch.library`: what eager mode calls, what shape the result has, and its gradient. With these three the
operator is one node of the captured graph, between kernels that dynajit makes, in training too.

    python examples/custom_operator.py                            # needs a C++ compiler
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import dynajit

# Sums of each row up to and with each element, weighed less the longer ago: y[i] = x[i] + decay * y[i - 1].
CODE = """
extern "C" void decayed(const float *x, float *y, long rows, long columns, float decay, bool backwards) {
    for (long row = 0; row < rows; ++row) {
        float sum = 0;
        for (long i = 0; i < columns; ++i) {
            long at = row * columns + (backwards ? columns - 1 - i : i);
            y[at] = sum = x[at] + decay * sum;
        }
    }
}
"""


def build() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "decayed.cpp", Path(folder) / "decayed.so"
        source.write_text(CODE)
        subprocess.run(["c++", "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))  # stays open when its file is gone


LIBRARY = build()


@torch.library.custom_op("example::decayed_sum", mutates_args=())
def decayed_sum(x: Tensor, decay: float, backwards: bool) -> Tensor:
    """What runs: `x` (rows, columns), float32."""
    x = x.contiguous()
    y = torch.empty_like(x)
    addresses = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
    sizes = ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1])
    LIBRARY.decayed(*addresses, *sizes, ctypes.c_float(decay), ctypes.c_bool(backwards))
    return y


@decayed_sum.register_fake
def _(x: Tensor, decay: float, backwards: bool) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def keep(ctx, inputs, output) -> None:
    _, ctx.decay, ctx.backwards = inputs


def gradient(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
    return decayed_sum(grad, ctx.decay, not ctx.backwards), None, None


decayed_sum.register_autograd(gradient, setup_context=keep)


class Smoothed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(decayed_sum(self.linear(x).sigmoid() * 2, 0.9, False) * 0.1)


def main(rows: int = 64, width: int = 128) -> dict[str, float]:
    torch.manual_seed(0)
    model = Smoothed(width)
    x = torch.randn(rows, width)
    expected = model(x)
    expected.square().sum().backward()
    gradient = model.linear.weight.grad
    model.zero_grad()

    report = dynajit.explain(model)(x)
    kernels = [kernel for graph in report.graph_records for code in graph.code for kernel in code.kernels]
    found = dynajit.compile(model, fullgraph=True)(x)
    found.square().sum().backward()
    apart = (found - expected).abs().max().item()
    gradients_apart = ((model.linear.weight.grad - gradient).abs().max() / gradient.abs().max()).item()
    print(f"{report.graph_count} graph, {report.graph_break_count} breaks, {len(kernels)} kernels around the operator:")
    for kernel in kernels:
        print(f"    {', '.join(kernel.operations)}")
    print(f"results {apart:.1e} from eager's, gradients {gradients_apart:.1e} of the largest")
    return {"apart": apart, "gradients_apart": gradients_apart, "breaks": report.graph_break_count}


if __name__ == "__main__":
    main()
