// Updates of deterministic actors and their critics: `algos.ddpg`, `td3`, `td3bc`, `maddpg` and `matd3` say what they
// compute. An agent alone is a team of one.

#include "update.h"

// --- what networks read ----------------------------------------------------------------------------------------------

// Write what agent k's actor reads: its observation, and which of its group it is.
static void show(const ddpg_job *j, int k, int rows, const float *obs, ptrdiff_t stride, float *to) {
  for (int b = 0; b < rows; b++, to += j->obs + j->ids) {
    memcpy(to, obs + b * stride + k * j->obs, sizeof(float) * (size_t)j->obs);
    for (int i = 0; i < j->ids; i++) to[j->obs + i] = i == j->seat[k];
  }
}

// Where a critic's inputs have the actions of agent k, in a row.
static int actions_at(const ddpg_job *j, int k) {
  int at = 0;
  for (int i = 0; i < j->agents; i++) at += j->sees[i] + (i < k ? j->does[i] : 0);
  return at;
}

// Write what everyone sees in the batch to the rows that critics read, 0s where an agent is gone.
static void write_observations(const update *u) {
  const ddpg_job *j = u->job;
  const minibatch *m = u->batch;
  const float *obs = m->obs + u->p * m->obs_member;
  for (int b = 0; b < u->rows; b++, obs += m->obs_row) {
    const float *alive = m->alive ? m->alive + (u->first + b) * j->agents : NULL;
    float *to = u->x + (ptrdiff_t)b * j->joint;
    for (int k = 0; k < j->agents; to += j->sees[k++])
      put_or_clear(!alive || alive[k] > 0.0f, to, obs + k * j->obs, j->sees[k]);
  }
}

// Write what agent k's target is a value of: next observations, and the actions that are taken there, `width` a row.
static void write_next(const update *u, int k, int width) {
  const ddpg_job *j = u->job;
  const minibatch *m = u->batch;
  const float *obs = m->next_obs + u->p * m->next_member, *acts = u->next_act;
  for (int b = 0; b < u->rows; b++, obs += m->next_row, acts += width) {
    const float *alive = m->next_alive ? m->next_alive + (u->first + b) * j->agents : NULL;
    float *to = u->x + (ptrdiff_t)b * j->joint;
    for (int i = 0; i < j->agents; to += j->sees[i++])
      put_or_clear(!alive || there(alive[i], alive[k]), to, obs + i * j->obs, j->sees[i]);
    for (int i = 0, at = 0; i < j->agents; to += j->does[i], at += j->does[i++])
      put_or_clear(!alive || there(alive[i], alive[k]), to, acts + at, j->does[i]);
  }
}

// Write which of its group agent k is, behind all else that its critic reads.
static void write_seat(const update *u, int k) {
  const ddpg_job *j = u->job;
  for (int b = 0; b < u->rows && j->ids; b++)
    for (int i = 0; i < j->ids; i++) u->x[(ptrdiff_t)(b + 1) * j->joint - j->ids + i] = i == j->seat[k];
}

// Write what agent k did in the batch, 0s where it was gone.
static void write_actions(const update *u, int k) {
  const ddpg_job *j = u->job;
  const minibatch *m = u->batch;
  float *x = u->x + actions_at(j, k);
  for (int b = 0; b < u->rows; b++, x += j->joint) {
    const ptrdiff_t at = u->p * m->action_member + b * m->action_row;
    const float alive = m->alive ? m->alive[(u->first + b) * j->agents + k] : 1.0f;
    for (int a = 0; a < j->does[k]; a++)
      x[a] = !(alive > 0.0f) ? 0.0f
             : j->discrete   ? (float)(((const int64_t *)m->action)[at + k] == a)
                             : ((const float *)m->action)[at + k * j->actions + a];
  }
}

