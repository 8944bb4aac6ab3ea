"""Random guards on random objects, which are then changed at random: the guard program's answer against the Python
twins' answer.

In:  a seed. Out: `check_guards(seed)`: None, or what differs as text.
One more kind of object: `_WORLD`. One more kind of guard: `_guards_on`. One more change: `_CHANGES`.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynajit.guards.guard import Guard
from dynajit.guards.program import CallValues, GuardSet
from dynajit.guards.source import (
    AttrSource,
    CallSource,
    CellContentsSource,
    ClosureCellSource,
    DictKeySource,
    InstanceAttrSource,
    ItemSource,
    LocalSource,
    SizeSource,
    Source,
    StrideSource,
    TypeAttrSource,
    TypeSource,
)

LOCALS = 3
NAMES = ("a", "b", "self", "__class__", "weight", "missing")
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**40, 2**70, 0.0, -0.0, 1.0, float("nan"), float("inf"), 1j, complex(0.0, -0.0)),
    *("", "a", "ab", "ä", "weight", b"", b"a", (), (1, 2), (1, (2.0, "a")), (1, True), ..., slice(0, 1), slice(None)),
    *(int, list, torch.float32, torch.bfloat16, torch.Size([2, 3]), frozenset(), frozenset({1, "a"}), range(3)),
)


class Plain:
    shared = 1


class Slots:
    __slots__ = ("a", "b", "weight")


class Derived(Plain):
    shared = 2

    @property
    def b(self) -> int:
        return 5


class Asked:
    """Attributes by a function, which may raise."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "missing":
            raise AttributeError(name)
        return len(name)


class MyList(list):
    def __len__(self) -> int:
        return 7


class MyDict(dict):
    def __contains__(self, key: object) -> bool:
        return True


class Awkward:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = object.__hash__


def _tensor(rng: random.Random) -> torch.Tensor:
    shape = [rng.choice((0, 1, 2, 3, 5)) for _ in range(rng.randrange(4))]
    made = torch.zeros(shape, dtype=rng.choice((torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)))
    if made.dim() > 1 and rng.random() < 0.3:
        made = made.transpose(0, 1)
    if made.is_floating_point() and rng.random() < 0.3:
        made.requires_grad_()
    if made.is_floating_point() and rng.random() < 0.2:
        made = torch.nn.Parameter(made.detach())
    return _view(rng, made) if rng.random() < 0.4 else made


