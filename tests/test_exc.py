"""Errors say what happened, where, why and what to do, and carry the parts."""

import copy
import pickle
from collections.abc import Callable

import pytest

from dynajit import exc

ERRORS = [
    exc.Unsupported("print() was called", kind="builtin-call", user_line="line 3", hint="remove it"),
    exc.RecompileForbidden("f", "L['n'] == 3"),
    exc.RecompileLimitExceeded("f (m.py:1)", 8, ["L['n'] == 3"], user_line="line 3"),
    exc.ConstraintViolation("x.shape[0] varies", hint="mark it"),
    exc.BackendCompilerFailed("mine", KeyError("k"), "graph():", "line 3"),
    exc.AccuracyError("graph 1", "output 0", "3"),
    exc.ConfigError.unknown("backend", "x", ["b", "a"]),
    exc.ExportError("not one graph"),
]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_can_be_copied_and_sent_elsewhere(error: Exception, again: Callable[[Exception], Exception]) -> None:
    made = again(error)
    assert type(made) is type(error) and str(made) == str(error)
    assert repr(vars(made)) == repr(vars(error))


def test_unsupported() -> None:
    error = exc.Unsupported(
        "print() was called", kind="builtin-call", user_line='  File "m.py", line 3', hint="remove it"
    )
    assert (error.kind, error.reason, error.hint) == ("builtin-call", "print() was called", "remove it")
    text = str(error)
    assert "fullgraph=True" in text and "[builtin-call]" in text and "m.py" in text and "What to do: remove it" in text
    assert isinstance(error, exc.DynajitError) and isinstance(error, RuntimeError)


def test_backend_compiler_failed_keeps_the_cause() -> None:
    cause = KeyError("k")
    error = exc.BackendCompilerFailed("mine", cause, "graph():", '  File "m.py", line 3')
    assert error.__cause__ is cause and error.inner_exception is cause and error.backend == "mine"
    text = str(error)
    assert "'mine' raised KeyError" in text and "graph():" in text and "m.py" in text and "suppress_errors" in text


def test_recompile_limit() -> None:
    error = exc.RecompileLimitExceeded("f (m.py:1)", 8, ["L['n'] == 3", "L['n'] == 4"])
    text = str(error)
    assert "recompile_limit=8" in text and "\n  L['n'] == 3\n  L['n'] == 4\n" in text and "What to do" in text
    assert error.reasons == ("L['n'] == 3", "L['n'] == 4")


def test_unknown_lists_the_known() -> None:
    assert str(exc.ConfigError.unknown("backend", "x", ["b", "a"])) == "unknown backend 'x'; known: a, b"
