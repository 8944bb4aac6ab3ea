"""Tensors, the language and NumPy as programs use them: of sizes and values that change; see features.py."""

import collections
import dataclasses
import decimal
import enum
import functools
import math
import random
import re
import threading
import typing
import weakref
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from feature_table import Made, feature, simple, varied, x8, x44
from torch import Tensor, nn

TEN = "tensors, used"
LANG = "language, used"
NP = "NumPy, used"


def sizes(*shape: int, many: tuple[int, ...] = (4, 6, 9), grad: bool = False) -> Any:
    return [(torch.randn(n, *shape).requires_grad_(grad),) for n in many]


# ------------------------------------------------------------------ tensors
class Scaled(Tensor):
    """A subclass with an attribute, by __torch_function__."""

    scale: float

    @staticmethod
    def make(t: Tensor, scale: float) -> "Scaled":
        r = t.as_subclass(Scaled)
        r.scale = scale
        return r

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Scaled):
            out.scale = next((a.scale for a in args if isinstance(a, Scaled) and hasattr(a, "scale")), 1.0)
        return out


def _scaled(x: Tensor, k: float) -> Any:
    s = Scaled.make(x, k)
    return ((s + 1) * 2).scale * (s.sin() + 0)


varied(TEN, "subclass with an attribute, values change", lambda: _scaled, (x8(), 2.0), (x8(), 3.0), (x8(), 4.0))


class Two(Tensor):
    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor) -> "Two":
        return Tensor._make_wrapper_subclass(
            cls, (a.shape[0] * 2, *a.shape[1:]), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> "Two":
        return Two(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map_only

        kwargs = kwargs or {}
        parts = []
        for name in "ab":

            def part(t: Tensor, name: str = name) -> Tensor:
                return getattr(t, name)

            parts.append(func(*tree_map_only(Two, part, args), **tree_map_only(Two, part, kwargs)))
        return Two(*parts) if isinstance(parts[0], Tensor) else parts[0]


def _two(x: Tensor) -> Tensor:
    t = Two(x, x * 2)
    u = t.sin() * 2
    return (u.a + u.b) * u.shape[0]


varied(TEN, "wrapper of another size, sizes", lambda: _two, *sizes(3))


@feature(TEN, "wrapper of another size, a module's")
def _() -> Made:
    held = Two(x44(), x44() + 1)
    return lambda x: (held.exp() + 1).a * x, x44()


simple(
    TEN,
    "complex layers",
    lambda x: torch.fft.ifft(torch.fft.fft(x) * torch.polar(torch.ones(4), torch.arange(4.0))).abs().sum(),
    lambda: x44().requires_grad_(),
)
simple(
    TEN,
    "complex, view_as_real, in place",
    lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2)).mul_(1j)),
    x8,
)
simple(
    TEN,
    "rotary embedding by complex numbers",
    lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(4, 2, 2))
        * torch.polar(torch.ones(4, 2), torch.outer(torch.arange(4.0), torch.tensor([1.0, 0.5])))
    ).flatten(1),
    x44,
)
simple(
    TEN,
    "sparse: made inside, mm",
    lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), x[:2, 0], (4, 4)) @ x,
    x44,
)
simple(TEN, "sparse: coalesce, values", lambda s: s.coalesce().values() * 2, lambda: torch.eye(4).to_sparse())
simple(
    TEN,
    "sparse gradient of an embedding",
    lambda i, w: F.embedding(i, w, sparse=False).sum(),
    lambda: torch.tensor([1, 2]),
    lambda: x44().requires_grad_(),
)
simple(
    TEN,
    "quantize_per_channel, dequantize",
    lambda x: torch.quantize_per_channel(x, torch.full((4,), 0.1), torch.zeros(4), 0, torch.qint8).dequantize() + 1,
    x44,
)
simple(
    TEN,
    "quantised: int_repr, q_scale",
    lambda x: (lambda q: (q.int_repr().float() * q.q_scale(), q.q_zero_point()))(
        torch.quantize_per_tensor(x, 0.1, 2, torch.quint8)
    ),
    x8,
)


@feature(TEN, "dynamic quantised linear (nn.quantized)")
def _() -> Made:
    model = torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()), {nn.Linear}, dtype=torch.qint8
    )
    return model, torch.randn(2, 4)


