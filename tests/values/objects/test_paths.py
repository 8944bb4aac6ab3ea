"""Paths of `pathlib`: made, joined, taken apart and told apart while tracing; what asks the file system is not."""

import os
import pathlib
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

X = torch.arange(3.0)


def test_made_and_taken_apart():
    def program(x, name):
        path = PurePath("runs") / name / "step_3.pt"
        texts = (str(path), f"{path}", repr(path), path.as_posix(), os.fspath(path), path.suffix, path.stem)
        more = (path.parent, path.with_suffix(".json"), path.parts, "a" / path, path.relative_to("runs"))
        return x * len(path.parts), texts, more, path.parent == PurePath("runs", name), {path: 1}

    assert_same(program, X, "a", graphs=1, breaks=0)


def test_windows_paths_and_concrete_ones():
    def program(x):
        path = PureWindowsPath("C:/a") / "B"
        same = path == PureWindowsPath("c:/A/b")
        return x + len(path.parts), path.drive, same, hash(path), Path("a") / "b", type(Path())

    assert_same(program, X, graphs=1, breaks=0)


def test_from_outside_they_are_told_apart():
    run = dynajit.compile(lambda x, path: (x + len(path.parts), str(path), path.parent / "z"), backend="eager")
    for path in [PurePosixPath("a/b"), Path("a/b"), Path("a"), PurePosixPath("a/b"), Path("/"), PureWindowsPath("a/b")]:
        found = run(X, path)
        assert torch.equal(found[0], X + len(path.parts)) and found[1:] == (str(path), path.parent / "z")
        assert type(found[2]) is type(path)


@pytest.mark.parametrize("hold", [lambda k: {k: 1}, lambda k: {k}, lambda k: frozenset([k]), lambda k: [k]])
def test_equal_ones_in_containers_are_told_apart(hold):
    run = dynajit.compile(lambda x, held: (x + 1, [str(path) for path in held]), backend="eager")
    for text in ("a/B", "a/b", "a/B"):
        assert run(X, hold(PureWindowsPath(text)))[1] == [str(PureWindowsPath(text))]


def test_the_file_system_is_asked_at_each_call(tmp_path):
    def program(x, folder):
        path = folder / "there.txt"
        y = x * 2
        if path.exists():
            return y + len(path.read_text())
        path.write_text("some text")
        return y

    run = dynajit.compile(program, backend="eager")
    assert torch.equal(run(X, tmp_path), X * 2)
    assert torch.equal(run(X, tmp_path), X * 2 + 9)
    (tmp_path / "there.txt").unlink()
    assert torch.equal(run(X, tmp_path), X * 2)


class Named:
    def __init__(self):
        self.asked = 0

    def __fspath__(self):
        self.asked += 1
        return f"name{self.asked}"


class Reflected:
    def __rtruediv__(self, other):
        return ("reflected", other)


def test_what_has_a_path_of_its_own_is_asked():
    def program(x):
        named = Named()
        return x + 1, PurePath("a") / named, PurePath(named, "b"), named.asked, PurePath("a") / Reflected()

    assert_same(program, X)


def test_wrong_operands_raise():
    def program(x):
        errors = []
        for make in (lambda: PurePath("a") / 3, lambda: PurePath("a").with_suffix("b"), lambda: PurePath(3)):
            try:
                make()
            except (TypeError, ValueError) as error:
                errors.append((type(error), str(error)))
        return x + 1, errors

    assert_same(program, X)


def test_subclasses_are_the_programs_own():
    class Kept(type(pathlib.Path())):
        def __truediv__(self, other):
            return ("mine", str(self), other)

    assert_same(lambda x: (x + 1, Kept("a") / "b"), X)
