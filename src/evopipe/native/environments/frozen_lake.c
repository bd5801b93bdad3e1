// Cross a frozen lake without falling into a hole: `gymnasium.envs.toy_text.frozen_lake`, on its two maps.

#include "grid.h"

enum { SLIPPERY, SUCCESS_RATE };
static const setting frozen_lake_settings[] = {{"is_slippery", 1}, {"success_rate", 1.0 / 3.0}};
static const char lake4[] = "SFFFFHFHFFFHHFFG";
static const char lake8[] = "SFFFFFFFFFFFFFFFFFFHFFFFFFFFFHFFFFFHFFFFFHHFFFHFFHFFHFHFFFFHFFFG";

static void frozen_lake_reset(void *state, const inputs *in) {
  (void)in;
  ((grid *)state)->place = 0;
}

static int frozen_lake_step(grid *s, const inputs *in, double *reward, const char *lake, int side) {
  const int slippery = in->settings[SLIPPERY] != 0.0, asked = (int)in->choice;
  const int64_t row = s->place / side, column = s->place % side;
  switch (slippery ? slipped(asked, in->settings[SUCCESS_RATE], in->random[0]) : asked) {
    case 0: s->place -= column > 0; break;
    case 1: s->place += row < side - 1 ? side : 0; break;
    case 2: s->place += column < side - 1; break;
    default: s->place -= row > 0 ? side : 0;
  }
  *reward = lake[s->place] == 'G';
  return lake[s->place] == 'G' || lake[s->place] == 'H';
}

static int frozen_lake4_step(void *state, const inputs *in, double *reward) {
  return frozen_lake_step(state, in, reward, lake4, 4);
}

static int frozen_lake8_step(void *state, const inputs *in, double *reward) {
  return frozen_lake_step(state, in, reward, lake8, 8);
}

static void frozen_lake4_observe(const void *state, float *observation) { grid_show(state, observation, 16); }
static void frozen_lake8_observe(const void *state, float *observation) { grid_show(state, observation, 64); }

static const environment frozen_lake_v1 = {
    .name = "FrozenLake-v1", .state = sizeof(grid), .observations = 16, .actions = 4, .step_draws = 1,
    .settings = frozen_lake_settings, .settings_count = 2,
    .reset = frozen_lake_reset, .step = frozen_lake4_step, .observe = frozen_lake4_observe,
};

static const environment frozen_lake8x8_v1 = {
    .name = "FrozenLake8x8-v1", .state = sizeof(grid), .observations = 64, .actions = 4, .step_draws = 1,
    .settings = frozen_lake_settings, .settings_count = 2,
    .reset = frozen_lake_reset, .step = frozen_lake8_step, .observe = frozen_lake8_observe,
};
