"""Models of many kinds, each a few lines of torch: what people write themselves, sized for one thread of a CPU.

In: nothing. Out: `varied()`, names and how each is made, as `zoo.py` takes them: a module, positional and keyword
arguments. One more kind: a function behind `@kind`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
KINDS: dict[str, Callable[[], Made]] = {}


def kind(make: Callable[[], Made]) -> Callable[[], Made]:
    KINDS[make.__name__.strip("_").replace("_", " ")] = make
    return make


def varied() -> Iterator[tuple[str, Callable[[], Made]]]:
    for name, make in KINDS.items():
        yield f"varied {name}", make


class Of(nn.Module):
    """A module whose forward is a function of itself; its parts are its attributes."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.call = forward
        for name, part in parts.items():
            setattr(self, name, nn.ModuleList(part) if isinstance(part, list) else part)

    def forward(self, *args: Tensor) -> Any:
        return self.call(self, *args)


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), act())]
    return nn.Sequential(*layers[:-1])


def _weight(*shape: int, scale: float = 0.05) -> nn.Parameter:
    return nn.Parameter(scale * torch.randn(shape))


@kind
def _perceiver() -> Made:
    """A few latents read a long input by cross attention, then talk among themselves."""

    def forward(m: Of, x: Tensor) -> Tensor:
        z = m.latents.expand(x.shape[0], -1, -1)
        for norm, cross, block in zip(m.norms, m.cross, m.blocks, strict=True):
            z = z + cross(norm(z), x, x, need_weights=False)[0]
            z = block(z)
        return m.head(z.mean(1))

    make = lambda: nn.MultiheadAttention(128, 4, batch_first=True)  # noqa: E731
    block = lambda: nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True)  # noqa: E731
    three = range(3)
    parts = {
        "norms": [nn.LayerNorm(128) for _ in three],
        "cross": [make() for _ in three],
        "blocks": [block() for _ in three],
    }
    return Of(forward, latents=_weight(1, 32, 128), head=nn.Linear(128, 10), **parts), (torch.randn(4, 512, 128),), {}


@kind
def _mlp_mixer() -> Made:
    def forward(m: Of, x: Tensor) -> Tensor:
        x = m.patch(x).flatten(2).transpose(1, 2)
        for one, tokens, two, channels in zip(m.one, m.tokens, m.two, m.channels, strict=True):
            x = x + tokens(one(x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(two(x))
        return m.head(x.mean(1))

    four = range(4)
    return (
        Of(
            forward,
            patch=nn.Conv2d(3, 128, 8, 8),
            one=[nn.LayerNorm(128) for _ in four],
            two=[nn.LayerNorm(128) for _ in four],
            tokens=[_mlp(64, 128, 64, act=nn.GELU) for _ in four],
            channels=[_mlp(128, 512, 128, act=nn.GELU) for _ in four],
            head=nn.Linear(128, 10),
        ),
        (torch.randn(8, 3, 64, 64),),
        {},
    )


@kind
def _nerf() -> Made:
    """Positional encoding, an MLP with a skip, and volume rendering along rays."""

    def forward(m: Of, origins: Tensor, directions: Tensor) -> Tensor:
        t = torch.linspace(0.1, 2.0, 32, device=origins.device, dtype=origins.dtype)
        points = origins[:, None] + directions[:, None] * t[:, None]
        angles = points[..., None] * 2.0 ** torch.arange(6, device=t.device, dtype=t.dtype)
        code = torch.cat([points, angles.sin().flatten(-2), angles.cos().flatten(-2)], -1)
        h = m.late(torch.cat([m.early(code), code], -1))
        colour, density = h[..., :3].sigmoid(), F.softplus(h[..., 3])
        alpha = 1 - torch.exp(-density * (t[1] - t[0]))
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * through)[..., None] * colour).sum(1)

    parts = {"early": _mlp(39, 128, 128, 128), "late": _mlp(167, 128, 128, 4)}
    return Of(forward, **parts), (torch.randn(256, 3), F.normalize(torch.randn(256, 3), dim=-1)), {}


