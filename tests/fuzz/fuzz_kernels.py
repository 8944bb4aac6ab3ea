"""Random functions of tensors through lowering, schedule and C, against the reference interpreter and eager.

In:  a seed. Out: `check_kernels(seed)`: None, or what differs as text, with the function's steps.
Inputs have odd strides, sizes of 0 and 1, no dimensions, NaN and infinities. Their numbers are small multiples of a
half, so that most results are exact in whatever order they are computed; where not (`exact`), only smooth operations
follow. One more operation: a case in `_Maker.step`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.codegen.generate import generate
from dynajit.loopir import lower_graph
from dynajit.runtime import cpu

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "codegen"))
from reference_interpreter import interpret
from well_formed import verify

F = torch.nn.functional
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int8, torch.uint8)
SIZES = (1, 2, 3, 4, 7, 8, 16, 17, 33)
LARGEST = 6000


@dataclass
class Step:
    """One operation on values made before; `exact`: its result does not hang on the order of rounding."""

    text: str
    function: Callable[..., torch.Tensor]
    inputs: tuple[int, ...]


class _Maker:
    """A random function while it is made, with the values that eager gives."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: list[torch.Tensor] = []
        self.exact: list[bool] = []
        self.steps: list[Step] = []

    def input(self) -> torch.Tensor:
        rng = self.rng
        shape = [rng.choice(SIZES) for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 3, 4)))]
        if shape and rng.random() < 0.06:
            shape[rng.randrange(len(shape))] = 0
        while torch.Size(shape).numel() > LARGEST:
            shape[rng.randrange(len(shape))] = 2
        dtype = rng.choice((torch.float32, torch.float32, *FLOATS, *INTS, torch.bool))
        generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
        made = (torch.randint(-8, 9, shape, generator=generator) / 2).to(dtype)
        if dtype.is_floating_point and made.numel() and rng.random() < 0.15:
            made.view(-1)[rng.randrange(made.numel())] = rng.choice((float("nan"), float("inf"), -float("inf"), -0.0))
        return self.strided(made)

    def strided(self, made: torch.Tensor) -> torch.Tensor:
        """The same in odd memory."""
        rng = self.rng
        choice = rng.randrange(5)
        if choice == 0 and made.dim() > 1:
            order = list(range(made.dim()))
            rng.shuffle(order)
            return made.permute(order)
        if choice == 1 and made.dim():
            wide = torch.zeros(*made.shape[:-1], made.shape[-1] * 2 + 1, dtype=made.dtype)
            wide[..., 1::2] = made
            return wide[..., 1::2]
        if choice == 2 and made.dim():
            return made[:1].expand(made.shape) if made.shape[0] else made
        return made

    def add(self, text: str, function: Callable[..., torch.Tensor], *inputs: int, exact: bool = True) -> None:
        """Append a step, unless its result is too large or torch refuses it."""
        try:
            value = function(*(self.values[at] for at in inputs))
        except (RuntimeError, IndexError, ValueError, TypeError):
            return
        if value.numel() > LARGEST or (not value.dtype.is_floating_point and value.dtype.is_complex):
            return
        self.values.append(value)
        self.exact.append(exact and all(self.exact[at] for at in inputs))
        self.steps.append(Step(text, function, inputs))

    def step(self) -> None:
        rng = self.rng
        at = rng.randrange(len(self.values))
        value = self.values[at]
        rng.choice((self._unary, self._unary, self._binary, self._binary, self._view, self._view, self._reduce))(
            at, value
        )

    def _unary(self, at: int, value: torch.Tensor) -> None:
        rng = self.rng
        smooth = {"exp": torch.exp, "tanh": torch.tanh, "sin": torch.sin, "sigmoid": torch.sigmoid, "erf": torch.erf}
        plain: dict[str, Any] = {"neg": torch.neg, "abs": torch.abs, "relu": torch.relu, "square": torch.square}
        steps = {"floor": torch.floor, "sign": torch.sign, "not": torch.logical_not, "isnan": torch.isnan}
        table = {**plain, **(steps if self.exact[at] else {})}
        if value.is_floating_point():
            table |= smooth
        name = rng.choice([*table, "cast", "clamp", "scaled"])
        if name == "cast":
            dtype = rng.choice(FLOATS) if value.is_floating_point() else rng.choice((*FLOATS, *INTS, torch.bool))
            self.add(f"to({dtype})", lambda x: x.to(dtype), at)
        elif name == "clamp":
            low = rng.randint(-3, 1)
            self.add(f"clamp({low}, 3)", lambda x: x.clamp(low, 3), at)
        elif name == "scaled":
            number = rng.choice((2, -1, 3, 0.5, True))
            self.add(f"* {number}", lambda x: x * number, at)
        else:
            self.add(name, table[name], at, exact=name not in smooth)

    def _binary(self, at: int, value: torch.Tensor) -> None:
        rng = self.rng
        other = rng.randrange(len(self.values))
        table: dict[str, Any] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}
        if self.exact[at] and self.exact[other]:
            table |= {
                "maximum": torch.maximum,
                "minimum": torch.minimum,
                "lt": torch.lt,
                "eq": torch.eq,
                "ge": torch.ge,
            }
            table["where"] = lambda x, y: torch.where(x > 0, x, y)
            table["cat"] = lambda x, y: torch.cat([x, y], -1)
        name = rng.choice([*table])
        self.add(name, table[name], at, other)

    def _view(self, at: int, value: torch.Tensor) -> None:
        rng = self.rng
        rank = value.dim()
        dim = rng.randrange(rank) if rank else 0
        step, begin = rng.choice((1, 2, 3)), rng.randrange(3)
        order = list(range(rank))
        rng.shuffle(order)
        pad = [rng.randrange(3) for _ in range(2)]
        table: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            f"permute({order})": lambda x: x.permute(order),
            f"narrow from {begin} by {step} in {dim}": lambda x: x[(slice(None),) * dim + (slice(begin, None, step),)],
            f"flip({dim})": lambda x: x.flip(dim),
            f"unsqueeze({dim})": lambda x: x.unsqueeze(dim),
            "reshape(-1)": lambda x: x.reshape(-1),
            "reshape(2, -1)": lambda x: x.reshape(2, -1),
            f"select({dim}, 0)": lambda x: x.select(dim, 0),
            "expand": lambda x: x.expand(2, *x.shape),
            f"pad({pad})": lambda x: F.pad(x, pad),
            f"roll({begin}, {dim})": lambda x: torch.roll(x, begin, dim),
            "tril": lambda x: x.tril(begin - 1),
            "contiguous": lambda x: x.contiguous(),
        }
        name = rng.choice([*table])
        self.add(name, table[name], at)

    def _reduce(self, at: int, value: torch.Tensor) -> None:
        rng = self.rng
        rank = value.dim()
        dim, keep = rng.randrange(rank) if rank else 0, rng.random() < 0.5
        wide = value.dtype in (torch.float32, torch.float64) or not value.is_floating_point()
        table: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            f"sum({dim}, {keep})": lambda x: x.sum(dim, keep),
            "sum of all": lambda x: x.sum(),
            f"amax({dim}, {keep})": lambda x: x.amax(dim, keep),
            f"any({dim})": lambda x: x.any(dim),
        }
        if self.exact[at]:
            table |= {f"argmax({dim}, {keep})": lambda x: x.argmax(dim, keep), f"amin({dim})": lambda x: x.amin(dim)}
        if value.is_floating_point():
            smooth = {
                f"mean({dim}, {keep})": lambda x: x.mean(dim, keep),
                f"softmax({dim})": lambda x: x.softmax(dim),
                f"var({dim})": lambda x: x.var(dim),
                "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
            }
            table |= smooth
        if wide:
            table[f"cumsum({dim})"] = lambda x: x.cumsum(dim)
        name = rng.choice([*table])
        self.add(name, table[name], at, exact=wide and not name.startswith(("mean", "softmax", "var", "layer", "cums")))