simple(
    TEN,
    "int8 matmul by hand",
    lambda x: (
        lambda s: (
            torch._int_mm(
                (x / s).round().to(torch.int8).repeat(5, 4), (x / s).round().to(torch.int8).repeat(4, 4)
            ).float()
            * s
            * s
        )
    )(x.abs().max() / 127),
    lambda: torch.randn(4, 4),
)
simple(TEN, "meta module made, then to_empty", lambda x: _meta_mod(x), x44)


def _meta_mod(x: Tensor) -> Tensor:
    with torch.device("meta"):
        lin = nn.Linear(4, 4)
    return x * lin.weight.numel() + lin.weight.shape[1]


simple(TEN, "FakeTensorMode inside", lambda x: _fake(x), x44)


def _fake(x: Tensor) -> Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        n = torch.empty(3, 5).matmul(torch.empty(5, 7)).shape[1]
    return x * n


simple(
    TEN,
    "torch._check, then branch on a size",
    lambda x: (torch._check(x.shape[0] > 2, lambda: "few"), x[1:].sum())[1],
    x8,
)


def _jag_train(values: Tensor, offsets: Tensor, w: Tensor) -> Tensor:
    n = torch.nested.nested_tensor_from_jagged(values, offsets)
    h = F.layer_norm(n @ w, (4,)).relu()
    return h.values().sum()


varied(
    TEN,
    "jagged: matmul, layer_norm, trained, sizes",
    lambda: _jag_train,
    *[(torch.randn(n, 4), torch.tensor([0, 2, n]), torch.randn(4, 4, requires_grad=True)) for n in (5, 7, 9)],
)
simple(
    TEN,
    "jagged: unbind, narrow",
    lambda n: [t.sum() for t in n.unbind()],
    lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged),
)
simple(
    TEN,
    "jagged: heads by its own sizes",
    lambda n: (n.view(*n.shape[:2], 2, 2).transpose(1, 2) * n.shape[0]).values(),
    lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged),
)


def _storage(x: Tensor) -> Any:
    y = x[1:]
    return (
        y * 2,
        x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr(),
        y.storage_offset(),
        x.data_ptr() == y.data_ptr(),
    )


simple(TEN, "same storage by data_ptr", _storage, x8)
simple(TEN, "as_strided, unfold, set_ views", lambda x: x.unfold(0, 3, 2).sum(-1) + x.as_strided((3,), (2,)).sum(), x8)
simple(TEN, "tolist of sizes, split by list", lambda x: [t.sum() for t in x.split([3, x.shape[0] - 3])], x8)


# ------------------------------------------------------------------ language
def _raises(x: Tensor, n: int) -> Tensor:
    y = x * 2
    if n > 2:
        raise ValueError(f"{n!a} {x.shape!r} is too much")
    return y + n


varied(LANG, "exceptions that leave the function, values", lambda: _raises, (x8(), 1), (x8(), 3), (x8(), 2))


def _caught(x: Tensor) -> Any:
    try:
        _raises(x, 5)
    except ValueError as error:
        return x + len(str(error)), str(error), type(error).__name__, error.args
    finally:
        x.add_(1)
    return x


simple(LANG, "exception of a nested call, caught, finally", _caught, x8)


def _weak_inside(x: Tensor) -> Any:
    class Key:
        pass

    d: Any = weakref.WeakKeyDictionary()
    k = Key()
    d[k] = x * 2
    w = weakref.WeakValueDictionary()
    w["a"] = k
    s = weakref.WeakSet([k])
    r = weakref.ref(k)
    return d[k] + len(d) + len(w) + len(s), k in s, r() is k


simple(LANG, "weak containers inside", _weak_inside, x8)


class Seq(str):
    pass


simple(
    LANG,
    "re on strings and a subclass",
    lambda x: (
        x * len(re.findall(r"\d+", "a1b22")),
        re.sub(r"(\w)(\d)", r"\2\1", "a1"),
        re.match(r"(?P<n>\d+)", Seq("42x")).groupdict(),
    ),
    x8,
)
simple(
    LANG,
    "re.compile inside, finditer, split",
    lambda x: (
        x * sum(int(m.group(1)) for m in re.compile(r"l(\d)").finditer("l1.l2.l3")) + len(re.split(r"[.,]", "a.b,c"))
    ),
    x8,
)
simple(
    LANG, "Decimal, fractions, statistics", lambda x: x * float(decimal.Decimal("1.1") + decimal.Decimal(2).sqrt()), x8
)
simple(LANG, "random.sample, shuffle, choice, gauss", lambda x: _rand(x), x8)


