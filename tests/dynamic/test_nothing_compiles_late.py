"""Programs as users write them, called thirty times: equal to eager at each call, and after the third call nothing is
compiled but what the program has not done before.

The table is a net: a program's function gives `step(i)`, the call number i, and what state it keeps. Beside it stand
the calls behind the third that may compile: a branch is taken for the first time, or for the
second time, when a number of its own is found to change.
"""

import bisect
import collections
import copy
import dataclasses
import datetime
import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import dynajit
from dynajit.report import records
from dynajit.testing import compare

CALLS = 30
X = torch.linspace(-1, 1, 32).reshape(8, 4)
Y = torch.linspace(1, -1, 16).reshape(8, 2)

Step = Callable[[int], Any]
State = Callable[[], Any]


class Program(NamedTuple):
    make: Callable[[], tuple[Step, State]]
    late: Sequence[int]


PROGRAMS: dict[str, Program] = {}


def program(*late: int) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        PROGRAMS[make.__name__] = Program(make, late)
        return make

    return register


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


class Trainer:
    """A model, its optimizer, and one step of training."""

    micro = updates = 0

    def __init__(self, kind: Any = optim.SGD, **options: Any) -> None:
        self.model = net()
        self.optimizer = kind(self.model.parameters(), **({"lr": 0.1} | options))

    def step(self, x: Tensor = X, y: Tensor = Y) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> Any:
        return [*self.model.parameters()], self.micro, self.updates


class Box:
    """An object with attributes, of which the class has the first values."""

    n = 0
    scale = 1.0
    previous: Any = None
    name = "run"

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def state(self) -> dict[str, Any]:
        return dict(vars(self))


# ------------------------------------------------------------------------------------------------- schedules

# name -> the schedule, and when it comes to a part of its own
SCHEDULES: dict[str, tuple[Callable[[Any], Any], Sequence[int]]] = {
    "LambdaLR": (lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch), ()),
    "MultiplicativeLR": (lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.95), ()),
    "StepLR": (lambda o: lr_scheduler.StepLR(o, 5), (5, 6, 10)),
    "MultiStepLR": (lambda o: lr_scheduler.MultiStepLR(o, [6, 14]), (6, 7, 14)),
    "ConstantLR": (lambda o: lr_scheduler.ConstantLR(o, total_iters=6), (6, 7)),
    "LinearLR": (lambda o: lr_scheduler.LinearLR(o, total_iters=10), (11,)),
    "ExponentialLR": (lambda o: lr_scheduler.ExponentialLR(o, 0.9), ()),
    "CosineAnnealingLR": (lambda o: lr_scheduler.CosineAnnealingLR(o, 20), (21,)),
    "PolynomialLR": (lambda o: lr_scheduler.PolynomialLR(o, 20), (21,)),
    "CyclicLR": (lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 5), (6,)),
    "OneCycleLR": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40), (12,)),
    "CosineAnnealingWarmRestarts": (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 8), (8,)),
    "warm-up and cosine": (
        lambda o: lr_scheduler.LambdaLR(o, lambda n: (n + 1) / 8 if n < 8 else 0.5 * (1 + math.cos((n - 8) / 9))),
        (8,),
    ),
    "SWALR": (lambda o: SWALR(o, 0.05, 10), (10, 11)),
}


def scheduled(make: Callable[[Any], Any]) -> tuple[Step, State]:
    trainer = Trainer(momentum=0.9)
    schedule = make(trainer.optimizer)

    def step(i: int) -> Any:
        loss = trainer.step()
        schedule.step()
        return loss, trainer.optimizer.param_groups[0]["lr"]

    return step, trainer.state


for _name, (_make, _late) in SCHEDULES.items():
    PROGRAMS[_name] = Program(functools.partial(scheduled, _make), _late)


@program()
def rate_by_hand() -> Any:
    trainer = Trainer()

    def step(i: int) -> Tensor:
        trainer.micro += 1
        rate = 64**-0.5 * min(trainer.micro**-0.5, trainer.micro * 10**-1.5)
        for group in trainer.optimizer.param_groups:
            group["lr"] = rate
        return trainer.step()

    return step, trainer.state


