// The skeleton of an update, once: gather, target, forward, the loss's gradient, backward, clip, Adam, Polyak. A family
// of algorithms adds what its networks read, its targets and its losses.

#pragma once

#include "network.h"
#include "pool.h"
#include "random.h"
#include "team.h"

typedef struct update update;

typedef struct {  // what critics, or actors, learn from: so many passes, each of one of a member's networks
  int (*passes)(const update *u);
  int (*network_of)(const update *u, int i);
  const float *(*reads)(update *u, int i);                   // gather what the i-th pass reads
  void (*loss)(update *u, int i, const pass *by, float *d);  // add to `u->loss`, write the gradient of the outputs
} objective;

typedef struct {
  void (*lay_out)(update *u, arena *from);  // room that it needs beside what all do
  void (*target)(update *u);                // write what critics learn to say
  objective critic, actor;                  // a Q-network has no actor
  void (*of_noise)(update *u);              // write the gradient of the noise on weights; or NULL
  void (*after_actor)(update *u);           // what else learns from the actor's loss; or NULL
} family;

typedef struct {
  const family *family;
  const learners *of;
  const minibatch *batch;
  const update_call *now;
  const void *job;
} update_work;

struct update {  // of one member
  const learners *of;
  const minibatch *batch;
  const update_call *now;
  const void *job;
  const float *weight;  // of its rows
  ptrdiff_t first;      // where they begin in the batch
  int p, rows, healthy;
  float loss, *errors;
  float *x, *own;  // what critics and what an actor read
  float *kept, *kept_of_actor, *grads, *d_out;
  way_back back;
  float *y, *act, *next_act, *pi, *d_act, *log_pi, *kept_too;    // of actors and critics
  float alpha, surplus;                                          // temperature; entropy beyond its aim
  float *out_t, *select, *values, *noise_grads, *into, *out_of;  // of Q-networks; values: with noise on them
};

// The lesser of two; NaN if either is.
INLINE float least(float a, float b) { return b < a || b != b ? b : a; }
#define UNUSED __attribute__((unused))
static int one_pass(const update *u UNUSED) { return 1; }
static int same_network(const update *u UNUSED, int i) { return i; }
INLINE int may(const uint8_t *legal, int a) { return !legal || legal[a]; }

static void lay_out_update(const family *f, update *u, arena *from) {
  const network *actor = &u->of->actor, *critic = &u->of->critic;
  const ptrdiff_t rows = u->rows, widest = largest(actor->widest, critic->widest), wide = rows * widest;
  u->x = take(from, rows * critic->inputs), u->own = take(from, rows * actor->inputs);
  u->kept = take(from, rows * critic->keep), u->kept_of_actor = take(from, rows * actor->keep);
  u->back.d = take(from, wide), u->back.next = take(from, wide), u->back.of_f = take(from, wide);
  u->back.packed = take(from, largest(widest, rows) * PANEL);
  u->d_out = take(from, rows * actor->widest);
  u->grads = take(from, largest(actor->rows * actor->size, critic->rows * critic->size));
  f->lay_out(u, from);
}

// Whether there is room for all that a member's update needs.
static int open_update(const update_work *call, int p, update *u) {
  const minibatch *m = call->batch;
  const ptrdiff_t first = (ptrdiff_t)p * m->batch;
  arena from = {0};
  *u = (update){.of = call->of,
                .batch = m,
                .now = call->now,
                .job = call->job,
                .weight = m->weight + first,
                .first = first,
                .p = p,
                .rows = rows_that_count(m->batch, m->weight + first),
                .errors = call->now->errors + first};
  lay_out_update(call->family, u, &from);
  from.base = scratch(from.used), from.used = 0;
  if (!from.base) return 0;
  lay_out_update(call->family, u, &from);
  return 1;
}

// Write the gradient of a loss by all of its passes; `u->loss` becomes the loss.
static void differentiate(update *u, const objective *o, const network *net, float *kept, float *d) {
  pass by;
  way_back back = u->back;
  back.d = d, u->loss = 0.0f;
  clear((learner){net, u->grads}, u->p);
  for (int i = 0, count = o->passes(u); i < count; i++) {
    const int at = o->network_of(u, i);
    const float *x = o->reads(u, i), *values = u->values ? u->values : values_of(net, u->p, at);
    run(net, values, u->p, at, u->rows, x, kept, back.packed, &by);
    o->loss(u, i, &by, d);
    run_back(&by, u->grads + at * copy_size(net), u->rows, 0, back);
  }
}

// Clip, and step where the member is healthy and its loss and gradients are finite.
static void descend(update *u, const learner *of, int count, float lr) {
  float total = u->loss;
  for (int i = 0; i < count; i++)
    for (int r = 0; r < of[i].net->rows; r++)
      total += clipped(spans_of(of[i].net->own, (ptrdiff_t)u->p * of[i].net->rows + r),
                       of[i].grads + r * of[i].net->size, u->of->grad_clip[u->p]);
  u->healthy = u->healthy && fabsf(total) < INFINITY;
  for (int i = 0; u->healthy && i < count; i++) take_step(of[i], u->p, lr, u->of->beta1, u->of->beta2, u->of->eps);
}

static void follow_all(const update *u) {
  const learners *of = u->of;
  const int p = u->p;
  const float when = of->interval ? (float)(fmodf(of->updates[p], of->interval[p]) == 0.0f) : of->tau[p];
  const float share = u->healthy ? when : 0.0f;
  follow(&of->critic_target, &of->critic, p, share);
  if (of->noise.values) follow(&of->noise_target, &of->noise, p, share);
  if (of->actor_target.values) follow(&of->actor_target, &of->actor, p, share);
}

static int update_member(const void *told, int p) {
  const update_work *call = told;
  const family *f = call->family;
  const learners *of = call->of;
  const update_call *now = call->now;
  const int has_actor = of->actor.values != NULL, actor_learns = has_actor && now->actor_learns;
  update u;
  if (!open_update(call, p, &u)) return 1;
  u.healthy = now->healthy[p] && (!has_actor || all_finite(&of->actor, p));
  memset(u.errors, 0, sizeof(float) * (size_t)call->batch->batch);
  f->target(&u);
  differentiate(&u, &f->critic, &of->critic, u.kept, u.back.d);
  if (u.values) f->of_noise(&u);
  now->losses[p] = u.loss;
  descend(&u, (learner[]){{&of->critic, u.grads}, {&of->noise, u.noise_grads}}, u.values ? 2 : 1, of->lr_critic[p]);
  if (actor_learns) {
    differentiate(&u, &f->actor, &of->actor, u.kept_of_actor, u.d_out);
    descend(&u, &(learner){&of->actor, u.grads}, 1, of->lr_actor[p]);
    if (u.healthy && f->after_actor) f->after_actor(&u);
  }
  now->healthy[p] = (uint8_t)u.healthy;
  of->updates[p] += (float)u.healthy;
  if (actor_learns || !has_actor) follow_all(&u);
  return 0;
}
