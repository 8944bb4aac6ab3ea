"""Expert parallel: rows go to the ranks that the data say; what each rank gets varies from step to step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, counted
from torch import nn

import dynajit

WIDTH, ROWS = 8, 12
SETTINGS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


class Experts(nn.Module):
    """Two experts in each process. `counts`: how the rows for each are counted."""

    def __init__(self, counts: str) -> None:
        super().__init__()
        size = dist.get_world_size()
        self.counts, self.number, self.group = counts, 2 * size, dist.group.WORLD
        self.gate = nn.Linear(WIDTH, self.number)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        size = dist.get_world_size()
        weights, places = self.gate(x).softmax(1).max(1)
        if self.counts == "bincount":  # whose size is data's, too
            sent = torch.bincount(places, minlength=self.number)
        else:
            sent = places.new_zeros(self.number).scatter_add(0, places, torch.ones_like(places))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there, back = (each.view(size, 2).sum(1).tolist() for each in (sent, received))
        order = places.argsort(stable=True)
        routed = all_to_all_single_autograd(x[order], back, there, self.group)
        which = torch.arange(2).repeat(size).repeat_interleave(received, output_size=sum(back))
        done = torch.zeros_like(routed)
        for number, expert in enumerate(self.experts):
            done = done + torch.tanh(expert(routed)) * (which == number)[:, None]
        returned = all_to_all_single_autograd(done, there, back, self.group)
        return torch.zeros_like(x).index_copy(0, order, returned) * weights[:, None]


def trained(rank: int, counts: str, backend: str) -> list[Any]:
    """Steps of training, eager and compiled: both, then what was captured."""
    results: list[Any] = []
    with counted() as seen, dynajit.config.patch(**SETTINGS):
        for compiled in (False, True):
            torch.manual_seed(rank)
            model = Experts(counts)
            call: Any = dynajit.compile(model, backend=backend) if compiled else model
            found: list[Any] = []
            for step in range(4):
                x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
                if step == 3:
                    x = x[:1].expand(ROWS, WIDTH).clone()  # all rows to one expert, and a rank may get none
                y = call(x.requires_grad_())
                y.square().sum().backward()
                found += [y.detach(), x.grad, *(p.grad for p in model.parameters())]
                model.zero_grad()
            results.append(found)
    return [*results, seen.totals()]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize(("counts", "expected"), [("scatter_add", (1, 0, 0)), ("bincount", (2, 1, 0))])
def test_splits_that_depend_on_data(two: Ranks, counts: str, expected: tuple[int, int, int], backend: str) -> None:
    """With the settings for what depends on data: one graph. A tensor of a size that data tell ends it where the ranks
    are to get equal parts: whether it can be divided is not known."""
    for eager, compiled, totals in two.run(trained, counts, backend):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
        assert totals == expected
