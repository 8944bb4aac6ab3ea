"""Complex numbers written into a part of zeros are padded by one call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from memory_in_use import most_in_use
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.linspace(0, 40, 6 * 90).sin().view(6, 90)
Z = torch.complex(X, X.cos())


def spectrum(x: Tensor) -> Tensor:
    out = torch.zeros(6, 200, dtype=torch.complex64)
    out[:, :46] = torch.fft.rfft(x) * 2
    return torch.fft.irfft(out)


def corner(z: Tensor) -> Tensor:
    out = z.new_zeros(9, 3, 120)
    out[2:8, 1, -100:-10] = z
    return out


def both_ends(z: Tensor) -> Tensor:
    out = torch.zeros(6, 200, dtype=z.dtype)
    out[:, :90] = z
    out[:, -90:] = z.conj()
    return out


def row_for_all(z: Tensor) -> Tensor:
    out = torch.zeros(6, 200, dtype=z.dtype)
    out[1:5, 20:110] = z[0]
    return out


def ones(z: Tensor) -> Tensor:
    out = torch.full((6, 200), 1j)
    out[:, 3:93] = z
    return out


def every_other(z: Tensor) -> Tensor:
    out = torch.zeros(12, 90, dtype=z.dtype)
    out[::2] = z
    return out


def other_dtype(z: Tensor) -> Tensor:
    out = torch.zeros(6, 200, dtype=torch.complex128)
    out[:, :90] = z
    return out


def nothing(z: Tensor) -> Tensor:
    out = torch.zeros(6, 200, dtype=z.dtype)
    out[:, 7:3] = z[:, :0]
    return out


def read_beside(z: Tensor) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros(6, 200, dtype=z.dtype)
    out = zeros.clone()
    out[:, 4:94] = z
    return out, zeros + 1


@pytest.mark.parametrize("fn", [corner, both_ends, row_for_all, ones, every_other, other_dtype, nothing, read_beside])
def test_of_complex_numbers(fn: Callable[[Tensor], object]) -> None:
    assert_same(fn, Z, graphs=1, breaks=0)


@pytest.mark.parametrize("fn", [corner, both_ends, row_for_all])
def test_gradients(fn: Callable[[Tensor], Tensor]) -> None:
    def gradient(z: Tensor) -> Tensor:
        return torch.autograd.grad((fn(z).abs() ** 2 * 3).sum(), z)[0]

    leaf = Z.to(torch.complex128).requires_grad_()
    torch.testing.assert_close(dynajit.compile(gradient)(leaf), gradient(leaf))


def test_it_takes_no_more_memory_than_eagerly() -> None:
    large = X.repeat(1, 12)[:, :960]

    def fn(x: Tensor) -> Tensor:
        out = torch.zeros(6, 20000, dtype=torch.complex64)
        out[:, :481] = torch.fft.rfft(x)
        return out

    compiled = dynajit.compile(fn)
    assert torch.equal(compiled(large), fn(large))
    assert most_in_use(compiled, large) <= most_in_use(fn, large)


def test_the_gradient_of_half_a_spectrum() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.autograd.grad(torch.fft.rfft(x, n=180).abs().sum(), x)[0]

    leaf = X.clone().requires_grad_()
    compiled = dynajit.compile(fn)
    torch.testing.assert_close(compiled(leaf), fn(leaf))
    assert most_in_use(compiled, leaf) <= most_in_use(fn, leaf)


def test_a_spectrum_is_filled() -> None:
    assert_same(spectrum, X, graphs=1, breaks=0)
