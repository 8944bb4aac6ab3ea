"""The first call in a new process: with empty caches, with kept kernels, with kept variants (`config.keep_variants`).

    python benchmarks/warm_start.py [--rows loop,unet,resnet50,gpt2:48,llama:48,gpt2-train:48]
        [--compilers dynajit,torch.compile] [--save]

Each number is a new process: a model is built and, unless `--cold-model`, runs eagerly once, then compiled once.
Rows: `gpt2:N` and `llama:N` with N layers, `gpt2-train:N` with a loss and its gradients, `resnet50`, `unet`, `loop`: a
function with two breaks in a loop. Seconds are of the CPU, of the process and of the compilers it starts. "cold": the
caches are empty; "kernels": what a compiler keeps by itself is there; "kept": variants are, too. "second call": what of
the first is the program's own. "traced": frames that were looked at in that last process, which is to be 0. "of
torch.compile": kept over torch.compile's second process.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import growth
import side_by_side as sbs
import torch
from torch import nn

HEADER = (
    *("program", "compiler", "cold s", "kernels s", "kept s", "kept, wall s", "second call s", "traced", "error"),
    "of torch.compile",
)
BAR, SHARE = 0.3, 0.15  # of models with layers; of torch.compile's


class Bottleneck(nn.Module):
    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * 4
        self.reduce = nn.Sequential(nn.Conv2d(given, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        conv = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.mix = nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU())
        self.grow = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide))
        aside = [nn.Conv2d(given, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)]
        self.aside = nn.Sequential(*aside) if stride > 1 or given != wide else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.grow(self.mix(self.reduce(x))) + self.aside(x))


def resnet50(_: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """ResNet-50's layers (He et al., 2015), for pictures of 64 by 64."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    given = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for place in range(count):
            layers.append(Bottleneck(given, width, 2 if place == 0 and width > 64 else 1))
            given = width * 4
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 1000)]
    return nn.Sequential(*layers).eval(), (torch.rand(1, 3, 64, 64),)


