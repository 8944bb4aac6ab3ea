"""What autograd has of views and their bases that come over a break, where one of them is written, with sizes that
vary: a net of ways to make a view, to write and to read. Views that autograd refuses to read are among them."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit

_MADE = ("x * 2", "x.clone()")
_VIEWS = (
    "b.unbind(0)[0]", "b.split(1)[0]", "without_gradients(b)", "b.unbind()[1].view(-1)", "b.view(-1)", "b.t()", "b[1:]",
)  # fmt: skip
_WRITES = (
    "b.mul_(3)", "v.mul_(2)", "b.mul_(s)", "b.detach().mul_(2)", "v.view(-1).mul_(s)", "b.sum(); v.mul_(s)",
    "v.sum(); b.mul_(s)", "v.sum(); b.mul_(2)", "b.view(-1)[1:].add_(s)",
)  # fmt: skip
_READS = ("v + 1", "b + 1", "v.view(-1)", "b.t() + v.sum()")
_PROGRAMS = random.Random(0).sample([*itertools.product(_MADE, _VIEWS, _WRITES, _READS)], 40)


def without_gradients(b: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return b[0]


def _function(made: str, view: str, write: str, read: str) -> Callable[..., Any]:
    space = {"dynajit": dynajit, "without_gradients": without_gradients}
    exec(
        f"""
def f(x, s):
    b = {made}
    v = {view}
    dynajit.graph_break()
    try:
        {write}
        y = {read}
        print(y.requires_grad)
    except RuntimeError as error:
        print(str(error)[:30])
        y = None
    return y
""",
        space,
    )
    return space["f"]  # type: ignore[return-value]


def _seen(function: Callable[..., Any], rows: int, columns: int) -> tuple[Any, ...]:
    x, s = torch.ones(rows, columns, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        y = function(x, s)
    if y is None:
        return (printed.getvalue(),)
    if y.requires_grad:
        y.sum().backward()
    return printed.getvalue(), y.tolist(), y.requires_grad, str(x.grad), str(s.grad)


@pytest.mark.parametrize("program", _PROGRAMS, ids=" | ".join)
def test_autograd_has_of_them_what_it_has_in_eager_mode(program: tuple[str, ...]) -> None:
    function = _function(*program)
    compiled = dynajit.compile(function, backend="eager")
    for sizes in ((3, 2), (4, 2), (5, 3), (3, 2)):
        assert _seen(compiled, *sizes) == _seen(function, *sizes)
