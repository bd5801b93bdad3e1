// Activations, their slopes, and what they are made of, by polynomials of our own: no library decides about last bits.

#pragma once

#include "products.h"

enum { RELU, ELU, GELU, TANH, LEAKY_RELU, SILU, SOFTSIGN, SIGMOID, SOFTPLUS, IDENTITY };

INLINE float within(float x, float most) { return x > most ? most : x < -most ? -most : x; }

// Write x = n · log 2 + *rest, n whole, and return (exp(*rest) − 1 − *rest) / *rest², by Cephes' expf.
INLINE vec reduced(vec x, vec *n, vec *rest) {
  x = choose(x > all(88.0f), all(88.0f), choose(x < all(-87.0f), all(-87.0f), x));
  *n = fused(x, all(1.44269504f), all(12582912.0f)) - 12582912.0f;
  x = fused(*n, all(2.12194440e-4f), less(x, *n, all(0.693359375f)));
  *rest = x;
  vec y = all(1.9875691500e-4f);
  y = fused(y, x, all(1.3981999507e-3f));
  y = fused(y, x, all(8.3334519073e-3f));
  y = fused(y, x, all(4.1665795894e-2f));
  y = fused(y, x, all(1.6666665459e-1f));
  return fused(y, x, all(5.0000001201e-1f));
}

INLINE vec power_of_two(vec n) { return (vec)((__builtin_convertvector(n, whole) + 127) << 23); }

INLINE vec exponential(vec x) {
  vec n, y = reduced(x, &n, &x);
  return fused(y, x * x, x + 1.0f) * power_of_two(n);
}

INLINE vec exponential_less_one(vec x) {  // to its last bits near 0, too
  vec n, y = reduced(x, &n, &x), scale = power_of_two(n);
  return fused(fused(y, x * x, x), scale, scale - 1.0f);
}

INLINE vec size(vec x) { return (vec)((whole)x & 0x7fffffff); }
INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE vec hyperbolic(vec x) {  // Cephes' tanhf
  vec z = x * x, a = size(x);
  vec p = all(-5.70498872745e-3f);
  p = fused(p, z, all(2.06390887954e-2f));
  p = fused(p, z, all(-5.37397155531e-2f));
  p = fused(p, z, all(1.33314422036e-1f));
  p = fused(p, z, all(-3.33332819422e-1f));
  p = fused(p * z, x, x);
  vec far = 1.0f - 2.0f / (exponential(a + a) + 1.0f);
  return choose(a < all(0.625f), p, choose(x < all(0.0f), -far, far));
}

INLINE vec cubic_on(vec x) {  // (log(1 + x) − x + x²/2) / x², x between √½ − 1 and √2 − 1, by Cephes' logf
  vec y = all(7.0376836292e-2f);
  y = fused(y, x, all(-1.1514610310e-1f));
  y = fused(y, x, all(1.1676998740e-1f));
  y = fused(y, x, all(-1.2420140846e-1f));
  y = fused(y, x, all(1.4249322787e-1f));
  y = fused(y, x, all(-1.6668057665e-1f));
  y = fused(y, x, all(2.0000714765e-1f));
  y = fused(y, x, all(-2.4999993993e-1f));
  y = fused(y, x, all(3.3333331174e-1f));
  return y * x;
}

INLINE vec logarithm_near(vec x) {  // of 1 + x, x between √½ − 1 and √2 − 1
  vec q = x * x;
  return x + fused(cubic_on(x), q, -0.5f * q);
}

INLINE vec logarithm(vec z) {  // of positive numbers; infinity and NaN stay
  whole bits = (whole)z;
  vec m = (vec)((bits & 0x7fffff) | 0x3f800000);
  whole high = m > all(1.41421356f);
  vec n = __builtin_convertvector((bits >> 23) - 127 - high, vec);
  vec x = choose(high, m * 0.5f, m) - 1.0f, q = x * x;
  vec y = fused(cubic_on(x), q, -2.12194440e-4f * n) - 0.5f * q;
  return choose(z < all(INFINITY), fused(all(0.693359375f), n, x + y), z);
}

