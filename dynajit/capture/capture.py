"""Capturing one frame.

In: the frame hook's miss: code, function, the values of parameters and cells, and which guard failed in each variant.
Out: a new variant in the code cache, or None. Whatever can't be captured runs eagerly, with the reason on record.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from dynajit import _C
from dynajit.backends.eager import eager
from dynajit.backends.registry import list_backends
from dynajit.backends.tape import only_result
from dynajit.bytecode import decode, part_of, pretty
from dynajit.capture import background, collector, keeping, passed, rules, stance, unfit
from dynajit.capture.answers import Answers, Retrace, finish_inside, settle
from dynajit.capture.idle import holds_tensors
from dynajit.capture.misses import (
    LAST_VARIANTS,
    MAX_ROLES,
    Reasons,
    give_up,
    given_made_anew,
    misses_of,
    never_fits_again,
    note_objects_made_anew,
    note_what_varies,
    other_roles,
    recompile_reason,
)
from dynajit.capture.past_limit import look_again, run_as_written
from dynajit.capture.raised import begins_in_block, raising_variant
from dynajit.capture.refusal import always_raises, raises, refusal_of, refusing
from dynajit.capture.reuse import graph_key
from dynajit.capture.session import Session, frame_number, roots, touched
from dynajit.capture.variants import VariantData, detached_variant, eager_variant, is_eager, made_for, role_of, turn_of
from dynajit.config import config
from dynajit.exc import BackendCompilerFailed, ConfigError, ConstraintViolation, RecompileLimitExceeded, Unsupported
from dynajit.graph.again import run_again
from dynajit.graph.backward_state import backward_state_of
from dynajit.graph.builder import GraphInput
from dynajit.graph.fake import modes_left
from dynajit.graph.meta import note_graph
from dynajit.guards.assumed import recording
from dynajit.guards.program import GuardSet
from dynajit.guards.source import LocalSource
from dynajit.interp import policy
from dynajit.interp.frame import SymFrame
from dynajit.interp.fuel import current as current_fuel
from dynajit.interp.machine import Interpreter
from dynajit.interp.parts import outermost_part
from dynajit.kept.variant import Made
from dynajit.report import breaks, debug, logs, progress, ranks, records, runnable, times
from dynajit.report.counters import counters
from dynajit.report.phases import collect, timer
from dynajit.report.places import is_own, trace_locations, user_place
from dynajit.report.records import BreakRecord, CompileRecord, FrameLoc, GraphRecord, GuardRecord
from dynajit.resume.emit import Emission
from dynajit.resume.plan import ResumePlan, plan_breaks
from dynajit.resume.rerun import Rerun, Undoing, kept_for_undo
from dynajit.torch_compat import has_user_saved_tensor_hooks, masks_put_back
from dynajit.torch_warnings import filters_kept
from dynajit.values.core.value import GraphBreak, Value
from dynajit.values.scalars.symbolic import is_data_dependent
from dynajit.values.tensors import overrides
from dynajit.verify import VerifiedGraph

NOTHING = "nothing to compile in it"
EAGER_LIMIT = 2


def _is_flat(compiled: Any) -> bool:
    """Whether a compiled graph calls hardly any function written in Python."""
    if isinstance(compiled, _C.RuntimeCall):
        return _is_flat(compiled.compiled)
    owner = getattr(compiled, "__self__", compiled)
    return not isinstance(compiled, types.FunctionType) and isinstance(
        owner, (fx.GraphModule, _C.GraphTape, _C.PlanExecutor)
    )


class BackendError(Exception):
    """The backend raised; carries what the message needs."""

    def __init__(self, cause: BaseException, graph: str, stack: list[FrameLoc]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.graph = graph
        self.stack = stack

    def shown(self, backend: str) -> BackendCompilerFailed:
        """The error that the user gets."""
        stack = "\n".join(location.render() for location in self.stack)
        return BackendCompilerFailed(backend, self.cause, self.graph, stack)


def make_capture(session: Session) -> Callable[..., _C.Variant | None]:
    """The frame hook's callback for one session."""

    def capture(
        code: types.CodeType, function: types.FunctionType, values: tuple[Any, ...], reasons: Reasons
    ) -> _C.Variant | None:
        try:
            return _capture(session, code, function, values, reasons)
        except BaseException as error:
            if begins_in_block(function):
                return raising_variant(session, function, error)
            if not isinstance(error, Unsupported):
                raise
            # it is about the program's lines, which it names; how the interpreter came there says nothing
            raise error.with_traceback(None) from None

    session.capture = capture
    return capture


