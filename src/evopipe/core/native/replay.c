// What a replay memory hands out: uniform draws, draws from trees of sums, and rows taken apart into a batch.

enum { FAN_OUT = 32, AHEAD = 12 };

// SplitMix64's finaliser, as `evopipe.rng` has it.
static uint64_t mixed_bits(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

#define GOLDEN 0x9E3779B97F4A7C15u

// The draws [members, n] in [0, 1) of one step; `salt` is what the purpose adds to a key.
void uniform(int members, int n, const int64_t *keys, int64_t salt, const int64_t *step, double *u) {
  for (int p = 0; p < members; p++) {
    const uint64_t base = mixed_bits((uint64_t)keys[p] + (uint64_t)salt) + (uint64_t)*step * GOLDEN;
    const uint64_t at = mixed_bits(base);
    for (int j = 0; j < n; j++)
      *u++ = (double)(mixed_bits(at + (uint64_t)(j + 1) * GOLDEN) >> 11) * 0x1p-53;
  }
}

// Split rows of a memory into [members, n, …] each: `index` [members, n] counts rows, from each member's `first`.
void gather(const float *rows, ptrdiff_t width, int members, int n, const int64_t *index, const int64_t *first, int obs,
            int acts, int continuous, int steps, int each, int masks, int masked, int legal, int alive,
            const float *gamma, float *obs_to, float *next_to, void *action_to, float *reward_to, float *discount_to,
            uint8_t *next_legal_to, uint8_t *legal_to, float *alive_to) {
  for (int p = 0; p < members; p++) {
    const int64_t *own = index + (ptrdiff_t)p * n;
    for (int b = 0; b < n; b++) {
      if (b + AHEAD < n) {
        const char *later = (const char *)(rows + (first[p] + own[b + AHEAD]) * width);
        for (ptrdiff_t byte = 0; byte < 4 * width; byte += 64) __builtin_prefetch(later + byte);
      }
      const float *row = rows + (first[p] + own[b]) * width;
      const ptrdiff_t at = (ptrdiff_t)p * n + b;
      memcpy(obs_to + at * obs, row, sizeof(float) * (size_t)obs);
      memcpy(next_to + at * obs, row + obs, sizeof(float) * (size_t)obs);
      row += 2 * obs;
      if (continuous)
        memcpy((float *)action_to + at * acts, row, sizeof(float) * (size_t)acts);
      else
        for (int k = 0; k < acts; k++) ((int64_t *)action_to)[at * acts + k] = (int64_t)row[k];
      row += acts;
      const float *over = row + steps * each, *taken = over + each;
      for (int k = 0; k < each; k++) {
        float total = row[k], bootstrap = gamma[p];
        double power = gamma[p];
        for (int s = 1; s < steps; s++, power *= gamma[p])
          total = __builtin_fmaf((float)power, row[s * each + k], total);  // for any vector width
        if (steps > 1) {
          power = 1.0;
          for (int s = 0; s < (int)taken[k]; s++) power *= gamma[p];
          bootstrap = (float)power;
        }
        reward_to[at * each + k] = total;
        discount_to[at * each + k] = bootstrap * (1.0f - over[k]);
      }
      row = taken + (steps > 1 ? each : 0);
      if (masked) {
        for (int a = 0; a < masks; a++) next_legal_to[at * masks + a] = row[a] > 0.5f;
        row += masks;
      }
      if (legal) {
        for (int a = 0; a < masks; a++) legal_to[at * masks + a] = row[a] > 0.5f;
        row += masks;
      }
      if (alive) memcpy(alive_to + at * each, row, sizeof(float) * (size_t)each);
    }
  }
}

// --- trees of sums ---------------------------------------------------------------------------------------------------

// The sum of a block of neighbours, in one order.
INLINE float block_sum(const float *of) {
  vec total[EACH];
  for (int i = 0; i < EACH; i++) total[i] = load(of + i * LANES) + load(of + SUMS + i * LANES);
  return sum(total);
}

// Sum anew, on every level, what is above rows `index` [n] of members `slots` [n].
void tree_add_up(int depth, float *const *levels, const int64_t *widths, int n, const int64_t *slots,
                 const int64_t *index) {
  for (int i = 0; i < n; i++) {
    int64_t at = index[i];
    for (int level = 1; level < depth; level++) {
      at /= FAN_OUT;
      levels[level][slots[i] * widths[level] + at] =
          block_sum(levels[level - 1] + slots[i] * widths[level - 1] + at * FAN_OUT);
    }
  }
}

// The same of whole levels.
void tree_add_up_all(int depth, float *const *levels, const int64_t *widths, int members) {
  for (int level = 1; level < depth; level++)
    for (int64_t i = 0; i < members * widths[level]; i++)
      levels[level][i] = block_sum(levels[level - 1] + i * FAN_OUT);
}

typedef float half __attribute__((vector_size(4 * SUMS)));  // of a block, however wide a vector is
typedef float loose_half __attribute__((vector_size(4 * SUMS), aligned(4), may_alias));
typedef int32_t half_whole __attribute__((vector_size(4 * SUMS)));

INLINE half running(half x) {  // x[0] + … + x[i]
  const half none = {0};
  x += __builtin_shuffle(none, x, (half_whole){0, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30});
  x += __builtin_shuffle(none, x, (half_whole){0, 0, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29});
  x += __builtin_shuffle(none, x, (half_whole){0, 0, 0, 0, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27});
  return x + __builtin_shuffle(none, x, (half_whole){0, 0, 0, 0, 0, 0, 0, 0, 16, 17, 18, 19, 20, 21, 22, 23});
}

// Which of a block's children a share `left` of their sum leads to, never an empty one; `left` becomes the child's own.
INLINE int child_of(const float *children, float *left) {
  const half low = running(*(const loose_half *)children);
  const half high = running(*(const loose_half *)(children + SUMS)) + low[SUMS - 1];
  float before[FAN_OUT + 1] = {0};
  *(loose_half *)(before + 1) = low, *(loose_half *)(before + 1 + SUMS) = high;
  const half_whole passed = (low <= *left - (half){0}) + (high <= *left - (half){0});
  int32_t count[SUMS];
  memcpy(count, &passed, sizeof count);
  for (int some = SUMS / 2; some; some /= 2)
    for (int c = 0; c < some; c++) count[c] += count[c + some];
  const int child = -count[0];
  if (child < FAN_OUT && children[child] > 0.0f) {
    *left = *left > before[child] ? *left - before[child] : 0.0f;
    return child;
  }
  int found = child < FAN_OUT ? child : FAN_OUT - 1;  // rounding led to an empty one, or past the last
  while (found > 0 && !(children[found] > 0.0f)) found--;
  while (found < FAN_OUT - 1 && !(children[found] > 0.0f)) found++;
  *left = found < child ? children[found] : 0.0f;
  return found;
}

// Draw rows [members, n] in proportion to their priorities for u [members, n], and the probability of each. `ends` has
// room for `places` sums, a power of two that is not below the highest level's width, then for n numbers.
void tree_draw(int depth, const float *const *levels, const int64_t *widths, int members, int n, const int64_t *slots,
               const double *u, int64_t *index, float *chance, double *ends, int places) {
  const int64_t wide = widths[depth - 1];
  float *left = (float *)(ends + places);
  for (int p = 0; p < members; p++, u += n, index += n, chance += n) {
    const float *top = levels[depth - 1] + slots[p] * wide;
    double total = 0.0;
    int64_t last = 0;
    for (int64_t i = 0; i < wide; i++) {
      total += top[i];
      ends[i] = total;
      if (top[i] > 0.0f) last = i;
    }
    for (int64_t i = last; i < places; i++) ends[i] = INFINITY;  // nothing leads past the last that is not empty
    const float *below = depth > 1 ? levels[depth - 2] + slots[p] * widths[depth - 2] : NULL;
    for (int b = 0; b < n; b++) {
      const double sought = u[b] * total;
      int64_t at = 0;  // how many sums are not above it
      for (int by = places / 2; by; by /= 2) at += ends[at + by - 1] <= sought ? by : 0;
      index[b] = at, chance[b] = top[at];
      left[b] = (float)(sought - (at ? ends[at - 1] : 0.0));
      if (below) __builtin_prefetch(below + at * FAN_OUT), __builtin_prefetch(below + at * FAN_OUT + SUMS);
    }
    for (int level = depth - 2; level >= 0; level--) {
      const float *here = levels[level] + slots[p] * widths[level];
      const float *next = level ? levels[level - 1] + slots[p] * widths[level - 1] : NULL;
      for (int b = 0; b < n; b++) {
        const float *children = here + index[b] * FAN_OUT;
        const int child = child_of(children, left + b);
        chance[b] = children[child];
        index[b] = index[b] * FAN_OUT + child;
        if (next)
          __builtin_prefetch(next + index[b] * FAN_OUT), __builtin_prefetch(next + index[b] * FAN_OUT + SUMS);
      }
    }
    for (int b = 0; b < n; b++) chance[b] = (float)(chance[b] / total);
  }
}

INLINE vec power(vec x, float exponent) {  // of x > 0
  const vec l = logarithm(x);
  return exponential(choose(l > all(1e30f), all(exponent > 0.0f ? INFINITY : 0.0f), l * exponent));
}

// weight · (N · p)^−β over the largest that counts, [members, n]
void importances(int members, int n, const int64_t *filled, const float *chance, float beta, const float *weight,
                 float *out) {
  for (int p = 0; p < members; p++, chance += n, weight += n, out += n) {
    float largest = 0.0f;
    for (int b = 0; b < n; b += LANES) put(out + b, n - b, power((float)filled[p] * part(chance + b, n - b), -beta));
    for (int b = 0; b < n; b++)
      if (weight[b] > 0.0f && out[b] > largest) largest = out[b];
    for (int b = 0; b < n; b++) out[b] = weight[b] * out[b] / largest;
  }
}

// Set priorities (|error| + least)^α, at most `most`, of rows [members, n]; one that is NaN stays, of equal rows the
// largest counts. `fresh` has room for n of them, rounded up to whole cache lines.
void tree_update(int depth, float *const *levels, const int64_t *widths, int members, int n, const int64_t *slots,
                 const int64_t *index, const float *errors, float alpha, float least, float most, float *largest,
                 float *fresh) {
  for (int p = 0; p < members; p++, index += n, errors += n) {
    const int64_t slot = slots[p];
    float *rows = levels[0] + slot * widths[0];
    for (int b = 0; b < n; b += LANES) {
      const vec each = power(size(part(errors + b, n - b)) + least, alpha);
      store(fresh + b, choose(each > all(most), all(most), each));
    }
    for (int b = 0; b < n; b++)
      if (fresh[b] != fresh[b]) fresh[b] = rows[index[b]];
    for (int b = 0; b < n; b++) rows[index[b]] = 0.0f;
    for (int b = 0; b < n; b++) {
      if (fresh[b] > rows[index[b]]) rows[index[b]] = fresh[b];
      if (fresh[b] > largest[slot]) largest[slot] = fresh[b];
    }
    for (int level = 1, by = FAN_OUT; level < depth; level++, by *= FAN_OUT)
      for (int b = 0; b < n; b++) {
        const int64_t at = index[b] / by;
        levels[level][slot * widths[level] + at] =
            block_sum(levels[level - 1] + slot * widths[level - 1] + at * FAN_OUT);
      }
  }
}
