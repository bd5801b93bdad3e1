// Proximal policy optimisation of several members, member by member: `algos.ppo`, `algos.ippo` and `algos.mappo` have
// the same in torch, and say what is computed. A step is a row of a rollout, see `memory.rollout`; the agents of a team
// have theirs next to each other, and one agent alone is a team, too.

enum { CHOICES, BITS, NUMBERS };  // kinds of action

typedef struct {  // one network of all members, in copies: one for every group of agents
  const int32_t *plan, *gated;  // of dense layers, and of LSTM layers before them: fields a copy
  float *values, *mean, *square, *steps;
  ptrdiff_t layers, recurrent, reads, room, widest, size, values_stride, moments_stride;
} brain;

enum { ENCODER, ACTOR, CRITIC, BRAINS };

typedef struct {
  brain brains[3];       // BRAINS of them; without a shared encoder it has no layers
  const int32_t *each;   // how many values every choice has
  float *log_std;        // [members, groups, outputs] of continuous actions
  const int32_t *crew, *starts, *sees, *does;  // agents, group by group; where each begins; how much of a row is theirs
  ptrdiff_t members, observations, outputs, choices, kind, squash, memory, agents, groups, ids, joint;
} policy;

typedef struct {
  const float *rows, *memory;  // [members, …, row] and [members, …, memory]
  const int64_t *order, *ticks;  // [members, epochs, count] which stretch and environment; [stretches, length]
  const uint8_t *within;       // [stretches, length]
  const int64_t *batches, *sizes, *epochs;  // [members]
  const float *lr, *clip, *vf_coef, *ent_coef, *grad_clip, *target_kl;  // [members]
  float *log_std_adam, *resting, *updates, *losses;
  uint8_t *healthy;
  ptrdiff_t row, rows_stride, memory_stride, known, count, envs, length, most_epochs, normalise, clip_value, masked;
  double beta1, beta2, eps;
} lessons;

// --- what a policy says ----------------------------------------------------------------------------------------------

#define LEAST (-3.40282347e38f)

INLINE vec softplus(vec z) { return choose(z < all(0.0f), all(0.0f), z) + logarithm(1.0f + exponential(-size(z))); }

// LANES rows at a time, each quantity a column of LANES numbers.
typedef struct {
  float *z, *may, *log_p, *p, *entropy;  // [outputs] each: what the network says, whether it is legal, and so on
} columns;

// Log-probabilities and probabilities of all values of every choice, and each choice's entropy.
static void weigh(const policy *of, const columns *to) {
  int first = 0;
  for (int d = 0; d < of->choices; first += of->each[d++]) {
    const int end = first + of->each[d];
    vec most = all(LEAST), total = {0}, entropy = {0};
    for (int j = first; j < end; j++) {
      vec z = load(to->z + j * LANES);
      most = choose((load(to->may + j * LANES) > all(0.0f)) & (z > most), z, most);
    }
    for (int j = first; j < end; j++)
      total += choose(load(to->may + j * LANES) > all(0.0f), exponential(load(to->z + j * LANES) - most), all(0.0f));
    vec by = logarithm(total);
    for (int j = first; j < end; j++) {
      whole may = load(to->may + j * LANES) > all(0.0f);
      vec log_p = load(to->z + j * LANES) - most - by, p = choose(may, exponential(log_p), all(0.0f));
      entropy -= choose(may, p * log_p, all(0.0f));
      store(to->log_p + j * LANES, choose(may, log_p, all(LEAST)));
      store(to->p + j * LANES, p);
    }
    store(to->entropy + d * LANES, entropy);
  }
}

#define HALF_LOG_2PI 0.918938533f

