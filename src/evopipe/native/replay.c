// What a replay memory hands out: draws from trees of sums, and rows taken apart into a batch.

#include "random.h"
#include "workspace.h"

enum { FAN_OUT = 32, AHEAD = 12 };

// --- trees of sums ---------------------------------------------------------------------------------------------------

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
void tree_add_up(const tree_call *c) {
  for (int i = 0; i < c->n; i++) {
    int64_t at = c->index[i];
    for (int level = 1; level < c->of->depth; level++) add_up(c->of, level, c->slots[i], at /= FAN_OUT);
  }
}

// The same of whole levels.
void tree_add_up_all(const tree_call *c) {
  for (int level = 1; level < c->of->depth; level++)
    for (int64_t i = 0; i < c->members * c->of->widths[level]; i++) add_up(c->of, level, 0, i);
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
void tree_draw(const tree_call *c) {
  for (ptrdiff_t p = 0, n = c->n; p < c->members; p++)
    draw_by(c->of, c->n, c->slots[p], c->u + p * n, c->index + p * n, c->chance + p * n, c->ends, c->places);
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

void importances(const importance_call *c) {
  for (ptrdiff_t p = 0, n = c->n; p < c->members; p++)
    importance(c->n, (float)c->filled[p], c->chance + p * n, c->beta, c->weight + p * n, c->out + p * n);
}

// Set a member's priorities (|error| + least)^α, at most `most`; one that is NaN stays, of equal rows the largest counts.
static void update_tree(const tree_call *c, ptrdiff_t p, float *fresh) {
  const tree *of = c->of;
  const int n = c->n;
  const int64_t slot = c->slots[p], *index = c->index + p * n;
  const float *errors = c->errors + p * n;
  float *rows = of->levels[0] + slot * of->widths[0], *largest_of = c->largest;
  for (int b = 0; b < n; b += LANES) {
    const vec each = power(size(part(errors + b, n - b)) + c->least, c->alpha);
    store(fresh + b, choose(each > all(c->most), all(c->most), each));
  }
  for (int b = 0; b < n; b++)
    if (fresh[b] != fresh[b]) fresh[b] = rows[index[b]];
  for (int b = 0; b < n; b++) rows[index[b]] = 0.0f;
  for (int b = 0; b < n; b++) {
    if (fresh[b] > rows[index[b]]) rows[index[b]] = fresh[b];
    if (fresh[b] > largest_of[slot]) largest_of[slot] = fresh[b];
  }
  for (int level = 1, by = FAN_OUT; level < of->depth; level++, by *= FAN_OUT)
    for (int b = 0; b < n; b++) add_up(of, level, slot, index[b] / by);
}

void tree_update(const tree_call *c) {
  for (ptrdiff_t p = 0; p < c->members; p++) update_tree(c, p, c->fresh);
}

// --- rows ------------------------------------------------------------------------------------------------------------

static int kept(const store_call *c, ptrdiff_t at) {
  const float *row = c->rows + at * c->size;
  int finite = c->keep[at];
  for (ptrdiff_t j = 0; j < c->size; j++) finite &= row[j] - row[j] == 0.0f;
  return finite;
}

// Append rows to rings, but those that are not to be kept or not finite; of more than a ring holds the last ones.
int store_rows(const store_call *c) {
  int count = 0;
  for (ptrdiff_t m = 0; m < c->memories; m++) {
    ptrdiff_t left = 0;
    for (ptrdiff_t i = 0; i < c->n; i++) left += kept(c, m * c->n + i);
    for (ptrdiff_t i = 0; i < c->n; i++) {
      const ptrdiff_t at = m * c->n + i;
      if (!kept(c, at) || left-- > c->capacity) continue;
      const int64_t place = m * c->capacity + c->position[m];
      memcpy(c->to + place * c->size, c->rows + at * c->size, sizeof(float) * (size_t)c->size);
      c->places[count++] = place;
      c->position[m] = (c->position[m] + 1) % c->capacity;
      if (c->filled[m] < c->capacity) c->filled[m]++;
    }
  }
  return count;
}

// --- batches ---------------------------------------------------------------------------------------------------------

// What each agent of a row was paid over its steps, and how much of its target's value counts.
static void pay(const sample *j, ptrdiff_t at, const float *row, float gamma) {
  const int steps = j->steps, each = j->each;
  const float *over = row + steps * each, *taken = over + each;
  for (int k = 0; k < each; k++) {
    float total = row[k], bootstrap = gamma;
    double power = gamma;
    for (int s = 1; s < steps; s++, power *= gamma) total = __builtin_fmaf((float)power, row[s * each + k], total);
    if (steps > 1) {
      power = 1.0;
      for (int s = 0; s < (int)taken[k]; s++) power *= gamma;
      bootstrap = (float)power;
    }
    j->reward[at * each + k] = total;
    j->discount[at * each + k] = bootstrap * (1.0f - over[k]);
  }
}

// Split one row, which becomes the `at`th of the batch.
static void take_apart(const sample *j, ptrdiff_t at, const float *row, float gamma) {
  const int steps = j->steps, each = j->each, wide = j->wide, acts = j->acts, masks = j->masks;
  memcpy(j->obs + at * wide, row, sizeof(float) * (size_t)wide);
  memcpy(j->next_obs + at * wide, row + wide, sizeof(float) * (size_t)wide);
  row += 2 * wide;
  if (j->continuous)
    memcpy((float *)j->action + at * acts, row, sizeof(float) * (size_t)acts);
  else
    for (int k = 0; k < acts; k++) ((int64_t *)j->action)[at * acts + k] = (int64_t)row[k];
  row += acts;
  pay(j, at, row, gamma);
  const float *taken = row + (steps + 1) * each;
  row = taken + (steps > 1 ? each : 0);
  uint8_t *const legal[2] = {j->next_legal, j->legal};
  for (int i = 0; i < 2; i++) {
    if (!legal[i]) continue;
    for (int a = 0; a < masks; a++) legal[i][at * masks + a] = row[a] > 0.5f;
    row += masks;
  }
  if (!j->alive) return;
  memcpy(j->alive + at * each, row, sizeof(float) * (size_t)each);
  memcpy(j->next_alive + at * each, row + each, sizeof(float) * (size_t)each);
  for (int k = 0; steps > 1 && k < each; k++) j->learns[at * each + k] = taken[k] > 0.0f ? row[k] : 0.0f;
}

// Split a member's first n rows of a batch into [members, n, …] each.
static void gather(const sample *j, int p, int n) {
  const float *rows = j->rows + j->first[p] * j->width;
  const int64_t *own = j->index + (ptrdiff_t)p * j->n;
  for (int b = 0; b < n; b++) {
    if (b + AHEAD < n) {
      const char *later = (const char *)(rows + own[b + AHEAD] * j->width);
      for (ptrdiff_t byte = 0; byte < 4 * j->width; byte += 64) __builtin_prefetch(later + byte);
    }
    take_apart(j, (ptrdiff_t)p * j->n + b, rows + own[b] * j->width, j->gamma[p]);
  }
}

typedef struct {  // scratch of a draw
  double *u, *ends;
  float *chance;
} draw_room;

// Draw a member's rows [n] of one step, by priority where there are sums, and take them apart. What is behind its own
// batch is left as it is.
static void draw_member(const sample *j, int p, int64_t step, int64_t filled, float beta, draw_room room) {
  const ptrdiff_t at = (ptrdiff_t)p * j->n;
  const int n = rows_that_count(j->n, j->counts + at);
  shares_of(n, j->keys[p], j->salt, step, room.u);
  if (j->sums) {
    draw_by(j->sums, n, j->slots[p], room.u, j->index + at, room.chance, room.ends, j->places);
    importance(n, (float)filled, room.chance, beta, j->counts + at, j->weight + at);
  } else {
    for (int b = 0; b < n; b++) j->index[at + b] = (int64_t)(room.u[b] * (double)filled);
  }
  gather(j, p, n);
}

void draw_batch(const sample *j, const sample_call *now) {
  for (int p = 0; p < j->members; p++)
    draw_member(j, p, *now->step, now->filled[p], now->beta, (draw_room){j->u, j->ends, j->chance});
}