def _view(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """A view of it, or of a view of it, or itself computed with; in some grad mode."""
    mode = rng.choice((torch.enable_grad, torch.no_grad, torch.inference_mode))
    with mode():
        for _ in range(rng.randrange(1, 3)):
            step = rng.choice((torch.Tensor.detach, lambda t: t[...], lambda t: t.unsqueeze(0), torch.Tensor.clone))
            tensor = step(tensor)
    return tensor


def _function(rng: random.Random, depth: int) -> Any:
    first, second = value_of(rng, depth), value_of(rng, depth)

    def closed() -> Any:
        return first, second

    return closed


def _instance(rng: random.Random, depth: int) -> Any:
    made = rng.choice((Plain, Plain, Slots, Derived, Asked))()
    for name in ("a", "b", "weight"):
        if rng.random() < 0.6:
            with contextlib.suppress(AttributeError):
                setattr(made, name, value_of(rng, depth))
    return made


def _module(rng: random.Random, depth: int) -> torch.nn.Module:
    made: torch.nn.Module = rng.choice((lambda: torch.nn.Linear(2, 2), torch.nn.ReLU, torch.nn.Identity))()
    if depth and rng.random() < 0.5:
        made.a = _module(rng, depth - 1)
    if rng.random() < 0.2:
        made.register_forward_hook(lambda *args: None)
    return made


def _key(rng: random.Random) -> Any:
    return rng.choice(("a", "b", 1, True, 1.0, 0, -0.0, None, (1, 2), "weight", torch.float32))


def value_of(rng: random.Random, depth: int) -> Any:
    """A random object."""
    if not depth or rng.random() < 0.25:
        return rng.choice(SCALARS) if rng.random() < 0.8 else Awkward()
    items = range(rng.randrange(4))
    match rng.randrange(11):
        case 0:
            return [value_of(rng, depth - 1) for _ in items]
        case 1:
            return tuple(value_of(rng, depth - 1) for _ in items)
        case 2:
            return {_key(rng): value_of(rng, depth - 1) for _ in items}
        case 3:
            return collections.OrderedDict((_key(rng), value_of(rng, depth - 1)) for _ in items)
        case 4:
            return {_key(rng) for _ in items}
        case 5:
            return MyDict({_key(rng): value_of(rng, depth - 1) for _ in items})
        case 6:
            return MyList(value_of(rng, depth - 1) for _ in items)
        case 7:
            return _function(rng, depth - 1)
        case 8:
            return _module(rng, depth - 1)
        case 9:
            return _instance(rng, depth - 1)
        case _:
            return _tensor(rng)


def _steps(rng: random.Random, source: Source, value: Any) -> Source:
    """A source that leads one step on from that value; it may lead nowhere."""
    if isinstance(value, dict) and rng.random() < 0.8:
        keys = list(dict.keys(value))
        key = rng.choice(keys) if keys and rng.random() < 0.9 else _key(rng)
        return ItemSource(source, key) if rng.random() < 0.7 else DictKeySource(source, rng.randrange(4))
    if isinstance(value, (list, tuple)) and rng.random() < 0.8:
        return ItemSource(source, rng.randrange(-1, 4))
    if isinstance(value, types.FunctionType) and rng.random() < 0.8:
        return ClosureCellSource(source, rng.randrange(3))
    if isinstance(value, types.CellType) and rng.random() < 0.9:
        return CellContentsSource(source)
    if isinstance(value, torch.Tensor) and rng.random() < 0.6:
        return rng.choice((SizeSource, StrideSource))(source, rng.randrange(4))
    if isinstance(value, torch.nn.Module) and rng.random() < 0.6:
        return InstanceAttrSource(source, rng.choice(("_parameters", "_modules", "training", "_forward_hooks")))
    made = rng.randrange(5)
    if made == 0:
        return TypeSource(source)
    if made == 1 and isinstance(value, type):
        return TypeAttrSource(source, rng.choice((*NAMES, "shared")))
    if made == 2:
        return CallSource(source, _first, "first")
    return rng.choice((AttrSource, InstanceAttrSource, InstanceAttrSource))(source, rng.choice(NAMES))


def _first(value: Any) -> Any:
    return next(iter(value))


def _guards_on(rng: random.Random, source: Source, value: Any, others: list[Source]) -> Guard:
    """A guard on that value; most are true of it."""
    if rng.random() < 0.15:
        value = value_of(rng, 1)
    options: list[Callable[[], Guard]] = [
        lambda: Guard(source, "TYPE", type(value)),
        lambda: Guard(source, "ID", value),
        lambda: Guard(source, "HAS_NO_INSTANCE_ATTR", rng.choice(NAMES)),
        lambda: Guard(TypeSource(source), "HAS_NO_TYPE_ATTR", rng.choice((*NAMES, "shared"))),
        lambda: Guard(source, "PREDICATE", bool, "is true"),
        lambda: Guard(source, "CELL_EMPTY"),
        lambda: Guard(source, "NO_HOOKS"),
        lambda: Guard(source, "SAME_OBJECT", rng.choice(others)),
        lambda: Guard(source, "NOT_ALIASED", *rng.sample(others, min(2, len(others)))),
    ]
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        length = list.__len__(value) if isinstance(value, MyList) else len(value)
        options += [lambda: Guard(source, "LEN", length)] * 3
    if isinstance(value, dict):
        key = _key(rng)
        options += [lambda: Guard(source, "DICT_KEYS", list(dict.keys(value)))] * 3
        options += [
            lambda: Guard(source, "DICT_CONTAINS" if dict.__contains__(value, key) else "DICT_MISSING", key)
        ] * 3
    if isinstance(value, (set, frozenset)):
        options += [lambda: Guard(source, "SET_EQUALS", value)] * 4
    if isinstance(value, torch.Tensor):
        free = [None if rng.random() < 0.3 else size for size in value.shape]
        options += [
            lambda: Guard(source, "TENSOR", value, tuple(free), None if rng.random() < 0.5 else value.stride())
        ] * 6
    if any(value is one for one in SCALARS) and not isinstance(value, (type, torch.dtype, range)):
        options += [lambda: Guard(source, "EQUALS", value)] * 6
    if type(value) is int and abs(value) < 1 << 40:
        relation = (rng.choice(("lt", "le", "eq", "ne", "gt")), "n", ("add", ("mul", "n", rng.randint(-3, 3)), 1))
        options += [lambda: Guard(source, "RELATION", relation, ("n",), (), "")] * 3
    return rng.choice(options)()


def _reached(source: Source, locals: tuple[Any, ...]) -> Any:
    """What the source leads to, by the twin's reading."""
    from dynajit.guards.source import Environment

    base = None if source.base is None else _reached(source.base, locals)
    return source.read(base, Environment(locals, {}))


def random_guards(rng: random.Random, locals: tuple[Any, ...]) -> GuardSet:
    """Guards on what can be reached from the locals."""
    guards = GuardSet()
    reached: list[Source] = [LocalSource(at, f"x{at}") for at in range(LOCALS)]
    for _ in range(rng.randrange(2, 25)):
        source = rng.choice(reached)
        try:
            if rng.random() < 0.6:
                source = _steps(rng, source, _reached(source, locals))
            value = _reached(source, locals)
        except LookupError:
            value = None
        else:
            reached.append(source)
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # a guard that can't be made of this value
            guard = _guards_on(rng, source, value, reached)
            alone = GuardSet()
            alone.add(guard)
            if alone.check_python(locals) < 0 or rng.random() < 0.03:
                guards.add(guard)
    return guards


def _change(rng: random.Random, value: Any) -> None:
    """Change the object, or what it holds, in place."""
    items = list(value) if isinstance(value, (list, tuple)) else []
    if items and (isinstance(value, tuple) or rng.random() < 0.5):
        _change(rng, rng.choice(items))
        return
    if isinstance(value, list):
        value.append(value_of(rng, 1)) if rng.random() < 0.5 or not list.__len__(value) else value.pop()
    elif isinstance(value, dict):
        key = rng.choice(list(value)) if list(value) and rng.random() < 0.6 else _key(rng)
        if dict.__contains__(value, key) and rng.random() < 0.5:
            value.__setitem__(key, value.pop(key)) if rng.random() < 0.5 else value.pop(key)
        else:
            value[key] = value_of(rng, 1)
    elif isinstance(value, set):
        value.symmetric_difference_update({_key(rng)})
    elif isinstance(value, torch.nn.Module):
        value.train(not value.training) if rng.random() < 0.5 else value.register_forward_hook(lambda *args: None)
    elif isinstance(value, torch.Tensor):
        _change_tensor(rng, value)
    elif isinstance(value, types.FunctionType) and value.__closure__:
        cell = rng.choice(value.__closure__)
        if rng.random() < 0.2:
            with contextlib.suppress(ValueError):
                del cell.cell_contents
        else:
            cell.cell_contents = value_of(rng, 1)
    elif isinstance(value, (Plain, Slots)):
        name = rng.choice(("a", "b", "weight"))
        with contextlib.suppress(AttributeError):
            setattr(value, name, value_of(rng, 1)) if rng.random() < 0.7 else delattr(value, name)


def _change_tensor(rng: random.Random, value: torch.Tensor) -> None:
    with contextlib.suppress(RuntimeError):
        match rng.randrange(4):
            case 0:
                value.requires_grad_(not value.requires_grad)
            case 1:
                value.detach().resize_(rng.choice((0, 2, 3)), rng.choice((1, 2)))
            case 2:
                value.data = _tensor(rng)
            case _:
                value.detach().t_()


@contextlib.contextmanager
def _changed_classes(rng: random.Random) -> Iterator[None]:
    """With some probability a class has another attribute for a while."""
    if rng.random() < 0.8:
        yield
        return
    Plain.missing = 1  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del Plain.missing  # type: ignore[attr-defined]


def check_guards(seed: int | random.Random) -> str | None:
    """None, or how the program and the twins differ. Random choices come from a generator of that seed, or this one."""
    rng = random.Random(seed) if isinstance(seed, int) else seed
    locals = tuple(value_of(rng, 3) for _ in range(LOCALS))
    guards = random_guards(rng, locals)
    program = guards.build(LOCALS)
    for step in range(8):
        for _ in range(rng.choice((1, 1, 12))):  # a check that passes often is remembered
            expected, found = guards.check_python(locals), program.check(locals)
            if expected != found:
                return f"step {step}: the program says {_told(guards, found)}, the twins say {_told(guards, expected)}"
        reason = guards.failure_reason(expected, CallValues(locals)) if expected >= 0 else "all hold"
        if not reason or reason.endswith("and holds"):
            return f"step {step}: no reason for {guards[expected]}: {reason!r}"
        with _changed_classes(rng):
            if guards.check_python(locals) != program.check(locals):
                return f"step {step}: a class changed"
        if rng.random() < 0.3:
            at = rng.randrange(LOCALS)
            locals = (*locals[:at], value_of(rng, 2), *locals[at + 1 :])
        else:
            _change(rng, rng.choice(locals))
        if rng.random() > 0.98:  # not where bytes have run out
            gc.collect()
    return None


def _told(guards: GuardSet, index: int) -> str:
    return "all hold" if index < 0 else f"{index} fails ({guards[index]})"
