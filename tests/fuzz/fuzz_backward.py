"""Random programs that are differentiated several times: what a backward pass uses up, and what it leaves.

    python tests/fuzz/fuzz_backward.py 0 1000 --backend codegen

Passes start inside of the program and after it, from some of its results, with and without `retain_graph`: gradients,
or the error of a pass through a graph that is gone, have to be eager's. For seeds from `INSIDE` on somebody hears of
the gradients of results that other results were computed from, and those from `WIDE` on have the steps of `WIDE_STEPS`
too; those from `WRITTEN` on change what the program was given before the first pass. Of these some differ: an argument
that eager keeps, and an alias of it too, is kept once. Those from `LARGE` on do so with tensors that count as large,
and by steps that keep an argument and what is computed of it. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path[:0] = [str(Path(__file__).parents[2])]

import seeds  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import dynajit  # noqa: E402
from dynajit.aot.training import saved_copies  # noqa: E402

#: Seeds from here on have hooks on results, and ask for gradients of results.
INSIDE = 1_000_000
#: Seeds from here on have more kinds of steps; every other one has hooks on results.
WIDE = 2_000_000
#: Seeds from here on change the arguments between the call and the backward passes.
WRITTEN = 3_000_000
#: Seeds from here on have tensors of which backward may keep no copies.
LARGE = 4_000_000

# {a}: a name to bind; {b} and {c}: tensors of 4 x 4.
STEPS = (
    *("{a} = {b}.sin()", "{a} = {b}.exp()", "{a} = {b} * 2", "{a} = {b} + {c}", "{a} = {b} * {c}", "{a} = {b} @ {c}"),
    *("{a} = {b}.t()", "{a} = {b}.clone()", "{a} = {b}.detach()", "{a} = {b}.to(torch.float64).to(torch.float32)"),
    *("{a} = {b}[:, 1:].sum() + {c}", "{a} = {b}.relu()", "{a} = F.dropout({b}, 0.5)", "{a} = {b}.softmax(-1)"),
    *("{a} = {b}.clone(); {a}.mul_(2)", "{a} = {b} * 1; {a}.add_({c})", "{a} = {b} * 1; {a}.uniform_(0, 1)"),
    *("{a} = {b} * 1; {a}.zero_()", "{a} = {b}.exp(); {a}[0] = 1.0", "{a} = {b} * 1; {a}[:, 0].mul_(2)"),
    *("{a} = torch.where({b} > 0, {b}, {c})", "{a} = torch.cat({b}.chunk(2))", "{a} = {b}.cumsum(0)"),
    *("{a} = {b}.sum().expand(4, 4)", "{a} = {b} / 3", "{a} = {b}.abs()", "{a} = {b}.round()", "{a} = {b} ** 2"),
    *("{a} = torch.ones(4, 4, requires_grad=True) * {b}", "{a} = checkpoint(torch.sin, {b}, use_reentrant=False)"),
    *("{a} = torch.zeros(4, 4).copy_({b})", "{a} = torch.zeros(4, 4); {a}[1] = {b}[0]", "{a} = F.linear({b}, w)"),
    *("{a} = F.layer_norm({b}, (4,))", "{a} = {b}.double()", "{a} = {b}.max(0, keepdim=True)[0].expand(4, 4)"),
    *("{b}.mul_(2)", "{b}.add_({c})", "{b}.uniform_(0, 1)", "{b}.t().mul_(2)", "{b}[0] = {c}[1]", "{b}.copy_({c})"),
    *("{a} = {b}.view_as({b})", "{a} = {b}.unbind(0)[0] + {c}", "{a} = {b}.T.exp().T", "{a} = {b}.sin()[:, :]"),
    *("{b}.retain_grad()", "F.dropout({b}, 0.5)", "{a} = torch.rand_like({b}) + {b}", "{a} = Twice.apply({b})"),
    *("{a} = Square.apply({b})", "{b}.unbind(0)[1]", "torch.rand(2)", "dynajit.graph_break()"),
    *("{a}, {b} = Parts.apply({b}, {c})", "{a}, {b} = Shifted.apply({b}, {c})", "{a} = norm({b})"),
    *("F.leaky_relu({b}, 0.2, inplace=True)", "{a} = {b}.exp().view(-1)[8:].view(2, 4)[:1] + {c}", "{a} = {b}[:]"),
    *("{a} = Ones.apply({b})", "{a}, {b} = Shifted.apply({c}, {b}); {c} = {b} + {c}"),
    *("{a} = {b} * 1; {a}.register_hook(lambda g: torch.ones(4, 4))",),
    *("{b}.view(-1)[3:].mul_(2)", "{b}.sin_()", "{a} = in_half({b}, {c})", "{a} = {b}.sin().reshape(2, 8).view(4, 4)"),
)
WRITTEN_STEPS = """
{a} = {b} * {c}.data
{a} = {b}.data.exp() * {c}
{a} = {b}.data.t() @ {c}
{a} = {b} * {c}.detach()
{a} = {b} @ {c}.t()[:]
{a} = {b} + {c}.data.sin()
{a} = F.linear({b}, {c}).sigmoid() * {b}.data
""".strip().splitlines()
LARGE_STEPS = """
{a} = {b} * {c}.detach().sin() * {c}
{a} = ({b} * {c}).sin() * {b}
{a} = {b} * {b} * {c}
{a} = {b}.relu() * {c} + {b}.detach() * {c}
{a} = torch.where({b} > 0, {c} * {b}, {c})
{a} = {b} * {c}.double().float() * {c}
{a} = F.layer_norm({b}, (4,), {c}[0], {c}[1]) * {c}
{a} = F.log_softmax({b}, -1) * {b}
{a} = F.batch_norm({b}, None, None, {c}[0], {c}[1], True) * {b}
{a} = ({b} * 3).exp() @ {b}
{a} = in_half({b}, {c}) * {c}
{a} = ({b} @ {c}.tril()).tanh() + {b} * {c}
{a} = F.hardtanh({b}) * {b} + {c}.clamp(-1, 1) * {b}
""".strip().splitlines()
# Views that no_grad writes are not among them: torch itself dies when such a view, then a result, gets a hook.
WIDE_STEPS = """
{a} = Dirty.apply({b})
Dirty.apply({b})
{a} = {b} * 1; Dirty.apply({a})
{a} = Dirty.apply({b}.view(-1))
{a}, {b} = Partly.apply({b}, {c})
{a} = Named.apply({b}, 3)[0]
{a} = Same.apply({b})
{a} = Again.apply({b})
{a} = off(lambda: {b}[:])
{a} = off(lambda: {b}.t()); {c} = {c} * {a}
{a} = {b} * 1; off(lambda: {a}.mul_(2))
{a} = {b} * 1; {c} = off(lambda: {a}[1:]); {c}.mul_(2)
{a} = {b} * 1; {c} = {a}.unbind(0)[1] + {c}
{a} = {b} * 1; {a}.chunk(2)[0].mul_(2)
{a} = {b}.detach(); {a}.mul_(2)
{a} = {b} * 1; {a}.detach_()
{a} = off(lambda: ({b} * 2)[:])
{a} = {b} * 1; {a}.t().add_({c})
{b}.requires_grad_(True)
{a} = {b}.detach().requires_grad_(); ({a} * {c}).sum().backward()
{a} = {b} * 1; {a}.requires_grad and {a}.retain_grad()
{a} = {b}.sin(); {a}.register_hook(lambda g: g * 2)
{a} = {b}.sin(); {a}.register_hook(lambda g: g * 2); {a}.mul_(3)
{a} = asked({b}, {c})
{a} = asked({b}, {b})
{a} = kept({b})
{a} = checkpoint(scaled, {b}, by={c}, use_reentrant=False)
{a} = checkpoint(scaled, {b}, {c}, use_reentrant=True)
{a} = forward_mode({b}, {c})
x.grad = None
x.grad is None or x.grad.mul_(2)
{a} = {b} if x.grad is None else x.grad * {b}
{a} = {b}.data; {a}.mul_(2)
{a} = {b}.data * {c}
{a} = torch.func.grad(lambda t: (t.sin() * {c}).sum())({b})
{a} = torch.where({b} > 0, {b}.detach(), {c})
{a} = {b}.diagonal().expand(4, 4)
{a} = {b} * 1; {a}.diagonal().mul_({c}[0])
{a} = {b} * 1; {a}[:, 0], {a}[0] = {c}[1], {a}[:, 1]
{a} = {b}.view(2, 8)[:, ::2].t() @ {c}[:2]
{b}.sigmoid_()
{a} = {b} * 1; {a}.requires_grad and {a}.retain_grad(); {a}.exp_()
{a} = {b}.index_add(0, torch.tensor([1]), {c}[:1])
""".strip().splitlines()
PASSES = (
    *("{b}.sum().backward()", "({b} * 2).sum().backward()", "{b}.square().sum().backward()"),
    *("{b}.sum().backward(retain_graph=True)", "dynajit.graph_break()"),
)


class Twice(torch.autograd.Function):
    """Keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Square(torch.autograd.Function):
    """Keeps its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2 * ctx.saved_tensors[0]  # type: ignore[no-any-return]


class Parts(torch.autograd.Function):
    """Two results, and gradients of an input each, or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, one: Tensor | None, other: Tensor | None) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        return None if one is None else one * 2, None if other is None else other * 3


