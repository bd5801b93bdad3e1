// Vectors of floats, as wide as the processor has them.

#pragma once

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels.h"

#if defined(__AVX512F__)
enum { LANES = 16, TILE = 8, PARTS = 2 };
#elif defined(__AVX__)
enum { LANES = 8, TILE = 6, PARTS = 2 };
#else
enum { LANES = 4, TILE = 4, PARTS = 2 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t whole __attribute__((vector_size(4 * LANES)));

enum { PANEL = PARTS * LANES, SUMS = 16, EACH = SUMS / LANES, STAGES = LANES == 16 ? 4 : LANES == 8 ? 3 : 2 };

#define INLINE static inline __attribute__((always_inline))
#define EPS 1e-5f

INLINE vec load(const float *at) { return *(const loose *)at; }
INLINE void store(float *at, vec x) { *(loose *)at = x; }
INLINE vec all(float x) { return x - (vec){0}; }
INLINE vec choose(whole yes, vec a, vec b) { return (vec)(((whole)a & yes) | ((whole)b & ~yes)); }

// What is left of a row, zeros behind it.
INLINE vec part(const float *at, int left) {
#if defined(__AVX512F__)
  return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << (left < LANES ? left : LANES)) - 1), at);
#elif defined(__AVX2__)
  return (vec)_mm256_maskload_ps(at, (__m256i)((whole){0, 1, 2, 3, 4, 5, 6, 7} < left));
#else
  if (left >= LANES) return load(at);
  float piece[LANES] = {0};
  for (int i = 0; i < left; i++) piece[i] = at[i];
  return load(piece);
#endif
}

INLINE void put(float *at, int left, vec x) {
  if (left >= LANES) {
    store(at, x);
  } else {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(at, (__mmask16)((1u << left) - 1), (__m512)x);
#else
    for (int i = 0; i < left; i++) at[i] = x[i];
#endif
  }
}

// a · b + c, rounded once; a processor that has no such instruction rounds twice.
INLINE vec fused(vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// c − a · b, rounded once.
INLINE vec less(vec c, vec a, vec b) {
#if defined(__AVX512F__)
  return (vec)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (vec)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return fused(-a, b, c);
#endif
}
