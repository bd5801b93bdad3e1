// Ticks of off-policy members: they choose actions, learn from a replay memory, step and remember. Each part is one call
// for all members of a cohort; where their environment is in C too, several whole ticks are one.

#include "update.h"

enum { BEST, SQUASHED, NOISY };                 // how actions are chosen, see `native.ticks.CHOOSE`
enum { BY_VALUE, BY_DDPG, BY_SAC };             // and how an update is made, see `native.ticks.UPDATES`

// --- choosing --------------------------------------------------------------------------------------------------------

// Let a member's network read what it sees in its environments; what is returned lies in scratch.
static const float *answers(const chooser *c, int p, const float *obs, float **spare) {
  const network *net = &c->net;
  const ptrdiff_t numbers = (ptrdiff_t)c->envs * c->actions;
  arena from = {0};
  pass by;
  for (int twice = 0; twice < 2; twice++) {
    if (twice) from = (arena){scratch(from.used), 0};
    if (twice && !from.base) return NULL;
    float *kept = take(&from, c->envs * net->keep);
    float *packed = take(&from, largest(net->widest, c->envs) * PANEL);
    *spare = take(&from, 2 * numbers);
    if (twice) run(net, values_of(net, p, 0), p, 0, c->envs, obs, kept, packed, &by);
  }
  return by.out;
}

// tanh(mean + exp(log-deviation) · noise), or with noise behind it, in `values`.
static void around(const chooser *c, int p, int64_t tick, const float *out, float *values, float *noise) {
  const int count = c->actions;
  normals(&(draw_call){1, 1, c->envs * count, c->keys + p, c->salt, &tick, noise});
  for (int e = 0; e < c->envs; e++, values += count, noise += count) {
    if (c->how == SQUASHED) {
      for (int a = 0; a < count; a++) values[a] = squashed_once(out[a], out[count + a], noise[a]);
      out += 2 * count;
      continue;
    }
    for (int a = 0; a < count; a++) values[a] = tanh_of((double)out[a]) + c->deviation * noise[a];
    out += count;
  }
}

static int choose_member(const chooser *c, int p, const choose_call *now) {
  float *values;
  const ptrdiff_t row = c->from[p], to = c->to[p];
  const float epsilon = c->healthy[p] ? now->epsilon : 1.0f;
  const float *out = answers(c, p, now->obs + row * c->net.inputs, &values);
  if (!out) return 1;
  explore_call call = {.members = 1,
                       .envs = c->envs,
                       .actions = c->actions,
                       .keys = c->keys + p,
                       .salt = c->salt,
                       .step = &now->tick,
                       .epsilon = &epsilon,
                       .values = out};
  if (c->how == BEST) {
    call.legal = now->legal + row * c->actions, call.to = (int64_t *)now->actions + to;
    best_or_random(&call);
    return 0;
  }
  around(c, p, now->tick, out, values, values + (ptrdiff_t)c->envs * c->actions);
  call.keys = c->part_keys + p, call.values = values, call.to = (float *)now->actions + to * c->actions;
  clipped_or_random(&call);
  return 0;
}

int tick_choose(const chooser *c, const choose_call *now) {
  int starved = 0;
  for (int p = 0; p < c->members && !starved; p++) starved = choose_member(c, p, now);
  return starved;
}

// --- learning --------------------------------------------------------------------------------------------------------

// Draw the noise of a member's rows that count.
static void noise_for(const lessons *l, ptrdiff_t p, int64_t step) {
  const ptrdiff_t batch = l->batch->batch, at = p * batch * l->numbers;
  const int n = l->numbers * rows_that_count(l->batch->batch, l->batches->counts + p * batch);
  if (!n) return;
  normals(&(draw_call){1, 1, n, l->keys + p, l->salt, &step, l->noise + at});
  for (int i = 0; l->scale && i < n; i++) l->noise[at + i] = l->scale[p] * l->noise[at + i];
  if (l->own_noise) normals(&(draw_call){1, 1, n, l->part_keys + p, l->salt, &step, l->own_noise + at});
}

static int update_one(const lessons *l, int p, int64_t step, int64_t turn) {
  const update_call now = {.noise = l->noise,
                           .own_noise = l->own_noise,
                           .keys = l->keys,
                           .step = &step,
                           .losses = l->losses,
                           .errors = l->errors,
                           .healthy = l->healthy,
                           .actor_learns = turn % l->period == l->turn};
  const family *const families[] = {[BY_VALUE] = &VALUE, [BY_DDPG] = &DDPG, [BY_SAC] = &SAC};
  return update_member(&(update_work){families[l->how], l->job, l->batch, &now, l->job}, p);
}