@program(7)
def errors_that_are_told() -> Any:
    told: list[Any] = []

    def step(i: int) -> Tensor:
        try:
            if i % 6 == 0:
                raise ValueError(f"step {i} diverged")
            return X * i
        except ValueError as error:
            told[:] = [str(error), repr(error), error.args]
            return X

    return step, lambda: told


@program(6)
def errors_that_are_raised() -> Any:
    def checked(i: int) -> Tensor:
        if i % 5 == 0:
            raise RuntimeError(f"step {i}", i)
        return X * i

    def step(i: int) -> Any:
        try:
            return checked(i)
        except RuntimeError as error:
            return error.args

    return step, list


@program(4, 9, 16, 23)
def rate_of_an_interval() -> Any:
    ends, rates = [3, 8, 15, 22], [1.0, 0.5, 0.25, 0.1, 0.05]
    return lambda i: X * rates[bisect.bisect(ends, i)], list


@program()
def rate_of_a_table() -> Any:
    rates = [0.1 * 0.9**j for j in range(40)]
    return lambda i: X * rates[i], list


@program(11)
def warm_up() -> Any:
    box = Box()

    def step(i: int) -> Tensor:
        box.n += 1
        return X * (box.n / 10) if box.n <= 10 else X

    return step, box.state


@program(6)
def every_few_steps() -> Any:
    log: list[str] = []

    def step(i: int) -> Tensor:
        if i in (5, 10, 15):
            log.append(f"step {i}: {i / 30:.2f}")
        return X * i

    return step, lambda: log


# ------------------------------------------------------------------------------------------------- training


@program()
def moving_average() -> Any:
    trainer = Trainer()
    shadow = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    def step(i: int) -> Tensor:
        loss = trainer.step()
        trainer.updates += 1
        decay = min(0.999, (1 + trainer.updates) / (10 + trainer.updates))
        for name, value in trainer.model.state_dict().items():
            shadow[name] = decay * shadow[name] + (1 - decay) * value
        return loss

    return step, lambda: (shadow, trainer.state())


@program()
def averaged_model() -> Any:
    trainer = Trainer()
    average = AveragedModel(trainer.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def step(i: int) -> Tensor:
        loss = trainer.step()
        average.update_parameters(trainer.model)
        return loss

    return step, lambda: [*average.parameters()]


@program(6)
def accumulated_gradients() -> Any:
    trainer = Trainer()

    def step(i: int) -> Tensor:
        loss = F.mse_loss(trainer.model(X), Y) / 3
        loss.backward()
        trainer.micro += 1
        if trainer.micro % 3 == 0:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
            trainer.updates += 1
        return loss.detach()

    return step, trainer.state


@program()
def scaled_gradients() -> Any:
    trainer = Trainer(lr=0.01)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)

    def step(i: int) -> Any:
        trainer.optimizer.zero_grad()
        loss = F.mse_loss(trainer.model(X), Y)
        scaler.scale(loss).backward()
        scaler.step(trainer.optimizer)
        scaler.update()
        return loss.detach(), scaler.get_scale()

    return step, trainer.state


@program(22, 25)
def early_stopping() -> Any:
    trainer = Trainer()
    box = Box(best=math.inf, bad=0, stop=False)

    def step(i: int) -> Any:
        if box.stop:
            return None
        loss = trainer.step()
        if loss.item() < box.best - 1e-3:
            box.best, box.bad = loss.item(), 0
        else:
            box.bad += 1
            box.stop = box.bad >= 5
        return loss

    return step, lambda: (box.state(), trainer.state())


@program()
def rate_by_the_loss() -> Any:
    box = Box(rate=0.1)

    def step(i: int) -> Tensor:
        loss = (X * box.rate).pow(2).sum()
        if box.previous is not None:
            box.rate *= 1.05
        box.previous = loss.item()
        return loss

    return step, box.state


@program()
def learning_rate_finder() -> Any:
    trainer, rates, losses = Trainer(), [1e-5], []

    def step(i: int) -> Tensor:
        trainer.optimizer.param_groups[0]["lr"] = rates[-1]
        loss = trainer.step()
        losses.append(loss.item())
        rates.append(rates[-1] * 1.3)
        return loss

    return step, lambda: (rates, losses)


