// Dense networks of several members, forward and backward, member by member: a member's bits depend neither on how many
// there are nor on how many rows a batch has. Every sum has one order that no vector width changes: products are summed
// one after the other by fused multiply-adds, sums over units in sixteen interleaved parts.
//
// A plan describes each member's layers, `FIELDS` int32 a layer; offsets count floats from the member's row of values.

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

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

enum { UNITS, STRIDE, WEIGHT, BIAS, GAIN, SHIFT, ALPHA, ACTIVATION, BLEND, SKIP, FIELDS };
enum { RELU, ELU, GELU, TANH, LEAKY_RELU, SILU, SOFTSIGN, SIGMOID, SOFTPLUS, IDENTITY };

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

// A product that is rounded before it is added to anything. Others are fused with a sum that is next to them.
INLINE vec rounded(vec x) {
#if defined(__SSE__)
  __asm__("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#endif
  return x;
}

// --- products --------------------------------------------------------------------------------------------------------

// out[i, j] (+)= sum_l a[i * across + l * along] packed[l, j] of `rows` rows and `parts` vectors of columns.
INLINE void tile(const int rows, const int parts, int depth, const float *a, ptrdiff_t across, ptrdiff_t along,
                 const float *packed, ptrdiff_t apart, float *out, ptrdiff_t stride, int columns, const float *bias,
                 int add) {
  vec sums[2 * TILE][PARTS];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < parts; j++) sums[i][j] = bias ? load(bias + j * LANES) : (vec){0};
  for (int l = 0; l < depth; l++, a += along, packed += apart) {
    vec b[PARTS];
    for (int j = 0; j < parts; j++) b[j] = load(packed + j * LANES);
    for (int i = 0; i < rows; i++)
      for (int j = 0; j < parts; j++) sums[i][j] += a[i * across] * b[j];
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < parts; j++) {
      float *to = out + i * stride + j * LANES;
      const int own = columns - j * LANES;
      put(to, own, add ? part(to, own) + sums[i][j] : sums[i][j]);
    }
}

static void tiles(int rows, int depth, const float *a, ptrdiff_t across, ptrdiff_t along, const float *packed,
                  ptrdiff_t apart, float *out, ptrdiff_t stride, int columns, const float *bias, int add) {
  int i = 0;
#define TAKE(n, parts)                                                                                               \
  for (; i + n <= rows; i += n)                                                                                      \
  tile(n, parts, depth, a + i * across, across, along, packed, apart, out + i * stride, stride, columns, bias, add)
  if (columns > LANES) {
    TAKE(TILE, PARTS);
    TAKE(4, PARTS);
    TAKE(1, PARTS);
  } else {
    TAKE(2 * TILE, 1);
    TAKE(4, 1);
    TAKE(1, 1);
  }
#undef TAKE
}

// Write b's first rows, of `depth` floats each, as columns of a packed panel; zeros where there are fewer than LANES.
static void turned(int depth, int rows, const float *b, ptrdiff_t width, float *packed) {
  whole low[4], high[4];
  for (int s = 0; s < STAGES; s++)
    for (int c = 0; c < LANES; c++) {
      low[s][c] = c & 1 << s ? LANES + c - (1 << s) : c;
      high[s][c] = c & 1 << s ? LANES + c : c + (1 << s);
    }
  int l = 0;
  for (; rows >= LANES && l + LANES <= depth; l += LANES) {
    vec x[LANES];
    for (int j = 0; j < LANES; j++) x[j] = load(b + j * width + l);
    for (int s = 0; s < STAGES; s++)
      for (int j = 0; j < LANES; j++)
        if (!(j & 1 << s)) {
          const int k = j | 1 << s;
          vec a = __builtin_shuffle(x[j], x[k], low[s]);
          x[k] = __builtin_shuffle(x[j], x[k], high[s]);
          x[j] = a;
        }
    for (int j = 0; j < LANES; j++) store(packed + (ptrdiff_t)(l + j) * PANEL, x[j]);
  }
  for (; l < depth; l++)
    for (int j = 0; j < LANES; j++) packed[(ptrdiff_t)l * PANEL + j] = j < rows ? b[j * width + l] : 0.0f;
}

