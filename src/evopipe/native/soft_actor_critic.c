// Whole updates of a stochastic actor, its critics and its temperature: `algos.sac` says what they compute.

typedef struct {
  nets actor, critic, critic_target;
  int batch, obs, actions, discrete, learns;  // learns: its temperature
  float aim;  // entropy; where discrete a share of the logarithm of how many actions are legal
  int by_legal;
  double beta1, beta2, eps;
  float *updates, *log_alpha, *log_alpha_adam;
  const float *lr_actor, *lr_critic, *limit, *tau, *lr_alpha;
  // A batch's, new at every call.
  const float *now, *then, *reward, *discount, *weight, *noise, *own_noise;
  const void *action;
  const uint8_t *legal, *next_legal;
  ptrdiff_t now_member, now_row, then_member, then_row, action_member, action_row;
  float *losses, *errors;
  uint8_t *healthy;
} soft_job;

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

static void joined(int rows, int obs, int actions, const float *x, const float *act, float *to) {
  for (int b = 0; b < rows; b++, to += obs + actions) {
    memcpy(to, x + (ptrdiff_t)b * obs, sizeof(float) * (size_t)obs);
    memcpy(to + obs, act + (ptrdiff_t)b * actions, sizeof(float) * (size_t)actions);
  }
}

// One update of a member's actor, critics and temperature.
static int soft_member(const void *told, int p) {
  const soft_job *j = told;
  const nets *actor = &j->actor, *critic = &j->critic;
  const ptrdiff_t first = (ptrdiff_t)p * j->batch;
  const float *weight = j->weight + first;
  const int rows = rows_that_count(j->batch, weight), obs = j->obs, actions = j->actions, discrete = j->discrete;
  const int widest = actor->widest > critic->widest ? actor->widest : critic->widest, values = discrete ? actions : 1;
  const ptrdiff_t wide = (ptrdiff_t)rows * widest, deepest = (widest > rows ? widest : rows) * (ptrdiff_t)PANEL;
  const ptrdiff_t acts = (ptrdiff_t)rows * actions, critic_size = critic->rows * critic->size;
  const ptrdiff_t grad_size = actor->size > critic_size ? actor->size : critic_size;
  float *free = scratch(lines((ptrdiff_t)rows * obs) + lines((ptrdiff_t)rows * (obs + actions)) +
                        lines(rows * actor->keep) + 2 * lines(rows * critic->keep) + 4 * lines(wide) + 3 * lines(acts) +
                        2 * lines(rows) + lines(deepest) + lines(grad_size));
  if (!free) return 1;
  float *x = take(&free, (ptrdiff_t)rows * obs), *both = take(&free, (ptrdiff_t)rows * (obs + actions));
  float *kept = take(&free, rows * actor->keep), *kept_by[2];
  for (int t = 0; t < 2; t++) kept_by[t] = take(&free, rows * critic->keep);
  float *d = take(&free, wide), *next = take(&free, wide), *of_f = take(&free, wide), *d_out = take(&free, wide);
  float *act = take(&free, acts), *pi = take(&free, acts), *d_act = take(&free, acts);
  float *log_pi = take(&free, rows), *y = take(&free, rows);
  float *packed = take(&free, deepest), *grads = take(&free, grad_size), *errors = j->errors + first;
  const float alpha = one_exponential(j->log_alpha[p]), *asked = discrete ? x : both;
  int healthy = j->healthy[p] && all_finite(actor, p);
  made by, of[2];

  // Critics regress on r + γ V⁻(s′).
  gathered(rows, obs, j->then + p * j->then_member, j->then_row, x);
  make(actor, p, 0, rows, x, kept, packed, &by);
  if (!discrete) {
    squashed(rows, actions, by.out, j->noise + first * actions, act, log_pi);
    joined(rows, obs, actions, x, act, both);
  }
  for (int t = 0; t < 2; t++) make(&j->critic_target, p, t, rows, asked, kept_by[t], packed, &of[t]);
  for (int b = 0; b < rows; b++) {
    const float *q = of[0].out + (ptrdiff_t)b * values, *q2 = of[1].out + (ptrdiff_t)b * values;
    float v = 0.0f, *chance = pi + (ptrdiff_t)b * actions, *log_chance = act + (ptrdiff_t)b * actions;
    if (discrete) {
      const uint8_t *legal = j->next_legal ? j->next_legal + (first + b) * actions : NULL;
      log_softmax(actions, by.out + (ptrdiff_t)b * actions, legal, log_chance, chance);
      for (int a = 0; a < actions; a++)
        if (!(chance[a] <= 0.0f)) v = __builtin_fmaf(chance[a], __builtin_fmaf(-alpha, log_chance[a], least(q[a], q2[a])), v);
    } else {
      v = __builtin_fmaf(-alpha, log_pi[b], least(*q, *q2));
    }
    y[b] = __builtin_fmaf(j->discount[first + b], v, j->reward[first + b]);
  }
  gathered(rows, obs, j->now + p * j->now_member, j->now_row, x);
  if (!discrete) {
    gathered(rows, actions, (const float *)j->action + p * j->action_member, j->action_row, act);
    joined(rows, obs, actions, x, act, both);
  }
  clear(critic, p, grads);
  memset(errors, 0, sizeof(float) * (size_t)j->batch);
  float loss = 0.0f;
  for (int t = 0; t < 2; t++) {
    make(critic, p, t, rows, asked, kept_by[0], packed, &of[0]);
    memset(d, 0, sizeof(float) * (size_t)rows * (size_t)values);
    for (int b = 0; b < rows; b++) {
      const ptrdiff_t at = p * j->action_member + b * j->action_row;
      const ptrdiff_t taken = (ptrdiff_t)b * values + (discrete ? ((const int64_t *)j->action)[at] : 0);
      const float e = of[0].out[taken] - y[b];
      d[taken] = weight[b] * e;
      loss = __builtin_fmaf(0.5f * weight[b], e * e, loss);
      errors[b] += 0.5f * fabsf(e);
    }
    backward(of[0].values, grads + t * critic->size, rows, of[0].found, of[0].count, d, next, of_f, 0, packed);
  }
  healthy = descend(critic, p, grads, j->limit[p], loss, j->lr_critic[p], healthy, j->beta1, j->beta2, j->eps);
  j->losses[p] = loss;

  // The actor climbs min(Q₁, Q₂) − α log π.
  float climbed = 0.0f, surplus = 0.0f;
  make(actor, p, 0, rows, x, kept, packed, &by);
  if (!discrete) {
    squashed(rows, actions, by.out, j->own_noise + first * actions, act, log_pi);
    joined(rows, obs, actions, x, act, both);
  }
  for (int t = 0; t < 2; t++) make(critic, p, t, rows, asked, kept_by[t], packed, &of[t]);
  memset(d_act, 0, sizeof(float) * (size_t)acts);
  for (int t = 0; t < 2 && !discrete; t++) {
    for (int b = 0; b < rows; b++) {
      const float mine = of[t].out[b], other = of[!t].out[b];
      d[b] = mine < other ? -weight[b] : mine > other ? 0.0f : -0.5f * weight[b];
    }
    const float *g = backward(of[t].values, NULL, rows, of[t].found, of[t].count, d, next, of_f, 1, packed) + obs;
    for (int b = 0; b < rows; b++)
      for (int a = 0; a < actions; a++) d_act[b * actions + a] += g[(ptrdiff_t)b * (obs + actions) + a];
  }
  for (int b = 0; b < rows; b++) {
    const float *q = of[0].out + (ptrdiff_t)b * values, *q2 = of[1].out + (ptrdiff_t)b * values, w = weight[b];
    const uint8_t *legal = j->legal ? j->legal + (first + b) * actions : NULL;
    float entropy = 0.0f, aim = j->aim;
    if (discrete) {
      float *to = d_out + (ptrdiff_t)b * actions, *chance = pi + (ptrdiff_t)b * actions, total = 0.0f, each = 0.0f;
      float *log_chance = act + (ptrdiff_t)b * actions;
      int count = 0;
      for (int a = 0; a < actions; a++) count += may(legal, a);
      entropy = -log_softmax(actions, by.out + (ptrdiff_t)b * actions, legal, log_chance, chance);
      for (int a = 0; a < actions; a++) {
        to[a] = 0.0f;
        if (chance[a] <= 0.0f) continue;
        const float f = __builtin_fmaf(alpha, log_chance[a], -least(q[a], q2[a]));
        each = __builtin_fmaf(chance[a], f, each);
        total += to[a] = chance[a] * (f + alpha);
      }
      for (int a = 0; a < actions; a++) to[a] = count ? w * __builtin_fmaf(-chance[a], total, to[a]) : 0.0f;
      climbed = __builtin_fmaf(w, each, climbed);
      if (j->by_legal) aim *= one_logarithm((float)(count > 1 ? count : 1));
    } else {
      const float *out = by.out + (ptrdiff_t)b * 2 * actions, *noise = j->own_noise + (first + b) * actions;
      float *to = d_out + (ptrdiff_t)b * 2 * actions;
      for (int a = 0; a < actions; a++) {
        const float s = out[actions + a], mine = act[b * actions + a];
        const float slope = __builtin_fmaf(-mine, mine, 1.0f);
        const float u = __builtin_fmaf(d_act[b * actions + a], slope, 2.0f * w * alpha * mine);
        to[a] = u;
        to[actions + a] =
            s > 2.0f || s < -20.0f ? 0.0f : __builtin_fmaf(u * one_exponential(s), noise[a], -w * alpha);
      }
      entropy = -log_pi[b];
      climbed = __builtin_fmaf(w, __builtin_fmaf(alpha, log_pi[b], -least(*q, *q2)), climbed);
    }
    surplus = __builtin_fmaf(w, entropy - aim, surplus);
  }
  clear(actor, p, grads);
  backward(by.values, grads, rows, by.found, by.count, d_out, next, of_f, 0, packed);
  healthy = descend(actor, p, grads, j->limit[p], climbed, j->lr_actor[p], healthy, j->beta1, j->beta2, j->eps);
  if (healthy && j->learns) {
    float *moments = j->log_alpha_adam + 3 * p;
    moments[0] = __builtin_fmaf((float)(1.0 - j->beta1), surplus - moments[0], moments[0]);
    moments[1] = __builtin_fmaf((float)(1.0 - j->beta2), surplus * surplus - moments[1], moments[1]);
    moments[2] += 1.0f;
    const double mean = moments[0] / (1.0 - pow(j->beta1, moments[2])), square = moments[1] / (1.0 - pow(j->beta2, moments[2]));
    j->log_alpha[p] = __builtin_fmaf(-j->lr_alpha[p], (float)(mean / (sqrt(square) + j->eps)), j->log_alpha[p]);
  }
  follow(&j->critic_target, critic, p, healthy ? j->tau[p] : 0.0f);
  j->healthy[p] = (uint8_t)healthy;
  j->updates[p] += (float)healthy;
  return 0;
}

int soften(const soft_job *job, int members) { return each_member(members, soft_member, job); }
