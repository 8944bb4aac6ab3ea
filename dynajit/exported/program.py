"""An exported program: a call plan, its kernels and weights, and what its inputs have to be.

In:  what `exporting.py` made, or a file. Out: `PortableProgram`, called as the model was; `save` and `load`.
A file holds the plan as data, the kernels' C text and machine code, and the weights; neither the model's source nor its
libraries are needed to run it. Kernels are machine code: load only what you would run.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynajit import torch_compat
from dynajit.codegen.plan import Plan
from dynajit.constants import NotData
from dynajit.exc import ArtifactError
from dynajit.exported import training, trees
from dynajit.exported import weights as safetensors
from dynajit.exported.inputs import Inputs
from dynajit.exported.kernels import Kernels
from dynajit.report.shown import dtype_name
from dynajit.runtime import container, plan_data

KIND = "program"
_PLAN, _WEIGHTS, _CONSTANTS = "plan.json", "weights", "constants"


class PortableProgram:
    """A program without its Python source. Call it as the function or model that was exported.

    Attributes:
        facts: signature, versions and sizes, as `python -m dynajit inspect` shows them.
        weights: parameters and buffers by their names in the model; writing into one changes what later calls compute.
            Of a program with gradients parameters are leaves of autograd's graph.
    """

    def __init__(
        self,
        facts: dict[str, Any],
        plan: dict[str, Any],
        kernels: Kernels,
        tensors: Mapping[str, torch.Tensor],
        constants: dict[str, torch.Tensor],
    ) -> None:
        self.facts = facts
        gradients = facts["gradients"]
        self._trains = gradients is not None
        leaves = gradients["weights"] if self._trains else {}
        self.weights = {
            name: nn.Parameter(tensor, leaves[name]) if name in leaves else tensor for name, tensor in tensors.items()
        }
        self._plan, self._kernels, self._constants = plan, kernels, constants
        self._inputs = Inputs(facts["inputs"], gradients["inputs"] if self._trains else None)
        self._given = [self._giver(*row) for row in facts["given"]]
        self._results = [(str(kind), int(at)) for kind, at in facts["results"]]
        if self._trains:
            made = training.from_data(plan, kernels)
            self._check(made.forward, made.results)
            self._run = made.call
        else:
            whole = plan_data.from_data(plan, "".join(kernels.sources), constants)
            self._check(whole, len(whole.outputs))
            self._run = kernels.build(whole)

    @property
    def target(self) -> str:
        """The first of the targets given to `export` that this processor has all instructions of; "" if there is none,
        and the C text is compiled here."""
        return self._kernels.target.name if self._kernels.target is not None else ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives for these arguments; without gradients, unless it was exported with them. Raises
        ArtifactError for arguments that it was not exported for."""
        with torch.set_grad_enabled(self._trains and torch.is_grad_enabled()):
            leaves, sizes = self._inputs.check(args, kwargs)
            given = [give(leaves, sizes) for give in self._given]
            if torch_compat.any_autocast_enabled():
                with torch.autocast("cpu", enabled=False):
                    outputs = self._run(*given)
            else:
                outputs = self._run(*given)
        found = [outputs[at] if kind == "graph" else given[at] for kind, at in self._results]
        return trees.rebuild(self.facts["outputs"], iter(found))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that the program uses, by their names in the model; none of a program without gradients."""
        for name, tensor in self.weights.items():
            if isinstance(tensor, nn.Parameter):
                yield name, tensor

    def parameters(self) -> Iterator[nn.Parameter]:
        """The same without names, for an optimizer."""
        for _, tensor in self.named_parameters():
            yield tensor

    def save(self, path: str | os.PathLike[str], *, weights: bool = True) -> None:
        """Write the program to a file, which appears when it is complete.

        Args:
            path: by custom it ends in ".djt".
            weights: False leaves parameters and buffers out; `load` is given them then.

        Raises:
            OSError: it can't be written.
        """
        sections: list[tuple[str, container.Contents]] = [
            (_PLAN, json.dumps(self._plan).encode()),
            *self._kernels.sections(),
            (_CONSTANTS, safetensors.pack(self._constants)),
        ]
        if weights:
            sections.append((_WEIGHTS, safetensors.pack(self.weights)))
        container.write(Path(path), KIND, self.facts, sections)

    def _giver(self, kind: str, which: Any) -> Any:
        """What gives one input of the plan, from a call's tensors and sizes."""
        if kind == "leaf" and type(which) is int:
            return lambda leaves, sizes: leaves[which]
        if kind == "size" and which in self._inputs.symbols:
            return lambda leaves, sizes: sizes[which]
        if kind != "weight":
            raise ValueError(f"an input of kind {kind!r}, {which!r}")
        tensor = self.weights[which]
        return lambda leaves, sizes: tensor

    def _check(self, plan: Plan, results: int) -> None:
        """Raise ValueError where the plan, or what gives so many results by it, is not what the facts say."""
        limits = {"given": len(plan.inputs), "graph": results}
        if len(self._given) != len(plan.inputs) or any(not 0 <= at < limits[kind] for kind, at in self._results):
            raise ValueError("its inputs or results are not those of its plan")
        for name, (kind, which) in zip(plan.inputs, self.facts["given"], strict=True):
            buffer = plan.buffers.get(name)
            if (buffer is None) != (kind == "size"):
                raise ValueError(f"the plan's input {name} is no {kind}")
            if buffer is None:
                continue
            one = self._inputs.leaves[which] if kind == "leaf" else self.weights[which]
            stride = one.stride() if isinstance(one, torch.Tensor) else one.stride
            ours = (*one.shape, *stride)
            pairs = zip(ours, (*buffer.shape, *buffer.stride), strict=True)
            if one.dtype != buffer.dtype or any(size != known for size, known in pairs if type(known) is int):
                raise ValueError(f"the plan's input {name} has another dtype or size")


