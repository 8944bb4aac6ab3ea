"""Models whose speed depends on layouts, on an NVIDIA GPU: eager, dynajit and torch.compile, with the slowest kernels.

In: a machine with a GPU, Triton and torchvision. Out: a table of milliseconds a call (medians), the error of each
against float32 eager, and the slowest kernels of each row. `--plain` times dynajit without the choice of layouts, too;
`--peer` torch.compile, as long as the `--budget` of seconds lasts. One more model: a function behind `@row`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models_gpu import GPTBlock  # noqa: E402

import dynajit  # noqa: E402
from dynajit.aot.passes import layouts  # noqa: E402

# name -> () -> (module, inputs, training step?)
ROWS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], bool]]] = {}
START = time.perf_counter()


def row(name: str) -> Callable[[Any], Any]:
    def register(make: Any) -> Any:
        ROWS[name] = make
        return make

    return register


class Speech(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(80, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.places = nn.Parameter(torch.randn(1500, width) / 10)
        self.layers = nn.Sequential(*(GPTBlock(width, width // 64) for _ in range(layers)), nn.LayerNorm(width))

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(x)))).permute(0, 2, 1)
        return self.layers(x + self.places)


class Residual(nn.Module):
    def __init__(self, given: int, made: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, given), nn.Conv2d(given, made, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, made), nn.Conv2d(made, made, 3, padding=1)
        self.time = nn.Linear(time, made)
        self.short = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.short(x) + self.conv2(F.silu(self.norm2(y)))


class Across(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.rows = nn.GroupNorm(32, width), GPTBlock(width, width // 64)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, wide = x.shape
        y = self.rows(self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * wide, width))
        return x + y.reshape(batch, height, wide, width).permute(0, 3, 1, 2)


class Diffusion(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.first, self.last = nn.Conv2d(4, first, 3, padding=1), nn.Conv2d(first, 4, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        at = first
        for width in widths:
            self.down.append(nn.ModuleList([Residual(at, width, time), Across(width)]))
            self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
            at = width
        for width in reversed(widths):
            self.up.append(nn.ModuleList([Residual(at + width, width, time), Across(width)]))
            at = width
        self.norm = nn.GroupNorm(32, first)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for part in self.down:
            if isinstance(part, nn.ModuleList):
                x = part[1](part[0](x, t))
                kept.append(x)
            else:
                x = part(x)
        for residual, across in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = across(residual(torch.cat([x, kept.pop()], 1), t))
        return self.last(F.silu(self.norm(x)))


class Wave(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2 ** (i % 10), dilation=2 ** (i % 10)) for i in range(layers)
        )
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.last = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        total: Any = 0
        for gate, out in zip(self.gates, self.outs, strict=True):
            a, b = gate(x).chunk(2, 1)
            more, skip = out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, total = (x + more) * 0.7, total + skip
        return self.last(F.relu(total))


def half(module: nn.Module) -> nn.Module:
    return module.cuda().half()


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


@row("speech encoder, 12 layers of 768, 8 x 80 x 3000")
def speech() -> Any:
    return half(Speech(768, 12)).eval(), (randn(8, 80, 3000),), False


@row("EfficientNetV2-S, 64 x 3 x 224 x 224")
def efficient_net() -> Any:
    import torchvision

    return half(torchvision.models.efficientnet_v2_s()).eval(), (randn(64, 3, 224, 224),), False


@row("ResNet-50, 128 x 3 x 224 x 224")
def resnet() -> Any:
    import torchvision

    return half(torchvision.models.resnet50()).eval(), (randn(128, 3, 224, 224),), False


@row("diffusion U-Net, 8 x 4 x 64 x 64")
def diffusion() -> Any:
    return half(Diffusion((256, 512))).eval(), (randn(8, 4, 64, 64), randn(8, 1024)), False


@row("the same, training")
def diffusion_training() -> Any:
    return half(Diffusion((256, 512))), (randn(8, 4, 64, 64), randn(8, 1024)), True


@row("WaveNet, 20 layers of 128, 8 x 1 x 16000")
def wave() -> Any:
    return half(Wave(128, 20)).eval(), (randn(8, 1, 16000),), False


def step_of(module: nn.Module, call: Callable[..., Any], inputs: tuple[Any, ...], train: bool) -> Callable[[], Any]:
    """One call, or a call and its backward: what it gives and the gradients."""

    def infer() -> list[Tensor]:
        with torch.no_grad():
            return [call(*inputs)]

    def learn() -> list[Tensor]:
        module.zero_grad(set_to_none=True)
        found = call(*inputs)
        found.float().square().mean().backward()
        return [found.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]

    return learn if train else infer


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest distance, of each tensor in parts of its largest element."""
    return max(
        float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-6))
        for a, b in zip(found, exact, strict=True)
    )


