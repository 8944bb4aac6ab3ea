"""Graphs of many equal layers are compiled as graphs of a few: the plan is the one that the whole graph would have."""

from __future__ import annotations

import functools
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynajit
from dynajit.aot import compile_joint, decompositions
from dynajit.aot.few_layers import KEPT
from dynajit.backends import codegen
from dynajit.codegen.generate import generate
from dynajit.codegen.memory import names_in, renamed
from dynajit.codegen.plan import BufferRef, ExternStep, Plan
from dynajit.codegen.unroll import Unrolled
from dynajit.graph.meta import graph_notes

sys.path.insert(0, str(Path(__file__).parents[1] / "codegen"))
from triton_harness import GPU, moved

WIDTH = 8


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """The plans that calls run."""
    found: list[Plan] = []
    make = codegen._plan

    def keeping(*args: Any) -> Plan:
        found.append(make(*args))
        return found[-1]

    monkeypatch.setattr(codegen, "_plan", keeping)
    yield found


@pytest.fixture
def unrolled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Of each plan that was unrolled, how many layers the graph has."""
    found: list[int] = []
    make = Unrolled.plan

    def counting(self: Unrolled) -> Plan:
        made = make(self)
        found.append(self.repeated.layers)
        return made

    monkeypatch.setattr(Unrolled, "plan", counting)
    yield found


def text(plan: Plan) -> str:
    """The plan with its buffers numbered as they come."""
    numbers: dict[str, str] = {}
    known = {*plan.buffers, *plan.inputs, *(name for step in plan.steps for name in names_in(step))}

    def number(name: re.Match[str]) -> str:
        return numbers.setdefault(name[0], f"#{len(numbers)}") if name[0] in known else name[0]

    return re.sub(r"\w+", number, str(plan).partition(" ")[2].partition("(")[2])


def check(run: Callable[..., Any], plans: list[Plan], *args: Any) -> Any:
    """The same results, to the bit, and the same plans with shared layers as without; close to eager."""
    results = []
    for share in (True, False):
        dynajit.reset()
        plans.append(None)  # type: ignore[arg-type]
        with dynajit.config.patch(share_layers=share), torch.no_grad():
            torch.manual_seed(0)
            compiled = dynajit.compile(run)
            results.append(compiled(*args))
            torch.testing.assert_close(compiled(*args), results[-1], rtol=0, atol=0)
    torch.testing.assert_close(*results, rtol=0, atol=0)
    with torch.no_grad():
        torch.manual_seed(0)
        torch.testing.assert_close(results[0], run(*args), rtol=1e-4, atol=1e-4)
    middle = plans.index(None, 1)  # type: ignore[arg-type]
    shared, apart = plans[1:middle], plans[middle + 1 :]
    plans.clear()
    assert [text(plan) for plan in shared] == [text(plan) for plan in apart]
    assert [plan.source for plan in shared] == [plan.source for plan in apart]
    assert [plan.kernels for plan in shared] == [plan.kernels for plan in apart]
    return results[0]


def check_training(net: nn.Module, plans: list[Plan], *args: torch.Tensor) -> None:
    """As `check`: the forward and the backward plan, and the gradients."""
    results, gradients = [], []
    for share in (True, False, None):
        dynajit.reset()
        plans.append(None)  # type: ignore[arg-type]
        with dynajit.config.patch(share_layers=bool(share)):
            compiled = net if share is None else dynajit.compile(net)
            for _ in range(2):
                torch.manual_seed(0)
                result = compiled(*args)
                results.append(result)
                leaves = torch.utils._pytree.tree_leaves(result)
                sum((leaf.float() ** 2).sum() for leaf in leaves if leaf.requires_grad).backward()
                gradients.append([None if p.grad is None else p.grad.clone() for p in net.parameters()])
                net.zero_grad()
    for one in results[1:4], gradients[1:4]:
        torch.testing.assert_close(one, [one[0]] * 3, rtol=0, atol=0)
    torch.testing.assert_close((results[0], gradients[0]), (results[-1], gradients[-1]), rtol=1e-4, atol=1e-4)
    parts = "".join("|" if plan is None else "." for plan in plans).split("|")
    assert len(parts[1]) == len(parts[2]) and not parts[3]
    shared, apart = plans[1 : 1 + len(parts[1])], plans[2 + len(parts[1]) : -1]
    plans.clear()
    assert [text(plan) for plan in shared] == [text(plan) for plan in apart]
    assert [plan.source for plan in shared] == [plan.source for plan in apart]
    assert [plan.kernels for plan in shared] == [plan.kernels for plan in apart]


class Block(nn.Module):
    """Attention and a network of two layers, with a residual connection round each."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Net(nn.Module):
    """Blocks, one after the other, between a scale that all of them read and a last layer."""

    def __init__(self, count: int = KEPT + 5, block: Callable[[], nn.Module] = Block, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(block() for _ in range(count))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> Any:
        scale = torch.full((), 0.5 * WIDTH**2) / x.shape[-1]  # no softmax near a step, where rounding shows
        for block in self.blocks:
            x = block(x, scale)
        return self.head(x)


X = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count", [KEPT + 2, KEPT + 9])
def test_equal_layers(count: int, plans: list[Plan], unrolled: list[int]) -> None:
    check(Net(count), plans, X)
    assert unrolled == [count]


@pytest.mark.parametrize("width", [WIDTH, 160])
def test_training(width: int, plans: list[Plan], unrolled: list[int]) -> None:
    """Gradients of large weights are made when all layers are through."""
    check_training(Net(block=functools.partial(Block, width), width=width), plans, torch.randn(2, 5, width))
    assert unrolled


def test_too_few_layers(plans: list[Plan], unrolled: list[int]) -> None:
    check(Net(KEPT + 1), plans, X)
    assert unrolled == []


def test_results_of_each_layer(plans: list[Plan], unrolled: list[int]) -> None:
    class Kept(Net):
        def forward(self, x: torch.Tensor) -> Any:
            every = []
            for block in self.blocks:
                x = block(x, torch.ones(()))
                every.append(x)
            return self.head(x), every[::-1]

    check(Kept(), plans, X)
    assert unrolled == [KEPT + 5]


def test_views_among_the_results(plans: list[Plan], unrolled: list[int]) -> None:
    class Caching(Block):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
            k, v = self.up(self.first(x)).exp().chunk(2, -1)
            return x + torch.softmax(x @ k.transpose(-1, -2), -1) @ v, k + 1, self.out(x).transpose(0, 1).contiguous()

    class Kept(Net):
        def forward(self, x: torch.Tensor) -> Any:
            every = []
            for block in self.blocks:
                x, *more = block(x, None)
                every.append(more)
            return self.head(x), every

    check(Kept(block=Caching), plans, X)
    assert unrolled == [KEPT + 5]


@pytest.mark.parametrize("autocast", [False, True])
def test_an_index_that_a_kernel_refuses(autocast: bool, unrolled: list[int]) -> None:
    """The whole graph raises eager's error, and the first layers' kernels are not all that is run."""

    class Picking(Block):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            x = super().forward(x, torch.ones(()))
            return x + self.out(x)[scale].tanh()

    class Picked(Net):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x, at)
            return x.sum()

    net = Picked(block=Picking)
    dynajit.reset()
    compiled = dynajit.compile(net)
    with torch.no_grad(), torch.autocast("cpu", enabled=autocast):
        torch.testing.assert_close(
            compiled(X, torch.tensor([1, 0])), net(X, torch.tensor([1, 0])), rtol=0.05 if autocast else 1e-4, atol=1e-3
        )
        with pytest.raises(IndexError) as eager:
            net(X, torch.tensor([1, 2]))
        with pytest.raises(IndexError) as ours:
            compiled(X, torch.tensor([1, 2]))
    assert str(ours.value) == str(eager.value)
    assert unrolled == [KEPT + 5]


