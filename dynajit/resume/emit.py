"""The code that takes a frame's place.

In: the interpreter after a return or a break, the compiled graph. Out: a code object whose parameters are the frame's
parameters and then its free variables' cells. Order: the graph's inputs are read, the graph is called, objects are
made, effects happen, then the return value or the breaking instruction with the continuations of all frames.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple, Protocol

import torch

from dynajit import _C
from dynajit.bytecode import Emitter, Handler, InnerCall, Instr, Label, Outline, names_inside, stack_shape
from dynajit.bytecode.canonical import JUMPS, TERMINATORS
from dynajit.bytecode.decode import name_of_keywords
from dynajit.bytecode.return_action import CALLED
from dynajit.bytecode.unbound import empty_free_variable, unbound_local
from dynajit.graph.builder import GraphInput
from dynajit.graph.seen import Sized
from dynajit.guards.source import GlobalSource, LocalSource, RunTimeSource, Source
from dynajit.interp.frame import SymFrame
from dynajit.interp.machine import DELETED, Interpreter
from dynajit.report import breaks
from dynajit.report.breaks import BreakKind
from dynajit.resume.inside import calling_functions, caught_inside, instruction_function
from dynajit.resume.lifetime import kept_at_entry, unneeded, with_bound_variables, with_kept
from dynajit.resume.numbers import (
    RESULT,
    handed_over,
    handed_to_loop,
    results_among,
    sizes_in_loop,
    sizes_of,
    varying_in_loop,
    varying_of,
)
from dynajit.resume.plan import (
    Resume,
    ResumePlan,
    null_operand,
    operands,
    peeks,
    resume_after,
    resume_handler,
    resume_loop,
    resume_loop_handler,
)
from dynajit.resume.rebuild import Rebuilder, holds_itself, in_cycles, reachable
from dynajit.values.core.value import NULL, GraphBreak, Value
from dynajit.values.effects.deferred import DeferredCall, late_call
from dynajit.values.effects.table import State
from dynajit.values.objects.exceptions import raised_at
from dynajit.values.objects.local_classes import made_at
from dynajit.values.scalars.constant import Unread, is_the
from dynajit.values.scalars.symbolic import SymVal, UnreadFlag
from dynajit.values.tensors.tensor import TensorVal


class Shell(NamedTuple):
    """The function that runs a loop, and the code of the loop's body, which it calls."""

    function: FunctionType
    body: CodeType


class Entered(NamedTuple):
    """A part that replacement code goes on in.

    Attributes:
        code: the part's.
        given: its parameters (sources) -> what of the replaced frame's they are.
    """

    code: CodeType
    given: dict[Source, Source]


class Maker(Protocol):
    """Makes, once for each shape, the functions that the emitted code calls."""

    def continuation(self, resume: Resume, inner: InnerCall | None) -> Any:
        """How a frame goes on; `inner` is the callee's continuation."""

    def shell(self, frame: SymFrame, cut: Outline, varying: Sequence[Source], tensors: Sequence[Sized]) -> Shell:
        """Runs a loop; `varying`: which of its body's parameters are numbers that vary, `tensors`: those of sizes that
        do."""

    def expect(self, function: Any, varying: Sequence[Source]) -> None:
        """These parameters of a continuation are numbers that vary."""

    def expect_sizes(self, function: Any, tensors: Sequence[Sized]) -> None:
        """These parameters of a continuation are tensors whose sizes vary."""

    def results_vary(self, function: Any, results: Sequence[Source]) -> None:
        """These parameters of a continuation are what a line gave that a varying value was needed for."""

    def hand_over(self, seen: Any, function: Any, moved: Sequence[tuple[Source, Source]]) -> None:
        """What is known of numbers and texts holds for the continuation's parameters that they become."""

    def generator(self, frame: SymFrame) -> Callable[..., Any]:
        """Makes a generator that goes on where it is told to."""


