// What policies learn from a whole rollout: losses, their gradients, and all minibatches of all epochs.

#include "policy.h"

// --- losses ----------------------------------------------------------------------------------------------------------

// A group's part of a minibatch of a member, and what its losses come to.
typedef struct {
  const policy *of;
  const rollout *from;
  const workspace *with;
  const float *log_std;   // [outputs] of continuous actions
  int p, g, rows;         // rows: steps × sequences
  double loss, distance;  // distance: of the policy that acted, by Schulman's estimate
  double *std;            // [outputs], the loss's gradient by log-deviations
} lesson;

// What was known of LANES rows when they were acted.
typedef struct {
  vec log_p, value, advantage, target, weight;
} known;

static known known_of(const lesson *m, int first, int left, float *done) {
  const float *const *from = m->with->from + first;
  const ptrdiff_t at = m->from->known, act = m->of->observations;
  float then[5][LANES] = {{0}};
  for (int l = 0; l < left; l++) {
    then[0][l] = from[l][at], then[1][l] = from[l][at + 1], then[2][l] = m->with->advantage[first + l];
    then[3][l] = from[l][at + 4], then[4][l] = m->with->weight[first + l];
  }
  for (int j = 0; j < m->of->choices; j++)
    for (int l = 0; l < LANES; l++) done[j * LANES + l] = l < left ? from[l][act + j] : 0.0f;
  return (known){load(then[0]), load(then[1]), load(then[2]), load(then[3]), load(then[4])};
}

// The log-probability of what was done, and the entropy.
static vec judge(const lesson *m, const columns *c, const float *done, vec *entropy) {
  const policy *of = m->of;
  vec log_p = {0}, total = {0};
  if (of->kind == CHOICES) {
    weigh(of, c);
    for (int d = 0, at = 0; d < of->choices; at += of->each[d++]) {
      vec taken = load(done + d * LANES);
      for (int j = 0; j < of->each[d]; j++)
        log_p += choose(taken == all((float)j), load(c->log_p + (at + j) * LANES), all(0.0f));
      total += load(c->entropy + d * LANES);
    }
  } else if (of->kind == BITS) {
    for (int j = 0; j < of->outputs; j++) {
      vec z = load(c->z + j * LANES), y = size(z), sign = 2.0f * load(done + j * LANES) - 1.0f;
      whole may = load(c->may + j * LANES) > all(0.0f);
      log_p -= choose(may, softplus(-sign * z), all(0.0f));
      total += choose(may, fused(y, sigmoid(-y), softplus(-y)), all(0.0f));
    }
  } else {
    log_p = density(of, m->log_std, c, done);
    for (int j = 0; j < of->outputs; j++) {
      const whole may = load(c->may + j * LANES) > all(0.0f);
      total += choose(may, all(m->log_std[j] + (0.5f + HALF_LOG_2PI)), all(0.0f));
    }
  }
  *entropy = total;
  return log_p;
}

// The squared error of values, of which the clipped one where that is larger; its slope goes to `by_value`.
static vec value_error(const lesson *m, vec v, const known *k, vec *by_value) {
  const float clip = m->from->clip[m->p];
  const vec off = v - k->target, error = off * off;
  *by_value = 2.0f * off;
  if (!m->from->clip_value) return error;
  const vec moved = v - k->value, below = choose(moved > all(clip), all(clip), moved);
  const vec within = choose(moved < all(-clip), all(-clip), below);
  const vec other = k->value + within - k->target, second = other * other;
  const vec by_second = choose(moved == within, 2.0f * other, all(0.0f));
  *by_value = choose(second > error, by_second, choose(second == error, 0.5f * (*by_value + by_second), *by_value));
  return choose(second > error, second, error);
}

// What LANES rows' losses are by their log-probability and their entropy.
typedef struct {
  vec log_p, entropy;
} slopes;

