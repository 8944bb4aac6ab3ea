"""NumPy on tensors' arrays and on arrays from outside: in the graph, with NumPy's dtypes, layouts and memory."""

from __future__ import annotations

import itertools
import operator
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dynajit
from dynajit.testing import CompileCounter, assert_same
from dynajit.values.tensors import graph_arrays

x = torch.linspace(-1.5, 2, 24).reshape(4, 6)


def seen(value: Any) -> Any:
    """What can be told of a result, its numbers apart."""
    if isinstance(value, (tuple, list)):
        return type(value), [seen(part) for part in value]
    if isinstance(value, np.ndarray):
        steps = [step for step, size in zip(value.strides, value.shape, strict=True) if size > 1 and value.size]
        return np.ndarray, value.dtype, value.shape, steps, value.flags.writeable
    if isinstance(value, np.generic):
        return type(value)
    return (torch.Tensor, value.dtype, value.shape, value.stride()) if isinstance(value, torch.Tensor) else value


def numbers(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [number for part in value for number in numbers(part)]
    return [torch.as_tensor(np.asarray(value))] if isinstance(value, (np.ndarray, np.generic, torch.Tensor)) else []


def check(fn: Callable[..., Any], make: Callable[[], Any], graphs: int | None = 1, backend: Any = None) -> None:
    """Compare two calls with eager's: results and what became of the arguments."""
    counter = CompileCounter()
    dynajit.reset()
    compiled = dynajit.compile(fn, backend=backend or counter)
    for _ in range(2):
        expected_args, args = make(), make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, found = fn(*expected_args), compiled(*args)
        assert seen(found) == seen(expected)
        for mine, eager in zip(numbers([found, args]), numbers([expected, expected_args]), strict=True):
            torch.testing.assert_close(mine, eager, equal_nan=True, rtol=1e-5, atol=1e-6)
    if graphs is not None and backend is None:
        assert counter.frame_count == graphs


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda a: np.tanh(a) * 2 + a.mean() - np.pi,
    "reductions": lambda a: [a.sum(), a.max(axis=0), a.std(ddof=1), a.var(1), a.argmin(1), a.prod(), a.any()],
    "keepdims": lambda a: (a - a.mean(axis=1, keepdims=True)) / a.std(axis=1, keepdims=True),
    "shapes": lambda a: [a.T, a.reshape(-1, 2), a.ravel(), a.flatten(), a.swapaxes(0, 1), a[None]],
    "joining": lambda a: [np.concatenate([a, a * 2], 1), np.stack([a, a]), np.vstack([a, a[0]]), *np.split(a, 2)],
    "choosing": lambda a: [np.where(a > 0, a, -a), np.clip(a, -1, 1), np.maximum(a, 0), a.clip(0.5), np.sort(a, 0)],
    "items": lambda a: [a[0], a[0, 1], a[:, 1:3], a[..., -1], a[1:, ::2], a[[0, 2]], a[np.array([1, 1])], list(a)[1]],
    "products": lambda a: [a @ a.T, np.dot(a, a.T), np.einsum("ij,kj->ik", a, a), np.outer(a[0], a[1])],
    "dtypes": lambda a: [a.astype("float64"), a.astype(np.int32) + 1, a * np.float64(2), a * np.float32(2), ~(a > 0)],
    "scalars": lambda a: [a.sum() * 2, 1 / a.max(), a[0, 0] + a[1, 1], np.sqrt(abs(a[0, 0])), -a.sum()],
    "scans": lambda a: [np.cumsum(a), a.cumsum(0), np.diff(a), np.roll(a, 1), np.tile(a, 2), np.repeat(a, 2, axis=1)],
    "attributes": lambda a: [a.shape, a.ndim, a.size, a.dtype, len(a), isinstance(a, np.ndarray), a.strides, -a],
    "norms": lambda a: [np.linalg.norm(a), np.linalg.norm(a, axis=1), np.linalg.norm(a, 1, 0), np.linalg.norm(a, 2)],
    "matrices": lambda a: [f(a @ a.T + 9 * np.eye(4, dtype=a.dtype)) for f in (np.linalg.inv, np.linalg.det)],
    "solved": lambda a: [np.linalg.solve(a[:, :4] + 9 * np.eye(4, dtype=a.dtype), a), np.linalg.multi_dot([a, a.T, a])],
    "spectra": lambda a: [
        np.fft.fft(a / 8),
        np.fft.ifft(a, 4).real,
        np.fft.irfft(np.fft.rfft(a), 6),
        np.fft.fft2(a / 8),
    ],
    "shifted": lambda a: [np.fft.fftshift(a), np.fft.ifftshift(a, 1), np.fft.fft(a, axis=0, norm="ortho")],
    "filled": lambda a: [np.zeros_like(a), np.ones_like(a), np.full_like(a, 3), np.asarray(a), np.array(a)],
    "taken": lambda a: [np.take(a, [0, 5]), np.take(a, [1, 0], axis=1), a.take([-1, 2]), np.take(a, np.argsort(-a.T))],
    "close": lambda a: [np.isclose(a, a + 1e-9), np.isclose(a, 1.0), np.isclose(a / 0.0, a / 0.0, equal_nan=True)],
    "grids": lambda a: [np.meshgrid(a[0], a[1]), np.meshgrid(a[0], a[1], indexing="ij", sparse=True)],
    "parts": lambda a: [np.hsplit(a, 2), np.array_split(a, 3), np.gradient(a), np.ptp(a, 0), np.count_nonzero(a, 1)],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_functions_are_in_the_graph(name: str, dtype: torch.dtype) -> None:
    of_array = PROGRAMS[name]
    check(lambda x: of_array(x.numpy()), lambda: ((x * 4).to(dtype),), graphs=None if dtype is torch.int64 else 1)
    if name in ("taken", "close", "grids", "parts", "norms", "matrices", "solved", "spectra", "shifted"):
        # computed by torch's operations
        check(lambda x: of_array(x.numpy()), lambda: ((x * 4).to(dtype),), backend="aot_eager")


def test_a_matrix_without_an_inverse_raises_as_in_numpy() -> None:
    def f(x: Any) -> Any:
        try:
            return np.linalg.inv(x.numpy())
        except np.linalg.LinAlgError as error:
            return str(error)

    check(f, lambda: (torch.ones(2, 2),), graphs=None)
    check(f, lambda: (torch.ones(2, 2),), backend="aot_eager")


CALLS: list[Callable[[Any, Any], Any]] = [
    lambda f, a: f(a),
    lambda f, a: f(a, a),
    lambda f, a: f(a, 2),
    lambda f, a: f(a, 2.5),
    lambda f, a: f(a, axis=0),
    lambda f, a: f(a, axis=1, keepdims=True),
    lambda f, a: f([a, a]),
    lambda f, a: f(a, a[0]),
    lambda f, a: f(a > 0, a, a),
    lambda f, a: f(a, -1, axis=0),
    lambda f, a: f(a, (1, 0)),
    lambda f, a: f(a, a.T),
    lambda f, a: f(a, 0, 1),
    lambda f, a: f(a[1, 2]),
    lambda f, a: f(a[1, 2], a),
    lambda f, a: f(a, dtype="float64"),
]
SPECIAL = torch.tensor([[np.nan, 0.0, -0.0, 2.5], [0.5, np.inf, -2.5, -1.0], [3.0, 3.0, -np.inf, 1e-3]])
ARRAYS = [SPECIAL, SPECIAL.double(), x[:3, :4], x[:3, :4].T.contiguous().T, x[:3, :4] > 0, (x[:3, :4] * 3).long()]


def test_whatever_is_in_the_graph_is_what_numpy_gives() -> None:
    names = sorted(graph_arrays._FUNCTIONS | graph_arrays._OF_FLOATS)
    functions = [operator.attrgetter(name)(np) for name in names]
    functions += [lambda a, *r, name=name, **k: getattr(a, name)(*r, **k) for name in sorted(graph_arrays._METHODS)]
    rng = random.Random(0)
    compared = 0
    for _ in range(1000):
        function, call, array = rng.choice(functions), rng.choice(CALLS), rng.choice(ARRAYS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = call(function, array.clone().numpy())
            except Exception:  # not how this one is called
                continue
            dynajit.reset()
            run = dynajit.compile(lambda x: call(function, x.numpy()), backend="eager", fullgraph=True)  # noqa: B023
            try:
                found = run(array.clone())
            except dynajit.exc.Unsupported:
                continue
        compared += 1
        assert seen(found) == seen(expected), (function, expected)
        for mine, eager in zip(numbers(found), numbers(expected), strict=True):
            torch.testing.assert_close(mine, eager, equal_nan=True, rtol=1e-5, atol=1e-6)
    assert compared > 100


def test_an_array_goes_back_to_torch() -> None:
    def f(x: Any) -> Any:
        a = x.numpy()
        return torch.from_numpy(a * 2 + 1).relu(), torch.as_tensor(a), torch.tensor(a), torch.from_numpy(np.exp(a))

    check(f, lambda: (x.clone(),))
    check(f, lambda: (x.clone(),), backend="codegen")


def test_written_arrays() -> None:
    def f(x: Any) -> Any:
        a = x.numpy()
        b = a.copy()
        b[0] = 3
        b[:, 1] += a[:, 0]
        b *= 2
        b[1, 2] = b[2, 2]
        a[1:2] = 0  # in the tensor's memory
        c = a
        c -= 1
        return x + 1, a, b

    check(f, lambda: (x.clone(),))
    check(f, lambda: (x.clone(),), backend="codegen")


def test_results_share_memory_as_in_numpy() -> None:
    def f(x: Any) -> Any:
        a = x.numpy()
        return a, a[1:], a.T, a.reshape(-1), a.copy(), a.astype("float32")

    results = dynajit.compile(f)(x.clone())
    assert [np.shares_memory(results[0], other) for other in results[1:]] == [True, True, True, False, False]


def test_arrays_as_arguments() -> None:
    def f(a: Any, b: Any) -> Any:
        return np.sin(a) * b.sum() + b, a.shape

    counter = CompileCounter()
    compiled = dynajit.compile(f, backend=counter)
    for n in (3, 3, 4, 5):
        args = np.arange(n, dtype="float32"), np.ones((2, n))
        np.testing.assert_allclose(compiled(*args)[0], f(*args)[0], rtol=1e-6)
    assert counter.frame_count == 2  # the second one fits every size
    frozen = np.ones(3)
    frozen.flags.writeable = False
    backwards = np.arange(6.0)[::-1]
    for args in ((frozen, np.ones(3)), (backwards, np.ones(6)), (np.ones(3)[None].T, np.ones(3))):
        np.testing.assert_allclose(compiled(*args)[0], f(*args)[0])


def test_an_argument_is_written() -> None:
    def f(a: Any) -> Any:
        a += 1
        return a * 2

    check(f, lambda: (np.ones(3),))


def test_memory_that_may_be_shared_is_not_written_in_a_graph() -> None:
    def f(a: Any, x: Any) -> Any:
        first = a.sum()
        x.add_(1)
        return first, a.sum(), x * a

    def g(a: Any, x: Any) -> Any:
        x.add_(1)
        return a.sum(), a * 2

    def shared() -> Any:
        tensor = torch.ones(3)
        return tensor.numpy(), tensor

    for fn in (f, g):
        check(fn, shared, graphs=None)
        check(fn, lambda: (np.ones(3), torch.ones(3)), graphs=None)


def test_numbers_are_needed() -> None:
    def f(x: Any) -> Any:
        a = x.numpy() * 2
        if a.max() > 1:
            a = a + 1
        count = int((a > 0).sum())
        return a[a > 1], count, float(a[0, 0]), a * count

    check(f, lambda: (x.clone(),), graphs=None)
    check(f, lambda: (-x - 9,), graphs=None)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x + 1).numpy(),  # requires grad
        lambda x: x.detach().numpy() @ np.ones(7),
        lambda x: x.detach().numpy()[9],
        lambda x: x.detach().numpy().reshape(5, 5),
        lambda x: np.ones(3, dtype="int32").__iadd__(x.detach().numpy()[0, :3]),
    ],
)
def test_what_raises_raises(fn: Callable[..., Any]) -> None:
    leaf = x.clone().requires_grad_()
    with pytest.raises(Exception) as eager:
        fn(leaf)
    with pytest.raises(type(eager.value)) as found:
        dynajit.compile(fn, backend="eager")(leaf)
    assert str(found.value) == str(eager.value)


