"""How far a run is: its ticks, generations and steps."""

from __future__ import annotations

from dataclasses import dataclass

from evopipe.run.spec import Spec


@dataclass
class Clock:
    """Counts a run's ticks. A tick is one step in every environment of the living members; offline it is one chance to
    learn.

    Members that live at the same time have lived equally long: `tick` is theirs, and jumps back when other members take
    turns.
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
        """Environment steps that each living member has taken so far."""
        return self.tick * self.envs

    @property
    def generation_ticks(self) -> int:
        """The number of ticks in the current generation, or in the one that is about to begin."""
        return min(self.each, max(1, self.total - (self.tick - self.here)))

    @property
    def generation_over(self) -> bool:
        return self.here >= self.each or self.tick >= self.total

    @property
    def spent(self) -> int:
        """All environment steps of the population so far, of training and of evaluation."""
        return self.env_steps + self.eval_steps

    def count(self, broken: int = 0, rewarded: bool = True, ticks: int = 1) -> None:
        """Count a tick, or several.

        Args:
            broken: how many of their transitions were broken.
            rewarded: whether one of their rewards may be other than 0.
            ticks: how many.
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
        """Switch to a group of `living` members, each of which has lived `tick` ticks and now lives for `steps`
        environment steps."""
        self.tick, self.here, self.living, self.each = tick, 0, living, -(-steps // self.envs)
