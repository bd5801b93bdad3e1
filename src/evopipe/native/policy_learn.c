// What policies learn from a whole rollout: losses, their gradients, and all minibatches of all epochs.

// The losses of a minibatch, and their gradients by what actor and critic say: `by_actor` `[rows, outputs]`,
// `by_critic` `[rows]`, and `by_std` `[outputs]`.
static double objective(const policy *of, const lessons *to, int p, int rows, const float *log_std, const float *said,
                        const float *value, const bench *with, float *by_actor, float *by_critic, float *by_std,
                        double *distance) {
  const ptrdiff_t n = of->outputs, act = of->observations, known = to->known;
  const float clip = to->clip[p], vf = to->vf_coef[p], ent = to->ent_coef[p], low = 1.0f - clip, high = 1.0f + clip;
  const columns c = columns_of(of, with);
  float *done = with->column + 5 * n * LANES;
  double total = 0.0, apart = 0.0, std[n + 1];
  memset(std, 0, sizeof std);
  for (int first = 0; first < rows; first += LANES) {
    const int left = rows - first < LANES ? rows - first : LANES;
    const float *const *from = with->from + first, *legal[LANES];
    for (int l = 0; l < left; l++) legal[l] = from[l] + known + 6;
    in_columns(of, said + first * n, with->who + first, to->masked ? legal : NULL, left, &c);
    float then[5][LANES] = {{0}};  // log-probability, value, advantage, target, weight
    for (int l = 0; l < left; l++) {
      then[0][l] = from[l][known], then[1][l] = from[l][known + 1], then[2][l] = with->advantage[first + l];
      then[3][l] = from[l][known + 4], then[4][l] = with->weight[first + l];
    }
    const vec advantage = load(then[2]), old = load(then[1]), target = load(then[3]), w = load(then[4]);
    for (int j = 0; j < of->choices; j++)
      for (int l = 0; l < LANES; l++) done[j * LANES + l] = l < left ? from[l][act + j] : 0.0f;
    vec log_p = {0}, entropy = {0};
    if (of->kind == CHOICES) {
      weigh(of, &c);
      int at = 0;
      for (int d = 0; d < of->choices; at += of->each[d++]) {
        vec taken = load(done + d * LANES);
        for (int j = 0; j < of->each[d]; j++)
          log_p += choose(taken == all((float)j), load(c.log_p + (at + j) * LANES), all(0.0f));
        entropy += load(c.entropy + d * LANES);
      }
    } else if (of->kind == BITS) {
      for (int j = 0; j < n; j++) {
        vec z = load(c.z + j * LANES), y = size(z), sign = 2.0f * load(done + j * LANES) - 1.0f;
        whole may = load(c.may + j * LANES) > all(0.0f);
        log_p -= choose(may, softplus(-sign * z), all(0.0f));
        entropy += choose(may, fused(y, sigmoid(-y), softplus(-y)), all(0.0f));
      }
    } else {
      log_p = density(of, log_std, &c, done);
      for (int j = 0; j < n; j++) {
        const whole may = load(c.may + j * LANES) > all(0.0f);
        entropy += choose(may, all(log_std[j] + (0.5f + HALF_LOG_2PI)), all(0.0f));
      }
    }
    const vec log_ratio = log_p - load(then[0]);
    const vec ratio = choose(log_ratio > all(88.0f), all(INFINITY), exponential(log_ratio));
    const vec bounded = choose(ratio < all(low), all(low), choose(ratio > all(high), all(high), ratio));
    const vec free = ratio * advantage, held = bounded * advantage;
    const whole flows = (free < held) | (ratio == bounded);
    vec v = {0};
    for (int l = 0; l < left; l++) v[l] = value[first + l];
    const vec off = v - target;
    vec error = off * off, by_value = 2.0f * off;
    if (to->clip_value) {
      const vec moved = v - old, below = choose(moved > all(clip), all(clip), moved);
      const vec within = choose(moved < all(-clip), all(-clip), below);
      const vec other = old + within - target, second = other * other;
      const vec by_second = choose(moved == within, 2.0f * other, all(0.0f));
      by_value = choose(second > error, by_second, choose(second == error, 0.5f * (by_value + by_second), by_value));
      error = choose(second > error, second, error);
    }
    const vec each = less(fused(all(0.5f * vf), error, -choose(free < held, free, held)), all(ent), entropy);
    const vec far = ratio - 1.0f - log_ratio, by_log_p = choose(flows, -free, all(0.0f)) * w,
        value_grad = 0.5f * vf * by_value * w;
    for (int l = 0; l < left; l++) {
      total += (double)(w[l] * each[l]), apart += w[l] > 0.0f ? (double)far[l] : 0.0;
      by_critic[first + l] = value_grad[l];
    }
    int choice = 0, end = of->kind == CHOICES ? of->each[0] : 0;
    for (int j = 0; j < n; j++) {
      vec g;
      if (of->kind == CHOICES) {
        for (; j == end; end += of->each[choice]) choice++;
        vec p_j = load(c.p + j * LANES), value_of = all((float)(j - end + of->each[choice]));
        whole taken = load(done + choice * LANES) == value_of;
        vec moved = p_j * (load(c.log_p + j * LANES) + load(c.entropy + choice * LANES));
        g = fused(by_log_p, choose(taken, all(1.0f), all(0.0f)) - p_j, ent * w * moved);
        g = choose(load(c.may + j * LANES) > all(0.0f), g, all(0.0f));
      } else if (of->kind == BITS) {
        vec z = load(c.z + j * LANES), s = sigmoid(z);
        g = fused(by_log_p, load(done + j * LANES) - s, ent * w * (z * s * sigmoid(-z)));
        g = choose(load(c.may + j * LANES) > all(0.0f), g, all(0.0f));
      } else {
        vec noise = load(c.p + j * LANES), by = exponential(all(-log_std[j])),
            deviation = fused(by_log_p, fused(noise, noise, all(-1.0f)), -ent * w);
        whole may = load(c.may + j * LANES) > all(0.0f);
        g = choose(may, by_log_p * noise * by, all(0.0f)), deviation = choose(may, deviation, all(0.0f));
        for (int l = 0; l < left; l++) std[j] += (double)deviation[l];
      }
      for (int l = 0; l < left; l++) by_actor[(ptrdiff_t)(first + l) * n + j] = g[l];
    }
  }
  if (log_std)
    for (int j = 0; j < n; j++) by_std[j] = (float)std[j];
  *distance += apart;
  return total;
}

