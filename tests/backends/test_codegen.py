"""The default backend where it can't fuse, and its options. Results are compared in tests/aot."""

from __future__ import annotations

import warnings

import pytest
import torch

from dynajit.backends import codegen, lookup_backend
from dynajit.config import config
from dynajit.exc import ConfigError


def fn(x, y):
    return torch.softmax(x @ y, dim=1), x * 2


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 4), torch.randn(4, 4)]


@pytest.fixture(autouse=True)
def _tell_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "_told", set())


def test_without_a_compiler_one_warning_and_right_results(inputs: list[torch.Tensor]) -> None:
    gm = torch.fx.symbolic_trace(fn)
    with config.patch(compiler="/nowhere/cc"):
        with pytest.warns(UserWarning, match="no C compiler"):
            compiled = lookup_backend("codegen")(gm, inputs)
        torch.testing.assert_close(compiled(*inputs), fn(*inputs))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lookup_backend("codegen")(gm, inputs)


def test_a_compiler_that_fails(inputs: list[torch.Tensor], tmp_path) -> None:
    broken = tmp_path / "cc"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "gcc (broken) 1.0" && exit 0\necho "cannot" >&2\nexit 4\n'
    )
    broken.chmod(0o755)
    with config.patch(compiler=str(broken), cache_dir=str(tmp_path / "cache")):
        with pytest.warns(UserWarning, match=r"status 4[\s\S]*cannot"):
            compiled = lookup_backend("codegen")(torch.fx.symbolic_trace(fn), inputs)
        torch.testing.assert_close(compiled(*inputs), fn(*inputs))
    assert not list((tmp_path / "cache").rglob("*.so"))
    assert not list((tmp_path / "cache").rglob("tmp-*"))


def test_another_device_runs_operator_by_operator() -> None:
    x = torch.empty(4, device="meta")
    with pytest.warns(UserWarning, match="meta"):
        compiled = lookup_backend("codegen")(torch.fx.symbolic_trace(lambda x: (x + 1,)), [x])
    assert compiled(x)[0].device.type == "meta"


def test_unknown_option(inputs: list[torch.Tensor]) -> None:
    with pytest.raises(ConfigError, match="freze"):
        lookup_backend("codegen")(torch.fx.symbolic_trace(fn), inputs, options={"freze": True})
