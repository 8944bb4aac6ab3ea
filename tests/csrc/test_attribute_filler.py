"""AttributeFiller and fill_entries: objects made just now get what they hold, past their class's setters."""

import collections

import pytest

from dynajit import _C


class Plain:
    pass


class Strict:
    @property
    def total(self):
        raise AssertionError("the property ran")

    def __setattr__(self, name, value):
        raise AssertionError("__setattr__ ran")


class Mapping(collections.OrderedDict):
    def __setitem__(self, key, value):
        raise AssertionError("__setitem__ ran")


class Slotted:
    __slots__ = ("__dict__", "b")


@pytest.mark.parametrize("cls", [Plain, Strict, Mapping, type("Late", (Plain,), {}), type("Error", (Exception,), {})])
def test_asks_no_setter(cls):
    fill = _C.AttributeFiller(("b", "total", "a"))
    for number in range(4):
        made = cls.__new__(cls) if issubclass(cls, (dict, Exception)) else _C.bare_object(cls)
        fill(made, number, "two", made)
        assert type(made) is cls
        assert list(vars(made).items()) == [("b", number), ("total", "two"), ("a", made)]
        if cls is not Strict:
            made.more = 1
            assert list(vars(made)) == ["b", "total", "a", "more"]
            del made.b
            assert list(vars(made)) == ["total", "a", "more"]


def test_one_filler_for_classes_that_change():
    fill = _C.AttributeFiller(("a", "b"))

    class Changing:
        pass

    for cls in (Plain, Changing, Strict, Plain):
        made = _C.bare_object(cls)
        fill(made, 1, 2)
        assert vars(made) == {"a": 1, "b": 2}
    seen = []
    Changing.a = property(lambda self: 5, lambda self, value: seen.append(value))
    made = _C.bare_object(Changing)
    fill(made, 1, 2)
    assert (vars(made), made.a, seen) == ({"a": 1, "b": 2}, 5, [])
    del Changing.a
    made = _C.bare_object(Changing)
    fill(made, 3, 4)
    assert (made.a, made.b) == (3, 4)


def test_names_in_other_orders_and_more_of_them_than_lie_beside_an_object():
    class Many:
        pass

    names = tuple(f"n{i}" for i in range(60))
    for chosen in (names[:3], names[:3][::-1], names, names[::-1], names[:29], names[::2]):
        fill = _C.AttributeFiller(chosen)
        for _ in range(3):
            made = _C.bare_object(Many)
            fill(made, *range(len(chosen)))
            assert list(vars(made).items()) == list(zip(chosen, range(len(chosen)), strict=True))
            made = _C.bare_object(Many)
            fill(made, *range(len(chosen)))
            assert [getattr(made, name) for name in chosen] == list(range(len(chosen)))


def test_what_is_filled_dies_with_what_it_holds():
    fill = _C.AttributeFiller(("a", "b"))
    died = []

    class Held:
        def __del__(self):
            died.append(self)

    for _ in range(3):
        made = _C.bare_object(Plain)
        fill(made, Held(), 1)
        del made
    assert len(died) == 3


def test_refuses():
    fill = _C.AttributeFiller(("a",))
    for args in ((), (Plain(),), (Plain(), 1, 2)):
        with pytest.raises(TypeError):
            fill(*args)
    with pytest.raises(TypeError):
        fill(Plain(), a=1)
    with pytest.raises(AttributeError):
        fill(3, 1)
    with pytest.raises(TypeError):
        _C.AttributeFiller((1,))
    with pytest.raises(TypeError):
        _C.AttributeFiller(["a"])
    with pytest.raises(TypeError):
        _C.bare_object(3)
    assert "'a'" in repr(fill)


def test_slots_stay_empty():
    made = Slotted()
    _C.AttributeFiller(("b", "c"))(made, 1, 2)
    assert vars(made) == {"b": 1, "c": 2}
    with pytest.raises(AttributeError):
        _ = made.b


def test_entries():
    for cls in (Mapping, type("Sub", (dict,), {"__setitem__": None}), dict):
        made = cls.__new__(cls)
        _C.fill_entries(made, "b", 1, "a", 2)
        assert list(made.items()) == [("b", 1), ("a", 2)]
        assert list(reversed(made)) == ["a", "b"]
    with pytest.raises(TypeError):
        _C.fill_entries({}, 1)
    with pytest.raises(TypeError):
        _C.fill_entries([], 1, 2)
    with pytest.raises(TypeError):
        _C.fill_entries({}, [], 2)
