"""Random programs over tensors of many dtypes, shapes and layouts, with the numbers at which kernels differ.

    python tests/fuzz/fuzz_numbers.py 0 1000 --backend codegen

Integers that overflow, divisions by zero, NaN, infinities and zeros with a sign, empty tensors, tensors of one number
and Python's numbers beside them, bool, uint8 and complex arithmetic, bfloat16 under autocast, channels-last strides,
writes into views: results, dtypes, strides, inputs after the call, warnings, the error and the random state are to be
eager's. A line that eager mode refuses is mostly replaced while the program is made, so that most programs run to their
end. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

import seeds  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import dynajit  # noqa: E402

_INF, _NAN = float("inf"), float("nan")
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, _INF, -_INF, _NAN, 1e-40, 7.25, -0.25, 2.0, 1e15, 100.0)
_INTEGERS = (0, 1, -1, 2, -3, 7, 2**31 - 1, -(2**31), 5, -8, 63, 31, 64, -64, 100, 255)


#: What the arguments are made of, by name.
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "f": lambda: torch.tensor(_FLOATS).reshape(4, 4),
    "g": lambda: torch.arange(-6, 10).reshape(4, 4) / 2,  # whose sum is the same in any order
    "d": lambda: torch.tensor(_FLOATS[::-1], dtype=torch.float64).reshape(4, 4),
    "h": lambda: torch.tensor(_FLOATS, dtype=torch.bfloat16).reshape(4, 4),
    "q": lambda: torch.tensor(_FLOATS[4:] + _FLOATS[:4], dtype=torch.float16).reshape(4, 4),
    "i": lambda: torch.tensor(_INTEGERS).reshape(4, 4),
    "k": lambda: torch.tensor(_INTEGERS[::-1]).to(torch.int32).reshape(4, 4),
    "s": lambda: torch.tensor(_INTEGERS).to(torch.int8).reshape(4, 4),
    "u": lambda: torch.tensor(_INTEGERS).to(torch.uint8).reshape(4, 4),
    "b": lambda: (torch.arange(16) % 3 == 0).reshape(4, 4),
    "c": lambda: torch.complex(torch.linspace(-2, 2, 16), torch.linspace(1, -1, 16)).reshape(4, 4),
    "z": lambda: torch.tensor(2.5),
    "w": lambda: torch.tensor(3),
    "t": lambda: torch.tensor(True),
    "e": lambda: torch.empty(0, 4),
    "v": lambda: torch.arange(4.0) - 1,
    "r": lambda: torch.linspace(-1, 1.5, 32).reshape(2, 4, 2, 2).to(memory_format=torch.channels_last),
    "x": lambda: torch.linspace(-1, 1.5, 16).reshape(4, 4).t(),
    "n": lambda: 3,
    "m": lambda: -0.75,
}
_UNARY = """
abs neg sign sgn square sqrt rsqrt reciprocal exp expm1 exp2 log log1p log2 log10 sin cos tan asin acos atan
sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid floor ceil round trunc frac isnan isinf isfinite
isposinf isneginf signbit logical_not bitwise_not relu softmax|-1 log_softmax|0 logsumexp|0 cumsum|0 cumprod|1
cummax|0 sum sum|0 sum|(0,1) prod prod|1 mean mean|0 var std|0 amax amin|1 max min|0 argmax argmin|1 any all
any|0 all|1 median mode sort argsort unique count_nonzero norm nansum nanmean nan_to_num t contiguous clone conj
real imag angle view|-1 reshape|2,8 flip|0 roll|1 triu tril diag trace float double half bfloat16 int long bool
to|torch.uint8 to|torch.int8 to|torch.complex64 type|torch.int16 detach digamma lgamma i0 sinc deg2rad positive
unsqueeze|0 squeeze flatten expand|2,4,4 logcumsumexp|0 aminmax diff msort round|decimals=1 clamp|-1,1
clamp|min=0 clamp|max=2 clip|0.5 numel dim tolist item is_contiguous stride nonzero quantile|0.5 kthvalue|1
topk|2 cov corrcoef hardshrink|0.5 renorm|2,0,1 fill_|3 zero_ abs_ neg_ exp_ add_|1 mul_|2.5 div_|2
floor_divide_|2 remainder_|3 pow_|2 clamp_|-1,1 masked_fill_|b,2 index_fill_|0,w,1 t_ relu_ sigmoid_ round_
bitwise_not_ logical_not_ square_ sub_|n cumsum_|0
"""
_BINARY = """
+ - * / // % ** < <= == != > >= & | ^ << >>
"""
_BINARY_CALLS = """
add sub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin atan2 hypot logical_and
logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift copysign
nextafter ldexp xlogy logaddexp logaddexp2 heaviside gcd lcm eq ne lt ge isclose dot matmul mm outer where3
lerp3 addcmul3 addcdiv3 float_power rsub|alpha=2 add|alpha=2 sub|alpha=2.5 div|rounding_mode='floor'
div|rounding_mode='trunc' equal allclose result_type can_cast cdist kron inner cross dist take_along_dim3 isin
polygamma0 bucketize searchsorted
"""
_INPLACE = """
+= -= *= /= //= %= **= &= |= ^= <<= >>=
"""
_FUNCTIONS = (
    *("F.gelu({0})", "F.gelu({0}, approximate='tanh')", "F.silu({0})", "F.elu({0})", "F.softplus({0})"),
    *("F.mish({0})", "F.hardtanh({0})", "F.hardswish({0})", "F.leaky_relu({0}, 0.1)", "F.logsigmoid({0})"),
    *("F.threshold({0}, 0.5, 9)", "F.layer_norm({0}, (4,))", "F.mse_loss({0}, {1})"),
    *("F.smooth_l1_loss({0}, {1})", "F.huber_loss({0}, {1})"),
    *("F.binary_cross_entropy_with_logits({0}, {1})", "F.cross_entropy({0}, {1})", "F.kl_div({0}, {1})"),
    *("F.normalize({0})", "F.one_hot({0})", "F.pad({0}, (1, 1))", "F.cosine_similarity({0}, {1})"),
    *("F.dropout({0}, 0.5)", "F.rrelu({0})", "torch.cat([{0}, {1}])", "torch.stack([{0}, {1}])"),
    *("torch.where({0}, {1}, {2})", "torch.where({0} > 0, {1}, {2})", "torch.full_like({0}, n)"),
    *("torch.zeros_like({0})", "torch.arange(0, n, dtype={0}.dtype)", "torch.tensor(m) * {0}"),
    *("torch.einsum('ij,jk->ik', {0}, {1})", "torch.bmm({0}[None], {1}[None])"),
    *("torch.addmm({0}, {1}, {2})", "F.conv2d(r, r)", "F.max_pool2d(r, 2)", "F.avg_pool2d(r, 2)"),
    *("F.interpolate(r, scale_factor=2)", "r * {0}.sum()", "r.contiguous()", "r + r.contiguous()"),
    *("r.permute(0, 2, 3, 1) * 2", "F.group_norm(r, 2)", "r.mean((2, 3))", "r.sum(1)"),
    *("r.to(memory_format=torch.contiguous_format)", "r.view(2, -1)", "r.flatten(1)", "r[:, :2].relu()"),
    *("r.amax(1, True)", "e.sum()", "e.sum(0)", "e.sum(1)", "e.mean()", "e.mean(0)", "e.prod(0)"),
    *("e.max()", "e.amax(0)", "e.argmax(1)", "e.std()", "e.var(0)", "e.any(0)", "e.all()", "e.cumsum(0)"),
    *("e.softmax(0)", "e.logsumexp(0)", "torch.cat([e, {0}])", "e.t() @ e", "{0}[:, :0].sum(1)"),
    *("{0}[:0].amin(1)", "{0}[{0} > 5].sum()", "{0}.new_zeros(0).norm()", "e + {0}[:1]"),
    *("torch.rand_like({0})", "torch.randn(2)", "torch.randint(0, 5, (3,))", "torch.randperm(4)"),
    *("torch.bernoulli(v.sigmoid())", "{0}[1]", "{0}[:, 1]", "{0}[::2]", "{0}[[0, 2]]", "{0}[b]"),
    *("{0}[:, None]", "{0}[..., -1]", "{0}[w]", "{0}[n]", "{0}[0, 1:]"),
    *("torch.scatter({0}, 0, i % 4, {1})", "torch.gather({0}, 1, i % 4)", "torch.take({0}, i % 16)"),
    *("torch.index_select({0}, 0, w[None])", "{0}.scatter_add(0, i % 4, {1})"),
    *("{0}.index_add(0, (i % 4)[0], {1})", "{0}.masked_select(b)", "{0}.index_put((w, w), {1}.sum())"),
    *("torch.complex({0}, {1})", "torch.polar({0}, {1})", "torch.view_as_real({0})", "c.conj() * {0}"),
    *("(c * {0}).real", "c.abs()", "int({0}.sum())", "float({0}.sum())", "bool({0}.any())"),
    *("{0}.sum().item() + {1}", "len({0}) * {1}", "{0}.dtype == {1}.dtype", "sum({0})"),
    *("max({0}[0, 0], {1}[0, 0])", "abs({0})", "-{0}", "~{0}", "round({0})"),
    *("{0} if {0}.sum() > 0 else {1}", "torch.float_power({0}, n)", "2 ** {0}", "2.0 ** {0}", "n - {0}"),
    *("m / {0}", "n // {0}", "n % {0}", "m % {0}", "True + {0}", "1j * {0}", "z + {0}", "w + {0}"),
    *("t + {0}", "w / {0}", "w // {0}", "z * {0} + n", "{0} * w ** 2", "{0} << w", "v * {0}", "{0} @ v"),
    *("{0}.view(torch.int32)", "{0}.view(torch.uint8)", "{0}.to({1}.dtype)", "{0}.type_as({1})"),
    *("{0}.expand_as({1})", "{0}.byte()", "torch.clamp({0}, {1}, {2})", "torch.clamp({0}, min={1})"),
    *("torch.lerp({0}, {1}, 0.3)", "torch.lerp({0}, {1}, {2})", "torch.addcmul({0}, {1}, {2}, value=2)"),
    *("torch.addcdiv({0}, {1}, {2})", "torch.fmod({0}, n)", "torch.remainder({0}, m)"),
    *("torch.linalg.norm({0})", "torch.linalg.vector_norm({0}, 3)", "torch.trapz({0})"),
    *("torch.histc({0}, 4)", "torch.bincount(u[0])", "torch.nan_to_num({0}, 1, 2, 3)"),
    *("torch.isclose({0}, {1}, equal_nan=True)", "torch.special.entr({0})", "torch.special.ndtr({0})"),
    *("{0}.masked_fill(b, {1}[0, 0])", "{0}.masked_fill(b, w * 200)", "{0}.masked_fill(t, z * 1e5)"),
    *("{0}.sum(0, dtype=torch.half)", "{0}.prod(1, dtype=torch.bfloat16)", "{0}[:1].cumsum(0)"),
    *("{0}.scatter_reduce(0, i % 4, {1}, 'amax')", "{0}.scatter_reduce(1, i % 4, {1}, 'mean')"),
    *("{0}.select_scatter({1}[0], 0, n)", "{0}.slice_scatter({1}[:1], 0, 2, n)", "torch.aminmax({0}, dim=0)"),
    *("z.softmax(n)", "{0}.unfold(1, n, 1).sum(-1)", "{0}[:, :1].unfold(0, n, 2)", "{0}[n - 3:n, None]"),
    *("F.batch_norm({0}, v + 1, v.abs(), training=True)", "F.batch_norm({0}.t(), None, None, training=True)"),
    *("F.pad({0}, (1, 1), mode='reflect')", "F.pad({0}, (2, 1), mode='replicate')", "F.max_pool1d({0}, 2)"),
    *("F.avg_pool2d({0}[None], 2)", "F.interpolate({0}[None], scale_factor=2)", "F.rms_norm({0}, (4,))"),
)
_STATEMENTS = (
    *("{0}[0] = {1}[1]", "{0}[:, 1] = n", "{0}[b] = m", "{0}[1:] += {1}[1:]", "{0}.t()[0] = {1}[0]"),
    *("{0}.view(-1)[2:6] *= 2", "{0}.copy_({1})", "{0}.data.add_(1)", "{0}[w, w] = z"),
    *("{0}[..., ::2] = {1}[..., 1::2]", "{0}.diagonal().fill_(n)", "torch.add({1}, {2}, out={0})"),
    *("torch.mul({1}, n, out={0})", "{0}.index_copy_(0, w[None], {1}[:1])", "{0}.swapaxes(0, 1).neg_()"),
    *("print({0}.shape, {0}.dtype)", "print({0}.sum().item())", "warnings.warn('w')"),
    *("torch.manual_seed(n)", "torch.rand(3)", "print({0}[0])", "print(f'{{{0}.sum():.3f}}')"),
    *("dynajit.graph_break()", "{0}.masked_fill_({1} > 0, 5)", "{0}.uniform_()", "{0}.resize_(3)"),
    *("{0}.set_({1})", "{0}.requires_grad_()", "{0}.random_(0, 3)", "{0}.bernoulli_(0.5)"),
    *("{0}.squeeze_()",),
)
_BLOCKS = (
    "try:\n    {line}\nexcept (RuntimeError, TypeError, IndexError, ValueError, ZeroDivisionError) as error:\n"
    "    print(type(error).__name__)",
    "try:\n    {line}\nfinally:\n    g.add_(1)",
    "with torch.autocast('cpu', torch.bfloat16):\n    {line}",
    "with torch.no_grad():\n    {line}",
    "with torch.inference_mode():\n    {line}",
    "for step in range(2):\n    {line}",
    "if g.sum() < 100:\n    {line}",
    "def inner():\n    {line}\n    yield g\nfor part in inner(): v = v + part[0]",
    "with warnings.catch_warnings(record=True) as seen:\n    {line}\n    print(len(seen))",
)


class _Programs:
    """The lines of one seed's program."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.scope: dict[str, Any] = {"torch": torch, "F": F, "dynajit": dynajit, "warnings": warnings}
        self.scope.update((name, make()) for name, make in ARGUMENTS.items())
        self.names = list(ARGUMENTS)
        self.tensors = [name for name in self.names if name not in "nm"]

    def operand(self) -> str:
        pool = (
            self.names
            if self.rng.random() < 0.3
            else [name for name in self.names if len(name) > 1 or name in "fgdhqiksubcx"]
        )
        return self.rng.choice(pool[-14:] if self.rng.random() < 0.5 else pool)

    def tensor(self) -> str:
        name = self.operand()
        return "f" if name in "nm" else name

    def expression(self) -> str:
        rng = self.rng
        kind = rng.random()
        if kind < 0.3:
            name, _, given = rng.choice(_UNARY.split()).partition("|")
            return f"{self.tensor()}.{name}({given})"
        if kind < 0.5:
            return f"{self.operand()} {rng.choice(_BINARY.split())} {self.operand()}"
        if kind < 0.65:
            name, _, given = rng.choice(_BINARY_CALLS.split()).partition("|")
            count = 3 if name[-1] == "3" else 2
            operands = [self.tensor(), *(self.operand() for _ in range(count - 1))]
            return f"torch.{name.rstrip('30')}({', '.join([*operands, *([given] if given else [])])})"
        return rng.choice(_FUNCTIONS).format(self.tensor(), self.operand(), self.operand())

    def line(self) -> str:
        """One that eager mode can run here, mostly."""
        for _ in range(8):
            names = list(self.names)
            line = self._any_line()
            try:
                with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
                    exec(line, self.scope)
            except Exception:  # whatever eager mode has against it
                if self.rng.random() < 0.05:
                    break
                self.names = names
            else:
                break
        return line

    def _any_line(self) -> str:
        rng = self.rng
        if rng.random() < 0.2:
            return rng.choice(_STATEMENTS).format(self.tensor(), self.operand(), self.operand())
        if rng.random() < 0.1:
            return f"{self.tensor()} {rng.choice(_INPLACE.split())} {self.operand()}"
        target = f"t{len(self.names)}"
        line = f"{target} = {self.expression()}"
        self.names.append(target)
        return line

    def statement(self) -> str:
        return self.rng.choice(_BLOCKS).format(line=self.line()) if self.rng.random() < 0.15 else self.line()


