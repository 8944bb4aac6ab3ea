"""A file of named sections that is checked before anything in it is believed: packed caches, exported programs.

In:  `write(path, kind, facts, sections)`: a kind, facts as JSON, and the sections' bytes or the files that hold them.
Out: `Container(path, kind)`: the facts, and `read(name)` or `view(name)` of a section. `ArtifactError` for whatever is
     no such file: another kind, a newer format, cut short, changed. Nothing is unpickled.

The file: a prefix of fixed size (magic, kind, format, sizes, SHA-256 of the prefix and the header), the header (JSON:
facts, and each section's name, place, size and SHA-256), the sections, each at a multiple of `ALIGNMENT`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dynajit.exc import ArtifactError

MAGIC = b"DYNAJIT\0"
# Bump when an older dynajit would misread the file.
FORMAT = 2
ALIGNMENT = 64
MAX_HEADER = 64 << 20
MAX_SECTIONS = 1 << 17
_PREFIX = struct.Struct("<8s16sIIQ")  # magic, kind, format, size of the header, size of the file
_DIGEST = 32
_START = _PREFIX.size + _DIGEST
_CHUNK = 1 << 20

Contents = bytes | memoryview | Path


class SectionPlace(NamedTuple):
    """Where a section is, how long, and its checksum."""

    offset: int
    size: int
    sha256: str


def write(path: Path, kind: str, facts: Mapping[str, Any], sections: Iterable[tuple[str, Contents]]) -> None:
    """Write the file; it appears under its name when it is complete. Raises OSError."""
    kept = list(sections)
    places: dict[str, list[Any]] = {}
    sized = [(name, contents, *_measure(contents)) for name, contents in kept]
    for name, _, size, sha256 in sized:
        places[name] = [0, size, sha256]
    assert len(places) == len(kept), "two sections of one name"
    header = b""
    for _ in range(2):  # the header's length decides where sections are; numbers are padded so that it stays
        header = json.dumps({"facts": facts, "sections": places}).encode()
        header += b" " * (len(places) * 20 - sum(len(str(place[0])) for place in places.values()))
        offset = _aligned(_START + len(header))
        for name, _, size, _ in sized:
            places[name][0] = offset
            offset = _aligned(offset + size)
    end = max((place[0] + place[1] for place in places.values()), default=_START + len(header))
    prefix = _PREFIX.pack(MAGIC, kind.encode(), FORMAT, len(header), end)
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(prefix + hashlib.sha256(prefix + header).digest() + header)
            for name, contents, _, _ in sized:
                file.write(b"\0" * (places[name][0] - file.tell()))
                for chunk in _chunks(contents):
                    file.write(chunk)
        Path(scratch).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(scratch).unlink()
        raise


class Container:
    """An open file of sections, mapped into memory. Raises ArtifactError; a section's checksum is compared when it is
    read."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self._map = self._open()
        found = self._prefix(kind)
        header = self._map[_START : _START + found[0]]
        digest = hashlib.sha256(self._map[: _PREFIX.size] + header).digest()
        if digest != self._map[_PREFIX.size : _START]:
            self.refuse("its header is damaged: the checksum is not the one written with it")
        try:
            parsed = json.loads(header)
            self.facts: dict[str, Any] = parsed["facts"]
            self.sections = self._sections(parsed["sections"], found[1])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.refuse(f"its header is not what dynajit writes ({type(error).__name__}: {error})")

    def refuse(self, why: str) -> Any:
        """Raise ArtifactError about this file."""
        raise ArtifactError(f"{self.path}: {why}")

    def read(self, name: str) -> bytes:
        """A section's bytes, after comparing its checksum."""
        return bytes(self.view(name))

    def view(self, name: str, check: bool = True) -> memoryview:
        """A section in the mapped file, which may be written to: a page that is written becomes this process's own."""
        section = self.sections.get(name)
        if section is None:
            self.refuse(f"it has no section {name!r}; it has {', '.join(sorted(self.sections)) or 'none'}")
        assert section is not None
        found = memoryview(self._map)[section.offset : section.offset + section.size]
        if check and hashlib.sha256(found).hexdigest() != section.sha256:
            self.refuse(f"its section {name!r} is damaged: the checksum is not the one written with it")
        return found

    def _open(self) -> mmap.mmap:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < _START:
                    self.refuse(f"it is too short for a dynajit file, which begins with {_START} bytes of prefix")
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise ArtifactError(f"{self.path}: there is no such file") from None
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{self.path}: it can't be read: {error}") from error

    def _prefix(self, kind: str) -> tuple[int, int]:
        """Sizes of the header and of the file."""
        magic, named, version, header, size = _PREFIX.unpack(self._map[: _PREFIX.size])
        if magic != MAGIC:
            self.refuse(f"it is no dynajit file: it begins with {magic!r}, not {MAGIC!r}")
        found = named.rstrip(b"\0").decode("ascii", "replace")
        if version != FORMAT:
            age = "a newer" if version > FORMAT else "an older"
            self.refuse(f"it has format {version}, of {age} dynajit; this one reads format {FORMAT}")
        if size != len(self._map):
            short = "cut short" if len(self._map) < size else "longer than it was written"
            self.refuse(f"it is {short}: {len(self._map)} bytes, where its prefix says {size}")
        if header > MAX_HEADER or _START + header > size:
            self.refuse(f"its prefix is damaged: a header of {header} bytes in a file of {size}")
        if found != kind:
            self.refuse(f"it is a dynajit file of kind {found!r}; expected is one of kind {kind!r}")
        return header, size

    def _sections(self, parsed: Any, end: int) -> dict[str, SectionPlace]:
        if type(parsed) is not dict or len(parsed) > MAX_SECTIONS:
            raise ValueError("its sections are no table of bounded length")
        found = {}
        for name, (offset, size, sha256) in parsed.items():
            if not (type(offset) is type(size) is int and type(sha256) is str):
                raise TypeError("a section's place is no pair of numbers and a checksum")
            if not 0 <= offset <= offset + size <= end or size < 0:
                raise ValueError(f"the section {name!r} lies outside of the file")
            found[name] = SectionPlace(offset, size, sha256)
        return found


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _measure(contents: Contents) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    for chunk in _chunks(contents):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _chunks(contents: Contents) -> Iterator[bytes | memoryview]:
    if not isinstance(contents, Path):
        yield contents
        return
    with contents.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
