"""The text that torch.fx generates for a graph is there from when it is asked for, and no longer than its code."""

from __future__ import annotations

import copy
import gc
import linecache
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from dynajit import torch_compat


def made() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    return torch_compat.graph_module(torch.nn.Module(), graph, "Made")


def test_text_lives_as_long_as_its_code() -> None:
    module = made()
    forward = type(module).forward
    name = forward.__code__.co_filename
    assert "relu" in "".join(linecache.getlines(name))
    del module
    gc.collect()
    assert "relu" in "".join(linecache.getlines(name))
    del forward
    gc.collect()
    assert linecache.getlines(name) == []
    assert name not in linecache.cache


X = torch.tensor([-1.0, 2.0])
ASKS: dict[str, Callable[[fx.GraphModule], Any]] = {
    "forward": lambda module: module.forward(X),
    "forward of the class": lambda module: type(module).forward(module, X),
    "call": lambda module: module(X),
    "later": lambda module: torch_compat.forward_of(module)(X),
    "code": lambda module: "relu" in module.code and module(X),
    "text": lambda module: "relu" in str(module) and module(X),
    "recompile": lambda module: "relu" in module.recompile().src and module(X),
    "lines": lambda module: module._lineno_map is not None and module(X),
    "copy": lambda module: copy.copy(module)(X),
    "deep copy": lambda module: copy.deepcopy(module)(X),
    "pickle": lambda module: pickle.loads(pickle.dumps(module))(X),
    "torch.jit": lambda module: torch.jit.script(module)(X),
    "symbolic_trace": lambda module: fx.symbolic_trace(module)(X),
}


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("how", ASKS)
def test_text_is_made_when_it_is_asked_for(how: str) -> None:
    module = made()
    assert torch_compat.file_of(module) == ""
    assert "_code" not in vars(module)
    assert torch.equal(ASKS[how](module), torch.relu(X))
    assert (torch_compat.file_of(module) == "") == ("copy" in how)  # which is made of the graph


def test_another_graph_gives_other_text() -> None:
    for asked in (True, False):
        module = made()
        if asked:
            module(X)
        for node in module.graph.nodes:
            if node.op == "call_function":
                node.target = torch.neg
        module.recompile()
        assert torch.equal(module(X), -X)
