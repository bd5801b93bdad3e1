// Updates of one Q-network: `algos.dqn`, `algos.cqn` and `algos.rainbow` say what they compute.

#include "update.h"

enum { MOST_ATOMS = 1024 };

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
      const double half_turns = nearbyint(2.0 * t);
      series[c] = (float)(u < 0.25 ? -u : 0.0), halves[c] = (float)(u < 0.25 ? 1.0 : 1.0 - u);
      turn[c] = (float)(6.283185307179586 * (t - 0.5 * half_turns));
      sign[c] = (int)half_turns & 1 ? -1.0f : 1.0f;
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

// Whether a layer stands behind the latent.
static int is_noisy(const update *u, const layer *l) {
  return (l->at - plan_of(&u->of->critic, u->p, 0)) / FIELDS >= ((const value_job *)u->job)->noisy;
}

// Draw a member's noise: factors of what each noisy layer reads and gives, one behind the other, as `core.padded.noisy`
// has them. Layers are counted as the member has them, whatever its neighbours have between.
static void draw_noise(const update *u, uint64_t name, const pass *of) {
  const value_job *j = u->job;
  const uint64_t key = part_of((uint64_t)u->now->keys[u->p], name);
  float *into = u->into, *out = u->out_of;
  uint64_t place = 0;
  for (int i = 0; i < of->count; i++) {
    const layer *l = &of->layers[i];
    if (!is_noisy(u, l)) continue;
    const uint64_t base = mixed_bits(part_of(key, ++place) + (uint64_t)j->salt);
    const uint64_t at = mixed_bits(base + (uint64_t)*u->now->step * GOLDEN);
    noise_of(at, l->in, 2, 0, into);
    noise_of(at, l->n, 2, 1, out);
    into += l->in, out += l->n;
  }
}

