// Whole rollouts: members act in environments in C, tick after tick, and what they did is stored and estimated. A tick
// is made of the same pieces as where Python calls them one by one, and so has the same bits. All ticks of a member come
// before another member's: its networks stay in the processor's cache.

#include "policy.h"
#include "statistics.h"

// A member that plays.
typedef struct {
  const policy *of;
  const play_call *call;
  int p;
  ptrdiff_t row;   // its first one in the pool
  workspace with;  // what follows is room for one tick of its rows
  block acts;
  env_call pool;
  float *obs, *next, *log_probs, *values, *rewards, *memory, *remembered;
  float *shown, *paid, *mean, *scale;  // observations and rewards as they are learned from, by these where normalised
  double *merged;  // [N, E], what statistics take in
  void *actions;
  int64_t *found, *seeds;
  uint8_t *given, *begins, *terminated, *truncated, *broken, *over;
} player;

static ptrdiff_t taken_at_once(const policy *of) { return of->kind == NUMBERS ? of->outputs : of->choices; }

static void lay_out_player(const policy *of, ptrdiff_t envs, arena *from, player *to) {
  const ptrdiff_t flags = (envs + 3) / 4, all = envs * of->observations;
  uint8_t **const of_flags[] = {&to->given, &to->begins, &to->terminated, &to->truncated, &to->broken, &to->over};
  lay_out_workspace(of, BLOCK, BLOCK, 0, from, &to->with);
  to->obs = take(from, all), to->next = take(from, all), to->shown = take(from, all), to->paid = take(from, envs);
  to->mean = take(from, of->observations), to->scale = take(from, of->observations);
  to->merged = (double *)take(from, 2 * largest(all, envs));
  to->log_probs = take(from, envs), to->values = take(from, envs), to->rewards = take(from, envs);
  to->memory = take(from, envs * of->memory), to->remembered = take(from, envs * of->memory);
  to->actions = take(from, 2 * envs * taken_at_once(of));
  to->found = (int64_t *)take(from, 2 * envs), to->seeds = (int64_t *)take(from, 2 * envs);
  for (size_t i = 0; i < sizeof(of_flags) / sizeof(*of_flags); i++) *of_flags[i] = (uint8_t *)take(from, flags);
}

// Whether there is memory for it.
static int open_player(const policy *of, const play_call *call, int p, player *to) {
  arena from = {0};
  lay_out_player(of, call->envs, &from, to);
  from.base = scratch(from.used), from.used = 0;
  if (!from.base) return 0;
  lay_out_player(of, call->envs, &from, to);
  to->of = of, to->call = call, to->p = p, to->row = (ptrdiff_t)call->slots[p] * call->envs;
  to->acts = (block){.of = of, .with = &to->with};
  open_block(&to->acts);
  to->pool = call->pool;
  to->pool.states += to->row * call->pool.stride;
  to->pool.length += to->row, to->pool.seeds += to->row;
  to->pool.where = NULL, to->pool.only = NULL, to->pool.own = 0;
  to->pool.actions = to->actions, to->pool.rewards = to->rewards;
  to->pool.terminated = to->terminated, to->pool.truncated = to->truncated;
  memset(to->broken, 0, (size_t)call->envs);
  return 1;
}

static void observe_all(player *m) {
  m->pool.rows = m->call->envs, m->pool.obs = m->obs;
  env_observe(&m->pool);
}

// What the member's observations are normalised by.
static column_scales seen_by(const player *m) {
  const normalise_call *by = &m->call->normalise;
  return (column_scales){by->seen.columns, by->which, m->mean, m->scale, by->seen.columns ? by->limit[m->p] : 0.0f};
}

// Merge what the member sees into its statistics: rows that are finite, if it is healthy.
static void merge_seen(player *m) {
  const normalise_call *by = &m->call->normalise;
  const statistics *s = &by->seen;
  const ptrdiff_t envs = m->call->envs, n = m->of->observations, first = m->p * s->columns;
  if (!s->columns) return;
  for (ptrdiff_t e = 0; e < envs; e++) {
    m->given[e] = by->healthy[m->p];
    for (ptrdiff_t j = 0; j < s->columns; j++) m->given[e] &= isfinite(m->obs[e * n + by->which[j]]) != 0;
  }
  for (ptrdiff_t j = 0; j < s->columns; j++)
    for (ptrdiff_t e = 0; e < envs; e++) m->merged[j * envs + e] = (double)m->obs[e * n + by->which[j]];
  merge_member(s, m->p, m->merged, m->given, envs);
  for (ptrdiff_t j = 0; j < s->columns; j++)
    m->mean[j] = (float)s->mean[first + j], m->scale[j] = scale_of(s, m->p, j);
}

