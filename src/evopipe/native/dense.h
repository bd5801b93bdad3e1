// Dense layers of several members, forward and backward. A plan describes each member's, `FIELDS` int32 a layer;
// offsets count floats from the member's row of values.

#pragma once

#include "functions.h"

enum { UNITS, STRIDE, WEIGHT, BIAS, GAIN, SHIFT, ALPHA, ACTIVATION, BLEND, SKIP, FIELDS };

// --- layer normalisation ---------------------------------------------------------------------------------------------

// x becomes gain · (x − mean) / √(variance + ε) + shift, NaN where the variance is not finite: 0 would hide that.
// `hat` and `scale` are kept for the way back.
static void normalise(int rows, int n, float *x, float *hat, float *scale, const float *gain, const float *shift) {
  for (int b = 0; b < rows; b++, x += n, hat += n) {
    vec total[EACH] = {0}, squares[EACH] = {0};
    for (int j = 0, i = 0; j < n; j += LANES, i = (i + 1) % EACH) total[i] += part(x + j, n - j);
    const float mean = sum(total) / (float)n;
    for (int j = 0, i = 0; j < n; j += LANES, i = (i + 1) % EACH) {
      vec c = part(x + j, n - j) - mean;
      put(hat + j, n - j, c);
      if (n - j < LANES) c = part(hat + j, n - j);  // zeros behind the end
      squares[i] = fused(c, c, squares[i]);
    }
    const float variance = sum(squares) / (float)n, by = variance < INFINITY ? 1.0f / sqrtf(variance + EPS) : NAN;
    scale[b] = by;
    for (int j = 0; j < n; j += LANES) {
      vec h = part(hat + j, n - j) * by;
      put(hat + j, n - j, h);
      put(x + j, n - j, fused(part(gain + j, n - j), h, part(shift + j, n - j)));
    }
  }
}

// grad, of what came out, becomes that of what went in; gains and shifts get theirs if they learn.
static void normalised(int rows, int n, float *grad, const float *hat, const float *scale, const float *gain,
                       float *gain_grad, float *shift_grad) {
  for (int b = 0; b < rows; b++, grad += n, hat += n) {
    vec first[EACH] = {0}, second[EACH] = {0};
    for (int j = 0, i = 0; j < n; j += LANES, i = (i + 1) % EACH) {
      vec g = part(grad + j, n - j), h = part(hat + j, n - j);
      if (gain_grad) {
        put(gain_grad + j, n - j, fused(g, h, part(gain_grad + j, n - j)));
        put(shift_grad + j, n - j, part(shift_grad + j, n - j) + g);
      }
      g *= part(gain + j, n - j);
      put(grad + j, n - j, g);
      first[i] += g;
      second[i] = fused(g, h, second[i]);
    }
    const float mean = sum(first) / (float)n, along = sum(second) / (float)n, by = scale[b];
    for (int j = 0; j < n; j += LANES)
      put(grad + j, n - j, by * less(part(grad + j, n - j) - mean, part(hat + j, n - j), all(along)));
  }
}

// From a to b by a share, by torch.lerp's two formulas: 0 leaves and 1 copies, to the bit.
INLINE float between(float a, float b, float share) {
  return share < 0.5f ? __builtin_fmaf(share, b - a, a) : __builtin_fmaf(a - b, 1.0f - share, b);
}

// --- networks --------------------------------------------------------------------------------------------------------

typedef struct {
  const int32_t *at;  // the layer's fields
  int in, n, out;     // widths of what it reads, computes and hands on
  const float *x;     // what it read
  float *y, *f, *hat, *scale, *z;
} layer;

enum { MOST = 64 };

// Scratch of the way back: three pieces of rows × the widest layer each, and a product's.
typedef struct {
  float *d, *next, *of_f, *packed;
} way_back;

static int keeps_input(int kind) { return kind == GELU || kind == SILU; }

// Lay out what a member's layers keep, from `saved`; return how many layers it has.
static int lay_out(const int32_t *plan, int layers, int rows, int inputs, const float *x, float *saved, layer *found) {
  int count = 0;
  for (int i = 0; i < layers; i++) {
    const int32_t *at = plan + i * FIELDS;
    if (at[SKIP]) continue;
    layer *l = &found[count++];
    l->at = at, l->in = inputs, l->n = at[UNITS], l->x = x;
    l->out = at[BLEND] && inputs > l->n ? inputs : l->n;
    l->f = saved, saved += (ptrdiff_t)rows * l->n;
    l->hat = l->scale = l->z = NULL;
    if (at[GAIN] >= 0) {
      l->hat = saved, saved += (ptrdiff_t)rows * l->n;
      l->scale = saved, saved += rows;
    }
    if (keeps_input(at[ACTIVATION])) l->z = saved, saved += (ptrdiff_t)rows * l->n;
    l->y = l->f;
    if (at[BLEND]) l->y = saved, saved += (ptrdiff_t)rows * l->out;
    x = l->y, inputs = l->out;
  }
  return count;
}

