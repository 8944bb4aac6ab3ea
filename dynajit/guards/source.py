"""Sources: how to reach an object again that a trace has read.

In: a frame's locals and globals at run time. Out, from one description: code that pushes the object (`emit`), the guard
program's access (`access`), the Python twin of that access (`read`) and words for messages (`name`). Sources are frozen
and interned: equal sources are the same object, so `is` compares them and shared prefixes are found by identity.
To add a kind: a subclass here, and an access in csrc/guards/guard_run.c.
"""

from __future__ import annotations

import builtins
import hashlib
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from dynajit import _C
from dynajit.report.shown import short

if TYPE_CHECKING:
    from dynajit.bytecode.assemble import Emitter

Load = Callable[["Source"], None]

_interned: weakref.WeakValueDictionary[tuple[Hashable, ...], Source] = weakref.WeakValueDictionary()
_intern_lock = threading.Lock()
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that can go away; classes written in C may have it, too
IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_LONGEST_NAME = 500
_CONST_TYPES = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))


class Unreachable(LookupError):
    """The object a source leads to isn't there."""


class Environment(NamedTuple):
    """Where sources without a base read from."""

    locals: Sequence[object]
    globals: dict[str, Any]


def key_identity(key: object) -> Hashable:
    """A key that tells 1, True, 1.0 and -0.0 apart, and compares objects of unknown types by identity."""
    if type(key) is tuple:
        return (tuple, *(key_identity(item) for item in key))
    if type(key) in _CONST_TYPES:
        return (type(key), repr(key) if isinstance(key, (float, complex)) else key)
    return ("object", id(key))


class Source:
    """How to reach one object. `base` is the source it is read from, None for locals, globals and constants."""

    __slots__ = ("__weakref__", "_name", "base")
    base: Source | None
    _name: str
    parts: tuple[str, ...] = ()  # what it is made of besides the base

    def __new__(cls) -> Source:
        raise TypeError("make sources with their subclass")

    @classmethod
    def _make(cls, identity: tuple[Hashable, ...], base: Source | None, name: str, **fields: object) -> Self:
        key: tuple[Hashable, ...] = (cls.__qualname__, None if base is None else id(base), *identity)
        with _intern_lock:
            found = _interned.get(key)
            if found is None:
                found = object.__new__(cls)
                for field, value in (("base", base), ("_name", name), *fields.items()):
                    object.__setattr__(found, field, value)
                _interned[key] = found
        assert isinstance(found, cls)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"sources are frozen; {name} can't be set")

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("sources belong to one process")

    def name(self) -> str:
        """As in messages: L['x'].layers[0].weight."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    def root(self) -> Source:
        """The source at the start of the chain."""
        source = self
        while source.base is not None:
            source = source.base
        return source

    def leads_through(self, places: Collection[Source]) -> bool:
        """Whether it is one of these places, or one of them is on the way there."""
        return self in places or (self.base is not None and self.base.leads_through(places))

    def moved(self, base: Source) -> Source:
        """The same step from another object."""
        make: Any = type(self)
        return make(base, *(getattr(self, part) for part in self.parts))  # type: ignore[no-any-return]

    def found_by(self, there: Mapping[Source, Source]) -> Source | None:
        """The same way from where these sources' objects are found, too; None if it leads through none of them."""
        if self in there:
            return there[self]
        base = None if self.base is None else self.base.found_by(there)
        return None if base is None else self.moved(base)

    def alike(self, inner: bool = False) -> Source:
        """The same for all places that differ in an index, or in a key on the way (`inner`), alone."""
        return self if self.base is None else self.moved(self.base.alike(True))

    def emit(self, e: Emitter, load: Load) -> None:
        """Push the object; `load` pushes the base, so that the caller can keep shared prefixes in variables."""
        raise NotImplementedError

    def _emit_call(self, e: Emitter, load: Load, function: Callable[..., Any], *arguments: object) -> None:
        """Push what the function gives for the base and constant arguments."""
        base = self.base
        assert base is not None

        def push() -> None:
            load(base)
            for argument in arguments:
                e.load_const(argument)

        e.call_function(lambda: e.load_const(function), push, 1 + len(arguments))

    def access(self) -> tuple[str, object] | None:
        """The guard program's instruction and payload; None for locals, which are slots from the start."""
        raise NotImplementedError

    def read(self, base: Any, environment: Environment) -> Any:
        """What the access gives, in Python. Raises Unreachable."""
        raise NotImplementedError


