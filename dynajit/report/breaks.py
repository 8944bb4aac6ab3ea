"""The kinds of graph break, as data.

In: an identifier. Out: the `BreakKind` with the sentence a user reads and what to change. To add one, add a line
to the table with `_kind(...)`; the identifier is what `explain`, logs, counters and tests name.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class BreakKind:
    """One reason why a graph ends.

    Attributes:
        id: stable identifier, dashes between words.
        text: what happened, one sentence without a full stop; details are appended after a colon.
        hint: what the user can change so that the graph goes on.
    """

    id: str
    text: str
    hint: str


KINDS: dict[str, BreakKind] = {}


def _kind(id: str, text: str, hint: str) -> BreakKind:
    kind = BreakKind(id, text, hint)
    KINDS[id] = kind
    return kind


TENSOR_BRANCH = _kind(
    "tensor-branch", "a branch depends on a tensor's value", "use torch.where, or torch.cond for larger branches"
)
DATA_DEPENDENT = _kind(
    "data-dependent",
    "an operation needs a tensor's values while tracing",
    "keep the value in a tensor, or set dynajit.config.capture_scalar_outputs",
)
RUN_TIME_NUMBER = _kind(
    "run-time-number",
    "how the program goes on depends on a number that is drawn at random, or on the clock",
    "draw the number, or read the clock, outside of the compiled function",
)
VARYING_VALUE = _kind(
    "varying-value",
    "the program needs a value that was another one in each variant compiled so far",
    "hand over what is computed of it, or raise dynajit.config.recompile_limit if the values are few",
)
DYNAMIC_OUTPUT = _kind(
    "dynamic-output-shape",
    "the shape of a result depends on a tensor's values",
    "compute on all elements and let a mask choose, or set dynajit.config.capture_dynamic_output_shape_ops",
)
OP_RAISES = _kind(
    "operation-raises",
    "the operation raises for these inputs",
    "see the error; it is raised by running the operation itself",
)
MAY_RAISE = _kind(
    "operation-may-raise",
    "the operation may raise when it runs, a block of the program's would see it, and tensors were written before",
    "write the tensors after the operation, or take it out of the `try` or `with` block",
)
RAISES = _kind(
    "exception",
    "an exception leaves the function",
    "nothing to change if the exception is wanted: it is raised by running the line itself",
)
RESIZED_LEAF = _kind(
    "resized-gradient",
    "the operation gives another size to a tensor that has gradients",
    "have the operation return its result, or make `out` of the result's size before",
)
SKIPPED_CALL = _kind(
    "skipped-call", "the called function is never traced", "call it before or after, or allow it: dynajit.module_policy"
)
FIRST_CALL = _kind(
    "first-call",
    "a module makes its parameters, and changes its class, at its first call",
    "nothing to change: later calls have no break; or call the module once before",
)
OUTPUT_CALL = _kind(
    "input-output",
    "the call reads or writes outside of the program",
    "move it out of the compiled function, use a logger, or accept the break",
)
UNKNOWN_CALL = _kind(
    "unknown-callable",
    "nothing is known about the called object",
    "call it outside of the compiled function; what computes on tensors can be an operator: torch.library.custom_op",
)
LOCAL_CLASS = _kind(
    "local-class",
    "a class defined in the function leaves what is compiled, and is another one at each call",
    "define the class outside of the function",
)
UNKNOWN_OPCODE = _kind(
    "unknown-opcode", "this bytecode has no meaning here yet", "rewrite the statement in simpler Python"
)
UNSUPPORTED_VALUE = _kind(
    "unsupported-value", "this operation on this type of object is not traced", "do it outside of the compiled function"
)
UNSUPPORTED_ATTRIBUTE = _kind(
    "unsupported-attribute", "this attribute is not traced", "read or write it outside of the compiled function"
)
UNSUPPORTED_TENSOR = _kind(
    "unsupported-tensor",
    "this kind of tensor or tensor method is not traced",
    "use a plain torch.Tensor, or move the call out of the compiled function",
)
BACKWARD = _kind(
    "backward", "backward() runs the autograd engine", "nothing to change: the forward and what follows are compiled"
)
MODULE_BACKWARD_HOOK = _kind(
    "module-backward-hook",
    "a module's full backward hooks are put on nodes of the autograd graph",
    "use Tensor.register_hook on what the module takes or gives, which can be part of the graph",
)
SAVED_TENSOR_HOOKS = _kind(
    "saved-tensor-hooks",
    "hooks on saved tensors see each tensor that eager's operations keep, so the block runs as it is",
    "nothing to change if the hooks are wanted; torch.utils.checkpoint, which graphs hold, saves memory too",
)
HELD_LOCK = _kind(
    "held-lock",
    "what a lock protects has to run while the lock is held",
    "take the lock outside of the compiled function, around its call",
)
USER_BREAK = _kind("user-break", "dynajit.graph_break() was called", "remove the call")
DISABLED = _kind("disabled", "the function is marked with disable", "remove the mark")
DISALLOWED = _kind(
    "disallowed", "the function is marked with disallow_in_graph", "mark it with allow_in_graph, or move its call"
)
COMPILED_CALL = _kind(
    "compiled-by-another", "the called function is compiled by another compiler", "let one compiler compile both"
)
FRAME_INTROSPECTION = _kind(
    "frame-introspection",
    "the call looks at the interpreter's frames or local names",
    "pass what is needed as arguments",
)
GENERATOR = _kind(
    "generator",
    "a generator or coroutine is used in a way that is not traced",
    "use a list, or consume the generator where it is made",
)
IN_REGION = _kind(
    "break-in-region",
    "the break is inside a loop, with or try block of the outermost function",
    "move the loop's body into a function of its own",
)
RECURSION = _kind("recursion", "calls are nested too deep to be traced", "use a loop")
TOO_LONG = _kind(
    "trace-too-long",
    "so many instructions were traced without meeting a tensor that running them is quicker",
    "move tensor code that follows the long Python loop into a function of its own",
)
LONG_CONTAINER = _kind(
    "long-container",
    "an operation on a long container would rely on each of its items, where it is quicker by itself",
    "nothing, or keep it away from the tensor code around it",
)
STOPPED = _kind("stopped", "dynajit.bisect stops tracing here, to see what comes of it", "nothing: it is a trial")
IMPORT = _kind(
    "import", "an import statement loads a module that is not loaded yet", "import it at the top of the file"
)
INTERNAL = _kind("internal-error", "dynajit failed while tracing", "please report the program with the traceback")
UNFIT_GUARD = _kind(
    "unfit-guard",
    "a guard fails on the very state that it was made from",
    "states that no variant fits run eagerly; please report the program with this text",
)
