"""The text that torch.fx generates for a graph is there for tracebacks as long as its code, and no longer."""

from __future__ import annotations

import gc
import linecache

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
