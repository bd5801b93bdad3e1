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

// e^x of -700 ≤ x ≤ 700, within an ulp, as fdlibm has it (Sun Microsystems, 1993): no library decides about its last bits.
static double exponential_of(double x) {
  const double k = nearbyint(x * 1.44269504088896338700), high = x - k * 6.93147180369123816490e-01;
  const double low = k * 1.90821492927058770002e-10, r = high - low, t = r * r;
  double c = 4.13813679705723846039e-08;
  c = -1.65339022054652515390e-06 + t * c;
  c = 6.61375632143793436117e-05 + t * c;
  c = -2.77777777770155933842e-03 + t * c;
  c = r - t * (1.66666666666666019037e-01 + t * c);
  const int64_t power = ((int64_t)k + 1023) << 52;
  double scale;
  memcpy(&scale, &power, sizeof scale);
  return scale * (1.0 - ((low - r * c / (2.0 - c)) - high));
}

// tanh in float64, rounded. Near 0 it is Lambert's continued fraction.
static float tanh_of(double x) {
  const double far = fabs(x), q = x * x;
  if (x != x) return (float)x;
  if (far > 20.0) return x > 0.0 ? 1.0f : -1.0f;
  if (far > 0.5) {
    const double of_far = 1.0 - 2.0 / (exponential_of(2.0 * far) + 1.0);
    return (float)(x > 0.0 ? of_far : -of_far);
  }
  double below = 17.0;
  for (double odd = 15.0; odd > 0.0; odd -= 2.0) below = odd + q / below;
  return (float)(x / below);
}

// tanh(mean + exp(log_std) · noise); a log-deviation lies within `ops.distributions`' bounds.
static float squashed_once(float mean, float log_std, float noise) {
  if (log_std != log_std) return log_std;
  const double bounded = log_std < -20.0f ? -20.0 : log_std > 2.0f ? 2.0 : (double)log_std;
  return tanh_of((double)mean + exponential_of(bounded) * (double)noise);
}

void squash(const squash_call *c) {
  for (ptrdiff_t i = 0; i < c->n; i++)
    c->to[i] = c->noise ? squashed_once(c->mean[i], c->log_std[i], c->noise[i]) : tanh_of((double)c->mean[i]);
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