@kind
def _conditional_generator() -> Made:
    """Transposed convolutions with class-conditional batch norms."""

    def forward(m: Of, z: Tensor, label: Tensor) -> Tensor:
        x = m.start(z).view(-1, 128, 4, 4)
        for up, norm, scale in zip(m.ups, m.norms, m.scales, strict=True):
            gamma, beta = scale(label)[..., None, None].chunk(2, 1)
            x = F.leaky_relu(norm(up(x)) * (1 + gamma) + beta, 0.2)
        return m.end(x).tanh()

    sizes = [(128, 64), (64, 32), (32, 16)]
    return (
        Of(
            forward,
            start=nn.Linear(64, 2048),
            ups=[nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in sizes],
            norms=[nn.BatchNorm2d(b, affine=False) for _, b in sizes],
            scales=[nn.Embedding(10, 2 * b) for _, b in sizes],
            end=nn.Conv2d(16, 3, 3, padding=1),
        ),
        (torch.randn(16, 64), torch.randint(10, (16,))),
        {},
    )


@kind
def _pointnet() -> Made:
    def forward(m: Of, x: Tensor) -> Tensor:
        t = m.turn(m.tnet(x).amax(-1)).view(-1, 3, 3) + torch.eye(3, device=x.device, dtype=x.dtype)
        return m.head(m.body(t @ x).amax(-1))

    def body(*widths: int) -> nn.Sequential:
        pairs = itertools.pairwise(widths)
        return nn.Sequential(*(p for a, b in pairs for p in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())))

    parts = {
        "tnet": body(3, 32, 128),
        "turn": _mlp(128, 64, 9),
        "body": body(3, 64, 128, 256),
        "head": _mlp(256, 128, 40),
    }
    return Of(forward, **parts), (torch.randn(8, 3, 512),), {}


@kind
def _lstm_tagger() -> Made:
    def forward(m: Of, words: Tensor) -> Tensor:
        return m.head(m.lstm(m.words(words))[0]).log_softmax(-1)

    lstm = nn.LSTM(64, 96, 2, batch_first=True, bidirectional=True)
    return (
        Of(forward, words=nn.Embedding(1000, 64), lstm=lstm, head=nn.Linear(192, 20)),
        (torch.randint(1000, (16, 40)),),
        {},
    )


@kind
def _gru_cells() -> Made:
    """A recurrence written as a loop over steps, with attention over the inputs."""

    def forward(m: Of, x: Tensor) -> Tensor:
        h, out = x.new_zeros(x.shape[0], 128), []
        keys = m.keys(x)
        for step in range(24):
            weights = (keys @ h[:, :, None]).squeeze(-1).softmax(-1)
            seen = (weights[:, :, None] * x).sum(1)
            h = m.cell(torch.cat([x[:, step], seen], -1), h)
            out.append(m.head(h))
        return torch.stack(out, 1)

    return (
        Of(forward, cell=nn.GRUCell(128, 128), keys=nn.Linear(64, 128), head=nn.Linear(128, 32)),
        (torch.randn(32, 24, 64),),
        {},
    )


@kind
def _kalman_filter() -> Made:
    def forward(m: Of, seen: Tensor) -> Tensor:
        eye = torch.eye(8, device=seen.device, dtype=seen.dtype)
        x, p, out = seen.new_zeros(seen.shape[0], 8), eye.expand(seen.shape[0], 8, 8), []
        move = eye + 0.1 * m.move
        for step in range(seen.shape[1]):
            x, p = x @ move.mT, move @ p @ move.mT + 0.01 * eye
            s = m.watch @ p @ m.watch.mT + 0.1 * eye[:4, :4]
            gain = torch.linalg.solve(s.float(), (m.watch @ p).float()).mT.to(p.dtype)
            x = x + (gain @ (seen[:, step] - x @ m.watch.mT)[..., None]).squeeze(-1)
            p = (eye - gain @ m.watch) @ p
            out.append(x)
        return torch.stack(out, 1)

    return Of(forward, move=_weight(8, 8), watch=_weight(4, 8, scale=0.5)), (torch.randn(32, 16, 4),), {}


