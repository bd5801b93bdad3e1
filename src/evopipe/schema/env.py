"""The block `env` of `params.yaml`."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from evopipe import plugins
from evopipe.errors import suggestion
from evopipe.own import well_formed
from evopipe.schema.declare import Schema, located
from evopipe.schema.values import files_of, or_of_a_package, tracked

BACKENDS = files_of("envs/backends")
"""Evopipe's own, one file each."""


def _gymnasium_wrappers() -> list[str]:
    """Names of Gymnasium's own wrappers, read without loading it, which takes a second."""
    spec = find_spec("gymnasium")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name("wrappers").joinpath("__init__.py").read_text(encoding="utf-8")
    listed = text.partition("__all__ = ")[2].partition("]")[0] + "]"
    return [name for name in ast.literal_eval(listed) if name[0].isupper()]


class WrapperConfig(Schema):
    """Settings of one wrapper around each environment.
    In `params.yaml`, a plain string names a wrapper without arguments."""

    name: str = Field(min_length=1, description="class in `gymnasium.wrappers`, or `module:Wrapper` for your own")
    kwargs: Annotated[
        dict[str, Any], tracked("fix it in a wrapper of one's own, a subclass, and use 'module:Wrapper'")
    ] = Field(
        default_factory=dict,
        validate_default=True,
        description="keyword arguments of the wrapper; lists reach it as tuples",
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if ":" in name:
            well_formed(name, "Wrapper")
        elif name not in (known := _gymnasium_wrappers()):
            raise ValueError(
                f"gymnasium.wrappers has no {name!r}{suggestion(name, known)}; one's own is 'module:Wrapper'"
            )
        return name


_Wrapper = Annotated[WrapperConfig, BeforeValidator(lambda given: {"name": given} if isinstance(given, str) else given)]


if TYPE_CHECKING:
    _Backend = str
else:
    _Backend = Annotated[Literal[*BACKENDS], or_of_a_package(plugins.BACKENDS, "env.backend", BACKENDS)]


class EnvConfig(Schema):
    """Settings of the environment in which the population trains."""

    id: str = Field(
        "LunarLander-v3", min_length=1, description="Gymnasium id, or `module:EnvId` for an environment of your own"
    )
    kwargs: Annotated[
        dict[str, Any], tracked("register the environment under an id of its own with it, and use 'module:EnvId'")
    ] = Field(default_factory=dict, description="keyword arguments that `gymnasium.make` passes to the environment")
    wrappers: tuple[_Wrapper, ...] = Field(
        (),
        strict=False,
        max_length=32,
        description="wrappers around each environment, the innermost first: each a name, or `{name: ..., kwargs: "
        "{...}}`",
    )
    num_envs: int = Field(16, ge=1, le=4096, description="number of environments that each member steps in parallel")
    backend: _Backend = Field(
        "sync",
        description="implementation of the environments for training: `sync`, Gymnasium's own; `envpool`, the faster "
        "ones of the package envpool (an extra); `torch`, classic control and four of mpe2's teams in tensors; `c`, "
        "classic control, grid worlds and MinAtar's games in C, fastest on the CPU; or a backend of another package "
        "(entry points `evopipe.backends`). Initial states and last bits differ between backends",
    )
    source: str | None = Field(
        None, min_length=1, description="path of an environment of your own in C, for `env.backend: c`; null: none"
    )
    step_limit: int = Field(
        10_000,
        ge=1,
        le=10**9,
        description="steps after which an episode is truncated, in an environment without a time limit of its own",
    )
    step_seconds: float = Field(
        600.0,
        gt=0.0,
        le=86_400.0,
        description="most seconds that an environment may take for a step, a reset or its construction; if it takes "
        "longer, the run ends with an error. Steps of `env.backend: c` are not limited. Changes no result",
    )

    @property
    def on_gymnasium(self) -> EnvConfig:
        """This block with `backend: sync`, for uses that need the environment as Gymnasium steps it.

        The block of a user's own environment in tensors or in C is returned unchanged.
        """
        if self.source is not None or (self.backend == "torch" and self.id.partition(":")[2].isidentifier()):
            return self
        return self.model_copy(update={"backend": "sync"})

    @model_validator(mode="after")
    def _in_c(self) -> Self:
        if self.source is not None and self.backend != "c":
            raise located([(("source",), f"only env.backend c steps a C file, not {self.backend}: set it to null")])
        return self

    @model_validator(mode="after")
    def _wrappable(self) -> Self:
        if self.wrappers and self.backend != "sync":
            sentence = f"env.backend {self.backend} steps no Gymnasium environment that a wrapper could be put around"
            raise located([(("wrappers",), f"{sentence}: set it to sync, or this to []")])
        return self
