"""A compiled graph that checks itself.

In:  a torch-level graph, what the backend made of it, and how often to look. Out: `VerifiedGraph`, called as the
     compiled graph is. On a call that is checked the graph also runs eagerly, and in float64, on copies of the inputs,
     from the same random state; results, inputs written in place and (in training) gradients are compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dynajit.exc import AccuracyError
from dynajit.report.places import user_place
from dynajit.verify.closeness import Difference, difference
from dynajit.wrappers import is_wrapper

Run = Callable[..., Any]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class VerifiedGraph:
    """`compiled`, compared with `gm` on the first of each `every` calls. `name` is for the message."""

    def __init__(self, gm: torch.fx.GraphModule, compiled: Run, name: str, every: int = 1) -> None:
        self.gm = gm
        self.compiled = compiled
        self.name = name
        self.every = every
        self._calls = 0

    def __call__(self, *inputs: Any) -> Any:
        self._calls += 1
        if (self._calls - 1) % self.every:
            return self.compiled(*inputs)
        comparison = _Comparison(self.gm, inputs)
        result = self.compiled(*inputs)
        self._require(comparison.results(result, inputs))
        self._require(comparison.gradients(self.compiled))
        return result

    def _require(self, found: tuple[str, Difference] | None) -> None:
        if found is not None:
            where, what = found
            raise AccuracyError(self.name, where, str(what))


def check_graph(gm: torch.fx.GraphModule, compiled: Run, inputs: Sequence[Any]) -> tuple[str, Difference] | None:
    """Compare once, on copies; None if all agrees, else where and how not."""
    own = copies(inputs)
    comparison = _Comparison(gm, own)
    result = compiled(*own)
    return comparison.results(result, own) or comparison.gradients(compiled)


class _Comparison:
    """Eager's and the reference's results for one call's inputs, computed before the compiled graph may write them."""

    def __init__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.gm = gm
        self.inputs = copies(inputs)  # as they were
        self.eager_inputs = copies(inputs)
        with _same_random_state():
            before = torch.get_rng_state()
            self.eager = gm.forward(*self.eager_inputs)
            random = not torch.equal(before, torch.get_rng_state())
        self.exact_inputs = copies(inputs, exact=True)
        # random numbers of float64 are other numbers
        self.exact = None if random else _reference(gm, self.exact_inputs)

    def results(self, compiled: Any, inputs: Sequence[Any]) -> tuple[str, Difference] | None:
        """The first output or written input that differs."""
        exact = self.exact if self.exact is not None else [None] * len(self.eager)
        for number, (mine, theirs, reference) in enumerate(zip(compiled, self.eager, exact, strict=True)):
            found = difference(mine, theirs, reference)
            if found is not None:
                return f"output {number}, {_origin(self.gm, number)}", found
        exact_inputs = self.exact_inputs if self.exact is not None else [None] * len(inputs)
        names = [str(node.target) for node in self.gm.graph.find_nodes(op="placeholder")]
        for name, mine, theirs, reference in zip(names, inputs, self.eager_inputs, exact_inputs, strict=True):
            found = difference(mine, theirs, reference)
            if found is not None:
                return f"input {name} after the call", found
        return None

    def gradients(self, compiled: Run) -> tuple[str, Difference] | None:
        """The first input whose gradient differs, for random gradients of the outputs."""
        if not any(isinstance(out, torch.Tensor) and out.requires_grad for out in self.eager):
            return None
        with _same_random_state():
            mine = _gradients(compiled, copies(self.inputs))
        with _same_random_state():
            theirs = _gradients(self.gm.forward, copies(self.inputs))
        exact: list[Any] = [None] * len(self.inputs)
        if self.exact is not None:
            with contextlib.suppress(RuntimeError):  # as in _reference
                exact = _gradients(self.gm.forward, copies(self.inputs, exact=True))
        names = [str(node.target) for node in self.gm.graph.find_nodes(op="placeholder")]
        for name, ours, eager, reference in zip(names, mine, theirs, exact, strict=True):
            # no gradient and one of zeros are the same to an optimizer's sum
            if ours is None and eager is not None:
                ours = torch.zeros_like(eager)
            if eager is None and ours is not None:
                eager = torch.zeros_like(ours)
            found = difference(ours, eager, reference)
            if found is not None:
                return f"gradient of input {name}", found
        return None


