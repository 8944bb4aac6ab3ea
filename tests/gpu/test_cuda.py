"""Programs on an NVIDIA GPU: same results as eager through the backends that run there."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.aot import by_size

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh"),
]
BACKENDS = ("eager", "aot_eager", "codegen")


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


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_items_chosen_by_tensors(device: str, mode: str | None) -> None:
    """Kernels of the own on both sides of what is read, as the graph ends there."""
    table = torch.linspace(0.1, 1, 10, device="cuda")

    def fn(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x = x.sin() + table[t]
        return x[x.sum(1).argmax()].exp() * x

    compiled = dynajit.compile(fn, mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in (3, 4, 3, 5, 5):
            x, t = torch.randn(16, 16, device="cuda"), torch.tensor(number, device=device)
            torch.testing.assert_close(compiled(x, t), fn(x, t))


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
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()) for _ in range(3))
    ).cuda()
    twin = copy.deepcopy(model)
    compiled = dynajit.compile(model)
    x = torch.randn(32, 64, device="cuda")
    for _ in range(2):
        for m, run in ((model, compiled), (twin, twin)):
            m.zero_grad()
            run(x).square().mean().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("filled", [torch.where, torch.Tensor.masked_fill])
def test_attention_behind_a_mask_of_numbers_on_the_device(filled: Callable[..., torch.Tensor]) -> None:
    """What a constant mask is made of can lie on the device: numbers that the program made tensors of there."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        zero, least = (torch.tensor(x, device=q.device, dtype=q.dtype) for x in (0.0, torch.finfo(q.dtype).min))
        if filled is torch.where:
            mask = torch.where(seen, zero, least)
        else:
            mask = filled(zero.expand(seen.shape), ~seen, least)
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask).softmax(-1) @ v

    args = [torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    with torch.no_grad():
        expected, actual = attention(*args), dynajit.compile(attention, fullgraph=True)(*args)
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.02)


