"""torch.istft in the graph, and what it refuses and warns of."""

import pytest
import torch

from dynajit.testing import assert_same


@pytest.mark.parametrize("onesided", [None, True, False])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("n_fft", "hop", "width", "center"), [(16, None, None, True), (15, 4, 12, True), (15, 4, None, False)]
)
def test_there_and_back(
    n_fft: int, hop: int | None, width: int | None, center: bool, normalized: bool, onesided: bool | None
) -> None:
    options = {"center": center, "normalized": normalized, "onesided": onesided}

    def fn(x: torch.Tensor, window: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = torch.stft(x, n_fft, hop, width, window, return_complex=True, **options)
        back = torch.istft(parts, n_fft, hop, width, window, **options)
        return back, parts.istft(n_fft, hop, width, window, length=20, **options)

    window = torch.hann_window(width or n_fft) + 0.1
    assert_same(fn, torch.randn(2, 64), window, graphs=1, breaks=0)
    assert_same(fn, torch.randn(64, requires_grad=True), window, then=[(torch.randn(96), window)], breaks=0)


def test_complex_signals() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.istft(input=x, n_fft=16, window=torch.ones(16), onesided=False, return_complex=True)

    assert_same(fn, torch.randn(16, 5, dtype=torch.complex64), graphs=1, breaks=0)


def test_windows_that_leave_gaps_raise() -> None:
    windows = torch.zeros(16), torch.ones(16)
    call = torch.Tensor.istft
    for window in (windows, windows[::-1]):
        more = [(torch.randn(9, 5, dtype=torch.complex64), 16, None, None, window[1])]
        assert_same(call, torch.randn(9, 5, dtype=torch.complex64), 16, None, None, window[0], then=more)


def test_what_torch_refuses_it_refuses() -> None:
    window = torch.ones(16)
    assert_same(lambda x: torch.istft(x, 16, window=window), torch.randn(8, 5, dtype=torch.complex64))
    assert_same(lambda x: torch.istft(x, 16, window=window), torch.randn(9, 5))
    assert_same(lambda x: torch.istft(x, 16, 17, window=window), torch.randn(9, 5, dtype=torch.complex64))
    assert_same(lambda x: torch.istft(x), torch.randn(9, 5, dtype=torch.complex64))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_it_warns_of_is_called() -> None:
    assert_same(lambda x: torch.istft(x, 16, length=500), torch.randn(9, 5, dtype=torch.complex64), breaks=1)
