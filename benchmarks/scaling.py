"""How tracing time, memory and the cost of a call grow with the program.

    python benchmarks/scaling.py [--layers 1,2,4,...] [--parameters 8,64,...] [--save]

`layers`: a GPT-2 shape traced with `backend="eager"` in a warm process, where torch and both compilers have traced
another model before; seconds of CPU less those of an eager call, the compilers in turns. Memory: what tracemalloc finds
added after the first compile. `call`: microseconds of a compiled call whose backend computes nothing, which leaves
argument binding, guards and dispatch. `parameters`: the same for a module that reads the sizes of N parameters.
"""

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import side_by_side as sbs
import torch
from torch import Tensor, nn

HEADER = ("program", "dynajit s", "torch.compile s", "share", "dynajit KB", "torch KB", "dynajit us", "torch us")
# The bar for 12 layers: at most this share of torch.compile's time.
BAR = 0.5
SHAPE = {"vocab_size": 8000, "n_embd": 256, "n_head": 4, "n_positions": 512, "bos_token_id": 1, "eos_token_id": 1}


class Reads(nn.Module):
    """Looks at the sizes of its parameters, and adds once."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.items = nn.ParameterList([nn.Parameter(torch.zeros(2 + index % 3)) for index in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        total = 0
        for item in self.items:
            total += item.shape[0]
        return x + total


def gpt2(layers: int) -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, **SHAPE)).eval(), {"input_ids": torch.randint(3, 8000, (1, 16))}


def reset(who: str) -> None:
    if who == "dynajit":
        import dynajit

        dynajit.reset()
    else:
        torch._dynamo.reset()


def nothing(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that returns the same zeros at each call."""
    outputs = tuple(torch.zeros(1) for _ in graph.graph.output_node().args[0])
    return lambda *args: outputs


def first_call(who: str, model: nn.Module, kwargs: dict[str, Any]) -> float:
    """CPU seconds from compile to the first result."""
    reset(who)
    gc.collect()
    start = time.process_time()
    sbs.COMPILERS[who](model, "eager")(**kwargs)
    return time.process_time() - start


def memory(who: str, model: nn.Module, kwargs: dict[str, Any]) -> float:
    """Kilobytes of Python objects that a compiled model adds."""
    reset(who)
    gc.collect()
    tracemalloc.start()
    compiled = sbs.COMPILERS[who](model, "eager")
    compiled(**kwargs)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / 1024


def call_cost(who: str, model: nn.Module, kwargs: dict[str, Any]) -> float:
    """Microseconds of a call that computes nothing."""
    reset(who)
    import dynajit

    compiled = (dynajit.compile if who == "dynajit" else torch.compile)(model, backend=nothing)
    for _ in range(8):
        compiled(**kwargs)
    times = sbs.interleave({who: lambda: compiled(**kwargs)}, seconds=0.3, clock=sbs.clock_for(1))
    return statistics.median(times[who]) * 1e6


def row(name: str, model: nn.Module, kwargs: dict[str, Any], repeats: int) -> tuple[list[str], float]:
    """The table's cells, and dynajit's share of torch.compile's tracing time."""
    model(**kwargs)
    start = time.process_time()
    model(**kwargs)
    eager = time.process_time() - start
    seconds: dict[str, list[float]] = {who: [] for who in sbs.COMPILERS}
    for _ in range(repeats):
        for who in sbs.COMPILERS:
            seconds[who].append(first_call(who, model, kwargs) - eager)
    median = {who: statistics.median(found) for who, found in seconds.items()}
    share = median["dynajit"] / median["torch.compile"]
    cells = [name, *(f"{median[who]:.3f}" for who in sbs.COMPILERS), f"{share:.2f}"]
    cells += [f"{memory(who, model, kwargs):.0f}" for who in sbs.COMPILERS]
    cells += [f"{call_cost(who, model, kwargs):.2f}" for who in sbs.COMPILERS]
    return cells, share


def main() -> int:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--layers", default="1,2,4,8,12,16,32,64")
    parser.add_argument("--parameters", default="8,64,256,1024")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/scaling.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(sbs.machine(), "1 thread, no gradients", sep="; ")
    table = sbs.Table(HEADER, "GPT-2, 64 layers")
    print("\n".join(table.lines), flush=True)
    at_bar = None
    with torch.no_grad():
        warm, kwargs = gpt2(1)
        for who in sbs.COMPILERS:
            first_call(who, warm, kwargs)
        for layers in map(int, options.layers.split(",")):
            cells, share = row(f"GPT-2, {layers} layers", *gpt2(layers), options.repeats)
            at_bar = share if layers == 12 else at_bar
            print(table.add(cells), flush=True)
        for count in map(int, options.parameters.split(",")):
            cells, _ = row(f"{count} parameters", Reads(count), {"x": torch.randn(4)}, options.repeats)
            print(table.add(cells), flush=True)
    verdict = "" if at_bar is None else f"12 layers: {at_bar:.2f} of torch.compile's tracing time (bar: at most {BAR})"
    print(f"\n{verdict}")
    if options.save:
        what = "CPU seconds of tracing, kilobytes kept, microseconds of a call that computes nothing; one thread."
        text = f"{what}\n\n{table}\n\n{verdict}"
        print("written:", sbs.save("scaling", "Growth with the program", text, "python benchmarks/scaling.py --save"))
    return 0 if at_bar is None or at_bar <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
