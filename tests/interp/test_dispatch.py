"""Each canonical opcode has a meaning, and the table holds nothing else."""

import pytest

from dynajit.bytecode import canonical
from dynajit.interp import machine
from dynajit.interp.dispatch import HANDLERS, SIMPLE

OPS = sorted(canonical.EFFECTS)


@pytest.mark.parametrize("op", OPS)
def test_every_canonical_opcode_has_a_handler(op: str) -> None:
    assert op in HANDLERS


def test_no_handler_without_an_opcode() -> None:
    assert set(HANDLERS) - set(OPS) <= {"UNKNOWN"}
    assert set(HANDLERS) >= SIMPLE


def test_handlers_live_in_the_opcode_files() -> None:
    modules = {module.__name__ for module in machine.OPCODE_MODULES}
    assert {getattr(handler, "func", handler).__module__ for handler in HANDLERS.values()} == modules
