"""From the symbolic state at a return or break to the code that takes the frame's place.

In: the interpreter's logs and frames. Out: a code object: graph call, effects, then the return value, or the breaking
instruction and the calls of the continuations. `plan.py` chooses where to break, `rebuild.py` pushes objects,
`emit.py` puts the code together.
"""
