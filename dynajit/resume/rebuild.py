"""Pushing in generated code the objects that the trace's values stand for.

In: values and sources. Out: instructions in an Emitter. Every object is made or read once, into a variable of its own,
before any effect happens, so that identity and order are eager's. A value says how it is made in its `rebuild`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dynajit import _C
from dynajit.bytecode import Emitter
from dynajit.exc import InternalError
from dynajit.guards.source import CellSource, ConstSource, LocalSource, Source
from dynajit.interp.frame import SymFrame
from dynajit.interp.machine import LocalBox
from dynajit.nested import reached
from dynajit.resume.inside import placed_call
from dynajit.values.containers.keys import has_user_key
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.ordered_dict import OrderedDictVal
from dynajit.values.containers.rebuild_containers import replace_entries
from dynajit.values.containers.sequence import Lazy, ListVal
from dynajit.values.containers.sets import SetVal
from dynajit.values.core.effect import Place, Pushed
from dynajit.values.core.value import NULL, Value
from dynajit.values.objects.generators import GeneratorVal
from dynajit.values.objects.objects import RealVal, payload_of
from dynajit.values.scalars.constant import ConstVal, UnreadConst
from dynajit.values.scalars.symbolic import UnreadFlag
from dynajit.values.scalars.unread import UnreadCall
from dynajit.values.tensors.tensor import TensorVal


def reachable(roots: Sequence[Value]) -> list[Value]:
    """The values that the roots are built from, roots included, each once, in order."""

    def parts(value: Value) -> list[Value]:
        return [*value.children(), *value.fill_children()][::-1] if value.source is None else []

    return [*reached(reversed(roots), parts, id)]


def in_cycles(values: Sequence[Value]) -> set[int]:
    """Ids of the lists and dictionaries among `values` that contain themselves, directly or not."""
    if not _has_cycle(values):
        return set()
    return {
        id(value)
        for value in values
        if isinstance(value, (ListVal, DictVal))
        and value.source is None
        and any(value is part for part in _parts(value))
    }


def holds_itself(value: Value) -> bool:
    """Whether a generator is among its own variables: neither could be made first."""
    return isinstance(value, GeneratorVal) and value.source is None and any(value is part for part in _parts(value))


def _parts(value: Value) -> list[Value]:
    """What the value is built from, itself only if it contains itself."""
    return [*reached(value.children(), lambda part: part.children() if part.source is None else (), id)]


def _has_cycle(values: Sequence[Value]) -> bool:
    done: set[int] = set()
    for root in values:
        path: dict[int, Iterator[Value]] = {}
        if id(root) not in done:
            path[id(root)] = iter(root.children() if root.source is None else ())
        while path:
            last = next(reversed(path))
            part = next(path[last], None)
            if part is None:
                del path[last]
                done.add(last)
            elif id(part) in path:
                return True
            elif id(part) not in done:
                path[id(part)] = iter(part.children() if part.source is None else ())
    return False


def keys_with_hash(value: Value) -> list[Value]:
    """The keys or members of a container whose hash is computed by the user's class."""
    container = payload_of(value)
    if isinstance(container, DictVal):
        return [entry[0] for key, entry in container.entries.items() if has_user_key(key)]
    if isinstance(container, SetVal):
        return [member for key, member in container.entries.items() if has_user_key(key)]
    return []


def _is_known(value: Any) -> bool:
    """Whether it is a constant of the code."""
    if isinstance(value, UnreadFlag):
        return value.is_read
    return isinstance(value, ConstVal) and not isinstance(value, (UnreadConst, UnreadCall))


