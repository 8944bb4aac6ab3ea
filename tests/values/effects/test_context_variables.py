"""Context variables that the program sets."""

import contextvars
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

import dynajit
from dynajit.outcomes import without_addresses
from dynajit.testing import CompileCounter

SCALE: contextvars.ContextVar[Any] = contextvars.ContextVar("SCALE", default=2)
BARE: contextvars.ContextVar[Any] = contextvars.ContextVar("BARE")
OTHER: contextvars.ContextVar[Any] = contextvars.ContextVar("OTHER", default=None)
x = torch.arange(4.0)


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """What it returns or raises, and what it leaves in the variables."""

    def run() -> Any:
        try:
            found: Any = fn(*args)
        except Exception as error:
            found = type(error), without_addresses(str(error))
        return found, SCALE.get("none"), BARE.get("none"), OTHER.get("none")

    return contextvars.copy_context().run(run)


def assert_equal(found: Any, expected: Any) -> None:
    ours, structure = tree_flatten(found)
    theirs, wanted = tree_flatten(expected)
    assert structure == wanted
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        else:
            assert type(one) is type(other) and (one == other or isinstance(other, contextvars.Token))


def check(fn: Callable[..., Any], *args: Any, graphs: int = 1) -> None:
    counter = CompileCounter()
    dynajit.reset()
    compiled = dynajit.compile(fn, backend=counter)
    for _ in range(3):
        assert_equal(outcome(compiled, *args), outcome(fn, *args))
    assert counter.frame_count == graphs


def helper(y: Tensor) -> Tensor:
    return y * SCALE.get()


def test_set_and_set_back() -> None:
    def f(x: Tensor) -> Any:
        token = SCALE.set(5)
        try:
            y = helper(x)
        finally:
            SCALE.reset(token)
        return y, helper(x), token.var is SCALE, token.old_value is contextvars.Token.MISSING

    check(f, x)


def test_set_for_good() -> None:
    def f(x: Tensor) -> Any:
        SCALE.set(5)
        BARE.set([x + 1])
        BARE.get().append(helper(x))
        return BARE.get()

    check(f, x)


def test_what_is_set_is_the_object() -> None:
    def f(x: Tensor) -> Any:
        made = {"sum": x.sum()}
        OTHER.set(made)
        return made

    def same() -> bool:
        return dynajit.compile(f, backend="eager")(x) is OTHER.get()

    assert contextvars.copy_context().run(same)


def test_the_token_leaves() -> None:
    def f(x: Tensor) -> Any:
        return SCALE.set(7), OTHER.set(x * SCALE.get())

    def both(fn: Callable[..., Any]) -> Any:
        SCALE.set(3)
        first, second = fn(x)
        found = first.old_value, second.old_value, SCALE.get(), OTHER.get()
        SCALE.reset(first)
        OTHER.reset(second)
        return found, SCALE.get(), OTHER.get()

    assert_equal(outcome(both, dynajit.compile(f, backend="eager")), outcome(both, f))


def test_a_break_between() -> None:
    def f(x: Tensor) -> Any:
        token = SCALE.set(5)
        try:
            y = helper(x)
            dynajit.graph_break()
            y = helper(y)
        finally:
            SCALE.reset(token)
        return y + SCALE.get()

    check(f, x, graphs=2)


def test_set_twice() -> None:
    def f(x: Tensor) -> Any:
        first = SCALE.set(5)
        second = SCALE.set(6)
        y = helper(x)
        SCALE.reset(second)
        z = helper(x)
        SCALE.reset(first)
        return y, z, helper(x), second.old_value

    def crossed(x: Tensor) -> Any:
        first = SCALE.set(5)
        second = SCALE.set(6)
        SCALE.reset(first)
        y = helper(x)
        SCALE.reset(second)
        return y, helper(x)

    def left(x: Tensor) -> Any:
        tokens = [SCALE.set(5), OTHER.set(1), SCALE.set(6)]
        OTHER.reset(tokens[1])
        return helper(x), [token.old_value for token in tokens[::2]]

    for fn in (f, crossed, left):
        check(fn, x)


def test_an_exception_between() -> None:
    def f(x: Tensor) -> Any:
        token = SCALE.set(5)
        y = helper(x)
        raise ValueError(y.shape)
        SCALE.reset(token)

    check(f, x, graphs=0)


@pytest.mark.parametrize("wrong", ["twice", "another"])
def test_a_token_that_does_not_fit(wrong: str) -> None:
    def twice(x: Tensor) -> Any:
        token = SCALE.set(5)
        SCALE.reset(token)
        y = helper(x)
        SCALE.reset(token)
        return y

    def another(x: Tensor) -> Any:
        token = SCALE.set(5)
        y = helper(x)
        OTHER.reset(token)
        return y

    check({"twice": twice, "another": another}[wrong], x)


def test_a_token_from_outside() -> None:
    def f(x: Tensor, token: Any) -> Any:
        y = helper(x)
        SCALE.reset(token)
        return y, helper(x)

    compiled = dynajit.compile(f, backend="eager", fullgraph=True)

    def run(fn: Callable[..., Any], old: Any) -> Any:
        SCALE.set(old)
        return fn(x, SCALE.set(9)), SCALE.get()

    for old in (3, 3, 4):
        assert_equal(outcome(run, compiled, old), outcome(run, f, old))

    def used(fn: Callable[..., Any]) -> Any:
        token = SCALE.set(9)
        SCALE.reset(token)
        return fn(x, token)

    def of_another_context(fn: Callable[..., Any]) -> Any:
        return fn(x, contextvars.copy_context().run(SCALE.set, 9))

    anything = dynajit.compile(f, backend="eager")
    for program in (used, of_another_context):
        expected = outcome(program, f)
        assert outcome(program, anything) == expected
        assert expected[0][0] in (RuntimeError, ValueError)


def test_a_value_without_a_default() -> None:
    def f(x: Tensor) -> Any:
        token = BARE.set(3)
        y = x * BARE.get()
        BARE.reset(token)
        return y, BARE.get(4), SCALE.get(5)

    def bare(x: Tensor) -> Any:
        BARE.reset(BARE.set(3))
        return x + BARE.get()

    check(f, x)
    check(bare, x, graphs=0)


def test_a_call_that_was_put_off_sees_what_was_set(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((record.getMessage(), SCALE.get()))

    logger = logging.getLogger("dynajit.tests.context")
    logger.addHandler(Handler())
    logger.setLevel(logging.INFO)

    def f(x: Tensor) -> Any:
        logger.info("before")
        token = SCALE.set(5)
        logger.info("within")
        y = helper(x)
        SCALE.reset(token)
        logger.info("after")
        return y

    f(x)
    expected, seen[:] = seen[:], []
    for _ in range(2):
        dynajit.compile(f, backend="eager")(x)
    assert expected and seen == expected * 2
