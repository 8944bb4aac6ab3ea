"""bytecode/: CPython code objects in and out.

In: code objects of CPython 3.11 and newer. Out: `decode` gives canonical instructions (canonical.py lists them),
`cfg` and `liveness` what control flow says about them, `assemble.Emitter` builds new code objects,
`continuation.build_continuation` cuts out the rest of a function from any instruction on. An opcode is added in
canonical.py and mapped in each py3NN.py; nothing outside this folder knows which Python runs.
"""

from __future__ import annotations

from dynajit.bytecode.assemble import Emitter, Handler, Label, SlotKind, pushed_kinds
from dynajit.bytecode.canonical import stack_effect, stack_shape
from dynajit.bytecode.cfg import Block, Region, blocks, reachable_from, regions, successors
from dynajit.bytecode.continuation import InnerCall, build_continuation, build_copy, pretty
from dynajit.bytecode.decode import Code, Instr, Positions, RawInstr, decode
from dynajit.bytecode.liveness import cells_live, live_before
from dynajit.bytecode.target import target

__all__ = [
    "Block",
    "Code",
    "Emitter",
    "Handler",
    "InnerCall",
    "Instr",
    "Label",
    "Positions",
    "RawInstr",
    "Region",
    "SlotKind",
    "blocks",
    "build_continuation",
    "build_copy",
    "cells_live",
    "decode",
    "live_before",
    "pretty",
    "pushed_kinds",
    "reachable_from",
    "regions",
    "stack_effect",
    "stack_shape",
    "successors",
    "target",
]
