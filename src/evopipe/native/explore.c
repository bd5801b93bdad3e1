// What members do by chance beside what they would choose: `ops.policy` has the same in torch, to the bit.

#include "random.h"

static int best_of(const float *values, const uint8_t *legal, int count) {
  float most = -INFINITY;
  int found = 0;
  for (int j = 0; j < count; j++) {
    const float value = values[j] == values[j] ? values[j] : 0.0f;
    const float finite = value > 3.40282347e38f ? 3.40282347e38f : value < -3.40282347e38f ? -3.40282347e38f : value;
    if (legal[j] && finite > most) most = finite, found = j;
  }
  return found;
}

static int any_of(double u, const uint8_t *legal, int count) {
  int64_t there = 0;
  for (int j = 0; j < count; j++) there += legal[j] != 0;
  const int64_t sought = (int64_t)(u * (double)there);
  int64_t rank = 0;
  for (int j = 0; j < count; j++)
    if ((rank += legal[j] != 0) > sought) return j;
  return 0;
}

// tanh(mean + exp(log_std) · noise) in float64, rounded; a log-deviation lies within `ops.distributions`' bounds.
static float squashed_once(float mean, float log_std, float noise) {
  const double bounded = log_std < -20.0f ? -20.0 : log_std > 2.0f ? 2.0 : (double)log_std;
  return (float)tanh((double)mean + exp(bounded) * (double)noise);
}

void squash(const squash_call *c) {
  for (ptrdiff_t i = 0; i < c->n; i++)
    c->to[i] = c->noise ? squashed_once(c->mean[i], c->log_std[i], c->noise[i]) : (float)tanh((double)c->mean[i]);
}

static double share_at(const explore_call *c, int p, ptrdiff_t place) {
  return shares(stream_of(c->keys[p], c->salt, *c->step), (uint64_t)place - (bits){0})[0];
}

void best_or_random(const explore_call *c) {
  const int envs = c->envs, count = c->actions;
  for (int p = 0; p < c->members; p++)
    for (int e = 0; e < envs; e++) {
      const ptrdiff_t row = (ptrdiff_t)p * envs + e, at = row * count;
      ((int64_t *)c->to)[row] = share_at(c, p, e) < (double)c->epsilon[p]
                                    ? any_of(share_at(c, p, envs + e), c->legal + at, count)
                                    : best_of(c->values + at, c->legal + at, count);
    }
}

void clipped_or_random(const explore_call *c) {
  const int envs = c->envs, count = c->actions;
  for (int p = 0; p < c->members; p++)
    for (int e = 0; e < envs; e++) {
      const ptrdiff_t at = ((ptrdiff_t)p * envs + e) * count, place = (ptrdiff_t)e * (count + 1);
      const int any = (float)share_at(c, p, place) < c->epsilon[p];
      for (int j = 0; j < count; j++) {
        const float x = c->values[at + j];
        ((float *)c->to)[at + j] = any         ? 2.0f * (float)share_at(c, p, place + 1 + j) - 1.0f
                                   : !(x == x) ? 0.0f
                                   : x < -1.0f ? -1.0f
                                   : x > 1.0f  ? 1.0f
                                               : x;
      }
    }
}
