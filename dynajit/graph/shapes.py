"""Symbolic sizes and numbers of one frame: torch's ShapeEnv, where its symbols come from, and what it decided.

In: real tensors and numbers with their sources, and what of them is symbolic (`seen.py`). Out: fake tensors with
symbolic sizes, symbolic numbers; at the end `relations()`, what has to hold of sizes and numbers for the trace to be
right. The ShapeEnv is made when the first symbol is needed: frames without one never pay for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import Source as TorchSource

from dynajit import symbols, torch_compat
from dynajit.config import config
from dynajit.exc import ConstraintViolation, InternalError
from dynajit.graph import lazy_dynamo
from dynajit.graph.fake import FakeMode
from dynajit.graph.seen import Dimensions, Mark
from dynajit.guards.source import SizeSource, Source, StrideSource
from dynajit.report.records import FrameLoc
from dynajit.symbols import Tree, last_position

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


class ShapeSource(TorchSource):
    """A source as torch's ShapeEnv wants one: something with a name."""

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def _name_template(self) -> str:
        return self._text


class Symbol(NamedTuple):
    """A symbol: where its number comes from, the number at hand, the user's mark, and where it was first met."""

    source: Source
    hint: Any
    mark: Mark | None
    sympy: Any
    loc: FrameLoc | None


class Related(NamedTuple):
    """A relation to be guarded: tree, the names in it with their sources, the user's line, and why."""

    tree: Tree
    sources: dict[str, Source]
    loc: FrameLoc | None
    note: str


