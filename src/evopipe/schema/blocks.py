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
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_serializer,
    model_validator,
)

from evopipe import plugins
from evopipe.errors import ParamsError, suggestion
from evopipe.own import NAME
from evopipe.schema.declare import Problem, Schema, located, ordered, some_mass
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
    """Settings of one wrapper around each environment. In `params.yaml`, a plain string names a wrapper without
    arguments."""

    name: str = Field(min_length=1, description="a class of `gymnasium.wrappers`, or `module:Wrapper` for one's own")
    kwargs: Annotated[
        dict[str, Any], _tracked("fix it in a wrapper of one's own, a subclass, and use 'module:Wrapper'")
    ] = Field(
        default_factory=dict, validate_default=True, description="its keyword arguments; lists reach it as tuples"
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

    id: str = Field("LunarLander-v3", min_length=1, description="Gymnasium id, or `module:EnvId` for one's own")
    kwargs: Annotated[
        dict[str, Any], _tracked("register the environment under an id of its own with it, and use 'module:EnvId'")
    ] = Field(default_factory=dict, description="keyword arguments of `gymnasium.make`")
    wrappers: tuple[_Wrapper, ...] = Field(
        (),
        strict=False,
        max_length=32,
        description="what is put around each environment after `gymnasium.make`, the first one innermost: a name, or "
        "`{name: ..., kwargs: {...}}`",
    )
    num_envs: int = Field(16, ge=1, le=4096, description="environments of each member")
    backend: _Backend = Field(
        "sync",
        description="which implementation training steps: `sync`, Gymnasium's; `envpool`, envpool's own build of the "
        "same environments (an extra), faster and not equal in every bit; `torch`, evopipe's own classic control and "
        "four of mpe2's teams as tensors, which have the same physics and draw other initial states; `c`, classic "
        "control, grid worlds and MinAtar's games in C, fastest on the CPU, which draw other initial states too; or "
        "another package's (entry points `evopipe.backends`)",
    )
    source: str | None = Field(
        None, min_length=1, description="an environment of your own in C, `env.backend: c`: the file; null: none"
    )
    step_limit: int = Field(
        10_000,
        ge=1,
        le=10**9,
        description="steps after which an episode is truncated where the environment names no time limit of its own",
    )
    step_seconds: float = Field(
        600.0,
        gt=0.0,
        le=86_400.0,
        description="longest that an environment may take for one step or reset, or to be made: then it hangs, and the "
        "run ends; it cannot end a step in C (`env.backend: c`); changes no result",
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

    episodes: int = Field(60, ge=1, le=10**6, description="episodes to roll")
    policies: dict[str, _Weight] = Field(
        default_factory=lambda: {"heuristic": 0.5, "random": 0.5},
        description="weights of `heuristic` (a good rule), `medium` (a poor one with random actions in between), "
        "`random` and `policy`; an episode follows one of them",
    )
    policy_path: str | None = Field(None, description="an exported policy's folder, for the weight `policy`")
    max_steps: int | None = Field(None, ge=1, description="step cap of an episode; null: until it ends")

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

        dataset: str = Field("data/minari", description="a local folder, or a remote dataset id")

    class Hdf5(Schema):
        """Settings of `fetch.source: hdf5`, which reads a D4RL or AgileRL file. The file has observations, actions,
        rewards, terminals, and optionally timeouts and next observations."""

        path: str = Field("data/dataset.hdf5", description="the file")

    class Table(Schema):
        """Settings of `fetch.source: table`, which reads a CSV or Parquet file with one row per step, in the order of
        time.

        A column name that ends with `*` stands for all columns that begin with the name, in the file's order.
        """

        path: str = Field("data/dataset.csv", description="the file, .csv or .parquet")
        observations: _Names[str] = Field(("obs*",), min_length=1, description="columns of the observation")
        actions: _Names[str] = Field(
            ("action*",), min_length=1, description="columns of the action: one of whole numbers, or one a component"
        )
        rewards: str = Field("reward", description="column of rewards")
        terminals: str = Field("terminated", description="column that is 1 where an episode came to its own end")
        timeouts: str | None = Field(None, description="column that is 1 where an episode was cut; null: there is none")
        episodes: str | None = Field(
            None, description="column that differs from one episode to the next, such as its number; null: none"
        )
        next_observations: _Names[str] = Field((), description="columns of the observation after the step, if any")

    source: Literal["collect", "minari", "hdf5", "table"] = Field(
        "collect", description="which of the blocks below is used"
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
        description="of hidden layers: `uniform` in ±1/√inputs, `zeros`, or `auto`: `uniform` under a ReLU, which "
        "passes no gradient where an observation and the biases are zeros, else `zeros`",
    )
    acting: float = Field(0.1, gt=0, le=10, description="gain of the output layer of the network that chooses actions")
    others: float = Field(0.1, gt=0, le=10, description="gain of the output layers of the others, such as a critic")


class NetworkConfig(Schema):
    """Settings of the architecture that initial members have: observation → encoder → latent → head → output.

    Images in the observation go through the convolutions first; the convolutions have no effect without images. LSTM
    layers have gates instead of activation and normalisation.
    """

    class Conv(Schema):
        """Settings of one convolution layer."""

        channels: int = Field(ge=1, le=1024, description="channels that it gives")
        kernel: int = Field(ge=1, le=31, description="side of its square kernel, pixels")
        stride: int = Field(ge=1, le=31, description="pixels between two places of the kernel")

    encoder_kind: EncoderKind = Field(
        "mlp",
        description="`mlp`: plain layers, then the latent; `simba` and `resnet`: the latent, then a residual block for "
        "each width of `encoder`, normalised before (SimBa), activated before (ResNet); `lstm`: layers that remember "
        "from step to step, then the latent, for algorithms that carry a memory",
    )
    conv: tuple[Conv, ...] = Field(
        default_factory=lambda: tuple(NetworkConfig.Conv(channels=n, kernel=3, stride=2) for n in (16, 32)),
        max_length=8,
        strict=False,
        description="convolutions that each image of an observation goes through, [] to read images as plain numbers",
    )
    encoder: _Widths = Field((128,), description="hidden widths of the encoder")
    latent: _Width = Field(128, description="width between encoder and head")
    head: _Widths = Field((), description="hidden widths of the head")
    activation: Activation = Field("ReLU", description="activation after every hidden layer")
    layer_norm: bool = Field(False, description="layer normalisation before every activation")
    initialisation: InitialisationConfig = Field(
        default_factory=InitialisationConfig, description="what weights and biases begin with"
    )
    module: str | None = Field(
        None,
        validate_default=True,  # so that a file need not name it
        max_length=200,
        description="`module:Class`, a `torch.nn.Module` of one's own in the place of all this; may be left out",
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

    @model_serializer(mode="wrap")
    def _without_module(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what stands for no module: the other networks are written as they always were."""
        found: dict[str, Any] = handler(self)
        return {name: value for name, value in found.items() if value or name not in ("module", "kwargs")}


class NormaliseConfig(Schema):
    """Settings of running normalisation, by the statistics of the observations and rewards that each member has
    received."""

    observations: bool = Field(
        False,
        description="whether networks read observations less their running mean, over their standard deviation; not "
        "images, nor one-hot columns",
    )
    rewards: bool = Field(
        False,
        description="whether members learn from rewards over the standard deviation of their discounted returns, "
        "on-policy only; reports and fitness are in the environment's own rewards",
    )
    clip: float = Field(10.0, gt=0, description="largest size of a normalised number")


class ReplayConfig(Schema):
    """Settings of the replay buffer (Lin, 1992): capacity, sharing, n-step returns, and prioritised sampling."""

    capacity: int = Field(100_000, ge=1, le=10**9, description="transitions kept (per member where sharing is `own`)")
    sharing: Literal["shared", "own"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        "shared",
        description="`shared`: one memory that all members fill and sample; `own`: one memory a member; a number: one "
        "for so many neighbours, which stay in one shard (`runtime.shards`)",
    )
    n_step: int = Field(
        1, ge=1, le=100, description="environment steps that a transition spans, fewer where an episode ends"
    )
    updates: Literal["pooled"] | Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="updates that a member takes at once, every `learn_step`; `pooled`: one for each member that lives "
        "and fills the shared memory, so that learning follows the steps of all",
    )
    evaluation: bool = Field(
        False, description="whether what members do in evaluation episodes goes into the memory too; single agents only"
    )
    prioritised: bool = Field(
        False, description="sample what surprised most (Schaul et al., 2016), every member by its own priorities"
    )
    alpha: float = Field(0.6, ge=0, le=1, description="how much priorities count: 0 is uniform")
    beta: float = Field(
        0.4, ge=0, le=1, description="how much importance weights correct for that at the start; 1 at the end"
    )

    def at_once(self, living: int) -> int:
        """Return how many updates a member makes each time it learns, if `living` members train now."""
        return living if self.updates == "pooled" else self.updates

    def members(self, population: int) -> int:
        """Return how many of `population` members share a replay buffer."""
        return population if self.sharing == "shared" else 1 if self.sharing == "own" else self.sharing


class TrainConfig(Schema):
    """Settings of the training. Steps are environment steps of *each member*; offline, they are steps of learning from
    the dataset."""

    algo: str = Field("dqn", description="which algorithm: a block of `algos`")
    mode: Literal["online", "offline"] = Field(
        "online",
        description="`online`: act in the environment and learn; `offline`: learn from the dataset alone, all of it, "
        "without `learning_delay`, `warm_start`, `replay.capacity` and `replay.sharing`. An on-policy algorithm is "
        "online, and goes without all of these and the rest of `replay`",
    )
    max_steps: int = Field(130_000, ge=1, le=10**12, description="environment steps of each member")
    evo_steps: int = Field(5_000, ge=1, le=10**12, description="environment steps of each member between evolutions")
    learning_delay: int = Field(1_000, ge=0, le=10**12, description="environment steps of each member before it learns")
    warm_start: int = Field(
        20_000,
        ge=0,
        le=10**9,
        description="dataset transitions put into the replay first, all where there are fewer; 0: pure online",
    )
    eval_episodes: int = Field(16, ge=1, le=10**5, description="evaluation episodes of each member per generation")
    eval_steps: int | None = Field(None, ge=1, description="step cap of an evaluation episode; null: until it ends")
    evaluation: Literal["full", "race"] = Field(
        "full", description="`full`: everyone plays all episodes; `race`: until its rank decides nothing any more"
    )
    target: float | Literal["auto"] | None = Field(
        "auto", description="score that ends training early; `auto`: the environment's reward threshold; null: never"
    )
    confirm_episodes: int = Field(
        100, ge=2, le=10**5, description="episodes that confirm a new best member that clears the target"
    )
    confirmation: Literal["full", "sequential"] = Field(
        "full", description="`full`: all these episodes; `sequential`: until it is clear how they will end"
    )
    lowest_score: float | None = Field(
        None,
        description="a score below which no episode can fall; without it a sequential confirmation ends early only if "
        "it fails",
    )
    target_sigmas: float = Field(2.0, ge=0.0, description="standard errors by which the confirmed mean must clear it")
    normalise: NormaliseConfig = Field(default_factory=NormaliseConfig)
    replay: ReplayConfig = Field(default_factory=ReplayConfig)


class TournamentConfig(Schema):
    """Settings of tournament selection (Miller & Goldberg, 1995)."""

    size: int = Field(
        2,
        ge=0,
        le=4096,
        description="members drawn, with replacement, for each tournament; 0: none, healthy members go on",
    )
    elitism: bool = Field(True, description="the fittest member always survives, in slot 0")
    window: int = Field(1, ge=1, le=10**4, description="fitness is the mean of a member's last so many evaluations")


class ArchitectureBounds(Schema):
    """Bounds that mutated architectures must keep, and the step sizes of their mutations."""

    min_layers: int = Field(1, ge=0, le=8, description="fewest hidden layers of the encoder; the head may have none")
    max_layers: int = Field(3, ge=1, le=8, description="most hidden layers of encoder and of head")
    min_nodes: int = Field(32, ge=1, le=4096, description="fewest units of a hidden layer")
    max_nodes: int = Field(256, ge=1, le=4096, description="most units of a hidden layer")
    min_latent: int = Field(16, ge=1, le=4096, description="narrowest latent")
    max_latent: int = Field(256, ge=1, le=4096, description="widest latent")
    node_steps: _Steps = Field((16, 32, 64), description="units added or removed")
    latent_steps: _Steps = Field((8, 16, 32), description="latent width added or removed")
    min_channels: int = Field(8, ge=1, le=1024, description="fewest channels of a convolution")
    max_channels: int = Field(64, ge=1, le=1024, description="most channels of a convolution")
    channel_steps: _Steps = Field((8, 16), description="channels added or removed")
    min_kernel: int = Field(2, ge=1, le=31, description="smallest kernel; kernels change by 2")
    max_kernel: int = Field(7, ge=1, le=31, description="largest kernel")

    _ordered = ordered("layers", "nodes", "latent", "channels", "kernel")


class MutationConfig(Schema):
    """Settings of the mutation of children after selection."""

    class Probabilities(Schema):
        """Relative weights of the kinds of mutation; they need not sum to 1. Kinds that other packages provide (entry
        points `evopipe.mutations`) may be added by their names."""

        model_config = ConfigDict(extra="allow")
        __pydantic_extra__: dict[str, _Weight]

        none: _Weight = Field(0.4, description="child equals parent")
        architecture: _Weight = Field(
            0.2, description="add or remove a layer, nodes, latent width, or channels; change a kernel"
        )
        parameters: _Weight = Field(0.2, description="Gaussian noise on some weights")
        activation: _Weight = Field(0.2, description="another activation function")
        rl_hp: _Weight = Field(0.2, description="one RL hyper-parameter grows or shrinks")

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
    new_layer_prob: float = Field(0.2, ge=0.0, le=1.0, description="share of layer changes in architecture mutations")
    sd: float = Field(0.1, ge=0.0, le=10.0, description="standard deviation of parameter noise, relative to the weight")
    activations: _Names[Activation] = Field(
        ("ReLU", "ELU", "GELU"), min_length=1, description="what the activation mutation chooses from"
    )
    mutate_elite: bool = Field(False, description="whether the elite's own copy in slot 0 mutates too")
    before_training: bool = Field(False, description="mutate every initial member once (kind `none` excluded)")
    architecture: ArchitectureBounds = Field(default_factory=ArchitectureBounds)


class RuntimeConfig(Schema):
    """Settings of where and how a run computes: device, threads, kernels, processes, checkpoints."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: CUDA where present, else CPU")
    threads: int = Field(1, ge=1, le=256, description="torch threads; tracked, for it changes results in the last bits")
    cohorts: Literal["merged", "exact"] = Field(
        "merged", description="`merged`: unlike members may share a padded batch; `exact`: only like members do"
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="`auto`: CUDA graphs on a GPU, nothing on the CPU; `on`: `torch.compile` as well, which changes "
        "the last bits of results; `off`: neither",
    )
    kernels: Literal["auto", "native", "portable", "torch"] = Field(
        "auto",
        description="what computes networks on the CPU: `native`, kernels that a C compiler makes for this processor: "
        "faster, and other last bits than those of `torch`; `portable`: the same, made for AVX2; `auto`: native where "
        "there is a compiler",
    )
    env_workers: _Processes | Literal["auto"] = Field(
        "auto",
        description="processes that step environments; `auto`: by CPUs and environments; 0: none, the trainer steps "
        "them itself; changes no result",
    )
    learners: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto",
        description="processes, or threads, that divide the members' learning on the CPU; `auto`: by CPUs, members and "
        "work; 1: the trainer alone, as wherever `threads` is more than 1; changes no result",
    )
    checkpoint_seconds: float = Field(30.0, gt=0.0, description="least time between two checkpoints")
    shards: ShardsConfig = Field(default_factory=ShardsConfig, validate_default=True)


class PopulationConfig(Schema):
    """Settings of the initial population."""

    size: int = Field(4, ge=1, le=4096, description="members")
    start: str | None = Field(
        None, description="a folder of trained members to begin with in place of fresh ones: a copy of models/trained"
    )


class TrackingConfig(Schema):
    """Settings of the trackers in which runs can be viewed and compared. A local log is always written."""

    backends: _Names[Tracker] = Field(
        ("mlflow",), description="trackers that runs are brought to; none: the local log only"
    )
    experiment: _Name | None = Field(
        None, description="name that gathers runs in the tracker; null: `env.id`, or `language.task`"
    )
    register_as: _Name | None = Field(None, description="model name under which MLflow registers the elite; null: none")
    finish_seconds: float = Field(
        60.0, ge=0.0, le=86_400.0, description="how long a tracker may go on, in the background, after the run"
    )
