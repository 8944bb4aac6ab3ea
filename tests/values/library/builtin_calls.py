"""Calls of every modelled builtin with arguments of every kind, right and wrong: compiled and eager must agree.

In: the tables of models, the arguments below. Out: `sample(target, each)`, the calls of one function that differ most
in what they do, and `check(call)`, what differs between eager and compiled. The real function is asked what a call
does: of all the calls that give one kind of outcome (a type, or an exception with its text), `each` are taken.

    python tests/values/builtin_calls.py [--each 8] [--seed 0] [--texts] [name ...]     # more of them, all that differ
"""

from __future__ import annotations

import argparse
import collections
import functools
import hashlib
import inspect
import itertools
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import dynajit
from dynajit.report import breaks, records
from dynajit.values.library import BUILTINS, CONSTRUCTORS


class Count(int):
    pass


class Text(str):
    pass


class Items(list):
    pass


class Table(dict):
    pass


class Members(set):
    pass


class Row(tuple):
    pass


class Index:
    def __init__(self, number: Any = 1) -> None:
        self.number = number

    def __index__(self) -> Any:
        return self.number


class Sized:
    def __init__(self, size: Any = 2) -> None:
        self.size = size

    def __len__(self) -> Any:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index >= 2:
            raise IndexError("no more")
        return index + 5


class Each:
    def __iter__(self) -> Iterator[int]:
        yield 4
        yield 5


class Raises:
    def __iter__(self) -> Iterator[int]:
        yield 1
        raise KeyError("inside")

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("compared")

    def __hash__(self) -> int:
        raise ZeroDivisionError("hashed")

    def __bool__(self) -> bool:
        raise ZeroDivisionError("asked")


class Plain:
    name = "of the class"


Pair = collections.namedtuple("Pair", "left right")

#: one expression for each kind of argument; each is evaluated anew for each call
ARGUMENTS = (
    *("None", "True", "False", "0", "1", "2", "-1", "7", "2**70", "1.5", "2.0", "1j", "Count(2)", "NotImplemented"),
    *("'a'", "''", "'ab'", "Text('ab')", "b'ab'", "'name'"),
    *("[3, 1, 2]", "[]", "[1, 'a']", "[[1, 2], [3, 4]]", "['b', 'a']", "[True, 1.0]", "Items([1, 2])"),
    *("(1, 2)", "()", "Pair(1, 2)", "Row((1, 2))", "range(3)", "slice(0, 2)", "slice(0.5, None)"),
    *("{1, 2}", "frozenset({1})", "set()", "Members({1})", "{'a': 1}", "{}", "Table(a=1)", "{1: 2, 3: 4}"),
    *("collections.OrderedDict(a=1)", "collections.deque([1, 2])", "collections.deque([1, 2], 2)"),
    *("collections.defaultdict(list, a=1)", "{'a': 1}.keys()", "{'a': 1}.items()", "{'a': 1}.values()"),
    *("iter([1, 2])", "(item for item in (1, 2))", "enumerate(['x'])", "Each()", "Sized()", "Sized(-1)", "Sized(0.5)"),
    *("Index()", "Index('x')", "Index(True)", "Plain()", "Raises()", "object()", "ValueError('v')"),
    *("len", "str", "int", "(int, str)", "list", "Plain", "Count", "lambda one: one", "lambda one, two: one"),
    *("lambda *each: len(each)", "torch.ones(2)", "torch.tensor(1)"),
)
_NAMES = ("key", "default", "start", "initial", "strict", "maxlen", "reverse", "repeat", "a", "r", "self", "tx")
_MODULES = ("builtins", "itertools", "_functools", "functools", "_collections", "collections", "_operator", "operator")
_MORE_MODULES = ("math", "_heapq", "_bisect", "dataclasses", "copy", "typing")
# what they do, or give, is not a matter of their arguments alone; the second line: tests of their own
_LEFT_OUT = re.compile(
    r"globals|id|vars|cmp_to_key|__build_class__|super|type\.__subclasses__|hash|property|classmethod|staticmethod|.*\.__hash__"
    r"|.*Error\..*|.*Exception\..*|.*Group\..*|.*Iteration\..*|dataclass|total_ordering"
)


class Target(NamedTuple):
    """What is called: a name for reports, and how: the text of an expression or statement with places for arguments."""

    name: str
    text: str
    function: Any = None
    receivers: tuple[str, ...] = ()
    counts: tuple[int, ...] = (0, 1, 2, 3)


