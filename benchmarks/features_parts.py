"""Parts of torch as programs of people use them: distributions, transforms, subclasses; see features.py."""

import functools
import random
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from feature_table import varied_feature
from features_loops import batches, labelled, small_net, told
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

PARTS = "parts of torch"
parts = functools.partial(varied_feature, PARTS)


def leaves(*shape: int, many: tuple[int, ...] = (4, 6, 4, 9)) -> list[tuple[Tensor]]:
    return [(x.requires_grad_(),) for (x,) in batches(*shape, many=many)]


# ------------------------------------------------------------------ parts of torch
@parts("VAE: Normal, rsample, kl_divergence, Independent", *batches(5))
def _() -> Any:
    torch.manual_seed(1)
    encoder, decoder = nn.Linear(5, 4), nn.Linear(2, 5)

    def step(x: Tensor) -> Any:
        torch.manual_seed(0)
        mean, spread = encoder(x).chunk(2, -1)
        q = torch.distributions.Normal(mean, F.softplus(spread))
        z = q.rsample()
        seen = torch.distributions.Independent(torch.distributions.Bernoulli(logits=decoder(z)), 1)
        kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(-1)
        loss = (kl - seen.log_prob((x > 0).float())).mean()
        loss.backward()
        return loss.detach(), told(encoder), repr(q), seen.batch_shape

    return step


@parts("mixture, transformed distribution, Gumbel softmax", *leaves(3))
def _() -> Any:
    d = torch.distributions

    def run(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        mixture = d.MixtureSameFamily(d.Categorical(logits=x), d.Normal(x, torch.ones_like(x)))
        squashed = d.TransformedDistribution(
            d.Normal(x, 1.0), [d.TanhTransform(cache_size=1), d.AffineTransform(0.5, 2.0)]
        )
        drawn = squashed.rsample()
        hard = F.gumbel_softmax(x, tau=0.5, hard=True)
        return (mixture.log_prob(x[:, 0]).sum() + squashed.log_prob(drawn).sum() + (hard * x).sum()) / len(x)

    return run


@parts("distribution with wrong arguments: the error's text", *batches(3))
def _() -> Any:
    def run(x: Tensor) -> Any:
        try:
            torch.distributions.Normal(x, -torch.ones(3))
        except ValueError as error:
            return str(error).split("(")[0], x + 1
        return None

    return run


@parts("vmap of grad with randomness, per-sample clip", *labelled(5, 3))
def _() -> Any:
    net = small_net()
    weights = {k: v.detach() for k, v in net.named_parameters()}

    def loss(weights: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, weights, (x.unsqueeze(0),)), y.unsqueeze(0))

    def step(x: Tensor, y: Tensor) -> Any:
        slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in slopes.values()]).norm(dim=0)
        factors = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        return {k: torch.einsum("n,n...->...", factors, g) for k, g in slopes.items()}

    return step


@parts("Hessian-vector product, jacrev, Laplacian", *leaves(many=(3, 4, 3, 5)))
def _() -> Any:
    def energy(x: Tensor) -> Tensor:
        return (x.sin() * x.roll(1)).sum() + x.pow(4).sum()

    def run(x: Tensor) -> Any:
        x = x.detach()
        _, product = torch.func.jvp(torch.func.grad(energy), (x,), (torch.ones_like(x),))
        return product, torch.func.jacrev(torch.func.grad(energy))(x).diagonal().sum(), torch.func.hessian(energy)(x)

    return run


