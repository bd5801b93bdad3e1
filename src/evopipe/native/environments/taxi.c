// Take a passenger where they want to go (Dietterich, 2000): `gymnasium.envs.toy_text.taxi`, dry and with passengers who
// keep to their destination. Its masks are not given: every action is legal, and a useless one costs.

#include "grid.h"

enum { TAXI_SIDE = 5, TAXI_STOPS = 4, IN_TAXI = 4, TAXI_PLACES = TAXI_SIDE * TAXI_SIDE * (TAXI_STOPS + 1) * TAXI_STOPS };
static const int taxi_stops[TAXI_STOPS] = {0, 4, 20, 23};  // cells, row after row
// Whether a cell has a wall on its right.
static const uint8_t taxi_walls[TAXI_SIDE * TAXI_SIDE] = {
    0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1,
};

static void taxi_reset(void *state, const inputs *in) {
  const int pairs = TAXI_STOPS * (TAXI_STOPS - 1), drawn = (int)(in->random[0] * TAXI_SIDE * TAXI_SIDE * pairs);
  const int passenger = drawn % pairs / (TAXI_STOPS - 1), other = drawn % (TAXI_STOPS - 1);
  const int goal = other + (other >= passenger);
  ((grid *)state)->place = (drawn / pairs * (TAXI_STOPS + 1) + passenger) * TAXI_STOPS + goal;
}

static int taxi_pick_up(int cell, int *passenger) {
  if (*passenger == IN_TAXI || taxi_stops[*passenger] != cell) return -10;
  *passenger = IN_TAXI;
  return -1;
}

static int taxi_drop(int cell, int goal, int *passenger) {
  if (*passenger != IN_TAXI) return -10;
  for (int i = 0; i < TAXI_STOPS; i++) {
    if (taxi_stops[i] != cell) continue;
    *passenger = i;
    return i == goal ? 20 : -1;
  }
  return -10;
}

static int taxi_step(void *state, const inputs *in, double *reward) {
  grid *s = state;
  const int goal = (int)s->place % TAXI_STOPS, row = (int)s->place / 100, column = (int)s->place / 20 % TAXI_SIDE;
  int passenger = (int)s->place / TAXI_STOPS % (TAXI_STOPS + 1), cell = row * TAXI_SIDE + column;
  *reward = -1.0;
  switch (in->choice) {
    case 0: cell += row < TAXI_SIDE - 1 ? TAXI_SIDE : 0; break;
    case 1: cell -= row > 0 ? TAXI_SIDE : 0; break;
    case 2: cell += !taxi_walls[cell]; break;
    case 3: cell -= column > 0 && !taxi_walls[cell - 1]; break;
    case 4: *reward = taxi_pick_up(cell, &passenger); break;
    default: *reward = taxi_drop(cell, goal, &passenger);
  }
  s->place = (cell * (TAXI_STOPS + 1) + passenger) * TAXI_STOPS + goal;
  return *reward == 20.0;
}

static void taxi_observe(const void *state, float *observation) { grid_show(state, observation, TAXI_PLACES); }

static const environment taxi_v4 = {
    .name = "Taxi-v4", .state = sizeof(grid), .observations = TAXI_PLACES, .actions = 6, .reset_draws = 1,
    .reset = taxi_reset, .step = taxi_step, .observe = taxi_observe,
};
