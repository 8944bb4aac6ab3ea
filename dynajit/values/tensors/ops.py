"""Torch operations: from models of arguments to a graph node and the models of its results.

In: a torch function or tensor method and its arguments as values. Out: the results as values; the node is in the
graph and was run on fake tensors. What an operation may not do here is decided by `_fake_error` and
`UNSUPPORTED_RESULTS`.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._device import _device_constructors

from dynajit.graph.builder import GraphBuilder, run_target
from dynajit.graph.meta import note, notes
from dynajit.graph.opaque import OPAQUE
from dynajit.graph.unused_calls import call_of
from dynajit.nested import leaves_in, map_leaves, tensors_in
from dynajit.op_facts import facts, starts_collective, written_arguments
from dynajit.report import breaks
from dynajit.report.places import is_own
from dynajit.symbols import is_symbolic, names_in, tree_of
from dynajit.torch_compat import NumberNeeded, innermost, memory_of
from dynajit.torch_warnings import WarnsInside, unwarned
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.value import GraphBreak, Tracer, Value, parts_to_graph
from dynajit.values.effects.warning_filters import warns_always, warns_through
from dynajit.values.objects.called_functions import assume_inside
from dynajit.values.objects.lookup import lookup_type
from dynajit.values.scalars.constant import ConstVal, is_literal, is_none
from dynajit.values.scalars.symbolic import is_data_dependent, undecided
from dynajit.values.tensors import chosen, graph_arrays, overrides
from dynajit.values.tensors.arrays import TENSOR_MAKERS, ArrayVal, make_tensor
from dynajit.values.tensors.autograd import learn_operator
from dynajit.values.tensors.dtypes import REFUSED
from dynajit.values.tensors.foreach import rewrite
from dynajit.values.tensors.python_code import check_order, guarding_kernels, note_code
from dynajit.values.tensors.tensor import TensorVal, is_constant_result, is_loader
from dynajit.values.tensors.wrapper_subclass import WrapperVal, keeps_mask, made_by_graph
from dynajit.wrappers import is_wrapper

_T = TypeVar("_T")

# Operations that take a boolean alpha among truth values alone.
_SUMS = frozenset(("add", "sub", "subtract", "rsub", "addr"))
# What takes one item, or several, of a tensor: their further arguments, of which the second says where.
_CHOOSERS = {"select": ("dim", "index"), "narrow": ("dim", "start", "length")}
_DROPOUTS = frozenset(
    (torch.nn.functional.dropout, torch.dropout, torch.ops.aten.dropout, torch.ops.aten.dropout.default)
)
# What shares the memory of its argument, though its schema doesn't say so: in a functional graph it would be a copy.
_HIDDEN_VIEWS = frozenset(("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"))
# The operators that give a number, or whether something holds, of what the guard of a tensor covers.
_TELL_METADATA = frozenset(
    {"size", "sym_size", "stride", "sym_stride", "numel", "sym_numel", "dim", "dense_dim", "sparse_dim", "get_device"}
    | {"element_size", "is_complex", "is_conj", "is_distributed", "is_floating_point", "is_neg", "is_same_size"}
    | {"is_signed", "is_contiguous", "is_non_overlapping_and_dense", "is_strides_like_format"}
    | {"_debug_has_internal_overlap", "_has_compatible_shallow_copy_type"}
)
# What warns where there are no more elements than its correction; its fake doesn't.
_VARIANCES = frozenset(("var", "std", "var_mean", "std_mean"))
_NO_FREEDOM = (
    "degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel divided by "
    "output numel)."
)


def torch_op(tx: Tracer, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """Add one node to the graph and model what it returns.

    Args:
        tx: the interpreter.
        op: "call_function" or "call_method", as in torch.fx.
        target: the function, or the method's name.
        args: positional arguments; for a method the tensor first.
        kwargs: keyword arguments.

    Raises:
        GraphBreak: the operation can't be part of a graph, or raises for these arguments.
    """
    kwargs = _with_default_device(tx, target, kwargs)
    name = _name_of(target)
    check_order(tx, target, name)
    learn_operator(tx, target, args, kwargs)
    made = (
        _of_array(tx, target, args, kwargs)
        or overrides.dispatch(tx, op, target, args, kwargs)
        or _with_tensor_as_scalar(tx, name, args, kwargs)
        or rewrite(tx, name, target, args, kwargs)
        or _chosen(tx, target, args, kwargs)
    )
    if made is not None:
        return made
    _check(name, target, args, kwargs)
    if name == "new" and len(args) == 2 and args[1].kind is torch.Size:
        # to a tuple, which a graph would make of the size, `new` gives a tensor that holds it
        target = name = "new_empty"
    elif name == "bernoulli" and (len(args) == 2 or "p" in kwargs) and isinstance(args[0], TensorVal):
        # it can't be told from `bernoulli_` later, which draws in the order of memory
        args = [args[0].call_method(tx, "contiguous", [], {}), *args[1:]]
    return _add_node(tx, op, target, args, kwargs)


def _of_array(tx: Tracer, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """The tensor that a function of torch's makes of NumPy's array."""
    if not args or target not in TENSOR_MAKERS:
        return None
    if isinstance(args[0], graph_arrays.GraphArrayVal):
        return graph_arrays.make_tensor(tx, target, args[0], args[1:], kwargs)
    of_known = isinstance(args[0], ArrayVal) and not args[0].is_scalar
    return make_tensor(tx, target, args, kwargs) if of_known else None


def _chosen(tx: Tracer, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a tensor of one integer chooses in a call of `select` or `narrow`, loaded by a kernel."""
    for name, names in _CHOOSERS.items():
        if any(target is one for one in (getattr(torch, name), getattr(torch.Tensor, name))) or target == name:
            given = dict(zip(("input", *names), args, strict=False)) | kwargs
            tensor, place = given.get("input"), given.get(names[1])
            if given.keys() == {"input", *names} and type(tensor) is TensorVal and place and is_loader(place):
                return chosen.choose(tx, name, tensor, given, place)  # type: ignore[no-any-return]
    return None


