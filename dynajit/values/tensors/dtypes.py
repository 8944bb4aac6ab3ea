"""Operations that raise for some dtypes in their real kernels, and not on fake tensors.

In: an operation's name. Out: `REFUSED`, the dtypes of its first tensor that it does not take. Generated code would
compute something for them. Found by running torch's samples of each operation with other dtypes.
"""

from __future__ import annotations

import torch

_BOOL = frozenset({torch.bool})
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})

_GROUPS: list[tuple[str, frozenset[torch.dtype]]] = [
    ("relu relu_ addcdiv tanhshrink threshold trace", _BOOL),
    ("celu gelu hardsigmoid hardswish mish prelu silu lerp", _BOOL | _INTEGERS),
    ("glu", _BOOL | _INTEGERS | _COMPLEX),
    ("hardshrink huber_loss smooth_l1_loss batch_norm native_batch_norm", _INTEGERS | _COMPLEX),
    ("logsigmoid softplus binary_cross_entropy", _INTEGERS),
    ("max_pool1d multi_margin_loss", _BOOL | _INTEGERS),
    ("interpolate", (_BOOL | _INTEGERS) - {torch.uint8}),
    ("mse_loss group_norm native_group_norm", _COMPLEX),
]
REFUSED: dict[str, frozenset[torch.dtype]] = {name: dtypes for names, dtypes in _GROUPS for name in names.split()}
