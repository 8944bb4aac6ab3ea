"""Training loops as people write them around torch.compile; see features.py."""

import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import logging
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from feature_table import varied_feature
from torch import Tensor, nn

LOOPS = "training loops"


def batches(*shape: int, many: tuple[int, ...] = (4, 6, 4, 9)) -> list[tuple[Tensor]]:
    """Four batches, of sizes that change."""
    torch.manual_seed(7)
    return [(torch.randn(n, *shape),) for n in many]


def labelled(width: int, classes: int, many: tuple[int, ...] = (4, 6, 4, 9)) -> list[tuple[Tensor, Tensor]]:
    return [(x, torch.randint(classes, x.shape[:1])) for (x,) in batches(width, many=many)]


loops = functools.partial(varied_feature, LOOPS)


def small_net(width: int = 5, classes: int = 3) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, classes))


def told(module: nn.Module) -> list[Tensor]:
    """Copies of what a module holds, and its gradients."""
    held = [value.detach().clone() for value in module.state_dict().values()]
    return held + [p.grad.clone() for p in module.parameters() if p.grad is not None]


# ------------------------------------------------------------------ loops
@dataclasses.dataclass
class Meter:
    name: str
    total: float = 0.0
    count: int = 0
    history: list[float] = dataclasses.field(default_factory=list)

    def update(self, value: Tensor, n: int = 1) -> None:
        self.total = self.total + value.detach() * n
        self.count += n

    @property
    def mean(self) -> Any:
        return self.total / max(self.count, 1)

    def __str__(self) -> str:
        return f"{self.name}: {self.count}"


@loops("metrics of dataclasses, accuracy and loss", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    meters = {name: Meter(name) for name in ("loss", "accuracy")}

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad(set_to_none=True)
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        meters["loss"].update(loss, len(x))
        meters["accuracy"].update((logits.argmax(-1) == y).float().mean(), n=x.size(0))
        return {k: m.mean for k, m in meters.items()}, [str(m) for m in meters.values()], told(net)

    return step


class Average:
    def __init__(self, model: nn.Module, decay: float = 0.9) -> None:
        self.module, self.decay, self.updates = copy.deepcopy(model), decay, 0
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for mine, theirs in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            mine.mul_(decay).add_(theirs, alpha=1 - decay)


@loops("accumulation, clipping, EMA, a schedule", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
    average, counted = Average(net), itertools.count(1)

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1) / 2
        loss.backward()
        norm = None
        if next(counted) % 2 == 0:
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            average.update(net)
        return loss.detach(), norm, schedule.get_last_lr(), told(net), told(average.module)

    return step


@loops("GradScaler and autocast on a CPU", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), scaler.get_scale(), told(net)

    return step


@loops("GAN with two optimizers", *batches(5))
def _() -> Any:
    torch.manual_seed(5)
    generator, critic = small_net(4, 5), small_net(5, 1)
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.9))
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=0.01)

    def step(real: Tensor) -> Any:
        noise = real.new_ones(real.shape[0], 4)
        fake = generator(noise)
        for p in critic.parameters():
            p.requires_grad_(True)
        of_critic.zero_grad()
        mixed = (0.3 * real + 0.7 * fake.detach()).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        of_critic.step()
        for p in critic.parameters():
            p.requires_grad_(False)
        of_generator.zero_grad()
        back = -critic(fake).mean()
        back.backward()
        of_generator.step()
        return loss.detach(), back.detach(), told(generator), told(critic)

    return step


