"""What a call of a compiled function costs beyond its work, in microseconds.

    python benchmarks/overhead.py [--seconds S] [--save]

Eager, dynajit and torch.compile take turns in one process. `backend="eager"` leaves only the road to the graph (hook,
argument binding, guards, dispatch); the default backends are shown beside it. Overhead is the median over rounds of the
difference to eager within the round.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

# Compilers read these when imported, which happens below.
_cache = tempfile.TemporaryDirectory(prefix="overhead-cache-", ignore_cleanup_errors=True)
os.environ["DYNAJIT_CACHE_DIR"] = os.path.join(_cache.name, "dynajit")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(_cache.name, "inductor")

import side_by_side as sbs  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

HEADER = ("call", "backend", "eager us", "dynajit us", "torch.compile us", "dynajit over", "torch over", "share")
# The bar for `x + 1` with backend="eager": at most this share of torch.compile's overhead.
BAR = 0.25


class Block(nn.Module):
    """Layer norm, linear, a Python number and a Python flag: what a guard on a module has to look at."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.gain, self.enabled = 0.5, True

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)) * self.gain if self.enabled else x


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
        "Python arguments": (settings, (x,), {"kind": "sum", "table": {"shift": 1.5}}),
        "12 blocks": (nn.Sequential(*(Block(4) for _ in range(12))).eval(), (batch,), {}),
    }


def measure(name: str, backend: str | None, seconds: float) -> tuple[list[str], float | None]:
    """A row of the table, and dynajit's overhead over torch.compile's."""
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
    return [name, backend or "default", *cells, "-" if share is None else f"{share:.2f}"], share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of interleaved timing for each row")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/overhead.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(sbs.machine(), "1 thread, no gradients", sep="; ")
    table = sbs.Table(HEADER, max(cases(), key=len))
    print("\n".join(table.lines), flush=True)
    shares: dict[tuple[str, str | None], float | None] = {}
    with torch.no_grad():
        for name in cases():
            for backend in ("eager", None):
                cells, shares[name, backend] = measure(name, backend, options.seconds)
                print(table.add(cells), flush=True)
    first = shares["x + 1", "eager"]
    verdict = (
        "dynajit or torch.compile failed on x + 1"
        if first is None
        else (
            f"x + 1 with backend=\"eager\": dynajit's overhead is {first:.2f} of torch.compile's (bar: at most {BAR})"
        )
    )
    print(f"\n{verdict}")
    if options.save:
        what = "Median microseconds a call, one thread, no gradients; `share`: dynajit's overhead over torch.compile's."
        text = f"{what}\n\n{table}\n\n{verdict}"
        print("written:", sbs.save("overhead", "Overhead of a call", text, "python benchmarks/overhead.py --save"))
    return 0 if first is not None and first <= BAR else 1


if __name__ == "__main__":
    status = main()
    _cache.cleanup()
    raise SystemExit(status)
