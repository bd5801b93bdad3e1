// Whole updates of actors and critics, member by member: the files of `algos` that call them say what they compute.
// An agent alone is a team of one.

// Like networks of every member, `rows` of them with a clip and an Adam each, in every row `copies` next to each other.
typedef struct {
  const int32_t *plan, *own;  // own: see `spans_of`
  float *values, *means, *squares, *steps;
  ptrdiff_t stride, moment_stride, size, keep;
  int layers, rows, copies, inputs, widest;
} nets;

typedef struct {
  nets actor, actor_target, critic, critic_target;
  const int32_t *sees, *does, *group, *seat;  // of each agent: how much of a row's numbers are its own, its networks
  int batch, agents, obs, actions, joint, ids, twins, discrete;
  float noise_limit, temperature, penalty;
  double beta1, beta2, eps;
  float *updates;
  const float *lr_actor, *lr_critic, *limit, *tau, *close;  // close: TD3+BC's α
  // A batch's, new at every call.
  const float *now, *then, *reward, *discount, *weight, *alive, *learns, *next_alive, *noise, *own_noise;
  const void *action;
  const uint8_t *legal, *next_legal;
  ptrdiff_t now_member, now_row, then_member, then_row, action_member, action_row;
  int climbs;  // whether it is the actor's turn
  float *losses, *errors;
  uint8_t *healthy;
} climb_job;

// One of a member's networks, and what it made of its rows.
typedef struct {
  const float *values, *out;
  layer found[MOST];
  int count;
} made;

static ptrdiff_t place_of(const nets *n, int p, int i) {  // of a member's i-th network, in floats
  return ((ptrdiff_t)p * n->rows + i / n->copies) * n->stride + i % n->copies * (n->size / n->copies);
}

static void make(const nets *n, int p, int i, int rows, const float *x, float *saved, float *packed, made *to) {
  const int32_t *plan = n->plan + ((ptrdiff_t)p * n->rows * n->copies + i) * n->layers * FIELDS;
  to->values = n->values + place_of(n, p, i);
  to->out = outputs_of(plan, n->layers, to->values, rows, n->inputs, x, saved, packed, to->found, &to->count);
}

static int all_finite(const nets *n, int p) {
  float total = 0.0f;
  for (int r = 0; r < n->rows; r++) {
    const ptrdiff_t row = (ptrdiff_t)p * n->rows + r;
    const float *at = n->values + row * n->stride;
    vec parts[EACH] = {0};
    EACH_SPAN(spans_of(n->own, row))
      for (ptrdiff_t j = s[0]; j < s[1]; j += SUMS)
        for (int i = 0; i < EACH; i++) parts[i] += load(at + j + i * LANES);
    total += sum(parts);
  }
  return fabsf(total) < INFINITY;
}

static void clear(const nets *n, int p, float *grads) {
  for (int r = 0; r < n->rows; r++) cleared(spans_of(n->own, (ptrdiff_t)p * n->rows + r), grads + r * n->size);
}

// Clip, and step where the member is healthy and its loss and gradient finite; return whether it is.
static int descend(const nets *n, int p, float *grads, float limit, float loss, float lr, int healthy, double beta1,
                   double beta2, double eps) {
  const ptrdiff_t first = (ptrdiff_t)p * n->rows;
  for (int r = 0; r < n->rows; r++) loss += clipped(spans_of(n->own, first + r), grads + r * n->size, limit);
  healthy = healthy && fabsf(loss) < INFINITY;
  for (int r = 0; healthy && r < n->rows; r++) {
    const ptrdiff_t row = first + r, moments = row * n->moment_stride;
    adam_step(spans_of(n->own, row), n->values + row * n->stride, grads + r * n->size, n->means + moments,
              n->squares + moments, n->steps + row, lr, beta1, beta2, eps);
  }
  return healthy;
}

static void follow(const nets *target, const nets *online, int p, float share) {
  for (int i = p * target->rows; i < (p + 1) * target->rows; i++)
    mixed(spans_of(target->own, i), target->values + i * target->stride, online->values + i * online->stride, share);
}

INLINE float least(float a, float b) { return b < a || b != b ? b : a; }

// Write what agent k's actor reads: its observation, and which of its group it is.
static void shown(const climb_job *j, int k, int rows, const float *obs, ptrdiff_t stride, float *to) {
  for (int b = 0; b < rows; b++, to += j->obs + j->ids) {
    memcpy(to, obs + b * stride + k * j->obs, sizeof(float) * (size_t)j->obs);
    for (int i = 0; i < j->ids; i++) to[j->obs + i] = i == j->seat[k];
  }
}

