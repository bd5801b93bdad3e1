"""Search strategies of other packages: their errors and answers are checked, and messages name the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evopipe.errors import EvopipeError, ParamsError, said
from evopipe.plugins import Plugin
from evopipe.searchers.contract import Child, Draw, Fate, History, Keep, Plan, Searcher, Trial

T = TypeVar("T")


@dataclass(frozen=True)
class PluginSearch:
    """A search strategy of another package with its answers checked; it has the methods of `Searcher`.

    Every method raises a `ParamsError` that names the package, if the strategy raises an exception or gives an answer
    that does not fit the run.

    Attributes:
        search: the strategy.
        plugin: the entry point that it came from.
        size: the number of slots (places in the population).
    """

    search: Searcher
    plugin: Plugin
    size: int

    @classmethod
    def of(cls, make: Callable[[], Searcher], plugin: Plugin, size: int) -> PluginSearch:
        """Make a strategy with its package's `Search`, and return it checked."""
        return cls(_asked(plugin, "Search", make), plugin, size)

    def plan(self, history: History, draw: Draw) -> Plan | None:
        """Return the strategy's plan of the next generation; None if it ends the run."""
        plan = self._ask("plan", lambda: self.search.plan(history, draw))
        if plan is None:
            return None
        if not isinstance(plan, Plan):
            raise self._refused("plan", f"returned {type(plan).__name__}, not a Plan or None")
        active = [*plan.active]
        if not active or len({*active}) < len(active) or not {*active} <= {*range(self.size)}:
            raise self._refused("plan", f"lets the slots {active} train, not different ones of 0 to {self.size - 1}")
        if plan.steps < 1:
            raise self._refused("plan", f"lets members train {plan.steps} steps, not at least 1")
        return plan

    def step(self, history: History, draw: Draw) -> Sequence[Fate] | None:
        """Return the strategy's decision for each slot; None if no member can continue."""
        fates = self._ask("step", lambda: self.search.step(history, draw))
        if fates is None:
            return None
        if len(fates) != self.size:
            raise self._refused("step", f"decided for {len(fates)} slots, not for each of {self.size}")
        for slot, fate in enumerate(fates):
            if not isinstance(fate, Keep | Child | Trial):
                raise self._refused("step", f"gave slot {slot} {type(fate).__name__}, not a Keep, Child or Trial")
            if isinstance(fate, Child) and fate.of not in range(self.size):
                raise self._refused("step", f"gave slot {slot} a child of slot {fate.of}, not of 0 to {self.size - 1}")
        return fates

    def state(self) -> dict[str, Any]:
        """Return the strategy's state as JSON data."""
        return self._ask("state", self.search.state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that the method `state` returned."""
        self._ask("restore", lambda: self.search.restore(state))

    def _ask(self, method: str, call: Callable[[], T]) -> T:
        return _asked(self.plugin, method, call)

    def _refused(self, method: str, what: str) -> ParamsError:
        return _refused(self.plugin, method, what)


def _asked(plugin: Plugin, method: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except EvopipeError:
        raise
    except Exception as error:
        raise _refused(plugin, method, f"raised {said(error)}") from error


def _refused(plugin: Plugin, method: str, what: str) -> ParamsError:
    return ParamsError(f"search.strategy: {plugin}: {method}() {what}; mend or uninstall it")
