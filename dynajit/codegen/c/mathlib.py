"""The functions that kernels call: C text, vectorised by the compiler inside the loops that call them.

In:  names of functions (`exp_f32`, ...). Out: their definitions, nothing else, so that a file stays small.
Own ones (at most 2 ulp) have no branches. The others are the C library's: on x86 with glibc the compiler is told that
its vector variants exist (libmvec, at most 4 ulp).
One more function: an entry in `_OWN`, or a name in `_LIBRARY`.
"""

from __future__ import annotations

from collections.abc import Iterable

from dynajit.codegen import float8
from dynajit.loopir.ops import MATH_FUNCTIONS, ScalarOp

PRELUDE = """\
#include <stdint.h>
#include <features.h>

#define INLINE static inline __attribute__((always_inline))
/* gcc uses half of a 512-bit register unless told otherwise; worth it where loops are long. */
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target("prefer-vector-width=512")))
#else
#define WIDE
#endif
/* How far a loop goes that leaves out lanes: what it does is under a test. */
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define PADDED(count, filled) (filled)
#else
#define PADDED(count, filled) (count)
#endif
#if defined(__FMA__) || defined(__aarch64__)
#define FMA32(a, b, c) __builtin_fmaf(a, b, c)
#define FMA64(a, b, c) __builtin_fma(a, b, c)
#else
#define FMA32(a, b, c) ((a) * (b) + (c))
#define FMA64(a, b, c) ((a) * (b) + (c))
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
#define VECTOR_VARIANTS __attribute__((simd("notinbranch"), const))
/* By a name of its own, or the compiler makes one call of sin(x) and cos(x), of which there is no variant. */
#define NAMED(name) __asm__(name)
#endif
#endif

INLINE float bits_to_f32(uint32_t u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
INLINE uint32_t f32_to_bits(float f) { uint32_t u; __builtin_memcpy(&u, &f, 4); return u; }
"""

_BF16 = """\
INLINE float load_bf16(uint16_t u) { return bits_to_f32((uint32_t)u << 16); }
/* Round to nearest, ties to even; NaN becomes 0x7fc0 as in torch. */
INLINE uint16_t store_bf16(float f) {
  uint32_t u = f32_to_bits(f);
  uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (uint16_t)(f != f ? 0x7fc0u : r);
}
INLINE uint16_t cut_bf16(float f) { return (uint16_t)(f32_to_bits(f) >> 16); }
INLINE float round_bf16(float f) {
  uint32_t u = f32_to_bits(f);
  uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return bits_to_f32(f != f ? 0x7fc00000u : r);
}
"""

_TO_8_BITS = """\
INLINE uint8_t to_{name}(float f) {{
  uint32_t bits = f32_to_bits(f), size = bits & 0x7fffffffu;
  uint32_t small = f32_to_bits(__builtin_fabsf(f) + {added}f) & 0xffu;
  uint32_t normal = ((size + {half}u + ((size >> {shift}) & 1u)) >> {shift}) - {bias}u;
  uint32_t large = size > 0x7f800000u ? 0x7fu : {infinity}u;
  uint32_t found = size < {least}u ? small : size < {most}u ? normal : large;
  return (uint8_t)(found | (bits >> 24 & 0x80u));
}}
"""

_FROM_E4M3 = """\
INLINE uint8_t to_e4m3_saturated(float f) {
  uint8_t found = to_e4m3(f);
  return (uint8_t)(found - ((found & 0x7fu) == 0x7fu && f == f));
}
INLINE float from_e4m3(uint8_t u) {
  uint32_t size = u & 0x7fu, sign = (uint32_t)(u & 0x80u) << 24;
  float small = (float)size * 0.001953125f;
  uint32_t normal = size == 0x7fu ? 0x7ff00000u : (size << 20) + 0x3c000000u;
  return bits_to_f32(sign | (size < 8 ? f32_to_bits(small) : normal));
}
"""

