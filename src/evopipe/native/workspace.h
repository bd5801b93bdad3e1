// Scratch of a thread, kept from call to call: a member's activations stay in its cache.

#pragma once

#include "optimiser.h"

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

// Pieces are taken twice: without a base, to count them, then from where there is room for all.
typedef struct {
  float *base;
  ptrdiff_t used;
} arena;

INLINE float *take(arena *from, ptrdiff_t floats) {
  float *piece = from->base ? from->base + from->used : NULL;
  from->used += lines(floats);
  return piece;
}

INLINE ptrdiff_t largest(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

// Rows of a batch that count at all: those of weight 0 behind the last other one are pads.
static int rows_that_count(int rows, const float *weight) {
  while (rows && weight[rows - 1] == 0.0f) rows--;
  return rows;
}

// Copy rows of `width` floats that lie `stride` apart.
static void gathered(int rows, int width, const float *from, ptrdiff_t stride, float *to) {
  for (int b = 0; b < rows; b++) memcpy(to + (ptrdiff_t)b * width, from + b * stride, sizeof(float) * (size_t)width);
}
