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
    for (int a = 0; a < count; a++) values[a] = (float)tanh((double)out[a]) + c->deviation * noise[a];
    out += count;
  }
}

int tick_choose(const chooser *c, const choose_call *now) {
  for (int p = 0; p < c->members; p++) {
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
      continue;
    }
    around(c, p, now->tick, out, values, values + (ptrdiff_t)c->envs * c->actions);
    call.keys = c->part_keys + p, call.values = values, call.to = (float *)now->actions + to * c->actions;
    clipped_or_random(&call);
  }
  return 0;
}

// --- learning --------------------------------------------------------------------------------------------------------

// Draw the noise of the rows that count.
static void noise_for(const lessons *l, int64_t step) {
  const ptrdiff_t each = (ptrdiff_t)l->batch->batch * l->numbers;
  for (ptrdiff_t p = 0; l->numbers && p < l->members; p++) {
    const int n = l->numbers * rows_that_count(l->batch->batch, l->batches->counts + p * l->batch->batch);
    float *noise = l->noise + p * each;
    normals(&(draw_call){1, 1, n, l->keys + p, l->salt, &step, noise});
    for (int i = 0; l->scale && i < n; i++) noise[i] = l->scale[p] * noise[i];
    if (l->own_noise) normals(&(draw_call){1, 1, n, l->part_keys + p, l->salt, &step, l->own_noise + p * each});
  }
}

static int update_once(const lessons *l, int64_t step, int64_t turn) {
  const update_call now = {.noise = l->noise,
                           .own_noise = l->own_noise,
                           .keys = l->keys,
                           .step = &step,
                           .losses = l->losses,
                           .errors = l->errors,
                           .healthy = l->healthy,
                           .actor_learns = turn % l->period == l->turn};
  if (l->how == BY_VALUE) return value_update(l->job, l->batch, &now, l->members);
  if (l->how == BY_DDPG) return ddpg_update(l->job, l->batch, &now, l->members);
  return sac_update(l->job, l->batch, &now, l->members);
}

// Errors become priorities: none of a diverged member's; where a batch is smaller than the padded one its first row
// stands again.
static void prioritise(const lessons *l) {
  const int n = l->batch->batch;
  for (ptrdiff_t p = 0; p < l->members; p++) {
    int64_t *index = l->batches->index + p * n;
    float *errors = l->errors + p * n;
    const float *counts = l->batches->counts + p * n;
    for (int b = 0; b < n; b++) {
      if (!l->healthy[p]) errors[b] = NAN;
      if (!(counts[b] > 0.0f)) index[b] = index[0], errors[b] = errors[0];
    }
  }
  tree_update(l->priorities);
}

int tick_learn(const lessons *l, const learn_call *now) {
  for (int p = 0; p < l->members; p++) l->filled[p] = now->filled[l->memory[p]];
  for (int i = 0; i < now->updates; i++) {
    const int64_t step = now->step + i;
    draw_batch(l->batches, &(sample_call){&step, l->filled, now->beta});
    noise_for(l, step);
    if (update_once(l, step, now->turn + i)) return 1;
    if (l->priorities) prioritise(l);
  }
  return 0;
}

// --- remembering -----------------------------------------------------------------------------------------------------

// Give new rows the largest priority so far, of every member that samples them.
static void admit(const tree_call *t, int count, const int64_t *places, ptrdiff_t capacity, ptrdiff_t each) {
  const tree *of = t->of;
  for (int i = 0; i < count; i++)
    for (int64_t slot = places[i] / capacity * each, k = 0; k < each; k++, slot++)
      of->levels[0][slot * of->widths[0] + places[i] % capacity] = t->largest[slot];
  for (int i = 0; i < count; i++)
    for (int64_t slot = places[i] / capacity * each, k = 0; k < each; k++, slot++) {
      int64_t at = places[i] % capacity;
      for (int level = 1; level < of->depth; level++) add_up(of, level, slot, at /= FAN_OUT);
    }
}

void tick_remember(const memory_call *m) {
  const int count = store_rows(&m->store);
  if (m->priorities) admit(m->priorities, count, m->store.places, m->store.capacity, m->each);
}

// --- whole ticks, where the environment is in C ----------------------------------------------------------------------

static int choose_all(const world_call *w, const ticks_call *now, ptrdiff_t k) {
  const choose_call call = {w->obs, w->legal, (void *)w->env.actions, now->tick + k, now->epsilon[k]};
  int starved = 0;
  for (int c = 0; c < w->cohorts && !starved; c++) starved = tick_choose(w->choosers + c, &call);
  return starved;
}

// Whether members have taken enough steps to learn, and each one's memory holds a row.
static int may_learn(const world_call *w, int64_t tick) {
  if ((tick + 1) * w->envs <= w->delay) return 0;
  for (int c = 0; c < w->cohorts; c++)
    for (int p = 0; p < w->lessons[c].members; p++)
      if (!w->memory.store.filled[w->lessons[c].memory[p]]) return 0;
  return 1;
}

static int learn_all(const world_call *w, const ticks_call *now, ptrdiff_t k) {
  const int64_t steps = (now->here + k) * w->envs;
  int starved = 0;
  for (int c = 0; c < w->cohorts && !starved; c++) {
    const int64_t every = w->every[c], due = (steps + w->envs) / every - steps / every;
    starved = tick_learn(w->lessons + c, &(learn_call){.step = (now->tick + k) * w->apart,
                                                       .turn = steps / every * w->at_once,
                                                       .updates = (int)(due * w->at_once),
                                                       .beta = now->beta[k],
                                                       .filled = w->memory.store.filled});
  }
  return starved;
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

// Add to a row's running return, and to its member's ended ones.
static void sum_up(const world_call *w, ptrdiff_t i, int over, int finite) {
  const ptrdiff_t at = in_pool(w, i), member = at / w->envs;
  const double total = w->running[at] + (double)w->env.rewards[i];
  if (over && finite) w->sums[member] += total, w->counts[member] += 1.0;
  w->running[at] = over || !finite ? 0.0 : total;
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

// Take ticks, fewer where a transition is broken; `told` counts both.
int tick_many(const world_call *w, const ticks_call *now) {
  for (ptrdiff_t k = 0; k < now->ticks && !now->told[1]; k++) {
    if (choose_all(w, now, k)) return 1;
    if (may_learn(w, now->tick + k) && learn_all(w, now, k)) return 1;
    env_step(&w->env);
    for (ptrdiff_t i = 0; i < w->env.rows; i++) {
      const int finite = enter_row(w, i), over = w->env.terminated[i] | w->env.truncated[i];
      if (w->running) sum_up(w, i, over, finite);
      w->over[in_pool(w, i)] = (uint8_t)(over | !finite);
      now->told[1] += !finite;
    }
    tick_remember(&w->memory);
    begin_again(w);
    now->told[0]++;
  }
  return 0;
}
