// Clipping, Adam and Polyak averaging.

#pragma once

#include "functions.h"

// Where the numbers of a row are that are its network's own, from and to which float each: whole cache lines. Others are
// pads, zero for good, and nobody looks at them: a row's bits do not depend on how much room its neighbours need.
typedef struct {
  const int32_t *begin, *end;
} spans;

// `own`: where the spans of each row begin in it, then the spans.
INLINE spans spans_of(const int32_t *own, ptrdiff_t row) { return (spans){own + own[row], own + own[row + 1]}; }

#define EACH_SPAN(of) for (const int32_t *s = (of).begin; s < (of).end; s += 2)

static void cleared(spans of, float *x) {
  EACH_SPAN(of) memset(x + s[0], 0, sizeof(float) * (size_t)(s[1] - s[0]));
}

static void copied(spans of, const float *from, float *to) {
  EACH_SPAN(of) memcpy(to + s[0], from + s[0], sizeof(float) * (size_t)(s[1] - s[0]));
}

static float squared(spans of, const float *x) {
  vec squares[EACH] = {0};
  EACH_SPAN(of)
    for (ptrdiff_t j = s[0]; j < s[1]; j += SUMS)
      for (int i = 0; i < EACH; i++) {
        vec g = load(x + j + i * LANES);
        squares[i] = fused(g, g, squares[i]);
      }
  return sum(squares);
}

static void scaled(spans of, float *x, float share) {
  EACH_SPAN(of)
    for (ptrdiff_t j = s[0]; j < s[1]; j += LANES) store(x + j, load(x + j) * share);
}

// Scale a gradient to at most `limit`; return its norm before.
static float clipped(spans of, float *grad, float limit) {
  const float norm = sqrtf(squared(of, grad)), share = limit / (norm + 1e-6f);
  if (!(share >= 1.0f)) scaled(of, grad, share);  // NaN spoils all of it
  return norm;
}

// One step of Adam (Kingma & Ba, 2015) of one row, in the form of torch's fused kernel.
static void adam_step(spans of, float *value, const float *grad, float *mean, float *square, float *steps, float lr,
                      double beta1, double beta2, double eps) {
  *steps += 1.0f;
  const float keep1 = (float)beta1, new1 = (float)(1.0 - beta1), keep2 = (float)beta2, new2 = (float)(1.0 - beta2);
  const float by = (float)(lr / (1.0 - pow(beta1, *steps))), least = (float)eps;
  const float root = (float)sqrt(1.0 - pow(beta2, *steps));
  EACH_SPAN(of)
    for (ptrdiff_t j = s[0]; j < s[1]; j += LANES) {
      vec g = load(grad + j), m = fused(all(keep1), load(mean + j), new1 * g),
          v = fused(all(keep2), load(square + j), new2 * (g * g));
      vec r = {0};
      store(mean + j, m), store(square + j, v);
      for (int i = 0; i < LANES; i++) r[i] = __builtin_sqrtf(v[i]);
      store(value + j, less(load(value + j), all(by), m / (r / root + least)));
    }
}

// target ← target + weight · (online − target), by torch.lerp's two formulas: 0 leaves and 1 copies, to the bit.
static void mixed(spans of, float *target, const float *online, float w) {
  EACH_SPAN(of)
    for (ptrdiff_t j = s[0]; j < s[1]; j += LANES) {
      vec a = load(target + j), b = load(online + j);
      store(target + j, w < 0.5f ? fused(all(w), b - a, a) : less(b, b - a, all(1.0f - w)));
    }
}

// Scale every row's gradient to at most its member's limit; whoever's loss or norm is not finite is healthy no more.
void clip(const clip_call *c) {
  for (int p = 0; p < c->members; p++) {
    float total = 0.0f;
    for (ptrdiff_t row = (ptrdiff_t)p * c->each; row < (ptrdiff_t)(p + 1) * c->each; row++)
      total += clipped(spans_of(c->own, row), c->grads + row * c->stride, c->limit[p]);
    c->healthy[p] = c->healthy[p] && fabsf(c->losses[p] + total) < INFINITY;
  }
}

void adam(const adam_call *c) {
  for (int row = 0; row < c->members * c->each; row++)
    if (c->active[row / c->each])
      adam_step(spans_of(c->own, row), c->values + row * c->stride, c->grads + row * c->grads_stride,
                c->mean + row * c->moment_stride, c->square + row * c->moment_stride, c->steps + row,
                c->lr[row / c->each], c->beta1, c->beta2, c->eps);
}

void polyak(const polyak_call *c) {
  for (int row = 0; row < c->members * c->each; row++)
    mixed(spans_of(c->own, row), c->target + row * c->target_stride, c->online + row * c->online_stride,
          c->weight[row / c->each]);
}
