"""What a run of language models is about: configuration and the base; no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from evopipe import rng
from evopipe.algos import Algorithm
from evopipe.core.cohort import Cohort, Pace, form
from evopipe.core.graphs import Paths
from evopipe.core.member import Member, tensor_kinds
from evopipe.core.structure import Architecture, Widths
from evopipe.evolve.mutate import Traits
from evopipe.language.adapters import Adapted, Full, LoRA
from evopipe.language.base import Base
from evopipe.language.gpt import GPT
from evopipe.rng import Purpose
from evopipe.schema.blocks import MutationConfig, TournamentConfig
from evopipe.schema.declare import evolvable
from evopipe.schema.language import LanguageConfig, TextTrain
from evopipe.schema.stored import in_a_sentence

LESS = "runtime.rows_at_once, population.size or language.max_completion"  # of what memory is taken by
_WHOLE = ("rows", "group_size", "batch_size", "epochs")  # what members of a cohort have in common


@dataclass(frozen=True)
class LanguageSpec:
    """Base, task, algorithm and evolution of a run: to a `Run` what `run.spec.Spec` is."""

    seed: int
    language: LanguageConfig
    train: TextTrain
    tournament: TournamentConfig
    mutation: MutationConfig
    algo: Algorithm
    algo_config: Any
    base: Base
    device: torch.device
    cohorts: Literal["merged", "exact"] = "merged"
    begun: GPT | None = (
        None  # what members start with, where they go on from another run's; else as `language.gpt` says
    )
    paths: Paths = field(default_factory=Paths, repr=False, compare=False)  # no fast ones, see `run.spec.Spec`

    @property
    def name(self) -> str:
        """What it is called where runs are listed."""
        return f"{self.language.task} ({self.language.model})"

    @property
    def made_for(self) -> Mapping[str, Any]:
        """What its members depend on, as JSON data."""
        return {"base": self.base.digest}

    @property
    def broken(self) -> str:
        """What to say where no evaluation gave a score."""
        return f"no completion of {self.name} has a score: try language.reward, or the task's score, by itself"

    @property
    def racing(self) -> bool:
        """Not: completions of all rows are written at once."""
        return False

    @property
    def unrewarded(self) -> str:
        """What to do where no member has seen a reward."""
        return (
            "begin from a base that is right now and then (sft on examples gives one), draw more completions of a "
            "prompt (group_size, temperature), or let partly right ones earn their share"
        )

    @property
    def each(self) -> int:
        """Steps that a tick counts as."""
        return 1

    @property
    def widths(self) -> dict[str, Widths]:
        """Of every network; the policy's know the base."""
        networks: Any = self.algo.networks  # of words, where others have spaces
        found = dict(networks(self.algo_config, self.base.words))
        return found if self.base.length else {**found, self.algo.POLICY: Adapted.of(self.base)}

    @property
    def rates(self) -> list[str]:
        return [name for name in evolvable(self.algo.Config) if name.startswith("lr")]

    @property
    def traits(self) -> Traits:
        """What mutation must know of the algorithm."""
        fields = self.algo.Config.model_fields
        return Traits(
            widths=self.widths,
            acting=[self.algo.POLICY],
            kinds=tensor_kinds(self.algo.State, self.widths),
            evolve=self.algo_config.evolve,
            whole=frozenset(name for name, field in fields.items() if field.annotation is int),
        )

    def architecture(self) -> Architecture:
        """Return what members start with."""
        if self.base.length:
            return self.begun or GPT.start(self.language.gpt, self.base.length)
        return Full() if self.language.full else LoRA(self.language.rank, self.language.scale)

    def whole(self, member: Member, name: str) -> int:
        """Return a whole number that all members of a cohort share, such as `group_size`."""
        return int(member.hyper.get(name, getattr(self.algo_config, name, 1)))

    def pace(self, member: Member) -> Pace:
        games = self.whole(member, "batch_size") if self.base.length else 1
        return Pace(games, tuple(self.whole(member, name) for name in _WHOLE))

    def form(self, members: Sequence[Member]) -> list[Cohort]:
        return form(members, self.algo.State, self.widths, self.device, self.pace, self.cohorts)

    def form_alone(self, member: Member) -> list[Cohort]:
        return form([member], self.algo.State, self.widths, self.device, self.pace, "exact")

    def check(self, members: Sequence[Member]) -> str | None:
        """Say what of members that were read somewhere is not as this configuration has it; None where all is."""
        able, widths, kinds = set(evolvable(self.algo.Config)), self.widths, self.traits.kinds
        for i, member in enumerate(members):
            whole = {**dict(self.algo_config), **member.hyper}
            try:
                with in_a_sentence(self.algo.Config, whole):
                    self.algo.Config.model_validate(whole)
            except ValueError as error:
                return f"member {i}: hyper.{error}"
            if member.hyper.keys() != able:
                return f"member {i} has the hyper-parameters {', '.join(member.hyper)}, expected {', '.join(able)}"
            wanted_arch = self.architecture()
            if type(member.arch) is not type(wanted_arch):
                return f"member {i} holds {member.arch.describe()}, language.full is {self.language.full}"
            if self.base.length and member.arch.family != wanted_arch.family:
                asked = f"language.gpt and the task ask for {wanted_arch.describe()} of {self.base.length} tokens"
                return f"member {i} holds {member.arch.describe()}, {asked}: width and heads' width must agree"
            if member.tensors.keys() != kinds.keys():
                return f"member {i} holds {', '.join(member.tensors)}, expected {', '.join(kinds)}"
            for name, (kind, network) in kinds.items():
                tensor = member.tensors[name]
                wanted = (member.arch.size(widths[network]),) if kind != "row" else ()
                if tuple(tensor.shape) != wanted or tensor.dtype != torch.float32:
                    found = f"{tensor.dtype} of the shape {list(tensor.shape)}"
                    return f"member {i}: the tensor {name!r} is {found}, expected float32 of the shape {list(wanted)}"
        return None

    def seeds(self, purpose: Purpose, n: int) -> np.ndarray:
        """Return `[n]` numbers that stand for a selection of held-out rows, the same for all members."""
        seeds: np.ndarray = rng.seeds(np.full(n, rng.run_key(self.seed)), purpose, np.arange(n))
        return seeds
