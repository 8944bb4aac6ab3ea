"""The log of everything tracing changed, so that a break can take it back.

In: undo actions, one for each change of symbolic state. Out: `mark()` and `rollback(mark)`, and the mutated values in
the order of their first mutation, which the emitted code brings up to date. A model that changes itself calls
`record`, and `wrote`, which remembers those that stand for real objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ITEMS_PER_INSTRUCTION = 16


class Journal:
    """Append-only while tracing runs forward; shrinks only by rollback."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self.dirty: dict[int, Any] = {}
        #: what the program changed, objects made while tracing too, once for each change; never goes back
        self.changed: list[Any] = []
        #: how often the program read what it had written where neither arguments nor guards lead; never goes back
        self.hidden_reads = 0
        #: what copying long containers cost, in instructions traced meanwhile; never goes back
        self.work = 0
        #: keys of tables are compared by identity alone
        self.rolling_back = False

    def mark(self) -> int:
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Take back, newest first, everything recorded since `mark`."""
        self.rolling_back = True
        while len(self._undo) > mark:
            self._undo.pop()()
        self.rolling_back = False

    def forget(self) -> None:
        """Nothing will be taken back any more."""
        self._undo.clear()
        self.dirty.clear()
        self.changed.clear()

    @property
    def changes(self) -> int:
        """How often the program changed anything; never goes back."""
        return len(self.changed)

    def record(self, undo: Callable[[], object]) -> None:
        self._undo.append(undo)

    def touch(self, value: Any) -> None:
        """Remember that `value` (a model with `emit_effect`) differs from the object it stands for."""
        self.changed.append(value)
        key = id(value)
        if key not in self.dirty:
            self.dirty[key] = value
            self._undo.append(lambda: self.dirty.pop(key, None) and None)

    def wrote(self, value: Any) -> None:
        """The program changes what `value` stands for: an object made while tracing, or one from outside."""
        (self.changed.append if value.source is None else self.touch)(value)

    def charge(self, items: int) -> None:
        """So many items were copied."""
        self.work += items // ITEMS_PER_INSTRUCTION

    def set_item(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """`mapping[key] = value`, undoable, the order of keys included."""
        if key in mapping:
            old = mapping[key]
            mapping[key] = value

            def restore() -> None:
                mapping[key] = old
        else:
            mapping[key] = value

            def restore() -> None:
                del mapping[key]

        self._undo.append(restore)

    def remove_item(self, mapping: dict[Any, Any], key: Any) -> None:
        """Remove a key if it is there, undoable, for a mapping whose order means nothing."""
        if key in mapping:
            old = mapping.pop(key)
            self._undo.append(lambda: mapping.__setitem__(key, old))

    def replace_all(self, container: Any, items: Any) -> None:
        """Replace the contents of a list or dict, undoable."""
        old = container.copy()
        self.charge(len(old))

        def restore() -> None:
            container.clear()
            (container.update if isinstance(container, dict) else container.extend)(old)

        self._undo.append(restore)
        outer, self.rolling_back = self.rolling_back, True
        container.clear()
        (container.update if isinstance(container, dict) else container.extend)(items)
        self.rolling_back = outer

    def set_attr(self, obj: Any, name: str, value: Any) -> None:
        """Set a Python attribute of a model, undoable."""
        old = getattr(obj, name)
        setattr(obj, name, value)
        self._undo.append(lambda: setattr(obj, name, old))