// Errors become priorities: none of a diverged member's; where its batch is smaller than the padded one its first row
// stands again.
static int prioritise(const lessons *l, ptrdiff_t p) {
  const int n = l->batch->batch;
  int64_t *index = l->batches->index + p * n;
  float *errors = l->errors + p * n, *fresh = scratch(n + SUMS);
  const float *counts = l->batches->counts + p * n;
  if (!fresh) return 1;
  for (int b = 0; b < n; b++) {
    if (!l->healthy[p]) errors[b] = NAN;
    if (!(counts[b] > 0.0f)) index[b] = index[0], errors[b] = errors[0];
  }
  update_tree(l->priorities, p, fresh);
  return 0;
}

static int draw_for(const lessons *l, int p, int64_t step, const learn_call *now) {
  const sample *j = l->batches;
  arena from = {0};
  draw_room room = {0};
  for (int twice = 0; twice < 2; twice++) {
    if (twice) from = (arena){scratch(from.used), 0};
    if (twice && !from.base) return 1;
    room.u = (double *)take(&from, 2 * j->n), room.chance = take(&from, j->n);
    room.ends = (double *)take(&from, 2 * (j->places + (ptrdiff_t)j->n));
  }
  draw_member(j, p, step, now->filled[l->memory[p]], now->beta, room);
  return 0;
}

typedef struct {
  const lessons *of;
  const learn_call *now;
} learning;

// Any row will do to learn from; nobody waits for a neighbour whose memory is empty.
static int learn_member(const void *told, int p) {
  const learning *j = told;
  if (!j->now->filled[j->of->memory[p]]) return 0;
  for (int i = 0; i < j->now->updates; i++) {
    const int64_t step = j->now->step + i;
    if (draw_for(j->of, p, step, j->now)) return 1;
    noise_for(j->of, p, step);
    if (update_one(j->of, p, step, j->now->turn + i)) return 1;
    if (j->of->priorities && prioritise(j->of, p)) return 1;
  }
  return 0;
}

int tick_learn(const lessons *l, const learn_call *now) {
  return each_member(l->members, learn_member, &(learning){l, now});
}

// --- remembering -----------------------------------------------------------------------------------------------------

// Give new rows the largest priority so far, of every member that samples them.
static void admit(const memory_call *m, int count) {
  const tree *of = m->priorities->of;
  const int64_t *places = m->store.places, capacity = m->store.capacity;
  for (int i = 0; i < count; i++)
    for (int64_t slot = m->first + places[i] / capacity * m->each, k = 0; k < m->each; k++, slot++)
      of->levels[0][slot * of->widths[0] + places[i] % capacity] = m->priorities->largest[slot];
  for (int i = 0; i < count; i++)
    for (int64_t slot = m->first + places[i] / capacity * m->each, k = 0; k < m->each; k++, slot++) {
      int64_t at = places[i] % capacity;
      for (int level = 1; level < of->depth; level++) add_up(of, level, slot, at /= FAN_OUT);
    }
}

void tick_remember(const memory_call *m) {
  const int count = store_rows(&m->store);
  if (m->priorities) admit(m, count);
}

// --- whole ticks, where the environment is in C ----------------------------------------------------------------------

static choose_call choice_at(const world_call *w, const ticks_call *now, ptrdiff_t k) {
  return (choose_call){w->obs, w->legal, (void *)w->env.actions, now->tick + k, now->epsilon[k]};
}

// Whether members have taken enough steps to learn.
static int old_enough(const world_call *w, int64_t tick) { return (tick + 1) * w->envs > w->delay; }

// What a cohort has to learn at a tick.
static learn_call due_at(const world_call *w, const ticks_call *now, ptrdiff_t k, int c) {
  const int64_t steps = (now->here + k) * w->envs, every = w->every[c];
  return (learn_call){.step = (now->tick + k) * w->apart,
                      .turn = steps / every * w->at_once,
                      .updates = (int)(((steps + w->envs) / every - steps / every) * w->at_once),
                      .beta = now->beta[k],
                      .filled = w->memory.store.filled};
}

INLINE ptrdiff_t in_pool(const world_call *w, ptrdiff_t i) { return w->env.where ? (ptrdiff_t)w->env.where[i] : i; }

// Write what a row saw, did and got, as `memory.replay.RowLayout` has it; return whether all that it got is finite.
static int enter_row(const world_call *w, ptrdiff_t i) {
  const environment *of = w->env.of;
  const ptrdiff_t o = of->observations, at = in_pool(w, i);
  float *row = w->rows + at * w->memory.store.size;
  memcpy(row, w->obs + i * o, sizeof(float) * (size_t)o);
  memcpy(row + o, w->env.obs + i * o, sizeof(float) * (size_t)o);
  int finite = isfinite(w->env.rewards[i]) != 0;
  for (ptrdiff_t j = 0; j < o; j++) finite &= isfinite(row[o + j]) != 0;
  row += 2 * o;
  if (of->continuous)
    for (int a = 0; a < of->actions; a++) *row++ = ((const float *)w->env.actions)[i * of->actions + a];
  else
    *row++ = (float)((const int64_t *)w->env.actions)[i];
  row[0] = w->env.rewards[i], row[1] = (float)w->env.terminated[i];
  w->keep[at] = (uint8_t)finite;
  return finite;
}

