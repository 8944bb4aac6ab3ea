"""The block of torch.distributed in which collectives are put off and made together, in plain Python.

In: the object that the block gives the program, and whether it is to be waited for. Out: the context manager. What
enters and leaves the block is the models' (`tensors/coalescing.py`): none of this runs outside of a capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def coalescing_manager(manager: Any, asynchronous: bool) -> Iterator[Any]:
    """The block; where an exception leaves it, it stays open, as torch's does."""
    enter_block()
    yield manager
    work = leave_block(asynchronous)
    if work is not None:
        manager.append(work)


def enter_block() -> None:
    """From here on collectives are put off."""


def leave_block(asynchronous: bool) -> Any:
    """Make those that were. The handle, if one is asked for and there were any."""
