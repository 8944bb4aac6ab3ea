"""Calls of equal modules that read and write an object made while tracing: a cache that each layer has a place in.

The forward of a stack makes the cache, each block finds its place by its own number and leaves tensors there. Then one
block, or what the program does with the cache between two calls, differs. Each is captured with and without summaries
(`check`): graph, guards and results are the same, and the results are eager's.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_summaries import Captured, check
from torch import Tensor, nn

WIDTH = 4


class Entry:
    filled = False  # once the entry's own is deleted

    def __init__(self) -> None:
        self.keys: Any = None
        self.filled = False

    def update(self, keys: Tensor) -> Tensor:
        if not self.filled:
            self.device = keys.device
            self.keys = torch.tensor([], dtype=keys.dtype)
            self.filled = True
        self.keys = torch.cat([self.keys, keys])
        return self.keys


class Slotted(Entry):
    __slots__ = ("extra",)

    def update(self, keys: Tensor) -> Tensor:
        self.extra = getattr(self, "extra", 1) + 1
        return super().update(keys) * self.extra


class Counting(Entry):
    count = 0

    def update(self, keys: Tensor) -> Tensor:
        self.count += 1
        return super().update(keys) * self.count


class Cache:
    def __init__(self, depth: int, kind: type = Entry) -> None:
        self.entries = [kind() for _ in range(depth)]
        self.scale = 2.0
        self.last: Any = None
        self.log: list[Tensor] = []
        self.calls = 0


Use = Callable[[Any, Tensor, Cache], Tensor]


def plain(block: Any, x: Tensor, cache: Cache) -> Tensor:
    return cache.entries[block.index].update(x)


def depends(block: Any, x: Tensor, cache: Cache) -> Tensor:
    return cache.entries[block.index].update(x) * (block.index + 1)


def branches(block: Any, x: Tensor, cache: Cache) -> Tensor:
    y = cache.entries[block.index].update(x)
    return y * 3 if block.index > 1 else y


def length(block: Any, x: Tensor, cache: Cache) -> Tensor:
    return cache.entries[block.index].update(x) * len(cache.entries)


def negative(block: Any, x: Tensor, cache: Cache) -> Tensor:
    return cache.entries[-1 - block.index].update(x)


def walks(block: Any, x: Tensor, cache: Cache) -> Tensor:
    cache.entries[block.index].update(x)
    return x + sum(entry.keys.sum() for entry in cache.entries if entry.filled)


def before(block: Any, x: Tensor, cache: Cache) -> Tensor:
    """Reads what the call before left; the first finds None."""
    y = cache.entries[block.index].update(x)
    if isinstance(cache.last, Tensor):
        y = y + cache.last.sum()
    cache.last = y * 2
    return y


def chain(block: Any, x: Tensor, cache: Cache) -> Tensor:
    """Leaves the entry itself behind: whether it is this one's tells them apart."""
    entry = cache.entries[block.index]
    y = entry.update(x) * (2 if cache.last is entry else 3)
    cache.last = entry
    return y


def appends(block: Any, x: Tensor, cache: Cache) -> Tensor:
    cache.log.append(x)
    return cache.entries[block.index].update(x)


def counts(block: Any, x: Tensor, cache: Cache) -> Tensor:
    cache.calls += 1
    return cache.entries[block.index].update(x) * cache.calls


def scaled(block: Any, x: Tensor, cache: Cache) -> Tensor:
    return cache.entries[block.index].update(x) * cache.scale


def vanishing(block: Any, x: Tensor, cache: Cache) -> Tensor:
    y = cache.entries[block.index].update(x)
    cache.entries[block.index].filled = True
    del cache.entries[block.index].filled
    return y


def asks(block: Any, x: Tensor, cache: Cache) -> Tensor:
    y = cache.entries[block.index].update(x)
    return y * 5 if hasattr(cache, "extra") else y


def lists(block: Any, x: Tensor, cache: Cache) -> Tensor:
    y = cache.entries[block.index].update(x)
    return y * len(vars(cache.entries[block.index]))


def in_place(block: Any, x: Tensor, cache: Cache) -> Tensor:
    y = cache.entries[block.index].update(x)
    cache.entries[block.index].keys.add_(1)
    return y


