"""Which frames are captured, what is reused, recompiled, given up, and what a backend's failure does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit import exc
from dynajit.report import records
from dynajit.testing import CompileCounter, assert_same


def noisy(x: Tensor) -> Tensor:
    y = x.sin()
    print("break")
    return y.cos()


def test_both_graphs_are_reused() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(noisy, backend=counter)
    for _ in range(5):
        compiled(torch.randn(3))
    assert (counter.frame_count, counter.op_count) == (2, 2)
    compiled(torch.randn(4))
    assert counter.frame_count == 4


def scaled(x: Tensor, n: int, options: dict[str, Any]) -> Tensor:
    return x * n + options["shift"]


def test_recompile_reasons_name_the_guard() -> None:
    x = torch.randn(3)
    report = assert_same(
        scaled,
        x,
        1,
        {"shift": 1},
        then=[
            (x, 2, {"shift": 1}),
            (x, 2, {"shift": 2}),
            (x.double(), 2, {"shift": 2}),
            (torch.randn(4), 2, {"shift": 2}),
            (x, 1, {"shift": 1}),
        ],
    )
    reasons = report.recompile_reasons
    assert len(reasons) == 4
    assert "L['n'] was 1, is 2" in reasons[0]
    assert "shift" in reasons[1] and "was 1, is 2" in reasons[1]
    assert "dtype" in reasons[2] and "float64" in reasons[2]
    assert "size" in reasons[3] or "shape" in reasons[3]


def test_recompile_limit(recwarn: pytest.WarningsRecorder) -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(lambda x, n: x * n, backend=counter, dynamic=False)
    x = torch.randn(3)
    for n in range(20):
        assert torch.equal(compiled(x, n), x * n)
    assert counter.frame_count == 8
    texts = [str(warning.message) for warning in recwarn if "recompile_limit" in str(warning.message)]
    assert len(texts) == 1 and "L['n'] was" in texts[0] and "8 times" in texts[0] and "test_capture.py" in texts[0]
    assert torch.equal(compiled(x, 3), x * 3)
    assert dynajit.counters["recompile_limit"]


def test_recompile_limit_is_a_setting() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(lambda x, n: x * n, backend=counter, dynamic=False)
    with dynajit.config.patch(recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(5):
            compiled(torch.randn(3), n)
    assert counter.frame_count == 2


def test_recompile_limit_under_fullgraph() -> None:
    compiled = dynajit.compile(lambda x, n: x * n, backend="eager", fullgraph=True, dynamic=False)
    with pytest.raises(exc.RecompileLimitExceeded, match=r"L\['n'\] was") as caught:
        for n in range(20):
            compiled(torch.randn(3), n)
    assert caught.value.limit == 8 and len(caught.value.reasons) == 8


def test_a_limit_is_each_sessions_own() -> None:
    def fn(x: Tensor, n: int) -> Tensor:
        return x * n

    first, second = CompileCounter(), CompileCounter()
    one = dynajit.compile(fn, backend=first, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(10):
            one(torch.randn(3), n)
    two = dynajit.compile(fn, backend=second, dynamic=False)
    two(torch.randn(3), 100)
    assert (first.frame_count, second.frame_count) == (8, 1)


# ------------------------------------------------------------------------------------------------ fullgraph


def in_loop(x: Tensor) -> Tensor:
    for i in range(2):
        x = x + i
        print("loop")
    return x


def test_fullgraph_points_at_the_line() -> None:
    with pytest.raises(exc.Unsupported) as caught:
        dynajit.compile(outer, backend="eager", fullgraph=True)(torch.randn(3))
    error = caught.value
    assert error.kind == "input-output" and "builtins.print" in error.reason and error.hint
    assert 'print("break")\n    ^^^^^^^^^^^^^^' in error.user_line
    assert "in outer" in error.user_line and "in noisy" in error.user_line and "test_capture.py" in error.user_line
    assert "fullgraph" in str(error) and error.user_line.strip() in str(error)


def outer(x: Tensor) -> Tensor:
    return noisy(x) + 1


@pytest.mark.parametrize("fn", [noisy, in_loop, outer])
def test_fullgraph_raises_each_time_and_after_a_run_without_it(fn: Callable[..., Any], capsys: Any) -> None:
    dynajit.compile(fn, backend="eager")(torch.randn(3))
    strict = dynajit.compile(fn, backend="eager", fullgraph=True)
    capsys.readouterr()
    for _ in range(2):
        with pytest.raises(exc.Unsupported):
            strict(torch.randn(3))
    assert capsys.readouterr().out == ""
    assert torch.equal(dynajit.compile(fn, backend="eager")(torch.ones(3)), fn(torch.ones(3)))


def test_fullgraph_without_a_break() -> None:
    assert_same(lambda x: x.sin().cos(), torch.randn(3), fullgraph=True, graphs=1, breaks=0)


def test_exceptions_of_the_program_pass_under_fullgraph() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("mine")

    with pytest.raises((ValueError, exc.Unsupported)):
        dynajit.compile(fails, backend="eager", fullgraph=True)(torch.randn(3))


# ------------------------------------------------------------------------------------------------ backends


def broken_backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    raise NotImplementedError("no such instruction")


def test_a_backend_that_raises() -> None:
    compiled = dynajit.compile(noisy, backend=broken_backend)
    with pytest.raises(exc.BackendCompilerFailed) as caught:
        compiled(torch.randn(3))
    error = caught.value
    assert isinstance(error.inner_exception, NotImplementedError) and error.__cause__ is error.inner_exception
    assert "broken_backend" in str(error) and "no such instruction" in str(error)
    assert "sin" in error.graph_text and "y = x.sin()" in error.user_stack, error.user_stack
    with pytest.raises(exc.BackendCompilerFailed):
        compiled(torch.randn(3))


def test_suppress_errors(capsys: Any) -> None:
    compiled = dynajit.compile(noisy, backend=broken_backend)
    x = torch.randn(3)
    with dynajit.config.patch(suppress_errors=True):
        assert torch.equal(compiled(x), x.sin().cos())
        assert torch.equal(compiled(x), x.sin().cos())
    assert capsys.readouterr().out == "break\nbreak\n"
    good = dynajit.compile(noisy, backend="eager")
    found: list[records.CompileRecord] = []
    with records.listen(found.append):
        good(x)
    assert sum(len(record.graphs) for record in found) == 2


def test_a_backend_that_returns_nothing_callable() -> None:
    compiled = dynajit.compile(noisy, backend=lambda gm, inputs: None)
    with pytest.raises(exc.BackendCompilerFailed, match="NoneType"):
        compiled(torch.randn(3))


def test_backends_see_what_torch_gives_them() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        seen.append((gm, example_inputs))
        return gm.forward

    dynajit.compile(lambda x: x.sin() + 1, backend=backend)(torch.randn(3))
    gm, inputs = seen[0]
    assert isinstance(gm, torch.fx.GraphModule) and isinstance(inputs, list) and inputs[0].shape == (3,)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    assert len(placeholders) == len(inputs)
    calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
    assert all("example_value" in node.meta and "test_capture.py" in node.meta["stack_trace"] for node in calls)


def test_a_backend_that_changes_global_state_does_no_harm() -> None:
    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        assert torch.is_grad_enabled()
        return gm.forward

    compiled = dynajit.compile(lambda x: x * 2, backend=backend)
    assert compiled(torch.randn(3, requires_grad=True)).requires_grad


def test_two_backends_on_one_function_do_not_mix() -> None:
    first, second = CompileCounter(), CompileCounter()
    one, two = dynajit.compile(noisy, backend=first), dynajit.compile(noisy, backend=second)
    for _ in range(3):
        one(torch.randn(3))
        two(torch.randn(3))
    assert (first.frame_count, second.frame_count) == (2, 2)


# ------------------------------------------------------------------------------------------------ which frames


def helper(x: Tensor, mode: str) -> Tensor:
    if mode == "plain":
        return x
    return x.sin().cos()


def helper_in_loop(x: Tensor, modes: list[str]) -> Tensor:
    for mode in modes:
        print("loop", mode, len(locals()))
        x = helper(x, mode)
    return x


def test_frames_called_from_eager_code_are_captured() -> None:
    report = assert_same(helper_in_loop, torch.randn(3), ["full"], repeat=3)
    assert [frame.code_name for frame in report.frames if frame.graphs] == ["helper"]


def test_a_frame_that_made_nothing_once_may_make_a_graph_later() -> None:
    report = assert_same(
        helper_in_loop, torch.randn(3), ["plain"], repeat=3, then=[(torch.randn(3), ["full", "plain"])]
    )
    assert report.graph_count == 1
    nothing = [frame for frame in report.frames if frame.skipped and "nothing to compile" in frame.skipped]
    assert [frame.code_name for frame in nothing] == ["helper"]


def words(text: str) -> str:
    return text.upper() + "!"


def words_in_loop(x: Tensor, texts: list[str]) -> list[str]:
    found = []
    for text in texts:
        print(text, len(locals()))
        found.append(words(text))
    return found


def test_frames_without_anything_to_compile_are_left_alone() -> None:
    report = assert_same(words_in_loop, torch.randn(3), ["a", "b", "c", "d", "e", "f", "g"])
    assert report.graph_count == 0
    assert len([frame for frame in report.frames if frame.code_name == "words"]) == 1


def test_frames_without_anything_to_compile_are_left_alone_in_every_mode() -> None:
    dynajit.reset()
    compiled, seen = dynajit.compile(words_in_loop), list[records.CompileRecord]()
    with records.listen(seen.append):
        for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            with mode():
                assert compiled(torch.ones(3), ["a", "b"]) == ["A!", "B!"]
    assert len([record for record in seen if record.code_name == "words"]) == 1


class Renamed:
    """Finds its attributes by other names."""

    names = {"size": "length"}
    length = 3

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(super().__getattribute__("names").get(name, name))


def sizes_in_loop(x: Tensor, found: Any) -> list[Any]:
    sizes = []
    for name in ("size", "length"):
        print(name, len(locals()))
        sizes.append(getattr(found, name))
    return sizes


def test_frames_that_find_an_attribute_are_not_captured() -> None:
    report = assert_same(sizes_in_loop, torch.randn(3), Renamed(), repeat=3)
    assert "__getattribute__" not in [frame.code_name for frame in report.frames]


class Late(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("first")
        return (x + 1).sin()


def test_a_frame_that_prints_first_is_compiled_behind_it() -> None:
    report = assert_same(nn.Sequential(Late(), Late()), torch.randn(3), recompiles=0)
    assert report.graph_count == 2 or report.graph_count == 1


def coroutine_user(x: Tensor) -> Any:
    async def work() -> Tensor:
        return helper(x, "full")

    y = x.sin()
    try:
        work().send(None)
    except StopIteration as end:
        return end.value + y


def test_coroutines_run_eagerly() -> None:
    assert_same(coroutine_user, torch.randn(3))


def test_callbacks_of_c_functions_are_captured(capsys: Any) -> None:
    import functools

    def compare(a: Tensor, b: Tensor) -> int:
        return int((a.sum() - b.sum()).sign())

    def run(x: Tensor) -> Any:
        items = [x + 2, x + 1, x.sin()]
        items.sort(key=functools.cmp_to_key(compare))
        return items

    assert_same(run, torch.ones(3))


def test_an_internal_fault_runs_eagerly_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from dynajit.resume.emit import Emission

    def fail(self: Emission) -> None:
        raise AssertionError("a fault of the compiler")

    monkeypatch.setattr(Emission, "finish", fail)
    compiled = dynajit.compile(lambda x: x.sin(), backend="eager")
    x = torch.randn(3)
    with pytest.warns(UserWarning, match="a fault of the compiler"):
        assert torch.equal(compiled(x), x.sin())
    assert torch.equal(compiled(x), x.sin())
    assert dynajit.counters["internal_errors"]["AssertionError"] == 1
