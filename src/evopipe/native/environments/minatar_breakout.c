// Break bricks with a ball, and keep it from the floor with a paddle (MinAtar, see `minatar.h`). The ball moves one cell
// aside and one up or down with every step.

#include "minatar.h"

typedef struct {
  int32_t action, over, paddle;
  int32_t x, y, right, down;  // the ball, and its direction: 1 or -1 each
  int32_t last_x, last_y;
  int32_t struck;  // whether it met a brick in the step before; then it flies through the next
  cells bricks[BOARD];
} breakout;

enum { BRICKS_TOP = 1, BRICKS_END = 4, ALL_CELLS = (1 << BOARD) - 1 };

static void breakout_lay(breakout *s) {
  for (int y = BRICKS_TOP; y < BRICKS_END; y++) s->bricks[y] = ALL_CELLS;
}

static void breakout_reset(void *state, const inputs *in) {
  const int right = in->random[0] < 0.5, x = right ? 0 : BOARD - 1, y = 3;
  *(breakout *)state = (breakout){STAY, 0, 4, x, y, right ? 1 : -1, 1, x, y, 0, {0}};
  breakout_lay(state);
}

static int breakout_bricks_left(const breakout *s) {
  int left = 0;
  for (int y = 0; y < BOARD; y++) left |= s->bricks[y];
  return left != 0;
}

// Whether a ball that comes to the last row in column `x` misses the paddle; else it goes back up. Over the paddle it is
// reflected, beside it thrown back to where it came from.
static int breakout_missed(breakout *s, int x) {
  if (!breakout_bricks_left(s)) breakout_lay(s);
  if (s->x != s->paddle && x != s->paddle) return 1;
  if (s->x != s->paddle) s->right = -s->right;
  s->down = -1;
  return 0;
}

static int breakout_step(breakout *s, int action, const inputs *in, double *reward) {
  (void)in;
  s->paddle = on_board(s->paddle + sideways(action));
  int32_t x = s->x + s->right, y = s->y + s->down, struck = 0, missed = 0;
  if (x != on_board(x)) x = s->x, s->right = -s->right;
  if (y < 0) {
    y = 0, s->down = 1;
  } else if (holds(s->bricks, x, y)) {
    struck = 1;
    if (!s->struck) {
      *reward = 1.0;
      s->bricks[y] &= (cells) ~(1 << x);
      y = s->y, s->down = -s->down;
    }
  } else if (y == BOARD - 1) {
    missed = breakout_missed(s, x);
    if (!missed) y = s->y;
  }
  s->last_x = s->x, s->last_y = s->y;
  s->x = x, s->y = y, s->struck = struck;
  return missed;
}

static void breakout_observe(const void *state, float *observation) {
  const breakout *s = state;
  memset(observation, 0, sizeof(float) * 3 * BOARD_CELLS);
  board_show(observation, 0, s->paddle, BOARD - 1);
  board_show(observation, 1, s->x, s->y);
  board_show(observation, 2, s->last_x, s->last_y);
  board_show_rows(observation, 3, s->bricks);
}

MINATAR(breakout, "Breakout", 4, 1, 1, STAY, GO_LEFT, GO_RIGHT);
