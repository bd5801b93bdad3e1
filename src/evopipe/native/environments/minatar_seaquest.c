// Steer a submarine: shoot fish and submarines, pick up divers, and bring them up before the air runs out (MinAtar, see
// `minatar.h`). Every dive is harder than the one before.

#include "minatar.h"

// No shoal grows to `SHOAL`: at most one comes a step, and it leaves within 30.
enum { SHOAL = 32, SEAQUEST_ROWS = 8 };
enum { FULL_OXYGEN = 200, MOST_DIVERS = 6, DIVER_PACE = 5, DIVER_SPAWN = 30, SEAQUEST_SPAWN = 20, SEAQUEST_PACE = 5 };
enum { FASTEST_PACE = 2, TORPEDO_RELOAD = 5, ENEMY_RELOAD = 10 };

typedef struct {
  int8_t x, y, side, wait, aim;  // side: where it moves to, -1 is left; steps until it moves, and until it fires
} swimmer;

typedef struct {
  int32_t count;
  swimmer at[SHOAL];  // zeros behind the last one
} shoal;

typedef struct {
  int32_t action, over, x, y, side;
  int32_t oxygen, divers, surfaced, reload;
  int32_t spawn, until_spawn, until_diver, pace, level;
  shoal torpedoes, bullets, fish, subs, swimmers;
} seaquest;

static void seaquest_reset(void *state, const inputs *in) {
  (void)in;
  *(seaquest *)state = (seaquest){
      .x = 5, .side = -1, .oxygen = FULL_OXYGEN, .surfaced = 1, .spawn = SEAQUEST_SPAWN, .until_spawn = SEAQUEST_SPAWN,
      .until_diver = DIVER_SPAWN, .pace = SEAQUEST_PACE,
  };
}

static void shoal_add(shoal *to, swimmer one) {
  if (to->count < SHOAL) to->at[to->count++] = one;
}

static void shoal_drop(shoal *from, int place) {
  const int behind = --from->count - place;
  memmove(from->at + place, from->at + place + 1, sizeof(swimmer) * (size_t)behind);
  from->at[from->count] = (swimmer){0, 0, 0, 0, 0};
}

static int faces_another(const shoal *of, swimmer one) {
  for (int i = 0; i < of->count; i++) {
    if (of->at[i].y == one.y && of->at[i].side != one.side) return 1;
  }
  return 0;
}

static swimmer entering(double side, double row, int pace) {
  const int right = side < 0.5, y = 1 + (int)(row * SEAQUEST_ROWS);
  return (swimmer){right ? 0 : BOARD - 1, (int8_t)y, right ? 1 : -1, (int8_t)pace, 0};
}

static void seaquest_spawn(seaquest *s, const double *random) {
  if (s->until_spawn == 0) {
    swimmer one = entering(random[0], random[2], s->pace);
    const int armed = random[1] < 1.0 / 3.0;
    if (armed) one.aim = ENEMY_RELOAD;
    if (!faces_another(&s->fish, one) && !faces_another(&s->subs, one)) shoal_add(armed ? &s->subs : &s->fish, one);
    s->until_spawn = s->spawn;
    random += 3;
  }
  if (s->until_diver == 0) {
    shoal_add(&s->swimmers, entering(random[0], random[1], DIVER_PACE));
    s->until_diver = DIVER_SPAWN;
  }
}

static void seaquest_steer(seaquest *s, int action) {
  if (action == FIRE && s->reload == 0) {
    shoal_add(&s->torpedoes, (swimmer){(int8_t)s->x, (int8_t)s->y, (int8_t)s->side, 0, 0});
    s->reload = TORPEDO_RELOAD;
  }
  if (sideways(action)) s->side = sideways(action);
  s->x = on_board(s->x + sideways(action));
  const int y = s->y + upright(action);
  if (y >= 0 && y <= SEAQUEST_ROWS) s->y = y;
}

// Whether it has left the board, where it moves now.
static int swims_off(swimmer *one, int pace) {
  if (one->wait > 0) {
    one->wait--;
    return 0;
  }
  one->wait = (int8_t)pace, one->x += one->side;
  return one->x != on_board(one->x);
}

static int at_place(const shoal *of, swimmer where) {
  for (int i = 0; i < of->count; i++) {
    if (of->at[i].x == where.x && of->at[i].y == where.y) return i;
  }
  return -1;
}

static void torpedoes_run(seaquest *s, double *reward) {
  for (int i = s->torpedoes.count - 1; i >= 0; i--) {
    swimmer *one = &s->torpedoes.at[i];
    int hit = 0;
    if (!swims_off(one, 0)) {
      shoal *const targets[2] = {&s->fish, &s->subs};
      for (int k = 0; k < 2 && !hit; k++) {
        const int place = at_place(targets[k], *one);
        if (place < 0) continue;
        shoal_drop(targets[k], place);
        hit = 1;
      }
      if (!hit) continue;
    }
    *reward += hit;
    shoal_drop(&s->torpedoes, i);
  }
}

