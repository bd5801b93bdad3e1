"""The block `runtime` of `params.yaml`, for runs in environments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from evopipe.schema.declare import Schema
from evopipe.schema.shards import ShardsConfig

_Processes = Annotated[int, Field(ge=0, le=256)]

NEUTRAL = frozenset({"checkpoint_seconds", "env_workers", "learners", "shards"})
"""Keys of `runtime` that change no result."""


class RuntimeConfig(Schema):
    """Settings of where and how a run computes: device, threads, kernels, processes, checkpoints."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of networks; `auto`: CUDA if present, else the CPU"
    )
    threads: int = Field(1, ge=1, le=256, description="number of torch's threads; it changes the last bits of results")
    cohorts: Literal["merged", "exact"] = Field(
        "merged",
        description="`merged`: members of unlike architecture may share a padded batch; `exact`: only members of equal "
        "architecture",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="compilation of updates: `auto`, CUDA graphs on a GPU and nothing on the CPU; `on`, "
        "`torch.compile` as well, which changes the last bits of results; `off`, neither",
    )
    kernels: Literal["auto", "native", "portable", "torch"] = Field(
        "auto",
        description="implementation of networks on the CPU: `torch`; `native`, C kernels compiled for this processor, "
        "which are faster and give other last bits than `torch`; `portable`, these kernels compiled for any processor "
        "with AVX2; `auto`, `native` if they can be compiled, else `torch`",
    )
    env_workers: _Processes | Literal["auto"] = Field(
        "auto",
        description="number of processes that step environments; `auto`: by the numbers of CPUs and environments, "
        "and none in a run of up to 10,000 steps; 0: the training process steps them itself. Changes no result",
    )
    learners: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto",
        description="number of processes or threads among which members' updates are divided on the CPU; `auto`: by "
        "the numbers of CPUs and members, and the work; 1: no division, which `threads` above 1 needs. Changes no "
        "result",
    )
    checkpoint_seconds: float = Field(30.0, gt=0.0, description="least seconds between two checkpoints")
    shards: ShardsConfig = Field(default_factory=ShardsConfig, validate_default=True)
