"""Which tensors the program may not write before the backward pass, because eager's operations keep them for it.

In:  autograd's graph of the fake tensors that a graph was captured with. Out: `Watched` inputs and results, whose
versions a `_C.TrainingCall` compares when backward runs. What the compiled backward keeps is chosen for other reasons:
of a ReLU's result it keeps a mask, of a product's factor nothing if it can be computed again. Only the count of writes
is kept here, no memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dynajit.aot.contexts import gives_data
from dynajit.aot.reach import History, saved_by, saves
from dynajit.torch_compat import memory_of


class Watched(NamedTuple):
    """An input or a result that eager's operations keep.

    place: its position among the inputs or results. behind: for each result that has a gradient, whether its backward
    reads the tensor.
    """

    is_result: bool
    place: int
    behind: list[bool]


def watched(gm: torch.fx.GraphModule, history: History, written: frozenset[int]) -> list[Watched]:
    """What eager keeps of a graph's inputs and results. `written`: positions of the inputs that the graph writes.

    Raises:
        RuntimeError: the graph itself writes what eager keeps, so eager's backward fails.
    """
    places: dict[int | None, tuple[bool, int]] = {}
    for place, value in _tensors(gm.graph.output_node().args[0]):
        places[memory_of(value)] = True, place
    for place, value in _tensors(gm.graph.find_nodes(op="placeholder")):
        # two inputs of the same memory: either's count of writes is the other's
        places[memory_of(value)] = False, place
    hidden = {memory_of(node.meta.get("example_value")) for node in gm.graph.nodes if gives_data(node)}
    for memory in {None, *hidden}:  # writes through `.data` are counted apart
        places.pop(memory, None)
    found: dict[tuple[bool, int], Watched] = {}
    for node, mask in history.inside:
        for value in saved_by(node):
            key = places.get(memory_of(value))
            if key is None or key in ((False, place) for place in written):
                continue
            known = found.setdefault(key, Watched(*key, [False] * len(history.results)))
            for number in range(len(history.results)):
                known.behind[number] |= bool(mask >> number & 1)
    return list(found.values())


def keeps_anything(history: History) -> bool:
    """Whether eager's backward fails when it runs for the second time."""
    return any(saves(node) for node, _ in history.inside)


def _tensors(nodes: object) -> list[tuple[int, torch.Tensor]]:
    assert isinstance(nodes, (list, tuple))
    values = [node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None for node in nodes]
    return [(place, value) for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
