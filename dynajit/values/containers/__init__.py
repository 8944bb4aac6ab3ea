"""Lists, tuples, dictionaries, sets, deques, iterators.

A container from outside is read item by item; its first write copies its contents into the model. Methods written in C
run as CPython's own, on stand-ins that ask the tracer (`standin.py`).
Add a method of a container: a row in its file's table.
"""
