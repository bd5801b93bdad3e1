"""The interface of search strategies: what a run asks a strategy, and what the strategy answers.

A run asks its searcher who lives next (`plan`), lets these members live, scores them, and asks what becomes of every
slot (`step`). A searcher reads the history of the run and nothing else: it sees no tensor and no
environment. Its draws are functions of the run's seed and the generation, so a run that was killed goes on to the same
bits.

A searcher is one file of this folder, found by its name (`search.strategy`). Its docstring links its paper. It defines

- `Config`: its block in `params.yaml`, `search.<name>`;
- `Search(config, about)`: an object with the methods of `Searcher`;
- `RENEWS`: whether it begins new trials, so that the run ends by `search.budget`;
- `PAUSES`: whether members may wait while others live;
- `DRAWS`: whether the first members' values are drawn from the space of the search;
- `PACKAGES`, if it computes with any: their names, for the fingerprint of a result;
- `problems(config, about)`, if it has one: what of its block does not fit the run, as keys and a sentence each.

Another package may bring one by an entry point of the group `evopipe.searchers`, the name of such a module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from evopipe.searchers.history import Record

Draw: TypeAlias = "Callable[[], np.random.Generator]"
"""Returns the generator of this decision, anew at each call."""


@dataclass(frozen=True)
class Bound:
    """The range of a searched hyper-parameter, from `low` to `high`.

    If `log` is True, draws are uniform in the value's logarithm. If `whole` is True, values are whole numbers.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False


@dataclass(frozen=True)
class About:
    """The facts about a run that a search strategy has from the start.

    Attributes:
        size: `P`, the number of slots (places in the population), each of which holds one member.
        life: environment steps of one member's full training, `train.max_steps`.
        generation: environment steps that a member trains in one generation, `train.evo_steps`.
        space: the bound of each searched hyper-parameter, by its name.
        seed: the run's seed.
        budget: the run ends after so many environment steps of all members, in training and evaluation together; None
            if there is no limit.
        target: the score that ends the run; None if there is none.
        proposer: the method that chooses the hyper-parameters of a new trial (a member with initial weights),
            `search.proposer`.
        mutate_elite: whether the copy of the fittest member, which elitism puts into slot 0, is mutated too.
        configured: the value that the algorithm's own block gives each searched hyper-parameter, by its name.
    """

    size: int
    life: int
    generation: int
    space: Mapping[str, Bound] = field(default_factory=dict)
    seed: int = 0
    budget: int | None = None
    target: float | None = None
    proposer: str = "random"
    mutate_elite: bool = False
    configured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Living:
    """The member of a slot, as a search strategy sees it, without tensors.

    Attributes:
        slot: the slot, a place in the population.
        id: the member's id.
        parent: the id of the member that it was copied from; None for initial weights.
        hyper: the hyper-parameters by name.
        steps: environment steps that the member has trained for, including its ancestors' steps.
        fitness: the results of evaluations, first those of the ancestors, then the member's own.
        healthy: False if the member diverged.
    """

    slot: int
    id: int
    parent: int | None
    hyper: Mapping[str, Any]
    steps: int
    fitness: Sequence[float]
    healthy: bool

    @property
    def score(self) -> float:
        """The member's last fitness; −∞ if it has none or diverged."""
        last = self.fitness[-1] if self.fitness and self.healthy else -float("inf")
        return last if abs(last) != float("inf") and last == last else -float("inf")


