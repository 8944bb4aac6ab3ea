"""The torch.fx graph under construction.

In: torch functions with models of their arguments already turned into fx nodes. Out: nodes with fake values, a
GraphModule at the end. `builder.py` holds the graph and its checkpoints, `fake.py` makes fake tensors of real ones.
"""
