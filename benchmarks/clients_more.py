"""Smaller libraries of research, each trained a little; see clients.py."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from client_table import Compile, Made, client, inferring, training, words
from torch import nn


@client("entmax", "sparse attention weights and loss, training")
def entmax_layers(compile: Compile) -> Made:
    from entmax import Entmax15Loss, entmax15, sparsemax

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 5)
            self.loss = Entmax15Loss()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            h = self.a(x) * sparsemax(self.a(x), dim=-1) + entmax15(x, dim=-1)
            return self.loss(self.b(h), y).mean()

    net, x, y = Net(), torch.randn(6, 8), torch.randint(5, (6,))
    run = compile(net)
    return training(net, lambda: run(x, y))


@client("vector-quantize-pytorch", "VQ with EMA, residual VQ, FSQ, training")
def vector_quantize(compile: Compile) -> Made:
    from vector_quantize_pytorch import FSQ, ResidualVQ, VectorQuantize

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)
            self.vq = VectorQuantize(dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0)
            self.rvq = ResidualVQ(dim=16, codebook_size=16, num_quantizers=2)
            self.fsq = FSQ(levels=[8, 5, 5], dim=16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.inner(x)
            q, _, loss = self.vq(h)
            r, _, losses = self.rvq(h)
            f, _ = self.fsq(h)
            return (q + r + f - x).square().mean() + loss.sum() + losses.sum()

    net, x = Net(), torch.randn(2, 12, 16)
    run = compile(net)
    return training(net, lambda: run(x))


@client("torch-ema", "an average in use for evaluation")
def torch_ema(compile: Compile) -> Made:
    from torch_ema import ExponentialMovingAverage

    net, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(5, 6)
    average = ExponentialMovingAverage(net.parameters(), decay=0.9)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    step = compile(lambda x: net(x).square().mean())
    update = compile(lambda: average.update())

    def call() -> Any:
        optimizer.zero_grad()
        loss = step(x)
        loss.backward()
        optimizer.step()
        update()
        with average.average_parameters(), torch.no_grad():
            seen = step(x)
        return loss.item(), seen.item()

    return call, net


@client("lightly", "SimCLR, VICReg and DINO losses, training")
def lightly_losses(compile: Compile) -> Made:
    from lightly.loss import DINOLoss, NTXentLoss, VICRegLoss
    from lightly.models.modules.heads import DINOProjectionHead, SimCLRProjectionHead

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(12, 16), SimCLRProjectionHead(16, 16, 8)
            self.dino_head = DINOProjectionHead(16, 16, 8, 10)
            self.losses = nn.ModuleList([NTXentLoss(), VICRegLoss(), DINOLoss(output_dim=10)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = self.body(x), self.body(x + 0.1)
            first, second = self.head(a), self.head(b)
            views = [self.dino_head(a), self.dino_head(b)]
            dino = self.losses[2]([view.detach() for view in views], views, epoch=1)
            return self.losses[0](first, second) + self.losses[1](first, second) + dino

    net, x = Net(), torch.randn(8, 12)
    run = compile(net)
    return training(net, lambda: run(x))


@client("rotary-embedding-torch", "queries and keys, cached frequencies, lengths vary")
def rotary(compile: Compile) -> Made:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=8)
    project = nn.Linear(16, 32)
    lengths = itertools.cycle([5, 7, 5, 9])

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k = project(x).view(*x.shape[:2], 2, 16).unbind(2)
        q, k = (rotary.rotate_queries_or_keys(t.view(2, -1, 2, 8).transpose(1, 2)) for t in (q, k))
        return (q @ k.transpose(-1, -2)).softmax(-1)

    run = compile(attend)
    return inferring(lambda: run(torch.linspace(-1, 1, 2 * (n := next(lengths)) * 16).view(2, n, 16)))


@client("pytorch-crf", "negative log-likelihood, training, and decoding")
def conditional_field(compile: Compile) -> Made:
    from torchcrf import CRF

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out, self.crf = nn.Embedding(211, 8), nn.Linear(8, 4), CRF(4, batch_first=True)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return -self.crf(self.out(self.embed(x)), y, reduction="mean")

    net, x, y = Tagger(), words(3, 6), torch.randint(4, (3, 6))
    run = compile(net)
    decode = compile(lambda x: net.crf.decode(net.out(net.embed(x))))
    step, module = training(net, lambda: run(x, y))
    return lambda: (step(), decode(x)), module


@client("geoopt", "Poincaré distances, Riemannian Adam")
def hyperbolic(compile: Compile) -> Made:
    import geoopt

    ball = geoopt.PoincareBall()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.points = geoopt.ManifoldParameter(torch.randn(6, 3) * 0.1, manifold=ball)

        def forward(self) -> torch.Tensor:
            return ball.dist(self.points[:3], self.points[3:]).square().mean() + ball.dist0(self.points).mean()

    net = Net()
    run = compile(net)
    return training(net, run, geoopt.optim.RiemannianAdam(net.parameters(), lr=0.01))


@client("normflows", "masked affine flows, training")
def flows(compile: Compile) -> Made:
    import normflows as nf

    layers = []
    for i in range(2):
        mask = torch.tensor([1.0, 0.0]) if i % 2 else torch.tensor([0.0, 1.0])
        layers.append(nf.flows.MaskedAffineFlow(mask, nf.nets.MLP([2, 8, 2]), nf.nets.MLP([2, 8, 2])))
        layers.append(nf.flows.ActNorm(2))
    net = nf.NormalizingFlow(nf.distributions.DiagGaussian(2), layers)
    x = torch.randn(16, 2)
    net.log_prob(x)  # ActNorm is set by the first batch
    run = compile(lambda x: net.forward_kld(x))
    return training(net, lambda: run(x))


@client("zuko", "neural spline flow, training")
def spline_flow(compile: Compile) -> Made:
    import zuko

    net = zuko.flows.NSF(3, 2, transforms=2, hidden_features=[16])
    x, c = torch.randn(8, 3), torch.randn(8, 2)
    run = compile(lambda x, c: -net(c).log_prob(x).mean())
    return training(net, lambda: run(x, c))


@client("denoising-diffusion-pytorch", "1-D U-Net, the diffusion's loss, training")
def diffusion(compile: Compile) -> Made:
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D

    net = Unet1D(dim=8, dim_mults=(1, 2), channels=4)
    process = GaussianDiffusion1D(net, seq_length=16, timesteps=20, objective="pred_v")
    x = torch.rand(2, 4, 16)
    run = compile(process)
    return training(net, lambda: run(x))


@client("performer-pytorch", "linear attention, inference")
def performer(compile: Compile) -> Made:
    from performer_pytorch import SelfAttention

    net = SelfAttention(dim=16, heads=2, dim_head=8, causal=False, nb_features=16).eval()
    x = torch.randn(2, 10, 16)
    run = compile(net)
    return inferring(lambda: run(x))


@client("torchcde", "natural cubic splines and a neural CDE, training")
def controlled(compile: Compile) -> Made:
    import torchcde

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 12)

        def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.layer(z).view(*z.shape[:-1], 4, 3).tanh()

    field, x = Field(), torch.randn(2, 6, 3)
    coefficients = torchcde.hermite_cubic_coefficients_with_backward_differences(x)
    run = compile(field)

    def loss() -> torch.Tensor:
        path = torchcde.CubicSpline(coefficients)
        out = torchcde.cdeint(X=path, func=run, z0=torch.ones(2, 4), t=path.interval, method="rk4", adjoint=False)
        return out[:, -1].square().mean()

    return training(field, loss)


@client("pytorch-optimizer", "Lion, AdaBelief, Ranger's steps compiled")
def optimizers(compile: Compile) -> Made:
    from pytorch_optimizer import AdaBelief, Lion, Ranger

    nets = nn.ModuleList(nn.Linear(5, 3) for _ in range(3))
    chosen = [kind(net.parameters(), lr=1e-2) for kind, net in zip((Lion, AdaBelief, Ranger), nets, strict=True)]
    x = torch.randn(4, 5)
    step = compile(lambda: [each.step() for each in chosen])

    def call() -> float:
        nets.zero_grad()
        loss = sum((net(x).square().mean() for net in nets), torch.zeros(()))
        loss.backward()
        step()
        return loss.item()

    return call, nets


@client("auraloss", "multi-resolution STFT and time losses, training")
def audio_losses(compile: Compile) -> Made:
    import auraloss

    net = nn.Conv1d(1, 1, 5, padding=2)
    losses = [auraloss.freq.MultiResolutionSTFTLoss([64, 32], [16, 8], [64, 32]), auraloss.time.SISDRLoss()]
    x, y = torch.randn(2, 1, 256), torch.randn(2, 1, 256)
    run = compile(lambda x, y: sum(loss(net(x), y) for loss in losses))
    return training(net, lambda: run(x, y))


@client("linear-operator", "Cholesky, solves and log determinants of structured matrices")
def structured(compile: Compile) -> Made:
    from linear_operator import operators

    base = torch.randn(5, 5)

    def solve(a: torch.Tensor, b: torch.Tensor) -> Any:
        matrix = operators.AddedDiagLinearOperator(
            operators.RootLinearOperator(a), operators.DiagLinearOperator(torch.full((5,), 0.5))
        )
        quadratic, log_det = matrix.inv_quad_logdet(b, logdet=True)
        return matrix.solve(b), quadratic, log_det, matrix.diagonal()

    run = compile(solve)
    return inferring(lambda: run(base, base[:, :1]))


@client("timm", "LAMB, AdamP and cosine schedule, steps compiled")
def timm_optimizers(compile: Compile) -> Made:
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    nets = nn.ModuleList(nn.Linear(5, 3) for _ in range(2))
    chosen = [create_optimizer_v2(net, opt=name, lr=1e-2) for name, net in zip(("lamb", "adamp"), nets, strict=True)]
    schedules = [CosineLRScheduler(each, t_initial=5) for each in chosen]
    x, seen = torch.randn(4, 5), [0]
    step = compile(lambda: [each.step() for each in chosen])

    def call() -> float:
        nets.zero_grad()
        loss = F.mse_loss(nets[0](x), nets[1](x).detach()) + nets[1](x).square().mean()
        loss.backward()
        step()
        seen[0] += 1
        for schedule in schedules:
            schedule.step(seen[0])
        return loss.item()

    return call, nets
