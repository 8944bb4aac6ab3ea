"""Operations that raise in eager and not on fake tensors: the line runs for real, with the effects before it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.graph import refusals
from dynajit.graph.fake import FakeMode
from dynajit.testing import assert_same


def factor_of_another_kind(x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    try:
        x.mul_(0.9)
    except RuntimeError as error:
        seen.append(len(str(error)))


def own_element(x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    x.add_(x.view(-1)[0])


def own_transposed(x: torch.Tensor, seen: list[int]) -> None:
    try:
        x.t().add_(x)
    except RuntimeError:
        seen.append(2)


def shifted(x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    x[1:].mul_(x[:-1])


def expanded(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = x[:1].clone().expand(3, 3)
    seen.append(1)
    return y.add_(1)


def expanded_like(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    return x[:1].clone().expand(x.shape[0]).add_(1)


def not_for_bool(x: torch.Tensor, seen: list[int]) -> Any:
    seen.append(1)
    (x > 0).abs()
    return x


def minus_bool(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = x + torch.rand(())
    seen.append(1)
    return True - y


def mask_of_another_shape(x: torch.Tensor, seen: list[int]) -> None:
    try:
        seen.append(1)
        x[x[:, :1] > 0] = 0.5
    except IndexError as error:
        seen.append(len(str(error)))
    x.add_(1)


def rows_from_itself(x: torch.Tensor, seen: list[int]) -> None:
    try:
        seen.append(1)
        x.index_put_((torch.tensor([0]),), x)
    except RuntimeError as error:
        seen.append(len(str(error)))


def too_many_values(x: torch.Tensor, seen: list[int]) -> None:
    try:
        x.index_put_((torch.tensor([0, 1]),), torch.ones(3, 3, dtype=x.dtype))
    except RuntimeError as error:
        seen.append(len(str(error)))


def values_that_fit(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    x[torch.tensor([0, 2])] = torch.ones(1, 1, 3, dtype=x.dtype)
    x[torch.tensor([0]), 1] = 5
    return x.index_put_((torch.tensor([1, 0]),), x.clone()[:2])


def adds_another_dtype(x: torch.Tensor, seen: list[int]) -> None:
    try:
        x.index_add_(0, torch.tensor([0]), x[:1] > 0)
    except RuntimeError as error:
        seen.append(len(str(error)))


def matrices_of_two_dtypes(x: torch.Tensor, seen: list[int]) -> None:
    try:
        seen.append(1)
        x @= torch.eye(3, dtype=torch.float64)
    except RuntimeError as error:
        seen.append(len(str(error)))


def values_of_another_dtype(x: torch.Tensor, seen: list[int]) -> None:
    try:
        seen.append(1)
        x.index_put_((torch.tensor([0]),), torch.ones(3, dtype=torch.float64))
    except RuntimeError as error:
        seen.append(len(str(error)))


def values_with_more_dimensions(x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    x.index_put_((torch.tensor([0]),), torch.ones(1, 1, 3, dtype=x.dtype))


def no_order_of_bools(x: torch.Tensor, seen: list[int]) -> Any:
    seen.append(1)
    x.add_(1)
    y = (x > 2).median()
    seen.append(2)
    return y


def no_draws_of_bools(x: torch.Tensor, seen: list[int]) -> Any:
    y = torch.rand(3)
    try:
        return (x > 2).uniform_(0, 1)
    except NotImplementedError as error:
        seen.append(len(str(error)))
    return y, torch.rand(3)


def product_in_place(x: torch.Tensor, seen: list[int]) -> None:
    y = x
    y @= torch.eye(3, dtype=x.dtype)
    x.sub_(4)
    torch.relu_(x)


def resized_out(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    torch.add(x[:1, 0], 1, out=x)
    return x * 2


def scattered_from_itself(x: torch.Tensor, seen: list[int]) -> None:
    try:
        x.scatter_(0, torch.zeros(1, 3, dtype=torch.long), x)
    except RuntimeError as error:
        seen.append(len(str(error)))


def puts_another_dtype(x: torch.Tensor, seen: list[int]) -> None:
    try:
        seen.append(1)
        x.index_put_((torch.tensor([0]),), torch.ones(3, dtype=torch.float64))
    except RuntimeError as error:
        seen.append(len(str(error)))


def one_value_of_another_dtype_for_a_mask(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    return x.index_put_((x > 4,), torch.tensor(2, dtype=torch.int16))


def values_of_too_many_dimensions(x: torch.Tensor, seen: list[int]) -> None:
    try:
        seen.append(1)
        x[0].index_put_((torch.tensor([0]),), x[:1, :1])
    except RuntimeError as error:
        seen.append(len(str(error)))


def uniform_of_bools(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    for made in (x > 4, x.long(), x.float()):
        try:
            seen.append(1)
            made.uniform_(0, 1)
        except (RuntimeError, NotImplementedError) as error:
            seen.append(len(str(error)))
    return made + torch.rand(3)


def orders_of_bools(x: torch.Tensor, seen: list[int]) -> Any:
    for choose in (
        torch.argmax,
        lambda q: q.topk(2),
        lambda q: q.topk(2, dim=0, largest=False),
        lambda q: q.kthvalue(3),
    ):
        try:
            seen.append(1)
            choose(x > 4)
        except (RuntimeError, NotImplementedError) as error:
            seen.append(len(str(error)))
    return x.topk(3), x.argmax(0), x.var(0, keepdim=True) if x.is_floating_point() else x.sum([0, 1])


def summand_that_does_not_expand(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    try:
        seen.append(1)
        torch.addmm(x, x, x[:, :1])
    except RuntimeError as error:
        seen.append(len(str(error)))
    return torch.addmm(x[0], x, x) + torch.addmv(x[0], x, x[1]) + torch.addr(x, x[0], x[1])


def out_of_another_order(x: torch.Tensor, seen: list[int]) -> Any:
    results = []
    for compute in (
        lambda: torch.mul(x.t(), 2, out=x),
        lambda: torch.mul(x.t(), x.max(), out=x),
        lambda: torch.add(x[0], x[1], out=x[0]),
        lambda: torch.add(x[0], x, out=x),
        lambda: torch.add(x, x[:, :1], out=x[:, :1]),
        lambda: torch.cat([x[:1], x[1:]], out=x),
        lambda: torch.sum(x, 1, out=x[0]),
        lambda: torch.add(x, x, out=x[0].expand(3, 3)),
        lambda: torch.add(x, x, out=x),
    ):
        try:
            seen.append(1)
            x.neg_()
            results.append(compute() + 1)
        except RuntimeError as error:
            seen.append(len(str(error)))
    return results, x


def operand_of_another_size_is_out(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    z = x[0, :1]
    x.neg_()
    try:
        torch.mul(z, x, out=z)
    except RuntimeError as error:
        seen.append(len(str(error)))
    return z


def rows_of_another_shape(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    for rows in (x[:1, :1], x[0], x[:1], x[:2], x[:1, None]):
        for add in (torch.index_add, torch.index_copy):
            try:
                x.neg_()
                x = add(x, -2, torch.tensor([0]), rows)
            except (RuntimeError, IndexError) as error:
                seen.append(len(str(error)))
    return x


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize(
    "fn",
    [
        factor_of_another_kind,
        own_element,
        own_transposed,
        shifted,
        expanded,
        not_for_bool,
        minus_bool,
        mask_of_another_shape,
        rows_from_itself,
        too_many_values,
        values_that_fit,
        scattered_from_itself,
        adds_another_dtype,
        matrices_of_two_dtypes,
        values_of_another_dtype,
        values_with_more_dimensions,
        no_order_of_bools,
        no_draws_of_bools,
        product_in_place,
        resized_out,
        puts_another_dtype,
        one_value_of_another_dtype_for_a_mask,
        values_of_too_many_dimensions,
        uniform_of_bools,
        orders_of_bools,
        summand_that_does_not_expand,
        out_of_another_order,
        operand_of_another_size_is_out,
        rows_of_another_shape,
    ],
)
def test_like_eager(fn: Any, dtype: torch.dtype, backend: str) -> None:
    assert_same(fn, torch.arange(9).reshape(3, 3).to(dtype), [0], backend=backend)


def same_elements(x: torch.Tensor) -> torch.Tensor:
    return x.add_(x).mul_(x[:]).div_(2)


def test_what_is_allowed_stays_in_the_graph() -> None:
    assert_same(same_elements, torch.ones(3, 3), graphs=1, breaks=0)


def reductions(x: torch.Tensor) -> Any:
    y = x.sum(1), x.mean([0, 1], keepdim=True), x.std(), x.amax(-1), x.cumsum(0), x.sort(), x.topk(2), x.argmin(0)
    return y, x.normal_(0, 2), torch.addmm(x[0], x, x), torch.baddbmm(x[None], x[None], x[None])


def test_what_works_stays_in_the_graph() -> None:
    assert_same(reductions, torch.ones(3, 3), graphs=1, breaks=0)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", [own_element, shifted, expanded_like])
def test_like_eager_with_dynamic_sizes(fn: Any, backend: str) -> None:
    compiled = dynajit.compile(fn, backend=backend, dynamic=True)
    for size in (4, 3, 5):
        with pytest.raises(RuntimeError) as wanted:
            fn(torch.ones(size), [0])
        with pytest.raises(RuntimeError) as got:
            compiled(torch.ones(size), [0])
        assert str(got.value) == str(wanted.value)


def resized_like_transposed(x: torch.Tensor) -> Any:
    y = torch.sin(x.t(), out=torch.empty(0))
    z = torch.sin(x, out=torch.empty(0))
    return y.stride(), y * 2, z.stride(), z


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_strides_of_a_resized_out(backend: str) -> None:
    assert_same(resized_like_transposed, torch.randn(3, 3), backend=backend)


def sized_behind_the_break(x: torch.Tensor) -> Any:
    made = torch.empty(0, dtype=torch.float64)
    return torch.add(x.t(), 1, out=made), made.shape


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_out_is_as_large_as_before_where_its_operation_ends_the_graph(backend: str) -> None:
    assert_same(sized_behind_the_break, torch.randn(2, 3), backend=backend, breaks=1)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_out_gives_a_leaf_another_size(backend: str) -> None:
    """A variable that leads to the leaf keeps autograd's node of it, with the size from before."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = x * 2  # noqa: F841
        with torch.no_grad():
            torch.add(y, 1, out=x)
        return x.t()

    def gradient(f: Any) -> str:
        x = torch.ones(1, 1, requires_grad=True)
        result = f(x, torch.ones(1)).sum()
        with pytest.raises(RuntimeError) as caught:
            result.backward()
        return str(caught.value)

    assert gradient(dynajit.compile(f, backend=backend)) == gradient(f)


