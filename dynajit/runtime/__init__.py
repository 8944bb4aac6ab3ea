"""From C source and a plan to something that runs.

In:  C text (`load.load_source`), or a `codegen.plan.Plan` (`executor.build`).
Out: bound native functions; a straight-line Python function from the graph's inputs to its outputs.
Files: `toolchain` finds and runs the C compiler, `store` keeps what it made, `load` opens it, `executor` runs a plan.
To support one more compiler: a family in `toolchain`.
"""
