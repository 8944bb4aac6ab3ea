"""Programs about nn.Module: containers, buffers updated in forward, hooks, parameters, training."""

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import dynajit
from dynajit.testing import compare

x = torch.arange(12.0).reshape(4, 3) / 10


class Block(nn.Module):
    def __init__(self, size: int = 3, norm: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size) if norm else None
        self.act = nn.GELU()

    def forward(self, t: Tensor, *, scale: float = 1.0) -> Tensor:
        t = self.linear(t) * scale
        if self.norm is not None:
            t = self.norm(t)
        return self.act(t)


class Stateful(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("empty", None)
        self.weight = nn.Parameter(torch.ones(3))
        self.register_parameter("no_bias", None)
        self.calls = 0
        self.history: list[Any] = []

    def forward(self, t: Tensor) -> Any:
        self.count += 1
        self.calls += 1
        self.history.append(t.shape)
        self.count = self.count * 1
        return t * self.weight + self.count, self.empty is None, self.no_bias is None, self.calls


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(norm=False)])
        self.table = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Identity()})
        self.seq = nn.Sequential(OrderedDict(first=nn.Linear(3, 3), relu=nn.ReLU()))
        self.params = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))])
        self.pdict = nn.ParameterDict({"w": nn.Parameter(torch.ones(3))})

    def forward(self, t: Tensor, key: str = "a") -> Any:
        for i, block in enumerate(self.blocks):
            t = block(t, scale=i + 1.0)
        for name, module in self.table.items():
            t = module(t) if name == key else t
        t = self.seq(t) + self.seq.first(t) + self.seq[0](t)
        for p in self.params:
            t = t + p
        return (
            t * self.pdict["w"],
            len(self.blocks),
            "a" in self.table,
            list(self.table.keys()),
            self.blocks[-1].norm is None,
            len(self.seq),
            [type(m).__name__ for m in self.seq],
        )


MODULES = {
    "block": (Block(), 2),
    "nested": (Nested(), 2),
    "batch norm": (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU()), 3),
    "dropout": (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3)), 2),
    "recurrent": (nn.GRU(3, 5, batch_first=True), 2),
    "lstm": (nn.LSTM(3, 5), 2),
    "attention": (nn.MultiheadAttention(3, 1), 2),
    "encoder": (nn.TransformerEncoderLayer(3, 1, 8, dropout=0.0), 2),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("training", [True, False])
def test_modules(name: str, training: bool) -> None:
    module, repeat = MODULES[name]
    eager, original = copy.deepcopy(module).train(training), copy.deepcopy(module).train(training)
    compiled = dynajit.compile(original, backend="eager")
    for number in range(repeat):
        outputs = []
        for side in (eager, compiled):
            torch.manual_seed(number)
            args = (x, x, x) if name == "attention" else (x[None],) if name == "recurrent" else (x,)
            out = side(*args)
            loss = sum(
                part.float().sum()
                for part in torch.utils._pytree.tree_leaves(out)
                if isinstance(part, Tensor) and part.requires_grad
            )
            if isinstance(loss, Tensor):
                loss.backward()
            outputs.append(out)
        compare(outputs[1], outputs[0], "output")
        for (key, ours), theirs in zip(original.named_parameters(), eager.parameters(), strict=True):
            compare(ours.grad, theirs.grad, f"gradient of {key}")
        compare(dict(original.named_buffers()), dict(eager.named_buffers()), "buffers")


def test_state_changed_in_forward() -> None:
    eager, original = Stateful(), Stateful()
    compiled = dynajit.compile(original, backend="eager")
    for _ in range(3):
        compare(compiled(x), eager(x))
        compare(original.count, eager.count)
    assert original.calls == 3 and len(original.history) == 3 and original.history[0] == (4, 3)
    assert list(original.state_dict()) == list(eager.state_dict())
    assert "count" in original._buffers and "count" not in original.__dict__


def test_hooks() -> None:
    results = []
    for compile_it in (False, True):
        module = Block()
        with torch.no_grad():
            module.linear.weight.fill_(0.5)
            module.linear.bias.zero_()
        log: list[Any] = []
        module.register_forward_pre_hook(lambda m, args, log=log: log.append("pre"))
        module.linear.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        module.linear.register_forward_hook(lambda m, args, out: out + 1)
        module.register_forward_hook(lambda m, args, kwargs, out, log=log: log.append(sorted(kwargs)), with_kwargs=True)
        module.act.register_full_backward_hook(lambda m, gi, go, log=log: log.append("backward"))
        fn = dynajit.compile(module, backend="eager") if compile_it else module
        out = [fn(x.clone().requires_grad_(), scale=2.0) for _ in range(2)]
        out[0].sum().backward()
        results.append((out, log, module.linear.weight.grad))
    compare(results[1], results[0])