def _check(name: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
    """Break where the fakes don't tell what the operation does, or that it raises."""
    first = next((arg for arg in args if isinstance(arg, TensorVal)), None)
    if first is not None and first.fake.dtype in REFUSED.get(name, ()):
        raise GraphBreak(breaks.OP_RAISES, f"{name} of a tensor of dtype {first.fake.dtype}")
    # the fakes of sums take it whatever the tensors are
    if "alpha" in kwargs and name.rstrip("_") in _SUMS and kwargs["alpha"].py_type() is bool and not _all_bool(args):
        raise GraphBreak(breaks.OP_RAISES, f"{name} with a boolean alpha")
    if name == "detach_":  # a functional graph has no place for what it does to the tensor itself
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "detach_ changes what autograd knows of a tensor")
    if name in _HIDDEN_VIEWS:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{name} gives views, which torch takes for tensors of their own")
    if name.startswith("quantize_per_"):  # the fake of its result is an ordinary tensor of another dtype
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{name} returns a quantized tensor")
    if _sizes_what_it_writes(target, args):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{name} may change the size of the empty tensors that it writes")


class _Operation:
    """An operation with its arguments in both forms, and what these were before it ran on the fakes."""

    def __init__(self, tx: Tracer, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
        self.tx, self.op, self.target = tx, op, target
        self.name = _name_of(target)
        nodes, fakes = parts_to_graph(tx, args)
        named, named_fakes = parts_to_graph(tx, kwargs.values(), lambda parts: dict(zip(kwargs, parts, strict=True)))
        self.nodes, self.fakes = (nodes, named), (fakes, named_fakes)
        self.tensors = tensors_in(self.fakes)
        self.versions = self._versions()
        self.plain = [fake for fake in self.tensors if not fake.requires_grad] if "requires_grad" in kwargs else []
        self.out = kwargs.get("out")
        parts = self.out.items if isinstance(self.out, (TupleVal, ListVal)) else [self.out]
        self.given = [(part, part.fake.shape, part.fake.stride()) for part in parts if isinstance(part, TensorVal)]
        self.caught = False  # what it raises, by the program
        self.warns = False

    def _versions(self) -> list[int | None]:
        """The versions of the tensors among the arguments; None for one that keeps none."""
        return [None if fake.is_inference() else fake._version for fake in self.tensors]

    def may_write(self) -> bool:
        return None in self.versions or self._versions() != self.versions

    def run(self) -> Any:
        """What it gives for the fakes. Raises WarnsInside if it has to be traced for its warning's sake."""
        # what dynajit itself puts in an operation's place, as for collectives, stays one node
        traceable = isinstance(self.target, types.FunctionType) and not is_own(self.target.__code__.co_filename)
        self.tx.graph.mode.looked_at_values = self.tx.graph.mode.made_numbers = False
        self._keep_layouts()
        args, kwargs = self.fakes
        if self.tx.seen.refused and call_of(self.target, args, kwargs) in self.tx.seen.refused:
            raise GraphBreak(breaks.OP_RAISES, self.name)
        with unwarned() as warned:
            result = run_fake(self.tx.graph, self.op, self.target, args, kwargs)
        if warned.in_python and traceable and self._versions() == self.versions:
            raise WarnsInside
        if warned.texts and self._warns_as_asked(warned):
            raise GraphBreak(breaks.OUTPUT_CALL, f"{self.name}, which warns: {warned.texts[0]}")
        if self.name in _VARIANCES and self._is_of_too_few(result):
            warns_through(self.tx, _warns(self.name), f"{self.name}(): {_NO_FREEDOM}", UserWarning)
        self.warns = bool(warned.texts)
        drops = self.tx.graph.shapes.active and self.target in _DROPOUTS and not self.may_write()
        return self._given_back(result) if drops else result

    def _warns_as_asked(self, warned: Any) -> bool:
        """Whether only the operation itself, under the program's filters and at each call, warns as it wants."""
        return self.tx.warning_filters is not None or (warned.in_torchs_own and warns_always(self.tx))

    def _is_of_too_few(self, result: Any) -> bool:
        """Whether it leaves a variance no degree of freedom."""
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        positional, named = self.fakes
        unbiased = named.get("unbiased", next((each for each in positional if type(each) is bool), None))
        correction = named.get("correction", unbiased)
        count = 1 if correction is None else +correction  # no bool, which torch 2.11 multiplies no symbol by
        too_few = self.tensors[0].numel() <= count * tensors_in(result)[0].numel()
        # sizes that vary are 2 at least
        return bool(too_few) if count > 1 else statically_known_true(too_few)

    def _given_back(self, result: Any) -> Any:
        """The tensor itself for a dropout that drops nothing, as torch's C++ has it; its Python, which runs where there
        are symbols, copies it."""
        positional, named = self.fakes
        given = {"p": 0.5, "train": True} | dict(zip(("input", "p", "train"), positional, strict=False)) | named
        keeps = named.get("training", given["train"]) is False or bool(given["p"] == 0)
        return given["input"] if keeps and type(result) is type(given["input"]) else result

    def _keep_layouts(self) -> None:
        """Where the trace goes back before the operation, the fakes that it lays out anew are laid out as before."""
        for fake in tensors_in([*written_arguments(self.target, *self.fakes), self.fakes[1].get("out")]):
            if fake.layout is torch.strided and not is_wrapper(fake):
                self.tx.journal.record(functools.partial(_lay_out_again, self.tx.graph, fake, _layout(fake)))

    def _takes_data(self) -> bool:
        """Whether a size or an index among the arguments depends on data: it may be one that the operation refuses."""
        shapes = self.tx.graph.shapes
        return shapes.active and any(
            isinstance(each, torch.SymInt)
            and is_symbolic(each)
            and not shapes.symbols.keys() >= set(names_in(tree_of(each.node.expr)))
            for each in leaves_in(self.fakes)
        )

    def notes_of_raising(self) -> dict[str, Any]:
        """What its node says if it may raise when it runs."""
        graph = self.tx.graph
        # the fake of one_hot is made of operations that look at nothing
        one_hot = self.name == "one_hot" and all(fake.device.type == "cpu" for fake in self.tensors)
        if not graph.mode.looked_at_values and not one_hot and not self._takes_data():
            return {"may_raise": True} if self.warns else {}  # it runs, though nothing needs what it gives
        catches = self.caught = self.tx.catches()
        undo = graph.undo(catches or self.target is torch._assert_async)
        if catches and undo is None and graph.has_written():
            # no frame can be run again then, which is how the program gets to see what a graph raises
            raise GraphBreak(breaks.MAY_RAISE, self.name)
        return {"may_raise": True, "undo": undo}

    def check_out(self) -> None:
        """Break where it changes the size of `out=`, unless that is a new tensor without elements."""
        changes = f"{self.name} changes the size of out=, which"
        for out, given, strides in self.given:
            if len(self.given) > 1 and (out.fake.shape, out.fake.stride()) != (given, strides):
                # the kernels of several results choose strides, or keep those given, where the fake ones don't
                raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{self.name} changes the layout of out=")
            if out.fake.shape == given:
                continue
            if out.source is not None and out.fake.requires_grad:
                raise GraphBreak(breaks.RESIZED_LEAF, self.name)
            if out.source is not None:
                raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{changes} comes from outside")
            if tuple(given) != (0,):
                raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{changes} torch warns of")
            if any(isinstance(fake, torch.Tensor) and not fake.is_contiguous() for fake in self.fakes[0]):
                # the kernel may give it the arguments' order of dimensions, which the fake one doesn't
                raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{changes} may change its strides")

    def count_writes(self) -> None:
        """Raise the versions that the fakes' run left as they were."""
        if facts(self.target).counts_no_writes:
            return
        for written in written_arguments(self.target, *self.fakes):
            if isinstance(written, (list, tuple)):  # fake kernels leave the versions of a list's members as they are
                torch.autograd.graph.increment_version(written)
        if torch.is_inference_mode_enabled() and not self.may_write():
            # operations made of others are taken apart there before anyone counts what they write
            for written in written_arguments(self.target, *self.fakes):
                torch.autograd.graph.increment_version(written if isinstance(written, torch.Tensor) else ())

    def known_result(self, result: Any) -> Value | None:
        """The model of a result that needs no node."""
        tx = self.tx
        if tx.graph.shapes.active:
            tx.graph.assert_promises()
            if is_symbolic(result) and tx.graph.knows(result):
                return tx.from_real(result)
        self._check_numbers(result)
        if is_constant_result(result) and result is not None and result not in ((), []):
            return tx.from_real(result)
        known = tx.tensors.get(id(result)) if self.out is None and not self.may_write() else None
        if known is None or facts(self.target).writes or self.target in OPAQUE:
            return None
        if any(result is fake for fake in self.plain) and result.requires_grad:
            result.requires_grad_(False)
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{self.name} makes the tensor that it is given a leaf")
        return known  # type: ignore[no-any-return]  # `x.contiguous()`, `x.to(x.dtype)`, ...: nothing to compute

    def _check_numbers(self, result: Any) -> None:
        """Break where a number is given that depends on more than metadata: a fake's may be another one."""
        parts = result if isinstance(result, (tuple, list)) else (result,)
        told, name = facts(self.target), self.name.partition(".")[0]
        told_by_fakes = told.known and self.tensors and is_constant_result(result) and name not in _TELL_METADATA
        if (told.foreign or told_by_fakes) and any(type(part) in (bool, int, float) for part in parts):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{self.name} gives a number that no fake tensor tells")

    def _uncounted(self) -> list[torch.Tensor]:
        """The tensors that it writes without raising their versions."""
        if facts(self.target).counts_no_writes:
            return tensors_in(written_arguments(self.target, *self.fakes))
        return [*_statistics(self.name, self.fakes), *(self._outs_as_before() if self.given else ())]

    def _outs_as_before(self) -> Iterator[torch.Tensor]:
        """Of some operations made of others, as kron's, it is a view cut loose from autograd that is written."""
        before = {id(fake): version for fake, version in zip(self.tensors, self.versions, strict=True)}
        for out, _, _ in self.given:
            plain = type(out.fake) is FakeTensor and not out.fake.is_inference()
            if plain and before.get(id(out.fake)) == out.fake._version:
                yield out.fake

    def _gives_lost_history(self, written: torch.Tensor) -> bool:
        """Whether the write's gradient leads to what stands for an input in the graph, where the input has none."""
        known = self.tx.tensors.get(id(written))
        stands_in = known is not None and known.source is not None and known.replacement is not None
        return stands_in and not written.is_leaf

    def note_writes(self, node: fx.Node) -> None:
        uncounted = self._uncounted()
        if not self.may_write() and not uncounted:
            return
        now = zip(self.tensors, self.versions, strict=True)
        counted = [fake for fake, version in now if version is None or fake._version != version]
        note(node, changes=True, writes=tuple(memory_of(fake) for fake in (*counted, *uncounted)))
        if any(map(self._gives_lost_history, counted)):
            raise GraphBreak(
                breaks.UNSUPPORTED_TENSOR, "a history for a tensor behind a line that sets its data or requires_grad"
            )
        if any(map(self.tx.graph.outdates, counted)):
            raise GraphBreak(
                breaks.UNSUPPORTED_TENSOR, "writing what another tensor, of a size that varies, is a view of"
            )
        if any(map(self.tx.graph.writes_assembled, counted)):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "writing a jagged tensor whose rows vary")
        if self.tx.graph.conflict():
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "writing a tensor that may share memory with a NumPy array")
        if self.caught and any(fake.device.type == "cpu" for fake in counted):
            # the frame runs again, as it were nothing had been written; on GPUs indices raise nothing that is caught
            undo = self.tx.graph.undo()
            if undo is None:
                raise GraphBreak(breaks.MAY_RAISE, self.name)
            note(node, undo=undo, undoes_own=True)