_FROM_E5M2 = """\
INLINE float from_e5m2(uint8_t u) {
  uint32_t size = u & 0x7fu, sign = (uint32_t)(u & 0x80u) << 24;
  float small = (float)size * 0x1p-16f;
  uint32_t normal = size >= 0x7cu ? 0x7f800000u | size << 21 : (size << 21) + 0x38000000u;
  return bits_to_f32(sign | (size < 4 ? f32_to_bits(small) : normal));
}
"""
_E4M3, _E5M2 = (
    _TO_8_BITS.format(**encoding._asdict()) + rest
    for encoding, rest in zip(float8.ENCODINGS, (_FROM_E4M3, _FROM_E5M2), strict=True)
)

_F16 = """\
#if defined(__clang__) || defined(__aarch64__)
INLINE float load_f16(uint16_t u) { _Float16 h; __builtin_memcpy(&h, &u, 2); return (float)h; }
INLINE uint16_t store_f16(float f) { _Float16 h = (_Float16)f; uint16_t u; __builtin_memcpy(&u, &h, 2); return u; }
INLINE float round_f16(float f) { return (float)(_Float16)f; }
#define cut_f16(f) store_f16(f)
#else
/* gcc for x86 converts these one by one: here by arithmetic. Nothing on the way is below float32's normal range. */
INLINE float load_f16(uint16_t h) {
  uint32_t u = (uint32_t)(h & 0x7fffu) << 13;
  uint32_t small = f32_to_bits(bits_to_f32(u + 0x38800000u) - 0x1p-14f);
  uint32_t normal = u + (u >= 0x0f800000u ? 0x70000000u : 0x38000000u);
  return bits_to_f32((u < 0x00800000u ? small : normal) | (uint32_t)(h & 0x8000u) << 16);
}
/* Adding a number whose last place is worth what float16's last place is rounds; what is too large overflows. */
INLINE float round_f16(float f) {
  uint32_t e = f32_to_bits(f) & 0x7f800000u;
  e = e < 0x38800000u ? 0x38800000u : e;
  e = e > 0x48000000u ? 0x48000000u : e;
  float m = bits_to_f32(e + 0x06c00000u);
  float r = (f + m) - m;
  return __builtin_copysignf(r * 0x1p112f * 0x1p-112f, f);
}
/* Of what float16 can hold. */
INLINE uint16_t cut_f16(float f) {
  uint32_t u = f32_to_bits(f), a = u & 0x7fffffffu;
  uint32_t small = f32_to_bits(bits_to_f32(a) + 0.5f) & 0x7fffu;
  uint32_t normal = (a - 0x38000000u) >> 13;
  uint32_t large = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return (uint16_t)((a < 0x38800000u ? small : a < 0x47800000u ? normal : large) | (u >> 16 & 0x8000u));
}
INLINE uint16_t store_f16(float f) { return cut_f16(round_f16(f)); }
#endif
"""

_F16_SINGLE = """\
#if defined(__F16C__) && (defined(__clang__) || __GNUC__ >= 12)
INLINE float load_f16_single(uint16_t u) { _Float16 h; __builtin_memcpy(&h, &u, 2); return (float)h; }
INLINE uint16_t store_f16_single(float f) {
  _Float16 h = (_Float16)f;
  uint16_t u;
  __builtin_memcpy(&u, &h, 2);
  return u;
}
INLINE float round_f16_single(float f) { return (float)(_Float16)f; }
#define cut_f16_single(f) store_f16_single(f)
#else
#define load_f16_single(u) load_f16(u)
#define store_f16_single(f) store_f16(f)
#define round_f16_single(f) round_f16(f)
#define cut_f16_single(f) cut_f16(f)
#endif
"""

