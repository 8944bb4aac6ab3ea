"""What a call means: inline a Python function, run a builtin's model, add a torch operation, or break.

In: the called value and its arguments as values. Out: the result's model. Binding follows the language reference,
section "Calls". Models of builtins are in `values/library` and `values/tensors`; which modules
are not traced is in `policy.py`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import inspect
import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dynajit.bytecode import decode, part_of
from dynajit.bytecode.return_action import HINTED, READ
from dynajit.guards.source import ConstSource, RunTimeSource
from dynajit.interp import policy
from dynajit.interp.frame import SymFrame, Yielded
from dynajit.interp.parts import inlined_part
from dynajit.interp.repeated_calls import RepeatedCalls
from dynajit.report import breaks
from dynajit.torch_warnings import WarnsInside
from dynajit.values.containers.deque import DequeVal
from dynajit.values.containers.identity import object_key
from dynajit.values.containers.iterators import ConstIterator, IteratorVal, SequenceIterator, check_length, drain
from dynajit.values.containers.lengths import leave_long
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import Lazy, ListVal, SequenceVal, TupleVal
from dynajit.values.containers.sets import SetVal, set_part
from dynajit.values.core.registry import Model, named_model
from dynajit.values.core.slots import by_rule
from dynajit.values.core.value import Direct, GraphBreak, NotReal, Raised, Tracer, Value
from dynajit.values.effects.loggers import is_replayed, replay
from dynajit.values.effects.replayed import ReplayedVal
from dynajit.values.library import BUILTINS, CONSTRUCTORS, TAIL_CALLS, is_pure, operators
from dynajit.values.library.construct import construct
from dynajit.values.library.dispatching import single_dispatch
from dynajit.values.objects.exceptions import raised_again, with_context
from dynajit.values.objects.functions import CellVal, FunctionVal
from dynajit.values.objects.generators import GeneratorVal
from dynajit.values.objects.modules import LibraryVal, ProxyVal
from dynajit.values.objects.objects import MISSING, ObjVal, bind, lookup_type, payload_of, super_attribute
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.number_calls import call_on_number, changes, varies
from dynajit.values.scalars.symbolic import operate
from dynajit.values.tensors import graph_arrays, numpy_numbers, torch_functions, torch_generators
from dynajit.values.tensors.ops import torch_op
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_subclass import SubTensorVal

# pure functions whose results another process may not share; texts of objects, if they show addresses, or maybe sets
_OF_PROCESS = (hash, importlib.metadata.version, importlib.util.find_spec)
_TEXT_OF = (repr, ascii, str, format)
_SHOWS_PROCESS = re.compile("0x|[{]")
_DESCRIPTORS = (types.WrapperDescriptorType, types.MethodDescriptorType)
# Models inside models: far more than the deepest program needs, far fewer than the stack of C holds.
_MAX_MODELS = 1000


class Calls(Tracer):
    """The part of the interpreter that models call back."""

    run: Callable[[SymFrame], Value | Yielded]
    frames: list[SymFrame]
    direct_call: Direct
    not_resumable_depth = 0
    cached_calls: dict[Any, Value]
    repeated_calls: RepeatedCalls

    @contextlib.contextmanager
    def not_resumable(self) -> Iterator[None]:
        """While a model works with the result of what it calls, or catches what that raises, no frame is direct."""
        self.not_resumable_depth += 1
        assert self.not_resumable_depth < _MAX_MODELS, "a model asks for itself"
        try:
            yield
        finally:
            self.not_resumable_depth -= 1

    # -- calling

    def call(self, fn: Value, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        return fn.call(self, args, kwargs, direct)

    def run_python(
        self,
        fn: Callable[..., object],
        args: Sequence[Value],
        kwargs: dict[str, Value] | None = None,
        direct: Direct = None,
    ) -> Value:
        """Trace one of our own Python functions (a polyfill)."""
        assert isinstance(fn, types.FunctionType)
        return self.inline(FunctionVal.outside(self, fn, ConstSource(fn, fn.__qualname__)), args, kwargs or {}, direct)

    def inline_body(
        self,
        real: types.FunctionType,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        direct: Direct = None,
    ) -> Value:
        """Trace a function's body: what a model asks for that leaves a call as it is."""
        return self._trace(FunctionVal.outside(self, real, ConstSource(real, real.__qualname__)), args, kwargs, direct)

    def inline(self, function: Value, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        """Call a Python function: by its model if there is one, as a graph operation, or by tracing its body."""
        assert isinstance(function, FunctionVal)
        real = function.real_function
        if real is not None:
            known = self._known_otherwise(function, real, args, kwargs, direct)
            if known is not None:
                if function.pin is not None:
                    function.pin()  # what is known is of this very function
                return known()
            reason = policy.skip_reason(real) or policy.never_traced_around(real, args)
            if reason is not None:
                raise GraphBreak(reason[0], reason[1])
            return self.repeated_calls.call(
                function, args, kwargs, functools.partial(self._trace, function, args, kwargs, direct)
            )
        return self._trace(function, args, kwargs, direct)

    def _known_otherwise(
        self,
        function: FunctionVal,
        real: types.FunctionType,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        direct: Direct,
    ) -> Callable[[], Value] | None:
        """What gives the result of a call by other means than tracing the function's own body."""
        handler = BUILTINS.get(real) or named_model(real) or single_dispatch(real)
        if handler is not None:
            self.direct_call = direct
            return functools.partial(call_handler, self, real, handler, args, kwargs)
        if torch_functions.is_operation(real):
            return functools.partial(self.torch_op, "call_function", real, args, kwargs)
        if is_pure(real):
            return functools.partial(self.fold, real, args, kwargs)
        of_numpy = graph_arrays.model_of(real, args, kwargs)
        if of_numpy is not None:
            return functools.partial(of_numpy, self, real, args, kwargs)
        if policy.is_marked_constant(real):
            return functools.partial(self.compute_once, real, args, kwargs)
        original = policy.undisabled(real)
        if original in BUILTINS:
            return functools.partial(self.call_builtin, original, args, kwargs)
        if original is not None:
            return functools.partial(self.inline_body, original, args, kwargs, direct)
        printed = policy.recursive_text(real)
        if printed is not None:
            return functools.partial(self._inline_text, printed, args, kwargs)
        if self._is_computed(policy.module_of(real), args, kwargs):
            return functools.partial(self.compute, real, args, kwargs)
        if is_replayed(real, args):
            return functools.partial(replay, self, function, args, kwargs, real.__name__)
        return None

    def _inline_text(self, printed: types.FunctionType, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        # its set of what is being printed is not kept here: a break inside goes back to the call
        with self.not_resumable():
            inner = FunctionVal.outside(self, printed, ConstSource(printed, printed.__qualname__))
            return self._trace(inner, args, kwargs, None)

    def _trace(self, function: FunctionVal, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct) -> Value:
        part = part_of(function.real_function) if function.real_function is not None else None
        if part is not None:
            return self._run(inlined_part(part, function.globals, args, self._return_action(direct)))
        code = function.code
        flags = code.co_flags
        if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE):
            raise GraphBreak(breaks.GENERATOR, f"the coroutine {function.qualname}")
        if policy.sets_trace_function(code):
            raise GraphBreak(breaks.FRAME_INTROSPECTION, f"{function.qualname}, which sets a trace function")
        locals_ = bind_arguments(self, function, args, kwargs)
        decoded = decode(code)
        cells: dict[str, CellVal] = (
            dict(zip(code.co_freevars, function.get_closure(self), strict=True)) if code.co_freevars else {}
        )
        passed_cells = decoded.passed_cells
        for name in code.co_cellvars:
            inside = locals_.pop(name, None)
            cells[name] = inside if name in passed_cells and isinstance(inside, CellVal) else CellVal(inside)
        frame = SymFrame(decoded, code, function.globals, locals_, cells, self._return_action(direct))
        if flags & inspect.CO_GENERATOR:
            frame.ip = next(instr.index for instr in decoded.instrs if instr.op == "RETURN_GENERATOR") + 1
            return GeneratorVal(frame, *function.names())
        return self._run(frame)

    def _return_action(self, direct: Direct) -> Direct:
        """What the instruction at hand makes of what its callee returns, if that is all it does from then on."""
        if direct is None or self.not_resumable_depth or not self.frames:
            return None
        caller = self.frames[-1].current
        if direct is READ and caller.op.startswith("CALL"):
            return self.resumable_call()  # getattr()
        return direct.at(caller.op, caller.arg)

    def run_source(self, code: types.CodeType, namespace: Any) -> Value:
        """Trace source text's code."""
        frame = SymFrame(decode(code), code, self.frames[-1].globals, {}, {}, None)
        frame.namespace = namespace
        return self._run(frame)

    def _run(self, frame: SymFrame) -> Value:
        result = self.run(frame)
        assert isinstance(result, Value)
        return result

    def call_builtin(self, fn: Any, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        """Call something written in C."""
        handler = BUILTINS.get(fn) if getattr(type(fn), "__hash__", None) is not None else None
        if handler is not None:
            self.direct_call = direct
            return call_handler(self, fn, handler, args, kwargs)
        if type(fn) is types.BuiltinMethodType and isinstance(fn.__self__, type):
            unbound = vars(fn.__self__).get(fn.__name__)
            if unbound in BUILTINS:
                return self.call_builtin(unbound, [self.from_real(fn.__self__), *args], kwargs)
        if torch_functions.is_operation(fn):
            return self.torch_op("call_function", fn, args, kwargs)
        if torch_functions.is_tensor_method(fn) and args and isinstance(args[0], (TensorVal, SubTensorVal)):
            return args[0].call_method(self, fn.__name__, args[1:], kwargs)
        attribute = tensor_attribute(fn)
        if attribute is not None and args and isinstance(args[0], (TensorVal, SubTensorVal)):
            return args[0].getattr(self, attribute)
        of_numpy = graph_arrays.model_of(fn, args, kwargs)
        if of_numpy is not None:
            return of_numpy(self, fn, args, kwargs)
        if isinstance(fn, functools._lru_cache_wrapper):
            if is_replayed(fn, args):
                return replay(self, self.from_real(fn), args, kwargs)
            return self._cached(fn, args, kwargs)
        if self._is_computed(str(getattr(fn, "__module__", None) or ""), args, kwargs):
            return self.compute(fn, args, kwargs)
        if is_pure(fn):
            if isinstance(fn, _DESCRIPTORS) and args and isinstance(payload_of(args[0]), ConstVal):
                args = [payload_of(args[0]), *args[1:]]  # the builtin class's own method, whatever a subclass has
            return self.fold(fn, args, kwargs)
        raise GraphBreak(policy.builtin_kind(fn), policy.name_of(fn))

    def _cached(self, fn: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """A function behind lru_cache is traced; a second call with the same arguments gives the same object."""
        key = (fn, tuple(arg.hash_key(self) for arg in args), tuple((k, v.hash_key(self)) for k, v in kwargs.items()))
        known = self.cached_calls.get(key)
        if any("cache_info" in frame.code_object.co_names for frame in self.frames):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a function behind lru_cache whose hits are counted")
        if known is None:
            dirty, changes = len(self.journal.dirty), self.journal.changes
            journal, graph = self.journal.mark(), self.graph.mark()
            known = self.call(self.from_real(fn.__wrapped__), args, kwargs)
            changed = self.journal.changed[changes:]
            if len(self.journal.dirty) != dirty or any(one is not None and one.source is not None for one in changed):
                raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a function behind lru_cache has effects at its first call")
            if _has_identity(known):
                keeps = f"lru_cache keeps {known.describe()} from call to call"
                if self.graph.mark() == graph:
                    kept = self._kept_by_cache(fn, args, kwargs, known)
                else:
                    alone = self.graph.computes_alone(graph) and not self.overrides.modes and not self.open_levels
                    self.journal.rollback(journal)  # what is used is not what was traced
                    self.graph.rollback(graph)
                    kept = self._kept_by_cache(fn, args, kwargs, None) if alone else None
                if kept is None:
                    raise GraphBreak(breaks.UNSUPPORTED_VALUE, keeps)
                known = kept
            self.journal.set_item(self.cached_calls, key, known)
        return known

    def _kept_by_cache(
        self, fn: Any, args: Sequence[Value], kwargs: dict[str, Value], traced: Value | None
    ) -> Value | None:
        """The very object that a function behind lru_cache gives at each call. It was traced: its run has no effects.

        With sizes that vary among the arguments it is another object for each of them: what was traced will do, if it
        is not a tensor that the graph makes. None where an argument is not known as an object. One from outside, such
        as the module of a method, is known where the trace has changed nothing that the run may read.
        """
        values = [*args, *kwargs.values()]
        if any(value.symbolic for value in values):
            return traced
        if not all(isinstance(value, ObjVal) or value.is_const() or _plain_data([value]) for value in values):
            return None
        unchanged = not self.journal.dirty and not self.graph.has_written()

        def real(value: Value) -> Any:
            source = value.source
            if not unchanged or source is None or not isinstance(value, ObjVal) or value.plain_payload():
                return value.real()
            if isinstance(source.root(), RunTimeSource):
                raise NotReal(value.describe())
            self.guard(source, "ID", value.real_object)
            return value.real_object

        try:
            found = fn(*map(real, args), **{name: real(arg) for name, arg in kwargs.items()})
        except NotReal:
            return None
        return self.wrap(found, ConstSource(found, f"{fn.__qualname__}()"))

    def construct(self, cls: Any, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        handler = CONSTRUCTORS.get(cls.obj)
        if handler is not None:
            self.direct_call = direct
            return call_handler(self, cls.obj, handler, args, kwargs)
        return construct(self, cls, args, kwargs, direct)

    def fold(self, fn: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value] | None = None) -> Value:
        """Run a pure function on known arguments; what it raises, the program raises."""
        named = kwargs or {}
        result = None
        if any(isinstance(arg, numpy_numbers.VaryingScalar) for arg in args):
            result = None if named else numpy_numbers.compute(self, fn, args)
        elif any(map(varies, given := (*args, *named.values()))):
            if not named and not any(map(changes, given)):
                result = operate(self, fn, args)
            result = result or call_on_number(self, fn, args, named)
        if result is not None:
            return result
        found = self._run_for_real(fn, args, named)
        if _depends_on_process(fn, args, found):
            self.assumed.of_process(f"what {policy.name_of(fn)} gave stands in the trace")
        if hasattr(type(found), "__next__"):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{policy.name_of(fn)}, which gives an iterator")
        made = self.from_real(found)
        if isinstance(found, re.Match):
            texts = [value for value in (*args, *(kwargs or {}).values()) if _is_text(value)]
            made.subject = next((text for text in texts[::-1] if text.real() == found.string), None)  # type: ignore[attr-defined]
        return made

    def compute(self, fn: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """As `fold`; the result must be plain data too, for it becomes a constant of the trace."""
        if policy.is_computed_by_user(fn):
            self.assumed.of_process(f"what {policy.name_of(fn)} gave stands in the trace")
        found = self.fold(fn, args, kwargs)
        if not _plain_data([found]):
            raise GraphBreak(breaks.SKIPPED_CALL, f"{policy.name_of(fn)}, which gives {found.describe()}")
        return found

    def compute_once(self, fn: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """Run a function whose result never changes for these arguments; the object itself is what the trace uses."""
        self.assumed.of_process(f"what {policy.name_of(fn)} gave stands in the trace")
        result = self._run_for_real(fn, args, kwargs)
        return self.wrap(result, ConstSource(result, f"{fn.__qualname__}()"))

    def _is_computed(self, module: str, args: Sequence[Value], kwargs: dict[str, Value]) -> bool:
        """Whether a function of the module is run while tracing, with these arguments."""
        if policy.treatment_of(module)[0] != "compute":
            return False
        values = [*args, *kwargs.values()]
        for value in values:
            value.look_into(self)
        return _plain_data([value for value in values if not (module == "re" and _is_text(value))])

    def _run_for_real(self, fn: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> Any:
        for arg in (*args, *kwargs.values()):
            arg.look_into(self)
        try:
            reals = [arg.real() for arg in args]
            named = {name: arg.real() for name, arg in kwargs.items()}
        except NotReal as missing:
            raise GraphBreak(missing.kind, f"{policy.name_of(fn)} on {missing.detail}") from None
        try:
            with numpy_numbers.raising_for_warnings():
                return fn(*reals, **named)
        except FloatingPointError as error:  # a warning of NumPy's is the program's at each of its calls
            raise GraphBreak(breaks.OUTPUT_CALL, f"{policy.name_of(fn)}, of which NumPy warns: {error}") from None
        except Exception as error:  # whatever it is, it is the traced program's exception
            raise raised_again(self, error) from None

    def torch_op(self, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        drawn = torch_generators.draw(self, op, target, args, kwargs) if "generator" in kwargs else None
        if drawn is not None:
            return drawn
        try:
            return torch_op(self, op, target, args, kwargs)
        except WarnsInside:
            inner = FunctionVal.outside(self, target, ConstSource(target, target.__qualname__))
        return self._trace(inner, args, kwargs, None)

    # -- attributes

    def getattr(self, owner: Value, name: str) -> Value:
        """`owner.name`: as a program reads it."""
        try:
            return owner.getattr(self, name)
        except Raised as error:
            with_context(self, error.value, owner, name)
            raise

    def find_attribute(self, value: Value, name: str) -> Value | None:
        """The attribute, or None if reading it raises AttributeError."""
        try:
            with self.not_resumable():
                return value.getattr(self, name)
        except Raised as raised:
            if raised.is_a(AttributeError):
                return None
            raise

    def has_attribute(self, value: Value, name: str) -> bool:
        return self.find_attribute(value, name) is not None

    def class_attribute(self, owner: Value, kind: type, name: str) -> Value:
        if name == "__class__":
            return self.from_real(kind)
        found, where = lookup_type(kind, name)
        if found is MISSING:
            raise self.raised(AttributeError, f"'{kind.__name__}' object has no attribute '{name}'")
        if isinstance(found, types.GetSetDescriptorType):
            # such as the __dict__ of a named tuple's subclass
            raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r} of {owner.describe()}")
        assert where is not None
        return bind(self, owner, kind, name, found, where)

    def super_attribute(self, value: Any, name: str) -> Value:
        return super_attribute(self, value, name)

    def special(self, value: Value, name: str) -> Value:
        """A special method as the interpreter itself looks it up: in the class."""
        if isinstance(value, ObjVal):
            method = value.special(self, name)
            if method is not None:
                return method
        elif isinstance(value, ReplayedVal) and hasattr(value.py_type(), name):
            return value.getattr(self, name)
        elif hasattr(value.py_type(), name):
            return self.class_attribute(value, value.py_type(), name)
        if name in ("__enter__", "__exit__"):
            raise self.raised(
                TypeError, f"'{value.py_type().__name__}' object does not support the context manager protocol"
            )
        raise self.raised(TypeError, f"'{value.py_type().__name__}' object has no {name}")

    # -- iteration and containers

    def unpack(self, value: Value) -> list[Value]:
        """All items of an iterable."""
        if isinstance(value, SequenceVal):
            return value.values(self)
        leave_long(self, value)
        return drain(self, value.iterate(self))

    def unpack_hinted(self, value: Value) -> list[Value]:
        """As `unpack`, for those that ask an object for its length before they read it: `list`, `tuple`, `[*x]`."""
        if not isinstance(value, ObjVal):
            return self.unpack(value)
        iterator = value.iterate(self)
        for name in ("__len__", "__length_hint__"):
            if isinstance(lookup_type(value.cls, name)[0], types.FunctionType):
                try:
                    with self.not_resumable():
                        hint = value.length(self) if name == "__len__" else value.call_special(self, name)
                except Raised as raised:
                    if not raised.is_a(TypeError):
                        raise
                    break
                hint = by_rule(self, hint, HINTED)
                if hint.is_const() and hint.py_type() is int:
                    check_length(hint.const())  # for so many there may be no room
                break
        return self.unpack(iterator)

    def unpack_set(self, value: Value) -> list[Value]:
        entries = getattr(set_part(value), "entries", None)
        if entries is not None and not isinstance(value, DictVal):
            return list(entries.values())
        return self.unpack(value)

    def equal(self, left: Value, right: Value) -> bool:
        return self.holds(left, "==", right)

    def same_object(self, left: Value, right: Value) -> bool:
        return operators.same_object(self, left, right)

    def object_key(self, value: Value) -> object:
        return object_key(self, value)

    def compare(self, left: Value, symbol: str, right: Value) -> Value:
        return operators.compare(self, symbol, left, right)

    def holds(self, left: Value, symbol: str, right: Value) -> bool:
        with self.not_resumable():
            return operators.compare(self, symbol, left, right).truth(self)

    def new_tuple(self, items: Sequence[Value], kind: type = tuple) -> Value:
        return TupleVal(items, kind)

    def new_list(self, items: Sequence[Value]) -> Value:
        return ListVal(items)

    def read_only(self, mapping: Value) -> Value:
        return ProxyVal(mapping)

    def iterator(self, items: Sequence[Value], kind: type) -> Value:
        return SequenceIterator(list(items), kind)

    def const_iterator(self, value: object) -> Value:
        return ConstIterator(value)


def tensor_attribute(fn: Any) -> str | None:
    """The name of the attribute that a function like `torch.Tensor.shape.__get__` reads."""
    if type(fn) is not types.MethodWrapperType or fn.__name__ != "__get__":
        return None
    descriptor = fn.__self__
    found = isinstance(descriptor, types.GetSetDescriptorType) and descriptor.__objclass__ is torch._C.TensorBase
    return str(fn.__self__.__name__) if found else None  # type: ignore[attr-defined]


def _has_identity(value: Value) -> bool:
    """Whether the program could tell a second object of the kind from the first, for it was made while tracing."""
    if isinstance(value, TupleVal):
        return value.source is None and any(_has_identity(item) for item in value.items)
    mutable = (TensorVal, ListVal, DictVal, SetVal, DequeVal, ObjVal, IteratorVal)
    return value.source is None and isinstance(value, mutable)


def _is_text(value: Value) -> bool:
    """Whether it is an instance of a subclass of `str` that C code takes for its text."""
    return isinstance(value, ObjVal) and value.plain_payload() is not None and issubclass(value.cls, str)


def _plain_data(values: Sequence[Value]) -> bool:
    """Whether all values are constants, or containers and immutable objects of the library's made of them."""
    for value in values:
        if isinstance(value, SequenceVal):
            if any(isinstance(item, Lazy) for item in value.items) or not _plain_data(value.items):
                return False
        elif isinstance(value, DictVal):
            parts = [part for entry in value.entries.values() for part in entry]
            if not value.complete or any(isinstance(part, Lazy) for part in parts) or not _plain_data(parts):
                return False
        elif not isinstance(value, (ConstVal, LibraryVal, SetVal)):
            return False
        elif isinstance(value, ConstVal) and isinstance(value.value, re.RegexFlag) and re.DEBUG in value.value:
            return False  # asks for what is made of the pattern to be printed
    return True


def _depends_on_process(fn: Callable[..., Any], args: Sequence[Value], result: Any) -> bool:
    """Whether another process may get something else from a pure function: an address, the order of a set."""
    if any(fn is other for other in _OF_PROCESS):
        return True
    if type(result) not in (bool, int) and any(arg.py_type() in (set, frozenset) for arg in args):
        return True
    return type(result) is str and any(fn is other for other in _TEXT_OF) and _SHOWS_PROCESS.search(result) is not None


def call_handler(tx: Tracer, fn: Any, handler: Model, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """Call the model of a function or class; arguments that don't fit make the real call raise."""
    fitting = policy.arranged(fn, handler, args, kwargs)
    if fitting is None:
        raise GraphBreak(breaks.RAISES, f"TypeError: {policy.name_of(fn)} takes other arguments")
    args, kwargs = fitting
    fewest, most = policy.positions_of(handler)
    if kwargs or not fewest <= len(args) < most:
        try:
            policy.check_fits(handler, [tx, *args], kwargs)
        except TypeError as error:
            raise GraphBreak(breaks.RAISES, f"TypeError: {error}") from None
    try:
        with contextlib.nullcontext() if handler in TAIL_CALLS else tx.not_resumable():
            found = handler(tx, *args, **kwargs)
    except NotReal as missing:
        raise GraphBreak(missing.kind, f"{policy.name_of(fn)} of {missing.detail}") from None
    return found if found is not None else ConstVal(None)


def bind_arguments(
    tx: Tracer, function: FunctionVal, args: Sequence[Value], kwargs: dict[str, Value]
) -> dict[str, Value]:
    """Parameters' values by name; raises TypeError in the traced program when they don't fit."""
    code = function.code
    count, kwonly = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    bound: dict[str, Value] = dict(zip(names[:count], args, strict=False))
    rest = dict(kwargs)
    if len(args) > count and not code.co_flags & inspect.CO_VARARGS:
        raise _mismatch(tx, function, args, kwargs)
    for position in range(code.co_posonlyargcount, count + kwonly):
        name = names[position]
        if name in rest:
            if name in bound:
                raise _mismatch(tx, function, args, kwargs)
            bound[name] = rest.pop(name)
    first_default = count - function.default_count()
    for position in range(len(args), count):
        if names[position] not in bound:
            if position < first_default:
                raise _mismatch(tx, function, args, kwargs)
            bound[names[position]] = function.get_default(tx, position - first_default)
    for name in names[count : count + kwonly]:
        if name not in bound:
            value = function.get_kwdefault(tx, name)
            if value is None:
                raise _mismatch(tx, function, args, kwargs)
            bound[name] = value
    position = count + kwonly
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[position]] = TupleVal(args[count:])
        position += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        named = DictVal()
        for name, value in rest.items():
            named.entries[name] = (ConstVal(name), value)
        bound[names[position]] = named
    elif rest:
        raise _mismatch(tx, function, args, kwargs)
    return bound


def _mismatch(tx: Tracer, function: FunctionVal, args: Sequence[Value], kwargs: dict[str, Value]) -> Raised:
    """Python's own message for arguments that don't fit: a function with these parameters and no body is called."""
    code = function.code
    names = code.co_varnames[: len(decode(code).params)]
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) | _EMPTY.__code__.co_flags
    stub = types.FunctionType(
        _EMPTY.__code__.replace(
            co_argcount=code.co_argcount,
            co_posonlyargcount=code.co_posonlyargcount,
            co_kwonlyargcount=code.co_kwonlyargcount,
            co_nlocals=len(names),
            co_varnames=names,
            co_flags=flags,
            co_name=function.name,
            co_qualname=function.qualname,
        ),
        {},
    )
    stub.__qualname__ = function.qualname
    stub.__defaults__ = (None,) * function.default_count()
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    stub.__kwdefaults__ = {name: None for name in keyword_only if function.get_kwdefault(tx, name) is not None}
    try:
        stub(*(None for _ in args), **dict.fromkeys(kwargs))
    except TypeError as error:
        return tx.raised(TypeError, *error.args)
    raise GraphBreak(breaks.RAISES, f"TypeError: the arguments of {function.qualname} don't fit")


def _EMPTY() -> None:
    pass
