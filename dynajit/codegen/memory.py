"""When buffers die, and which memory is used again.

In:  a plan whose steps only allocate. Out: the plan with `FreeStep`s after the last use of each buffer, and
allocations that take over the memory of a buffer of the same size that is dead by then, unless more memory would be in
use at once for its being held until then. Inputs are let go of too: their memory is whose they were, but where nobody
else holds one, as what forward saved for backward, it dies there.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Set
from typing import Any

from dynajit.codegen.plan import (
    AllocStep,
    BufferRef,
    DrawStep,
    ExternStep,
    FreeStep,
    KernelInfo,
    KernelStep,
    NumberStep,
    Plan,
    SizeStep,
    Step,
    TouchStep,
    ViewStep,
)
from dynajit.loopir.size import hint_of
from dynajit.nested import leaves_in, map_leaves


def plan_memory(plan: Plan, refusal_needs: Set[str] = frozenset()) -> Plan:
    """Add frees and reuse. `refusal_needs`: inputs that have to be there where a kernel refuses a value."""
    plan = _with_donors(plan, refusal_needs)
    last_use, shared = _last_uses(plan)
    plan = _without_constants(plan, set(plan.constants) - last_use.keys() - {ref.name for ref in refs_in(plan.outputs)})
    outputs = {ref.name for ref in refs_in(plan.outputs)} | set(plan.constants)
    kept = outputs | set(plan.inputs)
    last_check = _last_check(plan)
    first = _leading_sizes(plan) - 1  # inputs tell sizes until then
    dying: dict[int, list[str]] = {}
    for name, final in last_use.items():
        if name not in kept:
            dying.setdefault(final, []).append(name)
    for name in plan.inputs:
        if name in plan.buffers and name not in outputs:
            final = max(last_use.get(name, first), first, last_check if name in refusal_needs else first)
            dying.setdefault(final, []).append(name)
    held = _held(plan, kept)
    free: dict[int, list[str]] = {}
    died: dict[str, int] = {}
    steps: list[Step] = []
    owned = {step.buffer for step in plan.steps if isinstance(step, AllocStep)} - shared - held
    views_left = _views_of(plan)
    in_use = _InUse.of(plan, views_left, dying)
    called = _called(plan) if plan.device.type != "cpu" else set()
    dead: set[str] = set(dying.get(-1, ()))
    for number, step in enumerate(plan.steps):
        if isinstance(step, AllocStep):
            pool = free.get(plan.buffers[step.buffer].nbytes, [])
            taken = next((name for name in reversed(pool) if not (step.buffer in held and name in called)), None)
            if taken is not None:
                pool.remove(taken)
                if not in_use.hold(taken, died[taken], number):
                    taken = None  # nor is it held for what comes later
            if taken is not None:
                called.update({step.buffer} if taken in called else ())
            step = dataclasses.replace(step, reuse=taken)
        steps.append(step)
        names = dying.get(number, [])
        dead.update(names)
        for name in names:
            root = views_left.base.get(name, name)
            # Memory is free once the buffer and all views of it are dead.
            if root in owned and dead.issuperset(views_left.family[root]):
                owned.discard(root)
                died[root] = number
                free.setdefault(plan.buffers[root].nbytes, []).append(root)
    return dataclasses.replace(plan, steps=tuple(_with_frees(steps, dying)))


def _with_donors(plan: Plan, refusal_needs: Set[str]) -> Plan:
    """The plan with those donors alone that nobody needs after the kernel that stores over them."""
    last_use, _ = _last_uses(plan)
    last_check = _last_check(plan)
    lost = {ref.name for ref in refs_in(plan.outputs)}

    def dies(donor: str, buffer: str) -> bool:
        final = last_use[donor]
        stays = donor in lost or (donor in refusal_needs and final <= last_check)
        return donor in plan.inputs and not stays and buffer in names_in(plan.steps[final])

    steps = [
        dataclasses.replace(step, donors=tuple(donor for donor in step.donors if dies(donor, step.buffer)))
        if isinstance(step, AllocStep)
        else step
        for step in plan.steps
    ]
    return dataclasses.replace(plan, steps=tuple(steps))


@dataclasses.dataclass(slots=True)
class _InUse:
    """How many bytes are in use during each step if each buffer is let go of where it dies: once if inputs die with
    their last use, as what was saved for backward, and once if they are the caller's, as weights."""

    sizes: dict[str, int]
    during: list[list[int]]
    peaks: list[int]

    @classmethod
    def of(cls, plan: Plan, views: _Views, dying: dict[int, list[str]]) -> _InUse:
        sizes = {name: hint_of(buffer.nbytes) for name, buffer in plan.buffers.items() if name not in views.base}
        made: dict[str, int] = {}
        for number, step in enumerate(plan.steps):
            if isinstance(step, AllocStep):
                made[step.buffer] = number
            elif isinstance(step, ExternStep) and not step.aliases:
                made.update({name: number for name in step.outputs if name in sizes})
        last = {name: number for number, names in dying.items() for name in names}
        during = []
        for given in (plan.inputs, ()):
            change = [0] * (len(plan.steps) + 2)
            for name, number in ({name: 0 for name in given if name in sizes} | made).items():
                ends = [last.get(each, len(plan.steps)) for each in views.family.get(name, {name})]
                change[number] += sizes[name]
                change[max(number, *ends) + 1] -= sizes[name]
            during.append(list(itertools.accumulate(change[:-2])))
        return cls(sizes, during, [max(each, default=0) for each in during])

    def hold(self, name: str, died: int, until: int) -> bool:
        """Keep the memory of a buffer that is dead, unless more than before were in use at once."""
        size, between = self.sizes[name], slice(died + 1, until)
        for during, peak in zip(self.during, self.peaks, strict=True):
            if any(used + size > peak for used in during[between]):
                return False
        for during in self.during:
            during[between] = [used + size for used in during[between]]
        return True


