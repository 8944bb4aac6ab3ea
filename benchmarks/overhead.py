"""What a call of a compiled function costs beyond its work, in microseconds.

    python benchmarks/overhead.py [--seconds S] [--save]

Eager, dynajit and torch.compile take turns in one process. `backend="eager"` leaves only the road to the graph (hook,
argument binding, guards and dispatch); the default backends are shown beside it. Overhead is the median over rounds of
the difference to eager within the round. Where a compiled module is faster than eager, because no Python of its layers
runs, `bare` shows the cost itself: the median of a call whose backend computes nothing, less that of calling a Python
function. Targets are the issue's.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

# Compilers read these when imported, which happens below.
_cache = tempfile.TemporaryDirectory(prefix="overhead-cache-", ignore_cleanup_errors=True)
os.environ["DYNAJIT_CACHE_DIR"] = os.path.join(_cache.name, "dynajit")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(_cache.name, "inductor")

import side_by_side as sbs  # noqa: E402
import torch  # noqa: E402
from scaling import Reads  # noqa: E402
from torch import Tensor, nn  # noqa: E402

HEADER = ("call", "backend", "eager us", "dynajit us", "torch.compile us", "dynajit over", "torch over", "share")
BARE_HEADER = ("call", "target us", "dynajit us", "torch.compile us", "met")
# Microseconds over eager with backend="eager"; "12-layer GPT" and "48 Linears": see `bare`.
TARGETS = {"x + 1": 0.5, "20 tensors": 1.5, "nested containers": 2.0, "48 Linears": 5.0, "12-layer GPT": 5.0}
NANOSECONDS_A_PARAMETER = 15.0


class Block(nn.Module):
    """Layer norm, linear, a Python number and a Python flag: what a guard on a module has to look at."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.gain, self.enabled = 0.5, True

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)) * self.gain if self.enabled else x