// What a blended layer's place is in what it read, and in what it made of it: 0 where one has no such unit.
INLINE float read_at(const layer *l, int b, int j) { return j < l->in ? l->x[(ptrdiff_t)b * l->in + j] : 0.0f; }
INLINE float made_at(const layer *l, int b, int j) { return j < l->n ? l->f[(ptrdiff_t)b * l->n + j] : 0.0f; }

static void blend(const layer *l, int rows, float alpha) {
  for (int b = 0; b < rows; b++)
    for (int j = 0; j < l->out; j++)
      l->y[(ptrdiff_t)b * l->out + j] = between(read_at(l, b, j), made_at(l, b, j), alpha);
}

static void forward(const float *values, int rows, layer *layers, int count, float *packed) {
  for (int i = 0; i < count; i++) {
    layer *l = &layers[i];
    const int32_t *at = l->at;
    const int rectifies = at[ACTIVATION] == RELU && !l->hat;
    product(rows, l->in, l->n, l->x, l->in, 1, values + at[WEIGHT], at[STRIDE], 0, l->f, l->n, values + at[BIAS],
            rectifies ? RECTIFIED : WRITTEN, packed);
    if (l->hat) normalise(rows, l->n, l->f, l->hat, l->scale, values + at[GAIN], values + at[SHIFT]);
    if (l->z) memcpy(l->z, l->f, sizeof(float) * (size_t)rows * (size_t)l->n);
    if (at[ACTIVATION] != IDENTITY && !rectifies) activate(at[ACTIVATION], (ptrdiff_t)rows * l->n, l->f);
    if (at[BLEND]) blend(l, rows, values[at[ALPHA]]);
  }
}

// Write the gradient of what a blended layer made to df, from that of what it hands on; return that of α.
static float blend_back(const layer *l, int rows, float alpha, const float *d, float *df) {
  float total = 0.0f;
  for (int b = 0; b < rows; b++)
    for (int j = 0; j < l->out; j++) {
      const float g = d[(ptrdiff_t)b * l->out + j];
      total = __builtin_fmaf(g, made_at(l, b, j) - read_at(l, b, j), total);
      if (j < l->n) df[(ptrdiff_t)b * l->n + j] = alpha * g;
    }
  return total;
}

// Add to a layer's weights and biases what the gradient of its sums gives them; `spare` has room for its inputs.
static void parameters_back(const layer *l, int rows, const float *df, float *grad, float *spare, float *packed) {
  float *bias = grad + l->at[BIAS], *of_weights = grad + l->at[WEIGHT];
  for (int j = 0; j < l->n; j += LANES) {
    const int left = l->n - j;
    vec total = part(bias + j, left);
    for (int b = 0; b < rows; b++) total += part(df + (ptrdiff_t)b * l->n + j, left);
    put(bias + j, left, total);
  }
  if (l->n <= LANES / 2 && l->n <= rows) {  // the longer side fills the vectors
    product(l->n, rows, l->in, df, 1, l->n, l->x, l->in, 0, spare, l->in, NULL, WRITTEN, packed);
    for (int i = 0; i < l->in; i++)
      for (int j = 0; j < l->n; j++) of_weights[(ptrdiff_t)i * l->at[STRIDE] + j] += spare[(ptrdiff_t)j * l->in + i];
  } else {
    product(l->in, rows, l->n, l->x, 1, l->in, df, l->n, 0, of_weights, l->at[STRIDE], NULL, ADDED, packed);
  }
}

// Write the gradient of what a layer read; d is that of what it hands on, df of its sums.
static void input_back(const layer *l, int rows, const float *value, const float *d, const float *df, float *to,
                       float *packed) {
  const int32_t *at = l->at;
  product(rows, l->n, l->in, df, l->n, 1, value + at[WEIGHT], at[STRIDE], 1, to, l->in, NULL, WRITTEN, packed);
  if (!at[BLEND]) return;
  const float rest = 1.0f - value[at[ALPHA]];
  for (int b = 0; b < rows; b++)
    for (int j = 0; j < l->in; j++) {
      float *each = to + (ptrdiff_t)b * l->in + j;
      *each = __builtin_fmaf(rest, d[(ptrdiff_t)b * l->out + j], *each);
    }
}

