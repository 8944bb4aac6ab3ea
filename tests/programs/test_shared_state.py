"""Programs that share Python state with the code of an operator that they call: compiled, they give what eager gives.

    python tests/programs/test_shared_state.py --backend codegen

runs every one: kind of operator x kind of state x what the operator does with it x what the program does before the
call x what it does after. The tests run a part of them, spread over all.
"""

from __future__ import annotations

import argparse
import contextvars
import itertools
import sys
import types
import warnings
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parents[2])]

import pytest  # noqa: E402
import torch  # noqa: E402

import dynajit  # noqa: E402

WORLD = """
import collections, contextvars, types
import torch
CFG = types.SimpleNamespace(k=1, items=[1], inner=types.SimpleNamespace(k=1))
G = 1
LIST = ALIAS = [1]
DICT = TABLE = {"k": 1}
SET = {1}
QUEUE = collections.deque([1])
VAR = contextvars.ContextVar("VAR", default=1)
MOD = torch.nn.Linear(1, 1)
MOD.k = 1
LOOP = iter(range(1, 1000))

class Counter:
    total = 1
    def __init__(self):
        self.n = 1
        self.parts = [1]
    def get(self):
        return self.n
    def bump(self, v):
        self.n = v
    def grow(self, v):
        self.parts.append(v)
    def __len__(self):
        return self.n
    @property
    def twice(self):
        return self.n * 2
    @twice.setter
    def twice(self, v):
        self.n = v

OBJ = Counter()

def helper():
    return OBJ.n + G

def setter(v):
    global G
    G = v
"""


class State(NamedTuple):
    """How one piece of state is read and written: {v} is the number. The operator's code may go another way."""

    read: str
    write: str
    read_inside: str = ""
    write_inside: str = ""