_F16_BLOCKS = """\
#if defined(__F16C__) && defined(__AVX512F__) && !defined(__clang__)
#define HALVES_AT_ONCE 16
#define TO_FLOATS(h) __builtin_ia32_vcvtph2ps512_mask(h, (some_floats){0}, -1, 4)
#define TO_HALVES(f) (some_halves)__builtin_ia32_vcvtps2ph512_mask(f, 0, (some_halves){0}, -1)
#elif defined(__F16C__) && !defined(__clang__)
#define HALVES_AT_ONCE 8
#define TO_FLOATS(h) __builtin_ia32_vcvtph2ps256(h)
#define TO_HALVES(f) (some_halves)__builtin_ia32_vcvtps2ph256(f, 0)
#endif
#ifdef HALVES_AT_ONCE
typedef float some_floats __attribute__((vector_size(4 * HALVES_AT_ONCE)));
typedef float some_floats_anywhere __attribute__((vector_size(4 * HALVES_AT_ONCE), aligned(4), may_alias));
typedef int16_t some_halves __attribute__((vector_size(2 * HALVES_AT_ONCE)));
typedef int16_t some_halves_anywhere __attribute__((vector_size(2 * HALVES_AT_ONCE), aligned(2), may_alias));
#endif
INLINE void f16_to_f32_block(const uint16_t *restrict a, float *restrict t, int64_t n) {
  int64_t i = 0;
#ifdef HALVES_AT_ONCE
  for (; i + HALVES_AT_ONCE <= n; i += HALVES_AT_ONCE)
    *(some_floats_anywhere *)(t + i) = TO_FLOATS((some_halves)*(const some_halves_anywhere *)(a + i));
#endif
  for (; i < n; ++i) t[i] = load_f16(a[i]);
}
INLINE void f32_to_f16_block(const float *restrict a, uint16_t *restrict t, int64_t n) {
  int64_t i = 0;
#ifdef HALVES_AT_ONCE
  for (; i + HALVES_AT_ONCE <= n; i += HALVES_AT_ONCE)
    *(some_halves_anywhere *)(t + i) = TO_HALVES((some_floats)*(const some_floats_anywhere *)(a + i));
#endif
  for (; i < n; ++i) t[i] = store_f16(a[i]);
}
static void f16_to_f32(const uint16_t *restrict a, float *restrict t, int64_t n) { f16_to_f32_block(a, t, n); }
static void f32_to_f16(const float *restrict a, uint16_t *restrict t, int64_t n) { f32_to_f16_block(a, t, n); }
"""

_TO_INT = "\n".join(
    [
        "/* What the processor does with NaN and what does not fit; left to itself the compiler folds it otherwise. */",
        "#if defined(__x86_64__)",
        *(
            f"INLINE int{bits}_t {kind}_to_i{bits}({ctype} f) {{ return f >= -0x1p{bits - 1}{suffix} && "
            f"f < 0x1p{bits - 1}{suffix} ? (int{bits}_t)f : INT{bits}_MIN; }}"
            for kind, ctype, suffix in (("f32", "float", "f"), ("f64", "double", ""))
            for bits in (32, 64)
        ),
        "#else",
        *(f"#define {kind}_to_i{bits}(f) ((int{bits}_t)(f))" for kind in ("f32", "f64") for bits in (32, 64)),
        "#endif",
        "",
    ]
)

_EXP_PART = """\
/* exp(r) for |r| <= log(2) / 2. */
INLINE float exp_part(float r) {
  float p = 0x1.6850e4p-10f;
  p = FMA32(p, r, 0x1.123bccp-7f);
  p = FMA32(p, r, 0x1.555b98p-5f);
  p = FMA32(p, r, 0x1.55548ep-3f);
  p = FMA32(p, r, 0x1.fffff8p-2f);
  p = FMA32(p, r, 1.0f);
  p = FMA32(p, r, 1.0f);
  return p;
}
"""

