"""The blocks `population` and `evolution` of `params.yaml`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from evopipe import plugins
from evopipe.errors import ParamsError, suggestion
from evopipe.schema.declare import Problem, Schema, ordered, some_mass
from evopipe.schema.network import Activation
from evopipe.schema.values import Names, Weight, Width

_Steps = Annotated[tuple[Width, ...], Field(min_length=1, strict=False)]


class PopulationConfig(Schema):
    """Settings of the initial population, whose members train side by side and evolve."""

    size: int = Field(4, ge=1, le=4096, description="number of members")
    start: str | None = Field(
        None, description="folder of trained members to start from, a copy of `models/trained`; null: random weights"
    )


class TournamentConfig(Schema):
    """Settings of tournament selection (Miller & Goldberg, 1995), by which a generation's parents are chosen."""

    size: int = Field(
        2,
        ge=0,
        le=4096,
        description="number of members that are drawn, with replacement, for each tournament, which the fittest of "
        "them wins; 0: no tournaments, every healthy member continues",
    )
    elitism: bool = Field(True, description="whether the fittest member always survives, in slot 0 of the population")
    window: int = Field(1, ge=1, le=10**4, description="latest evaluations whose mean is a member's fitness")


class ArchitectureBounds(Schema):
    """Bounds that mutated architectures must keep, and the step sizes of their mutations."""

    min_layers: int = Field(1, ge=0, le=8, description="fewest hidden layers of the encoder; the head may have none")
    max_layers: int = Field(3, ge=1, le=8, description="most hidden layers of the encoder, and of the head")
    min_nodes: int = Field(32, ge=1, le=4096, description="fewest units of a hidden layer")
    max_nodes: int = Field(256, ge=1, le=4096, description="most units of a hidden layer")
    min_latent: int = Field(16, ge=1, le=4096, description="smallest width of the latent")
    max_latent: int = Field(256, ge=1, le=4096, description="largest width of the latent")
    node_steps: _Steps = Field(
        (16, 32, 64), description="numbers of units that a mutation adds or removes, one drawn each time"
    )
    latent_steps: _Steps = Field(
        (8, 16, 32), description="widths that a mutation adds to the latent or removes, one drawn each time"
    )
    min_channels: int = Field(8, ge=1, le=1024, description="fewest channels of a convolution")
    max_channels: int = Field(64, ge=1, le=1024, description="most channels of a convolution")
    channel_steps: _Steps = Field(
        (8, 16), description="numbers of channels that a mutation adds or removes, one drawn each time"
    )
    min_kernel: int = Field(
        2, ge=1, le=31, description="smallest side of a kernel, in pixels; a mutation changes it by 2"
    )
    max_kernel: int = Field(7, ge=1, le=31, description="largest side of a kernel, in pixels")

    _ordered = ordered("layers", "nodes", "latent", "channels", "kernel")


class MutationConfig(Schema):
    """Settings of the mutation of children after selection."""

    class Probabilities(Schema):
        """Relative weights of the kinds of mutation; they need not sum to 1.
        Kinds that other packages provide (entry points `evopipe.mutations`) may be added by their names."""

        model_config = ConfigDict(extra="allow")
        __pydantic_extra__: dict[str, Weight]

        none: Weight = Field(0.4, description="weight of no mutation: the child equals its parent")
        architecture: Weight = Field(
            0.2,
            description="weight of adding or removing a layer, units, latent width or channels, or changing a kernel",
        )
        parameters: Weight = Field(0.2, description="weight of Gaussian noise on some of the network's weights")
        activation: Weight = Field(0.2, description="weight of another activation function")
        rl_hp: Weight = Field(0.2, description="weight of a change of one hyper-parameter in `evolve`")

        @classmethod
        def unknown_keys(cls, names: list[str]) -> list[Problem]:
            """Return a (key, sentence) pair for each kind of mutation that no package provides, or that several
            packages provide."""
            own = cls.model_fields
            problems: list[Problem] = []
            for name in names:
                try:
                    if plugins.find(plugins.MUTATIONS, name, "evolution.mutation.probabilities", own) is not None:
                        continue
                    known = [*own, *plugins.names(plugins.MUTATIONS, own)]
                    problems.append(((name,), f"unknown key{suggestion(name, known)}"))
                except ParamsError as error:
                    problems.append(((name,), str(error).partition(": ")[2]))
            return problems

        _some_mass = model_validator(mode="after")(some_mass)

    probabilities: Probabilities = Field(default_factory=Probabilities)
    new_layer_prob: float = Field(
        0.2, ge=0.0, le=1.0, description="probability that an architecture mutation changes layers, not widths"
    )
    sd: float = Field(
        0.1, ge=0.0, le=10.0, description="standard deviation of parameter noise, relative to each weight"
    )
    activations: Names[Activation] = Field(
        ("ReLU", "ELU", "GELU"), min_length=1, description="activation functions that an activation mutation draws from"
    )
    mutate_elite: bool = Field(False, description="whether the fittest member in slot 0 is mutated too")
    before_training: bool = Field(
        False, description="whether each initial member is mutated once, by any kind but `none`"
    )
    architecture: ArchitectureBounds = Field(default_factory=ArchitectureBounds)
