// What several members compute, member by member: a member's bits depend neither on how many there are nor on how many
// rows a batch has. Every sum has one order that no vector width changes: products are summed one after the other by
// fused multiply-adds, sums over units in sixteen interleaved parts. Nor does a compiler change it: it fuses nothing by
// itself (`-ffp-contract=off`), every fused operation is written as one.

#include "ddpg.c"
#include "environments.c"
#include "explore.c"
#include "ppo_act.c"
#include "ppo_update.c"
#include "replay.c"
#include "rollout.c"
#include "rollouts.c"
#include "sac.c"
#include "statistics.c"
#include "value.c"
#include "ticks.c"  // of all that stands above
#include "episodes.c"

const char *compiled_by(void) {
#if defined(__clang__)
  return __VERSION__;
#else
  return "GCC " __VERSION__;
#endif
}