class Call(NamedTuple):
    target: Target
    arguments: tuple[str, ...]
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.written(self.arguments)

    def written(self, parts: tuple[str, ...]) -> str:
        """The call with `parts` for its arguments; the last ones have names."""
        first = len(parts) - len(self.names)
        named = [f"{name}={part}" for name, part in zip(self.names, parts[first:], strict=True)]
        if "{}" in self.target.text:
            return self.target.text.format(", ".join([*parts[:first], *named]))
        return self.target.text.format(*parts) if self.target.text.count("{") > 0 else self.target.text


# the same operations as instructions
_SYNTAX = (
    *("{0}[{1}]", "{0}[{1}:{2}]", "{0}[::{1}]", "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} % {1}", "{0} & {1}"),
    *(
        "{0} | {1}",
        "{0} < {1}",
        "{0} == {1}",
        "{0} in {1}",
        "-{0}",
        "~{0}",
        "not {0}",
        "[*{0}]",
        "{{*{0}}}",
        "{{**{0}}}",
    ),
    *("f'{{{0}}}'", "(lambda *a, **k: (a, k))(*{0})", "(lambda *a, **k: (a, k))(**{0})", "[one for one in {0}]"),
    *("{0}[{1}] = {2}", "{0}[{1}:{2}] = {0}", "{0}[:] = {1}", "{0}[:1] = {1}", "del {0}[{1}]", "del {0}[{1}:]"),
    *("{0} += {1}", "{0} *= {1}", "{0} |= {1}", "{0} -= {1}", "{0} &= {1}", "{0} ^= {1}", "one, two = {0}"),
    *("one, *two = {0}", "{0}[{1}] += {2}"),
)
_OWN = (
    "__len__",
    "__iter__",
    "__contains__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__eq__",
    "__ne__",
    "__iadd__",
)
_RECEIVERS: dict[type, tuple[str, ...]] = {
    list: ("[3, 1, 2]", "Items([1, 2])"),
    tuple: ("(1, 2)", "Pair(1, 2)"),
    dict: ("{'a': 1, 1: 2}", "Table(a=1)", "collections.defaultdict(list, a=1)"),
    set: ("{1, 2}", "Members({1})"),
    frozenset: ("frozenset({1})",),
    str: ("'ab'", "Text('ab')"),
    collections.OrderedDict: ("collections.OrderedDict(a=1, b=2)",),
    collections.deque: ("collections.deque([1, 2])", "collections.deque([1, 2], 2)"),
    collections.defaultdict: ("collections.defaultdict(list, a=1)",),
}
_WORLD: dict[str, Any] = {
    **{cls.__name__: cls for cls in (Count, Text, Items, Table, Members, Row, Index, Sized, Each, Raises, Plain, Pair)},
    "collections": collections,
    "torch": torch,
}
_FUNCTIONS: dict[str, Any] = {}


def targets() -> list[Target]:
    """Every function that has a model and only computes with its arguments, methods called on their objects, and the
    instructions that do the same."""
    found: dict[str, Target] = {}
    for function in [*BUILTINS, *CONSTRUCTORS, *_folded()]:
        owner = getattr(function, "__objclass__", None)
        module = (owner or function).__module__ if not isinstance(function, functools.partial) else ""
        name = getattr(function, "__qualname__", "")
        if module not in (*_MODULES, *_MORE_MODULES) or _LEFT_OUT.fullmatch(name) or name.endswith("__next__"):
            continue
        if owner is not None and owner not in _RECEIVERS:
            continue
        label = f"{module}.{name}"
        if owner is not None and function.__name__ not in _OWN:
            found[label] = Target(label, f"{{}}.{function.__name__}", function, _RECEIVERS[owner])
        else:
            # by name: samples are chosen by the texts of calls
            short = "function_" + re.sub(r"\W", "_", label)
            assert label in found or short not in _FUNCTIONS, label
            _FUNCTIONS[short] = function
            found[label] = Target(label, f"{short}({{}})", function, _RECEIVERS.get(owner, ()))  # type: ignore[arg-type]
    for text in _SYNTAX:
        found[text] = Target(text, text, counts=(len(set(re.findall(r"\{(\d)\}", text))),))
    return list(found.values())


