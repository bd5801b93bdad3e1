// What a rollout keeps of a step, in rows that lie as `memory.rollout` says, and which episodes begin.

#include "random.h"
#include "team.h"

// Enter what is known before a step.
void rollout_enter(const enter_call *c) {
  const ptrdiff_t observations = c->observations, choices = c->choices, outputs = c->outputs;
  for (ptrdiff_t p = 0, at = 0; p < c->members; p++) {
    float *row = c->rows + p * c->stride;
    for (ptrdiff_t e = 0; e < c->envs; e++, at++) {
      memcpy(row, c->obs + at * observations, sizeof(float) * (size_t)observations);
      row += observations;
      for (ptrdiff_t j = at * choices; j < (at + 1) * choices; j++)
        *row++ = c->whole_numbers ? (float)((const int64_t *)c->actions)[j] : ((const float *)c->actions)[j];
      *row++ = c->log_probs[at], *row++ = c->values[at], *row++ = c->begins[at] ? 1.0f : 0.0f;
      for (int j = 0; j < 3; j++) *row++ = 0.0f;
      for (ptrdiff_t j = 0; c->legal && j < outputs; j++) *row++ = c->legal[at * outputs + j] ? 1.0f : 0.0f;
    }
  }
}

// Enter what a step gave, of a team `next_alive` too.
void rollout_finish(const finish_call *c) {
  const ptrdiff_t n = c->observations;
  for (ptrdiff_t p = 0, at = 0; p < c->members; p++) {
    float *to = c->after + p * c->stride;
    for (ptrdiff_t e = 0; e < c->envs; e++, at++) {
      const int broken = c->broken[at], terminated = c->terminated[at], truncated = c->truncated[at];
      put_or_clear(c->next_alive ? c->next_alive[at] != GONE : !broken, to, c->obs + at * n, (int)n);
      to += n;
      *to++ = broken ? c->expected[p * c->expected_stride + e * c->row] : c->reward[at];
      *to++ = terminated | broken ? 1.0f : 0.0f;
      *to++ = terminated | truncated | broken ? 1.0f : 0.0f;
      *to++ = broken ? 0.0f : 1.0f;
      if (c->next_alive) *to++ = c->next_alive[at];
    }
  }
}

// Rows that are over, and the seeds of their next episodes, see `rng.seeds`; these are counted in `begun`.
int next_episodes(const episodes_call *c) {
  int count = 0;
  for (ptrdiff_t r = 0; r < c->rows; r++) {
    if (!c->over[r]) continue;
    uint64_t x = mixed_bits((uint64_t)c->keys[r] + (uint64_t)c->salt);
    x = mixed_bits(x + (uint64_t)(c->envs[r] + 1) * GOLDEN);
    x = mixed_bits(x + (uint64_t)(c->begun[r]++ + 1) * GOLDEN);
    c->found[count] = r, c->seeds[count++] = (int64_t)(x >> 33);
  }
  return count;
}
