"""What `python -m dynajit demo` shows: small programs, made here, with a line for each of what became of it.

In: nothing; a checkout and a network are not needed. Out: text. One more program: a function in `PROGRAMS` that returns
a program and its inputs, as for `survey`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dynajit.report.survey import SurveyReport
from dynajit.survey import survey

_COLUMNS = f"{'program':<44} {'right':>9} {'graphs':>6} {'breaks':>6} {'first s':>8} {'eager ms':>9} {'dynajit ms':>10}"


def elementwise() -> tuple[Any, tuple[Any, ...]]:
    """relu(x * w + b) * 0.5"""

    def scaled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(x * w + b) * 0.5

    return scaled, (torch.randn(512, 1024), torch.randn(1024), torch.randn(1024))


def transformer() -> tuple[Any, tuple[Any, ...]]:
    """a transformer layer, inference"""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True, activation="gelu")
    return layer.eval().requires_grad_(False), (torch.randn(4, 32, 128),)


def convolutions() -> tuple[Any, tuple[Any, ...]]:
    """convolutions, forward and backward"""
    body = [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *body, nn.Flatten(), nn.LazyLinear(10)), (torch.randn(4, 3, 24, 24),)


def python_between() -> tuple[Any, tuple[Any, ...]]:
    """a loop over a dictionary, and a number read"""

    def losses(parts: dict[str, Tensor], weights: dict[str, float]) -> tuple[Tensor, str]:
        total = torch.zeros(())
        for name, part in parts.items():
            total = total + weights.get(name, 1.0) * part.square().mean()
        return total, f"loss {total.item():.3f}"

    parts = {name: torch.randn(64, 64) for name in ("mse", "norm", "smooth", "edge")}
    return losses, (parts, {"norm": 0.1, "edge": 2.0})


PROGRAMS: tuple[Callable[[], tuple[Any, tuple[Any, ...]]], ...] = (
    elementwise,
    transformer,
    convolutions,
    python_between,
)


def demo(seconds: float) -> Iterator[tuple[str, SurveyReport | None]]:
    """Survey each program, and tell what was found as soon as it is: a line of text, and the report it is of.

    Args:
        seconds: for the timing of one program, about; 0 measures none.
    """
    yield _COLUMNS, None
    for make in PROGRAMS:
        torch.manual_seed(0)
        program, inputs = make()
        report = survey(program, inputs, seconds=seconds)
        found = report.explained
        right = {True: "yes", False: "NO", None: "undecided"}[report.right]
        line = f"{make.__doc__:<44} {right:>9} {found.graph_count:>6} {found.graph_break_count:>6}"
        line += f" {report.first_call[1]:>8.2f}"
        for time in report.times:
            eager, compiled = time.eager_step or time.eager, time.compiled_step or time.compiled
            line += f" {eager * 1e3:>9.3f} {compiled * 1e3:>10.3f}"
        yield line, report
