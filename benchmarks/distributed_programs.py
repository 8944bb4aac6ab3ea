"""Programs of torch.distributed, for any number of processes: gloo's on the CPU, or NCCL's with a GPU each.

In: a compiler (`Compile`: what takes a function or module and gives what is called in its place). Out of a row of
`PROGRAMS`: the modules that are trained (their parameters and gradients are compared), what a step calls, and the step,
which gives the loss. Each rank has its own data, save where the ranks are to have the same. One more program: a row.
"""

import contextlib
import functools
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BLOCKS, ROWS = 256, 4, 64
Compile = Callable[[Any], Any]
Made = tuple[nn.Module, Any]


def home() -> torch.device:
    """Where the group's tensors are."""
    return torch.device("cuda", dist.get_rank()) if dist.get_backend() == "nccl" else torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model(blocks: int = BLOCKS) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(blocks)]).to(home())


def batch(step: int, part: int = 0, same: bool = False) -> torch.Tensor:
    """The rank's batch; `same`: all ranks have that of rank 0."""
    generator = torch.Generator().manual_seed(100 * step + 10 * part + (0 if same else dist.get_rank()))
    return torch.randn(ROWS, WIDTH, generator=generator).to(home())


def mesh(*sizes: int, names: tuple[str, ...] | None = None) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(home().type, sizes or (dist.get_world_size(),), mesh_dim_names=names)


# ------------------------------------------------------------------------------------------------ steps


def backward(call: Any, step: int, part: int = 0, same: bool = False) -> torch.Tensor:
    loss: torch.Tensor = call(batch(step, part, same)).float().square().mean()
    loss.backward()
    return loss.detach()


def accumulated(call: Any, step: int) -> torch.Tensor:
    with call.no_sync():
        first = backward(call, step, 1)
    return first + backward(call, step)


def several(call: Any, step: int) -> torch.Tensor:
    loss: torch.Tensor = call(batch(step)).square().mean() + call(batch(step, 1)).square().mean()
    loss.backward()
    return loss.detach()


def autocast(call: Any, step: int) -> torch.Tensor:
    with torch.autocast(home().type, torch.bfloat16):
        return backward(call, step)


def uneven(call: Any, step: int) -> torch.Tensor:
    """Rank 0 has a batch more than the others."""
    from torch.distributed.algorithms.join import Join

    total = torch.zeros((), device=home())
    with Join([call.joined]):
        for part in range(2 if dist.get_rank() == 0 else 1):
            total += backward(call, step, part)
    return total


def called(call: Any, step: int) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        result: torch.Tensor = call(batch(step))
    return result.sum()


shared = functools.partial(backward, same=True)


# ------------------------------------------------------------------------------------------------ data parallel


def data_parallel(compile: Compile, inside: bool = False, blocks: int = BLOCKS, **options: Any) -> Made:
    module = model(blocks)
    wrapped = DistributedDataParallel(compile(module) if inside else module, bucket_cap_mb=1, **options)
    return module, wrapped if inside else compile(wrapped)


def with_hook(compile: Compile) -> Made:
    """Gradients sent as float16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    module = model()
    wrapped = DistributedDataParallel(module, bucket_cap_mb=1)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return module, compile(wrapped)


def joined(compile: Compile) -> Made:
    module = model()
    wrapped = DistributedDataParallel(module, bucket_cap_mb=1)
    compiled = compile(wrapped)

    def call(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = compiled(x)
        return result

    call.joined = wrapped  # type: ignore[attr-defined]
    return module, call


# ------------------------------------------------------------------------------------------------ fully sharded


def sharded(compile: Compile, blocks: str = "each", compiled: str = "all", count: int = BLOCKS, **options: Any) -> Made:
    """`blocks`: each of the `count` is sharded by itself, or none is. `compiled`: the whole, or each block before it is
    sharded."""
    from torch.distributed.fsdp import fully_shard

    module = model(count)
    if compiled == "blocks":
        module = nn.Sequential(*[compile(block) for block in module])
    if blocks == "each":
        for block in module:
            fully_shard(block, **options)
    fully_shard(module, **options)
    return module, compile(module) if compiled == "all" else module


def wrapped(compile: Compile, compiled: str = "all") -> Made:
    """The older FSDP, which wraps modules: `compiled` as above."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    blocks = model()
    if compiled == "blocks":
        for at, block in enumerate(blocks):
            blocks[at] = compile(block)
    policy = ModuleWrapPolicy({Block})
    module = FullyShardedDataParallel(blocks, auto_wrap_policy=policy, device_id=home(), use_orig_params=True)
    return module, compile(module) if compiled == "all" else module


