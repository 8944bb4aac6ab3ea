"""Methods written in C that ask the program's objects: the comparisons that they make, and what they see of changes."""

import bisect
import collections
import heapq
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same

x = torch.ones(2)


class Item:
    """Compares by its number, and may change a container meanwhile."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, number: int, container: Any = None) -> None:
        self.number = number
        self.container = container

    def __eq__(self, other: object) -> bool:
        if self.container is not None:
            self.container.append(1)
        return self.number == getattr(other, "number", other)

    def __lt__(self, other: "Item") -> bool:
        if other.number < 0:
            raise KeyError(other.number)
        return self.number < other.number


def test_searches_compare_and_sorting_asks_what_is_less():
    def program(x):
        items = [Item(3), Item(1), Item(2)]
        items.sort()
        items.remove(3)
        return [item.number for item in items], items.index(Item(2)), items.count(2), x + 1

    assert_same(program, x, graphs=1, breaks=0)


def test_a_list_that_grows_while_it_is_searched():
    def program(x):
        items = [Item(1), Item(5)]
        items.append(Item(2, items))
        return items.index(1), items.count(9), len(items), x + 1

    assert_same(program, x, graphs=1, breaks=0)


def test_a_deque_that_changes_while_it_is_searched():
    def program(x):
        items = collections.deque([Item(1)])
        items.append(Item(2, items))
        items.append(Item(3))
        found = [items.index(Item(2))]
        for search in (items.index, items.count, items.__contains__):
            try:
                search(3)
            except RuntimeError as error:
                found.append(str(error))
        try:
            items.remove(3)
        except IndexError as error:
            found.append(str(error))
        return found, len(items), x + 1

    assert_same(program, x, graphs=1, breaks=0)


def test_a_list_is_empty_while_it_is_sorted_and_half_sorted_where_that_raises():
    def program(x):
        items, odd, seen = [3, 1, 2], [Item(3), Item(2), Item(-7), Item(1)], []
        try:
            items.sort(key=lambda number: items.append(number) or seen.append(len(items)) or number)
        except ValueError as error:
            seen.append(str(error))
        try:
            odd.sort()
        except KeyError as error:
            seen.append(error.args)
        return items, [item.number for item in odd], seen, x + 1

    assert_same(program, x, graphs=1, breaks=0)


def test_what_methods_refuse():
    def refused(method, *args):
        try:
            return method(*args)
        except (IndexError, ValueError) as error:
            return type(error), str(error)

    def program(x):
        items, full = [3, 1, Item(4)], collections.deque([1, 2], 2)
        return [
            *(refused(items.index, missing) for missing in (9, "a", None, (1, 2))),
            refused(items.index, 3, 1, 10**30),
            refused(items.remove, 7),
            refused(items.pop, 3),
            refused([].pop),
            refused((1, 2).index, 2, -1),
            refused((1, 2).index, 5),
            refused(full.insert, 1, 3),
            refused(full.remove, "b"),
            refused(full.index, 2, 0, -1),
            refused(collections.deque().popleft),
            x + 1,
        ]

    assert_same(program, x, graphs=1, breaks=0)


def test_more_than_a_run_is_sorted_by_the_real_algorithm():
    def program(x):
        numbers = [Item((7 * position) % 101) for position in range(101)]
        compared = []

        class Counted:
            def __init__(self, number):
                self.number = number

            def __lt__(self, other):
                compared.append((self.number, other.number))
                return self.number < other.number

        ordered = sorted(numbers, key=lambda item: Counted(item.number // 3), reverse=True)
        return [item.number for item in ordered], compared, x + 1

    assert_same(program, x, graphs=1, breaks=0)


def test_a_heap_is_changed_so_far_where_a_comparison_raises():
    def program(x):
        heap, texts = [], []
        for number in (5, 2, 7):
            heapq.heappush(heap, Item(number))
        for item in (Item(1), Item(-7)):
            try:
                heapq.heappush(heap, item)
                heapq.heappop(heap)
            except KeyError as error:
                texts.append(str(error))
        try:
            heapq.heappop([])
        except IndexError as error:
            texts.append(str(error))
        return [item.number for item in heap], texts, x + 1

    assert_same(program, x, graphs=1, breaks=0)


def test_searches_and_insertions_in_what_is_sorted():
    def program(x):
        items, words = [Item(1), Item(3), Item(3), Item(8)], ["a", "bbb"]
        places = [
            bisect.bisect_left(items, Item(3)),
            bisect.bisect(items, Item(3), hi=None),
            bisect.bisect(items, Item(3), 0, True),
            bisect.bisect_left(words, 2, key=len),
        ]
        bisect.insort(items, Item(4), 1)
        bisect.insort_left(words, "cc", key=len)
        try:
            bisect.bisect(items, Item(3), -1)
        except ValueError as error:
            places.append(str(error))
        return [item.number for item in items], words, places, x + 1

    assert_same(program, x, graphs=1, breaks=0)


class Shown:
    """Says what it is asked."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Shown({self.value!r})"

    def __format__(self, spec: str) -> str:
        return f"<{self.value}:{spec}>"

    def __getitem__(self, key: Any) -> Any:
        return key, self.value


