"""Questions about devices, and about how torch is built and set up, end no graph: libraries ask them in `forward`.

Found by looking: all flags and functions without arguments of torch.backends, and the functions of torch.cuda and
torch.accelerator that say what there is.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynajit

# What has no answer that a graph may hold: a random state, what makes a context, calls of another library.
NOT_ASKED = {"torch.backends.cuda.sdp_kernel", "torch.backends.cuda.blas_workspace_size"}
OF_DEVICES = (
    *("current_device", "get_device_capability", "get_device_properties", "get_device_name", "is_bf16_supported"),
    *("is_tf32_supported", "is_initialized", "get_arch_list", "device_count", "is_available"),
    *("is_current_stream_capturing",),
)
OF_ACCELERATORS = ("is_available", "current_accelerator", "device_count", "current_device_index")


def _questions(path: str, of: Any, depth: int = 3) -> Iterator[str]:
    names = set(dir(of)) | (set(dir(type(of))) if isinstance(of, types.ModuleType) else set())
    if "__getattr__" in vars(type(of)):
        names.update(re.findall(r'name == "(\w+)"', inspect.getsource(type(of).__getattr__)))
    for name in sorted(names):
        if name.startswith(("_", "set")) or name == "m":  # `m` is the module behind a module
            continue
        try:
            found = getattr(of, name)
        except (AttributeError, RuntimeError):  # what this build of torch does not have
            continue
        if isinstance(found, (bool, int, float, str, type(None))):
            yield f"{path}.{name}"
        elif not (getattr(found, "__module__", None) or getattr(found, "__name__", "")).startswith("torch.backends"):
            continue
        elif inspect.isfunction(found):
            parameters = inspect.signature(found).parameters.values()
            if all(p.default is not p.empty for p in parameters) and not hasattr(found, "__wrapped__"):
                yield f"{path}.{name}()"
        elif depth and not isinstance(found, type):
            yield from _questions(f"{path}.{name}", found, depth - 1)


QUESTIONS = [
    *(question for question in _questions("torch.backends", torch.backends) if question.rstrip("()") not in NOT_ASKED),
    *(f"torch.cuda.{name}()" for name in OF_DEVICES),
    *(f"torch.accelerator.{name}()" for name in OF_ACCELERATORS),
    *("torch.xpu.is_available()", "torch.mps.is_available()", "torch.version.cuda", "torch.get_default_device()"),
]


def test_questions_are_found() -> None:
    assert len(QUESTIONS) > 50
    assert "torch.backends.cuda.matmul.allow_tf32" in QUESTIONS and "torch.backends.cudnn.benchmark" in QUESTIONS


@pytest.mark.parametrize("question", QUESTIONS)
def test_is_answered_while_tracing(question: str) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(
        f"def fn(x):\n try:\n  answer = {question}\n except Exception as error:\n"
        "  answer = (type(error), str(error))\n return x + 1, answer",
        names,
    )
    x = torch.ones(2)
    expected = names["fn"](x)[1]
    compiled = dynajit.compile(names["fn"], backend="eager", fullgraph=True)
    before = dynajit.counters["frames"]["total"]
    for _ in range(3):
        assert compiled(x)[1] == expected
    assert dynajit.counters["frames"]["total"] == before + 1


def test_flags_that_change_are_noticed() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction else x - 1

    compiled = dynajit.compile(fn, backend="eager", fullgraph=True)
    x, matmul = torch.ones(2), torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction
    try:
        for allowed in (True, False, True, False):
            matmul.allow_fp16_reduced_precision_reduction = allowed
            assert torch.equal(compiled(x), fn(x))
    finally:
        matmul.allow_fp16_reduced_precision_reduction = before
