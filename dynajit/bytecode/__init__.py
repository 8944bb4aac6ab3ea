"""bytecode/: CPython code objects in and out.

In: code objects of CPython 3.11 and newer. Out: `decode` gives canonical instructions (canonical.py lists them),
`cfg` and `liveness` what control flow says about them, `assemble.Emitter` builds new code objects,
`continuation.build_continuation` cuts out the rest of a function from any instruction on. An opcode is added in
canonical.py and mapped in each py3NN.py; nothing outside this folder knows which Python runs.
"""

from __future__ import annotations

from dynajit.bytecode.target import target

target()  # an unknown Python is refused here, before anything that would stumble over it is imported

from dynajit.bytecode.assemble import Emitter, Handler, Label, SlotKind, pushed_kinds  # noqa: E402
from dynajit.bytecode.canonical import stack_effect, stack_shape  # noqa: E402
from dynajit.bytecode.cfg import Block, Loop, Region, blocks, loops, reachable_from, regions, successors  # noqa: E402
from dynajit.bytecode.continuation import InnerCall, build_continuation, build_copy, names_inside, pretty  # noqa: E402
from dynajit.bytecode.decode import Code, Instr, Positions, RawInstr, decode  # noqa: E402
from dynajit.bytecode.liveness import cells_live, live_before  # noqa: E402
from dynajit.bytecode.outline import ITEM, KEEPS, Leave, Outline, build_body, build_shell, keeper, outline  # noqa: E402
from dynajit.bytecode.part import Part, copy_of, part_of  # noqa: E402
from dynajit.bytecode.segments import Segments, build_iteration, build_segment, segments  # noqa: E402

__all__ = [
    "ITEM",
    "KEEPS",
    "Block",
    "Code",
    "Emitter",
    "Handler",
    "InnerCall",
    "Instr",
    "Label",
    "Leave",
    "Loop",
    "Outline",
    "Part",
    "Positions",
    "RawInstr",
    "Region",
    "Segments",
    "SlotKind",
    "blocks",
    "build_body",
    "build_continuation",
    "build_copy",
    "build_iteration",
    "build_segment",
    "build_shell",
    "cells_live",
    "copy_of",
    "decode",
    "keeper",
    "live_before",
    "loops",
    "names_inside",
    "outline",
    "part_of",
    "pretty",
    "pushed_kinds",
    "reachable_from",
    "regions",
    "segments",
    "stack_effect",
    "stack_shape",
    "successors",
    "target",
]
