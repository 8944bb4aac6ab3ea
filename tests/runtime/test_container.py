"""Files of checked sections: what was written comes back; whatever else is refused with what was expected."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from pathlib import Path

import pytest

from dynajit.exc import ArtifactError
from dynajit.runtime import container
from dynajit.runtime.container import Container, write

SECTIONS: list[tuple[str, container.Contents]] = [("a", b"first"), ("b/c", b""), ("d", bytes(range(256)) * 20)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    write(path, "test", {"numbers": [1, 2]}, SECTIONS)
    return path


def test_what_was_written_comes_back(file: Path, tmp_path: Path) -> None:
    found = Container(file, "test")
    assert found.facts == {"numbers": [1, 2]}
    assert {name: found.read(name) for name in found.sections} == dict(SECTIONS)
    assert all(section.offset % container.ALIGNMENT == 0 for section in found.sections.values())
    again = tmp_path / "again"
    write(again, "test", {"numbers": [1, 2]}, [*SECTIONS[:2], ("d", _saved(tmp_path, bytes(range(256)) * 20))])
    assert again.read_bytes() == file.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"file", "again", "contents"}


def _saved(folder: Path, contents: bytes) -> Path:
    path = folder / "contents"
    path.write_bytes(contents)
    return path


def test_nothing_is_left_of_a_file_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "file", "test", {}, [("a", tmp_path / "nowhere")])
    assert not list(tmp_path.iterdir())


def test_what_is_written_to_a_section_stays_in_this_process(file: Path) -> None:
    before = file.read_bytes()
    Container(file, "test").view("a")[0] = 0
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda old: b"", "too short"),
        (lambda old: old[:50], "too short"),
        (lambda old: b"PK\3\4" + old[4:], "begins with b'PK.*, not b'DYNAJIT"),
        (lambda old: old[:-1], "cut short: .* where its prefix says"),
        (lambda old: old + b"x", "longer than it was written"),
        (lambda old: old[:24] + struct.pack("<I", 9) + old[28:], "format 9, of a newer dynajit; this one reads format"),
        (lambda old: old[:24] + struct.pack("<I", 0) + old[28:], "format 0, of an older dynajit"),
        (lambda old: old[:28] + b"\xff" * 4 + old[32:], "prefix is damaged"),
        (lambda old: old[:90] + b"\1" + old[91:], "header is damaged"),
    ],
)
def test_a_file_that_is_not_as_written_is_refused(file: Path, change, says: str) -> None:
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ArtifactError, match=says) as caught:
        Container(file, "test")
    assert str(file) in str(caught.value)


def test_another_kind_is_refused(file: Path) -> None:
    with pytest.raises(ArtifactError, match="of kind 'test'; expected is one of kind 'cache'"):
        Container(file, "cache")
    with pytest.raises(ArtifactError, match="no section 'z'; it has a, b/c, d"):
        Container(file, "test").read("z")
    with pytest.raises(ArtifactError, match="there is no such file"):
        Container(file.with_name("nowhere"), "test")
    with pytest.raises(ArtifactError, match="can't be read"):
        Container(file.parent, "test")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"\xff\xfe",
        b'{"facts": {}}',
        b'{"facts": {}, "sections": []}',
        b'{"facts": {}, "sections": {"a": [0]}}',
        b'{"facts": {}, "sections": {"a": ["0", 1, "x"]}}',
        b'{"facts": {}, "sections": {"a": [0, 1e3, "x"]}}',
        b'{"facts": {}, "sections": {"a": [-5, 4, "x"]}}',
        b'{"facts": {}, "sections": {"a": [0, 99999999, "x"]}}',
        b'{"facts": {}, "sections": {"a": [90, -4, "x"]}}',
        b"[" * 100_000,
    ],
)
def test_a_header_that_only_has_the_right_checksum_is_refused(tmp_path: Path, header: bytes) -> None:
    prefix = struct.pack("<8s16sIIQ", container.MAGIC, b"test", container.FORMAT, len(header), 72 + len(header))
    path = tmp_path / "file"
    path.write_bytes(prefix + hashlib.sha256(prefix + header).digest() + header)
    with pytest.raises(ArtifactError, match="not what dynajit writes"):
        Container(path, "test")


def test_each_of_many_changed_files_is_refused_or_reads_as_written(file: Path) -> None:
    """Bytes between sections mean nothing; any other change is noticed when it is read."""
    old, choose, refused = file.read_bytes(), random.Random(0), 0
    for _ in range(500):
        new = bytearray(old)
        for _ in range(choose.randint(1, 3)):
            new[choose.randrange(len(new))] = choose.randrange(256)
        if choose.random() < 0.2:
            del new[choose.randrange(len(new)) :]
        file.write_bytes(new)
        try:
            found = Container(file, "test")
            assert {name: found.read(name) for name in found.sections} == dict(SECTIONS)
        except ArtifactError:
            refused += 1
    assert refused > 400


def test_the_header_is_json(file: Path) -> None:
    raw = file.read_bytes()
    size = struct.unpack_from("<I", raw, 28)[0]
    assert json.loads(raw[72 : 72 + size])["facts"] == {"numbers": [1, 2]}
