"""Features of torch, a small program for each; see features.py."""

import functools
from typing import Any

import torch
import torch.utils.checkpoint as cp
from feature_table import FEATURES, Made, block, feature, leaf, simple, x8, x44
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree

HOP = "higher-order operators"


@feature(HOP, "cond with closures")
def _() -> Made:
    w = torch.randn(8)
    return lambda x: torch.cond(x.sum() > 0, lambda y: y * w, lambda y: y - w, (x,)), x8()


@feature(HOP, "cond with pytrees")
def _() -> Made:
    def fn(x: Tensor) -> Any:
        return torch.cond(
            x.sum() > 0,
            lambda d: {"a": d["x"] + 1, "b": [d["x"] * 2]},
            lambda d: {"a": d["x"] - 1, "b": [d["x"] * 3]},
            ({"x": x},),
        )

    return fn, x8()


@feature(HOP, "cond and its gradient")
def _() -> Made:
    def fn(x: Tensor) -> Any:
        y = torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))
        return torch.autograd.grad(y.sum(), x)[0]

    return fn, leaf()


@feature(HOP, "map")
def _() -> Made:
    return lambda x, y: torch_map(lambda a, b: a.sin() + b, x, y), x44(), x44()[0].clone()


@feature(HOP, "while_loop")
def _() -> Made:
    def fn(x: Tensor) -> Any:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))

    return fn, x8()


@feature(HOP, "scan")
def _() -> Made:
    def fn(x: Tensor) -> Any:
        return scan(lambda c, y: (c + y, c * y), torch.zeros(4), x)

    return fn, x44()


@feature(HOP, "associative_scan")
def _() -> Made:
    return lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"), x44()


@feature(HOP, "flex_attention, score_mod")
def _() -> Made:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j))

    return fn, *(torch.randn(1, 2, 32, 16) for _ in range(3))


@feature(HOP, "flex_attention, BlockMask")
def _() -> Made:
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cpu")
    return lambda q, k, v: flex_attention(q, k, v, block_mask=mask), *(torch.randn(1, 2, 128, 16) for _ in range(3))


@feature(HOP, "checkpoint")
def _() -> Made:
    return lambda x: torch.autograd.grad(cp.checkpoint(block, x, use_reentrant=False).sum(), x)[0], leaf()


@feature(HOP, "checkpoint, reentrant")
def _() -> Made:
    return lambda x: cp.checkpoint(block, x, use_reentrant=True), leaf()


@feature(HOP, "checkpoint, keyword arguments")
def _() -> Made:
    return lambda x: cp.checkpoint(block, x, scale=2.0, use_reentrant=False), leaf()


@feature(HOP, "checkpoint, selective: operators")
def _() -> Made:
    def context() -> Any:
        return cp.create_selective_checkpoint_contexts([torch.ops.aten.sin.default])

    return lambda x: cp.checkpoint(block, x, use_reentrant=False, context_fn=context), leaf()


@feature(HOP, "checkpoint, selective: policy")
def _() -> Made:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return (
            cp.CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else cp.CheckpointPolicy.PREFER_RECOMPUTE
        )

    def fn(x: Tensor, w: Tensor) -> Tensor:
        def context() -> Any:
            return cp.create_selective_checkpoint_contexts(policy)

        return cp.checkpoint(lambda a: (a @ w).relu() @ w, x, use_reentrant=False, context_fn=context)

    return fn, x44().requires_grad_(), x44().requires_grad_()


