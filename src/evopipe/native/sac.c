// Updates of a stochastic actor, its twin critics and its temperature: `algos.sac` says what they compute.

#include "update.h"

INLINE float one_exponential(float x) { return exponential(all(x))[0]; }
INLINE float one_logarithm(float x) { return logarithm(all(x))[0]; }

// Draw squashed Gaussian actions from means and log-deviations, `[rows, 2 · actions]`; write their log-densities.
static void squashed(int rows, int actions, const float *out, const float *noise, float *act, float *log_pi) {
  for (int b = 0; b < rows; b++, out += 2 * actions, noise += actions, act += actions) {
    float total = 0.0f;
    for (int a = 0; a < actions; a += LANES) {
      const int left = actions - a;
      vec s = part(out + actions + a, left), n = part(noise + a, left);
      s = choose(s > all(2.0f), all(2.0f), choose(s < all(-20.0f), all(-20.0f), s));
      vec u = fused(exponential(s), n, part(out + a, left)), t = u + u;
      vec each = fused(-0.5f * n, n, -s) - 0.918938533f - 2.0f * (0.693147181f - u - softplus(-t));
      put(act + a, left, hyperbolic(u));
      for (int i = 0; i < LANES && i < left; i++) total += each[i];
    }
    log_pi[b] = total;
  }
}

// Write log-probabilities, −∞ where illegal, and return the sum of p · log p; the same for all where none is legal.
static float log_softmax(int actions, const float *out, const uint8_t *legal, float *log_pi, float *pi) {
  float most = -INFINITY, total = 0.0f, along = 0.0f;
  int any = 0;
  for (int a = 0; a < actions; a++) any |= may(legal, a);
  if (!any) legal = NULL;
  for (int a = 0; a < actions; a++) {
    log_pi[a] = any ? out[a] : 0.0f;
    if (may(legal, a) && !(log_pi[a] <= most)) most = log_pi[a];
  }
  for (int a = 0; a < actions; a++) total += pi[a] = may(legal, a) ? one_exponential(log_pi[a] - most) : 0.0f;
  const float log_total = one_logarithm(total);
  for (int a = 0; a < actions; a++) {
    pi[a] /= total;
    log_pi[a] = may(legal, a) ? log_pi[a] - most - log_total : -INFINITY;
    if (pi[a] > 0.0f || pi[a] != pi[a]) along = __builtin_fmaf(pi[a], log_pi[a], along);
  }
  return along;
}

// --- what critics read: observations, and continuous actions behind them ---------------------------------------------

INLINE const float *reads(const update *u) { return ((const sac_job *)u->job)->discrete ? u->own : u->x; }

static const float *join(const update *u) {
  const sac_job *j = u->job;
  if (j->discrete) return reads(u);
  const size_t obs = sizeof(float) * (size_t)j->obs, acts = sizeof(float) * (size_t)j->actions;
  float *to = u->x;
  for (int b = 0; b < u->rows; b++, to += j->obs + j->actions) {
    memcpy(to, u->own + (ptrdiff_t)b * j->obs, obs);
    memcpy(to + j->obs, u->act + (ptrdiff_t)b * j->actions, acts);
  }
  return reads(u);
}

// Let both critics, or their targets, read that.
static void ask_critics(update *u, const network *q, pass of[2]) {
  const float *x = join(u);
  for (int t = 0; t < 2; t++)
    run(q, values_of(q, u->p, t), u->p, t, u->rows, x, t ? u->kept_too : u->kept, u->back.packed, &of[t]);
}

INLINE int values_each(const sac_job *j) { return j->discrete ? j->actions : 1; }

static void sac_room(update *u, arena *from) {
  const sac_job *j = u->job;
  const ptrdiff_t acts = (ptrdiff_t)u->rows * j->actions;
  u->act = take(from, acts), u->pi = take(from, acts), u->d_act = take(from, acts);
  u->log_pi = take(from, u->rows), u->y = take(from, u->rows);
  u->kept_too = take(from, u->rows * u->of->critic.keep);
}

// --- critics ---------------------------------------------------------------------------------------------------------