@parts("physics-informed loss by autograd.grad twice", *leaves(1))
def _() -> Any:
    net = small_net(1, 1)

    def step(x: Tensor) -> Any:
        u = net(x)
        (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        (ddu,) = torch.autograd.grad(du, x, torch.ones_like(du), create_graph=True)
        loss = (ddu + u * du).pow(2).mean()
        net.zero_grad()
        loss.backward()
        return loss.detach(), told(net)

    return step


@parts(
    "nested tensors: jagged, a linear layer, to_padded",
    *[([torch.randn(a, 4), torch.randn(b, 4)],) for a, b in ((2, 3), (4, 1), (2, 3), (5, 5))],
)
def _() -> Any:
    layer = nn.Linear(4, 3)

    def run(parts: list[Tensor]) -> Any:
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
        return torch.nested.to_padded_tensor(layer(nested).relu(), 0.0)

    return run


@parts("sparse adjacency times features, trained", *batches(4, many=(5, 6, 5, 8)))
def _() -> Any:
    layer = nn.Linear(4, 3)

    def step(x: Tensor) -> Any:
        n = x.shape[0]
        at = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
        adjacency = torch.sparse_coo_tensor(at, torch.ones(n), (n, n))
        out = torch.sparse.mm(adjacency, layer(x)).sum()
        layer.zero_grad()
        out.backward()
        return out.detach(), told(layer)

    return step


@parts("spectral convolution: rfft2, complex weights, einsum", *[(torch.randn(2, 3, n, n),) for n in (8, 12, 8, 10)])
def _() -> Any:
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(3, 3, 4, 4, dtype=torch.cfloat))

    def run(x: Tensor) -> Any:
        seen = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros_like(seen)
        out[..., :4, :4] = torch.einsum("bixy,ioxy->boxy", seen[..., :4, :4], weight)
        y = torch.fft.irfft2(out, s=x.shape[-2:], norm="ortho")
        (grad,) = torch.autograd.grad(y.square().sum(), weight)
        return y.detach(), grad

    return run


@parts("STFT, mel filters by a buffer, log, istft", *batches(64, many=(2, 3, 2, 4)))
def _() -> Any:
    window = torch.hann_window(16)
    filters = torch.rand(9, 5)

    def run(x: Tensor) -> Any:
        seen = torch.stft(x, 16, 8, window=window, return_complex=True)
        mel = torch.log(seen.abs().pow(2).transpose(1, 2) @ filters + 1e-5)
        return mel, torch.istft(seen, 16, 8, window=window, length=x.shape[-1])

    return run


@parts("dynamic quantisation of activations by hand, int8 matmul", *batches(8))
def _() -> Any:
    torch.manual_seed(1)
    weight = torch.randint(-128, 127, (4, 8), dtype=torch.int8)
    scales = torch.rand(4, 1)

    def run(x: Tensor) -> Any:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        whole = (x / scale).round().clamp(-128, 127).to(torch.int8)
        return (whole.int() @ weight.t().int()).float() * scale * scales.t()

    return run


@parts("fake quantisation with observers (torch.ao)", *leaves(5))
def _() -> Any:
    fake = torch.ao.quantization.FakeQuantize(observer=torch.ao.quantization.MovingAverageMinMaxObserver)

    def run(x: Tensor) -> Any:
        out = fake(x * 2)
        return out.sum(), fake.scale.clone(), fake.zero_point.clone()

    return run


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x: Tensor) -> Tensor:
        return x.triu()


@parts("parametrised layer: own, cached, set inside, trained", *batches(4))
def _() -> Any:
    torch.manual_seed(1)
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())

    def step(x: Tensor) -> Any:
        layer.zero_grad()
        with parametrize.cached():
            out = layer(layer(x)).sum()
        out.backward()
        with torch.no_grad():
            layer.weight = layer.weight * 0.9
        return out.detach(), told(layer), parametrize.is_parametrized(layer, "weight")

    return step


@parts("pruned layers, masks as buffers, pruned again inside", *batches(4))
def _() -> Any:
    torch.manual_seed(1)
    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "weight", amount=0.3)
    seen = [0]

    def step(x: Tensor) -> Any:
        seen[0] += 1
        if seen[0] == 3:
            prune.random_unstructured(layer, "bias", amount=1)
        layer.zero_grad()
        out = layer(x).sum()
        out.backward()
        return out.detach(), layer.weight.detach().clone(), sorted(name for name, _ in layer.named_buffers())

    return step


