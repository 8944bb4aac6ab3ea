"""Many threads call, compile, recompile and reset at once: no deadlock, no wrong variant, no crash."""

from __future__ import annotations

import faulthandler
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dynajit
from dynajit import _C
from dynajit.testing import CompileCounter

LONGEST = 240.0


@pytest.fixture(autouse=True)
def _dies_with_tracebacks() -> Iterator[None]:
    """A deadlock shows where it is, and ends the run."""
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def run_threads(count: int, work: Callable[[int], None]) -> None:
    """`work(number)` in as many threads at once; the first exception is raised here."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def body(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = 1.0

    def forward(self, x: Tensor, flag: bool = False) -> Tensor:
        y = torch.relu(self.first(x)) * self.scale
        return self.second(y) - 1 if flag else self.second(y)


def steps(x: Tensor, kind: str) -> Tensor:
    y = x * 2
    if kind == "sum":
        return y.sum()
    if y.sum() > 0:
        y = y + 1
    for _ in range(2):
        y = y.sin()
        threading.get_ident()
    return y


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_first_calls_at_once(backend: str) -> None:
    net = Net()
    compiled = dynajit.compile(net, backend=backend)
    function = dynajit.compile(steps, backend=backend)

    def work(number: int) -> None:
        choose = random.Random(number)
        for _ in range(12):
            x = torch.randn(choose.choice((2, 3, 5)), 4)
            flag, kind = choose.random() < 0.5, choose.choice(("sum", "other"))
            torch.testing.assert_close(compiled(x, flag), net(x, flag))
            torch.testing.assert_close(function(x, kind), steps(x, kind))

    run_threads(6, work)


def test_reset_while_others_call() -> None:
    compiled = dynajit.compile(steps, backend="eager")
    stop = threading.Event()

    def work(number: int) -> None:
        choose = random.Random(number)
        if number == 0:
            for _ in range(15):
                dynajit.reset()
                compiled(torch.ones(3), "other")
            stop.set()
        while not stop.is_set():
            x, kind = torch.randn(choose.randint(2, 9)), choose.choice(("sum", "other"))
            torch.testing.assert_close(compiled(x, kind), steps(x, kind))

    run_threads(4, work)


def test_each_thread_has_its_own_modes() -> None:
    """What is guarded of torch's modes is the calling thread's."""
    net = Net()
    compiled = dynajit.compile(net, backend="eager")

    def work(number: int) -> None:
        x = torch.randn(2, 4)
        for _ in range(40):
            casts = torch.autocast("cpu", torch.bfloat16, enabled=number % 3 == 0)
            with torch.set_grad_enabled(number % 2 == 0), casts:
                got, expected = compiled(x), net(x)
            assert got.requires_grad == expected.requires_grad == (number % 2 == 0)
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got, expected)

    run_threads(6, work)


def test_training_in_many_threads() -> None:
    nets = [Net() for _ in range(4)]
    compiled = [dynajit.compile(net) for net in nets]

    def work(number: int) -> None:
        for size in (2, 3, 4, 2):
            x = torch.randn(size, 4)
            nets[number].zero_grad()
            nets[number](x).sum().backward()
            expected = [parameter.grad for parameter in nets[number].parameters()]
            nets[number].zero_grad()
            compiled[number](x).sum().backward()
            for parameter, grad in zip(nets[number].parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, grad)

    run_threads(4, work)


def test_functions_made_and_dropped_in_threads() -> None:
    def work(number: int) -> None:
        for turn in range(15):
            # a new code object each time, which dies with its variants
            scope: dict[str, Any] = {}
            exec(f"def made(x):\n    return x * {number} + {turn}\n", scope)
            compiled = dynajit.compile(scope["made"], backend="eager")
            x = torch.ones(3)
            assert torch.equal(compiled(x), scope["made"](x))

    run_threads(6, work)


def test_stances_of_threads_do_not_crash_each_other() -> None:
    compiled = dynajit.compile(steps, backend="eager")

    def work(number: int) -> None:
        for turn in range(20):
            x = torch.ones(2 + (number + turn) % 5)
            with dynajit.set_stance("force_eager" if number % 2 else "default"):
                torch.testing.assert_close(compiled(x, "sum"), steps(x, "sum"))

    run_threads(4, work)
    # no block's stance is left
    counter = dynajit.testing.CompileCounter()
    dynajit.compile(lambda x: x + 1, backend=counter)(torch.ones(2))
    assert counter.frame_count == 1


def test_blocks_that_overlap_leave_no_stance() -> None:
    first, second = dynajit.set_stance("force_eager"), dynajit.set_stance("fail_on_recompile")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(lambda x: x + 1, backend=counter, dynamic=False)
    compiled(torch.ones(2))
    compiled(torch.ones(3))
    assert counter.frame_count == 2


def test_an_exception_in_one_thread_leaves_the_others_alone() -> None:
    def picky(x: Tensor, number: int) -> Tensor:
        if number % 2:
            raise ValueError(f"thread {number}")
        return x + number

    compiled = dynajit.compile(picky, backend="eager")

    def work(number: int) -> None:
        for _ in range(20):
            if number % 2:
                with pytest.raises(ValueError, match=f"thread {number}"):
                    compiled(torch.ones(2), number)
            else:
                assert torch.equal(compiled(torch.ones(2), number), torch.ones(2) + number)

    run_threads(6, work)


@pytest.mark.parametrize(
    ("rows", "most"), [(lambda number: 4, 1), (lambda number: 2 + number, 3)], ids=["equal", "sizes"]
)
def test_first_calls_at_once_compile_once(rows: Callable[[int], int], most: int) -> None:
    """One thread compiles, and the others' calls run eagerly meanwhile."""
    backend, net = CompileCounter(), Net()
    compiled = dynajit.compile(net, backend=backend)

    def work(number: int) -> None:
        x = torch.randn(rows(number), 4)
        for _ in range(4):
            torch.testing.assert_close(compiled(x), net(x))

    run_threads(16, work)
    assert 1 <= backend.frame_count <= most
    run_threads(16, work)
    assert backend.frame_count <= most


