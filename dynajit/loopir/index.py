"""Integer index expressions: constant + sum of coefficient x atom, kept in a normal form.

In:  axes (`axis(name, size)`: an integer from 0 to size - 1), arithmetic with constants, `floordiv`, `mod`.
Out: `Index`, interned, so equal expressions in normal form are the same object: compare with `is`. Each knows its
range. An atom is an axis, or a floor division or remainder of another index by a positive constant that could not be
simplified.
Sizes, coefficients, constants and divisors may be symbolic (`size.py`), where comparisons are proofs.
One more kind of atom: a class beside `Div`, with `low`, `high` and a case in `substitute`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynajit.loopir.size import UNBOUNDED, Size, common, divides, hint_of, least_of, quotient


class Axis:
    """A loop variable or a position in a dimension: an integer from 0 to size - 1."""

    __slots__ = ("high", "low", "name", "order", "size")

    def __init__(self, name: str, size: int, order: int) -> None:
        self.name = name
        self.size = size
        self.low = 0
        self.high = max(size - 1, 0)
        self.order = order

    def __repr__(self) -> str:
        return self.name


class Div:
    """floor(index / divisor), divisor > 1."""

    __slots__ = ("divisor", "high", "index", "low", "order")

    def __init__(self, index: Index, divisor: int, order: int) -> None:
        self.index = index
        self.divisor = divisor
        self.low: int = _rounded(index.low, divisor, -UNBOUNDED)
        self.high: int = _rounded(index.high, divisor, UNBOUNDED)
        self.order = order

    def __repr__(self) -> str:
        return f"({self.index!r} // {self.divisor})"


def _rounded(bound: Any, divisor: Any, unknown: int) -> Any:
    """floor(bound / divisor), or a bound of that."""
    if isinstance(bound, int) and isinstance(divisor, int):
        return bound // divisor
    exact = quotient(bound, divisor)
    if exact is not None:
        return exact
    if least_of(bound) < 0:
        return unknown
    return bound if unknown > 0 else 0


class Mod:
    """index - divisor * floor(index / divisor), divisor > 1."""

    __slots__ = ("divisor", "high", "index", "low", "order")

    def __init__(self, index: Index, divisor: int, order: int) -> None:
        self.index = index
        self.divisor = divisor
        self.low = 0
        self.high = divisor - 1
        self.order = order

    def __repr__(self) -> str:
        return f"({self.index!r} % {self.divisor})"


Atom = Axis | Div | Mod
Terms = tuple[tuple[Atom, int], ...]


class Index:
    """constant + sum(coefficient * atom); terms in order of the atoms' creation. Make them with the functions below."""

    __slots__ = ("constant", "high", "low", "terms")

    def __init__(self, constant: int, terms: Terms) -> None:
        self.constant = constant
        self.terms = terms
        low: int = constant
        high: int = constant
        for atom, coefficient in terms:
            if coefficient >= 0:  # of a symbolic one that may be more is not known
                low += coefficient * atom.low
                high += coefficient * atom.high
            elif coefficient <= 0:
                low += coefficient * atom.high
                high += coefficient * atom.low
            else:
                low, high = -UNBOUNDED, UNBOUNDED
                break
        self.low: int = low
        self.high: int = high

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, (int, Size)):
            return _intern(self.constant + other, self.terms)
        if not other.terms:
            return _intern(self.constant + other.constant, self.terms)
        if not self.terms:
            return _intern(self.constant + other.constant, other.terms)
        return add_scaled(((self, 1), (other, 1)))

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return _intern(0, ())
        return _intern(self.constant * factor, tuple((atom, value * factor) for atom, value in self.terms))

    def __repr__(self) -> str:
        parts = [repr(atom) if value == 1 else f"{value}*{atom!r}" for atom, value in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


_interned: dict[tuple[int, Terms], Index] = {}
_axes: dict[tuple[str, int], Index] = {}
_divs: dict[tuple[Index, int], Div] = {}
_mods: dict[tuple[Index, int], Mod] = {}
_order = 0


def _next_order() -> int:
    global _order
    _order += 1
    return _order


def clear() -> None:
    """Forget the interned expressions. Indices made before and after must not be compared."""
    for table in (_interned, _divs, _mods):
        table.clear()  # type: ignore[attr-defined]
    _axes.clear()


def _intern(value: int, terms: Terms) -> Index:
    key = (value, terms)
    found = _interned.get(key)
    if found is None:
        found = _interned[key] = Index(value, terms)
    return found


def constant(value: int) -> Index:
    """The index that is always `value`."""
    return _intern(value, ())


def axis(name: str, size: int) -> Index:
    """The axis of that name and size; an axis of size 1 is the constant 0."""
    if size == 1:
        return _intern(0, ())
    key = (name, size)
    found = _axes.get(key)
    if found is None:
        found = _axes[key] = _intern(0, ((Axis(name, size, _next_order()), 1),))
    return found


def add_scaled(parts: Sequence[tuple[Index, int]]) -> Index:
    """sum(factor * index)."""
    total = 0
    sums: dict[Atom, int] = {}
    for index, factor in parts:
        if factor == 0:
            continue
        total += index.constant * factor
        for atom, value in index.terms:
            sums[atom] = sums.get(atom, 0) + value * factor
    terms = [(atom, value) for atom, value in sums.items() if value]
    if len(terms) > 1:
        for atom, value in terms:
            if isinstance(atom, Mod):
                joined = _rejoin(total, dict(terms), atom, value)
                if joined is not None:
                    return joined
        terms.sort(key=_atom_order)
    return _intern(total, tuple(terms))


def _atom_order(term: tuple[Atom, int]) -> int:
    return term[0].order


def _rejoin(total: int, sums: dict[Atom, int], remainder: Mod, factor: int) -> Index | None:
    """c * (x % m) + c * m * (x // m) is c * x."""
    quotient = floordiv(remainder.index, remainder.divisor)
    if quotient.constant or len(quotient.terms) != 1:
        return None
    atom, scale = quotient.terms[0]
    if scale != 1 or sums.get(atom) != factor * remainder.divisor:
        return None
    del sums[atom]
    del sums[remainder]
    rest = _intern(total, tuple(sorted(sums.items(), key=_atom_order)))
    return add_scaled(((rest, 1), (remainder.index, factor)))


def _split(index: Index, divisor: int) -> tuple[Index, Index]:
    """index = divisor * first + second, with all of the multiples of `divisor` in first."""
    outside, inside = [], []
    for atom, value in index.terms:
        if divides(divisor, value):
            outside.append((atom, value // divisor))
        else:
            inside.append((atom, value))
    whole, remainder = _divmod(index.constant, divisor)
    return _intern(whole, tuple(outside)), _intern(remainder, tuple(inside))


def _divmod(value: Any, divisor: Any) -> tuple[Any, Any]:
    if isinstance(value, int) and isinstance(divisor, int):
        return divmod(value, divisor)
    exact = quotient(value, divisor)
    return (0, value) if exact is None else (exact, 0)


def _scale(rest: Index, divisor: int) -> tuple[Index, Index, int] | None:
    """rest = g * first + second with 0 <= second < g, for a g > 1 that divides `divisor`: only `first` matters then."""
    for candidate in sorted({common(divisor, value) for _, value in rest.terms}, key=hint_of, reverse=True):
        if candidate > 1 and candidate != divisor:
            first, second = _split(rest, candidate)
            if second.low >= 0 and second.high < candidate:
                return first, second, candidate
    return None


def floordiv(index: Index, divisor: int) -> Index:
    """floor(index / divisor) for divisor > 0."""
    if divisor == 1:
        return index
    whole, rest = _split(index, divisor)
    if rest.low >= 0 and rest.high < divisor:
        return whole
    scaled = _scale(rest, divisor)
    if scaled is not None:
        # floor((g*x + c) / (g*d)) = floor(x / d)
        return whole + floordiv(scaled[0], divisor // scaled[2])
    if not rest.constant and len(rest.terms) == 1 and rest.terms[0][1] == 1:
        inner = rest.terms[0][0]
        if isinstance(inner, Div):
            return whole + floordiv(inner.index, inner.divisor * divisor)
    key = (rest, divisor)
    atom = _divs.get(key)
    if atom is None:
        atom = _divs[key] = Div(rest, divisor, _next_order())
    return whole + _intern(0, ((atom, 1),))


def mod(index: Index, divisor: int) -> Index:
    """index modulo divisor > 0, never negative."""
    if divisor == 1:
        return constant(0)
    rest = _split(index, divisor)[1]
    if rest.low >= 0 and rest.high < divisor:
        return rest
    scaled = _scale(rest, divisor)
    if scaled is not None:
        # (g*x + c) % (g*m) = g * (x % m) + c
        return mod(scaled[0], divisor // scaled[2]) * scaled[2] + scaled[1]
    key = (rest, divisor)
    atom = _mods.get(key)
    if atom is None:
        atom = _mods[key] = Mod(rest, divisor, _next_order())
    return _intern(0, ((atom, 1),))


def substitute(index: Index, values: Mapping[Atom, Index]) -> Index:
    """`index` with axes replaced by indices, simplified again."""
    if not index.terms:
        return index
    parts: list[tuple[Index, int]] = [(_intern(index.constant, ()), 1)]
    for atom, value in index.terms:
        replacement = values.get(atom)
        if replacement is None:
            if isinstance(atom, Div):
                replacement = floordiv(substitute(atom.index, values), atom.divisor)
            elif isinstance(atom, Mod):
                replacement = mod(substitute(atom.index, values), atom.divisor)
            else:
                replacement = _intern(0, ((atom, 1),))
        parts.append((replacement, value))
    return add_scaled(parts)


def axes_of(index: Index) -> set[Axis]:
    """The axes an index depends on."""
    found: set[Axis] = set()
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            found.add(atom)
        else:
            found |= axes_of(atom.index)
    return found


def stride_of(index: Index, by: Axis) -> int | None:
    """How far the index moves when `by` moves by one; None if that is not the same everywhere."""
    stride = 0
    for atom, value in index.terms:
        if atom is by:
            stride = value
        elif not isinstance(atom, Axis) and by in axes_of(atom.index):
            return None
    return stride


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a shape, in elements."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def linearise(indices: Sequence[Index], strides: Sequence[int]) -> Index:
    """sum(stride * index)."""
    return add_scaled(tuple(zip(indices, strides, strict=True)))


def unravel(index: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """Position in a row-major `shape` of the element number `index`."""
    result = []
    step = 1
    total = 1
    for size in shape:
        total *= size
    for size in shape:
        total //= max(size, 1)
        step = max(total, 1)
        if size == 1:
            result.append(constant(0))
        else:
            whole = floordiv(index, step)
            result.append(whole if index.high < step * size else mod(whole, size))
    return tuple(result)
