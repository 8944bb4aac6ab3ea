"""Tensors in a file: the safetensors format, which is a header of JSON and the raw elements.

In:  tensors by name. Out: `pack`, the bytes; `unpack`, tensors that share the bytes' memory. A section of this kind can
     be cut out of a file and read by the package safetensors; a file of that package's can be given at load.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dynajit.exc import ArtifactError

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "BOOL": torch.bool,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 100 << 20
_ALIGNMENT = 64


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The tensors' elements, each in the order of its dimensions. Raises ArtifactError for a dtype without a name."""
    header: dict[str, Any] = {}
    parts, offset = [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ArtifactError(f"{name} has dtype {tensor.dtype}, for which safetensors has no name")
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        parts.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def unpack(contents: memoryview, where: str) -> dict[str, torch.Tensor]:
    """Tensors whose memory the contents are. Raises ArtifactError about `where`."""
    try:
        (size,) = struct.unpack_from("<Q", contents)
        if size > min(_MAX_HEADER, len(contents) - 8):
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(bytes(contents[8 : 8 + size]))
        data = contents[8 + size :]
        return {str(name): _tensor(row, data) for name, row in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, struct.error, RecursionError) as error:
        raise ArtifactError(f"{where}: the weights are not in the safetensors format: {error}") from error


def read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file of the package safetensors, mapped into memory."""
    try:
        with path.open("rb") as file:
            found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: the weights can't be read: {error}") from error
    return unpack(memoryview(found), str(path))


def _tensor(row: dict[str, Any], data: memoryview) -> torch.Tensor:
    dtype, shape = _DTYPES[row["dtype"]], row["shape"]
    begin, end = row["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)) or end > len(data):
        raise ValueError("a tensor lies outside of the data")
    count = math.prod(shape)
    if end - begin != count * dtype.itemsize:
        raise ValueError(f"a tensor of {count} elements has {end - begin} bytes")
    if not count:
        return torch.empty(shape, dtype=dtype)
    part = data[begin:end]
    if begin % dtype.itemsize:
        part = memoryview(bytearray(part))
    return torch.frombuffer(part, dtype=torch.uint8).view(dtype).view(shape)
