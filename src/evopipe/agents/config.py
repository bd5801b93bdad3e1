"""Configuration of a trainer: overrides in any form, in rLLM's documented names or in those of `params.yaml`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from evopipe import algos
from evopipe.agents.documented import (
    BLOCKS,
    BLOCKS_OF_ARGUMENTS,
    ESTIMATORS,
    FILTERS,
    OWN,
    SAME,
    TRAIN,
    WITHOUT,
    truth,
)  # fmt: skip
from evopipe.agents.settings import Agents
from evopipe.errors import DataError, MissingInputError, ParamsError, suggestion
from evopipe.schema.declare import explain
from evopipe.schema.text import LanguageParams

Values = dict[str, Any]


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
        if path in BLOCKS_OF_ARGUMENTS or path.endswith((".evolve", ".kwargs", ".estimators")):
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
    documented = {key: value for key, value in given.items() if key in SAME or key in OWN or key in FILTERS}
    arguments = {block.rpartition(".")[2]: given.get(block) or {} for block in BLOCKS_OF_ARGUMENTS}
    for key in given:
        for block in BLOCKS_OF_ARGUMENTS:
            if key.startswith(block + "."):
                arguments[block.rpartition(".")[2]] = {
                    **arguments[block.rpartition(".")[2]], key[len(block) + 1 :]: given[key]
                }  # fmt: skip
    algo, extra = _algorithm(given)

    def put(key: str, value: Any, source: str) -> None:
        key = key.replace(TRAIN, f"algos.{algo}")
        told[key], origin[key] = value, source

    put("train.algo", algo, "algorithm.adv_estimator" if "algorithm.adv_estimator" in given else "default")
    put("language.task", name, "the classes that were passed")
    put("fetch.source", "jsonl", "the datasets that were passed")
    for key, value in extra.items():
        put(f"{TRAIN}.{key}", value, "algorithm.adv_estimator")
    for key, value in documented.items():
        if key in SAME:
            put(SAME[key].key, SAME[key].change(value), f"{key}={value}")
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
        if key in documented or key.startswith(BLOCKS_OF_ARGUMENTS):
            continue
        if key == "seed" or key.partition(".")[0] in (*BLOCKS, "agents"):
            put(key, value, f"{key}={value}")
            continue
        why = next((text for start, text in WITHOUT.items() if key == start or key.startswith(start + ".")), None)
        known = [*SAME, *OWN, *FILTERS, *BLOCKS_OF_ARGUMENTS, *_natives(algo)]
        listed = any(
            key == start or key.startswith(start + ".") for start in WITHOUT if "." in start or start == "ray_init"
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
    if named not in ESTIMATORS:
        raise ParamsError(f"algorithm.adv_estimator: unknown {named!r}{suggestion(named, ESTIMATORS)}")
    return ESTIMATORS[named]


def _shape(documented: Values, put: Callable[..., None], algo: str, tasks: int, given: Values) -> None:
    """Tasks of a step, rollouts of each, and how many steps there are."""
    block = algos.get(algo).Config()
    group = int(documented.get("actor_rollout_ref.rollout.n", given.get(f"algos.{algo}.group_size", block.group_size)))
    batch = documented.get("data.train_batch_size")
    if "actor_rollout_ref.rollout.n" in documented:
        put(f"{TRAIN}.group_size", group, f"actor_rollout_ref.rollout.n={group}")
    rows = given.get(f"algos.{algo}.rows", block.rows)
    if batch is not None or "actor_rollout_ref.rollout.n" in documented:
        of_each = int(batch) if batch is not None else max(1, block.rows // group)
        rows = of_each * group
        put(f"{TRAIN}.rows", rows, f"data.train_batch_size={of_each} × actor_rollout_ref.rollout.n={group}")
        put(f"{TRAIN}.batch_size", rows, "all of a step's rollouts")
    mini = documented.get("actor_rollout_ref.actor.ppo_mini_batch_size")
    if mini is not None:
        source = f"actor_rollout_ref.actor.ppo_mini_batch_size={mini} × actor_rollout_ref.rollout.n={group}"
        put(f"{TRAIN}.batch_size", min(int(mini) * group, rows), source)
    epochs = documented.get("trainer.total_epochs")
    if epochs is not None and "trainer.total_training_steps" not in documented:
        steps = max(1, math.ceil(int(epochs) * tasks * group / max(1, rows)))
        put("train.max_steps", steps, f"trainer.total_epochs={epochs} × {tasks} tasks")


def _others(documented: Values, put: Callable[..., None], algo: str, given: Values) -> None:
    if not truth(documented.get("actor_rollout_ref.actor.use_kl_loss", True)):
        put(f"{TRAIN}.beta", 0.0, "actor_rollout_ref.actor.use_kl_loss=False")
    if (clip := documented.get("actor_rollout_ref.actor.clip_ratio")) is not None:
        for end in ("low", "high"):
            if f"actor_rollout_ref.actor.clip_ratio_{end}" not in documented:
                put(f"{TRAIN}.clip_{end}", float(clip), f"actor_rollout_ref.actor.clip_ratio={clip}")
    if "algorithm.lam" in documented and algo == "ppo_language":
        put(f"{TRAIN}.gae_lambda", float(documented["algorithm.lam"]), f"algorithm.lam={documented['algorithm.lam']}")
    if truth(documented.get("rllm.stepwise_advantage.enable", False)):
        mode = documented.get("rllm.stepwise_advantage.mode", "broadcast")
        level = {"broadcast": "trajectory", "per_step": "turn"}.get(mode)
        if level is None:
            raise ParamsError(f"rllm.stepwise_advantage.mode: {mode!r}: must be 'broadcast' or 'per_step'")
        if level == "trajectory" and truth(documented.get("rllm.stepwise_advantage.normalize_by_steps", False)):
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
    if truth(documented.get("rllm.compact_filtering.enable", False)):
        found = [name for key, name in FILTERS.items() if truth(documented.get(key, False))]
    long = ["max_prompt_length_exceeded", "max_response_length_exceeded"]
    if truth(documented.get("rllm.agent.overlong_filter", False)):
        found += [*long, "max_turns_exceeded"]
    if truth(documented.get("rllm.mask_truncated_samples", False)):
        found += long
    return list(dict.fromkeys(found))


def _members(population: Any, algo: str) -> Iterator[tuple[str, Any]]:
    """What is configured by `population`."""
    # Group sizes evolve where a range is given: the usual one may not fit into a small step.
    usual = algos.get(algo).Config().model_dump(mode="json")["evolve"]
    yield f"{TRAIN}.evolve", {key: value for key, value in usual.items() if key != "group_size" and population}
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
            yield f"{TRAIN}.evolve", value
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
        truth(given.get("trainer.val_only", False)),
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
