"""Random numbers as torch's kernels for GPUs draw them: Philox 4x32 of ten rounds (Salmon et al., 2011).

In:  a GPU, and how many elements there are.
Out: `threads`, `increment` and `dropout_vector`: which of the generator's numbers each element gets from torch's
     kernels; `Draw`, the call that takes so many from torch's generator; `uniform`, the reference of the operation of
     that name.

A thread of torch's kernels draws four numbers of 32 bits at a time. They are a function of the generator's seed, of the
thread, and of how often it has drawn, which starts at a fourth of the generator's offset.
"""

from __future__ import annotations

import functools

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynajit.loopir.index import Index, constant, floordiv, mod

_BLOCK = 256  # threads, in torch's kernels that draw
_MASK = 0xFFFFFFFF
# Where there is no GPU to ask: those of an H200.
_THREADS_AT_ONCE = 132 * 2048
_PROBED = 64


@functools.cache
def _at_once(device: torch.device) -> int:
    if not torch.cuda.is_available():
        return _THREADS_AT_ONCE
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count * (properties.max_threads_per_multi_processor // _BLOCK) * _BLOCK)


def threads(device: torch.device, numel: int) -> int:
    """How many threads torch's kernels have for so many elements."""
    return min(_at_once(device), -(-numel // _BLOCK) * _BLOCK)


def increment(device: torch.device, numel: int) -> int:
    """How far they move the generator's offset."""
    return ((numel - 1) // (threads(device, numel) * 4) + 1) * 4


class Draw:
    """The call that moves the generator of `device` on by `increment`, and gives the state it had: its seed, its
    offset, and two addresses. Where these are not 0, as while a CUDA graph is recorded, what lies there is added."""

    __name__ = "draw"

    def __init__(self, device: torch.device, increment: int) -> None:
        self.device = device
        self.increment = increment

    def __call__(self) -> tuple[torch.Tensor, ...]:
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]
        offset = generator.get_offset()
        generator.set_offset(offset + self.increment)
        return tuple(torch.tensor(number) for number in (generator.initial_seed(), offset, 0, 0))


def philox(seed: int, counter: int, thread: int) -> tuple[int, int, int, int]:
    """Four numbers of 32 bits."""
    a, b, c, d = counter & _MASK, counter >> 32 & _MASK, thread & _MASK, thread >> 32 & _MASK
    first, second = seed & _MASK, seed >> 32 & _MASK
    for _ in range(10):
        one, two = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = two >> 32 ^ b ^ first, two & _MASK, one >> 32 ^ d ^ second, one & _MASK
        first, second = first + 0x9E3779B9 & _MASK, second + 0xBB67AE85 & _MASK
    return a, b, c, d


def unit(word: int) -> float:
    """The float32 above 0 and up to 1 that 32 bits become."""
    rounded = torch.tensor(word, dtype=torch.int64).to(torch.float32)
    return float(rounded * 2.0**-32 + 2.0**-33)


def places(element: Index, vector: int, count: int) -> tuple[Index, Index, Index]:
    """Which thread of `count` draws an element's number, in which step, and as which of the four words of that step,
    where each takes `vector` elements beside each other (4 or more; or 1)."""
    if vector == 1:
        return mod(element, count), floordiv(element, count * 4), mod(floordiv(element, count), 4)
    taken = floordiv(element, vector)
    step = floordiv(taken, count) * (vector // 4) + floordiv(mod(element, vector), 4)
    return mod(taken, count), step, mod(element, 4)


def uniform(*arguments: torch.Tensor) -> torch.Tensor:
    """The numbers for seed, offset, element, vector and count (int64, broadcast), as `unit`."""
    shape = torch.broadcast_shapes(*(argument.shape for argument in arguments))  # type: ignore[no-untyped-call]
    given = (argument.expand(shape).reshape(-1).tolist() for argument in arguments)
    found = []
    for seed, offset, element, vector, count in zip(*given, strict=True):
        thread, step, word = (place.constant for place in places(constant(element), vector, count))
        found.append(unit(philox(seed, offset // 4 + step, thread)[word]))
    return torch.tensor(found, dtype=torch.float32).reshape(shape)


@functools.cache
def dropout_vector(device: torch.device, itemsize: int) -> int:
    """How many elements beside each other a thread of torch's dropout takes, where their number is a multiple of that
    and they lie at a multiple of 16 bytes. 0: nothing is known of this torch's dropout, which is then left to it."""
    expected = min(16 // itemsize, 8)
    if not torch.cuda.is_available():
        return expected
    dtype = torch.float32 if itemsize == 4 else torch.float16
    with _disable_current_modes(), torch.no_grad(), torch.cuda.device(device), torch.random.fork_rng([device]):
        torch.cuda.manual_seed(0)
        _, mask = torch.native_dropout(torch.ones(_PROBED, dtype=dtype, device=device), 0.5, True)
        drawn = mask.tolist()
        for vector in dict.fromkeys((expected, 4)):
            count = threads(device, _PROBED)
            given = (torch.tensor(number) for number in (0, 0, list(range(_PROBED)), vector, count))
            if drawn == (uniform(*given) < 0.5).tolist():
                return vector
    return 0