@loops("REINFORCE with a buffer and a Categorical", *batches(5))
def _() -> Any:
    policy = small_net(5, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    Step = collections.namedtuple("Step", "log_prob reward")
    buffer: collections.deque[Any] = collections.deque(maxlen=6)

    def act(state: Tensor) -> Tensor:
        chosen = torch.distributions.Categorical(logits=policy(state))
        action = chosen.sample()
        buffer.append(Step(chosen.log_prob(action), action.float() - 0.5))
        return action

    def step(states: Tensor) -> Any:
        torch.manual_seed(11)
        actions = [act(state) for state in states.unbind()]
        returns, running = [], torch.zeros(())
        for each in reversed(buffer):
            running = each.reward + 0.9 * running
            returns.insert(0, running)
        gains = torch.stack(returns)
        gains = (gains - gains.mean()) / (gains.std() + 1e-6)
        loss = -(torch.stack([each.log_prob for each in buffer]) * gains).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        buffer.clear()
        return torch.stack(actions), loss.detach(), told(policy)

    return step


@loops("PPO's clipped loss, advantages by a reversed loop", *batches(5))
def _() -> Any:
    actor, critic = small_net(5, 3), small_net(5, 1)
    both = list(itertools.chain(actor.parameters(), critic.parameters()))
    optimizer = torch.optim.Adam([{"params": actor.parameters()}, {"params": critic.parameters(), "lr": 0.02}], lr=0.01)

    def advantages(values: Tensor, rewards: Tensor, gamma: float = 0.9, lam: float = 0.8) -> Tensor:
        gains = torch.zeros_like(rewards)
        last = 0.0
        for t in reversed(range(len(rewards))):
            following = values[t + 1] if t + 1 < len(rewards) else 0.0
            last = rewards[t] + gamma * following - values[t] + gamma * lam * last
            gains[t] = last
        return gains

    def step(x: Tensor) -> Any:
        with torch.no_grad():
            old = torch.distributions.Categorical(logits=actor(x)).log_prob(torch.zeros(len(x), dtype=torch.long))
            gains = advantages(critic(x).squeeze(-1), x.sum(-1))
        for _ in range(2):
            now = torch.distributions.Categorical(logits=actor(x))
            ratio = (now.log_prob(torch.zeros(len(x), dtype=torch.long)) - old).exp()
            surrogate = torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
            value = F.mse_loss(critic(x).squeeze(-1), gains)
            loss = -surrogate + 0.5 * value - 0.01 * now.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(both, 0.5)
            optimizer.step()
        return loss.detach(), told(actor), told(critic)

    return step


@loops("logging with lazy arguments, each second step", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    log = logging.getLogger("dynajit.features.loop")
    log.setLevel(logging.WARNING)
    seen = {"step": 0}

    def step(x: Tensor, y: Tensor) -> Any:
        seen["step"] += 1
        loss = F.cross_entropy(net(x), y)
        if seen["step"] % 2 == 0:
            log.info("step %d: shape %s", seen["step"], x.shape)
        log.debug("loss %s", loss)
        loss.backward()
        return loss.detach(), dict(seen), told(net)

    return step


@loops("printing each step", *batches(5))
def _() -> Any:
    net, state = small_net(), types.SimpleNamespace(step=0)

    def step(x: Tensor) -> Tensor:
        out = net(x)
        state.step += 1
        print(f"step {state.step:>3d} | batch {x.shape[0]} | {tuple(out.shape)!r}")
        return out.relu().sum()

    return step


@loops("tqdm over a list of batches", *[(list(torch.randn(n, 2, 5).unbind()),) for n in (2, 3, 2, 4)])
def _() -> Any:
    from tqdm import tqdm

    net = small_net()

    def step(data: list[Tensor]) -> Any:
        total = torch.zeros(())
        for x in tqdm(data, disable=True):
            total = total + net(x).sum()
        return total

    return step


@loops("DataLoader inside", *batches(5))
def _() -> Any:
    net = small_net()

    def epoch(x: Tensor) -> Any:
        data = torch.utils.data.TensorDataset(x, x.sum(-1))
        total = torch.zeros(())
        for a, b in torch.utils.data.DataLoader(data, batch_size=2, shuffle=False):
            total = total + (net(a).sum(-1) - b).pow(2).mean()
        return total

    return epoch


@loops("closure given to LBFGS", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)

    def step(x: Tensor, y: Tensor) -> Any:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach(), told(net)

    return step


@loops("early stopping by a float, best weights kept", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    best: dict[str, Any] = {"loss": float("inf"), "weights": None, "patience": 0}

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        if loss.item() < best["loss"]:
            best.update(loss=loss.item(), weights={k: v.clone() for k, v in net.state_dict().items()}, patience=0)
        else:
            best["patience"] += 1
        return best["loss"], best["patience"], list(best["weights"].values()), told(net)

    return step


@loops("hard mining: topk of the losses", *labelled(5, 3))
def _() -> Any:
    net = small_net()

    def step(x: Tensor, y: Tensor) -> Any:
        losses = F.cross_entropy(net(x), y, reduction="none")
        hard, where = losses.topk(max(1, int(0.5 * len(losses))))
        hard.mean().backward()
        return hard.detach(), where, told(net)

    return step


@loops("knowledge distillation, teacher in no_grad, temperature", *labelled(5, 3))
def _() -> Any:
    student, teacher = small_net(), small_net(5, 3).eval()
    temperatures = itertools.cycle((1.0, 2.0))

    def step(x: Tensor, y: Tensor) -> Any:
        t = next(temperatures)
        with torch.inference_mode():
            goal = teacher(x).div(t).softmax(-1)
        logits = student(x)
        loss = F.kl_div((logits / t).log_softmax(-1), goal.clone(), reduction="batchmean") * t**2
        loss = loss + F.cross_entropy(logits, y)
        loss.backward()
        return loss.detach(), told(student)

    return step


@loops("optimizer of one's own", *labelled(5, 3))
def _() -> Any:
    class Signed(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float = 0.1, beta: float = 0.9) -> None:
            super().__init__(params, {"lr": lr, "beta": beta})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in filter(lambda p: p.grad is not None, group["params"]):
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"], state["mean"] = 0, torch.zeros_like(p)
                    state["step"] += 1
                    state["mean"].lerp_(p.grad, 1 - group["beta"])
                    p.add_(state["mean"].sign(), alpha=-group["lr"] / state["step"] ** 0.5)

    net = small_net()
    optimizer = Signed(net.parameters())

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), told(net), [s["step"] for s in optimizer.state.values()]

    return step


@loops("SAM: two passes, weights moved and put back", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Any:
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            moves = [p.grad * (0.05 / (norm + 1e-12)) for p in net.parameters()]
            for p, move in zip(net.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, move in zip(net.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return norm, told(net)

    return step


@loops("SWA by torch.optim.swa_utils", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(net)

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        average.update_parameters(net)
        return average(x).detach(), told(average)

    return step


@loops("MAML by functional_call, weights updated in a dictionary", *labelled(5, 3))
def _() -> Any:
    net = small_net()

    def step(x: Tensor, y: Tensor) -> Any:
        weights = dict(net.named_parameters())
        for _ in range(2):
            loss = F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)
            slopes = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
            weights = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), slopes, strict=True)}
        last = F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)
        return torch.autograd.grad(last, list(net.parameters()))

    return step


@loops("evaluation: train() and eval() around no_grad, dropout, batch norm", *batches(5))
def _() -> Any:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2))

    @contextlib.contextmanager
    def evaluating(module: nn.Module) -> Iterator[nn.Module]:
        was = module.training
        module.eval()
        try:
            with torch.no_grad():
                yield module
        finally:
            module.train(was)

    def step(x: Tensor) -> Any:
        torch.manual_seed(1)
        loss = net(x).sum()
        loss.backward()
        with evaluating(net) as each:
            seen = each(x)
        return loss.detach(), seen, net.training, told(net)

    return step


