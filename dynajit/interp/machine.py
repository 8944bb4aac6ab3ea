"""The machine: steps symbolic frames, keeps the logs, takes checkpoints.

In: the outermost frame with its locals' real values. Out: `Outcome`, the returned value or the break, with the chain
of frames as they were before the breaking instruction; graph, guards and journal hold the rest. What a call means is
in `calls.py`, what an opcode means in `opcodes_*.py`.
"""

from __future__ import annotations

import builtins
import itertools
import linecache
import types
from collections.abc import Mapping, Sequence
from typing import Any

from dynajit import torch_compat
from dynajit.bytecode import KEEPS, live_before
from dynajit.graph.builder import GraphBuilder
from dynajit.graph.meta import notes
from dynajit.graph.seen import Seen
from dynajit.guards.assumed import ABSENT, Assumptions
from dynajit.guards.guard import Guard
from dynajit.guards.program import GuardSet
from dynajit.guards.source import (
    CellContentsSource,
    CellSource,
    ConstSource,
    GlobalSource,
    ItemSource,
    LocalSource,
    RunTimeSource,
    Source,
)
from dynajit.interp import fuel, opcodes_control, opcodes_data, opcodes_stack
from dynajit.interp.calls import Calls
from dynajit.interp.catching import catches, nobody_catches
from dynajit.interp.decisions import Decisions
from dynajit.interp.dispatch import SIMPLE
from dynajit.interp.distinct import compared_objects, distinct_objects, may_be_one
from dynajit.interp.dropped_generators import LETTING_GO, close_dropped
from dynajit.interp.frame import Checkpoint, Given, Snapshot, SymFrame, Yielded
from dynajit.interp.policy import REFUSING_MODULES
from dynajit.interp.repeated_calls import RepeatedCalls
from dynajit.interp.summaries import Summaries
from dynajit.report import breaks
from dynajit.report.records import FrameLoc
from dynajit.values.containers.identity import MAX_COMPARED
from dynajit.values.core.finalizers import dies_with, dropped
from dynajit.values.core.journal import Journal
from dynajit.values.core.value import Direct, GraphBreak, Raised, Value
from dynajit.values.library.references import WeakRefVal
from dynajit.values.library.wrap import from_real, wrap
from dynajit.values.objects.exceptions import ExceptionVal, HandledExceptions, raised
from dynajit.values.objects.functions import CellVal
from dynajit.values.objects.lifetime_cells import LifetimeCell
from dynajit.values.objects.modules import trusted_value
from dynajit.values.objects.objects import ObjVal, is_trusted
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors import overrides
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_class import tensor_facts
from dynajit.values.tensors.torch_state import EntryState, autocast_nesting

OPCODE_MODULES = (opcodes_stack, opcodes_data, opcodes_control)
MAX_DEPTH = 120
DELETED: Any = object()
# Instructions traced without a graph operation or a new tensor before the trace is given up: at the start, where it may
# never meet a tensor, and later, where optimizers go through thousands of parameters between two operations.
IDLE_START = 20_000
IDLE_LATER = 500_000
# Guards of one variant: more would make each call slower than what they save.
MAX_GUARDS = 200_000