@dataclass(frozen=True)
class History:
    """The history of a run so far, from which a search strategy makes its decisions.

    Attributes:
        members: the member of every slot (place in the population), in the order of slots.
        records: one record for each generation: who was scored, and who descends from whom. The first record is that
            of the initial members.
        generation: the number of generations that are over.
        spent: environment steps so far, of training, evaluation and confirmation.
        trials: the number that the next new trial gets. Initial members and earlier trials have lower numbers.
    """

    members: Sequence[Living]
    records: Sequence[Record]
    generation: int
    spent: int
    trials: int

    def scores(self) -> list[float]:
        """Return the last fitness of every slot's member; −∞ for a member without a fitness."""
        return [member.score for member in self.members]

    def curves(self) -> dict[int, list[tuple[int, float]]]:
        """Return the learning curve of every member that has trained, by the member's id.

        A curve has a pair (environment steps trained so far, fitness) for each generation in which the member trained.
        """
        found: dict[int, list[tuple[int, float]]] = {}
        for record in self.records:
            for scored in record.members:
                steps = record.step if scored.steps is None else scored.steps
                found.setdefault(scored.id, []).append((steps, scored.fitness))
        return found

    def waiting(self) -> list[Fate]:
        """Return a list of decisions by which every member waits: a `Keep` for each slot (place in the population).

        The caller then replaces the entries of the slots that train next. The reason of a `Keep` is `waits`, or `has
        not begun` if the member has never trained.
        """
        lived = self.curves()
        return [Keep("waits" if member.id in lived else "has not begun") for member in self.members]


@dataclass(frozen=True)
class Plan:
    """The plan of the next generation: which members train, and for how long.

    Attributes:
        active: the slots whose members train; all other members wait.
        steps: environment steps that each active member trains.
        met: groups of slots. The search strategy will compare the scores of a group only with each other. With
            `train.evaluation: race`, an evaluation stops once the order within every group is clear. Empty if all
            active members are compared with each other.
    """

    active: Sequence[int]
    steps: int
    met: Sequence[Sequence[int]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data, from which `Plan(**data)` makes an equal plan."""
        return {"active": list(self.active), "steps": self.steps, "met": [list(group) for group in self.met]}


DRAWN: Literal["drawn"] = "drawn"
"""The change of a child that `evolution.mutation` draws."""


@dataclass(frozen=True)
class Keep:
    """The decision that a slot (place in the population) keeps its member. `why` is the reason, which may be empty."""

    why: str = ""


@dataclass(frozen=True)
class Child:
    """The decision that a slot (place in the population) gets a copy of a member, with or without a change.

    Attributes:
        of: the slot of the member to be copied.
        change: `drawn` for a random mutation by the settings `evolution.mutation`; a dict for new values of
            hyper-parameters, by name; None for no change.
        why: the reason, as text.
        survives: whether a copy without a change counts as the copied member itself, and keeps its id; other copies get
            a new id.
    """

    of: int
    change: Literal["drawn"] | Mapping[str, float] | None = DRAWN
    why: str = ""
    survives: bool = False


@dataclass(frozen=True)
class Trial:
    """The decision that a slot (place in the population) gets a new trial: a member with initial weights, whose
    training begins at step 0.

    `values` are its hyper-parameters that differ from the configured ones; `why` is the reason.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


Fate: TypeAlias = "Keep | Child | Trial"


class Searcher(Protocol):
    """The protocol of a search strategy, which decides which members train next, and what happens to every slot."""

    def plan(self, history: History, draw: Draw) -> Plan | None:
        """Return the plan of the next generation; None to end the run.

        Args:
            history: the run so far.
            draw: a function without arguments. Each call returns a new random generator with the same initial state.
                The method `step` gets generators with this state, too, at the end of the planned generation.
        """

    def step(self, history: History, draw: Draw) -> Sequence[Fate] | None:
        """Return the decision for each slot (`Keep`, `Child` or `Trial`), after a generation was evaluated.

        The result is None if no member can continue; the run then returns to the last generation with a healthy member.

        Args:
            history: the run so far, including that generation.
            draw: a function without arguments. Each call returns a new random generator with the same initial state.
                Each generation has another initial state.
        """

    def state(self) -> dict[str, Any]:
        """Return the part of the strategy's state that does not follow from the history, as JSON data."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that the method `state` returned."""


class Stateless:
    """A base class of search strategies that decide by the history alone. The state of such a strategy is empty."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing, because the state is empty."""
