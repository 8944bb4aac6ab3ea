"""CPython's own test-suite under dynajit: a part of it that is quick, every test's outcome as plain CPython's.

The whole is `make cpython`. Two kinds are run here: modules that are run each time, and of the others one group that
changes from day to day (`DYNAJIT_CPYTHON_GROUP` chooses it).
"""

from __future__ import annotations

import datetime
import os

import cpython_modules
import pytest
from cpython_run import run_all

CHOSEN = [
    *("test_range", "test_generator_stop", "test_genexps", "test_listcomps", "test_setcomps", "test_dictcomps"),
    *("test_scope", "test_keywordonlyarg", "test_unpack", "test_unpack_ex", "test_augassign", "test_opcodes"),
    *("test_exception_variations", "test_baseexception", "test_raise", "test_slice"),
]
GROUPS = (
    ("test_with",),
    ("test_named_expressions", "test_richcmp"),
    ("test_bool", "test_cmath"),
    ("test_userdict", "test_defaultdict", "test_class"),
    ("test_tuple", "test_super", "test_property"),
    ("test_funcattrs", "test_decorators", "test_compare"),
    ("test_generators", "test_positional_only_arg"),
    ("test_list", "test_heapq"),
    ("test_except_star", "test_string"),
    ("test_userlist", "test_weakset"),
    ("test_iter", "test_bisect"),
)


def _today() -> list[str]:
    given = os.environ.get("DYNAJIT_CPYTHON_GROUP")
    number = int(given) if given is not None else datetime.datetime.now(datetime.UTC).toordinal()
    return list(GROUPS[number % len(GROUPS)])


@pytest.mark.skipif(not cpython_modules.exists("test_tuple"), reason="this Python comes without its test-suite")
def test_outcomes_are_plain_cpythons() -> None:
    modules = [module for module in [*CHOSEN, *_today()] if cpython_modules.exists(module)]
    found = list(run_all(modules, "compiled", 120.0))
    text = "\n".join(f"{each.line()}\n{each.differences}" for each in found if not each.good)
    assert not text, text
    # nothing would differ either if nothing was compiled
    assert sum(each.compiled.statistics["compiled"] for each in found) > 500
    assert all(each.compiled.statistics["wrapped"] for each in found if each.plain.tests)


def test_every_known_difference_has_its_reason() -> None:
    table = cpython_modules.known()
    assert all(len(entry.reason) > 20 and entry.test.startswith(("test.", "typing.")) for entry in table)
    assert len({entry.test for entry in table}) == len(table)
