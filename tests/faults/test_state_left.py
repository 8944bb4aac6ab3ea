"""Captures of varied programs in threads side by side, and interrupts of what they change: the process is as before."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dynajit
from dynajit import _C, torch_compat
from dynajit.aot.modes import one_at_a_time
from dynajit.aot.passes.recurrent import lstm_with_backward
from dynajit.capture import collector, rules
from dynajit.graph.fake import modes_left
from dynajit.process_state import changed
from dynajit.torch_warnings import filters_kept, filters_of_program, program_warns_always, unwarned
from tests.faults.process_state import differences, state

THREADS, TURNS = 4, 8


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lstm, self.norm = nn.Linear(8, 8), nn.LSTM(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.norm(self.linear(x)))[0].sum()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


network = Network()


def trains(x: torch.Tensor) -> Any:
    w = x.clone().requires_grad_()
    (w.sin() * w).sum().backward()
    return w.grad


def breaks(x: torch.Tensor) -> Any:
    y = x.sin() * 2
    print(end="")
    with torch.no_grad():
        y = y + x.mean()
    return torch.relu(y).sum(0)


def networks(x: torch.Tensor) -> Any:
    return network(x)


def warns(x: torch.Tensor) -> Any:
    return x + torch.range(0, 7)


def transforms(x: torch.Tensor) -> Any:
    return torch.func.vmap(torch.func.grad(lambda a: (a * a).sum()))(x)


def functions(x: torch.Tensor) -> Any:
    return Doubled.apply(x.clone().requires_grad_()).sum()


def recomputes(x: torch.Tensor) -> Any:
    return checkpoint(lambda a: a.sin().cos(), x.clone().requires_grad_(), use_reentrant=False).sum()


def settings(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


def fails(x: torch.Tensor) -> Any:
    try:
        return x @ torch.ones(3, 3)
    except RuntimeError:
        return x.fill_(2).masked_fill(x > 0, 1.5)


PROGRAMS = [trains, breaks, networks, warns, transforms, functions, recomputes, settings, fails]
BACKENDS = ("eager", "codegen")


def captured(program: Callable[..., Any], backend: str) -> Any:
    """What it gives, its code being compiled for the first time."""
    anew = types.FunctionType(program.__code__.replace(), globals(), program.__name__)
    return dynajit.compile(anew, backend=backend)(torch.linspace(-1, 1, 64).reshape(8, 8))


@pytest.fixture
def warm(tmp_path: Any) -> Iterator[None]:
    """What is done once in a process, such as imports, is done; each test has its kernels in a folder of its own."""
    with dynajit.config.patch(cache_dir=str(tmp_path)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for program in PROGRAMS:
            for backend in BACKENDS:
                captured(program, backend)
        yield


def test_threads_side_by_side_leave_the_process_as_it_was(warm: None) -> None:
    before, failures = state(), []

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(TURNS):
            program, backend = chosen.choice(PROGRAMS), chosen.choice(BACKENDS)
            try:
                captured(program, backend)
            except Exception as error:
                failures.append((program.__name__, backend, repr(error)))

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    try:
        sys.setswitchinterval(1e-5)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert differences(before, state()) == []


LSTMS = torch.fx.symbolic_trace(lambda x: torch.lstm(x, x, x, False, 1, 0.0, False, False, False))  # type: ignore[arg-type]
CHANGES: dict[str, Callable[[], Any]] = {
    "warnings": unwarned,
    "some warnings": lambda: unwarned("some"),
    "filters": filters_kept,
    "modes": modes_left,
    "collector": collector.relaxed,
    "builtins": lambda: rules.own_builtins,
    "hooks": rules.no_saved_tensor_hooks,
    "lstm": lambda: lstm_with_backward(LSTMS),
    "tracing": one_at_a_time,
    "functions": torch_compat.generators_untouched,
    "several functions": torch_compat.graphs_shown_on_demand,
    "lazy graphs": torch_compat.lazy_graphs,
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupt_at_any_point_of_a_change_leaves_the_process_as_it_was(name: str) -> None:
    """The interpreter looks for signals where a function begins, and behind each call of one written in C. An alarm
    would now and then come in torch's C++ code, of which some ends the process where Python code raises."""
    before, points, left = state(), itertools.count(), -1
    while left < 0:
        left = next(points)

        def interrupt(frame: Any, event: str, arg: Any) -> None:
            nonlocal left
            if event in ("call", "c_return"):
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt

        try:
            sys.setprofile(interrupt)
            with CHANGES[name]():
                torch.ones(1) + 1
            sys.setprofile(None)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
    assert next(points) > 1
    assert differences(before, state()) == []


