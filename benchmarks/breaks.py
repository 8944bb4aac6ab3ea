"""What is compiled of a function with a graph break in it, against torch.compile.

    python benchmarks/breaks.py [--save]

One function for each place that a break can be in; the break is a `print`. The backend counts graphs, operations and
calls of graphs, and runs them eagerly. Every function has operations before, inside and behind the place; `of` says
how many there are. A second part runs a loop of 1,000 iterations with a break in its body; a third compiles 180
operations with more and more breaks, whose time should follow the operations and not their product with the breaks.
`--save` adds every program of results/features.md in which the two compilers' counts differ, with what each says.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import side_by_side as sbs
import torch

SINK = open(os.devnull, "w")  # noqa: SIM115 - open for as long as the process runs
ROUNDS = 3
BREAKS = (0, 1, 2, 4, 8, 16)


def straight(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    print(file=SINK)
    return x.cos()


def tensor_if(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    x = x * 2 if x.sum() > -1e9 else x * 3
    return x.cos()


def callee(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    print(file=SINK)
    return x + 1


def inlined_call(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    x = callee(x)
    return x.cos()


def for_loop(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    for _ in range(4):
        x = x * 2
        print(file=SINK)
        x = x + 1
    return x.cos()


def while_loop(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    n = 0
    while n < 4:
        x = x * 2
        print(file=SINK)
        x = x + 1
        n += 1
    return x.cos()


def no_grad(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    with torch.no_grad():
        x = x * 2
        print(file=SINK)
        x = x + 1
    return x.cos()


class Scope:
    def __enter__(self) -> None:
        self.entered = True

    def __exit__(self, *error: object) -> None:
        self.entered = False


SCOPE = Scope()


def user_with(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    with SCOPE:
        x = x * 2
        print(file=SINK)
        x = x + 1
    return x.cos()


def try_except(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    try:
        x = x * 2
        print(file=SINK)
        x = x + 1
    except ValueError:
        x = x - 1
    return x.cos()


def comprehension(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    parts = [callee(x) for _ in range(4)]
    return parts[-1].cos()


def steps(x: torch.Tensor) -> Iterator[torch.Tensor]:
    x = x * 2
    print(file=SINK)
    yield x + 1


def generator(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    for part in steps(x):
        x = part
    return x.cos()


def thousand(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    for _ in range(1000):
        x = x * 0.999
        print(file=SINK)
        x = x + 0.001
    return x.cos()


# what the table calls it, the function, how many operations stand in it, iterations of the part with the break
ROWS: list[tuple[str, Callable[..., Any], int, int]] = [
    ("straight line", straight, 2, 1),
    ("tensor-valued if", tensor_if, 5, 1),  # a sum, a comparison and one branch of two
    ("inlined call", inlined_call, 4, 1),
    ("for", for_loop, 4, 4),
    ("while", while_loop, 4, 4),
    ("with no_grad", no_grad, 4, 1),
    ("with of a user's class", user_with, 4, 1),
    ("try", try_except, 4, 1),
    ("comprehension", comprehension, 4, 4),
    ("generator", generator, 4, 1),
    ("for, 1,000 iterations", thousand, 4, 1000),
]
# operations on torch's own state, which some graphs hold
_STATE = ("_set_grad_enabled",)


class Counting:
    """A backend that counts, and runs graphs eagerly."""

    def __init__(self) -> None:
        self.graphs = self.operations = self.calls = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        nodes = [node for node in module.graph.nodes if node.op.startswith("call")]
        self.operations += sum(getattr(node.target, "__name__", "") not in _STATE for node in nodes)
        forward = module.forward

        def run(*args: Any) -> Any:
            self.calls += 1
            return forward(*args)

        return run


def reset(compiler: str) -> None:
    import dynajit

    dynajit.reset() if compiler == "dynajit" else torch.compiler.reset()


def compiled(compiler: str, fn: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = sbs.COMPILERS[compiler](fn, backend)
    return made


def count(compiler: str, fn: Callable[..., Any], iterations: int) -> tuple[Counting, float]:
    """What the first call compiles, and how many graphs a later call runs an iteration."""
    reset(compiler)
    counting, x = Counting(), torch.randn(8)
    expected, run = fn(x), compiled(compiler, fn, counting)
    torch.testing.assert_close(run(x), expected)
    counting.calls = 0
    torch.testing.assert_close(run(x), expected)
    return counting, counting.calls / iterations


def loop_overhead(compiler: str) -> float:
    """Microseconds an iteration of the loop over eager."""
    reset(compiler)
    x, run = torch.randn(8), compiled(compiler, thousand, "eager")
    run(x)
    times = sbs.interleave({"eager": lambda: thousand(x), "compiled": lambda: run(x)})
    return sbs.paired_difference(times["compiled"], times["eager"]) * 1e6 / 1000


def trace_seconds(compiler: str, breaks: int) -> float:
    """CPU seconds to compile 180 operations with so many breaks between them; the best of some rounds."""
    every = 180 // (breaks + 1)
    lines = ["def program(x):"]
    for number in range(1, 181):
        lines.append("    x = torch.sin(x)")
        if breaks and number % every == 0 and number // every <= breaks:
            lines.append("    print(file=SINK)")
    source = "\n".join([*lines, "    return x"])
    best = float("inf")
    for number in range(ROUNDS + 1):
        reset(compiler)
        space = {"torch": torch, "SINK": SINK}
        exec(compile(source, f"<breaks {number}>", "exec"), space)
        run = compiled(compiler, space["program"], Counting())
        start = time.process_time()
        run(torch.randn(8))
        if number:
            best = min(best, time.process_time() - start)
    return best


KINDS: dict[str, Callable[[int, int, int, int], bool]] = {
    "Fewer breaks than torch.compile": lambda ours, theirs, graphs, their_graphs: ours < theirs,
    "More breaks": lambda ours, theirs, graphs, their_graphs: ours > theirs,
    "As many breaks, fewer graphs": lambda ours, theirs, graphs, their_graphs: ours == theirs and graphs < their_graphs,
    "As many breaks, more graphs": lambda ours, theirs, graphs, their_graphs: ours == theirs and graphs > their_graphs,
}


def differing() -> Iterator[str]:
    """The programs of results/features.md with other counts of breaks, or of graphs, than torch.compile's."""
    page = (sbs.RESULTS / "features.md").read_text()
    header, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")
    ]
    places = [header.index(f"{name} {what}") for what in ("breaks", "graphs") for name in sbs.COMPILERS]
    found = {kind: [row for row in rows if fits(*(int(row[at]) for at in places))] for kind, fits in KINDS.items()}
    same = len(rows) - sum(map(len, found.values()))
    yield f"Of {len(rows)} programs of features.md, {same} have the same counts."
    shown = [1, *sorted(places), *range(header.index("why it breaks"), len(header))]
    for kind, chosen in found.items():
        table = sbs.Table(
            [header[at] for at in shown], *(max((row[at] for row in [header, *chosen]), key=len) for at in shown)
        )
        for row in chosen:
            table.add([row[at] for at in shown])
        yield from ["", f"## {kind}: {len(chosen)}", "", str(table)]


