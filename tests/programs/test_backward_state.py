"""Programs whose backward reads Python state that changes after forward: compiled, they give what eager gives.

    python tests/programs/test_backward_state.py --backend codegen

runs every one: what has the backward x kind of state x whether forward reads the same. The tests run a part of them.
"""

from __future__ import annotations

import argparse
import contextvars
import itertools
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import pytest  # noqa: E402
import torch  # noqa: E402
from test_shared_state import KEPT, STATES, WORLD  # noqa: E402

import dynajit  # noqa: E402

_FUNCTION = """
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward({arguments}):
            {declared}
            return x * {forward}
        {setup}
        @staticmethod
        {decorator}
        def backward(ctx, gradient):
            {declared}
            return gradient * ({read})
    op = Scale.apply
"""
_SETUP = "@staticmethod\n        def setup_context(ctx, inputs, output):\n            pass"
_LIBRARY = """
    library = torch.library.Library("{ns}", "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", lambda x: x * {forward}, "CPU")
    library.impl("op", lambda x: torch.empty_like(x), "Meta")
    torch.library.register_autograd("{ns}::op", lambda ctx, gradient: gradient * ({read}), lib=library)
    kept.append(library)
    op = torch.ops.{ns}.op
"""
OWNERS = {
    "Function": _FUNCTION.replace("{arguments}", "ctx, x").replace("{setup}", "").replace("{decorator}", ""),
    "Function with setup_context": _FUNCTION.replace("{arguments}", "x")
    .replace("{setup}", _SETUP)
    .replace("{decorator}", "@torch.autograd.function.once_differentiable"),
    "custom_op": """
    @torch.library.custom_op("{ns}::op", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x * {forward}
    op.register_fake(lambda x: torch.empty_like(x))
    op.register_autograd(lambda ctx, gradient: gradient * ({read}))
""",
    "Library": _LIBRARY,
    "composite": """
    library = torch.library.Library("{ns}", "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", lambda x: x * ({read}), "CompositeImplicitAutograd")
    kept.append(library)
    op = torch.ops.{ns}.op
""",
    "hook": """
    def op(x):
        y = x * {forward}
        y.register_hook(lambda gradient: gradient * ({read}))
        return y
""",
    "hook from outside": """
    def hook(gradient):
        return gradient * ({read})
    def op(x):
        y = x * {forward}
        y.register_hook(hook)
        return y
""",
}
#: an iterator is moved by who reads it
#: what the state is, of a number: another tensor each time, or one that is written
KINDS: dict[str, Callable[[float, list[torch.Tensor]], Any]] = {
    "number": lambda number, _: number,
    "tensor": lambda number, _: torch.tensor(float(number)),
    "written tensor": lambda number, kept: kept[0].fill_(number),
}
CASES = [
    case
    for case in itertools.product(OWNERS, STATES.keys() - {"iterator"}, (False, True), KINDS)
    if case[3] == "number" or "Function" in case[0]
]
CASES.sort()
_numbers = itertools.count()


def program_text(owner: str, state: str, forward_reads: bool, kind: str) -> str:
    """A module that makes a program, and a function that changes the state."""
    known = STATES[state]
    read = known.read_inside or known.read
    declared = "nonlocal cell" if state == "closure" else "global G"
    fields = {"read": read, "forward": f"({read})" if forward_reads else "3", "declared": declared}
    made = OWNERS[owner].format(ns=f"backward_state_{next(_numbers)}", **fields)
    return f"""{WORLD}
def make():
    cell = 1
{made}
    def program(x):
        return op(x).sin() * 2
    def change(v):
        {declared}
        {known.write.format(v="v")}
    return program, change
"""


