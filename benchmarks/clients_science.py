"""Clients from science: graphs, time series, Gaussian processes, symmetries, equations. Imported by clients.py."""

from typing import Any

import torch
from client_table import Compile, Made, client, inferring, training
from torch import Tensor, nn


def _graph(nodes: int = 20, edges: int = 60) -> tuple[Tensor, Tensor]:
    return torch.randn(nodes, 8), torch.randint(0, nodes, (2, edges))


@client("torch_geometric", "GCN and GAT, training")
def _gnn(compile: Compile) -> Made:
    from torch_geometric.nn import GATConv, GCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(8, 16), GATConv(16, 4, heads=2, concat=False)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.second(self.first(x, edges).relu(), edges)

    model, (x, edges) = Net(), _graph()
    run, y = compile(model), torch.randint(0, 4, (20,))
    return training(model, lambda: nn.functional.cross_entropy(run(x, edges), y))


@client("torch_geometric", "GraphSAGE, GIN and pooling over batches")
def _gnn_batches(compile: Compile) -> Made:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GINConv, SAGEConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = SAGEConv(8, 16), GINConv(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))

        def forward(self, data: Any) -> Tensor:
            x = self.second(self.first(data.x, data.edge_index).relu(), data.edge_index)
            return global_mean_pool(x, data.batch)

    run = compile(Net().eval())
    batches = []
    for sizes in ((10, 12), (14, 9), (8, 20)):
        graphs = [_graph(nodes, 30) for nodes in sizes]
        batches.append(Batch.from_data_list([Data(x=x, edge_index=edges % len(x)) for x, edges in graphs]))
    return inferring(lambda: [run(batch) for batch in batches])


