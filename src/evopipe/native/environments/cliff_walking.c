// Walk along a cliff (Sutton & Barto, example 6.6): `gymnasium.envs.toy_text.cliffwalking`, 4 rows of 12 cells.

#include "grid.h"

enum { CLIFF_SLIPPERY };
enum { CLIFF_ROWS = 4, CLIFF_COLUMNS = 12, CLIFF_START = 36 };
static const setting cliff_settings[] = {{"is_slippery", 0}}, cliff_slippery_settings[] = {{"is_slippery", 1}};

static void cliff_reset(void *state, const inputs *in) {
  (void)in;
  ((grid *)state)->place = CLIFF_START;
}

static int cliff_step(void *state, const inputs *in, double *reward) {
  grid *s = state;
  const int64_t row = s->place / CLIFF_COLUMNS, column = s->place % CLIFF_COLUMNS;
  const int asked = (int)in->choice;
  switch (in->settings[CLIFF_SLIPPERY] != 0.0 ? slipped(asked, 1.0 / 3.0, in->random[0]) : asked) {
    case 0: s->place -= row > 0 ? CLIFF_COLUMNS : 0; break;
    case 1: s->place += column < CLIFF_COLUMNS - 1; break;
    case 2: s->place += row < CLIFF_ROWS - 1 ? CLIFF_COLUMNS : 0; break;
    default: s->place -= column > 0;
  }
  const int end = CLIFF_ROWS * CLIFF_COLUMNS - 1, fell = s->place > CLIFF_START && s->place < end;
  *reward = fell ? -100.0 : -1.0;
  if (fell) s->place = CLIFF_START;
  return s->place == end;
}

static void cliff_observe(const void *state, float *observation) {
  grid_show(state, observation, CLIFF_ROWS * CLIFF_COLUMNS);
}

#define CLIFF(id, usual)                                                                               \
  {                                                                                                    \
    .name = id, .state = sizeof(grid), .observations = CLIFF_ROWS * CLIFF_COLUMNS, .actions = 4,       \
    .step_draws = 1, .settings = usual, .settings_count = 1, .reset = cliff_reset, .step = cliff_step, \
    .observe = cliff_observe                                                                           \
  }
static const environment cliff_walking_v1 = CLIFF("CliffWalking-v1", cliff_settings);
static const environment cliff_walking_slippery_v1 = CLIFF("CliffWalkingSlippery-v1", cliff_slippery_settings);