// Write the gradient by the actor's outputs.
static void outputs_back(const lesson *m, const columns *c, const float *done, slopes by, int first, int left) {
  const policy *of = m->of;
  const int n = of->outputs;
  int choice = 0, end = of->kind == CHOICES ? of->each[0] : 0;
  for (int j = 0; j < n; j++) {
    const whole may = load(c->may + j * LANES) > all(0.0f);
    vec g;
    if (of->kind == CHOICES) {
      for (; j == end; end += of->each[choice]) choice++;
      vec p_j = load(c->p + j * LANES), value_of = all((float)(j - end + of->each[choice]));
      whole taken = load(done + choice * LANES) == value_of;
      vec moved = p_j * (load(c->log_p + j * LANES) + load(c->entropy + choice * LANES));
      g = fused(by.log_p, choose(taken, all(1.0f), all(0.0f)) - p_j, by.entropy * moved);
    } else if (of->kind == BITS) {
      vec z = load(c->z + j * LANES), s = sigmoid(z);
      g = fused(by.log_p, load(done + j * LANES) - s, by.entropy * (z * s * sigmoid(-z)));
    } else {
      vec noise = load(c->p + j * LANES), scale = exponential(all(-m->log_std[j]));
      vec deviation = fused(by.log_p, fused(noise, noise, all(-1.0f)), -by.entropy);
      g = by.log_p * noise * scale, deviation = choose(may, deviation, all(0.0f));
      for (int l = 0; l < left; l++) m->std[j] += (double)deviation[l];
    }
    g = choose(may, g, all(0.0f));
    for (int l = 0; l < left; l++) m->with->heads[0][(ptrdiff_t)(first + l) * n + j] = g[l];
  }
}

// The clipped objective of LANES rows, the value's error and the entropy; gradients by what actor and critic say go to
// the workspace's `heads`.
static void lose(lesson *m, const columns *c, int first, int left, const float *value) {
  const float clip = m->from->clip[m->p], vf = m->from->vf_coef[m->p], ent = m->from->ent_coef[m->p];
  const float low = 1.0f - clip, high = 1.0f + clip;
  float *done = m->with->column + 5 * (ptrdiff_t)m->of->outputs * LANES;
  const known k = known_of(m, first, left, done);
  vec entropy, by_value, v = {0};
  const vec log_p = judge(m, c, done, &entropy), log_ratio = log_p - k.log_p;
  const vec ratio = choose(log_ratio > all(88.0f), all(INFINITY), exponential(log_ratio));
  const vec bounded = choose(ratio < all(low), all(low), choose(ratio > all(high), all(high), ratio));
  const vec free = ratio * k.advantage, held = bounded * k.advantage;
  const whole flows = (free < held) | (ratio == bounded);
  for (int l = 0; l < left; l++) v[l] = value[first + l];
  const vec error = value_error(m, v, &k, &by_value);
  const vec each = less(fused(all(0.5f * vf), error, -choose(free < held, free, held)), all(ent), entropy);
  const vec far = ratio - 1.0f - log_ratio, value_grad = 0.5f * vf * by_value * k.weight;
  for (int l = 0; l < left; l++) {
    m->loss += (double)(k.weight[l] * each[l]), m->distance += k.weight[l] > 0.0f ? (double)far[l] : 0.0;
    m->with->heads[1][first + l] = value_grad[l];
  }
  outputs_back(m, c, done, (slopes){choose(flows, -free, all(0.0f)) * k.weight, ent * k.weight}, first, left);
}

// The losses of a group's part of a minibatch, and their gradients.
static void objective_of(lesson *m, const float *said, const float *value) {
  const columns c = columns_of(m->of, m->with);
  for (int first = 0; first < m->rows; first += LANES) {
    const int left = m->rows - first < LANES ? m->rows - first : LANES;
    const float *legal[LANES];
    for (int l = 0; l < left; l++) legal[l] = m->with->from[first + l] + m->from->known + 6;
    in_columns(m->of, said + (ptrdiff_t)first * m->of->outputs, m->with->who + first, m->from->masked ? legal : NULL,
               left, &c);
    lose(m, &c, first, left, value);
  }
}

// One step of Adam of single numbers, each with two moments and its steps beside it.
static void scalar_step(ptrdiff_t count, float *value, float *state, const float *grad, float lr, const rollout *to) {
  for (ptrdiff_t j = 0; j < count; j++, state += 3) {
    state[0] = __builtin_fmaf((float)(1.0 - to->beta1), grad[j] - state[0], state[0]);
    state[1] = __builtin_fmaf((float)(1.0 - to->beta2), grad[j] * grad[j] - state[1], state[1]);
    state[2] += 1.0f;
    const float mean = state[0] / (float)(1.0 - pow(to->beta1, state[2]));
    const float square = state[1] / (float)(1.0 - pow(to->beta2, state[2]));
    value[j] -= lr * mean / (sqrtf(square) + (float)to->eps);
  }
}

// --- minibatches -----------------------------------------------------------------------------------------------------