def written_over_its_row(x: torch.Tensor, count: int) -> str:
    for _ in range(1):
        x.add_(count)
    try:
        x[:1] = x[0]
    except RuntimeError as error:
        return str(error)
    return "written"


def test_overlap_of_one_element_beside_numbers_that_vary() -> None:
    compiled = dynajit.compile(written_over_its_row, backend="eager")
    for size, count in ((4, 2), (1, 1), (1, 3), (1, 4)):
        assert compiled(torch.ones(size, size), count) == written_over_its_row(torch.ones(size, size), count)


def transposed_in_inference_mode(x: torch.Tensor) -> None:
    with torch.inference_mode():
        x.swapaxes_(0, -1)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_another_layout_in_inference_mode(backend: str) -> None:
    assert_same(transposed_in_inference_mode, torch.randn(3, 4), backend=backend)


def test_private_kernels_that_trust_their_indices_are_not_tried() -> None:
    """With one offset that is also the last there is no bag, which torch's kernel does not survive."""
    weight, places = torch.randn(7, 4, dtype=torch.float16), torch.tensor([1, 2, 4, 5])

    def f(weight: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(places, weight, offsets, mode="max", include_last_offset=True)

    offsets = torch.tensor([0, 2, 4])
    torch.testing.assert_close(dynajit.compile(f)(weight, places, offsets), f(weight, places, offsets))


def bools_minus_a_number(x: torch.Tensor, number: int, seen: list[int]) -> torch.Tensor:
    try:
        x.neg_()
        return (x > 1) - number
    except RuntimeError as error:
        seen.append(len(str(error)))
        return x


def onto_its_first_row(x: torch.Tensor, y: torch.Tensor, seen: list[int]) -> torch.Tensor:
    try:
        x.neg_()
        x[:1] = y
    except RuntimeError as error:
        seen.append(len(str(error)))
    return x


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_numbers_and_sizes_that_vary(backend: str) -> None:
    compiled = dynajit.compile(bools_minus_a_number, backend=backend)
    other = dynajit.compile(onto_its_first_row, backend=backend)
    for size in (4, 1, 3, 5, 1):
        results = []
        for first, second in ((bools_minus_a_number, onto_its_first_row), (compiled, other)):
            seen: list[int] = []
            x = torch.ones(size, size)
            results.append((first(torch.ones(size), size + 1, seen), second(x, x[0], seen), seen))
        assert str(results[0]) == str(results[1])


def diagonal_in_inference_mode(x: torch.Tensor) -> None:
    with torch.inference_mode():
        x.fill_diagonal_(0)


def checkpoint_of_an_inference_tensor(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        x = x * 2
    return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)


def writes_to_an_inference_tensor(x: torch.Tensor) -> list[str]:
    found = []
    with torch.inference_mode():
        x = x * 2
    for view in (lambda q: q, lambda q: q.t(), lambda q: q[..., 0]):
        try:
            view(x).add_(1)
        except RuntimeError as error:
            found.append(str(error))
    return found


def writes_to_one_that_came_over_a_break(x: torch.Tensor) -> str:
    with torch.inference_mode():
        x = x * 2
        dynajit.graph_break()
    try:
        x.t().add_(-0.75)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize(
    "fn",
    [
        writes_to_an_inference_tensor,
        writes_to_one_that_came_over_a_break,
        diagonal_in_inference_mode,
        checkpoint_of_an_inference_tensor,
    ],
)
def test_inference_mode(fn: Any, backend: str) -> None:
    assert_same(fn, torch.randn(4, 4), backend=backend)


@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian", "mode", "argmax", "sort", "softmax"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_tensors_without_elements_raise_though_nobody_uses_the_result(name: str, shape: tuple[int, ...]) -> None:
    def fn(x: torch.Tensor, *args: int) -> Any:
        try:
            getattr(x, name)(*args)
        except Exception as error:
            return type(error), str(error)
        return None

    for args in ((), (0,), (1,), (-1,)):
        dynajit.reset()
        x = torch.zeros(shape)
        assert dynajit.compile(fn, backend="eager")(x, *args) == fn(x, *args)


def views_beyond_the_memory(x: torch.Tensor) -> Any:
    y = x + 1
    torch.as_strided(y, (20, 20), (1, 1))
    return y


def catches_a_view_beyond_the_memory(x: torch.Tensor) -> Any:
    try:
        return x.as_strided((20, 20), (1, 1)) * 2
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", [views_beyond_the_memory, catches_a_view_beyond_the_memory])
def test_views_beyond_the_memory_raise_though_nobody_uses_them(fn: Any, backend: str) -> None:
    for x in (torch.ones(7, 1), torch.ones(10, 2)[:, :1], torch.ones(50)[3:13]):
        assert_same(fn, x, backend=backend)


def pairs_in_memory(x: torch.Tensor) -> Any:
    try:
        return torch.as_strided(x * 2, (x.numel(), 2), (1, 1)) + 1
    except RuntimeError:
        return x


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_sizes_that_vary_take_no_view_beyond_the_memory(backend: str) -> None:
    """The first call takes a view of nothing; those after it would go one element too far."""
    assert_same(pairs_in_memory, torch.ones(0), then=[(torch.ones(n),) for n in (7, 3, 0, 5)], backend=backend)
    windows = [(torch.ones(n, 4),) for n in (3, 5, 6)]
    assert_same(
        lambda x: torch.as_strided(x, (x.shape[0], 2), (4, 1)) + 1,
        torch.ones(2, 4), then=windows, backend=backend, fullgraph=True,
    )  # fmt: skip


def test_views_inside_of_the_memory_are_captured() -> None:
    x = torch.arange(50.0)[3:13]
    for args in (((2, 2), (1, 1), 1), ((2, 2), (10, 1), 20), ((0, 9), (1, 1), 60), ((50,), (1,), 0)):
        assert_same(lambda x, args=args: x.as_strided(*args) + 1, x, fullgraph=True)


def test_pivots_are_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK writes where pivots say: a trial with others than it found harms the heap."""
    tried = []
    monkeypatch.setattr(refusals, "_tried", lambda func, *_: tried.append(func))
    a = torch.randn(3, 3, dtype=torch.float64)
    factors, pivots = torch.linalg.ldl_factor(a + a.T)
    assert_same(torch.linalg.ldl_solve, factors, pivots, torch.randn(3, 2, dtype=torch.float64))
    assert_same(torch.linalg.lu_solve, *torch.linalg.lu_factor(a), torch.randn(3, 2, dtype=torch.float64))
    assert not tried


def test_sizes_of_recurrent_layers_are_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's layer believes what it is told of the weights' sizes: a trial with weights of one element reads, and
    writes, far beyond them."""
    tried = []
    known = refusals._tried
    monkeypatch.setattr(refusals, "_tried", lambda func, *rest: tried.append(str(func)) or known(func, *rest))
    lstm, x = torch.nn.LSTM(8, 24, bidirectional=True).bfloat16(), torch.randn(5, 3, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(dynajit.compile(lstm)(x), lstm(x))
    assert not any("rnn" in name for name in tried)


def test_dimensions_of_fourier_transforms_are_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes in lists are one in a trial, and so are dimensions: a kernel that goes through one of them six times harms
    the heap."""
    tried = []
    known = refusals._tried
    monkeypatch.setattr(refusals, "_tried", lambda func, *rest: tried.append(str(func)) or known(func, *rest))
    x = torch.randn(2, 3, 2, 2, 2, 2, 2, dtype=torch.complex128)
    assert_same(lambda x: torch.fft.ifftn(torch.fft.fftn(x)), x, fullgraph=True)
    assert_same(lambda x: torch.fft.irfftn(x), x, fullgraph=True)
    assert not any("_fft_" in name for name in tried)


_SEEN_OTHERWISE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.transpose(0, -1),
    lambda x: x[:, None] if x.dim() > 1 else x,
    lambda x: x[None],
    lambda x: x[..., ::2],
    lambda x: x[1:] if x.shape[0] > 1 else x,
    lambda x: x.expand(2, *x.shape),
    lambda x: x.unsqueeze(-1),
]


def _is_taken(x: torch.Tensor, shape: tuple[int, ...]) -> bool:
    try:
        x.view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_shapes_that_memory_can_be_seen_in_are_those_of_eager(seed: int) -> None:
    """A random view of a random view, in each shape of up to three dimensions that has as many elements."""
    draw = random.Random(seed)
    chain = draw.choices(_SEEN_OTHERWISE, k=draw.randrange(4))
    start = torch.randn(draw.choices([1, 2, 3, 4], k=draw.randint(1, 3)))
    x = functools.reduce(lambda seen, step: step(seen), chain, start)
    mode = FakeMode(shape_env=None)
    fake = functools.reduce(lambda seen, step: step(seen), chain, mode.from_tensor(start))
    sizes = [size for size in range(1, x.numel() + 1) if x.numel() % size == 0]
    shapes = [(-1,), *((a, b, -1) for a in sizes for b in sizes if x.numel() % (a * b) == 0), *((a, -1) for a in sizes)]
    assert [_is_taken(fake, shape) for shape in shapes] == [_is_taken(x, shape) for shape in shapes]


def _seen_in_a_row(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    seen.append(1)
    x.t()[:, None].view(1, -1)
    return x + 1


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_shape_that_memory_cannot_be_seen_in_raises_though_nobody_uses_it(backend: str, dynamic: bool) -> None:
    assert_same(_seen_in_a_row, torch.randn(4, 3), [], backend=backend, dynamic=dynamic)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: F.adaptive_avg_pool2d(x, 2),
        lambda x: F.adaptive_max_pool2d(x, (2, 1)),
        lambda x: F.adaptive_avg_pool1d(x[0], 2),
        lambda x: F.max_pool2d(x > 0, 2),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    ],
)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_kernels_with_sizes_that_refuse_a_dtype_of_what_nobody_uses(op: Callable[..., Any], backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        op(x)
        return x + 1

    x = torch.arange(16).reshape(1, 1, 4, 4)
    with pytest.raises(NotImplementedError):
        program(x)
    assert_same(program, x, backend=backend)


def test_kernels_with_sizes_that_take_a_dtype() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.sum([2, 3]), F.max_pool2d(x, 2), x.flip([0, 1]), F.avg_pool2d(x, 2, padding=1), x.repeat([2, 1, 1, 1])

    assert_same(program, torch.arange(16).reshape(1, 1, 4, 4), graphs=1, breaks=0)


_LOOK_AT_VALUES: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda x, at: torch.segment_reduce(x, "sum", lengths=at, axis=0),
    lambda x, at: torch.nn.functional.multi_margin_loss(x, at),
    lambda x, at: torch.nn.functional.multilabel_margin_loss(x, at[:, None].expand(3, 2)),
    lambda x, at: torch.searchsorted(x[:, 0].contiguous(), x[:, 1].contiguous(), sorter=at),
    lambda x, at: torch.histogram(x / at[:, None], bins=3),
    lambda x, at: torch.fake_quantize_per_channel_affine(x, x[:, 0] + 1, at.int(), 0, 0, 9),
    lambda x, at: F.binary_cross_entropy(at[:, None] * x.sigmoid(), x.sigmoid()),
]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("op", _LOOK_AT_VALUES)
def test_kernels_that_look_at_values_raise_whether_or_not_the_result_is_used(
    op: Callable[..., Any], backend: str
) -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> tuple[str, torch.Tensor]:
        try:
            op(x, at)
        except RuntimeError as error:
            return str(error), x
        return "nothing", x + 1

    x = torch.arange(6.0).reshape(3, 2)
    then = [(x, torch.tensor(at)) for at in ([70, 0, 0], [0, 0, 0], [-1, 0, 0])]
    assert_same(program, x, torch.tensor([1, 1, 1]), then=then, backend=backend)

    def unguarded(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        op(x, at)
        return x + 1

    assert_same(unguarded, x, torch.tensor([1, 1, 1]), then=then, backend=backend)
    assert_same(lambda x, at: op(x, at), x, torch.tensor([1, 1, 1]), then=then, backend=backend)


_OUT_OF_ANOTHER_DTYPE: list[Callable[[torch.Tensor], Any]] = [
    lambda x: torch.logcumsumexp(x, 0, out=torch.zeros(3, 2, dtype=torch.float64)),
    lambda x: torch.logcumsumexp(x, 0, out=torch.zeros(3, 2, dtype=torch.int64)),
    lambda x: torch.frexp(x, out=(torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.int32))),
    lambda x: torch.cumprod(x, 0, out=torch.zeros(3, 2, dtype=torch.bfloat16)),
    lambda x: torch.add(x, x, alpha=2, out=torch.zeros(3, 2, dtype=torch.float64)),
    lambda x: torch.add(x, x, out=torch.zeros(3, 2, dtype=torch.int64)),
    lambda x: torch.sum(x, 0, out=torch.zeros(2, dtype=torch.float16)),
    lambda x: torch.eq(x, x, out=torch.zeros(3, 2)),
]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("op", _OUT_OF_ANOTHER_DTYPE)
def test_out_of_a_dtype_that_the_kernel_refuses_or_takes(op: Callable[..., Any], backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        op(x)
        return x + 1

    assert_same(program, torch.arange(6.0).reshape(3, 2), backend=backend)


_KERNELS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "softmax of a number": (lambda x: x.softmax(1), torch.tensor(1.5)),
    "softmax of a number, from the end": (lambda x: x.softmax(-2), torch.tensor(1.5)),
    "log_softmax of a number": (lambda x: x.log_softmax(0) + x.softmax(-1), torch.tensor(1.5)),
    "select_scatter": (lambda x: x.select_scatter(x[0], 0, 3), torch.ones(3, 4)),
    "select_scatter from the end": (lambda x: x.select_scatter(x[0], 0, -4), torch.ones(3, 4)),
    "max_pool1d": (lambda x: F.max_pool1d(x[None], 2), torch.arange(12).reshape(3, 4)),
    "interpolate": (lambda x: F.interpolate(x[None], scale_factor=2), torch.arange(12).reshape(3, 4)),
    "interpolate bytes": (lambda x: F.interpolate(x[None], scale_factor=2), torch.ones(3, 4, dtype=torch.uint8)),
    "margins": (lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 2])), torch.arange(12).reshape(3, 4)),
    "reflected": (lambda x: F.pad(x, (1, 1), mode="reflect"), torch.ones(3, 4, dtype=torch.bool)),
    "repeated at the ends": (lambda x: F.pad(x, (1, 1), mode="replicate"), torch.ones(3, 4, dtype=torch.bool)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", _KERNELS)
def test_what_generated_code_would_compute(name: str, dynamic: bool | None) -> None:
    function, x = _KERNELS[name]
    assert_same(function, x, backend="codegen", dynamic=dynamic)
