"""Patterns of the user's: parts of graphs that are replaced before anything else is done to them.

In:  `register_pattern(search, replace)`, two functions of the same parameters. Out: `replace_patterns`, the pass that
looks for them in captured torch-level graphs, which are differentiated later, or in graphs of ATen operations. The log
`patterns` says what matched, and what did not quite and why.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_iter
from torch.utils.hooks import RemovableHandle

from dynajit.aot.rewrite import copied, run
from dynajit.exc import ConfigError
from dynajit.graph.meta import notes
from dynajit.op_facts import facts
from dynajit.report import logs

# level -> where the fake value of a node is
_LEVELS = {"torch": "example_value", "aten": "val"}
_COMMUTATIVE = frozenset({"add", "mul", torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor})
_OPERATORS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}
# functions of torch.nn.functional that take what torch's of the same name take
_SAME_IN_BOTH = frozenset({"relu", "sigmoid", "tanh", "softmax", "log_softmax"})

Bound = dict[fx.Node, Any]
UserPass = Callable[[fx.Graph], object]


@dataclasses.dataclass(frozen=True)
class Match:
    """Where a pattern was found. arguments: for each parameter of `search` the fake tensor (sizes, strides, dtype and
    device are the real one's), number or symbolic size there. result: what the part of the graph gives."""

    arguments: dict[str, Any]
    result: torch.Tensor


@dataclasses.dataclass(frozen=True)
class _Pattern:
    name: str
    level: str
    search: fx.Graph
    replace: fx.Graph
    extra_check: Callable[[Match], bool] | None


_patterns: collections.OrderedDict[int, _Pattern] = collections.OrderedDict()


def register_pattern(
    search: Callable[..., Any],
    replace: Callable[..., Any],
    *,
    extra_check: Callable[[Match], bool] | None = None,
    level: str = "torch",
) -> RemovableHandle:
    """Have a part of graphs replaced by another one, in what the backend `codegen` compiles from now on.

    Args:
        search: a function whose operations are looked for, traced by `torch.fx.symbolic_trace`. A parameter stands for
            anything, the same at each place: a tensor, a number, a size, symbolic or not. Constants have to be equal.
            `x.relu()`, `torch.relu(x)` and, for common activations, `torch.nn.functional.relu(x)` are the same, and so
            are the two orders of an addition or a product. It gives one tensor, and writes none.
        replace: a function of the same parameters that gives a tensor of the same size, strides, dtype and device.
        extra_check: asked with a `Match`; False leaves the place as it is.
        level: "torch" for the operations that the program calls, before they are differentiated, so that training gets
            the gradient of `replace`; "aten" for functional graphs of ATen operations (`torch.ops.aten.mul.Tensor`),
            those of training with their backward part.

    Returns:
        A handle; its `remove()` takes the pattern away. What is compiled already stays as it is in both cases.

    Raises:
        ConfigError: the functions have other parameters, or `search` is no such function; when compiling, where
            `replace` gives something else than `search`.
    """
    if level not in _LEVELS:
        raise ConfigError.unknown("level", level, [*_LEVELS])
    names = [[*inspect.signature(function).parameters] for function in (search, replace)]
    if names[0] != names[1]:
        raise ConfigError(f"search has the parameters {', '.join(names[0])}, and replace {', '.join(names[1])}")
    graphs = [fx.symbolic_trace(function).graph for function in (search, replace)]
    found = graphs[0].output_node().args[0]
    if not isinstance(found, fx.Node) or found.op not in ("call_function", "call_method"):
        raise ConfigError("search has to give one tensor, the result of an operation")
    if any(node.op == "get_attr" for graph in graphs for node in graph.nodes):
        raise ConfigError("a pattern holds no tensors of its own: make them parameters, or make them in replace")
    pattern = _Pattern(search.__qualname__, level, graphs[0], graphs[1], extra_check)
    handle = RemovableHandle(_patterns)
    _patterns[handle.id] = pattern
    return handle


def any_patterns(level: str | None = None) -> bool:
    """Whether any are registered."""
    return any(level in (None, pattern.level) for pattern in [*_patterns.values()])


def replace_patterns(level: str, gm: fx.GraphModule) -> fx.GraphModule:
    """The graph, or a copy in which each place where a pattern of the level is found is replaced."""
    made = copied(gm)
    gone: set[fx.Node] = set()
    for pattern in [pattern for pattern in [*_patterns.values()] if pattern.level == level]:
        for node in reversed([*made.graph.nodes]):
            if node not in gone:
                gone |= _replace_at(made.graph, pattern, node)
    if not gone:
        return gm
    made.graph.lint()
    made.recompile()
    return made


def with_user_passes(gm: fx.GraphModule, passes: Sequence[UserPass], key: str) -> fx.GraphModule:
    """The graph after functions of the user's that change it in place."""
    for each in passes:
        each(gm.graph)
        fill_values(gm.graph, key, key == "example_value")
    gm.graph.lint()
    gm.recompile()
    return gm


# ---------------------------------------------------------------------------------------- finding


def _spelling(node: fx.Node) -> Any:
    """What a call is, however the program writes it."""
    target: Any = node.target
    if node.op == "call_method":
        return target
    name, home = getattr(target, "__name__", ""), getattr(target, "__module__", None)
    if home == operator.add.__module__:
        return _OPERATORS.get(name, name)
    if getattr(torch, name, None) is target or getattr(torch.Tensor, name, None) is target:
        return name
    if name in _SAME_IN_BOTH and getattr(torch.nn.functional, name, None) is target:
        return name
    return target


def _matches(pattern: Any, found: Any, bound: Bound) -> Iterator[Bound]:
    """Each way in which what stands in the pattern is what stands in the graph, beside what is `bound` already."""
    if isinstance(pattern, fx.Node):
        if pattern in bound:
            if bound[pattern] is found or (not isinstance(found, fx.Node) and _same_constant(bound[pattern], found)):
                yield bound
        elif pattern.op == "placeholder":
            yield {**bound, pattern: found}
        elif isinstance(found, fx.Node) and found.op in ("call_function", "call_method"):
            spelling = _spelling(pattern)
            if spelling != _spelling(found) or pattern.kwargs.keys() != found.kwargs.keys():
                return
            swapped = spelling in _COMMUTATIVE and len(pattern.args) == len(found.args) == 2
            for args in [pattern.args, pattern.args[::-1]] if swapped else [pattern.args]:
                parts = [*args, *pattern.kwargs.values()]
                others = [*found.args, *(found.kwargs[name] for name in pattern.kwargs)]
                yield from _all_match(parts, others, {**bound, pattern: found})
    elif isinstance(pattern, (tuple, list)):
        if isinstance(found, (tuple, list)):
            yield from _all_match(pattern, found, bound)
    elif isinstance(pattern, slice):
        if isinstance(found, slice):
            ends, others = ([each.start, each.stop, each.step] for each in (pattern, found))
            yield from _all_match(ends, others, bound)
    elif _same_constant(pattern, found):
        yield bound


def _all_match(patterns: Sequence[Any], found: Sequence[Any], bound: Bound) -> Iterator[Bound]:
    if len(patterns) != len(found):
        return
    if not patterns:
        yield bound
        return
    for one in _matches(patterns[0], found[0], bound):
        yield from _all_match(patterns[1:], found[1:], one)


def _same_constant(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _why_not(graph: fx.Graph, pattern: _Pattern, root: fx.Node, bound: Bound) -> str:
    """Why what was found can't be replaced, "" if it can."""
    inside = {found for node, found in bound.items() if node.op != "placeholder"}
    used = next((node for node in inside - {root} if not {*node.users} <= inside), None)
    if used is not None:
        return f"{used.name} is used elsewhere"
    order = [*graph.nodes]
    first = min(map(order.index, inside))
    for node in order[first : order.index(root) + 1]:
        # what nothing uses is there for what it does
        if notes(node).changes or facts(node.target).writes or (not node.users and node.op != "placeholder"):
            return f"{node.name} writes, draws or changes a mode between its first and its last operation"
    key = _LEVELS[pattern.level]
    if not isinstance(root.meta.get(key), torch.Tensor):
        return f"{root.name} is no tensor"
    if pattern.extra_check is not None:
        values = {str(node.target): _value(found, key) for node, found in bound.items() if node.op == "placeholder"}
        if not pattern.extra_check(Match(values, root.meta[key])):
            return "extra_check says no"
    return ""


# ---------------------------------------------------------------------------------------- replacing


def _replace_at(graph: fx.Graph, pattern: _Pattern, root: fx.Node) -> set[fx.Node]:
    """Replace what the pattern finds with `root` as its last operation. Gives the nodes that are gone."""
    for bound in _matches(pattern.search.output_node().args[0], root, {}):
        why = _why_not(graph, pattern, root, bound)
        if why:
            logs.emit("patterns", f"{pattern.name} was found at {root.name}, and is left as it is: {why}")
            continue
        inside = [found for node, found in bound.items() if node.op != "placeholder"]
        _put(graph, pattern, root, bound)
        for node in sorted(inside, key=[*graph.nodes].index, reverse=True):
            graph.erase_node(node)
        names = ", ".join(node.name for node in inside)
        logs.emit("patterns", f"{pattern.name} is replaced at {root.name} (of {names})")
        return {*inside}
    return set()


def _put(graph: fx.Graph, pattern: _Pattern, root: fx.Node, bound: Bound) -> None:
    key = _LEVELS[pattern.level]
    given_for = {node.target: found for node, found in bound.items() if node.op == "placeholder"}
    parameters = pattern.replace.find_nodes(op="placeholder")
    values: dict[fx.Node, Any] = {node: given_for.get(node.target) for node in parameters}
    before = [*graph.nodes]
    with graph.inserting_before(root):
        new = graph.graph_copy(pattern.replace, values)
    if not isinstance(new, fx.Node):
        raise ConfigError(f"the replacement of {pattern.name} gives no tensor, but {new!r}")
    added = {*graph.nodes}.difference(before)
    for node in added:
        node.meta |= {name: root.meta[name] for name in ("stack_trace", "source_fn_stack") if name in root.meta}
    fill_values(graph, key, root.meta[key].requires_grad)
    expected, given = _looks(root.meta[key]), _looks(_value(new, key))
    if expected != given:
        raise ConfigError(f"the replacement of {pattern.name} gives {given} where the program has {expected}")
    root.replace_all_uses_with(new)


def _value(found: Any, key: str) -> Any:
    return fx.node.map_arg(found, lambda node: node.meta.get(key))


def _looks(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a value of type {type(value).__name__}"
    sizes, strides = tuple(map(str, value.shape)), tuple(map(str, value.stride()))
    return f"a tensor of size ({', '.join(sizes)}), strides ({', '.join(strides)}), {value.dtype} on {value.device}"


def fill_values(graph: fx.Graph, key: str, gradients: bool) -> None:
    """Give each new node the fake value of its result, under `key`."""
    mode = detect_fake_mode([value for node in graph.nodes for value in tree_iter(node.meta.get(key))])
    for node in graph.nodes:
        if key in node.meta or node.op not in ("call_function", "call_method"):
            continue
        args, kwargs = _value(node.args, key), _value(node.kwargs, key)
        with mode if mode is not None else torch.no_grad(), torch.set_grad_enabled(gradients):
            node.meta[key] = run(node, args, kwargs)
