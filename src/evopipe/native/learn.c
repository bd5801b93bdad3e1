// Clipping, Adam, Polyak averaging, and what whole updates share.

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
      vec g = load(grad + j), m = fused(all(keep1), load(mean + j), new1 * g), v = fused(all(keep2), load(square + j), new2 * (g * g));
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
// A member has `each` rows.
void clip(int members, int each, const int32_t *own, float *grads, ptrdiff_t stride, const float *limit, const float *losses,
          uint8_t *healthy) {
  for (int p = 0; p < members; p++) {
    float total = 0.0f;
    for (ptrdiff_t row = (ptrdiff_t)p * each; row < (ptrdiff_t)(p + 1) * each; row++)
      total += clipped(spans_of(own, row), grads + row * stride, limit[p]);
    healthy[p] = healthy[p] && fabsf(losses[p] + total) < INFINITY;
  }
}

void adam(int members, int each, const int32_t *own, float *values, ptrdiff_t values_stride, const float *grads,
          ptrdiff_t grads_stride, float *means, float *squares, ptrdiff_t moments_stride, float *steps, const float *lr,
          const uint8_t *active, double beta1, double beta2, double eps) {
  for (int row = 0; row < members * each; row++)
    if (active[row / each])
      adam_step(spans_of(own, row), values + row * values_stride, grads + row * grads_stride, means + row * moments_stride,
                squares + row * moments_stride, steps + row, lr[row / each], beta1, beta2, eps);
}

void polyak(int members, int each, const int32_t *own, float *targets, ptrdiff_t targets_stride, const float *onlines,
            ptrdiff_t onlines_stride, const float *weight) {
  for (int row = 0; row < members * each; row++)
    mixed(spans_of(own, row), targets + row * targets_stride, onlines + row * onlines_stride, weight[row / each]);
}

// --- whole updates: each gives 1 where there is no memory for it, before it changes anything of that member -----------

// Scratch of a thread, kept from call to call: a member's activations stay in its cache.
static __thread float *room;
static __thread ptrdiff_t room_size;

INLINE ptrdiff_t lines(ptrdiff_t floats) { return (floats + SUMS - 1) / SUMS * SUMS; }

// So many floats for this call, whole cache lines; NULL if there is no memory.
static float *scratch(ptrdiff_t floats) {
  if (room_size < floats) {
    free(room);
    room_size = 0;
    room = aligned_alloc(64, sizeof(float) * (size_t)lines(floats));
    if (room) room_size = floats;
  }
  return room;
}

INLINE float *take(float **from, ptrdiff_t floats) {
  float *piece = *from;
  *from += lines(floats);
  return piece;
}

// Rows of a batch that count at all: those of weight 0 behind the last other one are pads.
static int rows_that_count(int rows, const float *weight) {
  while (rows && weight[rows - 1] == 0.0f) rows--;
  return rows;
}

// Copy rows of `width` floats that lie `stride` apart.
static float *gathered(int rows, int width, const float *from, ptrdiff_t stride, float *to) {
  for (int b = 0; b < rows; b++) memcpy(to + (ptrdiff_t)b * width, from + b * stride, sizeof(float) * (size_t)width);
  return to;
}

// What a member's network makes of x, where the layers keep it.
static const float *outputs_of(const int32_t *plan, int layers, const float *values, int rows, int inputs,
                               const float *x, float *saved, float *packed, layer *found, int *count) {
  *count = lay_out(plan, layers, rows, inputs, x, saved, found);
  forward(values, rows, found, *count, packed);
  return found[*count - 1].y;
}