class _LocalSlot(Source):
    """What is handed to a variant: parameters first, then cells."""

    __slots__ = ("index", "local_name")
    index: int
    local_name: str

    def access(self) -> None:
        return None

    def read(self, base: Any, environment: Environment) -> Any:
        return environment.locals[self.index]


class LocalSource(_LocalSlot):
    """The index-th local at frame entry, a parameter."""

    __slots__ = ()

    def __new__(cls, index: int, name: str) -> LocalSource:
        return cls._make((index, name), None, f"L[{name!r}]", index=index, local_name=name)

    def emit(self, e: Emitter, load: Load) -> None:
        e.load_fast(self.local_name)


class CellSource(_LocalSlot):
    """The index-th local, a cell object."""

    __slots__ = ()

    def __new__(cls, index: int, name: str) -> CellSource:
        return cls._make((index, name), None, f"C[{name!r}]", index=index, local_name=name)

    def emit(self, e: Emitter, load: Load) -> None:
        e.load_closure(self.local_name)


class GlobalSource(Source):
    """A global of the frame, or else a builtin."""

    __slots__ = ("global_name",)
    global_name: str

    def __new__(cls, name: str) -> GlobalSource:
        return cls._make((name,), None, f"G[{name!r}]", global_name=name)

    def emit(self, e: Emitter, load: Load) -> None:
        e.load_global(self.global_name)

    def access(self) -> tuple[str, object]:
        return "GLOBAL", self.global_name

    def read(self, base: Any, environment: Environment) -> Any:
        if self.global_name in environment.globals:
            return environment.globals[self.global_name]
        found = environment.globals.get("__builtins__", builtins)
        namespace = found.__dict__ if isinstance(found, types.ModuleType) else found
        if self.global_name not in namespace:
            raise Unreachable(self._name)
        return namespace[self.global_name]


class ConstSource(Source):
    """An object known by identity, kept alive by the source: an inlined function's globals. A class of the program's
    isn't, since its functions may refer to all that the program wants to be rid of."""

    __slots__ = ("_kept", "_weakly")
    _kept: Any
    _weakly: bool

    def __new__(cls, obj: object, text: str) -> ConstSource:
        weakly = issubclass(type(obj), type) and bool(cast(type, obj).__flags__ & HEAP_TYPE)
        kept = weakref.ref(obj) if weakly else obj
        return cls._make((id(kept), text), None, text, _kept=kept, _weakly=weakly)

    @property
    def obj(self) -> Any:
        """The object; None in place of a class that is gone."""
        return self._kept() if self._weakly else self._kept

    def emit(self, e: Emitter, load: Load) -> None:
        e.load_const(self.obj)

    def access(self) -> tuple[str, object]:
        return "CONST_WEAK" if self._weakly else "CONST", self._kept

    def read(self, base: Any, environment: Environment) -> Any:
        if self._weakly and self.obj is None:
            raise Unreachable(self._name)
        return self.obj


class CellContentsSource(Source):
    """What is in a cell."""

    __slots__ = ()

    def __new__(cls, base: Source) -> CellContentsSource:
        name = f"L[{base.local_name!r}]" if isinstance(base, CellSource) else f"{base.name()}.cell_contents"
        return cls._make((), base, name)

    def emit(self, e: Emitter, load: Load) -> None:
        assert self.base is not None
        if isinstance(self.base, CellSource):
            e.load_deref(self.base.local_name)
        else:
            load(self.base)
            e.load_attr("cell_contents")

    def access(self) -> tuple[str, object]:
        return "CELL_CONTENTS", None

    def read(self, base: Any, environment: Environment) -> Any:
        if not isinstance(base, types.CellType):
            raise Unreachable(self._name)
        try:
            return base.cell_contents
        except ValueError:
            raise Unreachable(self._name) from None


class _Attribute(Source):
    __slots__ = ("attr",)
    attr: str
    parts = ("attr",)

    def __new__(cls, base: Source, name: str) -> Self:
        return cls._make((name,), base, f"{base.name()}.{name}", attr=name)

    def emit(self, e: Emitter, load: Load) -> None:
        assert self.base is not None
        load(self.base)
        e.load_attr(self.attr)


