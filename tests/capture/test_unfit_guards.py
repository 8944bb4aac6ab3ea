"""A call that repeats one before it compiles nothing; and a guard that fails on the very state that it was made from is
a fault that is reported, counted, and costs no second capture."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.guards.guard import Guard, kinds
from dynajit.interp.machine import Interpreter
from dynajit.report import breaks, records
from dynajit.testing import assert_same

LINEAR = torch.nn.Linear(4, 4)
x = torch.arange(8.0).reshape(2, 4)

VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "transposed": lambda w: w.transpose(0, 1),
    "sliced": lambda w: w[1:],
    "reshaped": lambda w: w.reshape(2, 8),
    "expanded": lambda w: w[0].expand(3, 4),
    "detached": lambda w: w.detach(),
    "detached and seen otherwise": lambda w: w.detach().t(),
    "a view of a view": lambda w: w.t()[1:].unsqueeze(0),
    "split": lambda w: w.split(2)[1],
    "all of a split": lambda w: list(w.split(2)),
    "unbound": lambda w: w.unbind(0)[-1],
    "a diagonal": lambda w: w.diagonal(),
    "bits": lambda w: w.view(torch.int32),
    "real part": lambda w: torch.view_as_complex(w.view(4, 2, 2)).real,
    "conjugated": lambda w: torch.view_as_complex(w.view(4, 2, 2)).conj(),
    "imaginary part of a conjugate": lambda w: torch.view_as_complex(w.view(4, 2, 2)).conj().imag,
    "itself": lambda w: w,
    "its data": lambda w: w.data,
    "copied": lambda w: w.clone(),
    "a leaf": lambda w: w.detach().clone().requires_grad_(),
    "a view of a leaf": lambda w: w.detach().clone().requires_grad_()[1:],
}
MODES: dict[str, Callable[[], Any]] = {
    "gradients": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    dynajit.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="dynajit")
        yield


@pytest.mark.parametrize("inside", MODES)
@pytest.mark.parametrize("outside", MODES)
def test_views_over_a_break(outside: str, inside: str) -> None:
    """Each view of a parameter, made in one mode, kept over a graph break, and used in another one."""
    for name, view in VIEWS.items():

        def program(x: Tensor, view: Any = view, name: str = name) -> Any:
            with MODES[inside]():
                kept = view(LINEAR.weight)
            dynajit.graph_break()
            parts = kept if isinstance(kept, list) else [kept]
            return [part * 2 for part in parts], [part.requires_grad for part in parts], x + 1

        with MODES[outside]():
            assert_same(program, x)


def test_a_view_made_without_gradients_of_a_parameter() -> None:
    def program(x: Tensor) -> Tensor:
        w = LINEAR.weight.transpose(0, 1)
        dynajit.graph_break()
        return x @ w

    with torch.no_grad():
        assert_same(program, x, graphs=2, breaks=1, recompiles=0)


def test_a_view_written_without_a_history() -> None:
    """Whether autograd would take a write with a history says nothing of one without."""

    def through_detach(x: Tensor) -> Tensor:
        x.detach().add_(1)
        return x * 2

    def itself(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    for program in (through_detach, itself):
        compiled = dynajit.compile(program, backend="eager")
        ours, eager = (torch.ones(3, 2, requires_grad=True) for _ in range(2))
        with torch.no_grad():
            view = eager[1:]
        for _ in range(2):
            with torch.no_grad():
                assert torch.equal(compiled(ours[1:]), program(eager[1:]))
            if program is through_detach:
                assert torch.equal(compiled(ours.t()), program(eager.t()))
        assert torch.equal(ours, eager) and torch.equal(view, eager[1:])


def _unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces record one guard more, that fails."""
    real = Interpreter.guard_writes

    def and_a_wrong_one(self: Interpreter) -> None:
        real(self)
        self.guards.add(Guard(self.graph.inputs[0].source, "PREDICATE", lambda value: False, "is another one"))

    monkeypatch.setattr(Interpreter, "guard_writes", and_a_wrong_one)


def test_a_guard_that_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(t: Tensor) -> Tensor:
        return t + 1

    compiled = dynajit.compile(program, backend="eager")
    assert torch.equal(compiled(x.double()), x.double() + 1)
    _unfit(monkeypatch)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # other tests' threads may still be there
    dynajit.counters["internal_errors"].clear()
    seen: list[records.CompileRecord] = []
    wanted = "fails on the very state.* is another one"
    with records.listen(seen.append), pytest.warns(UserWarning, match=wanted) as told:
        for _ in range(4):
            assert torch.equal(compiled(x), x + 1)
    assert len(told) == 1
    (record,) = seen
    assert record.skipped is not None and record.skipped.startswith(breaks.UNFIT_GUARD.text)
    assert dynajit.counters["internal_errors"] == {breaks.UNFIT_GUARD.id: 1}
    dynajit.counters["internal_errors"].clear()
    seen.clear()
    with records.listen(seen.append):
        assert torch.equal(compiled(x.double()), x.double() + 1)  # the variant that is no fault of anybody's
    assert not seen


def test_what_another_thread_may_have_changed_is_no_fault_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(t: Tensor) -> Tensor:
        return t - 1

    compiled = dynajit.compile(program, backend="eager")
    _unfit(monkeypatch)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert torch.equal(compiled(x), x - 1)
        with pytest.warns(UserWarning, match="fails on the very state"):
            assert torch.equal(compiled(x), x - 1)
    finally:
        done.set()
        thread.join()
    dynajit.counters["internal_errors"].clear()


def test_a_recompile_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program fails a guard that holds, as its twin says."""

    def program(t: Tensor) -> Tensor:
        return t * 3

    compiled = dynajit.compile(program, backend="eager")
    compiled(x)
    monkeypatch.setattr(type(kinds["TENSOR"]), "check", lambda self, value, params: True)
    dynajit.counters["internal_errors"].clear()
    with pytest.warns(UserWarning, match="failed, and holds"):
        compiled(x.double())
    assert dynajit.counters["internal_errors"] == {breaks.UNFIT_GUARD.id: 1}
    dynajit.counters["internal_errors"].clear()


def test_after_an_exception_the_whole_graph_is_used_again() -> None:
    """The variant that breaks where the exception is raised fits other arguments too; theirs comes first."""

    def program(x: Tensor, items: list[int]) -> Tensor:
        y = x + 1
        y = y * items.pop()
        return y.sin() + y.cos()

    compiled = dynajit.compile(program, backend="eager")
    seen: list[records.CompileRecord] = []
    assert torch.equal(compiled(x, [4]), program(x, [4]))
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(x, [])
    with records.listen(seen.append):
        assert torch.equal(compiled(x, [4]), program(x, [4]))
    assert not seen
