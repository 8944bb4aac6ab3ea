"""From C source and a plan to something that runs.

In:  a `codegen.plan.Plan` (`cpu.build`, `gpu.build`).
Out: a function from the graph's inputs to its outputs.
Files: `toolchain` finds and runs the C compiler, `store` keeps what it made, `load` opens it, `native` has plans run.
To support one more compiler: a family in `toolchain`.
"""