STATES = {
    "global": State("G", "G = {v}"),
    "through functions": State("G", "setter({v})", "helper()"),
    "attribute": State("CFG.k", "CFG.k = {v}"),
    "attribute of an attribute": State("CFG.inner.k", "CFG.inner.k = {v}"),
    "getattr": State('getattr(CFG, "k")', 'setattr(CFG, "k", {v})'),
    "list": State("len(LIST)", "LIST.append({v})"),
    "list by two names": State("ALIAS[-1]", "ALIAS.append({v})", "LIST[-1]", "LIST.append({v})"),
    "item by two names": State("ALIAS[0]", "ALIAS[0] = {v}", "LIST[0]", "LIST[0] = {v}"),
    "slice": State("sum(LIST)", "LIST[:] = [{v}]", "", "LIST[:] = [{v}, 1]"),
    "dict": State('DICT["k"]', 'DICT["k"] = {v}'),
    "dict by two names": State('TABLE.get("k", 0)', "TABLE.update(k={v})", 'DICT["k"]', "DICT.update(k={v})"),
    "new key": State("len(DICT)", "DICT[{v}] = 1"),
    "set": State("len(SET)", "SET.add({v})"),
    "deque": State("QUEUE[-1]", "QUEUE.append({v})"),
    "class attribute": State("OBJ.total", "Counter.total = {v}", "Counter.total"),
    "method": State("OBJ.n", "OBJ.bump({v})", "OBJ.get()"),
    "method on a list": State("len(OBJ.parts)", "OBJ.grow({v})"),
    "property": State("OBJ.twice", "OBJ.twice = {v}"),
    "special method": State("len(OBJ)", "OBJ.n = {v}"),
    "list in an attribute": State("CFG.items[-1]", "CFG.items.append({v})"),
    "new list in an attribute": State("CFG.items[-1]", "CFG.items = [{v}]"),
    "context variable": State("VAR.get()", "VAR.set({v})"),
    "module": State("MOD.k", "MOD.k = {v}"),
    "closure": State("cell", "cell = {v}"),
    "iterator": State("next(LOOP)", "next(LOOP)"),
    "globals()": State("G", 'globals()["G"] = {v}', 'globals()["G"]'),
    "vars()": State("CFG.k", 'vars(CFG)["k"] = {v}', "", 'CFG.__dict__["k"] = {v}'),
    "object.__setattr__": State("CFG.k", 'object.__setattr__(CFG, "k", {v})'),
    "list by a local name": State("ALIAS[-1]", "ALIAS.append({v})", "", "own = []; own = LIST; own.append({v})"),
    "one of two lists": State("ALIAS[-1]", "ALIAS.append({v})", "", "own = LIST if G else []; own.append({v})"),
    "sum in place": State("ALIAS[-1]", "ALIAS.append({v})", "", "own = LIST; own += [{v}]"),
    "iterator that a list takes in": State(
        "next(LOOP)", "next(LOOP)", "", "own = []; own.extend(zip(range({v} % 3), LOOP))"
    ),
}
_LIBRARY = """
    library = torch.library.Library("{ns}", "DEF")
    library.define("op(Tensor x) -> Tensor")
    def kernel(x):
        {declared}
        {body}
    {impl}
    kept.append(library)
    op = torch.ops.{ns}.op
"""
_META = 'library.impl("op", lambda x: torch.empty_like(x), "Meta")'
OPERATORS = {
    "custom_op": """
    @torch.library.custom_op("{ns}::op", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        {declared}
        {body}
    op.register_fake(lambda x: torch.empty_like(x))
""",
    "register_kernel": """
    @torch.library.custom_op("{ns}::op", mutates_args=(), device_types="cuda")
    def op(x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError
    @op.register_kernel("cpu")
    def _(x):
        {declared}
        {body}
    op.register_fake(lambda x: torch.empty_like(x))
""",
    "Library": _LIBRARY.replace("{impl}", 'library.impl("op", kernel, "CPU"); ' + _META),
    "Library, all devices": _LIBRARY.replace("{impl}", 'library.impl("op", kernel, "CompositeExplicitAutograd")'),
    "composite": _LIBRARY.replace("{impl}", 'library.impl("op", kernel, "CompositeImplicitAutograd")'),
    "allow_in_graph": """
    def op(x):
        {declared}
        {body}
    dynajit.allow_in_graph(op)
""",
}
INSIDE = {
    "read": "return x * ({read})",
    "write": "{write}; return x + 1",
    "both": "{write}; return x * ({read})",
    "unused": "{write}; return x + 1",
    "own": "own = []; m = 0; own.append(m); m += 2; own.append(m); own[0] = m; return x * (({read}) + own[1] - m)",
}
BEFORE = ("none", "write", "read", "change")
AFTER = ("none", "read", "write", "change")
#: what `allow_in_graph` marks runs while the graph is compiled, too, so that it may change nothing, as documented
ONLY_READ = ("allow_in_graph",)
CASES = [
    case
    for case in itertools.product(OPERATORS, STATES, INSIDE, BEFORE, AFTER)
    if case[0] not in ONLY_READ or (case[2] in ("read", "own") and "iterator" not in case[1])
]
#: Libraries: torch forgets the operators of one that is gone
KEPT: list[Any] = []
_numbers = itertools.count()


def program_text(operator: str, state: str, inside: str, before: str, after: str) -> str:
    """A module that makes a program and a function that tells all state."""
    known = STATES[state]
    read, write = known.read_inside or known.read, known.write_inside or known.write
    declared = "nonlocal cell" if state == "closure" else "global G"
    body = INSIDE[inside].format(read=read, write=write.format(v=f"({read} + 1)"))
    steps = {
        "none": "pass",
        "write": known.write.format(v="v"),
        "read": f"seen.append({known.read})",
        "change": f"{known.write.format(v=f'({known.read}) + 1')}; seen.append({known.read})",
    }
    made = OPERATORS[operator].format(ns=f"shared_state_{next(_numbers)}", declared=declared, body=body)
    call = "op(x); y = x * 2" if inside == "unused" else "y = op(x) + 1"
    return f"""{WORLD}
def make():
    cell = 1
{made}
    def program(x, v):
        {declared}
        seen = []
        {steps[before]}
        {call}
        {steps[after]}
        return y, seen
    def state():
        return repr((cell, G, LIST, DICT, SET, QUEUE, VAR.get(), Counter.total, vars(OBJ), CFG, MOD.k))
    return program, state
"""


