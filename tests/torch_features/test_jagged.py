"""Jagged tensors in graphs: results, gradients and whose offsets they have are eager's, in calls of other sizes too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nested import nested_tensor, nested_tensor_from_jagged
from torch.utils import _pytree as pytree

import dynajit
from dynajit.report import records
from dynajit.report.explain import ExplainReport
from dynajit.torch_compat import COMPARES_RAGGED_SIZES

# lengths of the rows in each call: the same, of one sum, of others
LENGTHS = ((2, 3), (2, 3), (1, 4), (3, 2), (2, 2), (5, 3))
Arguments = Callable[[int, bool], tuple[Any, ...]]


def jagged(lengths: tuple[int, ...], grad: bool = False, scale: float = 1.0) -> Tensor:
    rows = [torch.linspace(-1, scale, n * 4).reshape(n, 4) for n in lengths]
    return nested_tensor(rows, layout=torch.jagged, requires_grad=grad)


def one(call: int, grad: bool) -> tuple[Any, ...]:
    return (jagged(LENGTHS[call], grad),)


def and_weight(call: int, grad: bool) -> tuple[Any, ...]:
    return jagged(LENGTHS[call], grad), torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_(grad)


def and_trained(call: int, grad: bool) -> tuple[Any, ...]:
    return jagged(LENGTHS[call]), torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_(grad)


def sharing(call: int, grad: bool) -> tuple[Any, ...]:
    """Two of one ragged size, but for the second call."""
    first = jagged(LENGTHS[call], grad)
    if call == 1:
        return first, jagged(LENGTHS[call])
    return first, nested_tensor_from_jagged(torch.ones(sum(LENGTHS[call]), 4), first.offsets())


def twice(call: int, grad: bool) -> tuple[Any, ...]:
    """The same one twice, but for every third call."""
    n = jagged(LENGTHS[call], grad)
    return n, jagged(LENGTHS[call], grad) if call % 3 == 1 else n


def apart(call: int, grad: bool) -> tuple[Any, ...]:
    return jagged(LENGTHS[call], grad), jagged(LENGTHS[call], grad, 2.0)


def values_and_offsets(call: int, grad: bool) -> tuple[Any, ...]:
    first, second = LENGTHS[call]
    return torch.ones(first + second, 4, requires_grad=grad), torch.tensor([0, first, first + second])


def and_offsets(call: int, grad: bool) -> tuple[Any, ...]:
    """Its own offsets, but for the second call."""
    n = jagged(LENGTHS[call], grad)
    return n, n.offsets().clone() if call == 1 else n.offsets()


def rows(call: int, grad: bool) -> tuple[Any, ...]:
    first, second = LENGTHS[call]
    return torch.ones(first, 4, requires_grad=grad), torch.ones(second, 4)


def by_shape(n: Tensor, m: Tensor) -> Tensor:
    return n * 2 if n.shape[1] == m.shape[1] else n * 3


def attention(n: Tensor) -> Tensor:
    heads = n.unflatten(-1, [2, 2]).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads)


# name -> function, arguments, whether the first call is one whole graph
PROGRAMS: dict[str, tuple[Callable[..., Any], Arguments, bool]] = {
    "pointwise": (lambda n: n.sin() * 2, one, True),
    "linear": (lambda n, w: F.linear(n, w).relu() @ w, and_weight, True),
    "linear that is trained": (lambda n, w: F.linear(n, w).relu().values() + n.values(), and_trained, True),
    "reductions": (lambda n: (n.sum(-1), n.sum(), n.mean(-1, keepdim=True) * n), one, True),
    "padded": (lambda n: torch.nested.to_padded_tensor(n, 0.0), one, True),
    "values and offsets": (lambda n: (n.sin().values() * 2, n.offsets() + 1), one, True),
    "normalised": (lambda n: F.layer_norm(torch.softmax(n, -1), (4,)), one, True),
    "layout": (lambda n: (n.transpose(1, 2).sin(), torch.cat([n, n], -1), *n.chunk(2, -1)), one, True),
    "made like it": (lambda n: torch.zeros_like(n) + torch.where(n > 0, n, -n).to(torch.float64), one, True),
    "returned": (lambda n: (n, n.detach() * 2), one, True),
    "longest row": (lambda n: n * n._get_max_seqlen() if n.is_nested else n, one, True),
    "written": (lambda n: (n.mul_(2), n + 1), one, False),
    "sum of two": (lambda n, m: n + m, sharing, True),
    "two apart": (lambda n, m: (n.sin(), m.cos()), apart, True),
    "sum of two apart": (lambda n, m: n + m, apart, False),
    "equal shapes": (by_shape, sharing, True),
    "equal shapes, the other way": (lambda n, m: by_shape(m, n), sharing, False),
    "one or two": (lambda n, m: n * 2 if n is m else n * 3 + 1, twice, True),
    "sizes that are plain": (lambda n: n.values() * n.shape[0] + n.size(-1) * len(n.shape), one, True),
    "strides": (lambda n: n.values() * n.stride(-1) + n.stride()[2], one, True),
    "view by its sizes": (lambda n: n.view(n.shape[0], n.size(1), 2, 2).transpose(1, 2) * 2, one, True),
    "reshaped by another's": (lambda n: n.reshape(*(n * 2).shape[:2], 2, 2).sin(), one, True),
    "ragged and a number": (lambda n: n * 2 if n.shape[1] == 3 else n * 3, one, True),
    "from values and offsets": (lambda v, o: nested_tensor_from_jagged(v, o).cos(), values_and_offsets, True),
    "with own offsets": (lambda n, o: n + nested_tensor_from_jagged(n.values() * 2, o), and_offsets, True),
    "of rows": (lambda a, b: nested_tensor([a, b], layout=torch.jagged).sin().values(), rows, True),
    "of rows with gradients": (lambda a, b: torch.nested.as_nested_tensor([a, b], layout=torch.jagged), rows, True),
    "rows": (lambda n: [row * 2 for row in n.unbind()], one, False),
    "attention": (attention, one, False),
}


def tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def plain(value: Tensor) -> list[Any]:
    if not value.is_nested:
        return [value.requires_grad, value.stride(), value.detach().clone()]
    jag: Any = value
    return [value.requires_grad, jag._ragged_idx, jag._size[:1], jag.values().detach().clone(), jag.offsets().clone()]


def observed(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """Results, gradients of the arguments, and which arguments have the offsets of which results."""
    try:
        results = tensors(fn(*args))
        parts = [each.values() if each.is_nested else each for each in results if each.requires_grad]
        if parts:
            sum(part.double().square().sum() for part in parts).backward()  # type: ignore[union-attr]
    except RuntimeError as error:
        return [hash(str(error).partition(" j")[0])]  # ragged sizes have numbers
    nested: Any = [each for each in args if each.is_nested]
    shared = [[arg._offsets is r._offsets for arg in nested] for r in results if r.is_nested]  # type: ignore[attr-defined]
    gradients = [plain(arg.grad) for arg in args if arg.grad is not None]
    return [list(map(plain, results)), gradients, list(map(plain, args)), shared]


@pytest.fixture
def recorded() -> Iterator[list[Any]]:
    found: list[Any] = []
    with records.listen(found.append):
        yield found


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_are_eagers(name: str, backend: str, grad: bool, recorded: list[Any]) -> None:
    fn, arguments, whole = PROGRAMS[name]
    compiled = dynajit.compile(fn, backend=backend)
    for call in range(len(LENGTHS)):
        expected = observed(fn, arguments(call, grad))
        found = observed(compiled, arguments(call, grad))
        torch.testing.assert_close(found, expected)
        if call == 0 and whole and COMPARES_RAGGED_SIZES:
            assert len(recorded) == 1 and ExplainReport(recorded).break_reasons == []
        if whole and not grad and COMPARES_RAGGED_SIZES:  # whatever the lengths
            assert {each.kind for each in ExplainReport(recorded).break_reasons} <= {
                "operation-raises",
                "varying-value",
            }


def without_its_function(n: Tensor) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return n.shape


def over_a_break(n: Tensor) -> Any:
    made = n * 2
    sizes = made.shape
    dynajit.graph_break()
    return n.shape, sizes, made.shape, made


def with_offsets_of_its_own(n: Any) -> Any:
    made = nested_tensor_from_jagged(n.values(), n.offsets().clone())
    return made.shape, made


def test_what_comes_back_is_the_tensor_itself_and_its_parts() -> None:
    compiled = dynajit.compile(lambda n: (n, n.offsets(), n * 2), backend="eager")
    for lengths in LENGTHS:
        n: Any = jagged(lengths)
        itself, offsets, _ = compiled(n)
        assert itself is n
        assert offsets is n.offsets()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize(
    ("fn", "same"),
    [
        (lambda n: (n.shape, n.size(1), n * 2), True),
        (lambda n: ((n * 2).shape, (n * 2).stride(), n.values() * 2), True),
        (lambda n: (n.shape[1] in n.shape, n.shape.index(4), n * 2), True),
        (without_its_function, True),
        (over_a_break, True),
        (with_offsets_of_its_own, False),
    ],
)
def test_a_ragged_size_is_that_of_the_tensor_at_hand(fn: Any, same: bool, backend: str) -> None:
    compiled = dynajit.compile(fn, backend=backend)
    for _ in range(3):
        n = jagged((2, 3))
        found, expected = (
            [x.shape if isinstance(x, Tensor) and x.is_nested else x for x in f(n)] for f in (compiled, fn)
        )
        for left, right in zip(found, expected, strict=True):
            if isinstance(left, Tensor):
                assert torch.equal(left, right)
            else:
                assert type(left) is type(right)
                assert (left == right) is same
        assert same or found[0] == found[1]


def of_a_view(n: Any) -> tuple[Tensor, ...]:
    heads = n.unflatten(-1, [2, 2]).transpose(1, 2)
    dynajit.graph_break()
    first = heads * 2
    n.mul_(3)
    second = heads + 1
    heads.add_(1)
    return first.values(), second.values(), n.values() * 1, heads.values() * 1


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_views_of_jagged_tensors_go_into_graphs(backend: str, recorded: list[Any]) -> None:
    compiled = dynajit.compile(of_a_view, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(jagged((2, 3))), of_a_view(jagged((2, 3))))
    if COMPARES_RAGGED_SIZES:
        assert len(ExplainReport(recorded).break_reasons) == 1


@pytest.mark.skipif(not COMPARES_RAGGED_SIZES, reason="this torch's jagged tensors end graphs")
def test_sizes_that_change_are_not_compiled_for_each() -> None:
    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(lambda n: n.sin() * 2, backend=counter)
    for length in range(1, 12):
        n = jagged((length, 3))
        assert torch.equal(compiled(n).values(), n.sin().values() * 2)
    assert counter.frame_count == 2  # the whole, and what follows n.sin(); from then on jagged tensors end graphs


@pytest.mark.parametrize("part", [lambda nested: nested.values(), lambda nested: nested.unbind()[0]])
def test_views_of_tensors_that_are_nested_without_a_class_are_left_to_eager(part: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that these are a prototype
        given = part(nested_tensor([torch.ones(2, 4), torch.ones(2, 4)], layout=torch.strided))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(dynajit.compile(lambda x: x * 2)(given), given * 2)
