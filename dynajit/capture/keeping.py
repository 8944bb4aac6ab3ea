"""Variants that another process has kept (`kept/`), and those that are kept for the next one.

In: a session, and a call that no variant fits. Out: `lookup`, where such variants are looked for; `taken`, the one that
fits, added to the code's. Nothing is looked for or kept where the capture itself is what the user wants to see
(`explain`, a debug folder, `verify`).
"""

from __future__ import annotations

import types
from typing import Any

import torch

from dynajit import _C
from dynajit.backends import kept_plan
from dynajit.bytecode import copy_of, part_of
from dynajit.capture import collector
from dynajit.capture.session import Session
from dynajit.capture.variants import VariantData, role_of, turn_of
from dynajit.config import config
from dynajit.kept.folder import Lookup
from dynajit.report import debug, records


def lookup(session: Session, function: types.FunctionType, values: tuple[Any, ...], compile_id: str) -> Lookup | None:
    """Where variants for the call are looked for; None if this session keeps none."""
    choices = session.choices
    if not config.keep_variants or not kept_plan.is_own(choices.backend, choices.options):
        return None
    if choices.verify or config.verify or config.planted_bug or choices.background or choices.guard_filter is not None:
        return None
    if debug.enabled() or records.is_listened():
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    settings = [choices.fullgraph, choices.dynamic, sorted(map(repr, choices.options.items()))]
    return Lookup(settings, function, values, compile_id)


def taken(found: Lookup, session: Session, values: tuple[Any, ...]) -> _C.Variant | None:
    """The kept variant that fits the call, among the code's variants from now on."""
    with collector.relaxed():  # a full collection in the middle would take half of the time
        loaded = found.load(session)
    if loaded is None:
        return None
    code, globals_ = found.function.__code__, found.function.__globals__
    eager = loaded.code is None
    made = copy_of(code, part_of(found.function)) if loaded.code is None else loaded.code
    _C.mark_ours(made)
    function = types.FunctionType(made, globals_, code.co_name)
    data = VariantData(loaded.guards, found.compile_id, eager, role=role_of(code, loaded.guards))
    hook = loaded.needs_hook
    variant = _C.Variant(loaded.program, function, hook, globals_, data, session, turn_of(hook))
    seen = session.memory(code).seen
    for source, value in loaded.sized:  # what differs from it at the next capture varies
        if isinstance(value, torch.Tensor):
            seen.tensor(source, value)
        else:
            seen.number(source, value)
    _C.add_variant(code, variant)
    session.touch(code)
    return variant