// Write what everyone sees in the batch to the rows that critics read, 0s where an agent is gone.
static void seen(const climb_job *j, int p, int rows, float *x) {
  const float *obs = j->now + p * j->now_member;
  for (int b = 0; b < rows; b++, obs += j->now_row) {
    const float *alive = j->alive ? j->alive + ((ptrdiff_t)p * j->batch + b) * j->agents : NULL;
    float *to = x + (ptrdiff_t)b * j->joint;
    for (int k = 0; k < j->agents; to += j->sees[k++])
      put_or_clear(!alive || alive[k] > 0.0f, to, obs + k * j->obs, j->sees[k]);
  }
}

// Write what agent k's target is a value of: next observations, and the actions [rows, acts] that are taken there.
static void follows(const climb_job *j, int p, int k, int rows, const float *acts, int all_acts, float *x) {
  const float *obs = j->then + p * j->then_member;
  for (int b = 0; b < rows; b++, obs += j->then_row, acts += all_acts) {
    const float *alive = j->next_alive ? j->next_alive + ((ptrdiff_t)p * j->batch + b) * j->agents : NULL;
    float *to = x + (ptrdiff_t)b * j->joint;
    for (int i = 0; i < j->agents; to += j->sees[i++])
      put_or_clear(!alive || there(alive[i], alive[k]), to, obs + i * j->obs, j->sees[i]);
    for (int i = 0, at = 0; i < j->agents; to += j->does[i], at += j->does[i++])
      put_or_clear(!alive || there(alive[i], alive[k]), to, acts + at, j->does[i]);
  }
}

static void named(const climb_job *j, int k, int rows, float *x) {
  for (int b = 0; b < rows && j->ids; b++)
    for (int i = 0; i < j->ids; i++) x[(ptrdiff_t)(b + 1) * j->joint - j->ids + i] = i == j->seat[k];
}

// Write what agent k did in the batch, 0s where it was gone.
static void did(const climb_job *j, int p, int k, int rows, float *x) {
  for (int b = 0; b < rows; b++, x += j->joint) {
    const ptrdiff_t at = p * j->action_member + b * j->action_row;
    const float alive = j->alive ? j->alive[((ptrdiff_t)p * j->batch + b) * j->agents + k] : 1.0f;
    for (int a = 0; a < j->does[k]; a++)
      x[a] = !(alive > 0.0f) ? 0.0f
             : j->discrete   ? (float)(((const int64_t *)j->action)[at + k] == a)
                             : ((const float *)j->action)[at + k * j->actions + a];
  }
}

static int may(const uint8_t *legal, int a) { return !legal || legal[a]; }

// The legal action of the largest score, the first of equal ones; the first of all where none is legal.
static int drawn(int actions, const float *out, const float *noise, const uint8_t *legal) {
  int found = 0;
  float most = -INFINITY;
  for (int a = 0; a < actions; a++)
    if (may(legal, a) && out[a] - noise[a] > most) most = out[a] - noise[a], found = a;
  return found;
}

// The softmax of legal scores, 0 elsewhere.
static void softened(int actions, const float *out, const float *noise, const uint8_t *legal, float temperature,
                     float *soft) {
  float most = -INFINITY, total = 0.0f;
  for (int a = 0; a < actions; a++) {
    soft[a] = (out[a] - noise[a]) / temperature;
    if (may(legal, a) && !(soft[a] <= most)) most = soft[a];
  }
  for (int a = 0; a < actions; a += LANES)
    put(soft + a, actions - a, exponential(part(soft + a, actions - a) - most));
  for (int a = 0; a < actions; a++) total += soft[a] = may(legal, a) ? soft[a] : 0.0f;
  for (int a = 0; a < actions; a++) soft[a] /= total > 0.0f || total != total ? total : 1.0f;
}

