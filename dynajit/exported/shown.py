"""A program's file for its readers: what `python -m dynajit inspect` prints, and arguments to try it with.

In:  a path, or a `PortableProgram`. Out: text; made-up arguments of the sizes asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dynajit import symbols
from dynajit.exported import trees
from dynajit.exported.inputs import tree_of_data
from dynajit.exported.program import KIND, PortableProgram
from dynajit.runtime.container import Container


def inspect_file(path: Path) -> str:
    """What the file holds, without running or opening any of its code. Raises ArtifactError."""
    file = Container(path, KIND)
    try:
        return "\n".join(_lines(file))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return str(file.refuse(f"its header is not what dynajit writes ({type(error).__name__}: {error})"))


def _lines(file: Container) -> list[str]:
    facts = file.facts
    inputs, made = facts["inputs"], facts["versions"]
    found = [f"program {facts['name']}, for torch {made['torch']} on {made['machine']}, {facts['threads']} threads"]
    for path, dtype, shape, _, written in inputs["leaves"]:
        found.append(f"input    {path}: {dtype}[{', '.join(map(_size, shape))}]{', written' if written else ''}")
    for name, (at, dim, low, high, shown) in inputs["symbols"].items():
        bound = f"{low} or more" if high is None else f"{low} to {high}"
        found.append(f"size     {name}: {inputs['leaves'][at][0]}.size({dim}), {shown}, {bound}")
    found += [f"relation {symbols.readable(tree_of_data(relation))}" for relation in inputs["relations"]]
    found.append(f"result   {_structure(facts['outputs'])}")
    weights = facts["weights"].values()
    if facts["gradients"] is not None:
        wanted = zip(inputs["leaves"], facts["gradients"]["inputs"], strict=True)
        names = [leaf[0] for leaf, gradient in wanted if gradient]
        parameters = sum(facts["gradients"]["weights"].values())
        found.append(f"gradients of {', '.join([*names, f'{parameters} parameters'])}")
    count = sum(math.prod(shape) for _, shape, _ in weights)
    kept = "in the file" if "weights" in file.sections else "given at load"
    found.append(f"weights  {len(weights)} tensors, {count:,} numbers, {kept}")
    found.append(f"kernels  for {', '.join(name for name, _ in facts['targets'])}")
    found += [f"section  {name}: {place.size:,} bytes" for name, place in file.sections.items()]
    return found


def _size(size: Any) -> str:
    return symbols.readable(tree_of_data(size)) if not isinstance(size, int) else str(size)


def _structure(structure: Any) -> str:
    if structure == trees.TENSOR:
        return "tensor"
    kind, *rest = structure
    if kind == "constant":
        return repr(trees.constant(structure))
    if kind in ("list", "tuple"):
        return f"{kind}({', '.join(map(_structure, rest))})"
    keys, *items = rest[1:] if kind == "named" else rest
    pairs = ", ".join(f"{key}={_structure(item)}" for key, item in zip(keys, items, strict=True))
    return f"{rest[0] if kind == 'named' else kind}({pairs})"


def made_up_arguments(program: PortableProgram, size: int) -> dict[str, Any]:
    """Arguments of random numbers (zeros where they are whole numbers), with this size where sizes vary, or the nearest
    that is allowed."""
    inputs: Mapping[str, Any] = program.facts["inputs"]
    sizes = {
        name: max(low, min(size, high if high is not None else size))
        for name, (_, _, low, high, _) in inputs["symbols"].items()
    }
    found = []
    for _, dtype, shape, _, _ in inputs["leaves"]:
        numbers = [symbols.value_of(tree_of_data(number), sizes) for number in shape]
        kind = getattr(torch, dtype)
        found.append(torch.randn(numbers).to(kind) if kind.is_floating_point else torch.zeros(numbers, dtype=kind))
    leaves = iter(found)
    return {name: trees.rebuild(structure, leaves) for name, structure in inputs["structure"].items()}
