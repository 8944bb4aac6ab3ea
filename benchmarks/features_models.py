"""Models and what surrounds them as people write them around torch.compile; see features.py."""

import collections
import copy
import dataclasses
import enum
import functools
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from feature_table import Made, feature, varied_feature
from features_loops import Rounded, batches, labelled, small_net, told
from torch import Tensor, nn

MODELS = "models of users"
models = functools.partial(varied_feature, MODELS)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.cell, self.out = nn.Embedding(7, 6), nn.GRUCell(6, 6), nn.Linear(6, 7)

    @torch.no_grad()
    def forward(self, state: Tensor, beams: int = 2, steps: int = 3) -> Any:
        """Beam search with scores and back pointers."""
        n = state.shape[0]
        state = state.repeat_interleave(beams, 0)
        words = torch.zeros(n, beams, 1, dtype=torch.long)
        scores = torch.full((n, beams), float("-inf"))
        scores[:, 0] = 0.0
        for _ in range(steps):
            state = self.cell(self.embed(words[..., -1].flatten()), state)
            spread = scores.unsqueeze(-1) + self.out(state).log_softmax(-1).view(n, beams, -1)
            scores, flat = spread.flatten(1).topk(beams, dim=-1)
            origin, word = flat.div(7, rounding_mode="floor"), flat % 7
            words = torch.cat([words.gather(1, origin.unsqueeze(-1).expand_as(words)), word.unsqueeze(-1)], -1)
            rows = (torch.arange(n).unsqueeze(1) * beams + origin).flatten()
            state = state.index_select(0, rows)
        return words, scores


@models("beam search of an RNN decoder", *batches(6, many=(2, 3, 2, 4)))
def _() -> Any:
    return Decoder()


@models("greedy decoding until a word, by a tensor's truth", *batches(6, many=(2, 3, 2, 3)))
def _() -> Any:
    net = Decoder()

    def decode(state: Tensor) -> Tensor:
        word, said = torch.zeros(state.shape[0], dtype=torch.long), []
        for _ in range(5):
            state = net.cell(net.embed(word), state)
            word = net.out(state).argmax(-1)
            said.append(word)
            if (word == 0).all():
                break
        return torch.stack(said, 1)

    return decode