def mixed(compile: Compile) -> Made:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return sharded(compile, mp_policy=policy)


def offloaded(compile: Compile) -> Made:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return sharded(compile, offload_policy=CPUOffloadPolicy(pin_memory=False))


def prefetched(compile: Compile) -> Made:
    module, call = sharded(compile)
    blocks: Any = list(module.children())
    for one, other in itertools.pairwise(blocks):
        one.set_modules_to_forward_prefetch([other])
        other.set_modules_to_backward_prefetch([one])
    return module, call


def accumulating(compile: Compile) -> Made:
    module, call = sharded(compile)

    def step(x: torch.Tensor, synchronised: bool = True) -> torch.Tensor:
        module.set_requires_gradient_sync(synchronised)  # type: ignore[operator]
        result: torch.Tensor = call(x)
        return result

    return module, step


def reloaded(call: Any, step: int) -> torch.Tensor:
    """In one step parameters are saved by torch.distributed.checkpoint, and loaded again."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    if step == 10:
        folder: list[Any] = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder)
        state = get_model_state_dict(call)
        checkpoint.save(state, checkpoint_id=folder[0])
        with torch.no_grad():
            for parameter in call.parameters():
                parameter.zero_()
        checkpoint.load(state, checkpoint_id=folder[0])
        set_model_state_dict(call, state)
    return backward(call, step)


def unsynchronised(call: Any, step: int) -> torch.Tensor:
    """Two batches, of which the first one's gradients stay here."""
    first = backward(functools.partial(call, synchronised=False), step, 1)
    return first + backward(call, step)


# ------------------------------------------------------------------------------------------------ tensor parallel


def tensor_parallel(compile: Compile, sequence: bool = False) -> Made:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    module, over = model(), mesh()
    for block in module:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            # what lies between the blocks, and their norms, is divided by rows
            plan["norm"] = SequenceParallel(sequence_dim=0)
            plan["up"] = ColwiseParallel(input_layouts=Shard(0))
            plan["down"] = RowwiseParallel(output_layouts=Shard(0), use_local_output=False)
        parallelize_module(block, over, plan)
    if sequence:
        first = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False)
        parallelize_module(module[0], over, first)
        last = PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate())
        parallelize_module(module[-1], over, last)
    return module, compile(module)


class Gathered(torch.autograd.Function):
    """Rows of all ranks; gradients are summed, and each rank gets those of its rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        out = gradient.new_empty(gradient.shape[0] // dist.get_world_size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(out, gradient.contiguous())
        return out


class Scattered(torch.autograd.Function):
    """The other way round."""

    forward = staticmethod(Gathered.backward)
    backward = staticmethod(Gathered.forward)


class ByHand(nn.Module):
    """A block's layers divided between the ranks, and the rows between the blocks, as Megatron writes it."""

    def __init__(self) -> None:
        super().__init__()
        inner = 2 * WIDTH // dist.get_world_size()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(Gathered.apply(self.norm(x)))
        return x + Scattered.apply(self.down(nn.functional.gelu(h)))


def by_hand(compile: Compile) -> Made:
    torch.manual_seed(dist.get_rank())
    module = nn.Sequential(*[ByHand() for _ in range(BLOCKS)]).to(home())
    return module, compile(module)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.inner(x).relu()), labels)