@program(6)
def target_network() -> Any:
    trainer, target = Trainer(), net()

    def step(i: int) -> Tensor:
        loss = trainer.step()
        trainer.updates += 1
        if trainer.updates % 6 == 0:
            target.load_state_dict(trainer.model.state_dict())
        return loss

    return step, lambda: ([*target.parameters()], trainer.state())


# ------------------------------------------------------------------------------------------------- state


@program()
def attributes_of_a_module() -> Any:
    class Counting(nn.Module):
        epoch, name, temperature = 0, "e0", 5.0

        def forward(self, x: Tensor) -> Tensor:
            self.epoch += 1
            self.name = f"e{self.epoch}"
            self.temperature = max(0.5, self.temperature * 0.97)
            return x / self.temperature

    module = Counting()
    return lambda i: module(X), lambda: (module.epoch, module.name, module.temperature)


@program(5, 6, 15, 16, 20, 21)
def states() -> Any:
    box = Box(name="warm", after={"warm": ("run", 5), "run": ("cool", 10), "cool": ("done", 5)})

    def step(i: int) -> Tensor:
        if box.name == "done":
            return X * 0
        following, length = box.after[box.name]
        box.n += 1
        if box.n >= length:
            box.name, box.n = following, 0
        return X * length

    return step, box.state


@program()
def a_difference() -> Any:
    box = Box()

    def step(i: int) -> Tensor:
        now = 10.0 + i * i
        past = 0.0 if box.previous is None else now - box.previous
        box.previous = now
        return X * past

    return step, box.state


@program()
def a_text_that_grows() -> Any:
    box = Box()

    def step(i: int) -> Tensor:
        box.name = box.name + str(i)
        return X * len(box.name)

    return step, box.state


@program(4)
def dates() -> Any:
    box, log = Box(day=datetime.date(2024, 1, 1)), []

    def step(i: int) -> Tensor:
        box.day += datetime.timedelta(days=1)
        log.append(box.day.isoformat())
        return X * box.day.day

    return step, lambda: (box.state(), log)


@program()
def a_record_replaced() -> Any:
    @dataclasses.dataclass
    class Record:
        n: int = 0
        rate: float = 0.1
        note: str = ""

    box = Box(record=Record())

    def step(i: int) -> Tensor:
        old = box.record
        box.record = dataclasses.replace(old, n=old.n + 1, rate=old.rate * 0.9, note=f"n{old.n}")
        return X * box.record.rate + box.record.n

    return step, lambda: dataclasses.astuple(box.record)


@program()
def a_replay_buffer() -> Any:
    box, data = Box(), torch.zeros(40, 4)

    def step(i: int) -> Tensor:
        data[box.n] = X[i % 8] * i
        box.n += 1
        return data[: box.n].mean(0)

    return step, lambda: (box.state(), data)


@program()
def shuffled_rows() -> Any:
    order = list(range(8))

    def step(i: int) -> Tensor:
        random.shuffle(order)
        return X[order[:4]].sum(0)

    return step, lambda: order


@program()
def running_mean() -> Any:
    box = Box(total=0.0)

    def step(i: int) -> Any:
        value = (X + i).sum().item()
        box.total += value * len(X)
        box.n += len(X)
        return X * value, box.total / box.n

    return step, box.state


@program()
def history_of_losses() -> Any:
    trainer, history = Trainer(), collections.defaultdict(list)

    def step(i: int) -> Any:
        loss = trainer.step()
        history["loss"].append(loss.item())
        history["step"].append(i)
        return loss, history["step"][-1]

    return step, lambda: dict(history)


@program()
def named_results() -> Any:
    results: dict[str, Tensor] = {}

    def step(i: int) -> Tensor:
        results[f"step {i}"] = (X * i).sum()
        return results[f"step {i}"]

    return step, lambda: results


@program(4, 5, 6)
def appended_array() -> Any:
    box = Box(losses=numpy.zeros(0))

    def step(i: int) -> Any:
        box.losses = numpy.append(box.losses, float(i))
        return X * 2, box.losses.mean()

    return step, lambda: box.losses.tolist()


@program()
def rates_in_an_array() -> Any:
    rates = numpy.cos(numpy.linspace(0.1, 1.0, 40))
    return lambda i: X * float(rates[i]), list


