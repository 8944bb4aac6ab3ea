"""Random programs of items that tensors choose: loads, writes into them and around them, views, results, gradients."""

from __future__ import annotations

import linecache
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.outcomes import compare

_LOADS = (
    *("x[t]", "x[:, t]", "x[..., t]", "x[t, 1]", "x[1, t]", "x[t, :, u]", "x[:, t, u]", "x[t, [0, 2]]", "x[1:, t]"),
    *("x.select(1, t)", "x.select(-1, u)", "x.narrow(0, u, 2)", "torch.narrow(x, 1, t, 2)", "x[t].unsqueeze(0)"),
    *("x[t][u]", "x[:, t][1:]", "x[None, t]", "x[:, t][:, u]", "x[:, t, 1:]", "x.transpose(0, 1)[t]"),
)
_READS = (
    *("out = out + item.sum()", "outs.append(item * 2)", "outs.append(item.reshape(-1) + 1)", "outs.append(item)"),
    *("outs.append(item.contiguous())", "outs.append(item.stride())", "outs.append(item.clone())"),
    *("outs.append(item.flatten() @ item.flatten())", "outs.append((item.exp() * out).sum(0))"),
    *("outs.append(item.is_contiguous())", "outs.append(torch.relu(item).stride())"),
)
_WRITES = (
    *("item.add_(1)", "item.mul_(2)", "item += half", "item[..., 0] = 3", "item.copy_(item.flip(-1))", "item.exp_()"),
    *("item.contiguous().add_(1)", "item.reshape(-1).mul_(3)", "torch.add(item, 1, out=item)", "x.mul_(2)"),
    *("x[t] += 1", "x[:, t] *= 2", "x[t, u] -= out", "x[..., u] = 0.5", "x[1, t] = x[0, u]", "x[t] = half"),
    *("x.select(0, t).zero_()", "x.narrow(1, u, 2).neg_()", "x[t].fill_(2)", "x[u][t] += 5", "x[1:, t] += 1"),
    *("x[t] = x[:, u]", "x[:, t] += x[u]", "x[t] = x[0]", "x[:, t] = x[:, u]", "x[t] -= x[0, 1]", "x[t] = x[u].t()"),
    *("x[..., t] = x[..., 0, 0]", "x[t, u] = x[u, t]", "t.add_(1).remainder_(4)", "x = x * 1.5"),
)


def _program(seed: int) -> Any:
    draw = random.Random(seed)
    lines = ["def program(x, t, u):", "    out, outs = x[0, 0, 0] * 1, []"]
    lines += ["    x = x + 1"] if draw.random() < 0.5 else []
    for step in range(draw.randrange(1, 6)):
        kind = draw.choice("lrw") if step else "l"
        if kind == "l":
            lines += [f"    item = {draw.choice(_LOADS)}", "    half = item.detach() * 0.5"]
        else:
            lines.append(f"    {draw.choice(_READS if kind == 'r' else _WRITES)}")
    lines += [f"    {draw.choice(_READS)}", "    return out, outs, x + 0, t + 0"]
    name, text = f"<items {seed}>", "\n".join(lines)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    made: dict[str, Any] = {"torch": torch}
    exec(compile(text, name, "exec"), made)
    return made["program"], text


def _outcome(program: Any, number: int, differentiated: bool) -> list[Any]:
    """What is given, its layouts and gradients, and how it is tied to the inputs."""
    x = torch.linspace(-1, 1, 64, dtype=torch.float64).view(4, 4, 4).requires_grad_(differentiated)
    t, u = torch.tensor(number), torch.tensor((number + 1) % 4)
    try:
        out, outs, *last = program(x * 1 if differentiated else x, t, u)
        tensors = [one for one in (out, *outs, *last) if isinstance(one, Tensor)]
        seen: list[Any] = [
            [one.detach().clone() for one in tensors],
            [(one.stride(), one.requires_grad) for one in tensors],
        ]
        if differentiated:
            seen.append(torch.autograd.grad(sum((one * one).sum() for one in tensors if one.requires_grad), x))
        with torch.no_grad():
            for one in outs:
                _ = one.add_(1) if isinstance(one, Tensor) else None
        return [*seen, outs, x.detach(), t]
    except (IndexError, RuntimeError) as error:
        return [type(error), str(error) if isinstance(error, IndexError) else "", x.detach(), t]


@pytest.mark.parametrize(("backend", "seeds"), [("eager", range(60)), ("codegen", range(60, 70))])
def test_random_programs_of_items(backend: str, seeds: range) -> None:
    for seed in seeds:
        program, text = _program(seed)
        compiled = dynajit.compile(program, backend=backend)
        for number in (1, 2, 0, 5):
            wanted, found = (_outcome(each, number, bool(seed % 3)) for each in (program, compiled))
            try:
                compare(found, wanted, exact=backend == "eager", rtol=1e-9, atol=1e-9)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {number}: {error}\n{text}") from None
