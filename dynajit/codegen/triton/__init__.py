"""Triton for NVIDIA GPUs. In: kernels of the schedule. Out: the text of Triton functions and how to launch them; see
`generate.py` (a kernel's launches), `printer.py` (text), `tiling.py` (block sizes) and `functions.py` (operations)."""