class Layer(nn.Module):
    """A transformer's layer: attention and an MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.mix(self.norm1(x)).chunk(3, dim=-1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """GPT-2's shape, small: what counts is how many modules and parameters there are."""

    def __init__(self, layers: int = 12, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(64, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(Layer(width, 2) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 64, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def add_one(x: Tensor) -> Tensor:
    return x + 1


def sum_all(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor) -> Tensor:
    return a + b + c + d + e + f + g + h


def sum_twenty(*tensors: Tensor) -> Tensor:
    return sum(tensors[1:], tensors[0])


def nested(batch: dict[str, Any]) -> Tensor:
    y = batch["x"] * batch["scale"]["a"][0]
    for entry in batch["more"]:
        y = y + entry["t"]
    return y


def settings(x: Tensor, scale: float = 0.5, kind: str = "mean", table: dict[str, float] | None = None) -> Tensor:
    y = x * scale + (table["shift"] if table else 0.0)
    return y.mean() if kind == "mean" else y.sum()


def cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """name -> (fn, args, kwargs), made anew for each compiler."""
    torch.manual_seed(0)
    x, batch = torch.randn(4), torch.randn(2, 4)
    return {
        "x + 1": (add_one, (x,), {}),
        "8 tensors": (sum_all, tuple(torch.randn(4) for _ in range(8)), {}),
        "20 tensors": (sum_twenty, tuple(torch.randn(4) for _ in range(20)), {}),
        "nested containers": (
            nested,
            ({"x": x, "scale": {"a": [0.5]}, "more": [{"t": torch.randn(4)} for _ in range(4)]},),
            {},
        ),
        "48 Linears": (nn.Sequential(*(nn.Linear(4, 4) for _ in range(48))).eval(), (batch,), {}),
        "12-layer GPT": (Gpt().eval(), (torch.randint(0, 64, (1, 8)),), {}),
        "Python arguments": (settings, (x,), {"kind": "sum", "table": {"shift": 1.5}}),
        "12 blocks": (nn.Sequential(*(Block(4) for _ in range(12))).eval(), (batch,), {}),
    }


def measure(name: str, backend: str | None, seconds: float) -> tuple[list[str], float | None]:
    """A row of the table, and dynajit's overhead over eager in seconds."""
    fns: dict[str, Callable[[], Any]] = {}
    failed = {}
    for who in ("eager", *sbs.COMPILERS):
        fn, args, kwargs = cases()[name]
        try:
            compiled = fn if who == "eager" else sbs.COMPILERS[who](fn, backend)
            for _ in range(3):
                compiled(*args, **kwargs)
        except Exception as error:  # whatever a compiler raises is shown in its column
            failed[who] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            continue
        fns[who] = (
            (lambda f=compiled, x=args[0]: f(x))
            if len(args) == 1 and not kwargs
            else (lambda f=compiled, a=args, k=kwargs: f(*a, **k))
        )
    times = sbs.interleave(fns, seconds=seconds, clock=sbs.clock_for(1))
    over = {who: sbs.paired_difference(times[who], times["eager"]) for who in sbs.COMPILERS if who in times}
    # Where the compiled call is faster than eager there is no overhead to compare.
    share = over["dynajit"] / over["torch.compile"] if len(over) == 2 and min(over.values()) > 0 else None
    cells = [
        f"{statistics.median(times[who]) * 1e6:.2f}" if who in times else "failed" for who in ("eager", *sbs.COMPILERS)
    ]
    cells += [f"{over[who] * 1e6:+.2f}" if who in over else "-" for who in sbs.COMPILERS]
    for who, text in failed.items():
        print(f"{name}, {backend or 'default'}: {who}: {text}", flush=True)
    return [name, backend or "default", *cells, "-" if share is None else f"{share:.2f}"], over.get("dynajit")


def nothing(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose graphs return the same zeros at each call."""
    outputs = tuple(torch.zeros(1) for _ in graph.graph.output_node().args[0])
    return lambda *args: outputs


def bare(fn: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> dict[str, float]:
    """Microseconds that each compiler's call takes if its graph computes nothing, beyond a call of a function."""
    import dynajit

    fns: dict[str, Callable[[], Any]] = {"empty": lambda f=(lambda *args: None): f(*args)}
    for who, make in (("dynajit", dynajit.compile), ("torch.compile", torch.compile)):
        compiled = make(fn, backend=nothing)
        for _ in range(16):
            compiled(*args)
        fns[who] = lambda f=compiled: f(*args)
    times = sbs.interleave(fns, seconds=seconds, clock=sbs.clock_for(1))
    return {who: sbs.paired_difference(times[who], times["empty"]) * 1e6 for who in sbs.COMPILERS}


def bare_table(seconds: float) -> sbs.Table:
    table = sbs.Table(BARE_HEADER, "growth per parameter, ns")

    def add(name: str, target: float, found: dict[str, float]) -> None:
        met = "yes" if found["dynajit"] < target else "no"
        cells = [name, f"{target:.1f}", *(f"{found[who]:.2f}" for who in sbs.COMPILERS), met]
        print(table.add(cells), flush=True)

    print("\n" + "\n".join(table.lines), flush=True)
    for name in ("x + 1", "20 tensors", "48 Linears", "12-layer GPT"):
        fn, args, _ = cases()[name]
        add(name, TARGETS[name], bare(fn, args, seconds))
    few, many = (bare(Reads(count), (torch.randn(4),), seconds) for count in (64, 1024))
    growth = {who: (many[who] - few[who]) * 1e3 / (1024 - 64) for who in few}
    add("growth per parameter, ns", NANOSECONDS_A_PARAMETER, growth)
    return table


def main() -> int:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of interleaved timing for each row")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/overhead.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(sbs.machine(), "1 thread, no gradients", sep="; ")
    table = sbs.Table(HEADER, max(cases(), key=len))
    print("\n".join(table.lines), flush=True)
    over: dict[tuple[str, str | None], float | None] = {}
    with torch.no_grad():
        for name in cases():
            for backend in ("eager", None):
                cells, over[name, backend] = measure(name, backend, options.seconds)
                print(table.add(cells), flush=True)
        second = bare_table(options.seconds)
    missed = [name for name, us in TARGETS.items() if (found := over[name, "eager"]) is None or found * 1e6 >= us]
    missed += [line.split("|")[1].strip() for line in second.lines if line.rstrip().endswith("no |")]
    if (plain := over["x + 1", None]) is None or plain > 0:
        missed.append("x + 1 with the default backend, no slower than eager")
    verdict = f"Targets missed: {', '.join(missed)}." if missed else "All targets are met."
    print(f"\n{verdict}")
    if options.save:
        what = "Median microseconds a call, one thread, no gradients; `share`: dynajit's overhead over torch.compile's."
        why = "A call whose backend computes nothing, less the call of a Python function: binding, guards, dispatch."
        text = f"{what}\n\n{table}\n\n{why}\n\n{second}\n\n{verdict}"
        print("written:", sbs.save("overhead", "Overhead of a call", text, "python benchmarks/overhead.py --save"))
    return 1 if missed else 0


if __name__ == "__main__":
    status = main()
    _cache.cleanup()
    raise SystemExit(status)
