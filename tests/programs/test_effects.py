"""Programs that change what they were given: order, aliasing and identity are eager's."""

import collections
from typing import Any

import pytest
import torch
from cases import Case, Cases
from torch import Tensor

import dynajit

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()
counter = 0
history: list[Any] = []
removed = 1


class Box:
    total = 0
    shared: list[Any] = []

    def __init__(self, v: Any = None) -> None:
        self.v = v
        self.children: list[Any] = []


@cases(x, [], repeat=1)
def list_argument(x: Tensor, log: list[Any]) -> Any:
    log.append(x + 1)
    log.append(log[0] * 2)
    log.append(log[1] + 1)
    log[0] = "first"
    log.extend([3, 1, 2])
    log.insert(1, None)
    del log[2]
    log += [9]
    return log


@cases(x, {"a": 1, "b": 2}, repeat=1)
def dict_argument(x: Tensor, d: dict[str, Any]) -> Any:
    d["c"] = x * 2
    del d["a"]
    d["a"] = d.pop("b")
    d.setdefault("z", []).append(1)
    d.update(q=d["c"] + 1)
    return len(d)


@cases(x, collections.OrderedDict(a=1, b=2), repeat=1)
def ordered_dict_argument(x: Tensor, d: Any) -> Any:
    d.move_to_end("a")
    d["c"] = x + 1
    return d.popitem(last=False), d


@cases(x, {1, 2}, repeat=1)
def set_argument(x: Tensor, s: set[int]) -> Any:
    s.add(5)
    s.discard(1)
    s |= {7}
    return x + len(s), s


@cases(x, Box(), repeat=3, graphs=2)
def object_argument(x: Tensor, box: Box) -> Any:
    box.v = x + 1
    box.children.append(box.v)
    box.total += 1
    box.new = Box(box)  # type: ignore[attr-defined]
    return box, box.v * 2


def globals_written(x: Tensor) -> Any:
    global counter, added
    counter += 1
    added = x * counter  # type: ignore[name-defined]
    history.append(counter)
    return counter, added, len(history)  # type: ignore[name-defined]


def test_globals_written() -> None:
    compiled = dynajit.compile(globals_written, backend="eager", fullgraph=True)
    for fn in (globals_written, compiled):
        globals().update(counter=0)
        history.clear()
        for number in (1, 2, 3):
            count, tensor, length = fn(x)
            assert (
                count == counter == length == number
                and torch.equal(tensor, x * number)
                and tensor is globals()["added"]
            )
        assert history == [1, 2, 3]


@cases(x, repeat=1)
def global_deleted(x: Tensor) -> Any:
    global removed
    removed = 5
    y = x + removed
    del removed
    try:
        removed
    except NameError as error:
        text = str(error)
    removed = 1
    return y, text


def test_class_attributes_written() -> None:
    def program(x: Tensor) -> Any:
        Box.shared.append(1)
        return x + len(Box.shared)

    compiled = dynajit.compile(program, backend="eager", fullgraph=True)
    Box.shared.clear()
    assert [compiled(x)[0, 0].item() for _ in range(3)] == [1, 2, 3]


@cases([x], repeat=1, graphs=0)
def same_object_twice_inside(items: list[Any]) -> Any:
    other = items
    other.append(1)
    nested = [items, items]
    nested[0].append(2)
    return nested, nested[0] is nested[1], other is items


shared_list: list[Any] = [1]


@cases(x, shared_list, shared_list, repeat=1)
def one_list_in_two_arguments(x: Tensor, a: list[Any], b: list[Any]) -> Any:
    a.append(2)
    b.append(3)
    return x + len(a), a is b, a, b


@cases(x, [[1], [1]], repeat=1)
def inner_containers(x: Tensor, rows: list[list[Any]]) -> Any:
    rows[0].append(x)
    rows[1] = rows[0]
    rows[1].append(5)
    rows.append([rows[0]])
    return x + len(rows[0])


@cases(x, [1, 2, 3], graphs=None, breaks=None, repeat=1)
def exception_in_the_middle(x: Tensor, log: list[Any]) -> Any:
    log.append(4)
    y = x + 1
    log.append(y)
    log.remove(99)
    log.append("never")
    return y


@cases(x, {"k": [1]}, graphs=None, breaks=None, repeat=1)
def break_between_changes(x: Tensor, d: dict[str, Any]) -> Any:
    d["k"].append(x + 1)
    print("middle", len(d["k"]))
    d["k"].append(x + 2)
    d["z"] = d["k"]
    print("end", len(d["k"]))
    return d["k"]


@cases(x.clone(), repeat=2)
def tensor_written_in_place(x: Tensor) -> Any:
    x.add_(1)
    x[0] = 7
    x[:, 1] *= 2
    x += x
    y = x.t()
    y.mul_(3)
    return x, y, x.sum()


