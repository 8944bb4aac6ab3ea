"""torch's optimizers, as its own database of their options names them: a step compiles nothing new after a few, and the
numbers are eager's, also where the learning rate, the set of gradients and the state change between steps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import dynajit
from dynajit.testing import CompileCounter

# closures and data-dependent steps make many small graphs
_NOT_YET = {"Adafactor", "LBFGS", "SparseAdam"}
STEPS, SETTLED = 8, 4


def _cases() -> Iterator[Any]:
    for info in optim_db:
        name = info.optim_cls.__name__
        if name in _NOT_YET:
            continue
        for given in info.optim_inputs_func(device="cpu"):
            for form in ({}, {"foreach": True}, {"fused": True}):
                if not form or next(iter(form)) in info.supported_impls:
                    yield pytest.param(info.optim_cls, {**given.kwargs, **form}, id=f"{name}-{given.desc}-{[*form]}")


def _train(kind: Any, options: dict[str, Any], compiled: bool) -> tuple[list[torch.Tensor], Any, int]:
    """The parameters after training, the state, and after how many steps nothing was compiled any more."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5, bias=False), torch.nn.Tanh(), torch.nn.Linear(5, 1, bias=False))
    parameters = [*model.parameters()]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.02}]
    optimizer = kind(groups, **copy.deepcopy(options))
    counter, settled = CompileCounter(), 0
    step = dynajit.compile(optimizer.step, backend=counter) if compiled else optimizer.step
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    for number in range(1, STEPS + 1):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        before = counter.frame_count
        step()
        settled = number if counter.frame_count > before else settled
        schedule.step()
    state = [optimizer.state[parameter] for parameter in parameters]
    return [parameter.detach() for parameter in parameters], state, settled


@pytest.mark.parametrize(("kind", "options"), _cases())
def test_a_step_is_compiled_for_the_first_calls_only(kind: Any, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, of options
        try:
            want, state, _ = _train(kind, options, compiled=False)
        except (RuntimeError, ValueError, NotImplementedError) as refused:
            with pytest.raises(type(refused)):
                _train(kind, options, compiled=True)
            return
        got, found, settled = _train(kind, options, compiled=True)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found, state, rtol=1e-4, atol=1e-6)
    assert settled <= SETTLED
