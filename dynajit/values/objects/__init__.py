"""Instances, functions, classes, modules, exceptions, generators.

Attribute look-up as CPython does it, calls of Python functions, cells, exceptions and what they carry, generators.
Add a type whose instances have attributes: a subclass of `ObjVal`, made in `dynajit/values/library/wrap.py`.
"""
