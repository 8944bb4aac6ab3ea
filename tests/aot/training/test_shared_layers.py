"""Equal layers go through AOTAutograd once, and come out as if each had: the same graphs and the same results."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dynajit
from dynajit.aot.layers import equal_layers
from dynajit.aot.training import shared_layers
from dynajit.testing import CompileCounterWithBackend


class Block(nn.Module):
    """Attention and a network of two layers, with a residual connection round each."""

    def __init__(self, width: int = 8, dropout: float = 0.0, activation: Callable[..., Any] = F.gelu) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout, self.activation = dropout, activation

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        attended = torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v
        x = x + F.dropout(self.out(attended), self.dropout, self.training)
        return x + self.down(self.activation(self.up(self.second(x))))


class Net(nn.Module):
    def __init__(self, blocks: list[nn.Module], call: Callable[..., Any] = lambda block, x, s: block(x, s)) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(8, 3)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.full((), 0.5) * x.shape[-1]
        for block in self.blocks:
            x = self.call(block, x, scale)
        return self.head(x)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many layers each compiled graph has that were made of one."""
    found: list[int] = []
    put_into = shared_layers.SharedLayers.put_into

    def counting(self: Any, joint: Any) -> Any:
        whole = put_into(self, joint)
        found.append(len(self.found.layers))
        return whole

    monkeypatch.setattr(shared_layers.SharedLayers, "put_into", counting)
    yield found


def _trained(net: nn.Module, x: torch.Tensor, share: bool, run: Callable[..., Any], graphs: list[Any]) -> list[Any]:
    net, x = copy.deepcopy(net), x.clone().requires_grad_()

    def keeping(gm: Any, inputs: Any, **options: Any) -> Any:
        graphs.append([(node.op, node.target) for node in gm.graph.nodes])
        return dynajit.backends.codegen.codegen(gm, inputs, **options)

    dynajit.reset()  # modules of one structure share what is compiled
    compiled = run(net) if share is None else dynajit.compile(run(net))
    with dynajit.config.patch(share_layers=bool(share)):
        torch.manual_seed(0)
        result = compiled(x)
        result.float().square().mean().backward()
        torch.manual_seed(1)
        again = compiled(x).detach()
    return [result.detach(), again, x.grad, *(one.grad for one in net.parameters())]


def check(
    net: nn.Module,
    layers: list[int],
    shared: list[int],
    run: Callable[..., Any] = lambda net: net,
    x: torch.Tensor | None = None,
    exact: bool = True,
    tolerance: float = 2e-4,
) -> None:
    """The same with and without sharing, to the bit if it is to be `exact`; close to eager."""
    x = torch.randn(2, 5, 8) if x is None else x
    torch.manual_seed(0)
    expected = _trained(net, x, None, run, [])  # type: ignore[arg-type]
    apart = _trained(net, x, False, run, [])
    assert shared == []
    found = _trained(net, x, True, run, [])
    assert shared == layers
    for one, other, eager in zip(found, apart, expected, strict=True):
        if eager is None:
            assert one is other is None
        else:
            assert torch.equal(one, other) or not exact
            torch.testing.assert_close(one, eager, rtol=tolerance, atol=tolerance / 10)


def blocks(count: int = 5, **options: Any) -> list[nn.Module]:
    return [Block(**options) for _ in range(count)]


def test_equal_layers(shared: list[int]) -> None:
    check(Net(blocks()), [5], shared)


def test_dropout_draws_the_same_numbers(shared: list[int]) -> None:
    check(Net(blocks(dropout=0.3)), [5], shared)


def test_layers_without_dropout_in_evaluation(shared: list[int]) -> None:
    check(Net(blocks(dropout=0.3)).eval(), [5], shared)


def test_one_layer_is_different(shared: list[int]) -> None:
    made = blocks(7)
    made[3] = Block(activation=F.relu)
    check(Net(made), [6], shared)


def test_layers_that_differ_in_a_number_that_is_read(shared: list[int]) -> None:
    class Scaled(Block):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return super().forward(x, scale) * self.factor

    made = [Scaled() for _ in range(4)]
    for at, block in enumerate(made):
        block.factor = 1.0 + at
    check(Net(made), [], shared)  # type: ignore[arg-type]


def test_one_module_called_again_and_again(shared: list[int]) -> None:
    check(Net([Block()] * 4), [4], shared)


def test_a_weight_that_layers_have_in_common(shared: list[int]) -> None:
    made = blocks()
    for block in made[1:]:
        block.up.weight = made[0].up.weight
    check(Net(made), [5], shared)