def test_two_values_are_handed_on(plans: list[Plan], unrolled: list[int]) -> None:
    class ReadTwice(Net):
        def forward(self, x: torch.Tensor) -> Any:
            before = x
            for block in self.blocks:
                x, before = block(x + before, torch.ones(())), x
            return self.head(x)

    check(ReadTwice(), plans, X)
    assert len(unrolled) == 1


# ---- what is compiled whole


class Skipping(Net):
    """What the first block gives is read at the end, too."""

    def forward(self, x: torch.Tensor) -> Any:
        first = None
        for block in self.blocks:
            x = block(x, torch.ones(()))
            first = x if first is None else first
        return self.head(x + first)


class ReadLate(Net):
    """A block reads what the one gives that is three before it."""

    def forward(self, x: torch.Tensor) -> Any:
        before = [x, x]
        for block in self.blocks:
            before.append(x)
            x = block(x + before[-3], torch.ones(()))
        return self.head(x)


class Added(Net):
    """Each block's result goes into a sum at the end."""

    def forward(self, x: torch.Tensor) -> Any:
        every = []
        for block in self.blocks:
            x = block(x, torch.ones(()))
            every.append(x)
        return torch.stack(every).sum(0)


class Alternating(Net):
    """Every other block has the weights of the first, the others their own."""

    def forward(self, x: torch.Tensor) -> Any:
        for at, block in enumerate(self.blocks):
            x = (block if at % 2 else self.blocks[0])(x, torch.ones(()))
        return self.head(x)


