"""Whole models on an NVIDIA GPU: eager, torch.compile and dynajit in turns, by the wall clock.

In: a machine with a GPU and Triton. Out: a table of milliseconds a call (medians), cold compile times and the error
against eager; `--save` writes it to benchmarks/results/. One more model: a function behind `@model`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dynajit  # noqa: E402

# name -> () -> (module, inputs, training step?)
MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], bool]]] = {}
BF = torch.bfloat16


def model(name: str) -> Callable[[Any], Any]:
    def register(make: Any) -> Any:
        MODELS[name] = make
        return make

    return register


@model("12 x (Linear 64, LayerNorm, GELU), batch 32")
def small_layers() -> Any:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(12)]
    return nn.Sequential(*layers).cuda(), (torch.randn(32, 64, device="cuda"),), False


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, cache: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * kv_heads * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.register_buffer("k_cache", torch.zeros(1, kv_heads, cache, self.size))
        self.register_buffer("v_cache", torch.zeros(1, kv_heads, cache, self.size))

    def forward(
        self, x: torch.Tensor, at: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> Any:
        y = self.norm1(x)
        batch, length, width = y.shape
        q = self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(batch, length, 2, self.kv_heads, self.size).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self.k_cache.index_copy_(2, at, k)
        self.v_cache.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, self.k_cache, self.v_cache, attn_mask=mask, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Llama(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, hidden: int, cache: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv_heads, hidden, cache) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        angles = torch.arange(cache)[:, None] / 10_000 ** (torch.arange(0, width // heads, 2) / (width // heads))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))
        self.register_buffer("places", torch.arange(cache), persistent=False)

    def forward(self, words: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        cos, sin = self.cos[at], self.sin[at]
        mask = self.places[None, :] <= at[:, None]
        for layer in self.layers:
            x = layer(x, at, cos, sin, mask)
        return self.head(self.norm(x[:, -1:]))


def llama(words: int, cache: int, at: torch.Tensor) -> Any:
    module = Llama(16, 2048, 32, 8, 8192, cache, 32_000).to("cuda", BF).eval()
    return module, (torch.randint(32_000, (1, words), device="cuda"), at), False


@model("decoding step, 16-layer Llama shape, cache 1024, bf16")
def decode() -> Any:
    return llama(1, 1024, torch.tensor([512], device="cuda"))


@model("prefill of the same, 2048 tokens")
def prefill() -> Any:
    return llama(2048, 2048, torch.arange(2048, device="cuda"))


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, causal: bool = False) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh" if causal else "none"))


class GPT(nn.Module):
    def __init__(self, layers: int = 24, width: int = 1024, heads: int = 16, words: int = 50257) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(GPTBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x, True)
        return self.head(self.norm(x))


@model("GPT-2 medium, fp16, 4x1024")
def gpt() -> Any:
    return GPT().to("cuda", torch.float16).eval(), (torch.randint(50257, (4, 1024), device="cuda"),), False


class ViT(nn.Module):
    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.blocks = nn.ModuleList(GPTBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x, False)
        return self.head(self.norm(x)[:, 0])


@model("ViT-B/16 bf16, batch 64")
def vit() -> Any:
    return ViT().to("cuda", BF).eval(), (torch.randn(64, 3, 224, 224, device="cuda", dtype=BF),), False


def resnet(batch: int, dtype: torch.dtype, train: bool) -> Any:
    import torchvision

    module = torchvision.models.resnet50().to("cuda", dtype, memory_format=torch.channels_last).train(train)
    x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    return module, (x,), train


@model("ResNet-50 fp16, batch 128")
def resnet_inference() -> Any:
    return resnet(128, torch.float16, False)


@model("ResNet-50 training step, bf16 autocast, batch 64")
def resnet_training() -> Any:
    return resnet(64, torch.float32, True)


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, 768), nn.Embedding(512, 768)
        self.norm = nn.LayerNorm(768)
        self.blocks = nn.ModuleList(GPTBlock(768, 12) for _ in range(12))
        self.head = nn.Linear(768, 30522)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(words) + self.places(torch.arange(words.shape[1], device=words.device)))
        for block in self.blocks:
            x = block(x, False)
        return self.head(x)


@model("BERT-base training step, bf16 autocast, 32x128")
def bert() -> Any:
    return Bert().cuda(), (torch.randint(30522, (32, 128), device="cuda"),), True


def step_of(module: nn.Module, run: Callable[..., Any], training: bool) -> Callable[..., Any]:
    """One call: inference, or forward, loss, backward."""
    if not training:
        return run

    def step(*inputs: Any) -> torch.Tensor:
        for parameter in module.parameters():
            parameter.grad = None
        with torch.autocast("cuda", BF):
            loss = run(*inputs).float().logsumexp(-1).mean()
        loss.backward()
        return loss.detach()

    return step


def run(name: str, rival: list[str], modes: list[str], rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    module, inputs, training = MODELS[name]()
    row: dict[str, Any] = {"model": name}
    steps: dict[str, Callable[..., Any]] = {"eager": step_of(module, module, training)}
    with torch.set_grad_enabled(training):
        expected = steps["eager"](*inputs).float()
        for mode in modes:
            chosen = None if mode == "default" else mode
            compilers = {"dynajit": dynajit.compile} | ({"torch.compile": torch.compile} if mode in rival else {})
            for compiler, compile_fn in compilers.items():
                column = f"{compiler} {mode}"
                step = step_of(module, compile_fn(module, mode=chosen), training)
                try:
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    step(*inputs)
                    torch.cuda.synchronize()
                    row[f"{column} compile"] = time.perf_counter() - start
                    for _ in range(4):
                        result = step(*inputs).float()
                    row[f"{column} error"] = float((result - expected).norm() / expected.norm())
                    steps[column] = step
                except Exception as failure:
                    row[column] = f"{type(failure).__name__}: {str(failure)[:300]}"
        times: dict[str, list[float]] = {column: [] for column in steps}
        calls = 5 if training else 20
        for _ in range(rounds):
            for column, step in steps.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(calls):
                    step(*inputs)
                torch.cuda.synchronize()
                times[column].append((time.perf_counter() - start) / calls * 1e3)
    for column, found in times.items():
        row[column] = statistics.median(found)
    return row


def table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    lines = ["| model | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        cells = []
        for column in columns:
            value = row.get(column, "")
            text = f"{value:.3f}" if isinstance(value, float) else str(value)[:100]
            if f"{column} compile" in row:
                text += f" (compile {row[f'{column} compile']:.1f} s, error {row.get(f'{column} error', math.nan):.0e})"
            cells.append(text)
        lines.append(f"| {row['model']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rival", action="store_true", help="time torch.compile too")
    parser.add_argument("--modes", default="default,reduce-overhead")
    parser.add_argument("--rival-modes", default="", help="in these modes alone")
    parser.add_argument("--only", default="", help="models whose name contains one of these, as a|b, in this order")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    modes = options.modes.split(",")
    rival = (options.rival_modes.split(",") if options.rival_modes else modes) if options.rival else []
    rows = []
    for name in [name for part in options.only.split("|") for name in MODELS if part in name]:
        try:
            rows.append(run(name, rival, modes, options.rounds))
        except Exception as failure:
            rows.append({"model": name, "eager": f"{type(failure).__name__}: {failure}"})
        print(rows[-1], flush=True)
        dynajit.reset()
        if options.rival:
            torch.compiler.reset()
        torch.cuda.empty_cache()
    columns = ["eager"] + [f"{c} {mode}" for mode in modes for c in ("torch.compile", "dynajit")]
    text = table(rows, [name for name in columns if not name.startswith("torch") or name.split(" ", 1)[1] in rival])
    head = f"{torch.cuda.get_device_name()}, torch {torch.__version__}; milliseconds a call"
    print(f"{head}\n\n{text}")
    if options.save:
        (ROOT / "benchmarks" / "results" / "models_gpu.md").write_text(f"# Models on a GPU\n\n{head}\n\n{text}\n")


if __name__ == "__main__":
    main()
