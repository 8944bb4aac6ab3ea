"""From a functional ATen graph to a call plan with C source.

In:  `generate(gm, example_inputs, name)`: an fx GraphModule of ATen ops with fake tensors of static shape in
     `node.meta["val"]`.
Out: `plan.Plan`: C text of the kernels and the list of steps. `CannotGenerate` where the graph is of a kind that
     can't be planned (symbolic shapes): run the graph as it is.
One more target language: a folder beside `c/` that prints `schedule`'s kernels.
"""
