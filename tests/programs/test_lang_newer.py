"""Programs in the words of newer Pythons: syntax and library that CPython 3.12, 3.13 or 3.14 brought.

Their source is text, for older Pythons and the tools that read this tree can't parse it. One more: a function of one
tensor in its version's `SOURCES`, and in `EXPECTED` what is expected of it where that isn't one graph and no break.
"""

import ast
import linecache
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

SOURCES: dict[tuple[int, int], str] = {}

SOURCES[3, 12] = """
def generic_function(x):
    def scaled[T](value: T, by: float = 2.0) -> T:
        return value * by
    return scaled(x), [p.__name__ for p in scaled.__type_params__]

def generic_function_that_leaves(x):
    def scaled[T: int, U: (int, str), *Ts, **P](value: T, *rest: *Ts) -> T:
        return value
    names = {parameter: parameter.__name__ for parameter in scaled.__type_params__}
    kinds = [type(parameter).__name__ for parameter in names]
    print("here")
    first, second, *_ = scaled.__type_params__
    same = first is next(iter(names))
    return x + 1, [*names.values()], kinds, first.__bound__, second.__constraints__, same, scaled(x)

def nested_quotes(x):
    names = {"a": 1}
    return x + 1, f"{names["a"]} {f"{f"{x.ndim}"}"}"

def comprehension_reads_outer(x):
    i = 5
    rows = [i * x for i in range(3)]
    return rows, i, {k: v + i for k, v in zip("ab", rows)}

def batches(x):
    import itertools
    return [x * sum(b) for b in itertools.batched(range(5), 2)]

def exception_groups(x):
    try:
        raise ExceptionGroup("two", [ValueError(1), TypeError(2)])
    except* ValueError as group:
        x = x + len(group.exceptions)
    except* TypeError as group:
        x = x * 3
    return x
"""

SOURCES[3, 13] = '''
def locals_are_a_copy(x):
    a = 1
    kept = locals()
    a = 2
    return x * a, kept["a"], sorted(kept), locals()["a"]

def locals_in_comprehension(x):
    return x + 1, [sorted(locals()) for i in range(2)]

def exec_by_keywords(x):
    scope = {"n": 3}
    exec("m = n + 1", globals=scope)
    return x * scope["m"]

def copy_with_other_fields(x):
    import copy, dataclasses
    @dataclasses.dataclass(frozen=True)
    class Point:
        a: int
        b: int = 2
    p = copy.replace(Point(1), b=5)
    return x * p.a + p.b

def type_parameter_defaults(x):
    def same[T = int](value: T) -> T:
        return value
    return same(x) + 1, same.__type_params__[0].__default__ is int

def fused(x):
    import math
    return x * math.fma(2.0, 3.0, 1.0)

def replaced_by_keyword(x):
    return x + 1, "aaa".replace("a", "b", count=2)

def class_knows_its_attributes(x):
    class Holder:
        def __init__(self):
            self.value = 3
    return x * Holder().value, Holder.__static_attributes__

def deprecated_function(x):
    import warnings
    @warnings.deprecated("old")
    def old(v):
        return v * 2
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        y = old(x)
    return y, [str(w.message) for w in seen]

def docstring_is_dedented(x):
    def f():
        """One.

            Two.
        """
    return x + 1, f.__doc__
'''