def _folded() -> list[Any]:
    """Functions that run for real on what is known: some have forms of their own where not all is."""
    methods = [getattr(str, name) for name in ("join", "split", "format", "replace", "startswith", "count", "index")]
    return [*methods, math_sum, *(getattr(__import__("math"), name) for name in ("gcd", "isqrt", "fsum", "hypot"))]


math_sum: Any = __import__("math").sumprod if hasattr(__import__("math"), "sumprod") else __import__("math").dist


def program(call: Call, made_inside: bool, texts: bool = True) -> Callable[..., Any]:
    """A function that makes the call and gives what came of it, and the arguments: `made_inside` says whether it makes
    them itself, or takes them."""
    names = tuple(f"value_{i}" for i in range(len(call.arguments)))
    written = call.written(names)
    if call.target.text.startswith("{}."):
        method = call.target.text.removeprefix("{}")
        rest = Call(Target("", "{}"), call.arguments[1:], call.names).written(names[1:])
        written = f"{names[0]}{method}({rest})"
    is_statement = call.target.text.startswith("del ") or re.search(r" \S?= ", call.target.text + " ") is not None
    is_statement = is_statement and " == " not in call.target.text
    lines = [f"def called({'' if made_inside else ', '.join(names)}):"]
    if made_inside:
        lines += [f"    {name} = {text}" for name, text in zip(names, call.arguments, strict=True)]
    shown = f"({''.join(name + ', ' for name in names)})"
    lines += ["    made = None", "    try:", f"        {written if is_statement else 'made = ' + written}"]
    lines += ["    except Exception as error:", f"        return (type(error), text(error)), {shown}"]
    lines += [f"    return made, {shown}"]
    world = {**_WORLD, **_FUNCTIONS, "text": str if texts else type}
    exec(compile("\n".join(lines), f"<{call}>", "exec"), world)
    return world["called"]  # type: ignore[no-any-return]


def arguments_of(call: Call) -> list[Any]:
    return [eval(_compiled(text), dict(_WORLD)) for text in call.arguments]


@functools.cache
def _compiled(text: str) -> Any:
    return compile(text, "<argument>", "eval")


