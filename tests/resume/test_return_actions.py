"""A break inside of a method that no call names: two graphs, and whatever Python makes of the result afterwards."""

# mypy: ignore-errors
# (classes that a type checker is there to refuse)

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same


class Noisy:
    """Each special method computes, prints, and computes; `answer` is what it returns where Python looks at that."""

    def __init__(self, data: Tensor, answer: Any = None) -> None:
        self.__dict__.update(data=data, answer=answer)

    def _work(self, what: str) -> None:
        self.__dict__["data"] = self.data * 2
        print(what)
        self.__dict__["data"] = self.data + 1

    def __setattr__(self, name: str, value: Any) -> None:
        self._work(f"set {name}")
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        self._work(f"delete {name}")
        del self.__dict__[name]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._work(f"set item {key}")

    def __delitem__(self, key: Any) -> None:
        self._work(f"delete item {key}")

    def __bool__(self) -> Any:
        self._work("bool")
        return self.answer

    def __contains__(self, item: Any) -> Any:
        self._work("contains")
        return self.answer

    def __iter__(self) -> Any:
        self._work("iter")
        return self.answer

    def __eq__(self, other: object) -> Any:
        self._work("eq")
        return self.data

    def __lt__(self, other: object) -> Any:
        self._work("lt")
        return NotImplemented

    def __enter__(self) -> Any:
        self._work("enter")
        return self

    def __exit__(self, *error: Any) -> Any:
        self._work("exit")
        return self.answer

    def __call__(self) -> Tensor:
        self._work("call")
        return self.data

    @property
    def action(self) -> Any:
        self._work("action")
        return self.answer


def set_item(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin())
    noisy[1] = x
    return noisy.data.cos()


def delete_item(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin())
    del noisy[1]
    return noisy.data.cos()


def set_attribute(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin())
    noisy.other = x * 3
    return noisy.data.cos() + noisy.other


def delete_attribute(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin())
    del noisy.answer
    return noisy.data.cos(), hasattr(noisy, "answer")


def condition(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin(), answer)
    y = x * 3 if noisy else x * 5
    return y + noisy.data.cos()


def negation(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin(), answer)
    y = not noisy
    return y, noisy.data.cos()


def contains(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin(), answer)
    found = x in noisy
    return found, noisy.data.cos()


def contains_not(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin(), answer)
    if x not in noisy:
        return noisy.data.cos()
    return noisy.data.tan()


def compared(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin())
    return (noisy == x) + noisy.data.cos()


def compared_from_the_right(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin())
    return (x == noisy) + noisy.data.cos()


class Made:
    def __init__(self, x: Tensor, answer: Any) -> None:
        self.x = x * 2
        print("init")
        self.y = self.x + 1
        if answer is not None:
            return answer  # type: ignore[return-value]


class Derived(Made):
    def __init__(self, x: Tensor, answer: Any) -> None:
        self.z = x.tan()
        super().__init__(x, answer)
        self.z = self.z + self.y


def made(x: Tensor, answer: Any) -> Any:
    x = x.sin()
    found = Made(x, answer)
    return found.x + found.y.cos(), type(found).__name__


def derived(x: Tensor, answer: Any) -> Any:
    found = Derived(x.sin(), answer)
    return found.x + found.y + found.z.cos()


class Meta(type):
    def __call__(cls, x: Tensor) -> Any:
        x = x * 2
        print("meta")
        return super().__call__(x + 1)


class WithMeta(metaclass=Meta):
    def __init__(self, x: Tensor) -> None:
        self.x = x * 3


def metaclass(x: Tensor, answer: Any) -> Any:
    return WithMeta(x.sin()).x.cos()  # type: ignore[call-arg]


class New:
    x: Tensor

    def __new__(cls, x: Tensor) -> New:
        self = object.__new__(cls)
        self.x = x * 2
        print("new")
        self.x = self.x + 1
        return self


def new(x: Tensor, answer: Any) -> Any:
    return New(x.sin()).x.cos()


STRAIGHT: list[tuple[Callable[..., Any], Any]] = [
    (set_item, None),
    (delete_item, None),
    (set_attribute, None),
    (delete_attribute, None),
    (condition, True),
    (condition, False),
    (negation, True),
    (contains, True),
    (contains, 0),
    (contains_not, []),
    (contains_not, "yes"),
    (compared, None),
    (compared_from_the_right, None),
    (made, None),
    (derived, None),
    (metaclass, None),
    (new, None),
]


@pytest.mark.parametrize(("fn", "answer"), STRAIGHT, ids=lambda value: getattr(value, "__name__", repr(value)))
def test_both_halves_of_the_method_are_in_the_callers_graphs(fn: Callable[..., Any], answer: Any) -> None:
    assert_same(fn, torch.randn(3), answer, graphs=2, breaks=1, recompiles=0)


