"""Dates, times and their differences: immutable objects of classes written in C, computed with while tracing."""

import datetime

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

X = torch.arange(3.0)
UTC = datetime.UTC


def test_made_and_computed_with():
    def program(x):
        start = datetime.datetime(2020, 2, 28, 12, tzinfo=datetime.UTC)
        step = datetime.timedelta(days=1, hours=3) * 2
        end = start + step
        parts = (end.day, (end - start).total_seconds(), end > start, end.date().isoformat(), end.replace(hour=1))
        return x * end.day + step / datetime.timedelta(hours=1), parts, str(end), {end.date(): 1}, -step

    assert_same(program, X, graphs=1, breaks=0)


def test_each_value_from_outside_is_told_apart():
    @dynajit.compile(backend="eager")
    def program(x, moment):
        return x * moment.hour, moment.fold, str(moment)

    moments = [
        datetime.datetime(2020, 1, 1, 5),
        datetime.datetime(2020, 1, 1, 5, fold=1),  # equal to the one before
        datetime.datetime(2020, 1, 1, 5, tzinfo=UTC),
        datetime.datetime(2020, 1, 1, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),  # equal too
    ]
    for moment in [*moments, *moments]:
        found = program(X, moment)
        assert torch.equal(found[0], X * moment.hour) and found[1:] == (moment.fold, str(moment))


@pytest.mark.parametrize("hold", [lambda k: {k: 1}, lambda k: {k}, lambda k: frozenset([k]), lambda k: [k]])
def test_equal_ones_in_containers_are_told_apart(hold):
    run = dynajit.compile(lambda x, held: (x + 1, [moment.fold for moment in held]), backend="eager")
    for fold in (0, 1, 0, 1):
        assert run(X, hold(datetime.datetime(2020, 1, 1, fold=fold)))[1] == [fold]


def test_attributes_of_classes_and_closures():
    class Settings:
        moment = datetime.datetime(2020, 1, 1)

    def program(x, offset=datetime.timedelta(1)):
        return x * Settings.moment.hour, (Settings.moment + offset + offsets[0]).day

    offsets = [datetime.timedelta(2)]
    run = dynajit.compile(program, backend="eager")
    for hour, more in ((0, 0), (3, 0), (3, 2), (0, 0)):
        Settings.moment = datetime.datetime(2020, 1, 1, hour)
        offsets[0] = datetime.timedelta(2 + more)
        found, expected = run(X), program(X)
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]


def test_what_is_only_passed_along_may_be_another_one():
    def program(x, moment):
        return x + 1, moment

    run = dynajit.compile(program, backend="eager")
    for day in range(1, 20):
        moment = datetime.datetime(2020, 1, day)
        assert run(X, moment)[1] is moment
    assert len(dynajit._C.variants(program.__code__)) == 1


def test_subclasses_and_zones_of_the_programs_own():
    class Day(datetime.date):
        def weekday(self):
            return super().weekday() + 100

    class Zone(datetime.tzinfo):
        def utcoffset(self, moment):
            return datetime.timedelta(hours=self.hours)

    zone = Zone()
    zone.hours = 2
    moment = datetime.datetime(2020, 1, 1, tzinfo=zone)
    assert_same(lambda x, day: x * day.weekday(), X, Day(2020, 1, 1))
    run = dynajit.compile(lambda x, moment: x * moment.utcoffset().seconds, backend="eager")
    assert torch.equal(run(X, moment), X * 7200)
    zone.hours = 3
    assert torch.equal(run(X, moment), X * 10800)


def test_the_clock_is_asked_at_each_call():
    start = datetime.datetime(2020, 1, 1)
    run = dynajit.compile(lambda x: (x + 1, start.now(), datetime.datetime.now()), backend="eager")
    first, second = run(X), run(X)
    assert first[1] < second[1] and first[2] < second[2]