@feature(HOP, "checkpoint, selective: functools.partial")
def _() -> Made:
    context = functools.partial(cp.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    linear = nn.Linear(4, 4)
    return lambda x: cp.checkpoint(linear, x, use_reentrant=False, context_fn=context), x44()


@feature(HOP, "checkpoint without use_reentrant (warns)")
def _() -> Made:
    return lambda x: cp.checkpoint(block, x), leaf()


@feature(HOP, "checkpoint_sequential")
def _() -> Made:
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    return lambda x: cp.checkpoint_sequential(net, 2, x, use_reentrant=False), x44()


# ---------------------------------------------------------------------------------------- torch.func

FUNC = "torch.func"


def _loss(w: Tensor, x: Tensor) -> Tensor:
    return (x * w).sin().sum()


simple(
    FUNC, "grad of vmap", lambda w, x: torch.func.grad(lambda a: torch.vmap(_loss, (None, 0))(a, x).sum())(w), x8, x8
)
simple(
    FUNC,
    "vmap of grad",
    lambda w, x: torch.vmap(torch.func.grad(_loss), (None, 0))(w, x),
    x8,
    lambda: torch.randn(3, 8),
)
simple(FUNC, "hessian", lambda x: torch.func.hessian(lambda a: a.sin().sum())(x), x8)
simple(FUNC, "jacrev, jacfwd", lambda x: (torch.func.jacrev(torch.sin)(x), torch.func.jacfwd(torch.cos)(x)), x8)
simple(FUNC, "jvp", lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones(8),)), x8)
simple(FUNC, "vjp", lambda x: torch.func.vjp(torch.sin, x)[1](torch.ones(8)), x8)
simple(FUNC, "linearize", lambda x: torch.func.linearize(torch.sin, x)[1](torch.ones(8)), x8)
simple(FUNC, "functionalize", lambda x: torch.func.functionalize(lambda a: a.clone().add_(1))(x), x8)


@feature(FUNC, "functional_call")
def _() -> Made:
    net = nn.Linear(4, 4)
    return lambda x, w, b: torch.func.functional_call(net, {"weight": w, "bias": b}, (x,)), x44(), x44(), torch.randn(4)


@feature(FUNC, "stack_module_state")
def _() -> Made:
    nets = [nn.Linear(4, 4) for _ in range(2)]

    def fn(x: Tensor) -> Tensor:
        params, buffers = torch.func.stack_module_state(nets)
        return torch.vmap(lambda p, b, a: torch.func.functional_call(nets[0], (p, b), (a,)), (0, 0, None))(
            params, buffers, x
        )

    return fn, x44()


# ---------------------------------------------------------------------------------------- autograd

GRAD = "autograd"


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float, name: str) -> Any:
        ctx.save_for_backward(x)
        ctx.by = by
        return x * by, x + by

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.by + h * x, None, None


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t * ctx.saved_tensors[0].cos()


def _scaled(x: Tensor) -> Tensor:
    a, b = Scaled.apply(x, 2.0, "name")
    return torch.autograd.grad((a * b).sum(), x)[0]


simple(GRAD, "autograd.Function, several results", _scaled, leaf)
simple(GRAD, "autograd.Function, setup_context", lambda x: torch.autograd.grad(WithSetup.apply(x).sum(), x)[0], leaf)
simple(GRAD, "autograd.Function, jvp", lambda x: torch.func.jvp(WithSetup.apply, (x,), (torch.ones(8),)), x8)


def _hook_kept(x: Tensor) -> Tensor:
    y = x * 2
    handle = y.register_hook(lambda g: g * 3)
    z = y.sin().sum()
    grad = torch.autograd.grad(z, x)[0]
    handle.remove()
    return grad