class AttrSource(_Attribute):
    """Plain getattr; may run user code, so only for attributes whose reading has no effect."""

    __slots__ = ()

    def access(self) -> tuple[str, object]:
        return "ATTR", self.attr

    def read(self, base: Any, environment: Environment) -> Any:
        try:
            return getattr(base, self.attr)
        except Exception as error:
            # whatever the user's __getattr__ raises, eager code would meet it again when the variant isn't run
            raise Unreachable(self._name) from error


class InstanceAttrSource(_Attribute):
    """An attribute found without user code: instance dict, slot, class constant, method."""

    __slots__ = ()

    def emit(self, e: Emitter, load: Load) -> None:
        if self.attr == "__dict__":
            self._emit_call(e, load, _C.generic_getattr, self.attr)
        else:
            super().emit(e, load)

    def access(self) -> tuple[str, object]:
        return "INSTANCE_ATTR", self.attr

    def read(self, base: Any, environment: Environment) -> Any:
        try:
            return _C.generic_getattr(base, self.attr)
        except AttributeError:
            raise Unreachable(self._name) from None


class TypeSource(Source):
    """type(base)."""

    __slots__ = ()

    def __new__(cls, base: Source) -> TypeSource:
        return cls._make((), base, f"type({base.name()})")

    def emit(self, e: Emitter, load: Load) -> None:
        self._emit_call(e, load, type)

    def access(self) -> tuple[str, object]:
        return "TYPE_OF", None

    def read(self, base: Any, environment: Environment) -> Any:
        return type(base)


_ABSENT: Any = object()


class ItemSource(Source):
    """Item of a dict (by a constant key) or of a list or tuple (by an index).

    `raw` makes the emitted code pass over a subclass's own __getitem__, as the guard always does.
    """

    __slots__ = ("key", "raw")
    key: Any
    raw: bool
    parts = ("key", "raw")

    def __new__(cls, base: Source, key: object, raw: bool = False) -> ItemSource:
        return cls._make((key_identity(key), raw), base, f"{base.name()}[{short(key)}]", key=key, raw=raw)

    def emit(self, e: Emitter, load: Load) -> None:
        if self.raw:
            self._emit_call(e, load, _C.raw_item, self.key)
        else:
            assert self.base is not None
            load(self.base)
            e.load_const(self.key)
            e.binary_subscr()

    def alike(self, inner: bool = False) -> Source:
        assert self.base is not None
        named = not inner and type(self.key) is str  # what names a number tells it from others
        return ItemSource(self.base.alike(True), self.key if named else None, self.raw)

    def access(self) -> tuple[str, object]:
        return "ITEM", self.key

    def read(self, base: Any, environment: Environment) -> Any:
        try:
            if isinstance(base, dict):
                # `__getitem__` asks a subclass for what is missing: a defaultdict would have the item from then on
                found = dict.get(base, self.key, _ABSENT)
                if found is not _ABSENT:
                    return found
            if isinstance(base, list) and type(self.key) is int:
                return list.__getitem__(base, self.key)
            if isinstance(base, tuple) and type(self.key) is int:
                return tuple.__getitem__(base, self.key)
        except LookupError:
            pass
        raise Unreachable(self._name)


class ClosureCellSource(Source):
    """The index-th cell of a function's closure; the cell, not what is in it."""

    __slots__ = ("index",)
    index: int
    parts = ("index",)

    def __new__(cls, base: Source, index: int) -> ClosureCellSource:
        return cls._make((index,), base, f"{base.name()}.__closure__[{index}]", index=index)

    def emit(self, e: Emitter, load: Load) -> None:
        assert self.base is not None
        load(self.base)
        e.load_attr("__closure__")
        e.load_const(self.index)
        e.binary_subscr()

    def access(self) -> tuple[str, object]:
        return "CLOSURE_CELL", self.index

    def read(self, base: Any, environment: Environment) -> Any:
        closure = base.__closure__ if isinstance(base, types.FunctionType) else None
        if closure is None or not 0 <= self.index < len(closure):
            raise Unreachable(self._name)
        return closure[self.index]


class _Found(Source):
    """What a function in C finds for the base and one more argument, without running code of the program's."""

    __slots__ = ("argument",)
    argument: Any
    text = ""  # as in messages, of the base's text and the argument
    leaf = ""  # the guard program's instruction
    function: Callable[..., Any]
    parts = ("argument",)

    def __new__(cls, base: Source, argument: Any) -> Self:
        return cls._make((argument,), base, cls.text.format(base.name(), argument), argument=argument)

    def emit(self, e: Emitter, load: Load) -> None:
        self._emit_call(e, load, type(self).function, self.argument)

    def access(self) -> tuple[str, object]:
        return self.leaf, self.argument

    def read(self, base: Any, environment: Environment) -> Any:
        try:
            return type(self).function(base, self.argument)
        except TypeError:
            raise Unreachable(self._name) from None


