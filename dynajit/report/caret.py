"""The user's source line with carets under the expression.

In: a file, a span of lines and columns as `code.co_positions()` gives them (columns are UTF-8 byte offsets, any part
may be None). Out: text like a traceback's entry:

      File "model.py", line 12, in forward
        return torch.relu(x) + len(y)
                               ^^^^^^
"""

import linecache
import re
import unicodedata

_COMPOUND = re.compile(r"(async\s+)?(with|for)\b")
MAX_LINES = 6  # of a span; the rest of a longer one is cut


def render(
    filename: str,
    lineno: int | None,
    end_lineno: int | None = None,
    col: int | None = None,
    end_col: int | None = None,
    context: int = 0,
    *,
    function: str | None = None,
) -> str:
    """The header, then the source with carets and `context` lines around it. No source: the header alone."""
    where = f", in {function}" if function else ""
    if lineno is None:
        return f'  File "{filename}"{where}'
    header = f'  File "{filename}", line {lineno}{where}'
    linecache.checkcache(filename)
    last = max(end_lineno or lineno, lineno)
    header_end = _end_of_header(filename, lineno, last, col)
    if header_end is not None:
        last, end_col = header_end, None
    numbers = range(max(1, lineno - context), last + context + 1)
    lines = {number: linecache.getline(filename, number).rstrip("\n") for number in numbers}
    if not lines[lineno].strip():
        return header
    cut = min(last, lineno + MAX_LINES - 1)
    indent = min(len(line) - len(line.lstrip()) for line in lines.values() if line.strip())
    body = []
    for number, line in lines.items():
        if number > last and not line.strip():
            continue
        if cut < number <= last:
            if number == last:
                body.append("    ...")
            continue
        body.append("    " + line[indent:])
        if lineno <= number <= cut:
            carets = _carets(
                line, indent, col if number == lineno else None, end_col if number == last else None, last == lineno
            )
            if carets:
                body.append("    " + carets)
    return "\n".join([header, *body])


def _end_of_header(filename: str, lineno: int, last: int, col: int | None) -> int | None:
    """Where the span is a whole `with` or `for` statement, the line that its header ends in."""
    first = linecache.getline(filename, lineno).encode()[col or 0 :].decode(errors="replace")
    if last == lineno or not _COMPOUND.match(first):
        return None
    lines = (linecache.getline(filename, number).partition("#")[0].rstrip() for number in range(lineno, last + 1))
    return next((number for number, line in enumerate(lines, lineno) if line.endswith(":")), None)


def _carets(line: str, indent: int, col: int | None, end_col: int | None, single_line: bool) -> str:
    """The line of carets for the bytes [col, end_col) of `line`; None means from the first or to the last character."""
    if single_line and col is None:
        return ""
    encoded = line.encode()
    first = len(line) - len(line.lstrip())
    start = first if col is None else len(encoded[:col].decode(errors="replace"))
    end = len(line.rstrip()) if end_col is None else len(encoded[:end_col].decode(errors="replace"))
    if end <= start:
        return ""
    return " " * _width(line[indent:start]) + "^" * _width(line[start:end])


def _width(text: str) -> int:
    """Terminal columns: East Asian wide characters take two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
