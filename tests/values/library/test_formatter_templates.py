"""`string.Formatter` and its subclasses: templates are taken apart while tracing, and what is wrong in one is told
where eager mode tells it."""

from __future__ import annotations

import _string
import string
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same


class Lenient(string.Formatter):
    """Names that are missing stand for themselves; `!u` is for upper case."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        self.asked.append(key)
        return kwargs.get(key, f"<{key}>") if isinstance(key, str) else super().get_value(key, args, kwargs)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return str(value).upper() if conversion == "u" else super().convert_field(value, conversion)


class Breaking(Lenient):
    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        dynajit.graph_break()
        return super().get_value(key, args, kwargs)


# with the number of breaks; None where the real iterator has to raise
TEMPLATES: dict[str, tuple[str, int | None]] = {
    "plain": ("{name} {0} {{}}", 0),
    "automatic": ("{} {} {name!r}", 0),
    "missing": ("{other!u} {name!u}", 0),
    "nested": ("{1:{0}d}|{1:>{0}}", 0),
    "attributes and items": ("{0.real} {pair[1]} {pair[0].imag}", 0),
    "no end": ("{name} {0", None),
    "a brace alone": ("{name} } {0}", None),
    "no attribute": ("{name} {0.}", None),
    "a long number": ("{name} {99999999999999999999}", None),
    "both numberings": ("{} {0}", 0),
    "unknown conversion": ("{name} {0!z}", 0),
}


@pytest.mark.parametrize("kind", [Lenient, Breaking])
@pytest.mark.parametrize(("template", "breaks"), TEMPLATES.values(), ids=TEMPLATES)
def test_formatter(template: str, breaks: int | None, kind: type[Lenient]) -> None:
    def f(x: torch.Tensor, formatter: Lenient, name: str) -> Any:
        y = x * 2
        try:
            text = formatter.format(template, 3, 14, name=name, pair=(1, 2))
        except (ValueError, AttributeError) as error:
            text = str(error)
        return y + len(text), text, formatter.asked

    expected = breaks if kind is Lenient else None
    assert_same(f, torch.ones(2), kind(), "a", then=[(torch.ones(2), kind(), "b")], breaks=expected)


@pytest.mark.parametrize("of", [_string.formatter_parser, _string.formatter_field_name_split])
def test_of_what_is_no_text(of: Any) -> None:
    assert_same(lambda x: (x + 1, of(3)), torch.ones(2), breaks=1)
