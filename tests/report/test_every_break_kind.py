"""Every kind of graph break is met by a program that has it, and the program's answer is eager's.

In: the table of kinds. Out: a failure for a kind that no program reaches, and for a program that breaks another way.
"""

import abc
import asyncio
import importlib
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.report import breaks, records
from dynajit.testing import assert_same

x = torch.arange(6.0).reshape(2, 3)


def tensor_branch(x: Tensor) -> Any:
    y = x + 1
    if y.sum() > 3:
        return y * 2
    return y * 3


def data_dependent(x: Tensor) -> Any:
    return (x + 1) * float(x.sum())


def dynamic_output(x: Tensor) -> Any:
    return torch.nonzero(x + 1) * 2


def operation_raises(x: Tensor) -> Any:
    return (x + 1) @ x


LARGE = torch.zeros(5 << 20)  # 20 MiB: no copy of it is kept, to be put back where something raises


def operation_may_raise(x: Tensor) -> Any:
    LARGE.add_(1)
    try:
        return x[torch.tensor([1]) + x[:1, 0].long().clamp(max=0)]
    except IndexError:
        return x


def exception(x: Tensor) -> Any:
    y = x + 1
    raise ValueError(y.shape)


def first_call(x: Tensor, layer: torch.nn.Module) -> Any:
    return layer(x + 0 * torch.rand(())) * 2  # which draws before the layer does


def skipped(x: Tensor) -> Any:
    y = x + 1
    torch.initial_seed()
    return y * 2


def output(x: Tensor) -> Any:
    y = x + 1
    print("here")
    return y * 2


def unknown_callable(x: Tensor) -> Any:
    y = x + 1
    sys.getrefcount(3)
    return y * 2


def unknown_opcode(x: Tensor) -> Any:
    y = x + 1

    class Local(metaclass=abc.ABCMeta):  # noqa: B024
        pass

    return y * 2, Local.__name__


KEPT: list[type] = []


def local_class(x: Tensor) -> Any:
    y = x + 1

    class Local:
        pass

    KEPT[:] = [Local]
    return y * 2


UNDER_WAY = slice(torch.tensor(1), torch.tensor(2))


def unsupported_value(x: Tensor) -> Any:
    y = x + 1
    return y * 2, range(3) == range(torch.tensor(3))


def unsupported_attribute(x: Tensor) -> Any:
    y = x + 1
    unsupported_attribute.__kwdefaults__ = None
    return y * 2


def unsupported_tensor(x: Tensor) -> Any:
    y = x + 1
    y.data_ptr()
    return y * 2


class Hooked(torch.nn.ReLU):
    def __init__(self) -> None:
        super().__init__()
        self.register_full_backward_hook(lambda module, into, out: None)


HOOKED = Hooked()


def module_backward_hook(x: Tensor) -> Any:
    w = (x + 1).detach().requires_grad_()
    return (HOOKED(w * 2) + 1).detach()


def backward(x: Tensor) -> Any:
    w = x.clone().requires_grad_()
    (w * 2).sum().backward()
    return w.grad


def user_break(x: Tensor) -> Any:
    y = x + 1
    dynajit.graph_break()
    return y * 2


@dynajit.disable
def left_alone(x: Tensor) -> Any:
    return x * 3


def disabled(x: Tensor) -> Any:
    return left_alone(x + 1) * 2


@dynajit.disallow_in_graph
def kept_out(x: Tensor) -> Any:
    return x * 3


def disallowed(x: Tensor) -> Any:
    return kept_out(x + 1) * 2


other = torch.compile(lambda t: t - 1, backend="eager")


def compiled_by_another(x: Tensor) -> Any:
    return other(x + 1) * 2


def frames(x: Tensor) -> Any:
    y = x + 1
    return y * 2, sys._getframe().f_code.co_name


async def coroutine(x: Tensor) -> Any:
    return x + 1


def generator(x: Tensor) -> Any:
    return asyncio.run(coroutine(x + 1))


def recursive(x: Tensor, n: int = 200) -> Any:
    return x + 1 if n == 0 else recursive(x, n - 1)


def importing(x: Tensor) -> Any:
    y = x + 1
    import break_kind_module  # type: ignore[import-not-found]

    return y * break_kind_module.FACTOR


def run_time_number(x: Tensor) -> Any:
    return x * 2 if random.random() < 2 else x


def varying_value(x: Tensor) -> Any:
    for i in range(5):
        print(end="")
        x = x + [3, 1, 4, 1, 5][i]
    return x


def too_long(x: Tensor) -> Any:
    total = 0
    for i in range(60_000):
        total += i % 7
    return x * total


MANY = [*range(200)]


