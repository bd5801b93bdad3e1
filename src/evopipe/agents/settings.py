"""The block `agents` of `params.yaml`: settings that only runs of agents have, in addition to those of every run of
language models."""

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
    """Settings of a run in which language models act as agents in environments and learn from their episodes.

    A round is the set of episodes that all members play for one training step.
    """

    environment: str | None = Field(
        None,
        min_length=3,
        max_length=2000,
        description="environment of the agents: `module:Class`, or `KIND:NAME` with the kind `gym`, `textarena`, "
        "`reasoning-gym`, `openenv`, `mcp` or one that a package adds; null: the class that the program passes",
    )
    max_steps: int = Field(
        5, ge=1, le=10**6, description="largest number of completions (turns) of an agent in one episode"
    )
    cumulative: bool = Field(
        False,
        description="scope of the token limit `max_completion`: true, all completions and observations of an episode "
        "together; false, each completion",
    )
    at_once: int = Field(256, ge=1, le=10**6, description="largest number of episodes that run at the same time")
    workers: int = Field(
        64,
        ge=1,
        le=4096,
        description="largest number of threads (or processes, then also at most one per CPU) for environments with "
        "blocking code",
    )
    staleness: int = Field(
        0,
        ge=0,
        le=64,
        description="age in rounds of the weights that play episodes: 0, members play, then learn; k, rounds are "
        "played while members learn, by weights from k rounds before",
    )
    retries: int = Field(2, ge=0, le=100, description="number of new attempts at an episode that raised an exception")
    model_seconds: _Seconds | None = Field(None, description="time limit in seconds of one completion; null: none")
    env_seconds: _Seconds | None = Field(
        60.0, description="time limit in seconds of one call of an environment; null: none"
    )
    episode_seconds: _Seconds | None = Field(600.0, description="time limit in seconds of one episode; null: none")
    wave_seconds: _Seconds = Field(
        120.0,
        description="time in seconds that a batch of completions waits for the slowest episode's prompt; a later one "
        "is left behind, and results are then not reproducible bit by bit",
    )
    max_error_fraction: float = Field(
        0.5, ge=0.0, le=1.0, description="share of a round's episodes that may fail; the run ends if more do"
    )
    advantage: Literal["trajectory", "step", "turn"] = Field(
        "trajectory",
        description="credit of an episode's turns: `trajectory`, each gets the advantage of the whole episode's "
        "reward; `step`, that divided by the number of turns; `turn`, each is compared with the same turn of other "
        "episodes",
    )
    gamma: float = Field(
        0.2,
        ge=0.0,
        le=1.0,
        description="discount from turn to turn of the returns that `advantage: turn` compares; else unused",
    )
    estimators: dict[str, str] = Field(
        default_factory=dict,
        description="names of the algorithms that compute advantages, by agent role; roles that are not named use "
        "`train.algo`",
    )
    mask: tuple[Reason, ...] = Field(
        (),
        description="termination reasons of episodes that are not learned from, in addition to `error` and `timeout`",
        strict=False,
    )
    overlap: Literal["keep", "leave_out", "error"] = Field(
        "keep",
        description="treatment of validation and test tasks that are also training tasks: `keep` them and report their "
        "number; `leave_out`: drop them; `error`: end with a message that lists them",
    )
    samples: int = Field(1, ge=1, le=1024, description="episodes that a member plays of each validation or test task")
    temperature: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="sampling temperature in validation and test episodes; 0: the most likely token is always taken",
    )
    served: str = Field(
        "policy",
        min_length=1,
        max_length=200,
        description="model name that clients of the OpenAI-compatible endpoint must request",
    )
    first: bool = Field(False, description="true: members are validated once before the first training step too")
    record: Literal["none", "validation", "all"] = Field(
        "validation",
        description="episodes that are written to JSON-lines files: `none`; `validation`, those of validations and "
        "`sampled` training episodes; `all`, every one",
    )
    sampled: int = Field(
        32,
        ge=0,
        le=4096,
        description="number of training episodes of a generation's last round that are written with each token's "
        "advantage and log-probabilities; 0: none",
    )
    sampled_rounds: int = Field(
        3, ge=1, le=10**6, description="number of latest generations whose `sampled` training episodes are kept on disk"
    )
