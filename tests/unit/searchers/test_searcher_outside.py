"""A search strategy of another package: what it raises, and what it answers amiss, is told with the package's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from evopipe.errors import DataError, ParamsError
from evopipe.plugins import SEARCHERS, Plugin
from evopipe.searchers.contract import Child, Keep, Plan, Stateless, Trial
from evopipe.searchers.outside import PluginSearch
from searches import generator, history

PLUGIN = Plugin(SEARCHERS, "mine", "mypkg.mine", "mypkg", "1.0")
WHO = "search.strategy: the package 'mypkg' (entry point 'mine' of 'evopipe.searchers', mypkg.mine): "
PAST = history([1.0, 2.0])


@dataclass
class Says(Stateless):
    """It answers what it was made with, or raises it."""

    planned: Any = None
    decided: Any = None

    def plan(self, *_: Any) -> Any:
        return self._say(self.planned)

    def step(self, *_: Any) -> Any:
        return self._say(self.decided)

    def _say(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


def outside(**answers: Any) -> PluginSearch:
    return PluginSearch.of(lambda: Says(**answers), PLUGIN, 2)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (ZeroDivisionError("by zero"), "raised ZeroDivisionError: by zero"),
        ([0, 1], "returned list, not a Plan or None"),
        (Plan((), 100), "lets the slots [] train, not different ones of 0 to 1"),
        (Plan((0, 0), 100), "lets the slots [0, 0] train, not different ones of 0 to 1"),
        (Plan((1, 2), 100), "lets the slots [1, 2] train, not different ones of 0 to 1"),
        (Plan((0,), 0), "lets members train 0 steps, not at least 1"),
    ],
)
def test_a_plan_that_fits_no_run_is_refused(plan: Any, said: str) -> None:
    with pytest.raises(ParamsError) as refused:
        outside(planned=plan).plan(PAST, generator)
    assert str(refused.value) == f"{WHO}plan() {said}; mend or uninstall it"


@pytest.mark.parametrize(
    ("fates", "said"),
    [
        (KeyError("lr"), "raised KeyError: 'lr'"),
        ([Keep()], "decided for 1 slots, not for each of 2"),
        ([Keep(), None], "gave slot 1 NoneType, not a Keep, Child or Trial"),
        ([Child(2), Keep()], "gave slot 0 a child of slot 2, not of 0 to 1"),
    ],
)
def test_decisions_that_fit_no_population_are_refused(fates: Any, said: str) -> None:
    with pytest.raises(ParamsError) as refused:
        outside(decided=fates).step(PAST, generator)
    assert str(refused.value) == f"{WHO}step() {said}; mend or uninstall it"


def test_answers_that_fit_are_passed_on() -> None:
    plan, fates = Plan((1,), 100), [Child(0), Trial()]
    search = outside(planned=plan, decided=fates)
    assert (search.plan(PAST, generator), search.step(PAST, generator), search.state()) == (plan, fates, {})
    assert (outside().plan(PAST, generator), outside().step(PAST, generator)) == (None, None)


def test_one_that_cannot_be_made_is_named_and_a_sentence_of_evopipes_stays() -> None:
    def made() -> Says:
        raise TypeError("no config")

    with pytest.raises(ParamsError, match=r"Search\(\) raised TypeError: no config; mend or uninstall it"):
        PluginSearch.of(made, PLUGIN, 2)
    with pytest.raises(DataError, match=r"^its own$"):
        outside(planned=DataError("its own")).plan(PAST, generator)