def _without_constants(plan: Plan, unread: set[str]) -> Plan:
    """The plan without constants that kernels have in their text."""
    buffers = {name: buffer for name, buffer in plan.buffers.items() if name not in unread}
    constants = {name: value for name, value in plan.constants.items() if name not in unread}
    return dataclasses.replace(plan, buffers=buffers, constants=constants)


@dataclasses.dataclass(slots=True)
class _Views:
    base: dict[str, str]  # view -> the buffer that owns the memory
    family: dict[str, set[str]]  # that buffer -> itself and all of its views


def _views_of(plan: Plan) -> _Views:
    views = _Views({}, {})
    for step in plan.steps:
        if isinstance(step, AllocStep):
            views.family[step.buffer] = {step.buffer}
        elif isinstance(step, ViewStep):
            root = views.base.get(step.base, step.base)
            views.base[step.output] = root
            views.family.setdefault(root, {root}).add(step.output)
    return views


def memories(plan: Plan) -> dict[str, str]:
    """For views and results of operators that may share memory with arguments: one name for all that may share it."""
    found: dict[str, str] = {}
    for step in plan.steps:
        if isinstance(step, ViewStep):
            found[step.output] = found.get(step.base, step.base)
        elif isinstance(step, ExternStep) and step.aliases:
            names = [found.get(name, name) for name in names_in(step)]
            found.update(dict.fromkeys(names, names[0]))
            found.update({name: names[0] for name, memory in found.items() if memory in names})
    return found


def views_when_made(plan: Plan) -> Plan:
    """Views that only the caller needs, which come last, are taken when nothing else is done with their memory."""
    steps = list(plan.steps)
    while steps and isinstance(steps[-1], ViewStep):
        steps.pop()
    last, _ = _last_uses(dataclasses.replace(plan, steps=tuple(steps)))
    same = memories(plan)
    used: dict[str, int] = {}
    for name, number in last.items():
        memory = same.get(name, name)
        used[memory] = max(number, used.get(memory, number))
    views: dict[int, list[Step]] = {}
    for step in plan.steps[len(steps) :]:
        assert isinstance(step, ViewStep)
        views.setdefault(used.get(same[step.output], len(steps) - 1), []).append(step)
    ordered = [each for number, step in enumerate(steps) for each in (step, *views.get(number, ()))]
    return dataclasses.replace(plan, steps=(*views.get(-1, ()), *ordered))


