"""Programs on an NVIDIA GPU whose graphs are recorded as CUDA graphs: same results as eager."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch

import dynajit

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh"),
]


def test_cuda_graphs() -> None:
    """Fresh inputs at other addresses, outputs that are kept, inputs read by operators, mutation, random numbers."""
    w = torch.randn(64, 64, device="cuda")
    state = torch.zeros(64, device="cuda")

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        state.add_(x.sum(0))
        return torch.softmax(x @ w, -1), torch.relu(y * 2 + 1), (y @ w).t(), x

    compiled = dynajit.compile(fn, mode="reduce-overhead", fullgraph=True)
    kept = []
    expected_state = torch.zeros(64, device="cuda")
    for number in range(12):
        x, y = (torch.randn(32, 64, device="cuda") for _ in range(2))
        if number % 3 == 2:
            kept.append((x, y))
        expected_state = expected_state + x.sum(0)
        results = compiled(x, y)
        torch.testing.assert_close(state, expected_state)
        assert results[3] is x
        kept.append((results, (torch.softmax(x @ w, -1), torch.relu(y * 2 + 1), (y @ w).t())))
    for results, expected in (pair for pair in kept if len(pair[0]) == 4):
        torch.testing.assert_close(results[:3], expected)


def test_cuda_graphs_draw_random_numbers() -> None:
    compiled = dynajit.compile(lambda x: torch.nn.functional.dropout(x, 0.5, True) * 2, mode="reduce-overhead")
    x = torch.ones(1000, device="cuda")
    seen = {float(compiled(x).sum()) for _ in range(8)}
    assert len(seen) > 4


def test_cuda_graphs_in_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
    twin = copy.deepcopy(model)
    compiled = dynajit.compile(model, mode="reduce-overhead")
    for _ in range(6):
        x = torch.randn(32, 64, device="cuda")
        for m, run in ((model, compiled), (twin, twin)):
            m.zero_grad()
            run(x).square().mean().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
            with torch.no_grad():
                p.sub_(p.grad, alpha=0.01)
                q.sub_(q.grad, alpha=0.01)


def test_graphs_are_recorded() -> None:
    """One launch, whose kernels take the addresses of inputs and outputs; what operators read is copied if it moves."""
    from dynajit.runtime import cuda_graphs

    recorded: list[Any] = []
    original = cuda_graphs._Recorded._record

    def record(self: Any, *args: Any) -> Any:
        recorded.append(original(self, *args))
        return recorded[-1]

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1)

    # Function, size, kernels and copies that take addresses. Small products are kernels, large ones a library's.
    cases = ((lambda x, w: torch.relu(x * 2), 64, (1, 0)), (product, 64, (2, 0)), (product, 512, (1, 1)))
    cuda_graphs._Recorded._record = record
    try:
        for fn, size, patched in cases:
            dynajit.reset()
            compiled = dynajit.compile(fn, mode="reduce-overhead", fullgraph=True)
            w = torch.randn(size, size, device="cuda")
            inputs = [torch.randn(size, size, device="cuda") for _ in range(6)]
            recorded.clear()
            for x in inputs:
                torch.testing.assert_close(compiled(x, w), fn(x, w))
            assert [replay.patched for replay in recorded] == [patched]
    finally:
        cuda_graphs._Recorded._record = original


def test_the_host_s_part_of_a_recorded_graph() -> None:
    """Constants, numbers and results on the CPU leave the rest to be recorded: nothing warns that it is not."""

    def constants(x: torch.Tensor, c: torch.Tensor) -> Any:
        scale = torch.sqrt(torch.tensor(x.shape[-1], dtype=torch.float) * 3)
        return x / scale + torch.tensor(7), torch.where(x > 0, x, torch.tensor(-math.inf)), x * torch.tensor(True)

    def results(x: torch.Tensor, c: torch.Tensor) -> Any:
        d = c * 2 + 1
        return x * 2, torch.tensor(5), d, c, (x.relu(), d.sum()), x * d.sum()

    def random(x: torch.Tensor, c: torch.Tensor) -> Any:
        return x + 1, torch.rand(()), torch.rand(3), x * torch.rand(())

    def carried(x: torch.Tensor, c: torch.Tensor) -> Any:
        places = (torch.arange(8)[:, None] - torch.arange(300)).float().abs().log1p().to(x.device)
        return x @ places, x + c.sum().to("cuda"), x * (torch.rand(8) + c.sin().sum()).to(x.device)

    for fn in (constants, results, random, carried):
        compiled = dynajit.compile(fn, mode="reduce-overhead", fullgraph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for seed in range(5):
                x, c = torch.randn(16, 8, device="cuda"), torch.randn(4)
                torch.manual_seed(seed)
                made = compiled(x, c)
                torch.manual_seed(seed)
                torch.testing.assert_close(made, fn(x, c))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_constants_are_on_the_device(mode: str) -> None:
    """What the program makes of numbers on the CPU is carried to the device once: a call waits for nothing, and what it
    returns is its own."""

    def carried(x: torch.Tensor) -> Any:
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, 8, 2, dtype=torch.float) / 8))
        return x * frequencies.to(x.device).repeat(2), frequencies.to(x.device), torch.tensor(4095).to(x.device)

    def places(x: torch.Tensor) -> Any:
        x = x[:, [0, 2, 1, 3, 4, 5, 7, 6]]
        return x[torch.tensor([1, 0])], x.relu()[[0, 3], torch.tensor([2, 2])]

    def written(x: torch.Tensor) -> Any:
        table = torch.tensor([1.5, -0.0, math.inf]).to(x.device)
        table[1] += x.sum()
        y = x.clone()
        y[:, [1, 2]] = table[:1]
        return table, y

    for fn in (carried, places, written):
        compiled = dynajit.compile(fn, mode=mode, fullgraph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for call in range(5):
                x = torch.randn(16, 8, device="cuda", requires_grad=call % 2 > 0)
                made, want = compiled(x), fn(x)
                torch.testing.assert_close(made, want)
                if call % 2:
                    (given,) = torch.autograd.grad(made[0].sum(), x, retain_graph=True)
                    torch.testing.assert_close(given, *torch.autograd.grad(want[0].sum(), x))
                else:
                    for one in made:
                        one.fill_(0)  # the next call has others
    compiled = dynajit.compile(carried, mode=mode, fullgraph=True)
    x = torch.randn(16, 8, device="cuda")
    for _ in range(3):
        compiled(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(x)
    assert "cudaStreamSynchronize" not in {event.key for event in profile.key_averages()}


def test_much_for_the_host_is_kernels_of_its_own() -> None:
    def fn(x: torch.Tensor) -> Any:
        places = (torch.arange(256)[:, None] - torch.arange(300)).float().abs().log1p().to(x.device)
        return x @ places, torch.rand(3)

    compiled = dynajit.compile(fn, fullgraph=True)
    for seed in range(3):
        x = torch.randn(16, 256, device="cuda")
        torch.manual_seed(seed)
        made = compiled(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(made, fn(x), rtol=1e-4, atol=1e-3)


def test_the_host_s_part_in_training() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> Any:
        return ((x @ w).relu() * c.exp().sum()).sum(), c.sin()

    compiled = dynajit.compile(fn, mode="reduce-overhead", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            made = []
            x, w, c = torch.randn(8, 8, device="cuda"), torch.randn(8, 8, device="cuda"), torch.randn(4)
            for call in (fn, compiled):
                weight = w.clone().requires_grad_()
                loss, sine = call(x, weight, c)
                loss.backward()
                made.append([loss, sine, weight.grad])
            torch.testing.assert_close(made[0], made[1], rtol=1e-3, atol=1e-4)


def test_what_cannot_be_recorded_says_so() -> None:
    compiled = dynajit.compile(lambda x: (x * 2, x.to("cpu") + 1), mode="reduce-overhead")
    x = torch.randn(8, device="cuda")
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        torch.testing.assert_close(compiled(x), (x * 2, x.to("cpu") + 1))


def test_attention_in_cuda_graphs() -> None:
    """Its kernels hide their addresses: inputs that move are copied."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    compiled = dynajit.compile(fn, mode="reduce-overhead", fullgraph=True)
    kept = []
    with torch.no_grad():
        for _ in range(6):
            args = [torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
            kept.append((args, compiled(*args), fn(*args)))
    for _, actual, expected in kept:
        torch.testing.assert_close(actual, expected)


def test_what_is_kept_for_a_backward_graph_is_not_copied() -> None:
    from dynajit.runtime import cuda_graphs

    found: list[Any] = []
    original = cuda_graphs._Recorded._record

    def record(self: Any, *args: Any) -> Any:
        found.append((self.waits, original(self, *args)))
        return found[-1][1]

    cuda_graphs._Recorded._record = record
    try:
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3))).cuda()
        compiled = dynajit.compile(model, mode="reduce-overhead")
        x = torch.randn(512, 512, device="cuda")
        for _ in range(5):
            model.zero_grad()
            compiled(x).sin().sum().backward()
        assert len(found) == 2
        assert found[1][1].patched[1] <= 8  # the gradient, and the results that operators gave
    finally:
        cuda_graphs._Recorded._record = original


