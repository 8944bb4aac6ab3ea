"""Programs of torch.distributed over gloo processes, or NCCL's: eager, dynajit and torch.compile.

    python benchmarks/distributed.py [--save] [--only WORDS] [--overlap] [--compilers NAMES] [--gpus N]

Each program of `distributed_programs.py` trains, or computes, for 20 steps in two processes, some in four, eagerly and
with each compiler. A row says how far losses, gradients and parameters are from eager's, how many graphs, breaks and
recompiles there were, what was compiled after the second step, and the milliseconds of a step: the process's CPU time,
which other programs on the machine do not stretch (the median of the last 12, the slower rank's). The graphs of
torch.compile are those that its backend got, of which its DDP optimizer makes several of one.

With `--gpus` each of so many processes has a GPU, and milliseconds are the clock's, until the GPU is done.

The last table (`--overlap`: that one alone) is of DistributedDataParallel with 12 blocks, a step of each compiler in
turn, in milliseconds of the clock and of the process. Its overlap is, in traces of the profiler's, the share of the
time in which gradients are on their way in which a node of autograd's computes: it falls where backward is faster, and
where it is fewer nodes. What is exposed are the milliseconds in which gradients are on their way after the last of
these nodes. Buckets that are sent early are sent before the last of these nodes ends, in the worst trace.
"""

import datetime
import json
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import side_by_side as sbs
import torch
import torch.distributed as dist
from distributed_programs import OF_FOUR, PROGRAMS, backward, data_parallel, home
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

import dynajit
from dynajit.report import records
from dynajit.report.explain import ExplainReport

STEPS, TIMED, TRACED = 20, 12, 5
SECONDS = datetime.timedelta(seconds=60)  # of a collective
COMPILERS = ("eager", "dynajit", "torch.compile")


class Counter:
    """What a compiler made so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[records.CompileRecord] = []
        self.backend: Any = None
        if name == "torch.compile":
            from torch._dynamo.testing import CompileCounterWithBackend

            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            self.backend = CompileCounterWithBackend("inductor")

    def compile(self, target: Any) -> Any:
        if self.name == "dynajit":
            return dynajit.compile(target)
        return torch.compile(target, backend=self.backend) if self.backend is not None else target

    def made(self) -> int:
        return self.backend.frame_count if self.backend is not None else sum(not each.skipped for each in self.seen)

    def counts(self) -> tuple[int, int]:
        """Graphs and breaks."""
        if self.backend is not None:
            return self.backend.frame_count, sum(torch._dynamo.utils.counters["graph_break"].values())
        report = ExplainReport(self.seen)
        return report.graph_count, report.graph_break_count


def one(program: str, compiler: str) -> dict[str, Any]:
    """One program with one compiler: what it computed, counts and times."""
    make, step = PROGRAMS[program]
    counter = Counter(compiler)
    times, losses, early = [], [], 0
    with records.listen(counter.seen.append):
        module, call = make(counter.compile)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, foreach=False) if list(module.parameters()) else None
        for number in range(STEPS):
            dist.barrier()
            begin = now()
            losses.append(step(call, number).item())
            times.append(now() - begin)
            gradients = [_local(p.grad) for p in module.parameters()]
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            early = counter.made() if number == 1 else early
    results = [torch.tensor(losses), *gradients, *[_local(p) for p in module.parameters()]]
    late = counter.made() - early
    return {"results": results, "counts": counter.counts(), "late": late, "times": times[-TIMED:]}


def now() -> float:
    """Seconds of the process, or of the clock where GPUs compute."""
    if home().type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _local(tensor: Any) -> torch.Tensor:
    if tensor is None:
        return torch.zeros(())
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().clone()


@contextmanager
def group(rank: int, count: int, store: str, backend: str = "gloo") -> Iterator[None]:
    """A group of the processes for what is inside."""
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=count, timeout=SECONDS)
    try:
        yield
    finally:
        dist.destroy_process_group()


def work(rank: int, folder: str, names: list[str], count: int, compilers: list[str], gpus: bool) -> None:
    """Run programs; each one's row is a file as soon as it is there."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if gpus:
        torch.cuda.set_device(rank)
    for program in names:
        rows: dict[str, Any] = {}
        expected: list[torch.Tensor] = []
        for compiler in compilers:
            try:
                store = f"{folder}/{names.index(program)}{compiler}"
                with group(rank, count, store, "nccl" if gpus else "gloo"):
                    found = one(program, compiler)
            except Exception as error:  # a row of the table: the other rank raises, too, or the group's time-out comes
                rows[compiler] = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:80]}"}
                continue
            results = found.pop("results")
            expected = expected or results
            found["far"] = max(
                float((a - b).abs().max() / (a.abs().max() + 1e-12))
                for a, b in zip(expected, results, strict=True)
                if a.numel()  # a rank may have nothing of a small parameter
            )
            rows[compiler] = found
        torch.save(rows, f"{folder}/{rank}.new")
        Path(f"{folder}/{rank}.new").rename(f"{folder}/{names.index(program)}.{rank}")