// How much agent k's part of a row counts.
INLINE float learns(const update *u, int b, int k) {
  const int agents = ((const ddpg_job *)u->job)->agents;
  return u->batch->learns ? u->batch->learns[(u->first + b) * agents + k] : 1.0f;
}

// Where the noise, or the legal actions, of agent k lie in a row.
INLINE ptrdiff_t noise_at(const update *u, int k, int b) {
  const ddpg_job *j = u->job;
  return (((ptrdiff_t)u->p * j->agents + k) * u->batch->batch + b) * j->actions;
}
INLINE const uint8_t *legal_at(const update *u, const uint8_t *legal, int k, int b) {
  const ddpg_job *j = u->job;
  return legal ? legal + ((u->first + b) * j->agents + k) * j->actions : NULL;
}

// --- discrete actions ------------------------------------------------------------------------------------------------

// The legal action of the largest score, the first of equal ones; the first of all where none is legal.
static int drawn(int actions, const float *out, const float *noise, const uint8_t *legal) {
  int found = 0;
  float most = -INFINITY;
  for (int a = 0; a < actions; a++)
    if (may(legal, a) && out[a] - noise[a] > most) most = out[a] - noise[a], found = a;
  return found;
}

// The softmax of legal scores, 0 elsewhere.
static void relaxed(int actions, const float *out, const float *noise, const uint8_t *legal, float temperature,
                    float *soft) {
  float most = -INFINITY, total = 0.0f;
  for (int a = 0; a < actions; a++) {
    soft[a] = (out[a] - noise[a]) / temperature;
    if (may(legal, a) && !(soft[a] <= most)) most = soft[a];
  }
  for (int a = 0; a < actions; a += LANES) put(soft + a, actions - a, exponential(part(soft + a, actions - a) - most));
  for (int a = 0; a < actions; a++) total += soft[a] = may(legal, a) ? soft[a] : 0.0f;
  for (int a = 0; a < actions; a++) soft[a] /= total > 0.0f || total != total ? total : 1.0f;
}

// --- targets ---------------------------------------------------------------------------------------------------------

static void ddpg_room(update *u, arena *from) {
  const ddpg_job *j = u->job;
  int width = 0;
  for (int k = 0; k < j->agents; k++) width += j->does[k];
  u->act = take(from, (ptrdiff_t)u->rows * j->actions), u->next_act = take(from, (ptrdiff_t)u->rows * width);
  u->y = take(from, (ptrdiff_t)j->agents * u->rows);
}

// Let agent k's actor say what it does, [rows, actions] before and after tanh.
static void ask_actor(update *u, const network *actor, int k, const float *obs, ptrdiff_t stride, pass *by) {
  const ddpg_job *j = u->job;
  const ptrdiff_t count = (ptrdiff_t)u->rows * j->actions;
  show(j, k, u->rows, obs, stride, u->own);
  run(actor, values_of(actor, u->p, j->group[k]), u->p, j->group[k], u->rows, u->own, u->kept_of_actor, u->back.packed,
      by);
  memcpy(u->act, by->out, sizeof(float) * (size_t)count);
  if (!j->discrete) activate(TANH, count, u->act);
}

// Write what agent k's target actor does next, with clipped noise, or drawn by it, to `next_act`, `at` of `width`.
static void act_next(update *u, int k, int at, int width) {
  const ddpg_job *j = u->job;
  const minibatch *m = u->batch;
  pass by;
  ask_actor(u, &u->of->actor_target, k, m->next_obs + u->p * m->next_member, m->next_row, &by);
  for (int b = 0; b < u->rows; b++) {
    const float *mine = u->act + (ptrdiff_t)b * j->actions,
                *noise = u->now->noise ? u->now->noise + noise_at(u, k, b) : NULL;
    const int one = j->discrete ? drawn(j->does[k], mine, noise, legal_at(u, m->next_legal, k, b)) : 0;
    for (int a = 0; a < j->does[k]; a++) {
      float act = mine[a];
      if (j->discrete)
        act = a == one;
      else if (noise)
        act = within(act + within(noise[a], j->noise_clip[u->p]), 1.0f);
      u->next_act[(ptrdiff_t)b * width + at + a] = act;
    }
  }
}

