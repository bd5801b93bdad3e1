// What Python uses of the kernels: every struct that it fills, and every function that it calls. C includes this file,
// and `evopipe.native.header` reads it. Pointers are to tensors whose numbers lie together, or NULL where there is no
// such thing; [P, …] is a tensor's shape, P members first.

#include "environment.h"

const char *compiled_by(void);  // name and version of the compiler, for the fingerprint of a result
void share_among(int threads);  // let so many threads share members out from now on, the caller's included

// --- networks --------------------------------------------------------------------------------------------------------

typedef struct {         // one kind of network of every member: of each `rows` rows, with `copies` networks in a row
  const int32_t *plan;   // [P · rows · copies, layers, 10] of dense layers
  const int32_t *gated;  // [P · rows · copies, recurrent, 7] of the LSTM layers before them
  const int32_t *own;    // which numbers of a row are the network's own, see `spans_of`
  float *values;         // [P · rows, size]
  float *mean, *square, *steps;     // Adam's moments, and how many steps a row took [P · rows]
  ptrdiff_t stride, moment_stride;  // floats from one row to the next
  ptrdiff_t size, keep;             // floats of a row; floats that a pass keeps of each row of its input
  int layers, recurrent, rows, copies, inputs, widest;
} network;

typedef struct {  // dense layers alone, for torch's graph
  const int32_t *plan;
  int layers, members, rows, inputs, outputs;
  const float *x;       // [P, rows, inputs]
  const float *values;  // [P, …]
  ptrdiff_t values_stride;
  float *saved;  // [P, …], what the pass keeps
  ptrdiff_t saved_stride;
  float *packed;          // scratch of a product
  float *out;             // [P, rows, outputs]; zeros beyond a member's own units
  float *activity;        // [P, layers, `width`]: each unit's mean size over the rows, if asked for; pads are left
  ptrdiff_t width;
  const float *out_grad;  // [P, rows, outputs], and all that follows: of the way back alone
  float *grads;           // [P, …], added to
  ptrdiff_t grads_stride;
  float *x_grad;   // [P, rows, inputs]
  float *scratch;  // three times `room`, which is rows × the widest layer
  ptrdiff_t room;
} dense_call;
void dense_forward(const dense_call *call);
void dense_backward(const dense_call *call);

// --- steps of an optimiser, where torch has the loss -----------------------------------------------------------------

typedef struct {  // `each` rows a member
  int members, each;
  const int32_t *own;
  float *grads;  // [P · each, …]
  ptrdiff_t stride;
  const float *limit, *losses;  // [P]
  uint8_t *healthy;             // [P]
} clip_call;
void clip(const clip_call *call);

typedef struct {
  int members, each;
  const int32_t *own;
  float *values;  // [P · each, …]
  ptrdiff_t stride;
  const float *grads;
  ptrdiff_t grads_stride;
  float *mean, *square;
  ptrdiff_t moment_stride;
  float *steps;           // [P · each]
  const float *lr;        // [P]
  const uint8_t *active;  // [P]
  double beta1, beta2, eps;
} adam_call;
void adam(const adam_call *call);

typedef struct {
  int members, each;
  const int32_t *own;
  float *target;  // [P · each, …]
  ptrdiff_t target_stride;
  const float *online;
  ptrdiff_t online_stride;
  const float *weight;  // [P]
} polyak_call;
void polyak(const polyak_call *call);

// --- random numbers, see `evopipe.rng` -------------------------------------------------------------------------------

typedef struct {
  int members, times, n;
  const int64_t *keys;  // [P]
  ptrdiff_t salt;
  const int64_t *step;  // [times]
  void *to;             // [P, times, n], double of `uniform`, else float; of `parts` int64 [P]
} draw_call;
void parts(const draw_call *call);  // keys of independent draws
void uniform(const draw_call *call);
void normals(const draw_call *call);
void gumbels(const draw_call *call);
int shuffles(const draw_call *call);  // int64 [P, times, n], how `uniform`'s are ordered; 1: there is no memory for it

typedef struct {
  int members, envs, actions;
  const int64_t *keys;  // [P]
  ptrdiff_t salt;
  const int64_t *step;                 // [1]
  const float *epsilon;                // [P], the chance of any action
  const float *values;                 // [P, E, A], of which the best, or to be clipped
  const uint8_t *legal;                // [P, E, A]
  void *to;                            // [P, E] int64, or [P, E, A] float
} explore_call;
void best_or_random(const explore_call *call);
void clipped_or_random(const explore_call *call);

