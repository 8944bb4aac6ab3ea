"""Index expressions keep their value through every simplification."""

import itertools
import random
import sys
from pathlib import Path

import pytest

from dynajit.loopir import index as ix
from dynajit.loopir.size import Size, SizeSymbol, Undecided, divides

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "codegen"))

from reference_interpreter import evaluate


def _axes(*sizes: int) -> list[ix.Index]:
    return [ix.axis(f"t{i}", size) for i, size in enumerate(sizes)]


def _only(index: ix.Index) -> ix.Axis:
    atom = index.terms[0][0]
    assert isinstance(atom, ix.Axis)
    return atom


def test_views_simplify_to_plain_axes() -> None:
    i, j, k = _axes(4, 128, 768)
    flat = ix.linearise((i, j, k), (98304, 768, 1))
    assert ix.unravel(flat, (512, 768)) == (i * 128 + j, k)
    assert ix.unravel(flat, (4, 128, 768)) == (i, j, k)
    (r,) = _axes(512)
    assert ix.linearise(ix.unravel(r, (4, 128)), (128, 1)) is r
    assert ix.linearise(ix.unravel(r, (4, 8, 16)), (128, 16, 1)) is r


@pytest.mark.parametrize("seed", range(30))
def test_random_expressions_agree_with_integers(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([1, 2, 3, 4, 6]) for _ in range(3)]
    axes = _axes(*sizes)
    pool = [(a, (lambda v, n=n: v[n])) for n, a in enumerate(axes)]
    for _ in range(12):
        (a, fa), (b, fb) = rng.choice(pool), rng.choice(pool)
        c, d = rng.choice([1, 2, 3, 4, 12]), rng.choice([1, 2, 3, 4, 6])
        kind = rng.randrange(4)
        if kind == 0:
            pool.append((a * c + b, lambda v, fa=fa, fb=fb, c=c: fa(v) * c + fb(v)))
        elif kind == 1:
            pool.append((ix.floordiv(a, d), lambda v, fa=fa, d=d: fa(v) // d))
        elif kind == 2:
            pool.append((ix.mod(a, d), lambda v, fa=fa, d=d: fa(v) % d))
        else:
            pool.append((a * -1 + c, lambda v, fa=fa, c=c: c - fa(v)))
    for values in itertools.product(*(range(size) for size in sizes)):
        env = {_only(a): v for a, v in zip(axes, values, strict=True) if a.terms}
        for expression, expected in pool:
            assert evaluate(expression, env) == expected(values)
            assert expression.low <= expected(values) <= expression.high


def test_substitute_simplifies_again() -> None:
    i, j = _axes(12, 5)
    (r,) = [ix.axis("r", 60)]
    position = ix.unravel(r, (12, 5))
    put_back = [ix.substitute(p, {_only(r): i * 5 + j}) for p in position]
    assert put_back == [i, j]


def test_stride_of() -> None:
    i, j = _axes(12, 8)
    assert ix.stride_of(i * 8 + j, _only(j)) == 1
    assert ix.stride_of(ix.floordiv(i, 3) + j, _only(j)) == 1
    assert ix.stride_of(ix.floordiv(i, 3) + j, _only(i)) is None


def test_remainders_of_symbolic_sizes_are_exact_or_an_error() -> None:
    size = Size({(SizeSymbol("s0", 2, 8),): 1})
    assert (size * 6) % 3 == 0 and (size * 6) % size == 0
    assert divides(3, size * 6) and divides(size, size * 6)
    assert not divides(4, size * 6) and not divides(size, 12)
    for one, other in ((size, 4), (12, size), (size + 1, size)):
        with pytest.raises(Undecided):
            one % other
