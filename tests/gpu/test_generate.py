"""`generate` of transformers on a GPU: eager's tokens, nothing compiled for a prompt of a third length."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the models are transformers'")

import dynajit  # noqa: E402
from dynajit.runtime import cuda_graphs  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

WORDS = 128
SMALL: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
ENDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
T = transformers
# family -> its small model
MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, **ENDS)),
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SMALL, **HEADS, **ENDS)),
    "qwen2": lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**SMALL, **HEADS, **ENDS)),
    "gemma": lambda: T.GemmaForCausalLM(T.GemmaConfig(**SMALL, **HEADS, **ENDS, head_dim=16)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**SMALL, **HEADS, **ENDS)),
    "mixtral": lambda: T.MixtralForCausalLM(T.MixtralConfig(**SMALL, **HEADS, **ENDS, num_local_experts=4)),
    "t5": lambda: T.T5ForConditionalGeneration(
        T.T5Config(vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
    ),
    "bart": lambda: T.BartForConditionalGeneration(
        T.BartConfig(
            **{f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _BART.items()},
            vocab_size=WORDS,
            d_model=64,
            forced_eos_token_id=None,
            decoder_start_token_id=1,
            **ENDS,
        )
    ),
}
_BART = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
CACHES: dict[str, dict[str, Any]] = {"dynamic": {}, "static": {"cache_implementation": "static"}}


def family(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().to("cuda").eval()
    model.generation_config.eos_token_id = None
    return model


def words(length: int, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(2, WORDS, (batch, length), generator=generator).cuda()


def generate(model: Any, ids: torch.Tensor, **given: Any) -> torch.Tensor:
    given = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "disable_compile": True, **given}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **given)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_eagers_at_every_length(name: str, cache: str, mode: str | None) -> None:
    model = family(name)
    eager = model.forward
    expected = {n: generate(model, words(n), **CACHES[cache]) for n in (5, 9, 13, 14)}
    model.forward = dynajit.compile(eager, mode=mode)
    for n in (5, 9, 5):
        assert torch.equal(generate(model, words(n), **CACHES[cache]), expected[n])
    before = dynajit.counters["frames"]["total"]
    for n in (13, 14, 9, 13, 13):
        assert torch.equal(generate(model, words(n), **CACHES[cache]), expected[n])
    assert dynajit.counters["frames"]["total"] == before, dynajit.counters["recompiles"]
    assert not dynajit.counters["graph_breaks"] or name in ("mixtral", "t5", "bart")


@pytest.mark.parametrize("given", [{"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=["beams", "sampling"])
def test_beams_and_samples_are_eagers(given: dict[str, Any]) -> None:
    model = family("llama")
    expected = {}
    for n in (5, 8):
        torch.manual_seed(n)
        expected[n] = generate(model, words(n, 2), **given)
    model.forward = dynajit.compile(model.forward)
    for n in (5, 8, 5, 8):
        torch.manual_seed(n)
        assert torch.equal(generate(model, words(n, 2), **given), expected[n])


TOO_LONG = """
import sys, torch, transformers, dynajit
sys.path.insert(0, {folder!r})
import test_generate as tests
model = tests.family("llama")
cache = transformers.StaticCache(config=model.config, max_cache_len=8)
if {compiled}:
    model.forward = dynajit.compile(model.forward)
with torch.no_grad():
    model(tests.words(12), past_key_values=cache, use_cache=True)
torch.cuda.synchronize()
"""


def test_a_prompt_longer_than_the_static_cache_is_eagers_error() -> None:
    """In processes of their own: the GPU is of no use to one after that."""
    ends = []
    for compiled in (False, True):
        text = TOO_LONG.format(folder=str(Path(__file__).parent), compiled=compiled)
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        ends.append((done.returncode, "device-side assert" in done.stderr))
    assert ends == [(1, True)] * 2


def test_half_of_a_model_on_the_cpu() -> None:
    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(16, 16).cuda(), torch.nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)).cpu()).cuda() * 2

    model = Half()
    compiled = dynajit.compile(model)
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            for rows in (3, 5, 5, 7):
                x = torch.randn(rows, 16, device="cuda")
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_recordings_of_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are called often are recorded, also after others were; numbers among the results are of this call."""
    monkeypatch.setattr(cuda_graphs, "MAX_SIZES", 2)
    made: list[Any] = []
    original = cuda_graphs._RecordedBySize.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        made.append(self)

    monkeypatch.setattr(cuda_graphs._RecordedBySize, "__init__", init)

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = torch.softmax(x @ w, -1)
        return y, y.sum(0), x.shape[0] * 3

    compiled = dynajit.compile(fn, mode="reduce-overhead", dynamic=True, fullgraph=True)
    w = torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        for rows in (3, 3, 3, 5, 5, 5, 7, 7, 7, 7, 9, 11, 7, 7, 3, 5):
            x = torch.randn(rows, 64, device="cuda")
            torch.testing.assert_close(compiled(x, w), fn(x, w), rtol=1e-4, atol=1e-4)
    (recorded,) = made
    assert len(recorded.made) == 2
    assert recorded.call.plan.kernels
    (seven,) = [one for key, one in recorded.made.items() if 7 in key]
    assert seven.graphs and not seven.failed


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_training_with_batches_of_varying_length(mode: str | None) -> None:
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
    compiled = dynajit.compile(model, mode=mode)
    before = 0
    for step, rows in enumerate((7, 12, 9, 33, 7, 7, 7, 12, 12, 12, 9)):
        x, y = torch.randn(rows, 32, device="cuda"), torch.randint(0, 8, (rows,), device="cuda")
        gradients = []
        for one in (compiled, model):
            model.zero_grad()
            torch.nn.functional.cross_entropy(one(x), y).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
        if step == 1:
            before = dynajit.counters["frames"]["total"]
    assert dynajit.counters["frames"]["total"] == before


def test_what_a_device_is_ends_no_graph() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        major, minor = torch.cuda.get_device_capability(x.device)
        properties = torch.cuda.get_device_properties(x.device)
        if major >= 8 and torch.cuda.is_bf16_supported() and torch.cuda.current_device() == x.device.index:
            x = x * properties.multi_processor_count
        if "NVIDIA" in torch.cuda.get_device_name() and torch.backends.cuda.matmul.allow_tf32:
            x = x + 1
        return x + minor + torch.cuda.device_count() + torch.cuda.get_device_properties(0).total_memory % 7

    x = torch.randn(8, device="cuda")
    compiled = dynajit.compile(fn, fullgraph=True)
    for allowed in (True, False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        try:
            torch.testing.assert_close(compiled(x), fn(x))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
