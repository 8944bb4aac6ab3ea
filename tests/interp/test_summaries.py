"""Calls of modules from what an equal module's call added to the trace: the same graph, guards and results as without.

Stacks of blocks are made at random; then one block differs in something that a trace relies on, or breaks a rule that
summaries rely on. Each is captured with and without summaries: graph, guards and results are compared with each other,
and the results with eager. `DIFFERENCES` says of each whether the block that differs has to be traced by itself.
"""

import copy
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.interp import machine
from dynajit.interp.summary import Replay

WIDTH = 4
SCALE = {"by": 2.0}
RECORD: list[int] = []


class Config:
    def __init__(self) -> None:
        self.act, self.eps, self.flags = "gelu", 1e-5, {"bias": True}


class Counter:
    n = 0


COUNTER = Counter()


class Leaf(nn.Module):
    """A block's inner part, with what modules have: attributes of many kinds."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH))
        self.names = ["a", "b"]
        self.table = {"k": 1, "l": 2}
        self.scale: Any = 1.5
        self.mode = "plain"
        self.pair = (1, 2)
        self.fn: Callable[[Tensor], Tensor] = torch.relu
        self.made = lambda x: x * 2
        self.extra: Any = None
        self.other: Any = None

    def forward(self, x: Tensor, mask: Tensor | None = None, *, bias: Any = None, **rest: Any) -> Tensor:
        y = self.fc(self.norm(x))
        if self.config.act == "gelu":
            y = nn.functional.gelu(y)
        if self.mode == "plain":
            y = y * self.scale + self.shift
        elif self.mode == "write":
            y = y.mul_(self.scale)
        elif self.mode == "count":
            COUNTER.n += 1
        elif self.mode == "global":
            y = y * SCALE["by"]
        elif self.mode == "break":
            y = y * float(y.sum() > 1e9)
        elif self.mode == "split":
            y, z = y.chunk(2, -1)
            y = torch.cat([z, y], -1)
        y = self.made(self.fn(y))
        for at, name in enumerate(self.names):
            y = y + self.table.get("k", 0) * len(name) * (at + self.pair[0])
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        if bias is not None:
            y = y + (bias[0] if isinstance(bias, (tuple, list)) else bias)
        if self.extra is not None:
            y = y + self.extra
        if self.other is not None:
            y = y + self.other.fc.weight.sum()
        if self.training:
            y = self.drop(y)
        return y


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.inner, self.outer = Leaf(config), Leaf(config)
        self.index = 0
        self.hidden: list[Tensor] | None = None

    def forward(self, x: Tensor, mask: Tensor | None, seen: list[Tensor] | None = None) -> Any:
        y = x + self.inner(x, mask, bias=(x.mean(), 1))
        z = y + self.outer(y, bias=self.inner.shift)
        if seen is not None:
            seen.append(z)
        return (z, y, None) if self.inner.pair[1] == 2 else (z, y, 1)


class Stack(nn.Module):
    def __init__(self, depth: int, seen: bool = False) -> None:
        super().__init__()
        config = Config()
        self.blocks = nn.ModuleList(Block(config) for _ in range(depth))
        self.seen = seen

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x, total = x * 2, x.new_zeros(())
        seen: list[Tensor] | None = [] if self.seen else None
        for block in self.blocks:
            x, y, flag = block(x, mask, seen)
            total = total + y.sum() + (flag or 0)
        return x + total + (sum(one.sum() for one in seen) if seen is not None else 0)


Change = Callable[[Stack, int], object]


def _set(**attributes: Any) -> Change:
    def change(stack: Stack, at: int) -> None:
        for name, value in attributes.items():
            setattr(stack.blocks[at].inner, name, copy.deepcopy(value))

    return change


def _hook(stack: Stack, at: int) -> object:
    return stack.blocks[at].inner.register_forward_hook(lambda module, args, out: out * 3)


def _closure(stack: Stack, at: int) -> None:
    factor = 7 + at
    stack.blocks[at].inner.made = lambda x: x * factor


def _dtype_of_buffer(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.shift = stack.blocks[at].inner.shift.long()


def _strides(stack: Stack, at: int) -> None:
    weight = stack.blocks[at].inner.fc.weight
    stack.blocks[at].inner.fc.weight = nn.Parameter(weight.detach().t().contiguous().t())


def _config(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.config = Config()
    stack.blocks[at].inner.config.act = "none"


def _equal_config(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.config = Config()


def _tied(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.fc.weight = stack.blocks[0].inner.fc.weight


def _tied_inside(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.fc.weight = stack.blocks[at].outer.fc.weight


def _view(stack: Stack, at: int) -> None:
    inner = stack.blocks[at].inner
    inner.shift = stack.blocks[at].outer.shift[:]


def _shared_leaf(stack: Stack, at: int) -> None:
    stack.blocks[at].inner = stack.blocks[0].inner


def _shared_in_block(stack: Stack, at: int) -> None:
    stack.blocks[at].outer = stack.blocks[at].inner


def _repeated(stack: Stack, at: int) -> None:
    stack.blocks[at] = stack.blocks[0]


def _sibling(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.__dict__["other"] = stack.blocks[at - 1].inner


def _itself(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.__dict__["other"] = stack.blocks[at].inner


def _own_forward(stack: Stack, at: int) -> None:
    inner = stack.blocks[at].inner
    inner.forward = lambda x, mask=None, **rest: x * 5  # type: ignore[method-assign]


def _subclass(stack: Stack, at: int) -> None:
    class Other(Leaf):
        def forward(self, x: Tensor, mask: Tensor | None = None, **rest: Any) -> Tensor:
            return x - 1

    stack.blocks[at].inner = Other(Config())


def _frozen(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.requires_grad_(False)


def _training(stack: Stack, at: int) -> None:
    stack.blocks[at].inner.drop.p = 0.0
    stack.blocks[at].inner.train()


# what differs -> whether the block that differs has to be traced
DIFFERENCES: dict[str, tuple[Change, bool]] = {
    "nothing": (lambda stack, at: None, False),
    "scale": (_set(scale=2.5), True),
    "scale's type": (_set(scale=2), True),
    "mode": (_set(mode="other"), True),
    "split": (_set(mode="split"), True),
    "write": (_set(mode="write"), True),
    "count": (_set(mode="count"), True),
    "global": (_set(mode="global"), True),
    "break": (_set(mode="break"), True),
    "length of a list": (_set(names=["a"]), True),
    "item of a list": (_set(names=["a", "bbb"]), True),
    "value of a dict": (_set(table={"k": 3, "l": 2}), True),
    "key of a dict": (_set(table={"l": 2}), True),
    "another key of a dict": (_set(table={"k": 1, "z": 2}), False),
    "item of a tuple": (_set(pair=(2, 2)), True),
    "form of the result": (_set(pair=(1, 3)), True),
    "function": (_set(fn=torch.tanh), True),
    "lambda": (_set(made=lambda x: x * 9), True),
    "closure": (_closure, True),
    "extra number": (_set(extra=4.0), True),
    "extra tensor": (lambda stack, at: setattr(stack.blocks[at].inner, "extra", torch.ones(WIDTH)), True),
    "unread attribute": (_set(nobody="reads"), False),
    "unread number": (lambda stack, at: setattr(stack.blocks[at], "index", at), False),
    "hook": (_hook, True),
    "no bias": (lambda stack, at: setattr(stack.blocks[at].inner.fc, "bias", None), True),
    "eps": (lambda stack, at: setattr(stack.blocks[at].inner.norm, "eps", 1e-3), True),
    "dtype of a buffer": (_dtype_of_buffer, True),
    "strides": (_strides, True),
    "config": (_config, True),
    "equal config": (_equal_config, True),
    "tied to another layer": (_tied, True),
    "tied inside": (_tied_inside, True),
    "memory shared": (_view, True),
    "leaf shared": (_shared_leaf, True),
    "leaf twice": (_shared_in_block, True),
    "block twice": (_repeated, True),
    "sibling": (_sibling, True),
    "itself": (_itself, True),
    "forward of its own": (_own_forward, True),
    "subclass": (_subclass, True),
    "frozen": (_frozen, True),
    "training": (_training, True),
}


class Captured:
    """One capture: graphs as text, guards, the result, and the modules whose calls were not traced."""

    def __init__(self, stack: nn.Module, args: tuple[Any, ...], share: bool, grad: bool) -> None:
        self.graphs: list[str] = []
        self.guards: list[list[tuple[str, Any]]] = []
        self.replayed: list[nn.Module] = []
        COUNTER.n = 0
        dynajit.reset()
        build, run = machine.GuardSet.build, Replay.run

        def built(guards: Any, *more: Any, **named: Any) -> Any:
            text = [(re.sub("0x[0-9a-f]+", "", one.describe()), one.user_loc) for one in guards]
            self.guards.append(text)
            return build(guards, *more, **named)

        def ran(replay: Replay) -> Any:
            found = run(replay)
            if found is not None:
                self.replayed.append(replay.module.real_object)
            return found

        with pytest.MonkeyPatch.context() as patch, dynajit.config.patch(share_layers=share):
            patch.setattr(machine.GuardSet, "build", built)
            patch.setattr(Replay, "run", ran)
            compiled = dynajit.compile(stack, backend=self._backend)
            with torch.set_grad_enabled(grad):
                self.results = [self._call(compiled, stack, args, grad) for _ in range(2)]
        self.count = COUNTER.n

    def _backend(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        nodes = [
            (node.format_node(), node.meta.get("stack_trace"), str(node.meta.get("example_value")))
            for node in gm.graph.nodes
        ]
        self.graphs.append(re.sub("0x[0-9a-f]+", "", f"{nodes}"))
        return gm.forward

    @staticmethod
    def _call(compiled: Any, stack: nn.Module, args: tuple[Any, ...], grad: bool) -> list[Any]:
        torch.manual_seed(1)
        found = compiled(*args)
        if grad and found.requires_grad:
            found.sum().backward()
        gradients = [p.grad for p in stack.parameters()]
        stack.zero_grad()
        return [found.detach(), *gradients]


def check(stack: nn.Module, args: tuple[Any, ...], grad: bool) -> Captured:
    """Summaries change nothing; the capture that has them."""
    shared, plain = Captured(stack, args, True, grad), Captured(stack, args, False, grad)
    assert shared.graphs == plain.graphs
    assert shared.guards == plain.guards
    assert plain.replayed == []
    COUNTER.n = 0
    with torch.set_grad_enabled(grad):
        for eager, one, other in zip(
            [Captured._call(stack, stack, args, grad) for _ in range(2)], shared.results, plain.results, strict=True
        ):
            for expected, found, again in zip(eager, one, other, strict=True):
                assert (expected is None) == (found is None) == (again is None)
                if expected is not None:
                    torch.testing.assert_close(found, expected)
                    assert torch.equal(found, again)
    assert shared.count == plain.count == COUNTER.n
    return shared


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_block_that_differs(what: str, grad: bool) -> None:
    torch.manual_seed(0)
    stack = Stack(6).eval()
    change, traced = DIFFERENCES[what]
    change(stack, 3)
    found = check(stack, (torch.randn(3, WIDTH), None), grad)
    blocks = list(stack.blocks)
    replayed = [any(one is block for one in found.replayed) for block in blocks]
    assert not replayed[0]
    if what != "break":
        assert replayed[2] and replayed[5]
    assert replayed[3] is not traced


def test_equal_blocks_that_all_differ_from_their_class() -> None:
    torch.manual_seed(0)
    stack = Stack(4).eval()
    for at in range(4):
        _set(scale=3.5, names=["z"])(stack, at)
    found = check(stack, (torch.randn(3, WIDTH), torch.rand(3, WIDTH) > 0.5), False)
    assert [any(one is block for one in found.replayed) for block in stack.blocks] == [False, False, True, True]


def test_what_is_written_in_the_block_is_written() -> None:
    """A list that is handed on is no part of a summary."""
    found = check(Stack(4, seen=True).eval(), (torch.randn(3, WIDTH), None), False)
    assert not any(isinstance(one, Block) for one in found.replayed)
    assert any(isinstance(one, Leaf) for one in found.replayed)


@pytest.mark.parametrize("seed", range(25))
def test_stacks_at_random(seed: int) -> None:
    """Four stacks of each seed: some blocks differ in some ways, all are called in some mode."""
    rng = random.Random(seed)
    for _ in range(4):
        torch.manual_seed(rng.randrange(1000))
        stack = Stack(rng.randint(2, 6), seen=rng.random() < 0.2)
        stack.train(rng.random() < 0.2)
        names = rng.sample([*DIFFERENCES], rng.randint(1, 3))
        for name in names:
            change, _ = DIFFERENCES[name]
            for at in rng.sample(range(len(stack.blocks)), rng.randint(1, len(stack.blocks))):
                if not (isinstance(stack.blocks[at].inner, Leaf) and type(stack.blocks[at].inner) is not Leaf):
                    change(stack, at)
        mask = torch.rand(3, WIDTH) > 0.5 if rng.random() < 0.5 else None
        check(stack, (torch.randn(3, WIDTH), mask), rng.random() < 0.4)
