"""The compiler: `compile(function)`, a code object's variants, and the way over a graph break.

In: a function. Out: one that does the same: its frames run kernels, and Python where there is no kernel for it.
"""

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from bytecode import Bytecode, Instr
from tiny.build import load_hook
from tiny.graph import Node, Unsupported
from tiny.guards import Guards
from tiny.interpreter import NULL, Method, Trace, trace
from tiny.kernel import compile_graph

hook = load_hook()
MAX_VARIANTS = 8
log: list[str] = []  # what was compiled, what broke, what is left to Python, and why
# code for a frame, and what it relies on; None in place of code where the frame is left to Python
variants: dict[CodeType, list[tuple[Guards, Callable[..., Any] | None]]] = {}


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose frames, and those that it calls, are compiled. It takes positional arguments."""
    return functools.wraps(function)(lambda *args: hook.call(function, args, _on_frame))


def _on_frame(code: CodeType, globals_: dict[str, Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """What the hook asks for each frame: the variant whose guards hold; if there is none, a new one."""
    known, why = variants.setdefault(code, []), "it is new"
    for guards, run in known:
        failing = guards.failing(globals_, args)
        if failing is None:
            return run
        why = f"this does not hold: {failing}"
    if len(known) >= MAX_VARIANTS:
        return None
    log.append(f"{code.co_name} is compiled, as {why}")
    try:
        made = trace(code, globals_, args)
        known.append((made.guards, _emit(made, code)))
    except Unsupported as reason:
        log.append(f"{code.co_name} is left to Python: {reason}")
        guards = Guards()
        for place, value in enumerate(args):
            guards.argument(place, value)
        known.append((guards, None))
    return known[-1][1]


def _emit(made: Trace, code: CodeType) -> Callable[..., Any]:
    """The function to call in the frame's place: the kernel, and at a break the call for real and the rest."""
    assert made.operands is not None
    operands, end = made.operands, len(made.operands)
    if made.broken is not None:
        names = [name for name in made.locals if not name.startswith(".")]
        operands = [*operands, *(made.locals[name] for name in names), *made.stack]
        rest = continuation(code, made.broken + 1, names, len(made.stack), made.globals_)
        log.append(f"{code.co_name}: the graph breaks at a call of {operands[0]!r}")
    if any(operand is NULL or isinstance(operand, Method) for operand in operands):
        raise Unsupported("a break between a function and its call")
    outputs = list(dict.fromkeys(each for each in operands if isinstance(each, Node) and each.op != "input"))
    kernel = compile_graph(made.graph, outputs)

    def instead(*args: Any) -> Any:
        tensors = dict(zip(outputs, kernel(*args), strict=True))
        tensors.update((node, args[node.operands[0]]) for node in made.graph.nodes if node.op == "input")
        values = [tensors[each] if isinstance(each, Node) else each for each in operands]
        if made.broken is None:
            return values[0]
        result = hook.call(values[0], tuple(values[1:end]), _on_frame)  # what it calls is compiled, too
        return hook.call(rest, (*values[end:], result), _on_frame)

    return instead


def continuation(code: CodeType, place: int, names: list[str], depth: int, globals_: dict[str, Any]) -> FunctionType:
    """The rest of a function, from the instruction at `place` on, as a function of the variables that are set, of
    `depth` values on the stack, and of the broken call's result. Nothing before it jumps: `trace` came here."""
    rest = Bytecode.from_code(code)
    on_stack = [f".stack{number}" for number in range(depth + 1)]
    rest[:place] = [Instr("RESUME", 0), *(Instr("LOAD_FAST", name) for name in on_stack)]
    labels = {id(each) for each in rest if not isinstance(each, Instr)}
    if any(isinstance(each, Instr) and each.has_jump() and id(each.arg) not in labels for each in rest):
        raise Unsupported("a break in a loop")
    rest.argnames = [*names, *on_stack]
    rest.argcount = len(rest.argnames)
    return FunctionType(rest.to_code(), globals_)
