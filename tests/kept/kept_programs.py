"""Programs that `test_kept_processes.py` runs in one process and again in a second one. Prints JSON: for each program
what a call gives, and how it came about.

    python kept_programs.py CACHE [PROGRAM ...]
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import dynajit

x = torch.linspace(-1, 1, 24).reshape(4, 6)


class Shape(enum.Enum):
    WIDE = "wide"
    TALL = "tall"


@dataclasses.dataclass
class Settings:
    scale: float = 2.0
    shape: Shape = Shape.WIDE


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.together = nn.Linear(width, 3 * width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.settings = Settings()

    def forward(self, x: Any, *, keep: bool = True) -> Any:
        y = self.norm(x)
        y = x + F.scaled_dot_product_attention(*self.together(y).chunk(3, -1), is_causal=True)
        y = y + self.down(F.gelu(self.up(y))) * self.settings.scale
        return {"y": y, "kept": (y.sum(), keep)} if self.settings.shape is Shape.WIDE else y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(6) for _ in range(3))
        self.embedding = nn.Embedding(10, 6)

    def forward(self, index: Any) -> Any:
        y, kept = self.embedding(index), []
        for block in self.blocks:
            found = block(y)
            y = found["y"]
            kept.append(found["kept"])
        return y, kept


def scaled(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) * 2

    return wrapper


@scaled
def decorated(x: Any) -> Any:
    return x.sin() + 1


def names_in_set(x: Any) -> Any:
    """Members are asked for; their order, which is another one in each process, is not."""
    return x * 2 if "wide" in {"wide", "tall", "deep"} and {"b"} <= NAMES else x


NAMES = {"a", "b", "c", "d"}


def order_of_set(x: Any) -> Any:
    return x, list(NAMES)


def address(x: Any) -> Any:
    return x + 1, hash("text")


def class_made_inside(x: Any) -> Any:
    class Local:
        factor = 2

    return x * Local.factor


def changes_list(x: Any, items: list[Any]) -> Any:
    items.append(x * 2)
    return items[0] + 1


def in_place(x: Any, y: Any) -> Any:
    x.add_(y)
    return x * 2


def random_numbers(x: Any) -> Any:
    return F.dropout(x, 0.5, True) + torch.rand(6)


def sizes(x: Any) -> Any:
    return x.reshape(-1, x.shape[0] // 2) * x.shape[1]


def broken(x: Any) -> Any:
    y = x + 1
    print(end="")
    return y * 2


class Pair(NamedTuple):
    first: Any
    second: int = 3


def named_tuple(x: Any, given: Pair) -> Any:
    return Pair(x + given.first * given.second), Pair(x, 4)._replace(first=x * 2)


@dataclasses.dataclass
class Result:
    value: Any
    parts: list[Any] = dataclasses.field(default_factory=list)


def data_class(x: Any) -> Any:
    made = Result(x * 2)
    made.parts.append(x + 1)
    return made.value, made.parts, str(dataclasses.fields(made)[0].name)


def notebook_cell() -> Callable[[Any], Any]:
    """A function whose file is none, and has another name in each process."""
    text = "def cell(x):\n    print(end='')\n    return x.sin() + 1\n"
    exec(compile(text, f"/nowhere/{os.getpid()}.py", "exec"), globals())
    cell: Callable[[Any], Any] = globals()["cell"]
    return cell


def own_globals() -> Callable[[Any], Any]:
    """A function whose globals are no module's."""
    world: dict[str, Any] = {"by": 2.0, "__name__": "nowhere"}
    text = "def scaled(x):\n    global n\n    y = x * by\n    n = 1\n    print(end='')\n    return y * by + n\n"
    exec(compile(text, "nowhere", "exec"), world)
    scaled: Callable[[Any], Any] = world["scaled"]
    return scaled


def broken_loop(x: Any, names: list[str]) -> Any:
    total = x * 0
    for number, name in enumerate(names):
        total = total + x * number
        print(end="")
        if name == "stop":
            break
        total = total.cos() + len(name)
    return total, number


def helper_with_break(x: Any, by: float) -> Any:
    y = x * by
    print(end="")
    return y + 1


def broken_inside(x: Any) -> Any:
    y = x + 1
    for by in (1.0, 2.0, 3.0):
        y = helper_with_break(y, by) * 2
    return helper_with_break(y, 4.0).sin()


def bad_index_after_break(x: Any, index: Any, table: Any) -> Any:
    y = x + 1
    print(end="")
    return y.sum() + F.embedding(index, table)


class Table(nn.Module):
    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.register_buffer("index", torch.tensor(numbers))

    def forward(self, x: Any) -> Any:
        return (self.table(self.index) * x[0]).exp()


def broken_in_blocks(x: Any) -> Any:
    try:
        with torch.inference_mode(False):
            y = x + 1
            print(end="")
            y = y * 2
            raise KeyError(y.shape[0])
    except KeyError as error:
        return x * error.args[0] + y


def branches(x: Any) -> Any:
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y * 3


def broken_closure(by: float) -> Callable[[Any], Any]:
    def inner(x: Any) -> Any:
        nonlocal by
        y = x * by
        print(end="")
        by += 1
        return y * by, [part * by for part in (x, y)]

    return inner


def broken_comprehension(x: Any) -> Any:
    return [(x * part.item()).sum() for part in x[0]]


class Sizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
            if x.sum().item() > 100:
                break
            x = x.relu()
        return x