@client("torch_geometric", "SchNet")
def _schnet(compile: Compile) -> Made:
    from torch_geometric.nn import SchNet

    model = SchNet(hidden_channels=16, num_filters=16, num_interactions=2, num_gaussians=8, max_num_neighbors=40).eval()

    class Near(nn.Module):
        """All pairs, without torch-cluster."""

        def forward(self, position: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
            edges = torch.combinations(torch.arange(len(position)), 2).T
            edges = torch.cat([edges, edges.flip(0)], 1)
            return edges, (position[edges[0]] - position[edges[1]]).norm(dim=-1)

    model.interaction_graph = Near()
    run, numbers, places = compile(model), torch.randint(1, 9, (6,)), torch.randn(6, 3)
    return inferring(lambda: run(numbers, places))


@client("GluonTS", "DeepAR, training")
def _deepar(compile: Compile) -> Made:
    from gluonts.torch.model.deepar.module import DeepARModel

    model = DeepARModel(
        freq="D",
        context_length=8,
        prediction_length=4,
        num_feat_dynamic_real=1,
        num_feat_static_real=1,
        num_feat_static_cat=1,
        cardinality=[1],
        hidden_size=8,
        num_layers=1,
        dropout_rate=0.0,
        lags_seq=[1, 2, 3],
    )
    past, rows = model._past_length, 4
    past_target, future = torch.rand(rows, past), torch.rand(rows, 4)
    inputs = {
        "feat_static_cat": torch.zeros(rows, 1, dtype=torch.long),
        "feat_static_real": torch.randn(rows, 1),
        "past_time_feat": torch.randn(rows, past, 1),
        "past_target": past_target,
        "past_observed_values": torch.ones(rows, past),
        "future_time_feat": torch.randn(rows, 4, 1),
        "future_target": future,
        "future_observed_values": torch.ones(rows, 4),
    }
    run = compile(model.loss)
    return training(model, lambda: run(**inputs).mean())


@client("pytorch-forecasting", "TemporalFusionTransformer")
def _tft(compile: Compile) -> Made:
    import numpy as np
    import pandas as pd
    from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet

    rows = [{"time": t, "group": str(g), "value": np.sin(t / 3 + g)} for g in range(3) for t in range(30)]
    known: dict[str, Any] = {"max_encoder_length": 8, "max_prediction_length": 4}
    data = TimeSeriesDataSet(
        pd.DataFrame(rows),
        time_idx="time",
        target="value",
        group_ids=["group"],
        time_varying_known_reals=["time"],
        time_varying_unknown_reals=["value"],
        **known,
    )
    sizes: dict[str, Any] = {"hidden_size": 8, "attention_head_size": 2, "hidden_continuous_size": 8}
    model = TemporalFusionTransformer.from_dataset(data, dropout=0.0, **sizes).eval()
    x, _ = next(iter(data.to_dataloader(train=False, batch_size=4)))
    run = compile(model)
    return inferring(lambda: run(x)["prediction"])


@client("einops", "rearrange, reduce, layers")
def _einops(compile: Compile) -> Made:
    from einops import einsum, rearrange, reduce, repeat
    from einops.layers.torch import Rearrange

    layer = nn.Sequential(Rearrange("b (h p) (w q) c -> b (h w) (p q c)", p=2, q=2), nn.Linear(12, 5))

    def change(x: Tensor) -> list[Tensor]:
        parts = layer(rearrange(x, "b c h w -> b h w c"))
        means = reduce(x, "b c (h 2) (w 2) -> b c h w", "mean")
        return [
            parts,
            means,
            repeat(means, "b c h w -> b c (h k) w", k=3),
            einsum(parts, parts, "b n d, b m d -> b n m"),
        ]

    run, shapes = compile(change), [torch.randn(2, 3, 8, size) for size in (4, 8, 12)]
    return lambda: [run(x) for x in shapes]


@client("gpytorch", "exact Gaussian process, training")
def _gpytorch(compile: Compile) -> Made:
    import gpytorch

    x = torch.linspace(0, 1, 20)
    y = torch.sin(6 * x)

    class Process(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(likelihood)
    score = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return -score(model(x), y)

    run = compile(loss)
    return training(model, lambda: run(x, y))


@client("botorch", "expected improvement")
def _botorch(compile: Compile) -> Made:
    from botorch.acquisition import qExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler

    x = torch.rand(8, 2, dtype=torch.float64)
    model = SingleTaskGP(x, x.sin().sum(-1, keepdim=True))
    gain = qExpectedImprovement(model, 1.2, sampler=SobolQMCNormalSampler(torch.Size([16]), seed=0))
    run, points = compile(gain), torch.rand(5, 2, 2, dtype=torch.float64)
    return inferring(lambda: run(points))


@client("pyro", "stochastic variational inference")
def _pyro(compile: Compile) -> Made:
    import pyro
    import pyro.distributions as dist

    pyro.clear_param_store()
    data = torch.randn(10) + 2

    def model(data: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(data)):
            pyro.sample("x", dist.Normal(mean, 1.0), obs=data)

    def guide(data: Tensor) -> None:
        place = pyro.param("place", torch.tensor(0.5))
        pyro.sample("mean", dist.Delta(place))

    loss = compile(pyro.infer.Trace_ELBO().differentiable_loss)

    def call() -> float:
        found = loss(model, guide, data)
        found.backward()
        place = pyro.param("place")
        with torch.no_grad():
            place -= 0.01 * place.grad
            place.grad = None
        return found.item()

    return call


@client("e3nn", "tensor products and spherical harmonics, training")
def _e3nn(compile: Compile) -> Made:
    from e3nn import o3

    product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "3x0e + 2x1o")
    x, places = torch.randn(6, 10), torch.randn(6, 3)

    def step(x: Tensor, places: Tensor) -> Tensor:
        return product(x, o3.spherical_harmonics([0, 1], places, normalize=True)).square().mean()

    run = compile(step)
    return training(product, lambda: run(x, places))


@client("torchdiffeq", "neural ODE, training")
def _ode(compile: Compile) -> Made:
    from torchdiffeq import odeint

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

        def forward(self, time: Tensor, y: Tensor) -> Tensor:
            return self.body(y)

    slope, start, times = Slope(), torch.randn(4, 2), torch.linspace(0, 1, 5)
    run = compile(slope)
    return training(slope, lambda: odeint(run, start, times, method="dopri5").square().mean())


@client("torchdiffeq", "the whole solver compiled")
def _ode_whole(compile: Compile) -> Made:
    from torchdiffeq import odeint

    body = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    start, times = torch.randn(4, 2), torch.linspace(0, 1, 5)
    run = compile(lambda start: odeint(lambda time, y: body(y), start, times, method="rk4"))
    return training(body, lambda: run(start).square().mean())


@client("neuraloperator", "Fourier neural operator, training")
def _fno(compile: Compile) -> Made:
    from neuralop.models import FNO

    model = FNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2)
    run, x = compile(model), torch.randn(2, 1, 16, 16)
    return training(model, lambda: run(x).square().mean())


@client("snntorch", "leaky neurons through time, training")
def _snn(compile: Compile) -> Made:
    import snntorch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.spike = nn.Linear(8, 16), snntorch.Leaky(beta=0.9)
            self.second, self.last = nn.Linear(16, 4), snntorch.Leaky(beta=0.9)

        def forward(self, x: Tensor) -> Tensor:
            one, two = self.spike.init_leaky(), self.last.init_leaky()
            seen = []
            for step in range(5):
                spikes, one = self.spike(self.first(x * (step + 1)), one)
                _, two = self.last(self.second(spikes), two)
                seen.append(two)
            return torch.stack(seen)

    model = Net()
    run, x = compile(model), torch.randn(6, 8)
    return training(model, lambda: run(x).square().mean())


@client("nflows", "a masked autoregressive flow, training")
def _nflows(compile: Compile) -> Made:
    from nflows import distributions, flows, transforms

    steps = [
        transforms.MaskedAffineAutoregressiveTransform(features=4, hidden_features=8),
        transforms.ReversePermutation(4),
    ]
    model = flows.Flow(transforms.CompositeTransform(steps), distributions.StandardNormal([4]))
    run, x = compile(model.log_prob), torch.randn(16, 4)
    return training(model, lambda: -run(x).mean())
