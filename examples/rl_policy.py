"""Reinforcement learning: a policy learns to balance a pole, in an environment that is written in torch.

It shows a program of many small operations, where Python costs more than the arithmetic: the physics of 256 carts, the
policy and the choice of an action are one graph, so a step of the environment is one call of a kernel or two. Random
choices are drawn by torch's generator, and are those of eager mode.

The cart is that of Barto, Sutton and Anderson, 1983, as in Gymnasium's CartPole-v1; REINFORCE: Williams, 1992.

    python examples/rl_policy.py
"""

import torch
from timing import medians
from torch import Tensor, nn

import dynajit

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


def physics(state: Tensor, action: Tensor) -> Tensor:
    """The next state (carts, 4): place, speed, angle, angular speed. `action` (carts): 0 pushes left, 1 right."""
    _, speed, angle, turning = state.unbind(1)
    sin, cos = angle.sin(), angle.cos()
    push = ((action * 2 - 1) * FORCE + POLE * HALF_LENGTH * turning.square() * sin) / (CART + POLE)
    falling = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE * cos.square() / (CART + POLE)))
    faster = push - POLE * HALF_LENGTH * falling * cos / (CART + POLE)
    change = torch.stack([speed, faster, turning, falling], 1)
    return state + SECONDS * change


def act(policy: nn.Module, state: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of all carts: the next states, which still stand, and the actions taken."""
    action = torch.bernoulli(policy(state).squeeze(1).sigmoid())
    state = physics(state, action)
    alive = alive & (state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 0.2095)
    return state, alive, action


def learn(policy: nn.Module, states: Tensor, actions: Tensor, weights: Tensor) -> Tensor:
    """The loss of REINFORCE: of each action its log-probability, weighed by the steps that the cart stood after it."""
    loss = nn.functional.binary_cross_entropy_with_logits(policy(states).squeeze(-1), actions, reduction="none")
    return (loss * weights).mean()


def episode(policy: nn.Module, step, carts: int, horizon: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """States, actions and weights of `horizon` steps, and the mean number of steps that carts stood."""
    state, alive = torch.rand(carts, 4) * 0.1 - 0.05, torch.ones(carts, dtype=torch.bool)
    states, actions, stood = [], [], []
    with torch.no_grad():
        for _ in range(horizon):
            states.append(state)
            stood.append(alive)
            state, alive, action = step(policy, state, alive)
            actions.append(action)
    reward = torch.stack(stood).float()
    to_come = reward.flip(0).cumsum(0).flip(0)
    weights = (to_come - to_come.sum(1, keepdim=True) / reward.sum(1, keepdim=True).clamp(min=1)) * reward
    weights = weights / weights.std().clamp(min=1e-6)
    return torch.stack(states), torch.stack(actions), weights, reward.sum(0).mean().item()


def main(episodes: int = 40, carts: int = 256, horizon: int = 200) -> dict[str, float]:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    step, loss_of = dynajit.compile(act, fullgraph=True), dynajit.compile(learn, fullgraph=True)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)

    torch.manual_seed(1)
    expected = episode(policy, act, carts, 20)
    torch.manual_seed(1)
    found = episode(policy, step, carts, 20)
    apart = max((a - b).abs().max().item() for a, b in zip(expected[:3], found[:3]))

    scores = []
    for _ in range(episodes):
        states, actions, weights, score = episode(policy, step, carts, horizon)
        scores.append(score)
        optimizer.zero_grad()
        loss_of(policy, states, actions, weights).backward()
        optimizer.step()
    print(f"a pole stands {scores[0]:.0f} steps of {horizon} at first, {scores[-1]:.0f} after {episodes} episodes")
    print(f"20 steps, {apart:.1e} from those of eager mode with the same seed")

    state, alive = torch.zeros(carts, 4), torch.ones(carts, dtype=torch.bool)
    with torch.no_grad():
        times = medians(lambda: act(policy, state, alive), lambda: step(policy, state, alive), seconds=episodes / 40)
    print(f"a step of {carts} carts: {times[0] * 1e3:.0f} us in eager mode, {times[1] * 1e3:.0f} us compiled")
    return {"apart": apart, "first": scores[0], "last": scores[-1], "eager_ms": times[0], "compiled_ms": times[1]}


if __name__ == "__main__":
    main()
