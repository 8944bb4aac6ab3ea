"""Texts of tensors without dimensions: made of what the graph gives, and needed while tracing."""

# ruff: noqa: UP031 - `%` is what is tested

from typing import Any

import numpy as np
import pytest
import torch

from dynajit.testing import assert_same

SPECS = ["", ".3f", ">10.2f", "+.1e", "012.4g", "_<20", "%", "n"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float64])
def test_the_text_of_a_number_breaks_no_graph(spec: str, dtype: torch.dtype) -> None:
    assert_same(lambda x: (format(x.sum(), spec), x + 1), torch.arange(5).to(dtype), graphs=1, breaks=0)


def test_it_is_the_text_of_what_the_number_was() -> None:
    def fn(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        total = x.sum()
        text = f"loss {total:.3f}, {(x > 0).any()}"
        total.add_(1)
        return text + "!", total

    assert_same(fn, torch.randn(4), then=[(torch.randn(4),)], graphs=1, breaks=0)


def test_gradients_are_not_seen() -> None:
    def fn(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        loss = (x * 2).sum()
        return "{:{}}|{}".format(loss, ".2f", loss), loss

    assert_same(fn, torch.randn(4, requires_grad=True), graphs=1, breaks=0)


def test_the_text_is_handed_over_a_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        loss = x.sum()
        print(f"loss {loss:.3f}")
        return loss * 2

    assert_same(fn, torch.randn(4), graphs=2, breaks=1)


def test_what_needs_the_text_ends_the_graph() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        text = f"{x.sum():.0f}"
        return x * {"4": 2, "6": 3}[text] * len(text)

    assert_same(fn, torch.ones(4), then=[(torch.ones(6),)])


@pytest.mark.parametrize("spec", ["d", "c", "q", ">3s"])
def test_what_may_raise_is_left_to_eager(spec: str) -> None:
    assert_same(lambda x: format(x.sum(), spec), torch.ones(4))
    assert_same(lambda x: format(x.sum(), spec), torch.tensor([-5]))


def test_texts_of_other_tensors_are_eagers() -> None:
    def fn(x: torch.Tensor) -> tuple[str, ...]:
        return f"{x}", f"{x.sum()!r}", f"{torch.nn.Parameter(x.sum())}", str(x.sum())

    assert_same(fn, torch.ones(4))
    assert_same(lambda x: torch.vmap(lambda y: y * len(f"{y.dim()}"))(x), torch.ones(4))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_texts_of_numpys_scalars(dtype: type) -> None:
    def fn(a: Any) -> tuple[Any, ...]:
        mean = a.mean()
        text = f"{mean:.3f}|{a[0]}|{a.max()!r}|{a.sum():>12}|{mean!s:>8}"
        a[0] = 9
        return text, str(a[0]), repr(mean), "%s %.2f %r" % (mean, mean, a[1]), a

    assert_same(fn, np.arange(1, 5).astype(dtype), graphs=1, breaks=0)
    assert_same(lambda a: f"{a.sum():d} {a.sum():c}", np.arange(60, 63).astype(dtype))
    assert_same(lambda a: {"3": 1, "3.0": 2}[str(a.sum())], np.arange(3).astype(dtype))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_percent() -> None:
    def fn(x: torch.Tensor) -> tuple[Any, ...]:
        total = x.sum()
        return "%.3f %5d|%s" % (total, total, 3), "%(a)+.1f" % {"a": total}, total

    assert_same(fn, torch.ones(3), graphs=1, breaks=0)
    assert_same(fn, torch.arange(4), graphs=1, breaks=0)
    assert_same(fn, torch.ones(3, requires_grad=True))  # of which torch warns
    assert_same(lambda x: "%x %c" % (x.sum(), x.sum()), torch.arange(10))
    assert_same(lambda x: "%x" % (x.sum(),), torch.ones(60))
    assert_same(lambda x: "%s %.2f" % (x.sum(), x), torch.ones(1))
