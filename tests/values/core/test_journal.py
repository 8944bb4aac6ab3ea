"""The journal takes back every change, newest first."""

from dynajit.values.core.journal import Journal


class Thing:
    value = 1


def test_rollback_restores_everything() -> None:
    journal, mapping, items, thing = Journal(), {"a": 1, "b": 2}, [1, 2], Thing()
    start = journal.mark()
    journal.set_item(mapping, "a", 5)
    journal.set_item(mapping, "c", 6)
    journal.replace_all(items, [9])
    journal.replace_all(mapping, {"z": 1})
    journal.set_attr(thing, "value", 7)
    journal.touch(thing)
    assert (mapping, items, thing.value, list(journal.dirty.values())) == ({"z": 1}, [9], 7, [thing])
    journal.rollback(start)
    assert (list(mapping.items()), items, thing.value, journal.dirty) == ([("a", 1), ("b", 2)], [1, 2], 1, {})
    assert journal.mark() == start


def test_rollback_to_the_middle() -> None:
    journal, mapping, first, second = Journal(), {}, Thing(), Thing()
    journal.set_item(mapping, 1, "one")
    journal.touch(first)
    middle = journal.mark()
    journal.set_item(mapping, 1, "two")
    journal.touch(second)
    journal.touch(first)
    journal.rollback(middle)
    assert mapping == {1: "one"} and list(journal.dirty.values()) == [first]
    journal.rollback(0)
    assert mapping == {} and journal.dirty == {}


def test_touched_values_keep_the_order_of_their_first_change() -> None:
    journal, things = Journal(), [Thing(), Thing(), Thing()]
    for index in (2, 0, 2, 1, 0):
        journal.touch(things[index])
    assert list(journal.dirty.values()) == [things[2], things[0], things[1]]
