"""What every model shares.

`Value`, the base of models, with a default for each operation: a graph break that names the type. `Tracer`, what models
may ask of the interpreter. The journal, which logs every change so that a break can take it back. The tables in which
the other rooms register models of functions.
Add an operation that all models answer: a method of `Value` with its default, and its use in the interpreter.
"""
