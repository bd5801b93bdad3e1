// What worlds of cells have in common: a place, shown one-hot, and steps that may slip.

#pragma once

#include "../environment.h"
#include <string.h>

typedef struct {
  int64_t place;
} grid;

static void grid_show(const void *state, float *observation, int places) {
  memset(observation, 0, sizeof(float) * (size_t)places);
  observation[((const grid *)state)->place] = 1.0f;
}

// The direction in which a step goes, of four around, if it goes as asked with a chance of `right` and else to either
// side; Gymnasium's `categorical_sample`.
static int slipped(int asked, double right, double u) {
  const double side = (1.0 - right) / 2.0;
  const int left = (asked + 3) % 4;
  if (side > u) return left;
  if (side + right > u) return asked;
  return side + right + side > u ? (asked + 1) % 4 : left;
}
