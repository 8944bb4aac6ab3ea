"""torch's inverse short-time Fourier transform in torch's operations, in the order in which its C++ calls them.

In: arguments that it accepts. Out: the signal; a check in the graph takes the place of its look at the sum of
the windows.
"""

from __future__ import annotations

import torch

_aten = torch.ops.aten
_LEAST_SUM = 1e-11


def istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """`torch.istft`, of arguments that it accepts."""
    spectrum = input
    hop_length = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    onesided = spectrum.size(-2) != n_fft if onesided is None else onesided
    frames = spectrum.size(-1)
    samples = n_fft + hop_length * (frames - 1)
    batched = spectrum if spectrum.dim() == 3 else spectrum.unsqueeze(0)
    if window is None:
        window = torch.ones(win_length, dtype=torch.view_as_real(spectrum).dtype, device=spectrum.device)
    if win_length != n_fft:
        left = (n_fft - win_length) // 2
        window = _aten.constant_pad_nd(window, [left, n_fft - win_length - left], 0)
    turned = batched.transpose(1, 2)
    norm = 1 if normalized else 2  # as torch's C++ counts them: by the root of n, by n
    if return_complex:
        parts = _aten._fft_c2c(turned, [2], norm, False)
    else:
        if not onesided:
            turned = turned.narrow(-1, 0, n_fft // 2 + 1)
        parts = _aten._fft_c2r(turned, [2], norm, n_fft)
    parts = parts * window.view([1, 1, n_fft])
    signal = _aten.unfold_backward(parts, [parts.size(0), samples], 1, n_fft, hop_length)
    windows = window.pow(2).expand([1, frames, n_fft])
    envelope = _aten.unfold_backward(windows, [1, samples], 1, n_fft, hop_length)
    start = n_fft // 2 if center else 0
    end = samples - n_fft // 2 if center else samples
    if length is not None:
        end = start + length
    signal, envelope = signal[:, start:end], envelope[:, start:end]
    torch._assert_async(envelope.abs().min().ge(_LEAST_SUM))
    signal = signal / envelope
    return signal.squeeze(0) if spectrum.dim() == 2 else signal
