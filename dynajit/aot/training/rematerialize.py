"""Saved values that backward computes once more of others that are saved anyway, in a loop that reads those already.

In:  `SavedTensors`, both graphs after the partition. Out: `rematerialize`, a rule for `shrink_saved_tensors`, which
changes the graphs and says whether it did. One more value that can be computed again: a maker in `_MAKERS`.

The partitioner takes a batch norm and a log-softmax for operations that are too dear to run again. What they compute of
their statistics, which are small, is one multiplication and addition for each element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from dynajit.nested import reached
from dynajit.op_facts import compute_dtype, facts

if TYPE_CHECKING:
    from dynajit.aot.training.saved_tensors import SavedTensors

aten = torch.ops.aten
Maker = Callable[["SavedTensors", Node], Node | None]

# What has the same elements as its first argument, rounded or laid out in another way.
_SAME_ELEMENTS = (
    *(aten.clone.default, aten.detach.default, aten._to_copy.default, aten.view.default, aten._unsafe_view.default),
    *(aten.slice.Tensor, aten.t.default, aten.transpose.int, aten.permute.default, aten.unsqueeze.default),
)
_TRIANGLES = (aten.tril.default, aten.triu.default)
_FACTORS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
# Where these look at a value, one that is off by a rounding makes a gradient of another size.
_JUMPS = {
    *(aten.lt, aten.le, aten.gt, aten.ge, aten.eq, aten.ne, aten.sign, aten.sgn, aten.floor, aten.ceil, aten.round),
    *(aten.trunc, aten.frac, aten.fmod, aten.remainder, aten.isnan, aten.isinf, aten.maximum, aten.minimum),
    *(aten.clamp, aten.clamp_min, aten.clamp_max, aten.relu, aten.hardtanh),
}


# What reads of a log-softmax no more than its exponential, one element of a row, or its shape.
_OF_LOG_SOFTMAX = (
    *(aten._log_softmax_backward_data.default, aten.nll_loss_backward.default, aten.nll_loss2d_backward.default),
)


def rematerialize(saved: SavedTensors, node: Node) -> bool:
    """What a batch norm makes of a tensor that is saved, a log-softmax of one that lives on, a factor of either."""
    parameter = saved.taken[node]
    source, steps = _before_copies(node)
    in_order = aten.clone.default not in [step.target for step in steps]
    makers = _MAKERS if _is_smooth(parameter) else (_scaled,) if in_order else ()
    for maker in makers:
        with saved.before(min(parameter.users)):
            made = maker(saved, source)
            if made is not None:
                parameter.replace_all_uses_with(_replayed(saved, made, steps))
                saved.drop(node)
                return True
    return False


def _is_smooth(parameter: Node) -> bool:
    """Whether all that becomes of it is computed element by element, and a value that is off by a rounding gives a
    gradient that is off by as little."""
    if not all(is_pointwise(use) or use.target in _OF_LOG_SOFTMAX for use in parameter.users):
        return False  # there it is memory
    made = reached(filter(is_pointwise, parameter.users), lambda node: filter(is_pointwise, node.users))
    return all(getattr(node.target, "_overloadpacket", None) not in _JUMPS for node in made)


def _batch_norm(saved: SavedTensors, node: Node) -> Node | None:
    """The result of a batch norm in training whose input is kept for its backward."""
    norm = node.args[0] if node.target is operator.getitem else None
    if not isinstance(norm, Node) or norm.target is not aten._native_batch_norm_legit_functional.default:
        return None
    x, weight, bias, _, _, training = norm.args[:6]
    parts = {part.args[1]: part for part in norm.users if part.target is operator.getitem}
    if node.args[1] != 0 or not training or 1 not in parts or 2 not in parts:
        return None
    value, rows = node.meta["val"], parts[1].meta["val"]
    assert isinstance(x, Node)
    read = _lives(saved, x)
    if read is None or not value.dtype == rows.dtype == x.meta["val"].dtype or value.stride() != x.meta["val"].stride():
        return None
    shape = [1, -1] + [1] * (value.dim() - 2)

    def given(part: Any) -> Node | None:
        return saved.keep(part) if isinstance(part, Node) else None

    mean, scale, weight, bias = (given(part) for part in (parts[1], parts[2], weight, bias))
    compute = saved.in_backward
    scale = scale if weight is None else compute(aten.mul.Tensor, scale, weight)
    shift = compute(aten.mul.Tensor, mean, scale)
    shift = compute(aten.neg.default, shift) if bias is None else compute(aten.sub.Tensor, bias, shift)
    scale, shift = (compute(aten.view.default, each, shape) for each in (scale, shift))
    return compute(aten.add.Tensor, compute(aten.mul.Tensor, read(), scale), shift)


def _log_softmax(saved: SavedTensors, node: Node) -> Node | None:
    """Of each row the greatest element, and the logarithm of the sum, are kept in place of what they are taken from."""
    if node.target is not aten._log_softmax.default:
        return None
    x, dim = node.args[:2]
    assert isinstance(x, Node)
    value, dtype = x.meta["val"], node.meta["val"].dtype
    read = _lives(saved, x) or _saved_for_several(saved, x)
    if read is None or value.dim() == 0 or value.numel() == 0:
        return None
    wide = compute_dtype(dtype)

    def cast(compute: Callable[..., Node], source: Node, to: torch.dtype) -> Node:
        return source if source.meta["val"].dtype is to else compute(aten._to_copy.default, source, dtype=to)

    forward, backward = saved.in_forward, saved.in_backward
    wide_x = cast(forward, x, wide)
    greatest = forward(aten.amax.default, wide_x, [dim], True)
    shifted = forward(aten.sub.Tensor, wide_x, greatest)
    total = forward(aten.sum.dim_IntList, forward(aten.exp.default, shifted), [dim], True)
    rest = forward(aten.log.default, total)
    result = cast(forward, forward(aten.sub.Tensor, shifted, rest), dtype)
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user.op != "output")
    greatest, rest = (saved.keep(part) for part in (greatest, rest))
    shifted = backward(aten.sub.Tensor, cast(backward, read(), wide), greatest)
    return cast(backward, backward(aten.sub.Tensor, shifted, rest), dtype)


def _scaled(saved: SavedTensors, node: Node) -> Node | None:
    """A tensor times a number: of a large one that a library's call reads, too, since it has the same bits again."""
    if node.target not in _FACTORS or len(node.all_input_nodes) != 1 or len(saved.holding(node)) > 1:
        return None
    x = node.all_input_nodes[0]
    read = _lives(saved, x) if node.args[0] is x and x.meta["val"].dtype is node.meta["val"].dtype else None
    if read is None:
        return None
    given = read()  # once or, of a square, twice
    return saved.in_backward(node.target, *(given if arg is x else arg for arg in node.args), **node.kwargs)


