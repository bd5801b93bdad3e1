// Gather gold and keep clear of enemies, which cross the board in eight lanes (MinAtar, see `minatar.h`). They come faster
// and more often with time.

#include "minatar.h"

enum { ASTERIX_LANES = 8, FIRST_SPAWN = 10, FIRST_PACE = 5, RAMP_STEPS = 100 };
enum { NOBODY, ENEMY, GOLD };

typedef struct {
  int32_t kind, x, side;  // side: where it moves to, -1 is left
} crosser;

typedef struct {
  int32_t action, over, x, y;
  int32_t spawn, until_spawn;  // steps between two that come, and until the next does
  int32_t pace, until_move;    // steps between two of their moves, and until the next
  int32_t until_ramp, level;
  crosser lanes[ASTERIX_LANES];
} asterix;

static void asterix_reset(void *state, const inputs *in) {
  (void)in;
  *(asterix *)state = (asterix){
      .x = 5, .y = 5, .spawn = FIRST_SPAWN, .until_spawn = FIRST_SPAWN, .pace = FIRST_PACE, .until_move = FIRST_PACE,
      .until_ramp = RAMP_STEPS,
  };
}

// One enters a free lane.
static void asterix_spawn(asterix *s, const double *random) {
  int free[ASTERIX_LANES], count = 0;
  for (int lane = 0; lane < ASTERIX_LANES; lane++) {
    if (s->lanes[lane].kind == NOBODY) free[count++] = lane;
  }
  if (count == 0) return;
  const int right = random[0] < 0.5, kind = random[1] < 1.0 / 3.0 ? GOLD : ENEMY;
  s->lanes[free[(int)(random[2] * count)]] = (crosser){kind, right ? 0 : BOARD - 1, right ? 1 : -1};
}

// Whether an enemy is met in this lane; gold that is met pays.
static int asterix_meets(asterix *s, int lane, double *reward) {
  crosser *c = &s->lanes[lane];
  if (c->kind == NOBODY || s->y != lane + 1 || s->x != c->x) return 0;
  if (c->kind == ENEMY) return 1;
  *reward += 1.0;
  *c = (crosser){NOBODY, 0, 0};
  return 0;
}

static int asterix_cross(asterix *s, double *reward) {
  int over = 0;
  for (int lane = 0; lane < ASTERIX_LANES; lane++) over |= asterix_meets(s, lane, reward);
  if (s->until_move > 0) return over;
  s->until_move = s->pace;
  for (int lane = 0; lane < ASTERIX_LANES; lane++) {
    crosser *c = &s->lanes[lane];
    c->x += c->side;
    if (c->x != on_board(c->x)) *c = (crosser){NOBODY, 0, 0};
    over |= asterix_meets(s, lane, reward);
  }
  return over;
}

static void asterix_ramp(asterix *s) {
  if (s->spawn == 1 && s->pace == 1) return;
  if (s->until_ramp-- >= 0) return;
  s->pace -= s->pace > 1 && s->level % 2;
  s->spawn -= s->spawn > 1;
  s->level++;
  s->until_ramp = RAMP_STEPS;
}

static int asterix_step(asterix *s, int action, const inputs *in, double *reward) {
  if (s->until_spawn == 0) {
    asterix_spawn(s, in->random + 1);
    s->until_spawn = s->spawn;
  }
  const int32_t y = s->y + upright(action);
  s->x = on_board(s->x + sideways(action));
  if (y >= 1 && y <= ASTERIX_LANES) s->y = y;
  const int over = asterix_cross(s, reward);
  s->until_spawn--, s->until_move--;
  if (in->settings[RAMPING] != 0.0) asterix_ramp(s);
  return over;
}

static void asterix_observe(const void *state, float *observation) {
  const asterix *s = state;
  memset(observation, 0, sizeof(float) * 4 * BOARD_CELLS);
  board_show(observation, 0, s->x, s->y);
  for (int lane = 0; lane < ASTERIX_LANES; lane++) {
    const crosser *c = &s->lanes[lane];
    if (c->kind == NOBODY) continue;
    board_show(observation, c->kind == GOLD ? 3 : 1, c->x, lane + 1);
    const int behind = c->x - c->side;
    if (behind == on_board(behind)) board_show(observation, 2, behind, lane + 1);
  }
}

MINATAR(asterix, "Asterix", 4, 0, 4, STAY, GO_LEFT, GO_UP, GO_RIGHT, GO_DOWN);
