"""What every test gets: one thread, a kernel cache of its own, seed 0, nothing compiled, torch's state put back, and
an end: a test that waits for ever fails and says where it waited."""

import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

# Before dynajit is imported: kernels compiled by the tests go to a folder that disappears; old ones are not used.
_cache = tempfile.TemporaryDirectory(prefix="dynajit-tests-", ignore_cleanup_errors=True)
os.environ["DYNAJIT_CACHE_DIR"] = _cache.name

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

# Below faulthandler_timeout, which only shows stacks: it is left for what hangs in C with the interpreter's lock held.
LONGEST_S = 200.0


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """A test that takes LONGEST_S fails, with the traceback of where it was."""

    def too_long(signum: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        pytest.fail(f"took {LONGEST_S:.0f} s")  # no Exception, so that nothing on the way takes it for a program's

    before = signal.signal(signal.SIGALRM, too_long)
    # Again each second until the handler runs: CPython's interpreter now and then misses a signal's wake-up.
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S, 1.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _shows_warnings() -> Iterator[None]:
    """What dynajit changes of warnings while it compiles, in whatever threads, it has put back."""
    always = torch.is_warn_always_enabled()
    yield
    now, shows = torch.is_warn_always_enabled(), warnings._showwarnmsg.__module__  # type: ignore[attr-defined]
    torch.set_warn_always(always)
    assert now == always, "torch warns each time"
    assert not (shows or "").startswith("dynajit"), "warnings are heard by what has ended"


@pytest.fixture(autouse=True)
def _isolate() -> Iterator[None]:
    """Each test starts from seed 0 with nothing compiled, and leaves grad mode and default dtype as they were."""
    torch.manual_seed(0)
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    yield
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    dynajit = sys.modules.get("dynajit")
    if dynajit is not None and hasattr(dynajit, "reset"):
        dynajit.reset()
