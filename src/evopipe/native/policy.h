// Proximal policy optimisation of several members, member by member: `algos.ppo`, `algos.ippo` and `algos.mappo` have
// the same in torch, and say what is computed. A step is a row of a rollout, see `memory.rollout`; the agents of a team
// have theirs next to each other, and one agent alone is a team, too.

#pragma once

#include "network.h"
#include "pool.h"
#include "random.h"
#include "team.h"

enum { CHOICES, BITS, NUMBERS };  // kinds of action

enum { ENCODER, ACTOR, CRITIC, NETS };

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

typedef struct {       // what a minibatch of at most so many rows needs
  const float **from;  // its rows in the rollout
  int32_t *who;        // and their agents
  float *x, *y, *keep, *memory, *weight, *advantage, *saved[NETS], *heads[2], *grads[NETS], *column;
  way_back back;
  double *noise;
  ptrdiff_t room;
} workspace;

// Networks of a group, one after the other: the encoder, if there is one, then what is `wanted` of both heads. Actors
// read x, critics y.
static void run_policy(const policy *of, int p, int g, const sequences *s, const int wanted[NETS],
                       const workspace *with, pass *passes) {
  const float *x = with->x, *y = with->y;
  int shared = 0;
  for (int k = 0; k < NETS; k++) {
    const network *net = &of->nets[k];
    if (!net->values || !wanted[k]) continue;
    const int inputs = shared ? shared : net->inputs;
    run_sequences(net, values_of(net, p, g), p, g, s, inputs, k == CRITIC ? y : x, with->saved[k], with->back.packed,
                  &passes[k]);
    if (k == ENCODER) x = y = passes[k].out, shared = passes[k].width;
  }
}

// Go back through a network, whose outputs' gradient is in `d`; returns where that of what it read lies, if `wanted`.
static float *policy_back(pass *of, float *grad, const sequences *s, int wanted, const workspace *with) {
  float *pieces[3] = {with->back.d, with->back.next, with->back.of_f}, *rest[2];
  float *d = run_back(of, grad, s->steps * s->batch, wanted || of->recurrent, with->back);
  if (!of->recurrent) return d;
  for (int i = 0, j = 0; i < 3; i++)
    if (pieces[i] != d) rest[j++ & 1] = pieces[i];
  return backward_gated(of->values, grad, s, of->gates, of->recurrent, d, rest[0], wanted, rest[1], with->back.packed);
}

// --- memory ----------------------------------------------------------------------------------------------------------

static void lay_out_workspace(const policy *of, ptrdiff_t rows, ptrdiff_t batch, int learns, arena *from,
                              workspace *to) {
  ptrdiff_t widest = of->outputs;
  for (int k = 0; k < NETS; k++) widest = largest(widest, of->nets[k].widest);
  to->room = rows * widest;
  to->from = (const float **)take(from, 2 * rows);
  to->who = (int32_t *)take(from, rows);
  to->x = take(from, rows * (of->observations + of->ids));
  to->y = of->joint ? take(from, rows * of->nets[CRITIC].inputs) : to->x;
  to->keep = take(from, rows);
  to->memory = take(from, batch * of->memory);
  for (int k = 0; k < NETS; k++) to->saved[k] = take(from, rows * of->nets[k].keep);
  to->back.packed = take(from, largest(widest, rows) * PANEL);
  to->column = take(from, 6 * (ptrdiff_t)of->outputs * LANES);
  to->noise = (double *)take(from, 2 * LANES * (ptrdiff_t)of->outputs * of->choices);
  if (!learns) return;
  to->weight = take(from, rows), to->advantage = take(from, rows);
  to->back.d = take(from, to->room), to->back.next = take(from, to->room), to->back.of_f = take(from, to->room);
  for (int k = 0; k < 2; k++) to->heads[k] = take(from, to->room);
  for (int k = 0; k < NETS; k++) to->grads[k] = take(from, of->nets[k].size);
}

// Whether there is memory for it.
static int open_workspace(const policy *of, ptrdiff_t rows, ptrdiff_t batch, int learns, workspace *to) {
  arena from = {0};
  lay_out_workspace(of, rows, batch, learns, &from, to);
  from.base = scratch(from.used), from.used = 0;
  if (from.base) lay_out_workspace(of, rows, batch, learns, &from, to);
  return from.base != NULL;
}

static columns columns_of(const policy *of, const workspace *with) {
  const ptrdiff_t each = (ptrdiff_t)of->outputs * LANES;
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