def _capture(
    session: Session, code: types.CodeType, function: types.FunctionType, values: tuple[Any, ...], reasons: Reasons
) -> _C.Variant | None:
    fuel = current_fuel()
    if rules.builtins_replaced() or rules.tensors_changed() or (fuel is not None and fuel.empty):
        return None
    if rules.belongs_to_torch_compile(code, function.__globals__):
        return detached_variant(session, code, function)
    if not session.is_root(code) and rules.skip_frame(code, function.__globals__) is not None:
        if code not in roots:
            _C.mark_skip(code)
            touched.add(code)
        return None
    if not session.is_root(code) and (rules.saves_for_hooks() or rules.takes_packed_sequence(code, values)):
        return None
    if _is_idle(session, code, function) and not any(map(holds_tensors, values)):
        return None
    # Threads that call at once would all compile the same, and too much before it shows what varies. The others' calls
    # run eagerly rather than wait: what runs while a frame is captured may wait for them.
    held, outer = False, session.capturing._is_owned()
    try:
        held = session.capturing.acquire(blocking=False)
        if not held:
            passed.note(code)
            return None
        return None if passed.is_inside_captured(session) else _missed(session, code, function, values, reasons)
    finally:
        if held or (session.capturing._is_owned() and not outer):  # an interrupt may come before `held` is set
            session.capturing.release()


def _missed(
    session: Session, code: types.CodeType, function: types.FunctionType, values: tuple[Any, ...], reasons: Reasons
) -> _C.Variant | None:
    """Compile what no variant fits, if there is not too much already."""
    own = made_for(session, code)
    failed = [variant for variant, _ in reasons]
    for added in own:  # by another thread, since
        if added not in failed and added.globals is function.__globals__ and added.guards.check(values) < 0:
            return added
    misses = misses_of(own, reasons, values, function.__globals__)
    why = recompile_reason(code, own, misses)
    if not stance.on_miss(code.co_name, why is not None, why):
        return None
    # variants for other sets of keyword arguments are other roles, each with its own limit
    count = len(own) - other_roles(own, values)
    full = count >= config.recompile_limit or len(own) >= config.recompile_limit * MAX_ROLES
    if full or never_fits_again(session, misses):
        give_up(session, code, why, len(own), full)
        _C.mark_run_only(code)
        run_as_written(session, code)
        return None
    if session.classes_made_anew and not session.choices.fullgraph:
        guards = given_made_anew(code, values, session.classes_made_anew)
        if guards:  # other calls are compiled
            give_up(session, code, guards[0].describe(), 0, False)
            return _left_eager(session, code, function, values, guards)
    seen = session.memory(code).seen
    if not session.choices.fullgraph and seen.dynamic is not False:
        last, is_part = count >= config.recompile_limit - LAST_VARIANTS, "_continues" in function.__dict__
        note_what_varies(seen, own, misses, last, is_part)
    note_objects_made_anew(session, seen, misses)
    del misses
    return _compiled(session, code, function, values, f"[{frame_number(code)}/{len(own)}]", why)


def _compiled(
    session: Session,
    code: types.CodeType,
    function: types.FunctionType,
    values: tuple[Any, ...],
    compile_id: str,
    why: str | None,
) -> _C.Variant | None:
    """A variant for the call, kept from an earlier process or made; `why`: why those there are do not fit."""
    if why is not None:
        logs.emit(
            "recompiles",
            f"{code.co_name} is compiled again: {why if logs.verbose('recompiles') else why.partition('; [')[0]}",
            compile_id,
            (code.co_filename, code.co_firstlineno),
        )
    kept = keeping.lookup(session, function, values, compile_id)
    found = keeping.taken(kept, session, values) if kept is not None else None
    if found is not None:
        return found
    record = CompileRecord(compile_id, code.co_name, code.co_filename, code.co_firstlineno, recompile_reason=why)
    record.code = code
    with (
        collect() as phases,
        records.recording(record),
        ranks.compiling(record),
        progress.watch(code.co_name),
        collector.relaxed(),
        filters_kept(),
        modes_left(),
    ):
        record.phases, record.spans = phases, phases.spans
        try:
            frame = FrameCapture(session, code, function, values, record)
            variant = frame.run()
        finally:
            debug.write_times(record)
            records.publish(record)
    session.touch(code)
    if kept is not None and variant is not None:
        kept.keep(frame.made)
    if variant is not None:
        look_again(session, variant)
    frame.made = None  # what compiles in the background holds the frame, and would keep its own call alive
    return variant


