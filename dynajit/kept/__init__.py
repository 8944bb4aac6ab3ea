"""Compiled variants for the next process: what was compiled is data, with the conditions under which it holds.

In: a variant that was just made, with the guards and assumptions of its trace (`variant.to_data`); or a call for which
no variant fits (`folder.Lookup`). Out: a file in the artifact store; a variant made of one whose conditions were all
found to hold here. Objects become data in `describe.py`, sources and guards in `conditions.py`, the generated code in
`code.py`; what a file is found by is in `key.py`. One more kind of guard: its parameters in `conditions.py`.
"""
