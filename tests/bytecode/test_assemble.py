"""Emitter: constants by identity, calls, cells as parameters, jumps, handlers, lines, and refusal of malformed code."""

from __future__ import annotations

import dis
import math
import traceback
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from dynajit.bytecode import Emitter, Handler, Label, decode, pushed_kinds


def template() -> None:
    """Lends its file name and first line."""


def assembled(
    build: Callable[[Emitter], object], params: Sequence[str] = (), cells: Iterable[str] = ()
) -> types.FunctionType:
    """The function whose code `build` emits."""
    emitter = Emitter()
    build(emitter)
    code = emitter.assemble("made", params, cells, template.__code__)
    return types.FunctionType(code, {"__builtins__": __builtins__, "known": 41})


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("constants are not compared")


NAN = math.nan
CONSTANTS: list[Any] = [
    *(1, True, 1.0, 1 + 0j, 0, False, 0.0, -0.0, 0j, -0j, NAN, float("nan"), 10**30, 10**30 + 0, 2**63),
    *(None, ..., NotImplemented, "a", b"a", bytearray(b"x"), "not an identifier", "x" * 100, slice(1, 2), range(3)),
    *((1,), (True,), (1.0,), (0.0,), (-0.0,), ((),), [], [], [1], [True], {}, {"a": 1}, set(), frozenset({1})),
    *(frozenset({"".join(["a", "b"])}), frozenset({("".join(["c", "d"]),)})),
    *(Unhashable(), Unhashable(), object(), int, len, print, math, lambda: 1),
]


def test_constants_keep_their_identity() -> None:
    def build(emitter: Emitter) -> None:
        for constant in CONSTANTS:
            emitter.load_const(constant)
        emitter.build_list(len(CONSTANTS))
        emitter.return_value()

    result = assembled(build)()
    assert len(result) == len(CONSTANTS)
    for got, wanted in zip(result, CONSTANTS, strict=True):
        assert got is wanted


def test_docstring_is_none() -> None:
    def build(emitter: Emitter) -> None:
        emitter.load_const("no docstring")
        emitter.return_value()

    made = assembled(build)
    assert made.__doc__ is None and made() == "no docstring"


def test_many_constants_names_and_locals() -> None:
    def build(emitter: Emitter) -> None:
        for i in range(700):
            emitter.load_const([i])
            emitter.store_fast(f"local{i}")
        over = emitter.label()
        emitter.load_fast("flag")
        emitter.pop_jump_if_false(over)
        emitter.load_const("early")
        for i in range(600):
            emitter.load_fast(f"local{i}")
            emitter.pop_top()
        emitter.return_value()
        emitter.mark(over)
        for i in range(300):
            emitter.load_fast("space")
            emitter.load_attr(f"attr{i}")
            emitter.pop_top()
        emitter.load_fast("local699")
        emitter.return_value()

    made = assembled(build, ["flag", "space"])
    space = types.SimpleNamespace(**{f"attr{i}": i for i in range(300)})
    assert made(True, None) == "early"
    assert made(False, space) == [699]


def test_calls() -> None:
    def callee(*args: int, **kwargs: int) -> Any:
        return args, kwargs

    def build(emitter: Emitter) -> None:
        def push_args() -> None:
            for i in range(3):
                emitter.load_const(i)

        emitter.call_function(lambda: emitter.load_const(callee), push_args, 3, ("k",))
        emitter.begin_call(lambda: emitter.load_fast("f"))
        emitter.begin_call(lambda: emitter.load_const(callee))
        emitter.end_call(0)
        emitter.end_call(1)
        emitter.begin_call(lambda: emitter.load_const(callee))
        emitter.load_const((5, 6))
        emitter.load_const("z")
        emitter.load_const(7)
        emitter.build_map(1)
        emitter.op("CALL_FUNCTION_EX", True)
        emitter.build_tuple(3)
        emitter.return_value()

    assert assembled(build, ["f"])(repr) == (((0, 1), {"k": 2}), "((), {})", ((5, 6), {"z": 7}))


