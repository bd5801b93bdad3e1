"""The dictionaries of AgileRL's scripts, `INIT_HP`, `NET_CONFIG` and ranges, as a block of `params.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from evopipe import algos
from evopipe.errors import ParamsError, UsageError, suggestion
from evopipe.schema.declare import evolvable

_SPELLED = {"neuralucb": "neural_ucb", "neuralts": "neural_ts", "rainbowdqn": "rainbow", "cql": "cqn", "cqldqn": "cqn"}
_RATES = ("lr", "lr_actor", "lr_critic")
# Key of INIT_HP → the names that it may have in an algorithm's block: all that there are.
_KEYS: dict[str, tuple[str, ...]] = {
    "BATCH_SIZE": ("batch_size",), "LR": _RATES, "LR_ACTOR": ("lr_actor",), "LR_CRITIC": ("lr_critic",),
    "LEARN_STEP": ("learn_step",), "GAMMA": ("gamma", "exploration"), "TAU": ("tau",), "DOUBLE": ("double",),
    "POLICY_FREQ": ("policy_delay",), "GAE_LAMBDA": ("gae_lambda",), "ACTION_STD_INIT": ("std",),
    "CLIP_COEF": ("clip",), "ENT_COEF": ("ent_coef",), "VF_COEF": ("vf_coef",), "MAX_GRAD_NORM": ("grad_clip",),
    "TARGET_KL": ("target_kl",), "UPDATE_EPOCHS": ("epochs",), "NUM_ATOMS": ("atoms",), "V_MIN": ("v_min",),
    "V_MAX": ("v_max",), "NOISE_STD": ("noisy_sigma",), "EXPL_NOISE": ("noise_sd",), "THETA": ("ou_theta",),
    "SHARE_ENCODERS": ("share_encoder",), "MAX_SEQ_LEN": ("max_seq_len",), "SQUASH_OUTPUT": ("squash",),
    "LAMBDA": ("ridge",), "LAMB": ("ridge",), "REG": ("decay",), "CONTEXTS": ("contexts",),
}  # fmt: skip
# What a script keeps there for itself, or for another object; and what follows from the spaces.
_OTHERS = frozenset(
    "ENV_NAME ALGO DATASET EPISODES MAX_STEPS TARGET_SCORE MEMORY_SIZE TOURN_SIZE ELITISM POP_SIZE POPULATION_SIZE "
    "EVO_EPOCHS EVO_STEPS EVAL_STEPS EVAL_LOOP LEARNING_DELAY WANDB CHANNELS_LAST NUM_ENVS RECURRENT "
    "USE_ROLLOUT_BUFFER N_AGENTS AGENT_IDS MAX_ACTION MIN_ACTION DISCRETE_ACTIONS OU_NOISE O_U_NOISE N_STEP PER ALPHA "
    "BETA EPS_START EPS_END EPS_DECAY EVO_LOOP EPISODE_STEPS MEAN_NOISE DT VECT_NOISE_DIM PRIOR_EPS NOISY "
    "COMBINED_REWARD CUDAGRAPHS NORMALIZE_IMAGES TORCH_COMPILER ROLLOUT_BUFFER_CONFIG ACTION_BATCH_SIZE CLIP_ACTIONS "
    "BPTT_SEQUENCE_TYPE MUT".split()
)
_RANGES = {"update_epochs": "epochs", "max_grad_norm": "grad_clip", "policy_freq": "policy_delay"}
# A name that stands for each of these that an algorithm has.
_SEVERAL = {"lr": (*_RATES, "lr_value"), "lr_policy": ("lr",), "clip_coef": ("clip", "clip_low", "clip_high")}
_BOUNDS = {"min_mlp_nodes", "max_mlp_nodes", "min_hidden_layers", "max_hidden_layers", "min_blocks", "max_blocks",
           "min_hidden_state_size", "max_hidden_state_size", "min_layers", "max_layers"}  # fmt: skip
"""How far an architecture may mutate there; here `evolution.mutation.architecture` says so for all networks."""
_ENCODER = {"hidden_size", "activation", "hidden_state_size", "num_layers", "max_seq_len", "channel_size",
            "kernel_size", "stride_size", "layer_norm", "num_blocks", "output_activation", *_BOUNDS}  # fmt: skip
_SEQUENCES = {"chunked": "chunked", "maximum": "overlapping", "fifty_percent_overlap": "overlapping"}


@dataclass(frozen=True)
class RLParameter:
    """The range of a hyper-parameter that may mutate, and the factors by which a mutation multiplies it.

    Args:
        min, max: bounds of the range, inclusive.
        shrink_factor, grow_factor: a mutation multiplies the value by either factor, with equal probability.
        dtype: `float`, or `int` for an integer hyper-parameter, which changes by at least 1; None for the
            hyper-parameter's own type. Another type is an error.

    Examples:
        >>> from evopipe import RLParameter
        >>> RLParameter(min=1e-4, max=1e-2, grow_factor=1.5)
        RLParameter(min=0.0001, max=0.01, shrink_factor=0.8, grow_factor=1.5, dtype=None)
    """

    min: float
    max: float
    shrink_factor: float = 0.8
    grow_factor: float = 1.2
    dtype: type | None = None


class HyperparameterConfig(dict[str, RLParameter]):
    """A dictionary of the hyper-parameters that may mutate: their ranges by name.

    Examples:
        >>> from evopipe import HyperparameterConfig, RLParameter
        >>> ranges = HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2), batch_size=RLParameter(min=8, max=512))
        >>> [*ranges]
        ['lr', 'batch_size']
    """

    def __init__(self, **ranges: RLParameter) -> None:
        super().__init__(ranges)


def algorithm_of(algo: str) -> str:
    """Return evopipe's name of an algorithm: `dqn` for `DQN`, `rainbow` for `Rainbow DQN`.

    Raises:
        ParamsError: there is no algorithm of this name.
    """
    plain = "".join(letter for letter in algo.lower() if letter.isalnum())
    name = _SPELLED.get(plain, plain)
    if name not in algos.names():
        raise ParamsError(f"algo: no algorithm {algo!r}{suggestion(name, algos.names())}")
    return name


def block_of(
    algo: str, hp: Mapping[str, Any], net: Mapping[str, Any], ranges: Mapping[str, RLParameter] | None
) -> dict[str, Any]:
    """Convert an AgileRL script's settings of an algorithm to the algorithm's block of `params.yaml`.

    Args:
        algo: evopipe's name of the algorithm.
        hp: `INIT_HP`. Keys of other algorithms, and keys that only the script itself reads, are ignored, because
            scripts often share this dictionary.
        net: `NET_CONFIG`.
        ranges: the ranges of hyper-parameters that may mutate; None for the algorithm's own ranges.

    Raises:
        UsageError: a key is unknown, so that it would have no effect.
    """
    fields = algos.get(algo).Config.model_fields
    block: dict[str, Any] = {}
    hp = {key.upper(): value for key, value in hp.items()}
    if hp.get("MEAN_NOISE"):
        raise UsageError(f"INIT_HP: MEAN_NOISE is {hp['MEAN_NOISE']!r}, and noise has mean 0 here: leave it out")
    for key, value in sorted(hp.items(), key=lambda item: item[0] != "LR"):  # a rate of its own comes after
        if key not in _KEYS:
            if key not in _OTHERS:
                raise UsageError(f"INIT_HP: nobody reads {key!r}{suggestion(key, [*_KEYS, *_OTHERS])}")
            continue
        for name in _KEYS[key]:
            if (name, value) == ("max_seq_len", None):
                block |= {"sequences": "whole"} if name in fields else {}
            elif name in fields:
                block[name] = 0.0 if (name, value) == ("target_kl", None) else _typed(fields[name], value)
    if "sequences" in fields and (cut := hp.get("BPTT_SEQUENCE_TYPE")) is not None:
        name = str(getattr(cut, "value", cut)).lower()
        if name not in _SEQUENCES:
            raise UsageError(f"bptt_sequence_type: there is no {name!r}{suggestion(name, _SEQUENCES)}")
        block.setdefault("sequences", _SEQUENCES[name])
    if "noise" in fields and (hp.get("O_U_NOISE") or hp.get("OU_NOISE")):
        block["noise"] = "ou"
    block["network"] = _network_of(net, bool(hp.get("RECURRENT")))
    encoder = net.get("encoder_config") or {}
    if "max_seq_len" in encoder and "max_seq_len" in fields:
        longest = encoder["max_seq_len"]
        block |= {"sequences": "whole"} if longest is None else {"max_seq_len": longest}
    if ranges is not None:
        block["evolve"] = evolve_of(algo, ranges)
    return block


def refuse_foreign(called: str, algo: str, settings: Mapping[str, Any]) -> None:
    """Check that an algorithm has all hyper-parameters in `settings`.

    Args:
        called: the name of the algorithm's class, with which error messages begin.
        algo: evopipe's name of the algorithm.
        settings: hyper-parameters by the names that AgileRL's classes use, such as `lr`.

    Raises:
        UsageError: a name is unknown, or belongs to another algorithm.
    """
    fields = algos.get(algo).Config.model_fields
    able = [key.lower() for key, names in _KEYS.items() if any(name in fields for name in names)]
    for given in settings:
        key = given.upper()
        if key not in _KEYS and key not in _OTHERS:
            raise UsageError(f"{called}: nobody reads {given!r}{suggestion(given, able)}")
        if key in _KEYS and given.lower() not in able:
            raise UsageError(f"{called}: it has no {given!r}: leave it out (there are {', '.join(able)})")


def documented(algo: str, name: str) -> str | None:
    """Return evopipe's name of the hyper-parameter that AgileRL's scripts call `name`; None if the algorithm `algo` has
    no such hyper-parameter."""
    fields = algos.get(algo).Config.model_fields
    return next((own for own in _KEYS.get(name.upper(), ()) if own in fields), None)


def _typed(field: Any, value: Any) -> Any:
    """Return a value as a field takes it: a whole number as a float where the field is one."""
    return float(value) if type(value) is int and field.annotation is float else value


def _network_of(net: Mapping[str, Any], recurrent: bool = False) -> dict[str, Any]:
    """Return the block `network` of what a script calls its network's configuration. Raises UsageError if a key is not
    known."""
    known = {"arch", "h_size", "hidden_size", "activation", "encoder_config", "head_config", "latent_dim", "layer_norm",
             "channels", "channel_size", "kernels", "kernel_size", "strides", "stride_size", "c_size", "k_size",
             "s_size", "simba", "min_latent_dim", "max_latent_dim"}  # fmt: skip
    encoder, head = dict(net.get("encoder_config") or {}), dict(net.get("head_config") or {})
    for where, block, able in (
        ("net_config", net, known),
        ("net_config['encoder_config']", encoder, _ENCODER),
        ("net_config['head_config']", head, {"hidden_size", "activation", "layer_norm", "output_activation", *_BOUNDS}),
    ):
        for key in block:
            if key not in able:
                raise UsageError(f"{where}: nobody reads {key!r}{suggestion(key, able)}")
    for key in ("activation", "layer_norm"):
        if head.get(key) not in (None, (chosen := encoder.get(key, net.get(key, head.get(key))))):
            raise UsageError(
                f"net_config: one {key} is for a whole network, encoder and head: head_config says {head[key]!r}, the "
                f"encoder {chosen!r}"
            )
    found: dict[str, Any] = {"layer_norm": True}
    flat = net.get("hidden_size", net.get("h_size"))
    if flat is not None:  # the latent is a hidden layer like the others
        *before, latent = flat
        found |= {"encoder": before or [latent], "latent": latent, "head": []}
    elif encoder or head or "latent_dim" in net:
        widths = encoder.get("hidden_size", [64])
        widths = [widths] * encoder.get("num_blocks", 1) if isinstance(widths, int) else widths
        found |= {"encoder": widths, "latent": net.get("latent_dim", 64), "head": []}
    if head.get("hidden_size"):
        found["head"] = head["hidden_size"]
    if "latent_dim" in net:
        found["latent"] = net["latent_dim"]
    for key in ("activation", "layer_norm"):
        for part in (head, net, encoder):
            if part.get(key) is not None:
                found[key] = part[key]
    kind = str(net.get("arch", "mlp"))
    if recurrent or kind == "lstm" or "hidden_state_size" in encoder:
        width = encoder.get("hidden_state_size", 64)
        found |= {"encoder_kind": "lstm", "encoder": [width] * encoder.get("num_layers", 1)}
    elif kind in ("simba", "resnet") or net.get("simba"):
        found["encoder_kind"] = "simba" if net.get("simba") else kind
    elif kind not in ("mlp", "cnn", "composed"):
        raise UsageError(f"net_config: no arch {kind!r}{suggestion(kind, ('mlp', 'cnn', 'simba', 'resnet', 'lstm'))}")
    if convolutions := _convolutions({**net, **encoder}):
        found["conv"] = convolutions
    return found


def _convolutions(net: Mapping[str, Any]) -> list[dict[str, int]]:
    parts = [
        next((net[name] for name in names if name in net), None)
        for names in (("channel_size", "channels", "c_size"), ("kernel_size", "kernels", "k_size"),
                      ("stride_size", "strides", "s_size"))
    ]  # fmt: skip
    if parts[0] is None:
        return []
    channels, kernels, strides = parts[0], parts[1] or [3] * len(parts[0]), parts[2] or [1] * len(parts[0])
    if not len(channels) == len(kernels) == len(strides):
        raise UsageError(
            f"net_config: {len(channels)} channels, {len(kernels)} kernels and {len(strides)} strides: give one of "
            "each for every convolution"
        )
    return [{"channels": c, "kernel": k, "stride": s} for c, k, s in zip(channels, kernels, strides, strict=True)]


def evolve_of(algo: str, ranges: Mapping[str, RLParameter]) -> dict[str, dict[str, float]]:
    """Return the block `algos.<name>.evolve` of `params.yaml` for these ranges.

    `ranges` maps the names of hyper-parameters to their ranges. The name `lr` stands for all learning rates of the
    algorithm.

    Raises:
        UsageError: a name is no hyper-parameter of the algorithm that may mutate, or the `dtype` of a range is not the
            hyper-parameter's type.
    """
    config = algos.get(algo).Config
    able, found = evolvable(config), {}
    for name, each in ranges.items():
        names = own_names(algo, name)
        if not names:
            raise UsageError(f"hp_config: {algo} has no {name!r} that can mutate{suggestion(name, able)}")
        for own in names:
            if each.dtype not in (None, kind := config.model_fields[own].annotation) and each.dtype is not float:
                raise UsageError(f"hp_config: {name} of {algo} is a {kind.__name__}, not {each.dtype.__name__}")
            found[own] = {
                "min": float(each.min), "max": float(each.max), "grow": each.grow_factor, "shrink": each.shrink_factor,
            }  # fmt: skip
    return found


def own_names(algo: str, name: str) -> list[str]:
    """Return evopipe's names of the hyper-parameters that AgileRL's name `name` stands for.

    Only hyper-parameters of the algorithm `algo` that may mutate are returned. For `lr` these are all learning rates,
    for any other name at most one hyper-parameter. If there is none, the list is empty.
    """
    able = evolvable(algos.get(algo).Config)
    if "lr_value" in able:  # of language models: the actor's is `lr` itself
        name = {"lr_actor": "lr_policy", "lr_critic": "lr_value"}.get(name, name)
    wanted: Iterable[str] = _SEVERAL.get(name, (_RANGES.get(name, name),))
    return [own for own in wanted if own in able]


# --- language models --------------------------------------------------------------------------------------------------


class LanguageSettings(TypedDict, total=False):
    """Hyper-parameters of algorithms for language models, by name.

    Hyper-parameters that are not given have the algorithm's defaults (`evopipe params block`). An error is raised for a
    hyper-parameter that the algorithm does not have.

    Attributes:
        batch_size: completions in an update.
        lr: the learning rate. In `LLMPPO` it is that of both the policy and the value.
        lr_actor, lr_critic: the learning rates of the policy and of the value.
        beta: the weight β of the divergence from the base model. In `DPO` it is the factor of log-probability ratios.
        clip_coef: how far a probability ratio may go from 1. A pair has one limit for below 1 and one for above 1.
        max_grad_norm: the largest norm of a gradient.
        update_epochs: passes over the completions of a step.
        group_size: completions of one prompt.
        temperature, top_p, top_k: settings of sampling.
        ent_coef: the weight of the entropy bonus.
        gamma, gae_lambda: the discount, and λ of generalised advantage estimation.
        vf_coef: the weight of the value's loss.
        nll_alpha: the weight of the chosen completion's log-likelihood, in `DPO`.
        loss_type: the form of the loss of `GRPO`.
        adv_norm: how advantages of a group are normalised: by mean and standard deviation, or by the mean only.
        max_output_tokens: the most tokens of a completion.
    """

    batch_size: int
    """Completions an update; None or more than a step has: all of a step."""
    lr: float
    """Learning rate; of `LLMPPO` of both."""
    lr_actor: float
    lr_critic: float
    beta: float
    """β, weight of the divergence from the base; of `DPO` how much a difference from it counts."""
    clip_coef: float | tuple[float, float]
    """How far a probability ratio may go from 1, down and up."""
    max_grad_norm: float
    update_epochs: int
    group_size: int
    """Completions of one prompt."""
    temperature: float
    top_p: float
    top_k: int
    ent_coef: float
    gamma: float
    gae_lambda: float
    vf_coef: float
    nll_alpha: float
    """Of `DPO`, weight of the chosen completion's own probability."""
    loss_type: Literal["grpo", "gspo", "cispo"]
    adv_norm: Literal["mean_std", "mean_only"]
    max_output_tokens: int
    """Most tokens of a completion."""