// out[rows, columns] (+)= a · b, a by its strides, b `[depth, columns]` by rows of `width` floats, or transposed.
static void product(int rows, int depth, int columns, const float *a, ptrdiff_t across, ptrdiff_t along, const float *b,
                    ptrdiff_t width, int transposed, float *out, ptrdiff_t stride, const float *bias, int add,
                    float *packed) {
  for (int first = 0; first < columns; first += PANEL) {
    const int own = columns - first < PANEL ? columns - first : PANEL;
    const int direct = !transposed && own == PANEL && rows <= TILE;  // what is read once need not be packed
    float begin[PANEL];
    if (transposed) {
      for (int j = 0; j < own; j += LANES) turned(depth, own - j, b + (first + j) * width, width, packed + j);
    } else if (!direct) {
      for (int l = 0; l < depth; l++)
        for (int j = 0; j < own; j += LANES)
          store(packed + (ptrdiff_t)l * PANEL + j, part(b + l * width + first + j, own - j));
    }
    if (bias)
      for (int j = 0; j < own; j += LANES) store(begin + j, part(bias + first + j, own - j));
    tiles(rows, depth, a, across, along, direct ? b + first : packed, direct ? width : PANEL, out + first, stride, own,
          bias ? begin : NULL, add);
  }
}

// --- functions -------------------------------------------------------------------------------------------------------

INLINE vec exponential(vec x) {  // Cephes' expf
  x = choose(x > all(88.0f), all(88.0f), choose(x < all(-87.0f), all(-87.0f), x));
  vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  x = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vec y = all(1.9875691500e-4f);
  y = y * x + 1.3981999507e-3f;
  y = y * x + 8.3334519073e-3f;
  y = y * x + 4.1665795894e-2f;
  y = y * x + 1.6666665459e-1f;
  y = y * x + 5.0000001201e-1f;
  y = y * (x * x) + (x + 1.0f);
  return y * (vec)((__builtin_convertvector(n, whole) + 127) << 23);
}

INLINE vec size(vec x) { return (vec)((whole)x & 0x7fffffff); }
INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE vec hyperbolic(vec x) {  // Cephes' tanhf
  vec z = x * x, a = size(x);
  vec p = ((((-5.70498872745e-3f * z + 2.06390887954e-2f) * z - 5.37397155531e-2f) * z + 1.33314422036e-1f) * z -
           3.33332819422e-1f) * z * x + x;
  vec far = 1.0f - 2.0f / (exponential(a + a) + 1.0f);
  return choose(a < all(0.625f), p, choose(x < all(0.0f), -far, far));
}

INLINE vec logarithm_near(vec x, vec twos) {  // of (1 + x) · 2ⁿ, x between √½ − 1 and √2 − 1, Cephes' logf
  vec q = x * x, y = all(7.0376836292e-2f);
  y = y * x - 1.1514610310e-1f;
  y = y * x + 1.1676998740e-1f;
  y = y * x - 1.2420140846e-1f;
  y = y * x + 1.4249322787e-1f;
  y = y * x - 1.6668057665e-1f;
  y = y * x + 2.0000714765e-1f;
  y = y * x - 2.4999993993e-1f;
  y = y * x + 3.3333331174e-1f;
  y = y * x * q - 2.12194440e-4f * twos - 0.5f * q;
  return x + y + 0.693359375f * twos;
}

INLINE vec logarithm(vec z) {  // of positive numbers; infinity and NaN stay
  whole bits = (whole)z;
  vec m = (vec)((bits & 0x7fffff) | 0x3f800000);
  whole high = m > all(1.41421356f);
  vec n = __builtin_convertvector((bits >> 23) - 127 - high, vec);
  return choose(z < all(INFINITY), logarithm_near(choose(high, m * 0.5f, m) - 1.0f, n), z);
}

INLINE vec normal_share(vec x) {  // Φ(x), by erf of Abramowitz & Stegun 7.1.26, |error| < 1.5e-7
  vec a = size(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * a);
  vec p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
  vec tail = 0.5f * p * exponential(-a * a);
  return choose(x < all(0.0f), tail, 1.0f - tail);
}

INLINE vec activated(const int kind, vec z) {
  switch (kind) {
    case RELU: return choose(z > all(0.0f), z, z * 0.0f);  // NaN stays NaN
    case ELU: return choose(z > all(0.0f), z, exponential(z) - 1.0f);
    case GELU: return z * normal_share(z);
    case TANH: return hyperbolic(z);
    case LEAKY_RELU: return choose(z > all(0.0f), z, z * 0.01f);
    case SILU: return z * sigmoid(z);
    case SOFTSIGN: return z / (1.0f + size(z));
    case SIGMOID: return sigmoid(z);
    case SOFTPLUS: return choose(z > all(20.0f), z, choose(z > all(0.0f), z, all(0.0f)) + logarithm(1.0f + exponential(-size(z))));
    default: return z;
  }
}

INLINE vec slope(const int kind, vec y, vec z) {  // of the activation, from its result y; GELU and SiLU need z
  switch (kind) {
    case RELU: return choose(y > all(0.0f), all(1.0f), all(0.0f));
    case ELU: return choose(y > all(0.0f), all(1.0f), y + 1.0f);
    case GELU: return normal_share(z) + z * (0.39894228f * exponential(-0.5f * z * z));
    case TANH: return 1.0f - y * y;
    case LEAKY_RELU: return choose(y > all(0.0f), all(1.0f), all(0.01f));
    case SILU: { vec s = sigmoid(z); return s * (1.0f + z * (1.0f - s)); }
    case SOFTSIGN: { vec s = 1.0f - size(y); return s * s; }
    case SIGMOID: return y * (1.0f - y);
    case SOFTPLUS: return choose(y > all(20.0f), all(1.0f), 1.0f - exponential(-y));
    default: return all(1.0f);
  }
}

