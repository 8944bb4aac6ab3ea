"""Torch's operator database, sampled: a tenth of the operators, two samples of each dtype. `make operators` runs all.

`DYNAJIT_OPERATORS_PART=I` (0 to 9) chooses another tenth. Also programs that the whole run found wrong, as small as
they go.
"""

from __future__ import annotations

import os
import warnings

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database needs it")

from operators_calls import VARIANTS
from operators_known import reason_for
from operators_workers import Outcome
from run_operators import name_of, op_db, run_operator

import dynajit

PART = int(os.environ.get("DYNAJIT_OPERATORS_PART", "3"))
# Many samples, each a graph of many operators: for the whole run only.
DEAR = ("nn.functional.interpolate", "linalg.", "nn.functional.multi_head", "masked.", "fft.", "svd", "pca_lowrank")
CHOSEN = [op for number, op in enumerate(op_db) if number % 10 == PART and not name_of(op).startswith(DEAR)]


# Ways of calling that compile much; they differ little from dtype to dtype.
STRICT = frozenset({"out", "layouts", "raises"})


@pytest.mark.parametrize("op", CHOSEN, ids=name_of)
def test_operator(op: object) -> None:
    _assert_nothing_found(run_operator(op, 2, "codegen", variants=VARIANTS.keys() - STRICT))


@pytest.mark.parametrize("op", CHOSEN, ids=name_of)
def test_operator_to_the_exception_and_the_warning(op: object) -> None:
    _assert_nothing_found(run_operator(op, 1, "codegen", {"float32"}, variants=STRICT))


def _assert_nothing_found(outcome: Outcome) -> None:
    unknown = [item for item in outcome.found if not reason_for(outcome.name, item[2])]
    assert not unknown, "\n".join(str(item) for item in unknown[:10])


def test_inputs_whose_shape_changes_in_place() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze_(1).mul(2)

    mine, theirs = torch.ones(2, 3), torch.ones(2, 3)
    ours, eager = dynajit.compile(f, fullgraph=True)(mine), f(theirs)
    assert ours.shape == eager.shape and mine.shape == theirs.shape
    torch.testing.assert_close(ours, eager)


def test_strides_of_dimensions_of_size_one() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x.split(1), x.unsqueeze(0), x.view(1, -1), x[:1].t())

    x = torch.ones(2, 3)
    ours, eager = dynajit.compile(f, fullgraph=True)(x), f(x)
    assert [y.stride() for y in ours] == [y.stride() for y in eager]


def test_statistics_of_another_dtype_than_the_fake_ones() -> None:
    def f(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    x = torch.arange(24.0).reshape(4, 3, 2).bfloat16()
    ours, eager = (
        [torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()],
        [torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()],
    )
    torch.testing.assert_close(dynajit.compile(f, fullgraph=True)(x, *ours), f(x, *eager))
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.int16])
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
def test_floats_that_no_integer_stands_for(source: torch.dtype, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 1).to(dtype)

    values = [float("nan"), float("inf"), float("-inf"), 1e20, -1e20, 3e9, -2147483649.0, 300.0, -1.5, -0.0]
    x = torch.tensor(values * 5, dtype=torch.float64).to(source)
    assert torch.equal(dynajit.compile(f, fullgraph=True)(x), f(x))


def test_bool_alpha_is_refused_as_in_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, x, alpha=True)

    with pytest.raises(RuntimeError) as eager:
        f(torch.ones(3))
    with pytest.raises(RuntimeError) as ours:
        dynajit.compile(f)(torch.ones(3))
    assert str(ours.value) == str(eager.value)
    truth = torch.tensor([True, False])
    assert torch.equal(dynajit.compile(f, fullgraph=True)(truth), f(truth))


def test_gradient_whose_shape_depends_on_values() -> None:
    """The graph runs, operator by operator; a warning says so once in a process."""

    def f(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (x * 2).index_put((mask,), value)

    x, value = torch.randn(5, requires_grad=True), torch.randn((), requires_grad=True)
    mask = torch.tensor([True, False, True, False, False])
    weights = torch.arange(5.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="dynajit: the gradient of an operation")
        ours = dynajit.compile(f, fullgraph=True)(x, mask, value)
    eager = f(x, mask, value)
    torch.testing.assert_close(ours, eager)
    for a, e in zip(*(torch.autograd.grad(y, (x, value), weights) for y in (ours, eager)), strict=True):
        torch.testing.assert_close(a, e)


def test_is_complex_is_a_method() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_complex() else x + 1

    for x in (torch.ones(3), torch.ones(3, dtype=torch.complex64)):
        torch.testing.assert_close(dynajit.compile(f, fullgraph=True)(x), f(x))