_EXP = """\
/* 2^n * exp(r), |r| <= log(2) / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. The
   power goes in as two factors, so that results below the normal range round right and those above become infinite. */
INLINE float exp_f32(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  float t = FMA32(x, 0x1.715476p+0f, 0x1.8p+23f);
  float n = t - 0x1.8p+23f;
  float r = FMA32(n, -0x1.62e400p-1f, x);
  r = FMA32(n, -0x1.7f7d1cp-20f, r);
  float p = exp_part(r);
  int32_t i = (int32_t)(f32_to_bits(t) - 0x4b400000u);
  int32_t h = i >> 1;
  return p * bits_to_f32((uint32_t)(h + 127) << 23) * bits_to_f32((uint32_t)(i - h + 127) << 23);
}
"""

_LOG = """\
/* x = m * 2^e with m in [2/3, 4/3); log(m) by a polynomial in m - 1. */
INLINE float log_f32(float x) {
  float t = x < 0x1p-126f ? x * 0x1p+23f : x;
  float i = x < 0x1p-126f ? -23.0f : 0.0f;
  int32_t e = (int32_t)((f32_to_bits(t) - 0x3f2aaaabu) & 0xff800000u);
  float m = bits_to_f32(f32_to_bits(t) - (uint32_t)e);
  i = FMA32((float)e, 0x1p-23f, i);
  m = m - 1.0f;
  float s = m * m;
  float r = FMA32(-0.130310059f, m, 0.140869141f);
  float q = FMA32(-0.121483512f, m, 0.139814854f);
  r = FMA32(r, s, q);
  q = FMA32(-0.166846126f, m, 0.200120345f);
  r = FMA32(r, s, q);
  r = FMA32(r, m, -0.249996200f);
  r = FMA32(r, m, 0.333331972f);
  r = FMA32(r, m, -0.5f);
  r = FMA32(r, s, m);
  r = FMA32(i, 0.693147182f, r);
  r = x < __builtin_inff() ? r : x;
  r = x < 0.0f ? __builtin_nanf("") : r;
  return x == 0.0f ? -__builtin_inff() : r;
}
"""

_EXP_DOWN = """\
/* exp of what is not above 40, and below that of anything: with 64 added to its exponent, the power is one factor. */
INLINE float exp_down_f32(float x) {
  x = x < -104.0f ? -104.0f : x;
  float t = FMA32(x, 0x1.715476p+0f, 0x1.8p+23f + 191.0f);
  float n = t - (0x1.8p+23f + 191.0f);
  float r = FMA32(n, -0x1.62e400p-1f, x);
  r = FMA32(n, -0x1.7f7d1cp-20f, r);
  return exp_part(r) * bits_to_f32(f32_to_bits(t) << 23) * 0x1p-64f;
}
"""

_EXP_MID = """\
/* exp of what is between -80 and 80. */
INLINE float exp_mid_f32(float x) {
  float t = FMA32(x, 0x1.715476p+0f, 0x1.8p+23f + 127.0f);
  float n = t - (0x1.8p+23f + 127.0f);
  float r = FMA32(n, -0x1.62e400p-1f, x);
  r = FMA32(n, -0x1.7f7d1cp-20f, r);
  return exp_part(r) * bits_to_f32(f32_to_bits(t) << 23);
}
"""

_HYPOT = """\
/* In double, where squares of floats neither overflow nor vanish. Of an infinity it is infinite, whatever is beside. */
INLINE float hypot_f32(float x, float y) {
  float r = (float)__builtin_sqrt(FMA64((double)x, (double)x, (double)y * (double)y));
  r = __builtin_fabsf(x) == __builtin_inff() ? __builtin_inff() : r;
  return __builtin_fabsf(y) == __builtin_inff() ? __builtin_inff() : r;
}
"""

