"""What training programs hold around the model: scalers, foreach updates, wrappers, caches kept by identity."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.ao import quantization

import dynajit
from dynajit.testing import assert_same, compare

BACKENDS = ["eager", "codegen"]


def both(make: Callable[[Callable[..., Any]], Any], backend: str) -> None:
    """`make(wrap)` runs a whole program, with `wrap` in place of the compiler."""
    torch.manual_seed(0)
    expected = make(lambda fn: fn)
    torch.manual_seed(0)
    compare(make(dynajit.compile(backend=backend)), expected, exact=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_scaler_inside_of_a_step(backend: str) -> None:
    def program(wrap: Callable[..., Any]) -> Any:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")

        @wrap
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        losses = [step(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(3)]
        return losses, [parameter.detach() for parameter in model.parameters()], scaler.get_scale()

    both(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_foreach_in_place_on_lists_with_one_tensor_twice(backend: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        torch._foreach_addcdiv_([a, a], [b, c], [c, b], 0.5)
        torch._foreach_add_([a, b], [b, a])
        torch._foreach_mul_([a, b], [2.0, 3.0])
        return a, b

    assert_same(f, *(torch.rand(4) + 1 for _ in range(3)), breaks=0, backend=backend)


def test_operator_that_returns_a_list_and_a_tensor() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, found: torch.Tensor, scale: torch.Tensor) -> Any:
        torch._amp_foreach_non_finite_check_and_unscale_([a, b], found, scale)
        return a + 1, found

    assert_same(f, torch.ones(3), torch.ones(2), torch.zeros(1), torch.full((1,), 2.0), backend="codegen")


def test_tables_kept_by_the_id_of_a_module() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    factors = {id(first): 2.0, id(second): 3.0}

    def f(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        return module(x) * factors[id(module)]

    compiled = dynajit.compile(f, backend="eager", fullgraph=True)
    x = torch.randn(3, 2)
    for module in (first, second, first):
        torch.testing.assert_close(compiled(x, module), f(x, module))


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_parallel_wrapper_keeps_its_module_compiled(backend: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", f"file://{Path(folder)}/store", rank=0, world_size=1)
        try:

            def program(wrap: Callable[..., Any]) -> Any:
                model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
                wrapped = wrap(nn.parallel.DistributedDataParallel(model))
                wrapped(torch.randn(2, 4)).sum().backward()
                return [parameter.grad for parameter in model.parameters()]

            before = dynajit.counters()["graph_break_events"]
            both(program, backend)
            assert dynajit.counters()["graph_break_events"] - before == 0
        finally:
            torch.distributed.destroy_process_group()


def test_encoder_hides_padded_rows_as_in_eager_mode() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    hidden = torch.tensor([[False, False, True], [False, False, False]])
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(
            dynajit.compile(encoder, backend="eager")(x, src_key_padding_mask=hidden),
            encoder(x, src_key_padding_mask=hidden),
        )


def test_an_encoder_ends_the_graph_where_tensors_are_nested() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3).eval()
    hidden = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        report = assert_same(
            lambda model, x, hidden: model(x, src_key_padding_mask=hidden), encoder, torch.randn(2, 3, 8), hidden
        )
    assert (
        report.graph_break_count == 4
    )  # the mask asked for its values, made nested, in a loop over layers, padded again
    assert "a nested tensor" in str(report)


def test_what_a_tensor_that_no_graph_takes_is_like() -> None:
    def f(x: torch.Tensor, mark: torch.Tensor) -> Any:
        return x + mark.dim(), mark.dtype, mark.layout, mark.is_nested, mark.requires_grad, mark.device, mark

    marks = [torch.eye(3).to_sparse(), torch.ones(3).double().to_sparse()]
    compiled = dynajit.compile(f, backend="eager", fullgraph=True)
    for mark in (*marks, *marks):
        for ours, eagers in zip(compiled(torch.ones(2), mark)[1:], f(torch.ones(2), mark)[1:], strict=True):
            assert ours is eagers or ours == eagers


def test_parametrizations_registered_inside() -> None:
    def f(x: torch.Tensor) -> Any:
        torch.manual_seed(0)
        model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        return model(x), sorted(name for name, _ in model.named_parameters())

    assert_same(f, torch.ones(2, 3), breaks=1, never_repeats="registering makes a class for the module at each call")


def test_gradient_per_sample_with_sizes_that_vary() -> None:
    weight = torch.randn(3)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (w * x).sin().sum()

    def f(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
        return result

    assert_same(f, torch.randn(4, 3), then=[(torch.randn(5, 3),), (torch.randn(6, 3),)], breaks=0)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("backend", BACKENDS)
def test_learning_rate_that_follows_a_schedule(backend: str, optimizer: Any) -> None:
    def program(wrap: Callable[..., Any]) -> Any:
        model = nn.Linear(4, 3)
        stepper = optimizer(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(stepper, 0.9)
        step = wrap(lambda: stepper.step())
        for _ in range(5):
            stepper.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            step()
            schedule.step()
        return [parameter.detach() for parameter in model.parameters()]

    dynajit.reset()
    both(program, backend)
    assert dynajit.counters()["recompiles"] <= 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_differentiated_again(backend: str) -> None:
    def program(wrap: Callable[..., Any]) -> Any:
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        compiled = wrap(model)
        found = []
        for count in (3, 4, 5):
            x = torch.rand(count, 2, requires_grad=True)
            u = compiled(x)
            (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
            (second,) = torch.autograd.grad(du[:, 0].sum(), x, create_graph=True)
            (du[:, 1] - second[:, 0]).pow(2).mean().backward()
            found.append((u, du, second, x.grad))
        return found, [parameter.grad for parameter in model.parameters()]

    both(program, backend)


def test_backward_twice_through_one_graph() -> None:
    def program(wrap: Callable[..., Any]) -> Any:
        x = torch.randn(3, requires_grad=True)
        y = wrap(lambda x: x.sin() * x)(x).sum()
        y.backward(retain_graph=True)
        y.backward()
        return x.grad

    both(program, "codegen")


@pytest.mark.parametrize("backend", BACKENDS)
def test_observers_that_size_their_buffers_at_the_first_call(backend: str) -> None:
    def program(wrap: Callable[..., Any]) -> Any:
        model = nn.Sequential(quantization.QuantStub(), nn.Linear(4, 4), nn.ReLU()).train()
        model.qconfig = quantization.get_default_qat_qconfig("x86")
        quantization.prepare_qat(model, inplace=True)
        run = wrap(model)
        results = []
        for factor in (1, 3):
            result = run(torch.randn(5, 4) * factor)
            result.sum().backward()
            results.append(result.detach())
        return results, model.state_dict(), [parameter.grad for parameter in model.parameters()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated
        both(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_set_to_zero_stay_in_one_graph(backend: str) -> None:
    def clear(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model.zero_grad(set_to_none=False)
        for parameter in model.parameters():
            parameter.requires_grad = True
        return model(x.requires_grad_(False))

    model = nn.Linear(4, 3)
    model(torch.ones(2, 4)).sum().backward()
    report = assert_same(clear, model, torch.ones(2, 4), graphs=1, breaks=0, backend=backend)
    assert report.error is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_program_made_becomes_a_leaf(backend: str) -> None:
    def features(x: torch.Tensor, w: torch.Tensor) -> Any:
        hidden = x[:, None]
        hidden.requires_grad = True
        return (hidden * w).sum(), hidden, hidden.is_leaf

    assert_same(features, torch.ones(3), torch.ones(3, requires_grad=True), graphs=1, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_a_history_takes_no_flag(backend: str) -> None:
    """Setting the flag that it has already raises there."""

    def flag(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.requires_grad = True
        return y

    assert_same(flag, torch.ones(3, requires_grad=True), backend=backend)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(x).relu())
        return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_are_frozen_in_the_graph(backend: str) -> None:
    def f(model: nn.Module, x: torch.Tensor) -> Any:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = "head" in name
        y = model(x)
        return y, [parameter.requires_grad for parameter in model.parameters()], y.requires_grad

    outcomes = []
    for run in (f, dynajit.compile(f, backend=backend)):
        torch.manual_seed(0)
        model, x = Frozen(), torch.ones(2, 3)
        for _ in range(3):
            y, flags, needs = run(model, x)
            y.sum().backward()
        outcomes.append([y.detach(), flags, needs, [parameter.grad for parameter in model.parameters()]])
    compare(outcomes[1], outcomes[0], exact=False)
    assert_same(f, Frozen(), torch.ones(2, 3), graphs=2, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_frozen_and_thawed(backend: str) -> None:
    """Gradients find their way to a parameter from before it was frozen, as far as its flag lets them in the end."""

    def f(model: nn.Module, x: torch.Tensor, stays: bool) -> Any:
        before = model(x)
        model.requires_grad_(False)
        frozen = model(x)
        if not stays:
            model.requires_grad_()
        return before, frozen, model(x), before.requires_grad, frozen.requires_grad

    for stays in (False, True):
        outcomes = []
        for run in (f, dynajit.compile(f, backend=backend)):
            torch.manual_seed(0)
            model, x = Frozen(), torch.ones(2, 3, requires_grad=True)
            before, frozen, after, *flags = run(model, x, stays)
            (before + frozen * 3 + after * 5).sum().backward()
            outcomes.append([flags, x.grad, [parameter.grad for parameter in model.parameters()]])
        compare(outcomes[1], outcomes[0], exact=False)


def test_modules_change_their_dtype() -> None:
    def f(model: nn.Module, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = model.double()(x.double())
            return y, model.float()(x)

    assert_same(f, Frozen(), torch.ones(2, 3), graphs=1, breaks=0)


def test_results_are_no_fake_tensors() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x * 2
        return y, isinstance(y, FakeTensor), isinstance(y, torch.FloatTensor), isinstance(y.half(), torch.FloatTensor)

    assert_same(f, torch.ones(2), graphs=1, breaks=0)
