"""The smallest programs of what CPython's own test-suite found."""

from __future__ import annotations

import calendar
import collections
import contextlib
import copy
import enum
import functools
import io
import itertools
import pprint
import re
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same


def same(fn: Callable[..., Any], *args: Any) -> Any:
    """Run twice compiled and once eagerly; the results must be equal."""
    expected = fn(*args)
    compiled = dynajit.compile(fn, backend="eager")
    assert compiled(*args) == expected
    assert compiled(*args) == expected
    return expected


@dynajit.disable
def outside(*values: Any) -> Any:
    """A break."""
    return values[0] if values else None


# ------------------------------------------------------------------------------------------------------------ iterators


def probe(iterator: Iterator[Any]) -> list[Any]:
    found = []
    for _ in range(3):
        try:
            found.append(next(iterator))
        except (StopIteration, RuntimeError) as error:
            found.append(repr(error))
    return found


def grow(container: Any) -> None:
    if isinstance(container, dict):
        container[9] = 1
    else:
        container.add(9)


def iterated_then_grown(make: Callable[[], Any]) -> Any:
    container = make()
    iterator = iter(container)
    first = probe(iterator)
    grow(container)
    second = probe(iterator)
    outside()
    return first, second, probe(iterator), type(iterator).__name__, sorted(container)


def grown_before_the_first(make: Callable[[], Any]) -> Any:
    container = make()
    iterator = iter(container)
    grow(container)
    return probe(iterator)


@pytest.mark.parametrize("size", [0, 1, 2, 4])
@pytest.mark.parametrize("kind", [dict.fromkeys, set])
@pytest.mark.parametrize("program", [iterated_then_grown, grown_before_the_first])
def test_containers_that_grow_while_they_are_iterated(program: Any, kind: Any, size: int) -> None:
    same(program, lambda: kind(range(size)))


class Items:
    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        if index < self.count:
            return index
        raise IndexError


@pytest.mark.parametrize(
    "view",
    [iter, lambda d: iter(d.values()), lambda d: iter(d.items()), lambda d: reversed(d), lambda d: reversed(d.keys())],
)
def test_an_iterator_at_its_end_holds_nothing(view: Any) -> None:
    def program() -> Any:
        died = []

        class Named(dict[int, int]):
            pass

        held = Named()
        reference = weakref.ref(held, lambda _: died.append(True))
        iterator = view(held)
        del held
        found = next(iterator, None)
        outside()
        return found, died, reference() is None, type(iterator).__name__

    assert same(program)[1] == [True]


def test_iterators_by_position_at_their_end() -> None:
    def program() -> Any:
        iterator = iter(Items(2))
        found = list(iterator)
        outside()
        return found, list(iterator), type(iterator).__name__

    same(program)


def test_iterators_are_no_constants() -> None:
    def program(code: types.CodeType) -> Any:
        lines, places = code.co_lines(), code.co_positions()
        found = [next(lines), next(places)]
        outside()
        return found, list(lines)

    same(program, program.__code__)


def test_deques_that_change_while_they_are_searched() -> None:
    class Clearing:
        def __init__(self, other: collections.deque[Any]) -> None:
            self.other = other

        def __eq__(self, other: object) -> Any:
            self.other.clear()
            return NotImplemented

        __hash__ = None  # type: ignore[assignment]

    def program(search: Callable[[Any], Any]) -> Any:
        items: collections.deque[Any] = collections.deque()
        items.extend([Clearing(items), 2])
        try:
            return search(items)
        except (RuntimeError, IndexError) as error:
            return repr(error)

    searches: list[Callable[[Any], Any]] = [
        lambda d: 3 in d,
        lambda d: d.count(3),
        lambda d: d.index(3),
        lambda d: d.remove(3),
    ]
    for search in searches:
        assert "mutated" in same(program, search)


def test_deques_times_a_number_and_items_set_while_iterating() -> None:
    def program(count: int) -> Any:
        short: collections.deque[Any] = collections.deque("ab", 3)
        twice = short * count
        alias = short
        short *= count
        for index, _ in enumerate(short):
            short[index] = index
        outside()
        return list(twice), twice.maxlen, short is alias, list(short)

    for count in (-1, 0, 2):
        same(program, count)