typedef struct {
  ptrdiff_t n;
  const float *mean, *log_std, *noise;  // [n]; the latter two NULL: of the mean alone
  float *to;                            // [n]
} squash_call;
void squash(const squash_call *call);

typedef struct {
  ptrdiff_t rows;
  const uint8_t *over;         // [R]
  const int64_t *keys, *envs;  // [R]
  int64_t *begun;              // [R], counted on
  ptrdiff_t salt;
  int64_t *found, *seeds;  // [R], of which the first ones are written
} episodes_call;
int next_episodes(const episodes_call *call);  // how many are

// --- replay memory ---------------------------------------------------------------------------------------------------

typedef struct {
  int depth;
  float **levels;         // the rows' own priorities first
  const int64_t *widths;  // of a member's part of each
} tree;

typedef struct {
  const tree *of;
  int members, n;
  const int64_t *slots;  // [P], of `tree_add_up` [n]
  int64_t *index;        // [P, n]
  const double *u;       // [P, n]
  float *chance;         // [P, n]
  double *ends;          // scratch: `places` sums, a power of two not below the highest level's width, and n numbers
  int places;
  const float *errors;  // [P, n]
  float alpha, least, most;
  float *largest;  // [P]
  float *fresh;    // scratch of n floats, rounded up to whole cache lines
} tree_call;
void tree_add_up(const tree_call *call);
void tree_add_up_all(const tree_call *call);
void tree_draw(const tree_call *call);
void tree_update(const tree_call *call);

typedef struct {
  int members, n;
  const int64_t *filled;  // [P]
  const float *chance;    // [P, n]
  float beta;
  const float *weight;  // [P, n]
  float *out;           // [P, n]
} importance_call;
void importances(const importance_call *call);

typedef struct {
  ptrdiff_t memories, n, size, capacity;
  const float *rows;           // [M, n, size]
  const uint8_t *keep;         // [M, n]
  float *to;                   // [M, capacity, size]
  int64_t *position, *filled;  // [M], counted on
  int64_t *places;             // [M · n], where rows came to lie, counted over all memories
} store_call;
int store_rows(const store_call *call);  // how many came to lie

typedef struct {                        // how batches of some members are drawn and taken apart
  const tree *sums;                     // NULL where all rows are equally likely
  const float *rows, *gamma, *counts;   // counts: how much each place of the batch does, [P, n]
  const int64_t *keys, *slots, *first;  // [P]; a member's rows begin at `first`
  int64_t *index;
  float *obs, *next_obs, *reward, *discount, *alive, *learns, *next_alive, *weight,
      *chance;  // learns: of several steps
  void *action;
  uint8_t *next_legal, *legal;
  double *u, *ends;
  ptrdiff_t width, salt;
  int members, n, wide, acts, continuous, steps, each, masks, places;
} sample;

typedef struct {
  const int64_t *step;    // [1]
  const int64_t *filled;  // [P]
  float beta;
} sample_call;
void draw_batch(const sample *how, const sample_call *call);

// --- updates from batches --------------------------------------------------------------------------------------------
// Each returns 1 where there is no memory for it, before anything of that member has changed.

typedef struct {  // what learns, in place; a Q-network alone is a critic
  network actor, actor_target, critic, critic_target;
  network noise, noise_target;                          // learned noise on the critic's weights, and its target's
  float *updates;                                       // [P]
  const float *interval;                                // [P], updates between two hard copies of targets; or NULL
  const float *lr_actor, *lr_critic, *grad_clip, *tau;  // [P]
  double beta1, beta2, eps;
} learners;

typedef struct {                             // `batch` rows a member
  const float *obs, *next_obs;               // [P, B, …], strides below
  const void *action;                        // float, or int64 where discrete
  const float *reward, *discount, *weight;   // [P, B], of a team [P, B, K] but for the weight
  const float *alive, *learns, *next_alive;  // [P, B, K] of a team
  const uint8_t *legal, *next_legal;
  ptrdiff_t obs_member, obs_row, next_member, next_row, action_member, action_row;
  int batch;
} minibatch;