def program(seed: int) -> str:
    """A function of all `ARGUMENTS` that returns what it has made, as text."""
    lines = _Programs(random.Random(seed))
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        body = [lines.statement() for _ in range(lines.rng.randint(1, 6))]
    made = [name for name in lines.names if name not in ARGUMENTS]
    results = lines.rng.sample(made, min(len(made), lines.rng.randint(1, 3))) or ["g"]
    whole = "\n".join(body).replace("\n", "\n    ")
    return f"def main({', '.join(ARGUMENTS)}):\n    {whole}\n    return {', '.join(results)},"


def described(value: Any) -> Any:
    """Plain data, with copies of tensors; sizes of one and none have no strides to speak of."""
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(described, value)]
    if not isinstance(value, Tensor):
        return value
    strides = [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1 and value.numel()]
    flags = (value.requires_grad, value.is_conj(), value.is_neg(), value.is_inference())
    copy = value.detach().clone().resolve_conj().resolve_neg()
    return ["tensor", value.dtype, tuple(value.shape), strides, flags, copy]


def observed(main: Callable[..., Any], seed: int) -> list[Any]:
    """What a call gives and leaves."""
    torch.manual_seed(seed)
    given = [make() for make in ARGUMENTS.values()]
    if seed % 3 == 0:
        given[1].requires_grad_()
    out, found = io.StringIO(), []
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(out):
        warnings.simplefilter("always")
        try:
            results = main(*given)
        except Exception as error:  # the program's own
            results = (type(error).__name__, str(error).split("\n")[0][:200])
    found.append(results if isinstance(results[0], str) else [described(value) for value in results])
    found.append([described(value) for value in given])
    found.append([value._version > 0 for value in given if isinstance(value, Tensor)])
    aliases = [
        (at, place)
        for at, value in enumerate(results)
        for place, each in enumerate(given)
        if isinstance(value, Tensor) and isinstance(each, Tensor) and value is each
    ]
    found.append(aliases)
    found.append(out.getvalue())
    found.append([str(each.message)[:150] for each in warned if "degrees of freedom" not in str(each.message)])
    found.append(torch.get_rng_state())
    return found