def test_every_simple_method() -> None:
    def build(emitter: Emitter) -> None:
        emitter.load_global("known")
        emitter.store_global("other")
        emitter.load_global("other")
        emitter.op("DELETE_GLOBAL", "other")
        emitter.load_const(1)
        emitter.op("BINARY_OP", "+")
        emitter.store_fast("v")
        emitter.load_fast("v")
        emitter.load_fast("space")
        emitter.store_attr("a")
        emitter.load_fast("v")
        emitter.load_fast("items")
        emitter.load_const(0)
        emitter.store_subscr()
        emitter.load_fast("items")
        emitter.load_const(1)
        emitter.op("DELETE_SUBSCR")
        emitter.load_fast("items")
        emitter.load_const(0)
        emitter.binary_subscr()
        emitter.load_fast("space")
        emitter.load_attr("a")
        emitter.op("IS_OP", False)
        emitter.load_fast("space")
        emitter.delete_attr("a")
        emitter.load_const(1)
        emitter.load_const(2)
        emitter.build_slice(2)
        emitter.load_const(3)
        emitter.load_fast("items")
        emitter.op("CONTAINS_OP", True)
        emitter.load_const("b")
        emitter.load_const("a")
        emitter.swap(2)
        emitter.op("BUILD_STRING", 2)
        emitter.load_const(2)
        emitter.load_const(3)
        emitter.compare_op("<")
        emitter.op("UNARY_NOT")
        emitter.build_list(0)
        emitter.load_const((1, 2))
        emitter.op("LIST_EXTEND", 1)
        emitter.load_const(3)
        emitter.op("LIST_APPEND", 1)
        emitter.op("LIST_TO_TUPLE")
        emitter.load_const((4, 5))
        emitter.unpack_sequence(2)
        emitter.build_set(2)
        emitter.load_const((6,))
        emitter.op("SET_UPDATE", 1)
        emitter.load_const("k")
        emitter.load_const(1)
        emitter.build_map(1)
        emitter.load_const({"l": 2})
        emitter.op("DICT_UPDATE", 1)
        emitter.copy(1)
        emitter.delete_fast("v")
        emitter.build_tuple(9)
        emitter.return_value()

    space, items = types.SimpleNamespace(), [7, 8, 9]
    made = assembled(build, ["space", "items"])
    expected = (True, slice(1, 2), True, "ab", False, (1, 2, 3), {4, 5, 6}, {"k": 1, "l": 2}, {"k": 1, "l": 2})
    assert made(space, items) == expected
    assert items == [42, 9] and not vars(space) and "other" not in made.__globals__


@pytest.mark.parametrize("symbol", ["<", "<=", "==", "!=", ">", ">="])
def test_comparisons(symbol: str) -> None:
    def build(emitter: Emitter) -> None:
        emitter.load_fast("a")
        emitter.load_fast("b")
        emitter.compare_op(symbol)
        emitter.return_value()

    made = assembled(build, ["a", "b"])
    for a, b in [(1, 2), (2, 1), (1, 1), (1.0, math.nan), ("a", "b"), (1.5, 1.5)]:
        for _ in range(20):  # often enough for the interpreter to specialise
            assert made(a, b) is eval(f"a {symbol} b", {"a": a, "b": b})


