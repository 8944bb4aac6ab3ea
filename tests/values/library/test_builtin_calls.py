"""Every registered model takes what the real function takes, and gives what it gives: a sample of generated calls."""

from __future__ import annotations

import bisect
import collections
import functools
import inspect
import itertools
import os
import types
import warnings
from typing import Any

import pytest
import torch
from builtin_calls import Sized, Target, check, choose, sample, targets

import dynajit
from dynajit.interp.policy import real_signature, signature_of
from dynajit.testing import assert_same
from dynajit.values.library import BUILTINS, CONSTRUCTORS

_TARGETS = targets()
#: calls of each function, chosen from all kinds of outcome; more of them by DYNAJIT_BUILTIN_CALLS
_MOST = int(os.environ.get("DYNAJIT_BUILTIN_CALLS", "2"))
_GROUPS = 16


def _name(fn: Any) -> str:
    return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', fn)}"


def test_no_model_takes_a_name_for_its_own() -> None:
    """What a function hands on as a keyword argument must not meet a parameter of the model."""
    wrong = []
    for fn, model in [*BUILTINS.items(), *CONSTRUCTORS.items()]:
        real = real_signature(fn)
        if real is None or all(each.kind is not each.VAR_KEYWORD for each in real.parameters.values()):
            continue
        own = list(signature_of(model).parameters.values())[1:]
        named = [each.name for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
        if any(each.kind is each.VAR_KEYWORD for each in own) and not set(named) <= set(real.parameters):
            wrong.append(f"{_name(fn)}{real}: {signature_of(model)}")
    assert not wrong, "\n".join(wrong)


def test_functions_of_the_library_have_a_known_signature() -> None:
    unknown = [_name(fn) for target in _TARGETS if (fn := target.function) and real_signature(fn) is None]
    assert not unknown


def test_positions_agree() -> None:
    """A model has a parameter for each argument that the real function takes by position, or any number."""
    wrong = []
    for fn, model in [*BUILTINS.items(), *CONSTRUCTORS.items()]:
        real = real_signature(fn)
        own = list(signature_of(model).parameters.values())[1:]
        if real is None or any(each.kind is each.VAR_POSITIONAL for each in (*real.parameters.values(), *own)):
            continue
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        counts = [sum(each.kind in kinds for each in part) for part in (own, real.parameters.values())]
        if counts[0] < counts[1] and _name(fn) not in _FEWER:
            wrong.append(f"{_name(fn)}{real}: {signature_of(model)}")
    assert not wrong, "\n".join(wrong)


# what the model leaves out makes the call one for the real function
_FEWER = {"copy.deepcopy", "typing.get_type_hints", "torch._tensor.Tensor.__array__", "numpy.dtype"}


class Items(list):
    pass


@pytest.mark.parametrize(
    "program",
    [
        "collections.OrderedDict(other={'a': 1})",
        "collections.defaultdict(list, factory=1, self=2)",
        "functools.partial(dict, fn=3, func=4)()",
        "'{template}'.format(template=1)",
        "list(enumerate([7], True))",
        "enumerate([7], 1.5)",
        "enumerate([1], None)",
        "sum(['a'], '')",
        "reversed({1, 2})",
        "[1, 2, 3][0.5:]",
        "list(map(len))",
        "{1, 2}.__eq__([1])",
        "bisect.bisect([1, 2], 2, 0.5)",
        "bisect.insort([1, 2], 2, 0, 'a')",
        "[] * 2**70",
        "itertools.product(Sized(-1))",
        "itertools.permutations(Sized(-1), 2)",
        # containers given themselves
        "(made := Items([1, 2])).extend(made) or made",
        "(made := Items([1, 2])).__iadd__(made)",
        "(made := [1, 2]).__setitem__(slice(None), made) or made",
        "(made := {1, 2}).difference_update(made) or made",
        "(made := {1: 2}).update(made) or made",
        "(made := collections.deque([1, 2])).extend(made) or made",
        "(made := collections.deque([1, 2], 3)).extendleft(made) or made",
    ],
)
def test_the_calls_of_one_line(program: str) -> None:
    world = {"bisect": bisect, "collections": collections, "functools": functools, "itertools": itertools}
    world |= {"Items": Items, "Sized": Sized}
    assert_same(eval(f"lambda: {program}", world))


@pytest.mark.parametrize("call", ["getattr", "hasattr", "object.__getattribute__", "setattr", "delattr"])
@pytest.mark.parametrize("name", ["1", "None", "b'a'"])
def test_an_attributes_name_is_a_text(call: str, name: str) -> None:
    rest = ", 2" if call == "setattr" else ""
    for owner in (types.SimpleNamespace(a=1), torch.ones(2), torch.nn.ReLU(), 1, len):
        with warnings.catch_warnings(action="error"):
            assert_same(eval(f"lambda owner: {call}(owner, {name}{rest})"), owner, breaks=1)


def test_a_list_is_extended_by_itself_in_one_graph() -> None:
    def program() -> Any:
        made = Items([1, 2])
        made.extend(made)
        made += made
        return made

    assert dynajit.compile(program, backend="eager", fullgraph=True)() == [1, 2] * 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("group", range(_GROUPS))
def test_generated_calls(group: int) -> None:
    wrong = []
    for target in _TARGETS[group::_GROUPS]:
        for call in _chosen(target):
            found = check(call, made_inside=choose(str(call)) % 2 == 0)
            if found is not None:
                wrong.append(found)
    assert not wrong, "\n".join(wrong)


def _chosen(target: Target) -> list[Any]:
    calls = sample(target, tries=40 * _MOST)
    return sorted(calls, key=lambda call: choose(str(call)))[:_MOST]
