"""Changes that a program can observe, one at a time.

In: a program and its arguments, after it was compiled. Out: `mutations(fn, args)`, pairs of a name and a function that
makes the change in place and returns the one that takes it back (arguments belong to one trial and are not restored).
One more kind of change: a generator here, added to `KINDS`.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import copy
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.overrides

Undo = Callable[[], None]
Change = Callable[[], Undo]
Mutation = tuple[str, Change]
DEPTH = 4


def nothing() -> None:
    """What takes back a change of something that is thrown away."""


# ---------------------------------------------------------------------------------------------------- values


def others(value: Any) -> Iterator[tuple[str, Any]]:
    """Values to put in a value's place, each with what is different about it."""
    kind = type(value)
    if kind is bool:
        yield "the other truth", not value
        yield "a number", int(value)
    elif kind is int:
        yield "one more", value + 1
        yield "a float", float(value)
    elif kind is float:
        yield "more", value + 0.5
        yield "minus zero", -0.0
    elif kind is str:
        yield "longer", value + "x"
    elif value is None:
        yield "a number", 1
    elif isinstance(value, torch.Tensor):
        yield from other_tensors(value)
    elif kind is list:
        yield "a tuple", tuple(value)
    elif kind is tuple:
        yield "shorter", value[:-1]
    elif kind is dict:
        yield "in another order", dict(reversed(value.items()))


