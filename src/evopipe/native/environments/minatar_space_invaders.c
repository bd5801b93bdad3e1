// Shoot aliens, who march from side to side and come nearer at every turn, and keep out of their bullets (MinAtar, see
// `minatar.h`). The fewer are left, the faster they march; the next wave marches faster than the last.

#include "minatar.h"

enum { CANNON_RELOAD = 5, ALIEN_RELOAD = 10, FIRST_MARCH = 12, FASTEST_MARCH = 6, ALIEN_ROWS = 4 };
enum { ALIEN_COLUMNS = 0xfc };  // cells 2 to 7 of a row

typedef struct {
  int32_t action, over, cannon, reload;  // reload: steps until the cannon may fire
  int32_t side;                    // where aliens march to: -1 is left, 1 right
  int32_t march, wait, aim;        // steps between two marches, at most; until the next; until they fire
  int32_t wave;                    // counts those that marched faster than the one before
  cells aliens[BOARD], shots[BOARD], bullets[BOARD];  // shots: the cannon's; bullets: the aliens'
} space_invaders;

static void invaders_line_up(space_invaders *s) {
  for (int y = 0; y < ALIEN_ROWS; y++) s->aliens[y] = ALIEN_COLUMNS;
}

static void space_invaders_reset(void *state, const inputs *in) {
  (void)in;
  *(space_invaders *)state = (space_invaders){
      .cannon = 5, .side = -1, .march = FIRST_MARCH, .wait = FIRST_MARCH, .aim = ALIEN_RELOAD,
  };
  invaders_line_up(state);
}

static int invaders_left(const space_invaders *s) {
  int left = 0;
  for (int y = 0; y < BOARD; y++) left += __builtin_popcount(s->aliens[y]);
  return left;
}

static void rows_down(cells *rows) {
  memmove(rows + 1, rows, sizeof(cells) * (BOARD - 1));
  rows[0] = 0;
}

// One cell aside, or down and about where one of them stands at the edge; returns whether one stood on the floor then.
static int invaders_march(space_invaders *s) {
  cells seen = 0;
  for (int y = 0; y < BOARD; y++) seen |= s->aliens[y];
  if (!(seen >> (s->side < 0 ? 0 : BOARD - 1) & 1)) {
    for (int y = 0; y < BOARD; y++) s->aliens[y] = (cells)(s->side < 0 ? s->aliens[y] >> 1 : s->aliens[y] << 1);
    return 0;
  }
  const cells landed = s->aliens[BOARD - 1];
  s->side = -s->side;
  rows_down(s->aliens);
  s->aliens[0] = landed;
  return landed != 0;
}

// The lowest alien of the column that is nearest to the cannon, the left one of two, fires.
static void invaders_fire(space_invaders *s) {
  for (int away = 0; away < BOARD; away++) {
    for (int side = -1; side <= 1; side += 2) {
      const int x = s->cannon + side * away;
      if (x != on_board(x)) continue;
      for (int y = BOARD - 1; y >= 0; y--) {
        if (!holds(s->aliens, x, y)) continue;
        s->bullets[y] |= (cells)(1 << x);
        return;
      }
    }
  }
}

static void cannon_act(space_invaders *s, int action) {
  if (action == FIRE && s->reload == 0) {
    s->shots[BOARD - 1] |= (cells)(1 << s->cannon);
    s->reload = CANNON_RELOAD;
  }
  s->cannon = on_board(s->cannon + sideways(action));
  memmove(s->shots, s->shots + 1, sizeof(cells) * (BOARD - 1));
  s->shots[BOARD - 1] = 0;
}

static int invaders_act(space_invaders *s) {
  int over = holds(s->aliens, s->cannon, BOARD - 1);
  rows_down(s->bullets);
  over |= holds(s->bullets, s->cannon, BOARD - 1);
  if (s->wait == 0) {
    const int left = invaders_left(s);
    s->wait = left < s->march ? left : s->march;
    over |= invaders_march(s) || holds(s->aliens, s->cannon, BOARD - 1);
  }
  if (s->aim == 0) {
    s->aim = ALIEN_RELOAD;
    invaders_fire(s);
  }
  return over;
}

static int space_invaders_step(space_invaders *s, int action, const inputs *in, double *reward) {
  cannon_act(s, action);
  const int over = invaders_act(s);
  for (int y = 0; y < BOARD; y++) {
    const cells hit = s->aliens[y] & s->shots[y];
    *reward += __builtin_popcount(hit);
    s->aliens[y] ^= hit, s->shots[y] ^= hit;
  }
  s->reload -= s->reload > 0;
  s->wait--, s->aim--;
  if (invaders_left(s) > 0) return over;
  if (s->march > FASTEST_MARCH && in->settings[RAMPING] != 0.0) s->march--, s->wave++;
  invaders_line_up(s);
  return over;
}

static void space_invaders_observe(const void *state, float *observation) {
  const space_invaders *s = state;
  memset(observation, 0, sizeof(float) * 4 * BOARD_CELLS);
  board_show(observation, 0, s->cannon, BOARD - 1);
  board_show_rows(observation, 1, s->aliens);
  board_show_rows(observation, s->side < 0 ? 2 : 3, s->aliens);
  board_show_rows(observation, 4, s->shots);
  board_show_rows(observation, 5, s->bullets);
}

MINATAR(space_invaders, "SpaceInvaders", 6, 0, 1, STAY, GO_LEFT, GO_RIGHT, FIRE);
