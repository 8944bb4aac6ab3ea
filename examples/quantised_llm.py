"""Generate text with a quantised language model on a CPU: 8-bit weights, a cache of keys and values, one token a call.

It shows a step of generation as one graph: weights are int8 with a scale for each row, are multiplied as they are
(`torch._weight_int8pack_mm`), and the cache is written in place where a tensor says. The texts are eager's.

The model has the shape of a small Llama, with random weights: what it says has no meaning, what it costs has.

    python examples/quantised_llm.py
"""

import torch
from timing import medians
from torch import Tensor, nn
from torch.nn import functional as F

import dynajit


class Int8Linear(nn.Module):
    """`x @ weight.T` with the weight rounded to 8 bits, a scale for each of its rows."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x.flatten(0, -2), self.weight, self.scale).unflatten(0, x.shape[:-1])


class Layer(nn.Module):
    """One layer on x (1, tokens, width), at `places` (tokens,) of the text, with its own cache."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, heads, length, size))
        self.register_buffer("values", torch.zeros(1, heads, length, size))
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("rotation", torch.stack([angles.cos(), angles.sin()]))

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        cos, sin = self.rotation[:, places]
        even, odd = x.chunk(2, -1)
        return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, places, self.rotate(k, places))
        self.values.index_copy_(2, places, v)
        seen = torch.arange(self.keys.shape[2]) <= places[:, None]
        y = F.scaled_dot_product_attention(self.rotate(q, places), self.keys, self.values, seen)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """Tokens (1, tokens), int64, at `places`, to the logits of the token after the last (1, words)."""

    def __init__(self, width: int, layers: int, words: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, width // 32, length) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, places)
        return self.head(self.norm(x[:, -1]))


def quantise(model: nn.Module) -> None:
    """Put an `Int8Linear` in the place of each linear layer."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, Int8Linear(child))
        else:
            quantise(child)


def generate(step, prompt: Tensor, count: int) -> list[int]:
    """The `count` likeliest tokens after `prompt` (1, tokens)."""
    places, token = torch.arange(prompt.shape[1]), prompt
    text = []
    for _ in range(count):
        token = step(token, places).argmax(-1, keepdim=True)
        places = places[-1:] + 1
        text.append(token.item())
    return text


def main(count: int = 48, width: int = 256, layers: int = 4, words: int = 2000) -> dict[str, float]:
    torch.manual_seed(0)
    model = Llama(width, layers, words, length=128).eval()
    size = sum(p.nbytes for p in model.parameters())
    quantise(model)
    quantised = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    prompt = torch.randint(words, (1, 16))
    step = dynajit.compile(model, fullgraph=True)
    with torch.inference_mode():
        before = dynajit.counters()["unique_graphs"]
        expected, found = generate(model, prompt, count), generate(step, prompt, count)
        compiles = dynajit.counters()["unique_graphs"] - before
        token, places = prompt[:, :1], torch.tensor([20])
        times = medians(lambda: model(token, places), lambda: step(token, places), seconds=count / 20)
    same = sum(a == b for a, b in zip(expected, found))
    print(f"{size / 1e6:.1f} MB of weights, {quantised / 1e6:.1f} MB quantised, with the cache")
    print(f"{same} of {count} tokens are eager's; {compiles} graphs, for the prompt and for a token")
    print(f"{1e3 / times[0]:.0f} tokens a second in eager mode, {1e3 / times[1]:.0f} compiled")
    return {"same": same, "count": count, "compiles": compiles}


if __name__ == "__main__":
    main()