def other_tensors(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    plain = tensor.detach().clone()
    yield "other numbers", plain + 1 if plain.dtype is not torch.bool else ~plain
    yield "another dtype", plain.double() if plain.dtype is not torch.float64 else plain.float()
    yield "another shape", torch.cat([plain, plain]) if plain.dim() else plain.reshape(1)
    yield "other strides", plain.t().contiguous().t() if plain.dim() == 2 else plain.clone()
    yield "on another device", plain.to("meta")
    if plain.is_floating_point():
        yield "requires_grad", plain.requires_grad_(not tensor.requires_grad)
        yield "a parameter", torch.nn.Parameter(plain.detach().clone())


# ------------------------------------------------------------------------------------------------- arguments


def in_list(items: list[Any], where: str) -> Iterator[Mutation]:
    for index, item in enumerate(items):
        for what, other in others(item):
            yield f"{where}[{index}]: {what}", put_item(items, index, other)
    if items:
        yield f"{where}: appended", lambda: (items.append(items[0]), nothing)[1]
        yield f"{where}: shortened", lambda: (items.pop(), nothing)[1]


def in_dict(entries: dict[Any, Any], where: str) -> Iterator[Mutation]:
    for key, value in list(entries.items()):
        for what, other in others(value):
            yield f"{where}[{key!r}]: {what}", put_item(entries, key, other)
    if entries:
        first = next(iter(entries))
        yield f"{where}: removed", lambda: (entries.pop(first), nothing)[1]
        yield f"{where}: moved", lambda: (entries.__setitem__(first, entries.pop(first)), nothing)[1]
    yield f"{where}: added", lambda: (entries.__setitem__("zz", 1), nothing)[1]


def put_item(container: Any, key: Any, other: Any) -> Change:
    def change() -> Undo:
        container[key] = other
        return nothing

    return change


def put_attribute(owner: Any, name: str, other: Any) -> Change:
    missing = object()

    def change() -> Undo:
        old = vars(owner).get(name, missing)
        setattr(owner, name, other)
        return lambda: setattr(owner, name, old) if old is not missing else delattr(owner, name)

    return change


def in_object(owner: Any, where: str) -> Iterator[Mutation]:
    for name, value in list(vars(owner).items()):
        if isinstance(owner, torch.nn.Module) and name.startswith("_"):
            continue
        for what, other in others(value):
            yield f"{where}.{name}: {what}", put_attribute(owner, name, other)
        if not isinstance(owner, torch.nn.Module):
            yield f"{where}.{name}: deleted", lambda name=name: (delattr(owner, name), nothing)[1]
    yield f"{where}: new attribute", put_attribute(owner, "zz", 1)


def in_module(module: torch.nn.Module, where: str) -> Iterator[Mutation]:
    yield f"{where}: training flag", lambda: (module.train(not module.training), nothing)[1]
    yield f"{where}: forward hook", lambda: (module.register_forward_hook(_add_one), nothing)[1]
    yield f"{where}: forward pre-hook", lambda: (module.register_forward_pre_hook(_plus_one), nothing)[1]
    for name, parameter in list(module.named_parameters()):
        owner, _, last = name.rpartition(".")
        holder = module.get_submodule(owner)
        for what, other in other_tensors(parameter):
            if what in ("another shape", "on another device"):
                continue
            swapped = torch.nn.Parameter(other, requires_grad=other.requires_grad) if what != "a parameter" else other
            yield f"{where}.{name}: swapped for {what}", put_item(holder._parameters, last, swapped)
        yield f"{where}.{name}: .data", _swap_data(parameter)
        yield f"{where}.{name}: frozen", lambda p=parameter: (p.requires_grad_(not p.requires_grad), nothing)[1]
    for name, buffer in list(module.named_buffers()):
        owner, _, last = name.rpartition(".")
        yield f"{where}.{name}: swapped", put_item(module.get_submodule(owner)._buffers, last, buffer.detach() + 1)
    for name, child in list(module.named_modules()):
        if name:
            owner, _, last = name.rpartition(".")
            identity = torch.nn.Identity()
            yield f"{where}.{name}: replaced", put_item(module.get_submodule(owner)._modules, last, identity)
            yield f"{where}.{name}: hook", lambda c=child: (c.register_forward_hook(_add_one), nothing)[1]
            yield f"{where}.{name}: training flag", lambda c=child: (c.train(not c.training), nothing)[1]
            yield f"{where}.{name}: forward patched", put_attribute(child, "forward", _patched(child.forward))
            yield from in_object(child, f"{where}.{name}")
    yield f"{where}: forward patched", put_attribute(module, "forward", _patched(module.forward))
    yield f"{where}: every module's hook", _everywhere
    if type(module).__module__.split(".")[0] != "torch":
        yield from in_class(type(module), where)


def _everywhere() -> Undo:
    return torch.nn.modules.module.register_module_forward_hook(_add_one).remove


def _add_one(module: Any, args: Any, result: Any) -> Any:
    return result + 1 if isinstance(result, torch.Tensor) else result


def _plus_one(module: Any, args: Any) -> Any:
    return tuple(arg + 1 if isinstance(arg, torch.Tensor) else arg for arg in args)


def in_tensor(tensor: torch.Tensor, where: str) -> Iterator[Mutation]:
    yield f"{where}: .data", _swap_data(tensor)
    if tensor.is_floating_point() and tensor.is_leaf:
        yield f"{where}: requires_grad", lambda: (tensor.requires_grad_(not tensor.requires_grad), nothing)[1]
    if tensor.dim() == 2 and not tensor.requires_grad:
        yield f"{where}: transposed in place", lambda: (tensor.t_(), nothing)[1]
        yield f"{where}: resized", lambda: (tensor.resize_(tensor.shape[0] + 1, tensor.shape[1]).fill_(1), nothing)[1]
    yield f"{where}: an attribute", lambda: (setattr(tensor, "zz", 1), nothing)[1]


def _swap_data(tensor: torch.Tensor) -> Change:
    def change() -> Undo:
        tensor.data = tensor.detach().double() * 2
        return nothing

    return change


def in_value(value: Any, where: str, seen: set[int], depth: int = DEPTH) -> Iterator[Mutation]:
    """Changes inside of an argument."""
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    children: list[tuple[str, Any]] = []
    if isinstance(value, torch.nn.Module):
        yield from in_module(value, where)
        yield from in_object(value, where)
    elif isinstance(value, list):
        yield from in_list(value, where)
        children = [(f"{where}[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, dict):
        yield from in_dict(value, where)
        children = [(f"{where}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, tuple):
        children = [(f"{where}[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, torch.Tensor):
        yield from in_tensor(value, where)
    elif type(value).__module__.split(".")[0] in ("tests", "test") or "<locals>" in type(value).__qualname__:
        with contextlib.suppress(TypeError):
            yield from in_object(value, where)
            children = [(f"{where}.{name}", item) for name, item in vars(value).items()]
        yield from in_class(type(value), where)
    for place, item in children:
        yield from in_value(item, place, seen, depth - 1)


def in_class(cls: type, where: str) -> Iterator[Mutation]:
    for name, value in list(vars(cls).items()):
        if isinstance(value, types.FunctionType) and not name.startswith("__"):
            yield f"type({where}).{name}: patched", put_attribute(cls, name, _patched(value))
        elif not name.startswith("__"):
            for what, other in others(value):
                yield f"type({where}).{name}: {what}", put_attribute(cls, name, other)


def _patched(function: Callable[..., Any], of: tuple[type, ...] = (int, float, torch.Tensor)) -> Callable[..., Any]:
    def patched(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result + 1 if isinstance(result, of) else result

    return patched


def of_arguments(fn: Any, args: list[Any]) -> Iterator[Mutation]:
    seen: set[int] = set()
    for index, arg in enumerate(args):
        for what, other in others(arg):
            yield f"argument {index}: {what}", put_item(args, index, other)
    for index, arg in enumerate(args):
        yield from in_value(arg, f"argument {index}", seen)


# -------------------------------------------------------------------------------------------------- functions


def of_function(fn: Any, args: list[Any]) -> Iterator[Mutation]:
    """Globals, closure cells and default values, of the function and of those that it names; a module's parts."""
    if isinstance(fn, torch.nn.Module):
        yield from in_value(fn, "the module", set())
    yield from in_function(getattr(fn, "__func__", fn), set(), DEPTH)


def in_function(fn: Any, seen: set[int], depth: int) -> Iterator[Mutation]:
    if not isinstance(fn, types.FunctionType) or id(fn) in seen or depth == 0 or _is_torchs(fn):
        return
    seen.add(id(fn))
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            value = fn.__globals__[name]
            for what, other in _other_globals(value):
                yield f"global {name}: {what}", _set_global(fn.__globals__, name, other)
            yield from in_function(value, seen, depth - 1)
            if isinstance(value, type) and value.__module__ == fn.__module__ and id(value) not in seen:
                seen.add(id(value))
                yield from in_class(value, name)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            for what, other in _other_globals(cell.cell_contents):
                yield f"cell {name}: {what}", _set_cell(cell, other)
            yield from in_function(cell.cell_contents, seen, depth - 1)
    for index, default in enumerate(fn.__defaults__ or ()):
        for what, other in others(default):
            yield f"default {index}: {what}", _set_default(fn, index, other)
    for name, default in (fn.__kwdefaults__ or {}).items():
        for what, other in others(default):
            yield f"default {name}: {what}", _set_kwdefault(fn, name, other)


def _is_torchs(fn: types.FunctionType) -> bool:
    return (fn.__module__ or "").split(".")[0] in ("torch", "dynajit", "functools", "contextlib", "operator")


def _other_globals(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType) and not _is_torchs(value):
        yield "patched", _patched(value)
    else:
        yield from others(value)


def of_library(fn: Any, args: list[Any]) -> Iterator[Mutation]:
    """What the program uses of torch and of Python's own library, directly or through them: functions in modules,
    methods of classes and builtins are replaced, classes get attributes and lose them."""
    function = getattr(fn, "__func__", type(fn).forward if isinstance(fn, torch.nn.Module) else fn)
    seen: set[tuple[int, str]] = set()
    for owner, name, found in library_sites(function, [fn, *args]):
        if (id(owner), name) in seen:
            continue
        seen.add((id(owner), name))
        where = (
            f"{getattr(owner, '__module__', '')}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        )
        made = _patched_for_program(found) if owner is builtins else _patched(found, (float, torch.Tensor))
        yield f"{where}.{name}: patched", put_attribute(owner, name, made)
        if isinstance(owner, type):
            yield f"{where}.{name}: new attribute", put_attribute(owner, f"{name}_zz", made)
            if name in vars(owner) and not name.startswith("__"):
                yield f"{where}.{name}: removed", remove_attribute(owner, name)


Site = tuple[Any, str, Any]
LIBRARY_DEPTH = 3
MADE_BY_IT = (torch.tensor, torch.empty)  # constants and memory of a trace: patched, they would change these as well
# asked by modes, which are on while a graph is taken apart; and what sets torch's state, of C
USED_INSIDE = ("handle_torch_function", "has_torch_function", "_set_")
CALLABLES = (types.FunctionType, types.BuiltinFunctionType)


def library_sites(function: Any, holders: list[Any]) -> Iterator[Site]:
    """(class or module, name, what is there), by the names in the program's code and in the library's that it calls."""
    todo = [(function, 0)]
    for kind in dict.fromkeys(type(module) for holder in holders for module in _modules_in(holder)):
        if kind.__module__.split(".")[0] == "torch":
            yield kind, "forward", kind.forward
            todo.append((kind.forward, 1))
        for name in ("__call__", "_call_impl", "__getattr__"):
            yield torch.nn.Module, name, getattr(torch.nn.Module, name)
    seen: set[int] = set()
    while todo:
        code_of, depth = todo.pop(0)
        if isinstance(code_of, types.FunctionType) and id(code_of) not in seen and depth < LIBRARY_DEPTH:
            seen.add(id(code_of))
            for site in _sites_of(code_of):
                yield site
                todo.append((site[2], depth + 1))


def _sites_of(function: types.FunctionType) -> Iterator[Site]:
    names, globals_ = function.__code__.co_names, function.__globals__
    modules = [globals_.get(name) for name in names]
    if globals_.get("__name__", "").split(".")[0] == "torch":
        modules.append(sys.modules.get(globals_["__name__"]))
    known: set[int] = set()
    for module in modules:  # grows
        if not isinstance(module, types.ModuleType) or id(module) in known or module.__name__.startswith("dynajit"):
            continue
        known.add(id(module))
        for name in names:
            found = vars(module).get(name)
            modules.append(found)
            if isinstance(found, CALLABLES) and found not in MADE_BY_IT and not name.startswith(USED_INSIDE):
                yield module, name, found
    for name in names:
        if isinstance(getattr(torch.Tensor, name, None), (types.FunctionType, types.MethodDescriptorType)):
            yield torch.Tensor, name, getattr(torch.Tensor, name)
        if name not in globals_ and isinstance(vars(builtins).get(name), types.BuiltinFunctionType):
            yield builtins, name, vars(builtins)[name]


def _modules_in(holder: Any) -> list[torch.nn.Module]:
    return list(holder.modules()) if isinstance(holder, torch.nn.Module) else []


def _patched_for_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Everything else, that of the tests as well, is written with the builtins."""

    def patched(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        ours = "test" in str(sys._getframe(1).f_globals.get("__name__"))
        return result + 1 if ours and type(result) in (int, float) else result

    return patched


def remove_attribute(owner: Any, name: str) -> Change:
    def change() -> Undo:
        old = vars(owner)[name]
        delattr(owner, name)
        return lambda: setattr(owner, name, old)

    return change


def _set_global(namespace: dict[str, Any], name: str, other: Any) -> Change:
    def change() -> Undo:
        old = namespace[name]
        namespace[name] = other
        return lambda: namespace.__setitem__(name, old)

    return change


def _set_cell(cell: Any, other: Any) -> Change:
    def change() -> Undo:
        old = cell.cell_contents
        cell.cell_contents = other
        return lambda: setattr(cell, "cell_contents", old)

    return change


def _set_default(fn: types.FunctionType, index: int, other: Any) -> Change:
    def change() -> Undo:
        old = fn.__defaults__ or ()
        fn.__defaults__ = (*old[:index], other, *old[index + 1 :])
        return lambda: setattr(fn, "__defaults__", old)

    return change


def _set_kwdefault(fn: types.FunctionType, name: str, other: Any) -> Change:
    def change() -> Undo:
        old = fn.__kwdefaults__
        fn.__kwdefaults__ = {**old, name: other}
        return lambda: setattr(fn, "__kwdefaults__", old)

    return change


# ------------------------------------------------------------------------------------------------------ state


def of_process(fn: Any, args: list[Any]) -> Iterator[Mutation]:
    """torch's process-wide and thread-wide modes."""

    def entered(manager: Callable[[], Any]) -> Change:
        def change() -> Undo:
            stack = contextlib.ExitStack()
            stack.enter_context(manager())
            return stack.close

        return change

    def switched(get: Callable[[], Any], put: Callable[[Any], Any], other: Any) -> Change:
        def change() -> Undo:
            old = get()
            put(other)
            return lambda: put(old)

        return change

    yield "grad mode", entered(lambda: torch.set_grad_enabled(not torch.is_grad_enabled()))
    yield "inference mode", entered(torch.inference_mode)
    yield "autocast", entered(lambda: torch.autocast("cpu", torch.bfloat16))
    yield "default device", entered(lambda: torch.device("meta"))
    yield "default dtype", switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64)
    yield (
        "deterministic",
        switched(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    )
    yield "random state", lambda: (torch.manual_seed(12345), nothing)[1]
    yield "Python's random state", lambda: (random.seed(12345), nothing)[1]
    yield (
        "matmul precision",
        switched(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    )
    yield "a torch function mode", entered(_Doubled)
    yield "anomaly mode", entered(lambda: torch.autograd.set_detect_anomaly(True))
    yield "threads", switched(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1)


class _Doubled(torch.overrides.TorchFunctionMode):
    """`torch.add` and `+` give twice as much."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.add, torch.Tensor.add, torch.Tensor.__add__) else result


# ------------------------------------------------------------------------------------------------------- ties


Place = tuple[str, Any, Callable[[Any], Undo]]  # its name, the object that is there, what puts another one there
TIED = 60  # pairs of one program, at most


def ties(fn: Any, args: list[Any]) -> Iterator[Mutation]:
    """Two places that held two objects of one type hold one object; two that held one object hold equal copies."""
    places = list(_places_of(fn, args))
    pairs = ((one, two) for at, two in enumerate(places) for one in places[:at] if type(one[1]) is type(two[1]))
    for (first, shared, _), (second, other, put) in itertools.islice(pairs, TIED):
        if shared is not other:
            yield f"{second} is {first}", lambda put=put, shared=shared: put(shared)
        elif (made := _copied(other)) is not other:
            yield f"{second} is a copy of {first}", lambda put=put, made=made: put(made)


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError):  # generators, tensors with a history
        return value


def _places_of(fn: Any, args: list[Any]) -> Iterator[Place]:
    seen: set[int] = set()
    for index, arg in enumerate(args):
        yield from _place(f"argument {index}", arg, args.__setitem__, index, seen)
    if isinstance(fn, torch.nn.Module):
        yield from _places_in("the module", fn, seen)
    function = getattr(fn, "__func__", fn)
    if not isinstance(function, types.FunctionType) or _is_torchs(function):
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield from _place(
                f"global {name}", function.__globals__[name], function.__globals__.__setitem__, name, seen
            )
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            yield from _place(f"cell {name}", cell.cell_contents, lambda _, v, c=cell: _fill(c, v), None, seen)


def _fill(cell: Any, value: Any) -> None:
    cell.cell_contents = value


def _place(where: str, value: Any, put: Callable[[Any, Any], None], key: Any, seen: set[int]) -> Iterator[Place]:
    def change(other: Any) -> Undo:
        put(key, other)
        return lambda: put(key, value)

    if _has_identity(value):
        yield where, value, change
    yield from _places_in(where, value, seen)


def _has_identity(value: Any) -> bool:
    if type(value).__module__.split(".")[0] in ("tests", "test") or "<locals>" in type(value).__qualname__:
        return True
    if isinstance(value, types.FunctionType):
        return not _is_torchs(value)
    return type(value) in (list, dict, set, tuple) or isinstance(value, (torch.Tensor, torch.nn.Module))


def _places_in(where: str, value: Any, seen: set[int]) -> Iterator[Place]:
    """Places in an object that the program can reach: items, attributes, parameters and submodules."""
    if id(value) in seen or len(seen) > 4 * TIED:
        return
    seen.add(id(value))
    if type(value) is list:
        for index, item in enumerate(value):
            yield from _place(f"{where}[{index}]", item, value.__setitem__, index, seen)
    elif type(value) in (dict, collections.OrderedDict):
        for key, item in value.items():
            yield from _place(f"{where}[{key!r}]", item, value.__setitem__, key, seen)
    elif isinstance(value, torch.nn.Module):
        for table in (value._parameters, value._buffers, value._modules):
            for name, item in table.items():
                yield from _place(f"{where}.{name}", item, table.__setitem__, name, seen)
        for name, item in vars(value).items():
            if not name.startswith("_"):
                yield from _place(f"{where}.{name}", item, vars(value).__setitem__, name, seen)
    elif _has_identity(value) and not isinstance(value, (torch.Tensor, types.FunctionType, type)):
        for name, item in getattr(value, "__dict__", {}).items():
            yield from _place(f"{where}.{name}", item, vars(value).__setitem__, name, seen)


KINDS = {"arguments": of_arguments, "function": of_function, "library": of_library, "process": of_process, "ties": ties}


def mutations(fn: Any, args: list[Any], kinds: tuple[str, ...] = tuple(KINDS)) -> Iterator[Mutation]:
    """All changes that fit a program and its arguments, in a fixed order."""
    for kind in kinds:
        yield from KINDS[kind](fn, args)
