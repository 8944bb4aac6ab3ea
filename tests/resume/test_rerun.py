"""An operation whose real kernel raises and whose fake one does not: the original frame runs instead of the graph."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

SEEN: list[int] = []


def effects_then_raise(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = x.sum()
    seen.append(x.dim())
    return torch.relu(x.bool()) + y


def behind_a_write(x: torch.Tensor, at: torch.Tensor, seen: list[int]) -> torch.Tensor:
    seen.append(1)
    x.add_(1)
    seen.append(2)
    y = x[at]
    x.mul_(2)
    seen.append(3)
    return y


@pytest.fixture(autouse=True)
def _arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile turns the checks of distributions off for the whole process."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


def caught_behind_a_write(x: torch.Tensor, scale: torch.Tensor, seen: list[int]) -> torch.Tensor:
    x.add_(1)
    try:
        seen.append(1)
        return torch.distributions.Normal(x, scale).log_prob(x)
    except ValueError:
        seen.append(2)
        return x.mul_(3)


def behind_a_write_through_data(x: torch.Tensor, at: torch.Tensor, seen: list[int]) -> torch.Tensor:
    x.data.add_(1)
    seen.append(1)
    return x[at]


def behind_statistics(x: torch.Tensor, at: torch.Tensor, mean: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = torch.nn.functional.batch_norm(x, mean, torch.ones(2), training=True)
    seen.append(1)
    return torch.nn.functional.cross_entropy(y, at)


def behind_a_draw(x: torch.Tensor, at: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = torch.rand(3)
    seen.append(1)
    return y[at] + x


def one_hot_behind_a_write(x: torch.Tensor, at: torch.Tensor, seen: list[int]) -> torch.Tensor:
    x.add_(1)
    seen.append(1)
    return torch.nn.functional.one_hot(at, 3)


def caught(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    try:
        with torch.no_grad():
            y = torch.relu(x > 0)
    except RuntimeError as error:
        y = y + len(str(error))
    return y


def around_a_break(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    y = x.sum()
    seen.append(1)
    print("half")
    seen.append(2)
    return torch.relu(x.bool()) + y


def bad_index(table: torch.Tensor, index: torch.Tensor, seen: list[int]) -> torch.Tensor:
    seen.append(len(seen))
    return table[index] * 2


def captured_parameter(x: torch.Tensor) -> Any:
    def inner() -> torch.Tensor:
        return torch.relu(x > 0)

    x = x + 1
    return inner(), inner


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fn", [effects_then_raise, around_a_break])
def test_the_lines_before_have_happened(fn: Any, backend: str) -> None:
    assert_same(fn, torch.ones(3), SEEN, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_program_catches_it(backend: str) -> None:
    assert_same(caught, torch.ones(3), backend=backend)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_an_index_out_of_range(backend: str) -> None:
    table = torch.arange(4.0)
    assert_same(bad_index, table, torch.tensor([1, 9]), SEEN, backend=backend, then=[(table, torch.tensor([1, 2]), [])])


def test_a_parameter_in_a_cell() -> None:
    assert_same(captured_parameter, torch.ones(3))


def test_the_backend_s_own_error_is_seen() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            raise ArithmeticError("the backend's")

        return call

    with pytest.raises(ArithmeticError, match="the backend's"):
        dynajit.compile(lambda x: x + 1, backend=backend)(torch.ones(3))


def test_state_after_a_graph_that_raises_halfway() -> None:
    @dynajit.compile(backend="eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        with torch.no_grad():
            return torch.vmap(lambda row: torch.relu(row > 0))(x)

    with pytest.raises(RuntimeError):
        f(torch.ones(3, 2))
    assert torch.is_grad_enabled()
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


def test_inference_mode_ends_where_the_graph_raises() -> None:
    def fn(x: torch.Tensor) -> Any:
        flag = (x > 0.1).any()
        with torch.inference_mode(), torch.inference_mode(False):
            return flag.topk(1)

    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            for call in (fn, dynajit.compile(fn, backend="eager")):
                with pytest.raises(RuntimeError, match="topk"):
                    call(torch.ones(3))
                assert torch.is_grad_enabled() is enabled
                assert not torch.is_inference_mode_enabled()


def unique_then_write(x: torch.Tensor, index: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    x.index_put_((index,), torch.ones(2, 1))


def test_a_graph_whose_first_write_raises() -> None:
    """How many elements a mask chooses is known to the kernel alone; it has written nothing when it raises."""
    x = torch.zeros(4)
    mask = torch.tensor([True, True, True, False])
    assert_same(unique_then_write, x, mask, SEEN)


def test_what_a_frame_that_runs_again_held_ends_with_it() -> None:
    """The graph raises, and so does the frame, run again: neither error keeps what the frame held in a cycle."""

    class Held:
        pass

    def f(held: Held, x: torch.Tensor) -> Any:
        return torch.as_strided(x, (2, 2), (1, 1)).mean(), held

    compiled = dynajit.compile(f, backend="eager")
    gc.collect()
    gc.disable()
    try:
        for function in (f, compiled, compiled):
            held = Held()
            gone = weakref.ref(held)
            with pytest.raises(RuntimeError):
                function(held, torch.tensor(1.0))
            del held
            assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", [behind_a_write, behind_a_write_through_data, behind_a_draw])
def test_what_happened_before_the_operation_that_raises_stays(fn: Any, backend: str) -> None:
    good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 7])
    assert_same(fn, torch.zeros(3), good, [], then=[(torch.ones(3), bad, [])], graphs=1, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_a_check_behind_a_write_is_caught(backend: str) -> None:
    wrong = (torch.ones(3), -torch.ones(3), [])
    fn = caught_behind_a_write
    assert_same(fn, torch.zeros(3), torch.ones(3), [], then=[wrong], graphs=1, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_statistics_are_updated_once(backend: str) -> None:
    wrong = (torch.rand(4, 2), torch.tensor([0, 1, 0, 7]), torch.zeros(2), [])
    right = (torch.rand(4, 2), torch.tensor([0, 1, 0, 1]), torch.zeros(2), [])
    assert_same(behind_statistics, *right, then=[wrong], graphs=1, breaks=0, backend=backend)


def test_one_hot_of_too_large_a_number() -> None:
    good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 7])
    fn = one_hot_behind_a_write
    assert_same(fn, torch.zeros(3), good, [], then=[(torch.ones(3), bad, [])], graphs=1, breaks=0)


def test_too_much_to_put_back_breaks() -> None:
    large = torch.zeros(1 << 23)
    report = assert_same(caught_behind_a_write, large, torch.ones(1), [], then=[(large, -torch.ones(1), [])])
    assert report.graph_break_count


def _raises_behind_a_handler(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x + 1
    with torch.no_grad():
        try:
            y &= True
        except RuntimeError as error:
            print(type(error).__name__)
        z.mul_(0.5)
        return z * torch.as_strided(z, (20, 20), (1, 1)).sum()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_a_caught_error_is_over_when_the_graph_behind_its_handler_raises(backend: str) -> None:
    x = torch.ones(7, 1)
    compiled = dynajit.compile(_raises_behind_a_handler, backend=backend)
    for fn in (_raises_behind_a_handler, compiled, compiled):
        with pytest.raises(RuntimeError, match="setStorage"):
            fn(x, x)
        assert sys.exc_info() == (None, None, None)
        try:
            raise KeyError("outside")
        except KeyError as outside:
            with pytest.raises(RuntimeError, match="setStorage"):
                fn(x, x)
            assert sys.exc_info()[1] is outside


def _raises_behind_a_change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError(4)
    except ValueError as error:
        print(type(error).__name__)
    x.t_()
    return torch.linalg.cholesky(y)


def _raises_in_a_handler(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError(4)
    except ValueError as error:
        print(type(error).__name__)
        x.t_()
        return torch.linalg.cholesky(y)


def _raises_between_handlers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError(4)
    except ValueError:
        try:
            raise KeyError(5)
        except KeyError as error:
            print(type(error).__name__)
        x.t_()
        return torch.linalg.cholesky(y)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("program", [_raises_behind_a_change, _raises_in_a_handler, _raises_between_handlers])
def test_context_of_what_a_graph_raises_behind_a_handler(program: Any, backend: str) -> None:
    def contexts(fn: Any) -> Any:
        found: list[Any] = []
        with pytest.raises(RuntimeError) as alone:
            fn(torch.ones(7, 1), -torch.ones(1, 1))
        found.append((repr(alone.value.__context__), sys.exception()))
        try:
            raise LookupError("outside")
        except LookupError as outside:
            with pytest.raises(RuntimeError) as inside:
                fn(torch.ones(7, 1), -torch.ones(1, 1))
            context = inside.value.__context__
            assert context is not None
            found.append((repr(context), repr(context.__context__), sys.exception() is outside))
        return found

    compiled = dynajit.compile(program, backend=backend)
    expected = contexts(program)
    assert contexts(compiled) == expected
    assert contexts(compiled) == expected
