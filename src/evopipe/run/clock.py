"""How far a run is: its ticks, generations and steps."""

from __future__ import annotations

from dataclasses import dataclass

from evopipe.run.spec import Spec


@dataclass
class Clock:
    """The counters of a run: ticks, generations, environment steps.

    A tick is one step in every environment of the living members (those that train now); offline, a tick is one step of
    learning from the dataset. Living members have all trained equally long: `tick` counts their ticks, and jumps when
    other members take their turn.
    """

    members: int  # P
    envs: int  # E
    each: int  # ticks of a generation
    total: int  # ticks of a member's life
    tick: int = 0  # ticks of those who live now, so far
    here: int = 0  # their ticks of this generation
    generation: int = 0  # generations that are over
    env_steps: int = 0  # environment steps of the population
    eval_steps: int = 0  # those of evaluations
    broken: int = 0  # transitions that the environment broke
    broken_here: int = 0  # those of this generation
    rewarded: bool = False  # whether any reward so far, of the dataset or of a step, was another than 0
    living: int = 0  # members that live now
    ticks: int = 0  # ticks so far, whoever lived

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
            broken: the number of broken transitions in these ticks.
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
        """Switch to another group of members, and begin its part of the generation.

        The group has `living` members. Each has trained for `tick` ticks before, and now trains for `steps` environment
        steps.
        """
        self.tick, self.here, self.living, self.each = tick, 0, living, -(-steps // self.envs)
