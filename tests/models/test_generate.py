"""Text generation by transformers: the tokens that eager code gives, and variants for each role (prefill, decode) that
further prompt lengths share."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.report import records

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
LAYERS = {"vocab_size": 67, "num_hidden_layers": 2, "max_position_embeddings": 64}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
SEQUENCES = {"vocab_size": 67, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_start_token_id": 2}
MODELS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"vocab_size": 67, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, **TOKENS},
    "LlamaForCausalLM": {**SIZES, **LAYERS, **TOKENS},
    "Qwen2ForCausalLM": {**SIZES, **LAYERS, **TOKENS},
    "GemmaForCausalLM": {**SIZES, **LAYERS, **TOKENS},
    "MistralForCausalLM": {**SIZES, **LAYERS, **TOKENS, "sliding_window": None},
    "MixtralForCausalLM": {**SIZES, **LAYERS, **TOKENS, "num_local_experts": 2},
    "T5ForConditionalGeneration": {
        "vocab_size": 67,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
        **TOKENS,
        "decoder_start_token_id": 0,
    },
    "BartForConditionalGeneration": {**SEQUENCES, **HEADS, **TOKENS, "max_position_embeddings": 64},
    "WhisperForConditionalGeneration": {
        **SEQUENCES,
        **HEADS,
        **TOKENS,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
        "num_mel_bins": 4,
        "max_source_positions": 12,
        "max_target_positions": 32,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    },
}
GREEDY = {"do_sample": False}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "sampling": {"do_sample": True, "top_k": 7},
    "beams": {"num_beams": 2, **GREEDY},
    "static cache": {"cache_implementation": "static", **GREEDY},
    "mask": {"mask": True, **GREEDY},
    "static cache and mask": {"cache_implementation": "static", "mask": True, **GREEDY},
    "assisted": {"assistant_model": True, **GREEDY},
    "no cache": {"use_cache": False, **GREEDY},
}
# every family in two ways, and the one that most others follow in all of them
CASES = [
    *(("LlamaForCausalLM", way) for way in WAYS),
    *((name, way) for name in MODELS for way in ("greedy", "static cache") if name != "LlamaForCausalLM"),
    ("GPT2LMHeadModel", "sampling"),
    ("GPT2LMHeadModel", "beams"),
    ("T5ForConditionalGeneration", "beams"),
]
# Mixtral's experts are chosen by what tensors hold, which may raise in a `with` block, behind writes into the cache
IN_PARTS = {("MixtralForCausalLM", "static cache")}
# a decoder that begins with one token has a cache of one token, whose size broadcasts
DECODERS = {"T5ForConditionalGeneration", "BartForConditionalGeneration", "WhisperForConditionalGeneration"}


@functools.cache
def models(name: str) -> tuple[Any, Any, Any]:
    """Three models with equal weights: one to be compiled, one that stays as it is, one to assist."""
    kind = getattr(transformers, name)
    made = []
    for _ in range(3):
        torch.manual_seed(0)
        made.append(kind(kind.config_class(**MODELS[name])).eval())
    return made[0], made[1], made[2]


def prompt(name: str, length: int, rows: int) -> Tensor:
    draw = torch.Generator().manual_seed(length)
    if name.startswith("Whisper"):
        return torch.randn(rows, MODELS[name]["num_mel_bins"], 24, generator=draw)
    return torch.randint(3, 67, (rows, length), generator=draw)


def generated(model: Any, ids: Tensor, way: dict[str, Any], assistant: Any) -> Tensor:
    options = dict(way)
    if options.pop("mask", False):
        options["attention_mask"] = torch.ones_like(ids)
        options["attention_mask"][0, :2] = 0
    if options.get("assistant_model"):
        options["assistant_model"] = assistant
    torch.manual_seed(1)
    found: Tensor = model.generate(ids, max_new_tokens=4, **options)
    return found


@pytest.mark.parametrize(("name", "way"), CASES)
def test_tokens_are_eagers_and_lengths_share_variants(name: str, way: str) -> None:
    dynajit.reset()
    compiled, eager, assistant = models(name)
    rows = 1 if way == "assisted" else 2
    counts, seen = [], []
    original = compiled.forward
    compiled.forward = dynajit.compile(original, backend="eager")
    try:
        for length in (5, 7, 9, 6, 12):
            ids = prompt(name, length, rows)
            new: list[Any] = []
            with records.listen(new.append):
                tokens = generated(compiled, ids, WAYS[way], assistant)
            assert torch.equal(tokens, generated(eager, ids, WAYS[way], assistant))
            counts.append(len(new))
            seen.extend(new)
    finally:
        compiled.forward = original
    if (name, way) in IN_PARTS:
        assert not any(counts[3:]), counts
        return
    assert not any(counts[2:]), counts
    assert not any(record.breaks for record in seen)
    roles = 2 + (name in DECODERS)  # the prompt, and one token after the other
    whole = [record for record in seen if re.match(r"\[0/", record.compile_id)]
    assert len(whole) <= 2 * roles, [record.recompile_reason for record in whole]


def test_a_compiled_model_generates() -> None:
    dynajit.reset()
    kind = transformers.LlamaForCausalLM
    torch.manual_seed(0)
    model = kind(kind.config_class(**MODELS["LlamaForCausalLM"])).eval()
    compiled = dynajit.compile(model, backend="codegen")
    for options in (GREEDY, {"cache_implementation": "static", **GREEDY}):
        counts = []
        for length in (5, 7, 9, 6):
            ids = prompt("LlamaForCausalLM", length, 2)
            seen: list[Any] = []
            with records.listen(seen.append):
                tokens = compiled.generate(ids, max_new_tokens=4, **options)
            assert torch.equal(tokens, model.generate(ids, max_new_tokens=4, **options))
            counts.append(len(seen))
        assert not any(counts[2:]), counts


def test_sets_of_keyword_arguments_have_variants_of_their_own() -> None:
    """As many sets as there are optional arguments, each with sizes that vary: none uses up another one's limit."""

    def forward(x: Tensor, **optional: Tensor) -> Tensor:
        for name, value in optional.items():
            x = x + value * len(name)
        return x

    compiled = dynajit.compile(forward, backend="eager")
    sets: list[tuple[str, ...]] = [(), ("mask",), ("ids",), ("mask", "ids"), ("ids", "mask"), ("cache", "mask")]
    counts = []
    for size in range(2, 9):
        for names in sets:
            given = {name: torch.full((size,), float(at)) for at, name in enumerate(names)}
            seen: list[Any] = []
            with records.listen(seen.append), warnings.catch_warnings():
                warnings.simplefilter("error")  # that of the limit
                assert torch.equal(compiled(torch.ones(size), **given), forward(torch.ones(size), **given))
            counts.append(len(seen))
    assert sum(counts) <= 2 * len(sets) and not any(counts[2 * len(sets) :])
