"""Sources, guards and assumptions as data, and the same of this process.

In: a trace's guards, and what it took for granted (`guards/assumed.py`). Out: `Writer`, JSON; `Reader`, which reaches
the sources in the call at hand, compares what is there with what was, and makes the guards anew: on the objects of this
process. What a guard knows by identity is whatever its source leads to now, if it has the same description; objects
that were one are one again, and those that were two are two. Values and sizes are left to the guard program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit import _C, constants
from dynajit.backends.kept_plan import NotKept
from dynajit.constants import NotData
from dynajit.guards import source as sources
from dynajit.guards.assumed import ABSENT, Assumptions, attribute_of
from dynajit.guards.guard import Guard, Held
from dynajit.guards.program import GuardSet
from dynajit.guards.source import HEAP_TYPE, Environment, Source, Unreachable
from dynajit.kept.describe import Data, Describer, module_named
from dynajit.report.shown import short
from dynajit.values.containers.set_history import has_members
from dynajit.values.effects.loggers import only_prints, tells, told_by
from dynajit.values.tensors.tensor_class import is_replaced, tensor_facts

_OWN = "dynajit."
_BY_CONSTANTS = frozenset(
    {"EQUALS", "LEN", "DICT_CONTAINS", "DICT_MISSING", "HAS_NO_INSTANCE_ATTR", "HAS_NO_TYPE_ATTR"}
    | {"NO_HOOKS", "CELL_EMPTY"}
)
_OF_KEYS = frozenset({"DICT_KEYS", "SET_EQUALS"})
_BY_IDENTITY = frozenset({"TYPE", "ID", "CODE"})
_OF_SOURCES = frozenset({"SAME_OBJECT", "NOT_ALIASED"})
# kinds of sources -> their fields
_LOCALS = {"LocalSource": ("index", "local_name"), "CellSource": ("index", "local_name")}
_STEPS: tuple[type[Source], ...] = (
    *(sources.CellContentsSource, sources.AttrSource, sources.InstanceAttrSource, sources.TypeSource),
    *(sources.TypeAttrSource, sources.ItemSource, sources.DictKeySource, sources.ClosureCellSource),
    *(sources.SizeSource, sources.StrideSource),
)
FIELDS: dict[str, tuple[str, ...]] = {
    **_LOCALS,
    "GlobalSource": ("global_name",),
    **{kind.__name__: kind.parts for kind in _STEPS},
}


class Writer:
    """What the conditions of one variant have in common: each source and each description stands there once."""

    def __init__(self, describer: Describer) -> None:
        self.describer = describer
        self.rows: list[Data] = []
        self.facts: list[Data] = []
        self._sources: dict[Source, int] = {}
        self._facts: dict[int, int] = {}
        self._groups: dict[int, int] = {}

    def source(self, source: Source) -> int:
        """The source's place among the rows."""
        place = self._sources.get(source)
        if place is None:
            base = None if source.base is None else self.source(source.base)
            row = [type(source).__name__, base, *self._fields(source)]
            place = self._sources[source] = len(self.rows)
            self.rows.append(row)
        return place

    def _fields(self, source: Source) -> list[Data]:
        if isinstance(source, sources.ConstSource):
            return [self.describer.name(source.obj), source.name()]
        if isinstance(source, sources.CallSource):
            return [self.describer.name(source.function), source.name().replace("{", "{{").replace("}", "}}")]
        fields = FIELDS.get(type(source).__name__)
        if fields is None:
            raise NotKept(f"{source.name()} is reached by a {type(source).__name__}")
        return [self.value(getattr(source, field)) for field in fields]

    def value(self, value: Any) -> Data:
        """A constant, an object with a name, or a tuple or list of such."""
        if type(value) in (tuple, list):
            return [type(value).__name__, *map(self.value, value)]
        try:
            return constants.encode(value)
        except NotData:
            return self.describer.name(value)

    def fact(self, obj: Any) -> int:
        """The place of the object's description."""
        place = self._facts.get(id(obj))
        if place is None:
            place = self._facts[id(obj)] = len(self.facts)
            self.facts.append(self.describer.of(obj))
        return place

    def group(self, obj: Any) -> int:
        """A number for the object that guards know by its identity."""
        return self._groups.setdefault(id(obj), len(self._groups))

    def guard(self, guard: Guard) -> Data:
        """The guard: how many sources are read before it is looked at, its kind, where it looks, and with what it
        compares."""
        source = None if guard.source is None else self.source(guard.source)
        try:
            params = self._params(guard.kind, guard.params, guard.source)
        except NotData as why:
            raise NotKept(f"{guard.describe()}: {why}") from None
        return [len(self.rows), guard.kind, source, *params]

    def _params(self, kind: str, params: tuple[Any, ...], where: Source | None) -> list[Data]:
        if kind in _BY_IDENTITY:
            held: Held = params[0]
            if held.is_gone():
                raise NotKept("the object is gone")
            return [self.fact(held.get()), self.group(held.get())]
        if kind in _BY_CONSTANTS:
            return [self.value(param) for param in params]
        if kind in _OF_KEYS:
            return [[self.value(key) for key in params[0]]]
        if kind in _OF_SOURCES:
            return [self.source(source) for source in params]
        if kind == "TENSOR":
            spec: _C.TensorSpec = params[0]
            return [self.fact(spec.type), _tensor(spec), *map(_numbers, (spec.sizes, spec.strides))]
        if kind == "GLOBAL_STATE":
            return [_modes(params[0])]
        if kind == "RELATION":
            tree, names, others, note = params
            return [tree_to_data(tree), list(names), [self.source(other) for other in others], note]
        if kind == "PREDICATE" and type(params[0]) is functools.partial and not params[0].keywords:
            predicate, text = params
            if predicate.func is tells:
                if not isinstance(where, sources.ConstSource) or not all(map(only_prints, told_by(where.obj))):
                    raise NotKept("handlers or filters of the program's are told")
                return ["told", text]
            kind_of_set, members = predicate.args[:2] if predicate.func is has_members else (None, ())
            if not all(type(member) is int for member in members):
                # the order is another one in each process: it was not relied on, or the trace were not kept
                return ["set", kind_of_set is set, sorted(map(self.value, members), key=repr), text]
            return [self.describer.name(predicate.func), [self.value(arg) for arg in predicate.args], text]
        raise NotKept(f"a guard of kind {kind}")

    def assumed(self, assumed: Assumptions, root: Any) -> dict[str, Data]:
        """What holds without a guard. Code that no description has stands there by its name."""
        if assumed.only_here or is_replaced():
            raise NotKept(assumed.only_here or "torch.Tensor has other methods than torch's")
        describer = self.describer
        mutable = [kind for kind in assumed.classes.values() if kind.__flags__ & HEAP_TYPE]
        classes = [describer.name(kind) for kind in mutable if not describer.has(kind)]
        attributes = [[describer.name(kind), sorted(names)] for kind, names in assumed.attributes.values()]
        members = [
            [module, [name], None if found is ABSENT else describer.of(found)]
            for _, module, names in assumed.members.values()
            for name, found in names.items()
        ]
        members += [["sys", ["modules", name], describer.of(module)] for name, module in assumed.imports.items()]
        describer.code(root)
        codes = [
            describer.name_of_code(code, module)
            for code, globals_ in assumed.codes.values()
            if id(code) not in describer.codes and not (module := str(globals_.get("__name__"))).startswith(_OWN)
        ]
        return {"classes": classes, "attributes": attributes, "members": members, "codes": codes}