// Observations as the member's networks read them.
static const float *show_rows(player *m, const float *obs) {
  const ptrdiff_t envs = m->call->envs, n = m->of->observations;
  const column_scales by = seen_by(m);
  if (!by.columns) return obs;
  memcpy(m->shown, obs, sizeof(float) * (size_t)(envs * n));
  normalise_rows(m->shown, envs, n, &by);
  return m->shown;
}

// Rewards as the member learns from them, by the deviation of its discounted returns.
static const float *pay_rows(player *m) {
  const normalise_call *by = &m->call->normalise;
  const statistics *s = &by->paid;
  const ptrdiff_t envs = m->call->envs, p = m->p;
  if (!s->columns) return m->rewards;
  for (ptrdiff_t e = 0; e < envs; e++) {
    double *value = by->returns + m->row + e;
    m->given[e] = by->healthy[p] && !m->broken[e];
    if (m->given[e]) *value = *value * (double)by->gamma[p] + (double)m->rewards[e];
    m->merged[e] = *value;
    if (m->terminated[e] | m->truncated[e] | m->broken[e]) *value = 0.0;
  }
  merge_member(s, p, m->merged, m->given, envs);
  const float scale = scale_of(s, p, 0);
  for (ptrdiff_t e = 0; e < envs; e++) m->paid[e] = within(m->rewards[e] * scale, by->limit[p]);
  return m->paid;
}

// Let the member choose, and enter what it knows before the step.
static void choose_and_enter(player *m, ptrdiff_t t) {
  const policy *of = m->of;
  const play_call *c = m->call;
  const ptrdiff_t each = of->memory, all_memory = c->envs * each;
  const uint64_t when = (uint64_t)(c->first + t);
  float *kept = c->memory + m->p * c->memory_stride + t * all_memory;
  if (each) memcpy(kept, m->remembered, sizeof(float) * (size_t)all_memory);
  for (ptrdiff_t e = 0; e < c->envs; e++) {
    m->begins[e] = m->pool.length[e] == 0;
    if (each) put_or_clear(!m->begins[e], m->memory + e * each, m->remembered + e * each, (int)each);
  }
  if (each) memset(m->remembered, 0, sizeof(float) * (size_t)all_memory);
  merge_seen(m);
  const float *shown = show_rows(m, m->obs);
  const acting now = {
      .obs = shown, .memory = m->memory, .keys = c->keys, .when = &when, .actions = m->actions, .envs = c->envs,
      .log_probs = m->log_probs, .values = m->values, .remembered = each ? m->remembered : NULL, .salt = c->salt,
  };
  m->acts.now = &now;
  act_member(&m->acts, m->p);
  if (each) memcpy(kept + all_memory, m->remembered, sizeof(float) * (size_t)all_memory);
  rollout_enter(&(enter_call){
      .members = 1, .envs = c->envs, .observations = of->observations, .choices = taken_at_once(of),
      .rows = c->steps + m->p * c->steps_stride + t * c->envs * c->row, .obs = shown, .actions = m->actions,
      .whole_numbers = of->kind != NUMBERS, .log_probs = m->log_probs, .values = m->values, .begins = m->begins,
  });
}

static int finite_numbers(const float *x, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; i++)
    if (!isfinite(x[i])) return 0;
  return 1;
}

static void step_and_finish(player *m, ptrdiff_t t) {
  const play_call *c = m->call;
  const ptrdiff_t n = m->of->observations, known = n + taken_at_once(m->of), after = n + 4;
  m->pool.rows = c->envs, m->pool.obs = m->next;
  env_step(&m->pool);
  for (ptrdiff_t e = 0; c->broken && e < c->envs; e++) {
    m->broken[e] = !(finite_numbers(m->next + e * n, n) && isfinite(m->rewards[e]));
    c->broken[m->p] += m->broken[e];
  }
  rollout_finish(&(finish_call){
      .members = 1, .envs = c->envs, .observations = n, .obs = show_rows(m, m->next), .reward = pay_rows(m), .row = c->row,
      .after = c->after + m->p * c->after_stride + t * c->envs * after,
      .expected = c->steps + m->p * c->steps_stride + t * c->envs * c->row + known + 1,
      .terminated = m->terminated, .truncated = m->truncated, .broken = m->broken,
  });
}

// Add to a row's running return, and to its member's ended ones.
void count_return(const returns_call *to, ptrdiff_t row, ptrdiff_t slot, float reward, int64_t length, int over,
                  int broken) {
  if (!to->running) return;
  const double total = to->running[row] + (double)reward;
  to->running[row] = over || broken ? 0.0 : total;
  if (broken) to->lost[slot] += (double)length;
  else if (over) to->sums[slot] += total, to->counts[slot] += 1.0;
}

