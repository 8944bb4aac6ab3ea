"""Exporting: a function or module as one graph, planned for CPUs.

In:  the function or module, example arguments, which dimensions vary. Out: an `Exported`, a `PortableProgram` that has
     its original. It is captured as `compile(fullgraph=True)` captures it; which of the graph's inputs are arguments
     and which are weights is found by running it once, on copies of the arguments.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dynajit import _C, api, symbols
from dynajit.backends import kept_plan
from dynajit.backends.codegen import export_plan
from dynajit.capture.shared import unshared
from dynajit.codegen.generate import CannotGenerate
from dynajit.codegen.plan import Plan
from dynajit.constants import NotData
from dynajit.exc import BackendCompilerFailed, ConfigError, ConstraintViolation, ExportError
from dynajit.exported import training, trees
from dynajit.exported.kernels import Kernels
from dynajit.exported.program import PortableProgram, layout, versions
from dynajit.report import records
from dynajit.report.shown import dtype_name
from dynajit.runtime import cpu, plan_data, toolchain

# where a module has its tensors and modules
_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_Leaves = list[tuple[str, torch.Tensor]]


class Exported(PortableProgram):
    """What `export` gives: a `PortableProgram` that has its original still."""

    original: tuple[Any, tuple[Any, ...], dict[str, Any], Any]

    def to_exported_program(self) -> Any:
        """The original as a `torch.export.ExportedProgram`, exported by torch with the same arguments and dimensions.
        A program that was loaded from a file has no original."""
        model, args, kwargs, dynamic_shapes = self.original
        module = model if isinstance(model, torch.nn.Module) else _Function(model)
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)


def export(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    gradients: bool = False,
    simd: str | Sequence[str] = "auto",
) -> Exported:
    """A function or module as a program that can be saved, and run where its source is not.

    Args:
        model: what is exported, for a CPU: whole, without graph breaks. Its weights are those of now.
        args, kwargs: arguments to export it for. Tensors may be others of the same dtype and sizes at each call;
            everything else is part of the program.
        dynamic_shapes: which dimensions vary, as for `torch.export.export`: by argument, in its structure, for each
            tensor a dictionary or list of `torch.export.Dim`s (or `Dim.AUTO`, `Dim.DYNAMIC`, `Dim.STATIC`, None).
        gradients: whether results have gradients, which backward passes compute from the file: for the arguments and
            parameters that require them now. Without, the program is for inference.
        simd: what kernels are compiled for: "auto", this machine; "avx512", "avx2" or "none", every x86-64 processor
            with these instructions (those of the levels x86-64-v4, x86-64-v3 and x86-64). Several fit in one file, of
            which the most demanding that a processor can run is taken where it is loaded.

    Returns:
        A callable program; `save(path)` writes it, `dynajit.load(path)` reads it in another process.

    Raises:
        Unsupported: the graph breaks; the message shows the line.
        ConstraintViolation: a dimension that is to vary has one size only, or two that are to differ are equal.
        ExportError: it is a graph that can't be written down: on another device, with effects beside it, or of
            operations that need Python; or its kernels can't be compiled.
    """
    named = {} if kwargs is None else dict(kwargs)
    structure, leaves, names = _signature(model, tuple(args), named)
    copies = iter([_copy(tensor, gradients) for _, tensor in leaves])
    given = {name: trees.rebuild(structure[name], copies) for name in structure}
    args_given = _like(tuple(args), [given[name] for name in names[: len(args)]])
    named_given = {name: _same_class(value, given[name]) for name, value in named.items()}
    marked = _tensors_of((args_given, named_given))
    dims = _mark(structure, dynamic_shapes, names, marked)
    recorder = _GraphRecorder(gradients)
    result = _compiled(model, recorder, args_given, named_given)
    facts, tensors, constants = _facts(model, recorder, structure, names, leaves, marked, dims, result)
    data, plans = recorder.written_down()
    kernels = Kernels.compiled(plans, simd)
    # as they come out of a file
    facts, data = json.loads(json.dumps([facts | {"targets": kernels.facts()}, data]))
    made = Exported(facts, data, kernels, tensors, constants)
    made.original = model, tuple(args), named, dynamic_shapes
    return made


def _compiled(
    model: Callable[..., Any], recorder: _GraphRecorder, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of the model, compiled by the recorder. Raises ExportError, Unsupported."""
    seen: list[records.CompileRecord] = []
    with unshared(), torch.set_grad_enabled(recorder.gradients), _unchanged(model), records.listen(seen.append):
        compiled = api.compile(model, fullgraph=True, dynamic=None, backend=recorder)  # type: ignore[type-var]
        try:
            result = compiled(*args, **kwargs)
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, ExportError):
                raise error.inner_exception from None
            raise
    effects = [effect for record in seen for effect in record.effects]
    if isinstance(model, torch.nn.Module):  # whose tables were compared
        effects = [effect for effect in effects if effect.rpartition(".")[2] not in _TABLES]
    if effects:
        raise ExportError(f"calling it changes or makes {', '.join(effects[:3])}, which a file can't do again")
    return result


