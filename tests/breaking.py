"""An environment in C whose steps break now and then."""

# The walker leaves what is finite now and then, in what is seen or in what it is given.
BREAKS = """
#include <environment.h>
typedef struct { double at; int steps; } walker;
static void reset(void *state, const inputs *in) { ((walker *)state)->at = in->random[0]; }
static int step(void *state, const inputs *in, double *reward) {
  walker *s = state;
  const double u = in->random[0], often = in->settings[0];
  s->at = u < often ? 1.0 / 0.0 : s->at + 0.1 * (double)in->choice, s->steps++;
  *reward = u > 1.0 - often ? 0.0 / 0.0 : s->at;
  return s->steps > 20;
}
static void observe(const void *state, float *observation) { *observation = (float)((const walker *)state)->at; }
static const setting settings[] = {{"often", 0.01}};
const environment the_environment = {
    .state = sizeof(walker), .observations = 1, .actions = 2, .reset_draws = 1, .step_draws = 1, .max_steps = 15,
    .settings = settings, .settings_count = 1, .reset = reset, .step = step, .observe = observe,
};
"""