typedef struct {                   // what is new at every update
  const float *noise, *own_noise;  // of the next actions, and of the actor's own
  const int64_t *keys, *step;      // what noise on weights is drawn from, [P] and [1]
  float *losses, *errors;          // [P] and [P, B]
  uint8_t *healthy;                // [P]
  int actor_learns;                // whether it is the actor's turn
} update_call;

typedef struct {  // `algos.dqn`, `algos.cqn` and `algos.rainbow`
  learners of;
  const float *alpha;    // [P]: weight of the conservative term; or NULL
  const float *support;  // [atoms]: returns that they stand for; or NULL
  ptrdiff_t salt;
  int actions, outputs, atoms, twice, huber, dueling, noisy;  // noisy: its first layer
} value_job;
int value_update(const value_job *job, const minibatch *batch, const update_call *now, int members);

typedef struct {  // `algos.ddpg`, `td3`, `td3bc`, `maddpg` and `matd3`
  learners of;
  const int32_t *sees, *does, *group, *seat;                // [K]: how much of a row is an agent's, and its networks
  const float *noise_clip, *temperature, *penalty, *alpha;  // [P]; alpha: TD3+BC's
  int agents, obs, actions, joint, ids, twins, discrete;
} ddpg_job;
int ddpg_update(const ddpg_job *job, const minibatch *batch, const update_call *now, int members);

typedef struct {  // `algos.sac`
  learners of;
  float *log_alpha, *log_alpha_adam;       // [P] and [P, 3]
  const float *lr_alpha, *target_entropy;  // [P]; where `by_legal` a share of the logarithm of how many are legal
  int obs, actions, discrete, by_legal, learns_alpha;
} sac_job;
int sac_update(const sac_job *job, const minibatch *batch, const update_call *now, int members);

// --- ticks of off-policy members -------------------------------------------------------------------------------------
// What a cohort of P members does in a tick. All that the structs point to lies still while the cohort lives.

typedef struct {  // how they choose actions
  network net;    // a Q-network, or an actor
  int how, members, envs, actions;
  float deviation;                  // of noise on a deterministic actor's actions
  const int64_t *keys, *part_keys;  // [P], the latter of another draw
  ptrdiff_t salt;
  const int64_t *from, *to;  // [P], the rows of a member's first environment, where it looks and where it acts
  const uint8_t *healthy;    // [P]
} chooser;

typedef struct {
  const float *obs;      // rows of all environments
  const uint8_t *legal;  // of choices
  void *actions;         // int64, or float of several numbers
  int64_t tick;
  float epsilon;
} choose_call;
int tick_choose(const chooser *how, const choose_call *call);  // 1: there is no memory for it

typedef struct {  // how they learn from a replay memory
  int how, members, numbers;       // numbers: of the noise that a row of the batch takes
  ptrdiff_t period, turn, salt;    // the actor learns at this turn of so many
  const sample *batches;
  const minibatch *batch;
  const void *job;
  const int64_t *keys, *part_keys;  // [P]
  const float *scale;               // [P], of the noise; or NULL
  float *noise, *own_noise;         // [P, B, numbers]
  const int64_t *memory;            // [P], which one a member has
  float *losses, *errors;           // [P] and [P, B]
  uint8_t *healthy;                 // [P]
  const tree_call *priorities;      // of the batches' rows and these errors; or NULL
} lessons;

typedef struct {
  int64_t step, turn;     // of the first update
  int updates;
  float beta;
  const int64_t *filled;  // [M]
} learn_call;
int tick_learn(const lessons *how, const learn_call *call);  // 1: there is no memory for it

typedef struct {
  store_call store;
  const tree_call *priorities;  // or NULL
  ptrdiff_t each, first;        // members of a memory; the first memory's first one
} memory_call;
void tick_remember(const memory_call *call);

// --- proximal policy optimisation ------------------------------------------------------------------------------------

typedef struct {                  // `algos.ppo`, `algos.ippo` and `algos.mappo`
  network nets[3];                // encoder, actor, critic; a copy for every group of agents
  const int32_t *each;            // how many values every choice has
  float *log_std;                 // [P, groups, outputs] of continuous actions
  const int32_t *agent, *starts;  // agents, group by group; where each group begins
  const int32_t *sees, *does;     // [K]: how much of a row is an agent's
  int members, observations, outputs, choices, kind, squash, memory, agents, groups, ids, joint;
} policy;

