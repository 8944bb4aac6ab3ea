"""`rounded` gives what torch's conversion does, to the bit, whatever mode is on."""

from __future__ import annotations

import math
import random
import struct

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dynajit.loopir.build import rounded

ODD = [0.0, -0.0, 1.0, 0.1, -1e-40, 1e-46, 65504.0, 65520.0, 3.4028235677973366e38, 1e39, -1e300, 5e-324]
ODD += [math.inf, -math.inf, math.nan, 1 + 2**-24, 1 + 2**-24 + 2**-50, 1 + 3 * 2**-9, 2.0**-25]


def values() -> list[float]:
    drawn = random.Random(0)
    return (
        ODD
        + [struct.unpack("d", drawn.randbytes(8))[0] for _ in range(500)]
        + [drawn.gauss(0, 100) for _ in range(500)]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_as_torch_converts(dtype: torch.dtype) -> None:
    for value in values():
        wanted = float(torch.tensor(value, dtype=torch.float64).to(torch.float32).to(dtype))
        with FakeTensorMode():
            made = rounded(value, dtype)
        assert type(made) is float
        assert struct.pack("d", made) == struct.pack("d", wanted) or (math.isnan(made) and math.isnan(wanted))
