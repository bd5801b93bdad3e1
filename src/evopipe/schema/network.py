"""The block `network` of an algorithm's hyper-parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from evopipe.own import well_formed
from evopipe.schema.declare import Schema, left_out, located
from evopipe.schema.values import Width, tracked

Activation = Literal["ReLU", "ELU", "GELU", "Tanh", "LeakyReLU", "SiLU", "Softsign", "Sigmoid", "Softplus", "Identity"]
"""As classes of `torch.nn` are called."""
EncoderKind = Literal["mlp", "simba", "resnet", "lstm"]
_Widths = Annotated[tuple[Width, ...], Field(max_length=8, strict=False)]


class InitialisationConfig(Schema):
    """Settings for the initial weights and biases of a network. Weights are orthogonal (Saxe et al., 2014), in hidden
    layers with a gain of √2."""

    biases: Literal["uniform", "zeros", "auto"] = Field(
        "uniform",
        description="initial biases of hidden layers: `uniform`, drawn from ±1/√(number of inputs); `zeros`; or "
        "`auto`, which is `uniform` for networks with ReLU and `zeros` for others",
    )
    acting: float = Field(
        0.1, gt=0, le=10, description="gain of the acting network's output layer (of the actor or Q-network)"
    )
    others: float = Field(
        0.1, gt=0, le=10, description="gain of every other network's output layer, such as a critic's"
    )


class NetworkConfig(Schema):
    """Settings of the architecture that initial members have: observation → encoder → latent → head → output.

    Images in the observation go through the convolutions first; the convolutions have no effect without images. LSTM
    layers have gates instead of activation and normalisation.
    """

    class Conv(Schema):
        """Settings of one convolution layer."""

        channels: int = Field(ge=1, le=1024, description="number of the layer's output channels")
        kernel: int = Field(ge=1, le=31, description="side of the layer's square kernel, in pixels")
        stride: int = Field(ge=1, le=31, description="distance between two positions of the kernel, in pixels")

    encoder_kind: EncoderKind = Field(
        "mlp",
        description="kind of encoder: `mlp`, dense layers; `simba` and `resnet`, a dense layer of width `latent`, then "
        "one residual block per width in `encoder`, which begins with layer normalisation (`simba`) or the activation "
        "(`resnet`); `lstm`, LSTM layers, for algorithms with recurrent networks",
    )
    conv: tuple[Conv, ...] = Field(
        default_factory=lambda: tuple(NetworkConfig.Conv(channels=n, kernel=3, stride=2) for n in (16, 32)),
        max_length=8,
        strict=False,
        description="convolution layers for the images in an observation, in order; []: the networks read pixels as "
        "plain numbers",
    )
    encoder: _Widths = Field((128,), description="widths of the encoder's hidden layers, in order")
    latent: Width = Field(128, description="width of the latent, the layer between encoder and head")
    head: _Widths = Field((), description="widths of the head's hidden layers, in order")
    activation: Activation = Field("ReLU", description="activation function after every hidden layer")
    layer_norm: bool = Field(False, description="whether there is layer normalisation before every activation")
    initialisation: InitialisationConfig = Field(
        default_factory=InitialisationConfig, description="initial weights and biases"
    )
    module: str | None = Field(
        None,
        validate_default=True,  # so that a file need not name it
        max_length=200,
        description="network of your own in place of this block: a `torch.nn.Module`, as `module:Class`; null: none; "
        "may be left out",
    )
    kwargs: Annotated[dict[str, Any], tracked("give it another name")] = Field(
        default_factory=dict, validate_default=True, description="keyword arguments of `module`; may be left out"
    )

    @field_validator("module")
    @classmethod
    def _written_well(cls, module: str | None) -> str | None:
        return None if module is None else well_formed(module, "Class")

    @model_validator(mode="after")
    def _of_a_module(self) -> Self:
        if self.kwargs and self.module is None:
            raise located(
                [(("kwargs",), "arguments of a module, and there is none: name it, `module`, or delete this")]
            )
        return self

    _spare = left_out("module", "kwargs")