def outcomes(case: tuple[str, ...], backend: str | None) -> list[str]:
    """Results and state after each of four calls; compiled if there is a backend."""
    space = {"dynajit": dynajit, "kept": KEPT, "__name__": "shared_state"}
    exec(compile(program_text(*case), "<shared state>", "exec"), space)

    def calls() -> list[str]:
        program, state = space["make"]()  # type: ignore[operator]
        if backend is not None:
            program = dynajit.compile(program, backend=backend)
        return [repr((program(torch.ones(2), v), state())) for v in (2, 3, 4, 2)]

    return contextvars.copy_context().run(calls)


def test_what_is_shared_is_in_order() -> None:
    sample = CASES[::61]
    assert {case[1] for case in sample} == STATES.keys()
    differ = [case for case in sample if outcomes(case, None) != outcomes(case, "eager")]
    assert differ == []


@pytest.mark.parametrize("inside", ["read", "own"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_read_alone_stays_in_the_graph(operator: str, inside: str) -> None:
    """Whatever the code does with lists and numbers of its own."""
    space: dict[str, Any] = {"dynajit": dynajit, "kept": KEPT, "__name__": "shared_state"}
    exec(compile(program_text(operator, "dict", inside, "none", "none"), "<shared state>", "exec"), space)
    program, _ = space["make"]()
    compiled = dynajit.compile(program, backend="eager", fullgraph=True)
    for k in (1, 2):
        space["DICT"]["k"] = k
        assert compiled(torch.ones(2), 0)[0].tolist() == [k + 1.0] * 2


_ASKED = types.SimpleNamespace(device=1, keys=2)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.size(0), device=like.device, dtype=like.dtype)


@torch.library.custom_op("shared_state::like", mutates_args=())
def like(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.size(0), device=x.device, dtype=x.dtype) + _zeros(x) + x


@torch.library.custom_op("shared_state::asked", mutates_args=())
def asked(x: torch.Tensor) -> torch.Tensor:
    return _zeros(x) + x * _ASKED.device


@torch.library.custom_op("shared_state::one_of_two", mutates_args=())
def one_of_two(x: torch.Tensor) -> torch.Tensor:
    return x * (_ASKED if x.dim() else x).keys


one_of_two.register_fake(torch.empty_like)
like.register_fake(torch.empty_like)
asked.register_fake(torch.empty_like)


def test_attributes_of_arguments_are_no_state() -> None:
    """What the program calls an attribute of its own may be called as a tensor's is."""

    def program(x: torch.Tensor, cache: Any) -> torch.Tensor:
        cache.device, cache.dtype = x.device, x.dtype
        return like(x * 2) + 1

    for _ in range(2):
        found, expected = types.SimpleNamespace(), types.SimpleNamespace()
        compiled = dynajit.compile(program, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(torch.ones(2), found), program(torch.ones(2), expected))
        assert vars(found) == vars(expected)


def test_attributes_that_are_named_as_tensors_have_them() -> None:
    """They are state where the code reaches the object that the program writes."""

    def program(x: torch.Tensor, value: int) -> torch.Tensor:
        _ASKED.device = value
        return asked(x) + 1

    compiled = dynajit.compile(program, backend="eager")
    for value in (3, 4, 5, 3):
        _ASKED.device = 0
        assert compiled(torch.ones(2), value).tolist() == [value + 1.0] * 2


def test_attributes_of_what_may_be_an_argument_are_state() -> None:
    def program(x: torch.Tensor, value: int) -> torch.Tensor:
        _ASKED.keys = value
        return one_of_two(x) + 1

    compiled = dynajit.compile(program, backend="eager")
    for value in (3, 4, 5, 3):
        _ASKED.keys = 0
        assert compiled(torch.ones(2), value).tolist() == [value + 1.0] * 2


def test_kernels_that_torch_hides_are_seen_where_they_run() -> None:
    """As quantisation libraries have them, called beside caches that are written."""
    space: dict[str, Any] = {"dynajit": dynajit, "kept": KEPT, "__name__": "shared_state"}
    exec(compile(program_text("composite", "attribute", "read", "none", "none"), "<shared state>", "exec"), space)
    program, _ = space["make"]()

    def beside(x: torch.Tensor, cache: Any) -> torch.Tensor:
        cache.keys = program(x, 0)[0]
        return cache.keys * 2

    found = types.SimpleNamespace()
    compiled = dynajit.compile(beside, backend="eager", fullgraph=True)
    for k in (1, 2):
        space["CFG"].k = k
        assert compiled(torch.ones(2), found).tolist() == [k * 2.0 + 2] * 2
        assert found.keys.tolist() == [k + 1.0] * 2


def test_the_break_says_what_is_shared() -> None:
    space: dict[str, Any] = {"dynajit": dynajit, "kept": KEPT, "__name__": "shared_state"}
    exec(compile(program_text("custom_op", "attribute", "read", "write", "none"), "<shared state>", "exec"), space)
    program, _ = space["make"]()
    dynajit.counters.clear()
    dynajit.compile(program, backend="eager")(torch.ones(2), 3)
    assert dict(dynajit.counters["graph_breaks"]) == {"unsupported-value": 1}
    with pytest.raises(dynajit.exc.Unsupported, match=r"op\.default, which shares with the function what is written"):
        dynajit.compile(program, backend="eager", fullgraph=True)(torch.ones(2), 3)


SCALES = types.SimpleNamespace(forward=1.0, backward=1.0)


@torch.library.custom_op("shared_state::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float = 2.0, *, shift: float = 0.5) -> torch.Tensor:
    return x * by + shift


def _setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor) -> None:
    ctx.by, ctx.shift = inputs[1] * SCALES.forward, keyword_only_inputs["shift"]


scaled.register_fake(lambda x, by=2.0, *, shift=0.5: torch.empty_like(x))
scaled.register_autograd(lambda ctx, grad: (grad * ctx.by * SCALES.backward + ctx.shift, None), setup_context=_setup)


@torch.library.custom_op("shared_state::all_scaled", mutates_args=())
def all_scaled(tensors: list[torch.Tensor], by: float) -> list[torch.Tensor]:
    return [tensor * by for tensor in tensors]


all_scaled.register_fake(lambda tensors, by: [torch.empty_like(tensor) for tensor in tensors])
all_scaled.register_autograd(lambda ctx, grads: ([grad * SCALES.backward for grad in grads], None))


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_what_a_registered_backward_reads_is_guarded(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        first, second = all_scaled([x, x.cos()], 2.0)
        return scaled(x).sin() + torch.ops.shared_state.scaled(x, 3.0, shift=0.25) + first * second

    compiled = dynajit.compile(program, backend=backend, fullgraph=True)
    for forward, backward in ((1.0, 1.0), (2.0, 1.0), (2.0, 3.0), (1.0, 1.0)):
        SCALES.forward, SCALES.backward = forward, backward
        gradients = []
        for function in (program, compiled):
            x = torch.ones(2, requires_grad=True)
            function(x).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="codegen")
    backend = parser.parse_args().backend
    warnings.simplefilter("ignore")
    differ = [case for case in CASES if outcomes(case, None) != outcomes(case, backend)]
    for case in differ:
        print("differs:", *case, sep=" | ")
    print(f"{len(CASES)} programs, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
