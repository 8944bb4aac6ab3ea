"""Programs that `fullgraph=True` takes, since nothing in them needs the graph to end: one graph, no break."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from program_cases import Case, Cases
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

cases = Cases()
numbers = torch.tensor([3, 1, 2])
floats = torch.tensor([[0.5, -1.0], [2.0, 0.0]])


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("case", cases, ids=lambda case: case.fn.__name__)
def test_is_one_graph_and_eagers_answer(case: Case, backend: str) -> None:
    assert_same(case.fn, *case.args, fullgraph=True, backend=backend, **case.options)


# ------------------------------------------------------------------------------------------- what depends on data


@cases(numbers, then=[(torch.tensor([7, 0, 5]),)])
def items_of_a_list(x: Tensor) -> Any:
    return [2 * number + 1 for number in x.tolist()]


@cases(floats, then=[(floats + 1,)])
def factor_from_the_data(x: Tensor) -> Any:
    return x * x.max().item() + float(x[0, 0])


@cases(floats, then=[(floats - 1,), (floats + 9,)])
def rows_that_are_kept(x: Tensor) -> Any:
    kept = x[x[:, 0] > 0]
    return kept * 2, x.nonzero(), torch.unique(x.sign())


@cases(numbers, then=[(torch.tensor([1, 4, 4]),)])
def size_from_the_data(lengths: Tensor) -> Any:
    return torch.zeros(int(lengths.sum())) + 1


def test_a_branch_on_data_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 3 else x

    with pytest.raises(dynajit.exc.Unsupported, match="needs a tensor's values"):
        dynajit.compile(f, backend="eager", fullgraph=True)(floats)
    assert_same(f, floats, breaks=1)


# -------------------------------------------------------------------------------------------- names of arguments


@cases(floats)
def entries_named_as_a_models_parameters(x: Tensor) -> Any:
    return dict(other=x + 1, kind=x, tx=2), dict([("self", x)], other=1)


@cases(floats)
def arguments_named_by_a_keyword_of_python(x: Tensor) -> Any:
    low = {"from": -2, "to": 7}
    return x.clone().random_(**low), x.clone().uniform_(**low), torch.empty(3).random_(**{"from": 1, "to": 3})


# ------------------------------------------------------------------------------------------------ what is closed over


def test_a_container_that_holds_itself_is_closed_over() -> None:
    ring: list[Any] = [2.0]
    ring.append({"ring": ring, "pair": (ring, 1)})

    def make() -> Any:
        return lambda x: x * ring[1]["ring"][0]

    first, second = dynajit.compile(make(), backend="eager"), dynajit.compile(make(), backend="eager")
    assert torch.equal(first(floats), floats * 2)
    assert torch.equal(second(floats), floats * 2)
