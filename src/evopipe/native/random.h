// Uniform, normal and Gumbel numbers by counter, as `evopipe.rng` draws them, eight at a time. Logarithm and cosine are fdlibm's
// (Sun Microsystems, 1993), so that no library decides about their last bits.

#pragma once

#include "vectors.h"

// SplitMix64's finaliser, as `evopipe.rng` has it.
static uint64_t mixed_bits(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

#define GOLDEN 0x9E3779B97F4A7C15u

// The draws [n] in [0, 1) of a member at one step; `salt` is what the purpose adds to a key.
static void shares_of(int n, int64_t key, int64_t salt, int64_t step, double *u) {
  const uint64_t at = mixed_bits(mixed_bits((uint64_t)key + (uint64_t)salt) + (uint64_t)step * GOLDEN);
  for (int j = 0; j < n; j++) u[j] = (double)(mixed_bits(at + (uint64_t)(j + 1) * GOLDEN) >> 11) * 0x1p-53;
}

enum { WIDE = 8 };
typedef double wide __attribute__((vector_size(8 * WIDE)));
typedef uint64_t bits __attribute__((vector_size(8 * WIDE)));
typedef int64_t places __attribute__((vector_size(8 * WIDE)));

INLINE wide all_wide(double x) { return x - (wide){0}; }

INLINE wide fused_wide(wide a, wide b, wide c) {
#if defined(__AVX512F__)
  return (wide)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__) && defined(__FMA__)
  union {
    wide of;
    __m256d half[2];
  } x = {a}, y = {b}, z = {c};
  for (int i = 0; i < 2; i++) z.half[i] = _mm256_fmadd_pd(x.half[i], y.half[i], z.half[i]);
  return z.of;
#elif defined(__aarch64__)
  for (int i = 0; i < WIDE; i++) c[i] = __builtin_fma(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

INLINE wide either(places yes, wide a, wide b) { return (wide)(((places)a & yes) | ((places)b & ~yes)); }

// In [0, 1): the draws at these places, counted from 0.
INLINE wide shares(uint64_t stream, bits place) {
  bits x = stream + (place + 1) * GOLDEN;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return __builtin_convertvector((places)((x ^ x >> 31) >> 11), wide) * 0x1p-53;
}

INLINE wide log_wide(wide x) {  // of positive numbers; 0's is -710, which no draw comes near
  places of = (places)x, k = (of >> 52) - 1023;
  wide m = (wide)((of & 0xfffffffffffffLL) | 0x3ff0000000000000LL);
  places high = m > 1.4142135623730951;
  wide f = either(high, m * 0.5, m) - 1.0, n = __builtin_convertvector(k - high, wide);
  wide s = f / (2.0 + f), z = s * s;
  wide r = all_wide(1.479819860511658591e-1);
  r = fused_wide(r, z, all_wide(1.531383769920937332e-1));
  r = fused_wide(r, z, all_wide(1.818357216161805012e-1));
  r = fused_wide(r, z, all_wide(2.222219843214978396e-1));
  r = fused_wide(r, z, all_wide(2.857142874366239149e-1));
  r = fused_wide(r, z, all_wide(3.999999999940941908e-1));
  r = fused_wide(r, z, all_wide(6.666666666666735130e-1)) * z;
  r = fused_wide(s, fused_wide(0.5 * f, f, r), n * 1.90821492927058770002e-10);
  return fused_wide(n, all_wide(6.93147180369123816490e-1), f - fused_wide(0.5 * f, f, -r));
}

INLINE wide cos_turns(wide a) {  // cos 2πa of 0 ≤ a < 1
  places quarter = __builtin_convertvector(a * 4.0 + 0.5, places);
  wide x = (a - __builtin_convertvector(quarter, wide) * 0.25) * 6.283185307179586, z = x * x;
  wide c = all_wide(-1.13596475577881948265e-11), s = all_wide(1.58969099521155010221e-10);
  c = fused_wide(c, z, all_wide(2.08757232129817482790e-9));
  c = fused_wide(c, z, all_wide(-2.75573143513906633035e-7));
  c = fused_wide(c, z, all_wide(2.48015872894767294178e-5));
  c = fused_wide(c, z, all_wide(-1.38888888888741095749e-3));
  c = fused_wide(c, z, all_wide(4.16666666666666019037e-2));
  c = 1.0 - (0.5 * z - z * z * c);
  s = fused_wide(s, z, all_wide(-2.50507602534068634195e-8));
  s = fused_wide(s, z, all_wide(2.75573137070700676789e-6));
  s = fused_wide(s, z, all_wide(-1.98412698298579493134e-4));
  s = fused_wide(s, z, all_wide(8.33333333332248946124e-3));
  s = fused_wide(s, z, all_wide(-1.66666666666666324348e-1));
  s = fused_wide(x * z, s, x);
  wide found = either((quarter & 1) == 1, s, c);
  return either(((quarter + 1) & 2) == 2, -found, found);
}

static uint64_t stream_of(int64_t key, int64_t salt, int64_t step) {
  return mixed_bits(mixed_bits((uint64_t)key + (uint64_t)salt) + (uint64_t)step * GOLDEN);
}

void parts(const draw_call *c) {
  for (int p = 0; p < c->members; p++) ((uint64_t *)c->to)[p] = mixed_bits((uint64_t)c->keys[p] + (uint64_t)c->salt);
}

void uniform(const draw_call *c) {
  for (int i = 0; i < c->members * c->times; i++)
    shares_of(c->n, c->keys[i / c->times], c->salt, c->step[i % c->times], (double *)c->to + (ptrdiff_t)i * c->n);
}

// Box & Muller, 1958.
void normals(const draw_call *c) {
  const bits count = {0, 1, 2, 3, 4, 5, 6, 7};
  const int n = c->n;
  float *to = c->to;
  for (int i = 0; i < c->members * c->times; i++, to += n) {
    const uint64_t stream = stream_of(c->keys[i / c->times], c->salt, c->step[i % c->times]);
    for (int j = 0; j < n; j += WIDE) {
      const bits at = 2 * (count + (uint64_t)j);
      wide radius = -2.0 * log_wide(1.0 - shares(stream, at)), turn = cos_turns(shares(stream, at + 1));
      for (int k = 0; k < WIDE && j + k < n; k++) to[j + k] = (float)(__builtin_sqrt(radius[k]) * turn[k]);
    }
  }
}

// Negative ones, -40 at least.
void gumbels(const draw_call *c) {
  const bits count = {0, 1, 2, 3, 4, 5, 6, 7};
  const int n = c->n;
  float *to = c->to;
  for (int i = 0; i < c->members * c->times; i++, to += n) {
    const uint64_t stream = stream_of(c->keys[i / c->times], c->salt, c->step[i % c->times]);
    for (int j = 0; j < n; j += WIDE) {
      wide found = log_wide(-log_wide(1.0 - shares(stream, count + (uint64_t)j)));
      for (int k = 0; k < WIDE && j + k < n; k++) to[j + k] = found[k] < -40.0 ? -40.0f : (float)found[k];
    }
  }
}
