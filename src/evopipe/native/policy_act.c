// What policies do in a step, and what of it a rollout keeps.

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

// Where the numbers of a step's rows lie that `policy_act` reads and writes, [members, envs · agents, …] each. Actions
// are int64 where they are whole numbers; they and values are left out where they are NULL.
typedef struct {
  const float *obs, *memory, *next_alive;  // the last where values are those of targets, see `evopipe.types`
  const uint8_t *legal;
  const uint64_t *keys, *when;  // [members], [1]
  void *actions;
  float *log_probs, *values, *remembered;
  ptrdiff_t envs, salt;
} moment;

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

// What members say and do: actions by the draws of their keys, or the likeliest where there are no keys, and so on.
int policy_act(const policy *of, const moment *now) {
  const int n = (int)of->outputs, choices = (int)of->choices, team = (int)of->agents,
      reads = (int)(of->observations + of->ids);
  const int wanted[BRAINS] = {1, now->actions != NULL, now->values != NULL};
  const ptrdiff_t envs = now->envs;
  int most = 0;
  for (int d = 0; of->kind == CHOICES && d < choices; d++) most = (int)largest(most, of->each[d]);
  const int each = of->kind == CHOICES ? choices * most : n;
  bench with;
  if (!open_bench(of, BLOCK, BLOCK, 0, &with)) return 1;
  for (int r = 0; r < BLOCK; r++) with.keep[r] = 1.0f;
  const columns c = columns_of(of, &with);
  float *taken = with.column + 5 * n * LANES;
  for (int p = 0; p < of->members; p++) {
    const uint64_t begins = now->keys ? stream_of((int64_t)now->keys[p], now->salt, (int64_t)*now->when) : 0;
    const uint64_t *stream = now->keys ? &begins : NULL;
    for (int g = 0; g < of->groups; g++) {
      const float *log_std = of->kind == NUMBERS ? of->log_std + (p * of->groups + g) * n : NULL;
      const ptrdiff_t here = envs * (of->starts[g + 1] - of->starts[g]);
      for (ptrdiff_t block = 0; block < here; block += BLOCK) {
        mind minds[BRAINS];
        const int rows = here - block < BLOCK ? (int)(here - block) : BLOCK;
        ptrdiff_t at[BLOCK], places[BLOCK];  // of each row in what is given, and among its member's draws
        for (int r = 0; r < rows; r++) {
          const int seat = (int)((block + r) / envs), k = of->crew[of->starts[g] + seat];
          const ptrdiff_t env = (block + r) % envs, first = (p * envs + env) * team;
          at[r] = first + k, places[r] = k * envs + env, with.who[r] = k;
          perceive(of, now->obs + first * of->observations, of->observations,
                   now->next_alive ? now->next_alive + first : NULL, k, seat, with.x + r * reads,
                   with.y + r * of->brains[CRITIC].reads);
          if (of->memory)
            memcpy(with.memory + r * of->memory, now->memory + at[r] * of->memory, sizeof(float) * (size_t)of->memory);
        }
        run_policy(of, p, g, 1, rows, with.x, with.y, with.memory, with.keep, with.saved, with.packed, wanted, minds);
        for (int k = 0; now->remembered && k < BRAINS; k++)
          for (int i = 0; of->brains[k].values && wanted[k] && i < minds[k].recurrent; i++) {
            const gated *l = &minds[k].gates[i];
            for (int r = 0; r < rows; r++) {
              float *to = now->remembered + at[r] * of->memory + l->at[REMEMBERED];
              memcpy(to, l->h + (ptrdiff_t)r * l->n, sizeof(float) * (size_t)l->n);
              memcpy(to + l->at[ROOM], l->c + (ptrdiff_t)r * l->n, sizeof(float) * (size_t)l->n);
            }
          }
        for (int r = 0; now->values && r < rows; r++) now->values[at[r]] = minds[CRITIC].y[r];
        for (int first = 0; now->actions && first < rows; first += LANES) {
          const int left = rows - first < LANES ? rows - first : LANES;
          in_columns(of, minds[ACTOR].y + first * n, with.who + first, NULL, left, &c);
          for (int j = 0; j < n; j++)
            for (int l = 0; l < left; l++) {
              float *z = &c.z[j * LANES + l];
              *z = *z != *z ? 0.0f : *z > -LEAST ? -LEAST : *z < LEAST ? LEAST : *z;
              if (of->kind == NUMBERS) *z = c.may[j * LANES + l] > 0.0f ? *z : 0.0f;
              else if (now->legal && !now->legal[at[first + l] * n + j]) c.may[j * LANES + l] = 0.0f;
            }
          if (of->kind == CHOICES) weigh(of, &c);
          vec log_p = {0};
          if (stream) chance(of, *stream, left, places + first, each, with.noise);
          for (int l = 0; l < left; l++) {
            log_p[l] = decide(of, &c, log_std, l, most, stream ? with.noise + l * each : NULL, taken);
            for (int d = 0; d < choices; d++) {
              const ptrdiff_t to = at[first + l] * choices + d;
              if (of->kind == NUMBERS)
                ((float *)now->actions)[to] = taken[d * LANES + l];
              else
                ((int64_t *)now->actions)[to] = (int64_t)taken[d * LANES + l];
            }
          }
          if (of->kind == NUMBERS) log_p = density(of, log_std, &c, taken);
          for (int l = 0; now->log_probs && l < left; l++) now->log_probs[at[first + l]] = stream ? log_p[l] : 0.0f;
        }
      }
    }
  }
  return 0;
}

