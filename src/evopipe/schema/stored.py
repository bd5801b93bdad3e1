"""The schema of data read from JSON files that may come from anywhere: every value has a type and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from evopipe.schema.declare import explain
from evopipe.schema.network import Activation, EncoderKind

_LAYERS = 8  # of a part of a network, as in `NetworkConfig`
_COLUMNS = 1 << 20  # of an observation or a mask, as in `envs.spaces`
_CROWD = 1 << 22  # of all agents of a team
_LOW, _HIGH = -(2**63), 2**63 - 1


def _sane(value: float) -> float:
    if abs(value) > 1e30:
        raise ValueError("must be at most 1e30 in size")
    return value


Whole: TypeAlias = Annotated[int, Field(ge=_LOW, le=_HIGH)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=_HIGH)]
Number: TypeAlias = Annotated[int | float, AfterValidator(_sane)]
_Width = Annotated[int, Field(ge=1, le=4096)]
_Column = Annotated[int, Field(ge=0, le=_COLUMNS)]
_Side = Annotated[int, Field(ge=1, le=_COLUMNS)]
_Block = Annotated[tuple[_Width, bool], Field(strict=False)]
_Blocks = Annotated[tuple[_Block, ...], Field(max_length=_LAYERS, strict=False)]
_Image = Annotated[tuple[_Column, _Side, _Side, _Side], Field(strict=False)]
_Kernel = Annotated[int, Field(ge=1, le=31)]
_Channels = Annotated[int, Field(ge=1, le=1024)]
_Conv = Annotated[tuple[_Channels, _Kernel, _Kernel, Annotated[int, Field(ge=-31, le=31)]], Field(strict=False)]
_Shape = Annotated[tuple[_Column, ...], Field(max_length=32, strict=False)]
_Wholes = Annotated[tuple[Whole, ...], Field(max_length=_COLUMNS, strict=False)]
_Numbers = Annotated[tuple[Number, ...], Field(max_length=_COLUMNS, strict=False)]
_Choices = Annotated[tuple[_Side, ...], Field(max_length=_COLUMNS, strict=False)]
_Line = Annotated[int, Field(ge=1, le=1 << 14, multiple_of=16)]
_Heads = Annotated[
    tuple[Annotated[int, Field(ge=1, le=256)], Annotated[int, Field(ge=1, le=1 << 16, multiple_of=16)]],
    Field(strict=False),
]


class _Stored(BaseModel):
    """Base of what is read back: immutable and strictly typed; what it does not know stays unread."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, strict=True, defer_build=True)


class StoredArch(_Stored):
    """The schema of a perceptron's architecture in a JSON file, see `core.arch.Arch.to_json`.

    Attributes:
        encoder, head: the hidden layers, each as a pair (width, blend). If `blend` is true, the layer's output is
            blended with its input, see `core.layout.Block`.
        latent: the width between encoder and head.
        activation: the name of the activation function.
        layer_norm: whether there is layer normalisation before every activation.
        images: the images in an observation, each as (first column, channels, height, width).
        convs: the convolution layers, each as (channels, kernel, stride, padding).
        kind: the kind of the encoder, such as `mlp`.
    """

    encoder: _Blocks
    latent: _Width
    head: _Blocks
    activation: Activation
    layer_norm: bool
    images: Annotated[tuple[_Image, ...], Field(max_length=64, strict=False)] = ()
    convs: Annotated[tuple[_Conv, ...], Field(max_length=_LAYERS, strict=False)] = ()
    kind: EncoderKind = "mlp"


class StoredGPT(_Stored):
    """The schema of a small GPT's architecture in a JSON file, see `language.gpt.GPT`.

    Attributes:
        layers: the numbers of heads and of feed-forward nodes of each layer.
        hidden: the width of the residual stream.
        head: the width of an attention head.
        length: the most tokens of a row.
    """

    layers: Annotated[tuple[_Heads, ...], Field(min_length=1, max_length=64, strict=False)]
    hidden: _Line
    head: _Line
    length: Annotated[int, Field(ge=1, le=1 << 16)]


class StoredModule(_Stored):
    """The schema of a reference to a user's own network in a JSON file, see `core.module`.

    Attributes:
        module: the class, as `module:Class`.
        arguments: the keyword arguments of the class.
    """

    module: Annotated[str, Field(max_length=200)]
    arguments: dict[str, Any] = Field(default_factory=dict)


