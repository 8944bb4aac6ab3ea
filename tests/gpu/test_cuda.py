"""Programs on an NVIDIA GPU: same results as eager through the backends that run there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import dynajit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
BACKENDS = ("eager", "aot_eager", "codegen")


@pytest.fixture(autouse=True)
def fresh() -> Any:
    dynajit.reset()
    yield
    assert not dynajit.counters["internal_errors"]
    dynajit.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions(backend: str) -> None:
    x, y, w = (torch.randn(64, 64, device="cuda") for _ in range(3))
    for fn in (
        lambda x, y, w: torch.softmax(x @ y, dim=1),
        lambda x, y, w: x / (x.abs() + 1) * w,
        lambda x, y, w: torch.relu(x * w + y) * 0.5,
    ):
        compiled = dynajit.compile(fn, backend=backend, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, y, w), fn(x, y, w))


@pytest.mark.parametrize("backend", BACKENDS)
def test_device_is_guarded(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(x.shape, device=x.device)

    compiled = dynajit.compile(fn, backend=backend)
    for device in ("cuda", "cpu", "cuda"):
        x = torch.randn(8, device=device)
        result = compiled(x)
        assert result.device == x.device
        torch.testing.assert_close(result, fn(x))
    assert dynajit.counters()["unique_graphs"] == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_break_and_branch(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        print("middle")
        if x.sum() > 0:
            return x + 1
        return x - 1

    compiled = dynajit.compile(fn, backend=backend)
    for sign in (1, -1, 1):
        x = torch.full((8,), float(sign), device="cuda")
        torch.testing.assert_close(compiled(x), fn(x))
    assert capsys.readouterr().out == "middle\n" * 6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("autocast", [False, True])
def test_training(backend: str, autocast: bool) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 8)]
    model = torch.nn.Sequential(*layers).cuda()
    other = copy.deepcopy(model)
    compiled = dynajit.compile(other, backend=backend)
    x = torch.randn(16, 32, device="cuda")
    for module, call in ((model, model), (other, compiled)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                loss = call(x).float().pow(2).mean()
            loss.backward()
            optimizer.step()
    tolerance = 2e-2 if autocast else 1e-4
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
