"""Every context manager that torch and the library have for programs, in every form: with, as a decorator of functions,
methods and generators, used twice, nested, entered again, left by an exception or behind a break, returned."""

from __future__ import annotations

import contextlib
import decimal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

import dynajit

log: list[str] = []


@contextlib.contextmanager
def generated(tag: str = "generated"):
    log.append(f"enter {tag}")
    try:
        yield tag
    finally:
        log.append(f"leave {tag}")


class Decorator(contextlib.ContextDecorator):
    def __enter__(self):
        log.append("enter")
        return self

    def __exit__(self, *error):
        log.append("leave")
        return False


class Plain:
    def __enter__(self):
        log.append("enter")
        return self

    def __exit__(self, *error):
        log.append("leave")
        return False


class Closer:
    def close(self):
        log.append("closed")


MANAGERS = (
    *("torch.no_grad()", "torch.no_grad", "torch.enable_grad()", "torch.set_grad_enabled(True)"),
    *("torch.inference_mode()", "torch.inference_mode(False)", "torch.inference_mode", "torch.autocast('cpu')"),
    *("torch.amp.autocast('cpu', torch.bfloat16)", "torch.device('cpu')", "torch.device('meta')"),
    *("disable_saved_tensors_hooks('off')", "torch.autograd.profiler.record_function('r')"),
    *("torch.profiler.record_function('r')", "torch.fx.traceback.annotate({'a': 1})"),
    *("torch.autograd.profiler.emit_nvtx(enabled=False)", "torch.autograd.profiler.profile(enabled=False)"),
    *("torch.autograd.detect_anomaly(check_nan=False)", "torch.autograd.set_detect_anomaly(True)"),
    *("torch.autograd.set_multithreading_enabled(False)", "saved_tensors_hooks(lambda x: x, lambda x: x)"),
    *("save_on_cpu()", "torch.autograd.graph.allow_mutation_on_saved_tensors()", "forward_ad.dual_level()"),
    *("sdpa_kernel(SDPBackend.MATH)", "torch.random.fork_rng(devices=[])", "torch._C.DisableTorchFunction()"),
    *("torch._C.DisableTorchFunctionSubclass()", "torch.backends.mkldnn.flags(enabled=False)"),
    *("torch.autograd._unsafe_preserve_version_counter(torch.ones(2))", "torch.nn.utils.parametrize.cached()"),
    *("contextlib.nullcontext()", "contextlib.nullcontext(3)", "contextlib.suppress(ValueError)"),
    *("contextlib.ExitStack()", "contextlib.closing(Closer())", "generated()", "Decorator()", "Plain()"),
    *("warnings.catch_warnings()", "threading.RLock()", "decimal.localcontext()"),
    "dynajit.error_on_graph_break(False)",
)
FORMS = {
    "with": """
def program(x):
    with MADE:
        y = x * 2
    return y + 1, y.requires_grad
""",
    "as": """
def program(x):
    with MADE as found:
        y = x * 2
    return y, type(found)
""",
    "decorator": """
def program(x):
    @MADE
    def inner(x, k=2):
        return x * k
    return inner(x) + 1, inner(x).requires_grad, inner.__name__, inner(x, k=3)
""",
    "decorator kept": """
def program(x):
    made = MADE
    @made
    def inner(x):
        return x * 2
    return inner(x) + 1, inner(inner(x)).requires_grad
""",
    "decorator of a method": """
def program(x):
    class Inner:
        @MADE
        def double(self, x):
            return x * 2
    return Inner().double(x) + 1
""",
    "decorator of a generator": """
def program(x):
    @MADE
    def inner(x):
        yield x * 2
        yield x * 3
    return list(inner(x))
""",
    "decorator outside": """
@MADE
def inner(x):
    return x * 2

def program(x):
    return inner(x) + 1, inner(x).requires_grad
""",
    "twice": """
def program(x):
    made = MADE
    with made:
        y = x * 2
    with made:
        z = y * 2
    return y, z
""",
    "nested": """
def program(x):
    with MADE:
        with MADE:
            y = x * 2
    return y, y.requires_grad
""",
    "again": """
def program(x):
    made = MADE
    with made:
        with made:
            y = x * 2
    return y, y.requires_grad
""",
    "raising": """
def program(x):
    try:
        with MADE:
            y = x * 2
            raise ValueError("inside")
    except ValueError:
        pass
    return y * 3, (x * 2).requires_grad
""",
    "stack": """
def program(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(MADE)
        y = x * 2
    return y, y.requires_grad
""",
    "break": """
def program(x):
    with MADE:
        y = x * 2
        dynajit.graph_break()
        y = y * 2
    return y + 1, y.requires_grad
""",
    "break in the decorated": """
def program(x):
    @MADE
    def inner(x):
        y = x * 2
        dynajit.graph_break()
        return y * 2
    return inner(x) + 1, inner(x).requires_grad
""",
    "by its methods": """
def program(x):
    made = MADE
    made.__enter__()
    y = x * 2
    made.__exit__(None, None, None)
    return y, y.requires_grad
""",
    "returned": """
def program(x):
    return MADE, x * 2
""",
    "decorated and returned": """
def program(x):
    @MADE
    def inner(x):
        return x * 2
    return inner, inner(x)
""",
}
# eager itself never leaves the inference mode that one object enters twice
_LEAKS = {("again", "torch.inference_mode()"), ("again", "torch.inference_mode(False)")}