# ------------------------------------------------------------------------------------------- the mechanism by itself


class Box:
    value = 1


def test_the_last_one_out_puts_the_state_back() -> None:
    box = Box()
    change = changed((box, "value", 2), (Box, "other", 3))
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with change:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with change, change:
        assert change.is_inside() and (box.value, box.other) == (2, 3)  # type: ignore[attr-defined]
        thread.start()
        entered.wait()
    assert not change.is_inside() and box.value == 2
    leave.set()
    thread.join()
    assert box.value == 1 and not vars(box) and "other" not in vars(Box)


def test_what_somebody_sets_meanwhile_stays() -> None:
    box = Box()
    with changed((box, "value", 2)):
        box.value = 5
    assert box.value == 5
    numbers = [1]
    with changed((numbers.copy, numbers.append, 2)):
        numbers.append(7)
    assert numbers == [1, 2, 7]


def test_what_the_block_changes_is_put_back_where_that_is_asked() -> None:
    with changed((Box, "value"), (torch.get_num_threads, torch.set_num_threads)):
        Box.value = 9
    assert Box.value == 1


def test_a_setting_that_fails_leaves_the_others_as_they_were() -> None:
    box = Box()
    change = changed((box, "value", 2), (object(), "value", 2))
    with pytest.raises(AttributeError), change:
        raise AssertionError("entered")
    assert box.value == 1 and not change.is_inside()
    with pytest.raises(RuntimeError, match="not inside"):
        change.__exit__()
    with pytest.raises(TypeError, match="tuples of two or three"):
        _C.StateChange((box,))  # type: ignore[arg-type]


def test_modes_of_a_block_that_raises_are_left() -> None:
    grad, depth = torch.is_grad_enabled(), torch._C._len_torch_dispatch_stack()
    with pytest.raises(ValueError, match="here"), _C.ThreadState():
        torch._C._set_grad_enabled(not grad)
        torch._enable_functionalization(reapply_views=True)
        raise ValueError("here")
    assert torch.is_grad_enabled() == grad and torch._C._len_torch_dispatch_stack() == depth
    assert type(torch.ones(1) + 1) is torch.Tensor and not torch._is_functional_tensor(torch.ones(1))


# ------------------------------------------------------------------------------------------------------- warnings


def test_warnings_of_a_thread_that_listens_are_its_own() -> None:
    listening, done = threading.Event(), threading.Event()
    heard: list[str] = []

    def other() -> None:
        with unwarned() as warned:
            warnings.warn("of the other thread", stacklevel=1)
            listening.set()
            done.wait()
        heard.extend(warned.texts)

    before = list(warnings.filters)
    thread = threading.Thread(target=other)
    thread.start()
    listening.wait()
    with warnings.catch_warnings():  # begins while the other thread listens, and ends when it does not
        warnings.simplefilter("error")
        assert filters_of_program()[0][0] == "error" and not program_warns_always()
        with pytest.raises(UserWarning, match="of this thread"):
            warnings.warn("of this thread", stacklevel=1)
        warnings.simplefilter("ignore")
        warnings.warn("ignored", stacklevel=1)
        done.set()
        thread.join()
    assert heard == ["of the other thread"]
    assert list(warnings.filters) == before
    with pytest.warns(UserWarning, match="at the end"):
        warnings.warn("at the end", stacklevel=1)


def test_warnings_that_are_not_meant_reach_who_listens_outside() -> None:
    with unwarned() as all_, unwarned("cold") as some:
        warnings.warn("cold outside", stacklevel=1)
        warnings.warn("warm outside", stacklevel=1)
    assert (all_.texts, some.texts) == (["warm outside"], ["cold outside"])


def test_filters_of_other_threads_are_told_of() -> None:
    told = warnings._filters_mutated  # type: ignore[attr-defined]
    shown: list[int] = []

    def other() -> None:
        for _ in range(2):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("default")
                warnings.warn("the same", stacklevel=1)
            shown.append(len(found))

    with filters_kept():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert shown == [1, 1]
    assert warnings._filters_mutated is told  # type: ignore[attr-defined]
