"""How the first call of the default backend grows with the program: CPU seconds and memory for 1 to 64 layers.

    python benchmarks/growth.py [--layers 1,4,16,64] [--kind gpt2|llama|gru|kalman]
        [--compilers dynajit,torch.compile,eager] [--train] [--save]

Each row is a new process with empty caches: a GPT-2 or Llama shape (4 heads, width 256) runs eagerly once, then
compiled once. Seconds are of the process and of the compilers it starts; memory is how far the process's peak rose. The
exponent is the slope of the logarithms between the two largest rows, of what the smallest row does not cost already.
"of goal": the row's seconds over 1.5 times the smallest row's and 5 ms for each layer. A loop (a GRU cell, a Kalman
filter) has steps in place of layers.
"""

import functools
import json
import math
import resource
import tempfile
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from scaling import gpt2

HEADER = ("layers", "compiler", "CPU s", "s a layer", "of goal", "MB", "second call ms")
BAR = 0.15


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def llama(layers: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(num_hidden_layers=layers, vocab_size=8000, use_cache=False, **shape)
    return LlamaForCausalLM(config).eval(), {"input_ids": torch.randint(3, 8000, (1, 16))}


class Loop(torch.nn.Module):
    """A loop over steps: `advance` gives the next states and what the step gives."""

    def begin(self, count: int) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError

    def advance(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, given = self.begin(x.shape[1]), []
        for t in range(x.shape[0]):
            one, states = self.advance(x[t], *states)
            given.append(one)
        return torch.stack(given).pow(2).mean()


class Gru(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(16, 32)

    def begin(self, count: int) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(count, 32),)

    def advance(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        state = self.cell(x, states[0])
        return state, (state,)


class Kalman(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.moves = torch.nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4))
        self.shows = torch.nn.Parameter(torch.randn(2, 4))
        self.noises = torch.nn.Parameter(torch.tensor([0.1, 0.2]))

    def begin(self, count: int) -> tuple[torch.Tensor, ...]:
        return torch.zeros(count, 4), torch.eye(4).expand(count, 4, 4)

    def advance(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        mean, spread = states
        mean = mean @ self.moves.T
        spread = self.moves @ spread @ self.moves.T + self.noises[0].exp() * torch.eye(4)
        seen = self.shows @ spread @ self.shows.T + self.noises[1].exp() * torch.eye(2)
        gain = torch.linalg.solve(seen, self.shows @ spread).transpose(-1, -2)
        mean = mean + (gain @ (x - mean @ self.shows.T).unsqueeze(-1)).squeeze(-1)
        return mean, (mean, (torch.eye(4) - gain @ self.shows) @ spread)


def loop(model: type[Loop], width: int, steps: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return model(), {"x": torch.randn(steps, 8, width)}


KINDS = {
    "gpt2": gpt2,
    "llama": llama,
    "gru": functools.partial(loop, Gru, 16),
    "kalman": functools.partial(loop, Kalman, 2),
}
COMPILERS = {**sbs.COMPILERS, "eager": lambda fn, mode: fn}


def first_call(kind: str, layers: int, compiler: str, train: bool) -> dict[str, float]:
    """What a child measures."""
    model, inputs = KINDS[kind](layers)

    def call(fn: Any) -> None:
        if train:
            loss = fn(**inputs) if isinstance(model, Loop) else fn(**inputs, labels=inputs["input_ids"]).loss
            loss.backward()
            model.zero_grad()
        else:
            with torch.no_grad():
                fn(**inputs)

    call(model)
    before, cpu = peak_mb(), sbs.tree_cpu_seconds()
    compiled = COMPILERS[compiler](model, None)
    call(compiled)
    found = {"cpu": sbs.tree_cpu_seconds() - cpu, "mb": peak_mb() - before}
    times = sbs.interleave({"call": lambda: call(compiled)}, seconds=0.3, clock=sbs.clock_for(1))["call"]
    return {**found, "ms": sorted(times)[len(times) // 2] * 1e3}


def exponent(found: dict[int, dict[str, float]]) -> float:
    sizes = sorted(found)
    if len(sizes) < 3:
        return math.nan
    low, high = sizes[-2], sizes[-1]
    more = [found[size]["cpu"] - found[sizes[0]]["cpu"] for size in (low, high)]
    return math.log(more[1] / more[0]) / math.log((high - sizes[0]) / (low - sizes[0]))


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("--layers", default="1,4,16,64")
    parser.add_argument("--kind", choices=KINDS, default="gpt2")
    parser.add_argument("--compilers", default=",".join(sbs.COMPILERS))
    parser.add_argument("--train", action="store_true", help="the loss and its gradients, not inference")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/growth.md (growth_llama_train.md, …)"
    )
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        found = first_call(options.kind, int(options.layers), options.compilers, options.train)
        sbs.finish_child(options.out, json.loads(json.dumps(found)))
    table = sbs.Table(HEADER, "64", "torch.compile")
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    verdicts, fine = [], True
    for compiler in options.compilers.split(","):
        rows: dict[int, dict[str, float]] = {}
        sizes = list(map(int, options.layers.split(",")))
        for place, layers in enumerate([sizes[0], *sizes]):
            with tempfile.TemporaryDirectory(prefix="growth-", ignore_cleanup_errors=True) as cache:
                child = ["--layers", str(layers), "--kind", options.kind, "--compilers", compiler]
                child += ["--train"] if options.train else []
                got = sbs.run_child(__file__, child, Path(cache), timeout=1200)
            if place == 0:
                continue  # the first process reads files from the disk
            rows[layers] = got
            first = min(rows)
            each = (got["cpu"] - rows[first]["cpu"]) / (layers - first) if layers > first else math.nan
            shown = "-" if math.isnan(each) else f"{each:.3f}"
            share = f"{got['cpu'] / (1.5 * rows[first]['cpu'] + 0.005 * layers):.2f}"
            cells = [str(layers), compiler, f"{got['cpu']:.2f}", shown, share, f"{got['mb']:.0f}", f"{got['ms']:.2f}"]
            print(table.add(cells), flush=True)
        verdicts.append(f"{compiler}: {each:.3f} CPU seconds a layer, exponent {exponent(rows):.2f}")
        fine &= compiler != "dynajit" or not each > BAR
    verdict = "; ".join(verdicts) + f" (bar for dynajit: {BAR} and 1.0)"
    print(f"\n{verdict}")
    if options.save:
        name = "_".join(
            ["growth", *([] if options.kind == "gpt2" else [options.kind]), *(["train"] if options.train else [])]
        )
        how = f"python benchmarks/growth.py --layers {options.layers} --kind {options.kind}"
        how += f" --compilers {options.compilers}" + (" --train" if options.train else "") + " --save"
        print("written:", sbs.save(name, "Growth of the first compile with layers", f"{table}\n\n{verdict}", how))
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
