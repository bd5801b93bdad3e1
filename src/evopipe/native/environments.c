// Rows of an environment in C: all of them, or some, in one call.

#include "random.h"
#include "environments/acrobot.c"
#include "environments/cartpole.c"
#include "environments/cliff_walking.c"
#include "environments/frozen_lake.c"
#include "environments/minatar_asterix.c"
#include "environments/minatar_breakout.c"
#include "environments/minatar_freeway.c"
#include "environments/minatar_seaquest.c"
#include "environments/minatar_space_invaders.c"
#include "environments/mountain_car.c"
#include "environments/pendulum.c"
#include "environments/taxi.c"

enum { MOST_DRAWS = 64 };

static const environment *const offered[] = {
    &acrobot_v1,     &cartpole_v0,       &cartpole_v1,       &cliff_walking_v1,           &cliff_walking_slippery_v1,
    &frozen_lake_v1, &frozen_lake8x8_v1, &mountain_car_v0,   &mountain_car_continuous_v0, &pendulum_v1,
    &taxi_v4,        &asterix_v0,        &asterix_v1,        &breakout_v0,                &breakout_v1,
    &freeway_v0,     &freeway_v1,        &seaquest_v0,       &seaquest_v1,                &space_invaders_v0,
    &space_invaders_v1,
};

const environment *environment_at(int place) {
  return place < (int)(sizeof(offered) / sizeof(*offered)) ? offered[place] : NULL;
}

// The draws of a row at this step of its episode, 0 for its reset.
static void draw_inputs(const env_call *c, int n, ptrdiff_t row, double *random) {
  if (n) shares_of(n, c->seeds[row], c->salt, c->length[row], random);
}

INLINE ptrdiff_t row_of(const env_call *c, ptrdiff_t i) { return c->where ? (ptrdiff_t)c->where[i] : i; }

// Begin an episode in each of these rows, from its own seed.
void env_reset(const env_call *c) {
  double random[MOST_DRAWS];
  const inputs in = {.random = random, .settings = c->settings};
  for (ptrdiff_t i = 0; i < c->rows; i++) {
    const ptrdiff_t row = row_of(c, i);
    uint8_t *state = c->states + row * c->stride;
    c->seeds[row] = c->begins[i], c->length[row] = 0;
    draw_inputs(c, c->of->reset_draws, row, random);
    memset(state, 0, (size_t)c->stride);
    c->of->reset(state, &in);
  }
}

// An algorithm's numbers in [-1, 1], NaN for 0, stretched to the bounds: to the bit what `ActionSpace.own` returns.
static void stretch(const env_call *c, const float *from, float *own) {
  for (int a = 0; a < c->of->actions; a++) {
    if (c->own) {
      own[a] = from[a];
      continue;
    }
    const double x = isnan(from[a]) ? 0.0 : from[a], low = c->of->low[a], high = c->of->high[a];
    const double share = (fmin(fmax(x, -1.0), 1.0) + 1.0) / 2.0;
    own[a] = (float)fmin(fmax(low + share * (high - low), low), high);
  }
}

// Step these rows; those that `only` leaves out stay as they are.
void env_step(const env_call *c) {
  const environment *of = c->of;
  double random[MOST_DRAWS];
  float numbers[of->continuous ? of->actions : 1];
  inputs in = {.numbers = numbers, .random = random, .settings = c->settings};
  for (ptrdiff_t i = 0; i < c->rows; i++) {
    const ptrdiff_t row = row_of(c, i);
    uint8_t *state = c->states + row * c->stride;
    double reward = 0.0;
    c->terminated[i] = c->truncated[i] = 0;
    if (!c->only || c->only[i]) {
      if (of->continuous)
        stretch(c, (const float *)c->actions + i * of->actions, numbers);
      else
        in.choice = ((const int64_t *)c->actions)[i];
      c->length[row]++;
      draw_inputs(c, of->step_draws, row, random);
      c->terminated[i] = of->step(state, &in, &reward) != 0;
      c->truncated[i] = c->length[row] >= c->max_steps;
    }
    c->rewards[i] = (float)reward;
    of->observe(state, c->obs + i * of->observations);
  }
}

void env_observe(const env_call *c) {
  for (ptrdiff_t i = 0; i < c->rows; i++)
    c->of->observe(c->states + row_of(c, i) * c->stride, c->obs + i * c->of->observations);
}