def test_a_call_in_another_thread_while_a_frame_is_captured() -> None:
    """What waits for it, there, has its answer: it runs eagerly."""
    answers = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        other = threading.Thread(target=lambda: answers.append(compiled(torch.ones(3))))
        other.start()
        other.join(LONGEST / 4)
        return gm.forward

    def program(x: Tensor) -> Tensor:
        return x * 2

    compiled = dynajit.compile(program, backend=backend)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert len(_C.variants(program.__code__)) == 1
    assert [answer.tolist() for answer in answers] == [[2.0, 2.0, 2.0]]


def test_a_variant_that_another_thread_adds_before_the_miss_is_looked_at() -> None:
    def program(x: Tensor) -> Tensor:
        return x + 1

    backend = CompileCounter()
    compiled = dynajit.compile(program, backend=backend)
    x = torch.ones(2)
    compiled(x)
    (variant,) = _C.variants(program.__code__)
    assert variant.key.capture(program.__code__, program, (x,), []) is variant
    assert backend.frame_count == 1


def test_what_a_call_beside_a_capture_calls_is_not_captured_behind_it() -> None:
    """It is in the variant that the other thread has made by then."""
    counter, inside, done = CompileCounter(), threading.Event(), threading.Event()

    def program(x: Tensor) -> Tensor:
        if not dynajit.is_compiling():
            inside.set()
            assert done.wait(LONGEST / 4)
        return F.linear(x, x) + inner(x)

    def inner(x: Tensor) -> Tensor:
        return x * 2

    answers = []
    other = threading.Thread(target=lambda: answers.append(compiled(torch.ones(4, 4))))

    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        other.start()
        assert inside.wait(LONGEST / 4)
        return counter(gm, inputs)

    compiled = dynajit.compile(program, backend=backend)
    expected = compiled(torch.ones(4, 4))
    done.set()
    other.join(LONGEST / 4)
    assert torch.equal(answers[0], expected)
    assert counter.frame_count == 1 and not _C.variants(inner.__code__)