typedef struct {  // a step of every environment, [P, E · K, …] each
  const float *obs, *memory;
  const float *next_alive;  // where values are those of targets, see `evopipe.types`
  const uint8_t *legal;
  const uint64_t *keys, *when;  // [P] and [1]; without keys actions are the likeliest
  void *actions;                // int64, or float of continuous ones; what follows is left out where it is NULL
  float *log_probs, *values, *remembered;
  ptrdiff_t envs, salt;
} acting;
int ppo_act(const policy *of, const acting *now);

typedef struct {                            // a rollout, and how it is learned from
  const float *rows, *memory;               // [P, T, E · K, row] and [P, T + 1, E · K, memory], see `memory.rollout`
  const int64_t *order;                     // [P, epochs, count]: which stretch and environment
  const int64_t *ticks;                     // [stretches, length]
  const uint8_t *within;                    // [stretches, length]
  const int64_t *batches, *sizes, *epochs;  // [P]
  const float *lr, *clip, *vf_coef, *ent_coef, *grad_clip, *target_kl;  // [P]
  float *log_std_adam, *resting, *updates, *losses;
  uint8_t *healthy;
  ptrdiff_t row, rows_stride, memory_stride, known, count, envs, length, most_epochs;
  int normalise, clip_value, masked;
  double beta1, beta2, eps;
} rollout;
int ppo_update(const policy *of, const rollout *from);

typedef struct {
  ptrdiff_t members, envs, observations, choices, outputs;
  float *rows;  // [P, E · K, row]
  ptrdiff_t stride;
  const float *obs;
  const void *actions;
  ptrdiff_t whole_numbers;
  const float *log_probs, *values;
  const uint8_t *begins, *legal;
} enter_call;
void rollout_enter(const enter_call *call);

typedef struct {
  ptrdiff_t members, envs, observations;
  float *after;  // [P, E · K, …], where a row has what the step gave
  ptrdiff_t stride;
  const float *expected;  // the rows' values, `row` floats apart
  ptrdiff_t expected_stride, row;
  const float *obs, *reward, *next_alive;
  const uint8_t *terminated, *truncated, *broken;
} finish_call;
void rollout_finish(const finish_call *call);

// --- environments in C, see `environment.h` --------------------------------------------------------------------------

const environment *environment_at(int place);  // evopipe's own; NULL behind the last one

typedef struct {  // of R rows, which have their states `stride` bytes apart; n of them are concerned
  const environment *of;
  const double *settings;
  uint8_t *states;          // [R, stride]
  int64_t *length, *seeds;  // [R], steps of the running episodes, and what these are drawn from
  ptrdiff_t stride, salt, max_steps;
  ptrdiff_t rows;         // n
  const int64_t *where;   // [n], which rows; NULL: the first
  const int64_t *begins;  // [n], seeds of a reset
  const uint8_t *only;    // [n], which of them step; NULL: all
  const void *actions;    // [n] int64, or float [n, A] in [-1, 1]; where `own`, within the environment's bounds
  ptrdiff_t own;
  float *obs, *rewards;   // [n, O] and [n]
  uint8_t *terminated, *truncated;
} env_call;
void env_reset(const env_call *call);
void env_step(const env_call *call);
void env_observe(const env_call *call);

// --- running statistics, see `core.normalise` -------------------------------------------------------------------------

typedef struct {                  // of P members
  ptrdiff_t columns;              // N; 0: there are none
  double *count, *mean, *square;  // [P], [P, N], [P, N]
} statistics;

typedef struct {
  statistics of;
  ptrdiff_t members, n;
  const double *values;  // [P, N, n]
  const uint8_t *given;  // [P, n], which of them count
} merge_call;
void merge_values(const merge_call *call);

typedef struct {  // what a member's observations are normalised by
  ptrdiff_t columns;
  const int64_t *which;      // [N], numbers of an observation
  const float *mean, *scale;  // [N]
  float limit;
} column_scales;

typedef struct {  // what members that play see and are paid is normalised by
  statistics seen, paid;   // change with every tick
  const int64_t *which;    // [N of what is seen], numbers of an observation
  const float *limit;      // [P], the largest size of a normalised number
  const uint8_t *healthy;  // [P], whose statistics change
  double *returns;         // [R], discounted, of running episodes
  const float *gamma;      // [P]
} normalise_call;

// --- whole rollouts: members act in environments in C, tick after tick -----------------------------------------------

