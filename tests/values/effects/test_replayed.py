"""Objects written in C that a program makes itself: their methods run while tracing, generated code makes them anew."""

import array
import hashlib
import io
import threading

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

X = torch.arange(3.0)


def test_text_streams():
    def program(x):
        out = io.StringIO("ab\ncd\n")
        first = out.readline()
        out.seek(0, io.SEEK_END)
        out.write("more")
        print_to = io.StringIO()
        print_to.writelines(["a", "b"])
        with io.StringIO() as inner:
            inner.write("x")
            length = len(inner.getvalue())
        return x * len(out.getvalue()), first, out.tell(), print_to.getvalue(), length, inner.closed

    assert_same(program, X, graphs=1, breaks=0)


def test_byte_streams_are_given_back_as_they_are():
    def program(x):
        out = io.BytesIO(b"12345")
        out.read(2)
        out.write(b"x")
        return x + 1, out

    found, expected = dynajit.compile(program, backend="eager")(X), program(X)
    assert torch.equal(found[0], expected[0])
    assert found[1].getvalue() == expected[1].getvalue() and found[1].tell() == expected[1].tell() == 3


def test_each_call_makes_an_object_of_its_own():
    @dynajit.compile(backend="eager")
    def program(x):
        return x + 1, array.array("i", [1])

    first, second = program(X)[1], program(X)[1]
    assert first is not second
    first.append(2)
    assert program(X)[1].tolist() == [1]


def test_arrays():
    def program(x, n):
        numbers = array.array("d", [1.0, 2.0])
        numbers.append(3)
        numbers[0] = n
        numbers.extend([4.5, 4.5])
        del numbers[1]
        alias = numbers
        alias.reverse()
        count = numbers.count(4.5) + numbers.index(3.0) + (4.5 in numbers)
        return x * numbers[1], len(numbers), numbers.typecode, numbers, alias, count, numbers.tolist(), bool(numbers)

    def shown(result):
        assert result[3] is result[4]
        return result

    assert_same(lambda x: program(x, 7.0)[:3], X, graphs=1, breaks=0)
    expected, found = shown(program(X, 2.0)), shown(dynajit.compile(program, backend="eager")(X, 2.0))
    assert torch.equal(expected[0], found[0]) and expected[1:] == found[1:]


def test_hashes():
    def program(x):
        digest = hashlib.sha256(b"one")
        digest.update(b"two")
        name = hashlib.new("md5", b"abc").hexdigest()
        return (
            x * digest.digest()[0],
            name,
            digest.digest_size,
            digest.name,
            hashlib.sha1(b"", usedforsecurity=False).hexdigest(),
        )

    assert_same(program, X, graphs=1, breaks=0)


def test_locks_made_in_the_call():
    def program(x):
        lock, again = threading.Lock(), threading.RLock()
        with lock, again, again:
            y = x + 1
            held = lock.locked()
        return y, held, lock.locked(), lock.acquire()

    assert_same(program, X, graphs=1, breaks=0)


def test_a_block_that_raises_lets_go_of_the_lock():
    def program(x):
        lock = threading.Lock()
        try:
            with lock, io.StringIO() as out:
                raise ValueError("inside")
        except ValueError as error:
            return x + 1, str(error), lock.locked(), out.closed

    assert_same(program, X, graphs=1, breaks=0)


def test_a_break_in_the_middle_hands_the_object_over():
    def program(x):
        out, numbers, lock = io.StringIO(), array.array("i"), threading.Lock()
        write = out.write
        out.write("a")
        numbers.append(1)
        lock.acquire()
        y = x + 1
        dynajit.graph_break()
        out.write("b")
        write("c")
        numbers.append(2)
        held = lock.locked()
        lock.release()
        return y * 2, out.getvalue(), numbers.tolist(), held

    assert_same(program, X)


def test_changes_of_a_branch_that_is_taken_back():
    def program(x):
        out = io.StringIO()
        out.write("a")
        for number in range(3):
            out.write(str(number))
            if number == 1:
                dynajit.graph_break()
        return x + 1, out.getvalue()

    assert_same(program, X)


def test_errors_are_those_of_the_methods():
    def closed(x):
        out = io.StringIO()
        out.close()
        out.write("a")
        return x + 1

    def wrong_type(x):
        numbers = array.array("i", [1])
        try:
            numbers.extend([2, "a"])
        except TypeError as error:
            return x + len(numbers), str(error), numbers.tolist()
        return x

    def missing(x):
        return x + 1, array.array("i").missing

    def wrong_code(x):
        return x + 1, array.array("?")

    for program in (closed, wrong_type, missing, wrong_code):
        assert_same(program, X)


def test_a_lock_that_is_held_is_not_waited_for_while_tracing():
    def program(x):
        lock = threading.Lock()
        with lock:
            return x + 1, lock.acquire(False), lock.acquire(timeout=0.001)

    assert_same(program, X)


def test_an_object_in_containers_attributes_and_closures():
    class Holder:
        pass

    def program(x):
        holder, numbers = Holder(), array.array("i", [1])
        holder.numbers = numbers
        kept = {"numbers": numbers}

        def add():
            holder.numbers.append(5)

        add()
        return x * len(kept["numbers"]), kept, numbers

    found = dynajit.compile(program, backend="eager")(X)
    assert found[1]["numbers"] is found[2] and found[2].tolist() == [1, 5]
    assert torch.equal(found[0], X * 2)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_addresses_hash_to_themselves(backend):
    def program(x, y):
        seen = {hash(id(x)): 1}
        return x + seen.get(id(x), 2), hash(id(x)) == id(x)

    assert dynajit.compile(program, backend=backend)(X, X)[1] is True
    assert_same(program, X, X.clone())


SHARED = threading.Lock()
SHARED_AGAIN = threading.RLock()


def test_a_lock_from_outside_is_held_while_its_block_runs():
    held = []

    def program(x):
        y = x + 1
        with SHARED:
            held.append(SHARED.locked())
            y = y * 2
        with SHARED_AGAIN:
            y = y * 3
        if SHARED.acquire(blocking=False):
            SHARED.release()
        return y, SHARED.locked()

    assert_same(program, torch.arange(3.0))
    assert held and all(held)
    assert {found.kind for found in dynajit.explain(program)(torch.ones(2)).break_reasons} == {"held-lock"}


def test_what_is_no_context_is_not_entered():
    def program(x):
        try:
            with array.array("i"):
                pass
        except TypeError:
            return x + 1

    assert_same(program, X, breaks=0)