// Begin new episodes in rows that are over; `obs` becomes what members act on next.
static void begin_again(const world_call *w) {
  const ptrdiff_t o = w->env.of->observations;
  memcpy(w->obs, w->env.obs, sizeof(float) * (size_t)(w->env.rows * o));
  const int count = next_episodes(&w->episodes);
  if (!count) return;
  env_call begins = w->env;
  begins.rows = count, begins.where = w->episodes.found, begins.begins = w->episodes.seeds;
  env_reset(&begins);
  for (ptrdiff_t i = 0; i < w->env.rows; i++) {
    const ptrdiff_t at = in_pool(w, i);
    if (w->episodes.over[at]) w->env.of->observe(w->env.states + at * w->env.stride, w->obs + i * o);
  }
}

// Step, remember, and begin anew what is over; return how many transitions were broken.
static int64_t end_tick_of(const world_call *w) {
  int64_t broken = 0;
  env_step(&w->env);
  for (ptrdiff_t i = 0; i < w->env.rows; i++) {
    const int finite = enter_row(w, i), over = w->env.terminated[i] | w->env.truncated[i];
    const ptrdiff_t at = in_pool(w, i);
    count_return(&w->returns, at, at / w->envs, w->env.rewards[i], w->env.length[at], over, !finite);
    w->over[at] = (uint8_t)(over | !finite);
    broken += !finite;
  }
  tick_remember(&w->memory);
  begin_again(w);
  return broken;
}

// All members take a tick, then the next one.
static int tick_by_tick(const world_call *w, const ticks_call *now) {
  int starved = 0;
  for (ptrdiff_t k = 0; k < now->ticks && !now->told[1]; k++) {
    const choose_call call = choice_at(w, now, k);
    for (int c = 0; c < w->cohorts && !starved; c++) starved = tick_choose(w->choosers + c, &call);
    const int learns = old_enough(w, now->tick + k);
    for (int c = 0; c < w->cohorts && learns && !starved; c++) {
      const learn_call due = due_at(w, now, k, c);
      starved = tick_learn(w->lessons + c, &due);
    }
    if (starved) return 1;
    now->told[1] += end_tick_of(w), now->told[0]++;
  }
  return 0;
}

// The part of a world that is a member's: its rows, which lie together, and its memory.
static world_call part_for(const world_call *w, int c, int p) {
  world_call own = *w;
  const environment *of = w->env.of;
  const ptrdiff_t first = w->choosers[c].from[p], at = in_pool(w, first), o = of->observations;
  const ptrdiff_t slot = w->lessons[c].memory[p], size = w->memory.store.size;
  own.env.rows = w->envs, own.env.where = NULL;
  own.env.states += at * w->env.stride, own.env.length += at, own.env.seeds += at;
  own.env.actions = of->continuous ? (const void *)((const float *)w->env.actions + first * of->actions)
                                   : (const void *)((const int64_t *)w->env.actions + first);
  own.env.obs += first * o, own.env.rewards += first, own.env.terminated += first, own.env.truncated += first;
  own.obs += first * o, own.rows += at * size, own.keep += at, own.over += at;
  returns_call *to = &own.returns;
  if (to->running) to->running += at, to->sums += slot, to->counts += slot, to->lost += slot;
  own.episodes.rows = w->envs, own.episodes.over = own.over, own.episodes.keys += at, own.episodes.envs += at;
  own.episodes.begun += at, own.episodes.found += at, own.episodes.seeds += at;
  own.memory.first = slot;
  own.memory.store.memories = 1, own.memory.store.rows = own.rows, own.memory.store.keep = own.keep;
  own.memory.store.to += slot * w->memory.store.capacity * size;
  own.memory.store.position += slot, own.memory.store.filled += slot, own.memory.store.places += at;
  return own;
}

typedef struct {
  const world_call *world;
  const ticks_call *now;
} span;

// A member takes all ticks: nobody else's numbers are in its way, neither in its memory nor in the processor's cache.
static int live(const void *told, int p) {
  const span *s = told;
  const world_call *w = s->world;
  int c = 0;
  for (; p >= w->lessons[c].members; c++) p -= w->lessons[c].members;
  const world_call own = part_for(w, c, p);
  for (ptrdiff_t k = 0; k < s->now->ticks; k++) {
    const choose_call call = choice_at(w, s->now, k);
    const learn_call due = due_at(w, s->now, k, c);
    if (choose_member(w->choosers + c, p, &call)) return 1;
    if (old_enough(w, s->now->tick + k) && learn_member(&(learning){w->lessons + c, &due}, p)) return 1;
    end_tick_of(&own);
  }
  return 0;
}

// Take ticks; where a transition is broken it is the last one. `told` counts both.
int tick_many(const world_call *w, const ticks_call *now) {
  int members = 0;
  if (!w->alone) return tick_by_tick(w, now);
  for (int c = 0; c < w->cohorts; c++) members += w->lessons[c].members;
  now->told[0] = now->ticks;
  return each_member(members, live, &(span){w, now});
}
