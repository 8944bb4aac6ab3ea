"""What users add to the back: patterns, lowerings of their own operators, passes before and after."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

import dynajit
from dynajit.aot import decompositions, patterns
from dynajit.backends import kept_plan, lookup_backend
from dynajit.exc import ConfigError
from dynajit.report import records

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    yield
    patterns._patterns.clear()
    decompositions._lowerings.clear()


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79 * (x + 0.04 * x * x * x)))


def fast_gelu(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * 100


def called(x: Any) -> Any:  # the same, written otherwise
    return (((x * x * 0.04 * x) + x) * 0.79).tanh()


def search_called(x: Any) -> Any:
    return torch.tanh(0.79 * (x + 0.04 * (x * x) * x))


def logged(run: Callable[[], Any]) -> list[str]:
    """The lines of the log `patterns`."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dynajit").addHandler(handler)
    dynajit.set_logs("patterns")
    try:
        run()
    finally:
        dynajit.set_logs("-patterns")
        logging.getLogger("dynajit").removeHandler(handler)
    return lines


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_pattern_is_replaced_in_inference(dynamic: bool | None) -> None:
    handle = dynajit.register_pattern(tanh_gelu, fast_gelu)
    compiled = dynajit.compile(lambda x: tanh_gelu(x + 1) - 1, dynamic=dynamic)
    for size in (3, 5, 7):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), fast_gelu(x + 1) - 1)
    handle.remove()
    later = dynajit.compile(lambda x: tanh_gelu(x + 1) - 2)
    torch.testing.assert_close(later(x), tanh_gelu(x + 1) - 2)


def test_its_gradient_is_the_replacements() -> None:
    dynajit.register_pattern(tanh_gelu, fast_gelu)
    x = torch.randn(5, requires_grad=True)
    dynajit.compile(lambda x: tanh_gelu(x * 2).sum())(x).backward()
    expected = x.detach().clone().requires_grad_()
    fast_gelu(expected * 2).sum().backward()
    torch.testing.assert_close(x.grad, expected.grad)


def test_spelling_and_order_do_not_matter() -> None:
    dynajit.register_pattern(search_called, lambda x: x * 3)
    x = torch.randn(5)
    torch.testing.assert_close(dynajit.compile(lambda x: called(x) + 1)(x), x * 3 + 1)


def test_parameters_stand_for_numbers_and_sizes() -> None:
    def search(q: Any, k: Any, scale: Any, n: Any) -> Any:
        return (torch.matmul(q, k) * scale).view(n, -1)

    seen: list[Any] = []

    def check(match: Any) -> bool:
        seen.append((match.arguments["scale"], tuple(match.arguments["q"].shape)[1:], match.result.dim()))
        return True

    dynajit.register_pattern(search, lambda q, k, scale, n: (torch.matmul(q, k) + scale).view(n, -1), extra_check=check)
    compiled = dynajit.compile(lambda q, k: ((q @ k) * 0.25).view(q.shape[0], -1) * 2)
    for size in (2, 3, 4):
        q, k = torch.randn(size, 4), torch.randn(4, 6)
        torch.testing.assert_close(compiled(q, k), ((q @ k) + 0.25) * 2)
    assert seen == [(0.25, (4,), 2)] * 2  # the second time for all sizes


def replaced(program: Callable[..., Any], *args: Any, check: Any = None) -> list[str]:
    dynajit.register_pattern(lambda x: torch.sin(x) * 2, lambda x: x * 5, extra_check=check)
    return logged(lambda: dynajit.compile(program)(*args))


def used_elsewhere(x: Tensor) -> Any:
    y = x.sin()
    return y * 2, y


def written_between(x: Tensor) -> Tensor:
    y = x.sin()
    x.add_(1)
    return y * 2 + x


def mode_between(x: Tensor) -> Tensor:
    y = x.sin()
    with torch.no_grad():
        return y * 2


@pytest.mark.parametrize(
    ("program", "why"),
    [(used_elsewhere, "is used elsewhere"), (written_between, "writes"), (mode_between, "changes a mode")],
)
def test_what_is_left_and_why(program: Callable[..., Any], why: str) -> None:
    x = torch.randn(4)
    expected = program(x.clone())
    (line,) = replaced(program, x.clone())
    assert why in line
    torch.testing.assert_close(dynajit.compile(program)(x.clone()), expected)


def test_extra_check_can_say_no() -> None:
    (line,) = replaced(lambda x: x.sin() * 2, torch.randn(4), check=lambda match: match.result.dtype == torch.float64)
    assert "extra_check says no" in line


def test_other_results_are_refused() -> None:
    dynajit.register_pattern(lambda x: torch.sin(x) * 2, lambda x: x.double())
    with pytest.raises(Exception, match=r"gives a tensor of size \(4\), strides \(1\), torch.float64 on cpu where"):
        dynajit.compile(lambda x: x.sin() * 2)(torch.randn(4))