def main() -> int:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/breaks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(sbs.machine())
    who = list(sbs.COMPILERS)
    header = ("break in", "of", *(f"{name} {what}" for name in who for what in ("graphs", "operations", "calls")))
    table = sbs.Table(header, max((row[0] for row in ROWS), key=len), "of")
    print("\n".join(table.lines), flush=True)
    missed = []
    for name, fn, operations, iterations in ROWS:
        cells = [name, str(operations)]
        for compiler in who:
            counting, calls = count(compiler, fn, iterations)
            cells += [str(counting.graphs), str(counting.operations), f"{calls:.2f}"]
            if compiler == "dynajit" and counting.operations < operations:
                missed.append(name)
            if fn is thousand and compiler == "dynajit" and counting.graphs > 4:
                missed.append(f"{name}: more than 4 graphs")
        print(table.add(cells), flush=True)
    text = ["", *(f"{name}: {loop_overhead(name):+.2f} us an iteration of the long loop over eager" for name in who)]
    times = {name: [trace_seconds(name, breaks) for breaks in BREAKS] for name in who}
    text += ["", "180 operations, CPU milliseconds to compile:"]
    for name, found in times.items():
        shown = ", ".join(f"{breaks} breaks {s * 1e3:.0f}" for breaks, s in zip(BREAKS, found, strict=True))
        text.append(f"{name}: {shown} ({found[-1] / found[0]:.1f} times)")
    verdict = "Everything is compiled in every row." if not missed else f"Missed: {', '.join(missed)}"
    print("\n".join([*text, "", verdict]))
    if options.save:
        about = "Graphs, operations in them, and graph calls an iteration of the part with the break."
        listed = [*("- " + line if line else "" for line in text), "", verdict, "", *differing()]
        body = "\n".join([about, "", str(table), *listed])
        print("written:", sbs.save("breaks", "Graph breaks", body, "python benchmarks/breaks.py --save"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
