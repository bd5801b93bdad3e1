"""Configuration of a trainer: overrides in any form, in rLLM's documented names or in those of `params.yaml`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from evopipe import algos
from evopipe.agents.settings import Agents
from evopipe.errors import DataError, MissingInputError, ParamsError, suggestion
from evopipe.schema.declare import explain
from evopipe.schema.text import LanguageParams

Values = dict[str, Any]
_BLOCKS = ("language", "population", "train", "evolution", "evaluate", "export", "runtime", "tracking", "algos")
_TRAIN = "algos.*"  # stands for the block of the algorithm in use


class _To(NamedTuple):
    """Where a documented key goes."""

    key: str
    change: Callable[[Any], Any] = lambda value: value


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in ("true", "1", "yes")


def _mean(value: str) -> str:
    known = {"token-mean": "token", "seq-mean-token-mean": "sequence"}
    if value not in known:
        raise ParamsError(
            f"actor_rollout_ref.actor.loss_agg_mode: {value!r} is not known here{suggestion(str(value), known)}"
        )
    return known[value]


_SAME: dict[str, _To] = {
    "data.max_prompt_length": _To("language.max_prompt"),
    "data.max_response_length": _To("language.max_completion"),
    "data.seed": _To("seed"),
    "actor_rollout_ref.model.path": _To("language.model"),
    "actor_rollout_ref.model.lora_rank": _To("language.rank"),
    "actor_rollout_ref.actor.optim.lr": _To(f"{_TRAIN}.lr", float),
    "actor_rollout_ref.actor.ppo_epochs": _To(f"{_TRAIN}.epochs"),
    "actor_rollout_ref.actor.kl_loss_coef": _To(f"{_TRAIN}.beta", float),
    "actor_rollout_ref.actor.clip_ratio_low": _To(f"{_TRAIN}.clip_low", float),
    "actor_rollout_ref.actor.clip_ratio_high": _To(f"{_TRAIN}.clip_high", float),
    "actor_rollout_ref.actor.entropy_coeff": _To(f"{_TRAIN}.ent_coef", float),
    "actor_rollout_ref.actor.grad_clip": _To(f"{_TRAIN}.grad_clip", float),
    "actor_rollout_ref.actor.loss_agg_mode": _To(f"{_TRAIN}.mean", _mean),
    "actor_rollout_ref.rollout.temperature": _To(f"{_TRAIN}.temperature", float),
    "actor_rollout_ref.rollout.top_p": _To(f"{_TRAIN}.top_p", float),
    "actor_rollout_ref.rollout.top_k": _To(f"{_TRAIN}.top_k", lambda value: max(0, int(value))),
    "actor_rollout_ref.rollout.val_kwargs.n": _To("agents.samples"),
    "actor_rollout_ref.rollout.val_kwargs.temperature": _To("agents.temperature", float),
    "algorithm.gamma": _To("agents.gamma", float),
    "algorithm.norm_adv_by_std_in_grpo": _To(f"{_TRAIN}.dr", lambda value: not _truth(value)),
    "trainer.total_training_steps": _To("train.max_steps"),
    "trainer.test_freq": _To("train.evo_steps"),
    "trainer.val_before_train": _To("agents.first", _truth),
    "trainer.experiment_name": _To("tracking.experiment"),
    "rllm.agent.max_steps": _To("agents.max_steps"),
    "rllm.agent.trajectory_timeout": _To("agents.episode_seconds", float),
    "rllm.agent.engine_args.retry_limit": _To("agents.retries"),
    "rllm.agent.engine_args.max_workers": _To("agents.workers"),
    "rllm.agent.engine_args.n_parallel_agents": _To("agents.at_once"),
    "rllm.workflow.n_parallel_tasks": _To("agents.at_once"),
    "rllm.workflow.retry_limit": _To("agents.retries"),
    "rllm.stepwise_advantage.gamma": _To("agents.gamma", float),
}
_OWN = {
    "data.train_batch_size", "data.train_files", "data.val_files", "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.clip_ratio", "algorithm.adv_estimator", "algorithm.lam", "trainer.total_epochs",
    "trainer.project_name", "trainer.logger", "trainer.default_local_dir", "trainer.val_only",
    "rllm.workflow.use_workflow", "rllm.stepwise_advantage.enable", "rllm.stepwise_advantage.mode",
    "rllm.stepwise_advantage.normalize_by_steps", "rllm.compact_filtering.enable", "rllm.agent.overlong_filter",
    "rllm.mask_truncated_samples", "rllm.rejection_sample.enable",
}  # fmt: skip
_BLOCKS_OF_ARGUMENTS = ("rllm.agent.agent_args", "rllm.env.env_args", "rllm.workflow.workflow_args")
_FILTERS = {
    f"rllm.compact_filtering.mask_{name}": name
    for name in (
        "max_prompt_length_exceeded", "max_response_length_exceeded", "env_done", "max_turns_exceeded", "timeout",
        "unknown", "error",
    )
}  # fmt: skip
_WITHOUT: dict[str, str] = {
    "data": "all tasks of a step are played at once",
    "actor_rollout_ref.hybrid_engine": "one process generates and learns",
    "actor_rollout_ref.actor": "the model learns in this process, in float32 and without shards",
    "actor_rollout_ref.ref": "the reference is the base, which is there",
    "actor_rollout_ref.rollout": "completions are decoded in this process",
    "actor_rollout_ref.model": "a base is loaded as it is",
    "algorithm": "the algorithm's own block below `algos` has what it needs",
    "critic": "no critic but `ppo_language`'s value head, see `algos.ppo_language`",
    "reward_model": "rewards come from environments, workflows and reward functions",
    "custom_reward_function": "pass reward_fn",
    "trainer.n_gpus_per_node": "one device, see `runtime.device`",
    "trainer.nnodes": "one machine",
    "trainer.save_freq": "a run is saved by time, see `runtime.checkpoint_seconds`",
    "trainer": "nothing here asks for it",
    "ray_init": "nothing starts Ray with engine='local'",
    "rllm.agent.name": "pass agent_class",
    "rllm.env.name": "pass env_class",
    "rllm.workflow.name": "pass workflow_class",
    "rllm": "nothing here asks for it",
}
_ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "rloo": ("reinforce", {"baseline": "rloo"}),
    "reinforce": ("reinforce", {}),
    "reinforce_plus_plus": ("reinforce", {}),
    "reinforce_plus_plus_baseline": ("reinforce", {}),
    "gae": ("ppo_language", {}),
}


@dataclass
class Resolved:
    """A configuration in effect.

    Attributes:
        params: as a `params.yaml` of language models has it.
        agents: the block for episodes.
        folder: where a run is kept; None: nowhere.
        arguments: `agent_args`, `env_args` and `workflow_args` that the configuration brings.
        files: paths of datasets by `train` and `val`.
        origin: of each key that is no default, where its value came from.
        notes: keys without a meaning here, a sentence each.
        val_only: whether to validate and not to train.
    """

    params: LanguageParams
    agents: Agents
    folder: Path | None
    arguments: dict[str, dict[str, Any]]
    files: dict[str, str]
    origin: dict[str, str]
    notes: list[str] = field(default_factory=list)
    val_only: bool = False


def read(config: Any) -> tuple[Values, bool]:
    """Return overrides by dotted keys, and whether they are a whole configuration, in which unknown keys are usual.

    Args:
        config: None; a mapping, dotted or nested; a list of `key=value`; the path of a YAML file; or any object of
            nested attributes, such as OmegaConf's.

    Raises:
        ParamsError: it is something else, or a text is not of the form `key=value`.
        MissingInputError, DataError: the file is not there, or is no mapping.
    """
    if config is None:
        return {}, False
    if isinstance(config, Mapping):
        return dict(_flat(config)), hasattr(config, "_metadata") or type(config).__name__ == "DictConfig"
    if isinstance(config, Path) or (isinstance(config, str) and "=" not in config):
        return dict(_flat(_yaml(Path(config)))), True
    if isinstance(config, str):
        config = [config]
    if isinstance(config, Sequence):
        return dict(_override(text) for text in config), False
    if hasattr(config, "__dict__"):
        return dict(_flat(vars(config))), True
    raise ParamsError(
        f"config: of type {type(config).__name__}; pass a mapping, a list of 'key=value', or the path of a YAML file"
    )


def _yaml(path: Path) -> Any:
    try:
        found = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingInputError(f"config: {path} is not there") from None
    except (OSError, ValueError, YAMLError) as error:
        raise DataError(f"config: {path} cannot be read ({error})") from None
    if not isinstance(found, Mapping):
        raise DataError(f"config: {path} holds {type(found).__name__}, expected keys")
    return found


def _override(text: Any) -> tuple[str, Any]:
    key, sign, value = str(text).partition("=")
    if not sign or not key.strip("+~ "):
        raise ParamsError(f"config: {text!r} is not of the form 'key=value'")
    return key.strip("+~ "), YAML(typ="safe").load(value) if value else None


def _flat(data: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        path = f"{before}.{key}" if before else str(key)
        if path in _BLOCKS_OF_ARGUMENTS or path.endswith((".evolve", ".kwargs", ".estimators")):
            yield path, _deep(value)
        elif isinstance(value, Mapping):
            yield from _flat(value, path)
        elif hasattr(value, "__dict__") and type(value).__module__ in ("argparse", "types"):
            yield from _flat(vars(value), path)
        else:
            yield path, _deep(value)


def _deep(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _deep(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_deep(each) for each in value]
    return value


def resolve(config: Any, population: Any, tasks: int, name: str) -> Resolved:
    """Bring overrides to what a run is configured by.

    Args:
        config: see `read`.
        population: None for one member; how many; or a mapping, the blocks `population`, `evolution` and `evolve`.
        tasks: rows of the training data.
        name: what the run is called.

    Raises:
        ParamsError: a key is unknown or a value cannot be used.
    """
    given, whole = read(config)
    given = {key: value for key, value in given.items() if value is not None}
    told: Values = {}
    origin: dict[str, str] = {}
    notes: dict[str, str] = {}
    documented = {key: value for key, value in given.items() if key in _SAME or key in _OWN or key in _FILTERS}
    arguments = {block.rpartition(".")[2]: given.get(block) or {} for block in _BLOCKS_OF_ARGUMENTS}
    for key in given:
        for block in _BLOCKS_OF_ARGUMENTS:
            if key.startswith(block + "."):
                arguments[block.rpartition(".")[2]] = {
                    **arguments[block.rpartition(".")[2]], key[len(block) + 1 :]: given[key]
                }  # fmt: skip
    algo, extra = _algorithm(given)

    def put(key: str, value: Any, source: str) -> None:
        key = key.replace(_TRAIN, f"algos.{algo}")
        told[key], origin[key] = value, source

    put("train.algo", algo, "algorithm.adv_estimator" if "algorithm.adv_estimator" in given else "default")
    put("language.task", name, "the classes that were passed")
    put("fetch.source", "jsonl", "the datasets that were passed")
    for key, value in extra.items():
        put(f"{_TRAIN}.{key}", value, "algorithm.adv_estimator")
    for key, value in documented.items():
        if key in _SAME:
            put(_SAME[key].key, _SAME[key].change(value), f"{key}={value}")
    if documented.get("actor_rollout_ref.model.lora_rank") == 0:
        del told["language.rank"], origin["language.rank"]
        put("language.full", True, "actor_rollout_ref.model.lora_rank=0")
    _shape(documented, put, algo, tasks, given)
    _others(documented, put, algo, given)
    if masks := _masks(documented):
        put("agents.mask", masks, "rllm.compact_filtering")
    for key, value in _members(population, algo):
        put(key, value, "population")
    for key, value in given.items():
        if key in documented or key.startswith(_BLOCKS_OF_ARGUMENTS):
            continue
        if key == "seed" or key.partition(".")[0] in (*_BLOCKS, "agents"):
            put(key, value, f"{key}={value}")
            continue
        why = next((text for start, text in _WITHOUT.items() if key == start or key.startswith(start + ".")), None)
        known = [*_SAME, *_OWN, *_FILTERS, *_BLOCKS_OF_ARGUMENTS, *_natives(algo)]
        listed = any(
            key == start or key.startswith(start + ".") for start in _WITHOUT if "." in start or start == "ray_init"
        )
        near = suggestion(key, known) if not whole and not listed else ""
        if why is None or near.startswith(", did you mean"):
            raise ParamsError(f"config: unknown key {key!r}{near[:300]}")
        notes[key] = f"{key}: has no meaning here: {why}"
    return _made(told, origin, list(notes.values()), given, arguments, algo)


def _natives(algo: str) -> Iterator[str]:
    config = algos.get(algo).Config
    yield from (f"algos.{algo}.{key}" for key in config.model_fields)
    yield from (f"agents.{key}" for key in Agents.model_fields)
    for block in ("language", "train", "runtime"):
        schema: Any = LanguageParams.model_fields[block].annotation
        yield from (f"{block}.{key}" for key in schema.model_fields)


def _algorithm(given: Values) -> tuple[str, dict[str, Any]]:
    if "train.algo" in given:
        return str(given["train.algo"]), {}
    named = str(given.get("algorithm.adv_estimator", "grpo"))
    if named not in _ESTIMATORS:
        raise ParamsError(f"algorithm.adv_estimator: unknown {named!r}{suggestion(named, _ESTIMATORS)}")
    return _ESTIMATORS[named]


def _shape(documented: Values, put: Callable[..., None], algo: str, tasks: int, given: Values) -> None:
    """Tasks of a step, rollouts of each, and how many steps there are."""
    block = algos.get(algo).Config()
    group = int(documented.get("actor_rollout_ref.rollout.n", given.get(f"algos.{algo}.group_size", block.group_size)))
    batch = documented.get("data.train_batch_size")
    if "actor_rollout_ref.rollout.n" in documented:
        put(f"{_TRAIN}.group_size", group, f"actor_rollout_ref.rollout.n={group}")
    rows = given.get(f"algos.{algo}.rows", block.rows)
    if batch is not None or "actor_rollout_ref.rollout.n" in documented:
        of_each = int(batch) if batch is not None else max(1, block.rows // group)
        rows = of_each * group
        put(f"{_TRAIN}.rows", rows, f"data.train_batch_size={of_each} × actor_rollout_ref.rollout.n={group}")
        put(f"{_TRAIN}.batch_size", rows, "all of a step's rollouts")
    mini = documented.get("actor_rollout_ref.actor.ppo_mini_batch_size")
    if mini is not None:
        source = f"actor_rollout_ref.actor.ppo_mini_batch_size={mini} × actor_rollout_ref.rollout.n={group}"
        put(f"{_TRAIN}.batch_size", min(int(mini) * group, rows), source)
    epochs = documented.get("trainer.total_epochs")
    if epochs is not None and "trainer.total_training_steps" not in documented:
        steps = max(1, math.ceil(int(epochs) * tasks * group / max(1, rows)))
        put("train.max_steps", steps, f"trainer.total_epochs={epochs} × {tasks} tasks")


def _others(documented: Values, put: Callable[..., None], algo: str, given: Values) -> None:
    if not _truth(documented.get("actor_rollout_ref.actor.use_kl_loss", True)):
        put(f"{_TRAIN}.beta", 0.0, "actor_rollout_ref.actor.use_kl_loss=False")
    if (clip := documented.get("actor_rollout_ref.actor.clip_ratio")) is not None:
        for end in ("low", "high"):
            if f"actor_rollout_ref.actor.clip_ratio_{end}" not in documented:
                put(f"{_TRAIN}.clip_{end}", float(clip), f"actor_rollout_ref.actor.clip_ratio={clip}")
    if "algorithm.lam" in documented and algo == "ppo_language":
        put(f"{_TRAIN}.gae_lambda", float(documented["algorithm.lam"]), f"algorithm.lam={documented['algorithm.lam']}")
    if _truth(documented.get("rllm.stepwise_advantage.enable", False)):
        mode = documented.get("rllm.stepwise_advantage.mode", "broadcast")
        level = {"broadcast": "trajectory", "per_step": "turn"}.get(mode)
        if level is None:
            raise ParamsError(f"rllm.stepwise_advantage.mode: {mode!r}: must be 'broadcast' or 'per_step'")
        if level == "trajectory" and _truth(documented.get("rllm.stepwise_advantage.normalize_by_steps", False)):
            level = "step"
        put("agents.advantage", level, f"rllm.stepwise_advantage.mode={mode}")
    if "trainer.logger" in documented:
        told = documented["trainer.logger"]
        names = [told] if isinstance(told, str) else list(told)
        kept = [name for name in names if name in ("mlflow", "wandb", "tensorboard")]
        put("tracking.backends", kept, f"trainer.logger={told}")
    elif "tracking.backends" not in given:
        put("tracking.backends", [], "default")
    if "trainer.project_name" in documented and "trainer.experiment_name" not in documented:
        put("tracking.experiment", documented["trainer.project_name"], "trainer.project_name")


def _masks(documented: Values) -> list[str]:
    found = []
    if _truth(documented.get("rllm.compact_filtering.enable", False)):
        found = [name for key, name in _FILTERS.items() if _truth(documented.get(key, False))]
    long = ["max_prompt_length_exceeded", "max_response_length_exceeded"]
    if _truth(documented.get("rllm.agent.overlong_filter", False)):
        found += [*long, "max_turns_exceeded"]
    if _truth(documented.get("rllm.mask_truncated_samples", False)):
        found += long
    return list(dict.fromkeys(found))


def _members(population: Any, algo: str) -> Iterator[tuple[str, Any]]:
    """What is configured by `population`."""
    # Group sizes evolve where a range is given: the usual one may not fit into a small step.
    usual = algos.get(algo).Config().model_dump(mode="json")["evolve"]
    yield f"{_TRAIN}.evolve", {key: value for key, value in usual.items() if key != "group_size" and population}
    if population is None:
        yield "population.size", 1
        yield "evolution.mutation.probabilities.none", 1.0
        yield "evolution.mutation.probabilities.rl_hp", 0.0
        return
    if isinstance(population, int):
        yield "population.size", population
        return
    if not isinstance(population, Mapping):
        raise ParamsError(f"population: of type {type(population).__name__}; pass how many members, or a mapping")
    known = ("size", "start", "tournament", "mutation", "evolve")
    for key, value in population.items():
        if key not in known:
            raise ParamsError(f"population: unknown key {key!r}{suggestion(str(key), known)}")
        if key in ("size", "start"):
            yield f"population.{key}", value
        elif key == "evolve":
            yield f"{_TRAIN}.evolve", value
        else:
            yield from _flat(value, f"evolution.{key}")


def _made(
    told: Values,
    origin: dict[str, str],
    notes: list[str],
    given: Values,
    arguments: dict[str, dict[str, Any]],
    algo: str,
) -> Resolved:
    nested: dict[str, Any] = {}
    for key, value in told.items():
        *path, last = key.split(".")
        here = nested
        for step in path:
            here = here.setdefault(step, {})
        here[last] = value
    agents = nested.pop("agents", {})
    params = _validated(LanguageParams, nested, "")
    asked = params.train.algo
    if algos.get(asked).REGIME != "dialogue":
        able = [name for name in algos.names(of_text=True) if algos.get(name).REGIME == "dialogue"]
        raise ParamsError(f"train.algo: {asked} learns from no episodes; take {', '.join(able)}")
    if params.language.engine != "transformers":
        raise ParamsError("language.engine: agents' completions are decoded in this process; leave it at transformers")
    if params.runtime.shards.engine != "none":
        raise ParamsError("runtime.shards: agents play in one process; engine='ray' lets environments live on Ray")
    made = _validated(Agents, agents, "agents")
    for role, name in made.estimators.items():
        if name not in algos.names(of_text=True) or "value" in algos.get(name).asks(algos.get(name).Config()):
            raise ParamsError(f"agents.estimators.{role}: {name!r} compares no rewards; take grpo or reinforce")
    folder = given.get("trainer.default_local_dir")
    files = {
        split: str(given[key])
        for split, key in (("train", "data.train_files"), ("val", "data.val_files"))
        if key in given
    }
    return Resolved(
        params, made, Path(folder) if folder else None, arguments, files, origin, notes,
        _truth(given.get("trainer.val_only", False)),
    )  # fmt: skip


def _validated(schema: Any, data: dict[str, Any], block: str) -> Any:
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        lines = []
        for keys, sentence in explain(error, schema, data):
            path = ".".join(map(str, ((block,) if block else ()) + tuple(keys)))
            lines.append(f"config: {path}: {sentence}")
        raise ParamsError("\n".join(lines)) from None
