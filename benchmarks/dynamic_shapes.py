"""Many sizes, few compiles: models called with 20 batch and sequence sizes.

    python benchmarks/dynamic_shapes.py [--calls N] [--save]

Counts compiles, compares each call with eager, and measures for three of the sizes, interleaved: compiled with symbolic
sizes, compiled for this size alone, eager. Targets: at most 2 compiles for each model, and within 10% of the time of
the one for this size alone. Returns 1 where one is missed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import side_by_side as sbs
import torch
from torch import nn

import dynajit
from dynajit.report import records

SIZES = [(2 + i % 7, 16 + 4 * (i * 5 % 13)) for i in range(20)]
MEASURED = SIZES[3:6]
HEADER = ("model", "compiles", "batch, length", "symbolic ms", "static ms", "eager ms", "symbolic / static", "met")
MAX_COMPILES, MAX_RATIO = 2, 1.1

Inputs = Callable[[int, int], torch.Tensor]


class Block(nn.Module):
    """Layer norm, GELU, two linear layers, a residual connection."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def hf_llama() -> tuple[nn.Module, Inputs]:
    """A small Llama; its inputs are tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval(), lambda batch, length: torch.randint(3, 900, (batch, length))


def tut_ln_gelu_mlp() -> tuple[nn.Module, Inputs]:
    """Layer norm, GELU and an MLP, twice."""
    return nn.Sequential(Block(), Block()).eval(), lambda batch, length: torch.randn(batch, length, 256)


MODELS = {"tut_ln_gelu_mlp": tut_ln_gelu_mlp, "hf_llama": hf_llama}


def milliseconds(fn: Callable[..., Any], x: torch.Tensor) -> float:
    """One call, by the process's CPU time: one thread does all the work."""
    clock = sbs.clock_for(1)
    begin = clock()
    fn(x)
    return (clock() - begin) * 1e3


def first(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]  # type: ignore[no-any-return]


def rows(name: str, calls: int) -> list[list[str]]:
    """A row for each measured size."""
    torch.manual_seed(0)
    model, make = MODELS[name]()
    compiled = dynajit.compile(model)
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        for sizes in SIZES:
            x = make(*sizes)
            torch.testing.assert_close(first(compiled(x)), first(model(x)), rtol=1e-3, atol=1e-4)
    found = []
    for sizes in MEASURED:
        x = make(*sizes)
        static = dynajit.compile(model, dynamic=False)
        for _ in range(3):
            static(x), compiled(x)
        times = [[milliseconds(fn, x) for fn in (compiled, static, model)] for _ in range(calls)]
        symbolic_ms, static_ms, eager_ms = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(row[0] / row[1] for row in times)
        met = "yes" if len(seen) <= MAX_COMPILES and ratio <= MAX_RATIO else "no"
        numbers = [f"{ms:.3f}" for ms in (symbolic_ms, static_ms, eager_ms)]
        found.append([name, str(len(seen)), f"{sizes[0]}, {sizes[1]}", *numbers, f"{ratio:.2f}", met])
    return found


def main() -> int:
    """Print the table."""
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--calls", type=int, default=60, help="of each of the three at each size")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/dynamic_shapes.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(sbs.machine(), "1 thread, no gradients", sep="; ")
    table = sbs.Table(HEADER, max(MODELS, key=len))
    print("\n".join(table.lines), flush=True)
    missed = False
    with torch.no_grad():
        for name in MODELS:
            for cells in rows(name, options.calls):
                missed = missed or cells[-1] == "no"
                print(table.add(cells), flush=True)
    if options.save:
        what = f"{len(SIZES)} sizes, one thread, no gradients; median milliseconds, calls in turns."
        how = "python benchmarks/dynamic_shapes.py --save"
        print("written:", sbs.save("dynamic_shapes", "Symbolic sizes", f"{what}\n\n{table}", how))
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
