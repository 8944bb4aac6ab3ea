"""What a program depends on changes between calls: the answer is never the old one."""

import abc
import importlib
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.config import config
from dynajit.testing import assert_same, compare

x = torch.arange(6.0).reshape(2, 3)
helpers = types.ModuleType("helpers_of_test_changes")
helpers.factor = 2  # type: ignore[attr-defined]
helpers.function = lambda t: t + 1  # type: ignore[attr-defined]
setting: Any = 1
Change = Callable[[], None]


def check(program: Callable[..., Any], args: Callable[[], tuple[Any, ...]], *changes: Change) -> None:
    """Eager and compiled agree before and after each change, made to what both share, and again in reverse order."""
    compiled = dynajit.compile(program, backend="eager")
    with config.patch(recompile_limit=100):
        for change in [None, *changes, *reversed(changes)]:
            if change is not None:
                change()
            for _ in range(2):
                expected = _outcome(program, args())
                compare(_outcome(compiled, args()), expected)


def _outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return fn(*args), args
    except Exception as error:
        return type(error).__name__, str(error)


def identity(value: Any) -> Any:
    return value


DIFFERENT_VALUES = [
    (1, 2),
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    (math.nan, 1.0),
    (1.0, math.inf),
    ("a", "b"),
    ("a", b"a"),
    (None, 0),
    ((1, 2), (1, 3)),
    ((1,), [1]),
    ([1, 2], [1, 2, 3]),
    ([1, 2], [2, 1]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {}),
    ({1, 2}, {1, 3}),
    ({1: "x"}, {True: "x"}),
    ({1}, {True}),
    ({8, 0}, {0, 8}),
    (range(0), range(1, 1)),
    (slice(1), slice(True)),
    (range(3), range(4)),
    (slice(1), slice(2)),
    (torch.float32, torch.float64),
    (int, float),
    (len, abs),
    (2j, 3j),
    (10**30, 10**30 + 1),
    (frozenset({1}), frozenset({2})),
    (torch.Size([1]), torch.Size([2])),
    (torch.device("cpu"), torch.device("meta")),
    (..., None),
    ([[1]], [[2]]),
    ({"a": [1]}, {"a": [2]}),
    (x, 3.0),
    (x, None),
    (nn.Parameter(x), x),
    (math.sin, math.cos),
    (str.upper, str.lower),
    (torch.sin, torch.cos),
]


@pytest.mark.parametrize("values", DIFFERENT_VALUES, ids=lambda pair: f"{pair[0]!r:.20}-{pair[1]!r:.20}")
def test_argument(values: tuple[Any, Any]) -> None:
    def describe(v: Any) -> Any:
        if isinstance(v, dict):
            return [(describe(key), describe(part)) for key, part in v.items()]
        if isinstance(v, (list, tuple, range)):
            return type(v), len(v), [describe(part) for part in v]
        if isinstance(v, Tensor):
            return v + 1, isinstance(v, nn.Parameter)
        if isinstance(v, (set, frozenset)):
            return len(v), 1 in v, 2 in v, [describe(part) for part in v]
        if isinstance(v, float):
            return v, math.copysign(1, v), v == v, repr(v)
        return v, v is None, type(v), v == 1, callable(v), bool(v)

    def program(x: Tensor, v: Any) -> Any:
        return x * 2, describe(v)

    a, b = values
    assert_same(program, x, a, then=[(x, b), (x, a), (x, b)])


def tensors() -> Iterator[tuple[str, Callable[[], Tensor]]]:
    base = torch.arange(6.0).reshape(2, 3)
    yield "shape", lambda: torch.ones(3, 3)
    yield "rank", lambda: torch.ones(3)
    yield "dtype", lambda: base.double()
    yield "integer", lambda: base.int()
    yield "bool", lambda: base.bool()
    yield "complex", lambda: base.to(torch.complex64)
    yield "stride", lambda: torch.arange(6.0).reshape(3, 2).t()
    yield "offset", lambda: torch.arange(12.0).reshape(4, 3)[2:]
    yield "expanded", lambda: torch.ones(1, 3).expand(2, 3)
    yield "requires_grad", lambda: base.clone().requires_grad_()
    yield "empty", lambda: torch.ones(0, 3)
    yield "one", lambda: torch.ones(1, 3)
    yield "meta", lambda: base.to("meta")
    yield "parameter", lambda: nn.Parameter(base.clone())
    yield "conjugate", lambda: base.to(torch.complex64).conj()


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in tensors()])
def test_tensor(make: Callable[[], Tensor]) -> None:
    def program(t: Tensor) -> Any:
        facts = (
            t.shape,
            t.dtype,
            t.stride(),
            t.requires_grad,
            t.is_contiguous(),
            t.storage_offset(),
            t.device,
            len(t),
            t.numel(),
            type(t),
            t.is_conj(),
            t.is_leaf,
        )
        return t + 1, facts, [row * 2 for row in t], t.shape[-1] * 2

    assert_same(program, x, then=[(make(),), (x,), (make(),)])


