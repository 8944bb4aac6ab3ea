"""CompiledFunction and GraphCall as objects: binding, introspection, pickling, lifetime."""

import copy
import gc
import inspect
import itertools
import pickle
import weakref

import pytest
from csrc_harness import CloneCapture, compiled, hooked

from dynajit import _C


def signature_zoo(a, /, b, c=3, *rest, d, e=5, **more):
    "A docstring."
    return a, b, c, rest, d, e, more


def plain(a, b=2):
    return a, b


def only_keywords(*, a=1, b):
    return a, b


def only_rest(*rest, **more):
    return rest, more


POSITIONAL = [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4, 5)]
KEYWORDS = [
    *({}, {"d": 4}, {"b": 7}, {"a": 0, "b": 1}, {"b": 7, "d": 4}),
    *({"a": 0}, {"a": 0, "d": 1}, {"d": 4, "z": 1}, {"c": 1, "d": 2, "e": 3}),
]


@pytest.mark.parametrize("fn", [signature_zoo, plain, only_keywords, only_rest])
def test_binds_as_python_does(fn):
    fn = type(fn)(fn.__code__.replace(), globals(), fn.__name__, fn.__defaults__)
    fn.__kwdefaults__ = {"signature_zoo": {"e": 5}, "only_keywords": {"a": 1}}.get(fn.__name__)
    call = compiled(fn, CloneCapture(__file__))
    hits = 0
    for args, kwargs in itertools.product(POSITIONAL, KEYWORDS):
        for _ in range(2):
            try:
                expected = fn(*args, **kwargs)
            except TypeError as error:
                with pytest.raises(TypeError) as found:
                    call(*args, **kwargs)
                assert str(found.value) == str(error)
            else:
                assert call(*args, **kwargs) == expected
                hits += 1
    assert len(call.callback.seen) == 1
    assert _C.variants(fn.__code__)[0].hits == hits - 1


def test_keyword_names_need_not_be_interned():
    call = compiled(plain, CloneCapture(__file__))
    call(1, b=3)
    assert call(**{"".join(["a"]): 1, "".join(["b", ""]): 4}) == (1, 4)


def test_changed_defaults_are_used():
    def target(a, b=2, *, c=3):
        return a, b, c

    call = compiled(target, CloneCapture(__file__))
    assert call(1) == call(1) == (1, 2, 3)
    target.__defaults__ = (20,)
    target.__kwdefaults__ = {"c": 30}
    assert call(1) == (1, 20, 30)


def test_cells_follow_the_locals():
    def make(y, z):
        def target(x):
            return x, y, z

        return target

    target = make(1, 2)
    seen = []

    def callback(code, fn, values, reasons):
        seen.append([value.cell_contents if type(value).__name__ == "cell" else value for value in values])
        guards = _C.GuardProgram([("CELL_CONTENTS", 0, 3, 1, None), ("EQUALS", 0, 3, -1, 1)], 3)
        variant = _C.Variant(
            guards,
            lambda x, y, z: ("variant", x, y.cell_contents, z.cell_contents),
            False,
            globals(),
            key=_C.current_key(),
        )
        _C.add_variant(code, variant)
        return variant

    call = compiled(target, callback)
    assert call(5) == ("variant", 5, 1, 2)
    assert call(6) == ("variant", 6, 1, 2)
    assert seen == [[5, 1, 2]]
    other = _C.CompiledFunction(make(9, 9), lambda *args: None, key=callback)
    assert other(5) == (5, 9, 9)


def test_binds_like_a_function():
    class Model:
        def __init__(self):
            self.scale = 3

        @classmethod
        def name(cls):
            return cls.__name__

    capture = CloneCapture(__file__)

    def step(self, x):
        return self.scale * x

    Model.step = compiled(step, capture)
    model = Model()
    assert model.step(2) == model.step(2) == Model.step(model, 2) == 6
    assert capture.seen == ["step"]
    assert inspect.ismethod(model.step)
    assert model.step.__self__ is model
    assert model.step == model.step


def test_looks_like_the_function():
    call = compiled(signature_zoo, CloneCapture(__file__))
    assert call.__name__ == "signature_zoo"
    assert call.__qualname__ == signature_zoo.__qualname__
    assert call.__doc__ == "A docstring."
    assert call.__module__ == __name__
    assert call.__wrapped__ is signature_zoo
    assert inspect.signature(call) == inspect.signature(signature_zoo)
    assert inspect.unwrap(call) is signature_zoo
    assert call.__code__ is signature_zoo.__code__
    assert call.__defaults__ == signature_zoo.__defaults__
    assert "signature_zoo" in repr(call)
    call.note = 5
    assert call.note == 5
    assert call.__dict__["note"] == 5
    del call.note
    with pytest.raises(AttributeError):
        call.note  # noqa: B018


pickled = compiled(plain, CloneCapture(__file__))
pickled.__qualname__ = "pickled"


def test_pickles_by_name_or_by_the_makers_rule():
    assert pickle.loads(pickle.dumps(pickled)) is pickled
    assert copy.copy(pickled) is copy.deepcopy(pickled) is pickled
    ruled = compiled(plain, CloneCapture(__file__), reduce=lambda call: (tuple, ((call.__name__,),)))
    assert pickle.loads(pickle.dumps(ruled)) == ("plain",)


def test_is_collected_with_its_cycle():
    def target(x):
        return x

    call = compiled(target, CloneCapture(__file__))
    call.itself = call
    ref = weakref.ref(call)
    del call
    gc.collect()
    assert ref() is None


def test_refuses_what_is_no_function():
    with pytest.raises(TypeError):
        _C.CompiledFunction(len, print)
    with pytest.raises(TypeError, match="must be callable"):
        _C.CompiledFunction(plain, 3)


def test_generators_stay_generators():
    def numbers(n):
        yield from range(n)

    call = compiled(numbers, CloneCapture(__file__))
    assert list(call(3)) == list(call(3)) == [0, 1, 2]
    assert call.callback.seen == []


def skip_all(code, fn, values, reasons):
    _C.mark_skip(code)


def test_graph_call():
    def graph(*args, **kwargs):
        return args, kwargs, _C.get_callback()

    call = _C.GraphCall(graph)
    assert call.fn is graph
    assert call(1, b=2) == ((1,), {"b": 2}, None)
    call.note = 1
    assert call.note == 1
    with hooked(skip_all):
        assert call(1, b=2)[2] is None
        assert _C.get_callback() == (skip_all, skip_all)
    with pytest.raises(TypeError, match="a callable is needed"):
        _C.GraphCall(3)


def test_graph_call_restores_the_callback_on_errors():
    def fail():
        raise KeyError("graph")

    call = _C.GraphCall(fail)
    with hooked(skip_all):
        with pytest.raises(KeyError):
            call()
        assert _C.get_callback() == (skip_all, skip_all)
