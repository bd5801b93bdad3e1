// Running statistics of several members.

#include "statistics.h"

void merge_values(const merge_call *c) {
  const statistics *s = &c->of;
  for (ptrdiff_t p = 0; p < c->members; p++) {
    const uint8_t *given = c->given + p * c->n;
    const double many = given_of(given, c->n);
    for (ptrdiff_t j = p * s->columns; many > 0.0 && j < (p + 1) * s->columns; j++)
      merge_column(c->values + j * c->n, given, c->n, s->count[p], many, s->mean + j, s->square + j);
    s->count[p] += many;
  }
}
