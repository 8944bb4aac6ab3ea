"""What the programs of clients.py have in common: their table, and small helpers.

A client is a function that takes `compile` (a compiler, or one that gives eager back) and returns what is called
repeatedly: `call`, or `(call, module)` where the module's parameters are compared after some calls. What `call` returns
is compared too: tensors, numbers, and containers of them. A package that is not there raises ModuleNotFoundError.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Compile = Callable[[Any], Any]
Made = Callable[[], Any] | tuple[Callable[[], Any], nn.Module]
CLIENTS: dict[str, tuple[str, Callable[[Compile], Made]]] = {}


def client(package: str, what: str) -> Callable[[Callable[[Compile], Made]], Callable[[Compile], Made]]:
    """Add a program of a package; `what` says which part of the package it uses."""

    def add(make: Callable[[Compile], Made]) -> Callable[[Compile], Made]:
        name = f"{package}: {what}"
        assert name not in CLIENTS, name
        CLIENTS[name] = (package, make)
        return make

    return add


def inferring(run: Callable[[], Any]) -> Callable[[], Any]:
    """`run` without gradients."""

    def call() -> Any:
        with torch.no_grad():
            return run()

    return call


def training(model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer | None = None) -> Made:
    """One step of training a call: the loss, backward, and the optimizer's step."""
    chosen = optimizer or torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05)

    def call() -> float:
        chosen.zero_grad()
        value = loss()
        value.backward()
        chosen.step()
        return value.item()

    return call, model


def small_gpt2(**changes: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    known = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 211, "n_positions": 128}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(**{**known, **drops, **changes}))


def small_llama(**changes: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    known = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    sizes = {"intermediate_size": 128, "vocab_size": 211, "max_position_embeddings": 128}
    return LlamaForCausalLM(LlamaConfig(**{**known, **sizes, **changes}))


def words(*shape: int, vocabulary: int = 211) -> Tensor:
    """Token numbers, none of the special ones."""
    return torch.randint(5, vocabulary, shape)


def small_tokenizer() -> Any:
    """A tokenizer of words `w0` ... `w199`, made here."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", "[CLS]", "[SEP]"]
    known = {word: number for number, word in enumerate([*special, *(f"w{i}" for i in range(200))])}
    plain = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="[PAD]",
        bos_token="[BOS]",
        eos_token="[EOS]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
