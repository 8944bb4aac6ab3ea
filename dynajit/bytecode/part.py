"""A function that goes on in the middle of another: what stands for it until its code is needed.

In: a decoded `Code`, the instruction to go on at, and what is passed. Out: `Part`, and from it a stub: a function of
a few instructions with the right parameters, name, file and line. Whoever captures the stub's frame looks the part up
(`part_of`) and starts in the middle of the original's instructions, so nothing is decoded or analysed again however
many breaks a function has. Only where a stub has to run uncaptured is the rest of the function assembled (`whole`),
once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from types import CodeType, FunctionType
from typing import Any, Final

from dynajit.bytecode.assemble import Emitter, SlotKind
from dynajit.bytecode.cfg import Loop, depths, loops, regions
from dynajit.bytecode.continuation import InnerCall, build_continuation, build_copy, check_cells, new_names, stack_names
from dynajit.bytecode.decode import Code, Instr, decode


class Part:
    """The rest of `code` from instruction `index` on, as `build_continuation` describes it.

    Attributes:
        slots: names of the parameters for the stack's values.
        inputs: names of those for the call of `inner`.
        names: all parameters: slots, locals, shared, cells, inputs.
        cell_names: those that are passed as cells.
    """

    def __init__(
        self,
        code: Code,
        index: int,
        stack: Sequence[SlotKind],
        locals_: Sequence[str],
        cells: Sequence[str],
        inner: InnerCall | None = None,
        shared: Sequence[str] = (),
        throw: bool = False,
    ) -> None:
        check_cells(code, index, cells, inner)
        self.code = code
        self.index = index
        self.stack = tuple(stack)
        self.locals = tuple(locals_)
        self.shared = tuple(shared)
        self.cells = tuple(cells)
        self.inner = inner
        self.throw = throw
        taken = {*code.code.co_varnames, *code.cellvars, *code.freevars}
        self.slots = tuple(stack_names(code, index, self.stack.count("value")))
        self.inputs: tuple[str, ...] = ()
        if inner is not None:
            self.inputs = inner.names or tuple(new_names("inner", inner.argc, taken))
        passed = [f".{name}" for name in self.shared]  # the local of that name may be unbound
        self.names = (*self.slots, *self.locals, *passed, *self.cells, *self.inputs)
        self.cell_names = frozenset((*passed, *self.cells))

    @cached_property
    def handled(self) -> int | None:
        """Which parameter is the exception (or None) that was being handled before the outermost of the handlers that
        the part starts in: what the frame restores when it is left."""
        for region in regions(self.code)[self.index]:
            if region.kind == "except" and region.start != self.index:
                depth = depths(self.code)[region.start] - 1  # there PUSH_EXC_INFO puts it below the exception
                return self.stack[:depth].count("value")
        return None

    @cached_property
    def whole(self) -> CodeType:
        """Code that runs by itself."""
        return build_continuation(
            self.code, self.index, self.stack, self.locals, self.cells, self.inner, self.shared, self.throw
        )

    @property
    def loops(self) -> list[Loop]:
        """The code's loops. One whose header is where the part begins has its iterator on the stack already."""
        found = loops(self.code)
        return [loop._replace(entry=loop.header) if loop.header == self.index else loop for loop in found]

    @property
    def calling(self) -> int:
        """The instruction that the call of `inner` stands for."""
        return self.index - 1 if self.inner is None else self.inner.place(self.index)

    @property
    def instrs(self) -> list[Instr]:
        """The code's instructions. The one that called calls `inner` instead of what the program called there."""
        instrs = self.code.instrs
        if self.inner is None:
            return instrs
        calling, inner = instrs[self.calling], self.inner
        call = Instr(calling.index, "CALL", (inner.argc, ()), calling.positions, calling.raw)
        if not inner.action.plain:
            call.op, call.arg = "CALL_INNER", (inner.argc, inner.action, calling)
        call.handler, call.handler_depth = calling.handler, calling.handler_depth
        call.handler_lasti = calling.handler_lasti
        changed = instrs.copy()
        changed[call.index] = call
        return changed

    def split(self, values: Sequence[Any]) -> Iterator[list[Any]]:
        """Arguments by kind, in the order of `names`: slots, locals, shared, cells, inputs."""
        start = 0
        for group in (self.slots, self.locals, self.shared, self.cells, self.inputs):
            yield list(values[start : start + len(group)])
            start += len(group)

    def function(
        self, globals_: dict[str, Any], tail: Callable[..., Any], shielded: Callable[..., Any], make: MakeWhole
    ) -> FunctionType:
        """The function that stands for the part: it returns `tail(whole, *arguments)`, where `whole` is what `make`
        makes, called through `shielded`, at the first time."""
        original, parameters = self.code.code, self.names
        template = _template(len(parameters))
        maker = _Maker()
        given = {id(_TAIL): tail, id(_MAKE): partial(shielded, maker)}
        code = template.replace(
            co_consts=tuple(given.get(id(const), const) for const in template.co_consts),
            co_varnames=parameters,
            co_name=original.co_name,
            co_qualname=original.co_qualname,
            co_filename=original.co_filename,
            co_firstlineno=original.co_firstlineno,
            # its frame becomes the frame of what takes the part's place, and so has to have room for that
            co_stacksize=template.co_stacksize + original.co_stacksize + original.co_nlocals + _ROOM,
        )
        function = FunctionType(code, globals_, original.co_name)
        # All that could refer back to here hangs on the function: the collector does not look into code objects.
        function.__dict__[_PART] = self
        function.__dict__[_MAKES] = make
        maker.function = weakref.ref(function)
        key = id(code)
        _stubs[key] = weakref.ref(code, lambda _: _stubs.pop(key, None) and None)
        return function


MakeWhole = Callable[[Part, FunctionType], Callable[..., Any]]


class _Maker:
    """What a stub's code calls when it runs; keeps what was made on the stub."""

    def __init__(self) -> None:
        self.function: Callable[[], FunctionType | None] = lambda: None

    def __call__(self) -> Callable[..., Any]:
        function = self.function()
        assert function is not None
        kept = function.__dict__
        if _WHOLE not in kept:
            kept[_WHOLE] = kept[_MAKES](kept[_PART], function)
        whole: Callable[..., Any] = kept[_WHOLE]
        return whole


_PART, _MAKES, _WHOLE = "_continues", "_make_whole", "_whole"
_ROOM: Final = 32
_TAIL: Final = object()
_MAKE: Final = object()
_stubs: dict[int, weakref.ref[CodeType]] = {}


def part_of(function: FunctionType) -> Part | None:
    """What a stub stands for; None for other functions."""
    reference = _stubs.get(id(function.__code__))
    if reference is None or reference() is not function.__code__:
        return None
    found: Part = function.__dict__[_PART]
    return found


def copy_of(code: CodeType, part: Part | None) -> CodeType:
    """Code that does just what `code` does, or what it stands for; all parameters by position, then the cells of its
    free variables."""
    return part.whole if part is not None else build_copy(decode(code))


@lru_cache(maxsize=64)
def _template(count: int) -> CodeType:
    """A stub with so many parameters."""
    emitter, names = Emitter(), [f"p{number}" for number in range(count)]
    emitter.begin_call(lambda: emitter.load_const(_TAIL))
    emitter.begin_call(lambda: emitter.load_const(_MAKE))
    emitter.end_call(0)
    for name in names:
        emitter.load_fast(name)
    emitter.end_call(1 + count)
    emitter.return_value()
    return emitter.assemble("stub", names, (), _template.__wrapped__.__code__)
