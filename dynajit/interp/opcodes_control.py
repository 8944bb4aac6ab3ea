"""Opcodes that jump, call, return, raise, handle exceptions, enter contexts and suspend generators.

In: canonical instructions. Out: handlers in `dispatch.HANDLERS`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from dynajit.bytecode import Instr
from dynajit.bytecode.return_action import CALLED, ENTERED
from dynajit.interp.catching import nobody_catches
from dynajit.interp.dispatch import HANDLERS, opcode
from dynajit.interp.frame import SymFrame, Yielded
from dynajit.report import breaks
from dynajit.values.containers.mapping import pairs_of
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.slots import by_rule
from dynajit.values.core.value import NULL, Exhausted, GraphBreak, Raised, Value
from dynajit.values.library import operators
from dynajit.values.objects.exception_groups import match_star, reraise_star
from dynajit.values.objects.exceptions import ExceptionVal, traceback_of
from dynajit.values.objects.functions import CellVal, FunctionVal
from dynajit.values.objects.generators import stop_iteration_error
from dynajit.values.objects.lookup import is_iterable
from dynajit.values.objects.objects import ClassVal
from dynajit.values.objects.opaque import OpaqueVal
from dynajit.values.objects.type_parameters import TYPE_PARAMETERS, TypeParameterVal
from dynajit.values.scalars.constant import ConstVal, is_none
from dynajit.values.tensors.distributions import check_truth
from dynajit.values.tensors.known_truth import known_truth
from dynajit.values.tensors.tensor import TensorVal


@opcode("JUMP", simple=True)
def jump(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.ip = instr.target  # type: ignore[assignment]


_JUMPS_IF: dict[str, Callable[[Any, Value], bool]] = {
    "POP_JUMP_IF_TRUE": lambda tx, value: value.truth(tx),
    "POP_JUMP_IF_FALSE": lambda tx, value: not value.truth(tx),
    "POP_JUMP_IF_NONE": lambda tx, value: operators.of_type(tx, value, lambda: is_none(value)),
    "POP_JUMP_IF_NOT_NONE": lambda tx, value: not operators.of_type(tx, value, lambda: is_none(value)),
}


# beginnings of the names of what makes the exception
_ON_THE_WAY_TO_RAISE = ("LOAD_", "CALL", "BUILD_", "FORMAT_", "BINARY_", "UNARY_", "COMPARE_", "NOP", "PUSH_NULL")


@opcode("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump(tx: Any, frame: SymFrame, instr: Instr) -> None:
    value = frame.pop()
    if type(value) is TensorVal and instr.op in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"):
        jumps = _by_check(tx, frame, instr, value)
    else:
        jumps = _JUMPS_IF[instr.op](tx, value)
    if jumps:
        frame.ip = instr.target  # type: ignore[assignment]


def _by_check(tx: Any, frame: SymFrame, instr: Instr, value: TensorVal) -> bool:
    """Whether to jump on a tensor's truth: away from a branch that only raises, where the graph can check that."""
    jumps_on = instr.op == "POP_JUMP_IF_TRUE"
    if known_truth(value.node) is None and not tx.catches():
        for jumps, raising in ((True, frame.ip), (False, instr.target)):
            if _raises(frame, raising) and check_truth(tx, value, jumps == jumps_on):
                return jumps
    return value.truth(tx) == jumps_on


def _raises(frame: SymFrame, start: Any) -> bool:
    """Whether all that the code does from here on, to the end of its straight line, is to raise."""
    for instr in frame.instrs[start:]:
        if instr.op == "RAISE_VARARGS":
            return True
        if not instr.op.startswith(_ON_THE_WAY_TO_RAISE):
            return False
    return False


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(tx: Any, frame: SymFrame, instr: Instr) -> None:
    _jump_or_pop(tx, frame, instr, frame.stack[-1])


def _jump_or_pop(tx: Any, frame: SymFrame, instr: Instr, condition: Value) -> None:
    if condition.truth(tx) == (instr.op == "JUMP_IF_TRUE_OR_POP"):
        frame.ip = instr.target  # type: ignore[assignment]
    else:
        frame.pop()


# ---------------------------------------------------------------------------------------------------------- calls


@opcode("CALL")
def call(tx: Any, frame: SymFrame, instr: Instr) -> None:
    argc, names = instr.arg
    _call(tx, frame, argc, names)


