"""The fix that `explain` names for a break removes it when it is applied, and the answer stays the same.

In: one program with ten kinds of breaks, and for each the change of its text that the break's hint asks for; and for
each other kind that names a fix, the program with the break and the one without.
"""

from __future__ import annotations

import linecache
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

import dynajit
from dynajit.report import breaks
from dynajit.report.explain import ExplainReport
from dynajit.testing import compare

PROGRAM = """
import logging
import sys

import torch

import dynajit

log = logging.getLogger(__name__)


@dynajit.disable
def reference(t):
    return t * 3


def helper(t):
    return t - 1


def program(x, name="program"):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    scale = float(y.max())
    y = y / scale
    total = y[y > 0.1].sum()
    print("total", total.shape)
    w = reference(y)
    for i in range(3):
        w = helper(w) + i
        dynajit.graph_break()
        w = w * 2
    name = sys._getframe().f_code.co_name
    count = sys.getrefcount(None) > 0
    state = torch.initial_seed()
    address = w.data_ptr() % 4
    return w.sum() + total, name, count, address, state >= 0
"""


class Fix(NamedTuple):
    """What the hint names, as a change of the text."""

    kind: str
    named: str  # part of the hint
    old: str
    new: str


FIXES = [
    Fix(
        "tensor-branch",
        "torch.where",
        "    if y.sum() > 0:\n        y = y + 1\n",
        "    y = torch.where(y.sum() > 0, y + 1, y)\n",
    ),
    Fix("data-dependent", "keep the value in a tensor", "scale = float(y.max())", "scale = y.max()"),
    Fix("dynamic-output-shape", "let a mask choose", "y[y > 0.1].sum()", "torch.where(y > 0.1, y, 0).sum()"),
    Fix("input-output", "use a logger", 'print("total", total.shape)', 'log.debug("total %s", total.shape)'),
    Fix("disabled", "remove the mark", "@dynajit.disable\n", ""),
    Fix("user-break", "remove the call", "        dynajit.graph_break()\n", ""),
    Fix("frame-introspection", "as arguments", "    name = sys._getframe().f_code.co_name\n", ""),
    Fix("unknown-callable", "outside of the compiled function", "count = sys.getrefcount(None) > 0", "count = True"),
    Fix("skipped-call", "before or after", "state = torch.initial_seed()", "state = 1"),
    Fix("unsupported-tensor", "move the call out", "address = w.data_ptr() % 4", "address = 0"),
]


def made(text: str, folder: Path) -> Callable[..., Any]:
    """`program` of that text, in a file of its own."""
    path = folder / f"program_{abs(hash(text))}.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    module = types.ModuleType("program_to_mend")
    exec(compile(text, str(path), "exec"), module.__dict__)
    found: Callable[..., Any] = module.__dict__["program"]
    return found


def explained(text: str, folder: Path) -> tuple[ExplainReport, Any]:
    dynajit.reset()
    fn = made(text, folder)
    x = torch.linspace(-1.0, 2.0, 8)
    report = dynajit.explain(fn)(x)
    assert report.error is None
    compare(report.result, fn(x), exact=False)
    return report, report.result


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExplainReport, Any]:
    return explained(PROGRAM, tmp_path_factory.mktemp("first"))


def test_each_break_is_told_once_with_its_line(first: tuple[ExplainReport, Any]) -> None:
    report, _ = first
    assert [brk.kind for brk in report.break_reasons] == [fix.kind for fix in FIXES]
    assert report.graph_break_count == len(FIXES)
    for brk, fix in zip(report.break_reasons, FIXES, strict=True):
        line = linecache.getline(brk.user_stack[-1].filename, brk.user_stack[-1].lineno or 0)
        assert fix.kind == "disabled" or line.strip() in fix.old or fix.old in line, (fix.kind, line)
        assert fix.named in brk.hint and brk.hint in str(report)


