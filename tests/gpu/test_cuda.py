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


def test_kernels() -> None:
    """Fused kernels over shapes and dtypes, against eager."""
    functions: dict[str, Any] = {
        "chain": lambda x: torch.relu(x * 2 + x[0]) * x[:, :1],
        "softmax": lambda x: torch.softmax(x, -1),
        "softmax down": lambda x: torch.softmax(x, 0),
        "log softmax": lambda x: torch.log_softmax(x, -1),
        "layer norm": lambda x: torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, x.shape[1:])) * x + x,
        "rms norm": lambda x: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype),
        "sums": lambda x: (x.sum(), x.sum(0), x.sum(1), x.float().var(0), x.amax(1), (x > 1).any(0)),
        "transpose": lambda x: (x.t() * 2).contiguous() + 1,
        "functions": lambda x: torch.exp(torch.cos(torch.sin(x))) + torch.tanh(x) + torch.erf(x),
    }
    for shape in ((3, 5), (64, 100), (1000, 77), (7, 20_001), (2048, 1024), (300, 40_000)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            x = torch.randn(shape, device="cuda").to(dtype)
            for name, fn in functions.items():
                compiled = dynajit.compile(fn, fullgraph=True)
                wanted = fn(x.double())
                results = (compiled(x), fn(x), wanted)
                for got, eager, exact in zip(*(r if isinstance(r, tuple) else (r,) for r in results)):
                    assert got.dtype == eager.dtype and got.shape == eager.shape and got.stride() == eager.stride()
                    scale = exact.double().abs().max() + 1
                    mine, theirs = ((t.double() - exact.double()).abs().max() / scale for t in (got, eager))
                    assert mine <= 3 * theirs + 1e-6, (name, shape, dtype, mine, theirs)
        dynajit.reset()


def test_unaligned_inputs() -> None:
    compiled = dynajit.compile(lambda x: x * 2 + 1)
    base = torch.randn(1 << 12, device="cuda")
    for start in (0, 1, 2, 4, 3):
        x = base[start : start + 1024]
        torch.testing.assert_close(compiled(x), x * 2 + 1)


def test_mutation_and_views() -> None:
    def fn(x: torch.Tensor) -> Any:
        x.mul_(2)
        return x.t(), x[1:] + 1
    compiled = dynajit.compile(fn)
    for _ in range(2):
        x = torch.randn(8, 16, device="cuda")
        y = x.clone()
        torch.testing.assert_close(compiled(x), fn(y))
        torch.testing.assert_close(x, y)


def test_streams() -> None:
    compiled = dynajit.compile(lambda x: torch.softmax(x * 2, -1).sum(0))
    x = torch.randn(512, 512, device="cuda")
    expected = torch.softmax(x * 2, -1).sum(0)
    compiled(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        result = compiled(x)
    stream.synchronize()
    torch.testing.assert_close(result, expected)


def test_training_on_kernels() -> None:
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU())
                                  for _ in range(3))).cuda()
    twin = copy.deepcopy(model)
    compiled = dynajit.compile(model)
    x = torch.randn(32, 64, device="cuda")
    for _ in range(2):
        for m, run in ((model, compiled), (twin, twin)):
            m.zero_grad()
            run(x).square().mean().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
