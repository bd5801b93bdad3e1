// What policies do in a step.

#include "policy.h"

// What chance adds to the choices of some rows, `each` numbers a row from `each` times its place on: negative Gumbel
// numbers, shares in [0, 1) or normal numbers, as its kind of action needs.
static void chance(const policy *of, uint64_t stream, int rows, const ptrdiff_t *place, int each, double *to) {
  for (int i = 0; i < rows * each; i += WIDE) {
    bits at;
    for (int c = 0; c < WIDE; c++) {
      const int j = i + c < rows * each ? i + c : i;
      at[c] = (uint64_t)(place[j / each] * each + j % each);
    }
    wide found;
    if (of->kind == CHOICES) {
      found = log_wide(-log_wide(1.0 - shares(stream, at)));
    } else if (of->kind == BITS) {
      found = shares(stream, at);
    } else {
      found = -2.0 * log_wide(1.0 - shares(stream, 2 * at));
      for (int c = 0; c < WIDE; c++) found[c] = __builtin_sqrt(found[c]);
      found *= cos_turns(shares(stream, 2 * at + 1));
    }
    for (int c = 0; c < WIDE && i + c < rows * each; c++) to[i + c] = found[c];
  }
}

// The best legal value of a choice, of which `noise` is taken away where there is some.
static int likeliest(const columns *c, const float *worth, int l, int first, int count, const double *noise) {
  int found = 0;
  float most = -INFINITY;
  for (int j = 0; j < count; j++) {
    const ptrdiff_t at = (ptrdiff_t)(first + j) * LANES + l;
    if (!(c->may[at] > 0.0f)) continue;
    float score = worth[at] == worth[at] ? worth[at] : 0.0f;
    if (noise) score -= (float)noise[j];
    if (score > most) most = score, found = j;
  }
  return found;
}

enum { BLOCK = 128 };  // rows that are taken at once

// Choose for one row, whose numbers are in a lane of columns; return its log-probability, but for numbers.
static float decide(const policy *of, const columns *c, const float *log_std, int l, int most, const double *noise,
                    float *taken) {
  const int choices = (int)of->choices;
  float log_p = 0.0f;
  for (int d = 0, at = 0; d < choices; at += of->kind == CHOICES ? of->each[d] : 0, d++) {
    float *chosen = &taken[d * LANES + l];
    const float z = c->z[d * LANES + l];
    const int may = c->may[d * LANES + l] > 0.0f;
    if (of->kind == CHOICES) {
      const int j = likeliest(c, noise ? c->log_p : c->z, l, at, of->each[d], noise ? noise + d * most : NULL);
      *chosen = (float)j, log_p += c->log_p[(at + j) * LANES + l];
    } else if (of->kind == BITS) {
      *chosen = may && (noise ? noise[d] < (double)sigmoid(all(z))[0] : z > 0.0f);
      if (may) log_p -= softplus(all(*chosen != 0.0f ? -z : z))[0];
    } else {
      *chosen = z;
      if (noise) *chosen = __builtin_fmaf(exponential(all(log_std[d]))[0], (float)noise[d], z);
      if (of->squash) *chosen = hyperbolic(all(*chosen))[0];
      if (!may) *chosen = 0.0f;
    }
  }
  return log_p;
}

// A block of rows of one group of a member's agents.
typedef struct {
  const policy *of;
  const acting *now;
  const workspace *with;
  const float *log_std;
  const uint64_t *stream;              // NULL where actions are the likeliest
  int p, g, rows, each, most;          // each: random numbers a row needs; most: values of the largest choice
  ptrdiff_t start;                     // environments of other members that come before its own in what is given
  ptrdiff_t at[BLOCK], places[BLOCK];  // of each row in what is given, and among its member's draws
} block;

// Gather what networks read, from the group's `first` row on.
static void gather_block(block *b, ptrdiff_t first) {
  const policy *of = b->of;
  const acting *now = b->now;
  const workspace *with = b->with;
  for (int r = 0; r < b->rows; r++) {
    const int seat = (int)((first + r) / now->envs), k = of->agent[of->starts[b->g] + seat];
    const ptrdiff_t env = (first + r) % now->envs, team = (b->start + env) * of->agents;
    b->at[r] = team + k, b->places[r] = k * now->envs + env, with->who[r] = k;
    perceive(of, now->obs + team * of->observations, of->observations, now->next_alive ? now->next_alive + team : NULL,
             k, seat, with->x + r * (of->observations + of->ids), with->y + r * of->nets[CRITIC].inputs);
    if (of->memory)
      memcpy(with->memory + r * of->memory, now->memory + b->at[r] * of->memory, sizeof(float) * (size_t)of->memory);
  }
}

static void remember(const block *b, const pass *net) {
  for (int i = 0; i < net->recurrent; i++) {
    const gated *l = &net->gates[i];
    for (int r = 0; r < b->rows; r++) {
      float *to = b->now->remembered + b->at[r] * b->of->memory + l->at[REMEMBERED];
      memcpy(to, l->h + (ptrdiff_t)r * l->n, sizeof(float) * (size_t)l->n);
      memcpy(to + l->at[ROOM], l->c + (ptrdiff_t)r * l->n, sizeof(float) * (size_t)l->n);
    }
  }
}