def test_patches_of_float32_pictures_are_as_exact_as_eagers() -> None:
    """cuDNN may round to TF32, and does so with channels last where it does not without."""

    def loss(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        patches = torch.nn.functional.conv2d(x, w, stride=16).flatten(2).transpose(1, 2)
        return (torch.nn.functional.gelu(patches) @ v).square().mean()

    shapes = ((2, 3, 224, 224), (192, 3, 16, 16), (192, 64))
    x, w, v = (torch.randn(*shape, device="cuda") / shape[-1] for shape in shapes)
    found = []
    for fn, dtype in ((loss, torch.float64), (loss, torch.float32), (dynajit.compile(loss), torch.float32)):
        last = v.to(dtype, copy=True).requires_grad_()
        fn(x.to(dtype), w.to(dtype, copy=True).requires_grad_(), last).backward()
        assert last.grad is not None
        found.append(last.grad.double())
    exact, expected, actual = found
    assert (actual - exact).norm() <= 2 * (expected - exact).norm() + 1e-5 * exact.norm()


@pytest.mark.parametrize("causal", (False, True))
def test_attention_written_by_hand(causal: bool) -> None:
    """At least as close to float64 as eager's."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, rows, width = q.shape
        q, k, v = (x.view(batch, rows, 8, width // 8).transpose(1, 2) for x in (q, k, v))
        scores = q @ k.transpose(-2, -1) / (width // 8) ** 0.5
        if causal:
            hidden = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, rows, width)

    args = [torch.randn(2, 512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    with torch.no_grad():
        expected, actual = attention(*args), dynajit.compile(attention)(*args)
        exact = attention(*(x.double() for x in args))
    assert actual.stride() == expected.stride()
    assert (actual - exact).abs().max() <= 1.2 * (expected - exact).abs().max()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_numbers_of_the_host(mode: str | None) -> None:
    """Rates that change at every step, and counts in tensors on the CPU, are arguments of kernels."""

    def step(p: torch.Tensor, grad: torch.Tensor, rate: float, count: torch.Tensor) -> torch.Tensor:
        return p - grad * (rate / (1 - 0.9**count)) * 2.0

    compiled = dynajit.compile(step, mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(1, 24):
            p, grad = torch.randn(2, 1000, device="cuda")
            args = p, grad, 0.1 / number, torch.tensor(float(number))
            torch.testing.assert_close(compiled(*args), step(*args))
    report = dynajit.explain(step)(*args)
    assert not report.break_reasons


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam, torch.optim.AdamW])
def test_optimizers_that_count_on_the_host(kind: Any) -> None:
    runs = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        parameters = [torch.randn(100, 30, device="cuda", requires_grad=True) for _ in range(3)]
        optimizer = kind(parameters, lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        step = dynajit.compile(optimizer.step) if compile_it else optimizer.step
        for _ in range(12):
            for p in parameters:
                p.grad = torch.randn_like(p)
            step()
            scheduler.step()
        runs.append([*parameters, *(s["step"] for s in optimizer.state.values())])
    torch.testing.assert_close(runs[1], runs[0])


def test_autotuned() -> None:
    def fn(x: torch.Tensor) -> Any:
        return torch.softmax(x, -1), x.sum(0), torch.relu(x * 2 + 1)

    x = torch.randn(2048, 2048, device="cuda")
    for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        compiled = dynajit.compile(fn, mode=mode)
        for _ in range(4):
            torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)


def test_cheap_functions() -> None:
    """Over all magnitudes, against float64."""
    x = torch.cat([torch.randn(1 << 16) * scale for scale in (1e-6, 1e-2, 1, 30, 3e3, 9e4, 1e9)]).cuda()
    x = torch.cat([x, torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")], device="cuda")])
    for name in ("sin", "cos", "erf"):
        for piece in (x, x[: 5 << 16], torch.randn(7, device="cuda")):
            fn = getattr(torch, name)
            torch.testing.assert_close(
                dynajit.compile(lambda t, fn=fn: fn(t) + 0)(piece).double(),
                fn(piece.double()),
                rtol=1e-6,
                atol=3e-7,
                equal_nan=True,
            )
        dynajit.reset()
    gelu = dynajit.compile(lambda t: torch.nn.functional.gelu(t))
    torch.testing.assert_close(
        gelu(x).double(), torch.nn.functional.gelu(x.double()), rtol=1e-6, atol=1e-6, equal_nan=True
    )
    nested = dynajit.compile(lambda t: torch.exp(torch.cos(torch.sin(t))))
    torch.testing.assert_close(
        nested(x).double(), torch.exp(torch.cos(torch.sin(x.double()))), rtol=1e-6, atol=1e-6, equal_nan=True
    )


@pytest.mark.parametrize("way", (1, 2, 3, 4))
def test_products_as_kernels(way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way that max-autotune may choose, with sizes that tiles do not divide, and addresses that are no multiples
    of 16."""
    from dynajit.runtime import autotune

    monkeypatch.setattr(autotune, "chooser", lambda device: lambda ways: way if ways[0].call is not None else 0)

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)) + y

    shapes = ((1000, 1032), (1544, 1032), (1544,), (1000, 1544))
    for dtype in (torch.bfloat16, torch.float16):
        compiled = dynajit.compile(fn, mode="max-autotune-no-cudagraphs", fullgraph=True)
        for start in (0, 0, 1):
            args = []
            for shape in shapes:
                size = math.prod(shape)
                flat = torch.randn(size + 1, device="cuda").to(dtype)
                args.append(flat[start : start + size].view(shape))
            exact, eager = fn(*(arg.double() for arg in args)), fn(*args)
            ours, theirs = ((got.double() - exact).norm() / exact.norm() for got in (compiled(*args), eager))
            assert ours <= 1.2 * theirs + 1e-4
        dynajit.reset()


