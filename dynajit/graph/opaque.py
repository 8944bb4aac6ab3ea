"""Python functions of the program that stand in graphs as one operation.

In: functions that `dynajit.allow_in_graph` adds. Out: `OPAQUE`, asked where calls are modelled. Nothing is known of
such a function but what a run on fake tensors shows; it may change anything, so that its node is neither dropped nor
run twice.
"""

from __future__ import annotations

from typing import Any

OPAQUE: set[Any] = set()
