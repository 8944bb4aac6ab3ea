"""Whether what a compiled call gives is as close to float64 as what eager gives.

In: what three runs of the same call returned: float64's, eager's and a compiler's (tensors by name). Out: None, or why
the compiler's is wrong. The rule: the distance to float64 is at most twice eager's own plus an epsilon, relative to the
length of the tensor; integers are equal but for one in a thousand; shapes and dtypes are eager's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

EPSILON = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# Gradients behind a ReLU: one input that changes sign by rounding moves them by more than rounding itself does.
GRADIENTS, SHARE_OF_ALL = 10.0, 1e-2
# What a layer of a cache holds, of attention or of a recurrence.
_STATE = ("keys", "values", "conv_states", "recurrent_states")


def tensors(tree: Any) -> list[Tensor]:
    """All tensors of nested containers and of objects that hold caches, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [found for item in tree.values() for found in tensors(item)]
    if isinstance(tree, (list, tuple)):
        return [found for item in tree for found in tensors(item)]
    layers = getattr(tree, "layers", None)
    found = [[getattr(layer, part, None) for part in _STATE] for layer in layers] if isinstance(layers, list) else []
    return tensors(found) if found else []


def without_dropout(model: nn.Module) -> None:
    """Nothing random is left, so that numbers can be compared."""
    for module in model.modules():
        # torchvision's StochasticDepth is no dropout by its class
        if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        for holder in (module, getattr(module, "config", None)):
            for name, value in list(vars(holder).items()) if holder is not None else []:
                if isinstance(value, float) and "drop" in name.lower():
                    setattr(holder, name, 0.0)


def in_double(tree: Any) -> Any:
    """Floating-point tensors of nested containers as float64."""
    if isinstance(tree, Tensor):
        return tree.detach().double() if tree.is_floating_point() else tree
    if isinstance(tree, dict):
        return {key: in_double(value) for key, value in tree.items()}
    return type(tree)(map(in_double, tree)) if type(tree) in (list, tuple) else tree


def whats_wrong(got: dict[str, Tensor], eager: dict[str, Tensor], double: dict[str, Tensor]) -> str | None:
    """None if all is well. Names that begin with "grad" are gradients."""
    if list(got) != list(eager):
        return f"other results than eager's: {sorted(set(got) ^ set(eager))[:3]}"
    longest = max((float(each.double().norm()) for each in double.values() if each.is_floating_point()), default=0.0)
    for name, ours in got.items():
        if why := _one(ours, eager[name], double[name], longest if name.startswith("grad") else 0.0):
            return f"{name}: {why}"
    return None


def _one(ours: Tensor, eager: Tensor, double: Tensor, longest: float) -> str | None:
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return f"{ours.dtype} {[*ours.shape]} instead of {eager.dtype} {[*eager.shape]}"
    if not ours.is_floating_point():
        differ = float((ours != eager).double().mean()) if ours.numel() else 0.0
        return f"{differ:.2%} of the integers differ" if differ > 1e-3 else None
    a, b, exact = ours.detach().double(), eager.detach().double(), double.detach().double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return "finite elsewhere"
    keep = b.isfinite() & exact.isfinite()
    a, b, exact = a[keep], b[keep], exact[keep]
    length = float(exact.norm()) + SHARE_OF_ALL * longest + 1e-12
    distance, eagers = float((a - exact).norm()) / length, float((b - exact).norm()) / length
    epsilon = EPSILON.get(ours.dtype, 1e-5) * (GRADIENTS if longest else 1.0)
    return f"{distance:.1e} from float64, eager {eagers:.1e}" if distance > 2 * eagers + epsilon else None
