"""Programs about tensors: indexing in all forms, in-place operations, scalars, metadata, data-dependent code."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import Case, Cases
from torch import Tensor

from dynajit.testing import assert_same

x = torch.arange(24.0).reshape(2, 3, 4)
index = torch.tensor([1, 0])
mask = torch.arange(24).reshape(2, 3, 4) % 2 == 0
cases = Cases()


@cases(x, index, mask)
def indexing(x: Tensor, index: Tensor, mask: Tensor) -> Any:
    i, n = 1, None
    return (
        x[0],
        x[-1],
        x[0, 1],
        x[0][1][2],
        x[:, 1:],
        x[..., 0],
        x[::2, :, 1:3],
        x[None],
        x[:, None, 0],
        x[index],
        x[index, index],
        x[:, [0, 2]],
        x[torch.tensor(1)],
        x[i, ..., n],
        x[(0, 1)],
        x[1:, -2:, ::2],
        x[slice(0, 1)],
        x[...],
        x[()],
        x[True],
        x[[0, 1], 1:],
        x[:, index[0:1]],
    )


@cases(x.clone(), index, mask)
def index_assignment(x: Tensor, index: Tensor, mask: Tensor) -> Any:
    x[0] = 1
    x[0, 1, 2] = 5.5
    x[..., 3] = x[..., 2]
    x[index, 0] = torch.zeros(4)
    x[mask] = -1
    x[:, 1:] += 10
    x[:, :, :2] *= x[0, 0, 0]
    x[1, [0, 2]] = 7
    return x.sum()


@cases(x, index, graphs=None, breaks=1)
def boolean_mask(x: Tensor, index: Tensor) -> Any:
    y = x + 1
    return y[index > 0] * 2


@cases(x)
def scalars_and_operators(x: Tensor) -> Any:
    n, f, b = 3, 0.5, True
    return (
        x + n,
        n - x,
        x * f,
        f / (x + 1),
        x // 2,
        7 // (x + 1),
        x % 3,
        -x,
        +x,
        x**2,
        2**x,
        x > n,
        n >= x,
        x == 1,
        x != 1,
        ~(x > 1),
        (x > 1) & (x < 9),
        (x > 1) | b,
        (x > 1) ^ True,
        x.int() << 1,
        x.int() >> 1,
        abs(x),
        x @ x.mT,
        1j * x,
        x + b,
        (x * 1.7).round(),
        pow(x, 2),
        x.int() & 3,
    )


@cases(torch.arange(6))
def integer_tensors(i: Tensor) -> Any:
    return (
        i + 1,
        i / 2,
        i // 2,
        i * 1.5,
        i.float().mean(),
        i.bool(),
        i.sum(),
        i.max(),
        i.cumsum(0),
        i.dtype,
        (i > 2).sum(),
        ~i,
        i.to(torch.uint8) + 250,
    )


@cases(x)
def shapes(x: Tensor) -> Any:
    b, c, d = x.shape
    s = x.size()
    y = x.reshape(b * c, d).view(-1, 2).view(*s)
    z = x.permute(*reversed(range(x.dim())))
    w = x.expand(5, *x.shape)
    return (
        y,
        z,
        w,
        s,
        s[1:],
        s.numel(),
        x.size(0),
        x.size(-1),
        x.shape[0] + 1,
        len(x),
        x.ndim,
        x.numel(),
        list(s),
        tuple(s),
        s == (2, 3, 4),
        torch.Size([1, 2]),
        s + (1,),
        x.view(s[0], -1),
        (*s, 1),
        x.new_zeros(s),
        torch.zeros(*s[:2]),
        isinstance(s, tuple),
        sum(s),
        max(s),
    )


@cases(x)
def metadata(x: Tensor) -> Any:
    return (
        x.dtype,
        x.device,
        x.device.type,
        x.layout,
        x.requires_grad,
        x.is_contiguous(),
        x.stride(),
        x.stride(0),
        x.storage_offset(),
        x.is_floating_point(),
        x.element_size(),
        x.dtype.is_floating_point,
        x.dtype == torch.float32,
        x.is_cuda,
        x.dim(),
        x.is_leaf,
        x.grad,
        x.itemsize,
        torch.finfo(x.dtype).max,
        torch.finfo(torch.float16).eps,
        torch.iinfo(torch.int8).min,
        x.to("cpu").device == x.device,
        torch.get_default_dtype(),
        str(x.dtype),
        x.type(),
        torch.is_tensor(x),
        torch.is_tensor(1),
        torch.is_floating_point(x),
        x + 1,
    )


@cases(x)
def creation(x: Tensor) -> Any:
    return (
        torch.zeros(2, 3),
        torch.ones_like(x),
        torch.arange(5),
        torch.arange(1, 2, 0.25),
        torch.full((2,), 3.5),
        torch.eye(2),
        torch.tensor([1, 2]),
        torch.tensor(3.0),
        torch.linspace(0, 1, 3),
        x.new_ones(2),
        x.new_tensor([1.0, 2]),
        torch.empty(0),
        torch.zeros(2, dtype=torch.int64, device=x.device),
        torch.tensor([[x.dim(), 1]]),
        torch.as_tensor(2),
        torch.zeros((1,)).expand(3),
        torch.triu(torch.ones(3, 3)),
    )


@cases(x)
def random_numbers(x: Tensor) -> Any:
    return (
        torch.rand(3),
        torch.randn_like(x),
        F.dropout(x, 0.5),
        torch.randint(0, 9, (4,)),
        torch.randperm(5),
        x.bernoulli(0.5),
        torch.empty(3).normal_(),
    )


@cases(x)
def methods_and_functions(x: Tensor) -> Any:
    values, where = x.max(dim=1)
    top = x.topk(2, dim=-1)
    a, b = x.chunk(2, dim=2)
    parts = x.split([1, 2], dim=1)
    std, mean = torch.std_mean(x, dim=0)
    return (
        values,
        where,
        top.values,
        top.indices,
        top[0],
        a,
        b,
        parts,
        mean,
        std,
        x.sum((0, 1)),
        x.mean(-1, keepdim=True),
        torch.cat([x, x], dim=1),
        torch.stack([x, x]),
        x.unbind(1),
        torch.where(x > 3, x, 0.0),
        x.clamp(1, 5),
        x.masked_fill(x > 3, -1),
        F.softmax(x, -1),
        F.layer_norm(x, (4,)),
        torch.einsum("bij,bkj->bik", x, x),
        x.flatten(1),
        x.transpose(0, 1),
        x.unsqueeze(0).squeeze(0),
        x.argmax(),
        x.sort(dim=-1, descending=True)[0],
        torch.broadcast_tensors(x, x[0])[1],
        torch.meshgrid(x[0, 0], x[0, 0], indexing="ij")[0],
        x.type(torch.float64),
        x.double(),
        x.to(torch.int32),
        x.half().float(),
        x.gather(2, torch.zeros(2, 3, 1, dtype=torch.int64)),
        x.norm(),
        F.pad(x, (1, 1)),
        F.one_hot(torch.arange(3), 4),
        x.T if x.dim() == 2 else x.mT,
        x.roll(1, 0),
        x.flip(0),
        torch.tril(x),
    )


@cases(x)
def iterating_a_tensor(x: Tensor) -> Any:
    total = x[0] * 0
    for row in x:
        total = total + row
    first, second = x
    return (
        total,
        first,
        [r.sum() for r in x],
        list(x),
        len(list(x)),
        [*x[0]],
        {i: t for i, t in enumerate(x)},
        dict(zip("ab", x, strict=True)),
    )


@cases(x.clone(), repeat=1)
def in_place_methods(x: Tensor) -> Any:
    y = x.add_(1)
    z = x.clone().mul_(2).clamp_(max=5)
    x.copy_(z)
    x.unsqueeze_(0)
    w = x.t_() if x.dim() == 2 else x
    return y is x, z, w.shape, x.fill_diagonal_(0) if x.dim() == 2 else x


@cases(x.clone())
def in_place_through_views(x: Tensor) -> Any:
    row = x[0]
    column = row[:, 1]
    flat = x.view(-1)
    column.fill_(100)
    before = flat * 1
    flat[0] = -5
    row += 1
    return before, x.sum(), row, column, flat


@cases(x, graphs=None, breaks=1)
def tensor_valued_branch(x: Tensor) -> Any:
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


@cases(-x, graphs=None, breaks=1)
def tensor_valued_branch_other_side(x: Tensor) -> Any:
    y = x * 2
    z = y + 1 if y.sum() > 0 else y - 1
    return z * 3


@cases(x, graphs=None, breaks=1)
def item(x: Tensor) -> Any:
    n = x.sum().item()
    return x * n, n


@cases(x, graphs=None, breaks=None)
def numbers_out_of_tensors(x: Tensor) -> Any:
    return (
        int(x[0, 0, 1]),
        float(x.sum()),
        bool(x[0, 0, 0]),
        x[0, 0].tolist(),
        x + len(x.nonzero()),
        f"{x[0, 0, 1]:.2f}",
        [1, 2, 3][torch.tensor(1)],
        range(torch.tensor(3)),
    )


@cases(x, graphs=None, breaks=None)
def tensor_valued_loop(x: Tensor) -> Any:
    steps = 0
    while x.sum() > 10:
        x = x / 2
        steps += 1
    return x, steps


@cases(x, graphs=None, breaks=None)
def boolean_operators_on_tensors(x: Tensor) -> Any:
    return (
        (x.sum() > 0 and x.max() > 3),
        not x.any(),
        x.any() or x.all(),
        3.0 in x,
        x.all() is True,
        [v for v in x[0, 0] if v > 1],
        assert_positive(x + 1),
    )


def assert_positive(t: Tensor) -> Tensor:
    assert (t > 0).all(), "positive"
    return t


@cases(x, graphs=None, breaks=None)
def numpy_arrays(x: Tensor) -> Any:
    y = (x + 1).numpy()
    z = np.sin(y) + 1
    return torch.from_numpy(z) * 2, y.shape, float(np.mean(z)), torch.tensor(np.arange(3))


@cases(x, np.float64(2.5), graphs=None, breaks=None)
def numpy_arguments(x: Tensor, s: Any) -> Any:
    a = np.ones((2, 3, 4), dtype=np.float32)
    return x + torch.as_tensor(a), x * float(s)


@cases(x, graphs=2, breaks=1)
def print_in_the_middle(x: Tensor) -> Any:
    y = x + 1
    print("shape", tuple(y.shape))
    return y * 2


@cases(x, graphs=None, breaks=None)
def round_of_a_tensor(x: Tensor) -> Any:
    y = x + 1
    return round(y)  # type: ignore[call-overload]


@cases(x, graphs=None, breaks=None)
def wrong_shapes(x: Tensor) -> Any:
    y = x + 1
    return y + torch.ones(7)


@cases(x, graphs=None, breaks=None)
def wrong_shapes_caught(x: Tensor) -> Any:
    try:
        return x @ torch.ones(7, 7)
    except RuntimeError as error:
        return str(error), x + 1


@cases(x.clone().requires_grad_(), graphs=None, breaks=None)
def backward_inside(x: Tensor) -> Any:
    loss = (x * 2).pow(2).sum()
    loss.backward()
    return x.grad + 1, loss.detach()


@cases(x.clone().requires_grad_())
def gradients_outside(x: Tensor) -> Any:
    y = x * 2
    z = y.detach() + x
    return y, z, y.requires_grad, z.requires_grad, x.data, x.clone().detach().requires_grad


@cases(x, graphs=None, breaks=None)
def requires_grad_inside(x: Tensor) -> Any:
    w = torch.ones(4).requires_grad_()
    y = (x * w).sum()
    return torch.autograd.grad(y, w)[0] * 2, w.requires_grad


@cases(x)
def attributes_on_tensors(x: Tensor) -> Any:
    y = x + 1
    y.note = "hello"  # type: ignore[attr-defined]
    return y, y.note, hasattr(y, "other"), hasattr(y, "note")  # type: ignore[attr-defined]


@cases(x, [x + 1, (x, {"k": x})])
def same_tensor_in_many_places(x: Tensor, items: Any) -> Any:
    return items[1][0] is items[1][1]["k"], x is items[1][0], items[0] is x, x + items[1][0]


@cases(x, x[0], x.view(-1))
def views_as_arguments(x: Tensor, row: Tensor, flat: Tensor) -> Any:
    x.add_(1)
    return row * 1, flat.sum(), x


@cases(torch.tensor(3.0), torch.tensor(5), torch.empty(0))
def odd_sizes(s: Tensor, i: Tensor, e: Tensor) -> Any:
    return s + 1, i // 2, e.sum(), torch.cat([e, e]), s.view(1), e.shape, s.shape, i.dim(), s * i, [t for t in e]


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_tensors(case: Case) -> None:
    case.check()


def test_comparisons_called_by_their_names() -> None:
    """torch's namespace of operators has methods of these names, which are no operators."""

    def f(x: Tensor, y: Tensor) -> Any:
        return x.__eq__(y), x.__ne__(y), x.__lt__(y)

    assert_same(f, torch.ones(2), torch.zeros(2), graphs=1, breaks=0)