SOURCES[3, 14] = """
def template(x):
    name, width = "n", 4
    t = t"a {name!r:>{width}} b {x.ndim}"
    parts = [(i.value, i.expression, i.conversion, i.format_spec) for i in t.interpolations]
    return x + len(t.strings), t.strings, parts

def template_of_a_tensor(x):
    t = t"{x}"
    return t.interpolations[0].value * 2, t.values

def templates_added(x):
    a, b = 1, 2
    return x + 1, (t"{a}" + t"{b}").values, [type(p).__name__ for p in t"x{a}y"]

def template_read(x):
    from string.templatelib import Interpolation
    found = []
    for part in t"{x.ndim} rows {'a'!r:>{4}}!":
        match part:
            case str():
                found.append(part)
            case Interpolation(value, expression, conversion, spec):
                found.append((value, expression, conversion, format(value, spec)))
    return x + 1, found

def template_that_leaves(x):
    y = x + 1
    t = t"{y!s:{x.ndim}}b{x.ndim}" + t"c"
    print("here")
    first, second = t.interpolations
    return y * 2, t.strings, first.value, first.conversion, first.format_spec, [*t][1:], second.expression

def template_by_hand(x):
    from string.templatelib import Interpolation, Template
    t = Template("a", "b", Interpolation(x + 1, "n", "r"), Interpolation(3), "c")
    try:
        t.text
    except AttributeError as error:
        return t.strings, t.values[0] * 2, t.interpolations[1].expression, str(error)

def annotations_later(x):
    def f(a: Missing, b: int = 1):
        return a * b
    return f(x, 3)

def annotations_read(x):
    def f(a: int, b: "str" = 1) -> float:
        return a * b
    return f(x, 3), f.__annotations__

def class_annotations(x):
    class Point:
        a: int
        b: float = 2.0
    return x * Point.b, Point.__annotations__

def dataclass_inside(x):
    import dataclasses
    @dataclasses.dataclass
    class Point:
        a: int
        b: float = 2.0
    return x * Point(1).b + Point(1).a, repr(Point(3))

def except_without_brackets(x):
    try:
        [][1]
    except ValueError, IndexError:
        x = x + 1
    return x

def strict_map(x):
    pairs = list(map(lambda a, b: a * b, [x, x], [1, 2], strict=True))
    try:
        list(map(lambda a, b: a, [1], [1, 2], strict=True))
    except ValueError as error:
        return pairs, str(error)

def strict_map_of_iterators(x):
    pairs = map(lambda a, b: a * b, [x, x + 1], [1, 2], strict=True)
    first = next(pairs)
    left = [iter(range(n)) for n in (2, 2, 4)]
    sums = []
    try:
        for s in map(lambda *row: sum(row), *left, strict=True):
            sums.append(s)
    except ValueError as error:
        return first, [*pairs], sums, str(error), [*left[2]]

def reduced_from(x):
    import functools
    return functools.reduce(lambda a, b: a * b, [x, 2], initial=3)

def placeholders(x):
    import functools
    squared = functools.partial(pow, functools.Placeholder, 2)
    given = functools.partial(lambda *a, **k: (a, k), functools.Placeholder, 2, functools.Placeholder, 4, z=1)
    partly = functools.partial(given, x)
    try:
        partly()
    except TypeError as error:
        text = str(error)
    try:
        functools.partial(given, functools.Placeholder)
    except TypeError as error:
        text += str(error)
    return squared(x), squared(3), given(x, 3, 5), partly(5), partly.args[2:], text

def placeholders_of_methods(x):
    import functools
    class Holder:
        method = functools.partialmethod(lambda self, *a: a, functools.Placeholder, 9)
    return Holder().method(x + 1)

def tuple_of_a_generator_in_try(x):
    try:
        return tuple(n * x for n in (1, 0)), x
    except ZeroDivisionError:
        return x + 1

def is_none(x):
    import operator
    return x + operator.is_none(None) + operator.is_not_none(None)

def largest_heap(x):
    import heapq
    h = []
    for n in (3, 1, 2):
        heapq.heappush_max(h, n)
    return x * heapq.heappop_max(h), h

def not_implemented_has_no_truth(x):
    y = x + 1
    try:
        bool(NotImplemented)
    except TypeError as error:
        return y, str(error)

kind = int

def annotations_of_a_global(x):
    class Point:
        a: kind
        def method(self, b: kind):
            return b
    return x + 1, Point.__annotations__, Point.method.__annotations__

def unions(x):
    import typing
    return x + 1, (int | str) == typing.Union[int, str], isinstance(int | str, typing.Union), repr(int | None)

def small_and_large_numbers(x):
    return x + 255, x + 256, x - 1, x[0] * 0

def return_in_finally(x):
    for n in range(2):
        try:
            x = x / n
        except ZeroDivisionError:
            x = x + 1
        else:
            x = x * 2
    return x, all(n for n in (1, 2)), any(n > 1 for n in (1, 2)), tuple(n for n in (1, 2))

def borrowed_loads(x):
    a = x
    del x
    b = a
    a = a + 1
    return a, b, [a for a in (a, b)], (lambda: b)()

def float_from_number(x):
    return x * float.from_number(3)

def generator_raises(x):
    try:
        return tuple(1 // n for n in (1, 0)), x
    except ZeroDivisionError as error:
        places, tb = [], error.__traceback__
        while tb is not None:
            places.append(tb.tb_frame.f_code.co_name)
            tb = tb.tb_next
        return x + 1, places
"""

TYPE_PARAMETERS = "type parameters are made anew at each call"
#: what is expected of a program, where that is not one graph and no break
EXPECTED: dict[str, dict[str, Any]] = {
    "generic_function_that_leaves": {"breaks": None, "never_repeats": TYPE_PARAMETERS},
    "type_parameter_defaults": {"breaks": None, "never_repeats": TYPE_PARAMETERS},
    "copy_with_other_fields": {"breaks": None, "never_repeats": "a class that leaves the trace"},
    "deprecated_function": {"breaks": None, "never_repeats": "a list of warnings"},
    "template_that_leaves": {"graphs": None, "breaks": None},
    "not_implemented_has_no_truth": {"breaks": 1},
    "generator_raises": {"graphs": None, "breaks": None},
    "placeholders_of_methods": {"breaks": None},
}


def programs() -> list[Any]:
    """Each program that this Python can parse."""
    found = []
    for version, source in SOURCES.items():
        if version <= sys.version_info[:2]:
            name = f"<programs of {version[0]}.{version[1]}>"
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            namespace: dict[str, Any] = {"__name__": f"newer_{version[0]}_{version[1]}"}
            tree = ast.parse(source, name)
            exec(compile(tree, name, "exec"), namespace)
            written = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
            found += [pytest.param(namespace[function], id=function) for function in written]
    return found


@pytest.mark.skipif(sys.version_info < (3, 12), reason="these are programs of 3.12 and later")
@pytest.mark.parametrize("program", programs())
def test_newer(program: Callable[[torch.Tensor], Any]) -> None:
    expected = {"graphs": 1, "breaks": 0, **EXPECTED.get(program.__name__, {})}
    assert_same(program, torch.arange(6.0).reshape(2, 3), **expected)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are asked for later from 3.14 on")
def test_annotations_follow_their_globals() -> None:
    program = next(parameters.values[0] for parameters in programs() if parameters.id == "annotations_of_a_global")
    compiled, x = dynajit.compile(program, backend="eager"), torch.ones(2)
    for kind in (int, float, torch.Tensor):
        program.__globals__["kind"] = kind
        assert compiled(x)[1:] == program(x)[1:] == ({"a": kind}, {"b": kind})
