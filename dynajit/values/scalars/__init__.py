"""Numbers, texts and other immutable objects.

Constants, numbers that vary (symbols of the graph), texts and numbers that nothing depends on yet, slices.
Add a literal type: `is_literal` in `constant.py`.
"""