@kind
def _vit_with_registers() -> Made:
    def forward(m: Of, x: Tensor) -> Tensor:
        x = m.patch(x).flatten(2).transpose(1, 2) + m.places
        x = torch.cat([m.registers.expand(x.shape[0], -1, -1), x], 1)
        for block in m.blocks:
            x = block(x)
        return m.head(m.norm(x)[:, 0])

    block = lambda: nn.TransformerEncoderLayer(128, 4, 512, 0.0, "gelu", batch_first=True, norm_first=True)  # noqa: E731
    parts = {"places": _weight(1, 64, 128), "registers": _weight(1, 5, 128), "blocks": [block() for _ in range(4)]}
    return (
        Of(forward, patch=nn.Conv2d(3, 128, 8, 8), norm=nn.LayerNorm(128), head=nn.Linear(128, 10), **parts),
        (torch.randn(8, 3, 64, 64),),
        {},
    )


@kind
def _convnext_blocks() -> Made:
    def forward(m: Of, x: Tensor) -> Tensor:
        x = m.stem(x)
        for conv, norm, up, grn, down in zip(m.convs, m.norms, m.ups, m.grns, m.downs, strict=True):
            y = F.gelu(up(norm(conv(x).permute(0, 2, 3, 1))))
            size = y.norm(p=2, dim=(1, 2), keepdim=True)
            y = y + grn * (y * (size / (size.mean(-1, keepdim=True) + 1e-6)))
            x = x + down(y).permute(0, 3, 1, 2)
        return x.mean((2, 3))

    three = range(3)
    grns = nn.ParameterList([_weight(256) for _ in three])
    return (
        Of(
            forward,
            stem=nn.Conv2d(3, 64, 4, 4),
            convs=[nn.Conv2d(64, 64, 7, padding=3, groups=64) for _ in three],
            norms=[nn.LayerNorm(64) for _ in three],
            ups=[nn.Linear(64, 256) for _ in three],
            grns=grns,
            downs=[nn.Linear(256, 64) for _ in three],
        ),
        (torch.randn(4, 3, 96, 96),),
        {},
    )