class Steps:
    def __init__(self, count: int) -> None:
        self.count = count

    def __next__(self) -> int:
        self.count -= 1
        if self.count < 0:
            raise StopIteration
        return self.count

    def __iter__(self) -> Steps:
        return self


def iterated(x: Tensor, count: int) -> Any:
    noisy = Noisy(x.sin(), Steps(count))
    for step in noisy:
        x = x + step
    return x * noisy.data.cos()


def test_iteration_goes_on_in_the_second_graph() -> None:
    assert_same(iterated, torch.randn(3), 3, graphs=2, breaks=1)


def entered(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin(), answer)
    with noisy as same:
        same.__dict__["data"] = same.data * 3
    return noisy.data.cos(), same is noisy


def test_a_context_manager_is_one_break_for_each_of_its_methods() -> None:
    assert_same(entered, torch.randn(3), None, graphs=3, breaks=2, recompiles=0)


WRONG: list[tuple[Callable[..., Any], Any]] = [
    (condition, 1),
    (condition, None),
    (negation, "x"),
    (made, 3),
    (derived, []),
    (iterated, -1),
]


def iterated_wrongly(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin(), answer)
    for step in noisy:
        x = x + step
    return x * noisy.data.cos()


@pytest.mark.parametrize(("fn", "answer"), [*WRONG, (iterated_wrongly, 5)])
def test_a_result_that_python_refuses(fn: Callable[..., Any], answer: Any) -> None:
    assert_same(fn, torch.randn(3), answer)


def less(x: Tensor, answer: Any) -> Any:
    noisy, other = Noisy(x.sin()), Noisy(x.cos())
    try:
        return noisy < other
    except TypeError as error:
        return noisy.data, other.data, str(error)


def test_an_operator_that_declines_is_asked_of_the_other_operand() -> None:
    assert_same(less, torch.randn(3), None)


class Raising:
    def __init__(self, x: Tensor, where: str) -> None:
        self.__dict__.update(x=x, where=where)
        if where == "init":
            self._fail()

    def _fail(self) -> None:
        self.__dict__["x"] = self.x * 2
        print("failing")
        self.__dict__["x"] = self.x + 1
        raise KeyError(self.where)

    def __setattr__(self, name: str, value: Any) -> None:
        self._fail()

    def __bool__(self) -> bool:
        self._fail()
        return True

    def __enter__(self) -> None:
        self._fail()

    def __exit__(self, *error: Any) -> None:
        print("not entered, not left")


def fails(x: Tensor, where: str) -> Any:
    known = []
    x = x.sin()
    try:
        raising = Raising(x, where)
        known.append(raising)
        if where == "set":
            raising.attribute = x
        elif where == "bool":
            print("yes" if raising else "no")
        elif where == "with":
            with raising:
                print("in")
    except KeyError as error:
        return x.cos(), repr(error), [entry.x for entry in known]
    return None


@pytest.mark.parametrize("where", ["init", "set", "bool", "with"])
def test_what_the_method_raises_reaches_the_callers_handler(where: str) -> None:
    assert_same(fails, torch.randn(3), where)


def fails_outside(x: Tensor, where: str) -> Any:
    raising = Raising(x.sin(), where)
    raising.attribute = x
    return raising


@pytest.mark.parametrize("where", ["init", "set"])
def test_what_the_method_raises_leaves_the_function(where: str) -> None:
    assert_same(fails_outside, torch.randn(3), where)


def called_property(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin(), answer)
    return noisy.action(x, 1) + noisy.data.cos()


def test_a_method_call_whose_method_is_a_property() -> None:
    assert_same(called_property, torch.randn(3), torch.add, graphs=2, breaks=1)


def in_a_loop(x: Tensor, answer: Any) -> Any:
    noisy = Noisy(x.sin(), answer)
    count = 0
    while noisy and count < 3:
        noisy[count] = Made(x, None).y
        count += 1
    return noisy.data.cos(), count


def test_in_a_loop() -> None:
    assert_same(in_a_loop, torch.randn(3), True)


def chain(x: Tensor, answer: Any) -> Any:
    """A setter that makes an object whose `__init__` asks a third one for its truth."""
    outer = Outer(x.sin(), answer)
    outer.part = x
    return outer.part.y.cos()


class Outer:
    def __init__(self, x: Tensor, answer: Any) -> None:
        self.x, self.answer = x, answer

    @property
    def part(self) -> Any:
        return self._part

    @part.setter
    def part(self, value: Tensor) -> None:
        self._part = Part(Noisy(value + self.x, self.answer))


class Part:
    def __init__(self, noisy: Noisy) -> None:
        self.y = noisy.data * 2 if noisy else noisy.data * 3
        self.y = self.y + 1


