"""A training step on many GPUs, predicted: kernels at measured speeds, collectives by an alpha-beta model.

    python benchmarks/scale_out.py [--save] [--skip-check] [--rounds N] [--tokens N] [--local N]
                                   [--inside ALPHA BETA] [--between ALPHA BETA] [--taken SHARE]

A step is two queues (`Step`): what a process computes, and its collectives, each of which waits for what it sends, and
is waited for by what reads it. A collective of n bytes a process takes alpha seconds for each hop and n / beta seconds
for what passes a process; while one is on its way, computing is slower by the share of the processor that it takes.

Measured are the kernels of one GPU (`benchmarks/results/kernels_gpu.md`), and, of a compiled model's plan, the bytes
that its kernels move and the order in which backward hands gradients out. The links between GPUs are arguments: nothing
of them was measured. What the model is worth is checked where it can be: kernels against whole models on one GPU
(`benchmarks/results/models_gpu.md`), the queues against DDP and FSDP2 of gloo processes here, whose link is measured.
"""

import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import side_by_side as sbs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from distributed import group
from distributed_programs import WIDTH, data_parallel, model, sharded
from models_gpu import rotate
from torch import nn

import dynajit
from dynajit.report import records

MB = 2**20
TICK = 1e-12  # seconds that rounding may leave

# ------------------------------------------------------------------------------------------------ queues


class Step(NamedTuple):
    """computes: seconds, and how many collectives must be done before; sends: the other way round. Each in order."""

    computes: list[tuple[float, int]]
    sends: list[tuple[float, int]]

    def alone(self) -> float:
        """Seconds of what is computed."""
        return sum(seconds for seconds, _ in self.computes)

    def apart(self) -> float:
        """Seconds where nothing overlaps."""
        return self.alone() + sum(seconds for seconds, _ in self.sends)

    def overlapped(self, taken: float) -> float:
        """Seconds where what may overlap does. `taken`: the share of the processor that a collective takes."""
        now, computed, sent = 0.0, 0, 0
        computes, sends = [seconds for seconds, _ in self.computes], [seconds for seconds, _ in self.sends]
        while computed < len(computes) or sent < len(sends):
            computing = computed < len(computes) and self.computes[computed][1] <= sent
            sending = sent < len(sends) and self.sends[sent][1] <= computed
            speed = 1 - taken if sending else 1.0
            passed = min(
                computes[computed] / speed if computing else math.inf,
                sends[sent] if sending else math.inf,
            )
            now += passed
            if computing:
                computes[computed] -= passed * speed
                computed += computes[computed] <= TICK
            if sending:
                sends[sent] -= passed
                sent += sends[sent] <= TICK
        return now


Seconds = Callable[[float], float]  # of a collective, by its bytes


class Piece(NamedTuple):
    """A part of backward: its seconds, and the bytes of the gradient that is final then."""

    seconds: float
    size: float


def in_buckets(forward: float, backward: Iterable[Piece], all_reduce: Seconds, bucket: float) -> Step:
    """DDP: a bucket is sent when it is full; at the end, all are waited for."""
    step, held = Step([(forward, 0)], []), 0.0
    for piece in backward:
        step.computes.append((piece.seconds, 0))
        held += piece.size
        if held >= bucket:
            step.sends.append((all_reduce(held), len(step.computes)))
            held = 0.0
    if held:
        step.sends.append((all_reduce(held), len(step.computes)))
    step.computes.append((0.0, len(step.sends)))
    return step


class Layer(NamedTuple):
    """Seconds of its forward and backward, and its parameters."""

    forward: float
    backward: float
    parameters: float


