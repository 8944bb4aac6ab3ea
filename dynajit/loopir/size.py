"""Symbolic sizes: polynomials with integer coefficients over symbols that are known when the graph runs.

In: torch's SymInts, by `SizeTable.of` (which makes a `RuntimeFloat` of a SymFloat). Out: `Size`, which stands wherever
the loop IR has an int: arithmetic gives ints again where the symbols cancel. Text of a size is an expression of Python
and of C alike; what is no polynomial (a rounded division) is a symbol of its own, with a definition for the plan.
Comparisons are proofs: `a < b` is True only if it holds for all values that the symbols can have, so neither `a < b`
nor `a >= b` may hold. Where only speed depends on it, ask `hint_of`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from dynajit import symbols, torch_compat

# Of a symbol whose value nobody knows yet.
UNKNOWN_HINT = 4096
# Stands for a bound that nothing is known of.
UNBOUNDED = 1 << 62


class Undecided(Exception):
    """An int was needed, and the size is known only when the graph runs."""


class SizeSymbol:
    """One symbol: its name, the least value it can have, the value at hand, and the greatest where there is one;
    `of_data`: whether tensors' values decide it, so that no guard has seen it."""

    __slots__ = ("high", "hint", "low", "name", "of_data")

    def __init__(self, name: str, low: int, hint: int, high: int | None = None, of_data: bool = False) -> None:
        self.of_data = of_data
        self.name = name
        self.low = low
        self.hint = hint
        self.high = high

    def __repr__(self) -> str:
        return self.name


Monomial: TypeAlias = tuple[SizeSymbol, ...]  # by name; () for the constant
Terms: TypeAlias = dict[Monomial, int]


def _name_of(symbol: SizeSymbol) -> str:
    return symbol.name


def _times(one: Terms, other: Terms) -> Terms:
    result: Terms = {}
    for left, factor in one.items():
        for right, by in other.items():
            key = tuple(sorted(left + right, key=_name_of))
            result[key] = result.get(key, 0) + factor * by
    return result


def _terms(value: Any) -> Terms | None:
    if isinstance(value, Size):
        return value.terms
    if isinstance(value, float):
        raise Undecided(f"a size and {value}")
    return {(): value} if isinstance(value, int) else None