def load_program(
    path: str | os.PathLike[str],
    *,
    weights: Mapping[str, torch.Tensor] | str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> PortableProgram:
    """A program from a file that `PortableProgram.save` wrote.

    Args:
        path: the file. It may be replaced by another meanwhile, and must not be changed in place.
        weights: parameters and buffers, by the names that they had in the model (a `state_dict()`, or a file of the
            package safetensors), in place of those in the file. Needed where the file was saved without.
        verify: compare the weights' checksum; False saves the time to read them all. Everything else is compared
            always.

    Returns:
        The callable. Weights stay in the file until they are read.

    Raises:
        ArtifactError: the file is damaged, of another kind or format, made with another torch or for another
            processor, where no C compiler is there to compile its kernels anew; or the weights don't fit.
    """
    file = container.Container(Path(path), KIND)
    facts = _checked_facts(file)
    given: Mapping[str, torch.Tensor] | None = None
    if weights is not None:
        given = weights if isinstance(weights, Mapping) else safetensors.read(Path(weights))
    elif _WEIGHTS in file.sections:
        given = safetensors.unpack(file.view(_WEIGHTS, check=verify), str(path))
    try:
        plan = json.loads(file.read(_PLAN))
        tensors = _fitting(file, facts["weights"], given)
        constants = safetensors.unpack(file.view(_CONSTANTS), str(path))
        constants = {name: _laid_out(constants[name], row) for name, row in facts["constants"].items()}
        return PortableProgram(facts, plan, Kernels.read(file, facts["targets"]), tensors, constants)
    except ArtifactError as error:
        if str(file.path) in str(error):
            raise
        return file.refuse(str(error))  # type: ignore[no-any-return]
    except NotData as error:
        return file.refuse(f"its plan can't be used: {error}")  # type: ignore[no-any-return]
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, RecursionError, AttributeError) as error:
        return file.refuse(f"it is not as dynajit writes it ({type(error).__name__}: {error})")  # type: ignore[no-any-return]


def versions() -> dict[str, str]:
    """What a file is made with, and what has to be the same where it is loaded."""
    return {"torch": torch_compat.release(), "machine": platform.machine()}


def layout(tensor: torch.Tensor) -> list[Any]:
    """What a weight is, for a file: dtype, sizes, strides."""
    return [dtype_name(tensor.dtype), list(tensor.shape), list(tensor.stride())]


def _checked_facts(file: container.Container) -> dict[str, Any]:
    """The file's facts, if this process can run what it describes."""
    facts, here = file.facts, versions()
    try:
        made = {name: facts["versions"][name] for name in here}
        for name, version in here.items():
            if made[name] != version:
                file.refuse(f"it was exported with {name} {made[name]}; this is {name} {version}. Export it anew here")
        if trees.check(facts["outputs"]) != len(facts["results"]):
            raise ValueError("its results are not those of its structure")
        for kind, at in facts["results"]:
            if kind not in ("graph", "given") or type(at) is not int or at < 0:
                raise ValueError("a result comes from nowhere")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        file.refuse(f"its header is not what dynajit writes ({type(error).__name__}: {error})")
    return facts


def _fitting(
    file: container.Container, wanted: Mapping[str, Any], given: Mapping[str, torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """The weights that the plan asks for, as it asks for them."""
    if given is None and wanted:
        file.refuse(f"it was saved without weights: give the {len(wanted)} that it needs by `weights=`")
    found = {}
    for name, row in wanted.items():
        tensor = (given or {}).get(name)
        if not isinstance(tensor, torch.Tensor):
            file.refuse(f"the weight {name} is missing: expected is {_shown(row)}")
            continue
        if layout(tensor)[:2] != row[:2] or tensor.device.type != "cpu":
            file.refuse(
                f"the weight {name} is {_shown(layout(tensor))} on {tensor.device}; expected is {_shown(row)} on cpu"
            )
        found[name] = _laid_out(tensor.detach(), row)
    return found


def _shown(row: list[Any]) -> str:
    return f"{row[0]}{list(row[1])}"


def _laid_out(tensor: torch.Tensor, row: list[Any]) -> torch.Tensor:
    """The tensor with the strides that the plan was made for."""
    stride = tuple(row[2])
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