def fully_sharded(
    layers: list[Layer], root: float, gather: Seconds, scatter: Seconds, gathered: int, reduced: int
) -> Step:
    """FSDP2: a layer's parameters are gathered while the one before computes, in backward again, and its gradients are
    reduced after it. `root`: the parameters of no layer, which stay from the first layer's forward to the end.
    `gathered`, `reduced`: bytes of an element."""
    order = [*layers, *reversed(layers)]
    step = Step([], [(gather(root * gathered), 0), (gather(order[0].parameters * gathered), 0)])
    ready = [len(step.sends)]  # how many collectives are done once each one's parameters are there
    for at, layer in enumerate(order):
        if at + 1 < len(order):
            step.sends.append((gather(order[at + 1].parameters * gathered), at))
            ready.append(len(step.sends))
        forward = at < len(layers)
        step.computes.append((layer.forward if forward else layer.backward, ready[at]))
        if not forward:
            step.sends.append((scatter(layer.parameters * reduced), at + 1))
    step.sends.append((scatter(root * reduced), len(order)))
    step.computes.append((0.0, len(step.sends)))
    return step


# ------------------------------------------------------------------------------------------------ GPUs

# of one H200, as benchmarks/results/kernels_gpu.md has them
PRODUCTS = 662e12  # FLOP a second: gelu(a @ b + c) of bfloat16, 8192 cubed
ATTENTION = 423e12  # attention, bfloat16
MEMORY = 3.02e12  # bytes a second: gelu(layer_norm(x)) * x + x of bfloat16
GATHERED, REDUCED = 2, 4  # bytes of an element: parameters in bfloat16, gradients in float32
STATE = 16  # bytes of a parameter with its gradient and AdamW's two averages, in float32
LOSS = 6  # bytes of a logit that its kernels move: read, then read and written
BUCKET = 25 * MB  # DDP's own
ROOM = 70e9  # bytes of that state that leave half of the GPU to activations


class Shape(NamedTuple):
    """A Llama's."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    words: int
    tied: bool = False  # the embedding is the head's weight

    def matrices(self) -> dict[str, int]:
        """Elements of a layer's."""
        kv = 2 * self.width * self.kv_heads * self.width // self.heads
        one = self.width * self.hidden
        return {"q": self.width**2, "kv": kv, "o": self.width**2, "gate": one, "up": one, "down": one}

    def layer(self) -> int:
        return sum(self.matrices().values())

    def root(self) -> int:
        return self.words * self.width * (1 if self.tied else 2)

    def parameters(self) -> int:
        return self.layers * self.layer() + self.root()


SHAPES = {
    "1 billion": Shape(16, 2048, 32, 8, 8192, 128_256, tied=True),
    "8 billion": Shape(32, 4096, 32, 8, 14_336, 128_256),
    "70 billion": Shape(80, 8192, 64, 8, 28_672, 128_256),
}


class Llama(nn.Module):
    """Layers of a small Llama."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.layers = nn.ModuleList()
        kv = 2 * width * shape.kv_heads // shape.heads
        out = {"q": width, "kv": kv, "o": width, "gate": shape.hidden, "up": shape.hidden}
        for _ in range(shape.layers):
            parts: dict[str, nn.Module] = {name: nn.Linear(width, to, bias=False) for name, to in out.items()}
            parts["down"] = nn.Linear(shape.hidden, width, bias=False)
            self.layers.append(nn.ModuleDict({**parts, "norm": nn.RMSNorm(width), "norm2": nn.RMSNorm(width)}))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        for layer in self.layers:
            part: Any = layer
            y = part["norm"](x)
            q = part["q"](y).view(batch, length, self.shape.heads, -1).transpose(1, 2)
            k, v = part["kv"](y).view(batch, length, 2, self.shape.kv_heads, -1).permute(2, 0, 3, 1, 4)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + part["o"](y.transpose(1, 2).reshape(batch, length, width))
            y = part["norm2"](x)
            x = x + part["down"](F.silu(part["gate"](y)) * part["up"](y))
        return x


class Compiled(NamedTuple):
    """What a compiled model's plan says of a layer: the order in which backward hands its matrices' gradients out, and
    the bytes that kernels move in forward and backward, for a token and a column of the model's width."""

    order: list[str]
    forward: float
    backward: float