_POW = """\
/* |x|^y = 2^(y log2(|x|)) in double, where neither function needs more than its main range: log2 by atanh's series of
   (m - 1) / (m + 1), 2^f by Taylor's. Signs and the special cases of IEEE 754 afterwards. */
INLINE float pow_f32(float x, float y) {
  uint64_t u;
  double a = __builtin_fabsf(x), w = y, b;
  __builtin_memcpy(&u, &a, 8);
  int64_t e = (int64_t)(u - 0x3fe6a09e00000000u) >> 52;
  uint64_t v = u - ((uint64_t)e << 52);
  __builtin_memcpy(&b, &v, 8);
  double s = (b - 1.0) / (b + 1.0), z = s * s;
  double k = FMA64(z, FMA64(z, FMA64(z, 1.0 / 13, 1.0 / 11), 1.0 / 9), 1.0 / 7);
  k = FMA64(z, FMA64(z, FMA64(z, k, 1.0 / 5), 1.0 / 3), 1.0) * s;
  /* the exponent by a number that takes it in its low bits: no conversion from 64 bits is needed */
  uint64_t n = (uint64_t)e + 0x4338000000000000u;
  double exponent;
  __builtin_memcpy(&exponent, &n, 8);
  double t = FMA64(k, 0x1.71547652b82fep+1, exponent - 0x1.8p+52) * w;
  t = t > 1000.0 ? 1000.0 : t;
  t = t < -1000.0 ? -1000.0 : t;
  double c = t + 0x1.8p+52, d = (t - (c - 0x1.8p+52)) * 0x1.62e42fefa39efp-1;
  double q = FMA64(d, FMA64(d, FMA64(d, FMA64(d, 1.0 / 5040, 1.0 / 720), 1.0 / 120), 1.0 / 24), 1.0 / 6);
  q = FMA64(d, FMA64(d, FMA64(d, q, 0.5), 1.0), 1.0);
  __builtin_memcpy(&u, &c, 8);
  u = (u + 1023) << 52;
  __builtin_memcpy(&c, &u, 8);
  float r = (float)(q * c), size = __builtin_fabsf(x), half = 0.5f * y;
  float of_none = y < 0.0f ? __builtin_inff() : 0.0f, of_all = y < 0.0f ? 0.0f : __builtin_inff();
  r = size == 0.0f ? of_none : r;
  r = size == __builtin_inff() ? of_all : r;
  float far = size < 1.0f ? of_none : of_all;
  far = size == 1.0f ? 1.0f : far;
  /* by bits: gcc fills no vectors where it chooses by what is the same in the whole loop, as one exponent for all */
  uint32_t limit = __builtin_fabsf(y) == __builtin_inff() ? ~0u : 0u;
  r = bits_to_f32((f32_to_bits(far) & limit) | (f32_to_bits(r) & ~limit));
  int whole = __builtin_truncf(y) == y, odd = whole & (__builtin_truncf(half) != half);
  r = (x < 0.0f) & !whole & (size != __builtin_inff()) ? __builtin_nanf("") : r;
  r = bits_to_f32(f32_to_bits(r) | (f32_to_bits(x) & (odd ? 0x80000000u : 0u)));
  r = (x != x) | (y != y) ? __builtin_nanf("") : r;
  return (x == 1.0f) | (y == 0.0f) ? 1.0f : r;
}
"""

_SIN_SMALL = """\
/* sin of what is between -1.01 and 1.01. */
INLINE float sin_small_f32(float x) {
  float s = x * x;
  float p = FMA32(0x1.6998f4p-19f, s, -0x1.9ffdc2p-13f);
  p = FMA32(p, s, 0x1.1110eap-7f);
  p = FMA32(p, s, -0x1.555556p-3f);
  return FMA32(p * s, x, x);
}
"""

_COS_SMALL = """\
/* cos of what is between -1.01 and 1.01. */
INLINE float cos_small_f32(float x) {
  float s = x * x;
  float p = FMA32(0x1.95ce7ep-16f, s, -0x1.6bf94cp-10f);
  p = FMA32(p, s, 0x1.55552p-5f);
  p = FMA32(p, s, -0.5f);
  return FMA32(p, s, 1.0f);
}
"""