def _rand(x: Tensor) -> Any:
    order = list(range(8))
    random.shuffle(order)
    return (
        x[torch.tensor(random.sample(order, 3))] * random.gauss(0, 1) + random.choice([1, 2, 3]) + random.randint(0, 9)
    )


def _own_random(x: Tensor) -> Tensor:
    rng = random.Random(3)
    return x * rng.random() + rng.randint(1, 5) + rng.choices([1, 2, 3], weights=[1, 2, 3], k=2)[0]


simple(LANG, "random.Random made inside", _own_random, x8)
LOCK = threading.Lock()
RLOCK = threading.RLock()


def _locked(x: Tensor) -> Tensor:
    with LOCK, RLOCK:
        y = x * 2
        assert LOCK.locked()
    return y


simple(LANG, "locks from outside", _locked, x8)


def _lock_inside(x: Tensor) -> Tensor:
    lock = threading.Lock()
    with lock:
        return x * 2


simple(LANG, "lock made inside and held", _lock_inside, x8)


def _import_inside(x: Tensor) -> Tensor:
    import json as j
    from math import pi as p

    import torch.nn.functional as FF

    return FF.relu(x) * p + len(j.dumps([1, 2]))


simple(LANG, "modules imported inside", _import_inside, x8)


class Base:
    def run(self, x: Tensor) -> Tensor:
        return x + sum(c().k for c in type(self).__mro__[-2].__subclasses__())


class Sub1(Base):
    k = 1


class Sub2(Base):
    k = 2


simple(LANG, "type.__subclasses__, registry", lambda x: Sub1().run(x), x8)


def _classes(x: Tensor) -> Any:
    P = collections.namedtuple("P", "a b", defaults=(2,))

    @dataclasses.dataclass
    class D:
        a: Any
        b: int = 1

        def total(self) -> Any:
            return self.a + self.b

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    class T(typing.NamedTuple):
        q: int

    p = P(x)
    return (
        D(p.a, p.b).total() + Color.BLUE.value + T(3).q + p._replace(b=4).b,
        dataclasses.asdict(D(1, 2)),
        p._asdict()["b"],
    )


simple(LANG, "classes made inside", _classes, x8)


def _eval_consts(x: Tensor) -> Tensor:
    ns: dict[str, Any] = {}
    exec("def g(a):\n    return a * 3\nk = 4", ns)
    return ns["g"](x) + ns["k"] + eval("1 + 2")


simple(LANG, "exec of a function", _eval_consts, x8)


def _gen(x: Tensor) -> Any:
    def chunks() -> Any:
        for part in x.split(3):
            got = yield part * 2
            if got:
                yield part - got

    it = chunks()
    first = next(it)
    second = it.send(1)
    return [first, second, *it]


simple(LANG, "generator of chunks with send", _gen, x8)


def _cm(x: Tensor, n: int) -> Any:
    import contextlib

    log = []

    @contextlib.contextmanager
    def scope(name: str) -> Any:
        log.append(f"+{name}")
        try:
            yield name
        except KeyError:
            log.append("caught")
        finally:
            log.append(f"-{name}")

    with contextlib.ExitStack() as stack:
        stack.enter_context(scope("a"))
        with scope("b"):
            if n > 1:
                raise KeyError("x")
        x = x * 2
    return x, log


varied(LANG, "context managers that catch, values", lambda: _cm, (x8(), 1), (x8(), 2), (x8(), 3))


def _fmt(x: Tensor, v: float) -> Any:
    return (
        x * v,
        f"{v:.3f} {v!a} {x.shape[0]:>4} {'a':*^5} {v=}",
        "%d %s" % (x.dim(), x.dtype),  # noqa: UP031 - a program of a user's
        f"{v:.1f}/{1}",
    )


varied(LANG, "formats of changing floats", lambda: _fmt, (x8(), 1.5), (x8(), 2.5), (x8(), 3.25))


@functools.cache
def _cached(n: int) -> Tensor:
    return torch.arange(n).float()


