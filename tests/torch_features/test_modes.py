"""torch's modes: grad mode, inference mode, autocast, default dtype, as contexts, decorators and functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import BACKENDS, Case, Cases, leaf, rand

import dynajit

cases = Cases(backward=True)


@torch.no_grad()
def _deco(a: torch.Tensor) -> torch.Tensor:
    return a * 2


@torch.inference_mode()
def _inf(a: torch.Tensor) -> torch.Tensor:
    return a * 2


@torch.set_grad_enabled(False)
def _sg(a: torch.Tensor) -> torch.Tensor:
    return a * 2


@cases(leaf(3))
def nograd_ctx(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        z = x * 3
    return x.sin() + y + z


@cases(leaf(3))
def nograd_deco(x):

    @torch.no_grad()
    def f(a):
        return a * 2

    @torch.enable_grad()
    def g(a):
        return a * 2

    return (f(x), g(x))


@cases(leaf(3))
def nograd_deco_global(x):
    return (_deco(x) + x, _sg(x))


@cases(leaf(3))
def inference_deco(x):
    return _inf(x.detach()).sin()


@cases(leaf(3))
def inference_ctx(x):
    with torch.inference_mode():
        y = x * 2
    return y


@cases(leaf(3))
def inference_false(x):
    with torch.inference_mode(False):
        y = x * 2
    return y


@cases(torch.tensor([4, -2, -1, 3]))
def inference_writes_by_operators(x):
    with torch.inference_mode():
        x &= 7
        x |= 8
        x ^= 1
        x <<= 1
        x[1] = 5
    return x


@cases(leaf(3))
def inference_ctx_isinf(x):
    with torch.inference_mode():
        y = x * 2
    return (y, y.is_inference(), torch.is_inference(y), torch.is_inference_mode_enabled())


@cases(leaf(3))
def set_grad_fn(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y + x


@cases(leaf(3))
def set_grad_ctx_nested(x):
    with torch.set_grad_enabled(mode=False):
        a = x * 2
        with torch.enable_grad():
            b = x * 3
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
    return a + b


@cases(leaf(3))
def no_grad_wrapped(x):
    f = torch.no_grad()(lambda a: a * 3)
    return f(x) + x


@cases(rand(3))
def default_dtype(x):
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3)
    torch.set_default_dtype(old)
    return (y, torch.ones(3), x)


@cases(leaf(4, 4))
def autocast_customfwd(x):
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        d = torch.get_autocast_dtype("cpu")
        return ((x @ x).to(d), torch.get_autocast_cpu_dtype(), torch.is_autocast_cpu_enabled())


@cases(leaf(3), 3, breaks=1, graphs=0)
def set_grad_takes_no_int(x, n):
    with torch.set_grad_enabled(n % 2):
        y = x * 2
    return y


@cases(leaf(3))
def grad_mode_stays_off(x):
    torch.set_grad_enabled(False)
    return x * 2


@cases(leaf(3), graphs=None, breaks=1)
def default_dtype_across_a_break(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3)
    print(end="")
    z = torch.ones(3)
    torch.set_default_dtype(torch.float32)
    return (x, y, z)


def _prints(x):
    print(end="")
    return x * 2


@cases(rand(3, 4), graphs=None, breaks=None)
def break_inside_of_a_transform(x):
    return torch.vmap(_prints)(x.sin()).cos()


@cases(rand(3), graphs=None, breaks=None)
def break_inside_of_inference_mode(x):
    with torch.inference_mode():
        y = _prints(x.sin()) + 1
    return y


@cases(leaf(4, 4), graphs=None, breaks=None)
def break_inside_of_autocast(x):
    y = x + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = _prints(y @ y)
        y = y @ y
    return y


@cases(leaf(4, 4), graphs=None, breaks=None)
def break_inside_of_a_grad_transform(x):
    y = x + 1
    return torch.func.grad(lambda a: _prints(a.sin()).sum())(y.detach()) + y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_program(case: Case, backend: str) -> None:
    case.check(backend)


def test_a_break_in_inference_mode_costs_one_more_where_it_is_left() -> None:
    @torch.inference_mode()
    def decode(x: torch.Tensor, steps: int) -> Any:
        for _ in range(steps):
            x = x * 2
            if x.sum() > 100:
                break
        return x + 1

    def outer(x: torch.Tensor, steps: int) -> Any:
        y = decode(x.sin(), steps)
        return y, y.is_inference(), torch.is_inference_mode_enabled(), (x * 3).is_inference()

    run, alone = (dynajit.compile(fn, backend="eager") for fn in (outer, decode))
    for steps in (2, 3, 9):
        found, wanted = run(torch.ones(4), steps), outer(torch.ones(4), steps)
        assert torch.equal(found[0], wanted[0]) and found[1:] == wanted[1:] == (True, False, False)
        assert torch.equal(alone(torch.ones(4), steps), decode(torch.ones(4), steps))
        assert not torch.is_inference_mode_enabled()
    reasons = [found.reason for found in dynajit.explain(decode, backend="eager")(torch.ones(4), 2).break_reasons]
    assert sum("inference mode" in reason for reason in reasons) == 1
    assert not any("__exit__" in reason for reason in reasons)
