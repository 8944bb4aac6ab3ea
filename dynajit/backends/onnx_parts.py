"""Parts of graphs as ONNX models, for engines that read those.

In:  a part: ATen operators on tensors and whole numbers; a function from a model's bytes to a session.
Out: `OnnxEngine`, for `parts.py`. Sizes that are symbols in the graph are the model's own; where the exporter ties or
     fixes one that the graph leaves free, there is a model for each combination of sizes.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import Dim

from dynajit import torch_compat
from dynajit.backends.parts import Part, PartRefused

# a session's inputs by name, and its outputs in order
Session = Callable[[dict[str, torch.Tensor]], Sequence[torch.Tensor]]
# models for one part; calls with other sizes run operator by operator
_MAX_MODELS = 16


class OnnxEngine:
    """An engine that runs ONNX models.

    Args:
        name: for messages.
        dtypes: those that its operators compute as torch's do.
        session: makes a session of a model's bytes; whatever it raises refuses the part.
    """

    def __init__(self, name: str, dtypes: frozenset[torch.dtype], session: Callable[[bytes], Session]) -> None:
        self.name = name
        self.dtypes = dtypes
        self.session = session

    def takes(self, target: torch._ops.OpOverload) -> bool:
        """Whether the exporter has a rule for the operator, or torch takes it apart."""
        return target.namespace == "aten" and torch_compat.has_onnx_form(target)

    def build(self, part: torch.fx.GraphModule, examples: Sequence[Any]) -> Part:
        """One session for all sizes, or one for each. Raises PartRefused."""
        if any(map(_free, examples)):
            session = self._for_all_sizes(part, examples)
            each = _EachSize(self, part)
            return each if session is None else _ForAll(part, session, each)
        return _ForAll(part, self._session(part, [torch_compat.example_of(value) for value in examples], None), None)

    def _for_all_sizes(self, part: torch.fx.GraphModule, examples: Sequence[Any]) -> Session | None:
        """None where the exporter has no model for all of them."""
        try:
            given = [torch_compat.example_of(value) for value in examples]
            return self._session(part, given, examples)
        except (PartRefused, torch_compat.NoHint):
            return None

    def _session(self, part: torch.fx.GraphModule, given: Sequence[Any], symbolic: Sequence[Any] | None) -> Session:
        """symbolic: the values whose sizes stay free, if any do. Raises PartRefused."""
        shapes = None if symbolic is None else tuple(map(_dynamic, symbolic))
        try:
            with _quiet(), torch_compat.apart_from_tracing(), torch.no_grad():
                program = torch.export.export(_plain(part), tuple(given), dynamic_shapes=shapes, strict=False)
                if symbolic is not None:
                    _check_free(program, symbolic)
                exported = torch.onnx.export(program, dynamo=True, verbose=False)
                assert exported is not None
                return self.session(exported.model_proto.SerializeToString())
        except PartRefused:
            raise
        except Exception as error:  # exporters and engines raise what they like; it is counted and told in the log
            raise PartRefused(f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}") from error


class _ForAll:
    """A part whose session takes all sizes that are not as special as 0 and 1."""

    def __init__(self, part: torch.fx.GraphModule, session: Session, special: Part | None) -> None:
        self.names = _input_names(part)
        self.session = session
        self.special = special

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        if self.special is not None and any(map(_has_special_size, inputs)):
            return self.special(*inputs)
        given = [value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in inputs]
        return self.session(dict(zip(self.names, given, strict=True)))


class _EachSize:
    """A part with a session for each combination of sizes, made when it is met."""

    def __init__(self, engine: OnnxEngine, part: torch.fx.GraphModule) -> None:
        self.engine = engine
        self.part = part
        self.made: dict[tuple[Any, ...], Part | None] = {}

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        key = tuple(value.shape if isinstance(value, torch.Tensor) else value for value in inputs)
        if key not in self.made and len(self.made) < _MAX_MODELS:
            self.made[key] = self._made(inputs)
        session = self.made.get(key)
        if session is not None:
            return session(*(value for value in inputs if isinstance(value, torch.Tensor)))
        results = self.part(*inputs)
        return results if isinstance(results, (tuple, list)) else [results]

    def _made(self, inputs: Sequence[Any]) -> Part | None:
        fixed = _with_numbers(self.part, inputs)
        tensors = [torch.zeros_like(value) for value in inputs if isinstance(value, torch.Tensor)]
        try:
            return _ForAll(fixed, self.engine._session(fixed, tensors, None), None)
        except PartRefused:
            return None


def _free(value: Any) -> bool:
    return isinstance(value, torch.SymInt) or any(
        isinstance(size, torch.SymInt) for size in getattr(value, "shape", ())
    )


def _dynamic(value: Any) -> Any:
    """What torch.export is told of the value's sizes."""
    if isinstance(value, torch.SymInt):
        return Dim.DYNAMIC
    found = {place: Dim.DYNAMIC for place, size in enumerate(value.shape) if isinstance(size, torch.SymInt)}
    return found or None


def _check_free(program: torch.export.ExportedProgram, symbolic: Sequence[Any]) -> None:
    """Raise PartRefused where a size that is free in the graph is not in the program, or is tied to another one."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    owners: dict[str, str] = {}
    for node, value in zip(nodes, symbolic, strict=True):
        for inner, outer in zip(_sizes(node.meta["val"]), _sizes(value), strict=True):
            if isinstance(outer, torch.SymInt) and owners.setdefault(str(inner), str(outer)) != str(outer):
                raise PartRefused(f"the sizes {outer} and {owners[str(inner)]} are one in the model")
            if isinstance(outer, torch.SymInt) and not isinstance(inner, torch.SymInt):
                raise PartRefused(f"the size {outer} is {inner} in the model")
    limits = program.range_constraints.values()
    if any(limit.lower > 2 or limit.upper < torch_compat.NO_UPPER_BOUND for limit in limits):
        raise PartRefused("a size has bounds in the model")


def _sizes(value: Any) -> Sequence[Any]:
    return value.shape if isinstance(value, torch.Tensor) else (value,)


def _has_special_size(value: Any) -> bool:
    return min(_sizes(value), default=2) < 2


def _plain(part: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The part without what was noted on its nodes."""
    graph = copy.deepcopy(part.graph)
    for node in graph.nodes:
        node.meta.clear()
    return torch.fx.GraphModule(part, graph)


def _with_numbers(part: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The part with its numbers in the graph rather than as inputs."""
    fixed = _plain(part)
    placeholders = [node for node in fixed.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            for user in [*node.users]:
                user.args, user.kwargs = _replaced((user.args, user.kwargs), node, value)
            fixed.graph.erase_node(node)
    fixed.recompile()
    return fixed


def _replaced(arguments: Any, node: torch.fx.Node, value: Any) -> Any:
    return torch.fx.node.map_arg(arguments, lambda arg: value if arg is node else arg)


def _input_names(part: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in part.graph.nodes if node.op == "placeholder"]


@contextmanager
def _quiet() -> Iterator[None]:
    """What the exporter says is for who exports."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
