"""Variants of a code object: which is found, in what order, and when they die."""

import gc
import types
import weakref

import pytest
from csrc_harness import compiled, flatten_parameters

from dynajit import _C


def program(*instructions, n_locals=1):
    return _C.GuardProgram(list(instructions), n_locals, globals())


def make_variant(answer, expected, key=None, turn=0, in_cell=False):
    """Answers `answer` where the argument, or what the cell contains that it is, equals `expected`; guard 3 is the one
    that fails."""
    namespace = {}
    exec(f"def replacement(x): return {answer!r}", namespace)
    replacement = type(flatten_parameters)(namespace["replacement"].__code__, globals())
    read = [("CELL_CONTENTS", 3, 1, 0, None)] * in_cell
    guards = program(*read, ("EQUALS", 3, len(read), -1, expected))
    return _C.Variant(guards, replacement, False, globals(), data=answer, key=key, turn=turn)


def no_capture(code, fn, values, reasons):
    no_capture.reasons = [(variant.data, index) for variant, index in reasons]
    return None


def make_target():
    namespace = {}
    exec("def target(x): return 'original'", namespace)
    return type(make_target)(namespace["target"].__code__, globals())


def test_the_variant_that_fits_is_run_and_moves_to_the_front():
    target = make_target()
    call = compiled(target, no_capture, key="k")
    for value in (1, 2, 3):
        _C.add_variant(target.__code__, make_variant(f"for {value}", value, "k"))
    assert [variant.data for variant in _C.variants(target.__code__)] == ["for 3", "for 2", "for 1"]
    assert call(1) == "for 1"
    assert [variant.data for variant in _C.variants(target.__code__)] == ["for 1", "for 3", "for 2"]
    assert call(2) == "for 2"
    assert call(True) == "original"
    assert no_capture.reasons == [("for 2", 3), ("for 1", 3), ("for 3", 3)]
    assert [variant.hits for variant in _C.variants(target.__code__)] == [1, 1, 0]


def test_a_guard_that_failed_is_asked_first():
    """Of a local, or of what a cell among them contains: in the next call it may hold, and so may the cell be empty."""
    for in_cell, passed in ((False, lambda value: value), (True, types.CellType)):
        target = make_target()
        call = compiled(target, no_capture, key="k")
        for value in (1, 2):
            _C.add_variant(target.__code__, make_variant(f"for {value}", value, "k", in_cell=in_cell))
        for value in (3, 3, 1, 3, 2, 1, True, 2):
            expected = f"for {value}" if type(value) is int and value < 3 else "original"
            assert call(passed(value)) == expected, (in_cell, value)
        if in_cell:
            assert [call(each) for each in (types.CellType(), 1, passed(1))] == ["original", "original", "for 1"]


def test_turns_of_variants():
    """Those of a later turn come after all others, whatever was hit; among themselves the one hit last is first."""
    target = make_target()
    call = compiled(target, no_capture, key="k")

    def order():
        return [variant.data for variant in _C.variants(target.__code__)]

    for name, value, turn in (("a", 1, 1), ("b", 2, 0), ("f", 3, 2), ("c", 3, 1), ("d", 1, 0), ("e", 4, 1)):
        _C.add_variant(target.__code__, make_variant(name, value, "k", turn))
    assert order() == ["d", "b", "e", "c", "a", "f"]
    assert [call(3), call(1), call(2), call(3)] == ["c", "d", "b", "c"]
    assert order() == ["b", "d", "c", "e", "a", "f"]
    assert [variant.turn for variant in _C.variants(target.__code__)] == [0, 0, 1, 1, 1, 2]


def test_other_keys_and_other_globals_are_not_seen():
    target = make_target()
    _C.add_variant(target.__code__, make_variant("mine", 1, "mine"))
    assert compiled(target, no_capture, key="mine")(1) == "mine"
    assert compiled(target, no_capture, key="yours")(1) == "original"
    elsewhere = type(target)(target.__code__, {"__builtins__": {}})
    assert compiled(elsewhere, no_capture, key="mine")(1) == "original"


def test_flags():
    target = make_target()
    code = target.__code__
    calls = []

    def callback(*args):
        calls.append(args[0])

    call = compiled(target, callback, key="k")
    assert _C.code_flags(code) == 0
    call(1)
    assert calls == [code]
    _C.mark_run_only(code)
    assert _C.code_flags(code) == _C.RUN_ONLY
    _C.add_variant(code, make_variant("fast", 1, "k"))
    assert call(1) == "fast"
    assert call(2) == "original"
    assert calls == [code]
    _C.mark_skip(code)
    assert call(1) == "original"
    _C.reset_code(code)
    assert _C.code_flags(code) == 0
    assert _C.variants(code) == []
    _C.mark_ours(code)
    assert call(1) == "original"
    _C.reset_code(code)
    assert _C.code_flags(code) == _C.OURS
    assert calls == [code]


def test_variants_die_with_the_code_object():
    target = make_target()
    variant = make_variant("x", 1, "k")
    ref = weakref.ref(variant)
    _C.add_variant(target.__code__, variant)
    del variant
    assert ref() is not None
    del target
    gc.collect()
    assert ref() is None


def test_reset_while_a_variant_runs():
    target = make_target()
    namespace = {"reset": lambda: _C.reset_code(target.__code__)}
    exec("def replacement(x):\n    reset()\n    return x", namespace)
    variant = _C.Variant(program(), namespace["replacement"], False, target.__globals__, key="k")
    _C.add_variant(target.__code__, variant)
    del variant
    call = compiled(target, no_capture, key="k")
    assert call(5) == 5
    assert call(5) == "original"


def test_guard_that_changes_the_variants_while_they_are_searched():
    target = make_target()
    code = target.__code__

    def predicate(value):
        _C.reset_code(code)
        return False

    for _ in range(3):
        guards = program(("PREDICATE", 0, 0, -1, predicate))
        _C.add_variant(code, _C.Variant(guards, flatten_parameters(make_target()), False, globals(), key="k"))
    assert compiled(target, no_capture, key="k")(1) == "original"
    assert _C.variants(code) == []


def test_bad_variants_are_refused():
    target = make_target()
    with pytest.raises(ValueError, match="must take exactly the 1 locals"):
        _C.Variant(program(), lambda: 1, False, globals())
    with pytest.raises(ValueError, match="no free variables"):
        _C.Variant(program(), lambda x: target, False, globals())
    with pytest.raises(ValueError, match="has 1 parameters and free variables"):
        _C.add_variant(target.__code__, _C.Variant(program(n_locals=2), lambda a, b: 1, False, globals()))
    with pytest.raises(TypeError):
        _C.mark_skip(target)
