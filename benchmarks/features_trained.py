"""Higher-order operators, torch.func, autograd and modules as programs use them: trained, in modules, of sizes that
change; see features.py."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from feature_table import Calls, Made, feature, leaf, simple, varied, x8, x44
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

HOP = "operators, used"
FUNC = "torch.func, used"
GRAD = "autograd, used"
MOD = "modules, used"


def sizes(*shape: int, many: tuple[int, ...] = (4, 6, 9), grad: bool = False) -> Any:
    return [(torch.randn(n, *shape).requires_grad_(grad),) for n in many]


# ------------------------------------------------------------------ higher-order operators
class CondBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: self.a(y).relu(), lambda y: self.b(y).tanh(), (x,)) + x


varied(HOP, "cond over a module's layers, sizes", CondBlock, *[(t.detach(),) for (t,) in sizes(4)])


@feature(HOP, "cond over a module's layers, trained")
def _() -> Made:
    return CondBlock(), torch.randn(3, 4, requires_grad=True)


def _cond_nested(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return torch.cond(y.mean() > 0.5, lambda z: z * 2, lambda z: z - 1, (y,))

    return torch.cond(x.sum() > 0, inner, lambda y: y.sin(), (x,))


simple(HOP, "cond in cond", _cond_nested, x8)


def _cond_dict(x: Tensor) -> Any:
    return torch.cond(
        x.shape[0] > 5, lambda d: {"r": d["a"] + d["b"][0]}, lambda d: {"r": d["a"]}, ({"a": x, "b": [x]},)
    )


varied(HOP, "cond on a size, pytrees", lambda: _cond_dict, *sizes(2))


def _while_module(x: Tensor) -> Any:
    lin = torch.eye(4)
    return while_loop(
        lambda i, y: (i < 5) & (y.abs().sum() < 100), lambda i, y: (i + 1, y @ lin + y), (torch.tensor(0), x)
    )


varied(HOP, "while_loop with a closure, sizes", lambda: _while_module, *sizes(4))


def _scan_rnn(x: Tensor, w: Tensor) -> Tensor:
    from torch._higher_order_ops.scan import scan

    carry, ys = scan(lambda c, t: ((c @ w + t).tanh(), (c @ w).sum(-1)), torch.zeros(3, 4), x, dim=0)
    return carry.sum() + ys.sum()


varied(HOP, "scan as an RNN", lambda: _scan_rnn, *[(torch.randn(n, 3, 4), torch.eye(4)) for n in (5, 7, 9)])


@feature(HOP, "scan as an RNN, trained")
def _() -> Made:
    return _scan_rnn, torch.randn(5, 3, 4), torch.eye(4).requires_grad_()


def _assoc(x: Tensor) -> Any:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x.sigmoid(), x), 0, combine_mode="generic")


varied(HOP, "associative_scan of pairs", lambda: _assoc, *sizes(2))


class Flex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(2))
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = self.bias
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h] * (i - j)).sum()


@feature(HOP, "flex_attention in a module, score_mod of a parameter, trained")
def _() -> Made:
    return Flex(), torch.randn(2, 16, 8)


def _flex_mask(q: Tensor) -> Tensor:
    window = 8
    mask = create_block_mask(
        lambda b, h, i, j: (i >= j) & (i - j < window), None, None, q.shape[-2], q.shape[-2], device="cpu"
    )
    return flex_attention(q, q, q, block_mask=mask, enable_gqa=False)


varied(
    HOP, "create_block_mask inside, sizes", lambda: _flex_mask, *[(torch.randn(1, 2, n, 16),) for n in (128, 256, 384)]
)


class Ck(nn.Module):
    def __init__(self, **kw: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU()) for _ in range(3))
        self.kw = kw

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, **self.kw)
        return x.sum()


@feature(HOP, "checkpoint of layers with dropout, trained")
def _() -> Made:
    return Ck(), torch.randn(3, 4, requires_grad=True)


@feature(HOP, "checkpoint of layers, preserve_rng_state=False, determinism_check")
def _() -> Made:
    return Ck(preserve_rng_state=True, determinism_check="none"), torch.randn(3, 4, requires_grad=True)


def _policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


@feature(HOP, "checkpoint of layers, policy by partial, in autocast")
def _() -> Made:
    model = Ck(context_fn=functools.partial(create_selective_checkpoint_contexts, _policy))

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float()

    return step, torch.randn(3, 4, requires_grad=True)


def _ck_kw(x: Tensor, w: Tensor) -> Tensor:
    def body(a: Tensor, *, scale: float, more: dict[str, Tensor]) -> tuple[Tensor, int]:
        return (a * scale + more["w"]).sin(), 3

    y, n = checkpoint(body, x, scale=2.0, more={"w": w}, use_reentrant=False)
    return y.sum() * n


simple(HOP, "checkpoint of a closure, mixed results", _ck_kw, leaf, leaf)


def _ck_nested(x: Tensor) -> Tensor:
    def inner(a: Tensor) -> Tensor:
        return a.sin().exp()

    def outer(a: Tensor) -> Tensor:
        return checkpoint(inner, a * 2, use_reentrant=False).cos()

    return checkpoint(outer, x, use_reentrant=False).sum()


simple(HOP, "checkpoint in checkpoint", _ck_nested, leaf)


# ------------------------------------------------------------------ torch.func
class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh())


@feature(FUNC, "per-sample gradients of a module, sizes")
def _() -> Made:
    model = Mlp()
    params = dict(model.named_parameters())

    def loss(p: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(model, p, (x[None],)).square().sum()

    return lambda x: torch.func.vmap(torch.func.grad(loss), (None, 0))(params, x), Calls(
        [(t[0].detach(),) for t in sizes(4)]
    )


@feature(FUNC, "MAML: an inner step, then a gradient")
def _() -> Made:
    model = Mlp()

    def inner(p: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(model, p, (x,)).square().mean()

    def outer(p: Any, x: Tensor) -> Tensor:
        g = torch.func.grad(inner)(p, x)
        return inner({k: v - 0.1 * g[k] for k, v in p.items()}, x)

    params = {k: v.detach() for k, v in model.named_parameters()}
    return lambda x: torch.func.grad_and_value(outer)(params, x), torch.randn(3, 4)


simple(
    FUNC,
    "jacrev of jacfwd with has_aux",
    lambda x: torch.func.jacrev(lambda a: (torch.func.jacfwd(torch.sin)(a), a * 2), has_aux=True)(x),
    x8,
)
simple(
    FUNC,
    "vmap in_dims, out_dims, randomness",
    lambda x: torch.vmap(lambda a, b: (a * b, a.sum()), in_dims=(1, None), out_dims=(1, 0))(x, 2.0),
    x44,
)
simple(FUNC, "vmap with chunk_size", lambda x: torch.vmap(lambda a: a.sin().sum(), chunk_size=2)(x), x44)
simple(FUNC, "vmap random different", lambda x: torch.vmap(lambda a: F.dropout(a, 0.5), randomness="different")(x), x44)
simple(
    FUNC,
    "hvp by jvp of grad",
    lambda x: torch.func.jvp(torch.func.grad(lambda a: a.pow(3).sum()), (x,), (torch.ones(8),)),
    x8,
)
simple(
    FUNC,
    "vjp kept and called twice",
    lambda x: (lambda pair: (pair[1](torch.ones(8)), pair[1](x)))(torch.func.vjp(torch.sin, x)),
    x8,
)
simple(
    FUNC,
    "vmap of cond-like where, over dict",
    lambda x: torch.vmap(lambda d: torch.where(d["a"] > 0, d["a"], d["b"]))({"a": x, "b": x * 2}),
    x44,
)
simple(
    FUNC,
    "linearize called twice",
    lambda x: (lambda o, f: (o, f(x), f(x * 2)))(*torch.func.linearize(lambda a: a.sin() * 2, x)),
    x8,
)
simple(
    FUNC,
    "vmap over grad with a free leaf",
    lambda x, w: torch.vmap(torch.func.grad(lambda a: (a * w).sin().sum()))(x).sum(),
    x44,
    lambda: torch.randn(4, requires_grad=True),
)
simple(FUNC, "forward-mode AD by hand", lambda x: _dual(x), x8)


def _dual(x: Tensor) -> Any:
    import torch.autograd.forward_ad as fwAD

    with fwAD.dual_level():
        return fwAD.unpack_dual(fwAD.make_dual(x, torch.ones_like(x)).sin()).tangent


# ------------------------------------------------------------------ autograd
class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, names: list[str]) -> tuple[Tensor, int, Tensor]:
        ctx.save_for_backward(x)
        ctx.low, ctx.names = low, names
        y = x.clamp(min=low)
        mask = x > low
        ctx.mark_non_differentiable(mask)
        return y, len(names), mask

    @staticmethod
    def backward(ctx: Any, g: Tensor, _n: Any, _m: Any) -> Any:
        (x,) = ctx.saved_tensors
        return (g * (x > ctx.low) * len(ctx.names) if ctx.needs_input_grad[0] else None), None, None


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        y, n, mask = Clamp.apply(x * self.w, 0.1, ["a", "b"])
        return (y * mask).sum() * n


@feature(GRAD, "autograd.Function with non-tensors, in a module")
def _() -> Made:
    return Clamped(), leaf()


def _nested_fn(x: Tensor) -> Tensor:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            ctx.k = 2
            return a * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.k

    return Twice.apply(x.sin()).sum()


simple(GRAD, "autograd.Function made inside, trained", _nested_fn, leaf)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


simple(GRAD, "autograd.Function, mark_dirty", lambda x: InPlace.apply(x.sin()).sum(), leaf)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shape = x.shape
        return x.sum(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.expand(ctx.shape)


varied(
    GRAD, "autograd.Function, once_differentiable, sizes", lambda: lambda x: Once.apply(x).sum(), *sizes(2, grad=True)
)


class Sparse(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, k: int = 2) -> tuple[Tensor, Tensor]:
        return x * k, x.argsort()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.k = inputs
        ctx.save_for_backward(x, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        return g * ctx.k, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, k: int) -> Any:
        return (x * k, x.argsort(-1)), (0, 0)


simple(GRAD, "autograd.Function, setup_context and default", lambda x: Sparse.apply(x, 3)[0].sum(), leaf)
simple(GRAD, "autograd.Function, vmap", lambda x: torch.vmap(lambda a: Sparse.apply(a, 3))(x), x44)


@feature(GRAD, "hook on an activation, gradients gathered in a list")
def _() -> Made:
    model = Mlp()

    def step(x: Tensor) -> Tensor:
        h = model.a(x)
        h.register_hook(lambda g: g * 0.5)
        return model.b(h).sum()

    return step, torch.randn(3, 4, requires_grad=True)


@feature(GRAD, "full backward hook on a submodule, trained")
def _() -> Made:
    model = Mlp()
    model.a.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    return lambda x: model(x).sum(), torch.randn(3, 4, requires_grad=True)


@feature(GRAD, "full backward pre-hook on a submodule, trained")
def _() -> Made:
    model = Mlp()
    model.a.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    return lambda x: model(x).sum(), torch.randn(3, 4, requires_grad=True)


@feature(GRAD, "hooks on parameters put outside, trained")
def _() -> Made:
    model = Mlp()
    model.a.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return lambda x: model(x).sum(), torch.randn(3, 4, requires_grad=True)


def _grad_penalty(x: Tensor) -> Tensor:
    y = (x * x).sin().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return (g.norm() - 1) ** 2


simple(GRAD, "gradient penalty", _grad_penalty, leaf)


@feature(GRAD, "training step: zero_grad, backward, AdamW")
def _() -> Made:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def step(x: Tensor) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), [p.detach().clone() for p in model.parameters()]

    return step, torch.randn(3, 4)


def _no_grad_parts(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
        with torch.enable_grad():
            y = x / scale
    with torch.set_grad_enabled(x.requires_grad):
        z = y * 2
    with torch.inference_mode():
        k = (x * 3).sum()
    return (z * k.clone()).sum()


simple(GRAD, "grad modes in each other", _no_grad_parts, leaf)


@torch.no_grad()
def _ema(target: dict[str, Tensor], source: dict[str, Tensor]) -> dict[str, Tensor]:
    for key, value in target.items():
        value.lerp_(source[key], 0.1)
    return target


simple(GRAD, "EMA under no_grad", _ema, lambda: {"a": x8(), "b": x44()}, lambda: {"a": x8() * 2, "b": x44()})


def _data_after(x: Tensor, w: Tensor) -> Tensor:
    old = w.data
    w.data = old * 0.5
    y = (x * w).sum()
    w.data = old
    return y


simple(GRAD, "`w.data` swapped and put back", _data_after, leaf, leaf)


@feature(GRAD, "weights swapped by `.data` in a module")
def _() -> Made:
    model = Mlp()

    def step(x: Tensor) -> Tensor:
        kept = [p.data for p in model.parameters()]
        for p in model.parameters():
            p.data = p.data * 0.5
        y = model(x)
        for p, old in zip(model.parameters(), kept, strict=True):
            p.data = old
        return y.sum()

    return step, torch.randn(3, 4)


# ------------------------------------------------------------------ modules
class LazyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.LazyConv2d(4, 3)
        self.norm = nn.LazyBatchNorm2d()
        self.fc = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().flatten(1))


@feature(MOD, "lazy convolution, batch norm, linear, trained")
def _() -> Made:
    torch.manual_seed(1)
    model = LazyNet()
    return lambda x: model(x).sum(), torch.randn(2, 3, 6, 6)


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "extra"):
            self.extra = nn.Parameter(torch.ones(x.shape[-1]))
        return self.lin(x) * self.extra


@feature(MOD, "nn.Parameter made at the first call")
def _() -> Made:
    return Growing(), torch.randn(2, 4)


class Reassign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.w = nn.Parameter(self.w.detach() * 2)
        self.count = self.count + 1
        return x * self.w + self.count


@feature(MOD, "parameter and buffer re-assigned at each call")
def _() -> Made:
    return Reassign(), torch.randn(2, 4)


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        if n not in self.cache:
            self.cache[n] = torch.arange(n).float()[:, None]
        return self.lin(x) + self.cache[n]


varied(MOD, "dict of tensors by size in a module", Cache, *[(t[0].detach(),) for t in sizes(4, many=(4, 6, 4))])


class KV(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.past: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.past.append(self.lin(x))
        return torch.cat(self.past, 0).mean(0)


@feature(MOD, "list of keys that grows in a module")
def _() -> Made:
    return KV(), torch.randn(2, 4)


@feature(MOD, "module with weight tying, state_dict, load_state_dict inside")
def _() -> Made:
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)

    def step(x: Tensor) -> Tensor:
        b.load_state_dict(a.state_dict())
        return b(x)

    return step, torch.randn(2, 4)


@feature(MOD, "module made inside of a function and trained")
def _() -> Made:
    def step(x: Tensor) -> Tensor:
        head = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4))
        return head(x).sum()

    return step, leaf()


@feature(MOD, "forward hooks by name, outputs gathered")
def _() -> Made:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    seen: dict[str, Tensor] = {}
    for name, child in model.named_children():
        child.register_forward_hook(lambda m, i, o, name=name: seen.__setitem__(name, o.mean()))

    def step(x: Tensor) -> Any:
        y = model(x)
        return y, dict(seen)

    return step, torch.randn(3, 4)


@feature(MOD, "requires_grad_ of layers, frozen and not")
def _() -> Made:
    model = Mlp()

    def step(x: Tensor) -> Any:
        for p in model.a.parameters():
            p.requires_grad_(False)
        y = model(x)
        return y.sum()

    return step, torch.randn(3, 4, requires_grad=True)