@opcode("CALL_KW")
def call_kw(tx: Any, frame: SymFrame, instr: Instr) -> None:
    names = frame.pop().const()
    _call(tx, frame, instr.arg, names)


def _call(tx: Any, frame: SymFrame, argc: int, names: tuple[str, ...]) -> None:
    """Call with the `argc` values on top of the stack, the last of them by the keywords `names`."""
    args = frame.popn(argc)
    fn, owner = frame.pop_callable()
    positional = argc - len(names)
    kwargs = dict(zip(names, args[positional:], strict=True))
    frame.push(tx.call(fn, [*owner, *args[:positional]], kwargs, CALLED))


@opcode("CALL_FUNCTION_EX")
def call_function_ex(tx: Any, frame: SymFrame, instr: Instr) -> None:
    kwargs: dict[str, Value] = {}
    named = frame.pop() if instr.arg else NULL
    if named is not NULL:
        for key, value in pairs_of(tx, named):
            if key.py_type() is not str:
                raise GraphBreak(breaks.RAISES, "TypeError: keywords must be strings")
            kwargs[key.const()] = value
    args = frame.pop()
    if not is_iterable(args.py_type()):
        raise GraphBreak(breaks.RAISES, f"TypeError: argument after * must be an iterable, not {args.describe()}")
    positional = tx.unpack_hinted(args)
    fn, owner = frame.pop_callable()
    frame.push(tx.call(fn, [*owner, *positional], kwargs, CALLED))


@opcode("CALL_INNER")
def call_inner(tx: Any, frame: SymFrame, instr: Instr) -> None:
    """The rest of a callee, in a continuation of its caller."""
    argc, action, again = instr.arg
    args = frame.popn(argc)
    fn, owner = frame.pop_callable()
    found = by_rule(tx, tx.call(fn, [*owner, *args], {}, action), action)
    if action.result == "callable":
        frame.push_callable(found)
    elif action.result == "decide":
        _jump_or_pop(tx, frame, again, found)
    elif action.result != "drop":
        frame.push(found)
    if action.result == "again":
        HANDLERS[again.op](tx, frame, again)


@opcode("MAKE_FUNCTION")
def make_function(tx: Any, frame: SymFrame, instr: Instr) -> None:
    code = frame.pop().const()
    flags = instr.arg
    closure = frame.pop() if flags & 8 else None
    annotations = frame.pop() if flags & 4 else None
    kwdefaults = frame.pop() if flags & 2 else None
    defaults = frame.pop() if flags & 1 else None
    cells: list[CellVal] = list(closure.items) if isinstance(closure, TupleVal) else []
    frame.push(
        FunctionVal(code, frame.globals, code.co_name, code.co_qualname, defaults, kwdefaults, cells, annotations)
    )


@opcode("SET_FUNCTION_ATTRIBUTE", simple=True)
def set_function_attribute(tx: Any, frame: SymFrame, instr: Instr) -> None:
    """Follows MAKE_FUNCTION at once, so nobody else has seen the function yet."""
    value, function = frame.stack.pop(-2), frame.stack[-1]
    assert isinstance(function, FunctionVal)
    if instr.arg == 8:
        function.closure = list(value.items) if isinstance(value, TupleVal) else []
    else:
        part = {1: "defaults", 2: "kwdefaults", 4: "annotations", 16: "annotations"}[instr.arg]
        setattr(function, part, value)


@opcode("CALL_INTRINSIC_1")
def call_intrinsic_1(tx: Any, frame: SymFrame, instr: Instr) -> None:
    if instr.arg == "INTRINSIC_LIST_TO_TUPLE":
        items: Any = frame.pop()
        frame.push(items.as_tuple(tx))
    elif instr.arg == "INTRINSIC_UNARY_POSITIVE":
        frame.push(operators.unary(tx, "UNARY_POSITIVE", frame.pop()))
    elif instr.arg == "INTRINSIC_STOPITERATION_ERROR":
        error = frame.stack[-1]
        if issubclass(error.py_type(), StopIteration):
            frame.pop()
            frame.push(stop_iteration_error(tx, error))
    elif instr.arg in TYPE_PARAMETERS:
        frame.push(TypeParameterVal(instr.arg, frame.pop()))
    else:
        raise GraphBreak(breaks.UNKNOWN_OPCODE, str(instr.arg))


