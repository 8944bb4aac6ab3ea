"""Every error that dynajit raises by itself.

In: what happened, where in the user's code, why, and what to do. Out: an exception whose message says so and whose
attributes hold the parts. The docstring of a class is its page in the user guide. One more error: a subclass of
`DynajitError` here, with such a docstring.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class DynajitError(RuntimeError):
    """Base of dynajit's errors: what the compiler, not the program, got wrong. They can be copied and pickled."""

    def __reduce__(self) -> Any:
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: "type[DynajitError]", args: tuple[Any, ...]) -> "DynajitError":
    made = kind.__new__(kind)
    made.args = args
    return made


class Unsupported(DynajitError):
    """Under `fullgraph=True`, or in a block of `error_on_graph_break(True)`, something was met that would break the
    graph.

    `kind` is the break's identifier (see `dynajit/report/breaks.py`), `reason` the sentence about this occurrence,
    `user_line` the user's source with a caret under the expression, `hint` what to change. Without them the same
    code runs, in several graphs.
    """

    def __init__(
        self,
        reason: str,
        *,
        kind: str = "unsupported",
        user_line: str = "",
        hint: str = "",
        under: str = "fullgraph=True",
    ) -> None:
        self.kind = kind
        self.reason = reason
        self.user_line = user_line
        self.hint = hint
        super().__init__(_paragraphs(f"graph break under {under}: {reason} [{kind}]", user_line, _what_to_do(hint)))


class RecompileForbidden(DynajitError):
    """A call fits no compiled variant, and the stance is "fail_on_recompile".

    `why` says which guard failed. Remedies: call with what was compiled for, or take another stance.
    """

    def __init__(self, function: str, why: str | None = None) -> None:
        self.function = function
        self.why = why
        super().__init__(
            _paragraphs(
                f"{function} would have to be compiled again, which the stance fail_on_recompile forbids",
                why or "",
                _what_to_do('call it with what it was compiled for, or dynajit.set_stance("default")'),
            )
        )


class RecompileLimitExceeded(DynajitError):
    """A frame was compiled `config.recompile_limit` times under `fullgraph=True` and none of its variants fits this
    call.

    `reasons` says, for each variant, which guard failed. Without `fullgraph=True` such a frame runs eagerly from then
    on. Usual remedies: pass the changing Python value as a tensor, mark the changing dimension dynamic, or raise
    `recompile_limit`.
    """

    def __init__(self, function: str, limit: int, reasons: Iterable[str] = (), *, user_line: str = "") -> None:
        self.function = function
        self.limit = limit
        self.reasons = tuple(reasons)
        self.user_line = user_line
        why = "\n  ".join(("Guards that failed, one for each variant:", *self.reasons)) if self.reasons else ""
        super().__init__(
            _paragraphs(
                f"{function} was compiled recompile_limit={limit} times and no variant fits this call",
                user_line,
                why,
                _what_to_do(
                    "pass the changing value as a tensor, mark the dimension dynamic, or raise config.recompile_limit"
                ),
            )
        )


class ConstraintViolation(DynajitError):
    """A dimension that was marked dynamic (`dynajit.mark_dynamic`) can't be: the program holds for one size only.

    `user_line` is the line of the program that decided by the size. With `maybe_mark_dynamic` the dimension is
    specialised instead.
    """

    def __init__(self, reason: str, *, user_line: str = "", hint: str = "") -> None:
        self.reason = reason
        self.user_line = user_line
        self.hint = hint
        super().__init__(_paragraphs(reason, user_line, _what_to_do(hint)))


class BackendCompilerFailed(DynajitError):
    """A backend raised while it compiled a graph.

    `backend` is its name, `inner_exception` the cause (also `__cause__`), `graph_text` the graph it was given,
    `user_stack` the user's lines the graph came from. With `config.suppress_errors` the frame runs eagerly instead.
    """

    def __init__(
        self, backend: str, inner_exception: BaseException, graph_text: str = "", user_stack: str = ""
    ) -> None:
        self.backend = backend
        self.inner_exception = inner_exception
        self.graph_text = graph_text
        self.user_stack = user_stack
        super().__init__(
            _paragraphs(
                f"backend {backend!r} raised {type(inner_exception).__name__}: {inner_exception}",
                f"The graph comes from:\n{user_stack}" if user_stack else "",
                f"The graph:\n{graph_text}" if graph_text else "",
                _what_to_do(
                    "set dynajit.config.suppress_errors = True (or DYNAJIT_SUPPRESS_ERRORS=1) "
                    "to run such frames eagerly"
                ),
            )
        )
        self.__cause__ = inner_exception


class ArtifactError(DynajitError):
    """A file of dynajit's, an exported program or a packed cache, can't be used: it is damaged, cut short, foreign, of
    a newer format, made for other hardware or another torch; or it was called with inputs that it is not for.

    The message names the file and what was expected. Export or pack it again, or give it what it was exported for.
    """


class ExportError(DynajitError):
    """A program can't be exported: it is no single graph that can be written down.

    The message says what stands in the way. It runs compiled all the same, by `dynajit.compile`.
    """


class ConfigError(ValueError):
    """An option, mode, backend, configuration field or log name that does not exist, or a value of the wrong kind.

    The message lists what exists. It is a `ValueError` and no `DynajitError`: the program, not the compiler, has to
    change.
    """

    @classmethod
    def unknown(cls, what: str, name: object, known: Iterable[str], hint: str = "") -> "ConfigError":
        """The error for an unknown `name` of a `what` ("backend", "mode", ...), listing the `known` ones. `hint`: what
        to say instead; by default the known name that is most like it."""
        names = sorted(known)
        alike = difflib.get_close_matches(str(name), names, 1)
        hint = hint or (f"did you mean {alike[0]}?" if alike else "")
        return cls(f"unknown {what} {name!r}{hint and f': {hint}'}; known: {', '.join(names)}")


class InternalError(DynajitError):
    """dynajit broke an invariant of its own: a bug in dynajit, not in the program. Please report the message."""


def _what_to_do(hint: str) -> str:
    return f"What to do: {hint}" if hint else ""


def _paragraphs(*parts: str) -> str:
    return "\n".join(part.rstrip("\n") for part in parts if part)


class AccuracyError(DynajitError):
    """With `verify` on, a compiled graph's result is further from a float64 reference than eager's rounding explains.

    `graph` names the graph, `where` the output, input or gradient, `difference` the numbers. `dynajit.bisect` narrows
    it to the smallest part that shows it.
    """

    def __init__(self, graph: str, where: str, difference: str) -> None:
        self.graph = graph
        self.where = where
        self.difference = difference
        super().__init__(
            _paragraphs(
                f"{graph} gives a wrong result: {where}: {difference}",
                "",
                _what_to_do("dynajit.bisect(fn)(*args) finds the smallest part that is wrong; please report it"),
            )
        )