// --- rollouts --------------------------------------------------------------------------------------------------------

// Enter what is known before a step, into rows that lie as `memory.rollout` says.
void rollout_enter(ptrdiff_t members, ptrdiff_t envs, ptrdiff_t observations, ptrdiff_t choices, ptrdiff_t outputs,
                   float *rows,
                   ptrdiff_t stride, const float *obs, const void *actions, int whole_numbers, const float *log_probs,
                   const float *values, const uint8_t *begins, const uint8_t *legal) {
  for (ptrdiff_t p = 0, at = 0; p < members; p++) {
    float *row = rows + p * stride;
    for (ptrdiff_t e = 0; e < envs; e++, at++) {
      memcpy(row, obs + at * observations, sizeof(float) * (size_t)observations);
      row += observations;
      for (ptrdiff_t j = 0; j < choices; j++)
        *row++ = whole_numbers
            ? (float)((const int64_t *)actions)[at * choices + j] : ((const float *)actions)[at * choices + j];
      *row++ = log_probs[at], *row++ = values[at], *row++ = begins[at] ? 1.0f : 0.0f;
      for (int j = 0; j < 3; j++) *row++ = 0.0f;
      for (ptrdiff_t j = 0; legal && j < outputs; j++) *row++ = legal[at * outputs + j] ? 1.0f : 0.0f;
    }
  }
}

// Enter what a step gave, of a team `next_alive` too; `expected` are the rows' values, `row` floats apart.
void rollout_finish(ptrdiff_t members, ptrdiff_t envs, ptrdiff_t observations, float *after, ptrdiff_t stride,
                    const float *expected,
                    ptrdiff_t expected_stride, ptrdiff_t row, const float *obs, const float *reward,
                    const float *next_alive, const uint8_t *terminated, const uint8_t *truncated,
                    const uint8_t *broken) {
  for (ptrdiff_t p = 0, at = 0; p < members; p++) {
    float *to = after + p * stride;
    for (ptrdiff_t e = 0; e < envs; e++, at++) {
      put_or_clear(next_alive ? next_alive[at] != GONE : !broken[at], to, obs + at * observations, (int)observations);
      to += observations;
      *to++ = broken[at] ? expected[p * expected_stride + e * row] : reward[at];
      *to++ = terminated[at] | broken[at] ? 1.0f : 0.0f;
      *to++ = terminated[at] | truncated[at] | broken[at] ? 1.0f : 0.0f;
      *to++ = broken[at] ? 0.0f : 1.0f;
      if (next_alive) *to++ = next_alive[at];
    }
  }
}

// Rows that are over, and the seeds of their next episodes, see `rng.seeds`; these are counted in `begun`.
void next_episodes(ptrdiff_t rows, const uint8_t *over, const int64_t *keys, const int64_t *envs, int64_t *begun,
                   ptrdiff_t salt,
                   int64_t *found, int64_t *seeds, int32_t *count) {
  *count = 0;
  for (ptrdiff_t r = 0; r < rows; r++) {
    if (!over[r]) continue;
    uint64_t x = mixed_bits((uint64_t)keys[r] + (uint64_t)salt);
    x = mixed_bits(x + (uint64_t)(envs[r] + 1) * GOLDEN);
    x = mixed_bits(x + (uint64_t)(begun[r]++ + 1) * GOLDEN);
    found[*count] = r, seeds[(*count)++] = (int64_t)(x >> 33);
  }
}
