"""Graphs as tapes: the same calls, results, lifetimes and places of errors as the graph's own Python code."""

import gc
import traceback
import weakref

import pytest
import torch

from dynajit import _C
from dynajit.backends.tape import only_result, tape_of
from dynajit.testing import assert_same


def traced(function):
    return torch.fx.symbolic_trace(function)


def same(function, *inputs):
    """The tape of a traced function, whose result is that of the graph's code."""
    module = traced(function)
    tape = tape_of(module)
    assert tape is not None
    expected, found = module.forward(*inputs), tape(*inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert type(found) is type(expected)
    return tape


def test_functions_methods_keywords_and_nested_arguments():
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    same(lambda x, y: (torch.add(x, y, alpha=2), x.view(2, -1), [y * 2, (y.sum(dim=0), 3)]), x, y)
    same(lambda x, y: torch.cat([x, y, x], dim=1)[1:, 2], x, y)
    same(lambda x, y: x.add(y, alpha=3).to(torch.float64, copy=True), x, y)
    same(lambda x, y: x[..., None] + y[1:3, torch.tensor(0).item() :].sum(), x, y)


def test_an_input_is_given_back_itself():
    x = torch.ones(2)
    tape = tape_of(traced(lambda x: (x, x + 1)))
    assert tape(x)[0] is x


def test_a_list_is_a_new_one_at_each_call():
    seen = []

    def keep(values):
        seen.append(values)
        return values[0]

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(keep, ([x, 1],)))
    tape = tape_of(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert tape(2) == tape(2) == 2
    assert seen == [[2, 1], [2, 1]]
    assert seen[0] is not seen[1] and type(seen[0]) is list


def test_values_die_behind_their_last_use():
    alive = []

    def note(x):
        alive.append([reference() is not None for reference in references])
        return x

    references = []

    def make(x):
        made = x + 1
        references.append(weakref.ref(made))
        return made

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(make, (x,))
    graph.call_function(make, (x,))  # used by nobody
    second = graph.call_function(torch.mul, (first, 2))
    graph.output((graph.call_function(note, (second,)),))
    tape = tape_of(torch.fx.GraphModule(torch.nn.Module(), graph))
    tape(torch.ones(2))
    assert alive == [[False, False]]


def test_the_only_result_without_its_tuple():
    tape = tape_of(traced(lambda x: (x * 2 + 1,)))
    alone = only_result(tape)
    assert torch.equal(alone(torch.ones(2)), tape(torch.ones(2))[0])
    assert only_result(tape_of(traced(lambda x: (x,)))) is None
    assert only_result(tape_of(traced(lambda x: (x + 1, x)))) is None
    assert only_result(tape_of(traced(lambda x: x + 1))) is None


def test_what_a_tape_cannot_do():
    class WithWeight(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.weight

    assert tape_of(traced(WithWeight())) is None
    assert tape_of(traced(lambda x: {"sum": x + 1})) is None


def test_an_error_has_the_place_in_the_graphs_code():
    module = traced(lambda x: torch.sin(x).view(3, 3))
    x, shown = torch.ones(2), []
    for run in (module.forward, tape_of(module)):
        with pytest.raises(RuntimeError, match="invalid for input of size 2") as caught:
            run(x)
        trace = traceback.extract_tb(caught.tb)[1:]
        shown.append([(entry.filename, entry.name, entry.lineno, entry.line) for entry in trace])
    assert shown[0] == shown[1]
    assert [entry[1] for entry in shown[0]] == ["forward"]


def test_an_error_leaves_no_value_behind():
    module = traced(lambda x: (x + 1).view(3, 3))
    tape, x = tape_of(module), torch.ones(2)

    def count():
        gc.collect()
        return sum(type(found) is torch.Tensor for found in gc.get_objects())

    for _ in range(2):
        before = count()
        with pytest.raises(RuntimeError):
            tape(x)
    assert count() == before


def test_many_values_and_recursion():
    def long(x):
        for _ in range(100):
            x = x + 1
        return (x,)

    same(long, torch.zeros(2))
    inner = tape_of(traced(lambda x: x * 2))

    def twice(x):
        return inner(x)

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(twice, (graph.call_function(twice, (x,)),)))
    assert tape_of(torch.fx.GraphModule(torch.nn.Module(), graph))(3) == 12


def test_wrong_inputs_and_wrong_steps():
    tape = tape_of(traced(lambda x, y: x + y))
    with pytest.raises(TypeError, match="takes 2 inputs by position, not 1"):
        tape(torch.ones(1))
    with pytest.raises(TypeError, match="takes 2 inputs"):
        tape(torch.ones(1), y=torch.ones(1))

    def wrong(*steps, error=ValueError):
        with pytest.raises(error):
            _C.GraphTape(1, steps, (7,), {}, wrong.__code__)

    wrong()
    wrong(("call", abs, (1,), (), (), 1))  # its own result
    wrong(("call", abs, (-3,), (), (), 1))  # one constant too many
    wrong(("call", abs, (0,), (), (-1,), 1))  # drops a constant
    wrong(("call", abs, (0,), (), (2,), 1))
    wrong(("jump", abs, (0,), (), (), 1))
    wrong(("method", "upper", (), (), (), 1))
    wrong(("call", abs, (0,), ("a", "b"), (), 1))
    wrong(("call", abs, ("x",), (), (), 1), error=TypeError)


def test_errors_of_compiled_calls_are_those_of_the_program():
    def program(x, y):
        z = x.add_(1) * 2
        return (z @ y).sum()

    assert_same(program, torch.ones(2, 3), torch.ones(3, 2), graphs=1, breaks=0)
    assert_same(program, torch.ones(2, 3), torch.ones(4, 2))
