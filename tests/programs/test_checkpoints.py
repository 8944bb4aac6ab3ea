"""What activation checkpointing promises: what is kept between forward and backward, and the same randomness again."""

from __future__ import annotations

import collections
import functools
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapping
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import dynajit
from dynajit.testing import assert_same, compare

BACKENDS = ("eager", "codegen")
ROWS, WIDTH = 2048, 32
MOST = 1.1


class Block(nn.Module):
    """A layer of several large intermediate values."""

    def __init__(self, seed: int, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = dropout

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        hidden = F.gelu(self.first(self.norm(x))).sin() * scale
        return x + F.dropout(self.second(hidden), self.dropout, self.training)


class Model(nn.Module):
    """Blocks, each run by `how`."""

    def __init__(self, how: Callable[[nn.Module, Tensor], Tensor], dropout: float = 0.0, count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(seed, dropout) for seed in range(count))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.how(block, x)
        return x * 2


def plain(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]


def reentrant(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=True)  # type: ignore[no-any-return]


def by_keyword(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, scale=0.5, use_reentrant=False, early_stop=False)  # type: ignore[no-any-return]


def without_state(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


def nested(block: nn.Module, x: Tensor) -> Tensor:
    def outer(t: Tensor) -> Tensor:
        return checkpoint(block, t.sin(), use_reentrant=False).cos()  # type: ignore[no-any-return]

    return checkpoint(outer, x, use_reentrant=False)  # type: ignore[no-any-return]


def of_a_closure(block: nn.Module, x: Tensor) -> Tensor:
    shift = x.cos()

    def inner(t: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return block(t + shift), {"more": t.exp().sin(), "same": t}

    found, more = checkpoint(inner, x, use_reentrant=False)
    return found + more["more"] + more["same"]  # type: ignore[no-any-return]


def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    policy = checkpointing.CheckpointPolicy
    return policy.MUST_SAVE if op is torch.ops.aten.addmm.default else policy.PREFER_RECOMPUTE


def keep_exponentials(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    policy = checkpointing.CheckpointPolicy
    return policy.MUST_SAVE if op is torch.ops.aten.exp.default else policy.PREFER_RECOMPUTE


def by_policy(block: nn.Module, x: Tensor) -> Tensor:
    contexts = functools.partial(checkpointing.create_selective_checkpoint_contexts, keep_products)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]


def by_list(block: nn.Module, x: Tensor) -> Tensor:
    def contexts() -> Any:
        return checkpointing.create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]


def by_policy_made_inside(block: nn.Module, x: Tensor) -> Tensor:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return keep_products(ctx, op)

    contexts = functools.partial(checkpointing.create_selective_checkpoint_contexts, policy)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]


def counting_policy() -> Any:
    seen: dict[bool, int] = collections.defaultdict(int)

    def every_other_product(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        seen[ctx.is_recompute] += op is torch.ops.aten.addmm.default
        return keep_products(ctx, op if seen[ctx.is_recompute] % 2 else None)

    return checkpointing.create_selective_checkpoint_contexts(every_other_product)


def by_counting_policy(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False, context_fn=counting_policy)  # type: ignore[no-any-return]


def offloaded(block: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return block(x)  # type: ignore[no-any-return]


def behind_a_break(block: nn.Module, x: Tensor) -> Tensor:
    dynajit.graph_break()
    return plain(block, x)


def breaking_inside(block: nn.Module, x: Tensor) -> Tensor:
    def inner(t: Tensor) -> Tensor:
        dynajit.graph_break()
        return block(t)  # type: ignore[no-any-return]

    return checkpoint(inner, x, use_reentrant=False)  # type: ignore[no-any-return]


WHOLE = (
    plain,
    reentrant,
    by_keyword,
    without_state,
    nested,
    of_a_closure,
    by_policy,
    by_list,
    by_policy_made_inside,
    by_counting_policy,
)
FORMS = (*WHOLE, offloaded, behind_a_break, breaking_inside)


def sequential(reentrant: bool) -> nn.Module:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*(Block(seed) for seed in range(4)))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    return Sequence()


def given() -> Tensor:
    return torch.arange(ROWS * WIDTH).sin().view(ROWS, WIDTH).requires_grad_()


def _check(model: nn.Module, backend: str, kept: float | None = MOST, **counts: Any) -> None:
    """Results, what is kept, and gradients."""
    near = {} if backend == "eager" else {"rtol": 1e-2, "atol": 1e-2}
    assert_same(model, given(), kept=kept, backend=backend, **near, **counts)
    compiled = dynajit.compile(model, backend=backend)
    found = []
    for run in (model, compiled):
        x = given()
        model.zero_grad()
        torch.manual_seed(0)
        run(x).square().mean().backward()
        found.append([x.grad, *(p.grad for p in model.parameters()), torch.get_rng_state(), list(model.buffers())])
    compare(found[1], found[0], "gradients", exact=False, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", FORMS, ids=lambda form: form.__name__)
def test_keeps_what_eager_keeps(how: Callable[..., Tensor], backend: str) -> None:
    if how in WHOLE:
        _check(Model(how), backend, graphs=1, breaks=0)
    else:  # what operations outside of graphs give a continuation is kept for a second differentiation
        _check(Model(how), backend, kept=None if how is breaking_inside else MOST)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", [plain, reentrant, nested, by_list], ids=lambda form: form.__name__)
def test_draws_again_what_it_drew(how: Callable[..., Tensor], backend: str) -> None:
    _check(Model(how, dropout=0.5), backend, graphs=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_sequential(reentrant: bool, backend: str) -> None:
    _check(sequential(reentrant), backend, graphs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_are_updated_as_often_as_in_eager_mode(backend: str) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(lambda t: self.norm(t.sin()).exp(), x * 2, use_reentrant=False) + 1  # type: ignore[no-any-return]

    states = []
    for compiled in (False, True):
        model = Normed()
        run = dynajit.compile(model, backend=backend) if compiled else model
        for _ in range(2):
            run(given()).sum().backward()
        states.append(dict(model.named_buffers()))
    compare(states[1], states[0], exact=False)
    assert_same(Normed(), given(), kept=MOST, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_vary(backend: str) -> None:
    model = Model(plain)
    more = [(given()[:rows].detach().requires_grad_(),) for rows in (ROWS // 2, ROWS // 4)]
    assert_same(model, given(), then=more, kept=MOST, backend=backend, recompiles=1, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_gradients_it_is_a_call_like_others(backend: str) -> None:
    with torch.no_grad():
        report = assert_same(Model(plain), given(), backend=backend, graphs=1)
    assert "region" not in str(report)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients(backend: str) -> None:
    def penalty(x: Tensor) -> Tensor:
        return checkpoint(lambda t: t.sin() * t.exp(), x, use_reentrant=False).sum()  # type: ignore[no-any-return]

    found = []
    for run in (penalty, dynajit.compile(penalty, backend=backend)):
        x = given()
        (grad,) = torch.autograd.grad(run(x), x, create_graph=True)
        grad.square().sum().backward()
        found.append(x.grad)
    compare(found[1], found[0], exact=False)


def breaking(x: Tensor, w: Tensor) -> Tensor:
    kept = x.sin().exp()
    dynajit.graph_break()
    return F.dropout((kept @ w).sigmoid(), 0.3).tanh() * kept.cos()


def whole(x: Tensor, w: Tensor) -> Tensor:
    return F.dropout((x.sin().exp() @ w).sigmoid(), 0.3) * 2 + x


def _gradients(run: Callable[[Tensor, Tensor], Tensor], graph: bool = False) -> list[Tensor]:
    found = []
    for seed in range(3):
        x, w = (torch.linspace(-1, end, 64).view(8, 8).requires_grad_() for end in (1, 2))
        torch.manual_seed(seed)
        y = run(x, w)
        grads = torch.autograd.grad(y.sum(), [x, w], create_graph=graph)
        again = torch.autograd.grad(grads[0].square().sum(), [x, w]) if graph else ()
        found += [y.detach(), *grads, *again]
    return found


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "codegen"))
@pytest.mark.parametrize("early", (True, False))
@pytest.mark.parametrize("fn", (whole, breaking))
def test_a_compiled_function_is_computed_again(fn: Callable[..., Tensor], early: bool, backend: str) -> None:
    """checkpoint ends the second run from a hook, once all is there that backward needs."""

    def in_one(run: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        return functools.partial(checkpoint, run, use_reentrant=False, early_stop=early)

    run = dynajit.compile(fn, backend=backend)
    for form in (in_one, lambda run: in_one(in_one(run))):
        compare(_gradients(form(run)), _gradients(form(fn)), exact=False)


@pytest.mark.parametrize("fn", (whole, breaking))
def test_what_runs_under_hooks_of_torch_is_compiled(fn: Callable[..., Tensor]) -> None:
    """These give back what they were given; a graph under hooks of the program runs operator by operator."""

    def offloading(x: Tensor, w: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            y = fn(x, w)
        return y

    seen = dynajit.testing.CompileCounterWithBackend("codegen")
    run = dynajit.compile(offloading, backend=seen)
    for graph in (False, True):
        compare(_gradients(run, graph), _gradients(offloading, graph), exact=False)
    assert seen.frame_count == (1 if fn is whole else 2)


# ------------------------------------------------------------------------------------------------ random programs

STEPS = (
    *(
        "x.sin()",
        "torch.sigmoid(x)",
        "x @ W",
        "F.gelu(x)",
        "F.layer_norm(x, x.shape[-1:])",
        "x * y",
        "F.dropout(x, 0.5)",
        "F.dropout(x, 0.0)",
    ),
    *("x.softmax(-1)", "(x, y := x.exp())[0] * 0.1", "torch.where(x > 0, x, x * 0.5)", "x + W.sum(0)", "x.relu()"),
)
CALLS = (
    "checkpoint({}, x, y, use_reentrant=False)",
    "checkpoint({}, x, y, use_reentrant=True)",
    "checkpoint({}, x, y=y, use_reentrant=False)",
    "checkpoint({}, x, y, use_reentrant=False, context_fn=lambda: contexts([torch.ops.aten.mm.default]))",
    "checkpoint({}, x, y, use_reentrant=False, context_fn=lambda: contexts(keep_exponentials))",
    "{}(x, y)",
    "offloaded(lambda q: {}(q, y), x)",
    "checkpoint(lambda q: {}(q, y) * 2, x, use_reentrant=False)",
)

ROUNDS = ("{}", "{}", "for _ in range(2):\n    {}\n    dynajit.graph_break()")


def program(seed: int) -> str:
    """A function of several regions, as text."""
    rng = random.Random(seed)
    lines = ["def main(x, y):"]
    for number in range(rng.randint(1, 3)):
        lines.append(f"    def block{number}(x, y):")
        lines += [f"        x = {rng.choice(STEPS)}" for _ in range(rng.randint(2, 5))]
        lines.append("        return x")
        call = f"x = {rng.choice(CALLS).format(f'block{number}')}"
        lines += [f"    {line}" for line in rng.choice(ROUNDS).format(call).splitlines()]
        if rng.random() < 0.5:
            lines.append(f"    x = {rng.choice(STEPS)}")
    return "\n".join([*lines, "    return x"])


@pytest.mark.parametrize("backend", ("eager", "codegen"))
@pytest.mark.parametrize("seed", [*range(10), 12, 19, 48, 55, 80])
def test_random_regions(seed: int, backend: str) -> None:
    scope: dict[str, Any] = {
        **{"dynajit": dynajit, "torch": torch, "F": F, "checkpoint": checkpoint},
        **{"offloaded": offloaded, "keep_exponentials": keep_exponentials},
        "W": (torch.eye(WIDTH) * 0.5).requires_grad_(),
        "contexts": checkpointing.create_selective_checkpoint_contexts,
    }
    exec(compile(program(seed), f"<checkpoints {seed}>", "exec"), scope)
    main, y = scope["main"], given().detach().cos()
    near = {} if backend == "eager" else {"rtol": 1e-2, "atol": 1e-2}
    assert_same(main, given(), y, kept=MOST, backend=backend, **near)
    gradients = []
    for run in (main, dynajit.compile(main, backend=backend)):
        x = given()
        torch.manual_seed(0)
        run(x, y).sum().backward()
        gradients.append(x.grad)
    compare(gradients[1], gradients[0], program(seed), exact=False, rtol=1e-2, atol=1e-2)


# ------------------------------------------------------------------------------- lists from outside, and the warning

PRODUCTS = [torch.ops.aten.mm.default]
BOUND = functools.partial(checkpointing.create_selective_checkpoint_contexts, PRODUCTS)


@pytest.mark.parametrize(
    "contexts", [BOUND, lambda: checkpointing.create_selective_checkpoint_contexts(PRODUCTS)], ids=["partial", "lambda"]
)
def test_lists_of_operators_from_outside(contexts: Any) -> None:
    def fn(x: Tensor) -> Tensor:
        return checkpoint(lambda t: (t @ t).sin() @ t, x, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]

    x = torch.randn(4, 4, requires_grad=True)
    assert_same(fn, x, graphs=1, breaks=0)
    seen = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(fn, backend=seen)
    compiled(x)
    PRODUCTS.append(torch.ops.aten.sin.default)
    try:
        compiled(x)
    finally:
        PRODUCTS.pop()
    assert seen.frame_count == 2


def by_default(x: Tensor) -> Tensor:
    return checkpoint(torch.sin, x) + 1  # type: ignore[no-any-return]


def _warned(fn: Callable[[Tensor], Tensor], x: Tensor) -> list[Any]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fn(x)
    return [(str(each.message), each.category) for each in found]


def test_the_default_kind_and_its_warning() -> None:
    x = torch.randn(4, requires_grad=True)
    compiled = dynajit.compile(by_default, backend="eager", fullgraph=True)
    for _ in range(3):
        assert _warned(compiled, x) == _warned(by_default, x) != []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(by_default, x, graphs=1, breaks=0)
        assert_same(by_default, torch.randn(4))
        warnings.simplefilter("error")
        assert_same(by_default, x)


def test_wrapped_modules_whose_policy_counts() -> None:
    wrap: Any = wrapping.checkpoint_wrapper
    model = nn.Sequential(*(wrap(Block(seed), context_fn=counting_policy) for seed in range(2)))
    _check(model, "codegen", graphs=1, breaks=0)


def test_policy_whose_maker_has_effects() -> None:
    made: list[int] = []

    def contexts() -> Any:
        made.append(1)
        return counting_policy()

    def fn(x: Tensor) -> Any:
        made.clear()
        return checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts), len(made)

    assert_same(fn, given(), breaks=1)
