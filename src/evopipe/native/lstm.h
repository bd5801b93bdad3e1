// Long short-term memory of one member, forward and backward through time: input, forget and output gate, candidate
// side by side. Rows are step-major: those of the first step, then those of the second … `core.lstm` has the same in
// torch.

#pragma once

#include "dense.h"

// what a layer's fields say; SHARE: its α, or -1
enum { OWN, ROOM, WEIGHTS, BIASES, RECURRENT, REMEMBERED, SHARE, GATED };

enum { GATES = 4 };

typedef struct {
  const int32_t *at;           // the layer's fields
  int in, n, out;              // widths of what it reads, computes and hands on
  const float *x;              // what it read
  float *gates, *h, *c;        // [rows, 4n], [rows, n], [rows, n]
  float *before_h, *before_c;  // what each step remembered
  float *y;                    // [rows, out], which is h where nothing is blended
} gated;

// Lay out what a member's layers keep, from `saved`, of which the rest is left; return how many layers it has.
static int lay_out_gated(const int32_t *fields, int layers, int rows, int inputs, const float *x, float **saved,
                         gated *found) {
  int count = 0;
  for (int i = 0; i < layers; i++) {
    const int32_t *at = fields + i * GATED;
    if (!at[OWN]) continue;
    gated *l = &found[count++];
    l->at = at, l->in = inputs, l->n = at[OWN], l->x = x;
    l->out = at[SHARE] >= 0 && inputs > l->n ? inputs : l->n;
    const ptrdiff_t size = (ptrdiff_t)rows * l->n;
    l->gates = *saved, l->h = *saved + GATES * size, l->c = l->h + size, l->before_h = l->c + size,
    l->before_c = l->before_h + size;
    *saved += (GATES + 4) * size;
    l->y = l->h;
    if (at[SHARE] >= 0) l->y = *saved, *saved += (ptrdiff_t)rows * l->out;
    x = l->y, inputs = l->out;
  }
  return count;
}

// What a blended layer's place in x and in what it made of it is: 0 where one has no such unit.
INLINE float old_of(const gated *l, ptrdiff_t row, int j) { return j < l->in ? l->x[row * l->in + j] : 0.0f; }
INLINE float own_of(const gated *l, ptrdiff_t row, int j) { return j < l->n ? l->h[row * l->n + j] : 0.0f; }

// Rows of steps: `keep` `[steps, batch]` is 0 where all is forgotten before a step, else 1; `memory` `[batch, width]` is
// what was before the first.
typedef struct {
  int steps, batch;
  const float *memory, *keep;
  ptrdiff_t width;
} sequences;

// Write what a step remembers of the one before it.
static void recall(const gated *l, const sequences *s, int t) {
  const int n = l->n, room = l->at[ROOM];
  const ptrdiff_t first = (ptrdiff_t)t * s->batch;
  for (int b = 0; b < s->batch; b++) {
    const ptrdiff_t row = (first + b) * n;
    const float *h = t ? l->h + row - (ptrdiff_t)s->batch * n : s->memory + b * s->width + l->at[REMEMBERED];
    const float *c = t ? l->c + row - (ptrdiff_t)s->batch * n : s->memory + b * s->width + l->at[REMEMBERED] + room;
    for (int j = 0; j < n; j += LANES) {
      put(l->before_h + row + j, n - j, part(h + j, n - j) * s->keep[first + b]);
      put(l->before_c + row + j, n - j, part(c + j, n - j) * s->keep[first + b]);
    }
  }
}

// Open and close the gates of one row, whose sums are in `gates`.
static void pass_gates(const gated *l, ptrdiff_t row) {
  const int n = l->n;
  for (int j = 0; j < n; j += LANES) {
    float *at = l->gates + row * GATES * n + j;
    const int left = n - j;
    vec in = sigmoid(part(at, left)), forget = sigmoid(part(at + n, left)), out = sigmoid(part(at + 2 * n, left));
    vec candidate = hyperbolic(part(at + 3 * n, left));
    vec c = fused(forget, part(l->before_c + row * n + j, left), in * candidate);
    put(at, left, in), put(at + n, left, forget), put(at + 2 * n, left, out), put(at + 3 * n, left, candidate);
    put(l->c + row * n + j, left, c);
    put(l->h + row * n + j, left, out * hyperbolic(c));
  }
}

static void forward_gated(const float *values, const sequences *s, gated *layers, int count, float *packed) {
  const int rows = s->steps * s->batch;
  for (int i = 0; i < count; i++) {
    gated *l = &layers[i];
    const int n = l->n, room = l->at[ROOM];
    for (int g = 0; g < GATES; g++)
      product(rows, l->in, n, l->x, l->in, 1, values + l->at[WEIGHTS] + g * room, GATES * room, 0, l->gates + g * n,
              GATES * n, values + l->at[BIASES] + g * room, WRITTEN, packed);
    for (int t = 0; t < s->steps; t++) {
      const ptrdiff_t first = (ptrdiff_t)t * s->batch;
      recall(l, s, t);
      for (int g = 0; g < GATES; g++)
        product(s->batch, n, n, l->before_h + first * n, n, 1, values + l->at[RECURRENT] + g * room, GATES * room, 0,
                l->gates + first * GATES * n + g * n, GATES * n, NULL, ADDED, packed);
      for (ptrdiff_t row = first; row < first + s->batch; row++) pass_gates(l, row);
    }
    if (l->at[SHARE] < 0) continue;
    const float alpha = values[l->at[SHARE]];
    for (ptrdiff_t row = 0; row < rows; row++)
      for (int j = 0; j < l->out; j++) l->y[row * l->out + j] = between(old_of(l, row, j), own_of(l, row, j), alpha);
  }
}

