"""Callbacks: the user's functions that are called while a run trains, with values that they can only read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeAlias

from evopipe.core.member import Member
from evopipe.errors import EnvironmentFailed, EvopipeError, UsageError, said
from evopipe.own import foreign
from evopipe.run.run import Champion, Run
from evopipe.schema.callbacks import CallbacksConfig

Callback: TypeAlias = "Callable[[Snapshot], object]"


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment, which a callback receives. Nothing that a callback does with it changes the
    run.

    Attributes:
        generation: the number of generations that have ended.
        step: the steps that each member that trains now has trained for: environment steps, or learning steps of
            language models.
        env_steps, eval_steps: the steps of the whole population so far, of training and of evaluation.
        fitness: the mean undiscounted return of each member that trained in the last generation that has ended, by
            slot (place in the population); −∞ for a member that diverged. It is empty in the first generation.
        elite_score: the score of the elite, the best member of all generations so far; None in the first generation.
        elite_id: the id of this member in the lineage; None in the first generation.
        confirmed: whether the elite's score comes from a second, longer evaluation (`confirm_episodes`).
        folder: the folder of the run's results.
    """

    generation: int
    step: int
    env_steps: int
    eval_steps: int
    fitness: Mapping[int, float]
    elite_score: float | None
    elite_id: int | None
    confirmed: bool
    folder: Path
    _make: Callable[[], Any] = field(repr=False, compare=False)

    @cached_property
    def policy(self) -> Any:
        """The elite as a policy that chooses actions, a `Policy` or a `TeamPolicy`. It is a copy, made when it is first
        asked for.

        Raises:
            UsageError: no generation has ended, or members are language models.
        """
        return self._make()

    @classmethod
    def of(cls, run: Run[Any], folder: Path, policy: Callable[[Member], Any]) -> Self:
        """Return the present state of a run.

        Args:
            run: the run.
            folder: the folder of its results.
            policy: a function that makes a policy from a member.
        """
        clock, champion = run.clock, run.champion
        scored = {each.slot: each.fitness for each in run.lineage[-1].members}

        def make() -> Any:
            if champion is None:
                raise UsageError("policy: no generation has ended yet, so there is no elite")
            return policy(champion.member)

        return cls(
            clock.generation, clock.step, clock.env_steps, clock.eval_steps, MappingProxyType(scored),
            None if champion is None else champion.score, None if champion is None else champion.member.id,
            champion is not None and champion.confirmed, folder, make,
        )  # fmt: skip


class Callbacks:
    """The callbacks of a run, which are imported when this object is made.

    Args:
        config: the block `train.callbacks` of the parameters.
        given: functions that a caller in Python passed, by kind. The kind, such as `on_best`, says when the function is
            called. None stands for no function.
        folder: the folder of the run's results.
        policy: a function that makes a policy from a member.

    Raises:
        ParamsError: a function of `config` does not exist, or cannot be called.
        UsageError: `config` and `given` both have a function of the same kind, or a value in `given` cannot be called.
        EnvironmentFailed: importing a module raised.
    """

    def __init__(
        self, config: CallbacksConfig, given: Mapping[str, Callback | None], folder: Path,
        policy: Callable[[Member], Any],
    ) -> None:  # fmt: skip
        self._folder, self._policy, self._every = folder.absolute(), policy, config.tick_steps
        self._functions: dict[str, tuple[str, Callback]] = config.functions()
        for kind, function in given.items():
            if function is None:
                continue
            if kind in self._functions:
                raise UsageError(f"{kind}: given here and as train.callbacks.{kind}: remove one of the two")
            if not callable(function):
                raise UsageError(f"{kind}: expected a function of one argument, got {type(function).__name__}")
            self._functions[kind] = getattr(function, "__qualname__", type(function).__name__), function

    def after_tick(self, run: Run[Any], before: int) -> None:
        """Call the callback `on_tick` if the last call of `Run.advance` passed a multiple of the setting `tick_steps`.

        The setting counts environment steps of a member. `before` is the number of the run's ticks (training steps)
        before that call.

        Raises:
            EnvironmentFailed: the function raised an exception.
        """
        each, every = run.clock.envs, self._every
        if "on_tick" in self._functions and before * each // every < run.clock.ticks * each // every:
            self._call(run, "on_tick")

    def after_generation(self, run: Run[Any], before: Champion | None) -> None:
        """Call `on_best` if the run has a new best member, and then `on_generation`. `before` is the best member before
        the generation's end.

        Raises:
            EnvironmentFailed: a function raised an exception.
        """
        for kind in ("on_best", "on_generation"):
            if kind in self._functions and (kind == "on_generation" or run.champion is not before):
                self._call(run, kind)

    def _call(self, run: Run[Any], kind: str) -> None:
        name, function = self._functions[kind]
        what, snapshot = f"callback {kind} ({name})", Snapshot.of(run, self._folder, self._policy)
        with foreign(what):
            try:
                function(snapshot)
            except EvopipeError as error:  # of what it called: the run itself has not failed
                raise EnvironmentFailed(f"{what} raised {said(error)}") from error