def new_list(block: Any, x: Tensor, cache: Cache) -> Tensor:
    y = cache.entries[block.index].update(x)
    cache.last = [y, x]
    return y


def breaks(block: Any, x: Tensor, cache: Cache) -> Tensor:
    y = cache.entries[block.index].update(x)
    return y * float(y.sum() > 1e9)


# how a block uses the cache -> whether equal blocks' calls are built from a summary
USES: dict[str, tuple[Use, bool]] = {
    "plain": (plain, True),
    "depends on its number": (depends, False),
    "branches on its number": (branches, False),
    "length": (length, False),
    "negative index": (negative, False),
    "walks": (walks, False),
    "what was left before": (before, True),
    "chain": (chain, True),
    "appends": (appends, False),
    "counts": (counts, False),
    "scaled": (scaled, True),
    "vanishing": (vanishing, False),
    "asks": (asks, True),
    "all attributes": (lists, False),
    "in place": (in_place, False),
    "new list": (new_list, False),
    "break": (breaks, False),
}


class Block(nn.Module):
    def __init__(self, index: int, use: Use) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.index = index
        self.use = use

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        return x + self.use(self, self.fc(x), cache).sum(0)


class Outer(nn.Module):
    """A block whose inner one has the number: summaries within summaries."""

    def __init__(self, index: int, use: Use) -> None:
        super().__init__()
        self.inner = Block(index, use)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        return self.norm(self.inner(x, cache)) + x


Between = Callable[[Cache, int], object]


class Stack(nn.Module):
    def __init__(self, depth: int, use: Use, kind: type = Entry, nested: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList((Outer if nested else Block)(at, use) for at in range(depth))
        self.kind = kind
        self.between: dict[int, Between] = {}
        self.rounds = 1

    def block(self, at: int) -> Any:
        return getattr(self.blocks[at], "inner", self.blocks[at])

    def forward(self, x: Tensor) -> Tensor:
        x, cache = x * 2, Cache(len(self.blocks), self.kind)
        for _ in range(self.rounds):
            for at, block in enumerate(self.blocks):
                if at in self.between:
                    self.between[at](cache, at)
                x = block(x, cache)
        for at, entry in enumerate(cache.entries):
            if entry.keys is not None:
                x = x + entry.keys.sum() * (at + 1) + len(vars(entry))
        for name in vars(cache.entries[-1]):
            x = x * len(name)
        return x + (cache.last.sum() if isinstance(cache.last, Tensor) else 0) + cache.calls + len(cache.log)


def _scale(cache: Cache, at: int) -> None:
    cache.scale = 3.0


def _fill(cache: Cache, at: int) -> None:
    cache.entries[at].filled = True
    cache.entries[at].keys = torch.ones(1, WIDTH)


def _repeated(cache: Cache, at: int) -> None:
    cache.entries[at] = cache.entries[0]


def _shorter(cache: Cache, at: int) -> None:
    cache.entries = cache.entries[:at] + [Entry()] * (len(cache.entries) - at)


def _other_kind(cache: Cache, at: int) -> None:
    cache.entries[at] = Counting()


def _extra(cache: Cache, at: int) -> None:
    cache.extra = 1  # type: ignore[attr-defined]


def _device(cache: Cache, at: int) -> None:
    """A name that a call sets is there before: it keeps its place."""
    cache.entries[at].device = None


def _own_update(cache: Cache, at: int) -> None:
    cache.entries[at].update = lambda keys: keys * 7  # type: ignore[method-assign]


def _tied(cache: Cache, at: int) -> None:
    """The last of one entry is the next one's keys."""
    cache.entries[at].keys = cache.entries[0].keys
    cache.entries[at].filled = True


# what happens before the call of a block -> whether that block has to be traced
CHANGES: dict[str, tuple[Between, bool]] = {
    "nothing": (lambda cache, at: None, False),
    "scale": (_scale, True),
    "filled": (_fill, True),
    "entry twice": (_repeated, True),
    "rest is one entry": (_shorter, False),
    "another class": (_other_kind, True),
    "another attribute": (_extra, True),
    "order of names": (_device, True),
    "a method of its own": (_own_update, True),
    "keys of another": (_tied, True),
}


def replayed(found: Captured, stack: Stack) -> list[bool]:
    return [any(one is block for one in found.replayed) for block in stack.blocks]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("what", USES)
def test_how_the_cache_is_used(what: str, nested: bool) -> None:
    torch.manual_seed(0)
    use, shared = USES[what]
    stack = Stack(6, use, nested=nested).eval()
    found = check(stack, (torch.randn(2, WIDTH),), grad=False)
    assert replayed(found, stack)[3:] == [shared] * 3


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_the_cache_differs(what: str, grad: bool) -> None:
    torch.manual_seed(0)
    change, traced = CHANGES[what]
    stack = Stack(6, lambda block, x, cache: asks(block, x, cache) * cache.scale).eval()
    stack.between = {3: change}
    found = check(stack, (torch.randn(2, WIDTH),), grad)
    assert replayed(found, stack)[2:4] == [True, not traced]


@pytest.mark.parametrize("kind", [Slotted, Counting])
def test_entries_of_other_classes(kind: type) -> None:
    stack = Stack(5, plain, kind).eval()
    found = check(stack, (torch.randn(2, WIDTH),), grad=False)
    assert replayed(found, stack)[2:] == [kind is Counting] * 3


def test_a_second_round_finds_what_the_first_left() -> None:
    stack = Stack(4, plain).eval()
    stack.rounds = 2
    check(stack, (torch.randn(2, WIDTH),), grad=False)


@pytest.mark.parametrize("index", [True, 1.0, -1, 7, None])
def test_numbers_that_are_no_place(index: Any) -> None:
    """A block's number is a bool, or no index: True is entry 1, -1 the last one; the others raise, and break."""
    stack = Stack(4, plain).eval()
    stack.block(2).index = index
    if type(index) in (bool, int) and index < 4:
        found = check(stack, (torch.randn(2, WIDTH),), grad=False)
        assert not replayed(found, stack)[2]
        return
    for share in (True, False):
        with pytest.raises((IndexError, TypeError)):
            Captured(stack, (torch.randn(2, WIDTH),), share, False)


def test_two_blocks_of_one_number() -> None:
    stack = Stack(5, plain).eval()
    stack.block(3).index = 2
    check(stack, (torch.randn(2, WIDTH),), grad=False)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, a: Any, b: Any) -> Tensor:
        return self.fc(x) * (2 if a is b else 3)