def test_binary_symbols() -> None:
    for symbol in ["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "+=", "-=", "*=", "//=", "<<="]:

        def build(emitter: Emitter, symbol: str = symbol) -> None:
            emitter.load_const(13)
            emitter.load_const(3)
            emitter.op("BINARY_OP", symbol)
            emitter.return_value()

        assert assembled(build)() == eval(f"13 {symbol.rstrip('=')} 3")

    def matmul(emitter: Emitter) -> None:
        emitter.load_fast("a")
        emitter.load_fast("a")
        emitter.op("BINARY_OP", "@=")
        emitter.return_value()

    class Operand:
        def __imatmul__(self, other: object) -> str:
            return "in place"

    assert assembled(matmul, ["a"])(Operand()) == "in place"


def test_cells_are_parameters() -> None:
    def build(emitter: Emitter) -> None:
        emitter.load_deref("passed")
        emitter.load_const(1)
        emitter.op("BINARY_OP", "+")
        emitter.store_deref("passed")
        emitter.load_const("own")
        emitter.store_deref("own")  # a cell of the function's own
        emitter.load_closure("passed")
        emitter.load_closure("own")
        emitter.load_closure("wrapped")  # an ordinary parameter that becomes a cell
        emitter.build_tuple(3)
        emitter.return_value()

    made = assembled(build, ["plain", "passed", "wrapped"], {"passed"})
    cell = types.CellType(4)
    passed, own, wrapped = made(0, cell, "w")
    assert passed is cell and cell.cell_contents == 5
    assert own.cell_contents == "own" and wrapped.cell_contents == "w"
    assert made.__code__.co_freevars == () and set(made.__code__.co_cellvars) == {"passed", "own", "wrapped"}


def test_cells_emptied() -> None:
    def build(emitter: Emitter) -> None:
        emitter.op("DELETE_DEREF", "c")
        emitter.load_deref("c")
        emitter.return_value()

    with pytest.raises(UnboundLocalError):
        assembled(build, ["c"], {"c"})(types.CellType(1))


def test_loop_with_backward_jumps() -> None:
    def build(emitter: Emitter) -> None:
        """total = 0; for i in xs: total += i if i is not None; then count down with a backward conditional jump."""
        top, end, skip, down = (emitter.label() for _ in range(4))
        emitter.load_const(0)
        emitter.store_fast("total")
        emitter.load_fast("xs")
        emitter.op("GET_ITER")
        emitter.mark(top)
        emitter.for_iter(end)
        emitter.copy(1)
        emitter.jump_op("POP_JUMP_IF_NONE", skip)
        emitter.load_fast("total")
        emitter.op("BINARY_OP", "+")
        emitter.store_fast("total")
        emitter.jump(top)
        emitter.mark(skip)
        emitter.pop_top()
        emitter.jump(top)
        emitter.mark(end)
        emitter.load_const(5)
        emitter.mark(down)
        emitter.load_const(1)
        emitter.op("BINARY_OP", "-")
        emitter.load_fast("total")
        emitter.load_const(1)
        emitter.op("BINARY_OP", "+")
        emitter.store_fast("total")
        emitter.copy(1)
        emitter.jump_op("POP_JUMP_IF_TRUE", down)
        emitter.pop_top()
        emitter.load_fast("total")
        emitter.return_value()

    made = assembled(build, ["xs"])
    assert made([1, None, 10]) == 16 and made([]) == 5


def test_all_conditional_jumps_both_ways() -> None:
    for name, taken in [("true", [1]), ("false", [0, None]), ("none", [None]), ("not_none", [0, 1])]:
        for backward in (False, True):

            def build(emitter: Emitter, name: str = name, backward: bool = backward) -> None:
                yes, start = emitter.label(), emitter.label()
                if backward:
                    emitter.jump(start)
                    emitter.mark(yes)
                    emitter.load_const(True)
                    emitter.return_value()
                    emitter.mark(start)
                emitter.load_fast("v")
                emitter.jump_op(f"POP_JUMP_IF_{name.upper()}", yes)
                emitter.load_const(False)
                emitter.return_value()
                if not backward:
                    emitter.mark(yes)
                    emitter.load_const(True)
                    emitter.return_value()

            made = assembled(build, ["v"])
            assert [v for v in (0, 1, None) if made(v)] == taken, (name, backward)


def test_or_pop_jumps() -> None:
    for op, expected in [("JUMP_IF_TRUE_OR_POP", [3, "else"]), ("JUMP_IF_FALSE_OR_POP", ["else", 0])]:

        def build(emitter: Emitter, op: str = op) -> None:
            end = emitter.label()
            emitter.load_fast("v")
            emitter.jump_op(op, end)
            emitter.load_const("else")
            emitter.mark(end)
            emitter.return_value()

        made = assembled(build, ["v"])
        assert [made(3), made(0)] == expected


def test_exception_handlers() -> None:
    def build(emitter: Emitter) -> None:
        """[kept, f()] where f() raising gives [kept, the exception]."""
        caught, done = emitter.label(), emitter.label()
        emitter.load_const("kept")
        emitter.set_handler(Handler(caught))  # depth from the first instruction in the range: 1
        emitter.begin_call(lambda: emitter.load_fast("f"))
        emitter.end_call(0)
        emitter.set_handler(None)
        emitter.jump(done)
        emitter.mark(caught)
        emitter.op("PUSH_EXC_INFO")
        emitter.swap(2)
        emitter.op("POP_EXCEPT")
        emitter.mark(done)
        emitter.build_list(2)
        emitter.return_value()

    made = assembled(build, ["f"])
    kept, error = made(lambda: 1 // 0)
    assert kept == "kept" and isinstance(error, ZeroDivisionError)
    assert made(lambda: 5) == ["kept", 5]
    handlers = [(i.handler_depth, i.handler_lasti) for i in decode(made.__code__).instrs if i.handler is not None]
    assert set(handlers) == {(1, False)}


def test_lines_and_columns() -> None:
    def build(emitter: Emitter) -> None:
        emitter.set_location((1000, 1001, 4, 9))
        emitter.load_const(1)
        emitter.set_location(None)
        emitter.load_const(0)
        emitter.set_location((900, None, None, None))
        emitter.op("BINARY_OP", "//")
        emitter.return_value()

    made = assembled(build)
    positions = {i.op: i.positions for i in decode(made.__code__).instrs}
    assert positions["BINARY_OP"] == (900, 900, None, None) or positions["BINARY_OP"][0] == 900
    consts = [i.positions for i in decode(made.__code__).instrs if i.op == "LOAD_CONST"]
    assert consts == [(1000, 1001, 4, 9), (None, None, None, None)]
    with pytest.raises(ZeroDivisionError) as caught:
        made()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno, frame.name) == (__file__, 900, "made")
    assert made.__code__.co_firstlineno == template.__code__.co_firstlineno


def test_unbound_locals_raise() -> None:
    def build(emitter: Emitter) -> None:
        emitter.load_fast("missing")
        emitter.return_value()

    with pytest.raises(UnboundLocalError, match="missing"):
        assembled(build)()


def test_malformed_code_is_refused() -> None:
    def cases() -> Any:
        yield (
            "never placed",
            lambda e: (e.load_const(1), e.jump_op("POP_JUMP_IF_TRUE", Label()), e.load_const(1), e.pop_top()),
        )
        yield "runs off the end", lambda e: e.load_const(1)
        yield "more was popped", lambda e: (e.pop_top(), e.load_const(1), e.return_value())
        yield "cannot be emitted", lambda e: e.op("UNKNOWN", ("X", 1))

        def two_depths(e: Emitter) -> None:
            end = e.label()
            e.load_const(1)
            e.load_fast("a")
            e.jump_op("POP_JUMP_IF_TRUE", end)
            e.load_const(2)
            e.mark(end)
            e.return_value()

        yield "on one path", two_depths

        def jump_without_label(e: Emitter) -> None:
            e.raw(next(i for i in decode(test_or_pop_jumps.__code__).instrs if i.target is not None))

        yield "needs the label", jump_without_label

    for message, build in cases():
        with pytest.raises(ValueError, match=message):
            assembled(build, ["a"])
    with pytest.raises(ValueError, match="named twice"):
        assembled(lambda e: (e.load_const(1), e.return_value()), ["a", "a"])
    with pytest.raises(ValueError, match="cells must be parameters"):
        assembled(lambda e: (e.load_const(1), e.return_value()), ["a"], {"b"})


def test_flags_and_stack_size() -> None:
    def build(emitter: Emitter) -> None:
        for i in range(20):
            emitter.load_const(i)
        emitter.build_tuple(20)
        emitter.return_value()

    code = assembled(build, ["a", "b"]).__code__
    assert code.co_flags & 0xFF == 3 and code.co_argcount == 2 and code.co_kwonlyargcount == 0
    assert 20 <= code.co_stacksize <= 22
    assert dis.Bytecode(code).dis()


class Meeting:
    """Attributes of the kinds that LOAD_METHOD tells apart."""

    stored: Any

    def method(self) -> str:
        return "method"

    @staticmethod
    def static() -> str:
        return "static"

    def __getattr__(self, name: str) -> Any:
        return lambda: name


@pytest.mark.parametrize("name", ["method", "static", "stored", "anything"])
def test_rerun_leaves_no_null(name: str) -> None:
    code = decode(compile(f"def f(a): return a.{name}(len)", "f", "exec").co_consts[0])
    load = next(i for i in code.instrs if i.op == "LOAD_METHOD")
    builtin = next(i for i in code.instrs if i.op == "LOAD_GLOBAL")

    def build(emitter: Emitter) -> None:
        emitter.load_fast("a")
        emitter.rerun(load)
        emitter.store_fast("kept")
        emitter.begin_call(lambda: emitter.load_fast("kept"))
        emitter.end_call(0)
        emitter.rerun(builtin)
        emitter.build_tuple(2)
        emitter.return_value()

    assert sorted(pushed_kinds(load)) == ["null", "value"] and pushed_kinds(builtin) == ("value",)
    meeting = Meeting()
    meeting.stored = lambda: "stored"
    assert assembled(build, ["a"])(meeting) == (name, len)


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_what_lies_below_is_dropped(keep: int) -> None:
    def build(emitter: Emitter) -> None:
        for number in range(keep + 3):
            emitter.load_const(number)
        emitter.drop_below(keep, 2)
        emitter.build_tuple(keep + 1)
        emitter.return_value()

    assert assembled(build, [])() == (0, *range(3, keep + 3))


def test_rerun_of_a_callee() -> None:
    code = decode(compile("def f(): return len(known)", "f", "exec").co_consts[0])
    load = next(i for i in code.instrs if i.op == "LOAD_GLOBAL")

    def build(emitter: Emitter) -> None:
        emitter.rerun(load)
        emitter.return_value()

    assert sorted(pushed_kinds(load)) == ["null", "value"]
    assert assembled(build)() is len
    jump = next(i for i in decode(test_or_pop_jumps.__code__).instrs if i.op == "FOR_ITER")
    assert pushed_kinds(jump) == ("value", "value") and pushed_kinds(jump, jump=True) == ()


@pytest.mark.parametrize("count", [255, 256, 300])
def test_calls_with_many_arguments(count: int) -> None:
    names = [f"p{number}" for number in range(count)]

    def build(emitter: Emitter) -> None:
        def push() -> None:
            for name in names:
                emitter.load_fast(name)

        emitter.call_function(lambda: emitter.load_const(math.gcd), push, count)
        emitter.return_value()

    function = assembled(build, names)
    for _ in range(100):  # often enough to be specialised
        assert function(*range(0, 6 * count, 6)) == 6