# run by `training_step`
TRAINING: dict[str, Callable[[], tuple[Any, ...]]] = {
    "training": lambda: (nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5)), x.clone()),
    "two results": lambda: (two_results, x.clone()),
    "three results, each by itself": lambda: (lambda a: (a.sin() * a, a.exp() + a.cos(), a.tanh()), x.clone()),
    "four results": lambda: (Heads(), x.clone()),
    "a trained slice": lambda: (lambda a: a[..., :3].exp() * a[..., None, 3:].sum(-1), x.clone()),
    "a trained table": lambda: (Table(1, 3, 1), x.clone()),
    "a trained table with a bad index": lambda: (Table(1, 99), x.clone()),
    "differentiated twice": lambda: (nn.Sequential(nn.Linear(6, 5), nn.Tanh()), x.clone(), 2),
    "a trained convolution": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8),
    ),
}
PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "network": lambda: (Net().eval(), torch.arange(5)[None]),
    "decorated": lambda: (decorated, x.clone()),
    "lambda": lambda: (lambda a: a.cos() * 3, x.clone()),
    "partial": lambda: (functools.partial(lambda a, b: a * b, b=4), x.clone()),
    "names in a set": lambda: (names_in_set, x.clone()),
    "order of a set": lambda: (order_of_set, x.clone()),
    "a hash": lambda: (address, x.clone()),
    "a local class": lambda: (class_made_inside, x.clone()),
    "a list that grows": lambda: (changes_list, x.clone(), [x.clone()]),
    "in place": lambda: (in_place, x.clone(), x[:1].clone()),
    "in place, overlapping": lambda: (in_place, (base := x.clone()), base[:1]),
    "random": lambda: (random_numbers, x.clone()),
    "sizes": lambda: (sizes, x.clone()),
    "a bad index": lambda: (Net().eval(), torch.tensor([[1, 99]])),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(),
        torch.ones(1, 3, 8, 8),
    ),
    "recurrent": lambda: (nn.GRU(6, 5, batch_first=True).eval(), x[None].clone()),
    "a named tuple": lambda: (named_tuple, x.clone(), Pair(x[0])),
    "a data class": lambda: (data_class, x.clone()),
    "a notebook's cell": lambda: (notebook_cell(), x.clone()),
    "globals of its own": lambda: (own_globals(), x.clone()),
    "a break": lambda: (broken, x.clone()),
    "a break in a loop": lambda: (broken_loop, x.clone(), ["a", "bc", "stop", "d"]),
    "a break in a call": lambda: (broken_inside, x.clone()),
    "a break in blocks": lambda: (broken_in_blocks, x.clone()),
    "a bad index after a break": lambda: (bad_index_after_break, x.clone(), torch.tensor([1, 99]), x.clone()),
    "a branch": lambda: (branches, x.clone()),
    "a break in a closure": lambda: (broken_closure(2.0), x.clone()),
    "a break in a comprehension": lambda: (broken_comprehension, x.clone()),
    "a break in a module's loop": lambda: (Sizes().eval(), x.clone()),
}


def training_step(model: Any, x: Any, times: int = 1) -> Any:
    """The results and the gradients, of each result alone, and those that `create_graph` gives."""
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        found = model(x)
        results = found if isinstance(found, tuple) else (found,)
        wanted = [x, *model.parameters()] if isinstance(model, nn.Module) else [x]
        loss = sum((result * result).mean() for result in results)
        first = torch.autograd.grad(loss, wanted, create_graph=times > 1, retain_graph=True)
        if times > 1:
            return torch.autograd.grad(sum((part * part).sum() for part in first), wanted, allow_unused=True)
        alone = [torch.autograd.grad(r.mean(), wanted, allow_unused=True, retain_graph=True) for r in results]
        return found, first, alone


def two_results(x: Any) -> Any:
    y = x.sin() * 2
    return y, (y * x).exp()


class Heads(nn.Module):
    """Four results, of which the last is computed from two of them; one has an infinite derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        a, b = self.first(x), self.second(x.sin())
        return a, b, (x - x.detach()).abs().sqrt(), (a * b).tanh() + a


def shown(value: Any) -> Any:
    """What a result is, for comparing."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.double().flatten().tolist()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(shown, value)]
    if isinstance(value, dict):
        return {str(key): shown(item) for key, item in value.items()}
    return repr(value)


def outcome(fn: Any, args: tuple[Any, ...]) -> Any:
    torch.manual_seed(3)
    try:
        result = fn(*args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return [shown(result), shown(list(args))]


def main() -> None:
    torch.set_num_threads(1)
    dynajit.config.cache_dir = sys.argv[1]
    dynajit.config.keep_variants = True
    found = {}
    with torch.no_grad():
        for name in sys.argv[2:] or (*PROGRAMS, *TRAINING):
            torch.manual_seed(1)
            fn, *args = (PROGRAMS | TRAINING)[name]()
            torch.manual_seed(1)
            eager, *others = (PROGRAMS | TRAINING)[name]()
            dynajit.counters.clear()
            compiled = dynajit.compile(fn)
            if name in TRAINING:
                compiled, eager = (functools.partial(training_step, each) for each in (compiled, eager))
            calls = [outcome(compiled, tuple(args)) for _ in range(2)]
            expected = [outcome(eager, tuple(others)) for _ in range(2)]
            counts = {"frames": dynajit.counters["frames"]["total"], **dynajit.counters["kept"]}
            found[name] = {"calls": calls, "expected": expected, "counts": counts}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