// Bring what the actor says of `left` rows into columns: finite, and 0 where an agent has no such number.
static void tidy_columns(const block *b, const float *out, int first, int left, const columns *c) {
  const policy *of = b->of;
  const int n = of->outputs;
  in_columns(of, out + (ptrdiff_t)first * n, b->with->who + first, NULL, left, c);
  for (int j = 0; j < n; j++)
    for (int l = 0; l < left; l++) {
      float *z = &c->z[j * LANES + l];
      *z = *z != *z ? 0.0f : *z > -LEAST ? -LEAST : *z < LEAST ? LEAST : *z;
      if (of->kind == NUMBERS)
        *z = c->may[j * LANES + l] > 0.0f ? *z : 0.0f;
      else if (b->now->legal && !b->now->legal[b->at[first + l] * n + j])
        c->may[j * LANES + l] = 0.0f;
    }
}

// Choose for the rows from `first` on that fit into columns, and write actions and their log-probabilities.
static void choose_actions(const block *b, const float *out, int first) {
  const policy *of = b->of;
  const acting *now = b->now;
  const columns c = columns_of(of, b->with);
  const int left = b->rows - first < LANES ? b->rows - first : LANES, choices = of->choices;
  float *taken = b->with->column + 5 * (ptrdiff_t)of->outputs * LANES;
  double *noise = b->with->noise;
  vec log_p = {0};
  tidy_columns(b, out, first, left, &c);
  if (of->kind == CHOICES) weigh(of, &c);
  if (b->stream) chance(of, *b->stream, left, b->places + first, b->each, noise);
  for (int l = 0; l < left; l++) {
    log_p[l] = decide(of, &c, b->log_std, l, b->most, b->stream ? noise + l * b->each : NULL, taken);
    for (int d = 0; d < choices; d++) {
      const ptrdiff_t to = b->at[first + l] * choices + d;
      if (of->kind == NUMBERS)
        ((float *)now->actions)[to] = taken[d * LANES + l];
      else
        ((int64_t *)now->actions)[to] = (int64_t)taken[d * LANES + l];
    }
  }
  if (of->kind == NUMBERS) log_p = density(of, b->log_std, &c, taken);
  for (int l = 0; now->log_probs && l < left; l++) now->log_probs[b->at[first + l]] = b->stream ? log_p[l] : 0.0f;
}

static void act_block(block *b, ptrdiff_t first) {
  const policy *of = b->of;
  const acting *now = b->now;
  const workspace *with = b->with;
  const int wanted[NETS] = {1, now->actions != NULL, now->values != NULL};
  const sequences s = {1, b->rows, with->memory, with->keep, of->memory};
  pass passes[NETS];
  gather_block(b, first);
  run_policy(of, b->p, b->g, &s, wanted, with, passes);
  for (int k = 0; now->remembered && k < NETS; k++)
    if (of->nets[k].values && wanted[k]) remember(b, &passes[k]);
  for (int r = 0; now->values && r < b->rows; r++) now->values[b->at[r]] = passes[CRITIC].out[r];
  for (int from = 0; now->actions && from < b->rows; from += LANES) choose_actions(b, passes[ACTOR].out, from);
}

static void open_block(block *b) {
  const policy *of = b->of;
  for (int r = 0; r < BLOCK; r++) b->with->keep[r] = 1.0f;
  for (int d = 0; of->kind == CHOICES && d < of->choices; d++) b->most = (int)largest(b->most, of->each[d]);
  b->each = of->kind == CHOICES ? of->choices * b->most : of->outputs;
}

// What one member says and does in all its environments.
static void act_member(block *b, int p) {
  const policy *of = b->of;
  const acting *now = b->now;
  const uint64_t begins = now->keys ? stream_of((int64_t)now->keys[p], now->salt, (int64_t)*now->when) : 0;
  b->p = p, b->stream = now->keys ? &begins : NULL;
  for (b->g = 0; b->g < of->groups; b->g++) {
    const ptrdiff_t here = now->envs * (of->starts[b->g + 1] - of->starts[b->g]);
    b->log_std = of->kind == NUMBERS ? of->log_std + ((ptrdiff_t)p * of->groups + b->g) * of->outputs : NULL;
    for (ptrdiff_t first = 0; first < here; first += BLOCK) {
      b->rows = here - first < BLOCK ? (int)(here - first) : BLOCK;
      act_block(b, first);
    }
  }
}

// What members say and do: actions by the draws of their keys, or the likeliest where there are no keys, and so on.
int ppo_act(const policy *of, const acting *now) {
  workspace with;
  block b = {.of = of, .now = now, .with = &with};
  if (!open_workspace(of, BLOCK, BLOCK, 0, &with)) return 1;
  open_block(&b);
  for (int p = 0; p < of->members; p++, b.start += now->envs) act_member(&b, p);
  return 0;
}