class Tagged(torch.Tensor):
    """A subclass that changes nothing."""


def test_the_array_of_a_subclass_is_no_internal_error() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.as_subclass(Tagged).numpy() + 1

    dynajit.counters["internal_errors"].clear()
    assert dynajit.compile(function, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
    assert not dynajit.counters["internal_errors"]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_autograd_hears_of_no_write_through_an_array(backend: str) -> None:
    def gradient(fn: Callable[..., Any]) -> Any:
        leaf = torch.arange(9.0).view(3, 3).requires_grad_()
        fn(leaf).backward()
        return leaf, leaf.grad

    def fn(x: torch.Tensor) -> torch.Tensor:
        middle = x.median()  # whose backward reads x
        array = x.detach().numpy()
        array *= 2
        return middle

    torch.testing.assert_close(gradient(dynajit.compile(fn, backend=backend)), gradient(fn), rtol=0, atol=0)


def test_an_array_that_the_graph_computed_owns_its_memory():
    def program(x):
        made = x * 2
        seen = x + 1
        part = seen[1:3]
        return made, part, np.concatenate([x, x])

    x = np.arange(6.0)
    for found in (program(x), dynajit.compile(program)(x)):
        made, part, joined = found
        assert made.base is None and made.flags.owndata and joined.base is None
        assert type(part.base) is np.ndarray
        made.resize(3, refcheck=False)
        assert made.tolist() == [0.0, 2.0, 4.0]


def test_a_tensor_over_an_array_that_the_graph_computed():
    def program(x):
        made = x * 2
        return made, torch.from_numpy(made)

    for found in (program, dynajit.compile(program)):
        made, tensor = found(np.arange(6.0))
        made[0] = 7
        assert tensor[0] == 7


def test_a_known_array_takes_in_place_what_the_graph_computed():
    def program(x):
        made = np.zeros(3, np.float32)
        same = made
        made += x.numpy()
        return same, same is made

    same, is_one = dynajit.compile(program)(torch.ones(3))
    assert same.tolist() == [1, 1, 1] and is_one


def _chosen(a: Any, value: Any) -> Any:
    b = a.copy()
    b[b < 0] = value
    b[b[:, 0] > 1, 1:3] = value
    b[[0, 2]] = value
    b[:, [1, -1]] = value
    b[[0, 1], [2, 2]] = b.max()
    b[np.array([1, 1]), 0] = True
    b[[True, False, True]] = 3
    a[a > 0.5] = 2
    return a, b


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("value", [0, 7.9])
def test_numbers_are_written_where_a_mask_or_indices_choose(dtype: torch.dtype, value: float) -> None:
    for backend in (None, "aot_eager"):
        check(lambda x: _chosen(x.numpy(), value), lambda: ((x[:3, :4] * 4).to(dtype),), backend=backend)


@pytest.mark.parametrize(
    ("index", "value"),
    [(np.array([0, 9]), 1), (np.zeros((4, 3), bool), 1), (np.array([0.5]), 1), ([], 1)]
    + [([[0], slice(None, None, -1)], 2)]
    + [(np.ones((3, 4), bool), value) for value in (np.nan, 1j, 1 << 70, "no")],
)
def test_what_numpy_refuses_to_write(index: Any, value: Any) -> None:
    key = tuple(index) if isinstance(index, list) and index else index

    def f(array: Any) -> Any:
        b = array * 2
        try:
            b[key] = value
        except Exception as error:
            return type(error), str(error)
        return b

    for array in (np.arange(12.0).reshape(3, 4), np.arange(12).reshape(3, 4)):
        check(f, lambda array=array: (array.copy(),), graphs=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_powers_and_remainders_by_pythons_integers(dtype: torch.dtype, backend: Any) -> None:
    def f(x: Any) -> Any:
        a = x.numpy()
        return [a**2, a**2.0, abs(a) ** 0.5, a**3, a**-1, a**1, a**0, 2**a, a // 2, a % 3, np.power(a, 2), a[0, 0] ** 2]

    check(f, lambda: ((x * 4 + 0.01).to(dtype),), backend=backend)


def test_arrays_of_computed_scalars_and_arrays_filled_anew() -> None:
    def f(x: Any) -> Any:
        a = x.numpy()
        new = np.empty_like(a)
        new[...] = a
        new[1].fill(2.5)
        return np.array([a.sum(), a.max(), a[0, 0]]), np.asarray([row.mean() for row in a]), new, new.sum()

    for backend in (None, "aot_eager"):
        check(f, lambda: (x.clone(),), backend=backend)


def _filled_by_rows(a: Any) -> Any:
    out = np.zeros((3, 8))
    for i in range(3):
        out[i] = a * i
    return out.sum(0), out, out.T


def _filled_by_items(a: Any) -> Any:
    out = np.zeros(8, np.float32)
    same = [out]
    out += a.astype(np.float32)
    out[0], same[0][1] = 7, a[0]
    weights = np.ones(3)
    weights *= a[:3]
    return out, same, same[0] is out, weights, len(out), out.dtype


def _filled_in_between(a: Any) -> Any:
    out = np.arange(8.0)
    for i in range(8):
        out[i] = a[i] if i % 2 else i
    out[out > 3] = a.max()
    tensor = torch.from_numpy(out)
    tensor += 1
    return out, tensor, out.mean(), np.concatenate([out, a])


def _filled_and_viewed(a: Any) -> Any:
    out = np.zeros(8)
    view = out[2:5]
    out[0], view[0], view[1] = a[0], 3, a[1]
    return out, view


def _filled_around_a_break(a: Any) -> Any:
    out = np.zeros(8)
    out[0] = a[0]
    dynajit.graph_break()
    out[1] = a[1]
    return out, out * 2


def _filled_wrongly(a: Any) -> Any:
    out = np.zeros(8, int)
    out[0] = 2
    try:
        out[9] = a[0]
    except IndexError as error:
        return out, str(error)
    return out


@pytest.mark.parametrize(
    ("fn", "graphs"),
    [
        (_filled_by_rows, 1),
        (_filled_by_items, 1),
        (_filled_in_between, 1),
        (_filled_and_viewed, None),
        (_filled_around_a_break, None),
        (_filled_wrongly, None),
    ],
)
def test_arrays_made_inside_are_filled_with_what_the_graph_computes(fn: Callable[..., Any], graphs: int | None) -> None:
    for backend in (None, "codegen"):
        check(fn, lambda: (np.linspace(-1.0, 1.0, 8),), graphs=graphs, backend=backend)
        assert_same(fn, np.linspace(-1.0, 1.0, 8), backend=backend or "eager")


def kept_apart_or_shared(x: torch.Tensor) -> Any:
    array = x.numpy()
    shared, own = torch.as_tensor(array, dtype=torch.float32), torch.tensor(array, dtype=torch.float32)
    shared.add_(1)
    own.add_(1)
    return x + own, torch.as_tensor(array, dtype=torch.float64).add_(1), x


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * torch.tensor(np.cumsum(x.numpy()), dtype=torch.float64),
        lambda x: torch.tensor(x.numpy() * 2.7, dtype=torch.int64),
        lambda x: torch.as_tensor(x.numpy().sum(), dtype=torch.float64),
        kept_apart_or_shared,
    ],
)
def test_a_tensor_of_an_array_and_a_dtype(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.linspace(-2, 2, 8), graphs=1, breaks=0)


def test_a_closed_over_array_behind_a_write_of_another_one() -> None:
    """They may share memory, so the graph ends where the second one is read."""
    rows, total = np.arange(12.0).reshape(4, 3), np.zeros(4)

    def f(x: torch.Tensor, i: int) -> Any:
        total[i] = 2.5
        return x + 1, rows[i] + 1

    assert_same(f, torch.ones(2), 1, then=[(torch.ones(2), 2)])


# what the program asks an array for by numbers that vary
BY_NUMBERS: tuple[Callable[[Any, int], Any], ...] = (
    lambda a, i: (a[2 * i : 2 * i + 2], a[i:], a[:i].sum(0), a[-i - 1 :], a[i : i + 6 : 2]),
    lambda a, i: (a[i:, i % 4], a[i, i % 4 :], a[..., i % 2 : 3], a[i : i + 2][0]),
    lambda a, i: (torch.from_numpy(a[i : i + 3]) * 2, a[i : 2 * i].mean(), a[i - 30 : i].shape),
)
WRITES: tuple[Callable[[Any, int], Any], ...] = (
    lambda a, i: a.__setitem__(slice(2 * i, 2 * i + 2), i),
    lambda a, i: a.__setitem__((slice(i, i + 3), 1), i * 0.5),
    lambda a, i: a.__setitem__(i, -i),
    lambda a, i: a.__setitem__((i, slice(None, i % 3)), a[i].sum()),
    lambda a, i: a.__setitem__([0, 2], i + 1),
    lambda a, i: a.__setitem__(..., i),
)
DTYPES = (np.float64, np.int64, np.float32, np.int8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", range(len(BY_NUMBERS)))
def test_slices_that_vary(number: int, dtype: Any) -> None:
    def read(x: torch.Tensor, a: Any, i: int) -> Any:
        return x + 1, BY_NUMBERS[number](a, i)

    a = np.arange(120).reshape(30, 4).astype(dtype)
    report = assert_same(read, torch.ones(2), a, 3, then=[(torch.ones(2), a, i) for i in (4, 5, 6, 9, 2)])
    assert len(report.recompile_reasons) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", range(len(WRITES)))
def test_writes_that_vary(number: int, dtype: Any) -> None:
    def written(x: torch.Tensor, a: Any, i: int) -> Any:
        WRITES[number](a, i)
        return x + 1, a.sum()

    a = np.arange(120).reshape(30, 4).astype(dtype)
    report = assert_same(written, torch.ones(2), a, 3, then=[(torch.ones(2), a, i) for i in (4, 5, 6, 9, 2)])
    # others may refuse the next number
    assert len(report.recompile_reasons) <= 1 or dtype is not np.float64 or number == 4


def _set_data(t: torch.Tensor, s: torch.Tensor) -> None:
    t.data = s.detach().clone()


def _behind_a_break(array: Any) -> Any:
    dynajit.graph_break()
    return array + 1


# An array is of the tensor as it was, whatever becomes of that: ways to make one, to change its tensor, to use it.
_ARRAYS: list[Callable[[torch.Tensor], Any]] = [
    torch.Tensor.numpy, np.asarray, lambda t: t.detach().numpy(), lambda t: t.numpy().T,
]  # fmt: skip
_CHANGES: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda t, s: t.add_(s), lambda t, s: t.t_(), lambda t, s: t.unsqueeze_(0), lambda t, s: t.requires_grad_(),
    lambda t, s: t.swapaxes_(0, 1).mul_(2), lambda t, s: t.as_strided_((2,), (1,), 1), _set_data,
]  # fmt: skip
_USES: list[Callable[[Any], Any]] = [lambda a: a, lambda a: a + 1, torch.from_numpy, _behind_a_break]


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_array_whose_tensor_changes(is_made: bool, requires_grad: bool) -> None:
    for array, change, use in itertools.product(_ARRAYS, _CHANGES, _USES):

        def program(t: torch.Tensor, s: torch.Tensor) -> Any:
            t = t + 1 if is_made else t
            found = array(t)  # noqa: B023
            change(t, s)  # noqa: B023
            return use(found), t  # noqa: B023

        s = torch.full((2, 3), 2.0, requires_grad=requires_grad)
        assert_same(program, torch.arange(6.0).view(2, 3), s, repeat=1)