@functools.cache
def _warns(name: str) -> Callable[[], Any]:
    """What has torch's C++ warn of a variance of too few elements."""
    return functools.partial(getattr(torch, name), torch.zeros(1))


def _add_node(tx: Tracer, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """The node, the run on fake tensors, and the model of what it gives."""
    operation = _Operation(tx, op, target, args, kwargs)
    assume_inside(tx, target if op == "call_function" else lookup_type(torch.Tensor, target)[0])
    with guarding_kernels(tx, target, operation.name):
        result = operation.run()
    raising = operation.notes_of_raising()
    if tx.graph.shapes.unknowns:
        _check_sizes(tx.graph, operation.name, result)
    operation.check_out()
    operation.count_writes()
    known = operation.known_result(result)
    if known is not None:
        return known
    node = tx.graph.create(op, target, *operation.nodes, tx.node_meta(result))
    _note_data(tx, operation.name, node, result)
    if raising:
        note(node, **raising)
    shared = note_code(tx, target)
    if shared is not None and (shared.tensors or not shared.known):
        note(node, reaches=True)
    operation.note_writes(node)
    if notes(node).writes:
        chosen.put_back(tx, node)
    if result is None:
        return _without_result(tx, target, node)
    if is_symbolic(result):
        return tx.from_real(result)
    if facts(target).draws or target in OPAQUE or (shared is not None and shared.has_effects()):
        # the generator moves on, or anything else does, whatever becomes of the result
        tx.graph.impure = True
        note(node, changes=True)
    if starts_collective(target):
        tx.graph.impure = True  # other ranks wait for this one's part, whoever needs the result
    if isinstance(result, list) and operation.name.startswith("_foreach_") and facts(target).writes:
        return args[0]  # the list itself, whose tensors were written
    return model_result(tx, result, node)


def _layout(fake: torch.Tensor) -> tuple[Any, ...]:
    return fake.shape, fake.stride(), fake.storage_offset()


def _without_result(tx: Tracer, target: Any, node: fx.Node) -> Value:
    """What a node gives that only has an effect; that of an assignment to items is its write."""
    if target not in (operator.setitem, "__setitem__"):
        tx.graph.impure = True
        if target is not torch._assert_async:
            tx.graph.effects = True
            note(node, changes=True)
    return ConstVal(None)


def _lay_out_again(graph: GraphBuilder, fake: torch.Tensor, before: tuple[Any, ...]) -> None:
    """Give a fake tensor the layout that it had; its version, and what autograd knows of it, stay."""
    if str(_layout(fake)) != str(before):  # symbolic numbers that are compared would have to be decided
        with graph.mode, torch.no_grad():
            fake.data = fake.detach().as_strided(*before)


def _check_sizes(graph: GraphBuilder, name: str, result: Any) -> None:
    """Break where sizes depend on a number that only the running program knows, unless the user wants such sizes."""
    if graph.shapes.takes_for_granted():
        raise GraphBreak(breaks.RUN_TIME_NUMBER, f"{name} of numbers in a range of its own")
    if graph.shapes.captures_sizes:
        return
    for made in result if isinstance(result, (tuple, list)) else (result,):
        if not isinstance(made, torch.Tensor):
            continue
        for number in (*made.shape, *made.stride(), made.storage_offset()):
            if isinstance(number, torch.SymInt) and not all(
                known in graph.shapes.symbols and known not in graph.shapes.unknowns
                for known in names_in(tree_of(number.node.expr))
            ):
                graph.shapes.env.pending_fresh_unbacked_symbols.clear()
                raise GraphBreak(breaks.RUN_TIME_NUMBER, f"the size or place of what {name} gives")


def _statistics(name: str, fakes: Any) -> list[torch.Tensor]:
    """What a batch norm or its like updates without torch counting it; weights may be among them."""
    if not name.endswith(("batch_norm", "instance_norm")) or not any(
        arg is True for arg in (*fakes[0], *fakes[1].values())
    ):
        return []
    return [fake for fake in tensors_in(fakes)[1:] if not fake.requires_grad]


def _note_data(tx: Tracer, name: str, node: fx.Node, result: Any) -> None:
    """Symbols that stand for what depends on data are known from this node on; torch wants to hear which they are."""
    if not tx.graph.shapes.active or not tx.graph.shapes.env.pending_fresh_unbacked_symbols:
        return
    from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings, free_unbacked_symbols

    env = tx.graph.shapes.env
    if result is None:  # what it made on the way, as a write of a slice does, stays its own
        env.pending_fresh_unbacked_symbols.clear()
        return
    given = free_unbacked_symbols(result)
    if tx.graph.mode.made_numbers and not given.issuperset(env.pending_fresh_unbacked_symbols):
        # what it checks them for, as `narrow` by a tensor's value does, its fake can't, and no trace says it
        env.pending_fresh_unbacked_symbols.clear()
        raise GraphBreak(breaks.DATA_DEPENDENT, f"{name} reads values to decide what to do")
    env.pending_fresh_unbacked_symbols = [symbol for symbol in env.pending_fresh_unbacked_symbols if symbol in given]
    if not env.pending_fresh_unbacked_symbols:
        return
    # torch before 2.12 looks below the levels of vmap alone
    node.meta["unbacked_bindings"] = compute_unbacked_bindings(env, map_leaves(innermost, result, torch.Tensor))
    tx.graph.bind_data(node, result)


def _sizes_what_it_writes(target: Any, args: Sequence[Value]) -> bool:
    """Whether an operation writes empty tensors behind an operand that holds something: the running extremes of torch's
    observers begin so, and their kernels, though not the fakes of these, make them as large as is needed."""
    fakes = [arg.fake if isinstance(arg, TensorVal) else None for arg in args]
    if not fakes or fakes[0] is None or _is_empty(fakes[0]):
        return False
    return any(
        fake is not None and fake is not fakes[0] and _is_empty(fake) for fake in written_arguments(target, fakes, {})
    )


def _is_empty(fake: torch.Tensor) -> bool:
    """Whether it is sure to have no elements; sizes that depend on data are not asked."""
    return any(type(size) is int and size == 0 for size in fake.shape)


def _with_default_device(tx: Tracer, target: Any, kwargs: dict[str, Value]) -> dict[str, Value]:
    """With the device that the innermost mode is, if it is one, for what makes tensors and names none. A mode of the
    user's is asked before those around it."""
    if not tx.overrides.modes or target not in _device_constructors() or not is_none(kwargs.get("device")):
        return kwargs
    innermost = tx.overrides.modes[-1]
    is_device = isinstance(innermost, ConstVal) and tx.overrides.off != overrides.ALL_OFF
    return {**kwargs, "device": innermost} if is_device else kwargs


def _all_bool(args: Sequence[Value]) -> bool:
    return all(arg.fake.dtype is torch.bool for arg in args if isinstance(arg, TensorVal))


def _with_tensor_as_scalar(tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """Operations with a factor that has to be a number, given as a tensor, in terms of those that take tensors.

    torch's optimizers count their steps in tensors, and compute `value` from them where they see a compiler. The
    product is computed in a wider type, so that the result is rounded once, as the operations themselves do.
    """
    factor = kwargs.get("value", kwargs.get("alpha"))
    if not isinstance(factor, TensorVal) or len(kwargs) != 1 or name not in _FACTORED:
        return None
    if factor.fake.requires_grad or factor.fake.dim():
        return None  # which raises
    add, combine = _FACTORED[name]
    fakes: list[Any] = [arg.fake for arg in args if isinstance(arg, (TensorVal, WrapperVal))]
    if len(args) != (2 if combine is None else 3) or len(fakes) != len(args):
        return None

    def cast(value: Value, dtype: torch.dtype) -> Value:
        return torch_op(tx, "call_method", "to", [value, ConstVal(dtype)], {})

    common = torch.result_type(fakes[0], fakes[1])
    if combine is not None:
        common = torch.promote_types(common, fakes[2].dtype)
    if not (common.is_floating_point or common.is_complex) and factor.fake.dtype.is_floating_point:
        return None  # which raises
    computed = torch.float32 if common in (torch.float16, torch.bfloat16) else common
    summed = torch.float64 if computed is torch.float32 and common is computed else computed
    first = cast(args[1], computed)
    if combine is None:
        scaled = torch_op(tx, "call_function", torch.mul, [cast(first, summed), cast(cast(factor, common), summed)], {})
    else:
        scaled = torch_op(tx, "call_function", torch.mul, [first, factor], {})
        kept = computed if combine is torch.div else summed  # only a product is not rounded before it is added
        scaled = torch_op(tx, "call_function", combine, [cast(scaled, kept), cast(args[2], kept)], {})
    result = torch_op(tx, "call_method", add, [args[0], scaled], {})
    return result if facts(add).writes else cast(result, common)


# name → method that adds, how the arguments after the first are combined
_FACTORED: dict[str, tuple[str, Any]] = {
    f"{name}{end}": (f"{name[:3]}{end}", combine)
    for name, combine in {"add": None, "sub": None, "addcmul": torch.mul, "addcdiv": torch.div}.items()
    for end in ("", "_")
}


def run_fake(graph: GraphBuilder, op: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operation on fake tensors; failures become graph breaks."""
    run = functools.partial(_with_symbols, graph, functools.partial(run_target, op, target, args, kwargs))
    return on_fakes(graph, run, lambda: _name_of(target))


def on_fakes(graph: GraphBuilder, run: Callable[[], _T], name: Callable[[], str]) -> _T:
    """What `run` gives, whose operations run on fake tensors; failures of the one of this name become graph breaks. (A
    context manager's generator would keep what they raise, and with it the frame's objects, in a cycle.)"""
    try:
        with graph.running_fake(), graph.shapes.in_operation() as refused:
            try:
                return run()
            finally:
                if refused:
                    raise NumberNeeded(refused[0]) from None
    except DataDependentOutputException as error:
        raise GraphBreak(breaks.DATA_DEPENDENT, name(), error) from None
    except NumberNeeded as error:
        raise GraphBreak(breaks.VARYING_VALUE, f"{name()} {error}") from None
    except DynamicOutputShapeException as error:
        raise GraphBreak(breaks.DYNAMIC_OUTPUT, name(), error) from None
    except (UnsupportedOperatorException, UnsupportedFakeTensorException) as error:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{name()}: {error}", error) from None
    except (
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
        NotImplementedError,
        AssertionError,
        AttributeError,
        KeyError,
        ArithmeticError,
    ) as error:
        if is_data_dependent(error):
            raise undecided(graph, f"{name()}: {_first_line(error)}", error) from None
        said = str(error).partition("\nException raised from ")[0]  # where in C++, frame by frame
        raise GraphBreak(breaks.OP_RAISES, f"{name()}: {type(error).__name__}: {said}", error) from None
    finally:
        graph.shapes.note()


def _with_symbols(graph: GraphBuilder, run: Callable[[], _T]) -> _T:
    """What `run` gives. What depends on data becomes symbols of a ShapeEnv, which is made for the first of it: graphs
    that have one are captured at more cost."""
    try:
        return run()
    except (DataDependentOutputException, DynamicOutputShapeException):
        shapes, mode = graph.shapes, graph.shapes.mode
        captures = shapes.captures_scalars or shapes.captures_sizes
        if not captures or (shapes.active and mode.allow_scalar_outputs >= shapes.captures_scalars):
            raise
        _ = shapes.env
        mode.allow_scalar_outputs = shapes.captures_scalars  # backends run the graph's operations in this mode, too
        return run()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _name_of(target: Any) -> str:
    """The operation's name; that of a program's own function says nothing."""
    if target in OPAQUE:
        return ""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

_OF_COORDINATES = (torch.sparse_coo_tensor,)


def model_result(tx: Tracer, result: Any, node: fx.Node) -> Value:
    """The model of what a node returned."""
    if isinstance(result, torch.Tensor):
        return model_tensor(tx, result, node)
    if isinstance(result, (tuple, list)):
        parts = []
        for index, part in enumerate(result):
            if isinstance(part, (torch.Tensor, tuple, list)) and not is_constant_result(part):
                child = tx.graph.create_part(node, index, tx.node_meta(part))
                parts.append(model_result(tx, part, child))
            else:
                parts.append(tx.from_real(part))
        if isinstance(result, list):
            return ListVal(parts)
        return TupleVal(parts, type(result))
    if is_literal(result):
        return tx.from_real(result)
    raise GraphBreak(
        breaks.UNSUPPORTED_TENSOR, f"{_name_of(node.target)} returns an object of type {type(result).__name__}"
    )


def model_tensor(tx: Tracer, result: torch.Tensor, node: fx.Node) -> Value:
    """The model of one resulting tensor; an operation that returns its argument gives the argument's model."""
    known = tx.tensors.get(id(result))
    if known is not None:
        return known
    if is_wrapper(result):
        if tx.seen.masks_outlive_graphs and keeps_mask(result):
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{_name_of(node.target)}, whose mask is used after the graph")
        wrapper = made_by_graph(node, result)
        tx.remember_tensor(wrapper)
        return wrapper
    if not isinstance(result, FakeTensor) and not torch._C._functorch.is_functorch_wrapped_tensor(result):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{_name_of(node.target)} returns a {type(result).__name__}")
    # compressed ones have no strides, and functionalising one ends the process; how many elements another operation
    # gives a sparse tensor depends on values, and its fake has none
    if result.layout in _COMPRESSED or (result.layout is torch.sparse_coo and node.target not in _OF_COORDINATES):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"{_name_of(node.target)} returns a tensor with {result.layout}")
    tx.graph.bind_data(node, result)
    made = TensorVal(node, result)
    tx.remember_tensor(made)
    return made
