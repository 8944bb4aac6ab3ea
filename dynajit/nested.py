"""What is in arguments and results: tuples, lists, dictionaries and slices in each other.

In:  such a value. Out: `leaves_in`, all that is in it and none of these; `map_leaves`, the same with others in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


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
