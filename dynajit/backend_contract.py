"""What every backend has to do: small programs, each run in eager mode and compiled by the backend.

In:  a backend, by name or as a callable. Out: `check(backend)`: a verdict on each program; `PROGRAMS` and
     `check_program`, for tests that run them one by one. `python -m dynajit check-backend NAME` prints them.
One more demand: a function under `@program`, which says in its docstring what is asked for.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynajit.testing import assert_same

# float32 through another library's functions
TOLERANCE = 2e-5

Calls = tuple[Callable[..., Any], list[tuple[Any, ...]]]


class ContractProgram(NamedTuple):
    """A demand: its name, what it asks for, and what makes the function and the arguments of its calls."""

    name: str
    demand: str
    make: Callable[[], Calls]
    options: dict[str, Any]


class Verdict(NamedTuple):
    """Whether a backend does what a program asks for; `fault` says what differs, and is empty if it does."""

    program: ContractProgram
    fault: str


PROGRAMS: list[ContractProgram] = []


def program(**options: Any) -> Callable[[Callable[[], Calls]], Callable[[], Calls]]:
    """Add a demand; `options` go to `assert_same`."""

    def add(make: Callable[[], Calls]) -> Callable[[], Calls]:
        demand = " ".join((make.__doc__ or "").split())
        PROGRAMS.append(ContractProgram(make.__name__.replace("_", " "), demand, make, options))
        return make

    return add


def check_program(backend: str | Callable[..., Any], asked: ContractProgram) -> None:
    """Run one. Raises AssertionError saying in which call and place the backend differs from eager mode."""
    torch.manual_seed(0)
    function, (first, *then) = asked.make()
    kwargs = {"rtol": TOLERANCE, "atol": TOLERANCE, **asked.options}
    assert_same(function, *first, then=then, backend=backend, **kwargs)


def check(backend: str | Callable[..., Any], only: str = "") -> Iterator[Verdict]:
    """Run those with `only` in their names, one after another."""
    for asked in PROGRAMS:
        if only not in asked.name:
            continue
        try:
            check_program(backend, asked)
        except AssertionError as error:
            yield Verdict(asked, str(error))
        except Exception:  # whatever a backend raises is its fault
            yield Verdict(asked, traceback.format_exc(limit=-3))
        else:
            yield Verdict(asked, "")


def _floats(*shape: int) -> Tensor:
    return torch.randn(shape)


@program(graphs=1)
def pointwise() -> Calls:
    """Arithmetic and functions of elements; one graph."""
    return lambda x, y: torch.sigmoid(x * 2 + y).exp() - y.abs().sqrt(), [(_floats(4, 6), _floats(6))]


@program()
def not_a_number() -> Calls:
    """NaN, infinities and negative zero go through maximum, comparison, where and reduction as in eager mode."""
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), -0.0])

    def function(x: Tensor, y: Tensor) -> Any:
        return torch.maximum(x, y), x.clamp(-1, 1), x > y, torch.where(x > 0, x, y), x.amax(), 1 / x, torch.relu(x)

    return function, [(x, x.flip(0))]


@program()
def whole_numbers() -> Calls:
    """Whole numbers divide, shift, overflow and compare as in eager mode; dtypes of results are eager's."""
    x, y = torch.tensor([7, -7, 2**62, 5]), torch.tensor([2, 2, 4, -3])

    def function(x: Tensor, y: Tensor) -> Any:
        return x // y, x % y, x * y, x / y, (x > y).sum(), x.to(torch.int32) + 1, x.float().mean(), ~(x == y)

    return function, [(x, y)]


@program()
def dtypes() -> Calls:
    """float64, bfloat16, float16 and mixtures of them keep eager's dtypes."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> Any:
        return x + y, (x * 3).sum(), y * 2.5, z + 1, z.float() @ y.float().t()

    return function, [(_floats(3, 4).double(), _floats(3, 4).bfloat16(), _floats(3, 4).half())]


@program(graphs=1)
def reductions() -> Calls:
    """Sums, means, variances, arguments of maxima over dimensions, kept or not; softmax and layer norm."""

    def function(x: Tensor) -> Any:
        normed = nn.functional.layer_norm(x, (6,))
        return x.sum(0), x.mean((0, 1), keepdim=True), x.var(1), x.argmax(1), x.softmax(-1), normed, x.cumsum(1)

    return function, [(_floats(5, 6),)]


@program(graphs=1)
def products() -> Calls:
    """Matrix products, batched products, linear layers and convolutions."""

    def function(x: Tensor, w: Tensor, image: Tensor, kernel: Tensor) -> Any:
        return x @ w, torch.bmm(x[None], w[None]), nn.functional.conv2d(image, kernel, padding=1, stride=2)

    return function, [(_floats(4, 6), _floats(6, 3), _floats(2, 3, 8, 8), _floats(4, 3, 3, 3))]


@program()
def layouts() -> Calls:
    """Results have eager's strides: transposed, expanded, channels last, of inputs that are not contiguous."""

    def function(x: Tensor, image: Tensor) -> Any:
        return x.t() + 1, x.t().relu().contiguous(), image * 2, x[::2, 1:].exp(), x[0].expand(3, -1) + x[:3]

    return function, [(_floats(6, 5), _floats(2, 3, 4, 4).to(memory_format=torch.channels_last))]