typedef struct {  // what episodes return; NULL where nobody asks for it
  double *running, *sums, *counts;  // [R], of running ones; [slots], of ended ones
  double *lost;                     // [slots], steps of those that were broken
} returns_call;
void count_return(const returns_call *to, ptrdiff_t row, ptrdiff_t slot, float reward, int64_t length, int over,
                  int broken);

typedef struct {              // some ticks of members that have `envs` rows each, and what a rollout keeps of them
  env_call pool;              // all rows; what is concerned, given and found is not read
  const int64_t *slots;       // [P], a member's rows begin at `slots · envs`
  const uint64_t *keys;       // [P], of what members draw
  const int64_t *row_keys, *row_envs;  // [R], of what seeds of episodes are drawn from
  int64_t *begun;                      // [R], counted on
  ptrdiff_t envs, ticks, first, salt;  // first: the tick that the first one is; salt: of what members draw
  float *steps, *after, *memory;       // [P, …, E, row], [P, …, E, O + 4], [P, …, E, memory] at the first of the ticks
  ptrdiff_t row, steps_stride, after_stride, memory_stride;
  float *remembered;                // [P, E, memory], before the first tick, and then after the last
  returns_call returns;
  int64_t *broken;                  // [P], steps with numbers that are not finite; NULL where there cannot be any
  normalise_call normalise;
} play_call;
int play_ticks(const policy *of, const play_call *call);

typedef struct {  // advantages and targets of a rollout's first ticks, see `ops.value.gae`
  ptrdiff_t members, ticks, envs, observations, known;  // known: numbers of a row before its log-probability
  float *rows;                                          // [P, …, E · K, row]
  const float *after;                                   // [P, …, E · K, `after_row`]
  ptrdiff_t row, rows_stride, after_row, after_stride;
  const float *next_value;   // [P, T, E · K]
  const float *gamma, *lam;  // [P]
} estimate_call;
void estimate_advantages(const estimate_call *call);

// --- evaluation: members play episodes greedily in environments in C --------------------------------------------------

typedef struct {              // P members play n episodes each, in W rows each; what is kept is theirs by their place
  env_call pool;              // all rows; what is concerned, given and found is not read
  const int64_t *places;      // of a cohort's members: their rows begin at `place · W`
  const int64_t *seeds;       // [n]
  ptrdiff_t width, episodes;  // W and n
  ptrdiff_t ticks, cap, sound;  // ticks of this call at most; steps of an episode at most; nothing can break
  int64_t *playing, *waiting;   // [P, W], each row's episode, n and above: none; [P], the next one
  double *total, *returns;      // [P, W] of running episodes, [P, n + 1] of ended ones
  int64_t *lengths, *steps;     // [P, n + 1]; [P], counted on
  float *memory;                // [members, W, M] of the cohort, recurrent, counted on
  int columns;                  // N numbers of an observation are normalised, see `core.normalise`
  const int64_t *which;         // [N]
  const float *mean, *scale, *limit;  // [members, N] of the cohort, and [members]
} evaluation_call;
int play_episodes(const policy *by, const chooser *or_by, const evaluation_call *call);  // by one of both

// --- whole ticks of off-policy members in environments in C ----------------------------------------------------------

typedef struct {  // n of R rows step, those of members who live
  int cohorts, alone;       // alone: each has a memory of its own, and nothing can break
  const chooser *choosers;  // [cohorts]
  const lessons *lessons;
  const int64_t *every;  // [cohorts], steps of a member from one update to the next
  env_call env;          // of the rows that step; its `obs` are those that follow
  memory_call memory;
  episodes_call episodes;  // of all rows
  float *obs;              // [n, O], what members act on
  const uint8_t *legal;    // [n, A]
  float *rows;             // [R, size], what is remembered
  uint8_t *keep, *over;    // [R]
  returns_call returns;
  ptrdiff_t envs, delay, at_once, apart;  // apart: so many draws each tick has for itself
} world_call;

typedef struct {
  int64_t tick, here;           // of the first one, of those who live and of their generation
  ptrdiff_t ticks;
  const float *epsilon, *beta;  // [ticks]
  int64_t *told;                // [2]: ticks taken, and broken transitions in the last of them
} ticks_call;
int tick_many(const world_call *world, const ticks_call *call);  // 1: there is no memory for it
