"""Functions of float32 that are cheaper than CUDA's library and as good for the arguments they are given.

In:  an operation of the loop IR. Out: `special(node)`: the name of a function here and its arguments, or None;
     `TEXT`: their text. The polynomials are fits of our own, by reweighted least squares.
One more: its text here, and the condition for it in `special`.
"""

from __future__ import annotations

import torch

from dynajit.loopir.nodes import Const, Op, Scalar

# Functions whose results lie between -1 and 1.
_UNIT = ("sin", "cos", "tanh", "erf")


def special(node: Op) -> tuple[str, tuple[Scalar, ...]] | None:
    """What to call for this operation, and on what."""
    if node.dtype is not torch.float32:
        return None
    first = node.arguments[0]
    if node.name == "add":
        for one, other in (node.arguments, node.arguments[::-1]):
            if isinstance(one, Const) and one.value == 1 and isinstance(other, Op) and other.name == "erf":
                return "dj_erf_plus_one", other.arguments
    if node.name == "erf":
        return "dj_erf", (first,)
    unit = isinstance(first, Op) and first.name in _UNIT
    if node.name in ("sin", "cos"):
        return (f"dj_{node.name}_unit" if unit else f"dj_{node.name}"), (first,)
    if node.name == "exp" and unit:
        return "dj_exp_unit", (first,)
    return None


# x = (m + shift) * pi + r, pi in three parts; exact enough below 1e5, beyond which CUDA's library takes over.
_SIN_OR_COS = """
@triton.jit
def dj_{name}(x):
    if tl.reduce(tl.abs(x), None, dj_max) <= 100000.0:
        {shifted}
        m = t - 12582912.0{shift}
        r = tl.fma(m, -3.1415927410125732, x)
        r = tl.fma(m, 8.742277657347586e-08, r)
        r = tl.fma(m, 3.4302490200117637e-15, r)
        s = dj_sin_half(r)
        s = (s.to(tl.int32, bitcast=True) ^ (t.to(tl.int32, bitcast=True) << 31)).to(tl.float32, bitcast=True)
    else:  # or there is a NaN
        s = lib.{name}(x)
    return s
"""

TEXT: dict[str, str] = {
    # 1 - erf for x >= 0 as 2 to a polynomial; off by at most 1e-7.
    "dj_erfc": """
@triton.jit
def dj_erfc(x):
    p = tl.fma(x, -4.535851621767506e-05, 0.000445507001131773)
    p = tl.fma(p, x, -0.0014894396299496293)
    p = tl.fma(p, x, -0.0007746327319182456)
    p = tl.fma(p, x, 0.02825368382036686)
    p = tl.fma(p, x, -0.14848162233829498)
    p = tl.fma(p, x, -0.9184163808822632)
    p = tl.fma(p, x, -1.6279085874557495)
    return tl.exp2(p * x)
""",
    "dj_erf_plus_one": """
@triton.jit
def dj_erf_plus_one(x):
    e = dj_erfc(tl.abs(x))
    return tl.where(x < 0, e, 2.0 - e)
""",
    # Off by at most 2e-7 of the result.
    "dj_erf": """
@triton.jit
def dj_erf(x):
    a = tl.abs(x)
    u = x * x
    p = tl.fma(u, 0.0047179716639220715, -0.026757176965475082)
    p = tl.fma(p, u, 0.11282822489738464)
    p = tl.fma(p, u, -0.37612608075141907)
    p = tl.fma(p, u, 1.1283791065216064)
    e = 1.0 - dj_erfc(a)
    return tl.where(a < 0.5, p * x, tl.where(x < 0, 0.0 - e, e))
""",
    # sin(r) for |r| <= pi / 2, off by 1e-8 of the result and roundings.
    "dj_sin_half": """
@triton.jit
def dj_sin_half(r):
    u = r * r
    p = tl.fma(u, 2.6054760837723734e-06, -0.0001980947272386402)
    p = tl.fma(p, u, 0.008333064615726471)
    p = tl.fma(p, u, -0.16666659712791443)
    return tl.fma(p, r * u, r)
""",
    "dj_sin": _SIN_OR_COS.format(name="sin", shifted="t = tl.fma(x, 0.31830987334251404, 12582912.0)", shift=""),
    "dj_cos": _SIN_OR_COS.format(
        name="cos", shifted="t = tl.fma(x, 0.31830987334251404, 0.5) + 12582912.0", shift=" - 0.5"
    ),
    # For |x| <= 1.
    "dj_sin_unit": """
@triton.jit
def dj_sin_unit(x):
    return dj_sin_half(x)
""",
    "dj_cos_unit": """
@triton.jit
def dj_cos_unit(x):
    u = x * x
    p = tl.fma(u, 2.4118617147905752e-05, -0.0013882957864552736)
    p = tl.fma(p, u, 0.041666459292173386)
    p = tl.fma(p, u, -0.4999999701976776)
    return tl.fma(p, u, 1.0)
""",
    "dj_exp_unit": """
@triton.jit
def dj_exp_unit(x):
    return tl.exp2(x * 1.4426950216293335)
""",
}
