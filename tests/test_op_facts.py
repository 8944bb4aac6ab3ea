"""What is known of operations, against torch's schemas, and against what they do on small tensors."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from dynajit.op_facts import draws, facts, may_draw


def _overloads() -> Iterator[torch._ops.OpOverload]:
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten":
            yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def test_every_overload_says_what_its_schema_says() -> None:
    for each in _overloads():
        found = facts(each)
        assert found.known
        assert found.draws == (torch.Tag.nondeterministic_seeded in each.tags), each
        assert bool(found.writes) == each._schema.is_mutable, each
        assert found.is_view >= each.is_view, each
        assert found.pure == (not found.writes and not found.draws and bool(each._schema.returns)), each
        for position, name in found.writes:
            assert each._schema.arguments[position].name == name


def _versions(values: list[torch.Tensor]) -> list[int]:
    return [value._version for value in values]


@pytest.mark.parametrize("number", range(8))
def test_operators_do_what_is_known_of_them(number: int) -> None:
    """Each operator's function is run on its first samples: does it write, draw, return views?"""
    pytest.importorskip("expecttest", reason="torch's operator database needs it")
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db[number::8]:
        function = info.op
        if torch.float32 not in info.dtypes or not facts(function).known:
            continue
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            for sample, _ in zip(info.sample_inputs("cpu", torch.float32), range(4)):
                args, kwargs = (sample.input, *sample.args), sample.kwargs
                given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
                versions, state = _versions(given), torch.get_rng_state()
                try:
                    result = function(*args, **kwargs)
                except (RuntimeError, NotImplementedError):
                    continue
                _compare(info.name, function, args, kwargs, given, versions, state, result)


def _compare(
    name: str,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    given: list[torch.Tensor],
    versions: list[int],
    state: torch.Tensor,
    result: Any,
) -> None:
    found = facts(function)
    if not torch.equal(state, torch.get_rng_state()):
        assert found.draws and draws(function, args, kwargs), f"{name} draws"
    if versions != _versions(given) and "running_mean" not in kwargs:  # norms' schemas don't say so
        assert found.writes or {"out", "inplace"} & kwargs.keys(), f"{name} writes"


def _double(x: torch.Tensor, into: torch.Tensor) -> None:
    into.copy_(x * 2)


def test_an_operator_of_the_program_that_writes() -> None:
    with torch.library._scoped_library("facts_test", "DEF") as library:
        library.define("double(Tensor x, Tensor(a!) into) -> ()")
        library.impl("double", _double, "CompositeExplicitAutograd")
        target = torch.ops.facts_test.double.default
        assert facts(target).writes == ((1, "into"),)
        assert may_draw(target)  # its author says nothing of random numbers


@pytest.mark.parametrize("function", [F.normalize, F.poisson_nll_loss, F.layer_norm, torch.unique, operator.add])
def test_names_say_nothing(function: Callable[..., Any]) -> None:
    assert facts(function).known and not facts(function).draws


def test_whether_anything_is_dropped() -> None:
    x = torch.ones(3)
    assert draws(F.dropout, (x,), {}) and not draws(F.dropout, (x, 0.5, False), {})
    assert not draws(F.dropout, (x, 0.0), {}) and not draws(F.alpha_dropout, (x,), {})
    assert draws("bernoulli_", (x, 0), {}) and not draws(torch.dropout, (x, 0.5, False), {})
    attention = F.scaled_dot_product_attention
    assert not draws(attention, (x, x, x), {}) and draws(attention, (x, x, x), {"dropout_p": 0.5})


def test_functions_of_the_program_are_unknown() -> None:
    def dropout(x: torch.Tensor) -> torch.Tensor:
        return x

    assert not facts(dropout).known and may_draw(dropout)
