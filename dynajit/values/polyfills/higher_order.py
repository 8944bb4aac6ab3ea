"""torch's higher-order operators in plain Python, so that the functions they take are traced.

In: what the real operator takes. Out: what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


class _Indexing(torch.overrides.TorchFunctionMode):
    """In functions of single scores, an index that is a tensor without dimensions chooses by its value, as one of more
    dimensions would: it is a number to nobody."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(part, (torch.Tensor, int)) for part in index):
                device = args[0].device
                places = [torch.tensor(part, device=device) if isinstance(part, int) else part for part in index]
                return torch.ops.aten.index.Tensor(args[0], places)
        return func(*args, **(kwargs or {}))


def _of_each(function: Callable[..., Any], first: tuple[int, ...]) -> Callable[..., Any]:
    """A function of one score's place, or of a score and its place, for all places."""
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=(*first, *dims))
    return function


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    block_mask: Any,
    scale: float,
    kernel_options: Any,
) -> tuple[torch.Tensor, ...]:
    """Attention of shapes (batch, heads, places, features) with all scores in memory, as torch computes it where there
    is no kernel for it: what the functions make of scores and places, logarithms of sums and maxima to base 2."""
    groups = query.size(1) // key.size(1)
    key, value = (torch.repeat_interleave(part, groups, dim=1) for part in (key, value))
    if query.size(0) != key.size(0) and key.size(0) != 1:
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={query.size(0)} and Bkv={key.size(0)}")
    key, value = (part.expand((query.size(0), *part.size()[1:])) for part in (key, value))
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(dtype) @ key.to(dtype).transpose(-2, -1)
    places = [torch.arange(0, size, device=scores.device) for size in scores.shape]
    nothing = torch.tensor(-float("inf"), dtype=dtype, device=scores.device)
    with _Indexing():
        chosen = _of_each(block_mask[-1], ())(*places)
        scores = torch.where(chosen, _of_each(score_mod, (0,))((scores * scale).to(dtype), *places), nothing)
    sums = scores.logsumexp(dim=-1)
    sums = torch.where(torch.all(scores == -float("inf"), dim=-1), -float("inf"), sums)
    largest = torch.max(scores, dim=-1)[0]
    result = torch._safe_softmax(scores, dim=-1).to(query.dtype) @ value.to(query.dtype)
    return _laid_out(result, query.stride()), sums / math.log(2), largest / math.log(2)


def _laid_out(result: torch.Tensor, like: Sequence[int]) -> torch.Tensor:
    """The result with its dimensions in the order of these strides, the last innermost."""
    last = len(like) - 1
    order = [last, *(dim for dim in sorted(range(len(like)), key=like.__getitem__) if dim != last)]
    strides, step = [0] * len(like), 1
    for dim in order:
        strides[dim] = step
        step *= result.size(dim)
    return result.new_empty_strided(result.shape, strides).copy_(result)