def _held(plan: Plan, kept: set[str]) -> set[str]:
    """Buffers whose memory an output lies in."""
    views = _views_of(plan)
    return {views.base.get(name, name) for name in kept}


def _called(plan: Plan) -> set[str]:
    """Buffers whose addresses calls get, which hide them: outputs that lie there are copied by a recorded graph."""
    base = _views_of(plan).base
    calls = [step for step in plan.steps if isinstance(step, ExternStep)]
    return {base.get(ref.name, ref.name) for step in calls for ref in refs_in((step.args, step.kwargs))}


def _last_uses(plan: Plan) -> tuple[dict[str, int], set[str]]:
    """For each buffer the number of the last step that names it; and the buffers that extern results may alias."""
    last: dict[str, int] = {}
    shared: set[str] = set()
    views = _views_of(plan)
    for number, step in enumerate(plan.steps):
        for name in names_in(step):
            last[name] = number
        if isinstance(step, ExternStep) and step.aliases:
            shared.update(views.base.get(ref.name, ref.name) for ref in refs_in((step.args, step.kwargs)))
    return last, shared


def _leading_sizes(plan: Plan) -> int:
    """How many steps at the plan's start only read sizes: nothing comes between them."""
    return next((number for number, step in enumerate(plan.steps) if not isinstance(step, SizeStep)), len(plan.steps))


def _last_check(plan: Plan) -> int:
    """The last step that may refuse a value; -1: none."""
    checked = {kernel.name for kernel in plan.kernels if isinstance(kernel, KernelInfo) and kernel.checked}
    kernels = [(number, step) for number, step in enumerate(plan.steps) if isinstance(step, KernelStep)]
    return max((number for number, step in kernels if step.kernel in checked), default=-1)


def _with_frees(steps: list[Step], dying: dict[int, list[str]]) -> Iterator[Step]:
    taken = {step.reuse for step in steps if isinstance(step, AllocStep) and step.reuse}
    if -1 in dying:
        yield FreeStep(tuple(dying[-1]))
    for number, step in enumerate(steps):
        yield step
        # A buffer whose memory is taken over stays in the table until then.
        names = tuple(name for name in dying.get(number, ()) if name not in taken)
        if isinstance(step, AllocStep) and step.reuse:
            names = (*names, step.reuse)
        if names:
            yield FreeStep(names)


# for each kind of step the fields that hold names of buffers
_NAMES: dict[type, tuple[str, ...]] = {
    AllocStep: ("buffer", "donors"),
    KernelStep: ("args",),
    ExternStep: ("outputs", "holds"),
    ViewStep: ("output", "base"),
    DrawStep: ("outputs",),
    NumberStep: ("output", "source"),
    TouchStep: ("buffer",),
}


def names_in(step: Step) -> Iterator[str]:
    """The buffers a step names."""
    if isinstance(step, ExternStep):
        yield from (ref.name for ref in refs_in((step.args, step.kwargs)))
    elif isinstance(step, SizeStep) and step.what != "expression":
        yield step.source
    held = [getattr(step, field) for field in _NAMES.get(type(step), ())]
    yield from (name for name in leaves_in(held) if isinstance(name, str))


def renamed(step: Step, rename: Callable[[str], str]) -> Step:
    """The step with other buffers. Sizes stay as they are."""
    fields = (*_NAMES.get(type(step), ()), *(("outputs",) if isinstance(step, KernelStep) else ()))
    changed = {field: map_leaves(rename, getattr(step, field), str) for field in fields}
    if isinstance(step, ExternStep):
        given = {"args": step.args, "kwargs": step.kwargs}
        changed |= map_leaves(lambda ref: BufferRef(rename(ref.name)), given, BufferRef)
    return dataclasses.replace(step, **changed) if changed else step


def refs_in(tree: Any) -> Iterator[BufferRef]:
    """The `BufferRef`s in nested arguments."""
    return (leaf for leaf in leaves_in(tree) if isinstance(leaf, BufferRef))
