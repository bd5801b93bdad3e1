"""The training run: its block of `params.yaml`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from evopipe.buffers.replay import ReplayConfig
from evopipe.core.normalise import NormaliseConfig
from evopipe.types import Schema


class TrainConfig(Schema):
    """The training run. Steps are environment steps of *each member*; offline, steps in which it only learns."""

    algo: str = Field("dqn", description="which algorithm: a block of `algos`")
    mode: Literal["online", "offline"] = Field(
        "online",
        description="`online`: act in the environment and learn; `offline`: learn from the dataset alone, all of it, "
        "without `learning_delay`, `warm_start`, `replay.capacity` and `replay.sharing`. An on-policy algorithm is "
        "online, and goes without all of these and the rest of `replay`",
    )
    max_steps: int = Field(130_000, ge=1, le=10**12, description="environment steps of each member")
    evo_steps: int = Field(5_000, ge=1, le=10**12, description="environment steps of each member between evolutions")
    learning_delay: int = Field(1_000, ge=0, le=10**12, description="environment steps of each member before it learns")
    warm_start: int = Field(
        20_000,
        ge=0,
        le=10**9,
        description="dataset transitions put into the replay first, all where there are fewer; 0: pure online",
    )
    eval_episodes: int = Field(16, ge=1, le=10**5, description="evaluation episodes of each member per generation")
    eval_steps: int | None = Field(None, ge=1, description="step cap of an evaluation episode; null: until it ends")
    target: float | Literal["auto"] | None = Field(
        "auto", description="score that ends training early; `auto`: the environment's reward threshold; null: never"
    )
    confirm_episodes: int = Field(
        100, ge=2, le=10**5, description="episodes that confirm a new best member that clears the target"
    )
    target_sigmas: float = Field(2.0, ge=0.0, description="standard errors by which the confirmed mean must clear it")
    normalise: NormaliseConfig = Field(default_factory=NormaliseConfig)
    replay: ReplayConfig = Field(default_factory=ReplayConfig)
