"""torch.distributions with their checks, and the program's own, in one graph; what does not pass raises as in eager.

PYTEST_DONT_REWRITE: the programs' `assert` is Python's.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import BACKENDS, Case, Cases, leaf, rand
from torch import distributions as D

import dynajit
from dynajit.testing import CompileCounter
from dynajit.values.polyfills.sizes import broadcast_size

cases = Cases(backward=True)


@cases(leaf(3))
def normal(x):
    d = D.Normal(x, x.exp())
    other = D.Normal(x + 1, x.exp())
    return d.rsample(), d.log_prob(x + 1), D.kl_divergence(d, other), d.entropy()


@cases(leaf(4), rtol=1e-4, atol=1e-5)
def categorical(x):
    c = D.Categorical(logits=x)
    s = c.sample()
    return s, c.log_prob(s), c.entropy(), c.probs


@cases(rand(3))
def invalid_scale(x):
    y = x + 1
    return D.Normal(y, -y.exp()).log_prob(y)


@cases(rand(3))
def invalid_scale_after_a_draw(x):
    y = x + torch.rand(3)
    return D.Normal(y, -y.exp()).log_prob(y), torch.rand(3)


@cases(rand(3), graphs=None)
def caught(x):
    try:
        return D.Normal(x, -x.exp()).log_prob(x)
    except ValueError as error:
        return x + len(str(error))


@cases(leaf(3))
def bernoulli_and_beta(x):
    p = torch.sigmoid(x)
    return D.Bernoulli(probs=p).log_prob(torch.ones(3)), D.Beta(p + 1, p + 2).log_prob(p), D.Uniform(x, x + 1).mean


@cases(rand(3))
def asserted(x):
    torch._assert_async((x < 9).all(), "too large")
    torch._assert_async((x < 8).all())
    return x + 1


@cases(rand(3))
def asserted_in_vain(x):
    torch._assert_async((x > 9).all(), "too small")
    return x + 1


@cases(leaf(3))
def asserted_without_a_message(x):
    torch._assert_async((x > 9).all())
    return x * 2


@cases(rand(3))
def asserted_behind_a_write(x):
    x.add_(1)
    torch._assert_async((x > 9).all(), "too small")
    return x + 1


@cases(leaf(3))
def tensors_asserted(x):
    assert (x < 9).all(), f"too large: {x.shape}"
    y = x.exp()
    assert not torch.isnan(y).any()
    if y.detach().sum() < 0:
        raise ValueError("negative " + str(len(y)))
    if (y > 0).all():
        z = y * 2
    else:
        raise RuntimeError(y.numel() % 5) from None
    return z


@cases(rand(3))
def tensors_asserted_in_vain(x):
    y = x + 1
    assert (y > 9).all(), f"too small: {y.sum().item():.3f}"
    return y * 2


@cases(leaf(3))
def raises_behind_a_draw(x):
    y = x * torch.rand(3)
    if not (y.detach() > 9).any():
        raise ValueError(f"{y.shape}", y.detach())
    return y, torch.rand(3)


@cases(rand(3))
def raises_behind_a_write(x):
    x.mul_(2)
    y = x.clone().zero_()
    if not y.any():
        raise KeyError("zeros")
    return x + y


@cases(rand(3))
def raises_in_a_loop(x):
    for step in range(4):
        x = x * 2
        if x.max() > 4 + step:
            raise OverflowError(step)
    return x


def checked(x, seen):
    seen.append("called")
    assert x.sum() > 100, "small"
    return x


@cases(rand(3), graphs=None)
def caught_outside(x):
    seen: list[Any] = []
    try:
        return checked(x + 1, seen)
    except AssertionError as error:
        return x * 2, seen, str(error)


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_effects_before_a_check_happen(backend: str, passes: bool) -> None:
    found = []
    for wrap in (lambda fn: fn, dynajit.compile(backend=backend)):
        seen: list[Any] = []

        def step(x: Any, seen: list[Any]) -> Any:
            seen.append(x * 2)
            x.add_(1)
            if (x > 2).any():
                raise ValueError("large")
            seen.append("passed")
            return x + 1

        compiled = wrap(step)
        for _ in range(2):
            x = torch.zeros(3) if passes else torch.ones(3) * 2
            try:
                seen.append(compiled(x, seen))
            except ValueError as error:
                seen.append(str(error))
            seen.append(x)
        found.append(seen)
    assert [repr(each) for each in found[0]] == [repr(each) for each in found[1]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_program(case: Case, backend: str) -> None:
    case.check(backend)


class Summed(type(torch.distributions.constraints.positive_definite)):  # type: ignore[misc]
    def check(self, value: Any) -> Any:
        return super().check(value) & (value.sum() > 0)


EYE, ODD = torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
MATRICES = [EYE, EYE * 2, ODD, -EYE, EYE * float("nan"), torch.ones(2, 3), torch.stack([EYE, ODD])]


@pytest.mark.parametrize("matrix", [*MATRICES, torch.ones(0, 2, 2), torch.ones(0, 2, 3)], ids=lambda m: str(m.tolist()))
def test_constraints_on_matrices(matrix: Any) -> None:
    constraints = torch.distributions.constraints
    asked = (constraints.symmetric, constraints.positive_semidefinite, constraints.positive_definite, Summed())

    def check(matrix: Any, constraint: Any) -> Any:
        return constraint.check(matrix), matrix + 1

    def density(matrix: Any) -> Any:
        mean = torch.zeros(matrix.shape[-1])
        return torch.distributions.MultivariateNormal(mean, covariance_matrix=matrix).log_prob(mean + 1)

    def outcome(fn: Any, *args: Any) -> Any:
        try:
            return repr(fn(*args))
        except (ArithmeticError, ValueError, RuntimeError) as error:
            return type(error), str(error)

    for fn, others in ((check, asked), (density, [()])):
        for other in others:
            args = (matrix, other) if other else (matrix,)
            assert outcome(dynajit.compile(fn, backend="aot_eager"), *args) == outcome(fn, *args)


def test_a_constraint_that_a_program_derives_is_one_graph() -> None:
    report = dynajit.explain(lambda matrix, constraint: constraint.check(matrix) & True)(EYE, Summed())
    assert report.graph_count >= 1 and "no room left" not in str(report)


def test_a_multivariate_normal_is_one_graph() -> None:
    def f(matrix: Any) -> Any:
        mean = torch.zeros(2)
        return torch.distributions.MultivariateNormal(mean, covariance_matrix=matrix).log_prob(mean + 1)

    report = dynajit.explain(f)(EYE)
    assert (report.graph_count, report.graph_break_count) == (1, 0)


SIZES = [torch.Size(sizes) for count in range(4) for sizes in itertools.product((0, 1, 2, 3), repeat=count)]


def _outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        return str(error)


def test_broadcast_sizes_are_torchs() -> None:
    real: Any = torch._C._infer_size  # type: ignore[attr-defined]
    pairs = [*itertools.product(SIZES, SIZES[::3]), ((2,), torch.Size([2])), (torch.Size([2]), [2])]
    wrong = [pair for pair in pairs if _outcome(broadcast_size, *pair) != _outcome(real, *pair)]
    assert wrong == []


def test_divergences_of_batches_of_any_size_are_one_graph_each() -> None:
    def divergence(x: torch.Tensor) -> torch.Tensor:
        wide = torch.eye(3) * 2
        return D.kl_divergence(D.MultivariateNormal(x, torch.eye(3)), D.MultivariateNormal(x + 1, wide))

    counter = CompileCounter()
    compiled = dynajit.compile(divergence, backend=counter, fullgraph=True)
    for batch in (2, 3, 5, 6):
        x = torch.linspace(-1, 1, batch * 3).reshape(batch, 3)
        torch.testing.assert_close(compiled(x), divergence(x))
    assert counter.frame_count == 2
