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

from dynajit.op_facts import draws, facts, may_draw, written_arguments


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
        assert written_arguments(function, args, kwargs) or "out" in kwargs, f"{name} writes"


def _names(function: Any) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return code.co_varnames[: code.co_argcount] if code is not None else ()


@pytest.mark.filterwarnings("ignore")  # of how many dimensions some of them take
@pytest.mark.parametrize("name", [name for name in dir(F) if "inplace" in _names(getattr(F, name))])
def test_a_function_writes_where_it_is_told_to(name: str) -> None:
    function: Any = getattr(F, name)
    given = {"threshold": 0.5, "value": 2.0, "training": True}
    named = {each: given[each] for each in _names(function) if each in given}
    defaults = dict(zip(reversed(_names(function)), reversed(function.__defaults__ or ()), strict=False))
    in_order = [(defaults | named)[each] for each in _names(function)[1:]]
    flag = _names(function).index("inplace") - 1
    for inplace in (True, False):
        in_order[flag] = inplace
        for args, kwargs in (((), {**named, "inplace": inplace}), (tuple(in_order), {})):
            x = torch.rand(2, 3, 3)
            function(x, *args, **kwargs)
            assert (
                (x._version > 0)
                == inplace
                == any(each is x for each in written_arguments(function, (x, *args), kwargs))
            )


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


ARGUMENTS: list[tuple[Any, ...]] = [
    *[(), (0,), (1.0,), ("like",), (0, 1), ("like", "like"), ("like", "like", 0.5), (0, 1.0), (0.5, 1.0)],
    *[(0, "places", "rows"), (0, "places", 1.0), ("mask", 1.0), ("mask", "rows"), (0, 0, 0), ((3, 3),)],
]
# It moves the tensor elsewhere, which its version counts; it waits for a graph that isn't there.
NOT_CALLED = {"share_memory_", "backward"}


def _argument(kind: Any, value: torch.Tensor) -> Any:
    made = {
        "like": value.clone,
        "rows": value[:2].clone,
        "places": lambda: torch.tensor([0, 1]),
        "mask": lambda: torch.ones(value.shape, dtype=torch.bool),
    }
    return made[kind]() if isinstance(kind, str) else kind


@pytest.mark.parametrize("value", [torch.rand(3, 3) + 0.5, torch.arange(9).reshape(3, 3) + 1, torch.rand(3, 3) > 0.5])
def test_methods_write_what_is_known_of_them(value: torch.Tensor) -> None:
    """Each method of tensors, Python's operators among them, with arguments of all kinds."""
    called = 0
    for name in dir(torch.Tensor):
        method = getattr(torch.Tensor, name)
        dunder = name.startswith("__") and name not in ("__class__", "__reduce__", "__reduce_ex__")
        if not callable(method) or isinstance(method, type) or name in NOT_CALLED or (name[0] == "_" and not dunder):
            continue
        for kinds in ARGUMENTS:
            written = value.clone()
            arguments = [_argument(kind, written) for kind in kinds]
            before = _versions([written])
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    method(written, *arguments)
            except Exception:  # of arguments that it does not take
                continue
            called += 1
            if _versions([written]) != before:
                for target in (name, method):
                    assert not facts(target).known or 0 in dict(facts(target).writes), (target, kinds)
                    assert facts(target).known or name == "module_load", (target, kinds)
    assert called > 400
