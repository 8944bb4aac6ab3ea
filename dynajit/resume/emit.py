"""The code that takes a frame's place.

In: the interpreter after a return or a break, the compiled graph. Out: a code object whose parameters are the frame's
parameters and then its free variables' cells. Order: the graph's inputs are read, the graph is called, objects are
made, effects happen, then the return value or the breaking instruction with the continuations of all frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType
from typing import Any

import torch

from dynajit.bytecode import Emitter, InnerCall, Instr
from dynajit.bytecode.canonical import TERMINATORS
from dynajit.graph.builder import GraphInput
from dynajit.interp.frame import SymFrame
from dynajit.interp.machine import DELETED, Interpreter
from dynajit.resume.inside import instruction_function
from dynajit.resume.plan import Plan, Resume, operands, resume_after
from dynajit.resume.rebuild import Rebuilder, in_cycles, reachable
from dynajit.values.base import NULL, Value
from dynajit.values.tensor import TensorVal

# makes the function of a continuation: (how the frame goes on, the callee's continuation and its number of arguments,
# whether it is the outermost frame's) -> callable
MakeContinuation = Callable[[Resume, InnerCall | None, bool], Callable[..., Any]]
_UNBOUND = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "DELETE_FAST", "LOAD_DEREF", "DELETE_DEREF"})
_KEEPS_OPERAND = frozenset({"JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"})
_JUMPS = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"}) | _KEEPS_OPERAND


class Emission:
    """One replacement code object."""

    def __init__(self, tx: Interpreter, root: SymFrame, make_continuation: MakeContinuation) -> None:
        self.tx = tx
        self.root = root
        self.make_continuation = make_continuation
        self.emit = Emitter()
        self.out = Rebuilder(self.emit)
        self.results: list[Value] = []
        self.resumes: list[tuple[bool, list[Resume]]] = []
        self.operands: list[Value] = []
        self.plan: Plan | None = None
        self.exit_grad = torch.is_grad_enabled()

    # -- what has to exist

    def returning(self, value: Value) -> None:
        """The frame returns this value."""
        self.results = [value]

    def breaking(self, plan: Plan) -> None:
        """The frame breaks at the current instruction of the plan's innermost frame."""
        self.plan = plan
        inner = plan.frames[-1]
        self.operands = operands(inner)
        outer = [resume_after(frame) for frame in plan.frames[:-1]]
        if inner.current.op in TERMINATORS:
            return
        self.resumes = [(False, [*outer, resume_after(inner)])]
        if inner.current.op in _JUMPS:
            self.resumes.append((True, [*outer, resume_after(inner, True)]))

    def roots(self) -> list[Any]:
        """All values that the code pushes."""
        found: list[Any] = [*self.results, *self.operands]
        for _, chain in self.resumes:
            for resume in chain:
                found.extend(resume.stack)
                found.extend(_local(resume.frame, name) for name in resume.locals)
                found.extend(resume.frame.cells[name] for name in resume.cells)
        for value in self.tx.journal.dirty.values():
            found.extend(value.effect_children())
        found.extend(value for _, value in self.tx.globals_written.values() if value is not DELETED)
        return [value for value in found if isinstance(value, Value) and value is not NULL]

    def outputs(self) -> list[TensorVal]:
        """The tensors that the graph has to return."""
        return [value for value in reachable(self.roots()) if isinstance(value, TensorVal) and value.source is None]

    def obstacle(self) -> Value | None:
        """A value that the code would have to push and can't."""
        return next((value for value in reachable(self.roots()) if not value.rebuildable()), None)

    # -- the code

    def call_graph(self, graph: Callable[..., Any], inputs: Sequence[GraphInput], outputs: Sequence[TensorVal]) -> None:
        """Call the compiled graph and keep its outputs in variables."""

        def push_inputs() -> None:
            for entry in inputs:
                self.out.load(entry.source)

        for entry in inputs:
            self.out.ensure_source(entry.source)
        self.emit.call_function(lambda: self.emit.load_const(graph), push_inputs, len(inputs))
        if len(outputs) == 0:
            self.emit.pop_top()
            return
        self.emit.unpack_sequence(len(outputs))
        for value in outputs:
            name = self.out.variable("tensor")
            self.emit.store_fast(name)
            self.out.bind(value, name)

    def finish(self) -> CodeType:
        """Objects, effects, and the end of the code."""
        roots = self.roots()
        self.out.cyclic = in_cycles(reachable(roots))
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
        code = self.root.code_object
        params = [*self.root.code.params, *code.co_freevars]
        cells = frozenset([*self.root.code.passed_cells, *code.co_freevars])
        return self.emit.assemble(code.co_name, params, cells, code, code.co_qualname)

    def _effects(self) -> None:
        for value in self.tx.journal.dirty.values():
            value.emit_effect(self.out)
        for (_, name), (globals_, value) in self.tx.globals_written.items():
            self._store_global(globals_, name, value)
        grad = self.exit_grad
        if grad != self.tx.entry_state.grad:
            self.out.call_const(torch._C._set_grad_enabled, lambda: self.out.const(grad), 1)
            self.emit.pop_top()

    def _store_global(self, globals_: dict[str, Any], name: str, value: Any) -> None:
        if value is DELETED:
            self.out.call_const(dict.pop, lambda: self.out.consts(globals_, name, None), 3)
            self.emit.pop_top()
            return
        self.out.push(value)
        self.out.const(globals_)
        self.out.const(name)
        self.emit.store_subscr()

    def _break(self, plan: Plan) -> None:
        """Run the breaking instruction for real, then the continuations from the innermost frame outwards."""
        instr = plan.frames[-1].current
        if len(plan.frames) > 1 and instr.op not in _KEEPS_OPERAND:
            self._run_inside(plan)
        else:
            self.emit.set_location(instr.positions)
            for value in self.operands:
                self.out.push(value)
            if instr.op in _UNBOUND:
                self._unbound(instr)
            if len(self.resumes) < 2:
                self.emit.rerun(instr)
        if len(self.resumes) == 2:
            jumped = self.emit.label()
            self.emit.rerun(instr, jumped)
            self._continue(self.resumes[0][1])
            self.emit.mark(jumped)
            self._continue(self.resumes[1][1])
        elif self.resumes:
            self._continue(self.resumes[0][1])

    def _unbound(self, instr: Instr) -> None:
        """The instruction breaks because its variable is unbound; here it might be bound, or of another kind."""
        if instr.arg in self.root.code.params:
            self.emit.delete_fast(instr.arg)
        elif instr.arg in self.root.code.freevars:
            text = (
                f"cannot access free variable '{instr.arg}' where it is not associated with a value in enclosing scope"
            )
            self.out.call_const(NameError, lambda: self.out.consts(text, instr.arg), 2, ("name",))
            self.emit.op("RAISE_VARARGS", 1)

    def _run_inside(self, plan: Plan) -> None:
        """Run the instruction at its place in the inlined frames; leaves what it pushes, or a branch's condition."""
        self.emit.set_location(self.root.current.positions)
        function = instruction_function(plan.frames[1:], self.operands)
        self._call(function, [partial(self.out.push, value) for value in self.operands if value is not NULL])
        if not self.resumes:
            self.emit.return_value()  # not reached: the instruction raises
            return
        count = self.resumes[0][1][-1].pushes.count("value")
        if len(self.resumes) == 1 and count == 0:
            self.emit.pop_top()
        elif count > 1:
            self.emit.unpack_sequence(count)
            names = [self.out.variable("pushed") for _ in range(count)]
            for name in names:
                self.emit.store_fast(name)
            for name in names:
                self.emit.load_fast(name)

    def _continue(self, chain: Sequence[Resume]) -> None:
        """Call the outermost frame's continuation, which calls the next one inwards where the user's code did."""
        results = [self.out.variable("result") for _ in range(chain[-1].pushes.count("value"))]
        for name in reversed(results):
            self.emit.store_fast(name)
        inner: InnerCall | None = None
        pushes: list[Callable[[], None]] = [partial(self.emit.load_fast, name) for name in results]
        for resume in reversed(chain):
            outermost = resume is chain[0]
            function = self.make_continuation(resume, inner, outermost)
            slots = [partial(self.out.push, value) for value in resume.stack if value is not NULL]
            named = [partial(self.out.push, _local(resume.frame, name)) for name in resume.locals]
            cells = [partial(self.out.push, resume.frame.cells[name]) for name in resume.cells]
            own, pushes = ([], pushes) if inner is not None else (pushes, [])
            pushes = [*slots, *own, *named, *cells, *pushes]
            inner = InnerCall(function, len(pushes))
        self._call(function, pushes)
        self.emit.return_value()

    def _call(self, function: Callable[..., Any], pushes: Sequence[Callable[[], None]]) -> None:
        def push() -> None:
            for push_one in pushes:
                push_one()

        self.emit.call_function(lambda: self.emit.load_const(function), push, len(pushes))


def _local(frame: SymFrame, name: str) -> Any:
    """A local's value, or the unread parameter itself."""
    boxes = getattr(frame.locals, "boxes", {})
    return boxes[name] if name in boxes else frame.locals[name]