def _made(terms: Terms) -> int | Size:
    kept = {key: factor for key, factor in terms.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Size(kept)


class RuntimeFloat:
    """A Python float that is known when the graph runs. `name` is its symbol; `bits` is the symbol of the int64 with
    the same bits, which is how a kernel is given it, unless `device_value` is an expression for it
    (of a float64, for kernels that take numbers as `nodes.Number`s). Nothing can be said of it before."""

    __slots__ = ("bits", "device_value", "name")

    def __init__(self, name: str, bits: Size, device_value: Any = None) -> None:
        self.name = name
        self.bits = bits
        self.device_value = device_value

    def __repr__(self) -> str:
        return self.name

    def _undecided(self, other: Any = None) -> Any:
        raise Undecided(self.name)

    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _undecided
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _undecided


class Size:
    """A polynomial that is no constant."""

    __slots__ = ("_hash", "_least", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))
        self._least: int | None = None

    # -- arithmetic

    def __add__(self, other: Any) -> Any:
        theirs = _terms(other)
        if theirs is None:
            return NotImplemented
        total = dict(self.terms)
        for key, factor in theirs.items():
            total[key] = total.get(key, 0) + factor
        return _made(total)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        theirs = _terms(other)
        return NotImplemented if theirs is None else _made(_times(self.terms, theirs))

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + other * -1

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other

    def __floordiv__(self, other: Any) -> Any:
        """Exact division only."""
        return _exact(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _exact(other, self)

    def __mod__(self, other: Any) -> Any:
        """0 where the division is exact; else nobody can tell yet. `divides` asks without raising."""
        return _no_remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return _no_remainder(other, self)

    # -- proofs

    @property
    def least(self) -> int:
        """A number that the size is never less than."""
        if self._least is None:
            # in terms of what each symbol is above its least value, what is added lessens the sum by at most so much
            moved: Terms = {}
            for key, factor in self.terms.items():
                product: Terms = {(): factor}
                for symbol in key:
                    product = _times(product, {(symbol,): 1, (): symbol.low})
                for part, by in product.items():
                    moved[part] = moved.get(part, 0) + by
            least = moved.pop((), 0)
            for part, by in moved.items():
                if by < 0 and any(symbol.high is None for symbol in part):
                    least = -UNBOUNDED
                    break
                if by < 0:
                    least += by * math.prod(symbol.high - symbol.low for symbol in part if symbol.high is not None)
            self._least = max(least, -UNBOUNDED)
        return self._least

    def __lt__(self, other: Any) -> bool:
        return least_of(other - self) > 0

    def __le__(self, other: Any) -> bool:
        return least_of(other - self) >= 0

    def __gt__(self, other: Any) -> bool:
        return least_of(self - other) > 0

    def __ge__(self, other: Any) -> bool:
        return least_of(self - other) >= 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __index__(self) -> int:
        raise Undecided(repr(self))

    __int__ = __index__

    def __float__(self) -> float:
        raise Undecided(repr(self))

    # -- text

    def __repr__(self) -> str:
        parts = []
        for key, factor in sorted(self.terms.items(), key=lambda term: (-len(term[0]), [s.name for s in term[0]])):
            names = [symbol.name for symbol in key]
            parts.append("*".join([str(factor), *names] if factor != 1 or not names else names))
        text = " + ".join(parts)
        return text if len(parts) == 1 and text.isidentifier() else f"({text})"

    @property
    def symbols(self) -> set[SizeSymbol]:
        """The symbols in it."""
        return {symbol for key in self.terms for symbol in key}

    @property
    def content(self) -> int:
        """The greatest number that divides it."""
        return math.gcd(*self.terms.values())


_WORD = re.compile(r"(?<![.\w])[a-z]+[0-9]+\b")


def symbols_in(text: str) -> list[str]:
    """The names of symbols in the text of a size, each once."""
    return list(dict.fromkeys(_WORD.findall(text)))


def least_of(value: int | Size) -> int:
    """A number that the value is never less than."""
    return value if isinstance(value, int) else value.least


def hint_of(value: int | Size) -> int:
    """The value for the sizes at hand."""
    if isinstance(value, int):
        return value
    return sum(factor * math.prod(symbol.hint for symbol in key) for key, factor in value.terms.items())


def divides(divisor: Any, value: Any) -> bool:
    """Is `value` known to be a multiple of `divisor`?"""
    if type(value) is int and type(divisor) is int:
        return divisor != 0 and value % divisor == 0
    return quotient(value, divisor) is not None


def _no_remainder(value: Any, divisor: Any) -> int:
    if quotient(value, divisor) is None:
        raise Undecided(f"the remainder of {value} by {divisor}")
    return 0


def quotient(value: Any, divisor: Any) -> Any:
    """value / divisor where that is exact, else None."""
    if isinstance(value, int) and isinstance(divisor, int):
        return value // divisor if divisor and value % divisor == 0 else None
    if value == 0:
        return 0
    if value == divisor:
        return 1
    terms, by = _terms(value), _terms(divisor)
    assert terms is not None and by is not None
    rest, result = dict(terms), {}
    lead = max(by, key=_order)
    while rest:
        top = max(rest, key=_order)
        part = _without(top, lead)
        if part is None or rest[top] % by[lead]:
            return None
        factor = rest[top] // by[lead]
        result[part] = factor
        for key, amount in _times(by, {part: factor}).items():
            left = rest.get(key, 0) - amount
            if left:
                rest[key] = left
            else:
                rest.pop(key, None)
    return _made(result)


def _order(key: Monomial) -> tuple[int, list[str]]:
    return len(key), [symbol.name for symbol in key]


def _without(key: Monomial, part: Monomial) -> Monomial | None:
    left = list(key)
    for symbol in part:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)


