"""From an fx graph to a tape: the same calls in the same order, run without a frame for the graph's Python code.

In: a graph module whose code is up to date. Out: `_C.GraphTape`, or None where a node is not one that a tape can do:
the module's own attributes, arguments that are dictionaries, constants whose printed form makes another object.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynajit import _C
from dynajit.op_facts import CONSTANT_TYPES

_CONSTANTS = CONSTANT_TYPES | {bytes, type(...)}
# its blocks are found in the variables of the graph's frame when an operation raises in one
_NEEDS_FRAME = frozenset({torch.autograd.grad_mode._enter_inference_mode})

Step = tuple[str, Any, tuple[int, ...], tuple[str, ...], int]


class _NoTapeError(Exception):
    """A node that a tape can't do."""


class _TapeRecorder:
    def __init__(self, module: fx.GraphModule) -> None:
        self.nodes = list(module.graph.nodes)
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.slots = {node: number for number, node in enumerate(self.inputs)}
        self.steps: list[Step] = []
        self.constants: list[Any] = []
        # a node's place in the graph -> the line of the code that runs it
        self.lines = {
            place: line + module._prologue_start
            for line, place in (module._lineno_map or {}).items()
            if place is not None
        }

    def record(self) -> None:
        for place, node in enumerate(self.nodes):
            line = self.lines.get(place, 0)
            if node.op == "output":
                self.operand(node.args[0], line)
            elif node.op in ("call_function", "call_method") and node.target not in _NEEDS_FRAME:
                kind = node.op.removeprefix("call_").replace("function", "call")
                operands = [self.operand(arg, line) for arg in (*node.args, *node.kwargs.values())]
                self.slots[node] = self.step(kind, node.target, operands, line, tuple(node.kwargs))
            elif node.op != "placeholder":
                raise _NoTapeError

    def step(self, kind: str, target: Any, operands: list[int], line: int, names: tuple[str, ...] = ()) -> int:
        """Adds a step and gives the slot that it fills."""
        self.steps.append((kind, target, tuple(operands), names, line))
        return len(self.inputs) + len(self.steps) - 1

    def operand(self, arg: Any, line: int) -> int:
        """The slot that holds an argument, or ~place of the constant."""
        if isinstance(arg, fx.Node):
            return self.slots[arg]
        if type(arg) is slice:
            parts = (arg.start, arg.stop, arg.step)
            return self.step("call", slice, [self.operand(part, line) for part in parts], line)
        if isinstance(arg, (tuple, list)) and type(arg) in (tuple, list, *_FX_SEQUENCES):
            kind = "tuple" if isinstance(arg, tuple) else "list"
            return self.step(kind, None, [self.operand(part, line) for part in arg], line)
        if type(arg) not in _CONSTANTS:
            raise _NoTapeError
        self.constants.append(arg)
        return ~(len(self.constants) - 1)

    def dropped(self) -> list[tuple[int, ...]]:
        """For each step the slots that nothing uses after it."""
        first, last = len(self.inputs), len(self.steps) - 1
        ends = {first + number: number for number in range(last)}  # what is used by nobody
        for number, (_, _, operands, _, _) in enumerate(self.steps):
            ends.update((slot, number) for slot in operands if slot >= first)
        found: list[list[int]] = [[] for _ in self.steps]
        for slot, end in ends.items():
            found[end].append(slot)
        return [tuple(slots) for slots in found]


_FX_SEQUENCES = (fx.immutable_collections.immutable_list,)


def tape_of(module: fx.GraphModule) -> _C.GraphTape | None:
    """The module's graph as a tape."""
    recorder = _TapeRecorder(module)
    try:
        recorder.record()
    except _NoTapeError:
        return None
    forward = module.forward
    steps = tuple(
        (kind, target, operands, names, dropped, line)
        for (kind, target, operands, names, line), dropped in zip(recorder.steps, recorder.dropped(), strict=True)
    )
    code, globals_ = forward.__code__, forward.__globals__
    return _C.GraphTape(len(recorder.inputs), steps, tuple(recorder.constants), globals_, code)


def only_result(tape: _C.GraphTape) -> _C.GraphTape | None:
    """The same, giving the only result itself in place of a tuple of it; None where the last call does not make it."""
    *steps, (kind, _, operands, *_) = tape.steps
    if not steps or kind != "tuple" or operands != (tape.n_inputs + len(steps) - 1,):
        return None
    return _C.GraphTape(tape.n_inputs, tuple(steps), tape.constants, tape.globals, tape.code)