// V⁻(s′) of the b-th row; where discrete its log-probabilities are left in `act`.
static float next_value(update *u, int b, const pass *by, const pass of[2]) {
  const sac_job *j = u->job;
  const minibatch *m = u->batch;
  const ptrdiff_t at = (ptrdiff_t)b * values_each(j);
  const float *q = of[0].out + at, *q2 = of[1].out + at, alpha = u->alpha;
  if (!j->discrete) return __builtin_fmaf(-alpha, u->log_pi[b], least(*q, *q2));
  const uint8_t *legal = m->next_legal ? m->next_legal + (u->first + b) * j->actions : NULL;
  float v = 0.0f, *pi = u->pi + at, *log_pi = u->act + at;
  log_softmax(j->actions, by->out + at, legal, log_pi, pi);
  for (int a = 0; a < j->actions; a++)
    if (!(pi[a] <= 0.0f)) v = __builtin_fmaf(pi[a], __builtin_fmaf(-alpha, log_pi[a], least(q[a], q2[a])), v);
  return v;
}

// Write r + γ V⁻(s′), then lay out what critics read.
static void sac_target(update *u) {
  const sac_job *j = u->job;
  const minibatch *m = u->batch;
  const network *actor = &u->of->actor;
  pass by, of[2];
  u->alpha = one_exponential(j->log_alpha[u->p]);
  gathered(u->rows, j->obs, m->next_obs + u->p * m->next_member, m->next_row, u->own);
  run(actor, values_of(actor, u->p, 0), u->p, 0, u->rows, u->own, u->kept_of_actor, u->back.packed, &by);
  if (!j->discrete) squashed(u->rows, j->actions, by.out, u->now->noise + u->first * j->actions, u->act, u->log_pi);
  ask_critics(u, &u->of->critic_target, of);
  for (int b = 0; b < u->rows; b++)
    u->y[b] = __builtin_fmaf(m->discount[u->first + b], next_value(u, b, &by, of), m->reward[u->first + b]);
  gathered(u->rows, j->obs, m->obs + u->p * m->obs_member, m->obs_row, u->own);
  if (!j->discrete)
    gathered(u->rows, j->actions, (const float *)m->action + u->p * m->action_member, m->action_row, u->act);
}

static int two_passes(const update *u UNUSED) { return 2; }
static const float *critics_read(update *u, int i) { return i ? reads(u) : join(u); }

static void critics_loss(update *u, int i UNUSED, const pass *of, float *d) {
  const sac_job *j = u->job;
  const minibatch *m = u->batch;
  const int values = values_each(j);
  memset(d, 0, sizeof(float) * (size_t)u->rows * (size_t)values);
  for (int b = 0; b < u->rows; b++) {
    const ptrdiff_t at = u->p * m->action_member + b * m->action_row;
    const ptrdiff_t taken = (ptrdiff_t)b * values + (j->discrete ? ((const int64_t *)m->action)[at] : 0);
    const float e = of->out[taken] - u->y[b];
    d[taken] = u->weight[b] * e;
    u->loss = __builtin_fmaf(0.5f * u->weight[b], e * e, u->loss);
    u->errors[b] += 0.5f * fabsf(e);
  }
}

// --- the actor follows the gradient of min(Q₁, Q₂) − α log π ---------------------------------------------------------

static const float *own_reads(update *u, int i UNUSED) { return u->own; }

// One row's part of the loss, by discrete actions; returns the entropy less what it is to be.
static float of_choices(update *u, int b, const pass *by, const float *q, const float *q2, float *to) {
  const sac_job *j = u->job;
  const int actions = j->actions;
  const uint8_t *legal = u->batch->legal ? u->batch->legal + (u->first + b) * actions : NULL;
  const float w = u->weight[b], alpha = u->alpha;
  float *pi = u->pi + (ptrdiff_t)b * actions, *log_pi = u->act + (ptrdiff_t)b * actions;
  float total = 0.0f, each = 0.0f, aim = j->target_entropy[u->p];
  int count = 0;
  for (int a = 0; a < actions; a++) count += may(legal, a);
  const float entropy = -log_softmax(actions, by->out + (ptrdiff_t)b * actions, legal, log_pi, pi);
  for (int a = 0; a < actions; a++) {
    to[a] = 0.0f;
    if (pi[a] <= 0.0f) continue;
    const float f = __builtin_fmaf(alpha, log_pi[a], -least(q[a], q2[a]));
    each = __builtin_fmaf(pi[a], f, each);
    total += to[a] = pi[a] * (f + alpha);
  }
  for (int a = 0; a < actions; a++) to[a] = count ? w * __builtin_fmaf(-pi[a], total, to[a]) : 0.0f;
  u->loss = __builtin_fmaf(w, each, u->loss);
  if (j->by_legal) aim *= one_logarithm((float)(count > 1 ? count : 1));
  return entropy - aim;
}

