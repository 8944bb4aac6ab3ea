"""Successors, reachability, blocks, regions."""

# The functions looked at are never run: the names they load only mark places.
# ruff: noqa: F821, F841, B007

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecode_harness import plain
from bytecode_samples import SAMPLES

from dynajit.bytecode import blocks, decode, reachable_from, regions, successors, target
from dynajit.bytecode.canonical import TERMINATORS


def kinds_at_names(function: Callable[..., Any]) -> dict[str, list[str]]:
    """Global name loaded → kinds of the regions around the load, outermost first. The name marks a place in the
    function."""
    code = decode(function.__code__)
    around = regions(code)
    return {i.arg[0]: [r.kind for r in around[i.index]] for i in code.instrs if i.op == "LOAD_GLOBAL"}


def test_loops() -> None:
    def user(n):  # type: ignore[no-untyped-def]
        before()
        for i in first():
            inner()
            while condition():
                deep()
                if x:
                    leave()
                    break
            if y:
                return returned()
        else:
            otherwise()
        after()

    kinds = kinds_at_names(user)
    assert kinds["before"] == kinds["first"] == kinds["after"] == kinds["otherwise"] == []
    assert kinds["inner"] == ["for"]
    assert kinds["deep"] == ["for", "while"]
    assert kinds["leave"] == ["for"]  # after it the while loop is not entered again
    assert kinds["returned"] == []  # nor the for loop


def test_with_and_try() -> None:
    def user(n):  # type: ignore[no-untyped-def]
        with manager() as m, second():
            both()
        try:
            body()
        except first():
            handler()
        except OSError as error:
            named(error)
        else:
            otherwise()
        finally:
            final()
        after()

    kinds = kinds_at_names(user)
    assert kinds["manager"] == kinds["after"] == []
    assert kinds["second"] == ["with"]
    assert kinds["both"] == ["with", "with"]
    assert kinds["body"] == ["try", "try"]  # the outer one is finally's
    assert kinds["handler"] == kinds["named"] == kinds["first"] == ["try", "except"]
    assert kinds["otherwise"] == ["try"]
    # finally's code is there twice: once for the normal end, once (the last) in the handler
    assert kinds["final"] == ["except"]


def test_try_in_a_loop_that_goes_on() -> None:
    def user(xs):  # type: ignore[no-untyped-def]
        for x in xs:
            try:
                body(x)
            except ValueError:
                handler(x)
                continue
            with manager():
                inside(x)
        after()

    kinds = kinds_at_names(user)
    assert kinds["body"] == ["for", "try"]
    assert kinds["handler"] == ["for", "except"]
    assert kinds["manager"] == ["for"]
    assert kinds["inside"] == ["for", "with"]
    assert kinds["after"] == []


def test_loop_in_try_and_while_true() -> None:
    def user(xs):  # type: ignore[no-untyped-def]
        try:
            while True:
                body()
                if stop():
                    break
        finally:
            final()

    kinds = kinds_at_names(user)
    assert kinds["body"] == ["try", "while"]


def test_region_bounds() -> None:
    def user(xs):  # type: ignore[no-untyped-def]
        for x in xs:
            body()
        after()

    code = decode(user.__code__)
    loop = next(r for around in regions(code) for r in around)
    assert code.instrs[loop.start].op == "FOR_ITER"
    assert code.instrs[loop.end - 1].op == "JUMP" and code.instrs[loop.end - 1].target == loop.start
    assert code.instrs[loop.start].target == loop.end + len(target().LANDINGS.get("FOR_ITER", ()))


def test_comprehension_is_no_try() -> None:
    def user(xs):  # type: ignore[no-untyped-def]
        return [f(x) for x in xs]

    code = decode(user.__code__)
    assert {r.kind for around in regions(code) for r in around} <= {"for"}  # inlined since 3.12


def test_blocks_partition_the_code() -> None:
    for function, _ in SAMPLES:
        code = decode(plain(function).__code__)
        covered = [i for block in blocks(code) for i in range(block.start, block.end)]
        assert covered == list(range(len(code)))
        for block in blocks(code):
            inside = code.instrs[block.start : block.end]
            assert all(i.op not in TERMINATORS and i.target is None for i in inside[:-1])
            assert len({i.handler for i in inside}) == 1
            assert set(block.successors) == set(successors(inside[-1]))


def test_reachable_is_closed() -> None:
    for function, _ in SAMPLES:
        code = decode(plain(function).__code__)
        for index in range(0, len(code), 7):
            found = set(reachable_from(code, index))
            assert index in found
            for i in found:
                assert found.issuperset(successors(code.instrs[i]))
                handler = code.instrs[i].handler
                assert handler is None or handler in found