@opcode("CALL_INTRINSIC_2")
def call_intrinsic_2(tx: Any, frame: SymFrame, instr: Instr) -> None:
    if instr.arg == "INTRINSIC_PREP_RERAISE_STAR":
        prep_reraise_star(tx, frame, instr)
        return
    first, second = frame.popn(2)
    if instr.arg in TYPE_PARAMETERS:
        frame.push(TypeParameterVal(instr.arg, first, second))
    elif instr.arg == "INTRINSIC_SET_TYPEPARAM_DEFAULT" and isinstance(first, TypeParameterVal):
        frame.push(first.with_default(second))
    elif instr.arg == "INTRINSIC_SET_FUNCTION_TYPE_PARAMS":
        first.setattr(tx, "__type_params__", second)
        frame.push(first)
    else:
        raise GraphBreak(breaks.UNKNOWN_OPCODE, str(instr.arg))


@opcode("RETURN_VALUE", simple=True)
def return_value(tx: Any, frame: SymFrame, instr: Instr) -> Value:
    return frame.pop()


@opcode("RETURN_CONST", simple=True)
def return_const(tx: Any, frame: SymFrame, instr: Instr) -> Value:
    return tx.from_real(instr.arg)  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------------------------------- exceptions


@opcode("RAISE_VARARGS")
def raise_varargs(tx: Any, frame: SymFrame, instr: Instr) -> None:
    if instr.arg == 0:
        handled = tx.exceptions.topmost()
        if handled is None:
            raise GraphBreak(breaks.RAISES, "the exception that the caller handles")
        raise Raised(handled)
    cause = frame.pop() if instr.arg == 2 else None
    error = _exception_instance(tx, frame.pop())
    if cause is not None:
        known = is_none(cause) or issubclass(cause.py_type(), BaseException)
        error.setattr(tx, "__cause__", cause if known else _exception_instance(tx, cause))
    tx.journal.set_attr(error, "traceback", None)  # this frame is added to whatever it was
    raise Raised(error)


def _exception_instance(tx: Any, value: Value) -> ExceptionVal:
    if isinstance(value, ClassVal) and issubclass(value.obj, BaseException):
        value = tx.call(value, [], {})
    if not isinstance(value, ExceptionVal):
        leaves = issubclass(value.py_type(), BaseException) and nobody_catches(tx.frames)
        kind, text = (breaks.RAISES, "") if leaves else (breaks.UNSUPPORTED_VALUE, "raising ")
        raise GraphBreak(kind, text + value.describe())
    return value


@opcode("RERAISE")
def reraise(tx: Any, frame: SymFrame, instr: Instr) -> None:
    raise Raised(frame.pop())


@opcode("PUSH_EXC_INFO")
def push_exc_info(tx: Any, frame: SymFrame, instr: Instr) -> None:
    error = frame.pop()
    frame.push(tx.exceptions.current if tx.exceptions.current is not None else tx.exceptions.outside)
    frame.push(error)
    tx.exceptions.handle(error)


@opcode("POP_EXCEPT")
def pop_except(tx: Any, frame: SymFrame, instr: Instr) -> None:
    previous = frame.pop()
    if tx.graph.op_count == 0 and len(tx.frames) == 1:
        tx.journal.set_attr(tx.exceptions, "by_graph", previous)
    tx.exceptions.handle(None if previous is tx.exceptions.outside else previous)


