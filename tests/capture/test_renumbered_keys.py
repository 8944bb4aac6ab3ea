"""Dictionaries whose keys are other numbers at each call: hooks that are registered and removed around a call, and what
a program keeps by step. Where only the entries count, and not their keys, two variants are enough."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.report import records
from dynajit.testing import assert_same

x = torch.arange(4.0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.inner(x) * scale


Register = Callable[[Model, list[Any]], list[Any]]
HOOKS: dict[str, Register] = {
    "forward": lambda m, seen: [m.inner.register_forward_hook(lambda module, args, out: out * 2)],
    "of the root": lambda m, seen: [m.register_forward_hook(lambda module, args, out: out * 2)],
    "pre": lambda m, seen: [m.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))],
    "closure": lambda m, seen: [m.inner.register_forward_hook(lambda module, args, out: seen.append(out))],
    "two": lambda m, seen: [
        m.inner.register_forward_hook(lambda module, args, out: out + 1),
        m.inner.register_forward_hook(lambda module, args, out: out * 3),
    ],
    "put first": lambda m, seen: [
        m.inner.register_forward_hook(lambda module, args, out: out + 1),
        m.inner.register_forward_hook(lambda module, args, out: out * 3, prepend=True),
    ],
    "backward": lambda m, seen: [m.inner.register_full_backward_hook(lambda module, into, out: None)],
    "everywhere": lambda m, seen: [
        nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 2),
    ],
}
EXACT: dict[str, Register] = {
    "keywords": lambda m, seen: [
        m.register_forward_hook(lambda module, args, kwargs, out: out + len(kwargs), with_kwargs=True)
    ],
    "always": lambda m, seen: [m.inner.register_forward_hook(lambda module, args, out: out * 2, always_call=True)],
}


@pytest.mark.parametrize("name", [*HOOKS, *EXACT])
def test_hooks_around_each_call(name: str) -> None:
    model, counts, register = Model(), [], (HOOKS | EXACT)[name]
    compiled = dynajit.compile(model, backend="eager")
    for number in range(7):
        found: list[records.CompileRecord] = []
        got: list[list[Any]] = [[], []]
        results = []
        with records.listen(found.append):
            for call, seen in zip((model, compiled), got, strict=True):
                handles = register(model, seen)
                results.append(call(x + number))
                results[-1].sum().backward()
                for handle in handles:
                    handle.remove()
                results.append(call(x))
        assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
        assert len(got[0]) == len(got[1]) and all(map(torch.equal, *got))
        counts.append(len(found))
    assert name in EXACT or not any(counts[2:]), counts


def test_hooks_that_change_places_and_kinds() -> None:
    model = Model()
    compiled = dynajit.compile(model, backend="eager")
    plus: Any = lambda module, args, out: out + 1  # noqa: E731
    times: Any = lambda module, args, out: out * 3  # noqa: E731
    counting: Any = lambda module, args, kwargs, out: out * len(kwargs)  # noqa: E731
    for hooks in ([plus], [plus], [plus, times], [times, plus], [times], [plus, plus], [counting, plus], [plus], []):
        handles = [model.register_forward_hook(hook, with_kwargs=hook is counting) for hook in hooks]
        assert torch.equal(compiled(x, scale=2.0), model(x, scale=2.0))
        for handle in handles:
            handle.remove()


def values(x: Tensor, kept: dict[int, Any]) -> Any:
    for value in kept.values():
        x = x * value
    return x, len(kept), [*reversed(kept.values())]


def both(x: Tensor, kept: dict[int, Any]) -> Any:
    for _, value in kept.items():
        x = x + value
    return x


def keys(x: Tensor, kept: dict[int, Any]) -> Any:
    return [x + key * value for key, value in kept.items()], 3 in kept, kept.get(1)


def passed_on(x: Tensor, kept: dict[int, Any]) -> Any:
    found = [*kept.items()]
    dynajit.graph_break()
    return x + 1, found


def changed(x: Tensor, kept: dict[int, Any]) -> Any:
    first = list(kept.values())
    kept[next(iter(kept))] = x
    kept[-1] = 0.5
    return first, [*kept.values()], list(kept)


def changed_meanwhile(x: Tensor, kept: dict[int, Any]) -> Any:
    for key in kept:
        x = x * 2
        kept.pop(key)
    return x


def in_a_broken_loop(x: Tensor, kept: dict[int, Any]) -> Any:
    for value in kept.values():
        x = x * value
        dynajit.graph_break()
    return x


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("fn", [values, both, keys, passed_on, changed, changed_meanwhile, in_a_broken_loop])
def test_numbers_as_keys(fn: Callable[..., Any], kind: Any) -> None:
    made = [kind({n: 1.5, n + 1: 2.5}) for n in (0, 5, 2, 3, 7, 0, 1)]
    made += [kind({1: 2.5, 0: 1.5}), kind({4: 2.5, "a": 1.5}), kind({4: 2.5}), kind({True: 2.5, 9: 1.5})]
    assert_same(fn, x, made[0], then=[(x, each) for each in made[1:]], never_repeats="keys are told one by one")
    if fn in (values, both):
        assert_same(fn, x, made[0], then=[(x, each) for each in made[1:7]], recompiles=1)


def test_types_of_keys_are_those_of_the_call() -> None:
    def typed(x: Tensor, kept: dict[Any, Any]) -> Any:
        return x * 2, [type(key) for key in kept], [isinstance(key, str) for key, _ in kept.items()]

    made: list[dict[Any, Any]] = [
        {1: 1.5, 2: 2.5},
        {5: 1.5, 7: 2.5},
        {8: 1.5, 9: 2.5},
        {"c": 2.5, 4: 1.5},
        {2.5: 1.5, 3: 2.5},
    ]
    assert_same(typed, x, made[0], then=[(x, each) for each in made[1:]], never_repeats="keys are told one by one")
