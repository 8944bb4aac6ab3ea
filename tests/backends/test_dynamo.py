"""`torch.compile(backend="dynajit")`: values, gradients and changed arguments are eager's, also where sizes vary."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dynajit.backends.dynamo import dynajit as backend
from dynajit.exc import ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def fresh(args: tuple[Any, ...]) -> list[Any]:
    return [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args]


def compare(fn: Callable[..., Any], *calls: tuple[Any, ...], graphs: int, **settings: Any) -> None:
    """Each call's results, gradients and changed arguments against eager's; how many graphs Dynamo handed over."""
    seen = []

    def counting(gm: torch.fx.GraphModule, examples: list[Any], **options: Any) -> Callable[..., Any]:
        seen.append(gm)
        return backend(gm, examples, **options)

    compiled = torch.compile(fn, backend=counting, **settings)
    for args in calls:
        ours, theirs = fresh(args), fresh(args)
        expected = fn(*theirs)
        found = compiled(*ours)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad
        if expected.requires_grad:
            expected.square().sum().backward()
            found.square().sum().backward()
        for one, other in zip(ours, theirs, strict=True):
            if isinstance(one, Tensor):
                torch.testing.assert_close(one, other)
                if one.is_leaf:
                    torch.testing.assert_close(one.grad, other.grad)
    assert len(seen) == graphs


def leaf(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


def test_inference() -> None:
    compare(lambda x, y: torch.relu(x * y).sum(0), (torch.randn(4, 5), torch.randn(5)), graphs=1)


def test_training() -> None:
    compare(lambda x, w: torch.softmax(x * w, -1).sin(), (torch.randn(4, 5), leaf(5)), graphs=1)


def test_sizes_that_vary_in_inference() -> None:
    calls = [(torch.randn(n, 5),) for n in (4, 6, 9, 17)]
    compare(lambda x: torch.softmax(x, -1) * x.shape[0], *calls, graphs=2)


def test_sizes_that_vary_in_training() -> None:
    calls = [(leaf(n, 5), leaf(5)) for n in (4, 6, 9, 17)]
    compare(lambda x, w: (x * w).exp() / x.shape[0], *calls, graphs=1, dynamic=True)


def test_a_decision_by_a_size_is_guarded() -> None:
    calls = [(torch.randn(n, 5),) for n in (4, 9, 5, 12)]
    compare(lambda x: (x * 2 if x.shape[0] > 6 else x - 1).exp(), *calls, graphs=2, dynamic=True)


def test_numbers_that_vary() -> None:
    calls = [(torch.randn(n, 5), n, n / 4) for n in (4, 6, 9)]
    compare(lambda x, n, f: x * n + f, *calls, graphs=2)


def test_a_graph_break_and_a_branch() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x.sin()
        return y * 2 if y.sum() > 0 else y - 1

    compare(fn, (torch.ones(3, requires_grad=True),), (-torch.ones(3),), graphs=4)


def test_an_argument_that_is_written() -> None:
    compare(lambda x: x.add_(1).sin(), *[(torch.randn(n),) for n in (3, 5, 7)], graphs=2)


def test_a_result_with_a_gradient_written_into_an_argument_without() -> None:
    calls = [(torch.randn(n), torch.ones(1, requires_grad=True)) for n in (3, 5, 7)]
    compare(lambda x, w: x.add_(w).sin(), *calls, graphs=1, dynamic=True)


def test_a_module_in_training_and_inference() -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    compare(block, *[(torch.randn(2, n, 8),) for n in (3, 5, 7)], graphs=2)
    x = torch.ones(1, 2, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(block.eval(), backend=backend)(x), block(x))


def test_nn_module_compile() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU())
    x = torch.randn(4, 5)
    expected = model(x)
    model.compile(backend=backend)
    torch.testing.assert_close(model(x), expected)


def test_modes_and_options_are_those_of_codegen() -> None:
    compare(lambda x: x.sin(), (torch.randn(4),), graphs=1, mode="reduce-overhead")
    compare(lambda x: x.cos(), (torch.randn(4),), graphs=1, options={"numerics": "eager"})
    with pytest.raises(ConfigError, match="unknown mode 'fastest'"):
        backend(torch.fx.symbolic_trace(lambda x: x + 1), [torch.ones(2)], mode="fastest")


def test_torch_finds_it_by_its_name(tmp_path: Path) -> None:
    """As installed: through the entry point in the group torch_dynamo_backends."""
    egg_info = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(egg_info, cwd=ROOT, check=True, capture_output=True)
    program = (
        "import torch\n"
        "f = torch.compile(lambda x: (x.sin() + 1) * 2, backend='dynajit')\n"
        "x = torch.randn(8, requires_grad=True)\n"
        "f(x).sum().backward()\n"
        "torch.testing.assert_close(x.grad, 2 * x.detach().cos())\n"
        "import sys; assert 'dynajit' in sys.modules\n"
        "assert 'dynajit' in torch.compiler.list_backends()\n"
    )
    paths = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    subprocess.run([sys.executable, "-c", program], env=paths, check=True, cwd=tmp_path)
