"""Models of the objects a traced program works with.

In: real objects with their sources, or the results of traced operations. Out: `Value`s (base.py), one file for one
kind of type; `builtins/` models C functions, `polyfills/` has those that call back rewritten in Python; `journal.py`
logs every change so that a break can take it back. A new type: a `Value` subclass, and a line behind
`@wraps_type` in wrap.py.
"""
