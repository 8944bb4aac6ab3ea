"""Numbers that the host knows when the plan runs, in kernels for GPUs: Python floats that vary, and what lies in
tensors without dimensions on the CPU, as optimizers keep their counts of steps.

In:  a program's `RuntimeFloat`s and its tensors on the CPU.
Out: `for_kernels(build, dtype, given)`: a scalar for expressions; `of_the_device(graph, ...)`: which calls on such
     tensors only kernels ask for, so that these compute them and the host does not.

A kernel is given the number itself (`nodes.Number`), as the bits of a float64 or as an int64.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from dynajit.loopir import nodes
from dynajit.loopir.build import convert
from dynajit.loopir.builder import Builder
from dynajit.loopir.nodes import Extern, Number, Scalar, View
from dynajit.loopir.ops import SUPPORTED
from dynajit.loopir.size import RuntimeFloat

aten = torch.ops.aten


class HostNumber:
    """The call that reads a tensor without dimensions, or takes a float: the bits that kernels are given."""

    __name__ = "device_value"

    def __call__(self, given: torch.Tensor | float) -> torch.Tensor:
        value = torch.as_tensor(given)
        return value.double().view(torch.int64) if value.dtype.is_floating_point else value.to(torch.int64)


def for_kernels(build: Builder, given: View | RuntimeFloat) -> Scalar:
    """The number, as a float64 or an int64. `given` is known where the program is now, and read there."""
    build.order += 1
    number = Number(build.name("device_value"), (), (), torch.int64, build.order, build.origin, build.program.device)
    build.program.sources[number.name] = number
    build.program.items.append(Extern(HostNumber(), (given,), {}, (number,), True, build.order, build.origin))
    bits = nodes.read(number, ())
    floating = isinstance(given, RuntimeFloat) or given.dtype.is_floating_point
    return nodes.op("from_bits", (bits,), torch.float64) if floating else bits


def as_tensor(build: Builder, given: View, held: torch.Tensor | None = None) -> View:
    """A tensor on the CPU without dimensions as one that kernels compute. `held`: what it is, of a constant."""
    if held is not None and held.numel() == 1:
        return build.pointwise((), lambda axes: nodes.const(held.item(), given.dtype))
    return build.pointwise((), lambda axes: convert(for_kernels(build, given), given.dtype))


def is_one_on_the_host(fake: Any) -> bool:
    """Is it a tensor without dimensions on the CPU, of a dtype that kernels have?"""
    return (
        isinstance(fake, torch.Tensor)
        and fake.device.type == "cpu"
        and fake.layout is torch.strided
        and fake.dim() == 0
        and fake.dtype in SUPPORTED
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat)) or is_one_on_the_host(value)


def of_the_device(
    graph: torch.fx.Graph, device: torch.device, in_kernels: Callable[[Any], bool]
) -> Collection[torch.fx.Node]:
    """The calls whose results are tensors without dimensions on the CPU, all of whose readers are kernels of the
    device. `in_kernels` says of an op whether kernels can have it."""
    if device.type == "cpu":
        return ()
    found: set[torch.fx.Node] = set()

    def reads_in_kernel(user: torch.fx.Node) -> bool:
        made = user.meta.get("val")
        on_device = isinstance(made, torch.Tensor) and made.device == device
        return user in found or (on_device and in_kernels(user.target))

    for node in reversed(list(graph.nodes)):
        if (
            node.op == "call_function"
            and node.users
            and is_one_on_the_host(node.meta.get("val"))
            and node.target in _ELEMENTWISE
            and in_kernels(node.target)
            and all(map(reads_in_kernel, node.users))
            and all(_is_number(given.meta.get("val")) for given in node.all_input_nodes)
        ):
            found.add(node)
    return found


# What may as well be computed where it is used.
_ELEMENTWISE = frozenset(
    {
        *(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.rsub.Tensor),
        *(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.reciprocal.default),
        *(aten.pow.Tensor_Scalar, aten.pow.Scalar, aten.pow.Tensor_Tensor, aten.sqrt.default, aten.rsqrt.default),
        *(aten.neg.default, aten.abs.default, aten.exp.default, aten.log.default, aten.maximum.default),
        *(aten.minimum.default, aten.where.self, aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default),
        *(aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar, aten.eq.Scalar, aten.ne.Scalar),
        *(aten._to_copy.default, torch.ops.prims.convert_element_type.default, aten.full.default),
        *(aten.scalar_tensor.default, aten.clone.default, aten.cos.default, aten.square.default),
    }
)
