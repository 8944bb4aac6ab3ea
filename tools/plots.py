"""Plots of the result tables, as SVG, for the page docs/speed.md.

In:  benchmarks/results/*.md, and `PLOTS` below: which table, which columns, what is divided by what.
Out: docs/plots/NAME.svg, bars of ratios on a logarithmic axis. One more plot: a row of `PLOTS`.

    python tools/plots.py          # needs nothing but the standard library
"""

import html
import math
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS, FOLDER = ROOT / "benchmarks" / "results", ROOT / "docs" / "plots"
WIDTH, LEFT, ROW, TOP = 480, 180, 18, 44


@dataclass(frozen=True)
class Plot:
    """Bars of `column / by` for the rows of the first table of `file` with both columns. `where`: only rows whose
    column has that text."""

    name: str
    file: str
    title: str
    column: str
    by: str
    label: tuple[str, ...]
    where: tuple[str, str] | None = None
    rows: int = 40


_MS = "eager ms", "dynajit ms"
PLOTS = (
    Plot("demo", "demo", "Models: times as fast as eager", *_MS, ("model",)),
    Plot("kernels", "kernels_cpu", "Kernels on the CPU: times as fast as eager", "eager", "dynajit", ("case",)),
    Plot("infer", "models", "Inference: times as fast as eager", *_MS, ("model",), ("mode", "infer")),
    Plot("train", "models", "Training: times as fast as eager", *_MS, ("model",), ("mode", "train")),
    Plot(
        "first_call",
        "compile_time",
        "First call: times as soon as torch.compile",
        "torch.compile s",
        "dynajit s",
        ("program", "caches"),
    ),
    Plot(
        "memory",
        "memory_peak",
        "Peak memory of a training step: eager's over dynajit's",
        "peak MB: eager",
        "dynajit",
        ("model",),
        ("mode", "train"),
    ),
)


def number(text: str) -> float | None:
    """The number that a cell begins with, without its unit."""
    found = re.match(r"[\d.]+", text)
    return float(found[0]) if found else None


def table(text: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of the first table that has these columns. Of two columns of one name the first counts."""
    header: list[str] = []
    rows: list[dict[str, str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            if rows:
                return rows
            header = []
        elif not header:
            header = cells if set(columns) <= set(cells) else []
        elif set("".join(cells)) - set("-: "):
            rows.append(dict(reversed(list(zip(header, cells)))))
    return rows


def ratios(plot: Plot) -> list[tuple[str, float]]:
    """Label and ratio of each row, the largest first."""
    columns = (plot.column, plot.by, *plot.label, *(plot.where or ())[:1])
    found = []
    for row in table((RESULTS / f"{plot.file}.md").read_text(), columns):
        over, under = number(row[plot.column]), number(row[plot.by])
        if over and under and (plot.where is None or row[plot.where[0]] == plot.where[1]):
            found.append((", ".join(row[name] for name in plot.label), over / under))
    return sorted(found, key=lambda bar: -bar[1])[: plot.rows]


def drawn(plot: Plot) -> str:
    """The plot: a bar from 1 to the ratio, to the left and in another colour where it is below."""
    bars = ratios(plot)
    low = min(0.5, *(ratio for _, ratio in bars))
    high = max(2.0, *(ratio for _, ratio in bars))

    def x(ratio: float) -> float:
        return LEFT + (WIDTH - LEFT - 44) * math.log(ratio / low) / math.log(high / low)

    height = TOP + ROW * len(bars) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif">',
        f"<title>{html.escape(plot.title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="18" font-size="14" font-weight="bold">{html.escape(plot.title)}</text>',
        f'<text x="{x(1):.1f}" y="36" font-size="11" text-anchor="middle" fill="#555">1</text>',
    ]
    for place, (label, ratio) in enumerate(bars):
        y, left, right = TOP + ROW * place, *sorted((x(1), x(ratio)))
        shown = label if len(label) <= 28 else label[:27] + "…"
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 11}" font-size="11" text-anchor="end">{html.escape(shown)}</text>',
            f'<rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{ROW - 5}" '
            f'fill="{"#2a6fbb" if ratio >= 1 else "#c0504d"}"/>',
            f'<text x="{right + 4:.1f}" y="{y + 11}" font-size="11">{ratio:.2f}</text>',
        ]
    lines.append(f'<line x1="{x(1):.1f}" x2="{x(1):.1f}" y1="{TOP - 4}" y2="{height - 10}" stroke="#555"/>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for plot in PLOTS:
        (FOLDER / f"{plot.name}.svg").write_text(drawn(plot))


if __name__ == "__main__":
    main()
