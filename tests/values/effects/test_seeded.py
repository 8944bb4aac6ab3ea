"""`random.Random` made in the function of a known seed: what it draws is known while tracing."""

import random
from typing import Any

import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.arange(4.0)


def test_everything_that_it_draws() -> None:
    def program(x: Tensor, seed: int) -> Any:
        source = random.Random(seed)
        items, tensors = [1, 2, 3, 4, 5], [x, x + 1, x * 2]
        source.shuffle(items)
        source.shuffle(tensors)
        numbers = [source.random(), source.gauss(0, 1), source.gauss(0, 1), source.randrange(0, 9, 3)]
        drawn = (source.sample(range(4), 2), source.choice(tensors), source.choices("abc", weights=[1, 2, 3], k=4))
        bits = source.randint(1, 9), source.getrandbits(70)
        more = (bits, source.uniform(2, 3), source.choice((1, "a")), source.sample(tensors, k=2))
        y = x[drawn[0]] * numbers[0] if numbers[0] < 0.5 else x + items[0]
        return y, numbers, items, tensors, drawn, more

    for seed in (0, 7, "text", 2.5, b"x"):
        assert_same(program, X, seed, graphs=1, breaks=0)


def test_it_goes_on_where_it_stood() -> None:
    def program(x: Tensor) -> Any:
        source = random.Random(3)
        first, odd = source.random(), source.gauss(0, 1)
        state = source.getstate()
        again = source.random()
        source.setstate(state)
        same = source.random() == again
        source.seed(5)
        dynajit.graph_break()
        return x * first, odd, same, source.random(), source

    def plain(x: Tensor) -> Any:
        *found, source = program(x)
        return *found, source.random(), source.getstate()

    assert_same(plain, X, breaks=1)


def test_a_random_number_decides_without_a_break() -> None:
    def augmented(x: Tensor) -> Tensor:
        source = random.Random(11)
        for _ in range(6):
            x = x.flip(0) if source.random() < 0.5 else x * source.choice([2, 3])
        return x

    assert_same(augmented, X, graphs=1, breaks=0)


def test_each_seed_has_its_own() -> None:
    def program(x: Tensor, seed: int) -> Any:
        source = random.Random(seed)
        return x * source.random(), source.sample(range(10), 3)

    run = dynajit.compile(program, backend="eager")
    for seed in [*range(14), 3, 0]:
        found, wanted = run(X, seed), program(X, seed)
        assert torch.equal(found[0], wanted[0]) and found[1] == wanted[1]


def test_errors_are_eagers_and_leave_the_state() -> None:
    def program(x: Tensor) -> Any:
        source, errors = random.Random(1), []
        attempts = (
            lambda: source.choice([]),
            lambda: source.sample([1], 2),
            lambda: source.randint(3, 1),
            lambda: source.shuffle((1, 2)),
            lambda: source.sample({1, 2}, 1),
            lambda: source.nothing,
        )
        for attempt in attempts:
            try:
                attempt()
            except (IndexError, ValueError, TypeError, AttributeError) as error:
                errors.append((type(error), str(error)))
        return x + 1, errors, source.random()

    assert_same(program, X)


def test_outside_lists_are_shuffled_in_place() -> None:
    def program(x: Tensor, items: list[Any]) -> Any:
        source = random.Random(2)
        source.shuffle(items)
        return x + items[0], items, map(source.choice, [items, items]).__next__()

    assert_same(program, X, [1, 2, 3, 4])
    assert_same(program, X, [1, 2, 3, 4, 5, 6])