class Programs:
    """Functions of a module and a tensor."""

    @staticmethod
    def parameters_and_names(m: Any, t: Tensor) -> Any:
        total = t
        for name, parameter in m.named_parameters():
            total = total + parameter.sum() * len(name)
        return (
            total,
            [n for n, _ in m.named_buffers()],
            [n for n, _ in m.named_children()],
            sum(p.numel() for p in m.parameters()),
            len(list(m.modules())),
        )

    @staticmethod
    def attributes(m: Any, t: Tensor) -> Any:
        return (
            hasattr(m, "nothing"),
            getattr(m, "nothing", 3),
            m.training,
            isinstance(m, nn.Module),
            type(m).__name__,
            m.linear.weight.shape,
            m.linear.in_features,
            t + 1,
            m.linear.bias is None,
        )

    @staticmethod
    def functional(m: Any, t: Tensor) -> Any:
        return (
            F.linear(t, m.linear.weight, m.linear.bias),
            m.linear.weight.t() @ m.linear.weight,
            m.get_submodule("linear") is m.linear,
            m.linear.weight.grad,
        )

    @staticmethod
    def shared_twice(m: Any, t: Tensor) -> Any:
        return m(m(t)), m.linear(t) + m.linear(t), m.forward(t)

    @staticmethod
    def chosen_by_data(m: Any, t: Tensor) -> Any:
        modules = [m.linear, m.act, torch.relu, lambda v: v + 1]
        for f in modules:
            t = f(t)
        return t

    @staticmethod
    def changes(m: Any, t: Tensor) -> Any:
        m.flag = True
        m.extra = t * 2
        m.counter = getattr(m, "counter", 0) + 1
        return m(t) + m.extra, m.counter

    @staticmethod
    def switches(m: Any, t: Tensor) -> Any:
        was = m.training
        m.eval()
        out = m(t)
        m.train(was)
        return out, m.training

    @staticmethod
    def parameter_replaced(m: Any, t: Tensor) -> Any:
        before = m.linear.bias
        m.linear.bias = nn.Parameter(torch.ones(3))
        out = m.linear(t)
        m.linear.bias = before
        return out, m.linear(t)

    @staticmethod
    def made_inside(m: Any, t: Tensor) -> Any:
        return nn.functional.relu(nn.ReLU()(t)) + nn.Identity()(t), nn.Softmax(dim=-1)(t)

    @staticmethod
    def weights_written(m: Any, t: Tensor) -> Any:
        with torch.no_grad():
            m.linear.weight.mul_(0.5)
            m.linear.bias.copy_(t[0])
        return m.linear(t)

    @staticmethod
    def zero_grad_and_state(m: Any, t: Tensor) -> Any:
        m.zero_grad()
        return sorted(m.state_dict()), t + 1

    @staticmethod
    def repr_of_a_module(m: Any, t: Tensor) -> Any:
        return repr(m.linear), t + 1


@pytest.mark.parametrize("name", [name for name in vars(Programs) if not name.startswith("_")])
def test_programs(name: str) -> None:
    program = getattr(Programs, name)
    torch.manual_seed(0)
    first = Block()
    eager, own = copy.deepcopy(first), copy.deepcopy(first)
    compiled = dynajit.compile(program, backend="eager")
    for _ in range(3):
        compare(compiled(own, x), program(eager, x))
        compare(dict(own.state_dict()), dict(eager.state_dict()))
        compare(
            {k: v for k, v in vars(own).items() if not k.startswith("_")},
            {k: v for k, v in vars(eager).items() if not k.startswith("_")},
        )


def test_parametrized_weight() -> None:
    class Double(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w * 2

    module = nn.Linear(3, 3)
    parametrize.register_parametrization(module, "weight", Double())
    compiled = dynajit.compile(module, backend="eager")
    for _ in range(2):
        compare(compiled(x), module(x))


def test_training_step() -> None:
    results = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

        def step(t: Tensor, module: Any = module, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = module(t).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        fn = dynajit.compile(step, backend="eager") if compile_it else step
        results.append(([fn(x) for _ in range(4)], dict(module.state_dict())))
    compare(results[1], results[0])