def compiled_layer() -> Compiled:
    """Of a small model, in which each width has the ratio to the others that it has in an 8-billion one."""
    shape = Shape(4, 256, 8, 2, 896, 0)
    module = Llama(shape).bfloat16()
    order: list[str] = []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))  # type: ignore[misc]
    x, angles = torch.randn(2, 128, shape.width).bfloat16(), torch.randn(128, 32).bfloat16()
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        dynajit.compile(module)(x.requires_grad_(), angles, angles).sum().backward()
    middle = [name.split(".")[2] for name in order if name.startswith("layers.2.")]
    moved = {
        phase: sum(
            kernel.bytes_moved * kernel.calls
            for each in seen
            for graph in each.graphs
            for code in graph.code
            if code.phase == phase
            for kernel in code.kernels
            if kernel.bytes_moved is not None
        )
        / (shape.layers * x.numel())
        for phase in ("forward", "backward")
    }
    return Compiled([name for name in middle if name in shape.matrices()], moved["forward"], moved["backward"])


def layer_of(shape: Shape, tokens: int, length: int, compiled: Compiled) -> Layer:
    """Seconds of a layer on one GPU; backward's products are twice forward's, its attention computes five for two."""
    products = 2 * shape.layer() * tokens / PRODUCTS
    attention = 2 * length * tokens * shape.width / ATTENTION  # causal
    memory = tokens * shape.width / MEMORY
    return Layer(
        products + attention + memory * compiled.forward,
        2 * products + 2.5 * attention + memory * compiled.backward,
        shape.layer(),
    )


def head_of(shape: Shape, tokens: int) -> Layer:
    """Seconds of logits and their loss."""
    elements = shape.words * shape.width
    product, loss = 2 * elements * tokens / PRODUCTS, LOSS * shape.words * tokens / MEMORY
    return Layer(product + loss / 3, 2 * product + 2 * loss / 3, elements)


