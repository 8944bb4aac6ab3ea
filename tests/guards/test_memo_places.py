"""What lies in places without a version (cells, functions' defaults, lists) is remembered with a witness; a change of
it, or another object at its address, is seen at the next call."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit import _C

WARM = 16
remembers = pytest.mark.skipif(sys.version_info >= (3, 13), reason="dictionaries have no versions")


def shifted(x: Tensor, by: Any = 2.0, *, times: float = 3.0, dtype: Any = (torch.float32, None)) -> Tensor:
    return (x + by).to(dtype[0]) * times


def with_cell(value: Any) -> Callable[[Tensor], Tensor]:
    def inner(x: Tensor) -> Tensor:
        return x * value if isinstance(value, (int, float)) else value(x)

    return inner


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.shift: Any = types.FunctionType(
            shifted.__code__, globals(), "shift", shifted.__defaults__, shifted.__closure__
        )
        self.shift.__kwdefaults__ = dict(shifted.__kwdefaults__)
        self.scale = with_cell(2.0)
        self.call = with_cell(torch.relu)
        self.factors = [1.0, 2.0]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        x = self.call(self.scale(self.shift(x)))
        for factor in self.factors:
            x = x * factor
        return x


def put_default(model: Reader) -> None:
    model.shift.__defaults__ = (5.0,)


def put_kwdefaults(model: Reader) -> None:
    model.shift.__kwdefaults__ = {"times": 4.0, "dtype": (torch.float64, None)}


def change_kwdefaults(model: Reader) -> None:
    model.shift.__kwdefaults__["times"] = 4.0


def another_tuple_of_dtypes(model: Reader) -> None:
    model.shift.__kwdefaults__["dtype"] = (torch.float64, None)


def put_code(model: Reader) -> None:
    model.shift.__code__ = (lambda x, by=1.0, *, times=3.0, dtype=None: x - by).__code__


def fill_cell(model: Reader) -> None:
    model.scale.__closure__[0].cell_contents = 7.0  # type: ignore[attr-defined]


def fill_cell_with_function(model: Reader) -> None:
    model.call.__closure__[0].cell_contents = torch.sigmoid  # type: ignore[attr-defined]


def set_item(model: Reader) -> None:
    model.factors[1] = 9.0


def append(model: Reader) -> None:
    model.factors.append(3.0)


def drop(model: Reader) -> None:
    model.factors.pop()


def hook(model: Reader) -> None:
    model.layers[1].register_forward_hook(lambda module, args, result: result + 1)


def swap_parameter(model: Reader) -> None:
    model.layers[2].weight = nn.Parameter(torch.ones(3, 3))


def another_class(model: Reader) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model.layers[0].__class__ = Doubled


CHANGES = [
    put_default,
    put_kwdefaults,
    change_kwdefaults,
    another_tuple_of_dtypes,
    put_code,
    fill_cell,
    fill_cell_with_function,
    set_item,
    append,
    drop,
    hook,
    swap_parameter,
    another_class,
]


def program(compiled: Any) -> Any:
    (variant,) = _C.variants(type(compiled).__dict__["__call__"].__func__.__wrapped__.__code__)
    return variant.guards


def warm() -> tuple[Reader, Any, Tensor]:
    torch.manual_seed(0)
    model = Reader().eval()
    compiled = dynajit.compile(model, backend="eager")
    x = torch.randn(2, 3)
    for _ in range(WARM):
        assert torch.equal(compiled(x), model(x))
    return model, compiled, x


@remembers
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_a_place_is_seen(change: Callable[[Reader], None]) -> None:
    with torch.no_grad():
        model, compiled, x = warm()
        assert program(compiled).memory() is not None
        change(model)
        assert torch.equal(compiled(x), model(x))


@remembers
def test_memory_reads_no_place_again() -> None:
    with torch.no_grad():
        _, compiled, _ = warm()
        steps = program(compiled).memory()
    reads = [step for step in steps if step[0] == "READ" and step[1] in ("ATTR", "CELL_CONTENTS", "SEQUENCE_ITEM")]
    assert not reads, steps
    assert sum(step[3] for step in steps if step[0] == "TENSORS") == 6


def test_objects_at_a_dead_ones_address() -> None:
    with torch.no_grad():
        model, compiled, x = warm()
        for number in range(12):
            # freed and made again: the new function, cell or dictionary often lies where the old one lay
            model.shift.__kwdefaults__ = None
            model.call.__closure__[0].cell_contents = None
            gc.collect()
            model.shift.__kwdefaults__ = {"times": float(number), "dtype": (torch.float32, None)}
            model.call.__closure__[0].cell_contents = lambda x, number=number: x + number
            assert torch.equal(compiled(x), model(x)), number


def test_memory_keeps_no_object_alive() -> None:
    class Big:
        def __call__(self, x: Tensor) -> Tensor:
            return x + 1

    with torch.no_grad():
        model, compiled, x = warm()
        big = Big()
        dead = weakref.ref(big)
        model.call.__closure__[0].cell_contents = big
        for _ in range(WARM):
            compiled(x)
        model.call.__closure__[0].cell_contents = None
        del big
        gc.collect()
        assert dead() is None


def test_one_model_changes_while_another_does_not() -> None:
    """Where one number stands for all dictionaries, a model that changes at each call costs others nothing but time."""

    class Counts(Reader):
        def forward(self, x: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x)

    with torch.no_grad():
        model, compiled, x = warm()
        counts = Counts().eval()
        counting = dynajit.compile(counts, backend="eager")
        for _ in range(40):
            counting(x)
            assert torch.equal(compiled(x), model(x))
        hook(model)
        assert torch.equal(compiled(x), model(x))
        assert counts.calls == 40