// Go back through a row's gates: they become the gradients of their sums. `d` is that of what the layer hands on, `dh`
// and `dc` those of the row's state by the step behind it; dc becomes that by this one.
static void gates_back(const gated *l, ptrdiff_t row, float alpha, float keep, const float *d, const float *dh,
                       float *dc) {
  const int n = l->n;
  for (int j = 0; j < n; j += LANES) {
    const int left = n - j;
    float *at = l->gates + row * GATES * n + j;
    vec in = part(at, left), forget = part(at + n, left), out = part(at + 2 * n, left),
        candidate = part(at + 3 * n, left);
    vec g = fused(all(alpha), part(d + row * l->out + j, left), part(dh + j, left)),
        y = hyperbolic(part(l->c + row * n + j, left));
    vec of_c = part(dc + j, left) + g * out * less(all(1.0f), y, y);
    put(at, left, of_c * candidate * in * (1.0f - in));
    put(at + n, left, of_c * part(l->before_c + row * n + j, left) * forget * (1.0f - forget));
    put(at + 2 * n, left, g * y * out * (1.0f - out));
    put(at + 3 * n, left, of_c * in * less(all(1.0f), candidate, candidate));
    put(dc + j, left, of_c * forget * keep);
  }
}

// Go back through time: gates become the gradients of their sums. `state` has room for twice batch × n.
static void time_back(const gated *l, const float *values, const sequences *s, float alpha, const float *d,
                      float *state, float *packed) {
  const int n = l->n, room = l->at[ROOM], batch = s->batch;
  const ptrdiff_t size = (ptrdiff_t)batch * n;
  float *dh = state, *dc = state + size;
  memset(state, 0, sizeof(float) * 2 * (size_t)size);
  for (int t = s->steps - 1; t >= 0; t--) {
    const ptrdiff_t first = (ptrdiff_t)t * batch;
    for (int b = 0; b < batch; b++)
      gates_back(l, first + b, alpha, s->keep[first + b], d, dh + (ptrdiff_t)b * n, dc + (ptrdiff_t)b * n);
    if (!t) break;
    for (int g = 0; g < GATES; g++)
      product(batch, n, n, l->gates + first * GATES * n + g * n, GATES * n, 1, values + l->at[RECURRENT] + g * room,
              GATES * room, 1, dh, n, NULL, g > 0, packed);
    for (int b = 0; b < batch; b++)
      for (int j = 0; j < n; j++) dh[b * n + j] *= s->keep[first + b];
  }
}

// Add to a layer's parameters what the gradients of its gates' sums give them; write that of what it read if `wanted`.
static void gate_products_back(const gated *l, const float *values, float *grad, int rows, float *next, int wanted,
                               float *packed) {
  const int n = l->n, room = l->at[ROOM];
  for (int g = 0; g < GATES; g++) {
    float *bias = grad + l->at[BIASES] + g * room;
    for (int j = 0; j < n; j += LANES) {
      vec total = part(bias + j, n - j);
      for (ptrdiff_t row = 0; row < rows; row++) total += part(l->gates + (row * GATES + g) * n + j, n - j);
      put(bias + j, n - j, total);
    }
    product(l->in, rows, n, l->x, 1, l->in, l->gates + g * n, GATES * n, 0, grad + l->at[WEIGHTS] + g * room,
            GATES * room, NULL, ADDED, packed);
    product(n, rows, n, l->before_h, 1, n, l->gates + g * n, GATES * n, 0, grad + l->at[RECURRENT] + g * room,
            GATES * room, NULL, ADDED, packed);
    if (wanted)
      product(rows, n, l->in, l->gates + g * n, GATES * n, 1, values + l->at[WEIGHTS] + g * room, GATES * room, 1, next,
              l->in, NULL, g > 0, packed);
  }
}

// Go back through layers. `d` `[rows, out]` holds the gradient of what comes out, `next` has as much room as the widest;
// `grad` gets what that gives the parameters added. Returns where the gradient of what went in lies, if it is `wanted`.
static float *backward_gated(const float *values, float *grad, const sequences *s, gated *layers, int count, float *d,
                             float *next, int wanted, float *state, float *packed) {
  const int rows = s->steps * s->batch;
  for (int i = count - 1; i >= 0; i--) {
    gated *l = &layers[i];
    const int blended = l->at[SHARE] >= 0;
    const float alpha = blended ? values[l->at[SHARE]] : 1.0f;
    if (blended) {
      float total = 0.0f;
      for (ptrdiff_t row = 0; row < rows; row++)
        for (int j = 0; j < l->out; j++)
          total = __builtin_fmaf(d[row * l->out + j], own_of(l, row, j) - old_of(l, row, j), total);
      grad[l->at[SHARE]] += total;
    }
    time_back(l, values, s, alpha, d, state, packed);
    gate_products_back(l, values, grad, rows, next, wanted || i, packed);
    if (blended && (wanted || i))
      for (ptrdiff_t row = 0; row < rows; row++)
        for (int j = 0; j < l->in; j++) {
          float *to = next + row * l->in + j;
          *to = __builtin_fmaf(1.0f - alpha, d[row * l->out + j], *to);
        }
    float *swap = d;
    d = next, next = swap;
  }
  return d;
}
