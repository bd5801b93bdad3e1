// What a replay memory hands out: uniform draws, draws from trees of sums, and rows taken apart into a batch.

enum { FAN_OUT = 32, AHEAD = 12 };

// SplitMix64's finaliser, as `evopipe.rng` has it.
static uint64_t mixed_bits(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

#define GOLDEN 0x9E3779B97F4A7C15u

// The draws [n] in [0, 1) of a member at one step; `salt` is what the purpose adds to a key.
static void shares_of(int n, int64_t key, int64_t salt, int64_t step, double *u) {
  const uint64_t at = mixed_bits(mixed_bits((uint64_t)key + (uint64_t)salt) + (uint64_t)step * GOLDEN);
  for (int j = 0; j < n; j++) u[j] = (double)(mixed_bits(at + (uint64_t)(j + 1) * GOLDEN) >> 11) * 0x1p-53;
}

void uniform(int members, int n, const int64_t *keys, int64_t salt, const int64_t *step, double *u) {
  for (int p = 0; p < members; p++) shares_of(n, keys[p], salt, *step, u + (ptrdiff_t)p * n);
}

// --- trees of sums ---------------------------------------------------------------------------------------------------

typedef struct {
  int depth;
  float **levels;         // the rows' own priorities first
  const int64_t *widths;  // of a member's part of each
} tree;

// The sum of a block of neighbours, in one order.
INLINE float block_sum(const float *of) {
  vec total[EACH];
  for (int i = 0; i < EACH; i++) total[i] = load(of + i * LANES) + load(of + SUMS + i * LANES);
  return sum(total);
}

INLINE void add_up(const tree *of, int level, int64_t slot, int64_t at) {
  of->levels[level][slot * of->widths[level] + at] =
      block_sum(of->levels[level - 1] + slot * of->widths[level - 1] + at * FAN_OUT);
}

// Sum anew, on every level, what is above rows `index` [n] of members `slots` [n].
void tree_add_up(const tree *of, int n, const int64_t *slots, const int64_t *index) {
  for (int i = 0; i < n; i++) {
    int64_t at = index[i];
    for (int level = 1; level < of->depth; level++) add_up(of, level, slots[i], at /= FAN_OUT);
  }
}

// The same of whole levels.
void tree_add_up_all(const tree *of, int members) {
  for (int level = 1; level < of->depth; level++)
    for (int64_t i = 0; i < members * of->widths[level]; i++) add_up(of, level, 0, i);
}

typedef float half __attribute__((vector_size(4 * SUMS)));  // of a block, however wide a vector is
typedef float loose_half __attribute__((vector_size(4 * SUMS), aligned(4), may_alias));
typedef int32_t half_whole __attribute__((vector_size(4 * SUMS)));

#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (half_whole){__VA_ARGS__})
#endif
INLINE half running(half x) {  // x[0] + … + x[i]
  const half none = {0};
  x += SHUFFLED(none, x, 0, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30);
  x += SHUFFLED(none, x, 0, 0, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29);
  x += SHUFFLED(none, x, 0, 0, 0, 0, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27);
  return x + SHUFFLED(none, x, 0, 0, 0, 0, 0, 0, 0, 0, 16, 17, 18, 19, 20, 21, 22, 23);
}
#undef SHUFFLED

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

// Draw rows [n] of a member in proportion to their priorities for u [n], and the probability of each. `ends` has room
// for `places` sums, a power of two that is not below the highest level's width, then for n numbers.
static void draw_by(const tree *of, int n, int64_t slot, const double *u, int64_t *index, float *chance, double *ends,
                    int places) {
  const int depth = of->depth;
  const int64_t wide = of->widths[depth - 1];
  float *left = (float *)(ends + places);
  const float *top = of->levels[depth - 1] + slot * wide;
  double total = 0.0;
  int64_t last = 0;
  for (int64_t i = 0; i < wide; i++) {
    total += top[i];
    ends[i] = total;
    if (top[i] > 0.0f) last = i;
  }
  for (int64_t i = last; i < places; i++) ends[i] = INFINITY;  // nothing leads past the last that is not empty
  const float *below = depth > 1 ? of->levels[depth - 2] + slot * of->widths[depth - 2] : NULL;
  for (int b = 0; b < n; b++) {
    const double sought = u[b] * total;
    int64_t at = 0;  // how many sums are not above it
    for (int by = places / 2; by; by /= 2) at += ends[at + by - 1] <= sought ? by : 0;
    index[b] = at, chance[b] = top[at];
    left[b] = (float)(sought - (at ? ends[at - 1] : 0.0));
    if (below) __builtin_prefetch(below + at * FAN_OUT), __builtin_prefetch(below + at * FAN_OUT + SUMS);
  }
  for (int level = depth - 2; level >= 0; level--) {
    const float *here = of->levels[level] + slot * of->widths[level];
    const float *next = level ? of->levels[level - 1] + slot * of->widths[level - 1] : NULL;
    for (int b = 0; b < n; b++) {
      const float *children = here + index[b] * FAN_OUT;
      const int child = child_of(children, left + b);
      chance[b] = children[child];
      index[b] = index[b] * FAN_OUT + child;
      if (next) __builtin_prefetch(next + index[b] * FAN_OUT), __builtin_prefetch(next + index[b] * FAN_OUT + SUMS);
    }
  }
  for (int b = 0; b < n; b++) chance[b] = (float)(chance[b] / total);
}

// The same of several members, [members, n].
void tree_draw(const tree *of, int members, int n, const int64_t *slots, const double *u, int64_t *index, float *chance,
               double *ends, int places) {
  for (ptrdiff_t p = 0; p < members; p++)
    draw_by(of, n, slots[p], u + p * n, index + p * n, chance + p * n, ends, places);
}

INLINE vec power(vec x, float exponent) {  // of x > 0
  const vec l = logarithm(x);
  return exponential(choose(l > all(1e30f), all(exponent > 0.0f ? INFINITY : 0.0f), l * exponent));
}

// weight · (N · p)^−β over the largest that counts, [n]
static void importance(int n, float filled, const float *chance, float beta, const float *weight, float *out) {
  float largest = 0.0f;
  for (int b = 0; b < n; b += LANES) put(out + b, n - b, power(filled * part(chance + b, n - b), -beta));
  for (int b = 0; b < n; b++)
    if (weight[b] > 0.0f && out[b] > largest) largest = out[b];
  for (int b = 0; b < n; b++) out[b] = weight[b] * out[b] / largest;
}

void importances(int members, int n, const int64_t *filled, const float *chance, float beta, const float *weight,
                 float *out) {
  for (ptrdiff_t p = 0; p < members; p++)
    importance(n, (float)filled[p], chance + p * n, beta, weight + p * n, out + p * n);
}

// Set priorities (|error| + least)^α, at most `most`, of rows [members, n]; one that is NaN stays, of equal rows the
// largest counts. `fresh` has room for n of them, rounded up to whole cache lines.
void tree_update(const tree *of, int members, int n, const int64_t *slots, const int64_t *index, const float *errors,
                 float alpha, float least, float most, float *largest, float *fresh) {
  for (int p = 0; p < members; p++, index += n, errors += n) {
    const int64_t slot = slots[p];
    float *rows = of->levels[0] + slot * of->widths[0];
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
    for (int level = 1, by = FAN_OUT; level < of->depth; level++, by *= FAN_OUT)
      for (int b = 0; b < n; b++) add_up(of, level, slot, index[b] / by);
  }
}

// --- batches ---------------------------------------------------------------------------------------------------------

typedef struct {
  const tree *sums;  // NULL where all rows are equally likely
  const float *rows, *gamma, *counts;  // counts: how much each place of the batch does, [members, n]
  const int64_t *keys, *step, *slots, *first, *filled;  // a member's rows begin at `first`
  int64_t *index;
  float *obs, *next_obs, *reward, *discount, *alive, *learns, *next_alive, *weight, *chance;  // learns: of several steps
  void *action;
  uint8_t *next_legal, *legal;
  double *u, *ends;
  ptrdiff_t width, salt;
  int members, n, wide, acts, continuous, steps, each, masks, places;
  float beta;
} sample;

// Split a member's first n rows of a batch into [members, n, …] each.
static void gather(const sample *j, int p, int n) {
  const float *rows = j->rows + j->first[p] * j->width, gamma = j->gamma[p];
  const int64_t *own = j->index + (ptrdiff_t)p * j->n;
  const int steps = j->steps, each = j->each, wide = j->wide, acts = j->acts, masks = j->masks;
  for (int b = 0; b < n; b++) {
    if (b + AHEAD < n) {
      const char *later = (const char *)(rows + own[b + AHEAD] * j->width);
      for (ptrdiff_t byte = 0; byte < 4 * j->width; byte += 64) __builtin_prefetch(later + byte);
    }
    const float *row = rows + own[b] * j->width;
    const ptrdiff_t at = (ptrdiff_t)p * j->n + b;
    memcpy(j->obs + at * wide, row, sizeof(float) * (size_t)wide);
    memcpy(j->next_obs + at * wide, row + wide, sizeof(float) * (size_t)wide);
    row += 2 * wide;
    if (j->continuous)
      memcpy((float *)j->action + at * acts, row, sizeof(float) * (size_t)acts);
    else
      for (int k = 0; k < acts; k++) ((int64_t *)j->action)[at * acts + k] = (int64_t)row[k];
    row += acts;
    const float *over = row + steps * each, *taken = over + each;
    for (int k = 0; k < each; k++) {
      float total = row[k], bootstrap = gamma;
      double power = gamma;
      for (int s = 1; s < steps; s++, power *= gamma)
        total = __builtin_fmaf((float)power, row[s * each + k], total);
      if (steps > 1) {
        power = 1.0;
        for (int s = 0; s < (int)taken[k]; s++) power *= gamma;
        bootstrap = (float)power;
      }
      j->reward[at * each + k] = total;
      j->discount[at * each + k] = bootstrap * (1.0f - over[k]);
    }
    row = taken + (steps > 1 ? each : 0);
    uint8_t *const legal[2] = {j->next_legal, j->legal};
    for (int i = 0; i < 2; i++) {
      if (!legal[i]) continue;
      for (int a = 0; a < masks; a++) legal[i][at * masks + a] = row[a] > 0.5f;
      row += masks;
    }
    if (!j->alive) continue;
    memcpy(j->alive + at * each, row, sizeof(float) * (size_t)each);
    memcpy(j->next_alive + at * each, row + each, sizeof(float) * (size_t)each);
    for (int k = 0; steps > 1 && k < each; k++) j->learns[at * each + k] = taken[k] > 0.0f ? row[k] : 0.0f;
  }
}

// Draw rows [members, n] of one step, by priority where there are sums, and take them apart. What is behind a member's
// own batch is left as it is.
void draw_batch(const sample *j) {
  for (int p = 0; p < j->members; p++) {
    const ptrdiff_t at = (ptrdiff_t)p * j->n;
    const int n = rows_that_count(j->n, j->counts + at);
    shares_of(n, j->keys[p], j->salt, *j->step, j->u);
    if (j->sums) {
      draw_by(j->sums, n, j->slots[p], j->u, j->index + at, j->chance, j->ends, j->places);
      importance(n, (float)j->filled[p], j->chance, j->beta, j->counts + at, j->weight + at);
    } else {
      for (int b = 0; b < n; b++) j->index[at + b] = (int64_t)(j->u[b] * (double)j->filled[p]);
    }
    gather(j, p, n);
  }
}
