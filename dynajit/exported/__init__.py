"""Programs in files: exported whole, run where neither the model's source nor its libraries are.

In:  a function or module with example arguments. Out: `export` gives a callable that can be saved; `load_program` gives
it back in another process. One more kind of argument or result: `trees.py`.
"""

from dynajit.exported.exporting import Exported, compile_exported, dimensions, export
from dynajit.exported.program import PortableProgram, load_program
from dynajit.exported.shown import inspect_file, made_up_arguments

__all__ = [
    "Exported",
    "PortableProgram",
    "compile_exported",
    "dimensions",
    "export",
    "inspect_file",
    "load_program",
    "made_up_arguments",
]