@cases(x.clone())
def view_of_an_input_returned(x: Tensor) -> Any:
    return x, x[0], x.t(), x.view(-1), x.detach(), x.reshape(3, 2), x[...], x.contiguous(), x.to(torch.float32)


@cases(x.clone(), [None], repeat=1)
def tensor_stored_and_written(x: Tensor, out: list[Any]) -> Any:
    out[0] = x
    y = x.view(6)
    x.zero_()
    out.append(y + 1)
    return y


@cases(x.clone(), torch.zeros(2, 3))
def out_argument(x: Tensor, out: Tensor) -> Any:
    torch.add(x, 1, out=out)
    got = torch.mul(x, 2, out=out)
    return got is out, out, got


@cases(x, {"t": torch.zeros(2, 3)})
def tensor_in_dict_written(x: Tensor, d: dict[str, Tensor]) -> Any:
    d["t"] += x
    d["t"].copy_(x * 2)
    return d["t"].sum()


@cases(x)
def identity_of_results(x: Tensor) -> Any:
    a = [1]
    b = (a, a)
    d = {"p": a, "q": b}
    y = x + 1
    return a, b, d, y, [y, y], y is y, b[0] is a


@cases(x, [1, 2], {"p": 3}, (4, [5]), graphs=0)
def arguments_returned(x: Tensor, a: Any, b: Any, c: Any) -> Any:
    return x, a, b, c, c[1], [a, b], {"again": a}


@cases(x, Box([1]), graphs=1)
def swap_attributes(x: Tensor, box: Box) -> Any:
    box.v, box.children = box.children, box.v
    return x + 1


class Numbers:
    def __init__(self) -> None:
        self.v: Any = 1
        self.w: Any = 2.5
        self.items: list[Any] = [10, 20]
        self.table: dict[str, Any] = {"a": 100}


@cases(x, Numbers(), repeat=3, graphs=3)
def numbers_moved_and_returned(x: Tensor, n: Numbers) -> Any:
    old, first, entry = n.v, n.items[0], n.table["a"]
    n.v, n.w = n.w, n.v
    n.items[0], n.items[1] = n.items[1], n.items[0]
    n.table["a"] = n.items[0]
    n.table["b"] = old
    return x + 1, old, n.v, first, entry, [old, n.w], n.items[0]


@cases(x, Numbers(), repeat=3, graphs=None)
def numbers_changed_and_returned(x: Tensor, n: Numbers) -> Any:
    old = n.v
    n.v = 7
    n.items[0] += 1
    n.items.append(old)
    got = n.table.pop("a", None)
    n.table["a"] = 5
    return x + 1, old, got, n.items[0]


def test_global_number_returned_from_before_its_change() -> None:
    def program(x: Tensor) -> Any:
        global counter
        before = counter
        counter = before + 7
        return x + 1, before

    compiled = dynajit.compile(program, backend="eager", fullgraph=True)
    globals().update(counter=1)
    assert [compiled(x)[1] for _ in range(3)] == [1, 8, 15] and counter == 22


@cases(x, [3, 1, 2], repeat=1)
def sort_in_place(x: Tensor, items: list[int]) -> Any:
    items.sort(reverse=True)
    items.reverse()
    return x + items[0]


def add_to(item: Any, target: list[Any] = []) -> list[Any]:  # noqa: B006
    target.append(item)
    return target


def test_mutated_default_argument() -> None:
    def program(x: Tensor) -> Any:
        got = add_to(x + 1)
        return len(got)

    compiled = dynajit.compile(program, backend="eager")
    add_to.__defaults__[0].clear()  # type: ignore[index]
    assert [compiled(x) for _ in range(3)] == [1, 2, 3]
    assert len(add_to.__defaults__[0]) == 3  # type: ignore[index]


def test_own_default_arguments_are_mutated() -> None:
    def program(x: Tensor, seen: list[Any] = []) -> Any:  # noqa: B006
        seen.append(1)
        return x + len(seen)

    compiled = dynajit.compile(program, backend="eager")
    assert [compiled(x)[0, 0].item() for _ in range(3)] == [1, 2, 3]


def test_nonlocal_of_an_outer_function() -> None:
    calls = 0
    log: list[Any] = []

    @dynajit.compile(backend="eager")
    def step(x: Tensor) -> Any:
        nonlocal calls
        calls += 1
        log.append(calls)
        return x * calls

    for expected in (1, 2, 3):
        assert step(x)[0, 1].item() == expected
    assert calls == 3 and log == [1, 2, 3]


def test_cell_shared_with_another_function() -> None:
    value = 1

    def change() -> None:
        nonlocal value
        value *= 10

    @dynajit.compile(backend="eager", fullgraph=True)
    def step(x: Tensor) -> Any:
        before = x + value
        change()
        return before, x + value

    for expected in (1, 10, 100):
        before, after = step(x)
        assert before[0, 0].item() == expected and after[0, 0].item() == expected * 10
    assert value == 1000


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_effects(case: Case) -> None:
    case.check()