def _exact(value: Any, divisor: Any) -> Any:
    found = quotient(value, divisor)
    if found is None:
        raise Undecided(f"{value} // {divisor}")
    return found


def size_symbols(values: Iterable[Any]) -> set[SizeSymbol]:
    """The symbols in these sizes."""
    found: set[SizeSymbol] = set()
    return found.union(*(value.symbols for value in values if isinstance(value, Size)))


def common(one: Any, other: Any) -> Any:
    """Something that divides both; the greatest common divisor of ints."""
    if isinstance(one, int) and isinstance(other, int):
        return math.gcd(one, other)
    if quotient(one, other) is not None:
        return other
    if quotient(other, one) is not None:
        return one
    contents = [value.content if isinstance(value, Size) else value for value in (one, other)]
    return math.gcd(*contents)


def is_symbolic(values: Iterable[Any]) -> bool:
    """Is any of them known only when the graph runs?"""
    return any(isinstance(value, Size) for value in values)


def index_from_start(index: Any, size: Any) -> Any:
    """An index of an item of so many, counted from the first one; no remainder, which nothing tells of a size that is
    known when the graph runs. Undecided where it may be negative or not, or where nothing has seen that there is such
    an item: of one that tensors' values decide."""
    of_data = _is_of_data(index)
    if index >= 0 and (not of_data or index < size):
        return index
    if index < 0 and (not of_data or index >= -size):
        return index + size
    raise Undecided(repr(index))


# From here on the end of a slice is that of what it is a slice of.
_TO_THE_END = 1 << 62


def begin_of_slice(start: Any, end: Any, step: int, size: Any, length: Any) -> Any:
    """Where a slice that is so long begins. Undecided where it may be before the first element, or not,
    or where only tensors' values tell whether it is after the last."""
    start = 0 if start is None else start
    if isinstance(start, int) and isinstance(size, int):
        return min(max(start + size if start < 0 else start, 0), size)
    if start >= 0 and (not _is_of_data(start) or start <= size):  # torch has guarded what data doesn't decide
        return start
    if isinstance(start, int):
        if start + size >= 0:
            return start + size
        if step == 1 and (end is None or (isinstance(end, int) and end >= _TO_THE_END)):
            return size - length  # how much is left says where it began
    raise Undecided(f"a slice that may begin before the first element: {start!r}")


def _is_of_data(number: Any) -> bool:
    return isinstance(number, Size) and any(symbol.of_data for key in number.terms for symbol in key)


