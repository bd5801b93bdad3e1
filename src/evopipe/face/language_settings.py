"""What scripts call the hyper-parameters of language models, as an algorithm's block of `params.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from evopipe import algos
from evopipe.errors import UsageError, suggestion
from evopipe.face.settings import RLParameter, evolve_of


class LanguageSettings(TypedDict, total=False):
    """Hyper-parameters of algorithms for language models. Each algorithm has its own defaults, see
    `evopipe params block`; one that it has not is refused."""

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


_NAMES: dict[str, tuple[str, ...]] = {
    "lr": ("lr", "lr_value"), "lr_actor": ("lr",), "lr_critic": ("lr_value",), "beta": ("beta",),
    "max_grad_norm": ("grad_clip",), "update_epochs": ("epochs",), "group_size": ("group_size",),
    "temperature": ("temperature",), "top_p": ("top_p",), "top_k": ("top_k",), "ent_coef": ("ent_coef",),
    "gamma": ("gamma",), "gae_lambda": ("gae_lambda",), "vf_coef": ("vf_coef",), "nll_alpha": ("nll_alpha",),
}  # fmt: skip
_OTHERWISE = frozenset({"batch_size", "clip_coef", "loss_type", "adv_norm", "max_output_tokens"})
# What a script keeps there for itself, or for another object; and what saves memory there, and changes no result.
_KEPT = frozenset(
    "algo dataset env_name model_path pop_size population_size tourn_size elitism eval_loop evo_steps max_steps "
    "num_epochs pad_token pad_token_id reduce_memory_peak calc_position_embeddings micro_batch_size_per_gpu "
    "gradient_checkpointing use_memory_efficient_params wandb".split()
)


def language_block(
    algo: str, given: Mapping[str, Any], ranges: Mapping[str, RLParameter] | None, prompts: int | None
) -> dict[str, Any]:
    """Return the block of an algorithm, by its name here, of `LanguageSettings`, or the same in capitals. `ranges` say
    which of them may mutate, None for the algorithm's own ranges, group sizes excepted; `prompts` how many an agent is
    asked in a step, None where nobody knows yet. Raises UsageError if a key is another algorithm's, or nobody's."""
    config = algos.get(algo).Config
    fields, block = config.model_fields, {}
    settings = {key.lower(): value for key, value in given.items()}
    for key, value in sorted(settings.items()):  # lr comes before those of its own
        if key in _KEPT or (value is None and key in (*_NAMES, *_OTHERWISE)):
            continue
        names = [name for name in _NAMES.get(key, ()) if name in fields]
        if key not in _NAMES and key not in _OTHERWISE:
            raise UsageError(f"{algo}: nobody reads {key!r}{suggestion(key, [*_NAMES, *_OTHERWISE])}")
        if key in _NAMES and not names:
            raise UsageError(f"{algo}: it has no {key!r}: leave it out")
        for name in names:
            whole = isinstance(value, int) and not isinstance(value, bool) and fields[name].annotation is float
            block[name] = float(value) if whole else value
    if (clip := settings.get("clip_coef")) is not None:
        _need(algo, "clip_coef", "clip_low" in fields)
        low, high = clip if isinstance(clip, (tuple, list)) else (clip, clip)
        block |= {"clip_low": float(low), "clip_high": float(high)}
    if (kind := settings.get("loss_type")) is not None:
        _need(algo, "loss_type", "cispo" in fields and kind in ("grpo", "gspo", "cispo"))
        block |= {"cispo": kind == "cispo", "level": "sequence" if kind == "gspo" else "token"}
    if (norm := settings.get("adv_norm")) is not None:
        _need(algo, "adv_norm", "dr" in fields and norm in ("mean_std", "mean_only"))
        block["dr"] = norm == "mean_only"
    if "rows" in fields:
        group = block.get("group_size", fields["group_size"].default)
        rows = max(group, settings.get("batch_size") or 1) if prompts is None else prompts * group
        block |= {"rows": rows, "batch_size": min(rows, settings.get("batch_size") or rows)}
    else:
        size = settings.get("batch_size")
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