// Divide weights by how many rows count; let advantages have mean 0 and deviation 1 if they are to.
static void weigh_rows(const workspace *with, int rows, int valid, int normalise) {
  double mean = 0.0, square = 0.0;
  for (int r = 0; r < rows; r++) {
    with->weight[r] /= (float)(valid > 1 ? valid : 1);
    mean += (double)(with->weight[r] * with->advantage[r]);
  }
  if (!normalise) return;
  for (int r = 0; r < rows; r++) {
    const float off = with->advantage[r] - (float)mean;
    with->advantage[r] = off;
    square += (double)(with->weight[r] * (off * off));
  }
  const float deviation = sqrtf((float)square) + 1e-8f;
  for (int r = 0; r < rows; r++) with->advantage[r] /= deviation;
}

// Gather a group's part of a minibatch: `batch` sequences of each of its agents, step-major. Returns how many of its
// steps count.
static int fetch(const policy *of, const rollout *to, int p, int g, const int64_t *chosen, int batch,
                 const workspace *with) {
  const int steps = (int)to->length, first = of->starts[g], seats = of->starts[g + 1] - first;
  const ptrdiff_t team = to->envs * of->agents;
  const float *rows = to->rows + p * to->rows_stride, *memory = to->memory + p * to->memory_stride;
  int valid = 0;
  for (int seat = 0; seat < seats; seat++)
    for (int b = 0; b < batch; b++) {
      const int64_t stretch = chosen[b] / to->envs, env = chosen[b] % to->envs * of->agents;
      const int64_t *ticks = to->ticks + stretch * steps;
      const int k = of->agent[first + seat], place = seat * batch + b;
      if (of->memory)
        memcpy(with->memory + place * of->memory, memory + (ticks[0] * team + env + k) * of->memory,
               sizeof(float) * (size_t)of->memory);
      for (int t = 0; t < steps; t++) {
        const ptrdiff_t at = (ptrdiff_t)t * batch * seats + place;
        const float *mates = rows + (ticks[t] * team + env) * to->row, *row = mates + k * to->row;
        const float *said = row + to->known;
        const int counts = to->within[stretch * steps + t] && said[5] > 0.0f;
        with->from[at] = row, with->who[at] = k;
        perceive(of, mates, to->row, NULL, k, seat, with->x + at * (of->observations + of->ids),
                 with->y + at * of->nets[CRITIC].inputs);
        with->keep[at] = said[2] > 0.5f ? 0.0f : 1.0f;
        with->weight[at] = counts ? 1.0f : 0.0f;
        with->advantage[at] = said[3];
        valid += counts;
      }
    }
  weigh_rows(with, steps * batch * seats, valid, to->normalise);
  return valid;
}

// Go down a group's losses: gradients by what its heads said are in `heads`.
static void go_back(const policy *of, int g, const sequences *s, pass *passes, const workspace *with) {
  const int rows = s->steps * s->batch, shared = of->nets[ENCODER].values != NULL;
  float *grads[NETS];
  for (int k = 0; k < NETS; k++) grads[k] = of->nets[k].values ? with->grads[k] + g * copy_size(&of->nets[k]) : NULL;
  for (int k = 0; k < 2; k++) {
    pass *net = &passes[ACTOR + k];
    memcpy(with->back.d, with->heads[k], sizeof(float) * (size_t)rows * (size_t)net->width);
    const float *found = policy_back(net, grads[ACTOR + k], s, shared, with);
    if (shared) memcpy(with->heads[k], found, sizeof(float) * (size_t)rows * (size_t)passes[ENCODER].width);
  }
  if (!shared) return;
  const ptrdiff_t count = (ptrdiff_t)rows * passes[ENCODER].width;
  for (ptrdiff_t j = 0; j < count; j++) with->back.d[j] = with->heads[0][j] + with->heads[1][j];
  policy_back(&passes[ENCODER], grads[ENCODER], s, 0, with);
}