class Message(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.edge, self.node = nn.Linear(2 * width, width), nn.GRUCell(width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        sent = self.edge(torch.cat([x[source], x[target]], -1)).relu()
        gathered = torch.zeros_like(x).index_add(0, target, sent)
        degree = torch.zeros(len(x)).scatter_add(0, target, torch.ones(len(target))).clamp(min=1)
        return self.node(gathered / degree.unsqueeze(-1), x)


@models(
    "graph network with index_add and scatter_add, trained",
    *[(torch.randn(n, 4), torch.randint(n, (2, e))) for n, e in ((4, 7), (5, 9), (4, 7), (6, 3))],
)
def _() -> Any:
    net = nn.ModuleList([Message(4), Message(4)])

    def step(x: Tensor, edges: Tensor) -> Any:
        for layer in net:
            x = x + layer(x, edges)
        loss = x.pow(2).mean()
        net.zero_grad()
        loss.backward()
        return loss.detach(), told(net)

    return step


class Kind(str, enum.Enum):  # noqa: UP042 - as people write it
    RELU = "relu"
    GELU = "gelu"
    NONE = "none"

    @property
    def fn(self) -> Callable[[Tensor], Tensor]:
        return {"relu": F.relu, "gelu": F.gelu}.get(self.value, lambda x: x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    width: int = 5
    kinds: tuple[Kind, ...] = (Kind.RELU, Kind.GELU, Kind.NONE)
    drop: float = 0.0
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def scaled(self, by: int) -> "Config":
        return dataclasses.replace(self, width=self.width * by)


class Configured(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.config = config
        self.layers = nn.ModuleList(nn.Linear(config.width, config.width) for _ in config.kinds)

    def forward(self, x: Tensor, *, mode: str = "full") -> Any:
        for kind, layer in zip(self.config.kinds, self.layers, strict=True):
            match (mode, kind):
                case ("full", Kind.RELU | Kind.GELU):
                    x = kind.fn(layer(x))
                case ("full", Kind.NONE):
                    x = layer(x) * self.config.extra.get("scale", 0.5)
                case (str() as other, _) if other.startswith("skip"):
                    continue
                case _:
                    raise ValueError(f"{mode=} with {kind!r} of {dataclasses.asdict(self.config)['kinds']}")
        return x.sum(), self.config.scaled(2).width


@models(
    "frozen dataclass configuration, enums, match",
    *[(x, mode) for (x,), mode in zip(batches(5), ("full", "skip", "bad", "full"), strict=True)],
)
def _() -> Any:
    net = Configured(Config(extra={"scale": 2.0}))
    return lambda x, mode: net(x, mode=mode)


class Output(collections.OrderedDict):
    """As transformers' ModelOutput: keys, attributes and places."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self[key] for key in self.keys())


@models("dictionary subclass with attributes and places as the result", *labelled(5, 3))
def _() -> Any:
    net = small_net()

    def run(x: Tensor, y: Tensor) -> Any:
        out = Output(logits=net(x))
        out["loss"] = F.cross_entropy(out.logits, y)
        out.loss = out.loss * 2
        first, *rest = out.to_tuple()
        return dict(out), first is out.logits, len(rest), out[1], list(out), type(out).__name__

    return run


class Wrapped(nn.Module):
    """Forwards attributes, has `__call__` of its own, counts."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return super().__call__(*args, **kwargs) * self.gain

    @property
    def gain(self) -> float:
        return self.__dict__.get("_gain", 1.0) + self.calls % 2

    @gain.setter
    def gain(self, value: float) -> None:
        self.__dict__["_gain"] = value

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self[0].bias.sum()

    def __getitem__(self, i: int) -> nn.Module:
        return self.inner[i]


@models("module with __getattr__, __call__, __getitem__, a property that is set", *batches(5))
def _() -> Any:
    net = Wrapped(small_net())

    def run(x: Tensor) -> Any:
        net.gain = float(len(x))
        return net(x).sum(), net.calls, net.gain, type(net[1]).__name__

    return run


class Lazy:
    """A descriptor that computes once."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        if obj is None:
            return self
        value = obj.__dict__[self.name] = self.fn(obj)
        return value


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.qkv, self.out = nn.Linear(6, 18, bias=False), nn.Linear(6, 6)
        self.cache: dict[int, Tensor] = {}

    @Lazy
    def scale(self) -> float:
        return 3**-0.5

    def mask(self, n: int) -> Tensor:
        if n not in self.cache:
            self.cache[n] = torch.ones(n, n).tril().bool()
        return self.cache[n]

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 2, 3).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        weights = scores.masked_fill(~self.mask(n), float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, -1))


@models("attention with a mask cache and a lazy descriptor", *[(torch.randn(2, n, 6),) for n in (3, 4, 3, 5)])
def _() -> Any:
    return Attention()


@models("key-value cache written in place, position counted", *[(torch.randn(2, n, 6),) for n in (3, 1, 1, 1)])
def _() -> Any:
    net = Attention()
    keys, values, at = torch.zeros(2, 8, 6), torch.zeros(2, 8, 6), torch.zeros((), dtype=torch.long)
    place = {"n": 0}

    @torch.no_grad()
    def run(x: Tensor) -> Any:
        q, k, v = net.qkv(x).chunk(3, -1)
        n, start = x.shape[1], place["n"]
        keys[:, start : start + n].copy_(k)
        values.index_copy_(1, torch.arange(n) + at, v)
        at.add_(n)
        place["n"] += n
        seen = F.scaled_dot_product_attention(q, keys[:, : start + n], values[:, : start + n])
        return seen, keys.clone(), at.clone(), dict(place)

    return run


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.gate, self.experts = nn.Linear(5, 3), nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.register_buffer("load", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            hit = (chosen == i).any(-1)
            if hit.any():
                share = (weights * (chosen == i)).sum(-1)[hit]
                out[hit] += expert(x[hit]) * share.unsqueeze(-1)
        self.load += F.one_hot(chosen, 3).sum((0, 1))
        return out


@models("mixture of experts with masks, trained", *batches(5))
def _() -> Any:
    net = Router()

    def step(x: Tensor) -> Any:
        net.zero_grad()
        out = net(x).sum()
        out.backward()
        return out.detach(), told(net)

    return step


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.join, self.leaf = nn.Linear(8, 4), nn.Linear(4, 4)

    def forward(self, tree: Any) -> Tensor:
        if isinstance(tree, Tensor):
            return self.leaf(tree)
        return torch.tanh(self.join(torch.cat([self(part) for part in tree])))


@models(
    "recursive network over nested tuples",
    *[
        (tree,)
        for tree in (
            (torch.randn(4), (torch.randn(4), torch.randn(4))),
            ((torch.randn(4), torch.randn(4)), torch.randn(4)),
            (torch.randn(4), (torch.randn(4), torch.randn(4))),
            torch.randn(4),
        )
    ],
)
def _() -> Any:
    return Tree()


@models(
    "packed sequences through an LSTM",
    *[
        (torch.randn(3, n, 5), torch.tensor(lengths))
        for n, lengths in ((4, [4, 2, 1]), (5, [3, 5, 2]), (4, [4, 4, 1]), (3, [3, 3, 3]))
    ],
)
def _() -> Any:
    torch.manual_seed(13)
    lstm = nn.LSTM(5, 4, batch_first=True, bidirectional=True)

    def run(x: Tensor, lengths: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, (h, _) = lstm(packed)
        padded, n = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return padded.sum(), h, n

    return run


@models("compiled module: deepcopy, pickle, state_dict round trip", *batches(5))
def _() -> Any:
    net = small_net()

    def run(x: Tensor) -> Any:
        copied = copy.deepcopy(net)
        stream = io.BytesIO()
        torch.save(net.state_dict(), stream)
        stream.seek(0)
        copied.load_state_dict(torch.load(stream))
        again = pickle.loads(pickle.dumps(net))
        return (copied(x) + again(x)).sum(), list(copied.state_dict())

    return run


@models("thread's number and name as keys of a cache", *batches(5))
def _() -> Any:
    caches: dict[int, dict[int, Tensor]] = collections.defaultdict(dict)
    local = threading.local()

    def run(x: Tensor) -> Any:
        mine = caches[threading.get_ident()]
        n = x.shape[0]
        if n not in mine:
            mine[n] = torch.arange(n, dtype=torch.float32)
        local.count = getattr(local, "count", 0) + 1
        main = threading.current_thread() is threading.main_thread()
        return (x * mine[n].unsqueeze(-1)).sum(), len(mine), local.count, main

    return run


@feature(MODELS, "asyncio: a compiled step awaited by a coroutine")
def _() -> Made:
    import asyncio

    net = small_net()

    async def load(x: Tensor) -> Tensor:
        await asyncio.sleep(0)
        return x * 2

    async def both(x: Tensor) -> Tensor:
        a, b = await asyncio.gather(load(x), load(x + 1))
        return net(a + b).sum()

    return lambda x: asyncio.run(both(x)), torch.randn(4, 5)


class Quantised(nn.Module):
    """Keeps `Function.apply` as an attribute, a partial, a method and in a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.round = Rounded.apply
        self.few = functools.partial(lambda fn, bits, *args: fn(*args, bits), Rounded.apply, 3)
        self.table = {8: self.by_method, 4: Rounded.apply}

    def by_method(self, x: Tensor, scale: Tensor, bits: int) -> Tensor:
        return type(self).function.apply(x, scale, bits)

    function = Rounded

    def forward(self, x: Tensor, bits: int) -> Tensor:
        weight = self.round(self.inner.weight, self.scale, bits)
        y = F.linear(self.few(x, self.scale), weight, self.inner.bias)
        return self.table[bits](y, self.scale, bits).sum()


@models(
    "autograd.Function as attribute, partial, method, in a table",
    *[(x.requires_grad_(), bits) for (x,), bits in zip(batches(5), (8, 4, 8, 4), strict=True)],
)
def _() -> Any:
    return Quantised()
