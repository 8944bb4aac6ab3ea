"""What a stack slot or variable holds while a frame is traced.

In: nothing but the layers below. Out: `Value`, the base of every model, the exceptions by which tracing leaves a
handler (`Raised`, `GraphBreak`, `Exhausted`), and `Tracer`, the interface of the interpreter that models call back.
To add a model, subclass `Value` in the file named after the type and register it in `wrap.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from dynajit.bytecode.return_action import ReturnAction
from dynajit.report import breaks
from dynajit.report.breaks import BreakKind

if TYPE_CHECKING:
    from dynajit.graph.builder import GraphBuilder
    from dynajit.graph.seen import Seen
    from dynajit.guards.assumed import Assumptions
    from dynajit.guards.source import Source
    from dynajit.values.core.journal import Journal


# what the instruction at hand makes of what a call gives, if that is all it does from then on
Direct: TypeAlias = ReturnAction | None


class GraphBreak(Exception):
    """Tracing can't go on at the current instruction; or, with `at`, from an earlier one on."""

    def __init__(self, kind: BreakKind, detail: str = "", cause: BaseException | None = None, at: Any = None) -> None:
        super().__init__(f"{kind.text}: {detail}" if detail else kind.text)
        self.kind = kind
        self.detail = detail
        self.cause = cause
        self.at = at
        #: what else the code that is cut there relies on, as `Tracer.guard` takes it
        self.relies_on: Sequence[tuple[Any, ...]] = ()


class NotReal(GraphBreak):
    """A model has no Python object that stands for it while tracing; whoever can do without it catches this."""

    def __init__(self, what: str) -> None:
        super().__init__(breaks.UNSUPPORTED_VALUE, what)


