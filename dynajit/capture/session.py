"""What a `dynajit.compile` call chose, and what its captures share.

In: `Choices`. Out: `Session`, which is the key of its variants in the code cache, so that two configurations of
one function never mix, and the owner of its continuations.
"""

from __future__ import annotations

import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import fx

from dynajit import _C
from dynajit.bytecode import (
    Code,
    InnerCall,
    Outline,
    Part,
    build_body,
    build_segment,
    build_shell,
    part_of,
    segments,
)
from dynajit.capture import rules
from dynajit.capture.idle import Idle
from dynajit.capture.reuse import Key
from dynajit.graph.seen import Seen, Sized
from dynajit.guards.source import ItemSource, LocalSource, Source
from dynajit.interp.frame import SymFrame
from dynajit.locks import process_lock
from dynajit.resume.drive import generator_maker
from dynajit.resume.emit import Shell
from dynajit.resume.plan import Resume, slot_kinds
from dynajit.values.objects.lookup import is_trusted


class CodeSet:
    """Code objects by identity (equal ones are kept apart), held weakly."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[types.CodeType]] = {}

    def add(self, code: types.CodeType) -> None:
        key, references = id(code), self._references
        references[key] = weakref.ref(code, lambda _: references.pop(key, None) and None)

    def __contains__(self, code: types.CodeType) -> bool:
        reference = self._references.get(id(code))
        return reference is not None and reference() is code

    def __iter__(self) -> Iterator[types.CodeType]:
        return iter([code for reference in list(self._references.values()) if (code := reference()) is not None])

    def clear(self) -> None:
        self._references.clear()


# Code objects whose cache is not empty, for `reset`; and those that some `compile` call named.
touched, roots = CodeSet(), CodeSet()
sessions: weakref.WeakSet[Session] = weakref.WeakSet()
# held while it is changed which session a `compile` call gets
sharing = process_lock()
_frame_numbers: dict[int, tuple[weakref.ref[types.CodeType], int]] = {}
_next_frame_number = itertools.count()


def frame_number(code: types.CodeType) -> int:
    """The frame's number in compile ids, by order of first capture."""
    key = id(code)
    entry = _frame_numbers.get(key)
    if entry is None or entry[0]() is not code:
        reference = weakref.ref(code, lambda _: _frame_numbers.pop(key, None) and None)
        entry = _frame_numbers[key] = (reference, next(_next_frame_number))
    return entry[1]


class Owner:
    """Lives as long as the objects that `compile` gave to the user for one session. With it go the session's variants,
    which are on code objects that may live longer, unless a later `compile` call may share them (`Session.park`)."""


def is_lasting(globals_: dict[str, Any]) -> bool:
    """Whether these are a module's, which no variant keeps alive."""
    return globals_ is getattr(sys.modules.get(str(globals_.get("__name__"))), "__dict__", None)


def _weakly(function: Any) -> Any:
    """The function, not kept alive."""
    if function is None or isinstance(function, weakref.ProxyTypes):
        return function
    if isinstance(function, types.MethodType):
        method = weakref.WeakMethod(function)
        return lambda *args, **kwargs: method()(*args, **kwargs)  # type: ignore[misc]
    return weakref.proxy(function)


def reset_caches() -> None:
    """Forget all variants of all code objects."""
    global _next_frame_number
    for code in touched:
        _C.reset_code(code)
    touched.clear()
    for session in list(sessions):
        session.forget()
    _frame_numbers.clear()
    _next_frame_number = itertools.count()


class Memory(NamedTuple):
    """One code object's captures: which sizes and numbers they saw, what the backend made of their graphs, and which
    sources had changed before they were done."""

    seen: Seen
    graphs: dict[Key, tuple[fx.GraphModule, _C.GraphCall]]
    changed: set[Source | None]


