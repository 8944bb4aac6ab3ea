"""A plan for its readers: what each kernel fuses and moves, and its C text as a program of its own.

In:  a `Plan`. Out: a `CodeRecord` for reports; C with a `main` that runs every kernel once on buffers of the right size
     and prints the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from torch.utils import _pytree as pytree

from dynajit.codegen.plan import REQUIRED_CFLAGS, TUNING_CFLAGS, BufferRef, ExternStep, KernelStep, Plan, Step
from dynajit.op_facts import is_wait, starts_collective
from dynajit.report.records import CodeRecord, CollectiveRecord, KernelRecord


def describe(plan: Plan, phase: str) -> CodeRecord:
    """The plan as a record: kernels with operations, the user's lines, bytes moved by one run; extern calls, and what
    runs beside collectives."""
    calls = Counter(step.kernel for step in plan.steps if isinstance(step, KernelStep))
    kernels = [
        KernelRecord(info.name, info.ops, info.lines, _bytes_moved(plan, info.name), calls[info.name])
        for info in plan.kernels
    ]
    extern = [_name(step) for step in plan.steps if isinstance(step, ExternStep)]
    language = "c" if plan.device.type == "cpu" else "triton"
    return CodeRecord(plan.name, phase, plan.source, language, kernels, extern, collectives=[*_collectives(plan)])


def standalone(plan: Plan, file: str = "output_code.c") -> str:
    """The C text of the file `file`: with a command line and, under `-DMAIN`, a main function that runs each kernel on
    zeros."""
    if plan.device.type != "cpu":
        return plan.source
    flags = " ".join((*TUNING_CFLAGS, *REQUIRED_CFLAGS))
    name = file.partition(".")[0]
    head = f"// gcc {flags} -DMAIN {file} -o {name} -lm && ./{name}\n"
    runs = [_run(plan, step) for step in plan.steps if isinstance(step, KernelStep)]
    if not plan.source or not all(runs):
        return head + plan.source + "\n// no main: sizes are known when it is called\n" * bool(plan.source)
    return (
        f"{head}{plan.source}\n"
        "#ifdef MAIN\n#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <time.h>\n"
        "static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); "
        "return t.tv_sec * 1e6 + t.tv_nsec / 1e3; }\n"
        "int main(void) {\n  double start;\n" + "".join(filter(None, runs)) + "  return 0;\n}\n#endif\n"
    )


def _run(plan: Plan, step: KernelStep) -> str:
    """One call of one kernel, timed; empty where a size is symbolic."""
    sizes = [plan.buffers[name].nbytes for name in step.args]
    if not all(type(size) is int for size in sizes):
        return ""
    buffers = ", ".join(f"calloc({(size + 127) // 64 * 64}, 1)" for size in sizes)
    arguments = ", ".join(f"a[{i}]" for i in range(len(sizes)))
    return (
        f"  {{ void *a[] = {{{buffers}}};\n    start = now(); (void){step.kernel}({arguments}); "
        f'printf("{step.kernel}: %.1f us\\n", now() - start);\n'
        f"    for (int i = 0; i < {len(sizes)}; i++) free(a[i]); }}\n"
    )


def _collectives(plan: Plan) -> Iterator[CollectiveRecord]:
    for place, step in enumerate(plan.steps):
        if isinstance(step, ExternStep) and starts_collective(step.target):
            beside = _until_waited_for(step, plan.steps[place + 1 :])
            yield CollectiveRecord(_name(step), _bytes(plan, _read(step)), tuple(beside))


def _until_waited_for(started: ExternStep, steps: Iterable[Step]) -> Iterator[str]:
    """The kernels and operations that run while a collective is on its way; other collectives are none."""
    for step in steps:
        if isinstance(step, KernelStep):
            yield step.kernel
        elif isinstance(step, ExternStep):
            if is_wait(step.target) and not set(started.outputs).isdisjoint(_read(step)):
                return
            if not is_wait(step.target) and not starts_collective(step.target):
                yield _name(step)


def _read(step: ExternStep) -> list[str]:
    """The buffers among an operation's arguments."""
    return [part.name for part in pytree.tree_leaves((step.args, dict(step.kwargs))) if isinstance(part, BufferRef)]


def _bytes(plan: Plan, names: Iterable[str]) -> int | None:
    sizes = [plan.buffers[name].nbytes for name in names if name in plan.buffers]
    return sum(sizes) if all(type(size) is int for size in sizes) else None


def _bytes_moved(plan: Plan, kernel: str) -> int | None:
    for step in plan.steps:
        if isinstance(step, KernelStep) and step.kernel == kernel:
            return _bytes(plan, step.args)
    return None


def _name(step: ExternStep) -> str:
    schema = getattr(step.target, "_schema", None)
    if schema is None:
        return getattr(step.target, "__name__", "call")
    return schema.name.removeprefix("aten::").removeprefix("_c10d_functional::")  # type: ignore[no-any-return]
