"""torch.distributions with their checks in one graph; what does not pass them raises as in eager."""

from __future__ import annotations

import pytest
import torch
from feature_cases import BACKENDS, Case, Cases, leaf, rand
from torch import distributions as D

cases = Cases()


@cases(leaf(3))
def normal(x):
    d = D.Normal(x, x.exp())
    other = D.Normal(x + 1, x.exp())
    return d.rsample(), d.log_prob(x + 1), D.kl_divergence(d, other), d.entropy()


@cases(leaf(4), exact=False)
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


@cases(rand(3))
def asserted_behind_a_write(x):
    x.add_(1)
    torch._assert_async((x > 9).all(), "too small")
    return x + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_program(case: Case, backend: str) -> None:
    case.check(backend)
