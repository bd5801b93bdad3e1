"""The block `train` of `params.yaml`, for runs in environments."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from evopipe.schema.callbacks import CallbacksConfig, FunctionName
from evopipe.schema.declare import Schema, left_out, located


class NormaliseConfig(Schema):
    """Settings of running normalisation, by the statistics of the observations and rewards that each member has
    received."""

    observations: bool = Field(
        False,
        description="whether networks read standardised observations: minus their running mean, divided by their "
        "running standard deviation. Images and one-hot columns stay as they are",
    )
    rewards: bool = Field(
        False,
        description="whether members learn from rewards that are divided by the running standard deviation of "
        "discounted returns; for on-policy algorithms only. Reports and fitness keep the environment's own rewards",
    )
    clip: float = Field(
        10.0, gt=0, description="largest absolute value of a normalised number; larger ones are clipped"
    )


class HindsightConfig(Schema):
    """Settings of hindsight experience replay (Andrychowicz et al., 2017): transitions are stored again with goals that
    their episode has reached, as if these had been the desired ones."""

    goals: int = Field(
        4, ge=1, le=64, description="how many other goals each transition is stored with, besides its own"
    )
    strategy: Literal["future", "episode", "final"] = Field(
        "future",
        description="where the other goals come from: `future`, what the transition's episode achieved in this step or "
        "later; `episode`, what it achieved in any step; `final`, what it achieved last",
    )

    @model_validator(mode="after")
    def _one_last(self) -> Self:
        if self.strategy == "final" and self.goals > 1:
            raise located([(("goals",), f"an episode has one final state: set it to 1, got {self.goals}")])
        return self


class ReplayConfig(Schema):
    """Settings of the replay buffer (Lin, 1992): capacity, sharing, n-step returns, and prioritised sampling."""

    capacity: int = Field(100_000, ge=1, le=10**9, description="number of transitions that a replay buffer holds")
    sharing: Literal["shared", "own"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        "shared",
        description="members that fill and sample the same replay buffer: `shared`, all members; `own`, each member "
        "has its own; a number n, each group of n neighbouring members (a group stays in one shard, see "
        "`runtime.shards`)",
    )
    n_step: int = Field(
        1, ge=1, le=100, description="environment steps of an n-step return; fewer where an episode ends before"
    )
    updates: Literal["pooled"] | Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="number of updates that a member makes every `learn_step` environment steps; `pooled`: as many as "
        "there are members that train now, because all of them fill the shared replay buffer",
    )
    evaluation: bool = Field(
        False, description="whether evaluation episodes go into the replay buffer too; single agents only"
    )
    prioritised: bool = Field(
        False,
        description="whether transitions with a large TD error are sampled more often (Schaul et al., 2016); every "
        "member has its own priorities",
    )
    alpha: float = Field(
        0.6, ge=0, le=1, description="exponent α of priorities: 0 samples uniformly, 1 in proportion to the TD error"
    )
    beta: float = Field(
        0.4, ge=0, le=1, description="exponent β of importance-sampling weights at the start; it rises to 1 at the end"
    )
    hindsight: HindsightConfig | None = Field(
        None,
        validate_default=True,
        description="hindsight experience replay, for environments with goals: the settings `goals` and `strategy`; "
        "null: none; may be left out",
    )

    _spare = left_out("hindsight")

    def at_once(self, living: int) -> int:
        """Return how many updates a member makes each time it learns, if `living` members train now."""
        return living if self.updates == "pooled" else self.updates

    def members(self, population: int) -> int:
        """Return how many of `population` members share a replay buffer."""
        return population if self.sharing == "shared" else 1 if self.sharing == "own" else self.sharing


class SelfPlayConfig(Schema):
    """Settings of self-play: members train against earlier generations of their population, the league."""

    every: int = Field(
        0,
        ge=0,
        description="number of generations after which the best member joins the league, as it is then; 0: no "
        "self-play, opponents are those of `env.kwargs`",
    )
    keep: int = Field(20, ge=1, le=1000, description="number of opponents in the league, of which the newest stay")
    latest: float = Field(
        0.5, ge=0, le=1, description="probability that an opponent in a training episode is the newest of the league"
    )
    fixed: float = Field(
        0.1,
        ge=0,
        le=1,
        description="probability that it is the opponent of `env.kwargs`, against which members are scored; else it is "
        "one of the older ones of the league, each as likely as the others",
    )
    explore: float = Field(
        0.1,
        ge=0,
        le=1,
        description="probability that an action of the league's opponents is a random one, so that members meet "
        "positions to which good play does not lead",
    )

    @model_validator(mode="after")
    def _shares(self) -> SelfPlayConfig:
        if self.latest + self.fixed > 1:
            raise ValueError(f"latest ({self.latest}) and fixed ({self.fixed}) add up to more than 1")
        if not self.every and self.model_fields_set - {"every"} and self != SelfPlayConfig():
            raise ValueError("every is 0, which is no self-play: set it to 1 or more, or leave the block out")
        return self


class TrainConfig(Schema):
    """Settings of the training. Steps are environment steps of *each member*; with `mode: offline`, they are steps of
    learning from the dataset. On-policy algorithms are always online, and use neither `learning_delay`, `warm_start`
    nor `replay`."""

    algo: str = Field("dqn", description="name of the algorithm, whose hyper-parameters are in its block of `algos`")
    mode: Literal["online", "offline"] = Field(
        "online",
        description="`online`: members learn from their own steps in the environment; `offline`: from the whole "
        "dataset alone (off-policy algorithms only; `learning_delay`, `warm_start`, `replay.capacity` and "
        "`replay.sharing` have no effect)",
    )
    max_steps: int = Field(
        130_000, ge=1, le=10**12, description="environment steps of each member in the whole training"
    )
    evo_steps: int = Field(5_000, ge=1, le=10**12, description="environment steps of each member in one generation")
    learning_delay: int = Field(
        1_000, ge=0, le=10**12, description="environment steps of each member before its first update"
    )
    warm_start: int = Field(
        20_000,
        ge=0,
        le=10**9,
        description="number of transitions of the dataset that are in the replay buffer at the start, or all if the "
        "dataset has fewer; 0: none, the buffer starts empty",
    )
    eval_episodes: int = Field(16, ge=1, le=10**5, description="evaluation episodes of each member in each generation")
    eval_steps: int | None = Field(
        None, ge=1, description="environment steps after which an evaluation episode is cut; null: never"
    )
    evaluation: Literal["full", "race"] = Field(
        "full",
        description="`full`: every member plays all evaluation episodes; `race`: a member stops once its rank is clear "
        "enough to select",
    )
    target: float | Literal["auto"] | None = Field(
        "auto", description="mean return at which training ends early; `auto`: the environment's threshold; null: none"
    )
    confirm_episodes: int = Field(
        100,
        ge=2,
        le=10**5,
        description="evaluation episodes that score a new best member again if its fitness reaches `target`",
    )
    confirmation: Literal["full", "sequential"] = Field(
        "full",
        description="`full`: a confirmation plays all `confirm_episodes`; `sequential`: it stops when its outcome is "
        "clear",
    )
    lowest_score: float | None = Field(
        None,
        description="return that no episode can fall below, by which `confirmation: sequential` knows early that the "
        "target is reached; null: unknown, and it ends early only if the target is missed",
    )
    target_sigmas: float = Field(
        2.0, ge=0.0, description="standard errors by which a confirmed mean return must exceed `target`"
    )
    normalise: NormaliseConfig = Field(default_factory=NormaliseConfig)
    replay: ReplayConfig = Field(default_factory=ReplayConfig)
    callbacks: CallbacksConfig = Field(default_factory=CallbacksConfig, validate_default=True)
    curriculum: FunctionName | None = Field(
        None,
        validate_default=True,
        description="function, as `module:function`, of progress and score, which returns the arguments in which the "
        "next generation's training environments differ from `env.kwargs`; null: none; may be left out",
    )

    self_play: SelfPlayConfig = Field(default_factory=SelfPlayConfig, validate_default=True)

    _spare = left_out("callbacks", "curriculum", "self_play")