def _triangle(saved: SavedTensors, node: Node) -> Node | None:
    """A triangle of what is computed element by element of what lives, as of the decays between steps of a sequence.
    The partitioner knows no triangles."""
    if node.target not in _TRIANGLES:
        return None
    first, *rest = node.args
    if not isinstance(first, Node) or not _can_be_made(saved, first):
        return None
    return saved.in_backward(node.target, _made_again(saved, first, {}), *rest)


def _can_be_made(saved: SavedTensors, node: Node, left: int = 6) -> bool:
    """Whether a few operations give it, element by element, of what lives."""
    if _lives(saved, node) is not None:
        return True
    own = left > 0 and is_pointwise(node) and not facts(node.target).draws
    return own and all(_can_be_made(saved, x, left - 1) for x in node.all_input_nodes)


def _made_again(saved: SavedTensors, node: Node, made: dict[Node, Node]) -> Node:
    if node not in made:
        read = _lives(saved, node)
        if read is None:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda x: _made_again(saved, x, made))
            made[node] = saved.in_backward(node.target, *args, **kwargs)
        else:
            made[node] = read()
    return made[node]


_MAKERS: tuple[Callable[[SavedTensors, Node], Node | None], ...] = (_batch_norm, _log_softmax, _scaled, _triangle)


def _lives(saved: SavedTensors, node: Node) -> Callable[[], Node] | None:
    """How backward has the value of a node that needs no memory of its own: it is saved, or in a result's memory, or a
    view or a copy of such a one."""
    source, steps = _before_copies(node, saved.lives)
    return (lambda: _replayed(saved, saved.keep(source), steps)) if saved.lives(source) else None


def _saved_for_several(saved: SavedTensors, x: Node) -> Callable[[], Node] | None:
    """As `_lives`, of what several saved log-softmaxes are of, along rows and columns: it takes the memory of one."""
    source, steps = _before_copies(x)
    kept = (_before_copies(each)[0] for each in saved.taken)
    sources = [each.all_input_nodes[0] for each in kept if each.target is aten._log_softmax.default]
    times = sum(_before_copies(each)[0] is source for each in sources)
    return (lambda: _replayed(saved, saved.keep(source), steps)) if times > 1 and saved.may_keep(source) else None


def _before_copies(node: Node, found: Callable[[Node], bool] = lambda node: False) -> tuple[Node, list[Node]]:
    """What a node has its elements of, and how: the first that is `found`, or that is computed."""
    steps: list[Node] = []
    while not found(node) and node.target in _SAME_ELEMENTS and len(node.all_input_nodes) == 1:
        steps.append(node)
        node = node.all_input_nodes[0]
    return node, steps[::-1]


def _replayed(saved: SavedTensors, node: Node, steps: list[Node]) -> Node:
    for step in steps:
        if step.target is not aten.clone.default:
            node = saved.in_backward(step.target, node, *step.args[1:], **step.kwargs)
    return node


def is_pointwise(node: Node) -> bool:
    """Does it compute each element of its result of one element of each argument?"""
    return facts(node.target).pointwise
