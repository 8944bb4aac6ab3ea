"""A compiled module is the module: names, parameters, hooks, modes, copies, pickles; nested and in training."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.testing import CompileCounter, compare


class Net(nn.Module):
    """A small net."""

    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(4, 2)
        self.register_buffer("offset", torch.ones(2))
        self.offset: Tensor
        self.calls = 0

    def forward(self, x: Tensor, *, extra: float = 0.0) -> Tensor:
        self.calls += 1
        y = self.norm(self.first(x)).relu()
        return self.second(self.drop(y)) * self.scale + self.offset + extra

    def helper(self, x: Tensor) -> Tensor:
        return self.second(x)


def pair() -> tuple[Net, Any, CompileCounter]:
    torch.manual_seed(0)
    module = Net()
    counter = CompileCounter()
    return module, dynajit.compile(module, backend=counter), counter


X = torch.randn(5, 3)


def test_is_the_module() -> None:
    module, compiled, _ = pair()
    assert isinstance(compiled, Net) and isinstance(compiled, nn.Module) and type(compiled).__name__ == "Net"
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    assert [n for n, _ in compiled.named_modules()] == [n for n, _ in module.named_modules()]
    assert [n for n, _ in compiled.named_buffers()] == [n for n, _ in module.named_buffers()]
    assert repr(compiled) == repr(module) and str(compiled) == str(module) and compiled.__doc__ == "A small net."
    assert list(compiled.children()) == list(module.children())
    assert len(list(compiled.modules())) == len(list(module.modules()))


def test_attributes_go_both_ways() -> None:
    module, compiled, _ = pair()
    compiled.new = 3
    module.other = 4
    assert module.new == 3 and compiled.other == 4
    compiled.first = nn.Linear(3, 4, bias=False)
    assert module.first is compiled.first and module.first.bias is None
    compiled.register_buffer("late", torch.zeros(1))
    assert "late" in module.state_dict()
    del compiled.new
    assert not hasattr(module, "new")
    assert torch.equal(compiled.helper(torch.ones(4)), module.helper(torch.ones(4)))
    with pytest.raises(AttributeError, match=r"'Net' object has no attribute 'nothing'"):
        compiled.nothing  # noqa: B018


def test_modes_and_state() -> None:
    module, compiled, _ = pair()
    reference = copy.deepcopy(module)
    for step in range(4):
        for net in (compiled, reference):
            net.train(step % 2 == 0)
        assert module.training == compiled.training == (step % 2 == 0)
        torch.manual_seed(step)
        expected = reference(X, extra=float(step % 2))
        torch.manual_seed(step)
        compare(compiled(X, extra=float(step % 2)), expected)
    compare(dict(compiled.state_dict()), dict(reference.state_dict()))
    assert module.calls == reference.calls == 4
    assert compiled.eval() is compiled and compiled.train() is compiled


def test_conversions_and_loading() -> None:
    module, compiled, _ = pair()
    reference = copy.deepcopy(module).eval()
    compiled.eval()
    compare(compiled(X), reference(X))
    assert compiled.to(torch.float64) is compiled
    reference.to(torch.float64)
    compare(compiled(X.double()), reference(X.double()))
    other = Net().double().state_dict()
    compiled.load_state_dict(other)
    reference.load_state_dict(other)
    compare(compiled(X.double()), reference(X.double()))
    compiled.half().float().requires_grad_(False)
    assert not any(p.requires_grad for p in module.parameters())
    compiled.apply(lambda m: m.register_buffer("mark", torch.ones(1)))
    assert "first.mark" in module.state_dict()


@pytest.mark.parametrize("when", ["before", "after", "after a call"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_hooks(when: str, kind: str) -> None:
    def run(compile: Callable[[nn.Module], nn.Module]) -> list[Any]:
        torch.manual_seed(0)
        module = Net().eval()
        log: list[Any] = []

        def hook(module: nn.Module, *args: Any) -> Any:
            log.append((kind, len(args)))
            if kind == "forward":
                return args[-1] + 1

        def register(net: nn.Module) -> list[Any]:
            return [getattr(target, f"register_{kind}_hook")(hook) for target in (net, net.first)]  # type: ignore[attr-defined]

        handles = register(module) if when == "before" else []
        net = compile(module)
        if when == "after a call":
            net(X)
        if when != "before":
            handles = register(net)
        x = X.clone().requires_grad_()
        results = [net(x)]
        results[0].sum().backward()
        for handle in handles:
            handle.remove()
        results.append(net(X))
        return [results[0].detach(), results[1].detach(), x.grad, log]

    compare(run(lambda m: dynajit.compile(m, backend="eager")), run(lambda m: m))


def test_copies_and_pickles() -> None:
    module, compiled, _ = pair()
    compiled.eval()
    expected = compiled(X)
    again = copy.deepcopy(compiled)
    assert isinstance(again, Net) and again.first is not module.first
    compare(again(X), expected)
    with torch.no_grad():
        again.first.weight.zero_()
    compare(compiled(X), expected)
    plain = dynajit.compile(module, backend="eager")
    loaded = pickle.loads(pickle.dumps(plain))
    assert isinstance(loaded, Net)
    compare(loaded(X), expected)
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    buffer.seek(0)
    compare(torch.load(buffer, weights_only=False)(X), expected)
    shallow = copy.copy(compiled)
    compare(shallow(X), expected)


def test_compiled_module_inside_others() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2))
    reference = copy.deepcopy(plain)
    counter = CompileCounter()
    plain[1] = dynajit.compile(plain[1], backend=counter)
    for _ in range(2):
        compare(plain(X), reference(X))
    assert counter.frame_count == 1 and list(plain.state_dict()) == list(reference.state_dict())
    outer_counter = CompileCounter()
    outer = dynajit.compile(plain, backend=outer_counter)
    for _ in range(2):
        compare(outer(X), reference(X))
    assert outer_counter.frame_count == 1 and counter.frame_count == 1


def test_forward_called_directly_and_module_compile_of_a_method() -> None:
    module, compiled, _ = pair()
    module.eval()
    compare(compiled.forward(X), module.forward(X))
    method = dynajit.compile(module.forward, backend="eager")
    compare(method(X, extra=1.0), module(X, extra=1.0))
    module.forward = dynajit.compile(module.forward, backend="eager")  # type: ignore[method-assign]
    compare(module(X), Net.forward(module, X))


def test_compiling_twice() -> None:
    module, compiled, counter = pair()
    second = CompileCounter()
    again = dynajit.compile(compiled, backend=second)
    again.eval()
    compare(again(X), module(X))
    assert (counter.frame_count, second.frame_count) == (0, 1)


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.01)]
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_training_loop(make: Callable[[Any], torch.optim.Optimizer], backend: str) -> None:
    def run(compile: Callable[[nn.Module], nn.Module]) -> list[Any]:
        torch.manual_seed(0)
        module = Net()
        module.drop.p = 0.0
        net = compile(module)
        optimizer = make(net.parameters())
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            loss = net(X + step).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [losses, dict(module.state_dict()), [p.grad for p in module.parameters()]]

    compare(run(lambda m: dynajit.compile(m, backend=backend)), run(lambda m: m), exact=False)


def test_gradients_of_inputs_and_double_backward() -> None:
    module, compiled, _ = pair()
    module.eval()
    reference = copy.deepcopy(module)
    grads = []
    for net in (compiled, reference):
        x = X.clone().requires_grad_()
        (g,) = torch.autograd.grad(net(x).pow(2).sum(), x, create_graph=True)
        grads.append(torch.autograd.grad(g.pow(2).sum(), x)[0])
    compare(grads[0], grads[1])


class Meta(type):
    pass


class WithMeta(nn.Module, metaclass=Meta):
    __slots__ = ("slotted",)

    def __init__(self) -> None:
        super().__init__()
        self.slotted = 3

    def __getattr__(self, name: str) -> Any:
        if name == "dynamic":
            return 7
        return super().__getattr__(name)

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + 1

    def forward(self, x: Tensor) -> Tensor:
        return x * self.dynamic


def test_unusual_classes() -> None:
    module = WithMeta()
    compiled = dynajit.compile(module, backend="eager")
    assert type(type(compiled)) is Meta and compiled.dynamic == 7
    compare(compiled(X), module(X))
    script = nn.ModuleList([dynajit.compile(nn.Linear(3, 3), backend="eager")])
    assert list(script.state_dict()) == ["0.weight", "0.bias"]


def test_replaced_parts_are_noticed() -> None:
    module, compiled, _ = pair()
    module.eval()
    compiled(X)
    module.second = nn.Linear(4, 2)
    compare(compiled(X), module(X))
    module.offset = torch.full((2,), 5.0)
    compare(compiled(X), module(X))
    Net.scale = 3.0
    try:
        compare(compiled(X), module(X))
    finally:
        Net.scale = 2.0
    module.first.weight = nn.Parameter(torch.ones(4, 3))
    compare(compiled(X), module(X))


def test_dropped_modules_are_freed() -> None:
    def make() -> list[weakref.ref[Any]]:
        module = Net()
        compiled = dynajit.compile(module, backend="eager")
        compiled(X)
        return [
            weakref.ref(module),
            weakref.ref(compiled),
            weakref.ref(module.first.weight),
            weakref.ref(type(compiled)),
        ]

    references = [reference for _ in range(4) for reference in make()]
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
