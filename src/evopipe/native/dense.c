// Dense layers of several members, forward and backward. A plan describes each member's, `FIELDS` int32 a layer;
// offsets count floats from the member's row of values.

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
    if (at[BLEND]) {
      const float alpha = values[at[ALPHA]];
      for (int b = 0; b < rows; b++)
        for (int j = 0; j < l->out; j++) {
          const float old = j < l->in ? l->x[(ptrdiff_t)b * l->in + j] : 0.0f;
          const float own = j < l->n ? l->f[(ptrdiff_t)b * l->n + j] : 0.0f;
          l->y[(ptrdiff_t)b * l->out + j] = between(old, own, alpha);
        }
    }
  }
}

// x `[members, rows, inputs]` → out `[members, rows, outputs]`, which has zeros beyond a member's own units.
void dense_forward(const int32_t *plan, int layers, int members, int rows, int inputs, int outputs, const float *x,
                   const float *values, ptrdiff_t values_stride, float *saved, ptrdiff_t saved_stride, float *out,
                   float *packed) {
  for (int p = 0; p < members; p++) {
    layer found[MOST];
    const float *own = x + (ptrdiff_t)p * rows * inputs;
    float *to = out + (ptrdiff_t)p * rows * outputs;
    const int count =
        lay_out(plan + (ptrdiff_t)p * layers * FIELDS, layers, rows, inputs, own, saved + p * saved_stride, found);
    forward(values + p * values_stride, rows, found, count, packed);
    const float *from = count ? found[count - 1].y : own;
    const int width = count ? found[count - 1].out : inputs, kept = width < outputs ? width : outputs;
    for (int b = 0; b < rows; b++) {
      memcpy(to + (ptrdiff_t)b * outputs, from + (ptrdiff_t)b * width, sizeof(float) * (size_t)kept);
      for (int j = kept; j < outputs; j++) to[(ptrdiff_t)b * outputs + j] = 0.0f;
    }
  }
}

// Go back through a member's layers. `d` `[rows, widest]` holds the gradient of what comes out; `grad` (if any) gets what
// that gives the parameters added. Returns where the gradient of what went in lies, if it is `wanted`. The three pieces
// of scratch have room for rows × the widest layer each.
static float *backward(const float *value, float *grad, int rows, layer *layers, int count, float *d, float *next,
                       float *of_f, int wanted_of_input, float *packed) {
  for (int i = count - 1; i >= 0; i--) {
    layer *l = &layers[i];
    const int32_t *at = l->at;
    const int wanted = i > 0 || wanted_of_input;
    float *df = d;
    if (at[BLEND]) {
      const float alpha = value[at[ALPHA]];
      df = of_f;
      float total = 0.0f;
      for (int b = 0; b < rows; b++)
        for (int j = 0; j < l->out; j++) {
          const float g = d[(ptrdiff_t)b * l->out + j];
          const float old = j < l->in ? l->x[(ptrdiff_t)b * l->in + j] : 0.0f;
          const float made = j < l->n ? l->f[(ptrdiff_t)b * l->n + j] : 0.0f;
          total = __builtin_fmaf(g, made - old, total);
          if (j < l->n) df[(ptrdiff_t)b * l->n + j] = alpha * g;
        }
      if (grad) grad[at[ALPHA]] += total;
    }
    if (at[ACTIVATION] != IDENTITY) through(at[ACTIVATION], (ptrdiff_t)rows * l->n, l->f, l->z, df);
    if (l->hat)
      normalised(rows, l->n, df, l->hat, l->scale, value + at[GAIN], grad ? grad + at[GAIN] : NULL,
                 grad ? grad + at[SHIFT] : NULL);
    if (grad) {
      float *bias = grad + at[BIAS];
      for (int j = 0; j < l->n; j += LANES) {
        const int left = l->n - j;
        vec total = part(bias + j, left);
        for (int b = 0; b < rows; b++) total += part(df + (ptrdiff_t)b * l->n + j, left);
        put(bias + j, left, total);
      }
      float *of_weights = grad + at[WEIGHT];
      if (l->n <= LANES / 2 && l->n <= rows) {  // the longer side fills the vectors
        product(l->n, rows, l->in, df, 1, l->n, l->x, l->in, 0, next, l->in, NULL, WRITTEN, packed);
        for (int i = 0; i < l->in; i++)
          for (int j = 0; j < l->n; j++) of_weights[(ptrdiff_t)i * at[STRIDE] + j] += next[(ptrdiff_t)j * l->in + i];
      } else {
        product(l->in, rows, l->n, l->x, 1, l->in, df, l->n, 0, of_weights, at[STRIDE], NULL, ADDED, packed);
      }
    }
    if (wanted) {
      product(rows, l->n, l->in, df, l->n, 1, value + at[WEIGHT], at[STRIDE], 1, next, l->in, NULL, WRITTEN,
              packed);
      if (at[BLEND]) {
        const float rest = 1.0f - value[at[ALPHA]];
        for (int b = 0; b < rows; b++)
          for (int j = 0; j < l->in; j++) {
            float *to = next + (ptrdiff_t)b * l->in + j;
            *to = __builtin_fmaf(rest, d[(ptrdiff_t)b * l->out + j], *to);
          }
      }
      float *swap = d;
      d = next, next = swap;
    }
  }
  return d;
}

// Add to `grads` (if any) what `out_grad` gives the parameters, and write that of x to `x_grad` (if any). `scratch` has
// room for three times rows × the widest layer.
void dense_backward(const int32_t *plan, int layers, int members, int rows, int inputs, int outputs, const float *x,
                    const float *values, ptrdiff_t values_stride, float *grads, ptrdiff_t grads_stride, float *saved,
                    ptrdiff_t saved_stride, const float *out_grad, float *x_grad, float *packed, float *scratch, ptrdiff_t room) {
  for (int p = 0; p < members; p++) {
    layer found[MOST];
    const float *own = x + (ptrdiff_t)p * rows * inputs;
    const int count = lay_out(plan + (ptrdiff_t)p * layers * FIELDS, layers, rows, inputs, own,
                              saved + p * saved_stride, found);
    const int last = count ? found[count - 1].out : inputs;
    for (int b = 0; b < rows; b++)
      for (int j = 0; j < last; j++)
        scratch[(ptrdiff_t)b * last + j] = j < outputs ? out_grad[((ptrdiff_t)p * rows + b) * outputs + j] : 0.0f;
    float *grad = grads ? grads + p * grads_stride : NULL;
    const float *d = backward(values + p * values_stride, grad, rows, found, count, scratch, scratch + room,
                              scratch + 2 * room, x_grad != NULL, packed);
    if (x_grad) memcpy(x_grad + (ptrdiff_t)p * rows * inputs, d, sizeof(float) * (size_t)rows * (size_t)inputs);
  }
}
