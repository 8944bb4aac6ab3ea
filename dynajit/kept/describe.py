"""What objects are, as JSON: equal for objects of two processes of which one may stand for the other.

In: constants, functions, classes, modules and whatever else guards know by identity. Out: `Describer.of(obj)`, from
which no object is made; `Describer.name(obj)`, by which `Describer.find` finds the object of another process, where it
has the same description. `NotKept` for what has neither. A function is its code; a class is its namespace, its bases
and its metaclass; an instance of a class written in Python is only its class: what is in it is guarded.
"""

from __future__ import annotations

import contextvars
import enum
import functools
import hashlib
import importlib
import os
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from dynajit import constants
from dynajit.backends.kept_plan import NotKept
from dynajit.constants import NotData
from dynajit.guards.source import HEAP_TYPE, IMMUTABLE_TYPE
from dynajit.values.objects.lookup import is_trusted, namespace_of

Data = Any
_DESCRIPTORS = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
_CONTAINERS = (list, dict, set, OrderedDict)
# entries of a class's namespace that say nothing of what its instances do, or are made by the interpreter as it likes
_NOT_OF_CLASS = frozenset({"__doc__", "__dict__", "__weakref__", "__module__", "__annotations__", "_abc_impl"})
# what holds the function that was written, under the names of these attributes
_WRAPPERS = ("__wrapped__", "__func__", "fget", "fset", "fdel", "func")
_MAX_WRAPPED = 8