// Write r + γ Q⁻(o′, a′), of twins the lesser, of each agent.
static void ddpg_target(update *u) {
  const ddpg_job *j = u->job;
  const minibatch *m = u->batch;
  const network *q = &u->of->critic_target;
  const int width = actions_at(j, j->agents) - actions_at(j, 0);
  pass of;
  if (j->discrete && !all_finite(&u->of->actor_target, u->p)) u->healthy = 0;
  for (int k = 0; k < j->agents; k++) act_next(u, k, actions_at(j, k) - actions_at(j, 0), width);
  for (int k = 0; k < j->agents; k++) {
    float *y = u->y + (ptrdiff_t)k * u->rows;
    write_next(u, k, width);
    write_seat(u, k);
    for (int t = 0; t < j->twins; t++) {
      const int at = j->group[k] * j->twins + t;
      run(q, values_of(q, u->p, at), u->p, at, u->rows, u->x, u->kept, u->back.packed, &of);
      for (int b = 0; b < u->rows; b++) y[b] = t ? least(y[b], of.out[b]) : of.out[b];
    }
    for (int b = 0; b < u->rows; b++) {
      const ptrdiff_t row = (u->first + b) * j->agents + k;
      y[b] = __builtin_fmaf(m->discount[row], y[b], m->reward[row]);
    }
  }
  write_observations(u);
  for (int k = 0; k < j->agents; k++) write_actions(u, k);
}

// --- critics: one pass for each twin of each agent -------------------------------------------------------------------

static int critic_passes(const update *u) {
  const ddpg_job *j = u->job;
  return j->agents * j->twins;
}

static int critic_of(const update *u, int i) {
  const ddpg_job *j = u->job;
  return j->group[i / j->twins] * j->twins + i % j->twins;
}

static const float *critic_reads(update *u, int i) {
  write_seat(u, i / ((const ddpg_job *)u->job)->twins);
  return u->x;
}

// The squared error; a transition's own is the mean of its learners'.
static void critic_loss(update *u, int i, const pass *of, float *d) {
  const ddpg_job *j = u->job;
  const int k = i / j->twins;
  for (int b = 0; b < u->rows; b++) {
    const float counts = learns(u, b, k), e = of->out[b] - u->y[k * u->rows + b], share = u->weight[b] * counts;
    d[b] = 2.0f * share * e;
    u->loss = __builtin_fmaf(share, e * e, u->loss);
    u->errors[b] = __builtin_fmaf(counts, fabsf(e), u->errors[b]);
  }
  if (i + 1 < critic_passes(u)) return;
  for (int b = 0; b < u->rows; b++) {
    float learners = 0.0f;
    for (int each = 0; each < j->agents; each++) learners += learns(u, b, each);
    u->errors[b] /= (learners < 1.0f ? 1.0f : learners) * (float)j->twins;
  }
}

// --- actors: they follow the gradient of the first twin's Q by their own action, others as in the batch --------------

static int actor_passes(const update *u) { return ((const ddpg_job *)u->job)->agents; }
static int actor_of(const update *u, int k) { return ((const ddpg_job *)u->job)->group[k]; }

static const float *actor_reads(update *u, int k) {
  const minibatch *m = u->batch;
  show(u->job, k, u->rows, m->obs + u->p * m->obs_member, m->obs_row, u->own);
  return u->own;
}

