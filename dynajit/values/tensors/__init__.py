"""Tensors and what torch does with them.

A tensor is a node of the graph and a fake tensor. `ops.py` adds a node; `overrides.py` asks `__torch_function__` first;
NumPy's arrays share tensors' memory; torch's own functions that are no operations have models here.
Add a torch function: `torch_functions.py` if it is an operation of the graph, else a model by `@builtin` in its file.
"""
