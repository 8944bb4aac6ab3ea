"""Which modules are traced, skipped or computed, and how users change that."""

import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.exc import ConfigError
from dynajit.interp import policy
from dynajit.testing import assert_same

x = torch.ones(3)
SOURCE = """
def scale(n):
    return [n, n + 1]

def apply(t):
    return t + 1
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: Any = types.ModuleType("policy_library.inner")
    exec(SOURCE, made.__dict__)
    monkeypatch.setitem(sys.modules, "policy_library.inner", made)
    yield made
    policy._by_user.clear()
    policy.treatment_of.cache_clear()


def test_skip_then_trace(library: Any) -> None:
    def program(t: Any) -> Any:
        return library.apply(t * 2) * 3

    assert_same(program, x, graphs=1, breaks=0)
    dynajit.module_policy("policy_library", "skip", "a reason of the user's")
    report = assert_same(program, x, graphs=2, breaks=1)
    assert "a reason of the user's" in str(report)
    dynajit.module_policy("policy_library.inner", "trace")
    assert_same(program, x, graphs=1, breaks=0)


def test_compute(library: Any) -> None:
    calls = []
    library.scale.__globals__["seen"] = calls.append
    exec("def counted(n):\n    seen(n)\n    return [n, n + 1]", library.__dict__)
    dynajit.module_policy("policy_library", "compute")
    compiled = dynajit.compile(lambda t: t * library.counted(3)[1], backend="eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(x), x * 4)
    assert calls == [3]


def test_compute_on_tensors_is_skipped(library: Any) -> None:
    dynajit.module_policy("policy_library", "compute")
    assert_same(lambda t: library.apply(t * 2) * 3, x, graphs=2, breaks=1)


def test_unknown_treatment() -> None:
    with pytest.raises(ConfigError, match="trace"):
        dynajit.module_policy("policy_library", "ignore")


def test_tables_give_reasons() -> None:
    assert all(policy.SKIPPED_MODULES.values())
    assert all(policy.COMPUTED_MODULES.values())
    assert not set(policy.SKIPPED_MODULES) & set(policy.COMPUTED_MODULES)


LOGGER = logging.getLogger("dynajit_policy_test")


def logging_program(t: Any) -> Any:
    y = t + 1
    LOGGER.warning("shape %s", tuple(y.shape))
    return y * 2


@pytest.mark.parametrize(("replay", "breaks"), [(True, 0), (False, 1)])
def test_logging_is_replayed_or_breaks(replay: bool, breaks: int, caplog: pytest.LogCaptureFixture) -> None:
    with dynajit.config.patch(replay_logging=replay):
        assert_same(logging_program, x, breaks=breaks, repeat=1)
    # eager and compiled, thrice each
    assert [record.getMessage() for record in caplog.records if record.name == LOGGER.name] == ["shape (3,)"] * 6