// to (+)= of · (into ⊗ out) for every weight and bias behind the latent; `base` is added to, or nothing.
static void with_noise(const update *u, const pass *by, const float *base, const float *of, float *to) {
  const float *into = u->into, *out = u->out_of;
  for (int i = 0; i < by->count; i++) {
    const int32_t *at = by->layers[i].at;
    const int in = by->layers[i].in, n = by->layers[i].n;
    if (!is_noisy(u, &by->layers[i])) continue;
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

// Cross-entropy of an action's distribution with the target's, its gradient, and the divergence as the error.
static float of_distribution(const value_job *j, int taken, int chosen, float reward, float discount, float weight,
                             const float *out, const float *out_t, float *d, float *error) {
  float q_t[MOST_ATOMS], q[MOST_ATOMS], middle[MOST_ATOMS], y[MOST_ATOMS], x[MOST_ATOMS];
  distribution(j, out_t, middle_of(j, out_t, middle), chosen, q_t, NULL);
  projected(j, reward, discount, q_t, y);
  const float log_total = distribution(j, out, middle_of(j, out, middle), taken, q, x);
  vec cross[EACH] = {0}, own[EACH] = {0}, mass[EACH] = {0};
  for (int k = 0, i = 0; k < j->atoms; k += LANES, i = (i + 1) % EACH) {
    const vec share = load(y + k), log = choose(share > all(0.0f), logarithm(share), share);
    const vec likely = choose(share == all(0.0f), all(0.0f), share * (log_total - load(x + k)));
    cross[i] += likely, own[i] = fused(share, log, own[i]), mass[i] += share;
  }
  const float loss = sum(cross), information = sum(own), total = sum(mass);
  for (int k = 0; k < j->atoms; k += LANES) store(q + k, fused(load(q + k), all(total), -load(y + k)));
  to_outputs(j, taken, q, weight, d);
  *error = loss + information;  // Kullback-Leibler
  return weight * loss;
}

// Huber's loss or half the square of Q(s, a) − y, and the conservative term.
static float of_value(const update *u, ptrdiff_t at, int taken, int chosen, const float *out, const float *out_t,
                      float *d, float *error) {
  const value_job *j = u->job;
  const minibatch *m = u->batch;
  const float weight = m->weight[at];
  float q_t[MOST_ATOMS], q[MOST_ATOMS];
  const float y = __builtin_fmaf(m->discount[at], means(j, out_t, q_t)[chosen], m->reward[at]);
  const float *now = means(j, out, q), e = now[taken] - y, far = fabsf(e);
  float each = j->huber && !(far < 1.0f) ? far - 0.5f : 0.5f * e * e, slope = e;
  if (j->huber && far > 1.0f) slope = e > 0.0f ? 1.0f : -1.0f;
  if (j->alpha) {
    const uint8_t *legal = m->legal ? m->legal + at * j->actions : NULL;
    const float alpha = j->alpha[u->p];
    each = __builtin_fmaf(alpha, conservative(j->actions, now, legal, taken, alpha, d), each);
    for (int a = 0; a < j->actions; a++) d[a] *= weight;
  }
  to_outputs(j, taken, &slope, weight, d);
  *error = e;
  return weight * each;
}

// --- updates ---------------------------------------------------------------------------------------------------------

static void value_room(update *u, arena *from) {
  const value_job *j = u->job;
  const network *q = &u->of->critic;
  const ptrdiff_t outputs = (ptrdiff_t)u->rows * j->outputs, factors = (ptrdiff_t)q->layers * q->widest;
  u->out_t = take(from, outputs), u->select = take(from, outputs);
  if (!u->of->noise.values) return;
  u->values = take(from, q->size), u->noise_grads = take(from, q->size);
  u->into = take(from, factors), u->out_of = take(from, factors);
}

// The values of a network, or of its target, with noise drawn by name on those behind the latent.
static const float *noisy_values(update *u, const network *net, const network *scale, uint64_t name, pass *by) {
  const float *values = values_of(net, u->p, 0);
  if (!u->values) return values;
  draw_noise(u, name, by);
  copied(spans_of(net->own, u->p), values, u->values);
  with_noise(u, by, values, values_of(scale, u->p, 0), u->values);
  return u->values;
}

// Write what the target network says of what follows, and what chooses among its actions.
static void value_target(update *u) {
  const value_job *j = u->job;
  const learners *of = u->of;
  const minibatch *m = u->batch;
  const network *q = &of->critic;
  const size_t bytes = sizeof(float) * (size_t)u->rows * (size_t)j->outputs;
  pass by;
  by.count = lay_out(plan_of(q, u->p, 0), q->layers, u->rows, q->inputs, u->x, u->kept, by.layers);
  gathered(u->rows, q->inputs, m->next_obs + u->p * m->next_member, m->next_row, u->x);
  const float *values = noisy_values(u, &of->critic_target, &of->noise_target, 2, &by);
  run(q, values, u->p, 0, u->rows, u->x, u->kept, u->back.packed, &by);
  memcpy(u->out_t, by.out, bytes);
  values = noisy_values(u, q, &of->noise, 1, &by);
  if (!j->twice) return;
  run(q, values, u->p, 0, u->rows, u->x, u->kept, u->back.packed, &by);
  memcpy(u->select, by.out, bytes);
}

static const float *value_reads(update *u, int i UNUSED) {
  const minibatch *m = u->batch;
  gathered(u->rows, u->of->critic.inputs, m->obs + u->p * m->obs_member, m->obs_row, u->x);
  return u->x;
}

static void value_loss(update *u, int i UNUSED, const pass *by, float *d) {
  const value_job *j = u->job;
  const minibatch *m = u->batch;
  float q[MOST_ATOMS];
  memset(d, 0, sizeof(float) * (size_t)u->rows * (size_t)j->outputs);
  for (int b = 0; b < u->rows; b++, d += j->outputs) {
    const ptrdiff_t at = u->first + b, row = (ptrdiff_t)b * j->outputs;
    const uint8_t *next_legal = m->next_legal ? m->next_legal + at * j->actions : NULL;
    const int taken = (int)((const int64_t *)m->action)[at];
    const int chosen = best(j->actions, means(j, (j->twice ? u->select : u->out_t) + row, q), next_legal);
    const float *out = by->out + row, *out_t = u->out_t + row;
    u->loss += j->support ? of_distribution(j, taken, chosen, m->reward[at], m->discount[at], m->weight[at], out, out_t,
                                            d, &u->errors[b])
                          : of_value(u, at, taken, chosen, out, out_t, d, &u->errors[b]);
  }
}

static void value_noise(update *u) {
  const network *q = &u->of->critic;
  pass by;
  by.count = lay_out(plan_of(q, u->p, 0), q->layers, u->rows, q->inputs, u->x, u->kept, by.layers);
  cleared(spans_of(q->own, u->p), u->noise_grads);
  with_noise(u, &by, NULL, u->grads, u->noise_grads);
}

static const family VALUE = {.lay_out = value_room,
                             .target = value_target,
                             .of_noise = value_noise,
                             .critic = {one_pass, same_network, value_reads, value_loss}};

int value_update(const value_job *job, const minibatch *batch, const update_call *now, int members) {
  return each_member(members, update_member, &(update_work){&VALUE, &job->of, batch, now, job});
}