class Shifted(torch.autograd.Function):
    """Two results, and gradients that aren't linear in theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return one + 1, other.cos() * one


class Ones(torch.autograd.Function):
    """A gradient that is a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.ones(4, 4)


class Dirty(torch.autograd.Function):
    """Writes its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


class Partly(torch.autograd.Function):
    """Two results, one without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        product = x * y
        ctx.save_for_backward(y, product)
        ctx.mark_non_differentiable(product)
        return x * 2, product

    @staticmethod
    def backward(ctx: Any, grad: Tensor, none: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        y, product = ctx.saved_tensors
        return grad * y + none, grad * product if ctx.needs_input_grad[1] else None


class Named(torch.autograd.Function):
    """A number among its arguments and its results; what it keeps is an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: int) -> tuple[Tensor, int]:
        ctx.factor, ctx.root = factor, x.abs().sqrt()
        return x * factor, factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor, none: None) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.factor + ctx.root, None


class Same(torch.autograd.Function):
    """Gives its argument back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 7


class Again(torch.autograd.Function):
    """Differentiates in its backward, with gradients on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            (found,) = torch.autograd.grad(x.sin().sum(), x)
        return grad * found


def off(function: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return function()


def given_other_data(tensor: Tensor) -> None:
    tensor.data = tensor.data + 1


CHANGES: tuple[Callable[[Tensor], object], ...] = (
    *(given_other_data, lambda tensor: tensor.data.mul_(2), lambda tensor: off(lambda: tensor.mul_(2))),
    *(given_other_data, lambda tensor: off(lambda: tensor[1:].sin_()), lambda tensor: tensor.detach().t().add_(1)),
)


def asked(x: Tensor, y: Tensor) -> Tensor:
    """A gradient of what is made of them, by itself differentiable."""
    if not x.requires_grad:
        return x * y
    return torch.autograd.grad((x.sin() * y).sum(), x, create_graph=True)[0]


def kept(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return x.sin() * x


def scaled(x: Tensor, by: Tensor) -> Tensor:
    return (x * by).sin()


def forward_mode(x: Tensor, y: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, y.detach())
        return forward_ad.unpack_dual(dual.sin() * 2).tangent  # type: ignore[no-any-return]


def in_half(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ y).float()


def program(seed: int) -> str:
    """A function of three tensors that returns some of what it made, as text."""
    rng = random.Random(seed)
    names, lines = ["x", "y"], ["def main(x, y, w):"]
    count = rng.randint(1, 5)
    inside = rng.randint(1, count) if rng.random() < 0.6 else 0
    for number in range(1, count + 1):
        made = rng.choice(names) if rng.random() < 0.4 else f"t{number}"
        more = LARGE_STEPS if seed >= LARGE else WRITTEN_STEPS if seed >= WRITTEN else WIDE_STEPS
        step = rng.choice(more if seed >= WIDE and rng.random() < 0.6 else STEPS)
        lines.append("    " + step.format(a=made, b=rng.choice(names[-3:]), c=rng.choice(names[-3:])))
        if "{a}" in step and made not in names:
            names.append(made)
        if number == inside:
            start = rng.choice(names)
            lines.append(f"    if {start}.requires_grad: " + rng.choice(PASSES).format(b=start))
    results = rng.sample(names, rng.randint(1, min(3, len(names))))
    return "\n".join([*lines, f"    return {', '.join(results)},"])


def _error(error: Exception) -> tuple[str, str]:
    return (type(error).__name__, str(error).split(":")[0].split(". ")[0][:90])


def observed(main: Callable[..., tuple[Tensor, ...]], seed: int) -> list[Any]:
    """The results of a call, and the gradients after each backward pass or why it failed."""
    rng = random.Random(seed + 1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    leaves = [torch.randn(4, 4).requires_grad_(wanted) for wanted in (True, seed % 3 > 0, seed % 2 > 0)]
    late = rng.random() < 0.5  # hooks that are there only when the results are
    hooked = [leaf for leaf in leaves if leaf.requires_grad and rng.random() < 0.4]
    for leaf in hooked[: 0 if late else None]:
        leaf.register_hook(lambda grad: grad * 2)
    given = [leaves[0] * 1 if seed % 5 == 0 else leaves[0].exp() if seed % 7 == 0 else leaves[0], *leaves[1:]]
    try:
        results = [result for result in main(*given) if result.requires_grad]
    except (RuntimeError, TypeError) as error:
        return [_error(error)]
    for leaf in hooked if late else ():
        leaf.register_hook(lambda grad: grad * 2)
    found: list[Any] = [[result.detach().clone() for result in results]]
    found.append([None if leaf.grad is None else leaf.grad.clone() for leaf in leaves])
    for _ in range(rng.randint(1, 2) if seed >= WRITTEN else 0):
        rng.choice(CHANGES)(rng.choice(given))
    if WIDE > seed >= INSIDE or (WRITTEN > seed >= WIDE and seed % 2):
        return [*found, *_heard(rng, results, leaves)]
    for _ in range(rng.randint(1, 3) if results else 0):
        starts = results if rng.random() < 0.5 else [rng.choice(results)]
        if seed % 4 == 3 and seed < WRITTEN:  # which can't run again with what it was given
            found.append(_penalised(starts, leaves))
            continue
        before = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
        try:
            torch.autograd.backward([start.sum() * 3 for start in starts], retain_graph=rng.random() < 0.3)
        except (RuntimeError, TypeError) as error:
            found.append(_error(error) if seed < WRITTEN else None)  # of two reasons either
            for leaf, grad in zip(leaves, before, strict=True):  # how far a pass got that fails is the engine's affair
                leaf.grad = grad
        found.append([None if leaf.grad is None else leaf.grad.clone() for leaf in leaves])
    return found


def _heard(rng: random.Random, results: list[Tensor], leaves: list[Tensor]) -> list[Any]:
    """What hooks of results are told, the gradients of results, and those of leaves after them."""
    told: list[list[Any]] = [[] for _ in results]
    for result, its in zip(results, told, strict=True):
        kind = rng.choice(("none", "none", "sees", "changes", "keeps"))
        if kind == "keeps":
            result.retain_grad()
        elif kind != "none":
            result.register_hook(its.append if kind == "sees" else lambda grad: grad * 3)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found: list[Any] = []
    for _ in range(rng.randint(1, 2) if results else 0):
        ends = [result.sum() * 3 for result in rng.sample(results, rng.randint(1, len(results)))]
        asked = rng.sample([*results, *wanted], rng.randint(1, len(results)))
        way, again, whole = rng.random(), rng.random() < 0.3, rng.random() < 0.5
        try:
            if way < 0.4:
                torch.autograd.backward(ends, retain_graph=True)
            elif way < 0.6:
                torch.autograd.backward(ends, retain_graph=True, inputs=asked)
            else:
                options = {"materialize_grads": True} if whole else {"allow_unused": True}
                given = torch.autograd.grad(ends, asked, retain_graph=True, create_graph=again, **options)
                ends = [grad.square().sum() for grad in given if grad is not None and grad.requires_grad]
                found.append([None if grad is None else grad.detach() for grad in given])
                if ends and again:
                    more = torch.autograd.grad(ends, wanted, retain_graph=True, allow_unused=True)
                    found.append([torch.zeros(()) if grad is None or not grad.any() else grad for grad in more])
        except (RuntimeError, TypeError) as error:
            return [*found, _error(error)]
        if way < 0.4:  # else not all of the graph is gone through: less in eager mode than where it is one node
            found.append([[each.detach().clone() for each in its if each is not None] for its in told])
        found.append([None if each.grad is None else each.grad.clone() for each in (*leaves, *results)])
    return found


def _penalised(starts: list[Tensor], leaves: list[Tensor]) -> Any:
    """Gradients and those of their squares, zeros where there are none."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]

    def of(ends: list[Tensor], again: bool) -> list[Tensor]:
        found = torch.autograd.grad([end.square().sum() for end in ends], wanted, None, True, again, allow_unused=True)
        return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(wanted, found, strict=True)]

    try:
        first = of(starts, again=True)
        ends = [grad for grad in first if grad.requires_grad]
        return [*first, *(of(ends, again=False) if ends else ())]
    except (RuntimeError, TypeError) as error:
        return _error(error)


