// Evaluation: members play whole episodes in environments in C and choose what they think best. Nothing is learned or
// drawn. `run.evaluate_tensors` has the same in Python, to the bit.

#include "policy.h"
#include "update.h"

// How a member chooses: by a policy, or by the network of a chooser.
typedef struct {
  const policy *of;
  const chooser *net;
  int p;
  workspace with;  // what a policy needs
  block acts;
  float *kept, *packed;  // what a network needs
  uint8_t *legal;
} mind;

// A member that is evaluated, and room for one tick of the rows that play.
typedef struct {
  const evaluation_call *call;
  mind by;
  ptrdiff_t place, count;  // how many rows play
  env_call pool;           // the member's own rows
  int64_t *rows, *again;   // which play, in order; which begin another episode
  float *obs, *shown, *rewards, *memory, *remembered, *held;  // shown: `obs` as networks read them
  void *actions;
  uint8_t *terminated, *truncated;
} candidate;

static ptrdiff_t observed(const mind *by) { return by->of ? by->of->observations : by->net->net.inputs; }

static ptrdiff_t remembered(const mind *by) { return by->of ? by->of->memory : 0; }

static void lay_out_candidate(const evaluation_call *c, arena *from, candidate *to) {
  mind *by = &to->by;
  const ptrdiff_t w = c->width, each = remembered(by), flags = (w + 3) / 4;
  const ptrdiff_t acts = by->of ? taken_at_once(by->of) : by->net->actions;
  if (by->of) {
    lay_out_workspace(by->of, BLOCK, BLOCK, 0, from, &by->with);
  } else {
    by->kept = take(from, w * by->net->net.keep);
    by->packed = take(from, largest(by->net->net.widest, w) * PANEL);
    by->legal = (uint8_t *)take(from, (acts + 3) / 4);
  }
  to->rows = (int64_t *)take(from, 2 * w), to->again = (int64_t *)take(from, 2);
  to->obs = take(from, w * observed(by)), to->rewards = take(from, w);
  to->shown = c->columns ? take(from, w * observed(by)) : to->obs;
  to->memory = take(from, w * each), to->remembered = take(from, w * each);
  to->actions = take(from, 2 * w * acts);
  to->terminated = (uint8_t *)take(from, flags), to->truncated = (uint8_t *)take(from, flags);
}

// Note which rows play, and what they see; return whether there is memory for it.
static int open_candidate(const evaluation_call *c, int p, candidate *to) {
  arena from = {0};
  lay_out_candidate(c, &from, to);
  from.base = scratch(from.used), from.used = 0;
  if (!from.base) return 0;
  lay_out_candidate(c, &from, to);
  mind *by = &to->by;
  by->p = p;
  if (by->of) {
    by->acts = (block){.of = by->of, .with = &by->with};
    open_block(&by->acts);
  } else {
    memset(by->legal, 1, (size_t)by->net->actions);
  }
  to->call = c, to->place = c->places[p], to->pool = c->pool;
  to->held = c->memory + p * c->width * remembered(by);
  const ptrdiff_t first = to->place * c->width;
  to->pool.states += first * c->pool.stride, to->pool.length += first, to->pool.seeds += first;
  to->pool.only = NULL, to->pool.own = 0, to->pool.where = to->rows;
  to->pool.actions = to->actions, to->pool.obs = to->obs, to->pool.rewards = to->rewards;
  to->pool.terminated = to->terminated, to->pool.truncated = to->truncated;
  to->count = 0;
  for (ptrdiff_t row = 0; row < c->width; row++)
    if (c->playing[first + row] < c->episodes) to->rows[to->count++] = row;
  to->pool.rows = to->count;
  env_observe(&to->pool);
  return 1;
}

// Normalise what is observed, by statistics that stay as they are.
static void normalise_seen(const candidate *m) {
  const evaluation_call *c = m->call;
  const ptrdiff_t n = observed(&m->by), first = (ptrdiff_t)m->by.p * c->columns;
  if (!c->columns) return;
  memcpy(m->shown, m->obs, sizeof(float) * (size_t)(m->count * n));
  normalise_rows(m->shown, m->count, n,
                 &(column_scales){c->columns, c->which, c->mean + first, c->scale + first, c->limit[m->by.p]});
}