def outcomes(case: tuple[str, str, bool, str], backend: str | None) -> list[Any]:
    """Results and gradients of four calls; compiled if there is a backend."""
    space: dict[str, Any] = {"kept": KEPT, "__name__": "backward_state"}
    exec(compile(program_text(*case), "<backward state>", "exec"), space)

    def calls() -> list[Any]:
        program, change = space["make"]()
        if backend is not None:
            program = dynajit.compile(program, backend=backend)
        found, kept = [], [torch.ones(())]
        for before, after in ((2, 2), (2, 3), (4, 5), (2, 2), (2, 3)):
            x = torch.ones(2, requires_grad=True)
            change(KINDS[case[3]](before, kept))
            y = program(x)
            change(KINDS[case[3]](after, kept))
            y.sum().backward()
            assert x.grad is not None
            found += [y.detach().clone(), x.grad]
        return found

    return contextvars.copy_context().run(calls)


def differs(case: tuple[str, str, bool, str], backend: str) -> bool:
    """Whether a compiled program gives anything else than eager's, where that takes such state."""
    try:
        expected = outcomes(case, None)
    except (TypeError, RuntimeError):
        return case[3] == "number"
    try:
        pairs = zip(expected, outcomes(case, backend), strict=True)
    except Exception as error:
        print(type(error).__name__, str(error)[:100].replace("\n", " "))
        return True
    return not all(torch.allclose(wanted, found) for wanted, found in pairs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
def test_backward_reads_what_is_there_when_it_runs(backend: str) -> None:
    at = ("eager", "aot_eager", "codegen").index(backend)
    assert [case for case in CASES[at::13] if differs(case, backend)] == []


SCALE = types.SimpleNamespace(backward=1.0)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * SCALE.backward


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("returns_view", [False, True])
def test_the_graph_stays_whole(create_graph: bool, returns_view: bool) -> None:
    """One graph and no break; where the state moves, gradients come by another road, which stays."""

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = _Scaled.apply(x.cos()) * w  # type: ignore[no-untyped-call]
        return (y, y.view(4)) if returns_view else (y,)

    compiled = dynajit.compile(program, backend="aot_eager", fullgraph=True)
    for forward, backward in ((1.0, 1.0), (1.0, 5.0), (5.0, 5.0), (5.0, 7.0), (1.0, 1.0)):
        found = []
        for function in (program, compiled):
            x, w = torch.ones(2, 2, requires_grad=True), torch.full((2, 2), 3.0, requires_grad=True)
            SCALE.backward = forward
            results = function(x, w)
            SCALE.backward = backward
            total = sum((result.sum() for result in results), torch.zeros(()))
            gradients = torch.autograd.grad(total, (x, w), create_graph=create_graph)
            if create_graph:
                gradients += torch.autograd.grad(sum(each.sum() for each in gradients), (x, w))
            assert [each.requires_grad for each in gradients[:2]] == [create_graph] * 2
            found.append(gradients)
        torch.testing.assert_close(*found)


LARGE = 10**5000  # CPython makes no text of it


class LargeScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (LARGE % 7)


def test_a_large_integer_that_changes_after_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, requires_grad=True)
    result = dynajit.compile(lambda x: LargeScale.apply(x).sum(), backend="codegen")(x)
    monkeypatch.setattr(sys.modules[__name__], "LARGE", LARGE + 1)
    result.backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((3,), float(LARGE % 7)))


def test_a_kernel_that_changes_what_it_reads_ends_the_graph() -> None:
    calls = types.SimpleNamespace(count=0)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        calls.count += 1
        return x * calls.count

    library = torch.library.Library("backward_state_counts", "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", kernel, "CompositeImplicitAutograd")
    compiled = dynajit.compile(lambda x: torch.ops.backward_state_counts.op(x) + 1, backend="aot_eager")
    first = compiled(torch.ones(1)).item()
    assert [compiled(torch.ones(1)).item() for _ in range(3)] == [first + 1, first + 2, first + 3]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="codegen")
    backend = parser.parse_args().backend
    warnings.simplefilter("ignore")
    found = [case for case in CASES if differs(case, backend)]
    for case in found:
        print("differs:", *case, sep=" | ")
    print(f"{len(CASES)} programs, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
