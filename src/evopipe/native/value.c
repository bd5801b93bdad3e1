// Whole updates of one Q-network, member by member: `algos.dqn`, `algos.cqn` and `algos.rainbow` say what they compute.

enum { MOST_ATOMS = 1024 };

typedef struct {
  int rows, inputs, actions, outputs, layers, widest, twice, huber, interval, atoms, dueling, noisy;
  ptrdiff_t keep, size, stride, target_stride, moment_stride, obs_member, obs_row, next_member, next_row;
  ptrdiff_t noise_stride, noise_target_stride, noise_moment_stride, salt;
  const int32_t *plan, *own;  // own: see `spans_of`
  float *values, *target, *mean, *square, *steps, *updates, *losses, *errors;
  float *noise, *noise_target, *noise_mean, *noise_square, *noise_steps;
  const float *obs, *next_obs, *reward, *discount, *weight, *lr, *limit, *tau, *alpha, *support;
  const int64_t *action, *keys, *step;
  const uint8_t *next_legal, *legal;
  uint8_t *healthy;
  double beta1, beta2, eps;
} value_job;

// --- noise -----------------------------------------------------------------------------------------------------------

// f(x) = sign(x) √|x| of standard normal numbers i · every + offset, i below n, of a key's draw at `at`. As
// `evopipe.rng` has them (Box & Muller, 1958), to the last bits of a float.
static void noise_of(uint64_t at, int n, int every, int offset, float *to) {
  for (int i = 0; i < n; i += LANES) {
    float series[LANES], halves[LANES], turn[LANES], sign[LANES];
    for (int c = 0; c < LANES; c++) {
      const uint64_t place = 2 * ((uint64_t)(i + c) * (uint64_t)every + (uint64_t)offset) + 1;
      const double u = (double)(mixed_bits(at + place * GOLDEN) >> 11) * 0x1p-53;
      const double t = 0.25 - (double)(mixed_bits(at + (place + 1) * GOLDEN) >> 11) * 0x1p-53;
      const double whole_halves = nearbyint(2.0 * t);
      series[c] = (float)(u < 0.25 ? -u : 0.0), halves[c] = (float)(u < 0.25 ? 1.0 : 1.0 - u);
      turn[c] = (float)(6.283185307179586 * (t - 0.5 * whole_halves));
      sign[c] = (int)whole_halves & 1 ? -1.0f : 1.0f;
    }
    const vec y = load(turn), q = y * y, near = load(series);
    vec sine = all(1.6059044e-10f);  // Taylor's series is exact to a float within a quarter turn
    sine = fused(sine, q, all(-2.5052108e-8f));
    sine = fused(sine, q, all(2.7557319e-6f));
    sine = fused(sine, q, all(-1.9841270e-4f));
    sine = fused(sine, q, all(8.3333333e-3f));
    sine = fused(sine, q, all(-1.6666667e-1f));
    sine = fused(sine * q, y, y) * load(sign);
    const vec log = choose(near < all(0.0f), logarithm_near(near), logarithm(load(halves)));
    vec root = -2.0f * log;
    for (int c = 0; c < LANES; c++) root[c] = __builtin_sqrtf(root[c]);
    const vec x = root * sine;
    vec f = size(x);
    for (int c = 0; c < LANES; c++) f[c] = __builtin_sqrtf(f[c]);
    put(to + i, n - i, choose(x < all(0.0f), -f, f));
  }
}

#define INIT 0xD1B54A32D192ED03u

static uint64_t part_of(uint64_t key, uint64_t name) { return mixed_bits(key + name * INIT); }

// Draw a member's noise: factors of what each noisy layer reads and gives, one behind the other, as `core.padded.noisy`
// has them. Layers are counted as the member has them, whatever its neighbours have between.
static void draw_noise(const value_job *j, int p, uint64_t name, const layer *found, int count, float *into,
                       float *out) {
  const uint64_t key = part_of((uint64_t)j->keys[p], name);
  uint64_t place = 0;
  for (int i = 0; i < count; i++) {
    if ((found[i].at - (j->plan + (ptrdiff_t)p * j->layers * FIELDS)) / FIELDS < j->noisy) continue;
    const uint64_t base = mixed_bits(part_of(key, ++place) + (uint64_t)j->salt);
    const uint64_t at = mixed_bits(base + (uint64_t)*j->step * GOLDEN);
    noise_of(at, found[i].in, 2, 0, into);
    noise_of(at, found[i].n, 2, 1, out);
    into += found[i].in, out += found[i].n;
  }
}