@pytest.mark.parametrize("answer", [True, False])
def test_a_chain_of_them(answer: bool) -> None:
    assert_same(chain, torch.randn(3), answer, graphs=2, breaks=1, recompiles=0)


def generator_in_init(x: Tensor, answer: Any) -> Iterator[Tensor]:
    yield Made(x, None).y
    yield x


def consumed(x: Tensor, answer: Any) -> Any:
    return sum(generator_in_init(x.sin(), answer), x)


def test_in_a_generator() -> None:
    assert_same(consumed, torch.randn(3), None)


class Key:
    """Its `__eq__` runs wherever a dictionary compares it: what it returns is nothing that an instruction pushes."""

    def __hash__(self) -> int:
        return hash("attribute")

    def __eq__(self, other: object) -> Any:
        print("eq")
        return 0


class Holder:
    attribute = 1


def odd_key(x: Tensor, answer: Any) -> Any:
    holder = Holder()
    holder.__dict__[Key()] = 0
    return holder.attribute, x.sin(), {"attribute": 2}.get(Key()), [3].count(Key()), Key() in ["attribute"]


def test_a_comparison_inside_of_another_instruction() -> None:
    assert_same(odd_key, torch.randn(3), None)


class Borrowed(int):
    __eq__ = str.__eq__
    __hash__ = int.__hash__


def borrowed(x: Tensor, answer: Any) -> Any:
    try:
        return Borrowed(3) == Borrowed(3)
    except TypeError as error:
        return x.sin(), str(error)


def test_a_comparison_of_another_class() -> None:
    assert_same(borrowed, torch.randn(3), None)


class Forward(torch.nn.Module):
    @property
    def forward(self) -> Any:
        print("forward")
        return torch.sin


def forward_is_a_property(x: Tensor, module: Any) -> Any:
    return module(x.cos()) + 1


def test_a_module_whose_forward_is_a_property() -> None:
    assert_same(forward_is_a_property, torch.randn(3), Forward())


class Declining:
    """Its operators decline through another function."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def _maybe(self, other: Any) -> Any:
        self.data = self.data * 2
        print("asked")
        return NotImplemented if not isinstance(other, Tensor) else self.data + other

    def __add__(self, other: Any) -> Any:
        return self._maybe(other)

    def __radd__(self, other: Any) -> Any:
        return self.data - 5

    def __iadd__(self, other: Any) -> Any:
        return self._maybe(other)

    def __lt__(self, other: Any) -> Any:
        return self._maybe(other)

    def __eq__(self, other: object) -> Any:
        return self._maybe(other)


class DecliningMore(Declining):
    def __radd__(self, other: Any) -> Any:
        return self._maybe(other)

    def __gt__(self, other: Any) -> Any:
        return "greater"


@pytest.mark.parametrize("other", [Declining, DecliningMore, int, Tensor])
@pytest.mark.parametrize("operator", ["+", "+=", "<", "==", "!="])
def test_an_operator_that_declines_through_another_function(other: Any, operator: str) -> None:
    def program(x: Tensor, operator: str) -> Any:
        left = Declining(x.sin())
        right = x.cos() if other is Tensor else 3 if other is int else other(x.cos())
        try:
            if operator == "+":
                found = left + right
            elif operator == "+=":
                found = left
                found += right
            elif operator == "<":
                found = left < right
            elif operator == "==":
                found = left == right
            else:
                found = left != right
        except TypeError as error:
            found = str(error)
        return found, left.data, getattr(right, "data", None)

    assert_same(program, torch.randn(3), operator)


class BreaksTwice:
    """Asked for its truth, it breaks in what goes on after a break, too."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __bool__(self) -> bool:
        print("asked")
        return bool(self.data.sum() > 0)

    def __len__(self) -> int:
        print("measured")
        return int(self.data.sum() > 0)

    def __enter__(self) -> BreaksTwice:
        return self

    def __exit__(self, *error: object) -> bool:
        return True


def asked_twice(x: Tensor) -> Any:
    scope = BreaksTwice(x)
    if scope:
        print("yes")
    with scope:
        x = x * 2
        raise ValueError
    return x


def chosen_twice(x: Tensor) -> Any:
    scope = BreaksTwice(x)
    chosen = scope and x.sin()
    with scope or x:
        x = x * 2
        raise ValueError
    return x, chosen is scope, not scope


@pytest.mark.parametrize("sign", [1, -1])
def test_what_goes_on_after_two_breaks_in_a_callee_finds_the_callers_stack_as_it_was(sign: int) -> None:
    """A slot was left on the stack, and a handler found that for what a `with` had put there: a crash."""
    assert_same(asked_twice, torch.ones(3) * sign)
    assert_same(chosen_twice, torch.ones(3) * sign)
