"""Programs called with changing sizes and numbers: equal to eager, compiled once static and once symbolic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

BACKENDS = ["eager", "aot_eager", "codegen"]
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def same(fn: Any, calls: list[tuple[Any, ...]], backend: str = "eager", recompiles: int = 1, **options: Any) -> Any:
    tolerance = {} if backend == "eager" else TOLERANCE
    return assert_same(
        fn, *calls[0], then=calls[1:], repeat=1, backend=backend, recompiles=recompiles, **tolerance, **options
    )


def rand(*sizes: int) -> Tensor:
    return torch.rand(sizes)


def sizes_as_numbers(x: Tensor, w: Tensor) -> Any:
    rows, columns = x.shape
    return (x * 2 + w).view(-1, columns).sum(0) + rows, rows * 3, x.numel(), x.shape, len(x) // 2 + columns % 3


def padding(x: Tensor) -> Any:
    out = torch.zeros(x.shape[0] + 1, x.shape[1])
    out[1:] = x
    mask = torch.arange(x.shape[1]) < x.shape[1] // 2
    both = torch.cat([out, x], 0)
    return torch.where(mask, both, -both).expand(2, -1, -1).reshape(-1, x.shape[1])[:, : x.shape[1] // 2]


def normalise(x: Tensor) -> Any:
    return torch.nn.functional.layer_norm(torch.relu(x @ x.mT), (x.shape[-2],)).softmax(-1).mean()


TWO_DIMENSIONS = [(4, 8), (5, 10), (6, 12), (7, 14), (9, 8), (31, 33)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [padding, normalise])
def test_sizes_change(fn: Any, backend: str) -> None:
    same(fn, [(rand(*sizes),) for sizes in TWO_DIMENSIONS], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_as_numbers(backend: str) -> None:
    same(sizes_as_numbers, [(rand(*sizes), rand(sizes[1])) for sizes in TWO_DIMENSIONS], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_python_int(backend: str) -> None:
    def fn(x: Tensor, n: int) -> Any:
        return x * n + n // 2, n + 1

    same(fn, [(rand(3), n) for n in (3, 5, 6, -7, 0, 1)], backend)


def test_python_float() -> None:
    same(lambda x, scale: x * scale + scale, [(rand(3), scale) for scale in (3.5, 5.0, -7.25, 0.0)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_training(backend: str) -> None:
    layer = torch.nn.Linear(8, 8)

    def fn(x: Tensor) -> Any:
        return torch.nn.functional.layer_norm(torch.relu(layer(x)), (8,)).softmax(-1).mean()

    same(fn, [(rand(n, 8).requires_grad_(),) for n in (4, 5, 6, 7, 9)], backend)


def test_decisions_are_guarded() -> None:
    def fn(x: Tensor) -> Any:
        return x * 2 if x.shape[0] > 6 else x + 1

    # static, symbolic up to 6, symbolic above
    same(fn, [(rand(n),) for n in (4, 5, 6, 7, 9, 3, 2, 20)], recompiles=2)


def test_specialised_by_use() -> None:
    def fn(x: Tensor) -> Any:
        return {x.shape[0]: x + 1}

    same(fn, [(rand(n),) for n in (4, 5, 6)], recompiles=2)


def test_a_size_made_of_sizes() -> None:
    """torch.Size((n, 3)) took n as a constant, as torch.distributions do for each sample."""

    def fn(x: Tensor) -> Any:
        size = torch.Size((x.shape[0],) + x.shape[1:])
        return x.new_ones(size) + x, size, type(size), size.numel(), size == x.shape, torch.Size([2, 3])

    same(fn, [(rand(n, 3),) for n in (4, 5, 6)], recompiles=1)


def test_equal_sizes_are_one_symbol() -> None:
    same(lambda x, y: x + y, [(rand(n), rand(n)) for n in (4, 5, 6, 7)])
    # two symbols as soon as they differ; broadcasting then is by size 1
    same(lambda x, y: (x.sum() + y.sum(), x.shape[0] + y.shape[0]), [(rand(n), rand(n + k)) for n, k in
         ((4, 0), (5, 0), (6, 1), (7, 2), (9, 3))], recompiles=2)  # fmt: skip


def test_marks() -> None:
    def fn(x: Tensor) -> Any:
        return x * 2

    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    x = rand(4)
    dynajit.mark_dynamic(x, 0, min=2, max=10)
    compiled(x)
    for n in (5, 10):
        compiled(rand(n))
    assert counter.frame_count == 1
    compiled(rand(11))
    assert counter.frame_count == 2


def test_static_mark() -> None:
    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(lambda x: x * 2, backend=counter)
    for n in (4, 5, 6):
        x = rand(n)
        dynajit.mark_static(x)
        compiled(x)
    assert counter.frame_count == 3


def test_mark_that_does_not_hold() -> None:
    def fn(x: Tensor) -> Any:
        if x.shape[0] == 4:
            return x * 2
        return x

    x = rand(4)
    dynajit.mark_dynamic(x, 0)
    with pytest.raises(dynajit.exc.ConstraintViolation, match=r"size\(0\) was marked dynamic") as caught:
        dynajit.compile(fn, backend="eager")(x)
    assert "if x.shape[0] == 4" in str(caught.value)
    y = rand(4)
    dynajit.maybe_mark_dynamic(y, 0)
    assert torch.equal(dynajit.compile(fn, backend="eager")(y), y * 2)


def test_dynamic_argument_of_compile() -> None:
    calls = [(rand(n, 3),) for n in (4, 5, 6, 7)]
    same(lambda x: x.sum(0) * x.shape[0], calls, recompiles=0, dynamic=True)
    same(lambda x: x.sum(0) * x.shape[0], calls, recompiles=3, dynamic=False)


def test_growing_cache() -> None:
    def step(x: Tensor, cache: list[Tensor]) -> Any:
        cache[0] = torch.cat([cache[0], x], 1)
        return torch.softmax(x @ cache[0].mT, -1) @ cache[0]

    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(step, backend=counter)
    ours, theirs = [rand(2, 3, 4)], [rand(2, 3, 4)]
    theirs[0] = ours[0].clone()
    for _ in range(20):
        x = rand(2, 1, 4)
        assert torch.equal(compiled(x, ours), step(x, theirs))
    assert counter.frame_count == 2


def test_break_with_symbolic_values_live() -> None:
    def fn(x: Tensor) -> Any:
        rows = x.shape[0] * 2
        y = x + rows
        print("rows", rows)
        return y * rows, rows

    same(fn, [(rand(n, 2),) for n in (3, 4, 5, 6)], recompiles=None)


def test_view_of_a_leaf_is_not_written_in_the_graph() -> None:
    def function(y: torch.Tensor) -> str:
        try:
            y.add_(1)
        except RuntimeError as error:
            return str(error)
        return "written"

    compiled = dynajit.compile(function, backend="eager")
    for made in (torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True).t()):
        assert compiled(made) == function(made)