def test_a_frozen_layer_is_another_one(shared: list[int]) -> None:
    made = blocks(6)
    made[0].requires_grad_(False)
    check(Net(made), [5], shared)


def test_layers_of_which_half_is_frozen(shared: list[int]) -> None:
    made = blocks()
    for block in made:
        block.up.requires_grad_(False)
    check(Net(made), [5], shared)


def test_hooks_are_part_of_the_layer(shared: list[int]) -> None:
    made = blocks()
    for block in made:
        block.register_forward_hook(lambda module, args, result: result * 0.5)
    made[2].register_forward_pre_hook(lambda module, args: (args[0] + 1, args[1]))
    check(Net(made), [5], shared)


def test_autocast_around_all(shared: list[int]) -> None:
    def run(net: nn.Module) -> Callable[..., Any]:
        def call(x: torch.Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return net(x)

        return call

    check(Net(blocks()), [], shared, run)


def test_autocast_outside_of_the_compiled_function(shared: list[int]) -> None:
    def run(net: nn.Module) -> Callable[..., Any]:
        return net

    with torch.autocast("cpu", torch.bfloat16):
        check_loose(Net(blocks()), shared, run)


def check_loose(net: nn.Module, shared: list[int], run: Callable[..., Any]) -> None:
    x = torch.randn(2, 5, 8)
    apart, found = _trained(net, x, False, run, []), _trained(net, x, True, run, [])
    assert shared == [5]
    assert all(torch.equal(one, other) for one, other in zip(found, apart, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(shared: list[int], reentrant: bool) -> None:
    made = Net(blocks(), lambda block, x, scale: checkpoint(block, x, scale, use_reentrant=reentrant))
    check(made, [], shared)


def test_a_second_result_that_nothing_reads_later(shared: list[int]) -> None:
    class Two(Block):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
            made = super().forward(x, scale)
            return made, made.square().sum()

    net = Net([Two() for _ in range(5)], lambda block, x, scale: block(x, scale)[0])
    check(net, [5], shared)


def test_a_second_result_without_a_gradient(shared: list[int]) -> None:
    class Kept(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale, sums = torch.full((), 0.5), []
            for block in self.blocks:
                x = block(x, scale)
                sums.append(x.sum().detach())
            return self.head(x) + torch.stack(sums).sum()

    class Two(Block):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
            inner = super().forward(x, scale)
            return inner + 1, inner

    class Seen(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale, seen = torch.full((), 0.5), []
            for block in self.blocks:
                x, inner = block(x, scale)
                seen.append(inner)
            return self.head(x) + torch.stack(seen).detach().sum()

    check(Kept(blocks()), [5], shared)
    shared.clear()
    check(
        Seen([Two() for _ in range(5)]), [], shared
    )  # such a gradient is not there, which the layer's graph can't say


def test_layers_without_gradients_before_one_that_has(shared: list[int]) -> None:
    class Tuned(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.detach())

    net = Tuned(blocks())
    net.blocks.requires_grad_(False)
    x = torch.randn(2, 5, 8)
    apart, found = (_trained_head(net, x, share) for share in (False, True))
    assert torch.equal(apart, found)
    assert shared == []


def _trained_head(net: Net, x: torch.Tensor, share: bool) -> torch.Tensor:
    net = copy.deepcopy(net)
    with dynajit.config.patch(share_layers=share):
        dynajit.compile(net)(x).sum().backward()
    assert net.head.weight.grad is not None
    return net.head.weight.grad


def test_results_of_all_layers(shared: list[int]) -> None:
    class All(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale, sums = torch.full((), 0.5), []
            for block in self.blocks:
                x = block(x, scale)
                sums.append(x.mean())
            return self.head(x) + torch.stack(sums).sum()

    check(All(blocks()), [5], shared)


def test_gradients_of_what_all_layers_read(shared: list[int]) -> None:
    class Scaled(Net):
        def __init__(self) -> None:
            super().__init__(blocks())
            self.scale = nn.Parameter(torch.tensor(0.3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x, self.scale)
            return self.head(x)

    check(Scaled(), [5], shared)


def test_an_input_that_is_written_later(shared: list[int]) -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__(blocks())
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x) * self.calls

    check(Counting(), [5], shared)


def test_what_layers_read_is_written_between_them(shared: list[int]) -> None:
    class Shifted(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = torch.full((), 0.5)
            for block in self.blocks:
                x = block(x, scale)
                scale.mul_(0.9)
            return self.head(x)

    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(5, 8)
        mask[:, 2:] = 0.5
        for block in net.blocks:
            x = block(x, mask[0, 2])
        return net.head(x)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Shifted(blocks())(torch.randn(2, 5, 8)).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        dynajit.compile(Shifted(blocks()))(torch.randn(2, 5, 8)).sum().backward()
    check(_Written(blocks(), forward), [5], shared)


class _Written(Net):
    """A net whose forward is a function of it."""

    def __init__(self, blocks: list[nn.Module], function: Callable[..., torch.Tensor]) -> None:
        super().__init__(blocks)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def _stepped(net: Net, x: torch.Tensor) -> torch.Tensor:
    """A recurrence that reads one step after the other, and gives all of them."""
    (cell,) = net.blocks
    state, given = x.new_zeros(x.shape[0], 8), []
    for step in range(x.shape[1]):
        seen = (x.mean(1) * state).softmax(-1)
        state = torch.tanh(cell(torch.cat([x[:, step], seen], -1)))
        given.append(net.head(state * 0.5).sigmoid())
    return torch.stack(given, 1)


def _unbound(net: Net, x: torch.Tensor) -> torch.Tensor:
    """The same over parts that are all taken before, the last of which goes on alone."""
    (cell,) = net.blocks
    state = x.new_zeros(x.shape[0], 8)
    for one in net.head(x).unbind(1):
        gate, new = cell(torch.cat([state, F.pad(one, (0, 5))], -1).relu()).sigmoid().mul(2).sub(1).split([4, 4], -1)
        state = torch.cat([gate * new, new.tanh()], -1)
    return state


@pytest.mark.parametrize("function", [_stepped, _unbound])
def test_a_loop_over_the_parts_of_a_tensor(function: Callable[..., torch.Tensor], shared: list[int]) -> None:
    x = torch.randn(4, 9, 8)
    check(_Written([nn.Linear(16, 8)], function), [8], shared, x=x, exact=False)


def test_a_loop_whose_gradients_of_few_digits_are_added_up_in_order(shared: list[int]) -> None:
    net = _Written([nn.Linear(16, 8)], _stepped).bfloat16()
    check(net, [8], shared, x=torch.randn(4, 9, 8, dtype=torch.bfloat16), tolerance=0.05)


def test_sums_of_few_digits_that_layers_would_add_up_in_another_order(shared: list[int]) -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        (cell,) = net.blocks
        for _ in range(6):
            x = cell(cell(x).tanh() * cell.bias).sigmoid() @ cell.weight + cell.bias.exp()
        return net.head(x)

    x = torch.randn(4, 8)
    check(_Written([nn.Linear(8, 8)], forward), [6], shared, x=x, exact=False)
    shared.clear()
    check(_Written([nn.Linear(8, 8)], forward).bfloat16(), [], shared, x=x.bfloat16(), tolerance=0.05)


def test_a_layer_that_changes_after_the_compile(shared: list[int]) -> None:
    net = Net(blocks(dropout=0.0))
    x = torch.randn(2, 5, 8)
    counter = CompileCounterWithBackend("codegen")
    compiled = dynajit.compile(net, backend=counter)

    def same() -> None:
        torch.testing.assert_close(compiled(x), net(x))

    same()
    before = len(counter.graphs)
    same()
    assert len(counter.graphs) == before
    net.blocks[3].activation = F.relu
    same()
    assert len(counter.graphs) == before + 1
    net.blocks[2].up.weight.requires_grad_(False)
    same()
    assert len(counter.graphs) == before + 2


def test_sizes_that_vary(shared: list[int]) -> None:
    net = Net(blocks())
    compiled = dynajit.compile(net, dynamic=True)
    for size in (5, 6, 7):
        x = torch.randn(2, size, 8)
        torch.testing.assert_close(compiled(x), net(x))
    assert shared == []


def test_no_layers() -> None:
    graph = torch.fx.symbolic_trace(nn.Sequential(*(nn.Linear(2, 2) for _ in range(9))))
    assert equal_layers(graph) is None


class Mixer(nn.Module):
    """Its layers' gradients lie in memory as each layer's transposition leaves them, the last one's as `mean` does."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(8)])
        self.mixes = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6)) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for first, second, mix in zip(self.norms[::2], self.norms[1::2], self.mixes, strict=True):
            x = x + mix(first(x).transpose(1, 2)).transpose(1, 2)
            x = x + F.gelu(second(x))
        return self.head(x.mean(1))


def test_gradients_of_another_layout_are_no_warning() -> None:
    net, x = Mixer(), torch.randn(2, 3, 8, 12)
    other = copy.deepcopy(net)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        dynajit.compile(net)(x).square().mean().backward()
    assert [str(each.message) for each in warned] == []
    other(x).square().mean().backward()
    for got, wanted in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)


class Steps(nn.Module):
    """A loop over one cell, which computes with other numbers in each step."""

    def __init__(self, step: Callable[..., Any], numbers: list[Any]) -> None:
        super().__init__()
        self.cell = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.step, self.numbers = step, numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.numbers:
            x = self.step(self.cell, x, number)
        return x


FLOATS = [0.0, 0.3, 1.0, -0.0, -0.7, 2.0]


@pytest.mark.parametrize(
    ("step", "numbers", "count"),
    [
        (lambda cell, x, t: x + 0.1 * cell(x + t).sin().cos(), FLOATS, 6),
        (lambda cell, x, t: t - cell(x * (1 - t)).sin() - t * x.cos(), FLOATS, 6),
        (lambda cell, x, t: x.mul(t).sin() + torch.sub(cell(x).cos(), t), FLOATS, 6),
        (lambda cell, x, t: x / (t + 3) + (t + 4) / (2 + cell(x).sin().cos()), FLOATS, 6),
        (lambda cell, x, t: x * t + (cell(x) + t).sin().cos(), [0, 1, 2, 3, -1], 5),
        (lambda cell, x, t: (x * t + cell(x)).sin().cos().exp(), [0, 1.0, 2.0, 3.0, -1], 3),  # of one type only
        (lambda cell, x, t: x + cell(x + x.new_full((2, 5, 1), t)).sin() * torch.full_like(x, t), FLOATS, 6),
        (lambda cell, x, t: x.cos() + cell(x + torch.full((2, 5, 1), t)).sin(), [0, 1, 2, 3, -1], 5),
        (lambda cell, x, t: torch.where(x > t, x, t) + cell(x).masked_fill(x < 0, t).sin().cos(), FLOATS, 0),
        (lambda cell, x, t: torch.where(x > 0, x, t) + cell(x).masked_fill(x < 0, t).sin().cos(), FLOATS, 6),
        (lambda cell, x, t: x + cell(x).sin().abs().pow(t).cos(), [1.0, 2.0, 3.0, 1.5], 0),
        (lambda cell, x, t: x + torch.add(cell(x).sin(), x.cos(), alpha=t).tanh(), FLOATS, 0),
    ],
    ids=[
        "add",
        "sub",
        "functions",
        "div",
        "ints",
        "types",
        "full",
        "full of ints",
        "compared",
        "where",
        "pow",
        "alpha",
    ],
)
def test_steps_that_compute_with_numbers_of_their_own(
    step: Callable[..., Any], numbers: list[Any], count: int, shared: list[int]
) -> None:
    check(Steps(step, numbers), [count] if count else [], shared, tolerance=1e-3)


def test_what_repeats_inside_of_a_layer_does_not_hide_it(shared: list[int]) -> None:
    def runge_kutta(cell: nn.Module, x: torch.Tensor, t: float) -> torch.Tensor:
        first = cell(x + t)
        second = cell(x + 0.5 * first)
        third = cell(x + 0.5 * second)
        return x + 0.1 * (first + 2 * second + 2 * third + cell(x + third))

    check(Steps(runge_kutta, [0.1, 0.2, 0.3, 0.4, 0.5]), [5], shared, exact=False)


def test_a_joint_graph_that_depends_on_a_number_is_not_shared(
    shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a rule of differentiation computes with it; of those that are shared none does."""
    net = Steps(lambda cell, x, t: x + cell(x.cos()).exp().sin() * t, [0.1, 0.2, 0.3, 0.4])
    check(net, [4], shared)
    shared.clear()
    trace = shared_layers.SharedLayers._joint

    def squaring(self: Any, turn: int) -> Any:
        joint = trace(self, turn)
        (node,) = joint.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
        with joint.graph.inserting_after(node):
            joint.graph.call_function(torch.ops.aten.mul.Tensor, (node, self._stand_ins(turn)[0] ** 2))
        return joint

    monkeypatch.setattr(shared_layers.SharedLayers, "_joint", squaring)
    check(net, [], shared)


def test_steps_that_check_for_errors(shared: list[int]) -> None:
    """The checks are part of the steps."""

    class Filter(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            spread = torch.eye(5)
            for _ in range(6):
                seen = x @ x.transpose(-1, -2) + spread
                x = x + torch.linalg.solve(seen, x) * 0.5
                spread = torch.linalg.inv(seen + torch.eye(5)) @ spread
            return self.head(x) + spread.sum()

    check(Filter([]), [4], shared)  # the first begins with a matrix without gradients
