"""torch's higher-order operators in plain Python, so that the functions they take are traced.

In: what the real operator takes. Out: what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def flattened(tree: Any) -> Any:
    """The leaves of a tree of containers, and its structure."""
    return pytree.tree_flatten(tree)


def unflattened(leaves: list[Any], structure: Any) -> Any:
    """The tree of that structure with these leaves."""
    return pytree.tree_unflatten(leaves, structure)


def _stack(steps: list[list[Any]], structure: Any) -> Any:
    """The tree whose leaves are those of all steps behind each other, along a new first dimension."""
    stacked = [
        None if steps[0][place] is None else torch.stack([leaves[place] for leaves in steps])
        for place in range(len(steps[0]))
    ]
    return pytree.tree_unflatten(stacked, structure)


def scan(
    combine_fn: Callable[..., tuple[Any, Any]], init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any]
) -> tuple[Any, Any]:
    """Step by step along the first dimension of all of `xs`; the results of the steps are stacked."""
    leaves, carry, structure = list(init), None, None
    steps = []
    for index in range(xs[0].size(0)):
        carry, result = combine_fn(*leaves, *[x.select(0, index) for x in xs], *additional_inputs)
        leaves = pytree.tree_leaves(carry)
        parts, structure = pytree.tree_flatten(result)
        steps.append([None if part is None else part.clone() for part in parts])
    return carry, _stack(steps, structure)


def associative_scan(combine_fn: Callable[..., Any], xs: Sequence[Any], additional_inputs: Sequence[Any]) -> Any:
    """One step after another, along the first dimension of all of `xs`."""
    structure = None
    steps = [[x.select(0, 0) for x in xs]]
    for index in range(1, xs[0].size(0)):
        found = combine_fn(*steps[-1], *[x.select(0, index) for x in xs], *additional_inputs)
        parts, structure = pytree.tree_flatten(found)
        steps.append(parts)
    if structure is None:
        _, structure = pytree.tree_flatten(combine_fn(*steps[0], *steps[0], *additional_inputs))
    return _stack(steps, structure)


def wrap_with_set_grad_enabled(enable_grad: bool, wrapped_func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.set_grad_enabled(enable_grad):
        return wrapped_func(*args, **kwargs)


def wrap_with_autocast(
    device_type: str,
    dtype: torch.dtype | None,
    enabled: bool,
    cache_enabled: bool | None,
    wrapped_func: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    with torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled):
        return wrapped_func(*args, **kwargs)


def map_over(f: Callable[..., Any], xs: Sequence[Any], additional_inputs: Sequence[Any]) -> Any:
    """`f` on each slice along the first dimension of all of `xs`, the results stacked."""
    steps, structure = [], None
    for index in range(xs[0].size(0)):
        parts, structure = pytree.tree_flatten(f(*[x.select(0, index) for x in xs], *additional_inputs))
        steps.append(parts)
    return _stack(steps, structure)


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
