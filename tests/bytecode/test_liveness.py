"""Liveness: what is needed later, and nothing that is certainly not."""

from __future__ import annotations

from typing import Any

from bytecode_samples import Derived, make_adder

from dynajit.bytecode import cells_live, decode, live_before


def live_at(function: Any, op: str, arg: Any, nth: int = 0) -> set[str]:
    """Names live just before the nth instruction op(arg)."""
    code = decode(function.__code__)
    found = [i.index for i in code.instrs if i.op == op and i.arg == arg]
    return set(live_before(code)[found[nth]])


def test_straight_line() -> None:
    def user(a: int, b: int) -> int:
        c = a + 1
        a = c * b
        return a

    assert live_at(user, "STORE_FAST", "c") == {"b"}
    assert live_at(user, "STORE_FAST", "a") == set()
    code = decode(user.__code__)
    assert live_before(code)[code.entry] == {"a", "b"}


def test_loops_carry_names_round() -> None:
    def user(n: int) -> int:
        total = 0
        last = 0
        for i in range(n):
            last = i  # noqa: F841
            total += step(i)
        return total

    def step(i: int) -> int:
        return i

    # the closure's cell is no fast local of the function: it is a free variable
    assert live_at(user, "STORE_FAST", "i") == {"total"}
    assert "last" not in live_at(user, "STORE_FAST", "last")


def test_handlers_read_what_the_body_had() -> None:
    def user(a: int) -> Any:
        x = 1
        try:
            x = a()  # type: ignore[operator]
            x = 3
        except ValueError:
            return x, a
        return 0

    # a() may raise before the store: the handler then reads the old x
    assert live_at(user, "STORE_FAST", "x", 1) == {"x", "a"}


def test_delete_needs_the_name() -> None:
    def user(a: int) -> int:
        b = a
        del b
        return 1

    assert live_at(user, "DELETE_FAST", "b") == {"b"}


def test_cells() -> None:
    code = decode(make_adder.__code__)
    assert cells_live(code, code.entry) == {"n", "last"}
    assert live_before(code)[code.entry] == {"n", "last"}
    end = next(i.index for i in code.instrs if i.op == "LOAD_FAST" and i.arg == "adder")
    assert cells_live(code, end) == set() and live_before(code)[end] == {"adder"}
    inner = decode(make_adder(1).__code__)
    assert cells_live(inner, inner.entry) == {"n", "last"}
    assert live_before(inner)[inner.entry] == {"v"}


def test_super_reads_class_and_first_parameter() -> None:
    code = decode(Derived.value.__code__)
    assert cells_live(code, code.entry) == {"__class__"}
    assert live_before(code)[code.entry] == {"self", "b"}
    closure = decode(Derived.with_closure.__code__)
    assert cells_live(closure, closure.entry) == {"__class__", "self"}


def test_result_is_kept() -> None:
    code = decode(make_adder.__code__)
    assert live_before(code) is live_before(decode(make_adder.__code__))
