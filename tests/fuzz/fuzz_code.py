"""Random functions in plain Python: every statement that bytecode has a form of its own for.

In:  a `random.Random`, or one that reads bytes. Out: `function_of(rng)`: the function and its text. It takes two ints
     and a list that it logs to, ends soon, and may raise.
One more expression: in `_EXPRESSIONS` (`E` an expression, `V` a variable, `D` a digit). One more simple statement: in
`_SIMPLE`. One more compound one: a method of `_Writer` and its name in `_COMPOUND`.
"""

from __future__ import annotations

import random
import types
import warnings
from collections.abc import Callable
from typing import Any

_NAMES = ("a", "b", "c", "d")
_EXPRESSIONS = (
    """
V|D|V + D|V - E|(E * E) % 97|-V|~V|not E|E if E else E|E and E|E or E|E < E|E <= V < D|E == E|E != D|E is None
E in (D, D)|E not in [E, D]|V // D|V % D|(E, E)|[E, *(E, D)]|{D: E, 'k': V}|{E, D}|{**{'a': E}, 'b': D}|(E, E)[D % 2]
[V, E, D][:D]|[i + D for i in range(D)]|{i: V for i in range(D)}|{i % 2 for i in range(D)}|sum(i * D for i in range(D))
[i for i in range(D) if i != V]|[j for i in range(2) for j in range(i)]|(lambda p, q=D: p + q)(E)
(lambda *p: len(p))(E, D)|f'{V}-{D:>3}{V!r}'
str(E)|len(log)|log.count(E)|max(E, D)|min((E, D), key=lambda q: -q if q else q)|abs(V)|int(E == D)
(c := D) + c|'x' * D|'a,b'.split(',')[D % 2]|isinstance(V, int)|list(range(D))|dict(k=E, m=D)|print|...|D ** 2|D << 2
V & D|V | D|V ^ D|type(E)|max(*(D, E))|dict(**{'z': E})|bool(E)|[*range(D)]|log[-1:]|(yield_(E), D)[1]|keyed(E, k=D)
""".strip()
    .replace("\n", "|")
    .split("|")
)
_SIMPLE = (
    """
V = E|V = V = E|V += E|V -= D|log.append(E)|log.append(V)|pass|del V|V, *V = [E, D, E]|V, V = E, D|assert E
assert V != D, E|return E|raise ValueError(E)|raise KeyError(V) from None|log[:] = [E]
log += [V, E]|box[D % 3] = E|del box[0]|shelf.x = E|shelf.x += D|log.append(shelf.x)|log.extend(E for _ in range(D))
global_box[0] = V|(V, V) if E else D|log.append(box)
del shelf.x|shelf.y = E|del shelf.y|log.append(shelf.y)|log += vars(shelf)
box[0:D] = [V]|V = [E, D]|V = yield_(V)|V @= D|V **= 2|V = a, b|import math|from math import pi as V|V: int = E
""".strip()
    .replace("\n", "|")
    .split("|")
)
_COMPOUND = ("branch", "loop", "repeat", "attempt", "guarded", "inner", "match", "closed")
_MAX_LINES = 40

_HELPERS = """
class Shelf:
    __slots__ = ("y", "__dict__")
    x = 1

class Manager:
    def __init__(self, log, swallow):
        self.log, self.swallow = log, swallow
    def __enter__(self):
        self.log.append("in")
        return len(self.log)
    def __exit__(self, kind, error, trace):
        self.log.append(kind and kind.__name__)
        return self.swallow

def yield_(value):
    return value

def keyed(value, *, k=0):
    return (value, k)

global_box = [0]
"""