// The log-density of `done` `[outputs]`, where each number's standardised distance from the mean is left in `p`.
// Numbers that an agent does not have are 0 and have the deviation at which a Gaussian's entropy is 0.
static vec density(const policy *of, const float *log_std, const columns *to, const float *done) {
  vec total = {0};
  for (int j = 0; j < of->outputs; j++) {
    const whole may = load(to->may + j * LANES) > all(0.0f);
    vec a = load(done + j * LANES), slope = {0}, by = exponential(all(-log_std[j]));
    if (of->squash) {
      const float most = 0.99999994f;
      a = choose(a > all(most), all(most), choose(a < all(-most), all(-most), a));
      a = 0.5f * (logarithm(1.0f + a) - logarithm(1.0f - a));
      slope = 2.0f * (0.693147181f - a - softplus(-2.0f * a));
    }
    vec n = (a - load(to->z + j * LANES)) * by;
    store(to->p + j * LANES, n);
    total += choose(may, -0.5f * n * n - log_std[j] - HALF_LOG_2PI - slope, all(0.5f));
  }
  return total;
}

// --- networks --------------------------------------------------------------------------------------------------------

typedef struct {  // one member's network, laid out for so many rows
  gated gates[MOST];
  layer layers[MOST];
  int recurrent, count, out;
  const float *values, *y;
} mind;

static void run_brain(const brain *net, ptrdiff_t p, ptrdiff_t g, ptrdiff_t groups, int steps, int batch, int inputs,
                      const float *x, const float *memory, ptrdiff_t width, const float *keep, float *saved,
                      float *packed, mind *to) {
  const int rows = steps * batch;
  const ptrdiff_t copy = p * groups + g;
  to->values = net->values + p * net->values_stride + g * net->size;
  to->recurrent = lay_out_gated(net->gated + copy * net->recurrent * GATED, (int)net->recurrent, rows, inputs, x,
                                &saved, to->gates);
  if (to->recurrent) x = to->gates[to->recurrent - 1].y, inputs = to->gates[to->recurrent - 1].out;
  forward_gated(to->values, steps, batch, to->gates, to->recurrent, memory, width, keep, packed);
  to->count = lay_out(net->plan + copy * net->layers * FIELDS, (int)net->layers, rows, inputs, x, saved, to->layers);
  forward(to->values, rows, to->layers, to->count, packed);
  to->y = to->count ? to->layers[to->count - 1].y : x;
  to->out = to->count ? to->layers[to->count - 1].out : inputs;
}

// Returns where the gradient of what went in lies, if it is wanted: within `d`, three pieces of `room` floats.
static float *back_brain(const mind *of, float *grad, int steps, int batch, const float *keep, float *d, ptrdiff_t room,
                         int wanted, float *packed) {
  float *pieces[3] = {d, d + room, d + 2 * room}, *rest[2];
  d = backward(of->values, grad, steps * batch, (layer *)of->layers, of->count, pieces[0], pieces[1], pieces[2],
               wanted || of->recurrent, packed);
  if (!of->recurrent) return d;
  for (int i = 0, j = 0; i < 3; i++)
    if (pieces[i] != d) rest[j++ & 1] = pieces[i];
  return backward_gated(of->values, grad, steps, batch, (gated *)of->gates, of->recurrent, keep, d, rest[0], wanted,
                        rest[1], packed);
}

// Networks of a group, one after the other: the encoder, if there is one, then what is `wanted` of both heads. Actors
// read x, critics y.
static void run_policy(const policy *of, ptrdiff_t p, ptrdiff_t g, int steps, int batch, const float *x, const float *y,
                       const float *memory, const float *keep, float *const *saved, float *packed,
                       const int wanted[BRAINS], mind *minds) {
  int shared = 0;
  for (int k = 0; k < BRAINS; k++) {
    const brain *net = &of->brains[k];
    if (!net->values || !wanted[k]) continue;
    run_brain(net, p, g, of->groups, steps, batch, shared ? shared : (int)net->reads, k == CRITIC ? y : x, memory,
              of->memory,
              keep, saved[k], packed, &minds[k]);
    if (k == ENCODER) x = y = minds[k].y, shared = minds[k].out;
  }
}

