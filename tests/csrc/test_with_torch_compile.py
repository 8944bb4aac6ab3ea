"""torch.compile in the same process: both evaluators in one chain, in both orders, nested either way."""

import itertools
import sys
import threading
import types

import pytest
import torch
from csrc_harness import CloneCapture, compiled

from dynajit import _C

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _reset():
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    assert not _C.hook_installed()
    assert _C.active_hook_count() == 0


class Counter:
    """A torch.compile backend that counts graphs and runs them as they are."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, gm, example_inputs):
        self.graphs += 1
        return gm.forward


def make(source, **names):
    """Functions of one source, with a module of their own, which torch.compile looks up by its name."""
    module = types.ModuleType(f"made_for_torch_compile_{next(_numbers)}")
    namespace = vars(module)
    namespace.update(torch=torch, **names)
    sys.modules[module.__name__] = module
    exec(compile(source, __file__, "exec"), namespace)
    return namespace


X = torch.arange(4.0)


def check_ours(capture=None):
    """dynajit alone still works."""
    capture = capture or CloneCapture(__file__)
    fn = make("def g(x): return h(x) * 2\ndef h(x): return x + 1\n")["g"]
    call = compiled(fn, capture)
    for _ in range(3):
        assert torch.equal(call(X), (X + 1) * 2)
    assert capture.seen == ["g", "h"]


def check_theirs():
    """torch.compile alone still works."""
    counter = Counter()
    fn = make("def f(x): return torch.relu(x) - 1\n")["f"]
    call = torch.compile(fn, backend=counter)
    for _ in range(3):
        assert torch.equal(call(X), torch.relu(X) - 1)
    assert counter.graphs == 1


def test_ours_then_theirs_then_ours():
    check_ours()
    check_theirs()
    check_ours()


def test_theirs_then_ours_then_theirs():
    check_theirs()
    check_ours()
    check_theirs()


def test_theirs_inside_ours():
    counter, capture = Counter(), CloneCapture(__file__)
    inner = torch.compile(make("def f(x): return k(x) + 1\ndef k(x): return x * 3\n")["f"], backend=counter)
    names = make("def g(x): return h(inner(h(x)))\ndef h(x): return x - 2\n", inner=inner)
    call = compiled(names["g"], capture)
    expected = (X - 2) * 3 + 1 - 2
    for _ in range(4):
        assert torch.equal(call(X), expected)
    assert counter.graphs == 1
    assert {"g", "h"} <= set(capture.seen)


def test_ours_inside_theirs():
    counter, capture = Counter(), CloneCapture(__file__)
    inner = compiled(make("def g(x): return h(x) * 2\ndef h(x): return x + 1\n")["g"], capture)
    fn = make("def f(x):\n    y = x + 1\n    y = inner(y)\n    return y - 1\n", inner=inner)["f"]
    call = torch.compile(fn, backend=counter)
    for _ in range(4):
        assert torch.equal(call(X), (X + 2) * 2 - 1)
    assert capture.seen == []  # it is theirs, as a function that nobody compiled would be
    assert counter.graphs == 1


def test_theirs_does_not_compile_our_generated_code():
    counter = Counter()

    def graph(x):
        return torch.sin(x) + 1

    namespace = make("def target(x): return graph(x)\n", graph=_C.GraphCall(graph))
    inner = compiled(namespace["target"], CloneCapture(__file__, needs_hook=False))
    call = torch.compile(make("def f(x):\n    inner(x)\n    return None\n", inner=inner)["f"], backend=counter)
    for _ in range(4):
        call(X)
    assert counter.graphs == 0


def test_ours_inside_theirs_inside_ours():
    counter, inner_capture, outer_capture = Counter(), CloneCapture(__file__), CloneCapture(__file__)
    innermost = compiled(make("def a(x): return b(x)\ndef b(x): return x + 1\n")["a"], inner_capture)
    middle = torch.compile(
        make("def c(x):\n    return d(innermost(x * 2))\ndef d(x): return x * 5\n", innermost=innermost)["c"],
        backend=counter,
    )
    call = compiled(make("def e(x): return f(middle(x))\ndef f(x): return x - 1\n", middle=middle)["e"], outer_capture)
    for _ in range(4):
        assert torch.equal(call(X), (X * 2 + 1) * 5 - 1)
    assert inner_capture.seen == []
    assert {"e", "f"} <= set(outer_capture.seen)
    check_theirs()
    check_ours()


def test_same_function_in_both():
    names = make("def f(x): return torch.relu(x) - 1\n")
    theirs = torch.compile(names["f"], backend=Counter())
    ours = compiled(names["f"], CloneCapture(__file__))
    for _ in range(3):
        assert torch.equal(ours(X), theirs(X))


def test_errors_leave_the_chain_as_it_was():
    def fail(gm, example_inputs):
        raise RuntimeError("backend")

    inner = torch.compile(make("def f(x): return x + 1\n")["f"], backend=fail)
    call = compiled(make("def g(x): return inner(x)\n", inner=inner)["g"], CloneCapture(__file__))
    for _ in range(2):
        with pytest.raises(Exception, match="backend"):
            call(X)
        assert not _C.hook_installed()
    check_theirs()
    check_ours()


def test_capture_is_kept_from_theirs():
    # while dynajit captures, the capture's own functions must not be compiled by torch.compile
    counter = Counter()

    def helper(x):
        return x * 7

    class Capture(CloneCapture):
        def __call__(self, *args):
            helper(torch.ones(2))
            return super().__call__(*args)

    inner = compiled(make("def g(x): return h(x)\ndef h(x): return x + 1\n")["g"], Capture(__file__))
    fn = make("def f(x):\n    inner(x)\n    return x\n", inner=inner)["f"]
    call = torch.compile(fn, backend=counter)
    call(X)
    found = counter.graphs
    assert found <= 2
    call(X)
    assert counter.graphs == found


def test_threads():
    errors = []

    def work(check):
        try:
            for _ in range(3):
                check()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(check,)) for check in (check_ours, check_theirs) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    check_ours()
