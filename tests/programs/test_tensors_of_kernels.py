"""Kernels in Python that read or write tensors which they are not given, beside graphs that read and write the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit

_BACKENDS = ("eager", "aot_eager", "codegen")
_GLOBAL = torch.zeros(3)
_HELD = {"tensor": torch.zeros(3)}


@torch.library.custom_op("tensors_of_kernels::read", mutates_args=())
def read(x: Tensor) -> Tensor:
    return x + _GLOBAL


@torch.library.custom_op("tensors_of_kernels::write", mutates_args=())
def write(x: Tensor) -> Tensor:
    _GLOBAL.add_(1)
    return x * 2


@torch.library.custom_op("tensors_of_kernels::read_held", mutates_args=())
def read_held(x: Tensor) -> Tensor:
    return x + _HELD["tensor"]


def _closed_over() -> tuple[Any, Tensor]:
    cell = torch.zeros(3)

    @torch.library.custom_op("tensors_of_kernels::read_cell", mutates_args=())
    def read_cell(x: Tensor) -> Tensor:
        return x + cell

    return read_cell, cell


read_cell, _CELL = _closed_over()
for each in (read, write, read_held, read_cell):
    each.register_fake(torch.empty_like)


def _implicit_write(x: Tensor) -> Tensor:
    _GLOBAL.add_(1)
    return x * 2


_LIBRARY = torch.library.Library("tensors_of_kernels", "FRAGMENT")
_LIBRARY.define("implicit(Tensor x) -> Tensor")
_LIBRARY.impl("implicit", lambda x: x + _GLOBAL if _GLOBAL.sum() < 5 else x, "CompositeImplicitAutograd")
_LIBRARY.define("implicit_write(Tensor x) -> Tensor")
_LIBRARY.impl("implicit_write", _implicit_write, "CompositeImplicitAutograd")
_LIBRARY.define("explicit(Tensor x) -> Tensor")
_LIBRARY.impl("explicit", lambda x: x + _GLOBAL, "CompositeExplicitAutograd")
_LIBRARY.define("of_cpu(Tensor x) -> Tensor")
_LIBRARY.impl("of_cpu", lambda x: x + _GLOBAL, "CPU")
_LIBRARY.impl("of_cpu", torch.empty_like, "Meta")
implicit, implicit_write = torch.ops.tensors_of_kernels.implicit, torch.ops.tensors_of_kernels.implicit_write
explicit, of_cpu = torch.ops.tensors_of_kernels.explicit, torch.ops.tensors_of_kernels.of_cpu


def _written_before(x: Tensor) -> Tensor:
    _GLOBAL.add_(1)
    return read(x)


def _written_in_between(x: Tensor) -> Tensor:
    _GLOBAL.copy_(x)
    y = read(x)
    _GLOBAL.zero_()
    return y + read(x)


def _view_written(x: Tensor) -> Tensor:
    _GLOBAL[1:].add_(1)
    return read(x)


def _written_as_out(x: Tensor) -> Tensor:
    torch.add(x, 1, out=_GLOBAL)
    return read(x)


def _read_around_a_write(x: Tensor) -> Tensor:
    before = _GLOBAL * 2
    return write(x) + before + _GLOBAL


def _written_for_nothing(x: Tensor) -> Tensor:
    write(x)
    return read(x)


def _held(x: Tensor) -> Tensor:
    _HELD["tensor"].add_(1)
    return read_held(x)


def _of_a_cell(x: Tensor) -> Tensor:
    _CELL.add_(1)
    return read_cell(x)


def _implicit(x: Tensor) -> Tensor:
    y = implicit(x)
    _GLOBAL.add_(1)
    return implicit(y)  # type: ignore[no-any-return]


def _implicit_written(x: Tensor) -> Tensor:
    return implicit_write(x) + _GLOBAL  # type: ignore[no-any-return]


def _explicit(x: Tensor) -> Tensor:
    _GLOBAL.add_(1)
    return explicit(x) + of_cpu(x)  # type: ignore[no-any-return]


def _in_a_branch(x: Tensor) -> Tensor:
    _GLOBAL.add_(1)
    return torch.cond(x.sum() > 0, lambda x: read(x), torch.clone, (x,))  # type: ignore[no-any-return]


_PROGRAMS = [
    *(_written_before, _written_in_between, _view_written, _written_as_out, _read_around_a_write),
    *(_written_for_nothing, _held, _of_a_cell, _implicit, _implicit_written, _explicit, _in_a_branch),
]


def _seen(f: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What three calls give and leave, the program outside writing between them."""
    kept = (_GLOBAL, _HELD["tensor"], _CELL)
    for tensor in kept:
        tensor.zero_()
    found = []
    for number in range(3):
        found += [f(torch.full((3,), number + 1.0)), *(tensor.clone() for tensor in kept)]
        _GLOBAL.add_(10.0 * (number == 1))
    return found


def _check(f: Callable[[Tensor], Tensor], backend: str) -> None:
    expected = _seen(f)
    dynajit.reset()
    torch.testing.assert_close(_seen(dynajit.compile(f, backend=backend)), expected)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("f", _PROGRAMS)
def test_kernels_see_what_the_program_wrote(f: Callable[[Tensor], Tensor], backend: str) -> None:
    _check(f, backend)


def test_what_lies_between_kernels_is_compiled() -> None:
    graphs = []

    def backend(gm: torch.fx.GraphModule, inputs: Any, phase: str) -> Any:
        graphs.append([node.name for node in gm.graph.nodes if node.op == "call_function"])
        return gm

    def program(x: Tensor) -> Tensor:
        return read(x.sin()).cos()

    from dynajit.aot import compile_joint

    def compiling(gm: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        return compile_joint(gm, inputs, backend)

    torch.testing.assert_close(dynajit.compile(program, backend=compiling)(torch.ones(3)), program(torch.ones(3)))
    assert graphs == [["sin"], ["cos"]]


def _random_lines(draw: random.Random) -> Iterator[str]:
    kernels = ["read", "write", "read_held", "read_cell", "implicit", "implicit_write", "explicit", "of_cpu"]
    kept = ["_GLOBAL", "_HELD['tensor']", "_CELL"]
    for _ in range(draw.randint(3, 7)):
        tensor = draw.choice(kept)
        lines = [
            *(f"x = {draw.choice(kernels)}(x)", f"{draw.choice(kernels)}(x)", f"x = x.sin() + {tensor}"),
            *(f"{tensor}.add_(1)", f"{tensor}[1:].mul_(x[1:])"),
        ]
        yield draw.choices(lines, [4, 1, 3, 1, 1])[0]
    yield "return x * 2"


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed: int) -> None:
    text = "\n    ".join(["def program(x):", *_random_lines(random.Random(seed))])
    made: dict[str, Any] = {}
    exec(text, globals(), made)
    _check(made["program"], _BACKENDS[1 + seed % 2])