def test_a_deque_that_is_changed_before_it_is_iterated() -> None:
    def program(items: collections.deque[int]) -> Any:
        items.append(7)
        iterator = iter(items)
        outside()
        return list(iterator)

    for _ in range(2):
        assert same(lambda: program(collections.deque([1]))) == [1, 7]
    expected, compiled = collections.deque([1]), collections.deque([1])
    assert dynajit.compile(program, backend="eager")(compiled) == program(expected)
    assert compiled == expected


def test_long_containers_are_left_to_python() -> None:
    """It took minutes: every item was a model of its own, at every call."""

    def program(count: int) -> int:
        items: collections.deque[int] = collections.deque(range(count))
        total = 0
        for _ in range(20):
            total += items.popleft()
            items.append(total)
        outside()
        return total + items.popleft()

    same(program, 50_000)


def test_reversed_ranges_are_iterators_over_ranges() -> None:
    def program(count: int) -> Any:
        iterator: Any = reversed(range(count))
        kind = type(iterator).__name__
        iterator.__setstate__(1)
        outside()
        return kind, list(iterator)

    assert same(program, 4) == ("range_iterator", [2, 1, 0])


def test_reversed_reads_items_when_they_are_asked_for() -> None:
    class Squares:
        def __init__(self) -> None:
            self.read: list[int] = []

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            self.read.append(index)
            return index * index

    def program(last: int) -> Any:
        squares = Squares()
        for square in reversed(squares):
            if square == last:
                break
        return squares.read

    assert same(program, 9) == [4, 3]


def test_items_of_a_deque_set_under_an_iterator_from_outside() -> None:
    def program(queue: Any, iterator: Any) -> int:
        for index, item in enumerate(queue):
            queue[index] = item + 1
        return object.__sizeof__(collections.deque()) + next(iterator, 0) * 0

    for run in (program, dynajit.compile(program, backend="eager")):
        queue = collections.deque([1, 2, 3])
        iterator = iter(queue)
        assert run(queue, iterator) == object.__sizeof__(collections.deque())
        assert list(iterator) == [3, 4] and list(queue) == [2, 3, 4]


def test_iterators_over_deques_that_changed_before_a_break() -> None:
    def program(items: list[int]) -> Any:
        queue = collections.deque(items)
        iterator = iter(queue)
        if items:
            queue.pop()
        else:
            queue.append(1)
        outside()
        try:
            return next(iterator)
        except RuntimeError as error:
            return str(error), list(queue)

    for items in ([], [1], [1, 2, 3]):
        same(program, items)


# ----------------------------------------------------------------------------------------------------------- tracebacks


def places_of(error: BaseException) -> list[tuple[str, int]]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_name, trace.tb_lineno - trace.tb_frame.f_code.co_firstlineno))
        trace = trace.tb_next
    return found


def caught_inside(fn: Callable[[], Any]) -> list[tuple[str, int]]:
    try:
        fn()
    except Exception as error:
        return places_of(error)
    return []


def simple() -> None:
    _ = 1 / 0


def raised_again() -> None:
    try:
        simple()
    except TypeError:
        pass


def from_a_handler() -> None:
    try:
        simple()
    except ZeroDivisionError:
        [].pop()


def with_finally() -> None:
    try:
        outside()
    finally:
        simple()


@pytest.mark.parametrize("fn", [simple, raised_again, from_a_handler, with_finally])
def test_tracebacks_show_the_frames_that_the_exception_went_through(fn: Any) -> None:
    def program() -> Any:
        return caught_inside(fn)

    expected = program()
    compiled = dynajit.compile(program, backend="eager")
    assert compiled() == compiled() == expected
    assert [name for name, _ in expected][:2] == ["caught_inside", fn.__name__]


# ----------------------------------------------------------------------------------------------------------- attributes


def test_errors_of_getattr_know_the_name_and_the_object() -> None:
    class Lazy:
        def __getattr__(self, name: str) -> Any:
            outside(name)
            raise AttributeError("no such thing", 23)

    def program(lazy: Lazy) -> Any:
        try:
            return lazy.anything
        except AttributeError as error:
            outside()
            return error.args, error.name, error.obj is lazy

    assert same(program, Lazy())[1:] == ("anything", True)


