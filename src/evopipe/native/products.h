// Matrix products: every output is one chain of fused multiply-adds in the order of the inputs.

#pragma once

#include "vectors.h"

// What is done with a product: it is written, added to what is there, or written as ReLU has it.
enum { WRITTEN, ADDED, RECTIFIED };

INLINE vec rectified(vec z) { return choose(z <= all(0.0f), all(0.0f), z); }  // NaN stays NaN

// out[i, j] (+)= sum_l a[i * across + l * along] packed[l, j] of `rows` rows and `parts` vectors of columns.
INLINE void tile(const int rows, const int parts, int depth, const float *a, ptrdiff_t across, ptrdiff_t along,
                 const float *packed, ptrdiff_t apart, float *out, ptrdiff_t stride, int columns, const float *bias,
                 int how) {
  vec sums[2 * TILE][PARTS];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < parts; j++) sums[i][j] = bias ? load(bias + j * LANES) : (vec){0};
  for (int l = 0; l < depth; l++, a += along, packed += apart) {
    vec b[PARTS];
    for (int j = 0; j < parts; j++) b[j] = load(packed + j * LANES);
    for (int i = 0; i < rows; i++)
      for (int j = 0; j < parts; j++) sums[i][j] = fused(all(a[i * across]), b[j], sums[i][j]);
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < parts; j++) {
      float *to = out + i * stride + j * LANES;
      const int own = columns - j * LANES;
      const vec x = sums[i][j];
      put(to, own, how == ADDED ? part(to, own) + x : how == RECTIFIED ? rectified(x) : x);
    }
}

static void tiles(int rows, int depth, const float *a, ptrdiff_t across, ptrdiff_t along, const float *packed,
                  ptrdiff_t apart, float *out, ptrdiff_t stride, int columns, const float *bias, int how) {
  int i = 0;
#define TAKE(n, parts)          \
  for (; i + n <= rows; i += n) \
  tile(n, parts, depth, a + i * across, across, along, packed, apart, out + i * stride, stride, columns, bias, how)
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

// Elements of a and, from LANES on, of b.
INLINE vec shuffled(vec a, vec b, whole from) {
#if defined( \
    __clang__)  // whose shuffles take constants alone: it makes these of what is constant when loops are unrolled
  vec x;
  for (int c = 0; c < LANES; c++) x[c] = from[c] < LANES ? a[from[c]] : b[from[c] - LANES];
  return x;
#else
  return __builtin_shuffle(a, b, from);
#endif
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
          vec a = shuffled(x[j], x[k], low[s]);
          x[k] = shuffled(x[j], x[k], high[s]);
          x[j] = a;
        }
    for (int j = 0; j < LANES; j++) store(packed + (ptrdiff_t)(l + j) * PANEL, x[j]);
  }
  for (; l < depth; l++)
    for (int j = 0; j < LANES; j++) packed[(ptrdiff_t)l * PANEL + j] = j < rows ? b[j * width + l] : 0.0f;
}

// out[rows, columns] (+)= a · b, a by its strides, b `[depth, columns]` by rows of `width` floats, or transposed.
static void product(int rows, int depth, int columns, const float *a, ptrdiff_t across, ptrdiff_t along, const float *b,
                    ptrdiff_t width, int transposed, float *out, ptrdiff_t stride, const float *bias, int how,
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
          bias ? begin : NULL, how);
  }
}