class Describer:
    """Descriptions of objects, each made once.

    Attributes:
        codes: the code objects whose contents are in some description, by id, those inside of others as well.
        own: the globals of the function at hand, which need not be a module's.
    """

    def __init__(self, modules: Iterable[str] = (), own: dict[str, Any] | None = None) -> None:
        self.own = own
        self.codes: dict[int, types.CodeType] = {}
        self._digests: dict[int, str] = {}
        self._known: dict[int, tuple[Any, Data]] = {}
        self._modules = (*modules, "torch.nn.modules.module", "torch", "sys", "os", "types")
        self._places: dict[int, tuple[str, str]] | None = None

    def of(self, obj: Any) -> Data:
        """What the object is. Raises NotKept."""
        known = self._known.get(id(obj))
        if known is None:
            known = self._known[id(obj)] = obj, self._of(obj)
        return known[1]

    def has(self, obj: Any) -> bool:
        """Whether the object was described."""
        return id(obj) in self._known

    def _of(self, obj: Any) -> Data:
        kind = type(obj)
        if issubclass(kind, enum.Enum):
            return ["enum", self.of(kind), obj.name, self._shallow(obj.value)]
        if issubclass(kind, types.ModuleType):
            name = str(vars(obj).get("__name__"))
            if sys.modules.get(name) is not obj:
                raise NotKept("a module that is not found by its name")
            return ["module", name]
        if issubclass(kind, type):
            return ["class", obj.__module__, obj.__qualname__, self._class(obj)]
        if kind is types.FunctionType:
            return ["function", str(obj.__module__), obj.__qualname__, self._function(obj)]
        if kind is types.CodeType:
            return ["code", obj.co_qualname, self.code(obj)]
        if kind is types.MethodType and isinstance(obj.__self__, (type, types.ModuleType)):
            return ["method", self.of(obj.__func__), self.of(obj.__self__)]
        if kind is functools.partial:
            named = [[name, self.of(value)] for name, value in obj.keywords.items()]
            return ["partial", self.of(obj.func), [self.of(arg) for arg in obj.args], named]
        if kind is re.Pattern:
            return ["pattern", constants.encode(obj.pattern), obj.flags]
        if kind is contextvars.ContextVar:
            return ["context variable", obj.name]
        if kind is types.CellType:
            return ["cell"]
        found = _member_of_c(obj) or self._wrapper(obj)
        if found is None and (kind in _CONTAINERS or is_plain(kind) or kind in (torch.Tensor, torch.nn.Parameter)):
            found = ["instance", self.of(kind)]
        return constants.encode(obj) if found is None else found

    def _wrapper(self, obj: Any) -> Data | None:
        if isinstance(obj, property):
            return ["property", *map(self.of, (obj.fget, obj.fset, obj.fdel))]
        if isinstance(obj, (staticmethod, classmethod)):
            return [type(obj).__name__, self.of(obj.__func__)]
        if isinstance(obj, functools.cached_property):
            return ["cached_property", self.of(obj.func), obj.attrname]
        if isinstance(obj, functools._lru_cache_wrapper):
            return ["lru_cache", self.of(obj.__wrapped__)]
        return None

    # -- functions and classes

    def code(self, code: types.CodeType) -> str:
        """The digest of a code object: all of it, and of those inside."""
        found = self._digests.get(id(code))
        if found is None:
            self.codes[id(code)] = code
            found = self._digests[id(code)] = digest(
                [
                    *(code.co_name, code.co_qualname, _file(code), code.co_firstlineno, code.co_flags),
                    *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_stacksize),
                    *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
                    *(code.co_code, code.co_linetable, code.co_exceptiontable),
                    list(map(self._of_constant, code.co_consts)),
                ]
            )
        return found

    def _of_constant(self, value: Any) -> Data:
        """A constant of code: of generated code also functions that it calls."""
        if isinstance(value, types.CodeType):
            return self.code(value)
        return self.of(value) if isinstance(value, types.FunctionType) else constants.encode(value)

    def _function(self, function: types.FunctionType) -> str:
        """The code, and the marks that say how it is traced. Defaults and cells may be given others while it is the
        same function, so that guards look at them; those of libraries nobody changes."""
        marks = sorted(name for name in function.__dict__ if "dyna" in name)
        return digest([self.code(function.__code__), marks, self._shallow(function.__defaults__)])

    def _shallow(self, value: Any) -> Data:
        try:
            return constants.encode(value)
        except NotData:
            return type(value).__qualname__

    def _class(self, kind: type) -> str:
        rows: list[Data] = [f"{type(kind).__module__}.{type(kind).__qualname__}"]
        for base in kind.__mro__:
            rows.append(f"{base.__module__}.{base.__qualname__}")
            if base is not kind:
                rows.append(self._namespace(base))
        return digest([*rows, self._namespace(kind)])

    def _namespace(self, kind: type) -> str:
        if not kind.__flags__ & HEAP_TYPE:
            return ""  # nobody can change it
        found = self._digests.get(id(kind))
        if found is None:
            trusted = is_trusted(kind.__module__)
            rows = [
                [name, self._member(value, trusted)]
                for name, value in sorted(namespace_of(kind).items())
                if name not in _NOT_OF_CLASS
            ]
            found = self._digests[id(kind)] = digest(rows)
        return found

    def _member(self, value: Any, trusted: bool) -> Data:
        """An entry of a class. Constants of the program's classes are guarded where they are read, and may count; those
        of libraries are not."""
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if type(value) in (bool, str, type(None), float) and trusted:
            return constants.encode(value)
        inner = [getattr(value, name, None) for name in _WRAPPERS] if isinstance(value, _WRAPPING) else ()
        functions = [self._function(each) for each in inner if isinstance(each, types.FunctionType)]
        return [type(value).__qualname__, *functions]

    # -- objects by name

    def name(self, obj: Any) -> Data:
        """How another process finds the object, and what it has to be there. Raises NotKept."""
        if isinstance(obj, types.ModuleType):
            return ["named", obj.__name__, [], self.of(obj)]
        if self.own is not None and obj is self.own:
            return ["globals"]
        if type(obj) is dict and vars(sys.modules.get(str(obj.get("__name__")), sys)) is obj:
            return ["globals", obj["__name__"]]
        if isinstance(obj, types.CodeType):
            return self._name_of_any_code(obj)
        for module_name, parts in self._paths(obj):
            return ["named", module_name, parts, self.of(obj)]
        raise NotKept(f"{_shown(obj)} is not found by a name")

    def _paths(self, obj: Any) -> Iterator[tuple[str, list[str]]]:
        module, qualname = _own_name(obj)
        parts = found_at(module, qualname, lambda found: found is obj) if module else None
        if parts is not None:
            yield module, parts
        place = self._by_place().get(id(obj))
        if place is not None:
            yield place[0], place[1].split(".")
        if type(obj) is dict:
            yield from self._as_globals(obj)

    def _as_globals(self, globals_: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
        """The globals of a method that a library has made for a class, as of a named tuple's `__new__`."""
        for module, key in self._by_place().values():
            kind = vars(sys.modules[module]).get(key)
            if isinstance(kind, type):
                for name, entry in namespace_of(kind).items():
                    inside = ["__func__"] if type(entry) is staticmethod else []
                    if getattr(functools.reduce(getattr, inside, entry), "__globals__", None) is globals_:
                        yield module, [key, name, *inside, "__globals__"]

    def _by_place(self) -> dict[int, tuple[str, str]]:
        """Objects that are globals of the modules at hand."""
        if self._places is None:
            self._places = {}
            for name in self._modules:
                module = sys.modules.get(name)
                for key, value in list(vars(module).items()) if module is not None else ():
                    self._places.setdefault(id(value), (name, key))
            self._places[id(sys.modules["os"].environ._data)] = "os", "environ._data"  # type: ignore[attr-defined]
        return self._places

    def _name_of_any_code(self, code: types.CodeType) -> Data:
        for module in self._modules:
            if found_at(module, code.co_qualname, lambda found: getattr(found, "__code__", None) is code) is not None:
                return self.name_of_code(code, module)
        raise NotKept(f"the code of {code.co_qualname} is not found by a name")

    def name_of_code(self, code: types.CodeType, module: str) -> Data:
        """The same for the code of a function that is found by a name, or for code inside of such. Raises NotKept."""
        qualname, _, _ = code.co_qualname.partition(".<locals>.")
        parts = found_at(module, qualname, lambda found: nested(getattr(found, "__code__", None), code) is not None)
        if parts is None:
            raise NotKept(f"the code of {module}.{code.co_qualname} is not found by a name")
        holder = functools.reduce(step, parts, sys.modules[module])
        path = nested(holder.__code__, code)
        assert path is not None
        return ["named", module, [*parts, "__code__", *path], self.of(code)]

    def find(self, data: Data) -> Any:
        """The object that is there under the name, if it is what it was. Raises NotKept."""
        if data == ["globals"]:
            return self.own
        if data[0] == "globals":
            return vars(module_named(data[1]))
        _, module, parts, wanted = data
        try:
            found = functools.reduce(step, parts, module_named(module))
        except (AttributeError, KeyError, IndexError):
            raise NotKept(f"{module}.{'.'.join(map(str, parts))} is not there") from None
        self.compare(found, wanted, f"{module}.{'.'.join(map(str, parts))}")
        return found

    def compare(self, obj: Any, wanted: Data, where: str) -> None:
        """Raise NotKept unless the object is what is wanted."""
        if repr(self.of(obj)) != repr(wanted):  # 1 is not True
            raise NotKept(f"{where} is another one now")


def _file(code: types.CodeType) -> str:
    """The file that the code is from; that of a notebook's cell or of `exec`, which has another name in each process,
    is none."""
    return code.co_filename if _exists(code.co_filename) else ""


@functools.cache
def _exists(path: str) -> bool:
    return os.path.exists(path)


_WRAPPING = (property, staticmethod, classmethod, functools.cached_property, functools._lru_cache_wrapper)


def digest(rows: Data) -> str:
    """The SHA-256 of lists, tuples and constants, by their printed form."""
    return hashlib.sha256(repr(rows).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_plain(kind: type) -> bool:
    """Whether all that instances of the class hold are attributes: it and its bases are written in Python."""
    return all(
        base is object or (base.__flags__ & HEAP_TYPE and not base.__flags__ & IMMUTABLE_TYPE) for base in kind.__mro__
    )


def module_named(name: str) -> types.ModuleType:
    """The module of that name: loaded already, or part of Python or torch. Raises NotKept."""
    found = sys.modules.get(name)
    if found is None and is_trusted(name):
        try:
            found = importlib.import_module(name)
        except ImportError:
            found = None
    if found is None:
        raise NotKept(f"the module {name} is not loaded")
    return found


def found_at(module: str, qualname: str, fits: Callable[[Any], bool]) -> list[str] | None:
    """The attributes that lead from the module to what fits: the qualified name, and on to what a wrapper holds."""
    parts = qualname.split(".")
    try:
        found = functools.reduce(step, parts, sys.modules[module])
    except (AttributeError, KeyError):
        return None
    for _ in range(_MAX_WRAPPED):
        if fits(found):
            return parts
        inner = next((name for name in _WRAPPERS if isinstance(_peek(found, name), _HOLDERS)), None)
        if inner is None:
            return None
        parts, found = [*parts, inner], _peek(found, inner)
    return None


_SAY_THEIR_NAME = (
    *(type, types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper),
    *(*_DESCRIPTORS, *_OPERATORS),
)


def _own_name(obj: Any) -> tuple[str, str]:
    """The module and the qualified name that an object says that it has; nothing is asked of the program's objects."""
    kind = type(obj)
    if issubclass(kind, enum.Enum):
        return kind.__module__, f"{kind.__qualname__}.{obj.name}"
    if not issubclass(kind, _SAY_THEIR_NAME):
        return "", ""
    owner: Any = None if issubclass(kind, type) else getattr(obj, "__objclass__", getattr(obj, "__self__", None))
    if issubclass(type(owner), type):
        return owner.__module__, f"{owner.__qualname__}.{obj.__name__}"
    if isinstance(owner, types.ModuleType):
        return owner.__name__, obj.__name__
    return str(obj.__module__), getattr(obj, "__qualname__", "") or obj.__name__


_HOLDERS = (types.FunctionType, *_WRAPPING)


def _peek(obj: Any, name: str) -> Any:
    if isinstance(obj, types.FunctionType):
        return obj.__dict__.get(name)
    return getattr(obj, name, None) if isinstance(obj, _WRAPPING) else None


def nested(code: Any, wanted: types.CodeType) -> list[int] | None:
    """The places among constants at which code lies in other code; none if it is that itself, None if it is nowhere."""
    if code is wanted:
        return []
    for place, each in enumerate(code.co_consts if isinstance(code, types.CodeType) else ()):
        further = nested(each, wanted) if isinstance(each, types.CodeType) else None
        if further is not None:
            return [place, *further]
    return None


def step(obj: Any, part: str | int) -> Any:
    """An attribute; of a class what is in its namespace, or a base's, as it is; of code the constant at that place."""
    if isinstance(part, int):
        return obj.co_consts[part]
    if issubclass(type(obj), enum.EnumMeta) and part in obj.__members__:
        return obj.__members__[part]
    if isinstance(obj, type):
        for base in obj.__mro__:
            if part in namespace_of(base):
                return namespace_of(base)[part]
    return obj[part] if type(obj) is dict else getattr(obj, part)


def _member_of_c(obj: Any) -> Data | None:
    if isinstance(obj, (types.BuiltinFunctionType, types.MethodWrapperType)):
        owner = obj.__self__
        if not (isinstance(owner, (type, types.ModuleType)) or owner is None or type(owner).__name__ == "PyCapsule"):
            raise NotKept(f"a method of {_shown(owner)}")
        return ["builtin", str(getattr(owner, "__name__", "")), str(getattr(obj, "__module__", "")), obj.__qualname__]
    if isinstance(obj, _DESCRIPTORS):
        owner = obj.__objclass__
        return ["descriptor", type(obj).__name__, owner.__module__, owner.__qualname__, obj.__name__]
    return ["operator", str(obj)] if isinstance(obj, _OPERATORS) else None


def _shown(obj: Any) -> str:
    name = getattr(obj, "__qualname__", None)
    return f"{type(obj).__name__} {name}" if type(name) is str else f"a {type(obj).__qualname__}"