def test_objects_made_here_are_filled_without_their_own_getattribute() -> None:
    class Proxy:
        def __init__(self, target: Any) -> None:
            self._target = target

        def __getattribute__(self, name: str) -> Any:
            if name == "_target":
                return object.__getattribute__(self, name)
            return getattr(self._target, name)

    def program() -> Any:
        proxy = Proxy([1, 2])
        outside(proxy)
        return proxy.copy(), isinstance(proxy, list)

    assert same(program) == ([1, 2], True)


def test_modules_that_find_their_attributes_themselves() -> None:
    log = []

    class Watched(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            log.append(name)
            return types.ModuleType.__getattribute__(self, name)

    def program(module: Any) -> Any:
        module.number = 12
        return module.number

    module = Watched("watched")
    assert same(program, module) == 12
    assert set(log) == {"number"}


def test_members_that_can_not_be_written() -> None:
    def program(reference: Any) -> Any:
        try:
            reference.__callback__ = None
        except AttributeError as error:
            return str(error)
        return "written"

    same(program, weakref.ref(outside, lambda _: None))


def test_a_super_object_in_a_class() -> None:
    class Base:
        def name(self) -> str:
            return "base"

    class Derived(Base):
        above: Any

        def name(self) -> str:
            return "derived " + self.above.name()

    Derived.above = super(Derived)

    def program() -> str:
        return Derived().name()

    assert same(program) == "derived base"


def test_new_as_a_class_method() -> None:
    class Odd:
        @classmethod
        def __new__(cls, *args: Any) -> Any:
            return args

    def program() -> Any:
        return Odd(1, 2)

    assert same(program) == (Odd, 1, 2)


def test_methods_of_another_class() -> None:
    class Number(int):
        __add__ = str.__add__  # type: ignore[assignment]

    def program(number: Number) -> str:
        try:
            return str(number + number)
        except TypeError as error:
            return str(error)

    same(program, Number(1))


# --------------------------------------------------------------------------------------------------------------- others


def test_a_bound_method_stays_itself() -> None:
    class Owner:
        def method(self) -> None:
            pass

    def program() -> Any:
        bound = Owner().method
        reference = weakref.ref(bound)
        alive = reference() is bound
        outside(bound)
        again = reference()
        kept = again is bound
        del bound, again
        outside()
        return alive, kept, reference() is None

    assert same(program) == (True, True, True)


def test_objects_in_a_container_die_with_it() -> None:
    class Counted:
        count = 0

        def __init__(self) -> None:
            type(self).count += 1

        def __del__(self) -> None:
            type(self).count -= 1

    def program() -> Any:
        several = [Counted(), Counted()]
        before = Counted.count
        outside()
        del several
        return before, Counted.count

    assert same(program) == (2, 0)


def test_subclasses_of_str_are_formatted_by_their_own_text() -> None:
    class Text(str):
        def __str__(self) -> str:
            return "own text"

    def program(text: Text) -> Any:
        return "%s|%5.3s" % (text, text), "%s" % text, f"{text}"

    assert same(program, Text("x"))[1] == "own text"


def test_submodules_are_imported_by_from(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_package").mkdir()
    (tmp_path / "found_package" / "__init__.py").write_text("")
    (tmp_path / "found_package" / "inner.py").write_text("value = 5\n")
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> int:
        import found_package
        from found_package import inner

        return inner.value + len(found_package.__name__)  # type: ignore[no-any-return]

    try:
        assert dynajit.compile(program, backend="eager")() == 18
    finally:
        for name in ("found_package", "found_package.inner"):
            sys.modules.pop(name, None)


class _NoArguments:
    def none() -> Any:  # type: ignore[misc]
        return super().none

    def starred(*args: Any) -> Any:
        return super()

    def caught(**named: Any) -> str:
        try:
            super()
        except RuntimeError as error:
            return str(error)
        return ""


@pytest.mark.parametrize("name", ["none", "starred", "caught"])
def test_super_without_arguments(name: str) -> None:
    assert_same(getattr(_NoArguments, name))


def test_super_of_a_class_alone() -> None:
    class Base:
        def value(self, x: Any) -> Any:
            return x + 1

    class Derived(Base):
        def value(self, x: Any) -> Any:
            return self.__super.value(x) * 2  # type: ignore[attr-defined]

        def prepare(self, x: Any) -> Any:
            Derived._Derived__super = super(Derived)  # type: ignore[attr-defined]
            return self.value(x)

    assert_same(lambda x: Derived().prepare(x), torch.ones(3))


def test_a_builtin_that_is_written_and_then_called() -> None:
    import builtins

    def replace() -> None:
        builtins.len = lambda found: 4  # type: ignore[assignment]

    def fn(x: Any) -> Any:
        kept = builtins.len
        found = [len(range(7))]
        replace()
        try:
            found.append(len(range(7)))
        finally:
            builtins.len = kept
        return x + found[0], found

    assert_same(fn, torch.ones(3))


@pytest.mark.parametrize("kind", [list, dict, set])
def test_an_iterator_at_its_end_lets_its_container_die(kind: type) -> None:
    def program(kind: type) -> bool:
        done = False

        class Container(kind):  # type: ignore[misc]
            def __del__(self) -> None:
                nonlocal done
                done = True

        iterator = iter(Container())
        try:
            next(iterator)
        except StopIteration:
            pass
        return done

    assert same(program, kind) is True


def test_an_attribute_of_a_class_written_in_c() -> None:
    def program() -> Any:
        try:
            itertools.count.dynajit_attribute = 1  # type: ignore[attr-defined]
        except TypeError:
            return "refused"
        return "taken"

    assert same(program) == "refused"


class Odd(enum.Enum):
    """Its text can't be made before it is finished."""

    MEMBER = 1

    def __repr__(self) -> str:
        raise AssertionError("a member's text was asked for")


def test_messages_do_not_run_the_code_of_members() -> None:
    def program(member: Any) -> Any:
        member.note = outside(3)
        return member.note

    assert same(program, Odd.MEMBER) == 3


def test_attributes_of_an_ordered_dict() -> None:
    def program(made: Any) -> Any:
        found = getattr(made, "note", "nothing")
        copied = collections.OrderedDict(made)
        copied.note = outside("new")  # type: ignore[attr-defined]
        return found, list(made), copied, copied.note, hasattr(made, "note")  # type: ignore[attr-defined]

    plain, noted = collections.OrderedDict(a=1), collections.OrderedDict(a=1)
    noted.note = "kept"  # type: ignore[attr-defined]
    for given in ((plain, noted), (noted, plain)):
        dynajit.reset()
        compiled = dynajit.compile(program, backend="eager")
        assert [compiled(one) for one in given] == [program(one) for one in given]


def test_what_a_state_dict_says_of_versions() -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))

    def program() -> Any:
        found: Any = module.state_dict()
        return list(found), found._metadata

    assert same(program)[1]["0"] == {"version": 2}