@parts("weight norm and spectral norm of old, trained", *batches(4))
def _() -> Any:
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.utils.spectral_norm(nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        out = net(x).square().mean()
        out.backward()
        optimizer.step()
        return out.detach(), told(net)

    return step


class Unit(Tensor):
    """A tensor with a unit, which multiplies and may not be mixed."""

    unit: str = ""

    @classmethod
    def of(cls, data: Tensor, unit: str) -> "Unit":
        made = data.as_subclass(cls)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        units = {each.unit for each in args if isinstance(each, Unit)}
        if func in (torch.add, Tensor.add, Tensor.__add__) and len(units) > 1:
            raise TypeError(f"units differ: {sorted(units)}")
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Unit):
            many = func in (torch.mul, Tensor.mul, Tensor.__mul__) and len(units) > 1
            out.unit = "*".join(sorted(units)) if many else next(iter(units), "")
        return out


@parts(
    "subclass with units by __torch_function__, one error",
    *[(x, unit) for (x,), unit in zip(batches(3), ("m", "s", "m", "kg"), strict=True)],
)
def _() -> Any:
    def run(x: Tensor, unit: str) -> Any:
        a, b = Unit.of(x, "m"), Unit.of(x * 2, unit)
        product = a * b
        try:
            total: Any = (a + b).unit
        except TypeError as error:
            total = str(error)
        return product.as_subclass(Tensor), product.unit, total, isinstance(product.sum(), Unit)

    return run


@parts("anchors, boxes, IoU, non-maximum suppression by a loop", *batches(4, many=(5, 6, 5, 8)))
def _() -> Any:
    def iou(a: Tensor, b: Tensor) -> Tensor:
        top = torch.maximum(a[:, None, :2], b[None, :, :2])
        low = torch.minimum(a[:, None, 2:], b[None, :, 2:])
        inter = (low - top).clamp(min=0).prod(-1)
        area = lambda t: (t[:, 2:] - t[:, :2]).prod(-1)  # noqa: E731
        return inter / (area(a)[:, None] + area(b)[None] - inter)

    def run(x: Tensor) -> Any:
        boxes = torch.cat([x[:, :2], x[:, :2] + x[:, 2:].abs() + 0.1], -1)
        overlap = iou(boxes, boxes)
        keep = torch.ones(len(boxes), dtype=torch.bool)
        for i in range(len(boxes)):
            keep = keep & ~((overlap[i] > 0.3) & (torch.arange(len(boxes)) > i) & keep[i])
        return keep, boxes[keep]

    return run


@parts("torchvision: nms, roi_align, box conversion", *batches(4, many=(5, 6, 5, 8)))
def _() -> Any:
    from torchvision import ops

    pages = torch.randn(1, 2, 8, 8)

    def run(x: Tensor) -> Any:
        boxes = ops.box_convert(x.abs() + 0.5, "cxcywh", "xyxy")
        kept = ops.nms(boxes, x[:, 0], 0.4)
        rois = ops.roi_align(pages, [boxes], output_size=2)
        return kept, rois.sum(), ops.box_iou(boxes, boxes), ops.sigmoid_focal_loss(x, (x > 0).float()).mean()

    return run


@parts("einops: rearrange, reduce, repeat, einsum, pack, layers", *[(torch.randn(b, 4, 4, 3),) for b in (2, 3, 2, 5)])
def _() -> Any:
    from einops import einsum, pack, rearrange, reduce, repeat, unpack
    from einops.layers.torch import Rearrange

    layer = nn.Sequential(Rearrange("b h w c -> b (h w) c"), nn.Linear(3, 5))

    def run(x: Tensor) -> Any:
        tokens = layer(x)
        head = repeat(torch.ones(1, 5), "1 d -> b 1 d", b=len(x))
        packed, shapes = pack([head, tokens], "b * d")
        first, _ = unpack(packed, shapes, "b * d")
        pooled = reduce(rearrange(x, "b (h p) (w q) c -> b h w (p q c)", p=2, q=2), "b h w d -> b d", "max")
        return einsum(tokens, tokens, "b i d, b j d -> b i j").sum(), first.sum(), pooled

    return run


