"""Programs about tuples, lists, dicts, sets, slices, ranges, unpacking and comprehensions."""

import collections
import itertools
import types
from typing import Any

import pytest
import torch
from cases import Case, Cases
from torch import Tensor

import dynajit
from dynajit.testing import compare

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


@cases(x)
def list_literal_and_index(x: Tensor) -> Any:
    items = [x, x + 1, 3]
    return items[1] * items[-1], items[::2], items


@cases(x)
def list_methods(x: Tensor) -> Any:
    items: list[Any] = []
    items.append(x)
    items.extend([x + 1, x + 2])
    items.insert(1, "name")
    first = items.pop(0)
    last = items.pop()
    items += (4, 5)
    items *= 2
    items.reverse()
    items.remove(4)
    del items[0]
    items[0] = 7
    items[1:2] = [8, 9, 10]
    numbers = [3, 5, 5]
    return first + last, items, numbers.index(5), numbers.count(5), len(items), 3 in numbers, 7 not in numbers


@cases(x)
def list_sort(x: Tensor) -> Any:
    names = ["bb", "a", "ccc"]
    names.sort(key=len, reverse=True)
    pairs = sorted([(2, x), (1, x + 1)], key=lambda pair: pair[0])
    return names, pairs[0][1], sorted(names), sorted({"z": 1, "y": 2}), sorted([3, 1, 2], reverse=True)


@cases(x)
def list_copy_is_another(x: Tensor) -> Any:
    first = [x]
    second, third = first.copy(), first[:]
    second.append(1)
    third.append(2)
    return first, second, third, first is second, first == [x], list(first) is first, x * 2


@cases(x)
def nested_lists(x: Tensor) -> Any:
    rows = [[0] * 2 for _ in range(3)]
    rows[1][0] = 5
    shared = [[0]] * 2
    shared[0].append(1)
    return rows, shared, shared[0] is shared[1], x + rows[1][0]


@cases(x)
def tuples(x: Tensor) -> Any:
    a = (x, 2, "three")
    b = a + (4,)
    return (
        b[1:],
        b * 2,
        a == (x, 2, "three"),
        len(b),
        a.index(x),
        a.count(x + 1) if len(a) > 3 else b[1:].index(2),
        (1, 2) < (1, 3),
        hash((1, "a")),
        x + 1,
    )


@cases(x)
def unpacking(x: Tensor) -> Any:
    a, (b, *c), *d = 1, (2, 3, 4), 5, 6
    first, *rest = x
    *_, last = [x, x + 1]
    [p, q] = {"k": 1, "l": 2}
    return a, b, c, d, first, rest, last, p, q


@cases(x)
def star_displays(x: Tensor) -> Any:
    a, d = [1, 2], {"p": x}
    return [*a, *range(3), *"ab"], (*a, x), {*a, 2, 3}, {**d, "q": 1, "p": 2}, x + 1


@cases(x)
def swapping(x: Tensor) -> Any:
    a, b, c = x, x + 1, x + 2
    a, b = b, a
    a, b, c = c, a, b
    return a, b, c


@cases(x)
def dict_methods(x: Tensor) -> Any:
    d: dict[Any, Any] = {"a": x, "b": 2}
    d["c"] = x + 1
    d.update(b=3, e=4)
    d.update({"f": 5})
    d.update([("g", 6)])
    gone = d.pop("f")
    none = d.pop("zz", None)
    last = d.popitem()
    d.setdefault("h", []).append(1)
    d.setdefault("h", []).append(2)
    del d["e"]
    return d, gone, none, last, d.get("a"), d.get("no"), d.get("no", 3), "a" in d, "no" in d, len(d), list(d), d.copy()


@cases(x)
def dict_iteration(x: Tensor) -> Any:
    d = {"a": x, "b": x + 1}
    total = x * 0
    for key in d:
        total = total + d[key]
    for value in d.values():
        total = total * value
    for key, value in d.items():
        total = total + value + len(key)
    return total, list(d.keys()), list(reversed(d)), d.keys() & {"a"}, d.keys() | {"z"}, dict(zip("ab", [1, 2]))


@cases(x)
def dict_operators(x: Tensor) -> Any:
    a, b = {"p": 1, "q": x}, {"p": 2}
    c = a | b
    a |= {"r": 3}
    return a, c, {"p": 1} == {"p": 1}, {"p": 1} != {"p": 2}, a is not c, x + 1


@cases(x)
def dict_keys_of_many_types(x: Tensor) -> Any:
    d = {1: "int", "1": "str", (1, 2): "tuple", None: "none", 2.5: "float", int: "type", len: "builtin", True: "bool"}
    d[torch.float32] = "dtype"
    d[1.0] = "one"
    return d, d[1], d[(1, 2)], d[int], d[len], d[torch.float32], x + 1


