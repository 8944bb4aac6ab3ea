"""`inspect.signature` of functions that the program makes itself."""

import dataclasses
import functools
import inspect
import typing
from typing import Any

import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.arange(3.0)


def test_of_a_function_made_inside() -> None:
    def program(x: Tensor, scale: int) -> Any:
        def inner(a: int, /, b: Tensor, c: float = 2.5, *rest: int, d: str = "d", e: Any, **more: Any) -> Tensor:
            return x * scale * a

        found = inspect.signature(inner)
        names = [(name, each.kind, each.default, each.annotation) for name, each in found.parameters.items()]
        bound = found.bind(1, x, d="other", e=3)
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name != "b"}
        return inner(2, x, e=1), names, str(found), found.return_annotation, given

    assert_same(program, X, 3, graphs=1, breaks=0)


def test_of_lambdas_and_of_defaults_that_vary() -> None:
    def program(x: Tensor, n: int) -> Any:
        inner = lambda a, b=n, *, k=None: a  # noqa: E731
        found = inspect.signature(inner)
        return x * len(found.parameters), str(found), found == inspect.signature(lambda a, b=n, *, k=None: a)

    run = dynajit.compile(program, backend="eager")
    for n in (1, 2, 3, 2, 1):
        assert run(X, n)[1:] == program(X, n)[1:]


def test_a_wrapper_has_the_signature_of_what_it_wraps() -> None:
    def program(x: Tensor) -> Any:
        def inner(a: int, b: int = 2) -> int:
            return a + b

        @functools.wraps(inner)
        def outer(*args: Any) -> int:
            return inner(*args)

        items: list[int] = []

        def holds(a: int, b: list[int] = items) -> None:
            b.append(a)

        found = inspect.signature(holds).parameters["b"].default
        found.append(4)
        return x * outer(1), str(inspect.signature(outer)), found is items, items

    assert_same(program, X, never_repeats="each call makes a signature that is guarded by identity")


def test_arguments_chosen_by_name() -> None:
    def program(x: Tensor, settings: dict[str, Any]) -> Any:
        def step(x: Tensor, rate: float = 0.5, steps: int = 2) -> Tensor:
            for _ in range(steps):
                x = x - rate * x.cos()
            return x

        known = inspect.signature(step).parameters
        return step(x, **{name: value for name, value in settings.items() if name in known})

    assert_same(program, X, {"rate": 0.25, "other": 3}, graphs=1, breaks=0)


HELD: list[int] = []


def holds(a: int, b: list[int] = HELD, c: tuple[list[int]] = (HELD,)) -> None:
    b.append(a)


@dataclasses.dataclass
class Settings:
    sizes: list[int] = dataclasses.field(default_factory=list, metadata={"held": HELD})


def test_what_a_signature_holds_is_the_programs_own() -> None:
    def program(x: Tensor, seen: inspect.Signature) -> Any:
        found = seen.parameters["b"].default
        found.append(len(found))
        (inside,) = seen.parameters["c"].default
        field = dataclasses.fields(Settings)[0].metadata["held"]
        return x + len(found), found is HELD, inside is HELD, field is HELD, list(HELD)

    run = dynajit.compile(program, backend="eager")
    for count in range(1, 5):
        assert run(X, inspect.signature(holds))[1:] == (True, True, True, list(range(count)))
        assert len(HELD) == count


def annotated(x: Tensor, k: int = 2, *, names: list[str] | None = None, other: dict[str, Any] = {}) -> Tensor:  # noqa: B006
    return x * k


def plain(x: Tensor, k: int = 2, *rest: float, names: list[str] | None = None) -> Tensor:
    return x * k


def spelled(x: "Tensor", k: "int" = 2) -> "Tensor":
    return x * k


def test_types_and_names_of_parameters() -> None:
    def program(x: Tensor) -> Any:
        hints, found = typing.get_type_hints(plain), inspect.getfullargspec(plain)
        hints["k"] = float
        kinds = inspect.ismodule(inspect), inspect.isbuiltin(len), inspect.isroutine(plain), inspect.ismodule(x)
        return plain(x), hints, typing.get_type_hints(plain), found, found.args[:1], found.defaults, kinds

    assert_same(program, X, repeat=3, graphs=1, breaks=0)


def test_types_of_parameters_that_are_text_or_hold_objects() -> None:
    def program(x: Tensor, of: Any) -> Any:
        found = inspect.getfullargspec(of).kwonlydefaults
        return x * 2, typing.get_type_hints(of), found, found is None or found["other"] is other

    other = annotated.__kwdefaults__["other"]  # type: ignore[index]
    for of in (spelled, annotated):
        run = dynajit.compile(program, backend="eager")
        for _ in range(2):
            assert run(X, of)[1:] == program(X, of)[1:]