# ------------------------------------------------------------------ autograd.Function in every form
class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, bits: int) -> Tensor:
        top = 2 ** (bits - 1) - 1
        ctx.save_for_backward(x, scale)
        ctx.top = top
        return (x / scale).round().clamp(-top, top) * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, scale = ctx.saved_tensors
        inside = (x / scale).abs() <= ctx.top
        return grad * inside, (grad * (x / scale)).sum().view_as(scale), None


@loops("autograd.Function over what a closure holds, trained", *batches(5))
def _() -> Any:
    held = torch.linspace(0.1, 1.0, 5, requires_grad=True)
    factor = {"k": 2.0}

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.k = factor["k"]
            return x * held.detach() * ctx.k

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * held.detach() * ctx.k

    def step(x: Tensor) -> Any:
        leaf = x.clone().requires_grad_()
        out = Scale.apply(leaf) * held
        out.sum().backward()
        factor["k"] += 1
        grads = leaf.grad.clone(), held.grad.clone()
        held.grad = None
        return out.detach(), *grads

    return step


@loops("autograd.Function over parameters from outside, trained", *batches(5))
def _() -> Any:
    net = small_net(5, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * net[-1].bias.sigmoid()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * x.sigmoid()

    def step(x: Tensor) -> Any:
        loss = Gated.apply(net(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.neg() * ctx.alpha, None


@loops("gradient reversal with a strength that grows", *labelled(5, 3))
def _() -> Any:
    body, heads = small_net(5, 4), nn.ModuleDict({"label": small_net(4, 3), "domain": small_net(4, 2)})
    progress = [0]

    def step(x: Tensor, y: Tensor) -> Any:
        progress[0] += 1
        seen = body(x)
        domain = heads["domain"](Reversed.apply(seen, progress[0] / 10))
        loss = F.cross_entropy(heads["label"](seen), y) + domain.logsumexp(-1).mean()
        loss.backward()
        return loss.detach(), told(body), told(heads)

    return step