def medians(calls: dict[str, Callable[[], Any]], rounds: int = 15) -> dict[str, float]:
    """Milliseconds a call, each three calls in a row, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / 3 * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def slowest(call: Callable[[], Any], count: int = 9) -> list[str]:
    """The kernels that take most of a call: microseconds, how often, name."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    events = sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)[:count]
    return [f"    {e.self_device_time_total:8.0f} us {e.count:4d} x {e.key[:110]}" for e in events]


def compiled(module: nn.Module, inputs: tuple[Any, ...], train: bool, compiler: Any, mode: str) -> Callable[[], Any]:
    own = copy.deepcopy(module)
    kwargs = {} if mode == "default" else {"mode": mode}
    return step_of(own, compiler(own, **kwargs), inputs, train)


def measure(name: str, plain: bool, peer: bool, kernels: bool) -> None:
    torch.manual_seed(0)
    module, inputs, train = ROWS[name]()
    exact_inputs = tuple(x.float() for x in inputs)
    wide = copy.deepcopy(module).float()
    exact = step_of(wide, wide, exact_inputs, train)()
    calls = {"eager": step_of(module, module, inputs, train)}
    dynajit.reset()
    for mode in ("default", "reduce-overhead"):
        calls[f"dynajit {mode}"] = compiled(module, inputs, train, dynajit.compile, mode)
    if peer:
        for mode in ("default", "reduce-overhead"):
            calls[f"torch.compile {mode}"] = compiled(module, inputs, train, torch.compile, mode)
    errors, spent = {}, {}
    for label, call in calls.items():
        start = time.perf_counter()
        errors[label] = error([x.clone() for x in call()], exact)
        spent[label] = time.perf_counter() - start
    found = medians(calls)
    print(f"\n{name}   ({time.perf_counter() - START:.0f} s)")
    for label, ms in found.items():
        print(f"  {label:30} {ms:8.3f} ms   error {errors[label]:.2e}   first call {spent[label]:5.1f} s")
    if plain:
        before = layouts.RANKS, layouts.CHOOSES
        layouts.RANKS, layouts.CHOOSES = {}, {}
        dynajit.reset()  # equal code would be found
        alone = compiled(module, inputs, train, dynajit.compile, "default")
        print(f"  {'dynajit, layouts of eager':30} {medians({'': alone})['']:8.3f} ms")
        layouts.RANKS, layouts.CHOOSES = before
    if kernels:
        dynajit.reset()
        call = compiled(module, inputs, train, dynajit.compile, "default")
        call()
        print(*slowest(call), sep="\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="parts of names of rows, with commas between")
    parser.add_argument("--plain", action="store_true", help="dynajit without the choice of layouts, too")
    parser.add_argument("--peer", action="store_true", help="torch.compile, too")
    parser.add_argument(
        "--budget", type=float, default=230, help="seconds: after half of them torch.compile is left out"
    )
    chosen = argparse.BooleanOptionalAction
    parser.add_argument("--training-layouts", action=chosen, default=True, help="convolutions channels last there, too")
    parser.add_argument("--no-kernels", action="store_true")
    arguments = parser.parse_args()
    layouts.IN_TRAINING["cuda"] = arguments.training_layouts
    print(torch.cuda.get_device_name(), torch.__version__)
    for name in ROWS:
        if not any(part in name for part in arguments.rows.split(",")):
            continue
        early = time.perf_counter() - START < arguments.budget / 2
        try:
            measure(name, arguments.plain, arguments.peer and early, not arguments.no_kernels)
        except Exception as failure:  # the other rows are worth having
            print(f"\n{name}: {type(failure).__name__}: {str(failure)[:1500]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