class Interpreter(Calls):
    """Interprets one outermost frame and all that is inlined into it."""

    making_wrapper = False
    #: whether a call was not traced, since it looks at the same as an earlier one
    calls_repeated = False
    #: collectives that are put off
    coalescing: Any = None

    def __init__(self, compile_id: str, seen: Seen | None = None, idle_budget: int = IDLE_START) -> None:
        self.compile_id = compile_id
        self.seen = Seen(False) if seen is None else seen
        self.graph = GraphBuilder(self._location)
        self.graph.shapes.varying, self.graph.shapes.settled = self.seen.varying, self.seen.settled
        self.decisions = Decisions(self)
        self.journal = Journal()
        self.guards = GuardSet()
        self.assumed = Assumptions()
        self.frames: list[SymFrame] = []
        self.tensors: dict[int, Any] = {}
        self.exceptions = HandledExceptions(self.journal)
        self.direct_call: Direct = None
        self.open_generators: list[Any] = []
        self.cached_calls: dict[Any, Value] = {}
        self.open_levels = 0
        #: what the program is told that asks whether it is being compiled, and whether it asked
        self.compiling_answer = self.asked_compiling = False
        self.static_numbers = False
        #: calls that generated code makes around the graph's
        self.calls: list[Any] = []
        self.warning_filters: list[Any] | None = None
        self.saved_filters: dict[int, list[Any]] = {}
        self.recorded: dict[int, list[Any]] = {}
        self.runs_elsewhere = ""
        #: before the outermost context was entered that only the graph can leave
        self.opened_at: Snapshot | None = None
        self.addresses_are_keys = self.ids_are_keys = False
        self.keyed: dict[int, tuple[Value, int]] = {}
        #: pairs and groups of objects from outside that have to be distinct; and which objects are keys of one dict
        self.distinct_pairs: dict[tuple[int, int], tuple[Value, Value, FrameLoc | None]] = {}
        self.distinct_groups: dict[int, list[Value]] = {}
        self.tables: dict[Source, frozenset[int]] = {}
        self.context_values: dict[int, Any] = {}
        self.class_writes: dict[tuple[type, str], Value | None] = {}
        self.broken_frames: list[SymFrame] | None = None
        self.globals_written: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self._objects: dict[int, tuple[Any, Value]] = {}
        self._keep: list[Any] = []
        self.boxes: list[LocalBox] = []
        self.models: list[Value] = []  # of the program's objects, those of what was rolled back too
        self._stacks: dict[tuple[Any, ...], str] = {}
        #: the class of an object that the outermost frame let go of, and that runs code when it dies
        self.dropped: type | None = None
        #: classes made while tracing, and their methods, by id, with the state before; nothing of them leaves the trace
        self.made_classes: dict[int, tuple[object, Snapshot]] = {}
        self._handlers = fuel.handlers()
        self.summaries = Summaries(self)
        self.repeated_calls = RepeatedCalls(self)
        self.numbers_read: set[Source] = set()
        #: what the code run at the break has to find made, though nothing refers to it
        self.needed: list[Value] = []
        #: what the Python code reads and writes that runs with the graph, by what the graph calls; never goes back
        self.python_code: dict[Any, Any] = {}
        self._steps = self._work_seen = 0
        self._idle_end = idle_budget
        self.entry_state = EntryState()
        self.guard(None, "GLOBAL_STATE")
        self.overrides = overrides.Overrides(self)

    # ------------------------------------------------------------------------------------------------- stepping

    def run(self, frame: SymFrame) -> Value | Yielded:
        """Step the frame until it returns or yields.

        Raises:
            Raised: the frame raises an exception that it does not handle.
            GraphBreak: the frame, or one inlined into it, can't go on; `broken_frames` holds the chain.
        """
        if len(self.frames) >= MAX_DEPTH:
            raise GraphBreak(breaks.RECURSION, f"{len(self.frames)} frames")
        self.frames.append(frame)
        self.assumed.of_code(frame.code_object, frame.globals)
        try:
            if frame.opening is not None:
                frame.opening(self)
                frame.opening = None
            return self._loop(frame)
        except GraphBreak:
            if self.broken_frames is None:
                self.broken_frames = list(self.frames)
            raise
        finally:
            self.frames.pop()

    def _loop(self, frame: SymFrame) -> Value | Yielded:
        instrs, loop_starts, handlers = frame.instrs, frame.loop_starts, self._handlers
        while True:
            instr = instrs[frame.ip]
            if frame.ip in loop_starts and (
                frame.current.index not in loop_starts[frame.ip] or frame.ip not in frame.entered
            ):
                self._enter_loop(frame, instr)
            frame.current = instr
            frame.ip = instr.index + 1
            if instr.op not in SIMPLE:
                self._steps += 1
                frame.checkpoint = self._checkpoint(frame, instr)
                if self._steps + self.journal.work > self._idle_end:
                    self._check_idle()
                if self.dropped is not None and instr.op not in _BLIND:
                    raise dropped(self.dropped)
            try:
                result = handlers[instr.op](self, frame, instr)
            except Raised as error:
                self._remember_raise(frame, error.value)
                if instr.handler is None and nobody_catches(self.frames):
                    raise GraphBreak(breaks.RAISES, error.value.describe()) from None
                self.enter_handler(frame, instr, error)
                continue
            if result is not None:
                if self.open_generators and len(self.frames) == 1:
                    close_dropped(self, (), result)
                return result  # type: ignore[no-any-return]
            if self.open_generators and instr.op in LETTING_GO:
                close_dropped(self, self.frames)

    def _checkpoint(self, frame: SymFrame, instr: Any) -> Checkpoint:
        return Checkpoint(instr, frame.stack.copy(), self.journal.mark(), self.graph.mark(), len(self.guards))

    def _enter_loop(self, frame: SymFrame, instr: Any) -> None:
        """A break inside goes back to here."""
        checkpoint = self._checkpoint(frame, instr)
        previous, frame.current = frame.current, instr
        frame.entered[instr.index] = Snapshot([frame.state()], checkpoint)
        frame.current = previous

    def _check_idle(self) -> None:
        """End a trace that does nothing but Python's work: tracing that is slower than running it."""
        work = self.graph.op_count + len(self.tensors)
        if work == self._work_seen:
            raise GraphBreak(breaks.TOO_LONG, f"{self._steps} instructions")
        self._work_seen = work
        self._idle_end = self._steps + self.journal.work + IDLE_LATER

    def _remember_raise(self, frame: SymFrame, error: Value) -> None:
        """Where a break goes back to that needs the exception with its traceback. A real one has it so far; every frame
        that it leaves from here on would be in it."""
        if not (isinstance(error, ObjVal) and issubclass(error.cls, BaseException)):
            return
        grows = isinstance(error, ExceptionVal) or (frame.current.handler is None and len(self.frames) > 1)
        if grows and error.raised_at is None and frame.checkpoint is not None:
            states = [outer.state() for outer in self.frames]
            self.journal.set_attr(error, "raised_at", Snapshot(states, frame.checkpoint))

    def enter_handler(self, frame: SymFrame, instr: Any, error: Raised) -> None:
        """Go to the instruction's exception handler, or let the exception out of the frame."""
        if instr.handler is None:
            try:
                raise error
            finally:
                del error  # its traceback keeps this frame
        made = error.value if isinstance(error.value, ExceptionVal) else None
        if made is not None and isinstance(made.context, ConstVal):
            handled = self.exceptions.topmost()
            if handled is not made:
                self.journal.set_attr(made, "context", self.exceptions.inherited if handled is None else handled)
        del frame.stack[instr.handler_depth :]
        if instr.handler_lasti:
            frame.stack.append(ConstVal(0))  # only tracebacks ask for it, of code that is another when it runs
        frame.stack.append(error.value)
        frame.ip = instr.handler

    def resume_generator(self, frame: SymFrame, value: Value) -> tuple[bool, Value]:
        """Go on in a suspended generator; (ended, value)."""
        frame.stack.append(value)
        return self._run_generator(frame)

    def throw_into_generator(self, frame: SymFrame, error: Value) -> tuple[bool, Value]:
        try:
            yielded = opcodes_control.throw_into_delegate(self, frame, error)
            if yielded is not None:
                return False, yielded
        except Raised as raised_there:
            frame.stack.append(ConstVal(None))
            self.enter_handler(frame, frame.current, raised_there)
        return self._run_generator(frame)

    def _run_generator(self, frame: SymFrame) -> tuple[bool, Value]:
        result = self.run(frame)
        if isinstance(result, Yielded):
            return False, result.value
        return True, result

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Be back before the checkpoint's instruction."""
        self.rollback_to(checkpoint.journal, checkpoint.graph, checkpoint.guards)

    def rollback_to(self, journal: int, graph: tuple[int, int, int, bool], guards: int) -> None:
        """Take back what was added since the logs had these lengths."""
        self.journal.rollback(journal)
        self.graph.rollback(graph)
        self.guards.truncate(guards)
        self.summaries.forget_after(guards)
        self.repeated_calls.forget_after(journal)

    def call_module(self, module: Any, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        """Call a module from outside: as an equal one was called before, or by tracing."""
        return self.summaries.call(module, args, kwargs, direct)

    def can_stop_here(self) -> bool:
        """Whether generated code can bring torch into the present state: a context that is open has to be closed by the
        graph that opened it."""
        return (
            self.open_levels == 0
            and (self.overrides.off, self.overrides.modes) == self.overrides.entered
            and autocast_nesting() == self.entry_state.nesting
        )

    def opening(self) -> None:
        """A context is about to be entered that generated code can't stand inside of: remember where."""
        if self.can_stop_here():
            self.journal.set_attr(self, "opened_at", self.snapshot())

    def snapshot(self, frames: int | None = None) -> Snapshot:
        """The state before the instruction at hand; or before the call that the first `frames` frames are at."""
        chain = self.frames[:frames]
        checkpoint = chain[-1].checkpoint
        assert checkpoint is not None
        return Snapshot([frame.state() for frame in chain], checkpoint)

    def finish(self) -> None:
        """Leave torch as it was before the capture."""
        if self.open_levels:
            self.journal.rollback(0)
        self.entry_state.restore()

    def user_stack(self) -> list[FrameLoc]:
        """Where the traced program stands, outermost first."""
        return [frame.location() for frame in self.frames]

    def forget(self) -> None:
        """Let go of the program's objects: what was made of them refers to itself, and would wait for the collector."""
        for value in self.models:
            value.__dict__.clear()
        for box in self.boxes:
            box.__dict__.clear()
        for frame in self.broken_frames or ():
            frame.__dict__.clear()
        self.journal.forget()
        self.graph.mode.forget_tensors()
        self.__dict__.clear()

    # --------------------------------------------------------------------------------------------------- guards

    def guard(self, source: Source | None, kind: str, *params: object) -> None:
        """Record what the trace relies on."""
        if source is None and kind != "GLOBAL_STATE":
            return
        if self.made_classes and source is not None and self._is_made(source):
            return
        if source is not None and isinstance(source.root(), RunTimeSource):
            return  # made anew at each call, in the same way
        location = self._location()
        if location is not None and len(self.guards) > MAX_GUARDS:
            raise GraphBreak(breaks.TOO_LONG, f"{len(self.guards)} guards")
        self.guards.add(Guard(source, kind, *params, user_loc=location))

    def _is_made(self, source: Source) -> bool:
        """Whether it belongs to a class made while tracing, which nobody else can change."""
        root = source.root()
        return isinstance(root, ConstSource) and id(root.obj) in self.made_classes

    def _location(self) -> FrameLoc | None:
        return self.frames[-1].location() if self.frames else None

    def guard_shapes(self) -> None:
        """Guard the relations among sizes and numbers that were relied on; called once, when nothing is traced or
        compiled any more. Raises ConstraintViolation if a mark of the user's doesn't hold."""
        self.graph.shapes.check_marks()
        for tree, sources, location, note in self.graph.shapes.relations():
            first, *others = sources.values()
            self.guards.add(Guard(first, "RELATION", tree, tuple(sources), tuple(others), note, user_loc=location))

    def guard_aliases(self) -> None:
        """Guard which objects are distinct: those that the program compared from each other, and those that it changed
        from all others; called once, at the end."""
        groups = [*self.distinct_groups.values()]
        if any(hashed for _, hashed in self.keyed.values()):  # any two may have been compared, unnoticed
            groups.append([value for value, _ in self.keyed.values()])
        for guard in compared_objects(self.distinct_pairs.values(), groups, self.tables.values()):
            self.guards.add(guard)
        for guard in distinct_objects(self._objects.values(), self.journal.dirty.values(), self.graph.inputs):
            self.guards.add(guard)

    def guard_writes(self) -> None:
        """Guard that autograd takes the writes into what has a history as it took them while tracing; called once.

        It need not take what was written without a history, through `detach` or where gradients are off.
        """
        takes = torch_compat.takes_writes
        for entry in self.graph.inputs:
            written = entry.requires_grad and notes(entry.node).grad_fn is not None and entry.mutated
            if written and takes(entry.real):
                self.guards.add(Guard(entry.source, "PREDICATE", takes, "takes writes with a history"))

    def guard_less(self) -> None:
        """Where no graph is called: of tensors that the trace only handed on it relies on nothing but their class, so
        that a call with others, of other sizes say, is the same call."""
        tensors = [] if self.calls_repeated else [one for one in self.tensors.values() if isinstance(one, TensorVal)]
        handed_on = {one.source for one in tensors if not one.looked_at}
        handed_on.difference_update([one.source for one in tensors if one.looked_at])
        for guard in self.guards if handed_on else ():
            own, *others = guard.sources() or (None,)
            for source in (own.base if own is not None and guard.kind == "TENSOR" else own, *others):
                while source is not None:  # what else is asked of it may need to know what it is like
                    handed_on.discard(source)
                    source = source.base
        self.guards = self.guards.loosened(handed_on)

    def guard_distinct(self, left: Value, right: Value) -> None:
        """The trace relied on it that these are two objects."""
        if isinstance(left, WeakRefVal) and isinstance(right, WeakRefVal):
            left, right = left.target, right.target
        key = (id(left), id(right)) if id(left) < id(right) else (id(right), id(left))
        if key not in self.distinct_pairs and may_be_one(left, right):
            self.journal.set_item(self.distinct_pairs, key, (left, right, self._location()))

    def guard_all_distinct(self, values: Sequence[Value]) -> None:
        """The trace relied on it that no two of these are one object."""
        if len(values) > MAX_COMPARED:
            self.journal.set_item(self.distinct_groups, len(self.distinct_groups), list(values))
            return
        for left, right in itertools.combinations(values, 2):
            self.guard_distinct(left, right)

    # --------------------------------------------------------------------------------------------------- models

    def wrap(self, obj: Any, source: Source | None) -> Value:
        assert source is not None
        return wrap(self, obj, source)

    def from_real(self, obj: Any) -> Value:
        return from_real(self, obj)

    def known_object(self, obj: Any, source: Source) -> Value | None:
        """The model of this very object, if it was reached before; the two ways must then lead to one object again."""
        entry = self._objects.get(id(obj))
        if entry is None:
            return None
        known = entry[1]
        if self.made_classes and self._is_made(source):
            return known
        if known.source is not None and known.source != source and not isinstance(source, ConstSource):
            if isinstance(known.source, ConstSource):
                self.guard(source, "ID", obj)
            else:
                self.guard(known.source, "SAME_OBJECT", source)
        return known

    def remember_object(self, obj: Any, value: Value) -> None:
        self._keep.append(obj)
        self.models.append(value)
        self.journal.set_item(self._objects, id(obj), (obj, value))

    def outside_objects(self) -> Mapping[int, tuple[Any, Value]]:
        """The program's objects that the trace has read, with their models, by id."""
        return self._objects

    def remember_tensor(self, value: Any) -> None:
        fake = value.fake_for_keys if isinstance(value, TensorVal) else value.fake
        self._keep.append(fake)
        self.journal.set_item(self.tensors, id(fake), value)

    def wrap_cell(self, cell: Any, source: Source) -> CellVal:
        if isinstance(source, CellSource) and source.local_name.startswith(KEEPS):
            keeper = LifetimeCell(None, source, CellContentsSource(source), cell)
            self.models.append(keeper)
            return keeper
        from_outside = self.known_object(cell, source)
        if isinstance(from_outside, CellVal):
            return from_outside
        made = CellVal(None, source, CellContentsSource(source), cell)
        self.remember_object(cell, made)
        return made

    def raised(self, kind: type[BaseException], *args: object, **slots: Value) -> Raised:
        return raised(self, kind, args, slots)

    # ------------------------------------------------------------------------------------------ locals and globals

    def start_root(
        self, names: Sequence[str], values: Sequence[Any], frame: SymFrame, cells: Sequence[tuple[str, Any]]
    ) -> None:
        """Give the outermost frame its parameters; models are made lazily."""
        passed_cells = frame.code.passed_cells
        frame.given = Given((*names, *(name for name, _ in cells)), frozenset((*passed_cells, *frame.code.freevars)))
        boxed = []
        for index, (name, value) in enumerate(zip(names, values, strict=True)):
            if name in passed_cells:
                frame.cells[name] = self.wrap_cell(value, CellSource(index, name))
            else:
                boxed.append((index, name, value))
        bound = self.bind_locals(frame, boxed)
        for offset, (name, cell) in enumerate(cells):
            source = CellSource(len(names) + offset, name)
            frame.cells[name] = self.wrap_cell(cell, source)
        for name in frame.code.cellvars:
            if name not in frame.cells:
                frame.cells[name] = CellVal(bound.moved(name))

    def bind_locals(self, frame: SymFrame, values: Sequence[tuple[int, str, Any]]) -> LazyLocals:
        """Parameters that are passed by value: (place, name, object)."""
        boxes = {name: LocalBox(self, LocalSource(place, name), value) for place, name, value in values}
        self.boxes.extend(boxes.values())
        frame.locals = bound = LazyLocals(self, boxes)
        return bound

    def load_global(self, frame: SymFrame, name: str, builtins: bool = True) -> Value | None:
        written = self.written_global(frame.globals, name)
        if written is not None:
            if written[0] is not None:
                return written[0]
        elif name in frame.globals:
            found, module = frame.globals[name], frame.globals.get("__name__")
            trusted = trusted_value(self, found) if is_trusted(module) else None
            if trusted is not None:
                self.assumed.of_member(frame.globals, str(module), name, found)
                return trusted
            return self.wrap(found, self._global_source(frame, name))
        else:
            self._guard_missing_global(frame.globals, name)
        return self._load_builtin(frame, name) if builtins else None

    def guard_libraries(self, guards: GuardSet) -> None:
        """Add what was found in libraries, and that tensors do what they do."""
        of_tensors = [tensor_facts()] if self.tensors or self.graph.op_count else []
        for facts in filter(len, (self.assumed.facts(), *of_tensors)):
            guards.add(Guard(None, "ASSUMED", facts))

    def _guard_missing_global(self, globals_: dict[str, Any], name: str) -> None:
        """A global that hides a builtin, or was missing, may appear."""
        module = globals_.get("__name__")
        if is_trusted(module):
            self.assumed.of_member(globals_, str(module), name, ABSENT)
        elif not str(module).startswith("dynajit."):
            self.guard(ConstSource(globals_, f"{module}.__dict__"), "DICT_MISSING", name)

    def _global_source(self, frame: SymFrame, name: str) -> Source:
        if frame is self.frames[0] or frame.globals is self.frames[0].globals:
            return GlobalSource(name)
        return ItemSource(ConstSource(frame.globals, f"{frame.globals.get('__name__')}.__dict__"), name)

    def _load_builtin(self, frame: SymFrame, name: str) -> Value | None:
        table = frame.globals.get("__builtins__", builtins)
        table = table.__dict__ if isinstance(table, types.ModuleType) else table
        written = self.written_global(table, name)
        if written is not None:
            return written[0]
        if name not in table:
            return None
        if not (name in builtins.__dict__ and table[name] is builtins.__dict__[name]):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"the replaced builtin {name!r}")
        self.assumed.of_member(table, "builtins", name, table[name])
        return self.from_real(table[name])

    def written_global(self, globals_: dict[str, Any], name: str | None) -> tuple[Value | None] | None:
        """(value,) of a global written while tracing, (None,) if it was deleted; of any global if there is no name."""
        if name is None:
            touched = any(table is globals_ for table, _ in self.globals_written.values())
            return (None,) if touched else None
        written = self.globals_written.get((id(globals_), name))
        if written is None:
            return None
        return (None,) if written[1] is DELETED else (written[1],)

    def store_global(self, globals_: dict[str, Any], name: str, value: Value | None) -> None:
        self.journal.set_item(
            self.globals_written, (id(globals_), name), (globals_, DELETED if value is None else value)
        )

    # ----------------------------------------------------------------------------------------------- fx metadata

    def node_meta(self, result: object) -> dict[str, Any]:
        """What an fx node carries: its fake value and the user's stack."""
        return {"example_value": result, "stack_trace": self.stack_text()}

    def stack_text(self) -> str:
        """Where the traced program stands, as in a traceback."""
        where = tuple((frame.code_object, frame.current.index) for frame in self.frames)
        text = self._stacks.get(where)
        if text is None:
            text = self._stacks[where] = "".join(
                f'  File "{loc.filename}", line {loc.lineno}, in {loc.function}\n'
                f"    {linecache.getline(loc.filename, loc.lineno or 0).strip()}\n"
                for loc in self.user_stack()
            )
        return text

    def caller_module(self) -> str:
        """The module of the innermost traced frame."""
        return str(self.frames[-1].globals.get("__name__") or "")

    def is_compiling(self) -> bool:
        """What the innermost traced frame hears that asks whether it is being compiled. Torch's own modules are known:
        as compiled, they compute the same, with less that can't be captured; or they refuse."""
        module = self.caller_module()
        if module.split(".", 1)[0] == "torch":
            return module not in REFUSING_MODULES
        self.asked_compiling = True
        return self.compiling_answer

    def catches(self) -> bool:
        """Whether a block of the program's sees what the operation at hand raises when it runs."""
        return catches(self.frames)

    def result_unused(self) -> bool:
        """Whether the innermost traced frame drops the result of the call at hand, or keeps it where nobody looks."""
        frame = self.frames[-1]
        following = frame.instrs[frame.ip]
        dropped = following.op == "POP_TOP" or (
            following.op == "STORE_FAST" and following.arg not in live_before(frame.code)[following.index + 1]
        )
        return frame.current.op.startswith("CALL") and dropped

    def may_rebind(self, name: str) -> bool:
        """Whether a variable of this name, shared with functions inside, may be bound to something else later on."""
        if name in self.frames[0].code.passed_cells:
            return True  # what is traced is a part of the function that has the variable
        for frame in self.frames:
            here = frame.current.index
            around = [loop.members for loop in frame.loops if here in loop.members]
            for instr in frame.instrs:
                binds = instr.op in ("STORE_DEREF", "DELETE_DEREF") and instr.arg == name
                if binds and (instr.index > here or any(instr.index in members for members in around)):
                    return True
        return False

    def resumable_call(self) -> Direct:
        """Whether the call at hand may be continued in, once."""
        direct, self.direct_call = self.direct_call, None
        return direct