def spans(events: list[Any]) -> list[tuple[float, float]]:
    """Where at least one of the events is, as begins and ends in order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted((each["ts"], each["ts"] + each["dur"]) for each in events):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


class Overlap(NamedTuple):
    """What a trace of one backward pass shows.

    share: of the time in which gradients are on their way, that in which a node of autograd's computes.
    exposed: the milliseconds in which they still are after the last of these nodes.
    early, buckets: the buckets that are sent before the last of these nodes ends, which no other program on the machine
        changes; and all of them.
    """

    share: float
    exposed: float
    early: int
    buckets: int


def on_their_way(trace: Path) -> Overlap:
    events = [each for each in json.loads(trace.read_text())["traceEvents"] if each.get("ph") == "X"]
    sent = spans([each for each in events if each["name"] == "gloo:all_reduce"])
    nodes = spans([each for each in events if re.fullmatch(r"\w+Backward\d*", each["name"])])
    calls = [each["ts"] for each in events if each["name"] == "c10d::allreduce_"]
    total = sum(end - begin for begin, end in sent)
    share = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in sent for b in nodes) / total
    exposed = sum(max(0.0, end - max(begin, nodes[-1][1])) for begin, end in sent) / 1e3
    return Overlap(share, exposed, sum(ts < nodes[-1][1] for ts in calls), len(calls))


def twelve_blocks(rank: int, folder: str, compilers: list[str]) -> None:
    """The last table's program with each compiler, a step of each in turn, so that what else runs disturbs all alike:
    the milliseconds of steps by the clock and of the process, and what traces show."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with group(rank, 2, f"{folder}/store"):
        made = {name: data_parallel(Counter(name).compile, blocks=12) for name in compilers}
        optimizers = {name: torch.optim.SGD(module.parameters(), lr=0.05) for name, (module, _) in made.items()}
        for number in range(3 * STEPS + TRACED):
            for name, (_, call) in made.items():
                times = found.setdefault(name, {"clock": [], "process": [], "traces": []})
                traced = number >= 3 * STEPS
                dist.barrier()
                with torch.profiler.profile(activities=[_CPU]) if traced else nullcontext() as profile:
                    begin, begin_process = time.perf_counter(), time.process_time()
                    backward(call, number)
                    if STEPS <= number < 3 * STEPS:
                        times["clock"].append((time.perf_counter() - begin) * 1e3)
                        times["process"].append((time.process_time() - begin_process) * 1e3)
                if profile is not None:
                    trace = Path(folder) / f"trace{rank}.json"
                    profile.export_chrome_trace(str(trace))
                    times["traces"].append(on_their_way(trace))
                optimizers[name].step()
                optimizers[name].zero_grad()
    torch.save(found, f"{folder}/{rank}.pt")


_CPU = torch.profiler.ProfilerActivity.CPU


def cells(rows: list[dict[str, Any]], compiler: str) -> list[str]:
    """Difference, graphs, breaks, compiled later, milliseconds."""
    if not any(compiler in row for row in rows):
        return [""] if compiler == "eager" else [""] * 5
    found = [row.get(compiler, {"error": "not reached"}) for row in rows]
    failed = [each["error"] for each in found if "error" in each]
    if failed:
        print(f"  {compiler}: {failed[0]}")
        return ["raises"] if compiler == "eager" else ["raises", "", "", "", ""]
    milliseconds = max(statistics.median(each["times"]) for each in found) * 1e3
    if compiler == "eager":
        return [f"{milliseconds:.2f}"]
    far = max(each["far"] for each in found)
    graphs, breaks = (max(each["counts"][at] for each in found) for at in (0, 1))
    return [f"{far:.0e}", str(graphs), str(breaks), str(max(each["late"] for each in found)), f"{milliseconds:.2f}"]