def same(left: Any, right: Any, close: float = 1e-4) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(*pair, close) for pair in zip(left, right, strict=True))
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.allclose(left, right, close, close / 10, equal_nan=True)
    return bool(left == right)


def finding(seed: int, backend: str) -> str | None:
    """What differs between the seed's program in eager mode and compiled, cold or warm; None: nothing."""
    source = program(seed)
    scope = {**globals(), "F": F, "checkpoint": checkpoint}
    scope["norm"] = torch.nn.BatchNorm1d(4).requires_grad_(False)
    exec(compile(source, f"<backward {seed}>", "exec"), scope)
    wanted = observed(scope["main"], seed)
    dynajit.reset()
    run = dynajit.compile(scope["main"], backend=backend)
    close = 5e-2 if "in_half" in source else 1e-4
    for call in ("first", "second"):
        with mock.patch.object(saved_copies, "SMALL", 0 if seed >= LARGE else saved_copies.SMALL):
            found = observed(run, seed)
        if not same(found, wanted, close):
            place = next((at for at, pair in enumerate(zip(found, wanted)) if not same(*pair, close)), len(found))
            return f"{source}\n  {call} call, at {place}: {found[place:][:1]}, not {wanted[place:][:1]}"
    return None


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(seeds.run(__doc__.splitlines()[0], finding))