class Rebuilder:
    """The generated code's view of the trace's values."""

    def __init__(
        self,
        emit: Emitter,
        generator_maker: Callable[[SymFrame], Callable[..., Any]],
        dirty: Mapping[int, Any],
    ) -> None:
        self.emit = emit
        #: the values, by id, whose objects the effects will change
        self.dirty = dirty
        #: and those of them whose effect has been carried out
        self.done: set[int] = set()
        #: from a generator's frame to the function that makes such a generator
        self.generator_maker = generator_maker
        self._variables: dict[int, str] = {}
        self._sources: dict[Source, str] = {}
        self._kept: dict[int, str] = {}
        self._preparing: set[int] = set()
        self._fills: list[tuple[Value, Callable[[Rebuilder], None]]] = []
        self._keep: list[Value] = []
        self.cyclic: set[int] = set()
        self._unfilled: list[Any] = []
        self._depth = 0
        self._fillers: dict[tuple[type, tuple[str, ...]], _C.AttributeFiller] = {}
        self._count = 0
        # variables that hold an object, in the order of making
        self.stored: list[str] = []

    def variable_of(self, value: Value) -> str | None:
        """The variable that `push` reads for a value that was prepared, if there is one."""
        name = self._variables.get(id(value))
        if name is None and value.source is not None:
            name = self._sources.get(value.source)
        return name

    def variable(self, hint: str) -> str:
        """A name that no user variable has."""
        self._count += 1
        return f".{hint}{self._count}"

    # -- reading

    def load(self, source: Source) -> None:
        """Push what a source leads to; read once."""
        if isinstance(source, (LocalSource, CellSource, ConstSource)):
            source.emit(self.emit, self.load)
        else:
            self.ensure_source(source)
            self.emit.load_fast(self._sources[source])

    def ensure_source(self, source: Source) -> None:
        """Read a source now, before any effect."""
        if isinstance(source, (LocalSource, CellSource, ConstSource)) or source in self._sources:
            return
        source.emit(self.emit, self.load)
        name = self._sources[source] = self.variable("source")
        self.stored.append(name)
        self.emit.store_fast(name)

    def bind_source(self, source: Source, name: str) -> None:
        """What the source leads to is in variable `name`."""
        self._sources[source] = name
        self.stored.append(name)

    def read(self, value: Value) -> None:
        """Read a value's object now, if it comes from outside and will be pushed."""
        known = id(value) in self._variables or _is_known(value)
        if value.source is not None and not known:
            self.ensure_source(value.source)
        elif value.source is None:
            value.read_parts(self)

    def keep_result(self, value: Value, fn: Callable[..., Any], *parts: object) -> None:
        """Call a known function before any effect; what it gives is for `load_kept` of the value."""
        self.call_on(fn, *parts)
        name = self._kept[id(value)] = self.variable("kept")
        self.stored.append(name)
        self.emit.store_fast(name)

    def load_kept(self, value: Value) -> None:
        self.emit.load_fast(self._kept[id(value)])

    # -- making

    def bind(self, value: Value, name: str) -> None:
        """The object is in variable `name`."""
        self._variables[id(value)] = name
        self.stored.append(name)
        self._keep.append(value)

    def prepare(self, value: Any) -> None:
        """Make the object, all it is built from and what it is filled with, unless that was done. What fills it comes
        when it is made, and so is all that it is part of: that may be built from it."""
        self._depth += 1
        self._make(value)
        self._depth -= 1
        while self._unfilled and not self._depth:
            self.prepare(self._unfilled.pop(0))

    def _make(self, value: Any) -> None:
        if isinstance(value, LocalBox) or value is NULL or id(value) in self._variables or id(value) in self._preparing:
            return
        if _is_known(value):
            return
        if isinstance(value, RealVal) and value.source is None:
            return
        if value.source is not None:
            self.ensure_source(value.source)
            return
        if id(value) in self.cyclic:
            self._prepare_cyclic(value)
            return
        self._preparing.add(id(value))
        self._keep.append(value)
        for child in value.children():
            self.prepare(child)
        self._fill_keys(value)
        value.rebuild(self)
        name = self.variable("made")
        self.emit.store_fast(name)
        self.bind(value, name)
        self._unfilled.extend(value.fill_children())

    def _prepare_cyclic(self, value: Any) -> None:
        """A list or dictionary that contains itself: made empty, filled when all it holds exists."""
        self.call_on(value.py_type())
        name = self.variable("made")
        self.emit.store_fast(name)
        self.bind(value, name)
        for child in value.children():
            self.prepare(child)
        self.later(value, lambda out: self._fill_cyclic(value))
        if isinstance(value, OrderedDictVal):
            value.fill_later(self)

    def _fill_cyclic(self, value: Any) -> None:
        if isinstance(value, ListVal):
            self.run(list.extend, value, value.items)
        else:
            self.run(replace_entries, value, Pushed(value.push_entries))

    def later(self, value: Value, fill: Callable[[Any], None]) -> None:
        """Run `fill` after all objects exist: contents of objects that may refer to each other."""
        self._fills.append((value, fill))

    def run_fills(self) -> None:
        """Fill the objects made so far."""
        while self._fills:
            value, fill = self._fills.pop(0)
            self._fill_keys(value)
            fill(self)

    def _fill_keys(self, value: Value) -> None:
        """Objects have to be complete before a dictionary or set asks for their hash."""
        keys = keys_with_hash(value)
        if not keys:
            return
        needed = {id(part) for part in reachable(keys)}
        first = [entry for entry in self._fills if id(entry[0]) in needed]
        self._fills = [entry for entry in self._fills if id(entry[0]) not in needed]
        for part, fill in first:
            self._fill_keys(part)
            fill(self)

    def push(self, value: Any) -> None:
        """Push the object of a value, a NULL, or a parameter that nobody looked at."""
        if isinstance(value, LocalBox):
            self.emit.load_fast(value.source.local_name)
        elif value is NULL:
            self.emit.push_null()
        elif isinstance(value, UnreadConst):
            self.load(value.source)
        elif _is_known(value):
            if isinstance(value.source, LocalSource):
                self.load(value.source)
            else:
                self.const(value.value)
        elif id(value) in self._variables:
            self.emit.load_fast(self._variables[id(value)])
        elif value.source is not None:
            self.load(value.source)
        elif isinstance(value, RealVal):
            value.rebuild(self)
        elif id(value) in self._preparing:
            raise InternalError(f"{value.describe()} contains itself")
        else:
            self.prepare(value)
            self.emit.load_fast(self._variables[id(value)])

    def bring_up_to_date(self, value: Any) -> None:
        """Fill a container now, or carry out the effect on it, before what depends on it is made."""
        mine = [entry for entry in self._fills if entry[0] is value]
        self._fills = [entry for entry in self._fills if entry[0] is not value]
        for part, fill in mine:
            self._fill_keys(part)
            fill(self)
        if value.source is not None and id(value) in self.dirty and id(value) not in self.done:
            self.done.add(id(value))
            value.emit_effect(self)

    def push_value(self, value: Any) -> None:
        """Push a value, or an item nobody looked at."""
        if isinstance(value, Value):
            self.push(value)
        else:
            self.load(value.source)

    def graph_output(self, value: TensorVal) -> None:
        raise InternalError(f"{value.describe()} is not an output of the graph")

    # -- what `rebuild` methods use

    def const(self, obj: object) -> None:
        self.emit.load_const(obj)

    def consts(self, *objects: object) -> None:
        for obj in objects:
            self.const(obj)

    def filler(self, cls: type, names: tuple[str, ...]) -> Callable[..., Any]:
        """What gives instances of a class attributes of these names: one for all, as it remembers places."""
        return self._fillers.setdefault((cls, names), _C.AttributeFiller(names))

    def call_placed(
        self, places: Sequence[Place], function: Value, args: Sequence[Value], names: tuple[str, ...]
    ) -> None:
        """Call a function with arguments, the last of them named, from where inlined frames stood."""
        if not places:
            self.emit.begin_call(lambda: self.push(function))
        else:
            self.emit.begin_call(lambda: self.const(placed_call(places, len(args), names)))
            self.push(function)
        for part in args:
            self.push(part)
        self.emit.end_call(len(args) + bool(places), () if places else names)

    def call_const(
        self, fn: Callable[..., Any], push_args: Callable[[], Any], argc: int, names: tuple[str, ...] = ()
    ) -> None:
        """Call a known function with arguments that `push_args` pushes."""
        self.emit.call_function(lambda: self.emit.load_const(fn), push_args, argc, names)

    def call_on(self, fn: Callable[..., Any], *parts: object, names: tuple[str, ...] = ()) -> None:
        """Call a known function with models, what sources lead to, new lists of these, what is `Pushed`, and constants;
        the last of them go by `names`."""

        def push() -> None:
            for part in parts:
                self._push_part(part)

        self.call_const(fn, push, len(parts), names)

    def run(self, fn: Callable[..., Any], *parts: object) -> None:
        """Call a known function for what it does."""
        self.call_on(fn, *parts)
        self.emit.pop_top()

    def set_attr(self, owner: Value | Source, name: str, value: object | None) -> None:
        """`owner.name = value`, or `del owner.name` for None."""
        if value is not None:
            self._push_part(value)
        self._push_part(owner)
        (self.emit.delete_attr if value is None else self.emit.store_attr)(name)

    def _push_part(self, part: Any) -> None:
        if isinstance(part, (Value, Lazy)):
            self.push_value(part)
        elif isinstance(part, Pushed):
            part.push(self)
        elif isinstance(part, Source):
            self.load(part)
        elif type(part) is list:
            self.push_list(part)
        else:
            self.const(part)

    def push_list(self, items: Sequence[Any]) -> None:
        for item in items:
            self.push_value(item)
        self.emit.build_list(len(items))

    def push_tuple(self, items: Sequence[Any]) -> None:
        for item in items:
            self.push_value(item)
        self.emit.build_tuple(len(items))