INLINE vec softplus(vec z) {  // log(1 + exp z), to its last bits where it is small, too
  vec e = exponential(-size(z)), near = choose(e < all(0.41421356f), e, all(0.0f));
  return choose(z < all(0.0f), all(0.0f), z) + choose(near > all(0.0f), logarithm_near(near), logarithm(1.0f + e));
}

INLINE vec normal_share(vec x) {  // Φ(x), by erf of Abramowitz & Stegun 7.1.26, |error| < 1.5e-7
  vec a = size(x) * 0.70710678f, t = 1.0f / fused(all(0.3275911f), a, all(1.0f));
  vec p = fused(all(1.061405429f), t, all(-1.453152027f));
  p = fused(p, t, all(1.421413741f));
  p = fused(p, t, all(-0.284496736f));
  p = fused(p, t, all(0.254829592f));
  vec tail = 0.5f * (p * t) * exponential(-a * a);
  return choose(x < all(0.0f), tail, 1.0f - tail);
}

INLINE vec activated(const int kind, vec z) {
  switch (kind) {
    case RELU: return rectified(z);
    case ELU: return choose(z > all(0.0f), z, exponential_less_one(z));
    case GELU: return z * normal_share(z);
    case TANH: return hyperbolic(z);
    case LEAKY_RELU: return choose(z > all(0.0f), z, z * 0.01f);
    case SILU: return z * sigmoid(z);
    case SOFTSIGN: return z / (1.0f + size(z));
    case SIGMOID: return sigmoid(z);
    case SOFTPLUS: return choose(z > all(20.0f), z, softplus(z));
    default: return z;
  }
}

INLINE vec slope(const int kind, vec y, vec z) {  // of the activation, from its result y; GELU and SiLU need z
  switch (kind) {
    case RELU: return choose(y > all(0.0f), all(1.0f), all(0.0f));
    case ELU: return choose(y > all(0.0f), all(1.0f), y + 1.0f);
    case GELU: return fused(z, 0.39894228f * exponential(-0.5f * z * z), normal_share(z));
    case TANH: return less(all(1.0f), y, y);
    case LEAKY_RELU: return choose(y > all(0.0f), all(1.0f), all(0.01f));
    case SILU: {
      vec s = sigmoid(z);
      return s * fused(z, 1.0f - s, all(1.0f));
    }
    case SOFTSIGN: {
      vec s = 1.0f - size(y);
      return s * s;
    }
    case SIGMOID: return y * (1.0f - y);
    case SOFTPLUS: return choose(y > all(20.0f), all(1.0f), -exponential_less_one(-y));
    default: return all(1.0f);
  }
}

#define FOR_KIND(kind, DO)                  \
  switch (kind) {                           \
    case RELU: DO(RELU); break;             \
    case ELU: DO(ELU); break;               \
    case GELU: DO(GELU); break;             \
    case TANH: DO(TANH); break;             \
    case LEAKY_RELU: DO(LEAKY_RELU); break; \
    case SILU: DO(SILU); break;             \
    case SOFTSIGN: DO(SOFTSIGN); break;     \
    case SIGMOID: DO(SIGMOID); break;       \
    case SOFTPLUS: DO(SOFTPLUS); break;     \
    default: DO(IDENTITY);                  \
  }

static void activate(int kind, ptrdiff_t count, float *x) {
#define DO(k)                                              \
  for (ptrdiff_t i = 0; i < count; i += LANES)             \
  put(x + i, count - i > LANES ? LANES : (int)(count - i), \
      activated(k, part(x + i, count - i > LANES ? LANES : (int)(count - i))))
  FOR_KIND(kind, DO)
#undef DO
}

// grad *= slope
static void through(int kind, ptrdiff_t count, const float *y, const float *z, float *grad) {
#define DO(k)                                                                                                  \
  for (ptrdiff_t i = 0; i < count; i += LANES) {                                                               \
    const int left = count - i > LANES ? LANES : (int)(count - i);                                             \
    put(grad + i, left, part(grad + i, left) * slope(k, part(y + i, left), z ? part(z + i, left) : (vec){0})); \
  }
  FOR_KIND(kind, DO)
#undef DO
}

// The sum over a row, in `SUMS` interleaved parts that are then added in pairs.
INLINE float sum(const vec *parts) {
  float x[SUMS];
  for (int i = 0; i < EACH; i++) store(x + i * LANES, parts[i]);
  for (int half = SUMS / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}
