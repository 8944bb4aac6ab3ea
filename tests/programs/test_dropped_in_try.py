"""Generators that are let go of while they stand in nested `try` blocks: what is around the innermost one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit


def answering(value: Any) -> Iterator[Any]:
    factor: Any = 1
    try:
        while True:
            try:
                sent = yield value * factor
                factor = sent if sent is not None else factor + 1
            except ValueError as error:
                print("thrown", error)
    finally:
        print("closed")


def nested(value: Any) -> Iterator[Any]:
    try:
        try:
            try:
                yield value
            except KeyError:
                print("key")
        except ValueError:
            print("value")
    finally:
        print("closed")


def catching(value: Any) -> Iterator[Any]:
    try:
        try:
            yield value
        except KeyError:
            print("key")
    except ValueError:
        print("value")


@pytest.mark.parametrize("generator", [answering, nested, catching])
def test_what_runs_when_a_generator_is_dropped(
    generator: Callable[..., Iterator[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = next(generator(x))
        print("after")
        return y + 1

    function(torch.ones(2))
    wanted = capsys.readouterr().out
    compiled = dynajit.compile(function, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
        assert capsys.readouterr().out == wanted