@opcode("CHECK_EXC_MATCH")
def check_exc_match(tx: Any, frame: SymFrame, instr: Instr) -> None:
    wanted = frame.pop()
    kinds = [wanted] if not isinstance(wanted, TupleVal) else wanted.values(tx)
    if any(isinstance(kind, OpaqueVal) for kind in kinds):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "catching exceptions of an unknown class")
    if not all(isinstance(kind, ClassVal) and issubclass(kind.obj, BaseException) for kind in kinds):
        raise tx.raised(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    raised_kind = frame.stack[-1].py_type()
    frame.push(ConstVal(any(kind.real() in raised_kind.__mro__ for kind in kinds)))


@opcode("CHECK_EG_MATCH")
def check_eg_match(tx: Any, frame: SymFrame, instr: Instr) -> None:
    error, wanted = frame.popn(2)
    match, rest = match_star(tx, error, wanted)
    frame.push(rest)
    frame.push(match)
    if isinstance(match, ExceptionVal):
        tx.exceptions.handle(match)


@opcode("PREP_RERAISE_STAR")
def prep_reraise_star(tx: Any, frame: SymFrame, instr: Instr) -> None:
    original, raised = frame.popn(2)
    frame.push(reraise_star(tx, original, raised))


@opcode("LOAD_BUILD_CLASS", simple=True)
def load_build_class(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.push(tx.from_real(builtins.__build_class__))


@opcode("BEFORE_WITH")
def before_with(tx: Any, frame: SymFrame, instr: Instr) -> None:
    manager = frame.pop()
    leave = tx.special(manager, "__exit__")
    entered = tx.call(tx.special(manager, "__enter__"), [], {}, ENTERED.over(leave))
    frame.push(leave)
    frame.push(entered)


@opcode("WITH_EXCEPT_START")
def with_except_start(tx: Any, frame: SymFrame, instr: Instr) -> None:
    error, leave = frame.stack[-1], frame.stack[-5 if instr.arg else -4]
    frame.push(tx.call(leave, [tx.from_real(error.py_type()), error, traceback_of(tx, error)], {}))


@opcode("LOAD_SPECIAL")
def load_special(tx: Any, frame: SymFrame, instr: Instr) -> None:
    """A method of `with`, bound, so that the slot of its object stays empty."""
    frame.push_callable(tx.special(frame.pop(), instr.arg))


# ------------------------------------------------------------------------------------------------------ generators


@opcode("YIELD_VALUE", simple=True)
def yield_value(tx: Any, frame: SymFrame, instr: Instr) -> Yielded:
    return Yielded(frame.pop())


@opcode("SEND")
def send(tx: Any, frame: SymFrame, instr: Instr) -> None:
    sent = frame.pop()
    receiver = frame.stack[-1]
    try:
        if is_none(sent):
            frame.push(receiver.next(tx))
        else:
            frame.push(receiver.call_method(tx, "send", [sent], {}))
    except Exhausted as end:
        value = end.value or ConstVal(None)
    except Raised as end:
        if is_none(sent) or not end.is_a(StopIteration):
            raise
        value = end.value.getattr(tx, "value")
    else:
        return
    frame.pop()
    frame.push(value)
    frame.ip = instr.target  # type: ignore[assignment]


@opcode("CLEANUP_THROW")
def cleanup_throw(tx: Any, frame: SymFrame, instr: Instr) -> None:
    """An exception was thrown into a `yield from` whose iterator takes none: a StopIteration ends it."""
    error = frame.pop()
    if not issubclass(error.py_type(), StopIteration):
        raise Raised(error)
    frame.popn(2)
    frame.push(ConstVal(None))
    frame.push(error.getattr(tx, "value"))


def throw_into_delegate(tx: Any, frame: SymFrame, error: Value) -> Value | None:
    """What `throw` gives in a generator that is suspended in a `yield from`: the other iterator gets the exception.

    Returns what that yields, or None: it has returned, and the generator goes on. Raises what the generator gets.
    """
    before = frame.current.index - 1
    while before >= 0 and frame.instrs[before].op == "NOP":
        before -= 1
    if before < 0 or frame.instrs[before].op != "SEND":
        raise Raised(error)
    receiver = frame.stack[-1]
    if issubclass(error.py_type(), GeneratorExit):
        if tx.has_attribute(receiver, "close"):
            receiver.call_method(tx, "close", [], {})
        raise Raised(error)
    if not tx.has_attribute(receiver, "throw"):
        raise Raised(error)
    try:
        yielded: Value = receiver.call_method(tx, "throw", [error], {})
    except Raised as end:
        if not end.is_a(StopIteration):
            raise
        frame.pop()
        frame.push(end.value.getattr(tx, "value"))
        frame.ip = frame.instrs[before].target  # type: ignore[assignment]
        return None
    return yielded


@opcode("END_FOR", simple=True)
def end_for(tx: Any, frame: SymFrame, instr: Instr) -> None:
    """Only met where something else than a FOR_ITER jumps to it."""
    frame.popn(instr.arg)


@opcode("END_SEND", simple=True)
def end_send(tx: Any, frame: SymFrame, instr: Instr) -> None:
    del frame.stack[-2]
