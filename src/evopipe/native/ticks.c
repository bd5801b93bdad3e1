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