def main() -> None:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/distributed.md")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--overlap", action="store_true", help="the second table alone")
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=COMPILERS)
    parser.add_argument("--gpus", type=int, default=0, help="so many NCCL processes with a GPU each: that table alone")
    options = parser.parse_args()
    print(sbs.machine())
    if options.gpus:
        table = programs([name for name in PROGRAMS if options.only in name], options.gpus, options.compilers, True)
        if options.save:
            body = f"{options.gpus} NCCL processes with a GPU each, 20 steps; `ms` by the clock.\n\n{table}"
            sbs.save(
                "distributed_nccl", "torch.distributed over NCCL", body, "python benchmarks/distributed.py --gpus 2"
            )
        return
    if not options.overlap:
        two = programs([name for name in PROGRAMS if options.only in name], 2, options.compilers)
        four = programs([name for name in OF_FOUR if options.only in name], 4, options.compilers)
    last = overlaps(options.compilers)
    if options.save and not options.overlap:
        how = "python benchmarks/distributed.py --save"
        body = (
            "Gloo processes with a thread each, 20 steps. `difference`: the largest of losses, last gradients and "
            "parameters, relative to each tensor's largest number. `late`: compiled after the second step. `ms`: CPU "
            f"time of the process.\n\nTwo processes:\n\n{two}\n\nFour processes:\n\n{four}\n\n"
            "DistributedDataParallel over two processes, 12 blocks, buckets of 1 MB, a step of each compiler in turn; "
            "medians. `ms`: by the clock, `CPU ms`: of the process, the slower rank's. `overlap`: the share of the "
            "time in which gradients are on their way in which a node of autograd's computes. `exposed ms`: in which "
            "they still are after the last of these nodes. `buckets sent early`: before that one ends, in the "
            f"worst trace.\n\n{last}"
        )
        print("written:", sbs.save("distributed", "torch.distributed", body, how))


def overlaps(compilers: list[str]) -> sbs.Table:
    table = sbs.Table(["compiler", "ms", "CPU ms", "overlap", "exposed ms", "buckets sent early"], "torch.compile")
    print("\n".join(table.lines))
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(twelve_blocks, (folder, list(compilers)), nprocs=2)
        ranks = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2)]
    for compiler in compilers:
        rows = [rank[compiler] for rank in ranks]
        slowest = [max(statistics.median(row[kind]) for row in rows) for kind in ("clock", "process")]
        traces = [each for row in rows for each in row["traces"]]
        share, exposed = (statistics.median(getattr(each, kind) for each in traces) for kind in ("share", "exposed"))
        early = f"{min(each.early for each in traces)} of {traces[0].buckets}"
        found = [*(f"{ms:.2f}" for ms in slowest), f"{share:.0%}", f"{exposed:.2f}", early]
        print(table.add([compiler, *found]), flush=True)
    return table


def programs(names: list[str], count: int, compilers: list[str], gpus: bool = False) -> sbs.Table:
    """The table of these programs over so many processes, which are started once, and again where one dies."""
    what = ("difference", "graphs", "breaks", "late", "ms")
    header = ["program", "eager ms", *(f"{who} {each}" for who in COMPILERS[1:] for each in what)]
    table = sbs.Table(header, max(PROGRAMS, key=len))
    print("\n".join(table.lines))
    while names:
        with tempfile.TemporaryDirectory() as folder:
            started = torch.multiprocessing.start_processes(
                work, (folder, names, count, compilers, gpus), nprocs=count, join=False, start_method="spawn"
            )
            for place, program in enumerate(names):
                rows = arrived([Path(folder) / f"{place}.{rank}" for rank in range(count)], started)
                if rows is None:
                    break
                parts = [cells(rows, who) for who in COMPILERS]
                print(table.add([program, *parts[0], *parts[1], *parts[2]]), flush=True)
            names = names[place + 1 :]
            for process in started.processes:
                process.kill()
                process.join()
    return table


def arrived(paths: list[Path], started: Any) -> list[Any] | None:
    """What the processes saved, once they all have; None where one of them ended before."""
    while not all(path.exists() for path in paths):
        try:
            if started.join(timeout=1) and not all(path.exists() for path in paths):
                return None
        except (ProcessExitedException, ProcessRaisedException) as error:
            print(f"  the processes ended: {error}")
            return None
    return [torch.load(path) for path in paths]


if __name__ == "__main__":
    main()
