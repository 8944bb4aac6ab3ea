"""Models of the objects a traced program works with.

In: real objects with their sources, or the results of traced operations. Out: `Value`s (`core/value.py`), one file for
one kind of type, in rooms of which each imports only those before it: polyfills, core, scalars, containers, objects,
effects, tensors, library. A new type: a `Value` subclass, and a function behind `@wraps_type` in `library/wrap.py`.
"""