def long_container(x: Tensor) -> Any:
    return x * sorted(MANY)[0]


def resized_gradient(x: Tensor, out: Tensor) -> Any:
    with torch.no_grad():
        torch.mul(x[:, :2], 2, out=out)
    return out * 1


def saved_tensor_hooks(x: Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        y = x * 2
    return y + 1


LOCK = threading.Lock()


def held_lock(x: Tensor) -> Any:
    with LOCK:
        y = x * 2
    return y + 1


PROGRAMS: dict[str, Callable[..., Any]] = {
    "tensor-branch": tensor_branch,
    "data-dependent": data_dependent,
    "run-time-number": run_time_number,
    "varying-value": varying_value,
    "dynamic-output-shape": dynamic_output,
    "operation-raises": operation_raises,
    "operation-may-raise": operation_may_raise,
    "exception": exception,
    "first-call": first_call,
    "skipped-call": skipped,
    "input-output": output,
    "unknown-callable": unknown_callable,
    "unknown-opcode": unknown_opcode,
    "local-class": local_class,
    "unsupported-value": unsupported_value,
    "unsupported-attribute": unsupported_attribute,
    "unsupported-tensor": unsupported_tensor,
    "backward": backward,
    "module-backward-hook": module_backward_hook,
    "saved-tensor-hooks": saved_tensor_hooks,
    "held-lock": held_lock,
    "user-break": user_break,
    "disabled": disabled,
    "disallowed": disallowed,
    "compiled-by-another": compiled_by_another,
    "frame-introspection": frames,
    "generator": generator,
    "recursion": recursive,
    "import": importing,
    "trace-too-long": too_long,
    "long-container": long_container,
    "resized-gradient": resized_gradient,
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_reached(kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "break_kind_module.py").write_text("FACTOR = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "break_kind_module", raising=False)
    seen: list[records.CompileRecord] = []
    program = PROGRAMS[kind]
    with records.listen(seen.append):
        if kind == "import":
            dynajit.reset()
            assert torch.equal(dynajit.compile(program, backend="eager")(x), (x + 1) * 3)
        else:
            more = {"resized-gradient": torch.ones(3, requires_grad=True), "first-call": torch.nn.LazyLinear(2)}
            assert_same(program, x, *([more[kind]] if kind in more else []), repeat=1)
    found = {found.kind for record in seen for found in record.breaks}
    skipped_texts = [record.skipped for record in seen if record.skipped]
    text = breaks.KINDS[kind].text
    assert kind in found or any(text in reason for reason in skipped_texts), (found, skipped_texts)


def test_every_kind_has_a_program() -> None:
    elsewhere = {"break-in-region", "internal-error", "stopped", "unfit-guard"}
    assert set(PROGRAMS) | elsewhere == set(breaks.KINDS)


def test_kinds_are_records() -> None:
    for name, kind in breaks.KINDS.items():
        assert name == kind.id
        assert kind.text and kind.hint and not kind.text.endswith(".")


def test_break_in_region() -> None:
    """What can't be cut out of its loop leaves the frame eager, and says so."""
    seen: list[records.CompileRecord] = []

    def looping(x: Tensor) -> Any:
        async def inner() -> Any:
            out = x
            async with Manager():
                out = out + 1
                print("in")
            return out

        return asyncio.run(inner())

    with records.listen(seen.append):
        assert_same(looping, x, repeat=1)
    assert breaks.IN_REGION.hint


class Manager:
    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        return None


def test_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the compiler's leaves the frame eager."""
    from dynajit.interp import dispatch

    def fail(*args: Any) -> Any:
        raise AssertionError("a fault")

    seen: list[records.CompileRecord] = []
    monkeypatch.setitem(dispatch.HANDLERS, "BINARY_OP", fail)
    with records.listen(seen.append), pytest.warns(UserWarning, match="dynajit failed"):
        dynajit.reset()
        assert torch.equal(dynajit.compile(lambda t: t + 1, backend="eager")(x), x + 1)
    assert any(breaks.INTERNAL.text in (record.skipped or "") for record in seen)


__all__ = ["importlib"]


def test_words_of_an_operation_end_where_torch_lists_its_own_frames() -> None:
    lengths = torch.tensor([3, 2, 1])
    fn = dynajit.compile(lambda x: torch._VF._pad_packed_sequence(x, lengths, True, 0.0, 5)[0], dynamic=True)  # type: ignore[attr-defined]
    reasons = [each.reason for each in dynajit.explain(fn)(torch.randn(6, 5)).break_reasons]
    assert reasons and reasons[0].endswith("Cannot call numel() on tensor with symbolic sizes/strides")
