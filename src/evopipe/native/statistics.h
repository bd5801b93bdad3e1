// Running mean and variance of columns, as `core.normalise` merges and applies them.

#pragma once

#include "functions.h"

static const double EPSILON = 1e-8;

// Merge a column's n values into what is known of `before` others, of which `many` are given; sums are in their order.
static void merge_column(const double *x, const uint8_t *given, ptrdiff_t n, double before, double many, double *mean,
                         double *square) {
  double sum = 0.0, apart = 0.0;
  for (ptrdiff_t i = 0; i < n; i++)
    if (given[i]) sum += x[i];
  const double middle = sum / many;
  for (ptrdiff_t i = 0; i < n; i++)
    if (given[i]) apart += (x[i] - middle) * (x[i] - middle);
  const double share = many / (before + many), shift = middle - *mean;
  *square += apart + shift * shift * before * share;
  *mean += shift * share;
}

static double given_of(const uint8_t *given, ptrdiff_t n) {
  double many = 0.0;
  for (ptrdiff_t i = 0; i < n; i++) many += given[i] != 0;
  return many;
}

// Merge n values of each of a member's columns, `[N, n]`, which of them are `given`.
static void merge_member(const statistics *s, ptrdiff_t p, const double *values, const uint8_t *given, ptrdiff_t n) {
  const double many = given_of(given, n);
  const ptrdiff_t first = p * s->columns;
  for (ptrdiff_t j = 0; many > 0.0 && j < s->columns; j++)
    merge_column(values + j * n, given, n, s->count[p], many, s->mean + first + j, s->square + first + j);
  s->count[p] += many;
}

// 1 / √(σ² + ε) of a member's column; 1 before the first value.
static float scale_of(const statistics *s, ptrdiff_t p, ptrdiff_t column) {
  const double count = s->count[p];
  const double variance = count > 0.0 ? s->square[p * s->columns + column] / (count < 1.0 ? 1.0 : count) : 1.0 - EPSILON;
  return (float)(1.0 / __builtin_sqrt(variance + EPSILON));
}

// Normalise columns of n rows of `width` numbers each.
static void normalise_rows(float *rows, ptrdiff_t n, ptrdiff_t width, const column_scales *by) {
  for (ptrdiff_t i = 0; i < n; i++)
    for (ptrdiff_t j = 0; j < by->columns; j++) {
      float *x = rows + i * width + by->which[j];
      *x = within((*x - by->mean[j]) * by->scale[j], by->limit);
    }
}