class SizeTable:
    """The symbols of one graph."""

    def __init__(self) -> None:
        self.symbols: dict[str, SizeSymbol] = {}
        # symbols that stand for what is no polynomial -> Python text over the other symbols
        self.definitions: dict[str, str] = {}
        self._derived: dict[symbols.Tree, Size] = {}
        self._names: dict[symbols.Tree, str] = {}

    def of(self, number: Any) -> Any:
        """An int, a SymInt or torch's expression as an int or Size."""
        if isinstance(number, int):
            return number
        node = number.node
        if isinstance(number, torch.SymFloat):
            return self._float(node.expr, node.shape_env)
        found = self._of(node.expr, node.shape_env)
        return 1 if isinstance(found, Size) and hint_of(found) == 1 and _is_one(number) else found

    def of_size(self, number: Any) -> Any:
        """As `of`, the size of a tensor: not negative, as a symbol made for a number of the program's may be."""
        found = self.of(number)
        if isinstance(found, Size):
            match list(found.terms.items()):
                case [((symbol,), 1)]:
                    symbol.low = max(symbol.low, 0)
        return found

    def _float(self, expr: Any, env: Any) -> float | RuntimeFloat:
        if expr.is_number:
            return float(expr)
        tree = symbols.tree_of(expr)
        for symbol in expr.free_symbols:
            if symbol.is_integer:
                self._of(symbol, env)
        name = tree if isinstance(tree, str) else self._name_of(tree)
        bits = self._name_of(("bits", name))
        if name != tree:
            self.definitions.setdefault(name, symbols.readable(tree))
        self.definitions.setdefault(bits, f"float_bits({name})")
        known = self.symbols.setdefault(bits, SizeSymbol(bits, -UNBOUNDED, 0))
        return RuntimeFloat(name, Size({(known,): 1}))

    def _name_of(self, tree: symbols.Tree) -> str:
        return self._names.setdefault(tree, f"w{len(self._names)}")

    def _of(self, expr: Any, env: Any) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            factor = _divisor(expr, env)
            if factor != 1:
                return self._derive(("floordiv", str(expr), factor), expr // factor, env) * factor
            return Size({(self._symbol(str(expr), expr, env),): 1})
        kind = type(expr).__name__
        if kind in ("FloorDiv", "CleanDiv"):
            exact = quotient(self._of(expr.args[0], env), self._of(expr.args[1], env))
            if exact is not None:
                return exact
        if kind == "Add":
            return functools.reduce(lambda a, b: a + b, (self._of(part, env) for part in expr.args))
        if kind == "Mul" and all(part.is_Integer or not part.is_Number for part in expr.args):
            return functools.reduce(lambda a, b: a * b, (self._of(part, env) for part in expr.args))
        if kind in ("Pow", "PowByNatural") and expr.args[1].is_Integer and 0 < int(expr.args[1]) < 6:
            return functools.reduce(lambda a, b: a * b, [self._of(expr.args[0], env)] * int(expr.args[1]))
        return self._other(expr, env)

    def _other(self, expr: Any, env: Any) -> Any:
        """What is no polynomial: a symbol of its own."""
        for symbol in expr.free_symbols:
            self._of(symbol, env)
        return self._derive(symbols.tree_of(expr), expr, env)

    def _derive(self, tree: symbols.Tree, expr: Any, env: Any) -> Size:
        found = self._derived.get(tree)
        if found is None:
            name = f"z{len(self._derived)}"
            self.definitions[name] = symbols.readable(tree)
            hint = _derived_hint(tree, {str(symbol): _hint(symbol, env) for symbol in expr.free_symbols})
            found = self._derived[tree] = Size({(self._symbol(name, expr, env, hint),): 1})
        return found

    def _symbol(self, name: str, expr: Any, env: Any, hint: int | None = None) -> SizeSymbol:
        known = self.symbols.get(name)
        if known is None:
            bounds = env.bound_sympy(expr)
            low, high = (int(bound) if bound.is_Integer else None for bound in (bounds.lower, bounds.upper))
            at_hand = _hint(expr, env) if hint is None else hint
            of_data = not expr.free_symbols <= torch_compat.symbol_hints(env).keys()
            least = -UNBOUNDED if low is None else low  # a number of the program's may be negative
            known = self.symbols[name] = SizeSymbol(name, least, int(at_hand), high, of_data)
        return known


def _is_one(number: torch.SymInt) -> bool:
    """Whether the trace relied on the size being 1, as broadcasting does, though the symbols in it may vary."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(number == 1)


def _divisor(symbol: Any, env: Any) -> int:
    """What the symbol is known to be a multiple of: the trace relied on it, and a guard sees to it."""
    known = [mod.args[1] for mod in getattr(env, "divisible", ()) if mod.args[0] == symbol and mod.args[1].is_Integer]
    return math.lcm(*map(int, known))


def _hint(expr: Any, env: Any) -> int | float:
    known = torch_compat.symbol_hints(env).get(expr, UNKNOWN_HINT)
    return int(known) if float(known).is_integer() else float(known)


def _derived_hint(tree: symbols.Tree, values: dict[str, int | float]) -> int:
    try:
        return int(symbols.value_of(tree, values))
    except (ArithmeticError, ValueError):  # what is assumed of a number that no trace has seen need not fit the others
        return UNKNOWN_HINT