_TANH = """\
INLINE float tanh_f32(float x) {
  float a = __builtin_fabsf(x);
  float z = x * x;
  float p = FMA32(-5.70498872745e-3f, z, 2.06390887954e-2f);
  p = FMA32(p, z, -5.37397155531e-2f);
  p = FMA32(p, z, 1.33314422036e-1f);
  p = FMA32(p, z, -3.33332819422e-1f);
  p = FMA32(p * z, x, x);
  float e = exp_down_f32(-2.0f * a);
  float q = (1.0f - e) / (1.0f + e);
  return __builtin_copysignf(a < 0.625f ? p : q, x); /* p is 0 for -0 */
}
"""

_ERF = """\
INLINE float erf_f32(float x) {
  float t = __builtin_fabsf(x);
  t = t > 4.0f ? 4.0f : t;
  float s = t * t;
  float r = FMA32(-1.72853470e-5f, t, 3.83197126e-4f);
  float u = FMA32(-3.88396438e-3f, t, 2.42546219e-2f);
  r = FMA32(r, s, u);
  r = FMA32(r, t, -1.06777877e-1f);
  r = FMA32(r, t, -6.34846687e-1f);
  r = FMA32(r, t, -1.28717512e-1f);
  r = FMA32(r, t, -t);
  r = __builtin_copysignf(1.0f - exp_mid_f32(r), x);
  float p = FMA32(-5.96761703e-4f, s, 4.99119423e-3f);
  p = FMA32(p, s, -2.67681349e-2f);
  p = FMA32(p, s, 1.12819925e-1f);
  p = FMA32(p, s, -3.76125336e-1f);
  p = FMA32(p, s, 1.28379166e-1f);
  p = FMA32(p, x, x);
  return t > 0.921875f ? r : p;
}
"""


_PICKS = "(defined(__clang__) || __GNUC__ >= 12)"
# Where 8 x 8 elements of so many bits are turned in registers.
_TURNS = {16: _PICKS, 32: f"defined(__AVX__) && {_PICKS}"}


def _turn(bits: int) -> str:
    """A tile of `across` x `along` elements, of which those across lie together in memory, into rows of those along."""
    kind = f"uint{bits}_t"
    text = f"""\
static void turn_{bits}(const {kind} *restrict a, int64_t step, int64_t along, int64_t across, {kind} *restrict t,
                    int64_t row) {{
  int64_t x = 0;
"""
    if bits != 64:
        tiled = "across != 8 && across != 16 && " if bits == 16 else ""  # for which compilers have wider vectors
        text += f"""\
#if {_TURNS[bits]}
  const int dense = along == row && along >= 4 && across > 8, apart = step >= 8 - across;
  if (along < 8 && dense) {{  /* rows of less than a vector: what is written beyond one is where the next will be */
    int64_t y = 0;
    for (; y + 8 < across; y += 8) turn_8x8_{bits}(a + y, step, t + y * row, row, along, 8);
    for (; y < across; ++y)
      for (int64_t i = 0; i < along; ++i) t[y * row + i] = a[i * step + y];
    return;
  }}
  for (; along >= 8 && {tiled}x < along; x += 8) {{
    if (x + 8 > along) x = along - 8;
    int64_t y = 0;
    for (; across >= 8 && y < across; y += 8) {{
      if (y + 8 > across) y = across - 8;
      turn_8x8_{bits}(a + x * step + y, step, t + y * row + x, row, 8, 8);
    }}
    if (across < 8 && apart && x + 8 < along)  /* what is read beyond one row is of the next */
      turn_8x8_{bits}(a + x * step, step, t + x, row, 8, across);
    else
      for (; y < across; ++y)
        for (int64_t i = 0; i < 8; ++i) t[y * row + x + i] = a[(x + i) * step + y];
  }}
#endif
"""
    return (
        text
        + """\
  for (; x < along; ++x)
    for (int64_t y = 0; y < across; ++y) t[y * row + x] = a[x * step + y];
}
"""
    )