// One step of Adam of single numbers, each with two moments and its steps beside it.
static void scalar_step(ptrdiff_t count, float *value, float *state, const float *grad, float lr, const lessons *to) {
  for (ptrdiff_t j = 0; j < count; j++, state += 3) {
    state[0] = __builtin_fmaf((float)(1.0 - to->beta1), grad[j] - state[0], state[0]);
    state[1] = __builtin_fmaf((float)(1.0 - to->beta2), grad[j] * grad[j] - state[1], state[1]);
    state[2] += 1.0f;
    const float mean = state[0] / (float)(1.0 - pow(to->beta1, state[2]));
    const float square = state[1] / (float)(1.0 - pow(to->beta2, state[2]));
    value[j] -= lr * mean / (sqrtf(square) + (float)to->eps);
  }
}

// Gather a group's part of a minibatch: `batch` sequences of each of its agents, step-major. Returns how many of its
// steps count.
static int fetch(const policy *of, const lessons *to, int p, int g, const int64_t *chosen, int batch, bench *with) {
  const int steps = (int)to->length, first = of->starts[g], seats = of->starts[g + 1] - first;
  const ptrdiff_t team = to->envs * of->agents;
  const float *rows = to->rows + p * to->rows_stride, *memory = to->memory + p * to->memory_stride;
  int valid = 0;
  for (int seat = 0; seat < seats; seat++)
    for (int b = 0; b < batch; b++) {
      const int64_t stretch = chosen[b] / to->envs, env = chosen[b] % to->envs * of->agents;
      const int64_t *ticks = to->ticks + stretch * steps;
      const int k = of->crew[first + seat], place = seat * batch + b;
      if (of->memory)
        memcpy(with->memory + place * of->memory, memory + (ticks[0] * team + env + k) * of->memory,
               sizeof(float) * (size_t)of->memory);
      for (int t = 0; t < steps; t++) {
        const ptrdiff_t at = (ptrdiff_t)t * batch * seats + place;
        const float *mates = rows + (ticks[t] * team + env) * to->row, *row = mates + k * to->row,
            *known = row + to->known;
        const int counts = to->within[stretch * steps + t] && known[5] > 0.0f;
        with->from[at] = row, with->who[at] = k;
        perceive(of, mates, to->row, NULL, k, seat, with->x + at * (of->observations + of->ids),
                 with->y + at * of->brains[CRITIC].reads);
        with->keep[at] = known[2] > 0.5f ? 0.0f : 1.0f;
        with->weight[at] = counts ? 1.0f : 0.0f;
        with->advantage[at] = known[3];
        valid += counts;
      }
    }
  const int all_rows = steps * batch * seats;
  double mean = 0.0, square = 0.0;
  for (int r = 0; r < all_rows; r++) {
    with->weight[r] /= (float)(valid > 1 ? valid : 1);
    mean += (double)(with->weight[r] * with->advantage[r]);
  }
  if (!to->normalise) return valid;
  for (int r = 0; r < all_rows; r++) {
    const float off = with->advantage[r] - (float)mean;
    with->advantage[r] = off;
    square += (double)(with->weight[r] * (off * off));
  }
  const float deviation = sqrtf((float)square) + 1e-8f;
  for (int r = 0; r < all_rows; r++) with->advantage[r] /= deviation;
  return valid;
}

