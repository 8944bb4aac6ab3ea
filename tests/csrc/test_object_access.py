"""Reading without user code: what is found, and that none of the user's code ran."""

from collections import OrderedDict

import pytest
import torch

from dynajit import _C


class Loud:
    """Every way of being asked is an error."""

    constant = 5

    def __init__(self):
        self.own = 1

    def method(self):
        return self

    @property
    def prop(self):
        raise AssertionError("a property ran")

    @staticmethod
    def static():
        return "static"

    @classmethod
    def cls(cls):
        return cls

    def __getattr__(self, name):
        raise AssertionError("__getattr__ ran")

    def __eq__(self, other):
        raise AssertionError("__eq__ ran")

    __hash__ = object.__hash__


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


def test_generic_getattr():
    loud = Loud()
    assert _C.generic_getattr(loud, "own") == 1
    assert _C.generic_getattr(loud, "constant") == 5
    assert _C.generic_getattr(loud, "method")() is loud
    assert _C.generic_getattr(loud, "static")() == "static"
    assert _C.generic_getattr(loud, "cls")() is Loud
    assert _C.generic_getattr(loud, "prop", "none") == "none"
    with pytest.raises(AttributeError):
        _C.generic_getattr(loud, "missing")
    loud.constant = 6
    assert _C.generic_getattr(loud, "constant") == 6
    loud.__dict__["prop"] = 3  # the data descriptor still wins, and is not run
    assert _C.generic_getattr(loud, "prop", "none") == "none"


def test_generic_getattr_on_slots_classes_and_modules():
    slotted = Slotted()
    assert _C.generic_getattr(slotted, "a") == 1
    assert _C.generic_getattr(slotted, "b", None) is None
    assert _C.generic_getattr(Loud, "method") is Loud.__dict__["method"]
    assert _C.generic_getattr(Loud, "static")() == "static"
    assert _C.generic_getattr(Loud, "__name__") == "Loud"
    assert _C.generic_getattr(pytest, "raises") is pytest.raises


@pytest.mark.parametrize("materialise", [False, True])
def test_instance_getattr(materialise):
    loud = Loud()
    if materialise:
        assert loud.__dict__ == {"own": 1}
    assert _C.instance_getattr(loud, "own") == 1
    assert _C.instance_getattr(loud, "".join(["o", "wn"])) == 1
    assert _C.instance_getattr(loud, "constant", None) is None
    with pytest.raises(AttributeError):
        _C.instance_getattr(loud, "method")
    del loud.own
    assert _C.instance_getattr(loud, "own", None) is None
    assert _C.instance_getattr(3, "own", None) is None


def test_type_lookup():
    class Child(Loud):
        pass

    assert _C.type_lookup(Child, "prop") is Loud.__dict__["prop"]
    assert _C.type_lookup(Child, "cls") is Loud.__dict__["cls"]
    with pytest.raises(KeyError):
        _C.type_lookup(Child, "missing")
    Child.missing = 3
    assert _C.type_lookup(Child, "missing") == 3


def test_raw_item():
    class Own(dict):
        def __getitem__(self, key):
            raise AssertionError("__getitem__ ran")

        __missing__ = __getitem__

    assert _C.raw_item(Own(a=1), "a") == 1
    with pytest.raises(KeyError):
        _C.raw_item(Own(a=1), "b")
    assert _C.raw_item([1, 2, 3], -1) == 3
    assert _C.raw_item((1, 2), 1) == 2
    for container, key in [([1], 1), ((), 0), ([1], -2), ([1], "a"), ([1], 2**80), ("text", 0)]:
        with pytest.raises(KeyError):
            _C.raw_item(container, key)
    with pytest.raises(TypeError):
        _C.raw_item({}, [])


def test_dict_key():
    ordered = OrderedDict.fromkeys("abc")
    ordered.move_to_end("a")
    assert [_C.dict_key(ordered, i) for i in range(3)] == ["b", "c", "a"]
    assert [_C.dict_key({"x": 1, "y": 2}, i) for i in range(2)] == ["x", "y"]
    for index in (2, -1, 100):
        with pytest.raises(IndexError):
            _C.dict_key({"x": 1, "y": 2}, index)


def test_runtime_call_sees_overlap():
    seen = []
    call = _C.RuntimeCall(lambda *args: seen.append("compiled"), lambda *args: seen.append("eager"), [1])
    t = torch.arange(12.0)
    for first, second in (
        (t[:4], t[4:8]),
        (t[:4], t[4:8]),
        (t[:5], t[4:8]),
        (t[:4], t[4:8]),
        (t[8:], t[4:8]),
        (t[::3], t[1::3]),  # take turns in memory
        (t[:0], t[:4]),
        (3, t[:4]),
        (t.view(3, 4)[:, 1], t[10:]),
    ):
        call(first, second)
    assert [name == "eager" for name in seen] == [False, False, True, False, False, True, False, False, False]
    ones = torch.ones(1, 1)
    call = _C.RuntimeCall(lambda: seen.append((ones @ ones).dtype), no_autocast=True)
    with torch.autocast("cpu", torch.bfloat16):
        call()
    assert seen[-1] is torch.float32
    with pytest.raises(ValueError):
        _C.RuntimeCall(print, print, [-1])