// to (+)= of · (into ⊗ out) for every weight and bias behind the latent; `base` is added to, or nothing.
static void with_noise(const value_job *j, int p, const layer *found, int count, const float *into, const float *out,
                       const float *base, const float *of, float *to) {
  for (int i = 0; i < count; i++) {
    const int32_t *at = found[i].at;
    const int in = found[i].in, n = found[i].n;
    if ((at - (j->plan + (ptrdiff_t)p * j->layers * FIELDS)) / FIELDS < j->noisy) continue;
    for (int r = 0; r <= in; r++) {  // the last one is the bias
      const ptrdiff_t row = r < in ? at[WEIGHT] + (ptrdiff_t)r * at[STRIDE] : at[BIAS];
      const float by = r < in ? into[r] : 1.0f;
      for (int c = 0; c < n; c += LANES) {
        const vec moved = part(of + row + c, n - c) * (by * part(out + c, n - c));
        put(to + row + c, n - c, base ? part(base + row + c, n - c) + moved : moved);
      }
    }
    into += in, out += n;
  }
}

// --- losses ----------------------------------------------------------------------------------------------------------

// The best legal action; the first of equal ones, and a NaN before all, as torch has it.
static int best(int actions, const float *q, const uint8_t *legal) {
  int found = 0;
  float most = -INFINITY;
  for (int a = 0; a < actions; a++) {
    if (legal && !legal[a]) continue;
    if (q[a] != q[a]) return a;
    if (q[a] > most) most = q[a], found = a;
  }
  return found;
}

// Write alpha · (softmax of the legal values − 1 at the action taken) to d; return log Σ exp q − q[action].
static float conservative(int actions, const float *q, const uint8_t *legal, int action, float alpha, float *d) {
  float most = -INFINITY, total = 0.0f;
  for (int a = 0; a < actions; a++)
    if (!(legal && !legal[a]) && !(q[a] <= most)) most = q[a];  // NaN too
  for (int a = 0; a < actions; a++) {
    d[a] = legal && !legal[a] ? 0.0f : exponential(all(q[a] - most))[0];
    total += d[a];
  }
  for (int a = 0; a < actions; a++) d[a] *= alpha / total;
  d[action] -= alpha;
  return most + logarithm(all(total))[0] - q[action];
}

// What an action's atoms are: its outputs, or with a value its advantages around it.
INLINE vec atoms_of(const value_job *j, const float *out, const float *middle, int action, int k) {
  const int left = j->atoms - k;
  if (!j->dueling) return part(out + (ptrdiff_t)action * j->atoms + k, left);
  return part(out + k, left) + part(out + (ptrdiff_t)(action + 1) * j->atoms + k, left) - part(middle + k, left);
}

// The mean advantage of every atom.
static const float *middle_of(const value_job *j, const float *out, float *to) {
  if (j->dueling)
    for (int k = 0; k < j->atoms; k += LANES) {
      vec total = {0};
      for (int a = 1; a <= j->actions; a++) total += part(out + (ptrdiff_t)a * j->atoms + k, j->atoms - k);
      put(to + k, j->atoms - k, total / (float)j->actions);
    }
  return to;
}

// Write an action's probabilities, zeros behind them; return log Σ exp of its outputs, which go to `x` if wanted.
static float distribution(const value_job *j, const float *out, const float *middle, int action, float *to, float *x) {
  vec most = all(-INFINITY), total[EACH] = {0};
  float maximum = -INFINITY, each[LANES];
  for (int k = 0; k < j->atoms; k += LANES) {
    vec y = atoms_of(j, out, middle, action, k);
    for (int c = j->atoms - k; c < LANES; c++) y[c] = -INFINITY;
    store(to + k, y);
    if (x) store(x + k, y);
    most = choose(y <= most, most, y);
  }
  store(each, most);
  for (int c = 0; c < LANES; c++) maximum = each[c] <= maximum ? maximum : each[c];
  for (int k = 0, i = 0; k < lines(j->atoms); k += LANES, i = (i + 1) % EACH) {
    const vec d = k < j->atoms ? load(to + k) - maximum : all(-INFINITY);
    const vec e = choose(d < all(-87.0f), all(0.0f), exponential(d));
    store(to + k, e);
    total[i] += e;
  }
  const float sum_of = sum(total);
  for (int k = 0; k < j->atoms; k += LANES) store(to + k, load(to + k) / sum_of);
  return maximum + logarithm(all(sum_of))[0];
}

// Action values of one row of outputs.
static const float *means(const value_job *j, const float *out, float *q) {
  float middle[MOST_ATOMS], chance[MOST_ATOMS];
  if (!j->support && !j->dueling) return out;
  middle_of(j, out, middle);
  for (int a = 0; a < j->actions; a++) {
    if (!j->support) {
      q[a] = atoms_of(j, out, middle, a, 0)[0];
      continue;
    }
    vec total[EACH] = {0};
    distribution(j, out, middle, a, chance, NULL);
    for (int k = 0, i = 0; k < j->atoms; k += LANES, i = (i + 1) % EACH)
      total[i] = fused(load(chance + k), part(j->support + k, j->atoms - k), total[i]);
    q[a] = sum(total);
  }
  return q;
}

