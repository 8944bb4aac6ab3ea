"""The symbolic interpreter.

In: a decoded frame with models of its arguments. Out: the fx graph, guards, journal and either the returned value or
the break with the chain of frames at that point. `machine.py` steps; `opcodes_*.py` give each canonical opcode its
meaning, one function behind `@opcode("NAME")`; `calls.py` binds arguments and decides what a call means.
"""
