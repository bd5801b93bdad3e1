"""The block `runtime.shards`, of runs of either kind."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from evopipe.schema.declare import Schema


class ShardsConfig(Schema):
    """Settings that divide the population among processes, on one machine or several; the settings change no result.
    The block may be left out; see docs/scale.md."""

    engine: Literal["none", "ray", "accelerate"] = Field(
        "none",
        description="`none`: one process trains all members; `ray`: an actor a shard, in a cluster; `accelerate`: a "
        "process a shard, as `accelerate launch` starts them",
    )
    count: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        "auto", description="shards; `auto`: as many as there is room for, at most one a member"
    )
    ranks: int = Field(
        1,
        ge=1,
        le=1024,
        description="processes of a shard, of language models on `accelerate`: they divide its members' rows, in parts "
        "of `runtime.rows_at_once`",
    )
    resources: dict[str, Annotated[float, Field(ge=0.0)]] = Field(
        default_factory=lambda: {"cpu": 1.0},
        description="what each shard has of its machine: `cpu`, `gpu`, or a resource that the Ray cluster names",
    )
    address: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="of a running Ray cluster, `auto` to find it; null: one of its own, on this machine alone"
    )
    ray_init: dict[str, Any] = Field(default_factory=dict, description="further arguments of `ray.init`")