_NEEDS_VARIABLE = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "DELETE_FAST", "LOAD_DEREF", "DELETE_DEREF"})
# instructions on a cell -> what does the same to the attribute of the cell, which may have another name here
_ON_CELL = {"LOAD_DEREF": "LOAD_ATTR", "STORE_DEREF": "STORE_ATTR", "DELETE_DEREF": "DELETE_ATTR"}
_KEEPS_OPERAND = frozenset({"JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"})
# which run in the outermost frame's code even if they are an inlined frame's: they jump and push, or ask no object
_INLINE = _KEEPS_OPERAND | {"FOR_ITER", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"}
_BRANCHES = JUMPS - {"JUMP", "SEND"}
# The parameter that holds the graph's inputs in a tuple, all of which the guards have read; and how many of them must
# be no parameters for that to pay.
HANDED = ".inputs"
FEWEST_HANDED = 4


class Emission:
    """One replacement code object."""

    def __init__(self, tx: Interpreter, root: SymFrame, maker: Maker) -> None:
        self.tx = tx
        self.root = root
        self.make_continuation = maker.continuation
        self.make_shell = maker.shell
        self.expect = maker.expect
        self.expect_sizes = maker.expect_sizes
        self.hand_over = maker.hand_over
        self.results_vary = maker.results_vary
        self.emit = Emitter()
        # code of no line of the user's stands at the first: some readers of tracebacks can do nothing with none at all
        self.emit.set_location((root.code_object.co_firstlineno, None, None, None))
        self.out = Rebuilder(self.emit, maker.generator, tx.journal.dirty)
        self.results: list[Value] = []
        # how all frames go on after the instruction (or loop), one for each place where control may go from there,
        # and how where it raises and one of the frames has a handler
        self.resumes: list[list[Resume]] = []
        self.caught: list[Resume] = []
        # the variables of the cells of locals that a loop changes, or binds though nobody reads them
        self.shared: dict[str, str] = {}
        # locals that are bound to something that lives on where the loop is entered, though nobody reads them
        self.kept: list[str] = []
        self.operands: list[Value] = []
        # the cell of the breaking instruction
        self.cell: Value | None = None
        # variables that the code has let go of
        self.gone: set[str] = set()
        self.plan: ResumePlan | None = None
        self.needs_varying = False  # the break is where a value is needed that varies
        # raises, where going on after the instruction is no way out
        self.refuse: Callable[[], Any] | None = None
        self.handed: list[Source] = []
        # states that the calls around the graph's change, and the variables that they are kept in
        self.saved: list[tuple[State, str]] = []
        self.parts: list[Entered] = []
        self._failing: tuple[Callable[..., Any], Label] | None = None
        self.exit_state = tx.entry_state.changes()

    # -- what has to exist

    def returning(self, value: Value) -> None:
        """The frame returns this value."""
        self.results = [value]

    def breaking(self, plan: ResumePlan, refuse: Callable[[], Any] | None, kind: BreakKind) -> None:
        """The frame breaks at the current instruction of the plan's innermost frame. If `refuse` is given the
        instruction raises; if it does not, `refuse` is called, and does."""
        self.plan, self.refuse, self.needs_varying = plan, refuse, kind is breaks.VARYING_VALUE
        inner = plan.frames[-1]
        outer = [
            resume_after(frame, calls=callee.direct)
            for frame, callee in zip(plan.frames, plan.frames[1:], strict=False)
            if not plan.ends
        ]
        if plan.cut is not None:
            cut, stack = plan.cut, plan.back.checkpoint.stack
            self.operands = stack[cut.floor : cut.entry_depth]
            self.resumes = [[*outer, resume_loop(inner, stack, cut, leave)] for leave in cut.leaves]
            if cut.handler is not None:
                self.caught = [*outer, resume_loop_handler(inner, stack, cut)]
        else:
            self.operands = operands(inner)
            if inner.current.op in _ON_CELL:
                self.cell = inner.cells[inner.current.arg]
            if refuse is None and inner.current.op not in TERMINATORS:
                self.resumes = [[*outer, resume_after(inner)]]
            if refuse is None and inner.current.op in _BRANCHES:
                self.resumes.append([*outer, resume_after(inner, True)])
            if inner.current.handler is not None:
                self.caught = [*outer, resume_handler(inner, inner.current.handler)]
        for depth in reversed(range(len(outer))):
            handler = plan.frames[depth].current.handler
            if not self.caught and handler is not None:
                self.caught = [*outer[:depth], resume_handler(plan.frames[depth], handler)]
        existing = set(map(id, reachable(self.roots())))
        loop = plan.cut

        def bound(resume: Resume) -> Resume:
            return with_bound_variables(resume, existing, loop if resume.frame is inner else None)

        self.resumes = [list(map(bound, chain)) for chain in self.resumes]
        self.caught = list(map(bound, self.caught))
        if loop is not None:
            self.kept = kept_at_entry(inner, loop, existing)
            self.resumes = [[*chain[:-1], with_kept(chain[-1], loop)] for chain in self.resumes]
            self.caught = [with_kept(resume, loop) if resume.frame is inner else resume for resume in self.caught]

    def _resumed(self) -> list[Any]:
        """All values that the continuations take."""
        found: list[Any] = []
        for chain in [*self.resumes, self.caught]:
            for resume in chain:
                found.extend(resume.stack)
                frame = resume.frame
                locals_ = (name for name in resume.locals if name in frame.locals)
                found.extend(_local(frame, name) for name in locals_ if not self._in_cell(frame, name))
                found.extend(resume.frame.cells[name] for name in resume.cells)
        return found

    def roots(self) -> list[Any]:
        """All values that the code pushes."""
        found: list[Any] = [*self.results, *self.operands, *self._resumed()]
        if self.plan is not None and self.plan.cut is not None:
            frame, cut = self.plan.frames[-1], self.plan.cut
            found.extend(_local(frame, name) for name in (*cut.named, *cut.shared) if name in frame.locals)
            found.extend(frame.cells[name] for name in cut.cells)
            found.extend(_local(frame, name) for name in self.kept)
        if self.cell is not None:
            found.append(self.cell)
        if self.tx.exceptions.current is not None:
            found.append(self.tx.exceptions.current)
        found.extend(self.tx.needed)
        for value in self.tx.journal.dirty.values():
            found.extend(value.effect_children())
        found.extend(value for _, value in self.tx.globals_written.values() if value is not DELETED)
        return [value for value in found if isinstance(value, Value) and value is not NULL]

    def effects(self) -> list[str]:
        """What the call does beside its graph: what it changes that was there before, beside tensors and modules, by
        how it is reached; which of the graph's tensors it makes; what it computes of sizes for the result."""
        dirty = self.tx.journal.dirty.values()
        written = [value for value in dirty if value.source is not None and not value.is_as_it_was()]
        kinds = torch.Tensor, torch.nn.Module
        found = [value.source.name() for value in written if not issubclass(value.py_type(), kinds)]
        tensors = [each.source for each in self.tx.graph.inputs if each.symbol is None]
        made = [source.name() for source in tensors if isinstance(source, RunTimeSource)]
        sized = any(isinstance(value, (SymVal, UnreadFlag)) for value in reachable(self.results))
        sizes = ["a number or text of sizes in its result"] if sized else []
        globals_ = [
            name
            for (_, name), (namespace, value) in self.tx.globals_written.items()
            if name not in namespace or value is DELETED or not is_the(value, namespace[name])
        ]
        return [*found, *globals_, *made, *sizes]

    def changed_places(self) -> frozenset[Source]:
        """Where the function leaves something else for its next call: attributes, containers, globals."""
        changed = (value.changed_places() for value in self.tx.journal.dirty.values())
        found = [*itertools.chain(*changed), *(GlobalSource(name) for _, name in self.tx.globals_written)]
        keywords = name_of_keywords(self.root.code_object)  # each call has a dictionary of its own
        return frozenset(each for each in found if not (isinstance(each, LocalSource) and each.local_name == keywords))

    def outputs(self) -> list[Any]:
        """The tensors, and the numbers that depend on them, that the graph has to return."""
        return [value for value in reachable(self.roots()) if value.source is None and _from_graph(value)]

    def obstacle(self) -> Value | None:
        """A value that the code would have to push and can't: the real program goes on with an exception that was
        raised, and has a traceback."""
        needed = reachable(self.roots())
        local = next((value for value in needed if made_at(self.tx, value) is not None), None)
        if local is not None:
            return local
        effect = late_call(self.tx)
        if effect is not None:
            return effect
        thrown = next((value for value in needed if raised_at(value) is not None), None)
        if thrown is not None:
            return thrown
        lost = [made for made in self.tx.open_generators if made.needs_closing() and not _among(made, needed)]
        if lost:
            return lost[0]
        return next((value for value in needed if not value.rebuildable() or holds_itself(value)), None)

    def go_back(self, obstacle: Value | None) -> tuple[Any, GraphBreak | None]:
        """The state to go back to, where the real program makes what the trace can only know of; and why."""
        if obstacle is None:
            return None, None
        self.tx.needed.clear()  # made for real from there on
        made = made_at(self.tx, obstacle)
        if made is not None:
            return made, GraphBreak(breaks.LOCAL_CLASS, obstacle.describe())
        placed = getattr(obstacle, "placed_at", None)
        if placed is not None:
            return placed, GraphBreak(breaks.UNSUPPORTED_VALUE, f"the order of {obstacle.describe()}")
        if isinstance(obstacle, DeferredCall) and obstacle.at is not None:
            changed = f"{obstacle.function.describe()}, whose arguments change later, or whose handlers are looked at"
            return obstacle.at, GraphBreak(breaks.OUTPUT_CALL, changed)
        return raised_at(obstacle), None

    # -- the code

    def changes_states(self) -> bool:
        """Whether calls before the graph change what would have to be put back to run the frame again."""
        return any(not call.late and call.state is not None for call in self.tx.calls)

    def make_calls(self, late: bool, runs_again: bool = False) -> None:
        """The calls that are made for real around that of the graph. `runs_again`: what they change is kept, for the
        case that the graph raises and the frame is run again."""
        calls = [call for call in self.tx.calls if call.late == late]
        for call in calls if runs_again else ():
            if call.state is not None and not any(call.state.same(known) for known, _ in self.saved):
                self._save(call.state)
        for call in calls:
            parts = [*call.args, *call.kwargs.values()]
            self.out.call_const(call.function, partial(self._push_all, parts), len(parts), tuple(call.kwargs))
            name = self.out.variable("drawn")
            self.emit.store_fast(name)
            self.out.bind_source(call.source, name)

    def _push_all(self, values: Sequence[Value]) -> None:
        for value in values:
            self.out.push(value)

    def _save(self, state: State) -> None:
        """Keep a state that the calls change, for the case that the graph raises."""
        if isinstance(state.owner.source, RunTimeSource):
            return  # nobody else has it
        self._call(state.save, [partial(self.out.push, state.owner)])
        name = self.out.variable("state")
        self.emit.store_fast(name)
        self.saved.append((state, name))

    def call_graph(
        self,
        graph: _C.GraphCall,
        inputs: Sequence[GraphInput],
        outputs: Sequence[Value],
        failing: Callable[..., Any] | None,
    ) -> None:
        """Call the compiled graph and keep its outputs in variables; if it raises, `failing` takes over."""

        read = [entry.source for entry in inputs if not isinstance(entry.source, LocalSource)]
        made_here = any(isinstance(source, RunTimeSource) for source in read)
        if len(read) >= FEWEST_HANDED and not made_here:
            self.handed = [entry.source for entry in inputs]
        for entry in inputs if not self.handed else ():
            self.out.ensure_source(entry.source)
        self._read_numbers()
        if failing is not None:
            self._failing = failing, self.emit.label()
            self.emit.set_handler(Handler(self._failing[1]))
        self.emit.begin_call(lambda: self.emit.load_const(graph))
        if self.handed:
            self.emit.load_fast(HANDED)
            self.emit.call_function_ex()
        else:
            for entry in inputs:
                self.out.load(entry.source)
            self.emit.end_call(len(inputs))
        self.emit.set_handler(None)
        if self.handed:
            # what the code lets go of may die
            self.emit.load_const(None)
            self.emit.store_fast(HANDED)
        if len(outputs) == 0:
            self.emit.pop_top()
            return
        if not (len(outputs) == 1 and graph.gives_only_result):
            self.emit.unpack_sequence(len(outputs))
        for value in outputs:
            name = self.out.variable("tensor")
            self.emit.store_fast(name)
            self.out.bind(value, name)

    def _read_numbers(self) -> None:
        """Read the numbers of tensors that the code needs, where the graph changes them: sizes and strides, and how
        often a tensor was written."""
        given = [entry for entry in self.tx.graph.inputs if entry.symbol is None]
        relaid = any(entry.changes_metadata for entry in given)
        if not relaid and not self.tx.graph.writes_inputs():
            return
        tensors = {entry.source for entry in given}
        for value in reachable(self.roots()):
            if isinstance(value, SymVal) and not value.from_graph and not value.unknown:
                for source in value.sources():
                    if relaid or source.base in tensors:
                        self.out.ensure_source(source)
            elif isinstance(value, Unread) and value.source is not None and value.source.base in tensors:
                self.out.ensure_source(value.source)

    def finish(self) -> CodeType:
        """Objects, effects, and the end of the code."""
        roots = self.roots()
        needed = reachable(roots)
        self.out.cyclic = in_cycles(needed)
        # all is read before anything is made: to make an iterator, the effect on its container is carried out first
        for value in needed:
            self.out.read(value)
        for value in roots:
            self.out.prepare(value)
        for value in self.tx.journal.dirty.values():
            if value.source is not None:
                self.out.ensure_source(value.source)
        self.out.run_fills()
        self._effects()
        if self.plan is None:
            self.emit.set_location(self.root.current.positions)
            self.out.push(self.results[0])
            self.emit.return_value()
        else:
            self._break(self.plan)
        self._graph_failed()
        code, given = self.root.code_object, self.root.given
        params = [*given.names, *([HANDED] if self.handed else [])]
        return self.emit.assemble(code.co_name, params, given.cells, code, code.co_qualname)

    def _graph_failed(self) -> None:
        """Where the graph's exception lands: hand it on, with the frame's parameters and cells."""
        if self._failing is None:
            return
        function, label = self._failing
        names, cells = self.root.given
        self.emit.mark(label)
        error = self.out.variable("error")
        self.emit.store_fast(error)
        for state, kept in self.saved:
            self._call(state.restore, [partial(self.out.push, state.owner), partial(self.emit.load_fast, kept)])
            self.emit.pop_top()

        def push() -> None:
            self.emit.load_fast(error)
            for name in names:
                (self.emit.load_closure if name in cells else self.emit.load_fast)(name)

        self.emit.call_function(lambda: self.emit.load_const(function), push, 1 + len(names))
        self.emit.return_value()

    def _effects(self) -> None:
        for value in self.tx.journal.dirty.values():
            if id(value) not in self.out.done:
                value.emit_effect(self.out)
        for (_, name), (globals_, value) in self.tx.globals_written.items():
            self._store_global(globals_, name, value)
        for setter, args in self.exit_state:
            self.out.call_const(setter, partial(self.out.consts, *args), len(args))
            self.emit.pop_top()
        if self.tx.exceptions.current is not None:
            # the exception that is being handled from here on
            self.out.push(self.tx.exceptions.current)
            self.emit.op("POP_EXCEPT")

    def _store_global(self, globals_: dict[str, Any], name: str, value: Any) -> None:
        if value is DELETED:
            self.out.run(dict.pop, globals_, name, None)
            return
        self.out.push(value)
        self.out.const(globals_)
        self.out.const(name)
        self.emit.store_subscr()

    def _break(self, plan: ResumePlan) -> None:
        """Run the breaking instruction (or loop) for real, then the continuations from the innermost frame outwards."""
        caught = Label()
        if self.caught:
            self.emit.set_handler(Handler(caught, 0))
        instr = plan.frames[-1].current
        if plan.cut is not None:
            self._run_loop(plan, plan.cut)
        elif len(plan.frames) > 1 and instr.op not in _INLINE:
            self._run_inside(plan)
        else:
            self.emit.set_location(instr.positions)
            for value in self.operands:
                self.out.push(value)
            if self._is_unbound(plan.frames[-1], instr):
                self._raise_unbound(plan.frames[-1], instr)
            elif self.cell is not None:
                self.out.push(self.cell)
                self._let_go()
                self.emit.op(_ON_CELL[instr.op], "cell_contents")
            else:
                self._let_go()
                if len(self.resumes) < 2:
                    self.emit.rerun(instr, None, null_operand(self.operands))
                    self.emit.drop_below(stack_shape(instr.op, instr.arg)[1], peeks(plan.frames[-1]))
            if len(self.resumes) == 1 and len(self.resumes[0][-1].pushes) < stack_shape(instr.op, instr.arg)[1]:
                self.emit.pop_top()
        if plan.cut is not None:
            self._leave_loop(plan.cut)
        elif len(self.resumes) == 2:
            jumped = self.emit.label()
            self.emit.rerun(instr, jumped)
            self._continue(self.resumes[0])
            self.emit.mark(jumped)
            self._continue(self.resumes[1])
        elif self.resumes:
            self._continue(self.resumes[0])
        elif self.refuse is not None and instr.op not in TERMINATORS:
            self._call(self.refuse, [])
            self.emit.return_value()
        if self.caught:
            self.emit.set_handler(None)
            self.emit.mark(caught)
            if len(self.caught) > 1 and (plan.cut is not None or instr.op not in _INLINE):
                self._reached(len(self.caught) - 1)
            self._continue(self.caught)

    def _reached(self, frames: int) -> None:
        """The exception on the stack was caught in an inlined frame: it never came to the `frames` that called it."""
        error = self.out.variable("error")
        self.emit.store_fast(error)
        self._call(caught_inside, [partial(self._take, error), partial(self.out.const, frames)])

    def _run_loop(self, plan: ResumePlan, cut: Outline) -> None:
        """Call the loop's shell; the locals that it changes are put into cells."""
        frame = plan.frames[-1]
        for name in (*cut.shared, *cut.kept):
            bound = name in frame.locals if name in cut.shared else name in self.kept
            push = partial(self.out.push, _local(frame, name)) if bound else _nothing
            if not bound and name in cut.kept:
                bound, push = True, partial(self.out.const, None)
            self.out.call_const(CellType, push, int(bound))
            self.shared[name] = self.out.variable("cell")
            self.emit.store_fast(self.shared[name])
        shell = self.make_shell(frame, cut, varying_in_loop(frame, cut, self.operands), sizes_in_loop(frame, cut))
        function: Callable[..., Any] = shell.function
        self._enters(shell.body, handed_to_loop(frame, cut))
        pushes = [partial(self.out.push, value) for value in self.operands]
        pushes.extend(partial(self.out.push, _local(frame, name)) for name in cut.named)
        pushes.extend(partial(self.emit.load_fast, self.shared[name]) for name in cut.shared)
        pushes.extend(partial(self.out.push, frame.cells[name]) for name in cut.cells)
        pushes.extend(partial(self.emit.load_fast, self.shared[name]) for name in cut.kept)
        if len(plan.frames) > 1:
            function = calling_functions(plan.frames[1:-1], function, len(pushes))
        self.emit.set_location(plan.frames[0].current.positions)
        self._call(function, [*pushes, self._let_go], len(pushes))

    def _leave_loop(self, cut: Outline) -> None:
        """The shell's result is on the stack: a tuple of what the loop leaves on its frame's stack, with the number of
        the place to go on at if there are several."""
        if not cut.leaves:
            self.emit.return_value()  # not reached: only an exception ends the loop
            return
        if len(cut.leaves) == 1:
            self._unpack(cut.leaves[0].slots)
            self._continue(self.resumes[0])
            return
        result = self.out.variable("left")
        self.emit.store_fast(result)
        for number, leave in enumerate(cut.leaves):
            following = self.emit.label()
            if number + 1 < len(cut.leaves):
                self.emit.load_fast(result)
                self.emit.load_const(-1)
                self.emit.binary_subscr()
                self.emit.load_const(number)
                self.emit.compare_op("==")
                self.emit.pop_jump_if_false(following)
            self.emit.load_fast(result)
            self.emit.delete_fast(result)
            self._unpack(leave.slots + 1)
            self.emit.pop_top()
            self._continue(self.resumes[number])
            if number + 1 < len(cut.leaves):
                self.emit.mark(following)

    def _unpack(self, count: int) -> None:
        """A tuple on the stack → its items, the last on top."""
        if count == 0:
            self.emit.pop_top()
            return
        self.emit.unpack_sequence(count)
        names = [self.out.variable("pushed") for _ in range(count)]
        for name in names:
            self.emit.store_fast(name)
        for name in names:
            self.emit.load_fast(name)
            self.emit.delete_fast(name)

    def _let_go(self) -> None:
        """Before the instruction (or loop) runs for real: only the program's own variables keep objects alive."""
        for name in unneeded(self.out, self.root.given.locals, self._resumed()):
            self.emit.delete_fast(name)
            self.gone.add(name)

    def _empty(self) -> None:
        """Let go of all variables, and of what a loop that raised has in cells: the traceback keeps its frames."""
        taken = {name for resume in self.caught for name in resume.shared}
        for name, cell in self.shared.items():
            if name not in taken:
                self.emit.load_fast(cell)
                self.emit.op("DELETE_ATTR", "cell_contents")
        for name in [*self.root.given.locals, *self.out.stored, *self.shared.values()]:
            if name not in self.gone:
                self.emit.delete_fast(name)

    def _is_unbound(self, frame: SymFrame, instr: Instr) -> bool:
        """Whether the instruction breaks because its variable has no value."""
        if instr.op not in _NEEDS_VARIABLE:
            return False
        cell = frame.cells.get(instr.arg)
        return instr.arg not in frame.locals if cell is None else cell.is_empty(self.tx)

    def _raise_unbound(self, frame: SymFrame, instr: Instr) -> None:
        """What the instruction would raise: in this code its variable may be bound, or of another kind."""
        error = empty_free_variable if instr.arg in frame.code.freevars else unbound_local
        self.out.call_const(error, lambda: self.out.const(instr.arg), 1)
        self.emit.op("RAISE_VARARGS", 1)

    def _run_inside(self, plan: ResumePlan) -> None:
        """Run the instruction at its place in the inlined frames; leaves what it pushes, or a branch's condition."""
        self.emit.set_location(self.root.current.positions)
        function = instruction_function(plan.frames[1:], self.operands)
        pushes = [partial(self.out.push, value) for value in self.operands if value is not NULL]
        self._call(function, [*pushes, self._let_go], len(pushes))
        if not self.resumes:
            if self.refuse is None or plan.frames[-1].current.op in TERMINATORS:
                self.emit.return_value()  # not reached: the instruction raises
            return
        count = self.resumes[0][-1].pushes.count("value")
        if len(self.resumes) == 1 and count == 0:
            self.emit.pop_top()
        elif count > 1:
            self._unpack(count)

    def _continue(self, chain: Sequence[Resume]) -> None:
        """Call the outermost frame's continuation, which calls the next one inwards where the user's code did."""
        self.emit.set_handler(None)
        results = [self.out.variable("result") for _ in range(chain[-1].pushes.count("value"))]
        for name in reversed(results):
            self.emit.store_fast(name)
        inner: InnerCall | None = None
        # what pushes each argument, and its value if that is known
        args: list[tuple[Callable[[], None], Any]] = [(partial(self._take, name), RESULT) for name in results]
        for depth, resume in reversed([*enumerate(chain)]):
            function = self.make_continuation(resume, inner)
            slots = [(partial(self.out.push, value), value) for value in resume.stack if value is not NULL]
            own, args = ([], args) if inner is not None else (args, [])
            args = [*slots, *own, *self._variables(resume), *args]
            action = self.plan.frames[depth].direct if self.plan is not None else None
            bare = CALLED if action is None else action.bare
            code = function.function.__code__
            inner = InnerCall(function, len(args), bare, names_inside(code.co_name, code.co_varnames[: len(args)]))
        values = [value for _, value in args]
        self.expect(function.function, varying_of(function.function, values))
        self.expect_sizes(function.function, sizes_of(function.function, values))
        handed = handed_over(function.function, values)
        self.hand_over(self.tx.seen, function.function, handed)
        self._enters(function.function.__code__, handed)
        if self.needs_varying or self._takes_results():
            self.results_vary(function.function, results_among(function.function, values))
        # the call is made by who ran this code, when this frame and its variables are gone
        made: list[Callable[[], None]] = [partial(self.out.const, function), *(push for push, _ in args)]
        if chain is self.caught:
            # the exception's traceback keeps this frame
            self._call(_C.tail, [*made, self._empty], len(made))
        else:
            self._call(_C.tail, made)
        self.emit.return_value()

    def _enters(self, code: CodeType, handed: Sequence[tuple[Source, Source]]) -> None:
        self.parts.append(Entered(code, {place: source for source, place in handed}))

    def _takes_results(self) -> bool:
        """Whether the instruction is given, of what this part was given, what a varying value was needed for."""
        seen = self.tx.seen
        return bool(seen.results) and any(
            value.source is not None and seen.is_result(value.source) for value in reachable(self.operands)
        )

    def _variables(self, resume: Resume) -> Iterator[tuple[Callable[[], None], Any]]:
        """The locals and cells that a continuation takes."""
        frame = resume.frame
        for name in resume.locals:
            yield self._local(frame, name), None if self._is_shared(frame, name) else _local(frame, name)
        for name in resume.shared:
            yield partial(self.emit.load_fast, self.shared[name]), None
        for name in resume.cells:
            yield partial(self.out.push, frame.cells[name]), frame.cells[name]

    def _take(self, name: str) -> None:
        """Push a variable and let go of it."""
        self.emit.load_fast(name)
        self.emit.delete_fast(name)

    def _is_shared(self, frame: SymFrame, name: str) -> bool:
        """Whether the local is in a cell while the loop runs."""
        return name in self.shared and self.plan is not None and frame is self.plan.frames[-1]

    def _in_cell(self, frame: SymFrame, name: str) -> bool:
        """Whether the local is in a cell while the loop runs, or is one that the loop binds though nobody reads it."""
        plan = self.plan
        kept = plan is not None and plan.cut is not None and frame is plan.frames[-1] and name in plan.cut.kept
        return kept or self._is_shared(frame, name)

    def _local(self, frame: SymFrame, name: str) -> Callable[[], None]:
        """Pushes a local of a frame that goes on."""
        if self._is_shared(frame, name):

            def push() -> None:
                self.emit.load_fast(self.shared[name])
                self.emit.load_attr("cell_contents")

            return push
        return partial(self.out.push, _local(frame, name))

    def _call(
        self, function: Callable[..., Any], pushes: Sequence[Callable[[], None]], argc: int | None = None
    ) -> None:
        def push() -> None:
            for push_one in pushes:
                push_one()

        count = len(pushes) if argc is None else argc
        self.emit.call_function(lambda: self.emit.load_const(function), push, count)


def _among(value: Value, values: Sequence[Value]) -> bool:
    return any(value is other for other in values)


def _nothing() -> None:
    pass


def _from_graph(value: Value) -> bool:
    return isinstance(value, TensorVal) or (isinstance(value, SymVal) and value.from_graph)


def _local(frame: SymFrame, name: str) -> Any:
    """A local's value, or the unread parameter itself."""
    boxes = getattr(frame.locals, "boxes", {})
    return boxes[name] if name in boxes else frame.locals[name]
