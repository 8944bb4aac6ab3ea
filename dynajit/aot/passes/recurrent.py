"""Recurrent networks: as one call where they are long, and for traces under autograd with their dropout.

Torch takes `lstm`, `gru` and `rnn_*` apart to a few operations for each step of each layer, which for a short one are
faster as kernels, and for a long one take long to compile: `whole_call` is for inference; graphs that train are cut at
long networks (`pieces.py`). Under autograd torch's rules leave dropout between layers out: `layer_by_layer` gives a
copy of the graph in which such networks are called layer by layer, with the dropout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from dynajit import torch_compat
from dynajit.aot.rewrite import Copy
from dynajit.process_state import changed

_NETWORKS = frozenset(getattr(torch, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
# Networks with more steps, counted over layers and directions, are not taken apart.
MAX_STEPS, MAX_STEPS_TRAINED = 64, 8


def is_long(node: torch.fx.Node, most: int) -> bool:
    """Whether the node calls a recurrent network of more than so many steps, for a batch of equal lengths."""
    if node.target not in _NETWORKS or node.kwargs or len(node.args) != 9 or _is_packed(node):
        return False
    given: Any = node.args[0]
    if "example_value" not in given.meta:
        return False
    shape = given.meta["example_value"].shape
    layers: Any = node.args[4]
    steps = shape[1 if node.args[8] and len(shape) > 2 else 0]
    return type(steps) is int and steps * layers * (2 if node.args[7] else 1) > most


def whole_call(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """The operator that is the node's call of a long network, and that can be made as it is in inference."""
    if not is_long(node, MAX_STEPS) or _drops(node) or torch_compat.any_autocast_enabled():
        return None
    given: Any = node.args[0]
    value = given.meta["example_value"]
    name = getattr(node.target, "__name__", "")
    if name == "lstm" and value.dtype is torch.float32 and torch._C._get_mkldnn_enabled():
        return None  # torch calls oneDNN's operator, one for each layer
    return getattr(torch.ops.aten, name).input  # type: ignore[no-any-return]


def layer_by_layer(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm`, or a copy in which dropout between layers is an operation of its own."""
    if not any(map(_drops, gm.graph.nodes)):
        return gm
    copy = Copy(gm)
    copy.take_all(gm.graph.nodes)
    for node in filter(_drops, gm.graph.nodes):
        made = copy.of[node]
        made.args = (getattr(node.target, "__name__", ""), _is_packed(node), *made.args)
        made.target = network
    return copy.finish()


def _is_packed(node: torch.fx.Node) -> bool:
    """Whether the call is for packed sequences: there the weights come after the sizes of the batches, too."""
    return not isinstance(node.args[2], (list, tuple))


def _drops(node: torch.fx.Node) -> bool:
    if node.target not in _NETWORKS or node.kwargs or len(node.args) != 9:
        return False
    _, layers, dropout, train = _options(_is_packed(node), node.args)
    return bool(train) and dropout != 0 and layers > 1


def _options(packed: bool, args: Sequence[Any]) -> Sequence[Any]:
    """Whether there are biases, the number of layers, the dropout, whether it trains."""
    return args[4:8] if packed else args[3:7]


def network(name: str, packed: bool, *args: Any) -> tuple[torch.Tensor, ...]:
    """`torch.<name>(*args)` by its layers, as torch's kernels go through them: time first."""
    layer = getattr(torch, name)
    has_biases, layers, dropout, train = _options(packed, args)
    if packed:
        given, sizes, states, weights, *_, bidirectional = args
        data, rest, batch_first = [given, sizes], [bidirectional], False
    else:
        given, states, weights, *_, bidirectional, batch_first = args
        data, rest = [given.transpose(0, 1) if batch_first else given], [bidirectional, False]
    directions = 2 if bidirectional else 1
    several = isinstance(states, (tuple, list))
    each = len(weights) // layers
    ends = []
    for index in range(layers):
        rows = slice(index * directions, (index + 1) * directions)
        start = [state[rows] for state in states] if several else states[rows]
        own = weights[index * each : (index + 1) * each]
        out, *last = layer(*data, start, own, has_biases, 1, 0.0, train, *rest)
        ends.append(last)
        data[0] = torch.dropout(out, dropout, True) if index < layers - 1 else out
    out = data[0].transpose(0, 1) if batch_first else data[0]
    given_states = states if several else [states]
    # torch 2.11's rule for an LSTM's layer gives states with one more dimension of length 1
    return out, *(
        torch.cat([end.reshape(state[:directions].shape) for end in of_layers])
        for state, of_layers in zip(given_states, zip(*ends, strict=True), strict=True)
    )


_NOT_REWRITTEN = changed((torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False))


def lstm_with_backward(gm: torch.fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """While an LSTM is traced, keep torch from rewriting it to oneDNN's: that it does for inference, which it takes any
    call for whose input needs no gradient, whatever its weights need."""
    lstms = any(
        node.target is torch.lstm or (node.target is network and node.args[0] == "lstm") for node in gm.graph.nodes
    )
    return _NOT_REWRITTEN if lstms else contextlib.nullcontext()
