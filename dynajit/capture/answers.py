"""What a program hears that asks whether it is being compiled (`torch.compiler.is_compiling()`).

Libraries ask in order to leave out what a compiler can't capture: checks of values, calls of `item`. Some compute
something else then, or fail, for such code is less tried. So a frame is traced as eager code first, whose
results are those to be had. Only if that trace ends in a graph break is the frame traced anew, as compiled. If that
trace raises, or breaks at the same place, the question didn't help, and eager code's answer stays.

In: how a trace ended. Out: `Retrace` is raised if there is a better answer, and the next trace gives it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import Any

from dynajit.graph.unused_calls import refused_calls
from dynajit.interp.frame import SymFrame
from dynajit.interp.machine import Interpreter
from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak
from dynajit.values.tensors.chosen import need_views
from dynajit.values.tensors.point_to_point import left_unwaited
from dynajit.values.tensors.python_code import out_of_order
from dynajit.values.tensors.tensor_data import needs_old_data
from dynajit.values.tensors.wrapper_subclass import masks_left

RAISING = (breaks.RAISES, breaks.OP_RAISES)


class Retrace(Exception):
    """This trace is dropped for one with another answer."""


def finish_inside(tx: Interpreter) -> None:
    """Where this trace leaves something sent or received that it does not wait for, or a mask of which only its own
    run knows, the next one ends at the call.

    Raises:
        Retrace: another trace is to be made.
    """
    if not tx.seen.handles_outlive_graphs and left_unwaited(tx.graph.graph):
        tx.seen.handles_outlive_graphs = True
        raise Retrace
    if not tx.seen.masks_outlive_graphs and masks_left(tx.graph.graph):
        tx.seen.masks_outlive_graphs = True
        raise Retrace


def settle(tx: Interpreter, outputs: Iterable[Any]) -> None:
    """What only a whole trace, whose graph gives these, tells of where graphs have to end.

    Raises:
        Retrace: another trace is to be made.
    """
    _keep_in_order(tx)
    nodes = [value.node for value in outputs]
    if found := refused_calls(tx.graph.graph, nodes) - tx.seen.refused:
        tx.seen.refused |= found
        raise Retrace
    if not tx.seen.choices_are_views and need_views(tx.graph, nodes):
        tx.seen.choices_are_views = True
        raise Retrace


def _keep_in_order(tx: Interpreter) -> None:
    """Where code that the graph calls shares with this trace what is written, or backward what it took away, the next
    one ends at the call."""
    if not tx.seen.data_ends_graphs and needs_old_data(tx):
        tx.seen.data_ends_graphs = True
        raise Retrace
    if found := out_of_order(tx) - tx.seen.out_of_order:
        tx.seen.out_of_order |= found
        raise Retrace


class Answers:
    """The answer in the traces of one frame, one after the other."""

    def __init__(self) -> None:
        self.compiling = False
        self._broken_at: list[tuple[types.CodeType, int]] | None = None
        self._final = False

    def broken(self, stop: GraphBreak, frames: Sequence[SymFrame]) -> None:
        """A trace in which the program asked ended in this break.

        Raises:
            Retrace: another trace is to be made.
        """
        if self._final:
            return
        place = [(frame.code_object, frame.current.index) for frame in frames]
        if not self.compiling:
            if stop.kind is breaks.RAISES:
                return
            self.compiling, self._broken_at = True, place
        elif stop.kind in RAISING or place == self._broken_at:
            self.compiling, self._final = False, True
        else:
            return
        raise Retrace
