"""What a trace relies on without a guard: nobody is taken to change it while the process lives.

In: classes and attributes of Python's own library and torch that were read, code that was traced, and why the trace
holds in this process alone (an address, the order of a set of texts). Out: `Assumptions`. Guards are for later calls in
this process; what is kept for another one (`kept/`) has to hold there in this, too.
"""

from __future__ import annotations

import types
from typing import Any


class Assumptions:
    """Append-only; what was rolled back stays, which is too much and never too little.

    Attributes:
        classes: classes of trusted modules in which attributes were looked up, by id.
        members: (module, name, what was found there) of trusted modules, by (id of the module, name).
        imports: modules that are loaded, by the names that the program imports.
        codes: the code that was traced, with its globals, by id.
        only_here: why this trace says nothing of another process; "" if it does.
    """

    def __init__(self) -> None:
        self.classes: dict[int, type] = {}
        self.members: dict[tuple[int, str], tuple[types.ModuleType, str, Any]] = {}
        self.imports: dict[str, types.ModuleType] = {}
        self.codes: dict[int, tuple[types.CodeType, dict[str, Any]]] = {}
        self.only_here = ""

    def of_import(self, name: str, module: types.ModuleType) -> None:
        """The module is loaded under the name."""
        self.imports[name] = module

    def of_class(self, kind: type) -> None:
        """An attribute of the class was looked up, there or not."""
        self.classes[id(kind)] = kind

    def of_module(self, module: types.ModuleType, name: str, found: Any) -> None:
        """The module has this under the name."""
        self.members[id(module), name] = module, name, found

    def of_code(self, code: types.CodeType, globals_: dict[str, Any]) -> None:
        """The code was traced."""
        self.codes[id(code)] = code, globals_

    def of_process(self, why: str) -> None:
        """The trace has something in it that is another one in each process."""
        self.only_here = self.only_here or why