def compile_exported(program: Any, *, gradients: bool = False, simd: str | Sequence[str] = "auto") -> Exported:
    """A `torch.export.ExportedProgram` as a program of dynajit's, with the dimensions that vary in it. `gradients`,
    `simd`: see `export`."""
    args, kwargs = program.example_inputs
    placeholders = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    values = [placeholders[name] for name in program.graph_signature.user_inputs if name in placeholders]
    shapes = iter([_dimensions(value, program.range_constraints) for value in values])
    structure: dict[str, Any] = {}
    specs = [_specs(value, shapes) for value in (*args, *kwargs.values())]
    module = program.module(check_guards=False)
    module._forward_pre_hooks.clear()  # torch's check of the inputs, which is ours to do
    module._forward_pre_hooks_with_kwargs.clear()
    module._forward_hooks.clear()
    names = _names(module)[: len(args)]
    structure.update(zip([*names, *kwargs], specs, strict=False))
    return export(module, args, kwargs, dynamic_shapes=structure, gradients=gradients, simd=simd)


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class _GraphRecorder:
    """The backend: plans the graph, and notes what its only run is given and gives. `plan`: of a graph without
    gradients."""

    def __init__(self, gradients: bool) -> None:
        self.gradients = gradients
        self.plan: Plan | None = None
        self.plans: dict[str, Plan] = {}  # by the text of their kernels
        self.examples: Sequence[Any] = ()
        self.inputs: tuple[Any, ...] = ()
        self.outputs: Sequence[Any] = ()
        self.written: set[int] = set()
        self.executor: Any = None

    def __call__(self, gm: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
        if self.plans:
            raise ExportError("it is more than one graph")
        for value in examples:
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                raise ExportError(f"a tensor is on {value.device}; programs are exported for CPUs")
        self.examples = examples
        try:
            compiled = export_plan(gm, examples, self._made)
        except (CannotGenerate, toolchain.ToolchainError, NotData) as error:
            raise ExportError(f"it can't be planned: {error}") from error
        whole = compiled
        while isinstance(whole, _C.RuntimeCall):
            whole = whole.compiled
        if not isinstance(whole, _C.PlanExecutor) and not (self.gradients and isinstance(whole, _C.TrainingCall)):
            other = "runs operator by operator" + ", or gives views of one tensor or of inputs" * self.gradients
            raise ExportError(f"its graph {other} (see DYNAJIT_LOGS=aot_graphs for why)")
        self.executor = compiled if self.gradients else whole
        self.plan = None if self.gradients else getattr(whole, "plan", None)
        return self._run

    def _made(self, plan: Plan) -> Callable[..., Any]:
        self.plans[plan.source] = plan
        return cpu.build(plan)

    def written_down(self) -> tuple[dict[str, Any], list[Plan]]:
        """The call as data, and the plans whose kernels it needs. Raises ExportError."""
        if self.plan is not None:
            return plan_data.to_data(self.plan), [self.plan]
        data = training.to_data(self.executor)
        return data, [self.plans[source] for source in {part["source"]: None for part in kept_plan.plans_in(data)}]

    def _run(self, *inputs: Any) -> Any:
        """The run that tells which tensor is which; what it writes is put back."""
        versions = [value._version if _counts(value) else 0 for value in inputs]
        before = [value.detach().clone() if _counts(value) else None for value in inputs]
        self.inputs = inputs
        self.outputs = self.executor(*inputs)
        for at, (value, version, kept) in enumerate(zip(inputs, versions, before, strict=True)):
            if kept is not None and value._version != version:
                self.written.add(at)
                with torch.no_grad():
                    value.copy_(kept)
        return self.outputs


def _counts(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference()


def _names(model: Callable[..., Any]) -> list[str]:
    """The names of the parameters that may be given by place."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        return [name for name, found in inspect.signature(function).parameters.items() if found.kind in kinds]
    except (TypeError, ValueError):
        return []


def _signature(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], _Leaves, list[str]]:
    """The structure of each argument by its name, the tensors in them, and the names of those given by place."""
    names = _names(model)
    names += [f"arg{at}" for at in range(len(names), len(args))]
    leaves: _Leaves = []
    pairs = [*zip(names, args, strict=False), *kwargs.items()]
    return {name: trees.flatten(value, name, leaves) for name, value in pairs}, leaves, names


def _copy(tensor: torch.Tensor, gradients: bool) -> torch.Tensor:
    """A tensor of its own, of the same layout, and a leaf with a gradient if the tensor has one that counts."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise ExportError(f"an argument is a {type(tensor).__name__}; programs are exported for strided tensors")
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor.detach()).requires_grad_(gradients and tensor.requires_grad)


def _like(args: tuple[Any, ...], given: list[Any]) -> tuple[Any, ...]:
    return tuple(_same_class(old, new) for old, new in zip(args, given, strict=True))


def _same_class(old: Any, new: Any) -> Any:
    """What was rebuilt, as objects of the program's own classes."""
    if isinstance(old, tuple) and hasattr(old, "_fields"):
        return type(old)(*map(_same_class, old, new))
    if isinstance(old, (list, tuple)):
        return type(old)(map(_same_class, old, new))
    if isinstance(old, dict):
        pairs = {key: _same_class(item, new[key]) for key, item in old.items()}
        return pairs if type(old) is dict else type(old)(**pairs)
    return new


def _tensors_of(value: Any) -> list[torch.Tensor]:
    leaves: _Leaves = []
    for part in (*value[0], *value[1].values()):
        trees.flatten(part, "", leaves)
    return [tensor for _, tensor in leaves]


# -- which dimensions vary


def _mark(
    structure: Mapping[str, Any], shapes: Any, names: Sequence[str], tensors: Sequence[torch.Tensor]
) -> dict[tuple[int, int], str]:
    """Mark the dimensions that vary; (leaf, dimension) -> the user's name for it."""
    if shapes is None:
        return {}
    if isinstance(shapes, (list, tuple)):
        shapes = dict(zip(structure, shapes, strict=False))
    if not isinstance(shapes, Mapping) or not shapes.keys() <= structure.keys():
        raise ConfigError(f"dynamic_shapes names arguments, which are {list(structure)}; not {shapes!r:.200}")
    found: dict[tuple[int, int], str] = {}
    leaves = iter(range(len(tensors)))
    for name, part in structure.items():
        for at, spec in _pairs(part, shapes.get(name), leaves, name):
            for dim, size in _by_dimension(spec, tensors[at], name):
                _mark_one(tensors[at], dim, size)
                found[at, dim] = getattr(size, "__name__", "varies")
    return found


def _pairs(structure: Any, spec: Any, leaves: Iterator[int], path: str) -> Iterator[tuple[int, Any]]:
    if structure == trees.TENSOR:
        yield next(leaves), spec
        return
    kind, *rest = structure
    items = {"named": rest[2:], "dict": rest[1:], "output": rest[1:], "constant": []}.get(kind, rest)
    if isinstance(spec, Mapping):
        spec = [spec.get(key) for key in (rest[1] if kind == "named" else rest[0])]
    if spec is None:
        spec = [None] * len(items)
    if not isinstance(spec, (list, tuple)) or len(spec) != len(items):
        raise ConfigError(f"dynamic_shapes of {path} has another structure than the argument")
    for item, part in zip(items, spec, strict=True):
        yield from _pairs(item, part, leaves, path)


def _by_dimension(spec: Any, tensor: torch.Tensor, path: str) -> Iterator[tuple[int, Any]]:
    """The dimensions of a tensor that vary, with what is said of each."""
    if spec is None:
        return
    pairs = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
    for dim, size in pairs:
        if not -tensor.dim() <= dim < tensor.dim():
            raise ConfigError(f"dynamic_shapes of {path} has dimension {dim}, and the tensor has {tensor.dim()}")
        if size is not None and type(size) is not int and "STATIC" not in repr(size):
            yield dim % tensor.dim(), size


def _mark_one(tensor: torch.Tensor, dim: int, size: Any) -> None:
    if "AUTO" in repr(size):
        api.maybe_mark_dynamic(tensor, dim)
        return
    low, high = (_bound(getattr(size, name, None)) for name in ("min", "max"))
    api.mark_dynamic(tensor, dim, min=None if low is None or low < 2 else low, max=high)


def _bound(value: Any) -> int | None:
    """A number of Python's or sympy's; None for torch's infinity."""
    known = isinstance(value, int) or getattr(value, "is_Integer", False)
    return int(value) if known and abs(value) < 1 << 60 else None


def _dimensions(value: Any, ranges: Mapping[Any, Any]) -> dict[int, Any] | None:
    """`dynamic_shapes` of one placeholder of torch's."""
    if not isinstance(value, torch.Tensor):
        return None
    found: dict[int, Any] = {}
    for dim, size in enumerate(value.shape):
        if isinstance(size, torch.SymInt):
            limits = ranges.get(size.node.expr)
            found[dim] = _Range(*(_bound(getattr(limits, name, None)) for name in ("lower", "upper")))
    return found


class _Range:
    """What `torch.export.Dim` says."""

    def __init__(self, low: int | None, high: int | None, name: str = "varies") -> None:
        self.min, self.max = low, high
        self.__name__ = name


def dimensions(texts: Sequence[str]) -> dict[str, dict[int, Any]] | None:
    """`dynamic_shapes` from texts such as "x:0=batch". Raises ConfigError."""
    found: dict[str, dict[int, Any]] = {}
    for text in texts:
        known = re.fullmatch(r"(\w+):(\d+)(?:=(\w+))?", text)
        if known is None:
            raise ConfigError(f"a dimension that varies is ARGUMENT:DIM or ARGUMENT:DIM=NAME, not {text!r}")
        found.setdefault(known[1], {})[int(known[2])] = _Range(None, None, known[3] or "varies")
    return found or None


def _specs(value: Any, shapes: Iterator[Any]) -> Any:
    """`dynamic_shapes` of an argument, from those of its parts in order."""
    if isinstance(value, (list, tuple)):
        return [_specs(item, shapes) for item in value]
    if isinstance(value, dict):
        return {key: _specs(item, shapes) for key, item in value.items()}
    return next(shapes)


# -- what was found


@contextlib.contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Raise ExportError if running the model changes attributes of its modules, which a file can't do again."""
    modules = dict(model.named_modules()) if isinstance(model, torch.nn.Module) else {}
    before = {name: dict(module.__dict__) for name, module in modules.items()}
    tensors = {name: _tensors_in(module) for name, module in modules.items()}
    yield
    for name, module in modules.items():
        now, old = module.__dict__, before[name]
        changed = [key for key in now.keys() | old.keys() if now.get(key) is not old.get(key)]
        if changed or tensors[name] != _tensors_in(module):
            changed = changed or ["parameters or buffers, which are others then"]
            module.__dict__.clear()
            module.__dict__.update(old)
            raise ExportError(f"calling it changes the attribute {'.'.join(filter(None, (name, changed[0])))}")


def _tensors_in(module: torch.nn.Module) -> list[tuple[str, int]]:
    tables: Any = module._parameters, module._buffers, module._modules
    found = [(name, id(value)) for table in tables for name, value in table.items()]
    return [*found, *((name, 0) for name in sorted(module._non_persistent_buffers_set))]


def _facts(
    model: Any,
    recorder: _GraphRecorder,
    structure: dict[str, Any],
    names: list[str],
    leaves: _Leaves,
    marked: list[torch.Tensor],
    dims: dict[tuple[int, int], str],
    result: Any,
) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the file says of the program, its weights and its constants."""
    if not recorder.plans:
        raise ExportError("there is no operation on tensors in it")
    places = {id(tensor): at for at, tensor in enumerate(marked)}
    known = _weights_of(model)
    given: list[list[Any]] = []
    tensors: dict[str, torch.Tensor] = {}
    parameters: dict[str, bool] = {}
    found: dict[int, Any] = {}
    for value, example in zip(recorder.inputs, recorder.examples, strict=True):
        if id(value) in places:
            given.append(["leaf", places[id(value)]])
            found[places[id(value)]] = example
        elif isinstance(value, torch.Tensor):
            name = known.get(id(value), f"constant {len(tensors)}")
            tensors[name] = value.detach()
            if isinstance(value, torch.nn.Parameter) or value.requires_grad:
                parameters[name] = value.requires_grad
                _refuse_history(name, value)
            given.append(["weight", name])
        else:
            given.append(["size", _symbol(example, value)])
    written = [recorder.inputs[at] for at in recorder.written]
    held = {} if recorder.plan is None else recorder.plan.constants
    constants = {name: value.detach() for name, value in held.items()}
    signature = {
        "names": names,
        "structure": structure,
        **_sizes([path for path, _ in leaves], marked, found, dims, written),
    }
    results, outputs = _results(recorder, result)
    facts = {
        "name": getattr(model, "__name__", type(model).__name__),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "inputs": signature,
        "gradients": {"inputs": [x.requires_grad for x in marked], "weights": parameters}
        if recorder.gradients
        else None,
        "given": given,
        "outputs": outputs,
        "results": results,
        "weights": {name: layout(tensor) for name, tensor in tensors.items()},
        "constants": {name: layout(tensor) for name, tensor in constants.items()},
    }
    return facts, tensors, constants


def _refuse_history(name: str, weight: torch.Tensor) -> None:
    """Raise ExportError where a gradient would go on from the weight, or would be seen there, by what no file has."""
    hooks: Any = weight._backward_hooks, getattr(weight, "_post_accumulate_grad_hooks", None)
    if weight.grad_fn is not None:
        raise ExportError(f"the weight {name} is computed from others, to which gradients would have to go on")
    if any(hooks):
        raise ExportError(f"the weight {name} has hooks for its gradient")


def _weights_of(model: Any) -> dict[int, str]:
    """Parameters and buffers, by identity."""
    if not isinstance(model, torch.nn.Module):
        owner = getattr(model, "__self__", None)
        return _weights_of(owner) if isinstance(owner, torch.nn.Module) else {}
    found: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.setdefault(id(tensor), name)
    return found


def _symbol(example: Any, value: Any) -> str:
    tree = symbols.tree_of(example.node._expr) if isinstance(example, torch.SymInt) else None
    if not isinstance(tree, str):
        raise ExportError(
            f"the number {value!r} is an input of the graph; numbers are constants of an exported program"
        )
    return tree


def _results(recorder: _GraphRecorder, result: Any) -> tuple[list[list[Any]], Any]:
    """Where each tensor of the result comes from, and the result's structure."""
    leaves: _Leaves = []
    outputs = trees.flatten(result, "the result", leaves)
    made = {id(value): at for at, value in reversed([*enumerate(recorder.outputs)])}
    taken = {id(value): at for at, value in reversed([*enumerate(recorder.inputs)])}
    found = []
    for path, tensor in leaves:
        if id(tensor) in taken:
            found.append(["given", taken[id(tensor)]])
        elif id(tensor) in made:
            found.append(["graph", made[id(tensor)]])
        else:
            raise ExportError(f"{path} is a tensor that is neither computed by the graph nor one of its inputs")
    return found, outputs


def _sizes(
    paths: list[str],
    marked: list[torch.Tensor],
    found: dict[int, Any],
    dims: dict[tuple[int, int], str],
    written: list[Any],
) -> dict[str, Any]:
    """Leaves, symbols and relations of the signature; `found` are the fakes of the tensors that the graph takes."""
    leaves, env = [], None
    names: dict[Any, list[Any]] = {}
    for at, (path, tensor) in enumerate(zip(paths, marked, strict=True)):
        seen = found.get(at, tensor)
        shape, stride = ([_tree_of(number) for number in numbers] for numbers in (seen.shape, seen.stride()))
        leaves.append([path, dtype_name(tensor.dtype), shape, stride, any(tensor is w for w in written)])
        for dim, size in enumerate(seen.shape):
            if isinstance(size, torch.SymInt):
                env = size.node.shape_env
                if isinstance(shape[dim], int):
                    continue
                limits = env.var_to_range[size.node._expr]
                low, high = max(2, int(limits.lower)), _bound(limits.upper)
                names.setdefault(shape[dim], [at, dim, low, high, dims.get((at, dim), "varies")])
    relations = []
    for guard in env.guards if env is not None else ():
        tree = _with_numbers(symbols.tree_of(guard.expr), env)
        if isinstance(tree, bool) or not symbols.names_in(tree):
            continue  # of sizes that are one number, which the leaves say
        _refuse_equal(tree, names, paths)
        relations.append(tree)
    return {"leaves": leaves, "symbols": names, "relations": relations}


def _refuse_equal(tree: symbols.Tree, names: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Raise ConstraintViolation where two dimensions that the user named differently have to be equal."""
    if not (isinstance(tree, tuple) and tree[0] == "eq" and tree[1] in names and tree[2] in names):
        return
    (one, first, *_, own), (two, second, *_, other) = names[tree[1]], names[tree[2]]
    if own != other and "varies" not in (own, other):
        raise ConstraintViolation(
            f"{paths[one]}.size({first}) is {own}, {paths[two]}.size({second}) is {other}, and they have to be equal",
            hint=f"use the same torch.export.Dim for both: {own}",
        )


def _tree_of(number: Any) -> symbols.Tree:
    """A size in terms of symbols; those that turned out to be one number are that number."""
    if not isinstance(number, torch.SymInt):
        return int(number)
    known = number.node.expr  # after what was found out
    return int(known) if known.is_number else _with_numbers(symbols.tree_of(number.node._expr), number.node.shape_env)


def _with_numbers(tree: symbols.Tree, env: Any) -> symbols.Tree:
    if isinstance(tree, tuple):
        return (tree[0], *(_with_numbers(part, env) for part in tree[1:]))
    known = next((value for symbol, value in env.replacements.items() if str(symbol) == tree), None)
    return tree if known is None or not env.replace(known).is_number else int(env.replace(known))
