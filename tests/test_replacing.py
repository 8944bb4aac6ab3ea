"""dynajit in the place of torch.compile: what programs call then, and that it can be undone."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

import dynajit
from dynajit import _C, __main__
from dynajit.exc import ConfigError
from dynajit.testing import CompileCounter


def test_torch_compile_is_dynajits_until_the_end_of_the_block() -> None:
    before = torch.compile, {name: getattr(torch.compiler, name) for name in torch.compiler.__all__}
    with dynajit.as_torch_compile():
        compiled = torch.compile(lambda x: x.sin() + 1)
        assert isinstance(compiled, _C.CompiledFunction)
        assert compiled.key.choices.backend_name == "codegen"
        x = torch.randn(5, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos())
    assert before == (torch.compile, {name: getattr(torch.compiler, name) for name in torch.compiler.__all__})


def test_undo_twice_and_nested() -> None:
    former = torch.compile
    outer = dynajit.as_torch_compile()
    with dynajit.as_torch_compile(), contextlib.suppress(ValueError):
        raise ValueError
    assert torch.compile is not former
    outer.undo()
    outer.undo()
    assert torch.compile is former


def test_as_a_decorator_with_arguments() -> None:
    counter = CompileCounter()
    with dynajit.as_torch_compile():

        @torch.compile(fullgraph=True, dynamic=True, backend=counter)
        def f(x: torch.Tensor) -> torch.Tensor:
            return x * x.shape[0]

    for n in (3, 4, 5):
        torch.testing.assert_close(f(torch.ones(n)), torch.full((n,), float(n)))
    assert counter.frame_count == 1


def test_nn_module_compile() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    x = torch.randn(2, 4)
    expected = model(x)
    counter = CompileCounter()
    with dynajit.as_torch_compile():
        model.compile(backend=counter)
    torch.testing.assert_close(model(x), expected)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", [None, "inductor", "dynajit"])
def test_names_that_mean_codegen(backend: str | None) -> None:
    with dynajit.as_torch_compile():
        assert torch.compile(lambda x: x, backend=backend).key.choices.backend_name == "codegen"


def test_options_of_inductor() -> None:
    with dynajit.as_torch_compile(), pytest.warns(UserWarning, match="the option epilogue_fusion means nothing here"):
        made = torch.compile(lambda x: x, options={"epilogue_fusion": True, "max_autotune": True})
    assert made.key.choices.settings["options"] == {"max_autotune": True}


def test_options_that_nobody_has() -> None:
    with dynajit.as_torch_compile(), pytest.raises(ConfigError, match="'max_autotun': did you mean max_autotune"):
        torch.compile(lambda x: x, options={"max_autotun": True})


def test_arguments_without_a_meaning_here() -> None:
    with dynajit.as_torch_compile(), pytest.warns(UserWarning, match="the argument isolate_recompiles means nothing"):
        torch.compile(lambda x: x, isolate_recompiles=True)


def test_functions_of_torch_compiler() -> None:
    with dynajit.as_torch_compile():
        assert torch.compiler.reset is dynajit.reset

        @torch.compiler.disable(reason="a test")
        def outside(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        counter = CompileCounter()
        torch.testing.assert_close(
            torch.compile(lambda x: outside(x * 2) * 3, backend=counter)(torch.ones(2)), torch.full((2,), 9.0)
        )
        assert counter.frame_count == 2
        with torch.compiler.set_stance("force_eager"):
            torch.compile(lambda x: x + 5, backend=counter)(torch.ones(2))
        assert counter.frame_count == 2
        assert "codegen" in torch.compiler.list_backends()
        assert "eager" not in torch.compiler.list_backends()
        with pytest.raises(ConfigError, match="the name of a stance only"):
            torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)


def test_run_replace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nf = torch.compile(lambda x: x + 1)\nprint(type(f).__name__, f(torch.ones(1)).item())\n"
    )
    former = torch.compile
    assert __main__.main(["run", "--replace", str(script)]) == 0
    assert "CompiledFunction 2.0" in capsys.readouterr().out
    assert torch.compile is former