@pytest.mark.parametrize("dropped", [True, False])
def test_gradients_of_recorded_products(dropped: bool) -> None:
    """They are the graph's own memory until one is held when the next is made; then they are copied."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 768), torch.nn.GELU(), torch.nn.Linear(768, 512)).cuda()
    twin = copy.deepcopy(model)
    compiled = dynajit.compile(model, mode="reduce-overhead")
    held = []
    for _ in range(8):
        x = torch.randn(1024, 512, device="cuda")
        for m, run in ((model, compiled), (twin, twin)):
            if dropped:
                m.zero_grad()
            run(x).square().mean().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
        if not dropped:
            held.append([(p.grad, p.grad.clone()) for p in model.parameters()])
            model.zero_grad()
            twin.zero_grad()
    for now, before in (pair for pairs in held for pair in pairs):
        torch.testing.assert_close(now, before, rtol=0, atol=0)


def test_a_graph_between_forward_and_backward() -> None:
    """One that was recorded earlier, in memory that is free by then, does not write over what the other keeps."""
    first = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).cuda()
    second = copy.deepcopy(first)
    inference = dynajit.compile(first, mode="reduce-overhead")
    training = dynajit.compile(second, mode="reduce-overhead")
    x, y = torch.randn(512, 256, device="cuda"), torch.randn(512, 256, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            inference(y)
    first(x).square().mean().backward()
    for _ in range(6):
        second.zero_grad()
        loss = training(x).square().mean()
        with torch.no_grad():
            inference(y)
        loss.backward()
        for p, q in zip(second.parameters(), first.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)


def busy_stream(stream: torch.cuda.Stream) -> None:
    """So much for the stream to do that what follows on it runs after what the program does next elsewhere."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)


