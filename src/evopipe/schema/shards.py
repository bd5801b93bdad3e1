"""The block `runtime.shards` of `params.yaml`, for runs in environments and of language models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from evopipe.schema.declare import Schema


class ShardsConfig(Schema):
    """Settings that divide the population among processes (shards), on one machine or several; no result changes.
    The block may be left out; see docs/scale.md."""

    engine: Literal["none", "ray", "accelerate"] = Field(
        "none",
        description="what runs the shards (parts of the population): `none`, one process trains all members; `ray`, "
        "each shard is an actor in a Ray cluster; `accelerate`, each shard is a process that `accelerate launch` "
        "starts",
    )
    count: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        "auto", description="number of shards; `auto`: as many as there is room for, at most one per member"
    )
    ranks: int = Field(
        1,
        ge=1,
        le=1024,
        description="number of processes that compute one shard together, for language models with `engine: "
        "accelerate`; they divide the rows of a batch, in parts of `runtime.rows_at_once`",
    )
    resources: dict[str, Annotated[float, Field(ge=0.0)]] = Field(
        default_factory=lambda: {"cpu": 1.0},
        description="resources that each shard reserves on its machine: `cpu`, `gpu`, or a resource that the Ray "
        "cluster names",
    )
    address: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="address of a running Ray cluster; `auto`: find it; null: start one on this machine"
    )
    ray_init: dict[str, Any] = Field(default_factory=dict, description="further keyword arguments of `ray.init`")