// Sum up returns, and begin new episodes where some are over.
static void end_tick(player *m) {
  const play_call *c = m->call;
  for (ptrdiff_t e = 0; e < c->envs; e++) {
    const int over = m->terminated[e] | m->truncated[e];
    m->over[e] = (uint8_t)(over | m->broken[e]);
    const ptrdiff_t row = m->row + e;
    count_return(&c->returns, row, c->slots[m->p], m->rewards[e], c->pool.length[row], over, m->broken[e]);
  }
  float *seen = m->next;
  m->next = m->obs, m->obs = seen;
  const int count = next_episodes(&(episodes_call){
      .rows = c->envs, .over = m->over, .keys = c->row_keys + m->row, .envs = c->row_envs + m->row,
      .begun = c->begun + m->row, .salt = c->pool.salt, .found = m->found, .seeds = m->seeds,
  });
  if (!count) return;
  env_call begins = m->pool;
  begins.rows = count, begins.where = m->found, begins.begins = m->seeds;
  env_reset(&begins);
  observe_all(m);
}

struct playing {
  const policy *of;
  const play_call *call;
};

// Let a member take all ticks.
static int play_member(const void *told, int p) {
  const struct playing *now = told;
  const play_call *c = now->call;
  player m = {0};
  if (!open_player(now->of, c, p, &m)) return 1;
  const size_t memory = sizeof(float) * (size_t)(c->envs * now->of->memory);
  float *remembered = c->remembered + p * c->envs * now->of->memory;
  if (memory) memcpy(m.remembered, remembered, memory);
  observe_all(&m);
  for (ptrdiff_t t = 0; t < c->ticks; t++) {
    choose_and_enter(&m, t);
    step_and_finish(&m, t);
    end_tick(&m);
  }
  if (memory) memcpy(remembered, m.remembered, memory);
  return 0;
}

int play_ticks(const policy *of, const play_call *call) {
  return each_member(of->members, play_member, &(struct playing){of, call});
}

enum { DIGIT = 8, DIGITS = 7, VALUES = 1 << DIGIT };  // of 53 bits

typedef struct {
  uint64_t drawn;
  int64_t place;
} card;

// Order n draws, digit by digit from the lowest on: equal ones stay in order.
static void shuffle(uint64_t stream, int n, card *from, card *to, int64_t *order) {
  int32_t begins[DIGITS][VALUES] = {{0}};
  for (int j = 0; j < n; j++) {
    from[j] = (card){mixed_bits(stream + (uint64_t)(j + 1) * GOLDEN) >> 11, j};
    for (int d = 0; d < DIGITS; d++) begins[d][from[j].drawn >> d * DIGIT & (VALUES - 1)]++;
  }
  for (int d = 0; d < DIGITS; d++) {
    for (int value = 0, before = 0; value < VALUES; value++) {
      const int count = begins[d][value];
      begins[d][value] = before, before += count;
    }
    for (int j = 0; j < n; j++) to[begins[d][from[j].drawn >> d * DIGIT & (VALUES - 1)]++] = from[j];
    card *swap = from;
    from = to, to = swap;
  }
  for (int j = 0; j < n; j++) order[j] = from[j].place;
}

int shuffles(const draw_call *c) {
  card *cards = (card *)scratch(2 * (ptrdiff_t)c->n * (ptrdiff_t)(sizeof(card) / sizeof(float)));
  if (!cards) return 1;
  for (int i = 0; i < c->members * c->times; i++)
    shuffle(stream_of(c->keys[i / c->times], c->salt, c->step[i % c->times]), c->n, cards, cards + c->n,
            (int64_t *)c->to + (ptrdiff_t)i * c->n);
  return 0;
}

// Generalised advantage estimates (Schulman et al., 2016, eq. 16), and the values that follow from them.
static void estimate_step(const estimate_call *c, ptrdiff_t p, ptrdiff_t t, ptrdiff_t e) {
  const ptrdiff_t at = t * c->envs + e;
  float *row = c->rows + p * c->rows_stride + at * c->row + c->known;
  const float *after = c->after + p * c->after_stride + at * c->after_row + c->observations;
  const float goes_on = after[1] > 0.0f ? 0.0f : 1.0f, same = after[2] > 0.0f ? 0.0f : 1.0f;
  const float later = t + 1 < c->ticks ? row[c->envs * c->row + 3] : 0.0f;
  const float gamma = c->gamma[p], decay = gamma * c->lam[p];
  const float delta = after[0] + gamma * goes_on * c->next_value[p * c->ticks * c->envs + at] - row[1];
  row[3] = delta + decay * same * later, row[4] = row[3] + row[1], row[5] = after[3];
}

void estimate_advantages(const estimate_call *c) {
  for (ptrdiff_t p = 0; p < c->members; p++)
    for (ptrdiff_t t = c->ticks - 1; t >= 0; t--)
      for (ptrdiff_t e = 0; e < c->envs; e++) estimate_step(c, p, t, e);
}
