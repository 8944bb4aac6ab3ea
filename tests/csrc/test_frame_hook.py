"""The hook: programs run through it behave as without it, and it is there only while needed."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
import torch
from csrc_harness import CloneCapture, compiled, flatten_parameters, hooked

from dynajit import _C


def run_hooked(fn, *args, **kwargs):
    """fn under a clone capture with the callback on throughout; what was captured."""
    capture = CloneCapture(__file__)
    try:
        return compiled(fn, capture)(*args, **kwargs), capture
    finally:
        assert not _C.hook_installed()
        assert _C.active_hook_count() == 0


def fresh(fn):
    """A function with a code object of its own, so that no test sees another's variants."""
    copy = type(fn)(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def add(a, b=2, /, c=3, *rest, d, e=5, **more):
    return a, b, c, rest, d, e, more


def no_locals():
    return 7


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def big_frame(x):
    a, b, c, d, e, f, g, h = x, x, x, x, x, x, x, x
    return [[[a, [b, [c, [d, [e, [f, [g, [h, (a, b, c, d, e, f, g, h)]]]]]]]]]]


def outer_closure(x):
    y = x + 1

    def inner(z):
        return x + y + z

    return inner(10)


def count_up(n):
    for i in range(n):
        yield no_locals() + i


def use_generator(n):
    return list(count_up(n)), sum(count_up(n))


async def add_later(x):
    await asyncio.sleep(0)
    return x + no_locals()


def use_coroutine(x):
    return asyncio.run(add_later(x))


def raise_value_error(x):
    if x > 0:
        return raise_value_error(x - 1)
    raise ValueError("deep")


def catch(x):
    try:
        raise_value_error(x)
    except ValueError as error:
        return str(error)
    finally:
        no_locals()


def class_body():
    class Local:
        value = no_locals()

        def get(self):
            return self.value

    return Local().get()


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"),
    [
        (add, (1,), {"d": 4}),
        (add, (1, 2, 3, 4, 5), {"d": 4, "z": 9}),
        (no_locals, (), {}),
        (fib, (12,), {}),
        (big_frame, (1,), {}),
        (outer_closure, (3,), {}),
        (use_generator, (5,), {}),
        (use_coroutine, (3,), {}),
        (catch, (4,), {}),
        (class_body, (), {}),
    ],
)
def test_same_result(fn, args, kwargs):
    expected = fn(*args, **kwargs)
    capture = CloneCapture(__file__)
    call = compiled(fn, capture)
    try:
        for _ in range(5):
            assert call(*args, **kwargs) == expected
        assert capture.seen
    finally:
        for name in capture.seen:
            if name in globals():
                _C.reset_code(globals()[name].__code__)


def test_each_code_object_is_captured_once():
    result, capture = run_hooked(fib, 10)
    assert result == 55
    assert capture.seen == ["fib"]
    _C.reset_code(fib.__code__)


def frames_of(error):
    return [(frame.name, frame.lineno, frame.filename) for frame in traceback.extract_tb(error.__traceback__)]


def test_traceback_has_the_users_frames_only():
    with pytest.raises(ValueError, match="deep") as expected:
        raise_value_error(3)
    call = compiled(raise_value_error, CloneCapture(__file__))
    for _ in range(3):
        with pytest.raises(ValueError, match="deep") as found:
            call(3)
        assert frames_of(found.value)[1:] == frames_of(expected.value)[1:]
    _C.reset_code(raise_value_error.__code__)


def only_for(target, answer):
    """A callback that answers for one function; whatever else runs (contextlib, pytest) is skipped."""

    def callback(code, fn, values, reasons):
        if code is target.__code__:
            return answer()
        _C.mark_skip(code)
        return None

    return callback