// Project the distribution of r + γ z back onto z, as `ops.value.project`.
static void projected(const value_job *j, float reward, float discount, const float *chance, float *y) {
  const int atoms = j->atoms;
  const float low = j->support[0], apart = (j->support[atoms - 1] - low) / (float)(atoms - 1);
  const float begin = __builtin_fmaf(-low, 1.0f - discount, reward) / apart;
  memset(y, 0, sizeof(float) * (size_t)lines(atoms));
  for (int k = 0; k < atoms; k++) {
    float place = __builtin_fmaf(discount, (float)k, begin);
    if (place < 0.0f) place = 0.0f;
    if (place > (float)(atoms - 1)) place = (float)(atoms - 1);
    int below = place == place ? (int)place : 0;
    if (below > atoms - 2) below = atoms - 2;
    const float above = place - (float)below;  // a value that is no number stays one
    y[below] = __builtin_fmaf(chance[k], 1.0f - above, y[below]);
    y[below + 1] = __builtin_fmaf(chance[k], above, y[below + 1]);
  }
}

// Give the gradient of an action's atoms to the outputs that made them.
static void to_outputs(const value_job *j, int action, const float *g, float weight, float *d) {
  const int atoms = j->atoms;
  for (int k = 0; k < atoms; k++) {
    const float each = weight * g[k], others = each / (float)j->actions;
    if (!j->dueling) {
      d[(ptrdiff_t)action * atoms + k] += each;
      continue;
    }
    d[k] += each;
    for (int a = 0; a < j->actions; a++) d[(ptrdiff_t)(a + 1) * atoms + k] += a == action ? each - others : -others;
  }
}

// The loss of one transition `at` of member p; its gradient, times the weight, goes to d, the error to `error`.
static float loss_of(const value_job *j, int p, ptrdiff_t at, const float *out, const float *out_t, const float *select,
                     float *d, float *error) {
  float q_t[MOST_ATOMS], q[MOST_ATOMS], middle[MOST_ATOMS];
  const int taken = (int)j->action[at], actions = j->actions;
  const uint8_t *next_legal = j->next_legal ? j->next_legal + at * actions : NULL;
  const int chosen = best(actions, means(j, select, q), next_legal);
  const float weight = j->weight[at];
  memset(d, 0, sizeof(float) * (size_t)j->outputs);
  if (j->support) {
    float y[MOST_ATOMS], x[MOST_ATOMS];
    float loss = 0.0f, information = 0.0f;
    distribution(j, out_t, middle_of(j, out_t, middle), chosen, q_t, NULL);
    projected(j, j->reward[at], j->discount[at], q_t, y);
    const float whole_of = distribution(j, out, middle_of(j, out, middle), taken, q, x);
    vec cross[EACH] = {0}, own[EACH] = {0}, mass[EACH] = {0};
    for (int k = 0, i = 0; k < j->atoms; k += LANES, i = (i + 1) % EACH) {
      const vec share = load(y + k), log = choose(share > all(0.0f), logarithm(share), share);
      const vec likely = choose(share == all(0.0f), all(0.0f), share * (whole_of - load(x + k)));
      cross[i] += likely, own[i] = fused(share, log, own[i]), mass[i] += share;
    }
    loss = sum(cross), information = sum(own);
    const float total = sum(mass);
    for (int k = 0; k < j->atoms; k += LANES) store(q + k, fused(load(q + k), all(total), -load(y + k)));
    to_outputs(j, taken, q, weight, d);
    *error = loss + information;  // Kullback-Leibler
    return weight * loss;
  }
  const float y = __builtin_fmaf(j->discount[at], means(j, out_t, q_t)[chosen], j->reward[at]);
  const float *now = means(j, out, q);
  const float e = now[taken] - y, far = fabsf(e);
  float each = j->huber && !(far < 1.0f) ? far - 0.5f : 0.5f * e * e, slope = e;
  if (j->huber && far > 1.0f) slope = e > 0.0f ? 1.0f : -1.0f;
  if (j->alpha) {
    const uint8_t *legal = j->legal ? j->legal + at * actions : NULL;
    each = __builtin_fmaf(j->alpha[p], conservative(actions, now, legal, taken, j->alpha[p], d), each);
    for (int a = 0; a < actions; a++) d[a] *= weight;
  }
  to_outputs(j, taken, &slope, weight, d);
  *error = e;
  return weight * each;
}

// --- updates ---------------------------------------------------------------------------------------------------------

