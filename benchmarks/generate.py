"""Text generation by transformers' `generate`: eager, torch.compile and dynajit in turns, by the wall clock.

    python benchmarks/generate.py [--save] [--layers N] [--width N] [--tokens N] [--rounds N] [--device cpu]

In: transformers, and a GPU (or `--device cpu` with a small shape). A Llama shape with random weights, a batch of one,
`model.forward` compiled. Out: a table of tokens a second for dynamic and static caches (medians over the rounds; all
sides take turns in each), how many variants were compiled, seconds to the first token of a fresh process (`--child`),
of the second prompt length and of the third.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch

import dynajit

CACHES: dict[str, dict[str, Any]] = {"dynamic": {}, "static": {"cache_implementation": "static"}}
# side -> what its forward is of the model's
SIDES: dict[str, Callable[[Any], Any]] = {
    "eager": lambda forward: forward,
    "torch.compile": torch.compile,
    "torch.compile reduce-overhead": lambda forward: torch.compile(forward, mode="reduce-overhead"),
    "dynajit": dynajit.compile,
    "dynajit reduce-overhead": lambda forward: dynajit.compile(forward, mode="reduce-overhead"),
}
PROMPTS = (96, 117, 143)  # lengths


def model_of(arguments: argparse.Namespace) -> Any:
    """The model, in bfloat16 on a GPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    width = arguments.width
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=arguments.layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 256),
        vocab_size=32000,
        max_position_embeddings=2048,
    )
    dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    return LlamaForCausalLM(config).to(arguments.device, dtype).eval()


def prompt(arguments: argparse.Namespace, length: int) -> torch.Tensor:
    """Words from 1 on: 0 would be taken for padding."""
    return torch.randint(1, 32000, (1, length), device=arguments.device)


def seconds(model: Any, words: torch.Tensor, tokens: int, cache: str) -> float:
    """What it takes to generate so many tokens."""
    if words.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    # transformers compiles the forward of static caches itself, by torch.compile, unless it is told not to
    made = model.generate(
        words,
        attention_mask=torch.ones_like(words),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        disable_compile=True,
        **CACHES[cache],
    )
    if words.is_cuda:
        torch.cuda.synchronize()
    assert made.shape[1] == words.shape[1] + tokens
    return time.perf_counter() - start


def child(arguments: argparse.Namespace) -> dict[str, Any]:
    """In a fresh process: the first token of the first prompt, and of prompts of other lengths."""
    model = model_of(arguments)
    words = [prompt(arguments, length) for length in PROMPTS]
    seconds(model, words[0], 2, arguments.cache)  # libraries get ready
    model.forward = SIDES[arguments.side](model.forward)
    first = [seconds(model, each, 1, arguments.cache) for each in words]
    decoding = seconds(model, words[0], 4, arguments.cache)
    return {"first": first, "decoding": decoding}


def tokens_per_second(arguments: argparse.Namespace, model: Any, cache: str) -> dict[str, Any]:
    """Rates of the sides, and what dynajit compiled for them."""
    eager = model.forward
    words = prompt(arguments, PROMPTS[0])
    rates: dict[str, list[float]] = {name: [] for name in arguments.sides}
    found: dict[str, Any] = {}
    forwards = {}
    for name in arguments.sides:
        print(f"{cache} cache, {name} ...", file=sys.stderr, flush=True)
        forwards[name] = model.forward = SIDES[name](eager)
        before = dynajit.counters["frames"]["ok"]
        start = time.perf_counter()
        for _ in range(4):  # sizes that vary are compiled at the second, recorded at the third
            seconds(model, words, arguments.tokens, cache)
        found[name] = {"warm-up": time.perf_counter() - start, "compiled": dynajit.counters["frames"]["ok"] - before}
    for _ in range(arguments.rounds):
        for name in arguments.sides:
            model.forward = forwards[name]
            rates[name].append(arguments.tokens / seconds(model, words, arguments.tokens, cache))
    model.forward = eager
    for name, rate in rates.items():
        found[name]["rate"] = statistics.median(rate)
    return found


def body(arguments: argparse.Namespace) -> str:
    """The tables."""
    model = model_of(arguments)
    rows = sbs.Table(
        ("cache", "side", "tokens/s", "of eager", "warm-up s", "frames compiled"), "dynamic", max(SIDES, key=len)
    )
    with torch.no_grad():
        for cache in arguments.caches:
            found = tokens_per_second(arguments, model, cache)
            for name, one in found.items():
                share = f"{one['rate'] / found['eager']['rate']:.2f}" if "eager" in found else ""
                compiled = str(one["compiled"]) if name.startswith("dynajit") else ""
                print(rows.add((cache, name, f"{one['rate']:.0f}", share, f"{one['warm-up']:.1f}", compiled)))
    text = str(rows)
    if not arguments.first:
        return text
    firsts = sbs.Table(
        ("cache", "side", "first token s", "second length s", "third length s", "first decoding s"),
        "dynamic",
        max(SIDES, key=len),
    )
    shape = ["--layers", str(arguments.layers), "--width", str(arguments.width), "--device", arguments.device]
    for cache in arguments.caches:
        for name in arguments.sides:
            if name == "eager":
                continue
            with tempfile.TemporaryDirectory() as folder:
                given = [*shape, "--child", "--side", name, "--cache", cache]
                try:
                    one = sbs.run_child(__file__, given, Path(folder), timeout=400)
                    figures = [f"{value:.2f}" for value in (*one["first"], one["decoding"])]
                except sbs.ChildFailed as error:
                    figures = [str(error), "", "", ""]
            print(firsts.add((cache, name, *figures)))
    return f"{text}\n\nFrom the call of `generate`, each row a fresh process with empty caches:\n\n{firsts}"


def main() -> None:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--caches", nargs="*", default=list(CACHES), choices=list(CACHES))
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--no-first", dest="first", action="store_false", help="no fresh processes")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results/generate.md")
    arguments = parser.parse_args()
    if arguments.child:
        with torch.no_grad():
            sbs.finish_child(arguments.out, child(arguments))
        return
    text = body(arguments)
    if arguments.save:
        sbs.save("generate", "Text generation", text, "python benchmarks/generate.py --save")


if __name__ == "__main__":
    main()