class TypeAttrSource(_Found):
    """The entry in a class's MRO, with no descriptor run. The base leads to the class."""

    __slots__ = ()
    text, leaf, function = "{}.__mro__[{!r}]", "TYPE_ATTR", _C.type_lookup

    def read(self, base: Any, environment: Environment) -> Any:
        for kind in base.__mro__ if isinstance(base, type) else ():
            if self.argument in kind.__dict__:
                return kind.__dict__[self.argument]
        raise Unreachable(self._name)


class DictKeySource(_Found):
    """The key of a dict with that number, in iteration order."""

    __slots__ = ()
    text, leaf, function = "list({})[{}]", "DICT_KEY", _C.dict_key

    def read(self, base: Any, environment: Environment) -> Any:
        if not isinstance(base, dict) or not 0 <= self.argument < dict.__len__(base):
            raise Unreachable(self._name)
        keys = OrderedDict.__iter__(base) if isinstance(base, OrderedDict) else dict.__iter__(base)
        return list(keys)[self.argument]


class SizeSource(_Found):
    """One size of a tensor. The base leads to the tensor."""

    __slots__ = ()
    text, leaf, function = "{}.size({})", "TENSOR_SIZE", _C.tensor_size


class StrideSource(_Found):
    """One stride of a tensor. The base leads to the tensor."""

    __slots__ = ()
    text, leaf, function = "{}.stride({})", "TENSOR_STRIDE", _C.tensor_stride


def _in_brief(name: str) -> str:
    """The name, or its start and a digest: numbers that are made of numbers, each used twice, would have names that
    double at each step."""
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{name[:_LONGEST_NAME]}... #{digest}"


class CallSource(Source):
    """What a C function gives for the base: an item of a deque, the object of a weak reference.

    The function must read only and run no user code; `text` says what it gives, with {} for the base, or with a place
    for each of the sources that are the base together. Sources of one base and text are one source, unless `of`, an
    object that the function looks at besides, differs.
    """

    __slots__ = ("function", "of", "text")
    function: Callable[[Any], Any]
    text: str
    of: Hashable
    parts = ("function", "text", "of")

    def __new__(cls, base: Source, function: Callable[[Any], Any], text: str, of: Hashable = None) -> CallSource:
        named = base.members if isinstance(base, TogetherSource) else (base,)
        name = _in_brief(text.format(*(source.name() for source in named)))
        return cls._make((text, of), base, name, function=function, text=text, of=of)

    def emit(self, e: Emitter, load: Load) -> None:
        self._emit_call(e, load, self.function)

    def access(self) -> tuple[str, object]:
        return "CALL", self.function

    def read(self, base: Any, environment: Environment) -> Any:
        try:
            return self.function(base)
        except Exception as error:
            raise Unreachable(self._name) from error


def length_source(of: Source, count_of: Callable[[Any], int]) -> CallSource:
    """The length of a container, by `list.__len__` or the like: a list may stand where a dictionary stood."""
    return CallSource(of, count_of, "len({})", count_of)


class TogetherSource(Source):
    """What several sources lead to, as a tuple: what a function of several numbers is called with."""

    __slots__ = ("members",)
    members: tuple[Source, ...]

    def __new__(cls, members: Sequence[Source]) -> TogetherSource:
        name = _in_brief(f"({', '.join(member.name() for member in members)})")
        return cls._make(tuple(map(id, members)), None, name, members=tuple(members))

    def leads_through(self, places: Collection[Source]) -> bool:
        return any(member.leads_through(places) for member in self.members)

    def emit(self, e: Emitter, load: Load) -> None:
        for member in self.members:
            load(member)
        e.build_tuple(len(self.members))

    def access(self) -> tuple[str, object]:
        return "TOGETHER", self.members

    def read(self, base: Any, environment: Environment) -> Any:
        raise NotImplementedError  # its members are read by who reads it


class RunTimeSource(Source):
    """What a call gives that generated code makes for real, such as one that draws a number. Nothing can be guarded of
    it: guards are checked before."""

    __slots__ = ()

    def __new__(cls, number: int, text: str) -> RunTimeSource:
        return cls._make((number, text), None, f"{text}#{number}")