@program()
def rows_of_an_array() -> Any:
    rows, total = numpy.arange(120.0).reshape(40, 3), numpy.zeros(40)

    def step(i: int) -> Any:
        total[i] = 2.5
        return rows[i], rows[-1 - i, 1], rows[:, i % 3], rows[None, i], total[i]

    return step, lambda: total


@program()
def tokens_with_a_cache() -> Any:
    box = Box(keys=None)

    def step(i: int) -> Tensor:
        x = torch.ones(1, 4) * i
        box.keys = x if box.keys is None else torch.cat([box.keys, x])
        return torch.softmax(x @ box.keys.T, -1) @ box.keys

    return step, box.state


@program(11)
def an_iterator_that_runs_out() -> Any:
    numbers = iter(range(10))

    def step(i: int) -> Tensor:
        n = next(numbers, None)
        return X if n is None else X * n

    return step, list


@program()
def endless_iterators() -> Any:
    rates, numbers = itertools.cycle([0.1, 0.2, 0.3]), itertools.count()
    return lambda i: X * next(rates) + next(numbers), list


@program(4, 5)
def mean_of_the_last_losses() -> Any:
    losses: list[float] = []

    def step(i: int) -> Tensor:
        losses.append((X * i).sum().item())
        return X * (sum(losses[-10:]) / len(losses[-10:]))

    return step, lambda: losses


@program(4, 6, 12)
def a_sample_of_a_deque() -> Any:
    kept: collections.deque[Any] = collections.deque(maxlen=12)

    def step(i: int) -> Tensor:
        kept.append((X[i % 8], float(i)))
        sample = random.sample(list(kept), min(4, len(kept)))
        return torch.stack([x for x, _ in sample]).sum(0) * sum(r for _, r in sample)

    return step, lambda: len(kept)


@program()
def steps_of_a_replay_buffer() -> Any:
    """Rewards that are zero, and flags: tensors of them are made at each call."""
    kept = collections.deque([(X[i % 8], i % 3, float(i % 2), i % 2 == 0) for i in range(12)], maxlen=12)

    def step(i: int) -> Tensor:
        kept.append((X[i % 8], i % 3, float(i % 2), i % 5 == 0))
        states, actions, rewards, ends = zip(*random.sample(kept, 5), strict=True)
        returns = torch.tensor(rewards) + torch.tensor(actions)
        return torch.stack(states).sum(1) * returns * (1 - torch.tensor(ends, dtype=torch.float32))

    return step, lambda: len(kept)


@program()
def flags_of_the_step() -> Any:
    def step(i: int) -> Any:
        ends = tuple(bool((i * 7 >> bit) & 1) for bit in range(6))
        return X[0, 0] * torch.tensor(ends, dtype=torch.float32), i % 10 == 0

    return step, list


@program(4)
def a_complex_number_that_turns() -> Any:
    box = Box(phase=1 + 0j)

    def step(i: int) -> Tensor:
        box.phase *= 0.9 + 0.1j
        return X * box.phase

    return step, box.state


@program(4)
def a_complex_number_of_the_step() -> Any:
    return lambda i: X * complex(i, 1), list


# ------------------------------------------------------------------------------------------------- what is called


@program(*range(4, 14))
def keywords_of_other_names() -> Any:
    """Each set of names that came but once counts for one limit."""

    def weighted(x: Tensor, **weights: float) -> Tensor:
        return x * sum(weights.values())

    return lambda i: weighted(X, **{f"w{i}": i * 1.0}), list


