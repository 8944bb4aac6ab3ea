"""Between which numbers a scalar expression lies: functions are cheaper where that is known.

In:  a kernel. Out: `Ranges.of(expression)`: bounds that hold for every value but NaN, infinite where nothing is known.
     `variant(name, bounds)`: the function of `mathlib` to call for arguments within bounds.
One more rule: a line in `_RULES`, from the arguments' bounds to those of the result. Bounds are of exact numbers:
roundings are left room for in `VARIANTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dynajit.loopir.nodes import Const, Op, Reduction, Scalar, Tensor
from dynajit.schedule.kernel import Kernel, Load, Local, Scratch, Store

Bounds = tuple[float, float]
ANYTHING: Bounds = (-math.inf, math.inf)


def _exp(x: float) -> float:
    return math.exp(x) if x < 88 else math.inf


def _product(a: Bounds, b: Bounds) -> Bounds:
    corners = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(corners), max(corners)


def _join(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _magnitude(a: Bounds) -> Bounds:
    low = 0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))
    return low, max(abs(a[0]), abs(a[1]))


_RULES: dict[str, Callable[..., Bounds]] = {
    "sin": lambda a: (-1.0, 1.0),
    "cos": lambda a: (-1.0, 1.0),
    "tanh": lambda a: (-1.0, 1.0),
    "erf": lambda a: (-1.0, 1.0),
    "exp": lambda a: (_exp(a[0]), _exp(a[1])),
    "sqrt": lambda a: (0.0, math.inf),
    "neg": lambda a: (-a[1], -a[0]),
    "abs": _magnitude,
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "where": lambda chosen, a, b: _join(a, b),
    "guard": lambda chosen, a, b: _join(a, b),
}

# function -> variants of it and the bounds of their arguments, the cheapest first
VARIANTS: dict[str, tuple[tuple[str, Bounds], ...]] = {
    "exp": (("exp_mid", (-80.0, 80.0)), ("exp_down", (-math.inf, 40.0))),
    "sin": (("sin_small", (-1.01, 1.01)),),
    "cos": (("cos_small", (-1.01, 1.01)),),
}


def variant(name: str, bounds: Bounds) -> str:
    """The cheapest function that does as `name` for arguments within the bounds."""
    for own, (low, high) in VARIANTS.get(name, ()):
        if low <= bounds[0] and bounds[1] <= high:
            return own
    return name


class Ranges:
    """Bounds of the expressions of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.known: dict[Scalar, Bounds] = {}
        self.greatest: dict[Reduction, Scalar] = {}  # of what a reduction is the greatest
        self.kept: dict[Tensor, Scalar] = {}
        self.stored: dict[Tensor, Store] = {}
        for section in kernel.sections:
            self.kept.update(section.kept)
            self.stored.update((store.tensor, store) for store in section.stores)
            self.greatest.update((r, value) for r, value in section.reductions if r.kind in ("max", "peak"))

    def of(self, node: Scalar) -> Bounds:
        """The bounds of an expression."""
        found = self.known.get(node)
        if found is None:
            found = self.known[node] = self._find(node)
        return found

    def _find(self, node: Scalar) -> Bounds:
        if isinstance(node, Const):
            value = float(node.value)
            return ANYTHING if math.isnan(value) else (value, value)
        if not isinstance(node, Op):
            return ANYTHING
        if node.name == "convert":
            rounds = node.dtype.is_floating_point and node.arguments[0].dtype.is_floating_point
            return self.of(node.arguments[0]) if rounds else ANYTHING
        rule = _RULES.get(node.name)
        if rule is None or not node.dtype.is_floating_point:
            return ANYTHING
        low, high = rule(*map(self.of, node.arguments))
        if node.name == "sub" and self._below_greatest(*node.arguments):
            high = min(high, 0.0)
        if node.name == "mul":
            a, b = node.arguments
            if a is b:
                low = max(low, 0.0)
            elif _negated(a) is b or _negated(b) is a:
                high = min(high, 0.0)
        return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)

    def _below_greatest(self, a: Scalar, b: Scalar) -> bool:
        """Is `b` the greatest in the row of what `a` is, as in softmax?"""
        b = _exact(b)
        if not isinstance(b, Local) or not isinstance(b.tensor, Reduction) or b.tensor not in self.greatest:
            return False
        return _exact(self._source(_exact(a))) is _exact(self.greatest[b.tensor])

    def _source(self, node: Scalar) -> Scalar:
        """What was kept or stored is what it was computed as."""
        if isinstance(node, Scratch):
            return self.kept.get(node.tensor, node)
        if isinstance(node, Load):
            store = self.stored.get(node.tensor)
            return store.value if store is not None and store.address is node.address else node
        return node


def _negated(node: Scalar) -> Scalar | None:
    return node.arguments[0] if isinstance(node, Op) and node.name == "neg" else None


def _exact(node: Scalar) -> Scalar:
    """Without conversions that change no value."""
    while isinstance(node, Op) and node.name == "convert" and node.dtype in (torch.float32, torch.float64):
        source = node.arguments[0].dtype
        if not source.is_floating_point or source.itemsize > node.dtype.itemsize:
            break
        node = node.arguments[0]
    return node
