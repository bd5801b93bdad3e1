// An environment in C, of evopipe or of a user. A file includes this header, writes the three functions on a struct of
// its own, and names them in an `environment`; a user's file calls that one `the_environment`:
//
//   const environment the_environment = {.state = sizeof(corridor), .observations = 1, .actions = 2, ...};
//
// What is left out is 0. The functions may change the state that they are handed and nothing else: they are called for
// any rows in any order, by several threads at once, and a run resumes from the bytes of the states alone. Python reads
// this header, too: it holds declarations alone.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct {  // a number that `env.kwargs` may set
  const char *name;
  double usual;
} setting;

typedef struct {           // what a reset or a step depends on, beside the state
  int64_t choice;          // the action, counted from 0, where actions are choices
  const float *numbers;    // the action, within its bounds, where it is numbers
  const double *random;    // as many numbers in [0, 1) as the environment asks for, drawn from the episode's seed
  const double *settings;  // by their place in the environment's list
} inputs;

typedef struct {
  const char *name;     // as `env.id` has it; evopipe's own alone
  ptrdiff_t state;      // bytes of a state; zeros before `reset`
  int observations;     // numbers of an observation
  int actions;          // choices, or numbers of an action
  int continuous;       // whether an action is numbers
  const float *low;     // bounds of each number of an action
  const float *high;
  int reset_draws;      // random numbers that a reset takes, MOST_DRAWS at most
  int step_draws;       // and a step
  int max_steps;        // the time limit; 0: none
  double threshold;     // the return at which it counts as solved; 0: none
  const setting *settings;
  int settings_count;
  void (*reset)(void *state, const inputs *in);
  int (*step)(void *state, const inputs *in, double *reward);  // returns whether the episode reached its end
  void (*observe)(const void *state, float *observation);
  // May be left out: puts the numbers that a Gymnasium environment has as `state` or `s` into a state, so that
  // `evopipe env check` can step both from there.
  void (*place)(void *state, const double *numbers, int count);
} environment;
