"""What the program does besides computing: calls that have to be made for real, each time the compiled function runs.

In: calls of functions that draw, tell the time, warn, log, or change what outlives the call. Out: calls in generated
code, and models of what they give. `table.py` has the engine; a function is a row of a table in the file of its kind.
"""
