"""The caret stands under the expression, whatever the line holds."""

import linecache
from pathlib import Path
from typing import Any

import pytest

from dynajit.report import caret


def source(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(text, encoding="utf-8")
    linecache.checkcache(str(path))
    return str(path)


def test_single_line(tmp_path: Path) -> None:
    name = source(tmp_path, "def f(x):\n    return g(x) + h(x)\n")
    out = caret.render(name, 2, 2, 18, 22, function="f").splitlines()
    assert out == [f'  File "{name}", line 2, in f', "    return g(x) + h(x)", " " * 18 + "^^^^"]


@pytest.mark.parametrize(
    ("line", "expression"), [("    é = größe(x) + h(x)", "h(x)"), ("    名前 = 関数(x) + h(x)", "h(x)")]
)
def test_columns_are_bytes_and_wide_characters_take_two(tmp_path: Path, line: str, expression: str) -> None:
    name = source(tmp_path, f"if True:\n{line}\n")
    start = line.encode().index(expression.encode())
    shown, carets = caret.render(name, 2, 2, start, start + len(expression)).splitlines()[1:]
    before = shown[: shown.index(expression)]
    wide = sum(c in "名前関数" for c in before)
    assert carets == " " * (len(before) + wide) + "^" * len(expression)


def test_matches_the_interpreters_own_positions(tmp_path: Path) -> None:
    name = source(tmp_path, "def f(x):\n    return len(x) + (x / 0)\n")
    namespace: dict[str, Any] = {}
    exec(compile(Path(name).read_text(), name, "exec"), namespace)
    with pytest.raises(TypeError) as error:
        namespace["f"](())
    tb = error.tb
    while tb.tb_next:
        tb = tb.tb_next
    shown, carets = caret.render(name, *list(tb.tb_frame.f_code.co_positions())[tb.tb_lasti // 2]).splitlines()[1:]
    assert shown[carets.index("^") : carets.rindex("^") + 1] == "x / 0"


def test_several_lines_each_get_carets(tmp_path: Path) -> None:
    name = source(tmp_path, "x = (f(1,\n       2)\n     + 3)\n")
    out = caret.render(name, 1, 2, 5, 9).splitlines()
    assert out[1:] == ["    x = (f(1,", "         ^^^^", "           2)", "           ^^"]


def test_a_long_span_is_cut(tmp_path: Path) -> None:
    name = source(tmp_path, "f(\n" + "".join(f"  {i},\n" for i in range(40)) + ")\n")
    out = caret.render(name, 1, 42, 0, 1).splitlines()
    assert len(out) <= 2 * caret.MAX_LINES + 2
    assert out[-1].strip() == "..."


def test_context_lines(tmp_path: Path) -> None:
    name = source(tmp_path, "a = 1\nb = 2\nc = 3\n")
    out = caret.render(name, 2, 2, 4, 5, context=1).splitlines()
    assert [line.strip() for line in out[1:]] == ["a = 1", "b = 2", "^", "c = 3"]
    assert caret.render(name, 1, 1, 4, 5, context=3).splitlines()[1].strip() == "a = 1"


def test_missing_source_and_missing_positions(tmp_path: Path) -> None:
    assert caret.render("<string>", 3, 3, 0, 5) == '  File "<string>", line 3'
    assert caret.render("/nowhere/x.py", None) == '  File "/nowhere/x.py"'
    name = source(tmp_path, "a = 1\n")
    assert caret.render(name, 1).splitlines()[1:] == ["    a = 1"]
    assert caret.render(name, 99) == f'  File "{name}", line 99'


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    name = source(tmp_path, "old = 1\n")
    assert "old" in caret.render(name, 1)
    Path(name).write_text("renamed = 1\n")
    assert "renamed" in caret.render(name, 1)


def test_of_a_whole_with_statement_the_header_is_shown(tmp_path: Path) -> None:
    text = "def f(x, lock):\n    with lock, (\n        lock  # twice:\n    ):\n        y = x + 1\n    return y\n"
    name = source(tmp_path, text)
    shown = caret.render(name, 2, 5, 4, 17).splitlines()[1:]
    assert shown == [
        "    with lock, (",
        "    ^^^^^^^^^^^^",
        "        lock  # twice:",
        "        ^^^^^^^^^^^^^^",
        "    ):",
        "    ^^",
    ]
