"""Which tensors the program may not write before the backward pass, because eager's operations keep them for it.

In:  autograd's graph of the fake tensors that a graph was captured with. Out: a `VersionCheck`
for each input and result whose versions a `_C.TrainingCall`, or `checking_versions` around a call in torch's own
wrapper, compares when backward runs. What the compiled backward keeps is chosen for other reasons: of a ReLU's result
it keeps a mask, of a product's factor nothing if it can be computed again. Only the count of writes is kept by the
former, no memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from dynajit.aot.training.reachability import AutogradGraph, saved_by
from dynajit.graph.meta import data_views, memory, value_of
from dynajit.torch_compat import memory_of


class KeptInput(NamedTuple):
    """How eager's operations keep an input's memory.

    itself: as the input. aliases: as views or aliases of it, which have what it is now whatever `.data =` makes of it.
    apart: the writes of some of these are counted apart, as of `.data`.
    """

    itself: bool
    aliases: bool
    apart: bool

    def kind(self, is_input: bool) -> int:
        """How a `_C.TrainingCall` is to keep the input, or a view of it, which is an alias as it is."""
        if self.itself and (is_input or not self.aliases):
            return 0
        return 2 if self.apart else int(is_input or self.itself)


class VersionCheck(NamedTuple):
    """An input or a result that eager's operations keep.

    place: its position among the inputs or results. read_by: for each result that has a gradient, whether its backward
    reads the tensor. origin: the name of the autograd node that a result is of, and which of the node's outputs it is;
    of an input only if the graph writes it.
    """

    is_result: bool
    place: int
    read_by: list[bool]
    origin: tuple[str, int]


def version_checks(gm: torch.fx.GraphModule, history: AutogradGraph, written: frozenset[int]) -> list[VersionCheck]:
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
    saved = [(value, mask) for node, mask in history.inside for value in saved_by(node)]
    places.pop(None, None)
    apart = _counted_apart(gm, [value for value, _ in saved])
    found: dict[tuple[bool, int], VersionCheck] = {}
    for value, mask in saved:
        key = None if id(value) in apart else places.get(memory_of(value))
        if key is None or key in ((False, place) for place in written):
            continue
        own = key[0] or key[1] in history.written
        known = found.setdefault(
            key, VersionCheck(*key, [False] * len(history.results), _origin(value if own else None))
        )
        for number in range(len(history.results)):
            known.read_by[number] |= bool(mask >> number & 1)
    return list(found.values())


def kept_inputs(gm: torch.fx.GraphModule, history: AutogradGraph | None) -> list[KeptInput]:
    """How eager keeps each input; empty: that is not known."""
    if history is None:
        return []
    given = [value_of(node) for node in gm.graph.find_nodes(op="placeholder")]
    saved = [value for node, _ in history.inside for value in saved_by(node)]
    apart_ids = _counted_apart(gm, saved)
    apart = {memory_of(one) for one in saved if id(one) in apart_ids}
    themselves = {memory_of(value) for value in given if any(value is one for one in saved)}
    aliases = {memory_of(one) for one in saved if not any(value is one for value in given)}
    return [KeptInput(own in themselves, own in aliases, own in apart) for own in map(memory_of, given)]


def _counted_apart(gm: torch.fx.GraphModule, saved: Sequence[torch.Tensor]) -> set[int]:
    """By identity, what is kept of a `.data`, whose writes are counted apart from those of the tensor itself; of views
    that an operation takes inside, if nothing else of the memory is kept."""
    hidden = data_views(gm.graph)
    own = {memory(node) for node in hidden}
    known = {id(value_of(node)): node in hidden for node in gm.graph.nodes if memory(node) in own}
    plain = {memory_of(one) for one in saved if known.get(id(one)) is False}

    def is_apart(one: torch.Tensor) -> bool:
        of_base = known.get(id(one._base)) if one._is_view() else None
        return known.get(id(one), memory_of(one) not in plain if of_base is None else of_base)

    return {id(one) for one in saved if memory_of(one) in own and is_apart(one)}


def _origin(value: torch.Tensor | None) -> tuple[str, int]:
    return ("", 0) if value is None or value.grad_fn is None else (value.grad_fn.name(), value.output_nr)


def checking_versions(
    compiled: Callable[..., Any], history: AutogradGraph, kept: Sequence[VersionCheck]
) -> Callable[..., Any]:
    """`compiled`, a graph in torch's own wrapper, whose backward fails where one of `kept` has been written since the
    call. `kept` may have inputs among it that the graph writes: autograd hears of that, so they are results too."""
    places = [place for place, _ in history.results]
    written = iter(history.written)
    ends = [(True, place) if place is not None else (False, next(written)) for place in places]

    def call(*inputs: Any) -> Any:
        results = compiled(*inputs)

        def of(is_result: bool, place: int) -> torch.Tensor:
            tensor: torch.Tensor = results[place] if is_result else inputs[place]
            return tensor

        for number, end in enumerate(ends):
            result = of(*end)
            seen = [_Seen(of(one.is_result, one.place), one.origin) for one in kept if one.read_by[number]]
            if result.grad_fn is not None and seen:
                result.grad_fn.register_prehook(functools.partial(_refuse_written, seen, result.output_nr))
        return results

    return call


class _Seen:
    """How often a tensor had been written. Eager's operations keep the tensor, so its memory may be kept here."""

    def __init__(self, tensor: torch.Tensor, origin: tuple[str, int]) -> None:
        node = tensor.grad_fn
        self.tensor = tensor.detach()
        self.version = tensor._version
        self.name, self.output = origin if origin[0] or node is None else (node.name(), tensor.output_nr)

    def refuse(self) -> None:
        """Raise as torch does for a tensor that an operation has saved."""
        origin = f", which is output {self.output} of {self.name}," if self.name else ""
        hint = (
            "the backtrace further above shows the operation that failed to compute its gradient. The variable in "
            "question was changed in there or anywhere later. Good luck!"
            if torch.is_anomaly_enabled()
            else "enable anomaly detection to find the operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True)."
        )
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{self.tensor.type()} {list(self.tensor.shape)}]{origin} is at version {self.tensor._version}; expected "
            f"version {self.version} instead. Hint: {hint}"
        )


def _refuse_written(kept: Sequence[_Seen], output: int, gradients: Sequence[torch.Tensor | None]) -> None:
    if gradients[output] is not None:
        for one in kept:
            if one.tensor._version != one.version:
                one.refuse()


def _tensors(nodes: object) -> list[tuple[int, torch.Tensor]]:
    assert isinstance(nodes, (list, tuple))
    values = [value_of(node) for node in nodes]
    return [(place, value) for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