varied(
    LANG, "lru_cache of tensors by size", lambda: lambda x: x + _cached(x.shape[0])[:, None], *sizes(2, many=(4, 6, 9))
)


def _match(x: Tensor, cmd: Any) -> Any:
    match cmd:
        case {"op": "mul", "k": k}:
            return x * k
        case ["add", int(n), *rest]:
            return x + n + len(rest)
        case str() as s if len(s) > 3:
            return x - 1
        case _:
            return x


varied(
    LANG,
    "match of changing commands",
    lambda: _match,
    (x8(), {"op": "mul", "k": 2}),
    (x8(), ["add", 1, 2, 3]),
    (x8(), "long"),
)
varied(
    LANG,
    "loop over zip, enumerate, reversed of a changing list",
    lambda: lambda xs: sum(i * a + b for i, (a, b) in enumerate(zip(xs, reversed(xs), strict=True))),
    ([x8()] * 2,),
    ([x8()] * 3,),
    ([x8()] * 4,),
)
varied(
    LANG,
    "keyword dict of changing keys",
    lambda: lambda d: {k: v * 2 for k, v in sorted(d.items())},
    ({"a": x8()},),
    ({"b": x8(), "a": x8()},),
    ({"c": x8()},),
)
varied(
    LANG,
    "int arithmetic on changing ints",
    lambda: lambda x, n: x * (n**2 // 3) + math.isqrt(n) + n.bit_length() + divmod(n, 3)[1],
    (x8(), 5),
    (x8(), 7),
    (x8(), 11),
)
varied(
    LANG,
    "math on changing floats",
    lambda: lambda x, v: x * math.exp(-v) + max(v, 0.5) + round(v, 1) + math.floor(v),
    (x8(), 1.5),
    (x8(), 2.25),
    (x8(), 3.75),
)

# ------------------------------------------------------------------ NumPy


def _mesh(x: Tensor) -> Any:
    a = x.numpy()
    u, v = np.meshgrid(a, np.arange(3))
    return torch.from_numpy(u * v + np.linalg.norm(a)) + float(np.fft.fft(a).real.sum())


simple(NP, "meshgrid, linalg, fft", _mesh, x8)


def _np_gen(x: Tensor) -> Any:
    rng = np.random.default_rng(0)
    return x * torch.from_numpy(rng.normal(size=8).astype(np.float32)) + int(rng.integers(5))


simple(NP, "random.Generator made inside", _np_gen, x8)


def _np_shared(x: Tensor) -> Any:
    a = x.numpy()
    a[1:3] *= 2
    a += 1
    b = x * 1
    c = b.numpy()
    c[0] = 7
    return x + b


simple(NP, "writes into arrays that share memory", _np_shared, x8)


def _np_from(a: Any) -> Any:
    t = torch.from_numpy(a)
    t.mul_(2)
    return t.sum(), a.sum()


simple(NP, "from_numpy of an argument, written", _np_from, lambda: np.arange(4.0))
simple(
    NP,
    "array functions on an argument",
    lambda a: np.where(a > 1, a, -a).reshape(2, -1).mean(axis=0).tolist(),
    lambda: np.arange(4.0),
)
simple(
    NP,
    "structured dtype, summed",
    lambda a, x: x * float(a["f"].sum()),
    lambda: np.zeros(3, dtype=[("f", "f4")]),
    x8,
)
simple(
    NP,
    "numpy scalars and dtypes",
    lambda x: x * np.float32(2) + np.int64(3) + np.pi + float(np.sqrt(np.array([4.0]))[0]),
    x8,
)
simple(NP, "np.asarray(tensor), torch.as_tensor", lambda x: torch.as_tensor(np.asarray(x) * 2) + 1, x8)
simple(NP, "np.random global", lambda x: x * torch.tensor(np.random.rand(8), dtype=torch.float32), x8)
varied(NP, "np on sizes that change", lambda: lambda x: torch.from_numpy(np.cumsum(x.numpy(), axis=0)) * 2, *sizes(2))
simple(
    NP,
    "einsum, linalg.solve, concatenate",
    lambda x: torch.from_numpy(
        np.concatenate(
            [
                np.einsum("ij,jk->ik", x.numpy(), x.numpy()),
                np.linalg.solve(x.numpy() + 5 * np.eye(4, dtype=np.float32), x.numpy()),
            ]
        )
    ),
    x44,
)
