// Running statistics of several members.

#include "statistics.h"

void merge_values(const merge_call *c) {
  for (ptrdiff_t p = 0; p < c->members; p++)
    merge_member(&c->of, p, c->values + p * c->of.columns * c->n, c->given + p * c->n, c->n);
}