@cases(x)
def tensors_as_keys(x: Tensor) -> Any:
    y = x + 1
    d = {x: 1, y: 2}
    d[x] = 3
    return d[x] + d[y] + y, x in d, list(d.values())


@cases(x)
def dict_order_after_changes(x: Tensor) -> Any:
    d = {"a": 1, "b": 2, "c": 3}
    del d["a"]
    d["a"] = 4
    d["b"] = 5
    o = collections.OrderedDict(a=1, b=2)
    o.move_to_end("a")
    o["c"] = 3
    o.move_to_end("c", last=False)
    return list(d.items()), list(o.items()), o, x + 1


@cases(x)
def sets(x: Tensor) -> Any:
    s = {1, 2, 3}
    s.add(4)
    s.discard(1)
    s.remove(2)
    t = frozenset([3, 9])
    s |= {5}
    s -= {5}
    u = s.union([7])
    u.update([8], (9,))
    u.intersection_update({7, 8, 3, 4}) if hasattr(u, "intersection_update") else None
    return s, t, s & t, s | t, s - t, s ^ t, u, 3 in s, s <= u, s.isdisjoint({100}), len(s), x + 1


@cases(x)
def sets_and_views(x: Tensor) -> Any:
    keys, items = {"a": 1, "b": 2}.keys(), {"a": 1}.items()
    frozen, pairs = frozenset("bc"), frozenset([("a", 1), ("b", 2)])
    found = [keys & frozen, keys | frozen, keys - frozen, keys ^ frozen]
    found += [frozen & keys, frozen | keys, frozen - keys, frozen ^ keys, {"b"} & keys, {"b"} - keys]
    found += [items & pairs, pairs & items, pairs ^ items, keys & {"a": 3}.keys()]
    return found, [type(each) for each in found], x + 1


@cases(x)
def set_iteration(x: Tensor) -> Any:
    total = x
    for n in {3, 1, 2}:
        total = total * 2 + n
    return total, sorted({"b", "a"}), max({1, 5, 2}), sum({1, 2}), {n % 2 for n in range(5)}


@cases(x)
def ranges_and_slices(x: Tensor) -> Any:
    r = range(2, 10, 3)
    s = slice(1, None)
    items = list(range(8))
    total = x
    for i in range(3, 0, -1):
        total = total + i
    return (
        total,
        r[1],
        len(r),
        5 in r,
        list(r),
        items[s],
        s.start,
        s.stop,
        items[::-1],
        items[-3:-1],
        r == range(2, 11, 3),
    )


@cases(x)
def comprehensions(x: Tensor) -> Any:
    k = 3
    a = [i * k for i in range(4) if i % 2]
    b = {i: x + i for i in range(2)}
    c = {i % 2 for i in range(5)}
    d = [(i, j) for i in range(2) for j in range(i + 1)]
    e = [[i + j for j in range(2)] for i in range(2)]
    return a, b, c, d, e, [t.sum() for t in x], sum(i for i in range(4)), x * k


@cases(x)
def comprehension_names_do_not_leak(x: Tensor) -> Any:
    i = 100
    a = [i for i in range(3)]
    b = [f() for f in [lambda: i for i in range(3)]]
    c = [(i := j) for j in range(5)]
    return i, a, b, c, x + i


@cases(x)
def comprehension_variables_beside_cells(x: Tensor) -> Any:
    i = 100
    read = lambda: i  # noqa: E731
    captured = [f() for f in [lambda: i for i in range(3)]]
    cells = [i for i in read.__closure__ or ()]
    return i, read(), captured, len(cells), [i for i in range(4)], x + i


@cases(x)
def growing_while_iterating(x: Tensor) -> Any:
    items = [1, 2]
    for item in items:
        if len(items) < 6:
            items.append(item + 1)
    return items, x + len(items)


@cases(x)
def enumerate_zip_reversed(x: Tensor) -> Any:
    total = x
    for i, (a, b) in enumerate(zip([1, 2, 3], (x, x + 1), strict=False), start=5):
        total = total + i * a + b
    for n in reversed([1, 2]):
        total = total * n
    for n in reversed(range(3)):
        total = total - n
    it = iter([1, 2, 3])
    return total, next(it), list(it), next(it, "end"), list(zip("ab", range(2), [x, x])), list(reversed("abc"))


@cases(x)
def min_max_sum_any_all(x: Tensor) -> Any:
    items = [3, 1, 2]
    return (
        min(items),
        max(items),
        sum(items, 10),
        min("b", "a"),
        max(items, key=lambda v: -v),
        min([], default=x),
        any(items),
        all([]),
        any([]),
        all([1, 0]),
        sum([x, x + 1]),
        max(1, 2.5),
        abs(-3),
        round(2.567, 1),
        divmod(7, 2),
        pow(2, 3, 5),
    )