@pytest.mark.parametrize("way", (1, 2, 3, 4))
def test_batches_of_products_as_kernels(way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from dynajit.runtime import autotune

    monkeypatch.setattr(autotune, "chooser", lambda device: lambda ways: way if ways[0].call is not None else 0)

    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        one = torch.relu(torch.baddbmm(c, a, b)) + c
        return one, torch.bmm(a, b).float() * 2, torch.bmm(one.mT, a.mT.mT).abs()

    args = [torch.randn(shape, device="cuda").bfloat16() for shape in ((32, 264, 520), (32, 520, 328), (32, 264, 328))]
    compiled = dynajit.compile(fn, mode="max-autotune-no-cudagraphs", fullgraph=True)
    for _ in range(2):
        for got, eager, exact in zip(compiled(*args), fn(*args), fn(*(arg.double() for arg in args)), strict=True):
            ours, theirs = ((t.double() - exact).norm() / exact.norm() for t in (got, eager))
            assert ours <= 1.2 * theirs + 1e-4
    assert not dynajit.counters["internal_errors"]


@pytest.mark.parametrize("way", (1, 2, 3, 4))
def test_groups_of_products_as_kernels(way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty group among them, and ends that tiles do not meet."""
    from dynajit.runtime import autotune

    monkeypatch.setattr(autotune, "chooser", lambda device: lambda ways: way if ways[0].call is not None else 0)

    def fn(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(torch._grouped_mm(a, b.mT, offs=ends)) * y

    a, b, y = (torch.randn(s, device="cuda").bfloat16() for s in ((4000, 768), (5, 520, 768), (4000, 520)))
    compiled = dynajit.compile(fn, mode="max-autotune-no-cudagraphs", fullgraph=True)
    for numbers in ([100, 100, 1777, 3999, 4000], [800, 1600, 2400, 3200, 4000], [0, 0, 0, 0, 4000]):
        ends = torch.tensor(numbers, device="cuda", dtype=torch.int32)
        torch.testing.assert_close(compiled(a, b, ends, y), fn(a, b, ends, y), rtol=2e-2, atol=5e-1)
    assert not dynajit.counters["internal_errors"]


def test_images_cut_in_patches() -> None:
    conv = torch.nn.Conv2d(3, 256, 8, 8).cuda().bfloat16()
    x = torch.randn(4, 3, 64, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        actual = dynajit.compile(lambda x: conv(x).flatten(2).transpose(1, 2) + 1)(x)
        expected = conv(x).flatten(2).transpose(1, 2) + 1
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_index_copy() -> None:
    """A kernel of its own, in every mode."""

    def fn(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, x * 2)
        return cache.sum(1)

    for mode in (None, "reduce-overhead"):
        compiled = dynajit.compile(fn, mode=mode, fullgraph=True)
        ours, theirs = (torch.zeros(3, 64, 32, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for step in range(6):
            at = torch.tensor([step, 20 + step], device="cuda")
            x = torch.randn(3, 2, 32, device="cuda", dtype=torch.bfloat16)
            torch.testing.assert_close(compiled(ours, at, x), fn(theirs, at, x), rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(ours, theirs)
        dynajit.reset()


def test_the_first_graph_of_a_process_has_the_kernel_of_attention_that_eager_has() -> None:
    text = """
import torch, dynajit
from dynajit.backends import codegen
plans = []
build = codegen.gpu.build
codegen.gpu.build = lambda plan: plans.append(plan) or build(plan)
q, k, v = (torch.randn(1, 4, 16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
with torch.no_grad():
    for _ in range(2):
        dynajit.reset()
        dynajit.compile(torch.nn.functional.scaled_dot_product_attention, fullgraph=True)(q, k, v)
print(*[[step.target.__name__ for step in plan.steps if hasattr(step, "target")] for plan in plans], sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    first, second = done.stdout.split("\n")[:2]
    assert first == second and "attention" in first


@pytest.mark.parametrize("masked", (False, True))
def test_attention_of_few_queries(masked: bool) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2) * 2

    for dtype, batch, rows, keys, width in ((torch.bfloat16, 1, 1, 1024, 64), (torch.float16, 3, 4, 333, 80)):
        q = torch.randn(batch, rows, 8, width, device="cuda", dtype=dtype).transpose(1, 2)
        k, v = (torch.randn(batch, 2, keys, width, device="cuda", dtype=dtype) for _ in range(2))
        mask = torch.rand(batch, 1, rows, keys, device="cuda") < 0.5 if masked else None
        with torch.no_grad():
            expected = fn(*(x.double() for x in (q, k, v)), mask)
            theirs, ours = fn(q, k, v, mask), dynajit.compile(fn, fullgraph=True)(q, k, v, mask)
        error, allowed = (ours - expected).abs().max(), (theirs - expected).abs().max()
        assert error <= 1.5 * allowed + 1e-4
        dynajit.reset()


def test_sums_where_indices_say() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.scatter_add(0, i, s) + torch.zeros_like(x).index_add(0, i[:, 0], s) * 2

    for dtype in (torch.float32, torch.float64, torch.int64):
        x, s = (torch.randint(-9, 9, (n, 33), device="cuda").to(dtype) for n in (100, 5000))
        i = torch.randint(0, 100, (5000, 33), device="cuda")
        torch.testing.assert_close(dynajit.compile(fn, fullgraph=True)(x, i, s), fn(x, i, s))
        dynajit.reset()


def test_running_sums() -> None:
    for shape in ((7, 20_000), (3000, 50), (5, 70, 40)):
        x = torch.randint(-9, 9, shape, device="cuda").float()
        compiled = dynajit.compile(lambda t: (t.cumsum(-1) + 1, t.cumsum(0)), fullgraph=True)
        torch.testing.assert_close(compiled(x), (x.cumsum(-1) + 1, x.cumsum(0)))
        dynajit.reset()


def test_sizes_that_vary() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1) * x.shape[0]

    w = torch.randn(64, 64, device="cuda")
    for mode in (None, "reduce-overhead"):
        compiled = dynajit.compile(fn, mode=mode, dynamic=True, fullgraph=True)
        for _ in range(3):
            for rows in (3, 64, 100):
                x = torch.randn(rows, 64, device="cuda")
                torch.testing.assert_close(compiled(x, w), fn(x, w), rtol=1e-4, atol=1e-4)
        dynajit.reset()


def test_sizes_that_vary_are_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second size compiles nothing."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = torch.nn.functional.gelu(x @ w) * (1 + 1 / x.shape[0])
        return y, torch.softmax(y, -1), y.sum(0), torch.softmax(y.t(), -1).contiguous()

    def made(*_: Any) -> Any:
        raise AssertionError("a graph of one size is compiled")

    monkeypatch.setattr(by_size.BySize, "_make", made)
    compiled = dynajit.compile(fn, dynamic=True, fullgraph=True)
    w = torch.randn(64, 72, device="cuda", requires_grad=True)
    for rows in (5, 64, 1000, 2, 77, 40_000):
        x = torch.randn(rows, 64, device="cuda")
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                ours, theirs = compiled(x, w), fn(x, w)
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
            if grad:
                gradients = [torch.autograd.grad(sum(t.square().sum() for t in out), w)[0] for out in (ours, theirs)]
                # sums of so many rows, of which what is left may be small
                torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-5 * float(gradients[1].abs().max()))
    assert dynajit.counters()["unique_graphs"] <= 2


def test_two_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    compiled = dynajit.compile(lambda x: torch.softmax(x * 2, -1) + 1, fullgraph=True)
    for index in (0, 1, 0):
        x = torch.randn(64, 64, device=f"cuda:{index}")
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1) + 1)

    def moved(x: torch.Tensor) -> torch.Tensor:
        return torch.relu((x * 2).to("cuda:1") + 1)

    x = torch.randn(64, 64, device="cuda:0")
    torch.testing.assert_close(dynajit.compile(moved)(x), moved(x))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_detached_views_of_results_need_no_gradient(mode: str | None) -> None:
    weight = torch.ones(8, device="cuda", requires_grad=True)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = (x + weight)[..., -1:]
        return result, result.detach()[:1]

    compiled = dynajit.compile(fn, mode=mode, fullgraph=True)
    for _ in range(4):
        x = torch.randn(64, 8, device="cuda")
        whole, part = compiled(x)
        assert whole.requires_grad and not part.requires_grad
        assert part.data_ptr() == whole.data_ptr()
        torch.testing.assert_close((whole, part), fn(x))
        weight.grad = None
        whole.sum().backward()
        assert weight.grad is not None and weight.grad.sum().item() == 64


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_detached_inputs_are_no_views_to_autograd(mode: str | None) -> None:
    compiled = dynajit.compile(lambda x: (x.detach()[1:], x * 2), mode=mode, fullgraph=True)
    x = torch.randn(64, 8, device="cuda", requires_grad=True)
    with torch.no_grad():
        for _ in range(4):
            part, _ = compiled(x)
            assert part._base is not x and part.data_ptr() == x[1:].data_ptr()


def test_products_with_what_comes_before_under_max_autotune() -> None:
    """Whatever way is found to be the fastest."""
    weight, scale = torch.randint(-9, 9, (1024, 1024), dtype=torch.int8, device="cuda"), torch.rand(1024, device="cuda")

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(
            torch.nn.functional.linear(torch.nn.functional.silu(x), weight.half() * scale.half()[:, None])
        )

    x = torch.randn(2048, 1024, device="cuda").half()
    compiled = dynajit.compile(fn, mode="max-autotune-no-cudagraphs", fullgraph=True)
    torch.testing.assert_close(compiled(x), fn(x), rtol=1e-2, atol=1e-1)
