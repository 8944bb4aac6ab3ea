"""Functions behind `functools.lru_cache`, in plain Python, so that what they call is traced; and how generated code
gives the real object, made after that, what it would hold by then.

In: the function, the dictionary that stands for the cache, and the counts of hits and misses. An entry is the arguments
and the result, by the key that the C code computes.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Hashable
from typing import Any

Entry = tuple[tuple[Any, ...], dict[str, Any], Any]

# stands in a key between positional arguments and those by name, as in functools
_NAMES_FOLLOW = object()


def call_cached(
    function: Callable[..., Any],
    cache: dict[Hashable, Entry],
    counts: dict[str, int],
    maxsize: int | None,
    typed: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A call of the cached function; the entry used last is the last one of `cache`."""
    key = _key(typed, args, kwargs) if maxsize != 0 else None
    found = cache.get(key) if maxsize != 0 else None
    if found is not None:
        counts["hits"] += 1
        if maxsize is not None:
            del cache[key]
            cache[key] = found
        return found[2]
    counts["misses"] += 1
    result = function(*args, **kwargs)
    if maxsize == 0 or (maxsize is not None and key in cache):
        return result  # in the cache by a call inside of this one
    if maxsize is not None and len(cache) >= maxsize:
        del cache[next(iter(cache))]
    cache[key] = args, kwargs, result
    return result


def _key(typed: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    if not typed and not kwargs and len(args) == 1 and type(args[0]) in (int, str):
        return args[0]  # type: ignore[no-any-return]
    named = (_NAMES_FOLLOW, *[part for item in kwargs.items() for part in item]) if kwargs else ()
    types_of = (*map(type, args), *map(type, kwargs.values())) if typed else ()
    return args + named + types_of


def cache_info(
    info: Callable[..., Any], cache: dict[Hashable, Entry], counts: dict[str, int], maxsize: int | None
) -> Any:
    return info(counts["hits"], counts["misses"], maxsize, len(cache))


def cache_clear(cache: dict[Hashable, Entry], counts: dict[str, int]) -> None:
    cache.clear()
    counts["hits"] = counts["misses"] = 0


# ------------------------------------------------------------------------------------------------ for generated code


def _answer(*args: Any, _answers_left: list[Any], **kwargs: Any) -> Any:
    """What the function does while its cache is filled. It names no globals: it runs with the function's."""
    return _answers_left.pop()


def fill_cache(wrapper: Any, function: types.FunctionType, entries: list[Entry], hits: int, misses: int) -> None:
    """Have `functools.lru_cache`'s object, made just now over `function`, hold these entries and counts. Only calls
    change it, so it is called, with a function that gives the results without computing them."""
    code, defaults = function.__code__, function.__kwdefaults__
    answers: list[Any] = []
    function.__code__ = _answer.__code__.replace(co_freevars=code.co_freevars)
    function.__kwdefaults__ = {"_answers_left": answers}
    try:
        for _ in range(misses - len(entries)):
            with contextlib.suppress(IndexError):  # a call without a result leaves no entry
                wrapper(object())
        for args, kwargs, result in entries:
            answers.append(result)
            wrapper(*args, **kwargs)
        for _ in range(hits):
            wrapper(*args, **kwargs)
    finally:
        function.__code__, function.__kwdefaults__ = code, defaults