class StoredMember(_Stored):
    """The schema of a member, without its tensors, in a JSON file, see `storage.members`.

    Attributes:
        slot: the member's place in the population.
        id: the member's id.
        parent: the id of its parent; null for initial weights.
        key: the random key.
        arch: the architecture.
        hyper: the hyper-parameters by name.
        healthy: false if the member diverged.
        fitness: the scores so far; null for a score that is not finite.
    """

    slot: Count
    id: Count
    parent: Count | None
    key: Whole
    arch: dict[str, Any]
    hyper: dict[str, Number]
    healthy: bool
    fitness: list[Number | None]


class _StoredLeaf(_Stored):
    """One array of an observation, see `envs.spaces.Leaf`."""

    path: Annotated[tuple[str | int, ...], Field(max_length=32, strict=False)]
    shape: _Shape
    counts: _Choices
    firsts: _Wholes
    channels: Literal[0, 2] | None
    low: Number
    high: Number


class _StoredActions(_Stored):
    """The schema of an action space that is no Dict or Tuple.

    Attributes:
        actions: the number of discrete actions; for a Box, the number of values in an action. If an action has several
            entries, their numbers are added up.
        action_start: the smallest action of a Discrete space.
        action_kind: `multidiscrete` or `multibinary` if an action has several discrete entries; null for other spaces.
        action_shape: the shape of the environment's own action.
        action_choices, action_starts: for actions with several discrete entries, the number of values of each entry,
            and its smallest value.
        action_low, action_high: the bounds of a Box; null for other spaces.
    """

    actions: _Side
    action_start: Whole = 0
    action_kind: Literal["multidiscrete", "multibinary", "mixed"] | None = None
    action_shape: _Shape = ()
    action_choices: _Choices = ()
    action_starts: _Wholes = ()
    action_low: _Numbers | None = None
    action_high: _Numbers | None = None


class _StoredPart(_StoredActions):
    """One part of a mixed action, see `envs.mixed.ActionPart`."""

    path: Annotated[tuple[str | int, ...], Field(max_length=32, strict=False)]


class StoredSpaces(_StoredActions):
    """The schema of one agent's observation and action spaces in `policy.json`.

    Attributes:
        observations: the number of values in an observation.
        observation: the arrays of a nested observation; null for a plain vector.
        action_parts: the parts of a mixed action (`action_kind: mixed`); null for other spaces.
    """

    observations: _Side
    observation: Annotated[tuple[_StoredLeaf, ...], Field(min_length=1, max_length=4096, strict=False)] | None = None
    action_parts: Annotated[tuple[_StoredPart, ...], Field(min_length=1, max_length=4096, strict=False)] | None = None


class StoredPolicy(_Stored):
    """The schema of the part of `policy.json` from which a policy is built. The environment's spaces, which are in the
    file too, have the schema `StoredSpaces` or `StoredTeam`.

    Attributes:
        algo: the algorithm's name.
        arch: the architecture.
        config: the algorithm's hyper-parameters.
        critic: the names of exported networks that acting does not need.
    """

    algo: str
    arch: dict[str, Any]
    config: dict[str, Any] = Field(default_factory=dict)
    critic: Annotated[tuple[str, ...], Field(max_length=16, strict=False)] = ()


class _StoredAgent(StoredSpaces):
    """One agent of a team."""

    id: str | int
    masked: bool


def _no_crowd(team: tuple[_StoredAgent, ...]) -> tuple[_StoredAgent, ...]:
    columns = len(team) * max(agent.observations + agent.actions for agent in team)
    if columns > _CROWD:
        raise ValueError(f"has {columns} numbers of observations and actions, at most {_CROWD} are served")
    return team


class StoredTeam(_Stored):
    """The schema of a team's observation and action spaces in `policy.json`.

    Attributes:
        team: the agents in order, each with its name and spaces.
    """

    team: Annotated[tuple[_StoredAgent, ...], Field(min_length=1, max_length=1024, strict=False),
                    AfterValidator(_no_crowd)]  # fmt: skip


@contextmanager
def in_a_sentence(model: type[BaseModel], data: Any) -> Iterator[None]:
    """Convert a pydantic error inside a `with` block to a ValueError with one sentence about the first problem and its
    place.

    `model` and `data` are the schema and the data that were validated.
    """
    try:
        yield
    except ValidationError as error:
        path, sentence = explain(error, model, data)[0]
        place = ".".join(str(step) for step in path)[:80]
        raise ValueError(f"{place}: {sentence}" if place else sentence) from None