// Write what agent k does by its actor's outputs to `act`, differentiable, and to the rows that critics read.
static void act_now(update *u, int k, const pass *by) {
  const ddpg_job *j = u->job;
  const minibatch *m = u->batch;
  const int does = j->does[k], actions = j->actions;
  float *row = u->x + actions_at(j, k), *act = u->act;
  memcpy(act, by->out, sizeof(float) * (size_t)u->rows * (size_t)actions);
  if (!j->discrete) activate(TANH, (ptrdiff_t)u->rows * actions, act);
  for (int b = 0; b < u->rows; b++, row += j->joint, act += actions) {
    if (!j->discrete) {
      memcpy(row, act, sizeof(float) * (size_t)does);
      continue;
    }
    const uint8_t *legal = legal_at(u, m->legal, k, b);
    const float *noise = u->now->own_noise + noise_at(u, k, b), *out = by->out + (ptrdiff_t)b * actions;
    const int one = drawn(does, out, noise, legal);
    relaxed(does, out, noise, legal, j->temperature[u->p], act);
    for (int a = 0; a < does; a++) row[a] = a == one;
  }
}

// Return the gradient of −Q by what the critic read, and add −Q to the loss; TD3+BC scales it.
static const float *ask_critic(update *u, int k) {
  const ddpg_job *j = u->job;
  const network *q = &u->of->critic;
  const int at = j->group[k] * j->twins;
  float scale = 1.0f;
  pass of;
  write_seat(u, k);
  run(q, values_of(q, u->p, at), u->p, at, u->rows, u->x, u->kept, u->back.packed, &of);
  if (j->alpha) {
    float mean = 0.0f;
    for (int b = 0; b < u->rows; b++) mean = __builtin_fmaf(u->weight[b], fabsf(of.out[b]), mean);
    scale = j->alpha[u->p] / (mean < 1e-6f ? 1e-6f : mean);
  }
  for (int b = 0; b < u->rows; b++) {
    u->back.d[b] = -(u->weight[b] * learns(u, b, k)) * scale;
    u->loss = __builtin_fmaf(u->back.d[b], of.out[b], u->loss);
  }
  return run_back(&of, NULL, u->rows, 1, u->back);
}

// Write the gradient of one row's outputs, from g by its action; add its penalty and, as TD3+BC, how far from the
// batch's action it is.
static void actor_row(update *u, int k, int b, const float *g, const float *out, float *to) {
  const ddpg_job *j = u->job;
  const minibatch *m = u->batch;
  const int does = j->does[k];
  const float share = u->weight[b] * learns(u, b, k), penalty = j->penalty[u->p];
  const float *act = u->act + (ptrdiff_t)b * j->actions;
  const float *taken = j->alpha ? (const float *)m->action + u->p * m->action_member + b * m->action_row : NULL;
  float along = 0.0f, squares = 0.0f, away = 0.0f;
  for (int a = 0; a < does; a++) along = __builtin_fmaf(act[a], g[a], along);
  for (int a = 0; a < does; a++) {
    if (j->discrete) {
      to[a] = act[a] * (g[a] - along) / j->temperature[u->p];
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
    to[a] += 2.0f * share * penalty * out[a] / (float)does;
  }
  u->loss += share * __builtin_fmaf(penalty, squares, away) / (float)does;
}

static void actor_loss(update *u, int k, const pass *by, float *d) {
  const ddpg_job *j = u->job;
  act_now(u, k, by);
  const float *g = ask_critic(u, k) + actions_at(j, k);
  memset(d, 0, sizeof(float) * (size_t)u->rows * (size_t)j->actions);
  for (int b = 0; b < u->rows; b++, g += j->joint)
    actor_row(u, k, b, g, by->out + (ptrdiff_t)b * j->actions, d + (ptrdiff_t)b * j->actions);
  write_actions(u, k);
}

static const family DDPG = {.lay_out = ddpg_room,
                            .target = ddpg_target,
                            .critic = {critic_passes, critic_of, critic_reads, critic_loss},
                            .actor = {actor_passes, actor_of, actor_reads, actor_loss}};

int ddpg_update(const ddpg_job *job, const minibatch *batch, const update_call *now, int members) {
  return each_member(members, update_member, &(update_work){&DDPG, &job->of, batch, now, job});
}