# instructions that can't notice what a finaliser did
_BLIND = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "DELETE_FAST"})


class LocalBox:
    """A parameter of the outermost frame before anybody reads it."""

    def __init__(self, tx: Interpreter, source: LocalSource, real: Any) -> None:
        self.tx = tx
        self.source = source
        self.real = real

    def open(self) -> Value:
        return self.tx.wrap(self.real, self.source)


def _real(value: Any) -> Any:
    """The object that a value stands for, a tensor among them; None if there is none."""
    found = getattr(value, "real_object", None)
    return getattr(value, "real_tensor", None) if found is None else found


class LazyLocals(dict[str, Any]):
    """Locals of the outermost frame; a parameter becomes a model, and is guarded, at its first read."""

    def __init__(self, tx: Interpreter, boxes: dict[str, LocalBox]) -> None:
        super().__init__()
        self.tx = tx
        self.boxes = boxes

    def get(self, name: str, default: Any = None) -> Any:
        if dict.__contains__(self, name):
            return dict.__getitem__(self, name)
        box = self.boxes.get(name)
        return box.open() if box is not None else default

    def __getitem__(self, name: str) -> Any:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self.boxes

    def __setitem__(self, name: str, value: Any) -> None:
        self._let_go(name)
        dict.__setitem__(self, name, value)

    def copy(self) -> LazyLocals:
        made = LazyLocals(self.tx, self.boxes.copy())
        dict.update(made, self)
        return made

    def pop(self, name: str, default: Any = None) -> Any:  # type: ignore[override]
        found = self.get(name, default)
        self._let_go(name)
        dict.pop(self, name, None)
        return found

    def moved(self, name: str) -> Any:
        """The value of a name that is about to live in a cell instead; None if it has none yet."""
        found = self.get(name)
        self.boxes.pop(name, None)
        dict.pop(self, name, None)
        return found

    def _let_go(self, name: str) -> None:
        """A parameter's object may die where the name is bound to another: its finaliser runs before what follows."""
        box = self.boxes.pop(name, None)
        old = dict.get(self, name)
        real = box.real if box is not None else _real(old)
        if real is None or (old is not None and old.source is None):
            return
        kind = dies_with(real)
        if kind is None:
            return
        others = (dict.get(self, other) for other in self if other != name)
        if not any(_real(value) is real for value in (*self.tx.frames[0].stack, *others)):
            self.tx.journal.set_attr(self.tx, "dropped", kind)
