"""One frame from start to end: interpret, plan, compile the graph, emit, guard.

In: a code object and the real values of a frame's parameters, from the frame hook. Out: a `_C.Variant` for the code
cache, or None where the frame runs eagerly. `capture.py` drives, `session.py` holds what one `compile` call chose,
`rules.py` says which frames are never looked at.
"""