#define FOR_KIND(kind, DO)                                                                                           \
  switch (kind) {                                                                                                    \
    case RELU: DO(RELU); break;                                                                                      \
    case ELU: DO(ELU); break;                                                                                        \
    case GELU: DO(GELU); break;                                                                                      \
    case TANH: DO(TANH); break;                                                                                      \
    case LEAKY_RELU: DO(LEAKY_RELU); break;                                                                          \
    case SILU: DO(SILU); break;                                                                                      \
    case SOFTSIGN: DO(SOFTSIGN); break;                                                                              \
    case SIGMOID: DO(SIGMOID); break;                                                                                \
    case SOFTPLUS: DO(SOFTPLUS); break;                                                                              \
    default: DO(IDENTITY);                                                                                           \
  }

static void activate(int kind, ptrdiff_t count, float *x) {
#define DO(k) for (ptrdiff_t i = 0; i < count; i += LANES) put(x + i, count - i > LANES ? LANES : (int)(count - i), activated(k, part(x + i, count - i > LANES ? LANES : (int)(count - i))))
  FOR_KIND(kind, DO)
#undef DO
}

// grad *= slope
static void through(int kind, ptrdiff_t count, const float *y, const float *z, float *grad) {
#define DO(k)                                                                                                        \
  for (ptrdiff_t i = 0; i < count; i += LANES) {                                                                     \
    const int left = count - i > LANES ? LANES : (int)(count - i);                                                   \
    put(grad + i, left, part(grad + i, left) * slope(k, part(y + i, left), z ? part(z + i, left) : (vec){0}));       \
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

// --- layer normalisation ---------------------------------------------------------------------------------------------

// x becomes gain · (x − mean) / √(variance + ε) + shift; `hat` and `scale` are kept for the way back.
static void normalise(int rows, int n, float *x, float *hat, float *scale, const float *gain, const float *shift) {
  for (int b = 0; b < rows; b++, x += n, hat += n) {
    vec total[EACH] = {0}, squares[EACH] = {0};
    for (int j = 0, i = 0; j < n; j += LANES, i = (i + 1) % EACH) total[i] += part(x + j, n - j);
    const float mean = sum(total) / (float)n;
    for (int j = 0, i = 0; j < n; j += LANES, i = (i + 1) % EACH) {
      vec c = part(x + j, n - j) - mean;
      put(hat + j, n - j, c);
      if (n - j < LANES) c = part(hat + j, n - j);  // zeros behind the end
      squares[i] += c * c;
    }
    const float by = 1.0f / sqrtf(sum(squares) / (float)n + EPS);
    scale[b] = by;
    for (int j = 0; j < n; j += LANES) {
      vec h = part(hat + j, n - j) * by;
      put(hat + j, n - j, h);
      put(x + j, n - j, part(gain + j, n - j) * h + part(shift + j, n - j));
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
        put(gain_grad + j, n - j, part(gain_grad + j, n - j) + g * h);
        put(shift_grad + j, n - j, part(shift_grad + j, n - j) + g);
      }
      g *= part(gain + j, n - j);
      put(grad + j, n - j, g);
      first[i] += g;
      second[i] += g * h;
    }
    const float mean = sum(first) / (float)n, along = sum(second) / (float)n, by = scale[b];
    for (int j = 0; j < n; j += LANES)
      put(grad + j, n - j, by * (part(grad + j, n - j) - mean - part(hat + j, n - j) * along));
  }
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
    product(rows, l->in, l->n, l->x, l->in, 1, values + at[WEIGHT], at[STRIDE], 0, l->f, l->n, values + at[BIAS], 0,
            packed);
    if (l->hat) normalise(rows, l->n, l->f, l->hat, l->scale, values + at[GAIN], values + at[SHIFT]);
    if (l->z) memcpy(l->z, l->f, sizeof(float) * (size_t)rows * (size_t)l->n);
    if (at[ACTIVATION] != IDENTITY) activate(at[ACTIVATION], (ptrdiff_t)rows * l->n, l->f);
    if (at[BLEND]) {
      const float alpha = values[at[ALPHA]];
      for (int b = 0; b < rows; b++)
        for (int j = 0; j < l->out; j++) {
          const float old = j < l->in ? l->x[(ptrdiff_t)b * l->in + j] : 0.0f;
          const float own = j < l->n ? l->f[(ptrdiff_t)b * l->n + j] : 0.0f;
          l->y[(ptrdiff_t)b * l->out + j] = alpha < 0.5f ? old + alpha * (own - old) : own - (own - old) * (1.0f - alpha);
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
          total += g * (made - old);
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
      product(l->in, rows, l->n, l->x, 1, l->in, df, l->n, 0, grad + at[WEIGHT], at[STRIDE], NULL, 1, packed);
    }
    if (wanted) {
      product(rows, l->n, l->in, df, l->n, 1, value + at[WEIGHT], at[STRIDE], 1, next, l->in, NULL, 0, packed);
      if (at[BLEND]) {
        const float rest = 1.0f - value[at[ALPHA]];
        for (int b = 0; b < rows; b++)
          for (int j = 0; j < l->in; j++) next[(ptrdiff_t)b * l->in + j] += rest * d[(ptrdiff_t)b * l->out + j];
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

// --- learning --------------------------------------------------------------------------------------------------------

// Scale a gradient to at most `limit`; return its norm before.
static float clipped(ptrdiff_t size, float *grad, float limit) {
  vec squares[EACH] = {0};
  for (ptrdiff_t j = 0; j < size; j += SUMS)
    for (int i = 0; i < EACH; i++) {
      vec g = load(grad + j + i * LANES);
      squares[i] += g * g;
    }
  const float norm = sqrtf(sum(squares)), share = limit / (norm + 1e-6f);
  if (!(share >= 1.0f))  // NaN spoils all of it
    for (ptrdiff_t j = 0; j < size; j += LANES) store(grad + j, load(grad + j) * share);
  return norm;
}

// One step of Adam (Kingma & Ba, 2015) of one row, in the form of torch's fused kernel.
static void adam_step(ptrdiff_t size, float *value, const float *grad, float *mean, float *square, float *steps, float lr,
                      double beta1, double beta2, double eps) {
  *steps += 1.0f;
  const float keep1 = (float)beta1, new1 = (float)(1.0 - beta1), keep2 = (float)beta2, new2 = (float)(1.0 - beta2);
  const float by = (float)(lr / (1.0 - pow(beta1, *steps))), least = (float)eps;
  const float root = (float)sqrt(1.0 - pow(beta2, *steps));
  for (ptrdiff_t j = 0; j < size; j += LANES) {
    vec g = load(grad + j), m = keep1 * load(mean + j) + new1 * g, s = keep2 * load(square + j) + new2 * (g * g);
    vec r = {0};
    store(mean + j, m), store(square + j, s);
    for (int i = 0; i < LANES; i++) r[i] = __builtin_sqrtf(s[i]);
    store(value + j, load(value + j) - by * (m / (r / root + least)));
  }
}

// target ← target + weight · (online − target), by torch.lerp's two formulas: 0 leaves and 1 copies, to the bit.
static void mixed(ptrdiff_t size, float *target, const float *online, float w) {
  for (ptrdiff_t j = 0; j < size; j += LANES) {
    vec a = load(target + j), b = load(online + j);
    store(target + j, w < 0.5f ? a + w * (b - a) : b - (b - a) * (1.0f - w));
  }
}

// Scale every row's gradient to at most its member's limit; whoever's loss or norm is not finite is healthy no more.
// A member has `each` rows.
void clip(int members, int each, ptrdiff_t size, float *grads, ptrdiff_t stride, const float *limit, const float *losses,
          uint8_t *healthy) {
  for (int p = 0; p < members; p++) {
    float total = 0.0f;
    for (int k = 0; k < each; k++) total += clipped(size, grads + ((ptrdiff_t)p * each + k) * stride, limit[p]);
    healthy[p] = healthy[p] && fabsf(losses[p] + total) < INFINITY;
  }
}

void adam(int members, int each, ptrdiff_t size, float *values, ptrdiff_t values_stride, const float *grads,
          ptrdiff_t grads_stride, float *means, float *squares, ptrdiff_t moments_stride, float *steps, const float *lr,
          const uint8_t *active, double beta1, double beta2, double eps) {
  for (int row = 0; row < members * each; row++)
    if (active[row / each])
      adam_step(size, values + row * values_stride, grads + row * grads_stride, means + row * moments_stride,
                squares + row * moments_stride, steps + row, lr[row / each], beta1, beta2, eps);
}

void polyak(int members, int each, ptrdiff_t size, float *targets, ptrdiff_t targets_stride, const float *onlines,
            ptrdiff_t onlines_stride, const float *weight) {
  for (int row = 0; row < members * each; row++)
    mixed(size, targets + row * targets_stride, onlines + row * onlines_stride, weight[row / each]);
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

#include "replay.c"
#include "draws.c"
#include "value.c"
#include "actor_critic.c"
#include "soft_actor_critic.c"
#include "lstm.c"
#include "policy.c"