// The likeliest actions of a policy, which remembers them where it is recurrent.
static void act_by_policy(candidate *m) {
  const mind *by = &m->by;
  const size_t each = (size_t)by->of->memory, size = sizeof(float) * each;
  for (ptrdiff_t i = 0; each && i < m->count; i++) {
    const ptrdiff_t row = m->rows[i];
    put_or_clear(m->pool.length[row] != 0, m->memory + i * (ptrdiff_t)each, m->held + row * (ptrdiff_t)each, (int)each);
  }
  if (each) memset(m->remembered, 0, size * (size_t)m->count);
  const acting now = {
      .obs = m->shown, .memory = m->memory, .actions = m->actions, .envs = m->count,
      .remembered = each ? m->remembered : NULL,
  };
  m->by.acts.now = &now;
  act_member(&m->by.acts, by->p);
  for (ptrdiff_t i = 0; each && i < m->count; i++)
    memcpy(m->held + m->rows[i] * (ptrdiff_t)each, m->remembered + i * (ptrdiff_t)each, size);
}

// The best choices by a network's values, or its actions without noise.
static void act_by_network(const candidate *m) {
  const chooser *c = m->by.net;
  const int count = c->actions, mean_and_deviation = c->how == SQUASHED;
  pass by;
  run(&c->net, values_of(&c->net, m->by.p, 0), m->by.p, 0, (int)m->count, m->shown, m->by.kept, m->by.packed, &by);
  const float *out = by.out;
  for (ptrdiff_t i = 0; i < m->count; i++, out += count << mean_and_deviation) {
    if (c->how == BEST) ((int64_t *)m->actions)[i] = best_of(out, m->by.legal, count);
    for (int a = 0; c->how != BEST && a < count; a++) ((float *)m->actions)[i * count + a] = tanh_of((double)out[a]);
  }
}

// End a row's episode; return whether it begins another one.
static int end_episode(candidate *m, ptrdiff_t row, int broken) {
  const evaluation_call *c = m->call;
  const ptrdiff_t at = m->place * c->width + row, which = m->place * (c->episodes + 1) + c->playing[at];
  c->returns[which] = broken ? NAN : c->total[at];
  c->lengths[which] = m->pool.length[row];
  c->total[at] = 0.0;
  c->playing[at] = c->waiting[m->place]++;
  if (c->playing[at] >= c->episodes) return 0;
  env_call begins = m->pool;
  *m->again = row;
  begins.rows = 1, begins.where = m->again, begins.begins = c->seeds + c->playing[at];
  env_reset(&begins);
  return 1;
}

// Step all rows that play; those that go on close ranks.
static void step_candidate(candidate *m) {
  const evaluation_call *c = m->call;
  const ptrdiff_t n = observed(&m->by), stepped = m->count;
  m->pool.rows = stepped;
  env_step(&m->pool);
  c->steps[m->place] += stepped;
  m->count = 0;
  for (ptrdiff_t i = 0; i < stepped; i++) {
    const ptrdiff_t row = m->rows[i];
    float *seen = m->obs + i * n, *to = m->obs + m->count * n;
    const int broken = !c->sound && !(finite_numbers(seen, n) && isfinite(m->rewards[i]));
    const int over = m->terminated[i] | m->truncated[i] | broken | (m->pool.length[row] >= c->cap);
    c->total[m->place * c->width + row] += (double)m->rewards[i];
    if (over) {
      if (!end_episode(m, row, broken)) continue;
      env_call begun = m->pool;
      begun.rows = 1, begun.where = m->again, begun.obs = to;
      env_observe(&begun);
    } else if (to != seen) {
      memcpy(to, seen, sizeof(float) * (size_t)n);
    }
    m->rows[m->count++] = row;
  }
}

static int play_candidate(const void *told, int p) {
  const candidate *all = told;
  candidate m = *all;
  if (!open_candidate(all->call, p, &m)) return 1;
  for (ptrdiff_t t = 0; t < all->call->ticks && m.count; t++) {
    normalise_seen(&m);
    if (m.by.of)
      act_by_policy(&m);
    else
      act_by_network(&m);
    step_candidate(&m);
  }
  return 0;
}

int play_episodes(const policy *by, const chooser *or_by, const evaluation_call *call) {
  const candidate all = {.call = call, .by = {.of = by, .net = or_by}};
  return each_member(by ? by->members : or_by->members, play_candidate, &all);
}
