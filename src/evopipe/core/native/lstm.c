// Long short-term memory of one member, forward and backward through time: input, forget and output gate, candidate side
// by side. Rows are step-major: those of the first step, then those of the second … `core.lstm` has the same in torch.

enum { OWN, ROOM, WEIGHTS, BIASES, RECURRENT, REMEMBERED, GATED };  // what a layer's fields say

enum { GATES = 4 };

typedef struct {
  const int32_t *at;        // the layer's fields
  int in, n;                // widths of what it reads and hands on
  const float *x;           // what it read
  float *gates, *h, *c;     // [rows, 4n], [rows, n], [rows, n]
  float *before_h, *before_c;  // what each step remembered
} gated;

// Floats that a layer keeps of each row.
static int kept_of_gated(int n) { return (GATES + 4) * n; }

static int lay_out_gated(const int32_t *fields, int layers, int rows, int inputs, const float *x, float *saved, gated *found) {
  for (int i = 0; i < layers; i++) {
    gated *l = &found[i];
    l->at = fields + i * GATED;
    l->in = inputs, l->n = l->at[OWN], l->x = x;
    const ptrdiff_t size = (ptrdiff_t)rows * l->n;
    l->gates = saved, l->h = saved + GATES * size, l->c = l->h + size, l->before_h = l->c + size, l->before_c = l->before_h + size;
    saved += (GATES + 4) * size;
    x = l->h, inputs = l->n;
  }
  return layers;
}

// Take `steps` steps of `batch` rows: `memory` `[batch, width]` is what was before the first, `keep` `[steps, batch]` is 0
// where all is forgotten before a step, else 1.
static void forward_gated(const float *values, int steps, int batch, gated *layers, int count, const float *memory,
                          ptrdiff_t width, const float *keep, float *packed) {
  const int rows = steps * batch;
  for (int i = 0; i < count; i++) {
    gated *l = &layers[i];
    const int n = l->n, room = l->at[ROOM];
    for (int g = 0; g < GATES; g++)
      product(rows, l->in, n, l->x, l->in, 1, values + l->at[WEIGHTS] + g * room, GATES * room, 0, l->gates + g * n,
              GATES * n, values + l->at[BIASES] + g * room, 0, packed);
    for (int t = 0; t < steps; t++) {
      const ptrdiff_t first = (ptrdiff_t)t * batch;
      for (int b = 0; b < batch; b++) {
        const ptrdiff_t row = (first + b) * n;
        const float *h = t ? l->h + row - (ptrdiff_t)batch * n : memory + b * width + l->at[REMEMBERED];
        const float *c = t ? l->c + row - (ptrdiff_t)batch * n : memory + b * width + l->at[REMEMBERED] + room;
        for (int j = 0; j < n; j += LANES) {
          put(l->before_h + row + j, n - j, part(h + j, n - j) * keep[first + b]);
          put(l->before_c + row + j, n - j, part(c + j, n - j) * keep[first + b]);
        }
      }
      for (int g = 0; g < GATES; g++)
        product(batch, n, n, l->before_h + first * n, n, 1, values + l->at[RECURRENT] + g * room, GATES * room, 0,
                l->gates + first * GATES * n + g * n, GATES * n, NULL, 1, packed);
      for (ptrdiff_t row = first; row < first + batch; row++)
        for (int j = 0; j < n; j += LANES) {
          float *at = l->gates + row * GATES * n + j;
          const int left = n - j;
          vec in = sigmoid(part(at, left)), forget = sigmoid(part(at + n, left)), out = sigmoid(part(at + 2 * n, left));
          vec candidate = hyperbolic(part(at + 3 * n, left));
          vec c = forget * part(l->before_c + row * n + j, left) + in * candidate;
          put(at, left, in), put(at + n, left, forget), put(at + 2 * n, left, out), put(at + 3 * n, left, candidate);
          put(l->c + row * n + j, left, c);
          put(l->h + row * n + j, left, out * hyperbolic(c));
        }
    }
  }
}

// Go back through them. `d` `[rows, n]` holds the gradient of what comes out, `next` has as much room as the widest;
// `grad` gets what that gives the parameters added. Returns where the gradient of what went in lies, if it is `wanted`.
// `of_state` has room for three times batch × n.
static float *backward_gated(const float *values, float *grad, int steps, int batch, gated *layers, int count,
                             const float *keep, float *d, float *next, int wanted, float *of_state, float *packed) {
  const int rows = steps * batch;
  for (int i = count - 1; i >= 0; i--) {
    gated *l = &layers[i];
    const int n = l->n, room = l->at[ROOM];
    const ptrdiff_t size = (ptrdiff_t)batch * n;
    float *dh = of_state, *dc = of_state + size;
    memset(of_state, 0, sizeof(float) * 2 * (size_t)size);
    for (int t = steps - 1; t >= 0; t--) {
      const ptrdiff_t first = (ptrdiff_t)t * batch;
      for (int b = 0; b < batch; b++) {
        const ptrdiff_t row = first + b;
        for (int j = 0; j < n; j += LANES) {
          const int left = n - j;
          float *at = l->gates + row * GATES * n + j;
          vec in = part(at, left), forget = part(at + n, left), out = part(at + 2 * n, left), candidate = part(at + 3 * n, left);
          vec g = part(d + row * n + j, left) + part(dh + b * n + j, left), y = hyperbolic(part(l->c + row * n + j, left));
          vec of_c = part(dc + b * n + j, left) + g * out * (1.0f - y * y);
          put(at, left, of_c * candidate * in * (1.0f - in));
          put(at + n, left, of_c * part(l->before_c + row * n + j, left) * forget * (1.0f - forget));
          put(at + 2 * n, left, g * y * out * (1.0f - out));
          put(at + 3 * n, left, of_c * in * (1.0f - candidate * candidate));
          put(dc + b * n + j, left, of_c * forget * keep[row]);
        }
      }
      if (!t) break;
      for (int g = 0; g < GATES; g++)
        product(batch, n, n, l->gates + first * GATES * n + g * n, GATES * n, 1, values + l->at[RECURRENT] + g * room,
                GATES * room, 1, dh, n, NULL, g > 0, packed);
      for (int b = 0; b < batch; b++)
        for (int j = 0; j < n; j++) dh[b * n + j] *= keep[first + b];
    }
    for (int g = 0; g < GATES; g++) {
      float *bias = grad + l->at[BIASES] + g * room;
      for (int j = 0; j < n; j += LANES) {
        vec total = part(bias + j, n - j);
        for (ptrdiff_t row = 0; row < rows; row++) total += part(l->gates + (row * GATES + g) * n + j, n - j);
        put(bias + j, n - j, total);
      }
      product(l->in, rows, n, l->x, 1, l->in, l->gates + g * n, GATES * n, 0, grad + l->at[WEIGHTS] + g * room,
              GATES * room, NULL, 1, packed);
      product(n, rows, n, l->before_h, 1, n, l->gates + g * n, GATES * n, 0, grad + l->at[RECURRENT] + g * room,
              GATES * room, NULL, 1, packed);
      if (wanted || i)
        product(rows, n, l->in, l->gates + g * n, GATES * n, 1, values + l->at[WEIGHTS] + g * room, GATES * room, 1, next,
                l->in, NULL, g > 0, packed);
    }
    float *swap = d;
    d = next, next = swap;
  }
  return d;
}
