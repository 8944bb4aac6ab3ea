"""`add`, `sub`, `addcmul` and `addcdiv` whose factor is a tensor: eager's rounding."""

from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same


def scaled(p: Any, d: Any, e: Any, t: Any) -> Any:
    changed = p.clone()
    changed.add_(d, alpha=t)
    return (
        changed,
        torch.add(p, d, alpha=t),
        p.sub(d, alpha=t),
        p.addcmul(d, e, value=t),
        torch.addcdiv(p, d, e, value=t),
    )


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_float32_is_rounded_once(backend: str) -> None:
    p, d, e = torch.randn(3, 512).unbind()
    args = p, d, e, torch.tensor(0.3)
    for found, expected in zip(dynajit.compile(scaled, backend=backend, fullgraph=True)(*args), scaled(*args)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_rounded_once(dtype: torch.dtype) -> None:
    p, d, e = torch.randn(3, 512).to(dtype).unbind()
    args = p, d, e, torch.tensor(0.3)
    for found, expected in zip(dynajit.compile(scaled, fullgraph=True)(*args), scaled(*args)):
        assert found.dtype is dtype and (found != expected).sum() <= 4  # the sum in float32 rounds, too
    mixed = torch.randn(512), d
    compiled = dynajit.compile(lambda p, d, t: p.add(d, alpha=t), backend="eager", fullgraph=True)
    assert torch.equal(compiled(*mixed, args[3]), torch.add(*mixed, alpha=args[3]))


def test_integers_take_no_fraction() -> None:
    def f(p: Any, t: Any) -> Any:
        return p.add(p, alpha=t)

    p = torch.arange(4)
    compiled = dynajit.compile(f)
    assert torch.equal(compiled(p, torch.tensor(3)), f(p, torch.tensor(3)))
    with pytest.raises(RuntimeError, match="must not be a floating point number"):
        compiled(p, torch.tensor(0.5))


def test_boolean_alpha() -> None:
    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        x.add_(1)
        torch.sub(x, x, alpha=flag)
        return x * 2

    for backend in ("eager", "codegen"):
        x = torch.zeros(3)
        with pytest.raises(RuntimeError, match="Boolean alpha only supported for Boolean results"):
            dynajit.compile(f, backend=backend)(x, True)
        assert torch.equal(x, torch.ones(3))


@pytest.mark.parametrize("flag", (False, True))
def test_boolean_alpha_where_eager_takes_any(flag: bool) -> None:
    def f(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.index_add(0, index, x, alpha=flag), torch.addmm(x, x, x, alpha=flag)

    assert_same(f, torch.randn(2, 2), torch.tensor([1, 0]), graphs=1, breaks=0)
    assert_same(f, torch.randn(2, 2), torch.tensor([1, 0]), graphs=1, breaks=0, backend="codegen")


@pytest.mark.parametrize("name", ["add", "sub", "addcmul", "addcdiv", "addcmul_"])
@pytest.mark.parametrize("factor", [torch.tensor(2.0, requires_grad=True), torch.ones(1), torch.ones(3)])
def test_what_is_no_number_is_refused(name: str, factor: torch.Tensor) -> None:
    def f(x: torch.Tensor, factor: torch.Tensor) -> None:
        named = {"value" if "c" in name else "alpha": factor}
        getattr(x, name)(*[x] * (2 if "c" in name else 1), **named)

    def tried(x: torch.Tensor, factor: torch.Tensor) -> str:
        try:
            f(x, factor)
        except TypeError as error:
            return str(error)
        return "nothing"

    assert_same(tried, torch.ones(3), factor)
    assert tried(torch.ones(3), factor) != "nothing"