def _left_eager(
    session: Session, code: types.CodeType, function: types.FunctionType, values: tuple[Any, ...], guards: GuardSet
) -> _C.Variant | None:
    """The frame runs eagerly where the guards hold."""
    record = CompileRecord(f"[{frame_number(code)}/0]", code.co_name, code.co_filename, code.co_firstlineno)
    variant = FrameCapture(session, code, function, values, record)._eager(guards)
    if variant is not None:
        _C.add_variant(code, variant)
        session.touch(code)
    return variant


class FrameCapture:
    """One capture of one frame."""

    def __init__(
        self,
        session: Session,
        code: types.CodeType,
        function: types.FunctionType,
        values: tuple[Any, ...],
        record: CompileRecord,
    ) -> None:
        self.session = session
        self.code = code
        self.function = function
        self.values = values
        self.record = record
        self.is_root = session.is_root(code)
        self.part = part_of(function)
        self.answers = Answers()
        self.user_hooks = has_user_saved_tensor_hooks()  # tracing puts hooks of its own above them
        self.jobs: list[background.BackgroundCompile] = []
        self.made: Made | None = None

    def run(self) -> _C.Variant | None:
        try:
            while True:
                with contextlib.suppress(Retrace):
                    variant = self._kept(self._trace())
                    for job in self.jobs:
                        job.submit()
                    return variant
        finally:
            self.values = ()

    def _kept(self, variant: _C.Variant | None) -> _C.Variant | None:
        """The variant, added to the code's, if its guards hold for this frame."""
        if variant is None:
            return None
        changed = self.session.memory(self.code).changed
        if not unfit.fits(variant, variant.data.guards, self.code, self.values, self.record, changed):
            return None
        _C.add_variant(self.code, variant)
        return variant

    def _trace(self) -> _C.Variant | None:
        budget = self.session.idle.budget(self.code)
        tx = Interpreter(self.record.compile_id, self.session.memory(self.code).seen, budget)
        tx.compiling_answer = self.answers.compiling
        tx.seen.traces += 1
        tx.graph.shapes.fullgraph, tx.graph.shapes.differed = self.session.choices.fullgraph, tx.seen.differed
        with overrides.stack_put_away(), rules.no_saved_tensor_hooks(), masks_put_back(), recording(tx.assumed):
            return self._run(tx)  # guarded state was read before

    def _run(self, tx: Interpreter) -> _C.Variant | None:
        frame = self._frame(tx)
        if frame is None:
            return None
        try:
            emission = self._interpret(tx, frame)
            return self._compile(tx, emission) if emission is not None else self._left_eager(tx)
        except BackendError as error:
            if config.suppress_errors:
                self.record.skipped = f"the backend raised {type(error.cause).__name__}: {error.cause}"
                return self._left_eager(tx)
            raise error.shown(self.session.choices.backend_name) from error.cause
        except (Retrace, Unsupported, RecompileLimitExceeded, ConstraintViolation, ConfigError):
            raise
        except RecursionError:
            # the program is about to get its own; what it called less deeply may still be compiled another time
            self.record.skipped = "the thread's stack has no room left to compile in"
            return None
        except MemoryError:
            # nothing that takes memory: another call may find some
            self.record.skipped = "there was no memory left to compile in"
            warnings.warn(f"dynajit: no memory left to compile {self.code.co_name} in; it runs eagerly", stacklevel=2)
            return None
        except Exception as error:
            self._internal_error(error)
            return self._eager(GuardSet())
        finally:
            self.session.idle.note(self.code, bool(tx.tensors or tx.graph.op_count))
            tx.finish()
            tx.forget()

    def _frame(self, tx: Interpreter) -> SymFrame | None:
        """The frame as it begins; None if no code can be made of it."""
        globals_ = self.function.__globals__
        if self.part is not None:
            return outermost_part(tx, self.part, globals_, self.values)
        with timer("bytecode"):
            decoded = decode(self.code)
        if decoded.refusal_whole is not None:
            self.record.skipped = decoded.refusal_whole
            _C.mark_skip(self.code)
            return None
        if policy.sets_trace_function(self.code) and not self.session.choices.fullgraph:
            self.record.skipped = "it sets a trace function"
            _C.mark_skip(self.code)
            return None
        frame = SymFrame(decoded, self.code, globals_, {}, {}, None)
        count = len(decoded.params)
        cells = list(zip(self.code.co_freevars, self.values[count:], strict=True))
        tx.start_root(decoded.params, self.values[:count], frame, cells)
        return frame

    # -- interpretation

    def _interpret(self, tx: Interpreter, frame: SymFrame) -> Emission | None:
        data_ends_graphs, first_calls = tx.seen.data_ends_graphs, len(tx.seen.first_calls)
        with timer("interpretation"):
            try:
                result = tx.run(frame)
            except GraphBreak as stop:
                # the frames it came through would keep the program's objects alive
                stop.__traceback__ = stop.__context__ = None
                if (tx.seen.data_ends_graphs and not data_ends_graphs) or len(tx.seen.first_calls) > first_calls:
                    raise Retrace from None
                if stop.at is not None:
                    stop.at.restore(tx)
                    tx.broken_frames = stop.at.frames
                finish_inside(tx)
                if tx.asked_compiling:
                    self.answers.broken(stop, tx.broken_frames or [frame])
                return self._plan(tx, frame, stop)
        assert isinstance(result, Value)
        finish_inside(tx)
        if not tx.can_stop_here():
            self.record.skipped = "it leaves a context open that only it can close"
            return None
        emission = Emission(tx, frame, self.session)
        emission.returning(result)
        obstacle = emission.obstacle()
        raised, other = emission.go_back(obstacle)
        if raised is not None and (other is not None or not self.session.choices.fullgraph):
            # only a real one has a traceback, or is another at each call
            raised.restore(tx)
            tx.broken_frames = raised.frames
            return self._plan(tx, frame, other or GraphBreak(breaks.RAISES, f"{obstacle} leaves the function"))
        if obstacle is not None and raised is None:
            self.record.skipped = f"{obstacle.describe()} leaves the function"
            return None
        if not self.is_root and tx.graph.op_count == 0:
            self.record.skipped = NOTHING
            return None
        return emission

    def _plan(self, tx: Interpreter, frame: SymFrame, stop: GraphBreak) -> Emission | None:
        """Roll back to where the break can be, and plan it."""
        chain = tx.broken_frames or [frame]
        stack = [entry.location() for entry in chain]
        users = [location for location in stack if not is_own(location.filename)] or stack
        refusal = refusal_of(stop, users, self.session.choices.fullgraph)
        if refusal is not None and not raises(stop, chain):
            raise refusal
        if stop.kind is breaks.RESIZED_LEAF:
            # autograd's node of it keeps the size that it was made with, for as long as any variable leads there
            self.record.skipped = str(stop)
            self._record_break(stop, users, None, True)
            return None
        looked_at = [*tx.guards] if refusal is not None else ()
        emission = self._first_possible(tx, frame, chain, stop, users, stack)
        if emission is None and refusal is not None and not (self.record.skipped or "").startswith(NOTHING):
            raise refusal
        for guard in looked_at:  # what the line was found to raise for
            tx.guards.add(guard)
        for relied_on in stop.relies_on:
            tx.guard(*relied_on)
        if emission is None and self.record.skipped is None:
            self.record.skipped = f"{breaks.IN_REGION.text}: {stop}"
            if self._worth_breaking(tx):
                self._record_break(stop, users, breaks.IN_REGION.text, True)
        return emission

    def _first_possible(
        self,
        tx: Interpreter,
        frame: SymFrame,
        chain: list[SymFrame],
        stop: GraphBreak,
        users: list[FrameLoc],
        stack: list[FrameLoc],
    ) -> Emission | None:
        """The code for the best plan that can be carried out."""
        fullgraph = self.session.choices.fullgraph
        refusal = refusal_of(stop, users, fullgraph)
        ends = refusal is not None or always_raises(stop, chain)
        plans = _places_to_break(tx, chain, ends)
        while (found := next(plans, None)) is not None:
            found.restore(tx)
            if not tx.can_stop_here():
                continue
            emission = Emission(tx, frame, self.session)
            emission.breaking(found, refusing(refusal), stop.kind)
            # an entry only calls what the user named: that runs as it is, and frames that it reaches are captured
            only_calls = is_own(self.code.co_filename) and len(found.frames) == 1 and found.cut is None
            if (only_calls and tx.graph.op_count == 0) or not self._worth_breaking(tx):
                self.record.skipped = f"{NOTHING} before its first break: {stop}"
                return None
            obstacle = emission.obstacle()
            if obstacle is None:
                loop = found.frames[-1].location() if found.cut is not None else None
                # what a loop is cut out for is met again in its body, where it is
                chain_shown = stack if loop is not None else stack[: len(found.frames)]
                shown = [location for location in chain_shown if location in users] or users
                lifted_from = str(stop) if found.lifted else None
                self._record_break(stop, shown, lifted_from, tx.graph.op_count > 0, loop)
                return emission
            raised, other = emission.go_back(obstacle)
            if raised is not None:
                # break where the exception is raised, or the class defined, instead
                stop = other or stop
                raised.restore(tx)
                if other is not None:
                    stack = [entry.location() for entry in raised.frames]
                    users = [location for location in stack if not is_own(location.filename)] or stack
                    refusal = refusal_of(other, users, fullgraph)
                    if refusal is not None:
                        raise refusal
                ends = refusal is not None or always_raises(stop, raised.frames)
                plans = _places_to_break(tx, raised.frames, ends)
        return None

    def _worth_breaking(self, tx: Interpreter) -> bool:
        """A frame that eager code called is cut at a break if something was compiled before, or if it has tensors."""
        return self.is_root or tx.graph.op_count > 0 or any(map(holds_tensors, self.values))

    def _record_break(
        self,
        stop: GraphBreak,
        stack: list[FrameLoc],
        lifted_from: str | None,
        compiled: bool,
        loop: FrameLoc | None = None,
    ) -> None:
        """Log the break, and count it if it cut or cost a graph (`compiled`) or is in a frame that the user named."""
        text = stack[-1].render()
        broken = BreakRecord(stop.kind.id, str(stop), stop.kind.hint, stack, text, lifted_from)
        broken.loops = [loop] if loop is not None else []
        if self.is_root or compiled:
            self.record.breaks.append(broken)
        if logs.enabled("graph_breaks"):
            text = broken.render(logs.verbose("graph_breaks"))
            logs.emit("graph_breaks", text, self.record.compile_id, (stack[-1].filename, stack[-1].lineno or 0))

    def _left_eager(self, tx: Interpreter) -> _C.Variant | None:
        tx.guard_shapes()
        nothing = (self.record.skipped or "").startswith(NOTHING)
        idle = nothing and not (self.is_root or tx.tensors or any(map(holds_tensors, self.values)))
        variant = self._eager(guards := tx.guards.of_any_value() if idle else tx.guards)
        if variant is not None and nothing:
            self.made = Made(self.function, None, guards, (), tx.assumed, None, None, self.session, True)
        return variant

    def _eager(self, guards: GuardSet) -> _C.Variant | None:
        """The frame runs eagerly where these guards hold; what it calls is still captured.

        That is a variant, because other sessions may think otherwise, and so may this one when the guards fail. A frame
        that made nothing several times, and never anything else, isn't looked at again.
        """
        others = _C.variants(self.code)
        if self.part is None and decode(self.code).refusal is not None:
            _C.mark_skip(self.code)  # a copy has its names in another order
            return None
        if not self.is_root and len(others) >= EAGER_LIMIT and all(is_eager(variant) for variant in others):
            _C.mark_skip(self.code)
            return None
        if any(type(value) is types.CellType and value == types.CellType() for value in self.values):
            # reading an empty cell raises an error that only the original words right
            if not self.is_root and self.code in self.session.left_with_empty_cells:
                _C.mark_run_only(self.code)
            self.session.left_with_empty_cells.add(self.code)
            return None
        session, globals_ = self.session, self.function.__globals__
        return eager_variant(session, self.code, self.part, guards, globals_, self.record.compile_id)

    def _internal_error(self, error: Exception) -> None:
        """A fault of dynajit's own: the frame runs eagerly, loudly."""
        counters["internal_errors"][type(error).__name__] += 1
        text = "".join(traceback.format_exception(error))
        warnings.warn(
            f"dynajit failed while compiling {self.code.co_name} ({self.code.co_filename}:{self.code.co_firstlineno}); "
            f"it runs eagerly. Please report this:\n{text}",
            stacklevel=2,
        )
        self.record.skipped = f"{breaks.INTERNAL.text}: {type(error).__name__}: {error}"

    # -- compilation

    def _differentiates_at_once(self, inputs: Sequence[GraphInput]) -> bool:
        """Whether each operation does more than it gives: computes tangents, or has hooks called with what it saves."""
        return any(map(_is_dual, inputs)) or (self.user_hooks and any(map(_needs_grad, inputs)))

    def _compile(self, tx: Interpreter, emission: Emission) -> _C.Variant:
        outputs = emission.outputs()
        settle(tx, outputs)
        graph, module, called = tx.graph, None, None
        seen = outputs or graph.impure or graph.checks or self._differentiates_at_once(graph.inputs)
        if graph.op_count and (seen or graph.may_raise() or graph.writes_inputs()):
            module, inputs = graph.finish([value.node for value in outputs])
            self._note_code(module, emission)
            module, compiled = self._graph_call(tx, module, inputs)
            draws = graph.impure and graph.may_raise() and graph.only_draws()
            kept = kept_for_undo(module)
            written = {id(entry) for entry in graph.written()}
            mutated = [place for place, entry in enumerate(inputs) if entry.mutated or id(entry) in written]
            if graph.checks and graph.undo() is not None:
                kept = mutated  # a check is asked first, and the backend need not say where an exception comes from
            pure = kept == mutated and (draws or not graph.impure)
            if draws or kept:
                alone = compiled.gives_only_result
                compiled = _C.GraphCall(Undoing(compiled, kept, draws))
                compiled.gives_only_result = alone
            again = self._rerun(tx, emission, module, pure, bool(mutated))
            emission.make_calls(late=False, runs_again=again is not None)
            emission.call_graph(compiled, inputs, outputs, again)
            called = compiled
        else:
            emission.make_calls(late=False)
        emission.make_calls(late=True)
        with timer("bytecode"):
            code = emission.finish()
        self.record.effects = emission.effects()
        with timer("guards"):
            # last, since writing a value into the code may depend on it
            tx.guard_shapes()
            tx.guard_aliases()
            tx.guard_writes()
            if called is None:
                tx.guard_less()
            guards = tx.guards
            if self.session.choices.guard_filter is not None:
                guards = guards.filtered(self.session.choices.guard_filter)
            tx.guard_libraries(guards)
            program = guards.build(len(self.values), self.function.__globals__, emission.handed)
        self._log(tx, code)
        made = Made(self.function, code, guards, emission.handed, tx.assumed, module, called, self.session)
        return self._variant(tx, emission, code, made, program)

    def _note_code(self, module: fx.GraphModule, emission: Emission) -> None:
        """Tell the backend what the code around the graph does with its results, and what its backward reads."""
        frames = emission.plan.frames if emission.plan is not None else ()
        codes = (self.code, *(frame.code_object for frame in frames))
        inside, versions = any(map(_differentiates, codes)), any("_version" in code.co_names for code in codes)
        state = backward_state_of(module)
        note_graph(module, differentiated_inside=inside, versions_read=versions, backward_state=state)

    def _variant(
        self, tx: Interpreter, emission: Emission, code: types.CodeType, made: Made, program: _C.GuardProgram
    ) -> _C.Variant:
        _C.mark_ours(code)
        function = types.FunctionType(code, self.function.__globals__, self.code.co_name)
        made_anew = frozenset(self.session.memory(self.code).seen.made_anew)
        role = role_of(self.code, made.guards)
        changes, ways = emission.changed_places(), tx.decisions.ways.copy()
        parts = emission.parts if made.graph is None else None
        data = VariantData(made.guards, self.record.compile_id, False, made_anew, role, changes, ways, parts)
        hook = emission.plan is not None
        self.made = made._replace(needs_hook=hook)
        return _C.Variant(program, function, hook, self.function.__globals__, data, self.session, turn_of(hook))

    def _rerun(
        self, tx: Interpreter, emission: Emission, module: fx.GraphModule, pure: bool, mutates: bool
    ) -> Rerun | None:
        """What is called if the graph raises; None where there is nothing to do then."""
        graph, before = tx.graph, tx.exceptions.by_graph
        restored = before.source.index if before is not None and isinstance(before.source, LocalSource) else None
        own, globals_ = self._own_backend(), self.function.__globals__
        rerun = Rerun(self.code, self.part, globals_, module, pure, own, restored, graph.only_draws())
        # a generator's state is long, and is not kept at each call for a graph that always runs through
        sure = rerun.pure and not mutates and not graph.may_raise() and rerun.only_runs_again()
        return rerun if rerun.needed() and not (sure and emission.changes_states()) else None

    def _graph_call(
        self, tx: Interpreter, module: fx.GraphModule, inputs: Sequence[GraphInput]
    ) -> tuple[fx.GraphModule, _C.GraphCall]:
        """The graph, compiled; a part's variants share what is the same."""
        tx.entry_state.restore()
        known = self.session.memory(self.code).graphs
        key = graph_key(module, inputs) if "_continues" in self.function.__dict__ else None
        if key is not None and key in known:
            if self.record.breaks:
                self.record.breaks[-1].handed_over = _output_bytes(module)
            return known[key]
        made = module, self._call_backend(tx, module, inputs)
        if key is not None:
            known[key] = made
        return made

    def _call_backend(self, tx: Interpreter, module: fx.GraphModule, inputs: Sequence[GraphInput]) -> _C.GraphCall:
        nodes = [node for node in module.graph.nodes if node.op.startswith("call")]
        traces = [node.meta.get("stack_trace") or "" for node in nodes]
        graph = GraphRecord(
            self.record.compile_id,
            tx.graph.op_count,
            module,
            next(filter(None, map(user_place, traces)), None),
            next(filter(None, map(user_place, reversed(traces))), None),
            self.record.breaks[-1].reason if self.record.breaks else "return",
            _output_bytes(module),
        )
        self.record.graphs.append(graph)
        if self.record.breaks:
            self.record.breaks[-1].handed_over = graph.output_bytes
        if logs.enabled("graph_code"):
            more = logs.verbose("graph_code")
            logs.emit("graph_code", module.print_readable(False, include_stride=more, include_device=more))
        if debug.enabled():
            self._write_graph(module, inputs)
        own = self._own_backend()
        examples = [tx.graph.example(entry) if own or entry.symbol is not None else entry.real for entry in inputs]
        kinds: set[Any] = {type(entry.real) for entry in inputs}
        quiet = bool(tx.overrides.entered[1]) or any(map(overrides.overriding, kinds))
        # fake tensors have no tangents of forward-mode differentiation, and compiled graphs compute none; what a
        # compiled graph saves for its backward pass is not what eager saves, and shows it to hooks
        as_captured = self._differentiates_at_once(inputs)
        backend = _as_captured if as_captured else self.session.choices.backend
        every = self.session.choices.verify or config.verify
        original = copy.deepcopy(module) if every else None  # a backend may change the module that it is given
        shapes, text = tx.graph.shapes, f"{self.record.compile_id} {self.code.co_name}"
        name = f"graph {len(self.record.graphs)} of {text}"

        def make(backend: Callable[..., Any]) -> Any:
            try:
                with timer("backend"), torch._C.DisableTorchFunction() if quiet else contextlib.nullcontext():
                    compiled = backend(module, examples, **self.session.choices.options)
            except Exception as error:
                if isinstance(error, RecursionError) and rules.is_deep():
                    raise
                if not (shapes.unknowns and is_data_dependent(error)):
                    raise BackendError(error, module.print_readable(print_output=False), _places(nodes)) from error
                compiled = module.forward  # which decides by the numbers that were drawn
            if not callable(compiled):
                cause = TypeError(f"the backend returned {type(compiled).__name__}, which can't be called")
                raise BackendError(cause, module.print_readable(print_output=False), _places(nodes))
            compiled = _asking_nobody(compiled) if quiet else compiled
            return VerifiedGraph(original, compiled, name, every) if original is not None else compiled

        later = self.session.choices.background and not as_captured and background.possible(shapes)
        compiled = make(eager if later else backend)
        alone = only_result(compiled) if isinstance(compiled, _C.GraphTape) and not later else None
        call = _C.GraphCall(alone or compiled, f"dynajit {text}", _is_flat(compiled))
        call.gives_only_result = alone is not None
        if later:
            made = functools.partial(_made_later, make, backend, self.session.choices.backend_name)
            self.jobs.append(background.BackgroundCompile(call, made, examples, shapes, tx.entry_state, self.record))
        return call

    def _write_graph(self, module: fx.GraphModule, inputs: Sequence[GraphInput]) -> None:
        """The captured graph in the debug folder."""
        debug.write("fx_graph_readable.py", module.print_readable(print_output=False))
        folder = debug.folder() if config.debug_inputs else None
        if folder is not None:
            torch.save([entry.real for entry in inputs], folder / "inputs.pt")
        backend = self.session.choices.backend_name if self.session.choices.backend_name in list_backends() else "eager"
        text = runnable.script(module, [entry.fake for entry in inputs], backend, "inputs.pt" if folder else None)
        debug.write("fx_graph_runnable.py", text)

    def _own_backend(self) -> bool:
        return bool(getattr(self.session.choices.backend, "__module__", "").startswith("dynajit."))

    def _log(self, tx: Interpreter, code: types.CodeType) -> None:
        self.record.guards = [
            GuardRecord(guard.describe(), guard.source.name() if guard.source else "", guard.user_loc)
            for guard in tx.guards
        ]
        if logs.enabled("guards") or debug.enabled():
            lines = [guard.render(logs.verbose("guards")) for guard in self.record.guards]
            logs.emit("guards", "\n".join(lines))
            debug.write("guards.txt", "\n".join(lines) + "\n")
        if logs.enabled("bytecode") or debug.enabled():
            shown = self.part.whole if self.part is not None else self.code
            text = f"{pretty(shown)}\nbecomes\n{pretty(code)}"
            logs.emit("bytecode", text)
            debug.write("bytecode.txt", text)
        if logs.enabled("perf"):
            logs.emit("perf", times.one_compile(self.record, logs.verbose("perf")))