class UNet(nn.Module):
    """The layers of Ronneberger et al., 2015: halved four times, doubled as often, with what was there joined."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()

        def twice(given: int, wanted: int) -> nn.Sequential:
            first, second = (nn.Conv2d(count, wanted, 3, padding=1) for count in (given, wanted))
            return nn.Sequential(first, nn.BatchNorm2d(wanted), nn.ReLU(), second, nn.BatchNorm2d(wanted), nn.ReLU())

        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(map(twice, [3, *widths[:-1]], widths))
        wider = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(given, wanted, 2, 2) for given, wanted in wider)
        self.up = nn.ModuleList(twice(given, wanted) for given, wanted in wider)
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        passed = []
        for layer in self.down:
            x = layer(x if not passed else nn.functional.max_pool2d(x, 2))
            passed.append(x)
        for grow, layer, aside in zip(self.grow, self.up, passed[-2::-1], strict=True):
            x = layer(torch.cat([grow(x), aside], 1))
        return self.last(x)


def unet(_: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """U-Net for pictures of 64 by 64."""
    torch.manual_seed(0)
    return UNet().eval(), (torch.rand(1, 3, 64, 64),)


def breaking(x: torch.Tensor, rounds: int) -> torch.Tensor:
    """Two breaks in a loop: what is printed, and a number that decides."""
    total = torch.zeros_like(x)
    for number in range(rounds):
        y = torch.softmax(x * (number + 1), -1)
        print(end="")
        y = torch.nn.functional.gelu(y + total)
        if y.sum().item() > 1e6:
            break
        total = total + y.sin() * 0.5
    return total / rounds


def loop(_: int) -> tuple[Any, tuple[Any, ...]]:
    """A function with breaks in a loop."""
    torch.manual_seed(0)
    return breaking, (torch.rand(16, 32), 6)


PROGRAMS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    **growth.KINDS,
    "gpt2-train": growth.KINDS["gpt2"],
    "llama-train": growth.KINDS["llama"],
    "resnet50": resnet50,
    "unet": unet,
    "loop": loop,
}


def results(fn: Any, model: Any, inputs: Any, train: bool) -> list[torch.Tensor]:
    """What is compared: results, or the loss and all gradients."""
    if train:
        with torch.enable_grad():
            loss = fn(**inputs, labels=inputs["input_ids"]).loss
            loss.backward()
        found = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        for parameter in model.parameters():
            parameter.grad = None
        return found
    return [fn(**inputs).logits] if isinstance(inputs, dict) else [fn(*inputs)]


def first_call(row: str, compiler: str, cold_model: bool) -> dict[str, Any]:
    """What a child measures."""
    import dynajit

    name, _, layers = row.partition(":")
    model, inputs = PROGRAMS[name](int(layers or 0))
    train = name.endswith("-train")
    with torch.no_grad():
        expected = None if cold_model else results(model, model, inputs, train)
        cpu, wall = sbs.tree_cpu_seconds(), time.perf_counter()
        compiled = sbs.COMPILERS[compiler](model, None)
        actual = results(compiled, model, inputs, train)
        found: dict[str, Any] = {
            "wall": time.perf_counter() - wall,
            "cpu": sbs.tree_cpu_seconds() - cpu,
            "frames": dynajit.counters["frames"]["total"],
            "loaded": dynajit.counters["kept"]["loaded"],
        }
        cpu = sbs.tree_cpu_seconds()
        results(compiled, model, inputs, train)
        found["again"] = sbs.tree_cpu_seconds() - cpu
        expected = results(model, model, inputs, train) if expected is None else expected
    worst = max(float((one - other).abs().max()) for one, other in zip(actual, expected, strict=True))
    return {**found, "error": worst}


def in_new_process(arguments: list[str], cache: Path, keep: bool) -> dict[str, Any]:
    os.environ["DYNAJIT_KEEP_VARIANTS"] = "1" if keep else "0"
    return sbs.run_child(__file__, arguments, cache, timeout=1200)


def measure(row: str, compiler: str, cold_model: bool) -> dict[str, dict[str, Any]]:
    """What three kinds of process take."""
    child = ["--rows", row, "--compilers", compiler] + (["--cold-model"] if cold_model else [])
    with tempfile.TemporaryDirectory(prefix="warm-", ignore_cleanup_errors=True) as folder:
        cold, kernels = (in_new_process(child, Path(folder), keep=False) for _ in range(2))
        if compiler != "dynajit":
            return {"cold": cold, "kernels": kernels}
        in_new_process(child, Path(folder), keep=True)
        return {"cold": cold, "kernels": kernels, "kept": in_new_process(child, Path(folder), keep=True)}


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("--rows", default="loop,unet,resnet50,gpt2:48,llama:48,gpt2-train:48")
    parser.add_argument("--compilers", default="dynajit,torch.compile")
    parser.add_argument("--cold-model", action="store_true", help="no eager call before the compiled one")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/warm_start.md")
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        sbs.finish_child(options.out, first_call(options.rows, options.compilers, options.cold_model))
    table = sbs.Table(HEADER, "gpt2-train:48", "torch.compile")
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    fine = True
    for row in options.rows.split(","):
        found = {each: measure(row, each, options.cold_model) for each in options.compilers.split(",")}
        other = found["torch.compile"]["kernels"]["cpu"] if "torch.compile" in found else None
        for compiler, times in found.items():
            cells = [row, compiler, f"{times['cold']['cpu']:.2f}", f"{times['kernels']['cpu']:.2f}"]
            kept = times.get("kept")
            if kept is None:
                again, error = times["kernels"]["again"], times["kernels"]["error"]
                cells += ["-", "-", f"{again:.2f}", "-", f"{error:.0e}", "-"]
            else:
                cells += [f"{kept[name]:.2f}" for name in ("cpu", "wall", "again")]
                cells += [str(kept["frames"]), f"{kept['error']:.0e}"]
                cells.append("-" if other is None else f"{kept['cpu'] / other:.3f}")
                fine &= kept["frames"] == 0
                fine &= kept["cpu"] <= BAR if ":" in row else other is None or kept["cpu"] <= SHARE * other
            print(table.add(cells), flush=True)
    verdict = (
        f"bars for kept variants: {BAR} CPU seconds with layers, {SHARE} of torch.compile's without, nothing traced"
    )
    verdict += f": {'met' if fine else 'missed'}"
    print(f"\n{verdict}")
    if options.save:
        how = f"python benchmarks/warm_start.py --rows {options.rows} --compilers {options.compilers}"
        how += (" --cold-model" if options.cold_model else "") + " --save"
        print("written:", sbs.save("warm_start", "The first call in a new process", f"{table}\n\n{verdict}", how))
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
