"""Configuration of an `AgentTrainer`: overrides in rLLM's documented names, or in those of `params.yaml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from evopipe import algos
from evopipe.agents.settings import Agents
from evopipe.compat.rllm.documented import (
    BLOCKS_OF_ARGUMENTS,
    ESTIMATORS,
    FILTERS,
    OWN,
    SAME,
    TRAIN,
    WITHOUT,
    Values,
    changed,
    idle,
    masks,
    others,
    shape,
    truth,
)  # fmt: skip
from evopipe.errors import MissingInputError, ParamsError, suggestion
from evopipe.params.text import LanguageParams
from evopipe.schema.declare import parsed
from evopipe.schema.read import parse_value, read_yaml

_BLOCKS = {*LanguageParams.model_fields, "agents"} - {"seed", "fetch"}  # agents bring their tasks themselves


@dataclass
class _Resolved:
    """A configuration in effect."""

    params: LanguageParams  # as a `params.yaml` of language models has it
    agents: Agents  # the block for episodes
    folder: Path | None  # where a run is kept; None: nowhere
    # `agent_args`, `env_args`, `workflow_args` and `ray_init` that the configuration brings
    arguments: dict[str, dict[str, Any]]
    files: dict[str, str]  # paths of datasets by `train` and `val`
    origin: dict[str, str]  # of each key that is no default, where its value came from
    notes: list[str] = field(default_factory=list)  # keys without a meaning here, a sentence each
    val_only: bool = False  # whether to validate and not to train


def read(config: Any) -> tuple[Values, bool]:
    """Return a configuration's overrides by dotted keys, and a bool: whether unknown keys in it are allowed.

    They are allowed in a YAML file, an object with attributes, or an OmegaConf configuration, because these may be
    complete configurations of rLLM. In a mapping or a list, an unknown key is an error.

    Args:
        config: None; a mapping, dotted or nested; a list of `key=value` and paths of YAML files, of which later entries
            override earlier ones; the path of a YAML file; or an object of nested attributes, such as OmegaConf's.

    Raises:
        ParamsError: `config` has another type, a text is not of the form `key=value`, or a file cannot be used, see
            `read_yaml`.
        MissingInputError: a file does not exist.
    """
    try:
        return _read(config)
    except RecursionError:
        raise ParamsError("config: a value holds itself, or mappings without end; write it out") from None


def _read(config: Any) -> tuple[Values, bool]:
    if config is None:
        return {}, False
    if isinstance(config, Mapping):
        try:
            return dict(_flat(config)), type(config).__name__ == "DictConfig"
        except Exception as error:
            if not type(error).__module__.startswith("omegaconf"):
                raise
            raise ParamsError(f"config: {str(error).strip().splitlines()[0]}") from None
    if isinstance(config, Path) or (isinstance(config, str) and "=" not in config):
        return dict(_flat(_yaml(Path(config)))), True
    if isinstance(config, str):
        config = [config]
    if isinstance(config, Sequence):
        return {key: value for text in config for key, value in _told(str(text))}, False
    if hasattr(config, "__dict__"):
        return dict(_flat(vars(config))), True
    raise ParamsError(
        f"config: of type {type(config).__name__}; pass a mapping, a list of 'key=value', or the path of a YAML file"
    )


def _yaml(path: Path) -> Any:
    if not path.exists():
        raise MissingInputError(f"config: {path} is not there")
    return read_yaml(path).data


def _told(text: str) -> Iterator[tuple[str, Any]]:
    """Yield what an entry of a list stands for: `key=value`, or all of a YAML file."""
    key, sign, value = text.partition("=")
    if not sign and text.endswith((".yaml", ".yml")):
        yield from _flat(_yaml(Path(text)))
    elif not sign or not key.strip("+~ "):
        raise ParamsError(f"config: {text!r} is not of the form 'key=value'")
    else:
        yield key.strip("+~ "), parse_value(value, f"config: {key}={value:.40}")


def _flat(data: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        path = f"{before}.{key}" if before else str(key)
        if path.startswith(BLOCKS_OF_ARGUMENTS) or path.endswith((".evolve", ".kwargs", ".estimators")):
            yield path, _deep(value)
        elif isinstance(value, Mapping):
            yield from _flat(value, path)
        elif is_dataclass(value) or type(value).__module__ in ("argparse", "types"):
            yield from _flat(vars(value), path)
        else:
            yield path, _deep(value)


def _deep(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _deep(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_deep(each) for each in value]
    return value


def resolve(config: Any, population: Any, tasks: int, name: str, engine: str = "local") -> _Resolved:
    """Return the complete configuration of a run: its parameters, the block `agents`, and the arguments with which
    agents, environments and workflows are constructed.

    Args:
        config: overrides, see `read`.
        population: None for one member; the number of members; or a mapping of `size`, `start`, `evolve`, `tournament`
            and `mutation`.
        tasks: the number of training tasks.
        name: the run's name, which is also the name of its environment.
        engine: `local`, or `ray`; only `ray` uses the keys `ray_init`.

    Raises:
        ParamsError: a key is unknown, or a value cannot be used.
    """
    overrides, complete = read(config)
    overrides = {key: value for key, value in overrides.items() if value is not None}
    values: Values = {}
    origin: dict[str, str] = {}
    notes: dict[str, list[str]] = {}  # keys by the reason why they have no meaning
    documented = {key: value for key, value in overrides.items() if key in SAME or key in OWN or key in FILTERS}
    arguments = {block.rpartition(".")[2]: _arguments(block, overrides.get(block)) for block in BLOCKS_OF_ARGUMENTS}
    for key, value in overrides.items():
        for block in BLOCKS_OF_ARGUMENTS:
            if key.startswith(block + "."):
                arguments[block.rpartition(".")[2]][key[len(block) + 1 :]] = value
    arguments["ray_init"] = {key: value for key, value in arguments["ray_init"].items() if value is not None}
    if engine != "ray" and arguments["ray_init"]:
        notes["nothing starts Ray with engine='local'"] = [f"ray_init.{key}" for key in arguments["ray_init"]]
    algo, extra = _algorithm(overrides)
    block_of = algos.get(algo).Config.model_fields

    def put(key: str, value: Any, source: str) -> None:
        key = key.replace(TRAIN, f"algos.{algo}")
        values[key], origin[key] = value, source

    put("train.algo", algo, "algorithm.adv_estimator" if "algorithm.adv_estimator" in overrides else "default")
    put("language.task", name, "the classes that were passed")
    put("fetch.source", "jsonl", "the datasets that were passed")
    put("export.merged", False, "default")
    for key, value in extra.items():
        put(f"{TRAIN}.{key}", value, "algorithm.adv_estimator")
    for key, value in documented.items():
        if key not in SAME:
            continue
        block, _, last = SAME[key].key.rpartition(".")
        if block == TRAIN and last not in block_of:
            notes.setdefault(f"{algo} has no {last}", []).append(key)
            continue
        put(SAME[key].key, changed(key, value, SAME[key].change), f"{key}={value}")
    if documented.get("actor_rollout_ref.model.lora_rank") == 0:
        del values["language.rank"], origin["language.rank"]
        put("language.full", True, "actor_rollout_ref.model.lora_rank=0")
    shape(documented, put, algo, tasks, overrides)
    others(documented, put, algo, overrides)
    if masked := masks(documented):
        put("agents.mask", masked, "rllm.compact_filtering")
    for key, value in _members(population, algo):
        put(key, value, "population")
    for key, why in idle(documented, algo):
        notes.setdefault(why, []).append(key)
    for key, value in overrides.items():
        if key in documented or key.startswith(BLOCKS_OF_ARGUMENTS):
            continue
        if key == "seed" or key.partition(".")[0] in _BLOCKS:
            put(key, value, f"{key}={value}")
            continue
        notes.setdefault(_unknown(key, complete, algo), []).append(key)
    sentences = [
        f"{', '.join(keys)}: {'have' if len(keys) > 1 else 'has'} no meaning here: {why}" for why, keys in notes.items()
    ]
    return _made(values, origin, sentences, overrides, arguments)


def _unknown(key: str, complete: bool, algo: str) -> str:
    """Return why a key has no meaning here; ParamsError if it is a mistake: of a complete file keys may be anything."""
    start = next((start for start in WITHOUT if key == start or key.startswith(start + ".")), None)
    if start is not None and "." in start:
        return WITHOUT[start]
    near = suggestion(key, [*SAME, *OWN, *FILTERS, *BLOCKS_OF_ARGUMENTS, *_natives(algo)])
    meant = near.startswith(", did you mean")
    if not complete and (start is None or meant):
        raise ParamsError(f"config: unknown key {key!r}{near[:300]}")
    return f"it is unknown{near}" if meant else WITHOUT.get(start or "", "it is unknown")


def _arguments(block: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ParamsError(f"config: {block}: of type {type(value).__name__}, expected a mapping of arguments")
    return dict(value or {})


def _natives(algo: str) -> Iterator[str]:
    config = algos.get(algo).Config
    yield from (f"algos.{algo}.{key}" for key in config.model_fields)
    yield from (f"agents.{key}" for key in Agents.model_fields)
    for block in ("language", "train", "runtime"):
        schema: Any = LanguageParams.model_fields[block].annotation
        yield from (f"{block}.{key}" for key in schema.model_fields)


def _algorithm(overrides: Values) -> tuple[str, dict[str, Any]]:
    if "train.algo" in overrides:
        return str(overrides["train.algo"]), {}
    named = str(overrides.get("algorithm.adv_estimator", "grpo"))
    if named not in ESTIMATORS:
        raise ParamsError(f"algorithm.adv_estimator: unknown {named!r}{suggestion(named, ESTIMATORS)}")
    return ESTIMATORS[named]


def _members(population: Any, algo: str) -> Iterator[tuple[str, Any]]:
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
        elif isinstance(value, Mapping):
            yield from _flat(value, f"evolution.{key}")
        else:
            yield f"evolution.{key}", value


def _made(
    values: Values, origin: dict[str, str], notes: list[str], overrides: Values, arguments: dict[str, dict[str, Any]]
) -> _Resolved:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        here = nested
        for step in path:
            here = here.setdefault(step, {})
            if not isinstance(here, dict):
                raise ParamsError(
                    f"config: {key}: {step} is given as {here!r:.40} too, and holds keys; give one of them"
                )
        here[last] = value
    agents = nested.pop("agents", {})
    params = parsed(LanguageParams, nested, "config: ")
    asked = params.train.algo
    able = [name for name in algos.names(None) if algos.regime_name(name) == "dialogue"]
    if asked not in able:
        raise ParamsError(f"train.algo: {asked} learns from no episodes; take {', '.join(able)}")
    if params.language.engine != "transformers":
        raise ParamsError("language.engine: agents' completions are decoded in this process; leave it at transformers")
    if params.runtime.shards.engine != "none":
        raise ParamsError(
            "runtime.shards.engine: agents play in one process; engine='ray' lets environments live on Ray"
        )
    made = parsed(Agents, agents, "config: agents.")
    learns_values = "value" in algos.get(asked).asks(params.algo_config)
    for role, name in made.estimators.items():
        if learns_values:
            raise ParamsError(f"agents.estimators.{role}: {asked} learns values, and compares nothing by role")
        if name not in able or "value" in algos.get(name).asks(algos.get(name).Config()):
            raise ParamsError(f"agents.estimators.{role}: {name!r} compares no rewards; take grpo or reinforce")
    if learns_values and (idle := [key for key in ("advantage", "gamma") if key in agents]):
        notes.append(f"{', '.join(f'agents.{key}' for key in idle)}: no meaning with {asked}, which learns values")
    folder = overrides.get("trainer.default_local_dir")
    files = {
        split: str(overrides[key])
        for split, key in (("train", "data.train_files"), ("val", "data.val_files"))
        if key in overrides
    }
    return _Resolved(
        params, made, Path(folder) if folder else None, arguments, files, origin, notes,
        truth(overrides.get("trainer.val_only", False)),
    )  # fmt: skip
