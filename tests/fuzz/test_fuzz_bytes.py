"""A small part of the fuzzing by bytes: what guided runs kept, and some of it changed. `make fuzz-guided` does more."""

from __future__ import annotations

import random
import types
from pathlib import Path

import pytest
import torch
from fuzz_bytes import TARGETS, FromBytes

import dynajit
from dynajit.bytecode import decode

CORPUS = Path(__file__).parent / "corpus"


def inputs(target: str) -> list[bytes]:
    path = CORPUS / f"{target}.txt"
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_kept(target: str) -> None:
    kept = inputs(target)
    assert kept
    for data in kept[:: max(1, len(kept) // 80)]:
        assert TARGETS[target](data) is None, data.hex()


@pytest.mark.parametrize("target", TARGETS)
def test_some_of_it_changed(target: str) -> None:
    rng = random.Random(target)
    kept = inputs(target)
    for _ in range(60):
        data = bytearray(rng.choice(kept) + rng.randbytes(rng.randrange(200)))
        for _ in range(rng.randrange(8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        assert TARGETS[target](bytes(data)) is None, data.hex()


def test_bytes_decide() -> None:
    rng = FromBytes(bytes([3, 200, 0, 1]))
    assert (rng.randrange(4), rng.random()) == (3, 200 / 256)
    assert [rng.choice("abc") for _ in range(4)] == ["a", "b", "a", "a"]


def test_malformed_bytecode_runs_eagerly() -> None:
    """Here its table of handlers is cut short; Python itself never looks."""

    def caught(x: torch.Tensor) -> torch.Tensor:
        try:
            return x + 1
        except ValueError:
            return x

    table = caught.__code__.co_exceptiontable[:-1]
    harmed = types.FunctionType(caught.__code__.replace(co_exceptiontable=table), globals())
    refusal = decode(harmed.__code__).refusal
    assert refusal is not None and "malformed" in refusal
    assert torch.equal(dynajit.compile(harmed, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))
