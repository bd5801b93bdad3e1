"""The configuration of a run of language models, and its base model. It holds no state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from evopipe.core.cohort import Pace
from evopipe.core.member import Member
from evopipe.core.structure import Architecture, Widths
from evopipe.language.adapters import Adapted, Full, LoRA
from evopipe.language.base import Base
from evopipe.language.gpt import GPT
from evopipe.run.spec import Spec
from evopipe.schema.language import LanguageConfig, TextTrain

LESS = "runtime.rows_at_once, population.size or language.max_completion"  # of what memory is taken by
_WHOLE = ("rows", "group_size", "batch_size", "epochs")  # what members of a cohort have in common


@dataclass(frozen=True, kw_only=True)
class TextSpec(Spec):
    """The configuration of a run of language models: base model, task, algorithm, search, selection and mutation.

    Attributes:
        language: the block `language` of the parameters.
        train: the block `train` of the parameters.
        base: the base model with its tokenizer.
        begun: the architecture of the initial members, if these are small GPTs that an earlier run trained. If None,
            small GPTs get the architecture that `language.gpt` describes.
    """

    language: LanguageConfig
    train: TextTrain
    base: Base
    begun: GPT | None = None

    @property
    def name(self) -> str:
        """The name of the task and, in brackets, that of the base model, as lists of runs show them."""
        return f"{self.language.task} ({self.language.model})"

    @property
    def made_for(self) -> Mapping[str, Any]:
        """The digest (hash) of the base model as JSON data.

        The data is stored with members. A run can read stored members only if their data equals the run's data.
        """
        return {"base": self.base.digest}

    @property
    def broken(self) -> str:
        """The message of the error that ends a run if no member got a score in an evaluation."""
        return f"no completion of {self.name} has a score: try language.reward, or the task's score, by itself"

    @property
    def unrewarded(self) -> str:
        """Advice for users on what to change if no member has received a reward. It is a part of a sentence."""
        return (
            "begin from a base that is right now and then (sft on examples gives one), draw more completions of a "
            "prompt (group_size, temperature), or let partly right ones earn their share"
        )

    @property
    def widths(self) -> dict[str, Widths]:
        """The input and output width of every network, by the network's name.

        If members adapt a base model, the policy's entry also holds that model, see `Adapted`.
        """
        networks: Any = self.algo.networks  # of words, where others have spaces
        found = dict(networks(self.algo_config, self.base.words))
        return found if self.base.length else {**found, self.algo.POLICY: Adapted.of(self.base)}

    def architecture(self) -> Architecture:
        """Return the architecture that initial members have: a small GPT, an adapter of low rank, or all of the base
        model's weights."""
        if self.base.length:
            return self.begun or GPT.start(self.language.gpt, self.base.length)
        return Full() if self.language.full else LoRA(self.language.rank, self.language.scale)

    def integer(self, member: Member, name: str) -> int:
        """Return the value of the integer hyper-parameter `name`, such as `group_size`: the member's own value, else
        the configured value, else 1."""
        return int(member.hyper.get(name, getattr(self.algo_config, name, 1)))

    def pace(self, member: Member) -> Pace:
        games = self.integer(member, "batch_size") if self.base.length else 1
        return Pace(games, tuple(self.integer(member, name) for name in _WHOLE))

    def misfit(self, member: Member, first: Member) -> str | None:
        widths, kinds, wanted = self.widths, self.kinds, self.architecture()
        if type(member.arch) is not type(wanted):
            return f" holds {member.arch.describe()}, language.full is {self.language.full}"
        if self.base.length and member.arch.family != wanted.family:
            asked = f"language.gpt and the task ask for {wanted.describe()} of {self.base.length} tokens"
            return f" holds {member.arch.describe()}, {asked}: width and heads' width must agree"
        if member.tensors.keys() != kinds.keys():
            return f" holds {', '.join(member.tensors)}, expected {', '.join(kinds)}"
        for name, (kind, network) in kinds.items():
            tensor = member.tensors[name]
            shape = (member.arch.size(widths[network]),) if kind != "row" else ()
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                found = f"{tensor.dtype} of the shape {list(tensor.shape)}"
                return f": the tensor {name!r} is {found}, expected float32 of the shape {list(shape)}"
        return None