class Same(Net):
    """All blocks are one."""

    def forward(self, x: torch.Tensor) -> Any:
        for _ in self.blocks:
            x = self.blocks[0](x, torch.ones(()))
        return self.head(x)


class Weighed(Net):
    """The blocks' weights are read at the end, too."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), torch.stack([block.out.weight.sum() for block in self.blocks])


class OneOfThem(Net):
    """One block's result is a result."""

    def forward(self, x: torch.Tensor) -> Any:
        found = []
        for at, block in enumerate(self.blocks):
            x = block(x, torch.ones(()))
            found += [x] if at == 5 else []
        return self.head(x), found


class Without(nn.Module):
    """Layers without weights."""

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(9):
            y = torch.softmax(x @ x.transpose(-1, -2), -1) @ x
            x = x + torch.softmax(y @ y.transpose(-1, -2), -1) @ y
        return x


@pytest.mark.parametrize(
    "net",
    [Skipping(), ReadLate(), Added(), Alternating(), Same(), Weighed(), OneOfThem(), Without()],
    ids=lambda net: type(net).__name__,
)
def test_other_graphs_are_compiled_whole(net: nn.Module, plans: list[Plan], unrolled: list[int]) -> None:
    check(net, plans, X)
    assert unrolled == []


def test_caches_that_are_written(plans: list[Plan], unrolled: list[int]) -> None:
    """Each layer writes into an input of its own."""

    class Written(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(2, 5, WIDTH))

        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            self.cache[:, 1] = x[:, 0]
            return super().forward(x, scale) + self.cache.sum(-1, True)

    net = Net(block=Written)
    check(net, plans, X)
    assert unrolled == []
    caches = [block.cache.clone() for block in net.blocks]
    with torch.no_grad():
        for block in net.blocks:
            block.cache.zero_()
        net(X)
    torch.testing.assert_close([block.cache for block in net.blocks], caches)


# ---- random layers


