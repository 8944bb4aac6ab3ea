"""A cache folder in one file, to be taken to another machine or into an image.

In:  the artifact store. Out: `pack(store, path)` writes its files into one (`container.py`); `unpack(store, path)` puts
     those that the store does not have into it. What is found by other names than the store gives is refused.
     `publish(store, remote)` puts them into the remote cache.
"""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import NamedTuple

from dynajit.exc import ArtifactError
from dynajit.runtime import container
from dynajit.runtime.remote_cache import RemoteCache
from dynajit.runtime.store import ArtifactStore, written

KIND = "cache"
# a hex digest, and what kind of file it is
_NAME = re.compile(r"([0-9a-f]{4,128})(\.[a-z]{1,16})")


class Travelled(NamedTuple):
    """How many files, of how many bytes, and how many there were already."""

    files: int
    size: int
    known: int


def pack(store: ArtifactStore, path: Path) -> Travelled:
    """Write the store's files, those whose checksums hold, into one file. Raises OSError."""
    sound = _sound(store)
    counts = collections.Counter(file.suffix for file in sound)
    container.write(path, KIND, {"files": dict(counts)}, [(file.name, file) for file in sound])
    return Travelled(len(sound), sum(file.stat().st_size for file in sound), 0)


def publish(store: ArtifactStore, remote: RemoteCache) -> Travelled:
    """Put the store's files, those whose checksums hold, into the remote cache, which may have some of them. Raises
    OSError where one was not taken."""
    sound = _sound(store)
    for number, file in enumerate(sound):
        if not remote.put(file.name, file.read_bytes()):
            raise OSError(f"{file.name} was not taken, after {number} of {len(sound)} files: {remote.state()}")
    return Travelled(len(sound), sum(file.stat().st_size for file in sound), 0)


def _sound(store: ArtifactStore) -> list[Path]:
    return [file for file in sorted(store.files()) if _NAME.fullmatch(file.name) and store.is_sound(file)]


def unpack(store: ArtifactStore, path: Path) -> Travelled:
    """Put the packed files into the store. Everything is checked first. Raises ArtifactError, OSError."""
    packed = container.Container(path, KIND)
    names = {}
    for name in packed.sections:
        found = _NAME.fullmatch(name)
        if found is None:
            packed.refuse(f"it holds {name!r}, which is no name of a cache folder's file (a hex digest and a suffix)")
        else:
            names[name] = found.group(1), found.group(2)
    size = sum(section.size for section in packed.sections.values())
    if size > store.limit:
        raise ArtifactError(
            f"{path}: its files have {size / 1e6:.0f} MB, and the cache folder keeps {store.limit / 1e6:.0f} MB at "
            "most: raise DYNAJIT_CACHE_SIZE_MB"
        )
    for name in names:
        packed.view(name)
    new = [(name, key, suffix) for name, (key, suffix) in names.items() if store.get(key, suffix) is None]
    for name, key, suffix in new:
        store.put(key, suffix, written(packed.view(name, check=False)))
    return Travelled(len(new), sum(packed.sections[name].size for name, _, _ in new), len(names) - len(new))