def test_globals() -> None:
    def program(x: Tensor) -> Any:
        return x + setting if not callable(setting) else setting(x)

    def change(value: Any) -> Change:
        return lambda: globals().update(setting=value)

    check(
        program,
        lambda: (x,),
        change(2),
        change(2.0),
        change(x),
        change(torch.sin),
        change(lambda t: t * 9),
        change(True),
    )
    globals().update(setting=1)


def test_global_appears_and_goes() -> None:
    def program(x: Tensor) -> Any:
        return x + late_setting  # type: ignore[name-defined] # noqa: F821

    check(
        program,
        lambda: (x,),
        lambda: globals().update(late_setting=3),
        lambda: globals().pop("late_setting", None) and None,
    )  # type: ignore[func-returns-value]
    globals().pop("late_setting", None)


def test_builtin_shadowed() -> None:
    def program(x: Tensor) -> Any:
        return x + len([1, 2])

    try:
        check(program, lambda: (x,), lambda: globals().update(len=lambda v: 100))
    finally:
        globals().pop("len", None)


def test_module_attributes() -> None:
    def program(x: Tensor) -> Any:
        return helpers.function(x) * helpers.factor, hasattr(helpers, "later")

    check(
        program,
        lambda: (x,),
        lambda: setattr(helpers, "factor", 3),
        lambda: setattr(helpers, "function", lambda t: t - 1),
        lambda: setattr(helpers, "later", 1),
    )


def test_a_module_finds_what_it_lacks() -> None:
    found = types.ModuleType("found_of_test_changes")
    check(
        lambda x: (x + getattr(found, "factor", 2), hasattr(found, "other")),
        lambda: (x,),
        lambda: setattr(found, "__getattr__", lambda name: 3),
        lambda: setattr(found, "factor", 4),
        lambda: delattr(found, "__getattr__") if hasattr(found, "__getattr__") else None,
    )


def test_closure_cells() -> None:
    scale: Any = 2

    def change(value: Any) -> Change:
        def run() -> None:
            nonlocal scale
            scale = value

        return run

    check(lambda x: x * scale, lambda: (x,), change(3), change(3.0), change(x))


def test_function_defaults_and_code() -> None:
    def helper(t: Tensor, k: int = 2, *, j: int = 1) -> Tensor:
        return t * k + j

    def other(t: Tensor, k: int = 2, *, j: int = 1) -> Tensor:
        return t - k

    check(
        lambda x: helper(x),
        lambda: (x,),
        lambda: setattr(helper, "__defaults__", (5,)),
        lambda: helper.__kwdefaults__.update(j=7),
        lambda: setattr(helper, "__code__", other.__code__),
    )


def named(t: Tensor) -> Tensor:
    return t


def test_function_names() -> None:
    check(
        lambda x: (x + len(named.__name__), named.__qualname__),
        lambda: (x,),
        lambda: setattr(named, "__name__", "other"),
        lambda: setattr(named, "__qualname__", "one.other"),
    )


_SHAPES = """
factor = 2
class Shape:
    sides = 3
    def area(self, t):
        return t * self.sides
def scaled(t):
    return t * factor
"""


def test_a_module_named_as_one_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wave.py").write_text(_SHAPES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    wave: Any = importlib.import_module("wave")
    assert hasattr(wave, "Shape")
    made, area, scaled = wave.Shape(), wave.Shape.area, wave.scaled
    check(
        lambda x: wave.scaled(x) + made.area(x),
        lambda: (x,),
        lambda: setattr(wave, "factor", 5),
        lambda: setattr(wave.Shape, "sides", 7),
        lambda: setattr(wave.Shape, "area", lambda self, t: t - 1),
        lambda: setattr(wave, "scaled", lambda t: t),
        lambda: setattr(wave.Shape, "area", area),
        lambda: setattr(wave, "scaled", scaled),
    )
    del sys.modules["wave"]