@program()
def places_in_memory() -> Calls:
    """What is read by places in memory, of what has another order of dimensions, is what eager mode reads."""

    def function(x: Tensor) -> Any:
        y = x.t() * 2
        return torch.as_strided(y, (2, 2), (1, 3), 1) + 1, y.stride(), y.exp()

    return function, [(_floats(3, 4),)]


@program()
def sharing() -> Calls:
    """What is a view of an input, the input itself, or returned twice is so when compiled."""

    def function(x: Tensor) -> Any:
        y = x * 2
        return x, x.view(-1), y, y, y[0]

    return function, [(_floats(3, 4),)]


@program()
def writes() -> Calls:
    """Inputs that are written in place, whole, in part and through a view, hold what eager mode leaves in them."""

    def function(x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        y[1:, 0] = x[0, 0]
        y.view(-1)[-1] += 1
        return x + y

    return function, [(_floats(3, 4), _floats(3, 4))]


@program()
def sizes() -> Calls:
    """Later calls have other sizes, among them 1 and 0, and other whole numbers."""

    def function(x: Tensor, n: int) -> Any:
        return x.reshape(-1, 2).sum(0) * n, torch.cat([x, x[:, :1]], 1).tanh(), x.shape[0] + n, x.new_zeros(n, 2) + 1

    return function, [(_floats(rows, 4), n) for rows, n in ((3, 3), (5, 4), (6, 5), (1, 1), (0, 2))]


@program()
def sizes_that_are_equal_by_chance() -> Calls:
    """Two sizes that were equal when the graph was made differ later."""
    calls = [(_floats(n, 4), _floats(m, 4)) for n, m in ((3, 3), (5, 5), (6, 2), (2, 7))]
    return lambda x, y: (x.sum(0) + y.sum(0), torch.cat([x, y]).relu()), calls


@program(graphs=1)
def gradients() -> Calls:
    """A graph that trains: gradients of inputs that ask for them, and of no others."""

    def function(x: Tensor, w: Tensor, mask: Tensor) -> Any:
        return (nn.functional.gelu(x @ w) * mask).logsumexp(1), w.sum().detach()

    return function, [(_floats(4, 6).requires_grad_(), _floats(6, 3).requires_grad_(), _floats(4, 3))]


@program()
def a_training_step() -> Calls:
    """forward and backward of a module with batch norm, whose buffers change: gradients and buffers are eager's."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def function(x: Tensor) -> Any:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    return functools.partial(_with_fresh_statistics, model, function), [(_floats(16, 6),)]


def _with_fresh_statistics(model: nn.Module, function: Callable[..., Any], x: Tensor) -> Any:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    found = function(x)
    return found, [buffer.clone() for buffer in model.buffers()]


@program()
def a_module() -> Calls:
    """A module in inference under no_grad; results need no gradients."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()

    def function(x: Tensor) -> Any:
        with torch.no_grad():
            return model(x)

    return function, [(_floats(2, 3, 8, 8),), (_floats(3, 3, 8, 8),)]


@program()
def random_numbers() -> Calls:
    """Random numbers are eager's for the same seed, and so are those drawn after the call; so is dropout."""
    return lambda x: (torch.rand_like(x) + x.exp(), nn.functional.dropout(x, 0.5), torch.randn(3)), [(_floats(4, 5),)]


@program()
def indices() -> Calls:
    """Gathering, embedding, writing by index, sorting, masks."""

    def function(x: Tensor, where: Tensor) -> Any:
        picked = x.gather(0, where), nn.functional.embedding(where, x), x.index_select(1, where[0])
        return *picked, x.scatter_add(0, where, x[:2]), x.sort(1), x.masked_fill(x > 0, 0.5), x.tril()

    return function, [(_floats(5, 4), torch.tensor([[0, 1, 2, 3], [3, 2, 0, 0]]))]


@program()
def an_index_out_of_range() -> Calls:
    """What eager mode raises is raised."""
    return lambda x, where: x.exp()[where] + 1, [(_floats(3), torch.tensor([1])), (_floats(3), torch.tensor([7]))]


@program()
def results_that_are_no_tensors() -> Calls:
    """Constants, numbers, None and nothing at all among a graph's results; a scalar tensor of no dimension."""
    return lambda x: (1, None, x.shape, torch.ones(2), x.sum(), {"a": (x * 2,), "b": []}), [(_floats(3),)]


@program()
def several_graphs() -> Calls:
    """A function that breaks in the middle."""

    def function(x: Tensor) -> Any:
        y = x.exp() + 1
        print(end="")
        return y.sum(), (y * 2).log()

    return function, [(_floats(3, 4),)]
