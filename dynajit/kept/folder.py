"""Kept variants in the artifact store: looking for one that fits a call, and keeping one that was made.

In: a session's choices, the frame's function and values. Out: `Lookup.load()`, a variant whose conditions hold here, or
None; `Lookup.keep(made)`. A few variants have one key, for whatever the key does not tell: each is one file, written
under another name and renamed. A damaged file is none. What was kept, loaded, and why not, is counted in
`counters["kept"]` and told in the log `kept`.
"""

from __future__ import annotations

import hashlib
import json
import traceback
import types
import warnings
from collections.abc import Sequence
from typing import Any

from dynajit.backends import kept_plan
from dynajit.backends.kept_plan import NotKept
from dynajit.constants import NotData
from dynajit.exc import DynajitError
from dynajit.kept import key, variant
from dynajit.kept.describe import Data
from dynajit.kept.parts import Parts
from dynajit.report import logs
from dynajit.report.counters import counters

# files of one key
SLOTS = 4
# what is raised by data that is not as it is written here: the file's checksum holds, so that is another format
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


class Lookup:
    """One call that no variant fits.

    Attributes:
        missed: for each file that was there, why it does not fit.
    """

    def __init__(
        self, settings: Sequence[Any], function: types.FunctionType, values: Sequence[Any], compile_id: str
    ) -> None:
        self.function = function
        self.values = values
        self.compile_id = compile_id
        self.missed: list[str] = []
        self._key: str | None = None
        try:
            self._key = key.of_call(settings, function, values)
        except (NotData, DynajitError) as why:  # no compiler
            self._tell("not kept", str(why))

    def load(self, parts: Parts) -> variant.Loaded | None:
        """The first variant whose conditions hold."""
        for slot in range(SLOTS if self._key is not None else 0):
            try:
                contents = kept_plan.read(self._name(slot))
                if contents is None:
                    break
                found = self._loaded(contents, parts)
            except (NotData, DynajitError, OSError) as why:
                self.missed.append(str(why))
                continue
            counters["kept"]["loaded"] += 1
            self._tell("loaded", f"{len(found.guards)} guards")
            return found
        for reason in self.missed:
            self._tell("missed", reason)
        counters["kept"]["missed"] += 1
        return None

    def _loaded(self, contents: bytes, parts: Parts) -> variant.Loaded:
        name = f"dynajit {self.compile_id} {self.function.__code__.co_name}"
        try:
            data: dict[str, Data] = json.loads(contents)
            if data["key"] != self._key:
                raise NotKept("it was kept for another call, or by another dynajit")
            return variant.from_data(data, self.function, self.values, name, parts)
        except _MALFORMED as error:
            raise NotKept(f"it is not as dynajit writes it ({type(error).__name__}: {error})") from error

    def keep(self, made: variant.Made | None) -> None:
        """Write the variant, if it has a form as data. None: it is none for good."""
        if self._key is None:
            return
        try:
            if made is None:
                raise NotKept("how it runs is found out anew in each process")
            data = {"key": self._key, **variant.to_data(made)}
            contents = json.dumps(data, separators=(",", ":")).encode()
            slot = len(self.missed) if len(self.missed) < SLOTS else _any_slot(contents)
            kept_plan.write(self._name(slot), contents)
        except (NotData, OSError) as why:
            counters["kept"][f"not kept: {_reason(str(why))}"] += 1
            self._tell("not kept", str(why))
            return
        except _MALFORMED as error:
            counters["internal_errors"][type(error).__name__] += 1
            text = "".join(traceback.format_exception(error))
            warnings.warn(f"dynajit failed while keeping a variant. Please report this:\n{text}", stacklevel=2)
            return
        counters["kept"]["written"] += 1
        self._tell("written", f"{len(contents)} bytes")

    def _name(self, slot: int) -> str:
        return hashlib.sha256(f"{self._key} {slot}".encode()).hexdigest()

    def _tell(self, what: str, detail: str) -> None:
        code = self.function.__code__
        place = (code.co_filename, code.co_firstlineno)
        logs.emit("kept", f"{code.co_name} {what}: {detail}", self.compile_id, place)


def _any_slot(contents: bytes) -> int:
    return hashlib.sha256(contents).digest()[0] % SLOTS


def _reason(text: str) -> str:
    """What is counted of a reason: not the name in front of it."""
    return text.rpartition(": ")[2]