_LANGUAGE: dict[str, tuple[str, ...]] = {
    "lr": ("lr", "lr_value"), "lr_actor": ("lr",), "lr_critic": ("lr_value",), "beta": ("beta",),
    "max_grad_norm": ("grad_clip",), "update_epochs": ("epochs",), "group_size": ("group_size",),
    "temperature": ("temperature",), "top_p": ("top_p",), "top_k": ("top_k",), "ent_coef": ("ent_coef",),
    "gamma": ("gamma",), "gae_lambda": ("gae_lambda",), "vf_coef": ("vf_coef",), "nll_alpha": ("nll_alpha",),
}  # fmt: skip
_LANGUAGE_OTHERWISE = frozenset({"batch_size", "clip_coef", "loss_type", "adv_norm", "max_output_tokens"})
# What a script keeps there for itself, or for another object; and what saves memory there, and changes no result.
_LANGUAGE_KEPT = frozenset(
    "algo dataset env_name model_path pop_size population_size tourn_size elitism eval_loop evo_steps max_steps "
    "num_epochs pad_token pad_token_id reduce_memory_peak calc_position_embeddings micro_batch_size_per_gpu "
    "gradient_checkpointing use_memory_efficient_params wandb".split()
)


def language_block(
    algo: str, settings: Mapping[str, Any], ranges: Mapping[str, RLParameter] | None, prompts: int | None
) -> dict[str, Any]:
    """Convert a script's settings of a language algorithm to the algorithm's block of `params.yaml`.

    Args:
        algo: evopipe's name of the algorithm.
        settings: hyper-parameters by the names of `LanguageSettings`, or by the same names in capitals.
        ranges: the ranges of hyper-parameters that may mutate. None stands for the algorithm's own ranges; the group
            size then does not mutate.
        prompts: the number of an agent's prompts in a step; None if it is not known yet.

    Raises:
        UsageError: a key belongs to another algorithm, or is unknown.
    """
    config = algos.get(algo).Config
    fields = config.model_fields
    block: dict[str, Any] = {}
    lowered = {key.lower(): value for key, value in settings.items()}
    for key, value in sorted(lowered.items()):  # lr comes before those of its own
        if key in _LANGUAGE_KEPT or (value is None and key in (*_LANGUAGE, *_LANGUAGE_OTHERWISE)):
            continue
        names = [name for name in _LANGUAGE.get(key, ()) if name in fields]
        if key not in _LANGUAGE and key not in _LANGUAGE_OTHERWISE:
            raise UsageError(f"{algo}: nobody reads {key!r}{suggestion(key, [*_LANGUAGE, *_LANGUAGE_OTHERWISE])}")
        if key in _LANGUAGE and not names:
            raise UsageError(f"{algo}: it has no {key!r}: leave it out")
        block |= {name: _typed(fields[name], value) for name in names}
    if (clip := lowered.get("clip_coef")) is not None:
        _need(algo, "clip_coef", "clip_low" in fields)
        low, high = clip if isinstance(clip, (tuple, list)) else (clip, clip)
        block |= {"clip_low": float(low), "clip_high": float(high)}
    if (kind := lowered.get("loss_type")) is not None:
        _need(algo, "loss_type", "cispo" in fields and kind in ("grpo", "gspo", "cispo"))
        block |= {"cispo": kind == "cispo", "level": "sequence" if kind == "gspo" else "token"}
    if (norm := lowered.get("adv_norm")) is not None:
        _need(algo, "adv_norm", "dr" in fields and norm in ("mean_std", "mean_only"))
        block["dr"] = norm == "mean_only"
    if "rows" in fields:
        group = block.get("group_size", fields["group_size"].default)
        rows = max(group, lowered.get("batch_size") or 1) if prompts is None else prompts * group
        block |= {"rows": rows, "batch_size": min(rows, lowered.get("batch_size") or rows)}
    else:
        size = lowered.get("batch_size")
        if size is not None and prompts is not None and size < prompts:
            raise UsageError(
                f"{algo}: a step is one update from {prompts} pairs, and batch_size is {size}: give the environment "
                f"data_batch_size_per_gpu={size}"
            )
        block["batch_size"] = prompts or size or fields["batch_size"].default
    if ranges is None:
        own = fields["evolve"].get_default(call_default_factory=True)
        block["evolve"] = {name: each.model_dump() for name, each in own.items() if name != "group_size"}
    else:
        block["evolve"] = evolve_of(algo, ranges)
    return block


def _need(algo: str, key: str, able: bool) -> None:
    if not able:
        raise UsageError(f"{algo}: {key} is not of it, or has another value than there are: leave it out")