# How 8 rows become 8 columns: what is picked of two vectors in the first step and in the second; then, of each column,
# which vector has its first half, and another four on its second. Of 32 bits what is picked stays in half a register.
_PICKED = {
    16: (
        ("0, 8, 1, 9, 2, 10, 3, 11", "4, 12, 5, 13, 6, 14, 7, 15"),
        ("0, 1, 8, 9, 2, 3, 10, 11", "4, 5, 12, 13, 6, 7, 14, 15"),
        (0, 0, 1, 1, 2, 2, 3, 3),
    ),
    32: (
        ("0, 8, 1, 9, 4, 12, 5, 13", "2, 10, 3, 11, 6, 14, 7, 15"),
        ("0, 1, 8, 9, 4, 5, 12, 13", "2, 3, 10, 11, 6, 7, 14, 15"),
        (0, 1, 2, 3, 0, 1, 2, 3),
    ),
}


def _turn_8x8(bits: int) -> str:
    """A tile of 8 x 8 elements, in registers."""
    kind, vector = f"uint{bits}_t", f"eight_{bits}"
    (one, other), (low, high), places = _PICKED[bits]
    stores = ""
    for column, at in enumerate(places):
        picked = "4, 5, 6, 7, 12, 13, 14, 15" if at in places[:column] else "0, 1, 2, 3, 8, 9, 10, 11"
        place = f"*({vector}_anywhere *)(t + {column} * row)"
        stores += f"  if ({column} < out) {place} = PICK(r[{at}], r[{at + 4}], {picked});\n"
    return f"""\
#if {_TURNS[bits]}
typedef {kind} {vector} __attribute__((vector_size({bits})));
typedef {kind} {vector}_anywhere __attribute__((vector_size({bits}), aligned({bits // 8}), may_alias));
#define PICK __builtin_shufflevector
/* The first `in` rows into the first `out`, in their order: whole vectors are read and written. */
INLINE void turn_8x8_{bits}(const {kind} *a, int64_t step, {kind} *t, int64_t row, int64_t in, int64_t out) {{
  {vector} r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = *(const {vector}_anywhere *)(a + (i < in ? i : 0) * step);
  for (int i = 0; i < 8; i += 2) {{
    s[i] = PICK(r[i], r[i + 1], {one});
    s[i + 1] = PICK(r[i], r[i + 1], {other});
  }}
  for (int i = 0; i < 8; i += 4) {{
    r[i] = PICK(s[i], s[i + 2], {low});
    r[i + 1] = PICK(s[i], s[i + 2], {high});
    r[i + 2] = PICK(s[i + 1], s[i + 3], {low});
    r[i + 3] = PICK(s[i + 1], s[i + 3], {high});
  }}
{stores}}}
#endif
"""


_RATIO = """\
/* a / s by the reciprocal of s, which the compiler takes out of the loop, put right by the remainder: division costs
   four times as much. Right where nothing on the way is infinite or denormal. */
#if defined(__FMA__) || defined(__aarch64__)
INLINE float ratio_f32(float a, float s) {
  float r = 1.0f / s;
  float q = a * r;
  return FMA32(FMA32(-q, s, a), r, q);
}
#else
#define ratio_f32(a, s) ((a) / (s))
#endif
"""


def _running(name: str, ctype: str, size: int) -> str:
    """Running sums of `n` numbers in place, `t` before them; `p` has room for a multiple of eight. Eight are summed by
    themselves: one after the other waits only for the eight before."""
    return f"""\
#if defined(__clang__) || __GNUC__ >= 12
typedef {ctype} eight_{name} __attribute__((vector_size({8 * size}), aligned({size}), may_alias));
INLINE {ctype} running_{name}({ctype} *p, int64_t n, {ctype} t) {{
  for (int64_t k = n; k % 8; ++k) p[k] = 0;
  for (int64_t k = 0; k < n; k += 8) {{
    eight_{name} x = *(eight_{name} *)(p + k), z = {{0}};
    x += __builtin_shufflevector(x, z, 8, 0, 1, 2, 3, 4, 5, 6);
    x += __builtin_shufflevector(x, z, 8, 8, 0, 1, 2, 3, 4, 5);
    x += __builtin_shufflevector(x, z, 8, 8, 8, 8, 0, 1, 2, 3);
    *(eight_{name} *)(p + k) = x + t;
    t += x[7];
  }}
  return t;
}}
#else
INLINE {ctype} running_{name}({ctype} *p, int64_t n, {ctype} t) {{
  for (int64_t k = 0; k < n; ++k) p[k] = t += p[k];
  return t;
}}
#endif
"""