// Go down a group's losses: gradients by what its heads said are in `heads`.
static void go_back(const policy *of, int g, int steps, int batch, const mind *minds, bench *with) {
  const int rows = steps * batch, shared = of->brains[ENCODER].values != NULL;
  float *grads[BRAINS];
  for (int k = 0; k < BRAINS; k++) grads[k] = with->grads[k] + g * of->brains[k].size;
  for (int k = 0; k < 2; k++) {
    const mind *net = &minds[ACTOR + k];
    memcpy(with->d, with->heads[k], sizeof(float) * (size_t)rows * (size_t)net->out);
    float *found = back_brain(net, grads[ACTOR + k], steps, batch, with->keep, with->d, with->room, shared,
                              with->packed);
    if (shared) memcpy(with->heads[k], found, sizeof(float) * (size_t)rows * (size_t)minds[ENCODER].out);
  }
  if (!shared) return;
  const ptrdiff_t count = (ptrdiff_t)rows * minds[ENCODER].out;
  for (ptrdiff_t j = 0; j < count; j++) with->d[j] = with->heads[0][j] + with->heads[1][j];
  back_brain(&minds[ENCODER], grads[ENCODER], steps, batch, with->keep, with->d, with->room, 0, with->packed);
}

// Learn from one minibatch, see `algos._ppo.descend`.
static void learn_one(const policy *of, const lessons *to, int p, const int64_t *chosen, int batch, int begins,
                      bench *with) {
  const int steps = (int)to->length, numbers = of->kind == NUMBERS ? (int)(of->groups * of->outputs) : 0;
  const int rests = !to->healthy[p] || (!begins && to->resting[p] != 0.0f);
  float std[numbers + 1], *log_std = of->log_std + (ptrdiff_t)p * numbers;
  double total = 0.0, apart = 0.0;
  int given = 0;
  for (int k = 0; k < BRAINS; k++)
    if (of->brains[k].values && !rests)
      cleared(spans_of(of->brains[k].own, p), with->grads[k]);
  for (int g = 0; g < of->groups; g++) {
    mind minds[BRAINS];
    const int rows = batch * (of->starts[g + 1] - of->starts[g]);
    given += fetch(of, to, p, g, chosen, batch, with);
    run_policy(of, p, g, steps, rows, with->x, with->y, with->memory, with->keep, with->saved, with->packed,
               (int[]){1, 1, 1}, minds);
    total += objective(of, to, p, steps * rows, numbers ? log_std + g * of->outputs : NULL, minds[ACTOR].y,
                       minds[CRITIC].y, with,
                       with->heads[0], with->heads[1], std + (numbers ? g * of->outputs : 0), &apart);
    if (!rests) go_back(of, g, steps, rows, minds, with);
  }
  const float loss = (float)total;
  to->losses[p] = loss;
  const int far = given && to->target_kl[p] > 0.0f && (float)(apart / given) > to->target_kl[p];
  to->resting[p] = begins ? (float)far : to->resting[p] > (float)far ? to->resting[p] : (float)far;
  if (!given || to->resting[p] != 0.0f || !to->healthy[p]) return;

  double squares = 0.0;
  for (int k = 0; k < BRAINS; k++)
    if (of->brains[k].values) squares += (double)squared(spans_of(of->brains[k].own, p), with->grads[k]);
  for (int j = 0; j < numbers; j++) squares += (double)(std[j] * std[j]);
  const float norm = sqrtf((float)squares), share = to->grad_clip[p] / (norm + 1e-6f);
  to->healthy[p] = fabsf(loss + norm) < INFINITY;
  if (!to->healthy[p]) return;
  for (int k = 0; k < BRAINS; k++) {
    const brain *net = &of->brains[k];
    if (!net->values) continue;
    const spans own = spans_of(net->own, p);
    if (share < 1.0f) scaled(own, with->grads[k], share);
    adam_step(own, net->values + p * net->values_stride, with->grads[k], net->mean + p * net->moments_stride,
              net->square + p * net->moments_stride, net->steps + p, to->lr[p], to->beta1, to->beta2, to->eps);
  }
  for (int j = 0; j < numbers; j++) std[j] *= share < 1.0f ? share : 1.0f;
  scalar_step(numbers, log_std, to->log_std_adam + 3 * (ptrdiff_t)p * numbers, std, to->lr[p], to);
  to->updates[p] += 1.0f;
}

static int most_seats(const policy *of) {
  int most = 0;
  for (int g = 0; g < of->groups; g++) most = (int)largest(most, of->starts[g + 1] - of->starts[g]);
  return most;
}

typedef struct {
  const policy *of;
  const lessons *to;
} course;

// Let a member learn from all minibatches of all epochs.
static int policy_member(const void *told, int p) {
  const policy *of = ((const course *)told)->of;
  const lessons *to = ((const course *)told)->to;
  const int size = (int)to->sizes[p];
  const ptrdiff_t rows = (ptrdiff_t)size * most_seats(of);
  bench with;
  if (!open_bench(of, rows * to->length, rows, 1, &with)) return 1;
  for (int epoch = 0; epoch < to->epochs[p]; epoch++)
    for (int i = 0; i < to->batches[p]; i++) {
      const ptrdiff_t first = (ptrdiff_t)i * size;
      const int batch = (int)(to->count - first < size ? to->count - first : size);
      if (batch > 0)
        learn_one(of, to, p, to->order + (p * to->most_epochs + epoch) * to->count + first, batch, !epoch && !i, &with);
    }
  return 0;
}

int policy_learn(const policy *of, const lessons *to) {
  return each_member(of->members, policy_member, &(course){of, to});
}
