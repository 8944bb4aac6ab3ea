"""Fine-tune a frozen model by LoRA: two thin matrices beside each linear layer are all that learns.

It shows that frozen and learning parameters mix in a compiled step, that only the thin ones get gradients, and that
merging them into the weights, which changes parameters in place, needs no new compile to be seen.

LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.

    python examples/lora.py
"""

import torch
from timing import medians
from torch import Tensor, nn

import dynajit


class LoRA(nn.Module):
    """`linear(x) + scale * x @ a.T @ b.T`, where `linear` is frozen, and `a` and `b` have `rank` rows and columns."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float = 2.0) -> None:
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), scale
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.scale * (x @ self.a.T @ self.b.T)

    @torch.no_grad()
    def merge(self) -> None:
        """Add the product to the frozen weight; the layer computes the same as before."""
        self.linear.weight += self.scale * (self.b @ self.a)
        self.b.zero_()


def adapt(model: nn.Sequential, rank: int) -> list[LoRA]:
    """Put a `LoRA` in the place of each linear layer of `model`; returns them."""
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear):
            setattr(model, name, LoRA(layer, rank))
    return [layer for layer in model if isinstance(layer, LoRA)]


def main(steps: int = 200, rows: int = 512, width: int = 256, rank: int = 4) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8))
    adapters = adapt(model, rank)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-2)
    x = torch.randn(rows, width)
    wanted = (x[:, :8] * 2).sin()

    def loss_of(module: nn.Module) -> Tensor:
        return (module(x) - wanted).square().mean()

    def step(module: nn.Module) -> float:
        optimizer.zero_grad()
        loss = loss_of(module)
        loss.backward()
        optimizer.step()
        return loss.item()

    compiled = dynajit.compile(model, fullgraph=True)
    first = step(compiled)
    for _ in range(steps):
        last = step(compiled)
    optimizer.zero_grad()
    loss_of(compiled).backward()
    gradients = [p.grad for p in learning]
    optimizer.zero_grad()
    loss_of(model).backward()
    apart = max((p.grad - g).abs().max().item() for p, g in zip(learning, gradients))
    print(f"{sum(p.numel() for p in learning)} of {sum(p.numel() for p in model.parameters())} numbers learn")
    print(f"loss {first:.3f} at first, {last:.3f} after {steps} steps; gradients {apart:.1e} from eager's")

    with torch.no_grad():
        before = compiled(x)
        compiles = dynajit.counters()["unique_graphs"]
        for adapter in adapters:
            adapter.merge()
        merged = (compiled(x) - before).abs().max().item()
        again = dynajit.counters()["unique_graphs"] - compiles
    print(f"merged: results {merged:.1e} from those before, {again} graphs compiled for it")

    times = medians(lambda: step(model), lambda: step(compiled), seconds=steps / 100)
    print(f"a step: {times[0]:.2f} ms in eager mode, {times[1]:.2f} ms compiled")
    return {"apart": apart, "first": first, "last": last, "merged": merged, "again": again}


if __name__ == "__main__":
    main()
