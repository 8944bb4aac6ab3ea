"""A graph neural network by message passing, on graphs of different sizes.

It shows sizes that change: nodes and edges differ from graph to graph, and two compiles fit them all. Messages are sums
by index (`index_add`), which are part of the compiled graph, forward and backward.

The layers are those of Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2017, with
the mean of the neighbours; PyTorch Geometric's layers are made of the same operations.

    python examples/gnn.py
"""

import torch
from timing import medians
from torch import Tensor, nn
from torch.nn import functional as F

import dynajit


class MeanOfNeighbours(nn.Module):
    """`x` (nodes, width) and `edges` (2, edges), int64, from row 0 to row 1, to (nodes, out)."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, out), nn.Linear(width, out, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        total = torch.zeros_like(x).index_add(0, target, x[source])
        count = torch.zeros_like(x[:, :1]).index_add(0, target, torch.ones_like(source, dtype=x.dtype).unsqueeze(1))
        return self.own(x) + self.others(total / count.clamp(min=1))


class Net(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = MeanOfNeighbours(8, width), MeanOfNeighbours(width, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x, edges).relu(), edges)


def communities(nodes: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """A random graph: features that say little of a node's class, edges that lead mostly to nodes of the same class."""
    label = torch.randint(classes, (nodes,))
    source = torch.randint(nodes, (12 * nodes,))
    target = torch.randint(nodes, (12 * nodes,))
    kept = (label[source] == label[target]) | (torch.rand(12 * nodes) < 0.1)
    x = torch.randn(nodes, 8)
    x[:, :classes] += 0.5 * F.one_hot(label, classes)
    return x, torch.stack([source[kept], target[kept]]), label


def main(steps: int = 60, nodes: int = 2000, width: int = 64, classes: int = 4) -> dict[str, float]:
    torch.manual_seed(0)
    graphs = [communities(nodes + 37 * number, classes) for number in range(6)]
    model = Net(width, classes)
    compiled = dynajit.compile(model, fullgraph=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(module: nn.Module, x: Tensor, edges: Tensor, label: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x, edges), label)
        loss.backward()
        optimizer.step()
        return loss.item()

    before = dynajit.counters()["unique_graphs"]
    for number in range(steps):
        loss = step(compiled, *graphs[number % 5])
    compiles = dynajit.counters()["unique_graphs"] - before

    x, edges, label = graphs[5]  # not trained on
    with torch.no_grad():
        logits = compiled(x, edges)
        apart = (logits - model(x, edges)).abs().max().item()
    right = (logits.argmax(1) == label).float().mean().item()
    print(f"five graphs of {len(graphs[0][0])} to {len(graphs[4][0])} nodes, {compiles} compiles")
    print(f"loss {loss:.3f}; on a sixth graph {right:.0%} of the nodes are right, {apart:.1e} from eager's logits")

    times = medians(lambda: step(model, *graphs[5]), lambda: step(compiled, *graphs[5]), seconds=steps / 30)
    print(f"a step: {times[0]:.2f} ms in eager mode, {times[1]:.2f} ms compiled")
    return {"apart": apart, "right": right, "compiles": compiles}


if __name__ == "__main__":
    main()
