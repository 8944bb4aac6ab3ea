"""Texts of containers of numbers that vary: one graph for all of them, and Python's text."""

import logging
import pprint
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import CompileCounter, assert_same, compare

TEXTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "str of a shape": lambda x: str(x.shape),
    "f-string of a shape": lambda x: f"{x.shape}",
    "repr in an f-string": lambda x: f"{tuple(x.shape)!r:>20}",
    "%": lambda x: "%s, %r" % (x.shape, [x.size(0)]),  # noqa: UP031
    "format": lambda x: "{} of {rows}".format(x.shape, rows=(x.size(0), "a")),
    "list": lambda x: str([*x.shape]),
    "one number": lambda x: str((x.size(0),)),
    "nested": lambda x: repr({"n": x.size(0), x.size(1): [(x.shape, 1.5), "it's"], "half": x.size(0) / 2}),
    "a list in itself": lambda x: str(itself(x.size(0))),
    "number text": lambda x: repr([str(x.size(0)), f"{x.size(0)}"]),
    "joined": lambda x: ", ".join(map(str, [x.shape, (x.size(0), None)])),
    "an object's text": lambda x: str([Shown(x.size(0)), x.size(0)]),
    "length": lambda x: len(str(x.shape)),
    "compared": lambda x: str((x.size(0), 1)) == "(4, 1)",
}


class Shown:
    def __init__(self, n: int) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"<{self.n}>"


def itself(n: int) -> list[Any]:
    made: list[Any] = [n]
    made.append(made)
    return made


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str) -> None:
    fn = TEXTS[name]

    def program(x: torch.Tensor) -> Any:
        return x + 1, fn(x)

    counter = CompileCounter()
    compiled = dynajit.compile(program, backend=counter, fullgraph=True)
    sizes = (4, 6, 9, 11, 5)
    for n in sizes:
        compare(compiled(torch.ones(n, 3)), program(torch.ones(n, 3)))
    if name not in ("length", "compared"):  # which need the text itself
        assert counter.frame_count == 2


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "dynajit.test.container_text"]


def test_printed_and_logged(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    log, state = logging.getLogger("dynajit.test.container_text"), types.SimpleNamespace(step=0)

    def program(x: torch.Tensor) -> torch.Tensor:
        state.step += 1
        print(f"step {state.step:>3d}: {tuple(x.shape)!r}", [state.step])
        log.warning("%s at %s", x.shape, {"step": state.step})
        return x * 2

    counter = CompileCounter()
    compiled = dynajit.compile(program, backend=counter)
    for n in (4, 6, 9, 11, 5):
        compiled(torch.ones(n, 3))
    assert counter.frame_count <= 4
    written, records = capsys.readouterr().out, logged(caplog)
    state.step = 0
    caplog.clear()
    for n in (4, 6, 9, 11, 5):
        program(torch.ones(n, 3))
    assert (written, records) == (capsys.readouterr().out, logged(caplog))


def test_structures_print_that_contain_themselves() -> None:
    def f(x: torch.Tensor, node: Any) -> Any:
        return x + 1, pprint.pformat(node), pprint.isrecursive(node)

    node: list[Any] = [1, [2]]
    node[1].append(node)
    assert_same(f, torch.ones(2), (3, 4))
    assert dynajit.compile(f, backend="eager")(torch.ones(2), node)[1:] == f(torch.ones(2), node)[1:]


def test_the_text_of_a_module_tells_of_its_loader() -> None:
    class Loader:
        pass

    def f(x: torch.Tensor) -> Any:
        module = types.ModuleType("made")
        before = repr(module)
        module.__loader__ = Loader  # type: ignore[assignment]
        return x + 1, before, repr(module), f"{module}"

    assert_same(f, torch.ones(2), never_repeats="each call makes a module that is guarded by identity")