def same(left: Any, right: Any, close: float) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(*pair, close) for pair in zip(left, right, strict=True))
    if isinstance(left, Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        if not close or not (left.is_floating_point() or left.is_complex()):
            whole = (
                torch.allclose(left, right, 0, 0, equal_nan=True)
                if left.dtype != torch.bool
                else torch.equal(left, right)
            )
        else:
            factor = 400 if left.dtype == torch.bfloat16 else 50 if left.dtype == torch.float16 else 1
            whole = torch.allclose(left, right, close * factor, close * factor / 10, equal_nan=True)
        return whole and (not left.is_floating_point() or bool((left.signbit() == right.signbit())[left == 0].all()))
    if isinstance(left, float) and left != right:
        return (left != left and right != right) or (bool(close) and abs(left - right) <= close * abs(right))
    return bool(left == right)


def finding(seed: int, backend: str) -> str | None:
    """What differs between the seed's program in eager mode and compiled, cold or warm; None: nothing."""
    source = program(seed)
    scope: dict[str, Any] = {"torch": torch, "F": F, "dynajit": dynajit, "warnings": warnings}
    exec(compile(source, f"<numbers {seed}>", "exec"), scope)
    wanted = observed(scope["main"], seed)
    dynajit.reset()
    # for every fourth program sizes and numbers vary
    run = dynajit.compile(scope["main"], backend=backend, dynamic=True if seed % 4 == 1 else None)
    close = 0 if backend == "eager" else 1e-4
    for call in ("first", "second"):
        found = observed(run, seed)
        if not same(found, wanted, close):
            place = next(at for at, pair in enumerate(zip(found, wanted, strict=True)) if not same(*pair, close))
            pairs = (
                list(zip(found[place], wanted[place], strict=False))
                if isinstance(found[place], (list, tuple))
                else [(found[place], wanted[place])]
            )
            odd = next((pair for pair in pairs if not same(*pair, close)), (found[place], wanted[place]))
            return f"{source}\n  {call} call, at {place}: {odd[0]}\n  not {odd[1]}"
    return None


if __name__ == "__main__":
    sys.exit(seeds.run(__doc__.splitlines()[0], finding))
