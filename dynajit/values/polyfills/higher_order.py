"""torch's higher-order operators in plain Python, so that the functions they take are traced.

In: what the real operator takes. Out: what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """One step after another: the function may look at all other dimensions of a slice, so slices are not batched."""
    order = range(_length(xs, dim))
    if reverse:
        order = order[::-1]
    states: list[Any] = []
    for index in order:
        item = _select(xs, dim, index)
        states.append(combine_fn(states[-1], item) if states else item)
    if not states:
        return xs
    return _stack(states[::-1] if reverse else states, dim)


def _length(tree: Any, dim: int) -> int:
    while not isinstance(tree, torch.Tensor):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return int(tree.shape[dim])


def _select(tree: Any, dim: int, index: int) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.select(dim, index)
    if isinstance(tree, dict):
        return {key: _select(part, dim, index) for key, part in tree.items()}
    return type(tree)([_select(part, dim, index) for part in tree])


def _stack(trees: list[Any], dim: int) -> Any:
    first = trees[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(trees, dim)
    if isinstance(first, dict):
        return {key: _stack([tree[key] for tree in trees], dim) for key in first}
    return type(first)([_stack([tree[place] for tree in trees], dim) for place in range(len(first))])


def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> tuple[Any, Any]:
    """Step by step; the results of the steps are stacked at dimension 0."""
    order = range(_length(xs, dim))
    carry, results = init, []
    for index in order[::-1] if reverse else order:
        carry, result = combine_fn(carry, _select(xs, dim, index))
        results.append(_copied(result))
    return carry, _stack(results[::-1] if reverse else results, 0)


def _copied(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: _copied(part) for key, part in tree.items()}
    return type(tree)([_copied(part) for part in tree])


def map_over(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """`f` on each slice along the first dimension, the results stacked."""
    return _stack([f(_select(xs, 0, index), *args) for index in range(_length(xs, 0))], 0)
