// Proximal policy optimisation of several members, member by member: `algos.ppo`, `algos.ippo` and `algos.mappo` have
// the same in torch, and say what is computed. A step is a row of a rollout, see `memory.rollout`; the agents of a team
// have theirs next to each other, and one agent alone is a team, too.

enum { CHOICES, BITS, NUMBERS };  // kinds of action

typedef struct {  // one network of all members, in copies: one for every group of agents
  const int32_t *plan, *gated;  // of dense layers, and of LSTM layers before them: fields a copy
  const int32_t *own;           // see `spans_of`
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
    total += choose(may, fused(-0.5f * n, n, all(-log_std[j])) - HALF_LOG_2PI - slope, all(0.5f));
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
// whose observations lie `stride` apart: of all, or for a target of those who are there.
static void perceive(const policy *of, const float *team, ptrdiff_t stride, const float *next_alive, int k, int seat,
                     float *own, float *every) {
  const ptrdiff_t n = of->observations;
  memcpy(own, team + k * stride, sizeof(float) * (size_t)n);
  for (int i = 0; i < of->ids; i++) own[n + i] = i == seat ? 1.0f : 0.0f;
  if (!of->joint) return;
  for (int i = 0; i < of->agents; every += of->sees[i++])
    put_or_clear(!next_alive || there(next_alive[i], next_alive[k]), every, team + i * stride, of->sees[i]);
  for (int i = 0; i < of->ids; i++) every[i] = i == seat ? 1.0f : 0.0f;
}
