// Who of a team is there: `evopipe.types` says what the numbers mean.

#pragma once

#include "vectors.h"

// Copy n numbers, or write as many 0s.
static void put_or_clear(int put, float *to, const float *from, int n) {
  if (put)
    memcpy(to, from, sizeof(float) * (size_t)n);
  else
    memset(to, 0, sizeof(float) * (size_t)n);
}

enum { GONE, ACTS, CUT };

// Whether an agent stands in the situation that another's target, or its own, is a value of.
INLINE int there(float next_alive, float of_target) {
  return next_alive == ACTS || (next_alive == CUT && of_target == CUT);
}