def frozen(value: Any, depth: int = 0) -> Any:
    """A description that is equal for what nobody can tell apart."""
    kind = type(value)
    if depth > 5:
        return kind
    if isinstance(value, torch.Tensor):
        return kind, value.tolist(), str(value.dtype)
    if isinstance(value, (list, tuple, collections.deque)):
        limit = getattr(value, "maxlen", None)
        return kind, limit, [frozen(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(repr(frozen(item, depth + 1)) for item in value)
    if isinstance(value, dict):
        return kind, [(frozen(key, depth + 1), frozen(item, depth + 1)) for key, item in value.items()]
    if isinstance(value, (type({}.keys()), type({}.values()), type({}.items()))):
        return kind, [frozen(item, depth + 1) for item in value]
    if kind is int and value > 1 << 40 and value < 1 << 60:
        return kind, "an address"
    if isinstance(value, (type, str, bytes, int, float, complex, type(None), slice, range)):
        return kind, re.sub(r"0x\w+|built-in method \w+|<function .*?>", "0x", repr(value))
    if hasattr(kind, "__next__"):
        return "an iterator", _first_items(value, depth)
    if isinstance(value, BaseException):
        return kind, frozen(value.args, depth + 1)
    if hasattr(value, "__dict__") and not callable(value):
        return kind, frozen(vars(value), depth + 1)
    return kind


def _first_items(iterator: Any, depth: int) -> list[Any]:
    found = []
    try:
        for _ in range(6):
            found.append(frozen(next(iterator), depth + 1))
    except Exception as error:  # which the program would meet here
        found.append((type(error), str(error)))
    return found


def outcome(function: Callable[..., Any], values: list[Any]) -> Any:
    """All that can be seen of a call. What is made first is looked at first: it may be an iterator over an argument."""
    try:
        made, arguments = function(*values)
    except Exception as error:  # which the function itself should have met
        return type(error), str(error)
    return frozen(made), frozen(arguments)


def _left_out(call: Call) -> bool:
    """Numbers that make a call take for ever, or all memory; and what is known to differ."""
    text = str(call)
    if call.target.name.endswith(("mod", "% {1}")) and call.arguments[:1] == ("Text('ab')",):
        return True  # gives the very template, of a subclass of str, where compiled code gives its text
    power = re.search(r"\.(pow|ipow|comb|perm|factorial)$", call.target.name) or "**" in call.target.text
    return bool(power) and "2**70" in text


def _candidates(target: Target, rng: random.Random, count: int) -> Iterator[Call]:
    firsts = target.receivers or ARGUMENTS
    for size in target.counts:
        if "{}" not in target.text and size == 1:
            yield from (Call(target, (first,)) for first in firsts)
        elif size == 0:
            yield Call(target, target.receivers[:1])
        else:
            rest = size if target.receivers else size - 1
            spaces = [firsts, *[ARGUMENTS] * rest]
            if len(spaces) == 2:
                yield from (Call(target, parts) for parts in itertools.product(*spaces))
            else:
                yield from (Call(target, tuple(map(rng.choice, spaces))) for _ in range(count))
    if target.function is None:
        return
    names = sorted({*_NAMES, *_parameters(target.function)})
    for _ in range(count):
        size = rng.randrange(3) + bool(target.receivers)
        spaces = ([firsts] + [ARGUMENTS] * size)[:size]
        chosen = tuple(rng.sample(names, rng.choice((1, 1, 2))))
        yield Call(target, (*map(rng.choice, spaces), *(rng.choice(ARGUMENTS) for _ in chosen)), chosen)


def _parameters(function: Any) -> list[str]:
    """Names of the function's parameters and of its model's."""
    found = []
    for each in (function, BUILTINS.get(function) or CONSTRUCTORS.get(function)):
        try:
            found += inspect.signature(each).parameters  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
    return found


@functools.lru_cache(maxsize=4096)
def _taking(target: Target, count: int, names: tuple[str, ...]) -> Callable[..., Any]:
    return program(Call(target, ("None",) * count, names), made_inside=False)


def sample(target: Target, each: int = 1, seed: int = 0, tries: int = 400) -> list[Call]:
    """Calls of the function, `each` for each kind of outcome of the real one."""
    rng = random.Random(f"{target.name} {seed}")
    kinds: dict[Any, list[Call]] = {}
    for call in _candidates(target, rng, tries):
        if not _left_out(call):
            kinds.setdefault(_kind(call), []).append(call)
    return [call for found in kinds.values() for call in rng.sample(found, min(each, len(found)))]


def _kind(call: Call) -> Any:
    """What the real function makes of the call, in little."""
    form = len(call.arguments), call.names
    try:
        made, _ = _taking(call.target, len(call.arguments), call.names)(*arguments_of(call))
    except Exception as error:
        return form, type(error)
    if type(made) is tuple and len(made) == 2 and isinstance(made[0], type) and issubclass(made[0], Exception):
        text = re.sub(r"'[^']*'|\d+|at 0x\w+", "", str(made[1]))
        return len(call.arguments), made[0], text
    return form, type(made), bool(made) if isinstance(made, (bool, list, dict, set, tuple, str)) else None


def check(call: Call, made_inside: bool, texts: bool = False) -> str | None:
    """How the compiled call differs from eager; None if it does not. `texts`: in the texts of exceptions, too."""
    plain = program(call, made_inside, texts)
    torch.manual_seed(0)
    expected = outcome(plain, [] if made_inside else arguments_of(call))
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        compiled = dynajit.compile(plain, backend="eager")
        actual = outcome(compiled, [] if made_inside else arguments_of(call))
    for record in seen:
        if breaks.INTERNAL.text in str(record.skipped or ""):
            return f"{call}: {record.skipped}"
    if repr(actual) != repr(expected):
        where = "made inside" if made_inside else "given"
        return f"{call} ({where})\n    eager    {_short(expected)}\n    compiled {_short(actual)}"
    return None


def _short(value: Any) -> str:
    return re.sub(r"<class '(\w+\.)*(\w+)'>", r"\2", repr(value))[:400]


def choose(label: str) -> int:
    """A number that is the same in each process."""
    return hashlib.sha256(label.encode()).digest()[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    total = wrong = 0
    for target in targets():
        if chosen.names and not any(name in target.name for name in chosen.names):
            continue
        for call in sample(target, chosen.each, chosen.seed):
            dynajit.reset()
            total += 1
            found = check(call, made_inside=choose(str(call)) % 2 == 0, texts=chosen.texts)
            if found is not None:
                wrong += 1
                print(f"{target.name}: {found}", flush=True)
    print(f"{total} calls, {wrong} differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