def test_gradients_used_on_another_stream() -> None:
    """`record_stream` has the allocator wait before memory is used again; no recorded graph may use it before."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 768), torch.nn.GELU(), torch.nn.Linear(768, 512)).cuda()
    twin = copy.deepcopy(model)
    compiled = dynajit.compile(model, mode="reduce-overhead")
    inputs = [torch.randn(1024, 512, device="cuda") for _ in range(10)]
    side = torch.cuda.Stream()
    found = []
    for n, x in enumerate(inputs):
        compiled(x).square().mean().backward()
        if n % 2:  # from when the graph is recorded on, lent gradients and copied ones
            busy_stream(side)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                found.append((n, [p.grad * 2 for p in model.parameters()]))
            for p in model.parameters():
                p.grad.record_stream(side)
        model.zero_grad()
    torch.cuda.synchronize()
    for n, doubled in found:
        twin.zero_grad()
        twin(inputs[n]).square().mean().backward()
        for ours, q in zip(doubled, twin.parameters()):
            torch.testing.assert_close(ours, q.grad * 2, rtol=1e-3, atol=1e-5)


def test_gradients_handed_to_another_stream_by_autograd() -> None:
    """The first layer ran on a stream of its own: its backward reads there the gradient that the compiled one gives."""
    first, second = torch.nn.Linear(512, 512).cuda(), torch.nn.Linear(512, 512).cuda()
    compiled = dynajit.compile(second, mode="reduce-overhead")
    side, other, main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    inputs = [torch.randn(1024, 512, device="cuda") for _ in range(8)]
    found = []

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            torch.cuda._sleep(50_000_000)
            return gradient * 1

    side.wait_stream(main)
    with torch.cuda.stream(side):
        hidden = [Slow.apply(first(x)) for x in inputs]
    main.wait_stream(side)
    for each in hidden:
        result = compiled(each).square().mean()
        with torch.cuda.stream(other):  # what waits for the gradient, so that the main stream does not
            found.append(torch.autograd.grad(result, first.weight)[0])
    torch.cuda.synchronize()
    for x, ours in zip(inputs, found):
        (theirs,) = torch.autograd.grad(second(first(x)).square().mean(), first.weight)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_saved_tensors_used_on_another_stream() -> None:
    """What is kept for backward is copied on a stream of the hooks', and dropped."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 768), torch.nn.GELU(), torch.nn.Linear(768, 512)).cuda()
    twin = copy.deepcopy(model)
    compiled = dynajit.compile(model, mode="reduce-overhead")
    side = torch.cuda.Stream()

    def pack(x: torch.Tensor) -> torch.Tensor:
        busy_stream(side)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            packed = x.clone()
        x.record_stream(side)
        return packed

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        side.synchronize()
        return packed

    for _ in range(2):  # the second finds memory that the first has left: no allocation waits for the device
        inputs = [torch.randn(1024, 512, device="cuda") for _ in range(6)]
        model.zero_grad()
        twin.zero_grad()
        losses = []
        for x in inputs:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                losses.append(compiled(x).square().mean())
        for x, loss in zip(inputs, losses):
            loss.backward()
            twin(x).square().mean().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_fused_optimizers_are_recorded(kind: Any) -> None:
    """Their steps write tensors whose versions stay, by copies of which autograd does not hear."""
    runs = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="dynajit")
        for compile_it in (False, True):
            torch.manual_seed(0)
            parameters = [torch.randn(100, 30, device="cuda", requires_grad=True) for _ in range(3)]
            optimizer = kind(parameters, lr=0.01, fused=True)
            step = dynajit.compile(optimizer.step, mode="reduce-overhead") if compile_it else optimizer.step
            for p in parameters:
                p.grad = torch.empty_like(p)
            for _ in range(8):
                for p in parameters:
                    p.grad.normal_()
                step()
            states = [s["step"] for s in optimizer.state.values() if "step" in s]
            runs.append([*parameters, *states, [p._version for p in parameters]])
    torch.testing.assert_close(runs[1], runs[0])