def test_a_class_made_in_a_bare_namespace() -> None:
    names: dict[str, Any] = {}
    exec(_SHAPES, names)
    shape = names["Shape"]
    made = shape()
    assert shape.__module__ == "builtins"
    check(
        lambda x: (made.area(x), bool(made), getattr(made, "other", 1)),
        lambda: (x,),
        lambda: setattr(shape, "area", lambda self, t: t - 1),
        lambda: setattr(shape, "__bool__", lambda self: False),
        lambda: setattr(shape, "other", 4),
    )


class Five:
    def __get__(self, obj: Any, owner: Any) -> int:
        return 5


class Five2(Five):
    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__["written"] = value


class Described:
    first, second = Five(), Five2()

    def __init__(self) -> None:
        self.__dict__.update(first=2, second=3)


def test_descriptors_that_come_first() -> None:
    def program(x: Tensor) -> Any:
        made = Described()
        made.second = 7
        return x + made.first, made.second, vars(made)

    def toggle(cls: type, name: str, method: Any) -> Change:
        return lambda: delattr(cls, name) if name in vars(cls) else setattr(cls, name, method)

    changes = (toggle(Five, "__delete__", lambda self, obj: None), toggle(Five2, "__set__", Five2.__set__))
    check(program, lambda: (x,), *changes, *changes)


class Asks(type):
    def __instancecheck__(cls, obj: Any) -> bool:
        return obj == 3


class Plain(type):
    pass


def test_what_a_metaclass_says_of_instances() -> None:
    class Asked(metaclass=Asks):
        pass

    class Quiet(metaclass=Plain):
        pass

    check(
        lambda x: (x + isinstance(3, Asked), isinstance(x, Quiet), issubclass(int, Quiet)),
        lambda: (x,),
        lambda: setattr(Asks, "__instancecheck__", lambda cls, obj: False),
        lambda: setattr(Plain, "__instancecheck__", lambda cls, obj: True),
        lambda: setattr(Plain, "__subclasscheck__", lambda cls, other: True),
    )


def test_an_abstract_class_has_more_registered() -> None:
    class Shape(abc.ABC):
        pass

    class Round(Shape):
        pass

    class Square:
        pass

    made = Square()
    check(
        lambda x: (
            x + isinstance(3, Shape),
            issubclass(str, Shape),
            isinstance(made, Shape),
            isinstance(Round(), Shape),
        ),
        lambda: (x,),
        lambda: Shape.register(int) and None,
        lambda: Shape.register(str) and None,
        lambda: Shape.register(Square) and None,
    )


class Thing:
    kind: Any = 1

    def __init__(self) -> None:
        self.v: Any = 1
        self.items = [1, 2]
        self.table = {"a": 1}

    def method(self, t: Tensor) -> Tensor:
        return t + self.v

    @property
    def prop(self) -> Any:
        return self.v * 2

    @classmethod
    def make(cls) -> Any:
        return cls.kind

    @staticmethod
    def static(t: Tensor) -> Tensor:
        return t * 2


class SubThing(Thing):
    kind = 5

    def method(self, t: Tensor) -> Tensor:
        return super().method(t) * 100


def test_objects() -> None:
    thing = Thing()

    def program(x: Tensor, thing: Thing) -> Any:
        return (
            thing.method(x),
            thing.prop,
            thing.kind,
            thing.make(),
            thing.static(x),
            thing.items,
            len(thing.table),
            hasattr(thing, "extra"),
            getattr(thing, "late", "none"),
            hasattr(Thing, "late_class"),
            type(thing),
            isinstance(thing, SubThing),
            bool(thing),
            callable(thing),
        )

    saved = dict(vars(Thing))
    try:
        check(
            program,
            lambda: (x, thing),
            lambda: setattr(thing, "v", 2),
            lambda: setattr(thing, "v", 2.0),
            lambda: setattr(thing, "v", x),
            lambda: thing.items.append(3),
            lambda: thing.table.update(b=2),
            lambda: setattr(thing, "extra", 1),
            lambda: setattr(Thing, "kind", 9),
            lambda: setattr(thing, "kind", 11),
            lambda: setattr(Thing, "method", lambda self, t: t * 50),
            lambda: setattr(thing, "method", lambda t: t * 60),
            lambda: setattr(Thing, "prop", property(lambda self: "new")),
            lambda: setattr(Thing, "make", classmethod(lambda cls: "made")),
            lambda: setattr(Thing, "static", staticmethod(lambda t: t * 3)),
            lambda: setattr(Thing, "late", "in the class"),
            lambda: setattr(Thing, "late_class", 1),
            lambda: setattr(thing, "__class__", SubThing),
            lambda: setattr(Thing, "__bool__", lambda self: False),
            lambda: setattr(Thing, "__call__", lambda self: 1),
            lambda: thing.__dict__.pop("v", None),
        )
    finally:
        for name in set(vars(Thing)) - set(saved):
            delattr(Thing, name)
        for name in ("kind", "method", "prop", "make", "static"):
            setattr(Thing, name, saved[name])