static int meets_sub(const seaquest *s, const swimmer *one) { return one->x == s->x && one->y == s->y; }

static int picked_up(seaquest *s, const swimmer *diver) {
  const int taken = meets_sub(s, diver) && s->divers < MOST_DIVERS;
  s->divers += taken;
  return taken;
}

static void divers_swim(seaquest *s) {
  for (int i = s->swimmers.count - 1; i >= 0; i--) {
    swimmer *one = &s->swimmers.at[i];
    if (picked_up(s, one) || swims_off(one, DIVER_PACE) || picked_up(s, one)) shoal_drop(&s->swimmers, i);
  }
}

// Whether it is gone: off the board, or onto a torpedo, which pays.
static int enemy_leaves(seaquest *s, swimmer *one, double *reward) {
  if (swims_off(one, s->pace)) return 1;
  const int place = meets_sub(s, one) ? -1 : at_place(&s->torpedoes, *one);
  if (place < 0) return 0;
  shoal_drop(&s->torpedoes, place);
  *reward += 1.0;
  return 1;
}

// Whether one of them meets the submarine.
static int enemies_swim(seaquest *s, shoal *enemies, int armed, double *reward) {
  int met = 0;
  for (int i = enemies->count - 1; i >= 0; i--) {
    swimmer *one = &enemies->at[i];
    met |= meets_sub(s, one);
    const int gone = enemy_leaves(s, one, reward);
    met |= !gone && meets_sub(s, one);
    if (armed && one->aim-- == 0) {  // one that is hit fires all the same
      one->aim = ENEMY_RELOAD;
      shoal_add(&s->bullets, (swimmer){one->x, one->y, one->side, 0, 0});
    }
    if (gone) shoal_drop(enemies, i);
  }
  return met;
}

static int bullets_fly(seaquest *s) {
  int met = 0;
  for (int i = s->bullets.count - 1; i >= 0; i--) {
    swimmer *one = &s->bullets.at[i];
    met |= meets_sub(s, one);
    if (swims_off(one, 0))
      shoal_drop(&s->bullets, i);
    else
      met |= meets_sub(s, one);
  }
  return met;
}

static void seaquest_ramp(seaquest *s) {
  if (s->spawn == 1 && s->pace == FASTEST_PACE) return;
  s->pace -= s->pace > FASTEST_PACE && s->level % 2;
  s->spawn -= s->spawn > 1;
  s->level++;
}

static void seaquest_surface(seaquest *s, const inputs *in, double *reward) {
  if (s->divers == MOST_DIVERS) {
    *reward += s->oxygen * BOARD / FULL_OXYGEN;
    s->divers = 0;
  }
  s->divers--;  // which leaves one too few after all six, as in the package
  s->surfaced = 1, s->oxygen = FULL_OXYGEN;
  if (in->settings[RAMPING] != 0.0) seaquest_ramp(s);
}

static int seaquest_step(seaquest *s, int action, const inputs *in, double *reward) {
  seaquest_spawn(s, in->random + 1);
  seaquest_steer(s, action);
  torpedoes_run(s, reward);
  divers_swim(s);
  int over = enemies_swim(s, &s->subs, 1, reward);
  over |= bullets_fly(s);
  over |= enemies_swim(s, &s->fish, 0, reward);
  s->until_spawn -= s->until_spawn > 0, s->until_diver -= s->until_diver > 0, s->reload -= s->reload > 0;
  over |= s->oxygen <= 0;
  if (s->y > 0) {
    s->oxygen--, s->surfaced = 0;
  } else if (!s->surfaced) {
    if (s->divers == 0) return 1;
    seaquest_surface(s, in, reward);
  }
  return over;
}

static void shoal_show(float *observation, int plane, const shoal *of, int trail) {
  for (int i = 0; i < of->count; i++) {
    const swimmer one = of->at[i];
    board_show(observation, plane, one.x, one.y);
    const int behind = one.x - one.side;
    if (trail && behind == on_board(behind)) board_show(observation, 3, behind, one.y);
  }
}

static void seaquest_observe(const void *state, float *observation) {
  const seaquest *s = state;
  memset(observation, 0, sizeof(float) * 10 * BOARD_CELLS);
  board_show(observation, 0, s->x, s->y);
  board_show(observation, 1, s->x - s->side, s->y);
  shoal_show(observation, 2, &s->torpedoes, 0);
  shoal_show(observation, 4, &s->bullets, 0);
  shoal_show(observation, 5, &s->fish, 1);
  shoal_show(observation, 6, &s->subs, 1);
  shoal_show(observation, 9, &s->swimmers, 1);
  for (int x = 0; x < s->oxygen * BOARD / FULL_OXYGEN; x++) board_show(observation, 7, x, BOARD - 1);
  for (int i = 1; i <= s->divers; i++) board_show(observation, 8, BOARD - 1 - i, BOARD - 1);
}

MINATAR(seaquest, "Seaquest", 10, 0, 6, STAY, GO_LEFT, GO_UP, GO_RIGHT, GO_DOWN, FIRE);
