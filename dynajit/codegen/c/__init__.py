"""C for CPUs. In: kernels of the schedule. Out: C text; see `printer.py` (kernels) and `mathlib.py` (functions)."""