def test_aliasing_of_arguments() -> None:
    def program(a: list[Any], b: list[Any], x: Tensor) -> Any:
        a.append(1)
        b.append(2)
        return x + len(a), a is b, a == b

    compiled = dynajit.compile(program, backend="eager")
    for _ in range(2):
        for same in (False, True, False, True):
            for fn in (program, compiled):
                a: list[Any] = []
                b = a if same else []
                got, is_same, equal = fn(a, b, x)
                assert is_same == same and (a, b) == (([1, 2], [1, 2]) if same else ([1], [2]))
                assert got[0, 0].item() == (2 if same else 1) and equal == same


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_aliasing_of_tensors(order: tuple[bool, bool]) -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        a.add_(1)
        b.mul_(2)
        return a + b, a is b

    compiled = dynajit.compile(program, backend="eager")
    for same in (*order, *order):
        for fn in (program, compiled):
            a = torch.ones(3)
            b = a if same else torch.ones(3)
            result, is_same = fn(a, b)
            assert is_same == same and result.tolist() == ([8.0] * 3 if same else [4.0] * 3)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_overlapping_tensors(order: tuple[int, ...]) -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        a.add_(1)
        c = b * 10
        b.sub_(5)
        return c, a + 0

    compiled = {name: dynajit.compile(program, backend=name) for name in ("eager", "aot_eager")}
    for kind in (*order, *order):
        results = []
        for fn in (program, *compiled.values()):
            base = torch.arange(4.0)
            a, b = [(base, torch.arange(4.0)), (base, base[:]), (base[:2], base[1:3])][kind]
            results.append((*fn(a, b), base, a, b))
        for name, result in zip(compiled, results[1:], strict=True):
            compare(result, results[0], f"{name}, kind {kind}")


def test_aliasing_of_objects() -> None:
    def program(a: Thing, b: Thing, x: Tensor) -> Any:
        a.v = 10
        b.v += 1
        return x + a.v, a is b, a.items is b.items

    compiled = dynajit.compile(program, backend="eager")
    for kind in (0, 1, 2, 0, 1, 2):
        results = []
        for fn in (program, compiled):
            a = Thing()
            b = [Thing(), a, Thing()][kind]
            if kind == 2:
                b.items = a.items
            results.append(fn(a, b, x))
        compare(results[1], results[0])


def test_module_modes_and_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.drop = nn.Dropout(0.5)
            self.scale: Any = 1.0
            self.blocks = nn.ModuleList([nn.Linear(3, 3)])

        def forward(self, t: Tensor) -> Any:
            t = self.drop(self.layer(t)) * self.scale
            for block in self.blocks:
                t = block(t)
            return t, self.training, self.layer.weight.requires_grad

    net = Net()

    def program(t: Tensor) -> Any:
        torch.manual_seed(3)
        return net(t)

    compiled = dynajit.compile(net, backend="eager")

    def seeded(t: Tensor) -> Any:
        torch.manual_seed(3)
        return compiled(t)

    changes: list[Change] = [
        lambda: None,
        lambda: net.eval() and None,
        lambda: setattr(net, "scale", 2.0),
        lambda: setattr(net.layer, "weight", nn.Parameter(torch.ones(3, 3))),
        lambda: net.requires_grad_(False) and None,
        lambda: net.blocks.append(nn.Linear(3, 3)) and None,
        lambda: setattr(net, "layer", nn.Identity()) if False else None,
        lambda: net.register_forward_hook(lambda m, i, o: (o[0] + 100, *o[1:])) and None,
        lambda: net.layer.register_forward_pre_hook(lambda m, i: (i[0] * 2,)) and None,
        lambda: net._forward_hooks.clear(),
        lambda: net.layer.bias.data.fill_(5) is None or None,
        lambda: setattr(net, "drop", nn.Identity()),
        lambda: net.train() and None,
        lambda: setattr(net.layer, "forward", lambda t: t * 3),
        lambda: net.double() and None,
        lambda: setattr(net.layer, "bias", None),
    ]
    with torch.no_grad(), config.patch(recompile_limit=100):
        for change in changes:
            change()
            argument = x.to(net.blocks[0].weight.dtype)
            for _ in range(2):
                compare(_outcome(seeded, (argument,)), _outcome(program, (argument,)))