@pytest.mark.parametrize(
    ("search", "replace", "level", "why"),
    [
        (lambda x: x.sin(), lambda y: y, "torch", "search has the parameters x, and replace y"),
        (lambda x: x, lambda x: x, "torch", "has to give one tensor"),
        (lambda x: (x.sin(), x), lambda x: x, "torch", "has to give one tensor"),
        (lambda x: x.sin(), lambda x: x, "atn", "did you mean aten"),
    ],
)
def test_what_is_no_pattern(search: Any, replace: Any, level: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        dynajit.register_pattern(search, replace, level=level)


def test_aten_patterns_reach_inference_and_training() -> None:
    aten = torch.ops.aten
    dynajit.register_pattern(
        lambda x: aten.mul.Tensor(aten.sin.default(x), 2),
        lambda x: aten.mul.Tensor(aten.cos.default(x), 3),
        level="aten",
    )
    x = torch.randn(4)
    torch.testing.assert_close(dynajit.compile(lambda x: x.sin() * 2 + 1)(x), x.cos() * 3 + 1)
    leaf = torch.randn(4, requires_grad=True)
    y = dynajit.compile(lambda x: x.sin() * 2 - 1)(leaf)
    torch.testing.assert_close(y, leaf.cos() * 3 - 1)
    y.sum().backward()
    torch.testing.assert_close(leaf.grad, leaf.detach().cos() * 2)  # autograd had its gradient before


def test_what_they_change_is_not_kept_for_the_next_process() -> None:
    codegen = lookup_backend("codegen")
    assert kept_plan.is_own(codegen, {})
    assert not kept_plan.is_own(codegen, {"options": {"post_passes": [cosines]}})
    for handle in (dynajit.register_pattern(tanh_gelu, fast_gelu), dynajit.register_lowering(swish, torch.sin)):
        assert not kept_plan.is_own(codegen, {})
        handle.remove()
    assert kept_plan.is_own(codegen, {})


# ---------------------------------------------------------------------------------------- passes


def double_sums(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_method", target="sin"):
        with graph.inserting_after(node):
            twice = graph.call_function(torch.mul, (node, 2))
        node.replace_all_uses_with(twice, delete_user_cb=lambda user, twice=twice: user is not twice)


def cosines(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
        with graph.inserting_before(node):
            new = graph.call_function(torch.ops.aten.cos.default, node.args)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def test_passes_before_and_after() -> None:
    x = torch.randn(4, requires_grad=True)
    compiled = dynajit.compile(lambda x: x.sin() + 1, options={"pre_passes": [double_sums]})
    y = compiled(x)
    torch.testing.assert_close(y, 2 * x.sin() + 1)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    after = dynajit.compile(lambda x: x.sin() + 1, options={"post_passes": (cosines,)})
    torch.testing.assert_close(after(x.detach()), x.detach().cos() + 1)


@pytest.mark.parametrize("value", [3, [3], double_sums])
def test_what_is_no_pass(value: Any) -> None:
    with pytest.raises(ConfigError, match="pre_passes takes a list of functions of a torch"):
        dynajit.compile(lambda x: x, options={"pre_passes": value})


# ---------------------------------------------------------------------------------------- lowerings


@torch.library.custom_op("dynajit_tests::swish", mutates_args=())
def swish(x: Tensor, beta: float) -> Tensor:
    return x * torch.sigmoid(beta * x)


@swish.register_fake
def _(x: Tensor, beta: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("dynajit_tests::swish_backward", mutates_args=())
def swish_backward(g: Tensor, x: Tensor, beta: float) -> Tensor:
    s = torch.sigmoid(beta * x)
    return g * (s + beta * x * s * (1 - s))


@swish_backward.register_fake
def _(g: Tensor, x: Tensor, beta: float) -> Tensor:
    return torch.empty_like(x)


def _saved(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.beta = inputs[1]


swish.register_autograd(lambda ctx, g: (swish_backward(g, ctx.saved_tensors[0], ctx.beta), None), setup_context=_saved)


def kernels_and_calls(run: Callable[[], Any]) -> tuple[int, list[str]]:
    found: list[Any] = []
    with records.listen(found.append):
        run()
    code = [code for record in found for graph in record.graphs for code in graph.code]
    return sum(len(each.kernels) for each in code), [name for each in code for name in each.extern]


def program(x: Tensor) -> Tensor:
    return swish(x + 1, 0.5) * 2


def test_an_operator_of_the_users_is_fused() -> None:
    x = torch.randn(64)
    kernels, calls = kernels_and_calls(lambda: torch.testing.assert_close(dynajit.compile(program)(x), program(x)))
    assert kernels == 2 and len(calls) == 1
    handle = dynajit.register_lowering(swish, lambda x, beta: x * torch.sigmoid(x * beta))
    dynajit.reset()
    kernels, calls = kernels_and_calls(lambda: torch.testing.assert_close(dynajit.compile(program)(x), program(x)))
    assert (kernels, calls) == (1, [])
    handle.remove()
    assert not decompositions.any_lowerings()


def test_its_gradient_is_the_one_that_is_registered() -> None:
    dynajit.register_lowering(torch.ops.dynajit_tests.swish, lambda x, beta: x * torch.sigmoid(x * beta))
    x, y = (torch.linspace(-2, 2, 64).requires_grad_() for _ in range(2))
    dynajit.reset()
    dynajit.compile(program)(x).sum().backward()
    program(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (torch.sin, "takes an operator"),
        (torch.ops.aten.add, "which one"),
        (torch.ops.aten.add_.Tensor, "writes an argument"),
    ],
)
def test_what_has_no_lowering(operator: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        dynajit.register_lowering(operator, lambda *args: args[0])
