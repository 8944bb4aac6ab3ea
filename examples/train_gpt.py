"""Train a small GPT on text, letter by letter: the same model, seeds and batches in eager mode and compiled.

It shows that one decorator is all there is to do, that the losses are eager's at each step, and what a step costs.

    python examples/train_gpt.py
"""

from collections.abc import Callable
from pathlib import Path

import torch
from timing import medians
from torch import Tensor, nn
from torch.nn import functional as F

import dynajit

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "tour.md").read_text()
LETTERS = sorted(set(TEXT))
DATA = torch.tensor([LETTERS.index(letter) for letter in TEXT])


class Block(nn.Module):
    """Attention and a two-layer network, each behind a norm and added to what came in: (batch, length, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Letters (batch, length), int64, to the logits of each next letter (batch, length, letters)."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads=4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(LETTERS))

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letters(letters) + self.places(torch.arange(letters.shape[1], device=letters.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(count: int, batch: int, length: int) -> list[Tensor]:
    """`count` times `batch` pieces of the text, each of `length` letters and the one after."""
    starts = torch.randint(len(DATA) - length - 1, (count, batch, 1), generator=torch.Generator().manual_seed(1))
    return list(DATA[starts + torch.arange(length + 1)])


def trainer(model: nn.Module) -> Callable[[Tensor], float]:
    """A step of training `model`: takes a batch, returns its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(letters: Tensor) -> float:
        loss = F.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main(steps: int = 100, batch: int = 16, length: int = 64, width: int = 64, layers: int = 3) -> dict[str, float]:
    torch.manual_seed(0)
    eager = GPT(width, layers, length)
    compiled = GPT(width, layers, length)
    compiled.load_state_dict(eager.state_dict())
    step_eager, step_compiled = trainer(eager), trainer(dynajit.compile(compiled, fullgraph=True))

    apart = 0.0
    for number, letters in enumerate(batches(steps, batch, length)):
        losses = step_eager(letters), step_compiled(letters)
        apart = max(apart, abs(losses[0] - losses[1]))
        if number % max(steps // 5, 1) == 0:
            print(f"step {number:3}: loss {losses[0]:.4f} in eager mode, {losses[1]:.4f} compiled")

    letters = batches(1, batch, length)[0]
    times = medians(lambda: step_eager(letters), lambda: step_compiled(letters), seconds=steps / 30)
    print(f"a step: {times[0]:.1f} ms in eager mode, {times[1]:.1f} ms compiled; losses at most {apart:.1e} apart")
    return {"apart": apart, "loss": losses[1], "eager_ms": times[0], "compiled_ms": times[1]}


if __name__ == "__main__":
    main()
