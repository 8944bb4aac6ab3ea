"""A call plan as JSON, and back: what a file of an exported program holds of it.

In:  a `codegen.plan.Plan` for CPUs. Out: `to_data(plan)`, lists, dictionaries, numbers and text; `from_data(data)`, an
     equal plan without constants and without its graph. `NotData` for what can't be written down, and for what nobody
     wrote down so: an operator is found by its name in torch's registry, a function only if it is dynajit's own, and
     text that will be evaluated is arithmetic.
One more kind of step needs nothing here: its fields are written by name.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch

from dynajit import constants
from dynajit.codegen import plan as plans
from dynajit.codegen.plan import Buffer, BufferRef, ExternStep, KernelInfo, Plan, SizeStep
from dynajit.constants import NotData, text, word
from dynajit.loopir.size import RuntimeFloat, Size, SizeSymbol

_STEPS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(plans.AllocStep, plans.KernelStep, ExternStep, plans.ViewStep, SizeStep, plans.FreeStep, plans.TouchStep),
    )
}
# what the text of a size may be made of
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name, ast.Load),
    *(ast.Constant, ast.List, ast.Attribute, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_FUNCTIONS = ("small", "float_bits", "int", "float", "abs", "min", "max", "round", "bool")


def to_data(plan: Plan) -> dict[str, Any]:
    """The plan without its constants, which are tensors, and without what reports need."""
    if plan.device.type != "cpu":
        raise NotData(f"its kernels run on {plan.device.type}; programs are exported for CPUs")
    if not all(isinstance(value, torch.Tensor) for value in plan.constants.values()):
        raise NotData("a submodule is called as it is")
    return {
        "name": plan.name,
        "kernels": [[k.name, k.arity, list(k.ops), k.checked, list(k.sizes)] for k in _cpu_kernels(plan)],
        "buffers": [_buffer(buffer) for buffer in plan.buffers.values()],
        "inputs": list(plan.inputs),
        "constants": list(plan.constants),
        "steps": [_step(step) for step in plan.steps],
        "outputs": [encode(value) for value in plan.outputs],
    }


def from_data(data: dict[str, Any], source: str, constants: dict[str, torch.Tensor]) -> Plan:
    """The plan that was written down. Raises NotData."""
    try:
        decoder = Decoder()
        buffers = [decoder.buffer(row) for row in data["buffers"]]
        return Plan(
            text(data["name"]),
            source,
            tuple(
                KernelInfo(word(name), int(arity), tuple(map(text, ops)), (), bool(checked), tuple(map(word, sizes)))
                for name, arity, ops, checked, sizes in data["kernels"]
            ),
            {buffer.name: buffer for buffer in buffers},
            tuple(map(word, data["inputs"])),
            {word(name): constants[name] for name in data["constants"]},
            tuple(map(decoder.step, data["steps"])),
            tuple(map(decoder.value, data["outputs"])),
        )
    except NotData:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise NotData(f"the plan is not as dynajit writes it ({type(error).__name__}: {error})") from error


def _cpu_kernels(plan: Plan) -> list[KernelInfo]:
    return [kernel for kernel in plan.kernels if isinstance(kernel, KernelInfo)]


def _buffer(buffer: Buffer) -> list[Any]:
    sizes = [list(map(encode, numbers)) for numbers in (buffer.shape, buffer.stride)]
    return [buffer.name, *sizes, encode(buffer.dtype)]


def _step(step: Any) -> list[Any]:
    kind = type(step).__name__
    if kind not in _STEPS:
        raise NotData(f"a step of kind {kind}")
    fields = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
    if isinstance(step, ExternStep):
        fields["target"], fields["kwargs"] = target_name(step.target), dict(step.kwargs)
    return [kind, {name: encode(value) for name, value in fields.items()}]


def target_name(target: Callable[..., Any]) -> str:
    """How another process finds an operator, or a function of dynajit's. Raises NotData."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}::{target.overloadpacket.__name__}.{target._overloadname}"
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    if str(module).startswith("dynajit.") and _own_function(str(module), name) is target:
        return f"{module}:{name}"
    raise NotData(f"{name or target!r} is called, which is no operator in torch's registry")


def _own_function(module: str, name: str) -> Any:
    """A function of dynajit's own, None if there is none of that name at a module's top level."""
    if not module.startswith("dynajit.") or not all(part.isidentifier() for part in [*module.split("."), name]):
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if getattr(found, "__module__", None) == module else None