class Links(NamedTuple):
    """Seconds of a hop and bytes a second of a process, inside of a machine of `local` GPUs and between machines."""

    local: int
    inside: tuple[float, float]
    between: tuple[float, float]

    def halved(self) -> "Links":
        """At half the bytes a second."""
        inside, between = ((alpha, beta / 2) for alpha, beta in self[1:])
        return Links(self.local, inside, between)

    def gather(self, count: int) -> Seconds:
        """An all-gather or a reduce-scatter over so many GPUs: rings over machines, of a GPU of each, and inside. An
        all-reduce is both."""
        local, machines = min(count, self.local), -(-count // self.local)
        alpha = (local - 1) * self.inside[0] + (machines - 1) * self.between[0]
        # each ring between machines passes on the part of one of a machine's GPUs
        inverse = (local - 1) / local / self.inside[1] + (machines - 1) / machines / local / self.between[1]
        return lambda size: alpha + size * inverse


def predicted(shape: Shape, count: int, links: Links, taken: float, tokens: int, compiled: Compiled) -> dict[str, Step]:
    """Steps over so many GPUs, by the way of training."""
    layer, head = layer_of(shape, tokens, tokens, compiled), head_of(shape, tokens)
    once = links.gather(count)
    last = Layer(layer.forward + head.forward, layer.backward + head.backward, layer.parameters)
    layers = [layer] * (shape.layers - 1) + [last]
    found = {"FSDP2": fully_sharded(layers, shape.root(), once, once, GATHERED, REDUCED)}
    if STATE * shape.parameters() < ROOM:
        elements = shape.matrices()
        words = REDUCED * shape.words * shape.width
        pieces = [Piece(head.backward, 0 if shape.tied else words)]
        for _ in range(shape.layers):
            for name in compiled.order:
                pieces.append(Piece(layer.backward * elements[name] / shape.layer(), REDUCED * elements[name]))
        pieces.append(Piece(0.0, words))  # the embedding's, which is last
        forward = layer.forward * shape.layers + head.forward
        found["DDP"] = in_buckets(forward, pieces, lambda size: 2 * once(size), BUCKET)
    return found


def on_gpus(links: Links, taken: float, tokens: int, compiled: Compiled) -> sbs.Table:
    header = [
        "model",
        "GPUs",
        "state GB",
        "compute ms",
        "collectives ms",
        "apart ms",
        "overlapped ms",
        "compute's share",
    ]
    table = sbs.Table([*header, "at half the links' speed"], "70 billion, FSDP2")
    half = links.halved()
    print("\n".join(table.lines))
    for name, shape in SHAPES.items():
        for count in (8, 16, 32, 64, 128, 256, 512, 1024):
            slow = predicted(shape, count, half, taken, tokens, compiled)
            for way, step in predicted(shape, count, links, taken, tokens, compiled).items():
                state = STATE * shape.parameters() / (1 if way == "DDP" else count) / 1e9
                alone, apart, overlapped = step.alone(), step.apart(), step.overlapped(taken)
                times = [f"{1e3 * each:.0f}" for each in (alone, apart - alone, apart, overlapped)]
                shares = [f"{alone / each:.0%}" for each in (overlapped, slow[way].overlapped(taken))]
                fits = f"{state:.1f}" + (" (too much)" if state > ROOM / 1e9 else "")
                print(table.add([f"{name}, {way}", str(count), fits, *times, *shares]))
    return table


def against_whole_models(compiled: Compiled) -> sbs.Table:
    """Kernels' times against dynajit's of benchmarks/results/models_gpu.md."""
    table = sbs.Table(
        ["model", "measured ms", "predicted ms", "error"], "BERT-base training, autocast, 32 x 128 tokens"
    )
    print("\n".join(table.lines))
    # A block of GPT-2's has as many elements of matrices as one of these; attention with a mask computes both halves.
    llama, gpt = Shape(16, 2048, 32, 8, 8192, 0), Shape(24, 1024, 16, 16, 8 * 1024 // 3, 50_257)
    bert = Shape(12, 768, 12, 12, 2048, 30_522)
    cases = [
        ("Llama's layers, 2048 words", 8.909, llama, 2048, 2 * 2048, False),
        ("GPT-2 medium, 4 x 1024 words", 6.775, gpt, 4 * 1024, 1024, False),
        ("BERT-base training, autocast, 32 x 128 words", 10.279, bert, 32 * 128, 2 * 128, True),
    ]
    for name, measured, shape, tokens, length, training in cases:
        parts = [layer_of(shape, tokens, length, compiled)] * shape.layers + [head_of(shape, tokens)]
        found = 1e3 * sum(each.forward + training * each.backward for each in parts)
        print(table.add([name, f"{measured:.2f}", f"{found:.2f}", f"{found / measured - 1:+.0%}"]))
    return table


# ------------------------------------------------------------------------------------------------ gloo processes

BLOCKS, SIZES = 12, [2**power for power in (12, 16, 20, 22)]  # bytes
WARM = 3  # rounds that are not counted
KINDS = ("all_reduce", "all_gather", "reduce_scatter")


def collective(kind: str, size: int) -> Callable[[], Any]:
    """One of so many bytes: what is reduced, or gathered in all."""
    whole, part = torch.ones(size // 4), torch.ones(size // 4 // dist.get_world_size())
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    return lambda: dist.reduce_scatter_tensor(part, whole)


def handed_out() -> list[int]:
    """Bytes of the model's gradients, in the order in which a compiled backward hands them out."""
    module, sizes = model(BLOCKS), []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: sizes.append(4 * p.numel()))
    dynajit.compile(module)(torch.randn(8, WIDTH)).sum().backward()
    return sizes


def measure(rank: int, folder: str, count: int, rows: list[int], rounds: int) -> None:
    """Seconds of collectives, of computing and of steps, in turns; the processor's seconds for those of collectives."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with group(rank, count, f"{folder}/store"):
        alone = dynajit.compile(model(BLOCKS))
        data = data_parallel(dynajit.compile, blocks=BLOCKS)[1]
        shards = sharded(dynajit.compile, count=BLOCKS)[1]
        gradients = handed_out()
        sends = in_buckets(0.0, [Piece(0.0, size) for size in gradients], lambda size: size, MB).sends
        buckets = [torch.ones(int(size) // 4) for size, _ in sends]
        calls: dict[Any, Callable[[], Any]] = {(k, s): collective(k, s) for k in KINDS for s in SIZES}

        def both(call: Any, x: torch.Tensor) -> None:
            call(x).square().mean().backward()

        def apart(x: torch.Tensor) -> None:
            both(alone, x)
            for each in buckets:
                dist.all_reduce(each)

        for number in rows:
            x = torch.randn(number, WIDTH)
            calls["forward", number] = lambda x=x: alone(x).square().mean()
            calls["both", number] = lambda x=x: both(alone, x)
            calls["apart", number] = lambda x=x: apart(x)
            calls["DDP", number] = lambda x=x: both(data, x)
            calls["FSDP2", number] = lambda x=x: both(shards, x)
        times: dict[Any, list[tuple[float, float]]] = {name: [] for name in calls}
        for turn in range(rounds + WARM):
            for name, call in calls.items():
                dist.barrier()
                begin, begin_process = time.perf_counter(), time.process_time()
                call()
                if turn >= WARM:
                    times[name].append((time.perf_counter() - begin, time.process_time() - begin_process))
    torch.save((times, gradients), f"{folder}/{rank}.pt")


def means(folder: str, count: int) -> tuple[dict[Any, tuple[float, float]], list[int]]:
    """The slowest rank's: seconds of the clock and of the processor; and the gradients' bytes. No medians: what other
    programs on the machine add to a step, they add to its parts."""
    ranks = [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(count)]
    found = {
        name: max(tuple(statistics.fmean(each) for each in zip(*times[name], strict=True)) for times, _ in ranks)
        for name in ranks[0][0]
    }
    return found, ranks[0][1]  # type: ignore[return-value]


def fitted(seconds: dict[int, float]) -> tuple[float, float]:
    """Alpha and beta of a collective whose seconds were measured by bytes: least squares of relative errors."""
    weights = torch.tensor([1 / each for each in seconds.values()], dtype=torch.float64)
    rows = torch.stack([weights, torch.tensor([*seconds], dtype=torch.float64) * weights], 1)
    alpha, inverse = torch.linalg.lstsq(rows, torch.ones(len(seconds), 1, dtype=torch.float64)).solution[:, 0].tolist()
    return max(0.0, alpha), 1 / inverse


def against_gloo(rounds: int) -> tuple[sbs.Table, sbs.Table]:
    """What was measured of collectives, and steps beside their predictions."""
    rows = [64, 256]
    links = sbs.Table(["processes", "alpha us", "beta MB/s", "error of the fit", "taken"], "2, reduce_scatter")
    table = sbs.Table(
        ["step", "computed ms", "measured ms", "predicted ms", "error"], "4 processes, 256 rows: DDP, apart"
    )
    for count in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(measure, (folder, count, rows, rounds), nprocs=count)
            found, gradients = means(folder, count)
        cores = min(1.0, (os.cpu_count() or 1) / count)  # of a process
        made: dict[str, Seconds] = {}
        for kind in KINDS:
            points = {size: found[kind, size][0] for size in SIZES}
            alpha, beta = fitted(points)
            made[kind] = lambda size, alpha=alpha, beta=beta: alpha + size / beta  # type: ignore[misc]
            far = statistics.fmean(abs(made[kind](size) / each - 1) for size, each in points.items())
            taken = min(1.0, found[kind, MB][1] / found[kind, MB][0] / cores)
            links.add([f"{count}, {kind}", f"{1e6 * alpha:.0f}", f"{beta / 1e6:.0f}", f"{far:.0%}", f"{taken:.0%}"])
        share = min(0.95, found["all_reduce", MB][1] / found["all_reduce", MB][0] / cores)
        for number in rows:
            forward, whole = found["forward", number][0], found["both", number][0]
            total = sum(gradients)
            pieces = [Piece((whole - forward) * size / total, size) for size in gradients]
            data = in_buckets(forward, pieces, made["all_reduce"], MB)
            layers = [Layer(forward / BLOCKS, (whole - forward) / BLOCKS, total / 4 / BLOCKS)] * BLOCKS
            shards = fully_sharded(layers, 0, made["all_gather"], made["reduce_scatter"], 4, 4)
            cases = [("DDP, apart", "apart", data.apart()), ("DDP", "DDP", data.overlapped(share))]
            for name, key, seconds in [*cases, ("FSDP2", "FSDP2", shards.overlapped(share))]:
                measured = found[key, number][0]
                cells = [f"{1e3 * each:.1f}" for each in (whole, measured, seconds)]
                table.add([f"{count} processes, {number} rows: {name}", *cells, f"{seconds / measured - 1:+.0%}"])
        print(f"{links}\n\n{table}", flush=True)
    return links, table


def main() -> None:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/scale_out.md")
    parser.add_argument("--skip-check", action="store_true", help="the predictions alone")
    parser.add_argument("--rounds", type=int, default=40, help="of the measurements over gloo")
    parser.add_argument("--tokens", type=int, default=8192, help="of a GPU's batch, one sequence")
    parser.add_argument("--local", type=int, default=8, help="GPUs of a machine")
    link = {"type": float, "nargs": 2, "metavar": ("ALPHA", "BETA")}
    parser.add_argument("--inside", **link, default=(3e-6, 450e9), help="seconds a hop, bytes a second each way")
    parser.add_argument("--between", **link, default=(10e-6, 50e9), help="the same of a GPU's port to other machines")
    parser.add_argument("--taken", type=float, default=0.12, help="the share of a GPU that a collective takes")
    options = parser.parse_args()
    print(sbs.machine())
    compiled = compiled_layer()
    whole = against_whole_models(compiled)
    links = Links(options.local, tuple(options.inside), tuple(options.between))
    gpus = on_gpus(links, options.taken, options.tokens, compiled)
    if options.skip_check:
        return
    collectives, steps = against_gloo(options.rounds)
    if options.save:
        (hop, inside), (far, between) = links.inside, links.between
        body = (
            f"A step of {options.tokens} tokens a GPU, one sequence. Stated, not measured: {1e6 * hop:g} us a hop and "
            f"{inside / 1e9:g} GB/s each way inside of a machine of {options.local} GPUs, {1e6 * far:g} us and "
            f"{between / 1e9:g} GB/s of each GPU's port between machines, {options.taken:.0%} of a GPU taken by a\n"
            f"collective. Products at {PRODUCTS / 1e12:g} TFLOP/s, attention at {ATTENTION / 1e12:g}, other kernels at "
            f"{MEMORY / 1e12:g} TB/s (`kernels_gpu.md`). A compiled layer moves {compiled.forward:.0f} bytes for "
            f"a token and a column of\nthe width in forward, {compiled.backward:.0f} in backward, and hands gradients "
            f"out in the order {', '.join(compiled.order)}. Parameters are gathered in bfloat16, gradients reduced in "
            f"float32; `state`:\na parameter, its gradient and AdamW's averages, {STATE} bytes. `apart`: nothing "
            "overlaps. Machines that lag, the optimizer's step and the memory of activations are no part of it.\n\n"
            f"{gpus}\n\n## What the model is worth\n\nKernels, one H200 (`models_gpu.md`):\n\n{whole}\n\n"
            f"Collectives of gloo, the slowest rank's mean of {options.rounds} rounds, and links fitted to them:\n\n"
            f"{collectives}\n\nSteps of {BLOCKS} blocks, forward and backward, over those links. What FSDP2 itself "
            "does on the processor\n(copies, hooks: its steps take four times DDP's CPU time, `distributed.md`) is no "
            f"part of it:\n\n{steps}"
        )
        how = "python benchmarks/scale_out.py --save"
        print("written:", sbs.save("scale_out", "Steps on many GPUs, predicted", body, how))


if __name__ == "__main__":
    main()