// --- memory ----------------------------------------------------------------------------------------------------------

typedef struct {  // what a minibatch of at most so many rows needs
  const float **from;  // its rows in the rollout
  int32_t *who;        // and their agents
  float *x, *y, *keep, *memory, *weight, *advantage, *saved[BRAINS], *packed, *d, *heads[2], *grads[BRAINS], *column;
  double *noise;
  ptrdiff_t room;
} bench;

static ptrdiff_t largest(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

// Lay out a bench from some place on; return how many floats it takes.
static ptrdiff_t lay_bench(const policy *of, ptrdiff_t rows, ptrdiff_t batch, int learns, float *begin, bench *to) {
  float *from = begin;
  ptrdiff_t widest = of->outputs;
  for (int k = 0; k < BRAINS; k++) widest = largest(widest, of->brains[k].widest);
  to->room = rows * widest;
  to->from = (const float **)take(&from, 2 * rows);
  to->who = (int32_t *)take(&from, rows);
  to->x = take(&from, rows * (of->observations + of->ids));
  to->y = of->joint ? take(&from, rows * of->brains[CRITIC].reads) : to->x;
  to->keep = take(&from, rows);
  to->memory = take(&from, batch * of->memory);
  for (int k = 0; k < BRAINS; k++) to->saved[k] = take(&from, rows * of->brains[k].room);
  to->packed = take(&from, largest(widest, rows) * PANEL);
  to->column = take(&from, 6 * of->outputs * LANES);
  to->noise = (double *)take(&from, 2 * LANES * of->outputs * of->choices);
  if (learns) {
    to->weight = take(&from, rows), to->advantage = take(&from, rows);
    to->d = take(&from, 3 * to->room);
    for (int k = 0; k < 2; k++) to->heads[k] = take(&from, to->room);
    for (int k = 0; k < BRAINS; k++) to->grads[k] = take(&from, of->groups * of->brains[k].size);
  }
  return from - begin;
}

// Whether there is memory for it.
static int open_bench(const policy *of, ptrdiff_t rows, ptrdiff_t batch, int learns, bench *to) {
  float *begin = scratch(lay_bench(of, rows, batch, learns, NULL, to));
  if (begin) lay_bench(of, rows, batch, learns, begin, to);
  return begin != NULL;
}

static columns columns_of(const policy *of, const bench *with) {
  const ptrdiff_t each = of->outputs * LANES;
  float *at = with->column;
  return (columns){at, at + each, at + 2 * each, at + 3 * each, at + 4 * each};
}

// Bring what the actor says of some rows, and what is legal there, into columns.
static void in_columns(const policy *of, const float *out, const int32_t *who, const float *const *legal, int left,
                       const columns *to) {
  const int n = (int)of->outputs;
  for (int l = 0; l < LANES; l++)
    for (int j = 0; j < n; j++) {
      to->z[j * LANES + l] = l < left ? out[(ptrdiff_t)l * n + j] : 0.0f;
      to->may[j * LANES + l] = l >= left ? 1.0f : j >= of->does[who[l]] ? 0.0f : legal ? legal[l][j] : 1.0f;
    }
}

// Write what agent k, in its group's seat, reads: its own observation, and what its critic reads of the whole team's,
// whose observations lie `stride` apart.
static void perceive(const policy *of, const float *team, ptrdiff_t stride, int k, int seat, float *own, float *every) {
  const ptrdiff_t n = of->observations;
  memcpy(own, team + k * stride, sizeof(float) * (size_t)n);
  for (int i = 0; i < of->ids; i++) own[n + i] = i == seat ? 1.0f : 0.0f;
  if (!of->joint) return;
  for (int i = 0; i < of->agents; every += of->sees[i++])
    memcpy(every, team + i * stride, sizeof(float) * (size_t)of->sees[i]);
  for (int i = 0; i < of->ids; i++) every[i] = i == seat ? 1.0f : 0.0f;
}

// --- learning --------------------------------------------------------------------------------------------------------

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
        entropy += choose(may, y * sigmoid(-y) + softplus(-y), all(0.0f));
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
    const vec each = -choose(free < held, free, held) + 0.5f * vf * error - ent * entropy;
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
        g = by_log_p * (choose(taken, all(1.0f), all(0.0f)) - p_j) + ent * w * moved;
        g = choose(load(c.may + j * LANES) > all(0.0f), g, all(0.0f));
      } else if (of->kind == BITS) {
        vec z = load(c.z + j * LANES), s = sigmoid(z);
        g = by_log_p * (load(done + j * LANES) - s) + ent * w * (z * s * sigmoid(-z));
        g = choose(load(c.may + j * LANES) > all(0.0f), g, all(0.0f));
      } else {
        vec noise = load(c.p + j * LANES), by = exponential(all(-log_std[j])),
            deviation = by_log_p * (noise * noise - 1.0f) - ent * w;
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

static double squared(ptrdiff_t size, const float *x) {
  vec squares[EACH] = {0};
  for (ptrdiff_t j = 0; j < size; j += SUMS)
    for (int i = 0; i < EACH; i++) {
      vec g = load(x + j + i * LANES);
      squares[i] += g * g;
    }
  return (double)sum(squares);
}

// One step of Adam of single numbers, each with two moments and its steps beside it.
static void scalar_step(ptrdiff_t count, float *value, float *state, const float *grad, float lr, const lessons *to) {
  for (ptrdiff_t j = 0; j < count; j++, state += 3) {
    state[0] += (float)(1.0 - to->beta1) * (grad[j] - state[0]);
    state[1] += (float)(1.0 - to->beta2) * (grad[j] * grad[j] - state[1]);
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
        perceive(of, mates, to->row, k, seat, with->x + at * (of->observations + of->ids),
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
      memset(with->grads[k], 0, sizeof(float) * (size_t)(of->groups * of->brains[k].size));
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
    if (of->brains[k].values) squares += squared(of->groups * of->brains[k].size, with->grads[k]);
  for (int j = 0; j < numbers; j++) squares += (double)(std[j] * std[j]);
  const float norm = sqrtf((float)squares), share = to->grad_clip[p] / (norm + 1e-6f);
  to->healthy[p] = fabsf(loss + norm) < INFINITY;
  if (!to->healthy[p]) return;
  for (int k = 0; k < BRAINS; k++) {
    const brain *net = &of->brains[k];
    const ptrdiff_t size = of->groups * net->size;
    if (!net->values) continue;
    if (share < 1.0f)
      for (ptrdiff_t j = 0; j < size; j += LANES) store(with->grads[k] + j, load(with->grads[k] + j) * share);
    adam_step(size, net->values + p * net->values_stride, with->grads[k], net->mean + p * net->moments_stride,
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

// Let members learn from all minibatches of all epochs.
int policy_learn(const policy *of, const lessons *to) {
  for (int p = 0; p < of->members; p++) {
    const int size = (int)to->sizes[p];
    const ptrdiff_t rows = (ptrdiff_t)size * most_seats(of);
    bench with;
    if (!open_bench(of, rows * to->length, rows, 1, &with)) return 1;
    for (int epoch = 0; epoch < to->epochs[p]; epoch++)
      for (int i = 0; i < to->batches[p]; i++) {
        const ptrdiff_t first = (ptrdiff_t)i * size;
        const int batch = (int)(to->count - first < size ? to->count - first : size);
        if (batch > 0)
          learn_one(of, to, p, to->order + (p * to->most_epochs + epoch) * to->count + first, batch, !epoch && !i,
                    &with);
      }
  }
  return 0;
}

// --- acting ----------------------------------------------------------------------------------------------------------

// What chance adds to the choices of some rows, `each` numbers a row from `each` times its place on: negative Gumbel
// numbers, shares in [0, 1) or normal numbers, as its kind of action needs.
static void chance(const policy *of, uint64_t stream, int rows, const ptrdiff_t *place, int each, double *to) {
  for (int i = 0; i < rows * each; i += WIDE) {
    bits at;
    for (int c = 0; c < WIDE; c++) {
      const int j = i + c < rows * each ? i + c : i;
      at[c] = (uint64_t)(place[j / each] * each + j % each);
    }
    wide found;
    if (of->kind == CHOICES) {
      found = log_wide(-log_wide(1.0 - shares(stream, at)));
    } else if (of->kind == BITS) {
      found = shares(stream, at);
    } else {
      found = -2.0 * log_wide(1.0 - shares(stream, 2 * at));
      for (int c = 0; c < WIDE; c++) found[c] = __builtin_sqrt(found[c]);
      found *= cos_turns(shares(stream, 2 * at + 1));
    }
    for (int c = 0; c < WIDE && i + c < rows * each; c++) to[i + c] = found[c];
  }
}

// The best legal value of a choice, of which `noise` is taken away where there is some.
static int likeliest(const columns *c, const float *worth, int l, int first, int count, const double *noise) {
  int found = 0;
  float most = -INFINITY;
  for (int j = 0; j < count; j++) {
    const ptrdiff_t at = (ptrdiff_t)(first + j) * LANES + l;
    if (!(c->may[at] > 0.0f)) continue;
    float score = worth[at] == worth[at] ? worth[at] : 0.0f;
    if (noise) score -= (float)noise[j];
    if (score > most) most = score, found = j;
  }
  return found;
}

enum { BLOCK = 128 };  // rows that are taken at once

// Where the numbers of a step's rows lie that `policy_act` reads and writes, [members, envs · agents, …] each. Actions
// are int64 where they are whole numbers; they and values are left out where they are NULL.
typedef struct {
  const float *obs, *memory;
  const uint8_t *legal;
  const uint64_t *keys, *when;  // [members], [1]
  void *actions;
  float *log_probs, *values, *remembered;
  ptrdiff_t envs, salt;
} moment;

// Choose for one row, whose numbers are in a lane of columns; return its log-probability, but for numbers.
static float decide(const policy *of, const columns *c, const float *log_std, int l, int most, const double *noise,
                    float *taken) {
  const int choices = (int)of->choices;
  float log_p = 0.0f;
  for (int d = 0, at = 0; d < choices; at += of->kind == CHOICES ? of->each[d] : 0, d++) {
    float *chosen = &taken[d * LANES + l];
    const float z = c->z[d * LANES + l];
    const int may = c->may[d * LANES + l] > 0.0f;
    if (of->kind == CHOICES) {
      const int j = likeliest(c, noise ? c->log_p : c->z, l, at, of->each[d], noise ? noise + d * most : NULL);
      *chosen = (float)j, log_p += c->log_p[(at + j) * LANES + l];
    } else if (of->kind == BITS) {
      *chosen = may && (noise ? noise[d] < (double)sigmoid(all(z))[0] : z > 0.0f);
      if (may) log_p -= softplus(all(*chosen != 0.0f ? -z : z))[0];
    } else {
      *chosen = z;
      if (noise) *chosen += exponential(all(log_std[d]))[0] * (float)noise[d];
      if (of->squash) *chosen = hyperbolic(all(*chosen))[0];
      if (!may) *chosen = 0.0f;
    }
  }
  return log_p;
}

// What members say and do: actions by the draws of their keys, or the likeliest where there are no keys, and so on.
int policy_act(const policy *of, const moment *now) {
  const int n = (int)of->outputs, choices = (int)of->choices, team = (int)of->agents,
      reads = (int)(of->observations + of->ids);
  const int wanted[BRAINS] = {1, now->actions != NULL, now->values != NULL};
  const ptrdiff_t envs = now->envs;
  int most = 0;
  for (int d = 0; of->kind == CHOICES && d < choices; d++) most = (int)largest(most, of->each[d]);
  const int each = of->kind == CHOICES ? choices * most : n;
  bench with;
  if (!open_bench(of, BLOCK, BLOCK, 0, &with)) return 1;
  for (int r = 0; r < BLOCK; r++) with.keep[r] = 1.0f;
  const columns c = columns_of(of, &with);
  float *taken = with.column + 5 * n * LANES;
  for (int p = 0; p < of->members; p++) {
    const uint64_t begins = now->keys ? stream_of((int64_t)now->keys[p], now->salt, (int64_t)*now->when) : 0;
    const uint64_t *stream = now->keys ? &begins : NULL;
    for (int g = 0; g < of->groups; g++) {
      const float *log_std = of->kind == NUMBERS ? of->log_std + (p * of->groups + g) * n : NULL;
      const ptrdiff_t here = envs * (of->starts[g + 1] - of->starts[g]);
      for (ptrdiff_t block = 0; block < here; block += BLOCK) {
        mind minds[BRAINS];
        const int rows = here - block < BLOCK ? (int)(here - block) : BLOCK;
        ptrdiff_t at[BLOCK], places[BLOCK];  // of each row in what is given, and among its member's draws
        for (int r = 0; r < rows; r++) {
          const int seat = (int)((block + r) / envs), k = of->crew[of->starts[g] + seat];
          const ptrdiff_t env = (block + r) % envs, first = (p * envs + env) * team;
          at[r] = first + k, places[r] = k * envs + env, with.who[r] = k;
          perceive(of, now->obs + first * of->observations, of->observations, k, seat, with.x + r * reads,
                   with.y + r * of->brains[CRITIC].reads);
          if (of->memory)
            memcpy(with.memory + r * of->memory, now->memory + at[r] * of->memory, sizeof(float) * (size_t)of->memory);
        }
        run_policy(of, p, g, 1, rows, with.x, with.y, with.memory, with.keep, with.saved, with.packed, wanted, minds);
        for (int k = 0; now->remembered && k < BRAINS; k++)
          for (int i = 0; of->brains[k].values && wanted[k] && i < minds[k].recurrent; i++) {
            const gated *l = &minds[k].gates[i];
            for (int r = 0; r < rows; r++) {
              float *to = now->remembered + at[r] * of->memory + l->at[REMEMBERED];
              memcpy(to, l->h + (ptrdiff_t)r * l->n, sizeof(float) * (size_t)l->n);
              memcpy(to + l->at[ROOM], l->c + (ptrdiff_t)r * l->n, sizeof(float) * (size_t)l->n);
            }
          }
        for (int r = 0; now->values && r < rows; r++) now->values[at[r]] = minds[CRITIC].y[r];
        for (int first = 0; now->actions && first < rows; first += LANES) {
          const int left = rows - first < LANES ? rows - first : LANES;
          in_columns(of, minds[ACTOR].y + first * n, with.who + first, NULL, left, &c);
          for (int j = 0; j < n; j++)
            for (int l = 0; l < left; l++) {
              float *z = &c.z[j * LANES + l];
              *z = *z != *z ? 0.0f : *z > -LEAST ? -LEAST : *z < LEAST ? LEAST : *z;
              if (of->kind == NUMBERS) *z = c.may[j * LANES + l] > 0.0f ? *z : 0.0f;
              else if (now->legal && !now->legal[at[first + l] * n + j]) c.may[j * LANES + l] = 0.0f;
            }
          if (of->kind == CHOICES) weigh(of, &c);
          vec log_p = {0};
          if (stream) chance(of, *stream, left, places + first, each, with.noise);
          for (int l = 0; l < left; l++) {
            log_p[l] = decide(of, &c, log_std, l, most, stream ? with.noise + l * each : NULL, taken);
            for (int d = 0; d < choices; d++) {
              const ptrdiff_t to = at[first + l] * choices + d;
              if (of->kind == NUMBERS)
                ((float *)now->actions)[to] = taken[d * LANES + l];
              else
                ((int64_t *)now->actions)[to] = (int64_t)taken[d * LANES + l];
            }
          }
          if (of->kind == NUMBERS) log_p = density(of, log_std, &c, taken);
          for (int l = 0; now->log_probs && l < left; l++) now->log_probs[at[first + l]] = stream ? log_p[l] : 0.0f;
        }
      }
    }
  }
  return 0;
}

// --- rollouts --------------------------------------------------------------------------------------------------------

// Enter what is known before a step, into rows that lie as `memory.rollout` says.
void rollout_enter(ptrdiff_t members, ptrdiff_t envs, ptrdiff_t observations, ptrdiff_t choices, ptrdiff_t outputs,
                   float *rows,
                   ptrdiff_t stride, const float *obs, const void *actions, int whole_numbers, const float *log_probs,
                   const float *values, const uint8_t *begins, const uint8_t *legal) {
  for (ptrdiff_t p = 0, at = 0; p < members; p++) {
    float *row = rows + p * stride;
    for (ptrdiff_t e = 0; e < envs; e++, at++) {
      memcpy(row, obs + at * observations, sizeof(float) * (size_t)observations);
      row += observations;
      for (ptrdiff_t j = 0; j < choices; j++)
        *row++ = whole_numbers
            ? (float)((const int64_t *)actions)[at * choices + j] : ((const float *)actions)[at * choices + j];
      *row++ = log_probs[at], *row++ = values[at], *row++ = begins[at] ? 1.0f : 0.0f;
      for (int j = 0; j < 3; j++) *row++ = 0.0f;
      for (ptrdiff_t j = 0; legal && j < outputs; j++) *row++ = legal[at * outputs + j] ? 1.0f : 0.0f;
    }
  }
}

// Enter what a step gave; `expected` are the rows' values, `row` floats apart.
void rollout_finish(ptrdiff_t members, ptrdiff_t envs, ptrdiff_t observations, float *after, ptrdiff_t stride,
                    const float *expected,
                    ptrdiff_t expected_stride, ptrdiff_t row, const float *obs, const float *reward,
                    const uint8_t *terminated, const uint8_t *truncated, const uint8_t *broken) {
  for (ptrdiff_t p = 0, at = 0; p < members; p++) {
    float *to = after + p * stride;
    for (ptrdiff_t e = 0; e < envs; e++, at++) {
      if (broken[at])
        memset(to, 0, sizeof(float) * (size_t)observations);
      else
        memcpy(to, obs + at * observations, sizeof(float) * (size_t)observations);
      to += observations;
      *to++ = broken[at] ? expected[p * expected_stride + e * row] : reward[at];
      *to++ = terminated[at] | broken[at] ? 1.0f : 0.0f;
      *to++ = terminated[at] | truncated[at] | broken[at] ? 1.0f : 0.0f;
      *to++ = broken[at] ? 0.0f : 1.0f;
    }
  }
}

// Rows that are over, and the seeds of their next episodes, see `rng.seeds`; these are counted in `begun`.
void next_episodes(ptrdiff_t rows, const uint8_t *over, const int64_t *keys, const int64_t *envs, int64_t *begun,
                   ptrdiff_t salt,
                   int64_t *found, int64_t *seeds, int32_t *count) {
  *count = 0;
  for (ptrdiff_t r = 0; r < rows; r++) {
    if (!over[r]) continue;
    uint64_t x = mixed_bits((uint64_t)keys[r] + (uint64_t)salt);
    x = mixed_bits(x + (uint64_t)(envs[r] + 1) * GOLDEN);
    x = mixed_bits(x + (uint64_t)(begun[r]++ + 1) * GOLDEN);
    found[*count] = r, seeds[(*count)++] = (int64_t)(x >> 33);
  }
}
