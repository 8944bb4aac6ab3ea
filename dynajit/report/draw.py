"""An fx graph as a picture.

In: a `torch.fx.Graph`. Out: SVG text: operations in layers (each below all that it reads), lines for what flows.
Graphs beyond `LIMIT` nodes are not drawn, since they are too large to read; their code is beside.
"""

from __future__ import annotations

from html import escape

import torch

from dynajit.report.shown import dtype_name

LIMIT = 150
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 150, 30, 16, 34


def draw(graph: torch.fx.Graph) -> str:
    """The SVG element, or a sentence where the graph is too large."""
    nodes = [node for node in graph.nodes if node.op != "output"]
    if len(nodes) > LIMIT:
        return f"<p>{len(nodes)} nodes: too many to draw.</p>"
    place = _places(nodes)
    if not place:
        return ""
    width = max(x for x, _ in place.values()) + _WIDTH + 2
    height = max(y for _, y in place.values()) + _HEIGHT + 2
    lines = [_line(place[source], place[node]) for node in nodes for source in node.all_input_nodes]
    boxes = [_box(node, *place[node]) for node in nodes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img">{"".join(lines)}{"".join(boxes)}</svg>'
    )


def _places(nodes: list[torch.fx.Node]) -> dict[torch.fx.Node, tuple[int, int]]:
    """Each node's corner. An input stands right above its first reader, not all inputs at the top."""
    layer: dict[torch.fx.Node, int] = {}
    for node in nodes:
        if node.op not in ("placeholder", "get_attr"):
            layer[node] = max((layer.get(source, 0) + 1 for source in node.all_input_nodes), default=1)
    for node in nodes:
        if node not in layer:
            layer[node] = min((layer.get(user, 1) - 1 for user in node.users if user in layer), default=0)
    used: dict[int, int] = {}
    place = {}
    for node in nodes:
        column = used.get(layer[node], 0)
        used[layer[node]] = column + 1
        place[node] = (1 + column * (_WIDTH + _GAP_X), 1 + layer[node] * (_HEIGHT + _GAP_Y))
    return place


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + _WIDTH // 2, start[1] + _HEIGHT
    x2, y2 = end[0] + _WIDTH // 2, end[1]
    bend = (y2 - y1) // 2
    return f'<path d="M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"/>'


def _box(node: torch.fx.Node, x: int, y: int) -> str:
    kind = "input" if node.op in ("placeholder", "get_attr") else "operation"
    value = node.meta.get("example_value")
    shape = ""
    if isinstance(value, torch.Tensor):
        shape = f"{dtype_name(value.dtype)}{[*value.shape]}"
    title = escape(f"{node.format_node() or node.name}\n{node.meta.get('stack_trace') or ''}")
    return (
        f'<g class="{kind}" transform="translate({x},{y})"><title>{title}</title>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>'
        f'<text x="6" y="13">{escape(_short(node.name, 24))}</text>'
        f'<text x="6" y="25" class="shape">{escape(_short(shape, 26))}</text></g>'
    )


def _short(text: str, length: int) -> str:
    """The beginning and the end, which tells most of a long name."""
    return text if len(text) <= length else f"{text[: length // 3]}…{text[length // 3 + 1 - length :]}"
