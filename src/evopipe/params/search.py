"""The block `search` of `params.yaml`: which strategy, its budget, and the strategy's own block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from evopipe import searchers
from evopipe.errors import ParamsError, did_you_mean, suggestion
from evopipe.schema.declare import COMPLETE, Problem, Schema, explain, located

_ELSEWHERE = "tournament"  # its block is `evolution.tournament`


class SearchConfig(Schema):
    """Settings of the search, which decides which members train on, for how long, and which become parents.
    Each strategy's own settings are in a block with the strategy's name."""

    model_config = ConfigDict(extra="allow")

    strategy: str = Field(
        "tournament",
        description="search strategy: `tournament`, in which all members train and parents win tournaments (settings "
        "in `evolution.tournament`); `growth`, `halving`, `mf_pbt`, `pb2`, `pbt`, `random` or `schedule`; or one of "
        "another package (entry points `evopipe.searchers`)",
    )
    budget: int | None = Field(
        None,
        ge=1,
        le=10**13,
        description="environment steps of all members together, in training, evaluation and confirmation, after which "
        "the run ends; null: it ends when every member has trained `train.max_steps`",
    )
    fitness: Literal["evaluation", "training"] = Field(
        "evaluation",
        description="fitness of a member: `evaluation`, its mean return in evaluation episodes; `training`, its mean "
        "return in the training episodes that ended in the generation, which needs no further steps; then only a "
        "member that may be the new best is evaluated",
    )
    proposer: Literal["random", "sobol", "prior", "tpe", "gp"] = Field(
        "prior",
        description="method that draws the hyper-parameters of new trials: `random`; `sobol`, a Sobol sequence; "
        "`prior`, every other trial near the configured values; `tpe` or `gp`, Optuna's samplers, which use the "
        "scores of earlier trials (extra `search`)",
    )
    first: Literal["configured", "drawn"] = Field(
        "configured",
        description="hyper-parameters of the first trial, for strategies that draw values: `configured`, those in the "
        "algorithm's block, moved into their ranges; `drawn`, drawn as for all other trials",
    )

    @classmethod
    def unknown_keys(cls, names: list[str]) -> list[Problem]:
        """Return a (key, sentence) pair for each block in `search` that is not named after a search strategy."""
        known = [name for name in searchers.names() if name != _ELSEWHERE]
        found: list[Problem] = []
        for name in names:
            if name == _ELSEWHERE:
                found.append(((name,), "its block is evolution.tournament: move it there"))
            elif name not in known:
                found.append(((name,), f"unknown key{suggestion(name, [*cls.model_fields, *known])}"))
        return found

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (known := searchers.names()):
            raise ValueError(f"there is no strategy {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
        try:
            if name != _ELSEWHERE:  # whose module nothing here asks for: light commands stay light
                searchers.get(name)
        except ParamsError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return name

    @model_validator(mode="after")
    def _blocks_fit(self, info: ValidationInfo) -> Self:
        extra = self.__pydantic_extra__
        assert extra is not None
        problems: list[Problem] = []
        for name, block in extra.items():
            schema = searchers.get(name).Config
            try:
                extra[name] = block if isinstance(block, schema) else schema.model_validate(block, context=info.context)
            except ValidationError as error:
                problems += [((name, *path), sentence) for path, sentence in explain(error, schema, block)]
        if self.strategy != _ELSEWHERE:
            problems += self._own_problems(info.context == COMPLETE)
        if problems:
            raise located(problems)
        return self

    def _own_problems(self, complete: bool) -> Iterator[Problem]:
        """Say what the chosen strategy misses here."""
        strategy = searchers.get(self.strategy)
        if complete and strategy.Config.model_fields and self.strategy not in (self.__pydantic_extra__ or {}):
            values = ", ".join(
                f"{name}: {json.dumps(value)}" for name, value in strategy.Config().model_dump(mode="json").items()
            )
            yield (self.strategy,), f"missing block: add it, the defaults are {{{values}}}"
        if self.budget is None and strategy.RENEWS:
            never = f"{self.strategy} begins new trials and does not end by itself"
            yield ("budget",), f"{never}: give the environment steps of the population after which it ends"

    def problems(self, train: Any, size: int, tournament: Any) -> Iterator[Problem]:
        """Yield a (key, sentence) pair for each setting of the search that does not fit the rest of the parameters.

        `train` is the block `train`, `size` the number of members, and `tournament` the block `evolution.tournament`.
        """
        if self.budget is not None and self.budget < train.evo_steps:
            least = f"must be at least one slice (train.evo_steps: {train.evo_steps})"
            yield ("budget",), f"{least}, got {self.budget}; raise it, or lower train.evo_steps"
        if self.fitness == "training" and getattr(train, "mode", "offline") == "offline":
            yield ("fitness",), "no episode ends while members learn from a dataset or write text: set it to evaluation"
        if self.fitness == "training" and getattr(train, "curriculum", None) is not None:
            yield (
                ("fitness",),
                "train.curriculum changes what members train in, generation by generation: set it to evaluation",
            )
        if self.fitness == "training" and getattr(getattr(train, "self_play", None), "every", None):
            yield (
                ("fitness",),
                "train.self_play changes whom members train against, generation by generation: set it to evaluation",
            )
        if self.strategy == _ELSEWHERE:
            return
        if (own := getattr(searchers.get(self.strategy), "problems", None)) is not None:
            from evopipe.searchers.contract import About

            about = About(size, train.max_steps, train.evo_steps, budget=self.budget)
            for path, sentence in own(self.config(tournament), about):
                yield (self.strategy, *path), sentence

    def config(self, tournament: Any) -> Any:
        """Return the settings of the chosen strategy.

        `tournament` is the block `evolution.tournament`, which holds the settings of the strategy `tournament`.
        """
        if self.strategy == _ELSEWHERE:
            return tournament
        found = (self.__pydantic_extra__ or {}).get(self.strategy)
        return searchers.get(self.strategy).Config() if found is None else found