# name -> text, names it needs
_OWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "bf16": (_BF16, ()),
    "f16": (_F16, ()),
    "f16_single": (_F16_SINGLE, ("f16",)),
    "f16_blocks": (_F16_BLOCKS, ("f16",)),
    "e4m3": (_E4M3, ()),
    "e5m2": (_E5M2, ()),
    "to_int": (_TO_INT, ()),
    "fma_f32": ("#define fma_f32(a, b, c) FMA32(a, b, c)\n", ()),
    "fma_f64": ("#define fma_f64(a, b, c) FMA64(a, b, c)\n", ()),
    "ratio_f32": (_RATIO, ()),
    "ratio_f64": ("#define ratio_f64(a, s) ((a) / (s))\n", ()),
    "exp_part": (_EXP_PART, ()),
    "exp_f32": (_EXP, ("exp_part",)),
    "pow_f32": (_POW, ()),
    "hypot_f32": (_HYPOT, ()),
    "exp_down_f32": (_EXP_DOWN, ("exp_part",)),
    "exp_mid_f32": (_EXP_MID, ("exp_part",)),
    "sin_small_f32": (_SIN_SMALL, ()),
    "cos_small_f32": (_COS_SMALL, ()),
    "log_f32": (_LOG, ()),
    "tanh_f32": (_TANH, ("exp_down_f32",)),
    "erf_f32": (_ERF, ("exp_mid_f32",)),
    "running_f32": (_running("f32", "float", 4), ()),
    "running_f64": (_running("f64", "double", 8), ()),
    "running_i64": (_running("i64", "int64_t", 8), ()),
    "turn_8x8_16": (_turn_8x8(16), ()),
    "turn_8x8_32": (_turn_8x8(32), ()),
    "turn_16": (_turn(16), ("turn_8x8_16",)),
    "turn_32": (_turn(32), ("turn_8x8_32",)),
    "turn_64": (_turn(64), ()),
}

# C library functions: number of arguments, and whether glibc has vector variants.
_LIBRARY: dict[str, tuple[int, bool]] = {
    **dict.fromkeys(MATH_FUNCTIONS, (1, True)),
    "pow": (2, True),
    "atan2": (2, True),
    "hypot": (2, True),
    "fmod": (2, False),
}

# glibc got these vector variants in 2.22, the others in 2.35; both are behind VECTOR_VARIANTS.


def inlined(operation: ScalarOp) -> bool:
    """Is it, in float32, text that the compiler makes part of a loop, not a call?"""
    return not operation.helper or f"{operation.helper}_f32" in _OWN


def definitions(names: Iterable[str]) -> str:
    """The text of the named functions and of those they need."""
    done: dict[str, None] = {}
    for name in names:
        _add(name, done)
    return "\n".join(_text(name) for name in done)


def _add(name: str, done: dict[str, None]) -> None:
    if name in _OWN:
        for needed in _OWN[name][1]:
            _add(needed, done)
    done[name] = None


def _text(name: str) -> str:
    if name in _OWN:
        return _OWN[name][0]
    base, kind = name.rsplit("_", 1)
    arity, vector = _LIBRARY[base]
    ctype, suffix = ("float", "f") if kind == "f32" else ("double", "")
    arguments = ", ".join([ctype] * arity)
    plain = f"extern {ctype} {base}{suffix}({arguments});\n#define {name} {base}{suffix}\n"
    if not vector:
        return plain
    named = f'VECTOR_VARIANTS extern {ctype} {name}({arguments}) NAMED("{base}{suffix}");\n'
    return f"#ifdef NAMED\n{named}#else\n{plain}#endif\n"