@parts("CTC, embedding bag, triplet, cosine losses, trained", *labelled(6, 3))
def _() -> Any:
    torch.manual_seed(1)
    net, bag = small_net(6, 4), nn.EmbeddingBag(4, 6, mode="sum")

    def step(x: Tensor, y: Tensor) -> Any:
        logits = net(x).unsqueeze(1).log_softmax(-1)
        ctc = F.ctc_loss(logits, y[:2].unsqueeze(0) + 1, torch.tensor([len(x)]), torch.tensor([2]))
        bags = bag(y, torch.arange(0, len(y), 2))
        triplet = F.triplet_margin_loss(x, x.roll(1, 0), bags.mean(0).expand_as(x))
        cosine = F.cosine_embedding_loss(x, x.flip(0), torch.ones(len(x)))
        loss = ctc + triplet + cosine
        loss.backward()
        return loss.detach(), told(net), told(bag)

    return step


@parts("bidirectional LSTM with a hidden state kept", *batches(3, 5, many=(4, 4, 6, 4)))
def _() -> Any:
    torch.manual_seed(1)
    lstm = nn.LSTM(5, 4, num_layers=2, batch_first=True)
    kept: dict[str, Any] = {"state": None}

    def step(x: Tensor) -> Any:
        if kept["state"] is not None and kept["state"][0].shape[1] != x.shape[0]:
            kept["state"] = None
        out, state = lstm(x, kept["state"])
        kept["state"] = tuple(part.detach() for part in state)
        lstm.zero_grad()
        out.square().mean().backward()
        return out.detach(), kept["state"], told(lstm)

    return step


@parts("transformer encoder layer with masks, eval and train", *[(torch.randn(2, n, 8),) for n in (3, 5, 3, 4)])
def _() -> Any:
    torch.manual_seed(1)
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2)

    def run(x: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        layer.train()
        a = layer(x, mask=mask, is_causal=True)
        layer.eval()
        with torch.no_grad():
            b = layer(x, src_key_padding_mask=torch.zeros(x.shape[:2], dtype=torch.bool))
        return a.sum(), b

    return run


@parts(
    "random crops, flips and noise by torch's and Python's generators", *[(torch.randn(2, 3, 8, 8),) for _ in range(4)]
)
def _() -> Any:
    generator = torch.Generator()

    def run(x: Tensor) -> Any:
        random.seed(3)
        generator.manual_seed(5)
        if random.random() < 0.5:
            x = x.flip(-1)
        i, j = (int(torch.randint(0, 3, (), generator=generator)) for _ in range(2))
        x = x[..., i : i + 5, j : j + 5]
        x = x + torch.randn(x.shape, generator=generator) * random.uniform(0.1, 0.2)
        return x, random.choice("abc"), i

    return run


@parts("running statistics in buffers, momentum by a count", *batches(5))
def _() -> Any:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(5))
            self.register_buffer("count", torch.tensor(0))
            self.register_buffer("spare", None, persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.count += 1
                self.mean.lerp_(x.detach().mean(0), 1.0 / self.count)
                self.spare = x.detach().std(0) if self.spare is None else self.spare * 0.5
            return x - self.mean

    net = Norm()
    return lambda x: (net(x), {k: v.clone() for k, v in net.state_dict().items()}, net.spare.clone())


@parts(
    "numpy targets, masks by np.where, metrics as floats",
    *[(torch.linspace(-1, 1, n), np.arange(n) % 3) for n in (4, 6, 4, 9)],
)
def _() -> Any:
    def run(x: Tensor, y: np.ndarray[Any, Any]) -> Any:
        target = torch.from_numpy(np.where(y > 1, 1.0, 0.0).astype(np.float32))
        loss = F.binary_cross_entropy_with_logits(x, target)
        return loss, float(y.mean()), np.unique(y).tolist(), x.numpy() * 2

    return run
