"""The block `agents`: settings of a run of agents, beside those of any run of language models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from evopipe.schema.declare import Schema

Reason = Literal[
    "max_prompt_length_exceeded", "max_response_length_exceeded", "env_done", "max_turns_exceeded", "timeout",
    "unknown", "error",
]  # fmt: skip
_Seconds = Annotated[float, Field(gt=0.0, le=1e6)]


class Agents(Schema):
    """Settings for running agents' episodes and for learning from them."""

    environment: str | None = Field(
        None,
        min_length=3,
        max_length=2000,
        description="the environment, where the program passes none: `module:Class`, of which the kind is recognised, "
        "or `KIND:NAME`, with `gym`, `textarena`, `reasoning-gym`, `openenv`, `mcp` or a package's own",
    )
    max_steps: int = Field(5, ge=1, le=10**6, description="completions of an agent in an environment")
    cumulative: bool = Field(
        False, description="whether all that follows the first prompt has the length of one completion"
    )
    at_once: int = Field(256, ge=1, le=10**6, description="episodes at a time")
    workers: int = Field(
        64, ge=1, le=4096, description="threads of blocking environments, or processes, at most one a CPU"
    )
    staleness: int = Field(
        0,
        ge=0,
        le=64,
        description="rounds by which the weights that play may be older than those that learn: so many are played "
        "while members learn",
    )
    retries: int = Field(2, ge=0, le=100, description="times that an episode which raised is tried again")
    model_seconds: _Seconds | None = Field(None, description="longest wait for a completion; null: any")
    env_seconds: _Seconds | None = Field(60.0, description="longest call of an environment; null: any")
    episode_seconds: _Seconds | None = Field(600.0, description="longest episode; null: any")
    wave_seconds: _Seconds = Field(
        120.0, description="longest that episodes wait for a late one; if one is later, no longer equal bits"
    )
    max_error_fraction: float = Field(
        0.5, ge=0.0, le=1.0, description="share of a round's episodes that may fail; above it the run ends"
    )
    advantage: Literal["trajectory", "step", "turn"] = Field(
        "trajectory",
        description="what is compared: trajectories, the same for all their steps, or shared out among them (`step`); "
        "or each turn with that turn of the others",
    )
    gamma: float = Field(0.2, ge=0.0, le=1.0, description="of the returns of turns, for `advantage: turn`")
    estimators: dict[str, str] = Field(
        default_factory=dict, description="algorithms whose advantages other roles take, by role"
    )
    mask: tuple[Reason, ...] = Field(
        (), description="reasons whose episodes teach nothing, beside `error` and `timeout`", strict=False
    )
    overlap: Literal["keep", "leave_out", "error"] = Field(
        "keep",
        description="what becomes of tasks of validation or test that are learned from, too: `keep`, they are counted; "
        "`leave_out`; `error`, they are named",
    )
    samples: int = Field(1, ge=1, le=1024, description="episodes of each task in a validation")
    temperature: float = Field(0.0, ge=0.0, le=100.0, description="of validations; 0: the likeliest tokens")
    served: str = Field("policy", min_length=1, max_length=200, description="the model's name at an endpoint")
    first: bool = Field(False, description="whether to validate before the first step")
    record: Literal["none", "validation", "all"] = Field(
        "validation", description="whose episodes are written, one JSON object a line"
    )
    sampled: int = Field(
        32,
        ge=0,
        le=4096,
        description="training episodes of a generation's last round that are written with each token's advantage and "
        "log-probabilities; 0: none",
    )
    sampled_rounds: int = Field(3, ge=1, le=10**6, description="so many last generations of which these are kept")
