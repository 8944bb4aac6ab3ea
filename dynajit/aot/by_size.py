"""A graph whose sizes vary, as one graph of known sizes for each combination that is met.

In:  a functional ATen graph with symbolic sizes, its fake inputs, and what compiles a graph without symbols.
Out: `BySize`, a callable that takes what the graph takes. At most `MAX_GRAPHS` combinations are compiled, each when it
     is first met; any more run what `for_others` makes, once. Without it, and where a size depends on values, the graph
     runs operator by operator.
For kernels that have all sizes in their text: of graphs on GPUs that are timed, or whose sizes can't be arguments.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.node import map_arg

from dynajit.aot.rewrite import Copy, run
from dynajit.symbols import has_symbols

# Compiled graphs for one graph whose sizes vary.
MAX_GRAPHS = 8

Compile = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def varies(inputs: Sequence[Any]) -> bool:
    """Has any of a graph's fake inputs a size that is known only when the graph runs?"""
    return any(map(has_symbols, inputs))


def sizes_vary(inputs: Sequence[Any]) -> bool:
    """As `varies`, where floats don't count."""
    return varies([value for value in inputs if not isinstance(value, torch.SymFloat)])


class BySize:
    """The compiled graphs so far."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        compile_one: Compile,
        tell: Callable[[str], None],
        for_others: Callable[[], Callable[..., Any]] | None = None,
    ) -> None:
        self.gm = gm
        self.compile_one = compile_one
        self.tell = tell
        self.for_others = for_others
        self.others: Callable[..., Any] | None = None
        self.numbers = [at for at, value in enumerate(inputs) if not isinstance(value, torch.Tensor)]
        self.tensors = [at for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self.sized = [at for at in self.tensors if has_symbols(inputs[at])]
        self.made: dict[tuple[Any, ...], Callable[..., Any] | None] = {}
        self.lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        key = (
            *(inputs[at] for at in self.numbers),
            *((inputs[at].shape, inputs[at].stride()) for at in self.sized),
        )
        call = self.made.get(key)
        if call is None:
            call = self._make(key, inputs)
            if call is None:
                return (self.others or self.gm.forward)(*inputs)
        return call(*(inputs[at] for at in self.tensors))

    def _make(self, key: tuple[Any, ...], inputs: Sequence[Any]) -> Callable[..., Any] | None:
        with self.lock:
            if key in self.made:
                return self.made[key]
            if len(self.made) >= MAX_GRAPHS:
                if self.for_others is not None:
                    self.others, self.for_others = self.for_others(), None
                elif self.others is None:
                    self.tell(f"a graph meets more than {MAX_GRAPHS} combinations of sizes: at others it runs op by op")
                return None
            try:
                with tracing(None), torch.no_grad():
                    made = self.compile_one(*static_graph(self.gm, inputs))
            except (DynamicOutputShapeException, DataDependentOutputException) as error:
                self.tell(f"sizes in a graph depend on values ({error}): it runs op by op")
                made = None
            self.made[key] = made
            return made


def static_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The graph for inputs of these sizes, and its fake inputs: tensors alone, numbers are in its text."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copy = Copy(gm)
    fakes: list[Any] = []
    given = iter(inputs)
    with mode:
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                value = next(given)
                if not isinstance(value, torch.Tensor):
                    copy.of[node] = value
                    continue
                fakes.append(_fake(value))
                copy.take(node, val=fakes[-1])
            elif node.op == "get_attr":
                held = operator.attrgetter(str(node.target))(gm)
                copy.take(node, val=_fake(held) if isinstance(held, torch.Tensor) else held)
            elif node.op != "output":
                _call(copy, node)
    return copy.finish(), fakes


def _fake(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _call(copy: Copy, node: torch.fx.Node) -> None:
    """Take the node over with known numbers: as a number itself where that is its value."""
    args, kwargs = map_arg(map_arg((node.args, node.kwargs), copy.of.__getitem__), lambda arg: arg.meta["val"])
    value = run(node, args, kwargs)
    if isinstance(value, (bool, int, float)):
        copy.of[node] = value
    else:
        copy.take(node, val=value)
