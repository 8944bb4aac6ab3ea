"""What is in arguments and results: tuples, lists, dictionaries and slices in each other; and what leads to what.

In:  such a value. Out: `leaves_in`, what is in it and none of these; `tensors_in`; `map_leaves`, with others in place.
In:  where a walk starts, and where each place leads. Out: `reached`, the places, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def leaves_in(tree: Any) -> Iterator[Any]:
    """What is in it, in order; of dictionaries the values."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    elif isinstance(tree, slice):
        tree = (tree.start, tree.stop, tree.step)
    if isinstance(tree, (tuple, list)):
        for item in tree:
            yield from leaves_in(item)
    else:
        yield tree


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in it, in order."""
    return [leaf for leaf in leaves_in(tree) if isinstance(leaf, torch.Tensor)]


def map_leaves(function: Callable[[Any], Any], tree: Any, kinds: type | tuple[type, ...]) -> Any:
    """The same with what `function` gives for the instances of `kinds` in it, in plain tuples and lists."""
    if isinstance(tree, kinds):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        made = [map_leaves(function, item, kinds) for item in tree]
        return tuple(made) if isinstance(tree, tuple) else made
    if isinstance(tree, dict):
        return {key: map_leaves(function, item, kinds) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(map_leaves(function, item, kinds) for item in (tree.start, tree.stop, tree.step)))
    return tree


def reached(
    starts: Iterable[T], following: Callable[[T], Iterable[T]], key: Callable[[T], object] | None = None
) -> Iterator[T]:
    """The starts, what follows them, and what follows that, the last found first. key: what tells one from another,
    `id` where they have no hash, or may be equal; they are alive for as long as the walk then."""
    waiting, seen = [*starts], set[object]()
    while waiting:
        one = waiting.pop()
        known_by = one if key is None else key(one)
        if known_by not in seen:
            seen.add(known_by)
            yield one
            waiting.extend(following(one))
