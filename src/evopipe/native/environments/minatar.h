// What MinAtar's games have in common (Young & Tian, 2019, arXiv:1903.03176): a board of 10 rows of 10 cells, shown as
// planes of zeros and ones, six actions, of which a game may read a few alone, and actions that stick.

#pragma once

#include "../environment.h"
#include <string.h>

enum { BOARD = 10, BOARD_CELLS = BOARD * BOARD };
enum { STAY, GO_LEFT, GO_UP, GO_RIGHT, GO_DOWN, FIRE, MINATAR_ACTIONS };
enum { STICKY, RAMPING };
static const setting minatar_settings[] = {{"sticky_action_prob", 0.1}, {"difficulty_ramping", 1}};

typedef uint16_t cells;  // of a row, a bit for each

// The action that is taken: as often as `STICKY` says, again the one before. That is a step's first random number.
static int minatar_sticky(int32_t *taken, int chosen, const inputs *in) {
  if (in->random[0] >= in->settings[STICKY]) *taken = chosen;
  return *taken;
}

static int32_t on_board(int32_t place) { return place < 0 ? 0 : place >= BOARD ? BOARD - 1 : place; }
static int32_t sideways(int action) { return (action == GO_RIGHT) - (action == GO_LEFT); }
static int32_t upright(int action) { return (action == GO_DOWN) - (action == GO_UP); }
static int holds(const cells *rows, int x, int y) { return rows[y] >> x & 1; }

static void board_show(float *observation, int plane, int x, int y) {
  observation[plane * BOARD_CELLS + y * BOARD + x] = 1.0f;
}

static void board_show_rows(float *observation, int plane, const cells *rows) {
  for (int y = 0; y < BOARD; y++) {
    for (int x = 0; x < BOARD; x++) observation[plane * BOARD_CELLS + y * BOARD + x] = (float)(rows[y] >> x & 1);
  }
}

// A game under its two names: -v0 takes all actions, -v1 those that the game reads, `...`. What is over stays as it is.
#define MINATAR(game, title, planes, first_draws, draws, ...)                                  \
  static const uint8_t game##_few[] = {__VA_ARGS__};                                           \
  static int game##_step_all(void *state, const inputs *in, double *reward) {                  \
    game *s = state;                                                                           \
    const int taken = minatar_sticky(&s->action, (int)in->choice, in);                         \
    return s->over = s->over || game##_step(s, taken, in, reward);                             \
  }                                                                                            \
  static int game##_step_few(void *state, const inputs *in, double *reward) {                  \
    game *s = state;                                                                           \
    const int taken = minatar_sticky(&s->action, game##_few[in->choice], in);                  \
    return s->over = s->over || game##_step(s, taken, in, reward);                             \
  }                                                                                            \
  static const environment game##_v0 =                                                         \
      MINATAR_KIND(game, title "-v0", planes, first_draws, draws, _step_all, MINATAR_ACTIONS); \
  static const environment game##_v1 =                                                         \
      MINATAR_KIND(game, title "-v1", planes, first_draws, draws, _step_few, sizeof(game##_few))
#define MINATAR_KIND(game, id, planes, first_draws, draws, stepped, taken)                           \
  {                                                                                                  \
    .name = "MinAtar/" id, .state = sizeof(game), .observations = planes * BOARD_CELLS,              \
    .actions = taken, .reset_draws = first_draws, .step_draws = draws, .settings = minatar_settings, \
    .settings_count = 2, .reset = game##_reset, .step = game##stepped, .observe = game##_observe     \
  }