static int value_member(const void *told, int p) {
  const value_job *j = told;
  const ptrdiff_t first = (ptrdiff_t)p * j->rows;
  const int rows = rows_that_count(j->rows, j->weight + first), noisy = j->noise != NULL;
  const ptrdiff_t width = (ptrdiff_t)rows * j->widest, outputs = (ptrdiff_t)rows * j->outputs;
  const ptrdiff_t inputs = (ptrdiff_t)rows * j->inputs, factors = noisy ? (ptrdiff_t)j->layers * j->widest : 0;
  const ptrdiff_t deepest = (j->widest > rows ? j->widest : rows) * (ptrdiff_t)PANEL;
  float *free = scratch(lines(inputs) + lines(rows * j->keep) + 2 * lines(outputs) + 3 * lines(width) + lines(deepest) +
                        (noisy ? 3 : 1) * lines(j->size) + 2 * lines(factors));
  if (!free) return 1;
  float *x = take(&free, inputs), *saved = take(&free, rows * j->keep);
  float *out_t = take(&free, outputs), *select = take(&free, outputs);
  float *d = take(&free, width), *next = take(&free, width), *of_f = take(&free, width);
  float *packed = take(&free, deepest), *grad = take(&free, j->size);
  float *values = j->values + p * j->stride, *target = j->target + p * j->target_stride, *errors = j->errors + first;
  float *own = values, *aim = target, *into = NULL, *out_of = NULL, *noise_grad = NULL;
  const int32_t *plan = j->plan + (ptrdiff_t)p * j->layers * FIELDS;
  const spans all_own = spans_of(j->own, p);
  layer found[MOST];
  int count;
  if (noisy) {
    noise_grad = take(&free, j->size), own = take(&free, j->size);
    into = take(&free, factors), out_of = take(&free, factors);
    count = lay_out(plan, j->layers, rows, j->inputs, x, saved, found);
    draw_noise(j, p, 2, found, count, into, out_of);
    aim = own;
    copied(all_own, target, own);
    with_noise(j, p, found, count, into, out_of, target, j->noise_target + p * j->noise_target_stride, own);
  }
  gathered(rows, j->inputs, j->next_obs + p * j->next_member, j->next_row, x);
  memcpy(out_t, outputs_of(plan, j->layers, aim, rows, j->inputs, x, saved, packed, found, &count),
         sizeof(float) * (size_t)outputs);
  if (noisy) {
    draw_noise(j, p, 1, found, count, into, out_of);
    copied(all_own, values, own);
    with_noise(j, p, found, count, into, out_of, values, j->noise + p * j->noise_stride, own);
  }
  if (j->twice)
    memcpy(select, outputs_of(plan, j->layers, own, rows, j->inputs, x, saved, packed, found, &count),
           sizeof(float) * (size_t)outputs);
  gathered(rows, j->inputs, j->obs + p * j->obs_member, j->obs_row, x);
  const float *out = outputs_of(plan, j->layers, own, rows, j->inputs, x, saved, packed, found, &count);

  float loss = 0.0f;
  for (int b = 0; b < rows; b++) {
    const ptrdiff_t row = (ptrdiff_t)b * j->outputs;
    loss += loss_of(j, p, first + b, out + row, out_t + row, (j->twice ? select : out_t) + row, d + row, errors + b);
  }
  for (int b = rows; b < j->rows; b++) errors[b] = 0.0f;

  cleared(all_own, grad);
  backward(own, grad, rows, found, count, d, next, of_f, 0, packed);
  float norm = 0.0f;
  if (noisy) {
    cleared(all_own, noise_grad);
    with_noise(j, p, found, count, into, out_of, NULL, grad, noise_grad);
    norm = clipped(all_own, noise_grad, j->limit[p]);
  }
  norm += clipped(all_own, grad, j->limit[p]);
  j->losses[p] = loss;
  j->healthy[p] = j->healthy[p] && fabsf(loss + norm) < INFINITY;
  if (j->healthy[p]) {
    adam_step(all_own, values, grad, j->mean + p * j->moment_stride, j->square + p * j->moment_stride, j->steps + p,
              j->lr[p], j->beta1, j->beta2, j->eps);
    if (noisy)
      adam_step(all_own, j->noise + p * j->noise_stride, noise_grad, j->noise_mean + p * j->noise_moment_stride,
                j->noise_square + p * j->noise_moment_stride, j->noise_steps + p, j->lr[p], j->beta1, j->beta2, j->eps);
    j->updates[p] += 1.0f;
  }
  const float when = j->interval ? (float)(fmodf(j->updates[p], (float)j->interval) == 0.0f) : j->tau[p];
  const float share = j->healthy[p] ? when : 0.0f;
  mixed(all_own, target, values, share);
  if (noisy) mixed(all_own, j->noise_target + p * j->noise_target_stride, j->noise + p * j->noise_stride, share);
  return 0;
}

int value_update(const value_job *job, int members) { return each_member(members, value_member, job); }