def _hook_out(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y.sin()


simple(GRAD, "register_hook", _hook_out, leaf)
simple(GRAD, "register_hook, removed", _hook_kept, leaf)


def _retain(x: Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    return y, y.sin().sum()


def _retain_within(x: Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    y.sin().sum().backward()
    return y.grad, x.grad


simple(GRAD, "retain_grad", _retain, leaf)
simple(GRAD, "retain_grad, then backward", _retain_within, leaf)


def _post(x: Tensor) -> Any:
    x.register_post_accumulate_grad_hook(lambda p: None)
    return (x * 2).sum()


simple(GRAD, "post-accumulate hook", _post, leaf)
simple(GRAD, "requires_grad_ inside", lambda x: torch.autograd.grad((x.requires_grad_() * 2).sum(), x)[0], x8)
simple(
    GRAD,
    "create_graph",
    lambda x: torch.autograd.grad(torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0].sum(), x)[0],
    leaf,
)
simple(GRAD, "grad_fn's presence", lambda x: x * 2 if (x * 2).grad_fn is not None else x * 3, leaf)
simple(GRAD, "_base", lambda x: x * 2 if x.view(-1)._base is x else x * 3, x8)
simple(GRAD, "_version", lambda x: x * x._version, x8)
simple(GRAD, "saved_tensors_hooks", lambda x: _saved(x), leaf)


def _saved(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return x.sin()


@feature(GRAD, "full backward hook of a module")
def _() -> Made:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    net.register_full_backward_hook(lambda m, i, o: None)
    return net, x44().requires_grad_()


@feature(GRAD, "backward and optimizer")
def _() -> Made:
    net = nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), 0.1)

    def step(x: Tensor) -> Tensor:
        opt.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        opt.step()
        return loss.detach()

    return step, x44()


def _data_write(x: Tensor, y: Tensor) -> Tensor:
    x.data = y * 2
    return x + 1


def _data_inplace(x: Tensor) -> Tensor:
    x.data.mul_(2)
    return x.sin()


simple(GRAD, "`.data =` of an argument", _data_write, x8, x8)
simple(GRAD, "`.data =` of a leaf", _data_write, leaf, x8)
simple(GRAD, "`.data.mul_()`", _data_inplace, leaf)


@feature(GRAD, "`p.data =` of parameters")
def _() -> Made:
    net = nn.Linear(4, 4)

    def fn(x: Tensor) -> Tensor:
        for p in net.parameters():
            p.data = p.data * 0.9
        return net(x)

    return fn, x44()


def _data_local(x: Tensor) -> Tensor:
    y = x.clone()
    y.data = x * 3
    return y + 1


simple(GRAD, "`.data =` of a local", _data_local, x8)
simple(GRAD, "detach_", lambda x: (x * 2).detach_() + 1, leaf)
simple(GRAD, "set_()", lambda x: torch.empty(0).set_(x) * 2, x8)

# ---------------------------------------------------------------------------------------- modules

MOD = "modules"


@feature(MOD, "lazy module, first call")
def _() -> Made:
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU()), x44()


class MakesParameter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.w = nn.Parameter(torch.ones(4))
        return x * self.w


class AssignsParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.w = nn.Parameter(self.w * 2)
        return x * self.w


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n + 1
        self.register_buffer("m", self.n * 2)
        return x * self.n


simple(MOD, "nn.Parameter made inside", lambda x: nn.Parameter(x * 2) * 3, x8)
FEATURES["nn.Parameter set as an attribute"] = (MOD, lambda: (MakesParameter(), x44()))
FEATURES["nn.Parameter re-assigned"] = (MOD, lambda: (AssignsParameter(), x44()))
FEATURES["buffers registered inside"] = (MOD, lambda: (Buffers(), x44()))


@feature(MOD, "forward hooks")
def _() -> Made:
    net = nn.Linear(4, 4)
    net.register_forward_hook(lambda m, i, o: o * 2)
    net.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    return net, x44()


@feature(MOD, "parametrization")
def _() -> Made:
    net = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    return net, x44()


@feature(MOD, "module made inside")
def _() -> Made:
    return lambda x: nn.Softmax(dim=-1)(x), x44()


# ---------------------------------------------------------------------------------------- tensors

TEN = "tensors"
simple(TEN, "untyped_storage().size()", lambda x: x * x.untyped_storage().size(), x8)
simple(TEN, "untyped_storage().nbytes()", lambda x: x * x.untyped_storage().nbytes(), x8)
simple(TEN, "torch._check", lambda x: (torch._check(x.shape[0] == 8), x * 2)[1], x8)
simple(TEN, "a tensor's repr", lambda x: (repr(x), x * 2), x8)
simple(TEN, "format of a tensor", lambda x: (f"{x.sum():.2f}", x * 2), x8)
simple(TEN, "text of a shape", lambda x: (f"{x.shape} {x.dtype} {x.device}", x * 2), x8)
simple(TEN, "sparse: to_sparse, to_dense", lambda x: x.to_sparse().to_dense() * 2, x44)
simple(TEN, "sparse argument, mm", lambda s, x: torch.sparse.mm(s, x) * 2, lambda: torch.eye(4).to_sparse(), x44)
simple(TEN, "sparse CSR argument", lambda s, x: (s @ x) * 2, lambda: torch.eye(4).to_sparse_csr(), x44)
simple(
    TEN,
    "quantize_per_tensor, dequantize",
    lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize() * 2,
    x8,
)
simple(
    TEN,
    "quantised argument",
    lambda q: q.dequantize() * 2,
    lambda: torch.quantize_per_tensor(x8(), 0.1, 0, torch.quint8),
)
simple(TEN, "fake_quantize", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255), x8)


