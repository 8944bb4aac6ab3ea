"""Uses of modules, pytrees and optimizers, as programs of torch.compile's users have them; see features.py."""

import collections
import contextlib
import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from feature_table import FEATURES, simple, x8, x44
from torch import Tensor, nn
from torch.nn.utils import parametrize, stateless
from torch.utils import _pytree as pytree

MODULES = "module use"


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    @functools.cached_property
    def scale(self) -> float:
        return math.sqrt(self.lin.in_features)

    @functools.cached_property
    def bias2(self) -> Tensor:
        return self.lin.bias * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) * self.scale + self.bias2


class Forwarding(nn.Module):
    """Attributes that the inner module has."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.in_features + self.weight.sum()


class Settable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._rate = 1.0

    @property
    def rate(self) -> float:
        return self._rate

    @rate.setter
    def rate(self, value: float) -> None:
        self._rate = value + 1

    def forward(self, x: Tensor) -> Tensor:
        self.rate = self.rate * 2 if self.rate < 2 else 1.0
        return x * self.rate


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.params = nn.ParameterDict({"a": nn.Parameter(torch.ones(4)), "b": nn.Parameter(torch.zeros(4))})
        self.blocks = nn.ModuleDict({"one": nn.Linear(4, 4), "two": nn.Tanh()})
        self.each = nn.ParameterList([nn.Parameter(torch.full((4,), float(n))) for n in range(3)])

    def forward(self, x: Tensor, which: str = "one") -> Tensor:
        for name, p in self.params.items():
            x = x + p * len(name)
        x = self.blocks[which](x) if which in self.blocks else x
        x = self.blocks["two"](x)
        return x + sum(self.each) + len(self.params) + len(self.each)


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


def _parametrized() -> nn.Module:
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


PARAMETRIZED = _parametrized()


WEIGHT_NORMED = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))


ORTHOGONAL = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))


PLAIN = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


class Box:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


pytree.register_pytree_node(Box, lambda box: ([box.a, box.b], None), lambda parts, _: Box(*parts))


def fresh(area: str, name: str, make: Callable[[], Any], *args: Callable[[], Any]) -> None:
    """A feature whose function keeps a state of its own: each compiler gets one made for it."""
    FEATURES[name] = (area, lambda: (make(), *(arg() for arg in args)))


def _cached_parametrization(x: Tensor) -> Any:
    with parametrize.cached():
        return PARAMETRIZED(x) + PARAMETRIZED.weight.sum()


def _stateless(x: Tensor) -> Any:
    return torch.func.functional_call(PLAIN, {"0.weight": torch.eye(4), "2.bias": torch.ones(4)}, (x,))


def _reparametrized(x: Tensor) -> Any:
    with stateless._reparametrize_module(PLAIN, {"0.bias": torch.ones(4)}):
        return PLAIN(x)


def _ensemble(x: Tensor) -> Any:
    models = [nn.Linear(4, 2, bias=False) for _ in range(2)]
    for n, model in enumerate(models):
        nn.init.constant_(model.weight, n + 0.5)
    params, buffers = torch.func.stack_module_state(models)
    base = models[0]
    return torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(params, buffers)


def _per_sample(x: Tensor) -> Any:
    params = {name: p.detach() for name, p in PLAIN.named_parameters()}

    def loss(p: Any, row: Tensor) -> Tensor:
        return torch.func.functional_call(PLAIN, p, (row[None],)).square().sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)


def _global_hook(x: Tensor) -> Any:
    seen: list[str] = []
    hook = nn.modules.module.register_module_forward_hook(lambda m, i, o: seen.append(type(m).__name__))
    try:
        y = PLAIN(x)
    finally:
        hook.remove()
    return y, seen


def _pre_hook(x: Tensor) -> Any:
    def pre(module: Any, args: Any, kwargs: Any) -> Any:
        return (args[0] * 2,), kwargs

    with contextlib.ExitStack() as stack:
        handle = PLAIN.register_forward_pre_hook(pre, with_kwargs=True)
        stack.callback(handle.remove)
        return PLAIN(x)


def _swapped(x: Tensor) -> Any:
    a, b = x * 2, x * 3
    torch.utils.swap_tensors(a, b)
    return a + 1, b


def _pytrees(x: Tensor) -> Any:
    box = Box(x, {"k": [x * 2, 3], "n": None})
    leaves, spec = pytree.tree_flatten(box)
    mapped = pytree.tree_map(lambda leaf: leaf * 2 if isinstance(leaf, Tensor) else leaf, box)
    back = pytree.tree_unflatten([1] * len(leaves), spec)
    return mapped.a, mapped.b, back.b, spec.num_leaves, pytree.tree_all(lambda leaf: leaf is not None, box)


def _tree_paths(x: Tensor) -> Any:
    tree = {"a": [x, x * 2], "b": (1, collections.OrderedDict(z=x))}
    return {pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(tree)[0]}


def _copied_module(x: Tensor) -> Any:
    layer = copy.deepcopy(PLAIN)
    with torch.no_grad():
        layer[0].weight.zero_()
    return layer(x) + PLAIN(x)


def _autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
    return y, z, torch.is_autocast_enabled("cpu")


def _defaults(x: Tensor) -> Any:
    with torch.device("cpu"):
        made = torch.arange(4)
    return made * x, torch.get_default_dtype(), torch.finfo(x.dtype).eps, torch.iinfo(torch.int8).max


def _sdpa_choice(x: Tensor) -> Any:
    q = x.reshape(1, 1, 4, 4)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def _scheduled(x: Tensor) -> Any:
    layer = copy.deepcopy(PLAIN)
    step = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        step.zero_grad()
        layer(x).square().mean().backward()
        step.step()
    return [p.detach() for p in layer.parameters()]


def _clipped(x: Tensor) -> Any:
    layer = copy.deepcopy(PLAIN)
    layer(x).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
    return norm, [p.grad for p in layer.parameters()], nn.utils.parameters_to_vector(layer.parameters())


def _applied(x: Tensor) -> Any:
    names = [type(m).__name__ for m in PLAIN.modules()]
    PLAIN.apply(lambda m: m.extra.append(1) if hasattr(m, "extra") else None)
    return PLAIN(x), names, [n for n, _ in PLAIN.named_children()], PLAIN.get_submodule("2")(x)


def _mode_switched(x: Tensor) -> Any:
    layer = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4))
    layer.eval()
    y = layer(x)
    layer.train()
    return y, layer[1](x), layer[1].num_batches_tracked, layer[1].running_mean


def _multi_output(x: Tensor) -> Any:
    q, r = torch.linalg.qr(x)
    values, places = x.topk(2)
    u = torch.unbind(x)
    lu = torch.std_mean(x, dim=1)
    return (q @ r), values, places, u[0], lu[0], x.max(dim=0).values, torch.sort(x).indices


fresh(MODULES, "cached_property in a module", lambda: Cached(), x44)
simple(MODULES, "__getattr__ that forwards", Forwarding(nn.Linear(4, 4)), x44)
fresh(MODULES, "property setter", lambda: Settable(), x44)
simple(MODULES, "ParameterDict, ParameterList, ModuleDict", Named(), x44)
simple(MODULES, "parametrize, own", lambda x: PARAMETRIZED(x), x44)
simple(MODULES, "parametrize.cached", _cached_parametrization, x44)
simple(MODULES, "weight_norm", lambda x: WEIGHT_NORMED(x), x44)
simple(MODULES, "orthogonal", lambda x: ORTHOGONAL(x), x44)
fresh(MODULES, "spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), x44)
simple(MODULES, "functional_call with some parameters", _stateless, x44)
simple(MODULES, "stateless, reparametrized", _reparametrized, x44)
simple(MODULES, "ensemble by stack_module_state", _ensemble, x44)
simple(MODULES, "gradients of each sample", _per_sample, x44)
simple(MODULES, "register_module_forward_hook", _global_hook, x44)
simple(MODULES, "forward pre-hook with keyword arguments", _pre_hook, x44)
simple(MODULES, "swap_tensors", _swapped, x8)
simple(MODULES, "registered pytree node", _pytrees, x8)
simple(MODULES, "tree_flatten_with_path, keystr", _tree_paths, x8)
simple(MODULES, "deepcopy of a module inside", _copied_module, x44)
simple(MODULES, "autocast, nested", _autocast, x44)
simple(MODULES, "device context, finfo", _defaults, lambda: torch.ones(4))
simple(MODULES, "sdpa_kernel", _sdpa_choice, x44)
simple(MODULES, "SGD with momentum, made inside", _scheduled, x44)
simple(MODULES, "clip_grad_norm_, parameters_to_vector", _clipped, x44)
simple(MODULES, "apply, modules, get_submodule", _applied, x44)
simple(MODULES, "train and eval inside", _mode_switched, x44)
simple(MODULES, "several results of an operator", _multi_output, x44)