@cases(x)
def map_filter(x: Tensor) -> Any:
    return (
        list(map(lambda a, b: a + b, [x, x], [1, 2])),
        list(filter(None, [0, 1, "", "a"])),
        list(filter(lambda v: v > 1, range(4))),
    )


@cases([1, x, {"k": [x + 1, (2, 3)]}], {"p": x})
def nested_arguments(items: list[Any], d: dict[str, Any]) -> Any:
    return items[1] + items[2]["k"][0] + items[2]["k"][1][1] + d["p"], items, d


@cases(x)
def named_tuples(x: Tensor) -> Any:
    p = Point(x, y=2)
    q = p._replace(y=3)
    a, b = q
    return (
        p,
        q,
        p.x + b,
        p._fields,
        p._asdict(),
        a,
        Point(1, 2) == (1, 2),
        Point._make([1, 2]),
        isinstance(p, tuple),
        p[0],
    )


Point = collections.namedtuple("Point", ["x", "y"])


@cases(Point(x, 3))
def named_tuple_argument(p: Any) -> Any:
    return p.x * p.y, p


@cases(x)
def default_dicts(x: Tensor) -> Any:
    d: Any = collections.defaultdict(list)
    d["a"].append(x)
    d["a"].append(1)
    d["b"]
    return d, d["a"][0] + 1, "c" in d, len(d)


@cases(x)
def counters_and_deques(x: Tensor) -> Any:
    c = collections.Counter("abca")
    return c["a"], c["zz"], x + c["b"], sorted(c.items())


@cases(x)
def deques(x: Tensor) -> Any:
    d = collections.deque([1, 2, 3], maxlen=3)
    d.append(4)
    d.appendleft(0)
    e = collections.deque([x])
    e.extend([1, 2])
    e.rotate(1)
    f = e.copy()
    e.popleft()
    return list(d), d, d[0], x + len(d), list(e), list(f), type(e), f.maxlen, e.pop(), 2 in f, d == [0, 2, 3]


@cases(x)
def conditional_expressions(x: Tensor) -> Any:
    n = 0
    y = x if n else x + 1
    z = n or y
    w = n and x
    v = [] or {} or (1,)
    return y, z, w, v, not n, n is None, None is None, 1 < 2 < 3, 1 < 3 < 2


def test_iterators_over_what_the_program_changed_before_a_break() -> None:
    """They are made for real once the change is."""

    def lists(x: Tensor, items: list[int]) -> Any:
        items.extend([1, 2, 3])
        forwards, backwards = iter(items), reversed(items)
        first = next(forwards), next(forwards), next(backwards)
        items.append(4)
        print("break")
        return x + 1, first, list(forwards), list(backwards)

    def namespaces(x: Tensor, space: Any) -> Any:
        space.first, space.second = 1, 2
        names = sorted(name for name in vars(space) if not name.startswith("_"))
        return x + 1, names, len(vars(space)) > 2, max(vars(space).keys())

    def attributes_after(x: Tensor, space: Any) -> Any:
        names = iter(vars(space))
        space.late = 1
        try:
            return x + 1, next(names)
        except RuntimeError as error:
            return x + 1, str(error)

    spaces = itertools.count()
    for program, make in (
        (lists, lambda: [0]),
        (namespaces, lambda: types.ModuleType("space")),
        (attributes_after, lambda: types.ModuleType(f"space{next(spaces)}")),
    ):
        compiled: Any = dynajit.compile(program, backend="eager")
        for _ in range(3):
            compare(compiled(x, make()), program(x, make()))


@cases(x)
def unpacking_errors(x: Tensor) -> Any:
    texts = []
    for values in ([1], [1, 2, 3], 5, "abc", {1: 2, 3: 4}):
        try:
            a, b = values  # type: ignore[misc]
            texts.append((a, b))
        except (ValueError, TypeError) as error:
            texts.append(str(error))
        try:
            a, *b, c = values  # type: ignore[misc]
            texts.append((a, b, c))
        except (ValueError, TypeError) as error:
            texts.append(str(error))
    return texts, x + 1


@cases(x, [1, 2, 3], graphs=2, breaks=0)
def changing_while_iterating(x: Tensor, items: list[int]) -> Any:
    d, log = {"a": 1}, []
    try:
        for key in d:
            d["b"] = 2
    except RuntimeError as error:
        log.append(str(error))
    for item in items[:]:
        items.remove(item)
    it = iter([1, 2, 3])
    for a in it:
        log.append((a, next(it, None)))
    return log, items, x + 1


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_containers(case: Case) -> None:
    case.check()
