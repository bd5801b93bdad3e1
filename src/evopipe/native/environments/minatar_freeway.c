// Walk a chicken across a road of eight lanes (MinAtar, see `minatar.h`). A car sends it back; the other side pays, and
// gives all cars other speeds. An episode lasts 2,500 steps after the first.

#include "minatar.h"

enum { LANES_OF_CARS = 8, MOST_WAIT = 5, CHICKEN_X = 4, CHICKEN_WAIT = 3, FREEWAY_STEPS = 2500 };

typedef struct {
  int32_t x, wait, pace;  // it moves a cell every |pace| + 1 steps, to the right where that is positive
} car;

typedef struct {
  int32_t action, over, chicken, wait, left;  // left: steps
  car cars[LANES_OF_CARS];
} freeway;

static void freeway_set_paces(freeway *s, const double *random) {
  for (int lane = 0; lane < LANES_OF_CARS; lane++) {
    car *c = &s->cars[lane];
    c->wait = 1 + (int)(random[lane] * MOST_WAIT);
    c->pace = random[LANES_OF_CARS + lane] < 0.5 ? -c->wait : c->wait;
  }
}

static void freeway_reset(void *state, const inputs *in) {
  freeway *s = state;
  *s = (freeway){STAY, 0, BOARD - 1, CHICKEN_WAIT, FREEWAY_STEPS, {{0, 0, 0}}};
  freeway_set_paces(s, in->random);
}

static void freeway_walk(freeway *s, int action, const inputs *in, double *reward) {
  if (s->wait == 0 && upright(action)) {
    s->chicken = on_board(s->chicken + upright(action));
    s->wait = CHICKEN_WAIT;
  }
  if (s->chicken > 0) return;
  *reward = 1.0;
  s->chicken = BOARD - 1;
  freeway_set_paces(s, in->random + 1);
}

static int car_hits(const freeway *s, int lane) { return s->cars[lane].x == CHICKEN_X && s->chicken == lane + 1; }

static void freeway_drive(freeway *s, int lane) {
  car *c = &s->cars[lane];
  if (car_hits(s, lane)) s->chicken = BOARD - 1;
  if (c->wait > 0) {
    c->wait--;
    return;
  }
  c->wait = c->pace < 0 ? -c->pace : c->pace;
  c->x = (c->x + (c->pace < 0 ? BOARD - 1 : 1)) % BOARD;
  if (car_hits(s, lane)) s->chicken = BOARD - 1;
}

static int freeway_step(freeway *s, int action, const inputs *in, double *reward) {
  freeway_walk(s, action, in, reward);
  for (int lane = 0; lane < LANES_OF_CARS; lane++) freeway_drive(s, lane);
  s->wait -= s->wait > 0;
  return --s->left < 0;
}

static void freeway_observe(const void *state, float *observation) {
  const freeway *s = state;
  memset(observation, 0, sizeof(float) * 7 * BOARD_CELLS);
  board_show(observation, 0, CHICKEN_X, s->chicken);
  for (int lane = 0; lane < LANES_OF_CARS; lane++) {
    const car *c = &s->cars[lane];
    const int pace = c->pace < 0 ? -c->pace : c->pace, behind = c->x + (c->pace < 0 ? 1 : BOARD - 1);
    board_show(observation, 1, c->x, lane + 1);
    board_show(observation, 1 + pace, behind % BOARD, lane + 1);  // where it has come from, on a plane for its pace
  }
}

MINATAR(freeway, "Freeway", 7, 2 * LANES_OF_CARS, 1 + 2 * LANES_OF_CARS, STAY, GO_UP, GO_DOWN);