def _jagged() -> Tensor:
    return torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)


def _jagged_inside(a: Tensor, b: Tensor) -> Tensor:
    return torch.nested.nested_tensor([a, b], layout=torch.jagged).sin().values()


def _jagged_linear(n: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.linear(n, w).relu()


simple(TEN, "jagged argument", lambda n: n.sin() * 2, _jagged)
simple(TEN, "jagged, linear", _jagged_linear, _jagged, x44)
simple(TEN, "jagged, sum and padding", lambda n: (n.sum(-1), torch.nested.to_padded_tensor(n, 0.0)), _jagged)
simple(
    TEN,
    "jagged from values and offsets",
    lambda v, o: torch.nested.nested_tensor_from_jagged(v, o).cos(),
    lambda: torch.randn(5, 4),
    lambda: torch.tensor([0, 2, 5]),
)
simple(TEN, "jagged made inside", _jagged_inside, x44, x44)
simple(
    TEN,
    "jagged, attention",
    lambda n: torch.nn.functional.scaled_dot_product_attention(*(n.unflatten(-1, [2, 2]).transpose(1, 2),) * 3),
    _jagged,
)
simple(TEN, "complex", lambda x: (torch.complex(x, x).exp() * 1j).abs(), x8)
simple(TEN, "meta device", lambda x: torch.empty(4, device="meta").shape[0] * x, x8)
simple(TEN, "masked tensor", lambda x: torch.masked.masked_tensor(x, x > 0).sum().get_data() * 2, x8)
simple(TEN, "torch.masked", lambda x: torch.masked.sum(x, mask=x > 0) + torch.masked.softmax(x, 0, mask=x > 0), x8)
simple(
    TEN,
    "istft",
    lambda x: torch.istft(torch.stft(x, 16, return_complex=True, window=torch.ones(16)), 16, window=torch.ones(16)),
    lambda: torch.randn(64),
)
simple(
    TEN,
    "packed sequences",
    lambda x: nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), True).data * 2,
    lambda: torch.randn(2, 3, 4),
)
simple(TEN, "named tensors", lambda x: x.rename("a", "b").sum("a").rename(None), x44)
simple(TEN, "tolist of a constant", lambda x: x * torch.tensor([1, 2, 3]).shape[0], x8)
simple(TEN, "DLPack", lambda x: torch.from_dlpack(x * 2) + 1, x8)
simple(TEN, "resize_", lambda x: torch.empty(0).resize_(4).fill_(1) + x[:4], x8)


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Int8(torch.Tensor):
    """As torchao's: int8 numbers and a scale for each row."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data: Tensor, scale: Tensor) -> None:
        self.int_data, self.scale = data, scale

    def __tensor_flatten__(self) -> Any:
        return ["int_data", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return cls(inner["int_data"], inner["scale"])

    def dequantize(self) -> Tensor:
        return self.int_data.to(self.scale.dtype) * self.scale[:, None]

    @classmethod
    def of(cls, weight: Tensor) -> Any:
        scale = weight.abs().amax(1) / 127
        return cls((weight / scale[:, None]).round().to(torch.int8), scale)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, bias = (*args, None)[:3]
            out = (x @ weight.int_data.t().to(x.dtype)) * weight.scale
            return out if bias is None else out + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten.alias.default):
            return cls(func(args[0].int_data), func(args[0].scale))
        plain = pytree.tree_map_only(cls, cls.dequantize, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


@feature(TEN, "subclass, __torch_function__")
def _() -> Made:
    return lambda x: (x * 2).sin() + 1, x8().as_subclass(Tagged)


@feature(TEN, "int8 weights as a wrapper subclass")
def _() -> Made:
    net = nn.Linear(4, 4)
    net.weight = nn.Parameter(Int8.of(net.weight.detach()), requires_grad=False)
    return net, x44()


@feature(TEN, "nn.Parameter(wrapper) made inside")
def _() -> Made:
    return lambda w, x: nn.functional.linear(x, nn.Parameter(Int8.of(w), requires_grad=False)), x44(), x44()


@feature(TEN, "wrapper made inside and used")
def _() -> Made:
    return lambda w, x: nn.functional.linear(x, Int8.of(w)), x44(), x44()
