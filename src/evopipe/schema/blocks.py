"""The blocks of `params.yaml`, except those of algorithms, which are in their files. Nothing here needs torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from evopipe import plugins
from evopipe.errors import ParamsError, suggestion
from evopipe.own import NAME
from evopipe.schema.callbacks import CallbacksConfig, FunctionName
from evopipe.schema.declare import Problem, Schema, left_out, located, ordered, some_mass
from evopipe.schema.shards import ShardsConfig

Activation = Literal["ReLU", "ELU", "GELU", "Tanh", "LeakyReLU", "SiLU", "Softsign", "Sigmoid", "Softplus", "Identity"]
"""As classes of `torch.nn` are called."""
EncoderKind = Literal["mlp", "simba", "resnet", "lstm"]


def _or_of_a_package(group: str, key: str, own: tuple[str, ...]) -> WrapValidator:
    """Let a name pass that another package adds to evopipe's own."""

    def check(name: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(name, str):
            return handler(name)
        try:
            found = plugins.find(group, name, key, own)
        except ParamsError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return name if found is not None else handler(name)

    return WrapValidator(check)


def _files_of(folder: str) -> tuple[str, ...]:
    """Names of the modules in a folder of the package; none is imported."""
    return tuple(sorted(found.name for found in iter_modules([str(Path(__file__).parents[1] / folder)])))


TRACKERS, BACKENDS = _files_of("track/backends"), _files_of("envs/backends")
"""Evopipe's own, one file each."""
if TYPE_CHECKING:
    Tracker = str
else:
    Tracker = Annotated[Literal[*TRACKERS], _or_of_a_package(plugins.TRACKERS, "tracking.backends", TRACKERS)]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(f"a name stands twice ({', '.join(names)}): give each once")
    return names


_Width = Annotated[int, Field(ge=1, le=4096)]
_Weight = Annotated[float, Field(ge=0.0)]
_Widths = Annotated[tuple[_Width, ...], Field(max_length=8, strict=False)]
_Steps = Annotated[tuple[_Width, ...], Field(min_length=1, strict=False)]
_T = TypeVar("_T")
_Names = Annotated[tuple[_T, ...], Field(strict=False), AfterValidator(_each_once)]
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Processes = Annotated[int, Field(ge=0, le=256)]

NEUTRAL = frozenset({"checkpoint_seconds", "env_workers", "learners", "shards"})
"""Keys of `runtime` that change no result."""
_POLICIES = ("heuristic", "medium", "random", "policy")


def _gymnasium_wrappers() -> list[str]:
    """Names of Gymnasium's own wrappers, read without loading it, which takes a second."""
    spec = find_spec("gymnasium")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name("wrappers").joinpath("__init__.py").read_text(encoding="utf-8")
    listed = text.partition("__all__ = ")[2].partition("]")[0] + "]"
    return [name for name in ast.literal_eval(listed) if name[0].isupper()]


def _keys(value: Any) -> Iterator[str]:
    """All keys of nested mappings and lists."""
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(inner)


def _tracked(instead: str) -> AfterValidator:
    """Refuse keyword arguments that DVC would not track, and say what to do `instead`."""

    def check(kwargs: dict[str, Any]) -> dict[str, Any]:
        if overlooked := [name for name in _keys(kwargs) if name in ("size", "nfiles")]:
            what = f"DVC's run cache overlooks keys named {overlooked[0]!r} inside a mapping"
            raise ValueError(f"{what}, so that a change could go unnoticed; {instead}")
        return kwargs

    return AfterValidator(check)


class WrapperConfig(Schema):
    """Settings of one wrapper around each environment.
    In `params.yaml`, a plain string names a wrapper without arguments."""

    name: str = Field(min_length=1, description="class in `gymnasium.wrappers`, or `module:Wrapper` for your own")
    kwargs: Annotated[
        dict[str, Any], _tracked("fix it in a wrapper of one's own, a subclass, and use 'module:Wrapper'")
    ] = Field(
        default_factory=dict,
        validate_default=True,
        description="keyword arguments of the wrapper; lists reach it as tuples",
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if ":" in name:
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not of the form 'module:Wrapper'")
        elif name not in (known := _gymnasium_wrappers()):
            raise ValueError(
                f"gymnasium.wrappers has no {name!r}{suggestion(name, known)}; one's own is 'module:Wrapper'"
            )
        return name


_Wrapper = Annotated[WrapperConfig, BeforeValidator(lambda given: {"name": given} if isinstance(given, str) else given)]


if TYPE_CHECKING:
    _Backend = str
else:
    _Backend = Annotated[Literal[*BACKENDS], _or_of_a_package(plugins.BACKENDS, "env.backend", BACKENDS)]


class EnvConfig(Schema):
    """Settings of the environment in which the population trains."""

    id: str = Field(
        "LunarLander-v3", min_length=1, description="Gymnasium id, or `module:EnvId` for an environment of your own"
    )
    kwargs: Annotated[
        dict[str, Any], _tracked("register the environment under an id of its own with it, and use 'module:EnvId'")
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


class CollectConfig(Schema):
    """Settings of `fetch.source: collect`, which records episodes of behaviour policies in the environment."""

    episodes: int = Field(60, ge=1, le=10**6, description="number of episodes to record")
    policies: dict[str, _Weight] = Field(
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

        path: str = Field("data/dataset.hdf5", description="path of the HDF5 file")

    class Table(Schema):
        """Settings of `fetch.source: table`, which reads a CSV or Parquet file with one row per step, in the order of
        time.

        A column name that ends with `*` stands for all columns that begin with the name, in the file's order.
        """

        path: str = Field("data/dataset.csv", description="path of the table, which ends in .csv or .parquet")
        observations: _Names[str] = Field(("obs*",), min_length=1, description="columns of the observation")
        actions: _Names[str] = Field(
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
        next_observations: _Names[str] = Field(
            (), description="columns of the observation after the step; []: the next row has it"
        )

    source: Literal["collect", "minari", "hdf5", "table"] = Field(
        "collect",
        description="source of the dataset: `collect`, episodes recorded in the environment; `minari`, a Minari "
        "dataset; `hdf5`, a D4RL or AgileRL file; `table`, a CSV or Parquet file. The block of the same name has its "
        "settings",
    )
    collect: CollectConfig = Field(default_factory=CollectConfig)
    minari: Minari = Field(default_factory=Minari)
    hdf5: Hdf5 = Field(default_factory=Hdf5)
    table: Table = Field(default_factory=Table)


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
    latent: _Width = Field(128, description="width of the latent, the layer between encoder and head")
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
    kwargs: Annotated[dict[str, Any], _tracked("give it another name")] = Field(
        default_factory=dict, validate_default=True, description="keyword arguments of `module`; may be left out"
    )

    @field_validator("module")
    @classmethod
    def _written_well(cls, module: str | None) -> str | None:
        if module is not None and not NAME.fullmatch(module):
            raise ValueError(f"{module!r} is not of the form 'module:Class'")
        return module

    @model_validator(mode="after")
    def _of_a_module(self) -> Self:
        if self.kwargs and self.module is None:
            raise located(
                [(("kwargs",), "arguments of a module, and there is none: name it, `module`, or delete this")]
            )
        return self

    _spare = left_out("module", "kwargs")


class NormaliseConfig(Schema):
    """Settings of running normalisation, by the statistics of the observations and rewards that each member has
    received."""

    observations: bool = Field(
        False,
        description="whether networks read standardised observations: minus their running mean, divided by their "
        "running standard deviation. Images and one-hot columns stay as they are",
    )
    rewards: bool = Field(
        False,
        description="whether members learn from rewards that are divided by the running standard deviation of "
        "discounted returns; for on-policy algorithms only. Reports and fitness keep the environment's own rewards",
    )
    clip: float = Field(
        10.0, gt=0, description="largest absolute value of a normalised number; larger ones are clipped"
    )


class ReplayConfig(Schema):
    """Settings of the replay buffer (Lin, 1992): capacity, sharing, n-step returns, and prioritised sampling."""

    capacity: int = Field(100_000, ge=1, le=10**9, description="number of transitions that a replay buffer holds")
    sharing: Literal["shared", "own"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        "shared",
        description="members that fill and sample the same replay buffer: `shared`, all members; `own`, each member "
        "has its own; a number n, each group of n neighbouring members (a group stays in one shard, see "
        "`runtime.shards`)",
    )
    n_step: int = Field(
        1, ge=1, le=100, description="environment steps of an n-step return; fewer where an episode ends before"
    )
    updates: Literal["pooled"] | Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="number of updates that a member makes every `learn_step` environment steps; `pooled`: as many as "
        "there are members that train now, because all of them fill the shared replay buffer",
    )
    evaluation: bool = Field(
        False, description="whether evaluation episodes go into the replay buffer too; single agents only"
    )
    prioritised: bool = Field(
        False,
        description="whether transitions with a large TD error are sampled more often (Schaul et al., 2016); every "
        "member has its own priorities",
    )
    alpha: float = Field(
        0.6, ge=0, le=1, description="exponent α of priorities: 0 samples uniformly, 1 in proportion to the TD error"
    )
    beta: float = Field(
        0.4, ge=0, le=1, description="exponent β of importance-sampling weights at the start; it rises to 1 at the end"
    )

    def at_once(self, living: int) -> int:
        """Return how many updates a member makes each time it learns, if `living` members train now."""
        return living if self.updates == "pooled" else self.updates

    def members(self, population: int) -> int:
        """Return how many of `population` members share a replay buffer."""
        return population if self.sharing == "shared" else 1 if self.sharing == "own" else self.sharing


class TrainConfig(Schema):
    """Settings of the training. Steps are environment steps of *each member*; with `mode: offline`, they are steps of
    learning from the dataset. On-policy algorithms are always online, and use neither `learning_delay`, `warm_start`
    nor `replay`."""

    algo: str = Field("dqn", description="name of the algorithm, whose hyper-parameters are in its block of `algos`")
    mode: Literal["online", "offline"] = Field(
        "online",
        description="`online`: members learn from their own steps in the environment; `offline`: from the whole "
        "dataset alone (off-policy algorithms only; `learning_delay`, `warm_start`, `replay.capacity` and "
        "`replay.sharing` have no effect)",
    )
    max_steps: int = Field(
        130_000, ge=1, le=10**12, description="environment steps of each member in the whole training"
    )
    evo_steps: int = Field(5_000, ge=1, le=10**12, description="environment steps of each member in one generation")
    learning_delay: int = Field(
        1_000, ge=0, le=10**12, description="environment steps of each member before its first update"
    )
    warm_start: int = Field(
        20_000,
        ge=0,
        le=10**9,
        description="number of transitions of the dataset that are in the replay buffer at the start, or all if the "
        "dataset has fewer; 0: none, the buffer starts empty",
    )
    eval_episodes: int = Field(16, ge=1, le=10**5, description="evaluation episodes of each member in each generation")
    eval_steps: int | None = Field(
        None, ge=1, description="environment steps after which an evaluation episode is cut; null: never"
    )
    evaluation: Literal["full", "race"] = Field(
        "full",
        description="`full`: every member plays all evaluation episodes; `race`: a member stops once its rank is clear "
        "enough to select",
    )
    target: float | Literal["auto"] | None = Field(
        "auto", description="mean return at which training ends early; `auto`: the environment's threshold; null: none"
    )
    confirm_episodes: int = Field(
        100,
        ge=2,
        le=10**5,
        description="evaluation episodes that score a new best member again if its fitness reaches `target`",
    )
    confirmation: Literal["full", "sequential"] = Field(
        "full",
        description="`full`: a confirmation plays all `confirm_episodes`; `sequential`: it stops when its outcome is "
        "clear",
    )
    lowest_score: float | None = Field(
        None,
        description="return that no episode can fall below, by which `confirmation: sequential` knows early that the "
        "target is reached; null: unknown, and it ends early only if the target is missed",
    )
    target_sigmas: float = Field(
        2.0, ge=0.0, description="standard errors by which a confirmed mean return must exceed `target`"
    )
    normalise: NormaliseConfig = Field(default_factory=NormaliseConfig)
    replay: ReplayConfig = Field(default_factory=ReplayConfig)
    callbacks: CallbacksConfig = Field(default_factory=CallbacksConfig, validate_default=True)
    curriculum: FunctionName | None = Field(
        None,
        validate_default=True,
        description="function, as `module:function`, of progress and score, which returns the arguments in which the "
        "next generation's training environments differ from `env.kwargs`; null: none; may be left out",
    )

    _spare = left_out("callbacks", "curriculum")


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
        __pydantic_extra__: dict[str, _Weight]

        none: _Weight = Field(0.4, description="weight of no mutation: the child equals its parent")
        architecture: _Weight = Field(
            0.2,
            description="weight of adding or removing a layer, units, latent width or channels, or changing a kernel",
        )
        parameters: _Weight = Field(0.2, description="weight of Gaussian noise on some of the network's weights")
        activation: _Weight = Field(0.2, description="weight of another activation function")
        rl_hp: _Weight = Field(0.2, description="weight of a change of one hyper-parameter in `evolve`")

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
    activations: _Names[Activation] = Field(
        ("ReLU", "ELU", "GELU"), min_length=1, description="activation functions that an activation mutation draws from"
    )
    mutate_elite: bool = Field(False, description="whether the fittest member in slot 0 is mutated too")
    before_training: bool = Field(
        False, description="whether each initial member is mutated once, by any kind but `none`"
    )
    architecture: ArchitectureBounds = Field(default_factory=ArchitectureBounds)


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
        description="number of processes that step environments; `auto`: by the numbers of CPUs and environments; 0: "
        "the training process steps them itself. Changes no result",
    )
    learners: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto",
        description="number of processes or threads among which members' updates are divided on the CPU; `auto`: by "
        "the numbers of CPUs and members, and the work; 1: no division, which `threads` above 1 needs. Changes no "
        "result",
    )
    checkpoint_seconds: float = Field(30.0, gt=0.0, description="least seconds between two checkpoints")
    shards: ShardsConfig = Field(default_factory=ShardsConfig, validate_default=True)


class PopulationConfig(Schema):
    """Settings of the initial population, whose members train side by side and evolve."""

    size: int = Field(4, ge=1, le=4096, description="number of members")
    start: str | None = Field(
        None, description="folder of trained members to start from, a copy of `models/trained`; null: random weights"
    )


class TrackingConfig(Schema):
    """Settings of the trackers in which runs can be viewed and compared. A local log is always written."""

    backends: _Names[Tracker] = Field(("mlflow",), description="trackers that receive the runs; []: the local log only")
    experiment: _Name | None = Field(
        None, description="name under which trackers group runs; null: `env.id`, or `language.task`"
    )
    register_as: _Name | None = Field(None, description="model name under which MLflow registers the elite; null: none")
    finish_seconds: float = Field(
        60.0,
        ge=0.0,
        le=86_400.0,
        description="seconds that a tracker may go on sending in the background after the run",
    )