class Choices(NamedTuple):
    """The arguments of `compile`, looked up and checked.

    Attributes:
        backend: `(GraphModule, example_inputs, **options) -> callable`.
        backend_name: for messages.
        fullgraph: a graph break is an error.
        dynamic: None, True or False, as the user said.
        options: keyword arguments for the backend.
        guard_filter: which of a variant's guards are kept; None: all.
        verify: compare one in this many calls of each graph with eager; 0: none (then `config.verify` says).
        settings: the arguments themselves, for pickling.
        background: graphs run as captured until they are compiled, in another thread.
    """

    backend: Callable[..., Any]
    backend_name: str
    fullgraph: bool
    dynamic: bool | None
    options: dict[str, Any]
    guard_filter: Callable[[list[Any]], list[bool]] | None
    verify: int
    settings: dict[str, Any]
    background: bool = False


def put_variants(code: types.CodeType, variants: Sequence[_C.Variant]) -> None:
    """The code has these variants alone, tried in this order where they are of one kind, and is marked no more."""
    _C.reset_code(code)
    for variant in reversed(variants):
        _C.add_variant(code, variant)


class Session:
    """The choices of one `compile` call, or of several equal ones, and what their captures know."""

    choices: Choices

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.dynamic = choices.dynamic
        self.capture: Callable[..., Any] | None = None
        # takes the session out of the table in which later `compile` calls find it; None: it is in none
        self.unlink: Callable[[], object] | None = None
        # the code and globals of a function that calls what is compiled, where that is no function itself
        self.entry: tuple[types.CodeType, dict[str, Any]] | None = None
        # code objects with variants of this session
        self.codes = CodeSet()
        self._owner: Callable[[], Owner | None] = lambda: None
        self._continuations: dict[tuple[Any, ...], Any] = {}
        self._shells: dict[tuple[Any, ...], Shell] = {}
        self._roots = CodeSet()
        self._memories: dict[int, tuple[weakref.ref[types.CodeType], Memory]] = {}
        self.idle = Idle()
        # names of classes that are made anew again and again
        self.classes_made_anew: set[str] = set()
        # code objects left to the interpreter once, since a cell was empty
        self.left_with_empty_cells = CodeSet()
        # of the thread that captures a frame; nobody waits for it
        self.capturing = process_lock()
        sessions.add(self)

    def owner(self) -> Owner:
        """The session's owner, kept alive by the objects that the user has."""
        owner = self._owner()
        if owner is None:
            owner = Owner()
            # not `__del__`: while it runs, a weak reference could give the dying owner to another call
            self._owner = weakref.ref(owner, lambda _: self.park())
        return owner

    def park(self) -> None:
        """The user may have no object of this session any more. A shared one keeps its variants then, and none of the
        user's objects alive."""
        with sharing:
            if self._owner() is not None or sys.is_finalizing():
                return
            if self.unlink is not None and all(map(is_lasting, self._globals())):
                backend, guard_filter = _weakly(self.choices.backend), _weakly(self.choices.guard_filter)
                self.choices = self.choices._replace(backend=backend, guard_filter=guard_filter, settings={})
                return
            self.unshare()
        self._drop_variants()

    def is_parked(self) -> bool:
        """Whether the user has no object of this session."""
        return self._owner() is None

    def most_variants(self) -> int:
        """How many variants the code has that has most of this session."""
        return max((sum(variant.key is self for variant in _C.variants(code)) for code in self.codes), default=0)

    def unshare(self) -> None:
        """No later `compile` call gets this session."""
        with sharing:
            if self.unlink is not None:
                self.unlink()
                self.unlink = None

    def _globals(self) -> list[dict[str, Any]]:
        """The globals that variants and continuations hold."""
        variants = [variant for code in self.codes for variant in _C.variants(code) if variant.key is self]
        own = self.entry[1] if self.entry is not None else None
        parts = [*self._continuations.values(), *(shell.function for shell in self._shells.values())]
        found = [*(variant.globals for variant in variants), *(part.__globals__ for part in parts)]
        return [globals_ for globals_ in found if globals_ is not own]

    def _drop_variants(self) -> None:
        for code in self.codes:
            variants = _C.variants(code)
            if any(variant.key is self for variant in variants):
                put_variants(code, [variant for variant in variants if variant.key is not self])

    def forget(self) -> None:
        """Nothing has been seen: sizes are static again until they are found to change."""
        self._memories.clear()
        self.idle.clear()
        self.classes_made_anew.clear()
        self.left_with_empty_cells.clear()

    def touch(self, code: types.CodeType) -> None:
        """Remember a code object that has variants of this session."""
        self.codes.add(code)
        touched.add(code)

    def add_root(self, code: types.CodeType) -> None:
        """Code that is compiled even if nothing in it makes a graph: what the user named, and continuations."""
        if _C.code_flags(code) and code not in self._roots:
            _C.reset_code(code)  # what another session made of it
        self._roots.add(code)
        roots.add(code)

    def memory(self, code: types.CodeType) -> Memory:
        """What earlier captures of this code object left."""
        key = id(code)
        entry = self._memories.get(key)
        if entry is None or entry[0]() is not code:
            known = self._memories
            made = Memory(Seen(self.dynamic), {}, set())
            entry = known[key] = (weakref.ref(code, lambda _: known.pop(key, None) and None), made)
        return entry[1]

    def is_root(self, code: types.CodeType) -> bool:
        """Whether `add_root` was called with it."""
        return code in self._roots

    def expect(self, function: types.FunctionType, varying: Sequence[Source]) -> None:
        """These parameters of a part are numbers that vary."""
        for source in varying:
            self.memory(function.__code__).seen.expect(source)

    def expect_sizes(self, function: types.FunctionType, tensors: Sequence[Sized]) -> None:
        """These parameters of a part are tensors whose sizes vary."""
        for tensor in tensors:
            self.memory(function.__code__).seen.expect_sizes(tensor)

    def results_vary(self, function: types.FunctionType, results: Sequence[Source]) -> None:
        """These parameters of a part are what a line gave that a varying value was needed for."""
        self.memory(function.__code__).seen.results.update(results)

    def hand_over(self, seen: Seen, function: types.FunctionType, moved: Sequence[tuple[Source, Source]]) -> None:
        """What `seen` says of numbers, texts and objects holds for the parameters of a part that they become."""
        known, there = self.memory(function.__code__).seen, dict(moved)
        for found, kept in (
            (seen.varying, known.varying),
            (seen.settled, known.settled),
            (seen.counters, known.counters),
            (seen.made_anew, known.made_anew),
            (seen.results, known.results),
            (seen.renumbered, known.renumbered),
        ):
            kept.update(filter(None, (source.found_by(there) for source in found)))
        for tensor in seen.sizes_expected():
            place = tensor.source.found_by(there)
            if place is not None:
                known.expect_sizes(tensor._replace(source=place))
        known.varying_places.update(seen.varying_places)
        self.expect(function, [*filter(None, (source.found_by(there) for source in seen.expected()))])

    def continuation(self, resume: Resume, inner: InnerCall | None) -> _C.CompiledFunction:
        """The call object that goes on in a frame; made once for each shape."""
        frame = resume.frame
        slots = slot_kinds(resume, inner is not None)
        key = (
            id(frame.code_object),
            resume.at,
            slots,
            tuple(resume.locals),
            tuple(resume.cells),
            resume.shared,
            resume.throw,
            id(frame.globals),
            inner,
        )
        made = self._continuations.get(key)
        if made is None:
            part = Part(frame.code, resume.at, slots, resume.locals, resume.cells, inner, resume.shared, resume.throw)
            made = self._continuations[key] = self._stub(part, frame.globals)
        return made

    def go_on(self, part: Part, globals_: dict[str, Any], varying: Sequence[Source] = ()) -> _C.CompiledFunction:
        """The same for a part that was kept."""
        key = (
            *(id(part.code.code), part.index, part.stack, part.locals, part.cells, part.shared, part.throw),
            *(id(globals_), part.inner),
        )
        made = self._continuations.get(key)
        if made is None:
            made = self._continuations[key] = self._stub(part, globals_)
        function: Any = made.function
        self.expect(function, varying)
        return made

    def _stub(self, part: Part, globals_: dict[str, Any]) -> _C.CompiledFunction:
        function = part.function(globals_, _C.tail, _C.call_eager, self._whole)
        self._compile_too(function)
        return self._call_object(function)

    def expected(self, function: types.FunctionType) -> list[Source]:
        """What `expect` was told of a part."""
        return self.memory(function.__code__).seen.expected()

    def body(
        self, code: types.CodeType, globals_: dict[str, Any], whole: Code, varying: Sequence[Source]
    ) -> _C.CompiledFunction:
        """The call object of a loop's body that was kept; made once for each code."""
        key = (id(whole.code), id(globals_), code)
        made = self._continuations.get(key)
        if made is None:
            made = self._continuations[key] = self._body(whole, globals_, code, varying)
        return made

    def _body(
        self, whole: Code, globals_: dict[str, Any], code: types.CodeType, varying: Sequence[Source]
    ) -> _C.CompiledFunction:
        function = self._part(whole, globals_, code)
        self.expect(function, varying)
        self.memory(function.__code__).seen.counters.update(varying)
        return self._call_object(function)

    def _whole(self, part: Part, stub: types.FunctionType) -> Callable[..., Any]:
        """What a stub that is not captured hands over to."""
        with rules.own_builtins:
            code = _C.call_deep(lambda: part.whole)
        _C.mark_ours(code)
        return self._call_object(types.FunctionType(code, stub.__globals__, code.co_name))

    def shell(self, frame: SymFrame, cut: Outline, varying: Sequence[Source], tensors: Sequence[Sized]) -> Shell:
        """The function that runs a loop, around a call object for its body; made once for each shape. `varying`: which
        of the body's parameters are numbers that vary; `tensors`: those of sizes that do."""
        where = id(frame.code_object), cut.loop.header, cut.loop.entry, id(frame.globals)
        key = (*where, cut.named, cut.shared, cut.cells, cut.kept)
        made = self._shells.get(key)
        if made is None:
            body = self._body(frame.code, frame.globals, build_body(cut), varying)
            function: Any = body.function
            self.expect_sizes(function, tensors)
            code = build_shell(cut, body)
            _C.mark_ours(code)
            run = types.FunctionType(code, frame.globals, frame.code_object.co_name)
            run.__dict__["_continues"] = (frame.code, frame.code_object)
            made = self._shells[key] = Shell(run, function.__code__)
        return made

    def part(self, code: types.CodeType) -> Part | None:
        """What the continuation stands for whose code this is; None for other code."""
        made: Any = (getattr(each, "function", None) for each in self._continuations.values())
        return next((part_of(function) for function in made if getattr(function, "__code__", None) is code), None)

    def generator(self, frame: SymFrame) -> Callable[..., Any]:
        """The function that makes a generator of the frame's code, of call objects for its parts."""
        key = (id(frame.code_object), id(frame.globals), "generator")
        made = self._continuations.get(key)
        if made is None:
            cut = segments(frame.code)
            assert cut is not None

            # the frame itself is gone when the parts are made
            whole, globals_ = frame.code, frame.globals
            # torch's own only list what there is: parts that run as they are take less time than guards
            as_it_is = is_trusted(str(globals_.get("__name__")))

            def part(index: int, depth: int, throw: bool, varying: str) -> Callable[..., Any]:
                with rules.own_builtins:
                    code = build_segment(cut, index, depth, throw)
                    if as_it_is:
                        return types.FunctionType(code, globals_, whole.name)
                    function = self._part(whole, globals_, code)
                    function.__dict__["_segment"] = cut, index, depth, throw
                    if varying:
                        item = LocalSource(depth - 1, function.__code__.co_varnames[depth - 1])
                        self.expect(function, [item if varying == "item" else ItemSource(item, 0)])
                    return self._call_object(function)

            made = self._continuations[key] = generator_maker(cut, part)
        return made

    def _part(self, whole: Code, globals_: dict[str, Any], code: types.CodeType) -> types.FunctionType:
        """A function that is part of another, and compiled like it."""
        function = types.FunctionType(code, globals_, whole.name)
        # the original code is kept by the entry, so its id stays its own
        function.__dict__["_continues"] = (whole, whole.code)
        self._compile_too(function)
        return function

    def _compile_too(self, function: types.FunctionType) -> None:
        self.add_root(function.__code__)
        self.touch(function.__code__)

    def _call_object(self, function: types.FunctionType) -> _C.CompiledFunction:
        assert self.capture is not None
        return _C.CompiledFunction(function, self.capture, None, self)
