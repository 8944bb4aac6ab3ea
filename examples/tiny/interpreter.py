"""The symbolic interpreter: runs a function's bytecode with nodes in the tensors' places.

In: a code object and a frame's arguments. Out: a `Trace`: the graph, the guards, and what the frame returns, or the
call at which the graph breaks. One more opcode: one more function under `@opcode`.
"""

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType
from typing import Any, NamedTuple

import torch
from bytecode import Bytecode, Instr
from tiny.graph import ARITY, OPERATIONS, Graph, Node, Unsupported
from tiny.guards import Guards

NULL = object()  # what CPython pushes below a function that is no method
HANDLERS: dict[str, Callable[..., None]] = {}
BINARY = {"ADD": "add", "SUBTRACT": "sub", "MULTIPLY": "mul", "TRUE_DIVIDE": "div"}


class Method(NamedTuple):
    """`tensor.relu`, before it is called."""

    name: str
    tensor: Node


@dataclass
class Trace:
    """What is known of a frame. At its end `operands` is what it returns, or, if `broken` is the place of the call that
    breaks the graph, the function and its arguments."""

    globals_: dict[str, Any]
    graph: Graph = field(default_factory=Graph)
    guards: Guards = field(default_factory=Guards)
    locals: dict[str, Any] = field(default_factory=dict)
    stack: list[Any] = field(default_factory=list)
    operands: list[Any] | None = None
    broken: int | None = None


def trace(code: CodeType, globals_: dict[str, Any], args: tuple[Any, ...]) -> Trace:
    """Interpret one frame. Raises Unsupported where it is left to Python."""
    run = Trace(globals_)
    for place, (name, value) in enumerate(zip(code.co_varnames, args, strict=False)):
        run.guards.argument(place, value)
        run.locals[name] = run.graph.input(value, place) if isinstance(value, torch.Tensor) else value
    for place, instruction in enumerate(Bytecode.from_code(code)):
        if isinstance(instruction, Instr) and instruction.name not in ("RESUME", "NOP", "PRECALL"):
            if instruction.name not in HANDLERS or code.co_exceptiontable:
                raise Unsupported(f"the opcode {instruction.name}, or a try or with statement")
            HANDLERS[instruction.name](run, instruction.arg, place)
        if run.operands is not None:
            return run
    raise Unsupported("a function without an end")


def opcode(*names: str) -> Callable[[Callable[..., None]], None]:
    """Register a function as the meaning of an opcode."""
    return lambda handler: HANDLERS.update(dict.fromkeys(names, handler))


@opcode("LOAD_CONST")
def load_const(run: Trace, arg: Any, place: int) -> None:
    run.stack.append(arg)


@opcode("LOAD_FAST")
def load_fast(run: Trace, arg: str, place: int) -> None:
    if arg not in run.locals:
        raise Unsupported("a variable that is not set")
    run.stack.append(run.locals[arg])


@opcode("STORE_FAST")
def store_fast(run: Trace, arg: str, place: int) -> None:
    run.locals[arg] = run.stack.pop()


@opcode("LOAD_GLOBAL")
def load_global(run: Trace, arg: tuple[bool, str], place: int) -> None:
    value = run.globals_.get(arg[1], getattr(builtins, arg[1], NULL))
    if value is NULL or isinstance(value, torch.Tensor):
        raise Unsupported(f"the global {arg[1]}")
    run.guards.global_(arg[1], value)
    run.stack += [NULL, value] if arg[0] else [value]


@opcode("LOAD_ATTR")
def load_attr(run: Trace, arg: Any, place: int) -> None:
    """`torch.relu` or `tensor.relu`. In 3.12 `arg` is (whether it is called next, name)."""
    is_called, name = arg if isinstance(arg, tuple) else (False, arg)
    owner = run.stack.pop()
    if name not in ARITY or not (isinstance(owner, Node) or owner is torch):
        raise Unsupported(f"the attribute {name} of {type(owner).__name__}")
    value = Method(name, owner) if isinstance(owner, Node) else getattr(torch, name)
    run.stack += [NULL, value] if is_called else [value]


@opcode("LOAD_METHOD")
def load_method(run: Trace, arg: str, place: int) -> None:
    """3.11 has an opcode for what is called next, where 3.12 has a flag."""
    HANDLERS["LOAD_ATTR"](run, (True, arg), place)


@opcode("BINARY_OP")
def binary_op(run: Trace, arg: Any, place: int) -> None:
    *run.stack, left, right = run.stack
    if not isinstance(left, Node) and not isinstance(right, Node):
        raise Unsupported(f"the operator {arg.name} without a tensor")
    run.stack.append(run.graph.call(BINARY.get(arg.name), left, right))


@opcode("POP_TOP")
def pop_top(run: Trace, arg: Any, place: int) -> None:
    run.stack.pop()


@opcode("CALL")
def call(run: Trace, arg: int, place: int) -> None:
    """A call of torch is a node; any other breaks the graph."""
    below, function, *args = run.stack[-arg - 2 :]
    del run.stack[-arg - 2 :]
    if isinstance(function, Method):
        run.stack.append(run.graph.call(function.name, function.tensor, *args))
    elif isinstance(function, BuiltinFunctionType) and function in OPERATIONS:
        run.stack.append(run.graph.call(OPERATIONS[function], *args))
    elif below is NULL:
        run.operands, run.broken = [function, *args], place
    else:
        raise Unsupported("a call of a bound method")


@opcode("RETURN_VALUE", "RETURN_CONST")
def return_value(run: Trace, arg: Any, place: int) -> None:
    run.operands = [run.stack.pop() if run.stack else arg]
