"""The engine's side of `tools/fuzz_guided.py`: libFuzzer (through atheris) feeds bytes to one of `fuzz_bytes.TARGETS`.

In:  the target's name, then libFuzzer's own arguments and folders. Out: libFuzzer's output and exit status. It sees
     which branches of dynajit's bytecode and guards packages are reached, and of the extension's C if it is built so.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import sys
import warnings

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["dynajit.bytecode", "dynajit.guards"]):
    import fuzz_bytes


def watch_native() -> None:
    """Hand the counters of the C code to libFuzzer, as the start of an instrumented library would."""
    path = os.environ.get("DYNAJIT_COUNTERS")
    engine = importlib.util.find_spec("atheris.core_with_libfuzzer")
    if not path or engine is None or engine.origin is None:
        print("the C code is not watched", file=sys.stderr)
        return
    library, fuzzer = ctypes.CDLL(path), ctypes.CDLL(engine.origin)
    for name, register in (
        ("dynajit_counters", fuzzer.__sanitizer_cov_8bit_counters_init),
        ("dynajit_places", fuzzer.__sanitizer_cov_pcs_init),
    ):
        size = 1 << 16 if name == "dynajit_counters" else (2 << 16) * ctypes.sizeof(ctypes.c_size_t)
        start = ctypes.addressof((ctypes.c_char * size).in_dll(library, name))
        register(ctypes.c_void_p(start), ctypes.c_void_p(start + size))


def main() -> None:
    """Fuzz until the time is up or something is found."""
    target = fuzz_bytes.TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        found = target(data)
        if found is not None:
            raise AssertionError(f"{found}\ninput: {data.hex()}")

    warnings.simplefilter("ignore")
    gc.freeze()  # what is there need not be looked at by each collection
    watch_native()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