def loss_parallel(compile: Compile) -> Made:
    """Logits divided by classes, of which the loss is computed where they are."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    torch.manual_seed(0)
    module = Classifier().to(home())
    plan = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    parallelize_module(module, mesh(), plan)
    return module, compile(module)


def classified(call: Any, step: int) -> torch.Tensor:
    from torch.distributed.tensor.parallel import loss_parallel

    x = batch(step, same=True)
    with loss_parallel():
        loss = call(x, (x[:, 0] * 1000).long().abs() % (2 * WIDTH))
        loss.backward()
    loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
    return loss.detach()


# ------------------------------------------------------------------------------------------------ optimizers


class Updated(NamedTuple):
    """A module that is not compiled, and the step of its optimizer, which is."""

    call: Any
    update: Any


def updated(compile: Compile, spread: Callable[..., Made]) -> Made:
    module, call = spread(lambda each: each)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, foreach=False)
    return module, Updated(call, compile(lambda: optimizer.step()))


def then_updated(made: Updated, step: int, same: bool = False) -> torch.Tensor:
    loss = backward(made.call, step, same=same)
    made.update()
    return loss


# ------------------------------------------------------------------------------------------------ pipelines, experts


def pipeline(compile: Compile, schedule: str, stages: int = 1) -> Made:
    """`stages` of the model in each process, each of which is compiled."""
    from torch.distributed import pipelining

    size, rank = dist.get_world_size(), dist.get_rank()
    whole = model(BLOCKS)
    each = BLOCKS // (stages * size)
    mine, made = nn.ModuleList(), []
    for index in range(rank, stages * size, size):
        part = nn.Sequential(*list(whole)[each * index : each * (index + 1)])
        mine.append(part)
        made.append(pipelining.PipelineStage(compile(part), index, stages * size, home()))
    kind: Any = getattr(pipelining, schedule)
    run = kind(made if stages > 1 else made[0], 4, loss_fn=lambda out, _: out.square().mean())

    def call(x: torch.Tensor) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        ends = {"args": (x,)} if rank == 0 else {}
        run.step(*ends.get("args", ()), target=x if rank == size - 1 else None, losses=losses)
        return torch.stack(losses).sum().detach() if losses else torch.zeros(())

    return mine, call


def staged(call: Any, step: int) -> torch.Tensor:
    result: torch.Tensor = call(batch(step, same=True))
    return result


class Experts(nn.Module):
    """An expert in each process; each row goes to one, as the data say. `compared`: their rows are counted by
    comparison, which tells of how many experts."""

    def __init__(self, group: Any, compared: bool) -> None:
        super().__init__()
        self.compared = compared
        self.gate = nn.Linear(WIDTH, dist.get_world_size())
        self.expert = Block()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        size = dist.get_world_size()
        weights = self.gate(x).softmax(1)
        place = weights.argmax(1)
        order = place.argsort(stable=True)
        if self.compared:
            sent = (place[:, None] == torch.arange(size, device=x.device)).sum(0)
        else:
            sent = torch.bincount(place, minlength=size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there, back = sent.tolist(), received.tolist()
        routed = all_to_all_single_autograd(x[order], back, there, self.group)
        returned = all_to_all_single_autograd(self.expert(routed), there, back, self.group)
        return torch.zeros_like(x).index_copy(0, order, returned) * weights.gather(1, place[:, None])


def experts(compile: Compile, compared: bool = False) -> Made:
    torch.manual_seed(0)
    module = Experts(dist.group.WORLD, compared).to(home())
    return module, compile(module)


def with_splits(call: Any, step: int) -> torch.Tensor:
    """With the setting, of both compilers, for numbers that depend on data."""
    configs = [sys.modules[name].config for name in ("dynajit", "torch._dynamo") if name in sys.modules]
    with contextlib.ExitStack() as patched:
        for each in configs:
            patched.enter_context(each.patch(capture_scalar_outputs=True))
        return backward(call, step)


# ------------------------------------------------------------------------------------------------ plain collectives


def reduces(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * 2
    dist.all_reduce(y)
    return y / dist.get_world_size() + 1


def works(x: torch.Tensor) -> torch.Tensor:
    parts = [x.sin() * 2, x.cos(), x * x]
    handles = [dist.all_reduce(part, async_op=True) for part in parts]
    other = x.exp().sum(1)
    for handle in handles:
        handle.wait()
    return parts[0] + parts[1] + parts[2] + other[:, None]


def gathers(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(dist.get_world_size() * ROWS, WIDTH)
    part = x.new_empty(ROWS, WIDTH)
    dist.all_gather_into_tensor(out, x.sin())
    dist.reduce_scatter_tensor(part, out * 2)
    dist.all_to_all_single(x, part)
    return part + x


def passes_on(x: torch.Tensor) -> torch.Tensor:
    """Round a ring, one by one and as a batch; a barrier, and objects."""
    size, rank = dist.get_world_size(), dist.get_rank()
    y, z = x.sin(), torch.empty_like(x)
    if rank == 0:
        dist.send(y, 1)
    elif rank == 1:
        dist.recv(z, 0)
        y = y + z
    ops = [dist.P2POp(dist.isend, y, (rank + 1) % size), dist.P2POp(dist.irecv, z, (rank - 1) % size)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    dist.barrier()
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    return y + z * len(found)


def plain(compile: Compile, fn: Any) -> Made:
    return nn.Module(), compile(fn)


class Program(NamedTuple):
    make: Callable[[Compile], Made]
    step: Callable[[Any, int], torch.Tensor]


def _forms(make: Callable[..., Made], **options: Any) -> Callable[[Compile], Made]:
    return functools.partial(make, **options)


PROGRAMS: dict[str, Program] = {
    "compile(DDP(m))": Program(data_parallel, backward),
    "DDP(compile(m))": Program(_forms(data_parallel, inside=True), backward),
    "DDP, no_sync": Program(data_parallel, accumulated),
    "DDP, static_graph": Program(_forms(data_parallel, static_graph=True), backward),
    "DDP, find_unused_parameters": Program(_forms(data_parallel, find_unused_parameters=True), backward),
    "DDP, two forwards": Program(data_parallel, several),
    "DDP, autocast": Program(data_parallel, autocast),
    "DDP, comm hook": Program(with_hook, backward),
    "DDP, join": Program(joined, uneven),
    "FSDP2, per block": Program(sharded, backward),
    "FSDP2, whole": Program(_forms(sharded, blocks="none"), backward),
    "FSDP2, blocks compiled": Program(_forms(sharded, compiled="blocks"), backward),
    "FSDP2, kept after forward": Program(_forms(sharded, reshard_after_forward=False), backward),
    "FSDP2, mixed precision": Program(mixed, backward),
    "FSDP2, CPU offload": Program(offloaded, backward),
    "FSDP2, prefetch": Program(prefetched, backward),
    "FSDP2, accumulation": Program(accumulating, unsynchronised),
    "FSDP2, saved and loaded": Program(sharded, reloaded),
    "FSDP1": Program(wrapped, backward),
    "FSDP1, blocks compiled": Program(_forms(wrapped, compiled="blocks"), backward),
    "tensor parallel": Program(tensor_parallel, shared),
    "sequence parallel": Program(_forms(tensor_parallel, sequence=True), shared),
    "sequence parallel by hand": Program(by_hand, backward),
    "loss parallel": Program(loss_parallel, classified),
    "FSDP2, step of AdamW": Program(_forms(updated, spread=sharded), then_updated),
    "tensor parallel, step of AdamW": Program(
        _forms(updated, spread=tensor_parallel), functools.partial(then_updated, same=True)
    ),
    "pipeline, GPipe": Program(_forms(pipeline, schedule="ScheduleGPipe"), staged),
    "pipeline, 1F1B": Program(_forms(pipeline, schedule="Schedule1F1B"), staged),
    "pipeline, interleaved 1F1B": Program(_forms(pipeline, schedule="ScheduleInterleaved1F1B", stages=2), staged),
    "pipeline, looped BFS": Program(_forms(pipeline, schedule="ScheduleLoopedBFS", stages=2), staged),
    "pipeline, zero bubble": Program(_forms(pipeline, schedule="ScheduleInterleavedZeroBubble", stages=2), staged),
    "experts": Program(experts, backward),
    "experts, splits captured": Program(_forms(experts, compared=True), with_splits),
    "all_reduce": Program(_forms(plain, fn=reduces), called),
    "all_reduce, async_op": Program(_forms(plain, fn=works), called),
    "gather, scatter, all_to_all": Program(_forms(plain, fn=gathers), called),
    "send, recv, barrier, objects": Program(_forms(plain, fn=passes_on), called),
}
# those that a second table has, for four processes: with two stages in each there are too few blocks
OF_FOUR = tuple(name for name, each in PROGRAMS.items() if getattr(each.make, "keywords", {}).get("stages") != 2)