def test_the_break_in_the_loop_names_the_loop(first: tuple[ExplainReport, Any]) -> None:
    report, _ = first
    (broken,) = (brk for brk in report.break_reasons if brk.kind == "user-break")
    (loop,) = broken.loops
    assert "for i in range(3)" in linecache.getline(loop.filename, loop.lineno or 0)
    assert f"Inside of the loop in line {loop.lineno}" in str(report)
    assert [entry["loops"] for entry in report.to_dict()["breaks"] if entry["loops"]] == [[loop.short()]]


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.kind)
def test_the_named_fix_removes_the_break(fix: Fix, first: tuple[ExplainReport, Any], tmp_path: Path) -> None:
    assert PROGRAM.count(fix.old) == 1
    report, result = explained(PROGRAM.replace(fix.old, fix.new), tmp_path)
    assert [brk.kind for brk in report.break_reasons] == [other.kind for other in FIXES if other is not fix]
    compare(result, first[1], exact=False)


def test_with_all_of_them_one_graph_is_left(first: tuple[ExplainReport, Any], tmp_path: Path) -> None:
    text = PROGRAM
    for fix in FIXES:
        text = text.replace(fix.old, fix.new)
    report, result = explained(text, tmp_path)
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    compare(result, first[1], exact=False)
    dynajit.compile(made(text, tmp_path), fullgraph=True)(torch.ones(8))


# ---------------------------------------------------------------------------------------------- other ways, other kinds

X = torch.linspace(-1.0, 1.0, 8)


def kinds(fn: Callable[..., Any], *args: Any) -> list[str]:
    dynajit.reset()
    report = dynajit.explain(fn)(*(args or (X,)))
    assert report.error is None
    compare(report.result, fn(*(args or (X,))), exact=False)
    return [brk.kind for brk in report.break_reasons]


@pytest.mark.parametrize(
    ("fn", "setting", "kind"),
    [
        (lambda x: x / float(x.abs().max()), "capture_scalar_outputs", "data-dependent"),
        (lambda x: x[x > 0] * 2, "capture_dynamic_output_shape_ops", "dynamic-output-shape"),
    ],
)
def test_the_named_setting_removes_the_break(fn: Callable[..., Any], setting: str, kind: str) -> None:
    assert setting in breaks.KINDS[kind].hint
    assert kinds(fn) == [kind]
    with dynajit.config.patch(**{setting: True}):
        assert kinds(fn) == []


def test_cond_removes_a_branch() -> None:
    def branch(x: Tensor) -> Tensor:
        if x.sum() > 1:
            return x.sin()
        return x.cos()

    def mended(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 1, torch.sin, torch.cos, (x,))

    assert kinds(branch) == ["tensor-branch"] and kinds(mended) == []


def test_module_policy_allows_a_skipped_call() -> None:
    assert "module_policy" in breaks.SKIPPED_CALL.hint
    mine = types.ModuleType("policy_of_mine")
    exec("def shift(x):\n    return x + 1\n", mine.__dict__)
    sys.modules[mine.__name__] = mine
    try:
        shift = mine.shift
        dynajit.module_policy(mine.__name__, "skip", "for this test")
        assert kinds(lambda x: shift(x * 2) * 3) == ["skipped-call"]
        dynajit.module_policy(mine.__name__, "trace")
        assert kinds(lambda x: shift(x * 2) * 3) == []
    finally:
        del sys.modules[mine.__name__]


def test_calling_outside_removes_an_unsupported_value() -> None:
    def inside(x: Tensor) -> Any:
        y = x + 1
        return y * 2, range(3) == range(torch.tensor(3))

    def mended(x: Tensor) -> Any:
        return (x + 1) * 2, True

    assert kinds(inside) == ["unsupported-value"] and kinds(mended) == []


def test_simpler_python_removes_an_unknown_opcode() -> None:
    def with_class(x: Tensor) -> Any:
        y = x + 1

        class Local:
            pass

        return y * 2, Local()

    class Outside:
        pass

    def mended(x: Tensor) -> Any:
        return (x + 1) * 2, Outside()

    dynajit.reset()
    assert [brk.kind for brk in dynajit.explain(with_class)(X).break_reasons] == ["local-class"]
    assert [brk.kind for brk in dynajit.explain(mended)(X).break_reasons] == []