// Clip all gradients by their common norm and take a step; a member whose loss or norm is not finite takes none.
static void take_steps(const policy *of, const rollout *to, int p, float loss, int numbers, float *std,
                       const workspace *with) {
  double squares = 0.0;
  for (int k = 0; k < NETS; k++)
    if (of->nets[k].values) squares += (double)squared(spans_of(of->nets[k].own, p), with->grads[k]);
  for (int j = 0; j < numbers; j++) squares += (double)(std[j] * std[j]);
  const float norm = sqrtf((float)squares), share = to->grad_clip[p] / (norm + 1e-6f);
  to->healthy[p] = fabsf(loss + norm) < INFINITY;
  if (!to->healthy[p]) return;
  for (int k = 0; k < NETS; k++) {
    const network *net = &of->nets[k];
    if (!net->values) continue;
    if (share < 1.0f) scaled(spans_of(net->own, p), with->grads[k], share);
    take_step((learner){net, with->grads[k]}, p, to->lr[p], to->beta1, to->beta2, to->eps);
  }
  for (int j = 0; j < numbers; j++) std[j] *= share < 1.0f ? share : 1.0f;
  float *log_std = of->log_std + (ptrdiff_t)p * numbers;
  scalar_step(numbers, log_std, to->log_std_adam + 3 * (ptrdiff_t)p * numbers, std, to->lr[p], to);
  to->updates[p] += 1.0f;
}

// Let a group's networks read its part of a minibatch, and go down its losses where the member learns.
static void learn_group(lesson *m, int batch, int rests) {
  const policy *of = m->of;
  const workspace *with = m->with;
  const sequences s = {(int)m->from->length, batch * (of->starts[m->g + 1] - of->starts[m->g]), with->memory,
                       with->keep, of->memory};
  pass passes[NETS];
  run_policy(of, m->p, m->g, &s, (int[]){1, 1, 1}, with, passes);
  m->rows = s.steps * s.batch;
  objective_of(m, passes[ACTOR].out, passes[CRITIC].out);
  if (!rests) go_back(of, m->g, &s, passes, with);
}

// Learn from one minibatch, see `algos._ppo.descend`.
static void learn_one(const policy *of, const rollout *to, int p, const int64_t *chosen, int batch, int begins,
                      const workspace *with) {
  const int n = of->outputs, numbers = of->kind == NUMBERS ? of->groups * n : 0;
  const int rests = !to->healthy[p] || (!begins && to->resting[p] != 0.0f);
  double by_std[n + 1], total = 0.0, apart = 0.0;
  float std[numbers + 1];
  int given = 0;
  for (int k = 0; k < NETS; k++)
    if (of->nets[k].values && !rests) clear((learner){&of->nets[k], with->grads[k]}, p);
  for (int g = 0; g < of->groups; g++) {
    const float *log_std = numbers ? of->log_std + ((ptrdiff_t)p * of->groups + g) * n : NULL;
    lesson m = {.of = of, .from = to, .with = with, .log_std = log_std, .p = p, .g = g, .std = by_std};
    memset(by_std, 0, sizeof by_std);
    given += fetch(of, to, p, g, chosen, batch, with);
    learn_group(&m, batch, rests);
    total += m.loss, apart += m.distance;
    for (int j = 0; numbers && j < n; j++) std[g * n + j] = (float)by_std[j];
  }
  const float loss = (float)total;
  to->losses[p] = loss;
  const int far = given && to->target_kl[p] > 0.0f && (float)(apart / given) > to->target_kl[p];
  to->resting[p] = begins ? (float)far : to->resting[p] > (float)far ? to->resting[p] : (float)far;
  if (given && to->resting[p] == 0.0f && to->healthy[p]) take_steps(of, to, p, loss, numbers, std, with);
}

static int most_seats(const policy *of) {
  int most = 0;
  for (int g = 0; g < of->groups; g++) most = (int)largest(most, of->starts[g + 1] - of->starts[g]);
  return most;
}

typedef struct {
  const policy *of;
  const rollout *from;
} ppo_call;

// Let a member learn from all minibatches of all epochs.
static int policy_member(const void *told, int p) {
  const policy *of = ((const ppo_call *)told)->of;
  const rollout *from = ((const ppo_call *)told)->from;
  const int size = (int)from->sizes[p];
  const ptrdiff_t rows = (ptrdiff_t)size * most_seats(of);
  workspace with;
  if (!open_workspace(of, rows * from->length, rows, 1, &with)) return 1;
  for (int epoch = 0; epoch < from->epochs[p]; epoch++)
    for (int i = 0; i < from->batches[p]; i++) {
      const ptrdiff_t first = (ptrdiff_t)i * size;
      const int batch = (int)(from->count - first < size ? from->count - first : size);
      const int64_t *chosen = from->order + (p * from->most_epochs + epoch) * from->count + first;
      if (batch > 0) learn_one(of, from, p, chosen, batch, !epoch && !i, &with);
    }
  return 0;
}

int ppo_update(const policy *of, const rollout *from) {
  return each_member(of->members, policy_member, &(ppo_call){of, from});
}