class _Writer:
    """Writes the lines of one function."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.serial = 0

    def expression(self, depth: int) -> str:
        template = self.rng.choice(_EXPRESSIONS if depth else ("V", "D"))
        parts = []
        for char in template:
            if char == "E":
                parts.append(f"({self.expression(depth - 1)})")
            elif char in "VD":
                parts.append(self.rng.choice(_NAMES) if char == "V" else str(self.rng.randrange(4)))
            else:
                parts.append(char)
        return "".join(parts)

    def add(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def simple(self, indent: int) -> None:
        template = self.rng.choice(_SIMPLE)
        parts = []
        for char in template:
            if char == "E":
                parts.append(f"({self.expression(2)})")
            elif char in "VD":
                parts.append(self.rng.choice(_NAMES) if char == "V" else str(self.rng.randrange(4)))
            else:
                parts.append(char)
        # names of errors have these letters too
        text = "".join(parts) if "Error" not in template else self._raising(template)
        self.add(indent, text)

    def _raising(self, template: str) -> str:
        head, _, rest = template.partition("(")
        inside, _, tail = rest.rpartition(")")
        value = self.rng.choice(_NAMES) if inside == "V" else self.expression(1)
        return f"{head}({value}){tail}"

    def block(self, indent: int, depth: int, in_loop: bool = False) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            if len(self.lines) > _MAX_LINES:
                break
            choice = self.rng.random()
            if in_loop and choice < 0.15:
                self.add(indent, self.rng.choice(("break", "continue", f"if {self.expression(1)}: break")))
            elif depth and choice < 0.55:
                getattr(self, self.rng.choice(_COMPOUND))(indent, depth - 1, in_loop)
            else:
                self.simple(indent)
        self.add(indent, "pass")

    def branch(self, indent: int, depth: int, in_loop: bool) -> None:
        self.add(indent, f"if {self.expression(2)}:")
        self.block(indent + 1, depth, in_loop)
        if self.rng.random() < 0.6:
            self.add(indent, f"elif {self.expression(1)}:" if self.rng.random() < 0.3 else "else:")
            self.block(indent + 1, depth, in_loop)

    def loop(self, indent: int, depth: int, in_loop: bool) -> None:
        self.add(indent, f"for {self.rng.choice(_NAMES)} in range({self.rng.randrange(4)}):")
        self.block(indent + 1, depth, True)
        self._or_else(indent, depth, in_loop)

    def repeat(self, indent: int, depth: int, in_loop: bool) -> None:
        self.serial += 1
        count = f"n{self.serial}"
        self.add(indent, f"{count} = {self.rng.randrange(4)}")
        self.add(indent, f"while {count} > 0 and ({self.expression(1)}, 1)[1]:")
        self.add(indent + 1, f"{count} -= 1")
        self.block(indent + 1, depth, True)
        self._or_else(indent, depth, in_loop)

    def _or_else(self, indent: int, depth: int, in_loop: bool) -> None:
        if self.rng.random() < 0.3:
            self.add(indent, "else:")
            self.block(indent + 1, depth, in_loop)

    def attempt(self, indent: int, depth: int, in_loop: bool) -> None:
        self.add(indent, "try:")
        self.block(indent + 1, depth, in_loop)
        handled = self.rng.random() < 0.7
        if handled:
            kind = self.rng.choice(("Exception", "(TypeError, ValueError)", "ZeroDivisionError", "UnboundLocalError"))
            self.add(indent, f"except {kind} as error:")
            self.add(indent + 1, "log.append(type(error).__name__)")
            self.block(indent + 1, depth, in_loop)
            if self.rng.random() < 0.2:
                self.add(indent + 1, "raise")
            self._or_else(indent, depth, in_loop)
        if not handled or self.rng.random() < 0.3:
            self.add(indent, "finally:")
            self.block(indent + 1, depth, in_loop)

    def guarded(self, indent: int, depth: int, in_loop: bool) -> None:
        second = ", Manager(log, False)" if self.rng.random() < 0.3 else ""
        target = f" as {self.rng.choice(_NAMES)}" if self.rng.random() < 0.5 else ""
        self.add(indent, f"with Manager(log, {self.rng.random() < 0.5}){target}{second}:")
        self.block(indent + 1, depth, in_loop)

    def inner(self, indent: int, depth: int, in_loop: bool) -> None:
        self.serial += 1
        outer = self.rng.choice(_NAMES)
        self.add(indent, f"def inner{self.serial}(p, *q, r={self.expression(1)}):")
        self.add(indent + 1, f"nonlocal {outer}")
        self.add(indent + 1, f"{outer} = p")
        self.add(indent + 1, f"return ({self.expression(1)}, len(q), r)")
        self.add(indent, f"log.append(inner{self.serial}({self.expression(1)}, 1))")

    def closed(self, indent: int, depth: int, in_loop: bool) -> None:
        """A loop's variable in a closure, and a generator."""
        name = self.rng.choice(_NAMES)
        self.add(indent, f"log.extend(g() for g in [lambda: {name}, lambda k=({self.expression(1)}): k])")

    def match(self, indent: int, depth: int, in_loop: bool) -> None:
        name = self.rng.choice(_NAMES)
        self.add(indent, f"match {self.expression(1)}:")
        cases = (
            "case 0 | 1:",
            f"case [{name}, *_]:",
            "case {'k': _}:",
            f"case int({name}) if {name} > 1:",
            "case None:",
        )
        for case in self.rng.sample(cases, self.rng.randrange(1, 4)):
            self.add(indent + 1, case)
            self.block(indent + 2, depth, in_loop)
        self.add(indent + 1, "case _:")
        self.block(indent + 2, depth, in_loop)


def function_of(rng: random.Random) -> tuple[Callable[..., Any], str]:
    """A random function of two ints and a log."""
    writer = _Writer(rng)
    writer.add(0, "def f(a, b, log):")
    writer.add(1, "c, d, box, shelf = a, b, [1, 2, 3], Shelf()")
    writer.block(1, 3)
    writer.add(1, "return a, b, c, d, box")
    text = "\n".join(writer.lines) + "\n"
    module = types.ModuleType("fuzzed_code")
    exec(_HELPERS, module.__dict__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            code = compile(text, "<fuzzed>", "exec")
        except SyntaxError:  # an assignment expression where a comprehension forbids it
            text = text.replace(":=", "or")
            code = compile(text, "<fuzzed>", "exec")
    exec(code, module.__dict__)
    found: Callable[..., Any] = module.__dict__["f"]
    return found, text
