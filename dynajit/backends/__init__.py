"""What turns a captured graph into a callable.

In:  `backend(gm, example_inputs, **options)`: a torch-level fx GraphModule whose parameters and buffers are
     placeholders, and one (fake or real) tensor for each placeholder.
Out: a callable taking the same inputs in the same order and returning a tuple or list with the graph's outputs.
To add one: a file here with a function under `@register_backend(name=...)`, and its name in `registry._BUILTIN`;
or, from another package, `register_backend` or an entry point in the group `dynajit_backends`.
"""

from dynajit.backends.registry import list_backends, lookup_backend, register_backend

__all__ = ["list_backends", "lookup_backend", "register_backend"]