@kind
def _capsules() -> Made:
    """Routing by agreement: three rounds of softmax and squash."""

    def squash(s: Tensor) -> Tensor:
        square = s.square().sum(-1, keepdim=True)
        return square / (1 + square) * s / (square + 1e-8).sqrt()

    def forward(m: Of, x: Tensor) -> Tensor:
        u = squash(m.conv(x).view(x.shape[0], 288, 8))
        votes = torch.einsum("bni,nkij->bnkj", u, m.votes)
        logits = torch.zeros(votes.shape[:3], device=x.device, dtype=x.dtype)
        for _ in range(3):
            v = squash((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * v[:, None]).sum(-1)
        return v.norm(dim=-1)

    return Of(forward, conv=nn.Conv2d(1, 64, 9, 3), votes=_weight(288, 10, 8, 16)), (torch.randn(8, 1, 26, 26),), {}


@kind
def _deformable_gather() -> Made:
    """Each place looks at nine places that it chooses, by bilinear weights and gathers."""

    def forward(m: Of, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        offset = m.offset(x).view(b, 9, 2, h, w).tanh() * 2
        rows = torch.arange(h, device=x.device, dtype=x.dtype)[:, None] + offset[:, :, 0]
        columns = torch.arange(w, device=x.device, dtype=x.dtype) + offset[:, :, 1]
        total, flat = 0.0, x.flatten(2)
        for dy in (0, 1):
            for dx in (0, 1):
                r, k = rows.floor() + dy, columns.floor() + dx
                weight = (1 - (rows - r).abs()) * (1 - (columns - k).abs())
                place = (r.clamp(0, h - 1) * w + k.clamp(0, w - 1)).long().view(b, 1, -1)
                total = total + flat.gather(2, place.expand(b, c, -1)) * weight.view(b, 1, -1)
        return m.mix(total.view(b, c * 9, h, w))

    return (
        Of(forward, offset=nn.Conv2d(16, 18, 3, padding=1), mix=nn.Conv2d(144, 32, 1)),
        (torch.randn(2, 16, 32, 32),),
        {},
    )


@kind
def _wav2vec_encoder() -> Made:
    def forward(m: Of, x: Tensor) -> Tensor:
        for conv, norm in zip(m.convs, m.norms, strict=True):
            x = F.gelu(norm(conv(x).transpose(1, 2)).transpose(1, 2))
        return x.transpose(1, 2)

    sizes = [(1, 64, 10, 5), (64, 64, 3, 2), (64, 64, 3, 2), (64, 64, 2, 2)]
    convs = [nn.Conv1d(a, b, k, s, bias=False) for a, b, k, s in sizes]
    return Of(forward, convs=convs, norms=[nn.LayerNorm(64) for _ in sizes]), (torch.randn(2, 1, 16000),), {}


def _unet(dim: int, width: int, shape: tuple[int, ...]) -> Made:
    conv = getattr(nn, f"Conv{dim}d")
    up = getattr(nn, f"ConvTranspose{dim}d")
    norm = lambda c: nn.GroupNorm(4, c)  # noqa: E731
    block = lambda a, b: nn.Sequential(conv(a, b, 3, padding=1), norm(b), nn.SiLU(), conv(b, b, 3, padding=1), norm(b))  # noqa: E731

    def forward(m: Of, x: Tensor) -> Tensor:
        one = F.silu(m.one(x))
        two = F.silu(m.two(m.pool(one)))
        three = F.silu(m.three(m.pool(two)))
        y = F.silu(m.four(torch.cat([m.up_one(three), two], 1)))
        return m.head(F.silu(m.five(torch.cat([m.up_two(y), one], 1))))

    w = width
    return (
        Of(
            forward,
            pool=getattr(nn, f"MaxPool{dim}d")(2),
            one=block(2, w),
            two=block(w, 2 * w),
            three=block(2 * w, 4 * w),
            up_one=up(4 * w, 2 * w, 2, 2),
            four=block(4 * w, 2 * w),
            up_two=up(2 * w, w, 2, 2),
            five=block(2 * w, w),
            head=conv(w, 3, 1),
        ),
        (torch.randn(shape),),
        {},
    )


@kind
def _unet_1d() -> Made:
    return _unet(1, 32, (4, 2, 1024))


@kind
def _unet_3d() -> Made:
    return _unet(3, 8, (1, 2, 16, 32, 32))


@kind
def _mixture_of_experts() -> Made:
    """Two experts of eight for each token: each expert takes its tokens by a mask of weights."""

    def forward(m: Of, x: Tensor) -> Tensor:
        gate = m.router(x).softmax(-1)
        value, chosen = gate.topk(2, -1)
        weights = torch.zeros_like(gate).scatter(-1, chosen, value / value.sum(-1, keepdim=True))
        h = torch.einsum("td,edh->eth", x, m.up)
        h = F.silu(torch.einsum("td,edh->eth", x, m.gate)) * h
        return torch.einsum("eth,ehd,te->td", h, m.down, weights)

    parts = {"up": _weight(8, 128, 128), "gate": _weight(8, 128, 128), "down": _weight(8, 128, 128)}
    return Of(forward, router=nn.Linear(128, 8), **parts), (torch.randn(256, 128),), {}


@kind
def _tabular_resnet() -> Made:
    def forward(m: Of, numbers: Tensor, *bags: Tensor) -> Tensor:
        x = m.start(torch.cat([m.numbers(numbers), *(table(bag) for table, bag in zip(m.bags, bags, strict=True))], -1))
        for norm, block in zip(m.norms, m.blocks, strict=True):
            x = x + block(norm(x))
        return m.head(F.relu(x)).squeeze(-1)

    four = range(4)
    parts = {"norms": [nn.BatchNorm1d(128) for _ in four], "blocks": [_mlp(128, 256, 128) for _ in four]}
    tables = [nn.EmbeddingBag(1000, 16, mode="mean") for _ in range(6)]
    bags = [torch.randint(1000, (256, 5)) for _ in tables]
    return (
        Of(
            forward, numbers=nn.BatchNorm1d(13), bags=tables, start=nn.Linear(109, 128), head=nn.Linear(128, 1), **parts
        ),
        (torch.randn(256, 13), *bags),
        {},
    )


@kind
def _normalising_flow() -> Made:
    """Affine couplings with alternating halves, and the log-likelihood."""

    def forward(m: Of, x: Tensor) -> Tensor:
        logdet = x.new_zeros(x.shape[0])
        for number, net in enumerate(m.nets):
            a, b = x.chunk(2, -1)
            scale, shift = net(a).chunk(2, -1)
            scale = scale.tanh()
            b = b * scale.exp() + shift
            logdet = logdet + scale.sum(-1)
            x = torch.cat([b, a] if number % 2 else [a, b], -1).flip(-1)
        return -0.5 * (x.square() + math.log(2 * math.pi)).sum(-1) + logdet

    return Of(forward, nets=[_mlp(16, 64, 64, 32) for _ in range(8)]), (torch.randn(1024, 32),), {}


@kind
def _deep_sets() -> Made:
    """Sets of different sizes, padded: masked means, maxima and standard deviations."""

    def forward(m: Of, x: Tensor, sizes: Tensor) -> Tensor:
        mask = (torch.arange(x.shape[1], device=x.device) < sizes[:, None])[..., None]
        h = m.each(x)
        count = sizes[:, None].to(h.dtype)
        mean = h.masked_fill(~mask, 0).sum(1) / count
        spread = ((h - mean[:, None]).square() * mask).sum(1) / count
        top = h.masked_fill(~mask, -1e4).amax(1)
        return m.all(torch.cat([mean, (spread + 1e-5).sqrt(), top], -1))

    parts = {"each": _mlp(16, 128, 128), "all": _mlp(384, 64, 1)}
    return Of(forward, **parts), (torch.randn(32, 64, 16), torch.randint(2, 64, (32,))), {}


@kind
def _graph_attention() -> Made:
    """GAT: softmax over the edges into each node by scatters."""

    def forward(m: Of, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        n = x.shape[0]
        for lin, left, right in zip(m.lins, m.left, m.right, strict=True):
            h = lin(x).view(n, 4, 32)
            score = F.leaky_relu((h * left).sum(-1)[source] + (h * right).sum(-1)[target], 0.2)
            place = target[:, None].expand_as(score)
            most = score.new_full((n, 4), -1e4).scatter_reduce(0, place, score, "amax").detach()
            e = (score - most[target]).exp()
            total = e.new_zeros(n, 4).index_add(0, target, e)
            alpha = e / (total[target] + 1e-9)
            x = F.elu(h.new_zeros(n, 4, 32).index_add(0, target, alpha[..., None] * h[source]).flatten(1))
        return m.head(x)

    two = range(2)
    parts = {
        "lins": [nn.Linear(128, 128) for _ in two],
        "left": nn.ParameterList([_weight(4, 32) for _ in two]),
        "right": nn.ParameterList([_weight(4, 32) for _ in two]),
    }
    edges = torch.randint(500, (2, 4000))
    return Of(forward, head=nn.Linear(128, 7), **parts), (torch.randn(500, 128), edges[0], edges[1]), {}


@kind
def _neural_ode() -> Made:
    """Twenty steps of Runge and Kutta's fourth order."""

    def forward(m: Of, x: Tensor) -> Tensor:
        step = 0.05
        f = lambda t, x: m.net(torch.cat([x, torch.full_like(x[:, :1], t)], -1))  # noqa: E731
        for number in range(20):
            t = number * step
            a = f(t, x)
            b = f(t + step / 2, x + step / 2 * a)
            c = f(t + step / 2, x + step / 2 * b)
            d = f(t + step, x + step * c)
            x = x + step / 6 * (a + 2 * b + 2 * c + d)
        return x

    return Of(forward, net=_mlp(17, 64, 16, act=nn.Tanh)), (torch.randn(256, 16),), {}


@kind
def _swiglu_transformer() -> Made:
    """RMS norms, rotary places, grouped queries, SwiGLU, as language models are written by hand."""

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def forward(m: Of, words: Tensor) -> Tensor:
        x = m.words(words)
        b, t, d = x.shape
        angles = torch.outer(torch.arange(t, device=x.device), 10000 ** (-torch.arange(16, device=x.device) / 16))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in m.blocks:
            q, k, v = block.qkv(block.one(x)).split([d, d // 2, d // 2], -1)
            q, k, v = (each.view(b, t, -1, 32).transpose(1, 2) for each in (q, k, v))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            k, v = (each.repeat_interleave(2, 1) for each in (k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block.out(a.transpose(1, 2).reshape(b, t, d))
            gate, up = block.up(block.two(x)).chunk(2, -1)
            x = x + block.down(F.silu(gate) * up)
        return m.head(m.norm(x))

    def block() -> Of:
        lin = lambda a, b: nn.Linear(a, b, bias=False)  # noqa: E731
        parts = {"one": nn.RMSNorm(128), "two": nn.RMSNorm(128), "qkv": lin(128, 256), "out": lin(128, 128)}
        return Of(forward, up=lin(128, 688), down=lin(344, 128), **parts)

    parts = {"blocks": [block() for _ in range(4)], "norm": nn.RMSNorm(128), "head": nn.Linear(128, 512)}
    return Of(forward, words=nn.Embedding(512, 128), **parts), (torch.randint(512, (4, 64)),), {}


@kind
def _cross_attention() -> Made:
    """An encoder and a decoder of torch's own layers."""

    def forward(m: Of, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device, dtype=target.dtype)
        return m.transformer(source, target, tgt_mask=mask)

    transformer = nn.Transformer(128, 4, 2, 2, 256, 0.0, batch_first=True)
    return Of(forward, transformer=transformer), (torch.randn(8, 48, 128), torch.randn(8, 32, 128)), {}


@kind
def _vae() -> Made:
    def forward(m: Of, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = m.encoder(x).chunk(2, -1)
        y = m.decoder(mean + noise * (0.5 * log_variance).exp())
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
        return F.binary_cross_entropy_with_logits(y, x, reduction="none").sum(-1) + kl

    parts = {"encoder": _mlp(784, 256, 64), "decoder": _mlp(32, 256, 784)}
    return Of(forward, **parts), (torch.rand(128, 784), torch.randn(128, 32)), {}


@kind
def _contrastive() -> Made:
    """Two towers and a symmetric cross entropy over all pairs."""

    def forward(m: Of, image: Tensor, text: Tensor) -> Tensor:
        a = F.normalize(m.image(image), dim=-1)
        b = F.normalize(m.text(text).mean(1), dim=-1)
        logits = m.scale.exp() * a @ b.T
        labels = torch.arange(a.shape[0], device=a.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    parts = {"image": _mlp(512, 256, 128), "text": nn.Embedding(1000, 128), "scale": nn.Parameter(torch.tensor(2.0))}
    return Of(forward, **parts), (torch.randn(256, 512), torch.randint(1000, (256, 16))), {}


@kind
def _focal_and_dice() -> Made:
    """Segmentation: a small net with dilations, focal loss and dice loss."""

    def forward(m: Of, x: Tensor, wanted: Tensor) -> Tensor:
        logits = m.net(x)
        one_hot = F.one_hot(wanted, 5).movedim(-1, 1).to(logits.dtype)
        p = logits.softmax(1)
        focal = -((1 - p) ** 2 * F.log_softmax(logits, 1) * one_hot).sum(1).mean()
        both = (p * one_hot).sum((0, 2, 3))
        dice = 1 - (2 * both + 1) / (p.sum((0, 2, 3)) + one_hot.sum((0, 2, 3)) + 1)
        return focal + dice.mean()

    widths = [(3, 16, 1), (16, 16, 2), (16, 16, 4)]
    layers = [
        p for a, b, d in widths for p in (nn.Conv2d(a, b, 3, padding=d, dilation=d), nn.BatchNorm2d(b), nn.ReLU())
    ]
    return (
        Of(forward, net=nn.Sequential(*layers, nn.Conv2d(16, 5, 1))),
        (
            torch.randn(4, 3, 64, 64),
            torch.randint(5, (4, 64, 64)),
        ),
        {},
    )


@kind
def _alignment() -> Made:
    """The forward recursion of CTC over log-probabilities, written as a loop."""

    def forward(m: Of, x: Tensor, labels: Tensor) -> Tensor:
        scores = m.net(x).log_softmax(-1)
        blanks = torch.zeros_like(labels)
        wanted = torch.cat([torch.stack([blanks, labels], -1).flatten(1), blanks[:, :1]], 1)
        emit = scores.gather(2, wanted[:, None].expand(-1, scores.shape[1], -1))
        skip = torch.zeros_like(wanted, dtype=torch.bool)
        skip[:, 2:] = (wanted[:, 2:] != wanted[:, :-2]) & (wanted[:, 2:] != 0)
        low = -1e4
        alpha = torch.full_like(emit[:, 0], low)
        alpha[:, :2] = emit[:, 0, :2]
        for step in range(1, emit.shape[1]):
            one = F.pad(alpha[:, :-1], (1, 0), value=low)
            two = F.pad(alpha[:, :-2], (2, 0), value=low).masked_fill(~skip, low)
            alpha = torch.stack([alpha, one, two]).logsumexp(0) + emit[:, step]
        return -torch.logsumexp(alpha[:, -2:], -1)

    return Of(forward, net=_mlp(64, 128, 30)), (torch.randn(16, 32, 64), torch.randint(1, 30, (16, 8))), {}


@kind
def _fourier_operator() -> Made:
    """FNO: products of a few modes in the spectrum, beside a convolution of one place."""

    def forward(m: Of, x: Tensor) -> Tensor:
        x = m.start(x)
        for real, imaginary, conv in zip(m.real, m.imaginary, m.convs, strict=True):
            spectrum = torch.fft.rfft2(x)
            out = torch.zeros_like(spectrum)
            weights = torch.complex(real, imaginary)
            out[:, :, :8, :8] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :8, :8], weights)
            x = F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + conv(x))
        return m.end(x)

    three = range(3)
    weights = lambda: nn.ParameterList([_weight(16, 16, 8, 8) for _ in three])  # noqa: E731
    parts = {"real": weights(), "imaginary": weights(), "convs": [nn.Conv2d(16, 16, 1) for _ in three]}
    return Of(forward, start=nn.Conv2d(2, 16, 1), end=nn.Conv2d(16, 1, 1), **parts), (torch.randn(4, 2, 48, 48),), {}


@kind
def _complex_layers() -> Made:
    def forward(m: Of, real: Tensor, imaginary: Tensor) -> Tensor:
        z = torch.complex(real, imaginary)
        for a, b in zip(m.real, m.imaginary, strict=True):
            z = z @ torch.complex(a, b)
            z = torch.polar(F.relu(z.abs() - 0.1), z.angle())
        return z.abs()

    three = range(3)
    weights = lambda: nn.ParameterList([_weight(96, 96, scale=0.1) for _ in three])  # noqa: E731
    return Of(forward, real=weights(), imaginary=weights()), (torch.randn(256, 96), torch.randn(256, 96)), {}


@kind
def _int8_dynamic() -> Made:
    """Rows of activations and columns of weights as int8 numbers with scales, written by hand."""

    def forward(m: Of, x: Tensor) -> Tensor:
        for layer in m.layers:
            scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
            small = (x / scale).round().clamp(-128, 127).to(torch.int8)
            product = torch._int_mm(small, layer.weight.t())
            x = F.relu(product.to(x.dtype) * scale * layer.scale + layer.bias)
        return x

    def layer() -> nn.Module:
        made = nn.Module()
        made.register_buffer("weight", torch.randint(-128, 128, (256, 256), dtype=torch.int8))
        made.register_buffer("scale", 0.001 * torch.rand(256))
        made.bias = _weight(256)
        return made

    return Of(forward, layers=[layer() for _ in range(4)]), (torch.randn(256, 256),), {}


@kind
def _adam_and_lion() -> Made:
    """Two optimizers' steps written by hand on many tensors, with clipping by the norm of all."""

    def forward(m: Of, *grads: Tensor) -> Tensor:
        total = torch.stack([grad.float().norm() for grad in grads]).norm()
        clip = (1.0 / (total + 1e-6)).clamp(max=1.0)
        moved = []
        for number, (weight, one, two, grad) in enumerate(zip(m.weights, m.one, m.two, grads, strict=True)):
            grad = grad * clip.to(grad.dtype)
            if number % 2:
                moved.append(weight - 1e-3 * ((0.9 * one + 0.1 * grad).sign() + 0.1 * weight))
            else:
                a, b = torch.lerp(one, grad, 0.1), two * 0.99 + 0.01 * grad * grad
                moved.append(weight * (1 - 1e-3) - 1e-3 * a / 0.1 / ((b / 0.01).sqrt() + 1e-8))
        return torch.stack([each.square().mean() for each in moved])

    shapes = [(256, 256), (256,), (512, 256), (512,), (64, 32, 3, 3), (64,)] * 4
    state = lambda: nn.ParameterList([_weight(*shape) for shape in shapes])  # noqa: E731
    two = nn.ParameterList([nn.Parameter(torch.rand(shape)) for shape in shapes])
    return Of(forward, weights=state(), one=state(), two=two), tuple(torch.randn(shape) for shape in shapes), {}


@kind
def _state_space() -> Made:
    """A selective scan as a loop, with a depthwise causal convolution and a gate."""

    def forward(m: Of, x: Tensor) -> Tensor:
        u, gate = m.start(x).chunk(2, -1)
        u = F.silu(m.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        delta, b, c = m.select(u).split([128, 8, 8], -1)
        delta = F.softplus(delta)
        decay = torch.exp(delta[..., None] * -m.rates.exp())
        inflow = (delta * u)[..., None] * b[:, :, None]
        h, out = x.new_zeros(x.shape[0], 128, 8), []
        for step in range(x.shape[1]):
            h = decay[:, step] * h + inflow[:, step]
            out.append((h * c[:, step, None]).sum(-1))
        return m.end(torch.stack(out, 1) * F.silu(gate))

    conv = nn.Conv1d(128, 128, 4, padding=3, groups=128)
    parts = {
        "start": nn.Linear(64, 256),
        "select": nn.Linear(128, 144),
        "end": nn.Linear(128, 64),
        "rates": _weight(128, 8),
    }
    return Of(forward, conv=conv, **parts), (torch.randn(8, 24, 64),), {}


@kind
def _matrix_memory() -> Made:
    """A recurrence whose state is a matrix, as in linear attention and mLSTM: written as outer products, read by a
    query, a batch of products with vectors."""

    def forward(m: Of, x: Tensor) -> Tensor:
        q, k, v = m.mix(x).chunk(3, -1)
        forget, put = m.gates(x).sigmoid().unbind(-1)
        memory, out = x.new_zeros(x.shape[0], x.shape[2], x.shape[2]), []
        for t in range(x.shape[1]):
            written = torch.einsum("bi,bj->bij", v[:, t], k[:, t] * put[:, t, None])
            memory = forget[:, t, None, None] * memory + written
            out.append(torch.bmm(memory, q[:, t].unsqueeze(-1)).squeeze(-1))
        return m.norm(torch.stack(out, 1))

    return (
        Of(forward, mix=nn.Linear(64, 192), gates=nn.Linear(64, 2), norm=nn.LayerNorm(64)),
        (torch.randn(4, 24, 64),),
        {},
    )


@kind
def _optimal_transport() -> Made:
    """Sinkhorn's iterations between two point clouds: sums of exponentials along short rows and columns."""

    def forward(m: Of, x: Tensor, y: Tensor) -> Tensor:
        cost = (m.embed(x)[:, :, None] - m.embed(y)[:, None]).square().sum(-1)
        f, g = cost.new_zeros(cost.shape[:2]), cost.new_zeros(cost.shape[0], cost.shape[2])
        for _ in range(15):
            f = -0.1 * torch.logsumexp((g[:, None] - cost) / 0.1 - math.log(cost.shape[2]), 2)
            g = -0.1 * torch.logsumexp((f[..., None] - cost) / 0.1 - math.log(cost.shape[1]), 1)
        plan = torch.exp((f[..., None] + g[:, None] - cost) / 0.1)
        return (plan * cost).mean((1, 2))

    return Of(forward, embed=_mlp(16, 32, 16)), (torch.randn(4, 24, 16), torch.randn(4, 30, 16)), {}
