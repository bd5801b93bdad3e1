// Whole updates of one Q-network, member by member: `algos.dqn` and `algos.cqn` say what they compute.

typedef struct {
  int rows, inputs, actions, layers, widest, twice, huber, interval;
  ptrdiff_t keep, size, stride, target_stride, moment_stride, obs_member, obs_row, next_member, next_row;
  const int32_t *plan;
  float *values, *target, *mean, *square, *steps, *updates, *losses, *errors;
  const float *obs, *next_obs, *reward, *discount, *weight, *lr, *limit, *tau, *alpha;
  const int64_t *action;
  const uint8_t *next_legal, *legal;
  uint8_t *healthy;
  double beta1, beta2, eps;
} value_job;

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

static void value_member(int p, const value_job *j) {
  const ptrdiff_t first = (ptrdiff_t)p * j->rows;
  const int rows = rows_that_count(j->rows, j->weight + first), actions = j->actions;
  const ptrdiff_t width = (ptrdiff_t)rows * j->widest, values = (ptrdiff_t)rows * actions;
  const ptrdiff_t deepest = (j->widest > rows ? j->widest : rows) * (ptrdiff_t)PANEL;
  float *free = scratch(2 * lines((ptrdiff_t)rows * j->inputs) + lines(rows * j->keep) + 2 * lines(values) +
                        3 * lines(width) + lines(deepest) + lines(j->size));
  if (!free) {
    j->losses[p] = NAN, j->healthy[p] = 0;
    return;
  }
  float *x = take(&free, (ptrdiff_t)rows * j->inputs), *saved = take(&free, rows * j->keep);
  float *q_t = take(&free, values), *select = take(&free, values);
  float *d = take(&free, width), *next = take(&free, width), *of_f = take(&free, width);
  float *packed = take(&free, deepest), *grad = take(&free, j->size);
  float *own = j->values + p * j->stride, *target = j->target + p * j->target_stride, *errors = j->errors + first;
  const int32_t *plan = j->plan + (ptrdiff_t)p * j->layers * FIELDS;
  layer found[MOST];
  int count;

  gathered(rows, j->inputs, j->next_obs + p * j->next_member, j->next_row, x);
  memcpy(q_t, outputs_of(plan, j->layers, target, rows, j->inputs, x, saved, packed, found, &count),
         sizeof(float) * (size_t)values);
  if (j->twice)
    memcpy(select, outputs_of(plan, j->layers, own, rows, j->inputs, x, saved, packed, found, &count),
           sizeof(float) * (size_t)values);
  gathered(rows, j->inputs, j->obs + p * j->obs_member, j->obs_row, x);
  const float *q = outputs_of(plan, j->layers, own, rows, j->inputs, x, saved, packed, found, &count);

  float loss = 0.0f;
  memset(d, 0, sizeof(float) * (size_t)values);
  for (int b = 0; b < rows; b++, q += actions) {
    const ptrdiff_t row = (ptrdiff_t)b * actions, masks = (first + b) * actions;
    const int taken = (int)j->action[first + b];
    const int chosen = best(actions, (j->twice ? select : q_t) + row, j->next_legal ? j->next_legal + masks : NULL);
    const float e = q[taken] - (j->reward[first + b] + j->discount[first + b] * q_t[row + chosen]);
    const float far = fabsf(e), weight = j->weight[first + b];
    float each = j->huber && !(far < 1.0f) ? far - 0.5f : 0.5f * e * e, slope = e;
    if (j->huber && far > 1.0f) slope = e > 0.0f ? 1.0f : -1.0f;
    if (j->alpha)
      each += j->alpha[p] * conservative(actions, q, j->legal ? j->legal + masks : NULL, taken, j->alpha[p], d + row);
    d[row + taken] += slope;
    for (int a = 0; a < actions; a++) d[row + a] *= weight;
    loss += weight * each;
    errors[b] = e;
  }
  for (int b = rows; b < j->rows; b++) errors[b] = 0.0f;

  memset(grad, 0, sizeof(float) * (size_t)j->size);
  backward(own, grad, rows, found, count, d, next, of_f, 0, packed);
  const float norm = clipped(j->size, grad, j->limit[p]);
  j->losses[p] = loss;
  j->healthy[p] = j->healthy[p] && fabsf(loss + norm) < INFINITY;
  if (j->healthy[p]) {
    adam_step(j->size, own, grad, j->mean + p * j->moment_stride, j->square + p * j->moment_stride, j->steps + p,
              j->lr[p], j->beta1, j->beta2, j->eps);
    j->updates[p] += 1.0f;
  }
  const float share = j->interval ? (float)(fmodf(j->updates[p], (float)j->interval) == 0.0f) : j->tau[p];
  mixed(j->size, target, own, j->healthy[p] ? share : 0.0f);
}

void value_update(const int32_t *plan, int layers, int members, int rows, int inputs, int actions, ptrdiff_t keep,
                  int widest, ptrdiff_t size, float *values, ptrdiff_t stride, float *target, ptrdiff_t target_stride,
                  float *mean, float *square, ptrdiff_t moment_stride, float *steps, const float *obs,
                  ptrdiff_t obs_member, ptrdiff_t obs_row, const float *next_obs, ptrdiff_t next_member,
                  ptrdiff_t next_row, const int64_t *action, const float *reward, const float *discount,
                  const uint8_t *next_legal, const uint8_t *legal, const float *weight, const float *lr,
                  const float *limit, const float *tau, const float *alpha, int twice, int huber, int interval,
                  double beta1, double beta2, double eps, float *updates, float *losses, uint8_t *healthy,
                  float *errors) {
  const value_job job = {
      rows, inputs, actions, layers, widest, twice, huber, interval, keep, size, stride, target_stride, moment_stride,
      obs_member, obs_row, next_member, next_row, plan, values, target, mean, square, steps, updates, losses, errors,
      obs, next_obs, reward, discount, weight, lr, limit, tau, alpha, action, next_legal, legal, healthy, beta1, beta2,
      eps};
  for (int p = 0; p < members; p++) value_member(p, &job);
}