@program(4, 5)
def counts_by_name() -> Any:
    counts: dict[str, int] = {}

    def step(i: int) -> Tensor:
        name = "abcd"[i % 4] + str(i // 4)
        counts[name] = counts.get(name, 0) + 1
        return X * counts[name]

    return step, lambda: counts


@program()
def functions_by_name() -> Any:
    table: dict[str, Any] = {f"op{j}": (lambda x, j=j: x * j + 1) for j in range(12)}
    return lambda i: table[f"op{i % 12}"](X), list


@program()
def weights_by_name() -> Any:
    weights = {f"layer{j}": torch.ones(4) * j for j in range(12)}
    names = [*weights]
    return lambda i: X * weights[names[i % 12]], list


@program()
def a_dropout_that_rises() -> Any:
    dropout = nn.Dropout(0.0)

    def step(i: int) -> Tensor:
        dropout.p = min(0.5, 0.01 + i * 0.03)
        return dropout(X)

    return step, lambda: dropout.p


@program()
def a_momentum_that_falls() -> Any:
    norm = nn.BatchNorm1d(4, affine=False)

    def step(i: int) -> Tensor:
        norm.momentum = max(0.01, 0.5 * 0.8 ** (i // 2))
        return norm(X)

    return step, lambda: (norm.running_mean, norm.num_batches_tracked)


@program()
def statistics_of_all_batches() -> Any:
    norm = nn.BatchNorm1d(4, momentum=None, affine=False)
    return lambda i: norm(X + i), lambda: (norm.running_mean, norm.num_batches_tracked)


# ------------------------------------------------------------------------------------------------- the check


def outcomes(make: Callable[[], tuple[Step, State]], wrap: Callable[[Step], Step]) -> tuple[list[Any], list[int]]:
    """What each call gave, with the state behind it, and the calls that compiled something, from one on."""
    step, state = make()
    called, found, compiled_at = wrap(step), [], []
    for number in range(CALLS):
        torch.manual_seed(number)
        random.seed(number)
        seen: list[records.CompileRecord] = []
        with records.listen(seen.append):
            result = called(number)
        found.append(copy.deepcopy((result, state())))
        compiled_at += [number + 1] if seen else []
    return found, compiled_at


@pytest.mark.parametrize("name", PROGRAMS)
def test_captures_come_with_what_is_new(name: str) -> None:
    make, late = PROGRAMS[name]
    dynajit.reset()
    expected, _ = outcomes(make, lambda step: step)
    found, compiled_at = outcomes(make, lambda step: dynajit.compile(step, backend="eager"))
    compare(found, expected, exact=False)
    assert {at for at in compiled_at if at > 3} <= {*late}, compiled_at


# operations of which a float is no part of their graph's symbols
PINNING: dict[str, Callable[[Tensor, float], Any]] = {
    "dropout": F.dropout,
    "batch_norm": lambda x, f: F.batch_norm(x, torch.zeros(4), torch.ones(4), None, None, True, f),
    "layer_norm": lambda x, f: F.layer_norm(x, (4,), eps=f),
    "normal_": lambda x, f: torch.empty(3).normal_(0, f),
    "uniform_": lambda x, f: torch.empty(3).uniform_(-f, f),
    "bernoulli": torch.bernoulli,
    "exponential_": lambda x, f: torch.empty(3).exponential_(f),
    "huber_loss": lambda x, f: F.huber_loss(x, x * 2, delta=f),
    "cross_entropy": lambda x, f: F.cross_entropy(x, torch.arange(8) % 4, label_smoothing=f),
    "attention": lambda x, f: F.scaled_dot_product_attention(x, x, x, scale=f),
    "quantile": torch.quantile,
    "computed": lambda x, f: F.dropout(x, max(0.01, f * 0.5)),
    "in an attribute": lambda x, f: nn.Dropout(f)(x),
}


@pytest.mark.parametrize("name", PINNING)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_floats_that_operations_take_as_they_are(name: str, backend: str) -> None:
    """Two variants, and one that ends its graph there; fewer where torch's release takes the float as a symbol."""

    def step(x: Tensor, f: float) -> Tensor:
        return PINNING[name](x, f) + 1

    dynajit.reset()
    compiled, compiled_at = dynajit.compile(step, backend=backend), []
    for number in range(8):
        seen: list[records.CompileRecord] = []
        f = 0.1 + 0.02 * number
        torch.manual_seed(number)
        expected = step(X.abs(), f)
        torch.manual_seed(number)
        with records.listen(seen.append):
            compare(compiled(X.abs(), f), expected, exact=backend == "eager")
        compiled_at += [number + 1] if seen else []
    assert compiled_at == [1, 2, 3][: len(compiled_at)]


def test_floats_in_turn_are_variants() -> None:
    """Two that come again and again, and the third that ends its graph there."""
    step = dynajit.compile(F.dropout, backend="eager")
    dynajit.reset()
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        for f in (0.0, 0.5, 0.0, 0.5, 0.0, 0.5):
            step(X, f)
    assert len(seen) == 2 and not any(record.breaks for record in seen)