// Go back through a member's layers. `d` `[rows, widest]` of the scratch holds the gradient of what comes out; `grad`
// (if any) gets what that gives the parameters added. Returns where the gradient of what went in lies, if it is
// `wanted`: in `d` or `next`.
static float *backward(const float *value, float *grad, int rows, layer *layers, int count, int wanted, way_back with) {
  float *d = with.d, *next = with.next;
  for (int i = count - 1; i >= 0; i--) {
    layer *l = &layers[i];
    const int32_t *at = l->at;
    float *df = d;
    if (at[BLEND]) {
      df = with.of_f;
      const float of_alpha = blend_back(l, rows, value[at[ALPHA]], d, df);
      if (grad) grad[at[ALPHA]] += of_alpha;
    }
    if (at[ACTIVATION] != IDENTITY) through(at[ACTIVATION], (ptrdiff_t)rows * l->n, l->f, l->z, df);
    if (l->hat)
      normalised(rows, l->n, df, l->hat, l->scale, value + at[GAIN], grad ? grad + at[GAIN] : NULL,
                 grad ? grad + at[SHIFT] : NULL);
    if (grad) parameters_back(l, rows, df, grad, next, with.packed);
    if (i > 0 || wanted) {
      input_back(l, rows, value, d, df, next, with.packed);
      float *swap = d;
      d = next, next = swap;
    }
  }
  return d;
}

// --- for torch's graph -----------------------------------------------------------------------------------------------

static int lay_out_of(const dense_call *c, int p, layer *found) {
  return lay_out(c->plan + (ptrdiff_t)p * c->layers * FIELDS, c->layers, c->rows, c->inputs,
                 c->x + (ptrdiff_t)p * c->rows * c->inputs, c->saved + p * c->saved_stride, found);
}

// Write the mean size of what each unit made of the rows.
static void sizes_of(const layer *l, int rows, float *to) {
  for (int j = 0; j < l->n; j++) to[j] = 0.0f;
  for (int b = 0; b < rows; b++)
    for (int j = 0; j < l->n; j++) to[j] += fabsf(l->f[(ptrdiff_t)b * l->n + j]);
  for (int j = 0; j < l->n; j++) to[j] /= (float)rows;
}

// Write the activity of a member's layers, each in the place that its plan gives it.
static void activity_of(const dense_call *c, int p, const layer *layers, int count) {
  const int32_t *plan = c->plan + (ptrdiff_t)p * c->layers * FIELDS;
  for (int i = 0; i < count; i++) {
    const ptrdiff_t place = (layers[i].at - plan) / FIELDS;
    sizes_of(&layers[i], c->rows, c->activity + (p * c->layers + place) * c->width);
  }
}

void dense_forward(const dense_call *c) {
  for (int p = 0; p < c->members; p++) {
    layer found[MOST];
    const int count = lay_out_of(c, p, found), outputs = c->outputs;
    float *to = c->out + (ptrdiff_t)p * c->rows * outputs;
    forward(c->values + p * c->values_stride, c->rows, found, count, c->packed);
    if (c->activity) activity_of(c, p, found, count);
    const float *from = count ? found[count - 1].y : c->x + (ptrdiff_t)p * c->rows * c->inputs;
    const int width = count ? found[count - 1].out : c->inputs, kept = width < outputs ? width : outputs;
    for (int b = 0; b < c->rows; b++) {
      memcpy(to + (ptrdiff_t)b * outputs, from + (ptrdiff_t)b * width, sizeof(float) * (size_t)kept);
      for (int j = kept; j < outputs; j++) to[(ptrdiff_t)b * outputs + j] = 0.0f;
    }
  }
}

void dense_backward(const dense_call *c) {
  const int rows = c->rows, outputs = c->outputs;
  for (int p = 0; p < c->members; p++) {
    layer found[MOST];
    const int count = lay_out_of(c, p, found), last = count ? found[count - 1].out : c->inputs;
    for (int b = 0; b < rows; b++)
      for (int j = 0; j < last; j++)
        c->scratch[(ptrdiff_t)b * last + j] = j < outputs ? c->out_grad[((ptrdiff_t)p * rows + b) * outputs + j] : 0.0f;
    float *grad = c->grads ? c->grads + p * c->grads_stride : NULL;
    const way_back with = {c->scratch, c->scratch + c->room, c->scratch + 2 * c->room, c->packed};
    const float *d = backward(c->values + p * c->values_stride, grad, rows, found, count, c->x_grad != NULL, with);
    const size_t size = sizeof(float) * (size_t)rows * (size_t)c->inputs;
    if (c->x_grad) memcpy(c->x_grad + (ptrdiff_t)p * rows * c->inputs, d, size);
  }
}