def _places_to_break(tx: Interpreter, chain: list[SymFrame], raises: bool) -> Iterator[ResumePlan]:
    """Plans for the break, the nearest first; the last resort is where a context was entered that must not be open."""
    opened = tx.opened_at
    yield from plan_breaks(chain, raises)
    if opened is not None:
        for state in opened.states:
            state.restore()
        yield from plan_breaks(opened.frames)


def _is_idle(session: Session, code: types.CodeType, function: types.FunctionType) -> bool:
    """Whether this is the rest of a function in which nothing was found to compile so far."""
    return not session.choices.fullgraph and "_continues" in function.__dict__ and session.idle.given_up(code)


def _output_bytes(module: fx.GraphModule) -> int | None:
    """Bytes of the tensors that the graph returns; None if a size is symbolic."""
    total = 0
    for node in module.graph.output_node().all_input_nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            if not all(type(size) is int for size in value.shape):
                return None
            total += value.numel() * value.element_size()
    return total


def _is_dual(entry: GraphInput) -> bool:
    return isinstance(entry.real, torch.Tensor) and _C.tensor_is_dual(entry.real)


def _needs_grad(entry: GraphInput) -> bool:
    return isinstance(entry.real, torch.Tensor) and entry.real.requires_grad


def _as_captured(module: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The graph, operator by operator."""
    return run_again(module)


def _made_later(make: Callable[..., Any], backend: Any, name: str) -> tuple[Callable[..., Any], bool]:
    """The compiled graph and whether it is flat; raises the user's error."""
    try:
        compiled = make(backend)
    except BackendError as error:
        raise error.shown(name) from error.cause
    return compiled, _is_flat(compiled)


def _asking_nobody(call: Callable[..., Any]) -> Callable[..., Any]:
    """What `__torch_function__` of modes and inputs does was traced; it must not be done again to the graph's calls."""

    def call_quietly(*inputs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return call(*inputs)

    return call_quietly


def _differentiates(code: types.CodeType) -> bool:
    """Whether the program asks for gradients of tensors that it computes, by the names in its code."""
    names = set(code.co_names)
    return not names.isdisjoint(("retain_grad", "register_hook")) or {"autograd", "grad"} <= names


def _places(nodes: Sequence[fx.Node]) -> list[FrameLoc]:
    """The user's lines that the first and the last operation of a graph come from."""
    ends = (nodes[0], nodes[-1]) if nodes else ()
    traces = [trace_locations(node.meta.get("stack_trace") or "") for node in ends]
    return list(dict.fromkeys(trace[-1] for trace in traces if trace))
