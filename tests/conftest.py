"""What every test gets: one thread, a kernel cache of its own, seed 0, nothing compiled, torch's state put back."""

import os
import sys
import tempfile
from collections.abc import Iterator

# Before dynajit is imported: kernels compiled by the tests go to a folder that disappears; old ones are not used.
_cache = tempfile.TemporaryDirectory(prefix="dynajit-tests-", ignore_cleanup_errors=True)
os.environ["DYNAJIT_CACHE_DIR"] = _cache.name

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


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