def test_error_in_callback_is_raised_by_the_call():
    def answer():
        raise LookupError("no")

    target = fresh(no_locals)
    with hooked(only_for(target, answer)), pytest.raises(LookupError) as found:
        target()
    names = [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert names == ["test_error_in_callback_is_raised_by_the_call", "callback", "answer"]


@pytest.mark.parametrize("answer", [3, "variant", object()])
def test_callback_must_return_a_variant(answer):
    target = fresh(no_locals)
    with hooked(only_for(target, lambda: answer)), pytest.raises(TypeError, match="must return a Variant or None"):
        target()


def test_variant_must_fit_the_frame():
    target = fresh(no_locals)
    other = flatten_parameters(fib)
    variant = _C.Variant(_C.GuardProgram([], 1), other, False, globals())
    with hooked(only_for(target, lambda: variant)), pytest.raises(ValueError, match="reads 1 locals"):
        target()


def test_refcounts_are_those_of_an_ordinary_call():
    def probe(x):
        return sys.getrefcount(x)

    probe = fresh(probe)
    with hooked(only_for(probe, lambda: None)):
        expected = [probe([])]
    _C.reset_code(probe.__code__)
    capture = CloneCapture(__file__)
    with hooked(capture):
        found = [probe([]) for _ in range(4)]
    assert found == expected * 4
    assert "probe" in capture.seen


def test_no_leaks_over_many_calls():
    call = compiled(fresh(add), CloneCapture(__file__))
    marker = object()
    call(marker, d=marker)
    before = sys.getrefcount(marker)
    for _ in range(2000):
        call(marker, marker, marker, marker, d=marker, z=marker)
    assert sys.getrefcount(marker) == before


def test_no_leaks_on_errors():
    def fail(x):
        raise KeyError(x)

    call = compiled(fail, CloneCapture(__file__))
    marker = object()
    for _ in range(10):
        with pytest.raises(KeyError):
            call(marker)
    gc.collect()
    before = sys.getrefcount(marker)
    for _ in range(500):
        with contextlib.suppress(KeyError):
            call(marker)
    gc.collect()
    assert sys.getrefcount(marker) == before


BIGGER = """
def descend(n, payload, fail):
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = a8 = a9 = payload
    b0, b1, b2, b3, b4, b5, b6, b7, b8, b9 = (a0, a1, a2, a3, a4, a5, a6, a7, a8, a9)
    if n:
        return descend(n - 1, payload, fail)
    if fail:
        raise ValueError(b9)
    return [b0, [b1, [b2, [b3, [b4, [b5, [b6, [b7, [b8, [b9, n]]]]]]]]]]
"""
SMALL = "def descend(n, payload, fail): return original(n, payload, fail)\n"


@pytest.mark.parametrize("fail", [False, True])
def test_variant_frames_larger_than_the_original_at_every_stack_depth(fail):
    # a frame at the end of the interpreter's stack chunk can't grow where it is, and takes the other road
    namespace, bigger = {}, {}
    exec(compile(SMALL, __file__, "exec"), namespace)
    exec(compile(BIGGER, __file__, "exec"), bigger)
    function = type(fib)(bigger["descend"].__code__, namespace)
    target = namespace["descend"]
    variant = _C.Variant(_C.GuardProgram([], 3), function, True, namespace, key="key")

    def answer():
        _C.add_variant(target.__code__, variant)
        return variant

    call = compiled(target, only_for(target, answer), key="key")
    marker = object()
    before = sys.getrefcount(marker)
    for depth in range(300):  # CPython before 3.12.3 has room for few calls in C: past 374, the original runs
        try:
            assert call(depth, marker, fail)[0] is marker
            assert not fail
        except ValueError as error:
            assert fail
            assert error.args == (marker,)
            assert len(traceback.extract_tb(error.__traceback__)) == depth + 2
    assert variant.hits > 300
    gc.collect()
    assert sys.getrefcount(marker) == before


def test_recursion_error_is_raised_and_survived():
    namespace = {"__name__": __name__}
    exec(compile("def forever(n):\n    return forever(n + 1)\n", __file__, "exec"), namespace)
    call = compiled(namespace["forever"], CloneCapture(__file__))
    for _ in range(3):
        with pytest.raises(RecursionError):
            call(0)
    assert not _C.hook_installed()


def test_settrace_sees_the_original_lines():
    def target(x):
        y = x + 1
        return y

    call = compiled(target, CloneCapture(__file__))
    assert call(1) == 2
    lines = []

    def tracer(frame, event, arg):
        if frame.f_code is target.__code__ and event == "line":
            lines.append(frame.f_lineno - target.__code__.co_firstlineno)
        return tracer

    old = sys.gettrace()
    sys.settrace(tracer)
    try:
        assert call(1) == 2
    finally:
        sys.settrace(old)
    assert lines == [1, 2]


def test_setprofile_sees_balanced_calls():
    events = []

    def profiler(frame, event, arg):
        if event in ("call", "return") and frame.f_code.co_filename == __file__:
            events.append((event, frame.f_code.co_name))

    call = compiled(fresh(fib), CloneCapture(__file__))
    call(3)
    sys.setprofile(profiler)
    try:
        fib(3)
    finally:
        sys.setprofile(None)
    expected, events[:] = list(events), []
    sys.setprofile(profiler)
    try:
        call(3)
    finally:
        sys.setprofile(None)
    assert [event for event in events if event[1] == "fib"] == expected


def test_frames_outside_callback_threads_are_untouched():
    capture = CloneCapture(__file__)
    seen_elsewhere = []

    def work():
        seen_elsewhere.append(_C.get_callback())
        no_locals()

    with hooked(capture):
        assert _C.hook_installed()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen_elsewhere == [None]
    assert "work" not in capture.seen
    assert not _C.hook_installed()


def test_threads_have_their_own_callbacks():
    errors = []

    def work(n):
        try:
            call = compiled(fresh(fib), CloneCapture(__file__))
            for _ in range(20):
                assert call(10) == 55
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not _C.hook_installed()
    assert _C.active_hook_count() == 0


def check_needs_hook():
    states = []

    def probe():
        states.append((_C.get_callback() is not None, _C.hook_installed()))

    for needs_hook in (True, False):
        capture = CloneCapture(__file__, needs_hook=needs_hook)
        namespace = {"probe": _C.GraphCall(probe), "note": lambda: states.append(_C.get_callback() is not None)}
        exec(compile("def target():\n    note()\n    probe()\n", __file__, "exec"), namespace)
        call = compiled(namespace["target"], capture)
        states.clear()
        call()
        call()
        assert states == [needs_hook, (False, False)] * 2


def test_needs_hook_decides_what_runs_inside():
    """In a process of its own: we stay on where another evaluator is in the chain, and torch.compile leaves its own
    there when a backend fails."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    program = f"import {__name__}; {__name__}.check_needs_hook()"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, check=True)


def test_call_eager_turns_the_callback_off():
    with hooked(CloneCapture(__file__)) as capture:
        assert _C.call_eager(_C.get_callback) is None
        assert _C.call_eager(fresh(no_locals), (), {}) == 7
        with pytest.raises(TypeError):
            _C.call_eager(no_locals, (1,))
        assert _C.get_callback() == (capture, capture)
    assert "no_locals" not in capture.seen


def test_set_callback_gives_back_what_was_there():
    def first(*args):
        return None

    assert _C.set_callback(first) is None
    assert _C.set_callback(first, "key") == (first, first)
    state = _C.set_callback(None)
    assert state == (first, "key")
    assert _C.set_callback(state) is None
    assert _C.get_callback() == (first, "key")
    _C.set_callback(None)
    with pytest.raises(TypeError, match="must be callable"):
        _C.set_callback(3)


def test_current_key_inside_the_callback():
    keys = []

    def callback(code, fn, values, reasons):
        keys.append(_C.current_key())
        _C.mark_skip(code)

    _C.CompiledFunction(fresh(no_locals), callback, key="mine")()
    assert keys == ["mine"]
    assert _C.current_key() is None


def test_nested_compiled_functions_keep_their_keys():
    inner_capture, outer_capture = CloneCapture(__file__), CloneCapture(__file__)
    inner = compiled(fresh(no_locals), inner_capture)
    namespace = {"inner": inner, "again": fresh(no_locals)}
    exec(compile("def outer():\n    return inner() + again() + inner()\n", __file__, "exec"), namespace)
    outer = compiled(namespace["outer"], outer_capture)
    assert outer() == 21
    assert outer() == 21
    assert inner_capture.seen == ["no_locals"]
    assert outer_capture.seen == ["outer", "no_locals"]


def test_frame_is_right_inside_a_variant():
    def where():
        frame = sys._getframe()
        return frame.f_code.co_name, frame.f_lineno, frame.f_back.f_code.co_name, sorted(frame.f_locals)

    call = compiled(where, CloneCapture(__file__))
    assert call() == call() == where()


def test_tensor_programs():
    def step(x, w):
        y = torch.relu(x @ w)
        return y.sum(), y

    x, w = torch.randn(3, 4), torch.randn(4, 5)
    call = compiled(step, CloneCapture(__file__))
    for _ in range(3):
        for found, expected in zip(call(x, w), step(x, w)):
            assert torch.equal(found, expected)
