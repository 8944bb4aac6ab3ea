"""Functions of Python's library that call back, rewritten in plain Python to be traced.

In: what the real function takes. Out: what it returns (iterators are generators). To add one, write it here and
register it with `@builtin` or `@constructor` in `values/builtins`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

_MISSING: Any = object()


def each(iterator: Iterator[Any]) -> Iterator[Any]:
    for item in iterator:  # noqa: UP028 - `yield from` would need the iterator's send
        yield item


def iter_until(fn: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    while True:
        value = fn()
        if value == sentinel:
            return
        yield value


def map_(fn: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
    for items in zip(*iterables):
        yield fn(*items)


def filter_(fn: Callable[[Any], Any] | None, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if item if fn is None else fn(item):
            yield item


def all_(iterable: Iterable[Any]) -> bool:
    for item in iterable:  # noqa: SIM110
        if not item:
            return False
    return True


def any_(iterable: Iterable[Any]) -> bool:
    for item in iterable:  # noqa: SIM110
        if item:
            return True
    return False


def reduce_(fn: Callable[[Any, Any], Any], iterable: Iterable[Any], *initial: Any) -> Any:
    iterator = iter(iterable)
    if initial:
        total = initial[0]
    else:
        total = next(iterator, _MISSING)
        if total is _MISSING:
            raise TypeError("reduce() of empty iterable with no initial value")
    for item in iterator:
        total = fn(total, item)
    return total


def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    for iterable in iterables:
        for item in iterable:  # noqa: UP028
            yield item


def chain_from_iterable(iterables: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for iterable in iterables:
        for item in iterable:  # noqa: UP028
            yield item


def islice(iterable: Iterable[Any], start: int, stop: int | None, step: int) -> Iterator[Any]:
    wanted = start
    for index, item in enumerate(iterable):
        if stop is not None and index >= stop:
            return
        if index == wanted:
            yield item
            wanted += step
        if stop is not None and index + 1 >= stop:
            return


def starmap(fn: Callable[..., Any], iterable: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for items in iterable:
        yield fn(*items)


def takewhile(fn: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not fn(item):
            return
        yield item


def dropwhile(fn: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    dropping = True
    for item in iterable:
        if dropping and fn(item):
            continue
        dropping = False
        yield item


def accumulate(
    iterable: Iterable[Any], fn: Callable[[Any, Any], Any] | None = None, *, initial: Any = None
) -> Iterator[Any]:
    iterator = iter(iterable)
    total = initial
    if initial is None:
        total = next(iterator, _MISSING)
        if total is _MISSING:
            return
    yield total
    for item in iterator:
        total = total + item if fn is None else fn(total, item)
        yield total


def repeat(value: Any, times: int | None) -> Iterator[Any]:
    while times is None:
        yield value
    for _ in range(times):
        yield value


def count(start: Any, step: Any) -> Iterator[Any]:
    while True:
        yield start
        start = start + step


def cycle(iterable: Iterable[Any]) -> Iterator[Any]:
    saved = []
    for item in iterable:
        yield item
        saved.append(item)
    while saved:
        for item in saved:
            yield item


def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    for item, chosen in zip(data, selectors):
        if chosen:
            yield item


def pairwise(iterable: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    previous = _MISSING
    for item in iterable:
        if previous is not _MISSING:
            yield previous, item
        previous = item


def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[tuple[Any, ...]]:
    iterators = [iter(iterable) for iterable in iterables]
    while True:
        items = [next(iterator, _MISSING) for iterator in iterators]
        if all_(item is _MISSING for item in items):
            return
        yield tuple(fillvalue if item is _MISSING else item for item in items)


def groupby(iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> Iterator[tuple[Any, Any]]:
    group: list[Any] = []
    current = _MISSING
    for item in iterable:
        found = item if key is None else key(item)
        if current is not _MISSING and not (found == current):  # noqa: SIM201 - as groupby compares
            yield current, iter(group)
            group = []
        current = found
        group.append(item)
    if current is not _MISSING:
        yield current, iter(group)


def counter_update(counter: Any, iterable: Iterable[Any]) -> None:
    for item in iterable:
        counter[item] = counter.get(item, 0) + 1