def encode(value: Any) -> Any:
    """JSON for a value: itself, or a list that begins with what it is."""
    if isinstance(value, BufferRef):
        return ["ref", value.name]
    if isinstance(value, Size):
        return ["size", [[factor, *(s.name for s in key)] for key, factor in value.terms.items()], _symbols(value)]
    if isinstance(value, RuntimeFloat):
        return ["real", value.name, encode(value.bits)]
    if isinstance(value, tuple):
        return ["tuple", *map(encode, value)]
    if isinstance(value, list):
        return ["list", *map(encode, value)]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return ["dict", {key: encode(item) for key, item in value.items()}]
    return constants.encode(value, encode)


def _symbols(size: Size) -> list[list[Any]]:
    found = {symbol.name: symbol for key in size.terms for symbol in key}
    return [[symbol.name, symbol.low, symbol.hint, symbol.high] for symbol in found.values()]


class Decoder:
    """Values from their JSON; equal symbols are one object."""

    def __init__(self) -> None:
        self.symbols: dict[str, SizeSymbol] = {}

    def buffer(self, row: list[Any]) -> Buffer:
        """What `_buffer` wrote."""
        name, shape, stride, dtype = row
        kind = self.value(dtype)
        if not isinstance(kind, torch.dtype):
            raise NotData("a buffer's dtype is none")
        return Buffer(word(name), self.sizes(shape), self.sizes(stride), kind, plans.CPU)

    def sizes(self, row: list[Any]) -> tuple[Any, ...]:
        """Sizes or strides: numbers that are not negative, or `Size`s."""
        found = tuple(map(self.value, row))
        if not all(isinstance(number, Size) or (type(number) is int and 0 <= number < 1 << 62) for number in found):
            raise NotData("a buffer's size is no number")
        return found

    def step(self, row: list[Any]) -> Any:
        """What `_step` wrote."""
        kind, fields = row
        made = {word(name): self.value(value) for name, value in fields.items()}
        if kind == "ExternStep":
            made["target"] = target_named(made["target"])
        if kind == "SizeStep":
            word(made["symbol"])
            if made["what"] == "expression":
                check_arithmetic(made["source"])
        return _STEPS[kind](**made)

    def value(self, value: Any) -> Any:
        """What `encode` wrote."""
        kind, *rest = value if isinstance(value, list) else (None,)
        match kind:
            case "ref":
                return BufferRef(text(rest[0]))
            case "size":
                known = {row[0]: self.symbol(*row) for row in rest[1]}
                return Size({tuple(known[name] for name in names): int(factor) for factor, *names in rest[0]})
            case "real":
                return RuntimeFloat(word(rest[0]), self.value(rest[1]))
            case "list":
                return list(map(self.value, rest))
            case "dict":
                return {text(key): self.value(item) for key, item in rest[0].items()}
        return constants.decode(value, self.value)

    def symbol(self, name: str, low: int, hint: int, high: int | None) -> SizeSymbol:
        """What `_symbols` wrote one row of."""
        return self.symbols.setdefault(word(name), SizeSymbol(name, int(low), int(hint), high))


def target_named(name: Any) -> Any:
    """The operator or function of that name. Raises NotData."""
    called = text(name)
    if "::" in called:
        namespace, _, rest = called.partition("::")
        packet, _, overload = rest.rpartition(".")
        try:
            found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        except AttributeError:
            found = None
        if isinstance(found, torch._ops.OpOverload):
            return found
        raise NotData(f"the operator {called} is not registered in this process: import what registers it")
    found = _own_function(*called.split(":", 1)) if ":" in called else None
    if found is None:
        raise NotData(f"this dynajit has no function {called}")
    return found


def check_arithmetic(source: Any) -> None:
    """Raise NotData unless the text is arithmetic on names."""
    try:
        tree = ast.parse(text(source), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotData("the text of a size is no expression") from None
    for node in ast.walk(tree):
        allowed = isinstance(node, _ARITHMETIC)
        if isinstance(node, ast.Attribute):
            allowed = isinstance(node.value, ast.Name) and node.value.id == "math" and not node.attr.startswith("_")
        elif isinstance(node, ast.Call):
            allowed = not node.keywords and (
                isinstance(node.func, ast.Attribute) or (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS)
            )
        elif isinstance(node, ast.Constant):
            allowed = type(node.value) in (int, float, bool)
        if not allowed:
            raise NotData(f"the text of a size holds {type(node).__name__}, which is no arithmetic")
