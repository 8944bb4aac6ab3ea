"""Guards: what must hold for a compiled variant to be run again.

In: sources of the objects a trace read, and what it relied on in each. Out: a guard program that
csrc/guards/guard_program.c runs over a frame's locals, the same in Python, and the words for a recompile. One more way
to reach an object: source.py. One more kind of guard: the kinds_*.py file that fits.
"""

# imported for what they register
from dynajit.guards import kinds_container, kinds_module, kinds_object, kinds_relation, kinds_state, kinds_tensor  # noqa: F401