@pytest.mark.parametrize(
    "make", [lambda: datetime.date(2020, 13, 1), lambda: datetime.date.max + datetime.timedelta(1)]
)
def test_errors(make):
    def program(x):
        try:
            make()
        except (ValueError, OverflowError) as error:
            return x + 1, type(error), str(error)

    assert_same(program, X, graphs=1, breaks=0)
    assert_same(lambda x: (x + 1, make()), X)


@pytest.mark.parametrize("ratio", [1, (), (1, 2, 3)])
def test_a_float_that_answers_for_itself(ratio):
    class Odd(float):
        def as_integer_ratio(self):
            return ratio

    def program(x):
        try:
            return x, datetime.timedelta(days=1) / Odd(2.0)
        except (TypeError, ValueError) as error:
            return x, type(error), str(error)

    assert_same(program, X)


def test_texts_of_times_that_vary():
    def shown(x, t):
        return x * 2, str(t), repr(t), f"{t}", f"{t!r:>40}"

    def formatted(x, t):
        return x * 2, t.strftime("%Y-%m-%d"), f"{t:%d.%m.}", t.weekday() < 5

    start, hour = datetime.datetime(2024, 1, 1), datetime.timedelta(hours=31)
    times = [start + hour * n for n in range(1, 9)]
    assert_same(shown, X, start, then=[(X, each) for each in times], repeat=1, breaks=0, recompiles=0)
    assert_same(shown, X, hour, then=[(X, hour * n) for n in range(2, 9)], repeat=1, breaks=0, recompiles=0)
    assert_same(formatted, X, start, then=[(X, each) for each in times], repeat=1, breaks=0, recompiles=1)


TEXTS = {
    "str": str,
    "format": format,
    "repr": repr,
    "f-string": lambda when: f"{when} {when!r} {when!s:>30}",
    "template": "at {0}, {0:%d}".format,
    "strftime": lambda when: when.strftime("%d %B %Y %H:%M:%S"),
    "in an f-string": lambda when: f"{when:%d %B %Y}",
    "locale's": lambda when: when.strftime("%c") + f"{when:%c}",
    "joined": lambda when: "-".join([str(when), when.strftime("%d")]),
    "ctime": lambda when: when.ctime(),
}
WHENS = [
    lambda at: datetime.date(2020, 1 + at, 2),
    lambda at: datetime.datetime(2020, 1, 1, at, 3),
    lambda at: datetime.datetime(2020, 1, 1, at, 3, tzinfo=UTC),
    lambda at: datetime.time(at, 3),
    lambda at: datetime.timedelta(at, 3),
]


@pytest.mark.parametrize("when", WHENS, ids=["date", "datetime", "of a zone", "time", "timedelta"])
@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_made_at_run_time(name, when):
    """Whatever they are of: nothing is compiled again, and what raises raises."""
    program = lambda x, held: (x + 1, TEXTS[name](held))  # noqa: E731
    texts = name == "ctime" and not hasattr(when(0), name)
    texts |= type(when(0)) is datetime.timedelta and name in (
        "strftime",
        "in an f-string",
        "locale's",
        "joined",
        "template",
    )
    if texts:
        run = dynajit.compile(program, backend="eager")
        for at in range(2):
            with pytest.raises((AttributeError, TypeError)) as wanted:
                program(X, when(at))
            with pytest.raises(type(wanted.value)) as found:
                run(X, when(at))
            assert str(found.value) == str(wanted.value)
        return
    assert_same(program, X, when(0), then=[(X, when(at)) for at in range(1, 5)], graphs=1, breaks=0, recompiles=0)


def test_a_text_that_the_trace_needs_tells_times_apart():
    run = dynajit.compile(lambda x, held: x * 2 if held.strftime("%d") == "02" else x, backend="eager")
    for day in (1, 2, 3, 2):
        assert torch.equal(run(X, datetime.date(2020, 1, day)), X * 2 if day == 2 else X)