def random_function(seed: int) -> tuple[Callable[..., Any], list[torch.Tensor], str]:
    """A function, its inputs, and its steps as text."""
    rng = random.Random(seed)
    maker = _Maker(rng)
    count = rng.randrange(1, 4)
    for _ in range(count):
        maker.values.append(maker.input())
        maker.exact.append(True)
    inputs = list(maker.values)
    for _ in range(rng.randrange(3, 14)):
        maker.step()
    made = range(count, len(maker.values))
    outputs = [at for at in made if at == len(maker.values) - 1 or rng.random() < 0.2]
    steps = list(maker.steps)

    def function(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(args)
        for step in steps:
            values.append(step.function(*(values[at] for at in step.inputs)))
        return tuple(values[at] for at in outputs)

    lines = [f"  v{at}: {x.dtype} {tuple(x.shape)} strides {x.stride()}" for at, x in enumerate(inputs)]
    lines += [f"  v{count + at} = {step.text} of {step.inputs}" for at, step in enumerate(steps)]
    return function, inputs, "\n".join([*lines, f"  outputs {outputs}"])


def check_kernels(seed: int) -> str | None:
    """None, or how compiled C and the reference interpreter (or eager, in shapes and strides) differ."""
    function, inputs, text = random_function(seed)
    with torch.no_grad():
        expected = function(*inputs)
        if not expected:
            return None
        gm = make_fx(torch.func.functionalize(function), tracing_mode="fake")(*inputs)
        try:
            compiled = cpu.build(generate(gm, inputs, "fuzz"))
            actual = compiled(*inputs)
            program = lower_graph.lower(gm, "fuzz")
            try:
                verify(program)
                meant = interpret(program, dict(zip(program.inputs, inputs, strict=True)))
            finally:
                lower_graph.forget()
        except Exception as error:
            return f"{type(error).__name__}: {error}\n{text}"
    single = "float32" in text
    for at, (a, e, m) in enumerate(zip(actual, expected, meant, strict=True)):
        if a.shape != e.shape or a.dtype != e.dtype or (a.stride() != e.stride() and a.numel() and 1 not in a.shape):
            return f"output {at}: {a.dtype} {a.shape} {a.stride()}, eager {e.dtype} {e.shape} {e.stride()}\n{text}"
        if not _close(a, m.expand(a.shape), single):
            return f"output {at}: {a}\ninterpreter {m}\n{text}"
        halves = any(x.dtype in FLOATS[2:] for x in (e, *inputs)) or "16" in text
        if not halves and not _close(a, e, single):
            return f"output {at}: {a}\neager {e}\n{text}"
    return None


def _close(a: torch.Tensor, b: torch.Tensor, single: bool) -> bool:
    """`single`: something may have been rounded to float32 on the way."""
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    loose = {torch.float64: 2e-4 if single else 1e-9, torch.float32: 2e-4}.get(a.dtype, 3e-2)
    return torch.allclose(a.double(), b.double(), rtol=loose, atol=loose, equal_nan=True)