// One update of a member's actors and critics.
static int climb_member(const void *told, int p) {
  const climb_job *j = told;
  const nets *actor = &j->actor, *critic = &j->critic;
  const ptrdiff_t first = (ptrdiff_t)p * j->batch;
  const float *weight = j->weight + first;
  const int rows = rows_that_count(j->batch, weight), agents = j->agents, actions = j->actions, joint = j->joint;
  const int widest = actor->widest > critic->widest ? actor->widest : critic->widest;
  const ptrdiff_t wide = (ptrdiff_t)rows * widest, deepest = (widest > rows ? widest : rows) * (ptrdiff_t)PANEL;
  const ptrdiff_t own_size = (ptrdiff_t)rows * (j->obs + j->ids), acts = (ptrdiff_t)rows * actions;
  const ptrdiff_t actor_size = actor->rows * actor->size, critic_size = critic->rows * critic->size;
  const ptrdiff_t grad_size = actor_size > critic_size ? actor_size : critic_size;
  int all_acts = 0;
  for (int k = 0; k < agents; k++) all_acts += j->does[k];
  float *free = scratch(lines((ptrdiff_t)rows * joint) + lines((ptrdiff_t)rows * all_acts) + lines(own_size) + lines(rows * actor->keep) +
                        lines(rows * critic->keep) + 4 * lines(wide) + lines(acts) + lines((ptrdiff_t)agents * rows) +
                        lines(deepest) + lines(grad_size));
  if (!free) return 1;
  float *x = take(&free, (ptrdiff_t)rows * joint), *acts_next = take(&free, (ptrdiff_t)rows * all_acts);
  float *own = take(&free, own_size);
  float *kept = take(&free, rows * actor->keep), *kept_too = take(&free, rows * critic->keep);
  float *d = take(&free, wide), *next = take(&free, wide), *of_f = take(&free, wide), *d_out = take(&free, wide);
  float *mine = take(&free, acts), *y = take(&free, (ptrdiff_t)agents * rows), *packed = take(&free, deepest);
  float *grads = take(&free, grad_size), *errors = j->errors + first;
  const float *now = j->now + p * j->now_member, *then = j->then + p * j->then_member;
  int healthy = j->healthy[p] && all_finite(actor, p) && !(j->discrete && !all_finite(&j->actor_target, p));
  int acting = 0;  // where actions begin
  for (int k = 0; k < agents; k++) acting += j->sees[k];
  const float *learns = j->learns ? j->learns + first * agents : NULL;
  made by, of;

  // Critics regress on r + γ Q⁻(o′, a′), of twins the lesser.
  for (int k = 0, at = 0; k < agents; at += j->does[k++]) {
    shown(j, k, rows, then, j->then_row, own);
    make(&j->actor_target, p, j->group[k], rows, own, kept, packed, &by);
    memcpy(mine, by.out, sizeof(float) * (size_t)acts);
    if (!j->discrete) activate(TANH, acts, mine);
    for (int b = 0; b < rows; b++) {
      const ptrdiff_t row = (first + b) * agents + k, from = (((ptrdiff_t)p * agents + k) * j->batch + b) * actions;
      const int one = j->discrete ? drawn(j->does[k], mine + b * actions, j->noise + from,
                                          j->next_legal ? j->next_legal + row * actions : NULL) : 0;
      for (int a = 0; a < j->does[k]; a++) {
        float act = mine[b * actions + a];
        if (j->discrete) {
          act = a == one;
        } else if (j->noise) {
          const float far = j->noise[from + a];
          act += far > j->noise_limit ? j->noise_limit : far < -j->noise_limit ? -j->noise_limit : far;
          act = act > 1.0f ? 1.0f : act < -1.0f ? -1.0f : act;
        }
        acts_next[(ptrdiff_t)b * all_acts + at + a] = act;
      }
    }
  }
  for (int k = 0; k < agents; k++) {
    follows(j, p, k, rows, acts_next, all_acts, x);
    named(j, k, rows, x);
    for (int t = 0; t < j->twins; t++) {
      make(&j->critic_target, p, j->group[k] * j->twins + t, rows, x, kept_too, packed, &of);
      for (int b = 0; b < rows; b++) y[k * rows + b] = t ? least(y[k * rows + b], of.out[b]) : of.out[b];
    }
    for (int b = 0; b < rows; b++) {
      const ptrdiff_t row = (first + b) * agents + k;
      y[k * rows + b] = __builtin_fmaf(j->discount[row], y[k * rows + b], j->reward[row]);
    }
  }
  seen(j, p, rows, x);
  for (int k = 0, at = acting; k < agents; at += j->does[k++]) did(j, p, k, rows, x + at);
  clear(critic, p, grads);
  memset(errors, 0, sizeof(float) * (size_t)j->batch);
  float loss = 0.0f;
  for (int k = 0; k < agents; k++) {
    named(j, k, rows, x);
    for (int t = 0; t < j->twins; t++) {
      const int i = j->group[k] * j->twins + t;
      make(critic, p, i, rows, x, kept_too, packed, &of);
      for (int b = 0; b < rows; b++) {
        const float counts = learns ? learns[b * agents + k] : 1.0f;
        const float e = of.out[b] - y[k * rows + b], share = weight[b] * counts;
        d[b] = 2.0f * share * e;
        loss = __builtin_fmaf(share, e * e, loss);
        errors[b] = __builtin_fmaf(counts, fabsf(e), errors[b]);
      }
      backward(of.values, grads + i * (critic->size / critic->copies), rows, of.found, of.count, d, next, of_f, 0, packed);
    }
  }
  for (int b = 0; b < rows; b++) {
    float learners = 0.0f;
    for (int k = 0; k < agents; k++) learners += learns ? learns[b * agents + k] : 1.0f;
    errors[b] /= (learners < 1.0f ? 1.0f : learners) * (float)j->twins;
  }
  healthy = descend(critic, p, grads, j->limit[p], loss, j->lr_critic[p], healthy, j->beta1, j->beta2, j->eps);
  j->losses[p] = loss;

  if (j->climbs) {
    // Actors climb the first twin's Q of their own action and the others' in the batch.
    float climbed = 0.0f;
    clear(actor, p, grads);
    for (int k = 0, at = acting; k < agents; at += j->does[k++]) {
      const int does = j->does[k];
      shown(j, k, rows, now, j->now_row, own);
      make(actor, p, j->group[k], rows, own, kept, packed, &by);
      memcpy(mine, by.out, sizeof(float) * (size_t)acts);
      if (!j->discrete) activate(TANH, acts, mine);
      for (int b = 0; b < rows; b++) {
        float *row = x + (ptrdiff_t)b * joint + at;
        if (j->discrete) {
          const uint8_t *legal = j->legal ? j->legal + ((first + b) * agents + k) * actions : NULL;
          const float *noise = j->own_noise + (((ptrdiff_t)p * agents + k) * j->batch + b) * actions;
          const float *out = by.out + (ptrdiff_t)b * actions;
          const int one = drawn(does, out, noise, legal);
          softened(does, out, noise, legal, j->temperature, mine + b * actions);
          for (int a = 0; a < does; a++) row[a] = a == one;
        } else {
          memcpy(row, mine + b * actions, sizeof(float) * (size_t)does);
        }
      }
      named(j, k, rows, x);
      make(critic, p, j->group[k] * j->twins, rows, x, kept_too, packed, &of);
      float scale = 1.0f;
      if (j->close) {
        float mean = 0.0f;
        for (int b = 0; b < rows; b++) mean = __builtin_fmaf(weight[b], fabsf(of.out[b]), mean);
        scale = j->close[p] / (mean < 1e-6f ? 1e-6f : mean);
      }
      for (int b = 0; b < rows; b++) {
        const float share = weight[b] * (learns ? learns[b * agents + k] : 1.0f);
        d[b] = -share * scale;
        climbed = __builtin_fmaf(d[b], of.out[b], climbed);
      }
      const float *g = backward(of.values, NULL, rows, of.found, of.count, d, next, of_f, 1, packed) + at;
      memset(d_out, 0, sizeof(float) * (size_t)acts);
      for (int b = 0; b < rows; b++, g += joint) {
        const float share = weight[b] * (learns ? learns[b * agents + k] : 1.0f);
        const float *out = by.out + (ptrdiff_t)b * actions, *act = mine + (ptrdiff_t)b * actions;
        float *to = d_out + (ptrdiff_t)b * actions, along = 0.0f, squares = 0.0f, away = 0.0f;
        const float *taken = j->close ? (const float *)j->action + p * j->action_member + b * j->action_row : NULL;
        for (int a = 0; a < does; a++) along = __builtin_fmaf(act[a], g[a], along);
        for (int a = 0; a < does; a++) {
          if (j->discrete) {
            to[a] = act[a] * (g[a] - along) / j->temperature;
          } else {
            float slope = g[a];
            if (taken) {
              const float far = act[a] - taken[a];
              away = __builtin_fmaf(far, far, away);
              slope += 2.0f * share * far / (float)does;
            }
            to[a] = slope * __builtin_fmaf(-act[a], act[a], 1.0f);
          }
          squares = __builtin_fmaf(out[a], out[a], squares);
          to[a] += 2.0f * share * j->penalty * out[a] / (float)does;
        }
        climbed += share * __builtin_fmaf(j->penalty, squares, away) / (float)does;
      }
      did(j, p, k, rows, x + at);
      backward(by.values, grads + j->group[k] * (actor->size / actor->copies), rows, by.found, by.count, d_out, next,
               of_f, 0, packed);
    }
    healthy = descend(actor, p, grads, j->limit[p], climbed, j->lr_actor[p], healthy, j->beta1, j->beta2, j->eps);
    const float share = healthy ? j->tau[p] : 0.0f;
    follow(&j->critic_target, critic, p, share);
    follow(&j->actor_target, actor, p, share);
  }
  j->healthy[p] = (uint8_t)healthy;
  j->updates[p] += (float)healthy;
  return 0;
}

int climb(const climb_job *job, int members) { return each_member(members, climb_member, job); }
