// Rock a car out of a valley (Moore, 1990), in the order and precision of `gymnasium.envs.classic_control.mountain_car`
// and `continuous_mountain_car`.

#include "../environment.h"
#include <math.h>

typedef struct {
  double position, velocity;
} mountain_car;

enum { GOAL_VELOCITY };
static const setting mountain_car_settings[] = {{"goal_velocity", 0}};

static void mountain_car_reset(void *state, const inputs *in) {
  ((mountain_car *)state)->position = in->random[0] * 0.2 - 0.6;
}

static int mountain_car_step(void *state, const inputs *in, double *reward) {
  mountain_car *s = state;
  const double velocity = s->velocity + (double)(in->choice - 1) * 0.001 - cos(3 * s->position) * 0.0025;
  s->velocity = fmin(fmax(velocity, -0.07), 0.07);
  s->position = fmin(fmax(s->position + s->velocity, -1.2), 0.6);
  if (s->position <= -1.2 && s->velocity < 0.0) s->velocity = 0.0;  // the left wall
  *reward = -1.0;
  return s->position >= 0.5 && s->velocity >= in->settings[GOAL_VELOCITY];
}

// Pushes are any in [-1, 1], and cost. Gymnasium keeps this state in float32 from the first step on; an initial state is
// of float64, and so is what is computed from it.
static int mountain_car_continuous_step(void *state, const inputs *in, double *reward) {
  mountain_car *s = state;
  const float push = in->numbers[0], whole = (float)s->position, fastest = 0.07f;
  const double thrice = s->position == whole ? 3.0f * whole : 3.0 * s->position;
  float velocity = (float)s->velocity + (push * 0.0015f - (float)(0.0025 * cos(thrice)));
  velocity = fminf(fmaxf(velocity, -fastest), fastest);
  const float position = fminf(fmaxf((float)(s->position + velocity), -1.2f), 0.6f);
  if (position <= -1.2f && velocity < 0.0f) velocity = 0.0f;
  const int over = position >= 0.45f && velocity >= (float)in->settings[GOAL_VELOCITY];
  *reward = (over ? 100.0 : 0.0) - (double)push * push * 0.1;
  s->position = position, s->velocity = velocity;
  return over;
}

static void mountain_car_observe(const void *state, float *observation) {
  const mountain_car *s = state;
  observation[0] = (float)s->position, observation[1] = (float)s->velocity;
}

static const environment mountain_car_v0 = {
    .name = "MountainCar-v0", .state = sizeof(mountain_car), .observations = 2, .actions = 3, .reset_draws = 1,
    .settings = mountain_car_settings, .settings_count = 1,
    .reset = mountain_car_reset, .step = mountain_car_step, .observe = mountain_car_observe,
};

static const environment mountain_car_continuous_v0 = {
    .name = "MountainCarContinuous-v0", .state = sizeof(mountain_car), .observations = 2, .actions = 1,
    .continuous = 1, .low = (const float[]){-1.0f}, .high = (const float[]){1.0f}, .reset_draws = 1,
    .settings = mountain_car_settings, .settings_count = 1,
    .reset = mountain_car_reset, .step = mountain_car_continuous_step, .observe = mountain_car_observe,
};