def test_process_state() -> None:
    def program(x: Tensor) -> Any:
        y = x * 2
        return (
            y.requires_grad,
            torch.zeros(1).dtype,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            x @ x.t(),
            torch.is_autocast_enabled("cpu"),
        )

    tensor = x.clone().requires_grad_()
    compiled = dynajit.compile(program, backend="eager")

    def same() -> None:
        for _ in range(2):
            compare(compiled(tensor), program(tensor))

    same()
    with torch.no_grad():
        same()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same()
    with torch.autocast("cpu", dtype=torch.float16):
        same()
    torch.set_default_dtype(torch.float64)
    same()
    torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        same()
    with torch.device("meta"):
        same()
    same()


@pytest.mark.parametrize("first", [True, False])
def test_same_tensor_twice_read_only(first: bool) -> None:
    compiled = dynajit.compile(lambda a, b: (a + b, a is b), backend="eager")
    y = torch.ones(2, 3)
    for same in (first, not first, first):
        result, got = compiled(x, x if same else y)
        assert got == same and torch.equal(result, x + (x if same else y))


def _makes_larger(x: torch.Tensor, z: torch.Tensor) -> Any:
    try:
        torch.add(z, 1, out=x)
    except RuntimeError as error:
        print(type(error).__name__)
    return x * 2


def _writes_a_view_in_inference_mode(x: torch.Tensor, z: torch.Tensor) -> Any:
    with torch.inference_mode():
        z.index_put_((torch.tensor([0]),), z.sum(-1, keepdim=True))
        return z + 1


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", [_makes_larger, _writes_a_view_in_inference_mode])
@pytest.mark.parametrize(
    "view", [lambda x: x[0], lambda x: x.t(), lambda x: x[1:, 1]], ids=["row", "transposed", "column"]
)
def test_writes_of_views_are_no_fault_of_ours(view: Any, fn: Any, backend: str) -> None:
    dynajit.counters["internal_errors"].clear()

    def both(owner: torch.Tensor) -> Any:
        return fn(owner, view(owner)), owner

    assert_same(both, torch.arange(9.0).reshape(3, 3), backend=backend)
    assert not dynajit.counters["internal_errors"]


def _writes_what_has_a_history(x: torch.Tensor) -> Any:
    x.t().mul_(2)
    return x + 1


def _catches_a_refused_write(x: torch.Tensor) -> Any:
    for _ in range(2):
        try:
            x.mul_(2)
        except RuntimeError as error:
            return str(error)
        dynajit.graph_break()
    return x + 1


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", [_writes_what_has_a_history, _catches_a_refused_write])
def test_writes_that_autograd_refuses_at_a_later_call(fn: Any, backend: str) -> None:
    makers: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda leaf: leaf * 1,
        lambda leaf: leaf,
        lambda leaf: leaf.view(2, 2),
        lambda leaf: (leaf * 1).t(),
        lambda leaf: torch.stack([leaf, leaf * 2]).unbind()[1],
        lambda leaf: leaf * 3,
    ]
    compiled = dynajit.compile(fn, backend=backend)
    for make in makers:
        sides = []
        for side in (compiled, fn):
            leaf = torch.ones(2, 2, requires_grad=True)
            given = make(leaf)
            try:
                result = side(given)
                torch.autograd.backward(result.sum() if isinstance(result, torch.Tensor) else (leaf * 0).sum())
            except RuntimeError as error:
                result = str(error)
            sides.append((result, given.detach(), leaf.grad))
        compare(*sides, exact=False)


@pytest.mark.parametrize(
    ("module", "name", "fn"),
    [
        (torch.nn.functional, "relu", lambda x: torch.nn.functional.relu(x)),
        (torch, "sin", lambda x: torch.sin(x)),
        (torch.nn.functional, "linear", nn.Linear(3, 3)),
        (torch.nn.functional, "scaled_dot_product_attention", nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0)),
        (math, "sqrt", lambda x: x * math.sqrt(4.0)),
    ],
)
def test_functions_of_the_library_that_are_replaced(module: Any, name: str, fn: Any) -> None:
    old = getattr(module, name)
    with pytest.MonkeyPatch.context() as patch:
        check(
            fn,
            lambda: (x,),
            lambda: patch.setattr(module, name, lambda *args, **kwargs: old(*args, **kwargs) + 1),
            lambda: patch.setattr(module, name, old),
        )
