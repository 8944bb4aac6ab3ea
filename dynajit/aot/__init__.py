"""From the captured torch-level graph to functional ATen graphs, for inference and for training.

In:  `compile_joint(gm, example_inputs, compile_fn, decompositions=...)`, see `joint.py`.
Out: a callable with the captured graph's inputs and outputs that runs what `compile_fn` made of the ATen graphs: the
     outputs take part in autograd, mutated inputs are mutated, and what aliases in eager aliases.
To have one more op decomposed before code generation: `decompositions.py`.
"""

from dynajit.aot.joint import compile_joint
from dynajit.aot.pipeline import CompileFn

__all__ = ["CompileFn", "compile_joint"]