def test_one_compiler_for_both() -> None:
    inner = lambda t: t - 1  # noqa: E731
    other, own = torch.compile(inner, backend="eager"), dynajit.compile(inner)
    # torch's compiler may run functions of its own under the hook, depending on what ran before
    assert kinds(lambda x: other(x + 1) * 2)[0] == "compiled-by-another"
    assert kinds(lambda x: own(x + 1) * 2) == []


def test_a_loop_removes_a_recursion() -> None:
    def recursive(x: Tensor, n: int) -> Tensor:
        return x + 1 if n == 0 else recursive(x, n - 1)

    def mended(x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            pass
        return x + 1

    assert "recursion" in kinds(recursive, X, 200)
    assert kinds(mended, X, 200) == []


def test_tensor_code_behind_a_long_loop_is_compiled_as_a_function() -> None:
    def counted() -> int:
        total = 0
        for i in range(60_000):
            total += i % 7
        return total

    def long(x: Tensor) -> Tensor:
        total = counted()
        return x * total

    def scaled(x: Tensor, total: int) -> Tensor:
        return x * total

    report = dynajit.explain(long)(X)
    told = [*(brk.reason for brk in report.break_reasons), *(frame.skipped or "" for frame in report.frames)]
    assert any(breaks.TOO_LONG.text in text for text in told)
    assert kinds(scaled, X, counted()) == []


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_resized_leaf() -> None:
    def resized(x: Tensor, out: Tensor) -> Tensor:
        with torch.no_grad():
            torch.mul(x, 2, out=out)
        return out * 1

    def returned(x: Tensor, out: Tensor) -> Tensor:
        with torch.no_grad():
            out = torch.mul(x, 2)
        return out * 1

    assert kinds(resized, X, torch.ones(3, requires_grad=True)) == ["resized-gradient"]
    assert kinds(returned, X, torch.ones(3, requires_grad=True)) == []


def test_a_lock_taken_outside() -> None:
    lock = threading.Lock()

    def inside(x: Tensor) -> Tensor:
        with lock:
            return (x + 1) * 2

    def mended(x: Tensor) -> Tensor:
        return (x + 1) * 2

    assert "held-lock" in kinds(inside)
    with lock:
        assert kinds(mended) == []


def test_a_checkpoint_in_place_of_hooks_on_saved_tensors() -> None:
    def hooked(x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return (x + 1).sin()

    def mended(x: Tensor) -> Tensor:
        found: Tensor = torch.utils.checkpoint.checkpoint(lambda y: (y + 1).sin(), x, use_reentrant=False)
        return found

    x = torch.ones(3, requires_grad=True)
    assert "saved-tensor-hooks" in kinds(hooked, x)
    assert kinds(mended, x) == []


def test_a_lazy_module_that_was_called_before() -> None:
    layer, x = torch.nn.LazyLinear(2), torch.ones(2, 3)

    def call(x: Tensor) -> Tensor:
        return layer(x + 0 * torch.rand(())).sin()  # type: ignore[no-any-return]

    assert kinds(call, x) == ["first-call"]
    assert kinds(call, x) == []


def test_every_kind_is_either_here_or_on_the_page() -> None:
    """`docs/why_breaks.md`, whose blocks are tests too, has a pair of programs for each kind that is not here."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "why_breaks.md").read_text()
    titles = {kind for line in page.splitlines() if line.startswith("## ") for kind in line[3:].split(", ")}
    here = {
        *(fix.kind for fix in FIXES),
        "unsupported-value",
        "unknown-opcode",
        "local-class",
        "compiled-by-another",
        "recursion",
        "resized-gradient",
        "held-lock",
        "first-call",
        "saved-tensor-hooks",
    }
    elsewhere = {"operation-may-raise", "trace-too-long", "break-in-region", "internal-error", "stopped", "unfit-guard"}
    elsewhere.add("long-container")
    assert set(breaks.KINDS) - titles - here - elsewhere == set()
