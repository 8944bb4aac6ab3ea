"""A check that passed is remembered: whatever is changed then, the next check's answer is the Python twins'."""

from __future__ import annotations

import collections
import gc
import random
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit import _C
from dynajit.guards.program import CallValues, GuardSet

WARM = 12


class Settings:
    def __init__(self) -> None:
        self.scale = 2.0
        self.names = ["a", "b"]
        self.table = {"a": 1, "b": 2}


class Layer(nn.Module):
    factor = 3

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("shift", torch.zeros(4))
        self.settings = settings
        self.enabled, self.extra = True, None
        self.order = collections.OrderedDict(x=1, y=2)
        self.calls = [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        if not self.enabled:
            return x
        y = self.norm(self.linear(x)) * self.settings.scale + self.shift * self.factor
        for name in self.settings.names:
            y = y + self.settings.table[name]
        for value in self.order.values():
            y = y * value
        for value in self.calls:
            y = y - value
        return y if self.extra is None else y + self.extra


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.layers = nn.ModuleList(Layer(self.settings) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.parameter = nn.ParameterDict({"w": nn.Parameter(torch.ones(4))})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.parameter["w"]


def variant_of(model: nn.Module, *args: Any) -> tuple[_C.Variant, GuardSet, tuple[Any, ...]]:
    """The variant of a module's first call, its guards, and the locals that it is checked over."""
    dynajit.reset()
    before = {id(found) for found in gc.get_objects() if type(found) is _C.Variant}
    dynajit.compile(model, backend="eager")(*args)
    made = [found for found in gc.get_objects() if type(found) is _C.Variant and id(found) not in before]
    variant = max(made, key=lambda each: len(each.guards))
    local = (model, args, {})[: variant.guards.n_locals]
    return variant, variant.data.guards, local


def assert_agrees(variant: _C.Variant, guards: GuardSet, local: tuple[Any, ...]) -> bool:
    expected = guards.check_python(local, variant.globals)
    for _ in range(3):
        found = variant.guards.check(local)
        assert (found == -1) == (expected == -1), (found, expected)
        if found >= 0:
            assert guards.failure_reason(found, CallValues(local, variant.globals))
    return expected == -1


def settle(variant: _C.Variant, local: tuple[Any, ...]) -> None:
    for _ in range(WARM):
        assert variant.guards.check(local) == -1


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    missing = object()
    old = owner.__dict__.get(name, missing)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, old) if old is not missing else delattr(owner, name)


def _item(container: Any, key: Any, value: Any) -> Callable[[], None]:
    old = container[key]
    container[key] = value
    return lambda: container.__setitem__(key, old)


def _class_of(owner: Any, cls: type) -> Callable[[], None]:
    old = type(owner)
    owner.__class__ = cls
    return lambda: setattr(owner, "__class__", old)


def _hook(module: nn.Module) -> Callable[[], None]:
    return module.register_forward_hook(lambda *_: None).remove


def _moved(ordered: Any) -> Callable[[], None]:
    ordered.move_to_end("x")
    return lambda: ordered.move_to_end("x", last=False)


def _appended(items: list[Any]) -> Callable[[], None]:
    items.append("a")
    return lambda: items.__delitem__(-1)


def _forward(layer: nn.Module) -> Callable[[], None]:
    layer.forward = types.MethodType(lambda self, x: x, layer)  # type: ignore[method-assign]
    return lambda: layer.__dict__.pop("forward")


def _dictionary(owner: Any) -> Callable[[], None]:
    old = owner.__dict__
    owner.__dict__ = {**old, "enabled": False}
    return lambda: setattr(owner, "__dict__", old)


class Other(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x


CHANGES: dict[str, Callable[[Model], Callable[[], None]]] = {
    "attribute": lambda m: _set(m.layers[1], "enabled", False),
    "attribute to an equal one": lambda m: _set(m.settings, "scale", float("2.0")),
    "new attribute": lambda m: _set(m.layers[2], "unheard_of", 1),
    "attribute that hides": lambda m: _set(m.layers[2], "factor", 5),
    "class attribute": lambda m: _set(Layer, "factor", 4),
    "class": lambda m: _class_of(m.layers[0], Other),
    "method of the class": lambda m: _set(Layer, "forward", lambda self, x: x),
    "method of the instance": lambda m: _forward(m.layers[1]),
    "dictionary": lambda m: _dictionary(m.layers[1]),
    "item": lambda m: _item(m.settings.table, "a", 7),
    "list": lambda m: _appended(m.settings.names),
    "list item": lambda m: _item(m.layers[1].calls, 0, 9),
    "order": lambda m: _moved(m.layers[1].order),
    "hook": lambda m: _hook(m.layers[2].norm),
    "parameter": lambda m: _item(m.layers[0].linear._parameters, "weight", nn.Parameter(torch.randn(4, 5))),
    "equal parameter": lambda m: _item(m.layers[0].linear._parameters, "weight", nn.Parameter(torch.randn(4, 4))),
    "no parameter": lambda m: _item(m.layers[0].linear._parameters, "bias", None),
    "buffer": lambda m: _item(m.layers[0]._buffers, "shift", torch.zeros(4, dtype=torch.float64)),
    "module": lambda m: _item(m.head._modules, "1", nn.Tanh()),
    "equal module": lambda m: _item(m.head._modules, "0", nn.Linear(4, 4)),
    "training": lambda m: _set(m.layers[2].norm, "training", False),
    "epsilon": lambda m: _set(m.layers[2].norm, "eps", 1.0),
    "settings": lambda m: _set(m.layers[1], "settings", Settings()),
    "other settings": lambda m: _class_of(m.settings, type("Strange", (Settings,), {})),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_and_so_is_its_undoing(name: str) -> None:
    model, x = Model(), torch.randn(2, 4)
    variant, guards, local = variant_of(model, x)
    settle(variant, local)
    for _ in range(6):
        undo = CHANGES[name](model)
        try:
            assert_agrees(variant, guards, local)
        finally:
            undo()
        assert assert_agrees(variant, guards, local)
        settle(variant, local)


@contextmanager
def requires_grad(tensor: Tensor) -> Iterator[None]:
    tensor.requires_grad_(not tensor.requires_grad)
    yield
    tensor.requires_grad_(not tensor.requires_grad)


def test_a_parameters_metadata_is_read_each_time() -> None:
    model, x = Model(), torch.randn(2, 4)
    variant, guards, local = variant_of(model, x)
    settle(variant, local)
    weight = model.layers[1].linear.weight
    with requires_grad(weight):
        assert not assert_agrees(variant, guards, local)
    assert assert_agrees(variant, guards, local)
    kept = weight.data
    weight.data = torch.randn(4, 4, dtype=torch.float64)
    assert not assert_agrees(variant, guards, local)
    weight.data = kept
    assert assert_agrees(variant, guards, local)


def test_random_changes() -> None:
    model, x = Model(), torch.randn(2, 4)
    variant, guards, local = variant_of(model, x)
    random.seed(0)
    undone: list[Callable[[], None]] = []
    seen = set()
    for _ in range(400):
        if undone and random.random() < 0.6:
            undone.pop()()
        elif len(undone) < 3:
            undone.append(CHANGES[random.choice(list(CHANGES))](model))
        for _ in range(random.choice((0, 1, 8))):
            variant.guards.check(local)
        seen.add(assert_agrees(variant, guards, local))
    assert seen == {True, False}
    while undone:
        undone.pop()()


def test_a_module_that_counts_its_calls() -> None:
    model, x = Model(), torch.randn(2, 4)
    variant, guards, local = variant_of(model, x)
    for count in range(50):
        model.layers[0].count = count  # type: ignore[assignment]
        assert assert_agrees(variant, guards, local)
    model.layers[0].enabled = False
    assert not assert_agrees(variant, guards, local)
    model.layers[0].enabled = True
    assert assert_agrees(variant, guards, local)
    model.layers[0].linear.in_features = 9
    assert_agrees(variant, guards, local)


def test_objects_that_take_the_place_of_dead_ones() -> None:
    x = torch.randn(2, 4)
    model = Model()
    variant, guards, local = variant_of(model, x)
    settle(variant, local)
    for round_ in range(30):
        old = model.layers[1]
        fresh = Layer(model.settings)
        model.layers[1] = fresh
        del old
        assert_agrees(variant, guards, local)
        if round_ % 3 == 0:
            fresh.enabled = False
            assert not assert_agrees(variant, guards, local)
            fresh.enabled = True
        for _ in range(WARM):
            assert_agrees(variant, guards, local)


def test_models_take_turns() -> None:
    first, second, x = Model(), Model(), torch.randn(2, 4)
    variant, guards, local = variant_of(first, x)
    other = (second, *local[1:])
    for count in range(60):
        second.layers[0].enabled = count % 7 != 0
        assert assert_agrees(variant, guards, local)
        assert_agrees(variant, guards, other)
    del first, local
    gc.collect()
    for _ in range(10):
        assert_agrees(variant, guards, other)


def test_compiled_models_see_changes() -> None:
    model, x = Model(), torch.randn(2, 4)
    for name in CHANGES:
        dynajit.reset()
        compiled = dynajit.compile(model, backend="eager")
        if name in ("parameter", "buffer", "other settings"):
            continue  # no valid program, or a weight of another shape
        for _ in range(WARM):
            torch.testing.assert_close(compiled(x), model(x))
        undo = CHANGES[name](model)
        try:
            torch.testing.assert_close(compiled(x), model(x), msg=name)
        finally:
            undo()
        torch.testing.assert_close(compiled(x), model(x), msg=name)


def test_zero_keeps_its_sign_where_a_number_is_found_to_change() -> None:
    def f(x: Tensor, scale: float) -> tuple[Tensor, str]:
        return x * 2, f"{scale:.1f}"

    compiled, x = dynajit.compile(f, backend="eager"), torch.ones(2)
    assert [compiled(x, scale)[1] for scale in (1.5, 2.5, -0.0, 0.0)] == ["1.5", "2.5", "-0.0", "0.0"]