class Shapes:
    """The symbols of one frame."""

    def __init__(self, locate: Callable[[], FrameLoc | None]) -> None:
        lazy_dynamo.postpone()
        self.locate = locate
        self._env: ShapeEnv | None = None
        self.symbols: dict[str, Symbol] = {}
        self._numbers: dict[Source, str] = {}
        # numbers other than a symbol's first, and what they have to equal
        self._bound: list[tuple[Source, Any, FrameLoc | None]] = []
        self._places: list[FrameLoc | None] = []
        #: symbols that only the running program knows the number of
        self.unknowns: set[str] = set()
        #: numbers that were other ones in each variant so far (`seen.py`)
        self.varying: set[Source] = set()
        #: and those of which operations took one number alone
        self.settled: set[Source] = set()
        #: whether two sizes were different in an earlier trace: that they are equal now is chance
        self.differed: Callable[[Source, Source], bool] = lambda size, other: False
        #: takes a decision that values which vary are asked for (`interp/decisions.py`)
        self.decide: Callable[..., Any] = lambda ask, of_type=False: ask()
        #: whether a break would be an error: what depends on data is then captured whatever the settings
        self.fullgraph = False

    @cached_property
    def mode(self) -> FakeMode:
        """torch's fake mode, made when there is a first tensor: many a frame has none."""
        return FakeMode(allow_non_fake_inputs=False)

    @property
    def active(self) -> bool:
        """Whether there is any symbol."""
        return self._env is not None

    @property
    def asked_for_scalars(self) -> bool:
        """Whether the user wants numbers read from tensors in the graph."""
        return self.fullgraph or config.capture_scalar_outputs

    @property
    def captures_scalars(self) -> bool:
        """Whether a number read from a tensor is a symbol of the graph. Inside of torch.func's transforms it is, for a
        break there would leave the whole transform to eager mode."""
        return self.asked_for_scalars or torch._C._functorch.peek_interpreter_stack() is not None

    @property
    def captures_sizes(self) -> bool:
        """Whether a size that depends on data is a symbol of the graph."""
        return self.fullgraph or config.capture_dynamic_output_shape_ops

    @property
    def env(self) -> ShapeEnv:
        """torch's ShapeEnv, made at first use."""
        if self._env is None:
            self._env = torch_compat.quiet_shape_env(
                allow_scalar_outputs=self.asked_for_scalars, allow_dynamic_output_shape_ops=self.captures_sizes
            )
            self.mode.shape_env = self._env
            self.mode.static_shapes = False
        return self._env

    # -- making symbols

    def tensor(self, real: torch.Tensor, source: Source, dimensions: Dimensions) -> tuple[torch.Tensor, Any, Any]:
        """A fake tensor; its sizes and strides with None where they are symbolic."""
        sizes = []
        for at, size in enumerate(real.shape):
            mark = dimensions.sizes.get(at)
            if size == 1 and not real.numel():
                mark = None  # jagged tensors keep numbers as sizes of tensors without elements, and mark these
            sizes.append(self._size(SizeSource(source, at), size, mark))
        strides = self._strides(real, source, sizes, dimensions.strides)
        fake = self._empty(real, sizes, strides)
        return fake, [_known(size) for size in sizes], [_known(stride) for stride in strides]

    def _size(self, source: Source, size: int, mark: Mark | None) -> int | torch.SymInt:
        if mark is None or size in (0, 1):
            if mark is not None and mark.kind == "dynamic":
                raise ConstraintViolation(
                    f"{source.name()} was marked dynamic and is {size}: sizes 0 and 1 are always specialised, as they "
                    "decide what broadcasts",
                    hint="mark a tensor whose size is 2 or more, or use maybe_mark_dynamic",
                )
            return size
        equal = self.symbols.get(str(self.env.val_to_var.get(size)))  # torch would take its symbol
        duck = mark.kind != "dynamic" and mark.low is None and mark.high is None
        duck = duck and (equal is None or not self.differed(source, equal.source))
        found = self._symbol(source, size, mark, duck, positive=True)
        self._limit(found, mark)
        return found

    def _symbol(self, source: Source, number: Any, mark: Mark | None, duck: bool, positive: bool) -> Any:
        """A symbol for the number, or the one that another equal size has."""
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        env, adapter = self.env, ShapeSource(source.name())
        expr = env.create_symbol(
            number,
            adapter,
            DimDynamic.DUCK if duck else DimDynamic.DYNAMIC,
            positive=True if positive else None,
            do_not_specialize_zero_one=not positive,
        )
        loc = self.locate()
        if str(expr) in self.symbols:
            self._bound.append((source, expr, loc))
        else:
            self.symbols[str(expr)] = Symbol(source, number, mark, expr, loc)
        return self.symbolic(self.symbols[str(expr)])

    def symbolic(self, symbol: Symbol) -> Any:
        """A SymInt or SymFloat of the symbol."""
        hint = None if str(symbol.sympy) in self.unknowns else symbol.hint
        create = self.env.create_symfloatnode if type(symbol.hint) is float else self.env.create_symintnode
        return create(symbol.sympy, hint=hint)

    def _limit(self, size: Any, mark: Mark) -> None:
        from torch.utils._sympy.value_ranges import ValueRanges

        if mark.low is None and mark.high is None:
            return
        expr, env = size.node.expr, self.env
        known = env.var_to_range[expr]
        low = known.lower if mark.low is None else max(mark.low, 2)
        high = known.upper if mark.high is None else mark.high
        hint = self.symbols[str(expr)].hint
        if hint < low or hint > high:
            raise ConstraintViolation(
                f"{self.symbols[str(expr)].source.name()} is {hint}, outside of the range {low} to {high} that it was "
                "marked with",
                hint="correct the range given to mark_dynamic",
            )
        env.var_to_range[expr] = known & ValueRanges(low, high)

    def _strides(self, real: torch.Tensor, source: Source, sizes: Sequence[Any], varying: frozenset[int]) -> list[Any]:
        """Strides in terms of sizes where they follow from them; a stride that varies by itself has its own symbol."""
        from torch.fx.experimental.symbolic_shapes import DimDynamic  # noqa: F401  the module may be new to the process

        found: list[Any] = [None] * len(sizes)
        products: dict[int, Any] = {}
        for at in sorted(range(len(sizes)), key=lambda at: (real.stride(at), -at)):
            stride = real.stride(at)
            known = products.get(stride)
            if stride in (0, 1) or (known is None and at not in varying):
                known = stride
            elif known is None:
                known = self._symbol(StrideSource(source, at), stride, None, False, positive=True)
            elif not isinstance(known, int):
                self._bound.append((StrideSource(source, at), known.node._expr, self.locate()))
            found[at] = known
            products.setdefault(stride * real.shape[at], known * sizes[at])
        return found

    def _empty(self, real: torch.Tensor, sizes: Sequence[Any], strides: Sequence[Any]) -> torch.Tensor:
        # a tensor from outside belongs to no level of a functorch transform that is under way
        levels = temporarily_clear_interpreter_stack()
        with levels, torch.inference_mode(real.is_inference()), torch.enable_grad(), self.mode:
            fake = self._in_memory(real, sizes, strides)
            torch._C._set_conj(fake, real.is_conj())
            torch._C._set_neg(fake, real.is_neg())
            if real.requires_grad:
                fake.requires_grad_()
                base = torch_compat.base_of(real)
                if base is not None and base.is_leaf and base.requires_grad:
                    fake = torch.ops.aten.alias.default(fake)  # a view of a leaf: no write to it joins the graph
                elif not real.is_leaf:
                    # what another function computed: no leaf, though nothing is known of where it comes from
                    fake = torch._C._functions.DelayedError("an input of the graph", 1)(fake)
        return fake

    def _in_memory(self, real: torch.Tensor, sizes: Sequence[Any], strides: Sequence[Any]) -> torch.Tensor:
        """Fakes of tensors that share memory share it too, those of static sizes included."""
        converter = self.mode.fake_tensor_converter.meta_converter
        key = converter.describer.get_storage_id(real.untyped_storage())
        storage = converter.storage_memo.get(key)
        if storage is None and real.storage_offset() == 0:
            fake = torch.empty_strided(sizes, strides, dtype=real.dtype, device=real.device)
            converter.storage_memo[key] = fake.untyped_storage()
            return fake
        if storage is None:
            reach = 1 + last_position(sizes, strides) if real.numel() else 0  # whatever its strides are
            whole = torch.empty(real.storage_offset() + reach, dtype=real.dtype, device=real.device)
            storage = converter.storage_memo[key] = whole.untyped_storage()
        # that it fits there is known of the real one, and nothing to rely on
        with torch.no_grad(), self.env.suppress_guards():
            fake = torch.empty(0, dtype=real.dtype, device=real.device)
            fake.set_(storage, real.storage_offset(), sizes, strides)
            # `set_` asked whether it is contiguous, and the answer is kept, though no guard is: strides that are given
            # anew forget it
            return fake.as_strided_(sizes, strides, real.storage_offset())

    def in_symbolic_memory(self, real: torch.Tensor) -> bool:
        """Whether it shares memory with a tensor of symbolic size: torch would make a fake of the size at hand there,
        and rely on that size."""
        if not self.active or real.is_conj() or real.is_neg():
            return False
        converter = self.mode.fake_tensor_converter.meta_converter
        storage = converter.storage_memo.get(converter.describer.get_storage_id(real.untyped_storage()))
        return storage is not None and isinstance(storage.nbytes(), torch.SymInt)

    def number(self, real: Any, source: Source) -> Any:
        """A symbolic int or float from outside."""
        name = self._numbers.get(source)
        if name is not None:
            return self.symbolic(self.symbols[name])
        made = self._symbol(source, real, None, False, positive=False)
        self._numbers[source] = str(made.node._expr)
        return made

    def unknown(self, kind: type, source: Source) -> Any:
        """A symbolic int or float that only the running program knows: every decision that depends on it is refused."""
        env = self.env
        made = env.create_unbacked_symfloat() if kind is float else env.create_unbacked_symint()
        expr = made.node.expr
        env.pending_fresh_unbacked_symbols.remove(expr)  # torch waits for an operation to give it
        self.symbols[str(expr)] = Symbol(source, kind(), None, expr, self.locate())
        self.unknowns.add(str(expr))
        return made

    @contextlib.contextmanager
    def in_operation(self) -> Iterator[list[str]]:
        """While an operation runs on fakes: NumberNeeded is raised where it would rely on a size or number that was
        another one in each variant so far, before the ShapeEnv takes that for settled. Gives the list of what was said
        then, for some kernels catch the error."""
        env: Any = self._env
        refused: list[str] = []
        if env is None or not (self.varying or self.settled):
            yield refused
            return
        before, varying = env.unsettled, self.varying | self.settled
        env.unsettled = {each.sympy for each in self.symbols.values() if each.source in varying}
        env.refused = refused
        try:
            yield refused
        finally:
            env.unsettled = before

    # -- at the end

    def note(self) -> None:
        """Whatever was decided since the last note was decided at the user's current line."""
        if self._env is not None and len(self._env.guards) > len(self._places):
            loc = self.locate()
            self._places.extend([loc] * (len(self._env.guards) - len(self._places)))

    def promises(self) -> Iterator[tuple[str, Tree, str]]:
        """What torch took for granted of numbers that depend on data: a key, the relation, words."""
        if self._env is None:
            return
        for promised in list(self._env.deferred_runtime_asserts.values()):
            for promise in list(promised):
                if not promise.expr.is_number:
                    tree = symbols.tree_of(promise.expr)
                    yield str(promise.expr), tree, f"{symbols.readable(tree)} does not hold"

    def takes_for_granted(self) -> bool:
        """Whether torch relied on anything about a number that only the running program knows."""
        return bool(self.unknowns) and any(
            not self.unknowns.isdisjoint(symbols.names_in(tree)) for _, tree, _ in self.promises()
        )

    def source_of(self, name: str) -> Source:
        """Where a symbol's number comes from."""
        if name not in self.symbols:
            raise InternalError(f"the symbol {name} has no source")
        return self.symbols[name].source

    def relations(self) -> Iterator[Related]:
        """What has to hold of sizes and numbers; ends the making of symbols."""
        if self._env is None:
            return
        for name, symbol in self.symbols.items():
            yield from self._range(name, symbol)
        for number, (source, expr, loc) in enumerate(self._bound):
            own = f"bound{number}"
            tree = symbols.tree_of(expr)
            yield Related(("eq", own, tree), {own: source} | self._sources(tree), loc, "")
        self.note()
        for guard, loc in zip(self._env.guards, self._places, strict=False):
            if isinstance(guard.expr, bool) or guard.expr.is_number:
                continue
            tree = symbols.tree_of(guard.expr)
            sources = self._sources(tree)
            if sources:
                yield Related(tree, sources, loc, "")
                found = self._zero(tree)
                if found is not None:
                    yield Related(("gt", ("copysign", 1.0, found), 0.0), sources, loc, "0.0 is not -0.0")

    def _zero(self, tree: Tree) -> Tree | None:
        """What is computed as a float, if the relation is that it is 0.0: the program can tell two zeros apart."""
        if not (isinstance(tree, tuple) and tree[0] == "eq" and 0 in tree[1:]):
            return None
        found = next(part for part in tree[1:] if part != 0)
        hints = {name: self.symbols[name].hint for name in symbols.names_in(found)}
        return found if type(symbols.value_of(found, hints)) is float else None

    def _sources(self, tree: Tree) -> dict[str, Source]:
        return {name: self.source_of(name) for name in symbols.names_in(tree)}

    def _range(self, name: str, symbol: Symbol) -> Iterator[Related]:
        """Where a size may be: at least 2, since 0 and 1 are specialised, or as the user marked it."""
        if type(symbol.hint) is not int or not symbol.sympy.is_positive:
            return
        low, high = 2, None
        if symbol.mark is not None:
            low, high = max(low, symbol.mark.low or 0), symbol.mark.high
        note = "sizes 0 and 1 are specialised" if low == 2 else "marked"
        yield Related(("ge", name, low), {name: symbol.source}, symbol.loc, note)
        if high is not None:
            yield Related(("le", name, high), {name: symbol.source}, symbol.loc, "marked")

    def check_marks(self) -> None:
        """Raise ConstraintViolation if a dimension that the user marked dynamic turned out to be one number."""
        if self._env is None:
            return
        self.note()
        for symbol in self.symbols.values():
            if symbol.mark is None or symbol.mark.kind != "dynamic":
                continue
            value = self._env.replace(symbol.sympy)
            if value.is_number:
                self._violated(symbol, f"only {int(value)} fits")
            limits = self._env.var_to_range[symbol.sympy]
            low, high = symbol.mark.low, symbol.mark.high
            if (low is not None and limits.lower > max(low, 2)) or (high is not None and limits.upper < high):
                self._violated(symbol, f"only {limits.lower} to {limits.upper} fits")

    def _violated(self, symbol: Symbol, what: str) -> None:
        assert self._env is not None
        found = [
            (guard.expr, loc)
            for guard, loc in zip(self._env.guards, self._places, strict=False)
            if symbol.sympy in getattr(guard.expr, "free_symbols", ())
        ]
        expr, loc = found[-1] if found else (None, None)
        why = ""
        if expr is not None:
            tree = symbols.tree_of(expr)
            names = {name: source.name() for name, source in self._sources(tree).items()}
            why = f", because of {symbols.readable(tree, names)}"
        raise ConstraintViolation(
            f"{symbol.source.name()} was marked dynamic, and {what}{why}",
            user_line=loc.render() if loc is not None else "",
            hint="change that line so that it holds for all sizes, or use maybe_mark_dynamic",
        )


def _known(number: Any) -> int | None:
    return number if isinstance(number, int) else None