def test_which_of_equal_members_a_set_takes():
    def program(x):
        small, one = {True}, {1, 2}
        return (
            [repr(found) for found in (one & small, small & one, one | small, one - {2.0}, one ^ {True, 3})],
            repr(one.intersection([True, 1.0])),
            {Shown}.isdisjoint([Shown]),
            x + 1,
        )

    assert_same(program, x, graphs=1, breaks=0)


def test_sets_change_in_place_and_frozen_ones_are_themselves():
    def program(x):
        frozen = frozenset([Shown, 4])
        members = {1, 2, "a"}
        members.update([3, 4], (5,))
        members.discard(1)
        members.discard(7)
        members.difference_update([2])
        members.symmetric_difference_update({9, 3})
        members.intersection_update([9, 4, 5, 5])
        try:
            members.remove(8)
        except KeyError as error:
            missing = error.args
        same = frozen.copy() is frozen, frozen.union() is frozen, members.copy() is members
        return (
            sorted(members),
            missing,
            same,
            members.issubset(range(10)),
            members >= {4},
            sorted(frozen & members),
            x + 1,
        )

    assert_same(program, x, graphs=1, breaks=0)


def test_the_largest_and_the_smallest_by_their_own_comparison():
    def program(x):
        items, texts = [Item(3), Item(1), Item(3)], []
        for arguments in ([], [1, None], ["a", 2]):
            try:
                max(arguments)
            except (TypeError, ValueError) as error:
                texts.append(str(error))
        least = min(items)
        return (
            least.number,
            max(items, key=lambda item: item.number) is items[0],
            max([], default=items) is items,
            texts,
            x + 1,
        )

    assert_same(program, x, graphs=1, breaks=0)


def test_texts_of_containers_that_contain_themselves():
    def program(x):
        shown = Shown(3)
        items: list[Any] = [1, shown, (x.shape, {shown: [shown]})]
        items.append(items)
        table: dict[Any, Any] = {shown: items}
        table["itself"] = table
        return str(items), repr(table), f"{[shown]!r:>12}", repr((shown,)), x + 1

    assert_same(program, x, graphs=1, breaks=0)


def test_formats_ask_for_attributes_items_and_texts():
    def program(x, width, name):
        shown = Shown(3)
        templates = (
            "{0.value} {0[k]} {0[1]} {0.__class__.__name__} {0:>{w}}|{1}",
            "{0!r:>9} {0!s} {0!a} {w:03d} {{}}",
            "{} {}{w:>{w}}",
        )
        return [template.format(shown, name, w=width) for template in templates], x + 1

    assert_same(program, x, 5, "name", graphs=1, breaks=0)


def test_what_formats_refuse():
    def program(x):
        shown, refused = Shown(1), []
        for template in ("{} {}", "{a}", "{0} {}", "{} {0}", "{", "}", "{!z}", "{0.nope}", "{:{:{}}}", "{0[}"):
            try:
                template.format(shown)
            except (IndexError, KeyError, ValueError, AttributeError) as error:
                refused.append((type(error), str(error)))
        return refused, x + 1

    assert_same(program, x, graphs=1, breaks=0)


def test_sums_of_floats_round_as_those_of_the_running_release():
    def program(x, number):
        tenths = [0.1] * 10
        return sum(tenths), sum(tenths, number), sum([1, 1e100, number, -1e100]), sum([*tenths, x, 0.1, 0.1]), x + 1

    assert_same(program, x, 0.3, graphs=1, breaks=0)


class Negative:
    def __len__(self):
        return -1

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("make", [dict, collections.OrderedDict, set, lambda: {1, 2}, Negative])
@pytest.mark.parametrize("function", [bisect.bisect_left, bisect.bisect_right, bisect.insort_left, bisect.insort_right])
def test_bisection_of_what_is_no_sequence(function, make):
    def program(x):
        try:
            return function(make(), 1), x + 1
        except Exception as error:
            return type(error), str(error), x + 1

    assert_same(program, torch.ones(2))