def test_the_hits_of_a_cache() -> None:
    def program() -> Any:
        @functools.lru_cache
        def cached(number: int) -> int:
            return number + 1

        found = cached(1) + cached(1) + cached(2)
        return found, tuple(cached.cache_info())

    assert same(program) == (7, (1, 2, 128, 2))


@pytest.mark.parametrize("digits", [-3, -1, 0, 2])
def test_whole_numbers_that_vary_are_rounded(digits: int) -> None:
    def f(x: torch.Tensor, number: int) -> Any:
        return x + 1, round(number, digits), round(number + 1, digits), round(number), round(number * 0.5, digits)

    x = torch.ones(2)
    assert_same(f, x, 17, then=[(x, value) for value in (25, 1234, -15, 0)])


@pytest.mark.parametrize("advanced", [0, 2, 4])
@pytest.mark.parametrize("changed", [False, True])
def test_a_reversed_deque_leaves_its_function(advanced: int, changed: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        items = collections.deque([1, x, 3, 4])
        iterator = reversed(items)
        seen = [next(iterator) for _ in range(advanced)]
        if changed:
            items.append(5)
        return iterator, items, seen

    def used(fn: Any) -> Any:
        iterator, items, seen = fn(torch.ones(()))
        found: list[Any] = [type(iterator), iterator.__length_hint__(), *seen]
        try:
            found.append(next(iterator, None))
            items.pop()
            found.append(next(iterator, None))
        except RuntimeError as error:
            found.append(str(error))
        return found

    ours, eager = used(dynajit.compile(f, backend="eager")), used(f)
    assert ours == eager


def test_ids_are_keys_beside_those_of_real_tables() -> None:
    def visit(x: torch.Tensor, node: Any, seen: Any, order: Any) -> Any:
        if id(node) in seen:
            return "again"
        seen[id(node)] = len(seen)
        order.add(id(node))
        found = []
        for part in node:
            dynajit.graph_break()
            found.append(visit(x, part, seen, order))
        return found, id(node) in seen, id(node) in order, seen[id(node)]

    def f(x: torch.Tensor, node: Any, seen: Any) -> Any:
        return x + 1, visit(x, node, seen, set()), len(seen)

    node: list[Any] = [[], ()]
    node[0].append(node)
    compiled = dynajit.compile(f, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2), node, {})[1:] == f(torch.ones(2), node, {})[1:]
        seen = {id(node): 7}
        assert compiled(torch.ones(2), node, seen)[1:] == f(torch.ones(2), node, seen)[1:]


