"""Random programs that keep containers from call to call: written to, read from, grown and shrunk at each.

`program(seed)` gives the text of a function of a state `s` and a tensor `x`; `State` is what it works on.
`python tests/values/containers/growing_programs.py FIRST COUNT [copies|queues]` runs them against eager and lists
those that are wrong, or still compile after the fourth call.
"""

from __future__ import annotations

import collections
import heapq
import linecache
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import dynajit
from dynajit.report import records

CALLS = 14
SETTLED = 4

_CHANGES = (
    "s.l.append({n})",
    "s.l.insert(0, {n})",
    "s.l = s.l + [{n}]",
    "s.l += [{n}, {n}]",
    "s.l = s.l[-3:]",
    "if len(s.l) > 3: s.l.pop(0)",
    "s.l[-1:] = [{n}]",
    "s.k.append(x * {n})",
    "s.k = [*s.k, x]",
    "if len(s.k) > 2: del s.k[0]",
    "s.t = s.t + ({n},)",
    "s.t = ({n},) + s.t",
    "s.t = (*s.t, {n})",
    "s.t = s.t[-2:]",
    "s.d[{n}] = x * 2",
    "s.d[{key}] = {n}",
    "s.d.setdefault({key}, []) ",
    "s.d = {{**s.d, {key}: {n}}}",
    "s.d.pop({key}, None)",
    "if len(s.d) > 3: s.d.pop(next(iter(s.d)))",
    "s.s.add({n})",
    "s.s = s.s | {{{n}}}",
    "s.s.discard({n})",
    "s.q.append({n})",
    "s.q.appendleft({n})",
    "heapq.heappush(s.h, {n} * 7 % 5)",
    "heapq.heappush(s.h, ({n},))",
    "s.w = s.w + {key}",
    "s.w = {key}",
    "s.c[{key}] += 1",
    "s.c.update([{n}])",
    "s.m = max(s.m, {n})",
)
# of dictionaries of which copies are taken, `e` the first
_COPIES = (
    "s.d = {{**s.d, {key}: {n}}}",
    "s.d = {{**s.d, {n}: x}}",
    "s.d = {{{key}: 0, **e, {n}: 1}}",
    "s.d[{n}] = x * 2",
    "s.d[{key}] = {n}",
    "s.d = e",
    "s.d.update(e)",
    "s.d.pop({n}, None)",
    "if len(s.d) > 3: s.d.pop(next(iter(s.d)))",
    "e = {{**s.d}}",
    "e = dict(s.d)",
    "e = s.d.copy()",
    "e = s.d | {{{key}: {n}}}",
    "e = {{**e, {key}: {n}, {n}: x}}",
    "e = {{**e}}",
    "e[{n}] = {n}",
    "e[{key}] = x",
    "e[{key}] = e",
    "e.update(s.d)",
    "e.pop({key}, None)",
    "e.setdefault({key}, [])",
    "f = e; e = {{**f, {key}: 1}}; f[{n}] = 5; s.w = (e, f)",
    "s.l = e",
    "s.k = [e, s.d]",
    "s.q.append(e)",
    "s.w = e.get({n})",
    "s.t = ({n} in e, len(e), bool(e), len(s.d))",
    "s.t = (list(e), list(s.d.values()))",
    "s.t = (e is s.d, s.d is e)",
    "s.t = next(iter(s.d), None), next(iter(e.items()), None)",
    "if {key} in e: e['b'] = 2",
    "for v in e.values(): s.m = v",
)
# of queues, with a limit and without
_QUEUES = (
    "s.q.append({n})",
    "s.q.append(x)",
    "s.q.appendleft({n})",
    "s.q.extend([{n}, x])",
    "s.q.extendleft([{n}, 1])",
    "s.q.insert(1, {n})",
    "s.q += [x]",
    "s.q[0] = x",
    "s.q[-1] = {n}",
    "s.q.popleft()",
    "s.q.pop()",
    "if s.q: s.m = s.q.popleft()",
    "if s.q: s.m = s.q.pop()",
    "if len(s.q) > 3: s.q.popleft()",
    "if len(s.q) > 3: s.t = s.q.pop()",
    "while len(s.q) > 5: s.q.popleft()",
    "del s.q[0]",
    "s.q.rotate(1)",
    "s.q.clear()",
    "s.t = len(s.q), bool(s.q)",
    "s.t = s.q[-1]",
    "s.t = s.q[0]",
    "s.t = s.q[-2], s.q[1]",
    "s.t = {n} in s.q",
    "s.t = s.q.maxlen, s.q is s.q",
    "s.l = list(s.q)",
    "s.k = s.q.copy()",
    "s.h.append(s.q)",
    "s.m = max((v for v in s.q if isinstance(v, int)), default=0)",
    "for v in s.q: s.m = v",
    "it = iter(s.q); s.q.append(1); s.t = next(it)",
)
_QUEUES_BEGIN = ("[], 4", "", "[1, 2.5, x]", "range(40), 40")
_READS = (
    "len(s.l)",
    "sum(s.l)",
    "max(s.l, default=0)",
    "(s.l[-1] if s.l else 0)",
    "sum(s.l[-2:])",
    "int({n} in s.l)",
    "len(s.k)",
    "sum(k.sum() for k in s.k)",
    "(s.k[-1] if s.k else x)",
    "len(s.t)",
    "(s.t[-1] if s.t else 1)",
    "sum(s.t)",
    "len(s.d)",
    "int({n} in s.d)",
    "int({key} in s.d)",
    "len(list(s.d))",
    "len(s.s)",
    "int({n} in s.s)",
    "len(s.q)",
    "(s.q[0] if s.q else 0)",
    "len(s.h)",
    "len(s.w)",
    "s.c[{key}]",
    "len(s.c)",
    "s.m",
)
_NUMBERS = ("s.n", "s.n + 1", "s.n % 3", "-s.n", "s.n * 0.5")
_KEYS = ("str(s.n)", "f'k{s.n}'", "'a'", "('a', s.n)", "f'{s.n % 2}'")
_OF_TEXT = ("s.w",)


