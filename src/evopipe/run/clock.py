"""The counters that say how far a run is: ticks, generations and environment steps."""

from __future__ import annotations

from dataclasses import dataclass

from evopipe.run.spec import Spec


@dataclass
class Clock:
    """The counters of a run: ticks, generations, environment steps.

    A tick is one step in every environment of the living members, which are the members that train now. In offline
    training a tick is one step of learning from the dataset. Members that have trained equally long form a group, and
    the groups live one after another. `tick` and `here` count for the group that lives now, so they jump when the next
    group takes its turn.

    Attributes:
        members: the number of members.
        envs: the number of environments of each member.
        each: the number of ticks in a generation.
        total: the number of ticks in a member's whole training.
        tick: the number of ticks for which each living member has trained, in all generations.
        here: the number of ticks for which each living member has trained, in this generation.
        generation: the number of generations that are over.
        env_steps: environment steps of the population's training.
        eval_steps: environment steps of evaluations.
        broken: the number of broken transitions, in which an environment returned a number that is not finite, or no
            legal action.
        broken_here: the number of broken transitions in this generation.
        rewarded: whether any reward so far was other than 0.
        living: the number of living members.
        ticks: the number of ticks so far of all groups together.
    """

    members: int
    envs: int
    each: int
    total: int
    tick: int = 0
    here: int = 0
    generation: int = 0
    env_steps: int = 0
    eval_steps: int = 0
    broken: int = 0
    broken_here: int = 0
    rewarded: bool = False
    living: int = 0
    ticks: int = 0

    @classmethod
    def of(cls, spec: Spec, members: int) -> Clock:
        envs, train = spec.each, spec.train
        each, total = -(-train.evo_steps // envs), -(-train.max_steps // envs)
        return cls(members, envs, each, total, living=members)

    @property
    def step(self) -> int:
        """The environment steps that each living member (one that trains now) has taken so far."""
        return self.tick * self.envs

    @property
    def generation_ticks(self) -> int:
        """The number of ticks in the current generation; between two generations, the number in the next one."""
        return min(self.each, max(1, self.total - (self.tick - self.here)))

    @property
    def generation_over(self) -> bool:
        return self.here >= self.each or self.tick >= self.total

    @property
    def spent(self) -> int:
        """All environment steps of the population so far, for training and for evaluation."""
        return self.env_steps + self.eval_steps

    def count(self, broken: int = 0, rewarded: bool = True, ticks: int = 1) -> None:
        """Add one or more ticks to the counters.

        Args:
            broken: the number of broken transitions (see the class) in these ticks.
            rewarded: whether a reward in these ticks may be other than 0.
            ticks: the number of ticks.
        """
        self.tick += ticks
        self.here += ticks
        self.ticks += ticks
        self.env_steps += ticks * self.living * self.envs
        self.broken += broken
        self.broken_here += broken
        self.rewarded |= rewarded

    def begin_generation(self) -> None:
        self.generation += 1
        self.here = self.broken_here = 0

    def turn(self, tick: int, living: int, steps: int) -> None:
        """Let another group of members train in this generation (see the class).

        The group has `living` members. Each of them has trained for `tick` ticks before, and now trains for `steps`
        environment steps.
        """
        self.tick, self.here, self.living, self.each = tick, 0, living, -(-steps // self.envs)