def test_structures_print_that_contain_themselves() -> None:
    def f(x: torch.Tensor, node: Any) -> Any:
        return x + 1, pprint.pformat(node), pprint.isrecursive(node)

    node: list[Any] = [1, [2]]
    node[1].append(node)
    assert_same(f, torch.ones(2), (3, 4))
    assert dynajit.compile(f, backend="eager")(torch.ones(2), node)[1:] == f(torch.ones(2), node)[1:]


def test_the_text_of_a_module_tells_of_its_loader() -> None:
    class Loader:
        pass

    def f(x: torch.Tensor) -> Any:
        module = types.ModuleType("made")
        before = repr(module)
        module.__loader__ = Loader  # type: ignore[assignment]
        return x + 1, before, repr(module), f"{module}"

    assert_same(f, torch.ones(2), never_repeats="each call makes a module that is guarded by identity")


def test_copies_of_structured_results_have_all_fields() -> None:
    def f(x: torch.Tensor, moment: Any) -> Any:
        shallow, deep = copy.copy(moment), copy.deepcopy(moment)
        return x + 1, shallow.tm_zone, deep.tm_gmtoff, shallow == moment

    assert_same(f, torch.ones(2), time.struct_time([*range(1, 10), "zone", 3600]))


def test_long_numbers_that_a_program_computes_with() -> None:
    def f(x: torch.Tensor, number: int) -> Any:
        return x + 1, number * 7**6000 % 1000003, number + 10**5000 > 0

    assert_same(f, torch.ones(2), 3, then=[(torch.ones(2), value) for value in (4, 5, -6)])


def test_library_functions_that_print_or_look_at_settings() -> None:
    def f(x: torch.Tensor) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            calendar.TextCalendar().prweek([(1, 0), (2, 1)], 2)
            re.compile("a+", re.DEBUG)
        return x + 1, out.getvalue(), calendar.monthcalendar(2024, 2)

    for first in (calendar.MONDAY, calendar.SUNDAY):
        calendar.setfirstweekday(first)
        try:
            re.purge()
            expected = f(torch.ones(2))[1:]
            re.purge()
            assert dynajit.compile(f, backend="eager")(torch.ones(2))[1:] == expected
        finally:
            calendar.setfirstweekday(calendar.MONDAY)


def test_an_inner_generator_whose_close_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append((args.exc_type, type(args.object))))

    class Broken:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            return 1

        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError

    def outer(x: torch.Tensor) -> Iterator[Any]:
        dynajit.graph_break()
        yield from Broken()  # type: ignore[misc]

    def f(x: torch.Tensor) -> Any:
        made = outer(x)
        found = next(made)
        made.close()
        return x + found

    expected, seen = f(torch.ones(2)), told[:]
    told.clear()
    assert dynajit.compile(f, backend="eager")(torch.ones(2)).equal(expected)
    assert [kind for kind, _ in told] == [kind for kind, _ in seen] == [ZeroDivisionError]