def _reference(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The outputs in float64; None where the graph can't be run so."""
    try:
        with _same_random_state(), torch.autocast("cpu", enabled=False):
            return gm.forward(*inputs)
    except RuntimeError:
        return None  # the graph makes float32 tensors of its own, and some operation wants both to be of one dtype


def _gradients(run: Run, inputs: Sequence[Any]) -> list[Any]:
    """The gradient for each input; None where there is none."""
    outputs = [out for out in run(*inputs) if isinstance(out, torch.Tensor) and out.requires_grad]
    wanted = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    found: dict[int, Any] = {}
    if outputs and wanted:
        found = dict(zip(map(id, wanted), random_gradients(outputs, wanted), strict=True))
    return [found.get(id(value)) for value in inputs]


def random_gradients(roots: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The gradient of a random sum of the roots for each leaf; None where there is none."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(root.shape, generator=generator, dtype=torch.float64).to(root) for root in roots]
    return torch.autograd.grad(roots, leaves, weights, allow_unused=True)


def copies(inputs: Sequence[Any], exact: bool = False) -> list[Any]:
    """Copies of the tensors with equal strides; floating ones in float64 where `exact`. What shares memory shares it
    still: a write to one of two overlapping inputs is seen in the other."""
    together: dict[Any, list[torch.Tensor]] = {}
    for value in inputs:
        if type(value) in _PLAIN and value.layout is torch.strided and not (value.is_conj() or value.is_neg()):
            together.setdefault((value.device, value.untyped_storage().data_ptr()), []).append(value)
    shared: dict[int, torch.Tensor] = {}
    for values in together.values():
        if len(values) > 1 and len({value.dtype for value in values}) == 1:
            shared |= _copies_of_overlapping(values, _dtype(values[0], exact))
    return [
        shared[id(value)]
        if id(value) in shared
        else (_copy(value, exact) if isinstance(value, torch.Tensor) else value)
        for value in inputs
    ]


def _copies_of_overlapping(values: list[torch.Tensor], dtype: torch.dtype) -> dict[int, torch.Tensor]:
    """For each id the copy of the tensor, all in one new memory."""
    with torch.no_grad():
        storage = values[0].untyped_storage()
        numel = storage.nbytes() // values[0].element_size()
        memory = values[0].detach().as_strided((numel,), (1,), 0).to(dtype, copy=True).untyped_storage()
        made = {}
        for value in values:
            # no views for autograd, which refuses writes to those that were made without gradients
            copy = torch.empty(0, dtype=dtype, device=value.device)
            made[id(value)] = copy.set_(memory, value.storage_offset(), value.shape, value.stride())
    for value in values:
        made[id(value)].requires_grad_(value.requires_grad)
    return made


def _dtype(value: torch.Tensor, exact: bool) -> torch.dtype:
    if exact and value.is_complex():
        return torch.complex128
    return torch.float64 if exact and value.is_floating_point() else value.dtype


def _copy(value: torch.Tensor, exact: bool) -> torch.Tensor:
    with torch.no_grad():
        dtype = _dtype(value, exact)
        dense = value.layout is torch.strided and all(value.stride()) and not is_wrapper(value)
        made = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device) if dense else None
        copy = made.copy_(value) if made is not None else value.detach().clone().to(dtype)
    return copy.requires_grad_(value.requires_grad)


def _origin(gm: torch.fx.GraphModule, output: int) -> str:
    """The operation that made an output, and its line."""
    node: Any = gm.graph.output_node().args[0][output]  # type: ignore[index]
    if not isinstance(node, torch.fx.Node):
        return "a constant"
    place = user_place(node.meta.get("stack_trace") or "")
    return f"of {node.name}" + (f" ({place[0]}:{place[1]})" if place else "")


@contextlib.contextmanager
def _same_random_state() -> Iterator[None]:
    """Whatever runs inside draws the numbers that what comes after would have drawn."""
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if initialized else []
    with torch.random.fork_rng(devices):
        yield
