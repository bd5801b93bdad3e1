// Passes of one of a member's networks, forward and back, and what an optimiser does with its rows.

#pragma once

#include "lstm.h"
#include "workspace.h"

typedef struct {
  gated gates[MOST];
  layer layers[MOST];
  int recurrent, count, width;  // width: of what it says
  const float *values, *out;
} pass;

INLINE ptrdiff_t copy_size(const network *n) { return n->size / n->copies; }

// Where the i-th of a member's networks begins.
INLINE float *values_of(const network *n, int p, int i) {
  return n->values + ((ptrdiff_t)p * n->rows + i / n->copies) * n->stride + i % n->copies * copy_size(n);
}

INLINE const int32_t *plan_of(const network *n, int p, int i) {
  return n->plan + ((ptrdiff_t)p * n->rows * n->copies + i) * n->layers * FIELDS;
}

// Let the i-th of a member's networks, with these values, read rows of so many numbers; what the layers keep goes to
// `saved`.
static void run_sequences(const network *n, const float *values, int p, int i, const sequences *s, int inputs,
                          const float *x, float *saved, float *packed, pass *to) {
  const int rows = s->steps * s->batch;
  const int32_t *gated_plan = n->gated + ((ptrdiff_t)p * n->rows * n->copies + i) * n->recurrent * GATED;
  to->values = values;
  to->recurrent = lay_out_gated(gated_plan, n->recurrent, rows, inputs, x, &saved, to->gates);
  if (to->recurrent) x = to->gates[to->recurrent - 1].y, inputs = to->gates[to->recurrent - 1].out;
  forward_gated(values, s, to->gates, to->recurrent, packed);
  to->count = lay_out(plan_of(n, p, i), n->layers, rows, inputs, x, saved, to->layers);
  forward(values, rows, to->layers, to->count, packed);
  to->out = to->count ? to->layers[to->count - 1].y : x;
  to->width = to->count ? to->layers[to->count - 1].out : inputs;
}

static void run(const network *n, const float *values, int p, int i, int rows, const float *x, float *saved,
                float *packed, pass *to) {
  to->values = values, to->recurrent = 0;
  to->count = lay_out(plan_of(n, p, i), n->layers, rows, n->inputs, x, saved, to->layers);
  forward(values, rows, to->layers, to->count, packed);
  to->out = to->layers[to->count - 1].y, to->width = to->layers[to->count - 1].out;
}

// Go back through a pass, whose outputs' gradient is in `d`; see `backward`.
static float *run_back(pass *of, float *grad, int rows, int wanted, way_back with) {
  return backward(of->values, grad, rows, of->layers, of->count, wanted, with);
}

// --- rows ------------------------------------------------------------------------------------------------------------

// A member's network, and the gradient of its rows.
typedef struct {
  const network *net;
  float *grads;
} learner;

static int all_finite(const network *n, int p) {
  float total = 0.0f;
  for (int r = 0; r < n->rows; r++) {
    const ptrdiff_t row = (ptrdiff_t)p * n->rows + r;
    const float *at = n->values + row * n->stride;
    vec parts[EACH] = {0};
    EACH_SPAN(spans_of(n->own, row))
      for (ptrdiff_t j = s[0]; j < s[1]; j += SUMS)
        for (int i = 0; i < EACH; i++) parts[i] += load(at + j + i * LANES);
    total += sum(parts);
  }
  return fabsf(total) < INFINITY;
}

static void clear(learner of, int p) {
  for (int r = 0; r < of.net->rows; r++)
    cleared(spans_of(of.net->own, (ptrdiff_t)p * of.net->rows + r), of.grads + r * of.net->size);
}

// Take Adam's step of all of a member's rows.
static void take_step(learner of, int p, float lr, double beta1, double beta2, double eps) {
  const network *n = of.net;
  for (int r = 0; r < n->rows; r++) {
    const ptrdiff_t row = (ptrdiff_t)p * n->rows + r, moments = row * n->moment_stride;
    adam_step(spans_of(n->own, row), n->values + row * n->stride, of.grads + r * n->size, n->mean + moments,
              n->square + moments, n->steps + row, lr, beta1, beta2, eps);
  }
}

static void follow(const network *target, const network *online, int p, float share) {
  for (int i = p * target->rows; i < (p + 1) * target->rows; i++)
    mixed(spans_of(target->own, i), target->values + i * target->stride, online->values + i * online->stride, share);
}