class Reader:
    """The conditions of a kept variant, in the call at hand. Raises NotKept where one does not hold."""

    def __init__(self, data: dict[str, Data], environment: Environment) -> None:
        self.describer = Describer(own=environment.globals)
        self.data = data
        self.environment = environment
        self.sources: list[Source] = []
        self.objects: list[Any] = []
        self._groups: dict[int, int] = {}
        self._group_of: dict[int, int] = {}
        self._checked: set[tuple[int, int]] = set()
        self._apart: set[int] = set()  # objects that nothing else may lead to

    def read(self) -> GuardSet:
        """The guards on this process's objects. What was assumed holds, and so does what guards know by identity.

        A source is read when the guards before it hold, as far as they are not about values: what an attribute of
        another class does is not for the call to meet.
        """
        rows = self.data["sources"]
        guards = GuardSet()
        for count, *row in self.data["guards"]:
            for source in rows[len(self.sources) : count]:
                self._source(*source)
            guards.add(self._guard(*row))
        for source in rows[len(self.sources) :]:
            self._source(*source)
        if any(id(obj) in self._apart and obj is not None for obj in self.objects):
            raise NotKept("what a logger tells of its records is looked at")
        for row in (*self.data["classes"], *self.data["codes"]):
            self.describer.find(row)
        if is_replaced():
            raise NotKept("torch.Tensor has other methods than torch's")
        for facts in self._assumed().facts(), tensor_facts():
            guards.add(Guard(None, "ASSUMED", facts))
        return guards

    def _assumed(self) -> Assumptions:
        """What is found under the names that were looked up: the same, as far as descriptions say."""
        assumed = Assumptions()
        for row, names in self.data["attributes"]:
            kind: type = self.describer.find(row)
            for name in names:
                assumed.of_attribute(kind, name, attribute_of(kind, name))
        for module, parts, wanted in self.data["members"]:
            namespace, found = vars(module_named(module)), ABSENT
            if wanted is not None:
                found = self.describer.find(["named", module, parts, wanted])
            elif parts[0] in namespace:
                raise NotKept(f"{module}.{parts[0]} is there now")
            if len(parts) == 1:
                assumed.of_member(namespace, module, parts[0], found)
        return assumed

    def sized(self) -> list[tuple[Source, Any]]:
        """The tensors and numbers that guards look at, with their sources."""
        places = [place for _, kind, place, *_ in self.data["guards"] if kind in ("TENSOR", "EQUALS")]
        found = [(self.sources[place], self.objects[place]) for place in places]
        return [(source, obj) for source, obj in found if isinstance(obj, torch.Tensor) or type(obj) in (int, float)]

    def _source(self, kind: str, base: int | None, *fields: Data) -> None:
        parent = None if base is None else self.sources[base]
        values = [self.value(field) for field in fields]
        made: Any = getattr(sources, kind)
        source: Source = made(*values) if parent is None else made(parent, *values)
        try:
            found = source.read(None if base is None else self.objects[base], self.environment)
        except Unreachable:
            raise NotKept(f"{source.name()} is not there") from None
        self.sources.append(source)
        self.objects.append(found)

    def value(self, data: Data) -> Any:
        """The constant, or the object of that name."""
        if isinstance(data, list) and data[0] in ("tuple", "list"):
            return (tuple if data[0] == "tuple" else list)(map(self.value, data[1:]))
        named = isinstance(data, list) and data[0] in ("named", "globals")
        return self.describer.find(data) if named else constants.decode(data)

    def _guard(self, kind: str, place: int | None, *data: Data) -> Guard:
        if place is None:
            state = _C.GlobalState()
            if _modes(state) != data[0]:
                raise NotKept("torch's modes are others")
            return Guard(None, kind, state)
        source, obj = self.sources[place], self.objects[place]
        return Guard(source, kind, *self._params(kind, source, obj, data))

    def _params(self, kind: str, source: Source, obj: Any, data: Sequence[Data]) -> Sequence[Any]:
        if kind in _BY_IDENTITY:
            found = type(obj) if kind == "TYPE" else _code_of(obj) if kind == "CODE" else obj
            self._identical(found, data[0], data[1], source)
            return (found,)
        if kind in _BY_CONSTANTS:
            return [self.value(param) for param in data]
        if kind in _OF_KEYS:
            return [[self.value(key) for key in data[0]]]
        if kind in _OF_SOURCES:
            return [self.sources[place] for place in data]
        if kind == "TENSOR":
            return (self._tensor(obj, source, *data),)
        if kind == "RELATION":
            tree, names, others, note = data
            return tree_of(tree), names, [self.sources[other] for other in others], note
        if kind == "PREDICATE" and data[0] == "told":
            return functools.partial(tells, tuple(map(id, self._told(obj, source)))), data[1]
        if kind == "PREDICATE" and data[0] == "set":
            return self._members(obj, source, data[1], data[2]), data[3]
        if kind == "PREDICATE":
            function: Callable[..., Any] = self.describer.find(data[0])
            return functools.partial(function, *map(self.value, data[1])), data[2]
        raise NotKept(f"a guard of kind {kind}")

    def _identical(self, obj: Any, fact: int, group: int, source: Source) -> None:
        """The object is what it was, one with those that it was one with, and none of the others."""
        if (id(obj), fact) not in self._checked:
            self.describer.compare(obj, self.data["facts"][fact], f"{source.name()} ({short(obj)})")
            self._checked.add((id(obj), fact))
        if self._groups.setdefault(group, id(obj)) != id(obj) or self._group_of.setdefault(id(obj), group) != group:
            raise NotKept(f"{source.name()} is one with other objects than it was")

    def _members(self, obj: Any, source: Source, mutable: bool, wanted: list[Data]) -> Callable[[Any], bool]:
        """The guard on a set that has these members, with the order that they have here."""
        kind: Any = set if mutable else frozenset
        if type(obj) is not kind or len(obj) != len(wanted):
            raise NotKept(f"{source.name()} is no such set")
        members = tuple(obj)
        writer = Writer(self.describer)
        if repr(sorted(map(writer.value, members), key=repr)) != repr(wanted):
            raise NotKept(f"{source.name()} has other members")
        return functools.partial(has_members, kind, members, obj.__sizeof__())

    def _told(self, obj: Any, source: Source) -> list[Any]:
        """Those that are told of a logger's records; here, too, they have nothing to do with what was traced."""
        told = told_by(obj)
        if not all(map(only_prints, told)):
            raise NotKept(f"{source.name()} has handlers or filters of the program's")
        self._apart.update(map(id, [*told, *(each.formatter for each in told), *map(_stream, told)]))
        return told

    def _tensor(
        self, obj: Any, source: Source, fact: int, rest: Data, sizes: list[int | None], strides: list[int | None] | None
    ) -> _C.TensorSpec:
        if not issubclass(type(obj), torch.Tensor):
            raise NotKept(f"{source.name()} is no tensor")
        self.describer.compare(type(obj), self.data["facts"][fact], source.name())
        if len(sizes) != obj.dim():
            raise NotKept(f"{source.name()} has another number of dimensions")
        spec = _C.TensorSpec(obj, sizes, strides)
        found = [_tensor(spec), *map(_numbers, (spec.sizes, spec.strides))]
        if found != [rest, sizes, strides] or not spec.check(obj):
            raise NotKept(f"{source.name()} is a tensor of another kind")
        return spec


def _stream(handler: Any) -> Any:
    return getattr(handler, "stream", None)


def _code_of(obj: Any) -> Any:
    found = getattr(obj, "__code__", None)
    if found is None:
        raise NotKept(f"{short(obj)} has no code")
    return found


def _modes(state: _C.GlobalState) -> list[Data]:
    """torch's modes: numbers that mean the same in each process of one torch."""
    if state.modes:
        raise NotKept("a mode object of torch's is on")
    return [[name, value] for name, value in state.values.items()]


def _tensor(spec: _C.TensorSpec) -> list[Data]:
    return [constants.encode(spec.dtype), constants.encode(spec.device), spec.requires_grad, spec.dual, spec.key_set]


def _numbers(numbers: Sequence[int | None] | None) -> list[int | None] | None:
    return None if numbers is None else list(numbers)


def tree_to_data(tree: Any) -> Data:
    """A tree of `dynajit/symbols.py`: tuples of texts and numbers."""
    return [tree_to_data(part) for part in tree] if isinstance(tree, tuple) else ["leaf", constants.encode(tree)]


def tree_of(data: Data) -> Any:
    return constants.decode(data[1]) if data[0] == "leaf" else tuple(map(tree_of, data))
