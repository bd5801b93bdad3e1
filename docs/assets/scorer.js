// How results of the search are ranked. Pages that answer a word stand before those that only have it somewhere.
const FIRST = [[/^settings\/(?!index)/, 12], [/^(add|tutorials)\//, 4], [/^decisions\//, -4], [/^(benchmarks|examples|diagnosis)$/, -4],
  [/^coming-from-/, -3]];

var Scorer = {
  score: ([docname, , , , score]) => score + (FIRST.find(([pages]) => pages.test(docname)) ?? [0, 0])[1],
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
