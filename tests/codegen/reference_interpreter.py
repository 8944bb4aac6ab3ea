"""The reference interpreter: what a program means, computed one tensor after the other with torch, without fusion.

In:  a `Program`, and the tensors of its inputs by name. Out: its outputs. Slow and plain: the oracle of the printers.
One more kind of node: a branch of `_Interpreter.value`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dynajit.loopir.index import Axis, Div, Index
from dynajit.loopir.nodes import (
    Const,
    Extern,
    Fetch,
    NameRef,
    Op,
    Pointwise,
    Position,
    Program,
    Read,
    Reduction,
    Scalar,
    Scan,
    Scatter,
    Tensor,
    View,
    axes_for,
    axis_of,
)
from dynajit.loopir.ops import CHECKS, OPS, REDUCTIONS
from dynajit.nested import map_leaves

_REDUCE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "prod": torch.prod,
    "max": torch.amax,
    "peak": torch.amax,
    "min": torch.amin,
    "mean": torch.mean,
    "squared_deviations": torch.sum,
}


def interpret(program: Program, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run the program."""
    return _Interpreter(program, inputs).run()


class _Interpreter:
    """Tensors computed so far, by the program's tensor or by name."""

    def __init__(self, program: Program, inputs: Mapping[str, Any]) -> None:
        self.program = program
        self.names: dict[str, Any] = {**program.constants, **inputs}
        self.guards = 0  # how many guards the expression at hand is under
        self.shared: dict[tuple[int, bool], torch.Tensor] = {}  # by expression and whether it stands under a guard

    def run(self) -> tuple[Any, ...]:
        for item in self.program.items:
            if isinstance(item, Extern):
                self._call(item)
            else:
                self.names[item.name] = self._compute(item)
        return tuple(self._argument(value) for value in self.program.outputs)

    def _call(self, call: Extern) -> None:
        result = call.target(*self._argument(call.args), **self._argument(call.kwargs))
        for name, value in zip(call.results, (result,) if call.single else result, strict=True):
            if name is not None:
                self.names[name if isinstance(name, str) else name.name] = value

    def _argument(self, tree: Any) -> Any:
        return map_leaves(self._tensor, tree, (View, NameRef))

    def _tensor(self, value: View | NameRef) -> Any:
        if isinstance(value, NameRef):
            return self.names[value.name]
        # an axis that the position does not have is one along which nothing changes
        grid = _grid(_axes(value))
        return self._element(value.root, [_at(index, grid) for index in value.position]).expand(value.shape)

    def _scatter(self, tensor: Scatter) -> torch.Tensor:
        grid = _grid(list(zip(tensor.inner, tensor.domain, strict=True)))
        self.shared.clear()
        result: torch.Tensor = self.names[tensor.base.name].clone()
        sizes = list(tensor.domain)
        value = self.value(tensor.body, grid).expand(sizes).reshape(-1).to(tensor.dtype)
        number = torch.zeros((), dtype=torch.int64)
        for place, size in zip(tensor.at, tensor.shape, strict=True):
            number = number * size + self.value(place, grid)
        number = number.expand(sizes).reshape(-1)
        flat = result.reshape(-1)
        if tensor.kind == "set":
            for at, one in zip(number.tolist(), value, strict=True):
                flat[at] = one
        else:
            flat.scatter_reduce_(0, number, value, {"max": "amax", "min": "amin"}.get(tensor.kind, tensor.kind))
        return flat.view(tensor.shape)

    def _compute(self, tensor: Tensor) -> torch.Tensor:
        if isinstance(tensor, Scatter):
            return self._scatter(tensor)
        assert isinstance(tensor, (Pointwise, Reduction))
        inner = tensor.inner if isinstance(tensor, Reduction) else ()
        axes = [(index, size) for index, size in zip(tensor.axes, tensor.shape, strict=True)]
        for index in inner:
            axis = axis_of(index)
            axes.append((index, 1 if axis is None else axis.size))
        grid = _grid(axes)
        self.shared.clear()  # it holds for one grid
        sizes = [size for _, size in axes]
        value = self.value(tensor.body, grid).expand(sizes)
        if isinstance(tensor, Scan):
            wide = value.double() if tensor.dtype.is_floating_point else value
            value = (torch.cumsum if tensor.kind == "sum" else torch.cumprod)(wide, tensor.dim)
        if isinstance(tensor, Reduction) and tensor.bounds:
            (along,) = (grid[axis] for axis in map(axis_of, inner) if axis is not None)
            low, high = (self.value(bound, grid) for bound in tensor.bounds)
            value = torch.where((low <= along) & (along < high), value, REDUCTIONS[tensor.kind].start(tensor.dtype))
        if isinstance(tensor, Reduction) and tensor.kind == "squared_deviations":
            inside = tuple(range(len(tensor.shape), len(sizes)))
            value = (value - value.double().mean(inside, keepdim=True)).square()
        for dim in range(len(sizes) - 1, len(tensor.shape) - 1, -1):
            assert isinstance(tensor, Reduction)
            value = _REDUCE[tensor.kind](value, dim)
        return value.to(tensor.dtype)

    def value(self, node: Scalar, grid: Mapping[Axis, torch.Tensor]) -> torch.Tensor:
        """The expression at every point of the grid.

        What several expressions share is computed once: a window's running maximum stands twice in each step, so that
        its tree doubles with every element.
        """
        key = (id(node), self.guards > 0)
        found = self.shared.get(key)
        if found is None:
            found = self.shared[key] = self._value(node, grid)
        return found

    def _value(self, node: Scalar, grid: Mapping[Axis, torch.Tensor]) -> torch.Tensor:
        if isinstance(node, Const):
            return torch.tensor(node.value, dtype=node.dtype)
        if isinstance(node, Position):
            return _at(node.index, grid)
        if isinstance(node, Read):
            return self._element(node.tensor, [_at(index, grid) for index in node.position])
        assert isinstance(node, Op)
        if node.name == "guard":
            condition = self.value(node.arguments[0], grid)
            self.guards += 1
            then, otherwise = (self.value(argument, grid) for argument in node.arguments[1:])
            self.guards -= 1
            return torch.where(condition, then, otherwise)
        arguments = [self.value(argument, grid) for argument in node.arguments]
        if isinstance(node, Fetch):
            return self._element(node.tensor, arguments)
        if node.name in CHECKS and self.guards:
            return arguments[0] % arguments[1]  # what is not chosen may be anywhere
        if node.name == "convert":
            return arguments[0].to(node.dtype)
        result: torch.Tensor = OPS[node.name].reference(*arguments)
        return result

    def _element(self, tensor: Tensor, where: list[torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.names[tensor.name]
        if self.guards:
            # whatever is read outside of the tensor is not chosen
            where = [at.clamp(0, max(size - 1, 0)) for at, size in zip(where, found.shape, strict=True)]
        return found[tuple(where)] if where else found


def _axes(value: View) -> list[tuple[Index, int]]:
    return list(zip(axes_for(value.shape), value.shape, strict=True))


def _grid(axes: list[tuple[Index, int]]) -> dict[Axis, torch.Tensor]:
    """For each axis its values, laid out along a dimension of its own."""
    rank = len(axes)
    grid: dict[Axis, torch.Tensor] = {}
    for dim, (index, size) in enumerate(axes):
        axis = axis_of(index)
        if axis is not None:
            grid[axis] = torch.arange(size).view([size if i == dim else 1 for i in range(rank)])
    return grid


def _at(index: Index, grid: Mapping[Axis, torch.Tensor]) -> torch.Tensor:
    return torch.as_tensor(evaluate(index, grid))


def evaluate(index: Index, values: Mapping[Axis, Any]) -> Any:
    """The index's value for given values of its axes, integers or tensors of them."""
    total: Any = index.constant
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            total = total + coefficient * values[atom]
        elif isinstance(atom, Div):
            total = total + coefficient * (evaluate(atom.index, values) // atom.divisor)
        else:
            total = total + coefficient * (evaluate(atom.index, values) % atom.divisor)
    return total
