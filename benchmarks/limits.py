"""What frames cost that run eagerly because they were compiled too often: eager, dynajit and torch.compile.

    python benchmarks/limits.py [--frames 1,10,100] [--save]

Each program calls 1, 10 or 100 functions of its own, of one kind, and is called with tensors of ever new sizes with
`dynamic=False`, until it and all that it calls have reached the limit of variants. Then calls with one more size are
measured, in rounds of all compilers. `over` is what a frame costs more than eager's.
"""

import functools
import os
import statistics
import types
import warnings
from collections.abc import Callable, Iterator

import side_by_side as sbs
import torch

import dynajit

SINK = open(os.devnull, "w")  # noqa: SIM115 - open for as long as the process runs
SIZES = 24  # more than the limit of either compiler, for a frame and for what it calls then
BAR = 1.0  # microseconds a frame
HEADER = ("program", "frames", "compiler", "us", "over, us a frame", "spread")
Program = Callable[[torch.Tensor], torch.Tensor]


def straight(x: torch.Tensor) -> torch.Tensor:
    return x.t()


def broken(x: torch.Tensor) -> torch.Tensor:
    x = x.t()
    print(end="", file=SINK)
    return x.t()


def loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x.t()
        print(end="", file=SINK)
    return x


def generated(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x.t()
    yield x


def copies(function: Program, count: int) -> list[Program]:
    """Functions that do the same, each with a code object of its own."""
    code, names = function.__code__, function.__globals__
    return [types.FunctionType(code.replace(co_name=f"{code.co_name}_{i}"), names) for i in range(count)]


def calls(functions: list[Program]) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        for function in functions:
            x = function(x)
        return x

    return program


def callbacks(functions: list[Program]) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        return functools.reduce(lambda value, function: function(value), functions, x)

    return program


def generators(functions: list[Program]) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        for function in functions:
            for y in function(x):
                x = y
        return x

    return program


def modules(functions: list[Program]) -> Program:
    def method(function: Program) -> torch.nn.Module:
        forward = staticmethod(function)
        return type("Layer", (torch.nn.Module,), {"forward": forward})()  # type: ignore[no-any-return]

    return calls([method(function) for function in functions])


# what makes the program of functions, the functions, and frames a function
KINDS: dict[str, tuple[Callable[[list[Program]], Program], Callable[..., object], int]] = {
    "functions": (calls, straight, 1),
    "functions with a break": (calls, broken, 1),
    "loops with a break": (calls, loop, 1),
    "callbacks": (callbacks, straight, 2),
    "generators": (generators, generated, 1),
    "modules": (modules, straight, 3),
}


def measured(kind: str, count: int, seconds: float) -> dict[str, list[float]]:
    """Seconds a call of each compiler, by rounds; equal places are of one round."""
    make, function, _ = KINDS[kind]
    torch.compiler.reset()
    dynajit.reset()

    def new() -> Program:
        return make(copies(function, count))  # type: ignore[arg-type]

    programs = {
        "eager": new(),
        "dynajit": dynajit.compile(new(), backend="eager", dynamic=False),
        "torch.compile": torch.compile(new(), backend="eager", dynamic=False),
    }
    for size in range(2, 2 + SIZES):
        x = torch.ones(size, 2)
        for program in programs.values():
            program(x)
    x = torch.ones(2 + SIZES, 2)
    frames = dynajit.counters()["frames"]
    times = sbs.interleave({name: functools.partial(program, x) for name, program in programs.items()}, seconds=seconds)
    assert dynajit.counters()["frames"] == frames, "a frame was captured beyond the limit"
    return times


def main() -> int:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--frames", default="1,10,100")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=3.0, help="for each program")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/limits.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch._logging.set_logs(dynamo=50, recompiles=False)
    table = sbs.Table(HEADER, max(KINDS, key=len), "100", "torch.compile")
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    worst = -1.0
    for kind in options.kinds.split(","):
        for count in map(int, options.frames.split(",")):
            times = measured(kind, count, options.seconds)
            frames = 1 + count * KINDS[kind][2]
            for name, rounds in times.items():
                over = sbs.paired_difference(rounds, times["eager"]) / frames * 1e6
                if name == "dynajit":
                    worst = max(worst, over)
                shown = "-" if name == "eager" else f"{over:.2f}"
                cells = [kind, str(frames), name, f"{statistics.median(rounds) * 1e6:.1f}", shown]
                print(table.add([*cells, f"{sbs.spread(rounds):.2f}"]), flush=True)
    verdict = f"dynajit: at most {worst:.2f} us a frame over eager (bar: {BAR})"
    print(f"\n{verdict}")
    if options.save:
        how = "python benchmarks/limits.py --save"
        print("written:", sbs.save("limits", "Frames past the limit of variants", f"{table}\n\n{verdict}", how))
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