class Piece(nn.Module):
    """Some of many operations in a random order, with weights of their own, what is returned beside the new `x`."""

    OPERATIONS = (
        "linear", "norm", "gelu", "softmax", "attend", "chunk", "transposed", "residual", "shared", "sorted",
        "cumulated", "reduced", "bias", "convolved", "rounded", "catted", "where",
    )  # fmt: skip
    WHOLE = ("written", "gathered")  # with these in them layers are compiled one by one: writes, constants of their own

    def __init__(self, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        self.steps = [choose.choice(self.OPERATIONS) for _ in range(choose.randint(5, 12))]
        if seed % 8 == 7:
            self.steps.append(choose.choice(self.WHOLE))
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in self.steps)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in self.steps)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.gives = choose.choice(["nothing", "result", "input", "view"])

    def forward(self, x: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        start = x
        more: list[torch.Tensor] = []
        for step, linear, norm in zip(self.steps, self.linears, self.norms, strict=True):
            x = getattr(self, f"_{step}")(x, start, shared, linear, norm)
        if self.gives == "result":
            more = [x.mean(-1)]
        elif self.gives == "input":
            more = [start * 2]
        elif self.gives == "view":
            more = [(x + 1).transpose(0, 1)]
        return torch.tanh(x) + self.bias, more

    def _linear(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return linear(x)

    def _norm(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return norm(x)

    def _gelu(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return F.gelu(x)

    def _softmax(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return torch.softmax(x, -1)

    def _attend(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return torch.softmax(x @ linear(start).transpose(-1, -2) * 0.1, -1) @ x

    def _chunk(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        one, other = x.chunk(2, -1)
        return torch.cat([other.sigmoid(), one], -1)

    def _transposed(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return linear(x.transpose(0, 1)).transpose(0, 1)

    def _residual(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return x + start

    def _shared(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return x * shared

    def _sorted(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return torch.sort(x, -1)[0]

    def _cumulated(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return torch.cumsum(x, 1) * 0.3

    def _gathered(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return x[:, torch.tensor([3, 1, 0, 2, 4])]

    def _reduced(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return x - x.amax(1, keepdim=True)

    def _bias(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return x + linear.bias

    def _convolved(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return F.conv1d(x.transpose(1, 2), linear.weight[:, :, None]).transpose(1, 2)

    def _written(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        y = x.clone()
        y[:, 0] = linear.bias
        return y.mul_(0.7)

    def _rounded(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return x.bfloat16().float() + 0.5

    def _catted(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return torch.cat([x, start], 1)[:, 2:7]

    def _where(self, x: Any, start: Any, shared: Any, linear: Any, norm: Any) -> Any:
        return torch.where(start > 0, x, linear(x))


class Pieces(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.pieces = nn.ModuleList(Piece(seed) for _ in range(KEPT + 2 + seed % 4))
        self.odd = Piece(seed + 1000) if seed % 3 == 0 else None

    def forward(self, x: torch.Tensor) -> Any:
        shared = torch.cos(x[:, :1]) if self.odd is not None else torch.ones(())
        every = []
        for piece in self.pieces:
            x, more = piece(x, shared)
            every += more
        if self.odd is not None:
            x, _ = self.odd(x, shared)
        return (x.sum(0), *every)


def test_random_layers(plans: list[Plan], unrolled: list[int]) -> None:
    tried = 16
    for seed in range(tried):
        check(Pieces(seed), plans, X)
    assert len(unrolled) > tried // 2


def test_random_layers_that_train(plans: list[Plan], unrolled: list[int]) -> None:
    tried = 4
    for seed in range(tried):
        check_training(Pieces(seed), plans, X)
    assert len(unrolled) >= tried // 2


def test_the_plan_for_a_gpu() -> None:
    """As in `check`, made for a GPU; it is not run."""
    plans: list[Plan] = []

    def planned(gm: torch.fx.GraphModule, inputs: list[Any], share: bool) -> Callable[..., Any]:
        def collect(short: torch.fx.GraphModule, given: list[Any], phase: str) -> Callable[..., Any]:
            repeated = graph_notes(short).repeated
            assert (repeated is not None) == share
            with torch.no_grad():
                plans.append(generate(*moved(short, given, given[0].fake_mode), "test", GPU, repeated=repeated))
            return short.forward

        compile_joint(gm, inputs, collect, decompositions.for_codegen("cuda", False), repeats=share)
        return gm.forward

    net = Net()
    for share in (True, False):
        dynajit.reset()
        with torch.no_grad():
            dynajit.compile(net, backend=functools.partial(planned, share=share))(X)
    shared, apart = plans
    assert text(shared) == text(apart) and "_of2" in str(shared)
    assert shared.source == apart.source and shared.kernels == apart.kernels


def test_a_step_is_renamed_in_all_that_it_names() -> None:
    ref = BufferRef("a")
    step = ExternStep(torch.ops.aten.add.Tensor, (ref, [ref, 1]), {"out": ref}, ("b", None), holds=("c",))
    assert list(names_in(renamed(step, str.upper))) == [name.upper() for name in names_in(step)]
