"""examples/tiny, the compiler to learn from: each of its files alone, and programs against eager mode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="hook.c reads frames of CPython 3.11 and 3.12")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import tiny.compiler

    tiny.compiler.variants.clear()
    tiny.compiler.log.clear()
    yield tiny.compiler


SCALE = 3.0


def whole(x: Tensor, y: Tensor, n: float) -> Tensor:
    z = torch.relu(x * y + 1) / n
    return z.abs() - z.sqrt() * 2


def broken(x: Tensor, y: Tensor) -> Any:
    z = (x * y + 1).relu()
    seen = note(z, "half way")
    return z * 0.5 - seen


def broken_twice(x: Tensor) -> Tensor:
    note(x, "one")
    return x - note(x * 2, "two")


def loop(x: Tensor) -> Tensor:
    for _ in range(3):
        x = helper(x)
    return x


def helper(x: Tensor) -> Tensor:
    return x * 2 + 1


def raises(x: Tensor) -> Tensor:
    y = x + 1
    fail(y)
    return y


def fail(y: Tensor) -> None:
    raise ValueError("no")


def reads_global(x: Tensor) -> Tensor:
    return torch.mul(x, SCALE)


def in_try(x: Tensor) -> Any:
    try:
        return note(x * 2, "tried")
    finally:
        NOTES.append("finally")


def through(x: Tensor) -> Any:
    return x


NOTES: list[str] = []


def note(x: Tensor, text: str) -> Tensor:
    NOTES.append(text)
    return x + 1


def same(tiny: ModuleType, fn: Callable[..., Any], *args: Any) -> None:
    """Compiled and in eager mode, twice each: results to the bit, and what was noted."""
    compiled = tiny.compile(fn)
    for _ in range(2):
        NOTES.clear()
        expected, noted = fn(*args), [*NOTES]
        NOTES.clear()
        found = compiled(*args)
        assert noted == NOTES
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


SPECIAL = torch.tensor([1.5, -2.0, 0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-40])


def left(tiny: ModuleType) -> list[str]:
    return [line for line in tiny.log if "left to Python" in line]


def test_a_function_is_one_kernel(tiny: ModuleType) -> None:
    same(tiny, whole, SPECIAL, SPECIAL.flip(0), 3.0)
    assert tiny.log == ["whole is compiled, as it is new"]


def test_a_break_is_crossed_by_a_continuation(tiny: ModuleType) -> None:
    same(tiny, broken, SPECIAL, SPECIAL.flip(0))
    assert sum("the graph breaks" in line for line in tiny.log) == 1
    same(tiny, broken_twice, SPECIAL)


def test_guards_choose_among_variants(tiny: ModuleType) -> None:
    compiled = tiny.compile(whole)
    for x, n in ((torch.ones(3), 2.0), (torch.ones(4), 2.0), (torch.ones(4), 2), (torch.ones(3), 2.0)):
        assert torch.equal(compiled(x, x, n), whole(x, x, n))
    assert len(tiny.log) == 3 and "does not hold: argument 0" in tiny.log[1] and "argument 2" in tiny.log[2]


def test_a_global_is_guarded(tiny: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    same(tiny, reads_global, SPECIAL)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 5.0)
    same(tiny, reads_global, SPECIAL)
    assert "global SCALE is 3.0" in tiny.log[-1]


@pytest.mark.parametrize("fn", [loop, in_try])
def test_what_is_left_to_python_has_its_callees_compiled(tiny: ModuleType, fn: Callable[..., Any]) -> None:
    same(tiny, fn, SPECIAL)
    assert len(left(tiny)) >= 1 and fn.__name__ in left(tiny)[0]
    assert any(line.startswith(("helper is compiled", "note is compiled")) for line in tiny.log)


@pytest.mark.parametrize(
    "x", [torch.ones(3, dtype=torch.int64), torch.ones(2, 3).t(), torch.ones(3).requires_grad_()], ids=str
)
def test_other_tensors_are_left_to_python(tiny: ModuleType, x: Tensor) -> None:
    same(tiny, helper, x)
    assert len(left(tiny)) == 1


def test_an_argument_that_is_returned_is_the_argument(tiny: ModuleType) -> None:
    assert tiny.compile(through)(SPECIAL) is SPECIAL


def test_an_exception_is_the_programs(tiny: ModuleType) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            tiny.compile(raises)(SPECIAL)
    assert torch.equal(tiny.compile(helper)(torch.ones(2)), helper(torch.ones(2)))


def test_arguments_are_let_go(tiny: ModuleType) -> None:
    x = torch.ones(3)
    before = sys.getrefcount(x)
    for _ in range(3):
        tiny.compile(broken)(x, x)
    assert sys.getrefcount(x) == before


def test_it_is_short() -> None:
    lines = [len(path.read_text().splitlines()) for path in (EXAMPLES / "tiny").iterdir() if path.is_file()]
    assert sum(lines) <= 500


def test_the_page_has_a_program_that_runs(tiny: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    page = (EXAMPLES.parent / "docs" / "tiny.md").read_text()
    exec(page.partition("```py\n")[2].partition("```")[0], {"__name__": "page"})
    assert capsys.readouterr().out.startswith("half way\nhalf way\nf is compiled, as it is new\n")
    assert sum("does not hold: argument 0" in line for line in tiny.log) == 2  # f, and its continuation
    assert not any(line.startswith("f ") for line in left(tiny))  # the test's own print is compiled, too