class Pairs(nn.Module):
    def __init__(self, made: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.pairs = nn.ModuleList(Pair() for _ in range(4))
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        p, q = self.made(x), self.made(x)
        first, second, third, fourth = self.pairs
        return torch.cat([first(x, p, p), second(x, p, q), third(x, q, q), fourth(x, q, p)])


@pytest.mark.parametrize(
    "made", [lambda x: x[:1], lambda x: [], lambda x: {}, lambda x: Entry(), lambda x: [Entry()], lambda x: (x[:1],)]
)
def test_one_argument_twice_is_not_two_equal_ones(made: Callable[[Tensor], Any]) -> None:
    found = check(Pairs(made).eval(), (torch.randn(2, WIDTH),), grad=False)
    assert sum(isinstance(one, Pair) for one in found.replayed) == 2


@pytest.mark.parametrize("seed", range(12))
def test_at_random(seed: int) -> None:
    """Uses, classes and changes put together."""
    rng = random.Random(seed)
    for _ in range(4):
        torch.manual_seed(rng.randrange(1000))
        depth = rng.randint(3, 6)
        use, _ = USES[rng.choice([*USES])]
        stack = Stack(depth, use, rng.choice([Entry, Entry, Counting, Slotted]), rng.random() < 0.5).eval()
        for at in rng.sample(range(1, depth), rng.randint(0, 2)):
            stack.between[at] = CHANGES[rng.choice([*CHANGES])][0]
        if rng.random() < 0.3:
            stack.block(rng.randrange(1, depth)).use = USES[rng.choice([*USES])][0]
        stack.rounds = rng.choice([1, 1, 2])
        check(stack, (torch.randn(2, WIDTH),), rng.random() < 0.3)
