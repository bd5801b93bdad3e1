// Keep a pole upright on a cart (Barto, Sutton & Anderson, 1983), in the order and precision of
// `gymnasium.envs.classic_control.cartpole`.

#include "../environment.h"
#include <math.h>

typedef struct {
  double x, speed, angle, spin;
} cartpole;

enum { SUTTON_BARTO_REWARD };
static const setting cartpole_settings[] = {{"sutton_barto_reward", 0}};

static void cartpole_reset(void *state, const inputs *in) {
  const double *u = in->random;
  *(cartpole *)state = (cartpole){u[0] * 0.1 - 0.05, u[1] * 0.1 - 0.05, u[2] * 0.1 - 0.05, u[3] * 0.1 - 0.05};
}

static int cartpole_step(void *state, const inputs *in, double *reward) {
  cartpole *s = state;
  const double total = 1.1, moment = 0.1 * 0.5, seconds = 0.02, force = in->choice ? 10.0 : -10.0;
  const double cosine = cos(s->angle), sine = sin(s->angle);
  const double push = (force + moment * (s->spin * s->spin) * sine) / total;
  const double spin_rate = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * (cosine * cosine) / total));
  const double rate = push - moment * spin_rate * cosine / total;
  *s = (cartpole){
      s->x + seconds * s->speed, s->speed + seconds * rate,
      s->angle + seconds * s->spin, s->spin + seconds * spin_rate,
  };
  const int over = fabs(s->x) > 2.4 || fabs(s->angle) > 12 * 2 * M_PI / 360;
  *reward = in->settings[SUTTON_BARTO_REWARD] != 0.0 ? -over : 1.0;
  return over;
}

static void cartpole_observe(const void *state, float *observation) {
  const cartpole *s = state;
  observation[0] = (float)s->x, observation[1] = (float)s->speed;
  observation[2] = (float)s->angle, observation[3] = (float)s->spin;
}

#define CARTPOLE(id)                                                                                      \
  {                                                                                                       \
    .name = id, .state = sizeof(cartpole), .observations = 4, .actions = 2, .reset_draws = 4,             \
    .settings = cartpole_settings, .settings_count = 1, .reset = cartpole_reset, .step = cartpole_step,   \
    .observe = cartpole_observe                                                                           \
  }
static const environment cartpole_v0 = CARTPOLE("CartPole-v0"), cartpole_v1 = CARTPOLE("CartPole-v1");
