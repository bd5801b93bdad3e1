// Swing a pendulum up by torque, in the order and precision of `gymnasium.envs.classic_control.pendulum`.

#include "../environment.h"
#include <math.h>

typedef struct {
  double angle, spin;  // 0 is up
} pendulum;

enum { GRAVITY };
static const setting pendulum_settings[] = {{"g", 10.0}};

static void pendulum_reset(void *state, const inputs *in) {
  *(pendulum *)state = (pendulum){in->random[0] * (2 * M_PI) - M_PI, in->random[1] * 2.0 - 1.0};
}

static int pendulum_step(void *state, const inputs *in, double *reward) {
  pendulum *s = state;
  const double seconds = 0.05, fastest = 8.0, turn = 2 * M_PI;
  const float torque = in->numbers[0];  // its products are rounded to float32, as Gymnasium's are
  double off = fmod(s->angle + M_PI, turn);
  if (off < 0.0) off += turn;
  off -= M_PI;
  *reward = -(off * off + 0.1 * (s->spin * s->spin) + 0.001f * (torque * torque));
  const double rate = 3 * in->settings[GRAVITY] / 2 * sin(s->angle) + 3.0f * torque;
  s->spin = fmin(fmax(s->spin + rate * seconds, -fastest), fastest);
  s->angle += s->spin * seconds;
  return 0;
}

static void pendulum_observe(const void *state, float *observation) {
  const pendulum *s = state;
  observation[0] = (float)cos(s->angle), observation[1] = (float)sin(s->angle), observation[2] = (float)s->spin;
}

static const environment pendulum_v1 = {
    .name = "Pendulum-v1", .state = sizeof(pendulum), .observations = 3, .actions = 1,
    .continuous = 1, .low = (const float[]){-2.0f}, .high = (const float[]){2.0f}, .reset_draws = 2,
    .settings = pendulum_settings, .settings_count = 1,
    .reset = pendulum_reset, .step = pendulum_step, .observe = pendulum_observe,
};
