"""The kernels of a program's plans: their C text, and machine code for one kind of processor or several.

In:  plans and what to compile for (`Kernels.compiled`), or a file (`Kernels.read`). Out: `build(plan)`, the plan ready
     to run; `sections()` for a file. The machine code that runs is the first in the file whose instructions this
     processor has; where there is none the C text is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dynajit.codegen.plan import Plan
from dynajit.exc import ArtifactError, ConfigError, ExportError
from dynajit.runtime import container, cpu, load, toolchain

# the machine at hand, with all that its processor can do
HERE = "auto"
_NAMES = (HERE, *toolchain.LEVELS)


class MachineCode(NamedTuple):
    """A kind of processor, and the machine code for it of each plan that has kernels."""

    name: str
    instructions: frozenset[str]
    code: list[bytes | memoryview]


class Kernels:
    """What the plans call.

    Attributes:
        sources: C text of each plan that has kernels.
        targets: the most demanding first.
        target: the one whose machine code runs here; None: the C text is compiled.
    """

    def __init__(self, sources: Sequence[str], targets: Sequence[MachineCode]) -> None:
        self.sources, self.targets = list(sources), list(targets)
        has = toolchain.instruction_sets()
        self.target = next((target for target in targets if target.instructions <= has), None)

    @classmethod
    def compiled(cls, plans: Iterable[Plan], simd: str | Sequence[str]) -> Kernels:
        """Compile the plans' kernels. `simd`: see `export`. Raises ConfigError, ExportError."""
        names = (simd,) if isinstance(simd, str) else tuple(simd)
        for name in names:
            if name not in _NAMES:
                gpu = "programs are exported for CPUs" if str(name).startswith("sm_") else ""
                raise ConfigError.unknown("target", name, _NAMES, gpu)
        if not names:
            raise ConfigError("simd names at least one target")
        with_kernels = [plan for plan in plans if plan.kernels]
        targets = []
        try:
            for name in sorted(set(names), key=_NAMES.index):
                chain, instructions = _chain(name)
                targets.append(
                    MachineCode(name, instructions, [cpu.machine_code(plan, chain) for plan in with_kernels])
                )
        except (toolchain.ToolchainError, OSError) as error:
            raise ExportError(f"its kernels can't be compiled: {error}") from error
        return cls([plan.source for plan in with_kernels], targets)

    @classmethod
    def read(cls, file: container.Container, facts: Sequence[Sequence[Any]]) -> Kernels:
        """Those in a file, of whose targets `facts` are what `facts` gave. Raises ArtifactError, ValueError."""
        count = sum(name.startswith("kernels/") and name.endswith(".c") for name in file.sections)
        targets = [
            MachineCode(name, frozenset(map(str, instructions)), [file.view(_section(at, name)) for at in range(count)])
            for name, instructions in facts
        ]
        return cls([file.read(f"kernels/{at}.c").decode() for at in range(count)], targets)

    def facts(self) -> list[list[Any]]:
        """The targets, for a file's header."""
        return [[target.name, sorted(target.instructions)] for target in self.targets]

    def sections(self) -> list[tuple[str, container.Contents]]:
        """The parts of a file."""
        code = [(_section(at, one.name), part) for one in self.targets for at, part in enumerate(one.code)]
        return [*((f"kernels/{at}.c", text.encode()) for at, text in enumerate(self.sources)), *code]

    def build(self, plan: Plan) -> Any:
        """The plan, ready to run. Raises ArtifactError."""
        if not plan.kernels:
            return cpu.build(plan)
        why = ""
        if self.target is None and self.targets:
            missing = sorted(self.targets[-1].instructions - toolchain.instruction_sets())
            why = f"its kernels use {', '.join(missing)}, which this processor lacks"
        elif self.target is not None:
            try:
                return cpu.build(plan, load.load_binary(self.target.code[self.sources.index(plan.source)]))
            except (OSError, AttributeError) as error:
                why = f"its kernels can't be opened here ({error})"
        try:
            return cpu.build(plan)
        except toolchain.ToolchainError as error:
            raise ArtifactError(f"{why}, and they can't be compiled anew: {error}") from error


def _chain(name: str) -> tuple[toolchain.Toolchain, frozenset[str]]:
    return (toolchain.find(), toolchain.instruction_sets()) if name == HERE else toolchain.for_level(name)


def _section(at: int, target: str) -> str:
    return f"kernels/{at}.{target}.so"
