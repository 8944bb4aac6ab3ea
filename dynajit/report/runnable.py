"""A captured graph as a program that runs by itself.

In: a torch-level GraphModule, and its example inputs (real or fake). Out: the text of a script: the graph as a module,
inputs of the same shapes, strides and dtypes (random, or loaded from a file beside it), and a comparison of dynajit
with eager: results, inputs that are written in place and, where an input asks for them, gradients.
"""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from typing import Any

import torch

_MAKE = """
def tensor(shape, stride, dtype, device="cpu", grad=False):
    values = torch.rand(shape) if dtype.is_floating_point or dtype.is_complex else torch.randint(0, 2, tuple(shape))
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device).copy_(values)
    return made.requires_grad_(grad)
"""

# of the results, weighted at random; the inputs' own values are compared too
_GRADIENTS = [
    "    ends = [result for result in results if isinstance(result, torch.Tensor) and result.requires_grad]",
    "    torch.autograd.backward(ends, [torch.rand_like(end) for end in ends])",
    "    return results, given, [value.grad for value in given if getattr(value, 'grad', None) is not None]",
]


def script(gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: str, load_inputs: str | None = None) -> str:
    """The text. `load_inputs`: the file (beside the script) that a list of the inputs was saved to."""
    imports, classes = _Classes().module(gm)
    head = ["import torch", "", "import dynajit", *imports]
    if load_inputs is None:
        given = ["    given = [", *(f"        {_example(value)}," for value in inputs), "    ]"]
    else:
        head.insert(0, "from pathlib import Path\n")
        given = [f"    given = torch.load(Path(__file__).parent / {load_inputs!r}, weights_only=True)"]
    made = _MAKE if load_inputs is None or "= tensor(" in "".join(classes) else ""
    differentiated = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    body = [
        "def run(function):",
        "    torch.manual_seed(0)",
        *given,
        "    results = function(*given)",
        *(_GRADIENTS if differentiated else ["    return results, given"]),
        "",
        "",
        "expected = run(Graph())",
        f"actual = run(dynajit.compile(Graph(), backend={backend!r}))",
        "torch.testing.assert_close(actual, expected, equal_nan=True)",
        'print("equal")',
    ]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join(classes) + "\n" + made + "\n\n" + "\n".join(body) + "\n"


def example(value: Any) -> Any:
    """What the script's `tensor` makes in place of this input."""
    if not isinstance(value, torch.Tensor):
        return value
    scope: dict[str, Any] = {"torch": torch}
    exec(_MAKE, scope)
    return scope["tensor"](value.shape, value.stride(), value.dtype, value.device, value.requires_grad)


def _example(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    text = f"tensor({[*value.shape]}, {[*value.stride()]}, {value.dtype}"
    if value.device.type != "cpu":
        text += f", device={str(value.device)!r}"
    return text + (", grad=True)" if value.requires_grad else ")")


class _Classes:
    """Writes a graph module, and those inside it, as classes."""

    def __init__(self) -> None:
        self.imports: dict[str, None] = {}

    def module(self, gm: torch.fx.GraphModule, name: str = "Graph") -> tuple[list[str], list[str]]:
        """The import lines and the classes' texts."""
        classes = self._write(gm, name)
        return [*self.imports], classes

    def _write(self, gm: torch.fx.GraphModule, name: str) -> list[str]:
        code = gm.graph.python_code("self")
        words = set(re.findall(r"\w+", code.src))
        for alias, value in code.globals.items():
            line = _import_line(alias, value) if alias in words else ""
            if line:
                self.imports[line] = None
        inner: list[str] = []
        setup: list[str] = []
        for target in dict.fromkeys(str(node.target) for node in gm.graph.find_nodes(op="get_attr")):
            value = gm
            for part in target.split("."):
                value = getattr(value, part)
            if isinstance(value, torch.fx.GraphModule):
                inner += self._write(value, f"{name}_{target}")
                setup.append(f"self.{target} = {name}_{target}()")
            elif isinstance(value, torch.Tensor):
                setup.append(f"self.{target} = {_constant(value)}")
            else:
                setup.append(f"self.{target} = {value!r}")
        lines = [f"class {name}(torch.nn.Module):"]
        if setup:
            lines += ["    def __init__(self):", "        super().__init__()"]
            lines += [*(f"        {line}" for line in setup), ""]
        source = code.src.strip("\n")
        lines += [f"    {line}" if line else "" for line in source.split("\n") if "fx.wrap" not in line]
        return [*inner, "\n".join(line.rstrip() for line in lines)]


def _constant(value: torch.Tensor) -> str:
    if value.numel() <= 16 and value.device.type == "cpu" and type(value) is torch.Tensor:
        return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"
    return f"tensor({[*value.shape]}, {[*value.stride()]}, {value.dtype}, device={str(value.device)!r})"


def _import_line(alias: str, value: Any) -> str:
    """How a script gets what the graph's text calls `alias`."""
    if alias == "torch":
        return ""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__}" + ("" if value.__name__.split(".")[0] == alias else f" as {alias}")
    if isinstance(value, float):
        return f'{alias} = float("{value}")'
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if alias == "NoneType" or not isinstance(module, str) or not isinstance(name, str):
        return f"{alias} = {value!r}" if not callable(value) else f"{alias} = type(None)"
    if "." in name or "<" in name:
        return f"# {alias} is {module}.{name}, which a script can't import"
    return f"from {module} import {name}" + ("" if name == alias else f" as {alias}")
