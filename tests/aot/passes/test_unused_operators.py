"""Operators that others have registered run as often, and in the order, that eager runs them, whoever needs what they
give: they may print, count, or raise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

import dynajit

_CALLS: list[Any] = []
_BACKENDS = ("eager", "aot_eager", "codegen")


def _called(name: str, *tensors: Tensor) -> None:
    _CALLS.append((name, *(round(float(each.sum()), 3) for each in tensors)))


@torch.library.custom_op("unused_operators::one", mutates_args=())
def one(x: Tensor) -> Tensor:
    _called("one", x)
    return x * 2


@torch.library.custom_op("unused_operators::two", mutates_args=())
def two(x: Tensor) -> tuple[Tensor, Tensor]:
    _called("two", x)
    return x * 2, x + 1


@torch.library.custom_op("unused_operators::several", mutates_args=())
def several(xs: list[Tensor]) -> list[Tensor]:
    _called("several", *xs)
    return [x + 1 for x in xs]


@torch.library.custom_op("unused_operators::say", mutates_args=())
def say(x: Tensor, tag: str = "a") -> None:
    _called(f"say {tag}", x)


@torch.library.custom_op("unused_operators::into", mutates_args=("y",))
def into(x: Tensor, y: Tensor) -> None:
    _called("into", x, y)
    y.copy_(x)


@torch.library.custom_op("unused_operators::scaled", mutates_args=())
def scaled(x: Tensor, by: float = 2.0) -> Tensor:
    _called("scaled", x)
    return x * by


@torch.library.custom_op("unused_operators::small", mutates_args=())
def small(x: Tensor) -> Tensor:
    if x.sum() > 100:
        raise ValueError("too much")
    return x.clone()


one.register_fake(torch.empty_like)
small.register_fake(torch.empty_like)
two.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
several.register_fake(lambda xs: list(map(torch.empty_like, xs)))
say.register_fake(lambda x, tag="a": None)
scaled.register_fake(lambda x, by=2.0: torch.empty_like(x))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.by = inputs[1]


scaled.register_autograd(lambda ctx, grad: (grad * ctx.by, None), setup_context=_keep)


def _several_times(x: Tensor) -> Tensor:
    one(x)
    y = x * 2
    one(y)
    one(y)
    return y.sin()


def _behind_one_another(x: Tensor) -> Tensor:
    one(one(x) * 2).sin()
    return x + 1


def _used_and_not(x: Tensor) -> Tensor:
    y = scaled(x)
    scaled(x)
    return y * y


def _of_several_results(x: Tensor) -> Tensor:
    two(x)
    several([x, x * 2])
    return x.sin()


def _nothing(x: Tensor) -> Tensor:
    say(x)
    one(x)
    say(x + 1, tag="b")
    return x.sin()


def _nothing_between_writes(x: Tensor) -> Tensor:
    x.mul_(2)
    say(x)
    x.add_(1)
    one(x)
    return x * 3


def _nothing_of_views(x: Tensor) -> Tensor:
    view = x[1:]
    say(view)
    view.mul_(2)
    say(x)
    return view


def _written_and_dropped(x: Tensor) -> Tensor:
    into(x.detach(), torch.zeros_like(x))
    return x + 1


def _without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        one(x)
        say(x)
    return x.sin()


def _in_a_branch(x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        one(x)
        return x.sin()

    return torch.cond(x.sum() > 0, positive, torch.cos, (x,))  # type: ignore[no-any-return]


def _in_a_region(x: Tensor) -> Tensor:
    def body(x: Tensor) -> Tensor:
        one(x)
        say(x)
        return x.sin()

    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)  # type: ignore[no-any-return]


def _in_layers(x: Tensor) -> Tensor:
    for step in range(6):
        one(x)
        x = torch.relu(x * 2 + step)
    return x


def _raising(x: Tensor) -> Tensor:
    small(x * 50)
    return x + 1


def _raising_for_nothing(x: Tensor) -> Tensor:
    small(x * 50)
    return torch.ones(3)


_PROGRAMS = [
    *(_several_times, _behind_one_another, _used_and_not, _of_several_results, _nothing, _nothing_between_writes),
    *(_nothing_of_views, _written_and_dropped, _without_gradients, _in_a_branch, _in_a_region, _in_layers),
    *(_raising, _raising_for_nothing),
]


def _seen(f: Callable[[Tensor], Tensor], grad: bool) -> tuple[list[Any], list[Any]]:
    """What two calls give, with gradients, and what the operators tell."""
    _CALLS.clear()
    found: list[Any] = []
    leaf = torch.linspace(0.5, 1.5, 4, requires_grad=grad)
    for _ in range(2):
        try:
            result = f(leaf * 1)
        except ValueError as error:
            found.append(str(error))
            continue
        found.append(result.detach())
        if result.requires_grad:
            _CALLS.append("backward")
            found += torch.autograd.grad(result.sum(), leaf)
    return found, [*_CALLS]


def _check(f: Callable[[Tensor], Tensor], grad: bool, backend: str) -> None:
    found, calls = _seen(f, grad)
    dynajit.reset()
    compiled, compiled_calls = _seen(dynajit.compile(f, backend=backend), grad)
    assert compiled_calls == calls
    assert [one for one in compiled if isinstance(one, str)] == [one for one in found if isinstance(one, str)]
    torch.testing.assert_close(*([one for one in each if isinstance(one, Tensor)] for each in (compiled, found)))


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("f", _PROGRAMS)
def test_operators_run_as_in_eager(f: Callable[[Tensor], Tensor], grad: bool, backend: str) -> None:
    _check(f, grad, backend)


def _random_lines(draw: random.Random) -> Iterator[str]:
    """A program's lines: operators, writes and views, of tensors of which some are never used."""
    names = ["x"]
    for at in range(draw.randint(4, 9)):
        of, other = draw.choice(names), draw.choice(names)
        made = f"t{at}"
        choices = {
            f"{made} = {of}.sin()": 4,
            f"{made} = {of} + {other}": 3,
            f"{made} = scaled({of}, {draw.choice((0.5, 3.0))})": 4,
            f"one({of})": 3,
            f"two({of})": 1,
            f"several([{of}, {other}])": 1,
            f"say({of}, 'b')": draw.choice((0, 2)),
            f"{made} = torch.zeros_like({of}); into({of}.detach(), {made})": 1,
            f"{of}.mul_(0.5)": 1 if of != "x" else 0,
            f"{made} = {of}.view(2, 2).t().reshape(4)": 1,
        }
        line = draw.choices([*choices], [*choices.values()])[0]
        if line.startswith(made):
            names.append(made)
        yield line
    yield f"return {draw.choice(names)} + {draw.choice(names)}"


def _random_program(seed: int) -> Callable[[Tensor], Tensor]:
    text = "\n    ".join(["def program(x):", *_random_lines(random.Random(seed))])
    made: dict[str, Any] = {}
    exec(text, globals(), made)
    made["program"].__doc__ = text
    return made["program"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed: int) -> None:
    program = _random_program(seed)
    _check(program, bool(seed % 2), _BACKENDS[1 + seed % 4 // 2])