// The same by continuous ones, with −Q's gradient by them in `d_act`.
static float of_numbers(update *u, int b, const pass *by, const float *q, const float *q2, float *to) {
  const sac_job *j = u->job;
  const int actions = j->actions;
  const float *out = by->out + (ptrdiff_t)b * 2 * actions, *noise = u->now->own_noise + (u->first + b) * actions;
  const float w = u->weight[b], alpha = u->alpha;
  for (int a = 0; a < actions; a++) {
    const float s = out[actions + a], mine = u->act[b * actions + a], slope = __builtin_fmaf(-mine, mine, 1.0f);
    const float of_u = __builtin_fmaf(u->d_act[b * actions + a], slope, 2.0f * w * alpha * mine);
    to[a] = of_u;
    to[actions + a] = s > 2.0f || s < -20.0f ? 0.0f : __builtin_fmaf(of_u * one_exponential(s), noise[a], -w * alpha);
  }
  u->loss = __builtin_fmaf(w, __builtin_fmaf(alpha, u->log_pi[b], -least(*q, *q2)), u->loss);
  return -u->log_pi[b] - j->target_entropy[u->p];
}

// Write the gradient of −min(Q₁, Q₂) by continuous actions to `d_act`; half of each where both are equal.
static void least_back(update *u, pass of[2]) {
  const sac_job *j = u->job;
  memset(u->d_act, 0, sizeof(float) * (size_t)u->rows * (size_t)j->actions);
  for (int t = 0; t < 2; t++) {
    for (int b = 0; b < u->rows; b++) {
      const float mine = of[t].out[b], other = of[!t].out[b], w = u->weight[b];
      u->back.d[b] = mine < other ? -w : mine > other ? 0.0f : -0.5f * w;
    }
    const float *g = run_back(&of[t], NULL, u->rows, 1, u->back) + j->obs;
    for (int b = 0; b < u->rows; b++)
      for (int a = 0; a < j->actions; a++) u->d_act[b * j->actions + a] += g[(ptrdiff_t)b * (j->obs + j->actions) + a];
  }
}

static void own_loss(update *u, int i UNUSED, const pass *by, float *d) {
  const sac_job *j = u->job;
  const int values = values_each(j), outputs = j->discrete ? j->actions : 2 * j->actions;
  pass of[2];
  if (!j->discrete)
    squashed(u->rows, j->actions, by->out, u->now->own_noise + u->first * j->actions, u->act, u->log_pi);
  ask_critics(u, &u->of->critic, of);
  if (!j->discrete) least_back(u, of);
  for (int b = 0; b < u->rows; b++) {
    const float *q = of[0].out + (ptrdiff_t)b * values, *q2 = of[1].out + (ptrdiff_t)b * values;
    float *to = d + (ptrdiff_t)b * outputs;
    const float more = j->discrete ? of_choices(u, b, by, q, q2, to) : of_numbers(u, b, by, q, q2, to);
    u->surplus = __builtin_fmaf(u->weight[b], more, u->surplus);
  }
}

// Let the temperature take a step of Adam towards the entropy that is aimed at.
static void learn_alpha(update *u) {
  const sac_job *j = u->job;
  const learners *of = u->of;
  float *moments = j->log_alpha_adam + 3 * u->p;
  if (!j->learns_alpha) return;
  moments[0] = __builtin_fmaf((float)(1.0 - of->beta1), u->surplus - moments[0], moments[0]);
  moments[1] = __builtin_fmaf((float)(1.0 - of->beta2), u->surplus * u->surplus - moments[1], moments[1]);
  moments[2] += 1.0f;
  const double mean = moments[0] / (1.0 - pow(of->beta1, moments[2]));
  const double square = moments[1] / (1.0 - pow(of->beta2, moments[2]));
  j->log_alpha[u->p] = __builtin_fmaf(-j->lr_alpha[u->p], (float)(mean / (sqrt(square) + of->eps)), j->log_alpha[u->p]);
}

static const family SAC = {.lay_out = sac_room,
                           .target = sac_target,
                           .after_actor = learn_alpha,
                           .critic = {two_passes, same_network, critics_read, critics_loss},
                           .actor = {one_pass, same_network, own_reads, own_loss}};

int sac_update(const sac_job *job, const minibatch *batch, const update_call *now, int members) {
  return each_member(members, update_member, &(update_work){&SAC, &job->of, batch, now, job});
}
