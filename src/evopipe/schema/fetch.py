"""The block `fetch` of `params.yaml`, for runs in environments."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from evopipe.errors import suggestion
from evopipe.schema.declare import Problem, Schema, located
from evopipe.schema.values import Names, Weight

_POLICIES = ("heuristic", "medium", "random", "policy")


class CollectConfig(Schema):
    """Settings of `fetch.source: collect`, which records episodes of behaviour policies in the environment."""

    episodes: int = Field(60, ge=1, le=10**6, description="number of episodes to record")
    policies: dict[str, Weight] = Field(
        default_factory=lambda: {"heuristic": 0.5, "random": 0.5},
        description="weights of the behaviour policies, one of which is drawn for each episode: `heuristic` (a good "
        "hand-written rule), `medium` (a weaker rule with some random actions), `random`, and `policy` (the exported "
        "policy in `policy_path`)",
    )
    policy_path: str | None = Field(
        None, description="folder of the exported policy for the weight `policy`; null: none"
    )
    max_steps: int | None = Field(
        None, ge=1, description="environment steps after which an episode is cut; null: never"
    )

    @model_validator(mode="after")
    def _policies_usable(self) -> Self:
        unknown = [name for name in self.policies if name not in _POLICIES]
        problems: list[Problem] = [
            (("policies", name), f"unknown policy{suggestion(name, _POLICIES)}") for name in unknown
        ]
        if not any(self.policies.values()):
            problems.append((("policies",), "all weights are 0: give at least one policy a positive weight"))
        if self.policies.get("policy", 0.0) > 0 and self.policy_path is None:
            sentence = "the policy `policy` has a weight: name the exported folder it is loaded from"
            problems.append((("policy_path",), sentence))
        if problems:
            raise located(problems)
        return self


class FetchConfig(Schema):
    """Settings of the stage `fetch`: the source of the dataset."""

    class Minari(Schema):
        """Settings of `fetch.source: minari`, which reads a Minari dataset."""

        dataset: str = Field("data/minari", description="path of a local Minari dataset, or the id of a remote one")

    class Hdf5(Schema):
        """Settings of `fetch.source: hdf5`, which reads a D4RL or AgileRL file. The file has observations, actions,
        rewards, terminals, and optionally timeouts and next observations."""

        path: str = Field("data/dataset.hdf5", description="path of the HDF5 file, or of a folder of such files")

    class Rlds(Schema):
        """Settings of `fetch.source: rlds`, which reads episodes of steps with is_first, is_last, is_terminal,
        observation, action and reward, from Parquet, Arrow or JSON files.

        A dot in a field's name leads into a struct.
        """

        path: str = Field("data/rlds", description="path of the folder, or of one file")
        observation: str = Field("observation", description="field of the observation, such as `observation.state`")
        action: str = Field("action", description="field of the action")

    class Table(Schema):
        """Settings of `fetch.source: table`, which reads a CSV or Parquet file with one row per step, in the order of
        time.

        A column name that ends with `*` stands for all columns that begin with the name, in the file's order.
        """

        path: str = Field("data/dataset.csv", description="path of the table, which ends in .csv or .parquet")
        observations: Names[str] = Field(("obs*",), min_length=1, description="columns of the observation")
        actions: Names[str] = Field(
            ("action*",),
            min_length=1,
            description="columns of the action: one of whole numbers (discrete), or one per component",
        )
        rewards: str = Field("reward", description="column of the reward")
        terminals: str = Field(
            "terminated", description="column that is 1 where a step ended the episode in a terminal state"
        )
        timeouts: str | None = Field(
            None, description="column that is 1 where a step ended the episode by truncation; null: no such column"
        )
        episodes: str | None = Field(
            None,
            description="column whose value differs between episodes, such as an episode number; null: no such column",
        )
        next_observations: Names[str] = Field(
            (), description="columns of the observation after the step; []: the next row has it"
        )

    source: Literal["collect", "minari", "hdf5", "rlds", "table"] = Field(
        "collect",
        description="source of the dataset: `collect`, episodes recorded in the environment; `minari`, a Minari "
        "dataset; `hdf5`, D4RL or AgileRL files; `rlds`, episodes in RLDS's layout; `table`, a CSV or Parquet file. "
        "The block of the same name has its settings",
    )
    collect: CollectConfig = Field(default_factory=CollectConfig)
    minari: Minari = Field(default_factory=Minari)
    hdf5: Hdf5 = Field(default_factory=Hdf5)
    rlds: Rlds = Field(default_factory=Rlds)
    table: Table = Field(default_factory=Table)