def _program(form: str, manager: str) -> Callable[..., Any]:
    world = dict(globals())
    exec(FORMS[form].replace("MADE", manager), world)
    return world["program"]  # type: ignore[no-any-return]


def _seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        contents = value.tolist() if value.device.type != "meta" else None
        return value.dtype, value.device.type, value.requires_grad, value.is_inference(), contents
    if isinstance(value, (list, tuple)):
        return [_seen(item) for item in value]
    if isinstance(value, (type, str, bool)):
        return value
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__, _seen(value(torch.ones(2, requires_grad=True)))
    return type(value)


def _outcome(function: Callable[..., Any]) -> Any:
    log.clear()
    torch.manual_seed(0)
    try:
        found = _seen(function(torch.ones(2, requires_grad=True)))
    except Exception as error:
        found = type(error), str(error)
    state = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    torch.set_grad_enabled(True)
    return found, list(log), state, torch.ones(1).device, torch.is_anomaly_enabled()


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    """Some set what they change when they are made, and some forms never leave them."""
    yield
    torch.autograd.set_detect_anomaly(False)
    torch.autograd.set_multithreading_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_cache_enabled(True)
    torch.clear_autocast_cache()


@pytest.mark.parametrize("manager", MANAGERS)
def test_every_form(manager: str) -> None:
    differ = []
    for form in FORMS:
        if (form, manager) in _LEAKS:
            continue
        try:
            plain = _program(form, manager)
        except (TypeError, AttributeError):
            assert form == "decorator outside"  # not every context manager is one, not every release has all
            continue
        dynajit.reset()
        compiled = dynajit.compile(_program(form, manager), backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, *actual = (_outcome(function) for function in (plain, compiled, compiled))
        if actual != [expected, expected]:
            differ.append(f"{form}:\n  eager    {expected}\n  compiled {actual}")
    assert not differ, "\n".join(differ)


@pytest.mark.parametrize("form", ["with", "decorator", "decorator kept", "twice", "nested", "stack"])
@pytest.mark.parametrize(
    "manager",
    [
        *("torch.autograd.profiler.record_function('r')", "disable_saved_tensors_hooks('off')", "generated()"),
        *("Decorator()", "torch.no_grad()"),
    ],
)
def test_forms_in_one_graph(form: str, manager: str) -> None:
    if form == "twice" and manager in ("generated()", "disable_saved_tensors_hooks('off')"):
        return  # raises
    report = dynajit.explain(_program(form, manager), backend="eager")(torch.ones(2))
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def test_hooks_on_saved_tensors_are_refused_inside_a_decorated_function() -> None:
    @disable_saved_tensors_hooks("they are off")
    def inner(x: torch.Tensor) -> Any:
        with save_on_cpu():
            return x * x

    with pytest.raises(RuntimeError, match="they are off"):
        dynajit.compile(lambda x: inner(x), backend="eager")(torch.ones(2, requires_grad=True))


__all__ = ["SDPBackend", "decimal", "forward_ad", "saved_tensors_hooks", "sdpa_kernel", "threading"]