class State:
    """Empty containers of each kind, and the number of the call."""

    def __init__(self) -> None:
        self.n, self.m, self.w = 0, 0, ""
        self.l: list[Any] = []
        self.k: list[Any] = []
        self.t: tuple[Any, ...] = ()
        self.d: dict[Any, Any] = {}
        self.s: set[Any] = set()
        self.q: collections.deque[Any] = collections.deque(maxlen=4)
        self.h: list[Any] = []
        self.c: collections.Counter[Any] = collections.Counter()


def program(seed: int) -> str:
    """The text of `run(s, x)`."""
    rng = random.Random(seed)
    lines = [_filled(change, rng) for change in rng.sample(_CHANGES, rng.randint(1, 3))]
    reads = [_filled(read, rng) for read in rng.sample(_READS, rng.randint(1, 2))]
    return _function([*lines, "s.n += 1", f"return x + {' + '.join(reads)}"])


def program_of_copies(seed: int) -> str:
    """One in which copies of a dictionary are taken and changed, and so is the dictionary."""
    rng = random.Random(seed)
    lines = [_filled(change, rng) for change in rng.sample(_COPIES, rng.randint(2, 5))]
    return _function(["e = {**s.d}", *lines, "s.n += 1", "return x + len(s.d) * s.n"])


def program_of_queues(seed: int) -> str:
    """One in which items are added to a queue, taken from it and looked at."""
    rng = random.Random(seed)
    begins = f"if s.n == 0: s.q = s.q.__class__({rng.choice(_QUEUES_BEGIN)})"
    lines = [_filled(change, rng) for change in rng.sample(_QUEUES, rng.randint(2, 5))]
    return _function([begins, *lines, "s.n += 1", "return x + len(s.q)"])


def _filled(template: str, rng: random.Random) -> str:
    keys = [key for key in _KEYS if not template.startswith(_OF_TEXT) or not key.startswith("(")]
    return template.format(n=rng.choice(_NUMBERS), key=rng.choice(keys))


def _function(lines: list[str]) -> str:
    return "def run(s, x):\n" + "".join(f"    {line}\n" for line in lines)


def made(text: str) -> Callable[..., Any]:
    """The function of a program's text."""
    name = f"growing_{hash(text)}.py"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space: dict[str, Any] = {"heapq": heapq, "__name__": "growing"}
    exec(compile(text, name, "exec"), space)
    return space["run"]  # type: ignore[no-any-return]


def _shown(value: Any, around: tuple[Any, ...] = ()) -> Any:
    if any(value is each for each in around):
        return f"itself, {len(around)} around"
    if isinstance(value, dict):
        return type(value), [(_shown(key), _shown(item, (*around, value))) for key, item in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), [_shown(item, (*around, value)) for item in value]
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    return type(value), repr(value)


def _outcome(fn: Callable[..., Any], state: State, x: torch.Tensor) -> Any:
    try:
        found = _shown(fn(state, x))
    except (TypeError, KeyError, IndexError, ValueError, RuntimeError) as error:
        found = type(error), str(error)
    return found, _shown(vars(state))


def captures(text: str) -> list[int]:
    """How many frames each call captures. AssertionError if a call does anything but what eager does."""
    dynajit.reset()
    fn = made(text)
    compiled, counts, x = dynajit.compile(fn, backend="eager"), [], torch.arange(3.0)
    ours, theirs = State(), State()
    for call in range(CALLS):
        seen: list[Any] = []
        with records.listen(seen.append):
            found = _outcome(compiled, ours, x)
        expected = _outcome(fn, theirs, x)
        assert found == expected, f"call {call} of\n{text}gave {found}, not {expected}"
        counts.append(len(seen))
    return counts


def main(first: str, count: str, of: str = "") -> None:
    warnings.simplefilter("ignore")
    late = 0
    for seed in range(int(first), int(first) + int(count)):
        text = {"": program, "copies": program_of_copies, "queues": program_of_queues}[of](seed)
        try:
            found = captures(text)
        except AssertionError as error:
            print(f"WRONG {seed}: {error}")
            continue
        if any(found[SETTLED:]):
            late += 1
            print(seed, found, sum(found), "; ".join(text.split("\n    ")[1:]).strip())
    print(f"{late} of {count} compile after call {SETTLED}")


if __name__ == "__main__":
    main(*sys.argv[1:])