class Raised(Exception):
    """The traced program raises; `value` is the exception object's model."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value

    def is_a(self, *kinds: type) -> bool:
        """Whether the exception is an instance of one of these classes."""
        return issubclass(self.value.py_type(), kinds)


class Exhausted(Exception):
    """An iterator's model has no further item (the traced program does not see this as an exception).

    `raised`: the StopIteration of an iterator of the program's, for those who ask it by `next`.
    """

    def __init__(self, value: Value | None = None, raised: Raised | None = None) -> None:
        super().__init__()
        self.value = value
        self.raised = raised


class Tracer(Protocol):
    """What models may ask of the interpreter."""

    compile_id: str
    graph: GraphBuilder
    journal: Journal
    guards: Any  # `GuardSet`, of guards/program.py
    seen: Seen
    numbers_read: set[Source]  # whose values the trace depends on; never goes back
    python_code: dict[Any, Any]  # what Python code shares that the graph calls: `SharedState`, tensors/python_code.py
    tensors: dict[int, Any]
    exceptions: Any  # `HandledExceptions`, of objects/exceptions.py
    open_generators: list[Any]
    frames: list[Any]  # `SymFrame`, outermost first
    globals_written: dict[tuple[int, str], Any]
    # contexts entered that only the graph that entered them can leave: functorch levels, inference mode
    open_levels: int
    coalescing: Any  # `CoalescingBlock`, of tensors/coalescing.py, or None
    overrides: Any  # `Overrides`, of tensors/overrides.py
    entry_state: Any  # `EntryState`, of tensors/torch_state.py
    # whether the constructor of a tensor subclass that wraps tensors is being traced
    making_wrapper: bool
    # what is traced runs for real in the graph's call too: numbers in it are as they are
    static_numbers: bool
    class_writes: dict[tuple[type, str], Value | None]
    made_classes: dict[int, tuple[object, Any]]
    needed: list[Value]
    # the models of the program's objects so far, those of what was rolled back too; parameters of the outermost frame
    models: list[Value]
    boxes: list[Any]
    # the class of an object that runs code where the program let go of it
    dropped: type | None
    # whether numbers that may be addresses were keys, or objects' ids: which are equal is not known
    addresses_are_keys: bool
    ids_are_keys: bool
    # objects from outside of which it matters to tables which one they are, by id, with their hashes
    keyed: dict[int, tuple[Value, int]]
    # by the source of a dictionary whose keys are guarded: the ids of the models of those that are objects
    tables: dict[Source, frozenset[int]]
    # what the context variables hold that the program set, by id; None: what they held before
    context_values: dict[int, Any]
    # calls that generated code makes around the graph's, in order
    calls: list[Any]
    # the filters of `warnings` as the program has made them (None: as they were), and those that are restored by
    # contexts, by id
    warning_filters: list[Any] | None
    saved_filters: dict[int, list[Any]]
    # lists, by id, that deferred calls append to: nobody may read them before
    recorded: dict[int, list[Any]]
    # what is being traced that does not run once, now: a branch, a hook; empty: nothing of the kind
    runs_elsewhere: str
    # what holds without a guard
    assumed: Assumptions

    def opening(self) -> None: ...
    def snapshot(self, frames: int | None = None) -> Any: ...

    # making models
    def wrap(self, obj: object, source: Source | None) -> Value: ...
    def from_real(self, obj: object) -> Value: ...
    def iterator(self, items: Sequence[Value], kind: type) -> Value: ...
    def const_iterator(self, value: object) -> Value: ...
    def new_tuple(self, items: Sequence[Value], kind: type = tuple) -> Value: ...
    def new_list(self, items: Sequence[Value]) -> Value: ...
    def read_only(self, mapping: Value) -> Value: ...

    def node_meta(self, result: object) -> dict[str, Any]: ...
    def remember_tensor(self, value: Any) -> None: ...
    def known_object(self, obj: object, source: Source) -> Value | None: ...
    def remember_object(self, obj: object, value: Value) -> None: ...
    def outside_objects(self) -> Mapping[int, tuple[Any, Value]]: ...

    def caller_module(self) -> str: ...
    def is_compiling(self) -> bool: ...
    def catches(self) -> bool: ...
    def result_unused(self) -> bool: ...
    def may_rebind(self, name: str) -> bool: ...
    def resumable_call(self) -> Direct: ...
    def not_resumable(self) -> AbstractContextManager[None]: ...

    # guards and errors
    def guard(self, source: Source | None, kind: str, *params: object) -> None: ...
    def raised(self, kind: type[BaseException], *args: object, **slots: Value) -> Raised: ...
    def getattr(self, owner: Value, name: str) -> Value: ...

    # running things
    def call(self, fn: Value, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value: ...
    def run_python(
        self,
        fn: Callable[..., object],
        args: Sequence[Value],
        kwargs: dict[str, Value] | None = None,
        direct: Direct = None,
    ) -> Value: ...
    def inline(
        self, function: Value, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None
    ) -> Value: ...
    def call_module(
        self, module: Any, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None
    ) -> Value: ...
    def inline_body(
        self, real: Any, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None
    ) -> Value: ...
    def run_source(self, code: Any, namespace: Any) -> Value: ...
    def fold(
        self, fn: Callable[..., object], args: Sequence[Value], kwargs: dict[str, Value] | None = None
    ) -> Value: ...
    def unpack(self, value: Value) -> list[Value]: ...
    def unpack_hinted(self, value: Value) -> list[Value]: ...
    def unpack_set(self, value: Value) -> list[Value]: ...
    def has_attribute(self, value: Value, name: str) -> bool: ...
    def find_attribute(self, value: Value, name: str) -> Value | None: ...
    def torch_op(self, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value: ...
    def wrap_cell(self, cell: Any, source: Source) -> Any: ...
    def super_attribute(self, value: Any, name: str) -> Value: ...
    def written_global(self, globals_: dict[str, Any], name: str | None) -> tuple[Value | None] | None: ...
    def load_global(self, frame: Any, name: str) -> Value | None: ...
    def store_global(self, globals_: dict[str, Any], name: str, value: Value) -> None: ...
    def construct(self, cls: Any, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value: ...
    def call_builtin(
        self, fn: Any, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None
    ) -> Value: ...
    def resume_generator(self, frame: Any, value: Value) -> Any: ...
    def throw_into_generator(self, frame: Any, error: Value) -> Any: ...
    def guard_distinct(self, left: Value, right: Value) -> None: ...
    def guard_all_distinct(self, values: Sequence[Value]) -> None: ...
    def class_attribute(self, owner: Value, kind: type, name: str) -> Value: ...
    def equal(self, left: Value, right: Value) -> bool: ...
    def same_object(self, left: Value, right: Value) -> bool: ...
    def object_key(self, value: Value) -> object: ...
    def compare(self, left: Value, symbol: str, right: Value) -> Value: ...
    def holds(self, left: Value, symbol: str, right: Value) -> bool: ...


class Value:
    """Base of all models. Each operation defaults to a graph break that names the type."""

    source: Source | None = None
    # the Python type that `type(obj)` gives, where `py_type` does not say it
    kind: Any = None
    # whether `const()` can be had, though only by specialising: a symbolic number, or something that holds one
    symbolic: bool = False
    # whether the program sees how far it is read: an iterator, or an object that may have code for it
    read_by_items: bool = False
    # whether it is a number that is known before the graph's call, and may be another one the next time
    varies: bool = False
    # of what nothing depends on yet: whether it is known to be another one at other calls
    differs: bool = False
    # of tensors: the fake tensor, and the node that computes it
    fake: Any = None
    node: Any = None
    # of instances: the object, if it is from outside, and the builtin part, if the class derives from a builtin one
    real_object: Any = None
    payload: Value | None = None
    # whether `real()` is the very object, which is known by its identity
    has_identity: bool = False
    # the attributes that hold the values `children` gives, or None
    child_names: tuple[str, ...] = ()
    # as NumPy's: of two operands the array of the higher one computes
    array_priority: int = 0

    def py_type(self) -> type:
        """The Python type that `type(obj)` gives."""
        if self.kind is None:
            raise NotImplementedError
        return self.kind  # type: ignore[no-any-return]

    def is_const(self) -> bool:
        """Whether `const()` gives an immutable Python object equal to the value at run time."""
        return False

    def const(self) -> Any:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a constant is needed, not {self.describe()}")

    def describe(self) -> str:
        """Words for messages."""
        return f"an object of type {self.py_type().__qualname__}"

    def unsupported(self, what: str) -> NoReturn:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{what} on {self.describe()}")

    def getattr(self, tx: Tracer, name: str) -> Value:
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r} of {self.describe()}")

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"setting {name!r} of {self.describe()}")

    def delattr(self, tx: Tracer, name: str) -> None:
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"deleting {name!r} of {self.describe()}")

    def generic_getattr(self, tx: Tracer, name: str, fallback: bool = True) -> Value:
        """`object.__getattribute__`, then `__getattr__` if allowed."""
        return self.getattr(tx, name)

    def generic_setattr(self, tx: Tracer, name: str, value: Value | None) -> None:
        """`object.__setattr__`, or `object.__delattr__` if the value is None."""
        if value is None:
            self.unsupported("object.__delattr__")
        self.setattr(tx, name, value)

    def special(self, tx: Tracer, name: str) -> Value | None:
        """The special method of a class of the program's, bound; None if there is none."""
        return None

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        raise GraphBreak(breaks.UNKNOWN_CALL, self.describe())

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        return tx.call(self.getattr(tx, name), args, kwargs)

    def unread(self) -> int:
        """How many items of a real container reading all of it would make the trace rely on."""
        return 0

    def look_into(self, tx: Tracer) -> None:
        """Look at all that it holds, so that `real` knows it."""

    def real(self) -> Any:
        """A Python object equal to the value (fresh for containers, the object itself for classes and functions)."""
        raise NotReal(self.describe())

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        """As an argument of an operation: for its node, and for its run on fake tensors."""
        try:
            real = self.real()
        except NotReal as missing:
            raise GraphBreak(missing.kind, f"{self.describe()} as an argument of a torch operation") from None
        return real, real

    def truth(self, tx: Tracer) -> bool:
        return True

    def length(self, tx: Tracer) -> Value:
        self.unsupported("len()")

    def iterate(self, tx: Tracer) -> Value:
        """A value with `next`."""
        self.unsupported("iteration")

    def iterate_backwards(self, tx: Tracer) -> Value:
        """`reversed(self)`."""
        raise GraphBreak(breaks.RAISES, f"TypeError: {self.describe()} is not reversible")

    def next(self, tx: Tracer) -> Value:
        """The next item; raises Exhausted at the end."""
        raise tx.raised(TypeError, f"'{self.py_type().__name__}' object is not an iterator")

    def getitem(self, tx: Tracer, key: Value) -> Value:
        self.unsupported("indexing")

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        self.unsupported("item assignment")

    def delitem(self, tx: Tracer, key: Value) -> None:
        self.unsupported("item deletion")

    def contains(self, tx: Tracer, item: Value) -> bool:
        self.unsupported("'in'")

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        """`self <symbol> right` by the type's own rule; None: it has none for such an operand."""
        return None

    def rbinary(self, tx: Tracer, symbol: str, left: Value) -> Value | None:
        """`left <symbol> self`, where `left` has no rule for it."""
        return None

    def ibinary(self, tx: Tracer, symbol: str, right: Value) -> bool:
        """`self <symbol>= right`, if the operator changes the object."""
        return False

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        """`self == other` by the type's own rule; None: it has none for such an operand."""
        return None

    def compare(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        """`self <symbol> right` for `<`, `<=`, `>` and `>=`, as `binary`."""
        return None

    def operate(self, tx: Tracer, function: Callable[..., Any], operands: Sequence[Value]) -> Value:
        """An operator on operands of which none has a rule for it; of two, that of the higher `array_priority` is
        asked."""
        return tx.fold(function, operands)

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        """`self is other`, where they are two models; None: they are two objects as far as the type can tell."""
        return None

    def copied(self, tx: Tracer, part: Callable[[Value], Value], remember: Callable[[Value], Value]) -> Value:
        """What `copy` makes of it. `part` gives the copy of what is in it: for a shallow one, that itself. `remember`
        is called with the copy before it is filled, since it may contain itself, and gives the one there is by then."""
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a copy of {self.describe()}")

    def hash_key(self, tx: Tracer) -> object:
        """A hashable Python object that is equal exactly for keys that are equal in the program (`identity.object_key`
        for what is equal to itself alone)."""
        if self.py_type().__hash__ is None:
            raise GraphBreak(breaks.RAISES, f"TypeError: unhashable type: '{self.py_type().__name__}'")
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{self.describe()} as a dictionary key or set item")

    def children(self) -> Sequence[Value]:
        """The values that must exist before this one can be rebuilt in generated code."""
        return [child for name in self.child_names if (child := getattr(self, name)) is not None]

    def read_parts(self, out: Any) -> None:
        """Read in generated code, before any effect, what `rebuild` needs and may look otherwise after one."""

    def rebuildable(self) -> bool:
        """Whether `rebuild` can push the object."""
        return self.source is not None or type(self).rebuild is not Value.rebuild

    def fill_children(self) -> Sequence[Value]:
        """The values that must exist before this one, already made, can be filled."""
        return ()

    def effect_children(self) -> Sequence[Value]:
        """The values that `emit_effect` pushes."""
        return self.children()

    def spread(self, tx: Tracer, before: Any) -> Value | None:
        """The list `[*before, *self]` of a list model, where there is another way than by all items."""
        return None

    def changed_places(self) -> Sequence[Source]:
        """Where the program finds again what `emit_effect` changes."""
        return () if self.source is None else (self.source,)

    def is_as_it_was(self) -> bool:
        """Whether what `emit_effect` changes holds what it did before the call."""
        return False

    def emit_effect(self, out: Any) -> None:
        """Bring the real object up to date in generated code."""
        raise NotImplementedError(self.describe())

    def rebuild(self, out: Any) -> None:
        """Push the object in generated code; `out` is resume.rebuild.Rebuilder. Children go through `out.push`."""
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{self.describe()} can't be rebuilt after a break")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.source.name() if self.source is not None else ''}>"


def parts_to_graph(tx: Tracer, values: Iterable[Value], make: Callable[[Iterator[Any]], Any] = list) -> tuple[Any, Any]:
    """A container of these as an argument of an operation, in both forms."""
    pairs = [value.to_graph(tx) for value in values]
    return make(node for node, _ in pairs), make(fake for _, fake in pairs)


class NullVal(Value):
    """The NULL that CPython keeps on its stack beside callables."""

    kind = type(None)

    def describe(self) -> str:
        return "NULL"


NULL = NullVal()
