"""Write the pages of parameters from the schema: `python docs/make_parameters.py`; `--check` says what is stale.

Types, ranges, defaults and descriptions come from the schema. Units and the effect of raising a value come from there
too for an algorithm's hyper-parameters; for the rest they stand below, and a number without an entry is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from evopipe import algos, searchers
from evopipe.params.load import Params
from evopipe.params.text import LanguageParams
from evopipe.schema.declare import Evolve
from evopipe.schema.evolution import TournamentConfig

PAGE = Path(__file__).parent / "parameters.md"
LANGUAGE_PAGE = Path(__file__).parent / "language-parameters.md"

Notes: TypeAlias = "dict[str, tuple[str, str]]"
"""Unit and what raising does, of the numbers whose schema does not say."""

NOTES: Notes = {
    "seed": ("", "nothing but another run"),
    "env.num_envs": ("environments", "faster stepping; experience comes from more episodes at once"),
    "env.step_limit": ("environment steps", "an episode that does not end by itself lasts longer"),
    "env.step_seconds": ("seconds", "slower environments are no hang; a hang is noticed later"),
    "fetch.collect.episodes": ("episodes", "more data, longer stage"),
    "fetch.collect.max_steps": ("environment steps", "longer episodes"),
    "population.size": ("members", "wider search; time and evaluation grow with it"),
    "train.max_steps": ("environment steps of each member", "longer training"),
    "train.evo_steps": ("environment steps of each member", "fewer generations, each with more learning"),
    "train.learning_delay": ("environment steps of each member", "learning starts later, from more varied data"),
    "train.warm_start": ("transitions", "more of the dataset in the replay at the start"),
    "train.eval_episodes": ("episodes", "less noise in the fitness, more evaluation steps"),
    "train.eval_steps": ("environment steps", "longer evaluation episodes"),
    "train.target": ("return", "training ends later or never"),
    "train.confirm_episodes": ("episodes", "a surer score of the elite, more evaluation steps"),
    "train.lowest_score": ("return", "confirmations that succeed end earlier; too high: some end wrongly"),
    "train.target_sigmas": ("standard errors", "surer that the target is really reached, ends later"),
    "train.normalise.clip": ("standard deviations", "outliers count for more"),
    "train.replay.capacity": ("transitions", "older experience kept, more memory"),
    "train.replay.n_step": ("environment steps", "rewards reach further back, targets are noisier"),
    "search.budget": ("environment steps of the population", "a longer search"),
    "search.halving.eta": ("", "fewer go on from each rung, and rungs are farther apart"),
    "search.halving.rung": ("environment steps", "scores are compared later; a new trial costs more"),
    "search.halving.width": ("members", "members learn side by side, and are promoted by fewer scores"),
    "search.growth.slice": ("environment steps", "fewer decisions, each by more; fewer evaluations"),
    "search.growth.window": ("slices", "steadier projections that notice a change later"),
    "search.growth.factor": ("factor", "children are less like their parents"),
    "search.pbt.fraction": ("share of the members", "more are replaced in each generation; less variety"),
    "search.pbt.resample": ("chance", "more jumps through the whole range, fewer small steps"),
    "search.pbt.grow": ("factor", "larger steps upwards"),
    "search.pbt.shrink": ("factor", "smaller steps downwards"),
    "search.pb2.fraction": ("share of the members", "more are replaced in each generation; less variety"),
    "search.pb2.window": ("changes of scores", "older experience counts; a decision takes longer"),
    "search.mf_pbt.frequencies": ("generations", "a sub-population evolves less often: it is less greedy, and slower"),
    "search.mf_pbt.grow": ("factor", "larger steps upwards"),
    "search.mf_pbt.shrink": ("factor", "smaller steps downwards"),
    "search.schedule.steps": ("environment steps of each member", "longer lives"),
    "train.replay.hindsight.goals": (
        "goals",
        "more of what is learned from are other goals; the memory is full earlier",
    ),
    "train.replay.updates": ("updates", "learns more from fewer steps, slower; too many: less stable"),
    "train.replay.alpha": ("", "surprising transitions come more often"),
    "train.replay.beta": ("", "less bias early, smaller steps"),
    "evolution.tournament.size": ("members", "stronger selection, less variety"),
    "evolution.tournament.window": ("evaluations", "steadier fitness that reacts later"),
    "evolution.mutation.probabilities.none": ("weight", "fewer mutations"),
    "evolution.mutation.probabilities.architecture": ("weight", "more changes of layers and widths"),
    "evolution.mutation.probabilities.parameters": ("weight", "more noise on weights"),
    "evolution.mutation.probabilities.activation": ("weight", "more changes of activation"),
    "evolution.mutation.probabilities.rl_hp": ("weight", "more changes of hyper-parameters"),
    "evolution.mutation.new_layer_prob": ("share", "depth changes more often, width less"),
    "evolution.mutation.sd": ("share of the weight", "stronger parameter noise; 0 turns it off"),
    "evolution.mutation.architecture.min_layers": ("layers", "no part becomes as shallow"),
    "evolution.mutation.architecture.max_layers": ("layers", "deeper networks may appear, slower updates"),
    "evolution.mutation.architecture.min_nodes": ("units", "no layer becomes as narrow"),
    "evolution.mutation.architecture.max_nodes": ("units", "wider networks may appear, slower updates"),
    "evolution.mutation.architecture.min_latent": ("units", "the latent stays wider"),
    "evolution.mutation.architecture.max_latent": ("units", "the latent may become wider"),
    "evolution.mutation.architecture.min_channels": ("channels", "no convolution becomes as narrow"),
    "evolution.mutation.architecture.max_channels": ("channels", "wider convolutions may appear, slower updates"),
    "evolution.mutation.architecture.min_kernel": ("pixels", "no kernel becomes as small"),
    "evolution.mutation.architecture.max_kernel": ("pixels", "larger kernels may appear, slower updates"),
    "evaluate.episodes": ("episodes", "narrower interval, longer stage"),
    "evaluate.steps": ("environment steps", "longer episodes"),
    "evaluate.bootstrap": ("resamples", "a smoother interval"),
    "tracking.finish_seconds": ("seconds", "a slow tracker gets more of the run before `evopipe track sync` is needed"),
    "runtime.threads": ("threads", "faster on idle machines with large networks, slower on busy ones; other last bits"),
    "runtime.learners": ("processes", "members learn side by side while CPUs are idle; slower on busy ones"),
    "runtime.env_workers": ("processes", "environments step faster while CPUs are idle, slower on busy ones"),
    "train.callbacks.tick_steps": ("environment steps of each member", "`on_tick` is called less often"),
    "train.self_play.every": ("generations", "a slower league, whose members differ more"),
    "train.self_play.keep": ("opponents", "older opponents are met too, which are weaker and unlike"),
    "train.self_play.latest": ("probability", "more episodes against an equal, fewer against the past"),
    "train.self_play.explore": ("probability", "more unlike positions, weaker opponents"),
    "train.self_play.fixed": ("probability", "more episodes against whom members are scored by"),
    "runtime.shards.ranks": ("processes", "members learn faster, on more devices"),
    "runtime.shards.count": ("shards", "members train side by side on more devices; none has more than its own"),
    "runtime.checkpoint_seconds": ("seconds", "less time spent saving, more lost by a kill"),
    "<algo>.network.latent": ("units", "more capacity, slower updates"),
    "<algo>.network.initialisation.acting": ("", "first policies farther from uniform, or first values larger"),
    "<algo>.network.initialisation.others": ("", "first values larger"),
    "<evolve>.min": ("of the value", "small values are out of reach"),
    "<evolve>.max": ("of the value", "larger values come into reach"),
    "<evolve>.grow": ("factor", "larger steps upwards"),
    "<evolve>.shrink": ("factor", "smaller steps downwards"),
}

LANGUAGE_NOTES: Notes = {
    "seed": ("", "nothing but another run"),
    "language.tiny.hidden": ("numbers", "more capacity, slower"),
    "language.tiny.layers": ("layers", "more capacity, slower"),
    "language.tiny.heads": ("heads", "narrower heads"),
    "language.gpt.hidden": ("numbers", "more capacity, slower"),
    "language.gpt.layers": ("layers", "more capacity, slower"),
    "language.gpt.heads": ("heads", "more capacity, slower"),
    "language.gpt.head": ("numbers", "more capacity, slower"),
    "language.gpt.feedforward": ("nodes", "more capacity, slower"),
    "language.rank": ("", "adapters can change more, and take more memory"),
    "language.scale": ("factor", "adapters change more at the same learning rate"),
    "language.reward_seconds": ("seconds", "slow scores are no failures; a hang is noticed later"),
    "language.max_prompt": ("tokens", "longer prompts are kept, more memory"),
    "language.max_completion": ("tokens", "longer completions, more time and memory"),
    "fetch.generate.rows": ("rows", "more data, longer stage"),
    "fetch.validation": ("share of the rows", "less noise in the fitness, fewer rows to learn from"),
    "fetch.test": ("share of the rows", "narrower interval, fewer rows to learn from"),
    "population.size": ("members", "wider search; time and adapters grow with it, the base does not"),
    "train.max_steps": ("steps of each member", "longer training"),
    "train.evo_steps": ("steps of each member", "fewer generations, each with more learning"),
    "train.eval_episodes": ("rows", "less noise in the fitness, more time"),
    "train.confirm_episodes": ("rows", "a surer score of the elite, more time"),
    "train.target": ("score", "training ends later or never"),
    "train.target_sigmas": ("standard errors", "surer that the target is really reached, ends later"),
    "evolution.tournament.size": ("members", "stronger selection, less variety"),
    "evolution.tournament.window": ("evaluations", "steadier fitness that reacts later"),
    "evolution.mutation.probabilities.none": ("weight", "fewer mutations"),
    "evolution.mutation.probabilities.rank": ("weight", "ranks grow more often"),
    "evolution.mutation.probabilities.architecture": ("weight", "forms change more often"),
    "evolution.mutation.probabilities.rl_hp": ("weight", "more changes of hyper-parameters"),
    "evolution.mutation.max_rank": ("", "larger adapters may appear, more memory"),
    "evolution.mutation.gpt.min_layers": ("layers", "no shallower GPTs"),
    "evolution.mutation.gpt.max_layers": ("layers", "deeper GPTs may appear, slower"),
    "evolution.mutation.gpt.min_heads": ("heads", "no fewer heads"),
    "evolution.mutation.gpt.max_heads": ("heads", "more heads may appear, slower"),
    "evolution.mutation.gpt.min_nodes": ("nodes", "no narrower GPTs"),
    "evolution.mutation.gpt.max_nodes": ("nodes", "wider GPTs may appear, slower"),
    "evaluate.episodes": ("rows", "narrower interval, longer stage"),
    "evaluate.samples": ("completions", "more chances to be right once, longer stage"),
    "evaluate.bootstrap": ("resamples", "a smoother interval"),
    "search.budget": ("steps of the population", "a longer search"),
    "tracking.finish_seconds": NOTES["tracking.finish_seconds"],
    "runtime.threads": ("threads", "faster on idle machines with large bases; other last bits"),
    "runtime.rows_at_once": ("rows of each member", "faster, more memory; other last bits"),
    "runtime.checkpoint_seconds": NOTES["runtime.checkpoint_seconds"],
    "train.callbacks.tick_steps": ("steps", "`on_tick` is called less often"),
    "runtime.shards.count": NOTES["runtime.shards.count"],
    "runtime.shards.ranks": NOTES["runtime.shards.ranks"],
}

HEAD = """# Parameters

<!-- Made by docs/make_parameters.py: do not edit. -->

Every key of `params.yaml`. The file is complete: DVC does not see defaults that live in code, so a key that is missing
is an error, and the message names its default. Unknown keys are errors too. `runtime.shards`, `train.callbacks`,
`train.curriculum`, `train.self_play` and `train.replay.hindsight` may be left out. `evopipe params check` says what is
wrong and where,
`evopipe params show` prints what is in effect, `evopipe params schema` prints the JSON schema.

From Python (`evopipe.train({...})`) keys that are not given take the defaults below.

Rules between keys, which `evopipe params check` knows:

- `train.evo_steps` is at least `env.num_envs`. `population.size` times `env.num_envs` is at most 65,536,
  `train.replay.updates` times `env.num_envs` at most 8,192.
- `train.algo` names a block of `algos`. `bc` needs `train.mode: offline`. `ppo` needs `online`, and it alone may have
  `train.normalise.rewards: true`.
- The chosen algorithm's `batch_size` and `train.replay.n_step` are at most `train.replay.capacity`, online and where it
  learns from a memory; its `learn_step` is at most `train.max_steps`.
- `algos.ppo.batch_size` is at most `algos.ppo.learn_step`; `algos.rainbow.v_min` is below `algos.rainbow.v_max`,
  `algos.tqc.dropped` below `algos.tqc.quantiles`.
- A block of `algos.<name>.evolve` names a hyper-parameter that may evolve. Its `min` is at most its `max`, and the
  hyper-parameter itself may have both values.
- Each `min_` of `evolution.mutation.architecture` is at most its `max_`. At least one weight of
  `evolution.mutation.probabilities` is above 0. `evolution.mutation.activations` and `tracking.backends` name nothing
  twice.
- A strategy that begins new trials (`growth`, `halving`, `random`) needs `search.budget`, which is at least
  `train.evo_steps`, and a range in the chosen algorithm's `evolve`. `search.halving.width` is at most
  `population.size`, `search.halving.rung` at most `train.max_steps`, `search.growth.slice` at most `search.budget`.
  `search.mf_pbt.frequencies` ascend, and `population.size` is at least four for each.
- `search.schedule.steps` is at most `train.max_steps`; the `steps` of `search.schedule.changes` ascend and are below
  it.
- `train.curriculum` needs `env.backend: sync`, `train.mode: online` and `search.fitness: evaluation`; so does
  `train.self_play`, whose algorithm must give a logit or a value for each action. Its `latest` and `fixed` add up to at
  most 1.
- `train.replay.hindsight` needs an off-policy algorithm of single agents, `train.mode: online`, `env.backend: sync`,
  `train.replay.n_step: 1` and `train.replay.evaluation: false`; the strategy `final` has one goal.
- At least one weight of `fetch.collect.policies` is above 0. With one for `policy`, `fetch.collect.policy_path` is set.

Rules that need the environment or the machine, which the stages check:

- The algorithm serves the environment's actions, and the dataset has the environment's spaces.
- With `train.replay.hindsight`, the environment has [goals](goals.md), from which its rewards follow.
- In an environment that masks actions, `train.mode` is `online` and `train.warm_start` is 0.
- `population.start` names members of the same algorithm and environment.
- Only `ppo` takes `encoder_kind: lstm`. With `share_encoder: true` and continuous actions, `ddpg`, `td3` and `sac` need
  a width in `network.head`. Kernels of `network.conv` fit the image.
- `env.backend` has the environment, and `env.kwargs` fit it.
- `runtime.learners` above 1 needs `runtime.threads: 1`; `runtime.device: cuda` needs a CUDA device.

`train.replay` holds for all algorithms that learn from a memory: none sets `train.replay.n_step` or
`train.replay.prioritised` by itself, Rainbow neither. Transitions of a warm start span one step, whatever
`train.replay.n_step` says.
"""

LANGUAGE_HEAD = """# Parameters of language models

<!-- Made by docs/make_parameters.py: do not edit. -->

Every key of a `params.yaml` whose members are language models: `language` stands in the place of `env`. What
[parameters.md](parameters.md) says of the file holds here, too. The keys of `algos` are on the pages of
{}.

Rules between keys, which `evopipe params check` knows:

- A file has `env` or `language`, and `train.algo` is an algorithm of that kind.
- `algos.<name>.batch_size` is at most `algos.<name>.rows`, and so are `algos.<name>.group_size` and the largest value
  that it may evolve to. GRPO, and REINFORCE with `baseline: rloo`, compare a completion with others of its prompt:
  their groups have at least 2.
- `fetch.validation` and `fetch.test` leave something to learn from.

Rules that need the base or the machine, which the stages check:

- The base is a folder as `save_pretrained` writes it, with tokenizer and safetensors, or a hub id that can be reached.
  No pickle is read, and no code of a repository is run.
- A chat needs a chat template. Rows have what the algorithm reads: a prompt and an answer (`grpo`, `reinforce`,
  `ppo_language`), a prompt and a completion, or messages (`sft`), a prompt with a chosen and a rejected one (`dpo`),
  or a prompt, a completion and a label (`kto`).
"""


class Row(NamedTuple):
    """One key: the last part of its name, and the cells of its line."""

    name: str
    kind: str
    default: str
    unit: str
    doc: str
    raising: str


def render() -> str:
    """Return the page."""
    parts = [HEAD, *_sections(Params, "")]
    for name in searchers.OWN:
        config = searchers.get(name).Config
        if config.model_fields and config is not TournamentConfig:
            parts.append(f"## `search.{name}`\n\n{_summary(config)} How it decides: [evolution](evolution.md).\n")
            parts.append(table(rows(config, f"search.{name}")))
    for name in algos.names():
        config = algos.get(name).Config
        link = f"[algorithms/{name}.md](algorithms/{name}.md)"
        parts.append(f"## `algos.{name}`\n\n{_summary(config)} What it computes: {link}.\n")
        parts.append(table(rows(config, f"algos.{name}")))
        parts += _sections(config, f"algos.{name}")
    parts.append(
        "## `algos.<name>.evolve.<hyper-parameter>`\n\nOne block for each hyper-parameter that the `rl_hp` mutation "
        "may change. A hyper-parameter without a block never mutates. What the drawn direction gives is clipped to "
        "the range; whole numbers move by at least 1.\n"
    )
    parts.append(table(rows(Evolve, "<evolve>")))
    return "\n".join(parts)


def render_language() -> str:
    """Return the page of language models."""
    links = [f"[{name}](algorithms/{name}.md)" for name in algos.names("text")]
    head = LANGUAGE_HEAD.format(", ".join(links[:-1]) + f" and {links[-1]}")
    return "\n".join([head, *_sections(LanguageParams, "", LANGUAGE_NOTES)])


def _sections(model: type[BaseModel], path: str, notes: Notes = NOTES) -> Iterator[str]:
    """One section a block, parents before children."""
    if not path:
        yield "## Top level\n"
        yield table(rows(model, path, notes))
    for name, field in model.model_fields.items():
        block, here = _block(field.annotation), f"{path}.{name}".lstrip(".")
        if block is not None:
            lines = rows(block, here, notes)
            if lines:
                yield f"## `{here}`\n\n{_summary(block)}\n"
                yield table(lines)
            yield from _sections(block, here, notes)


def _summary(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").partition("\n\n")[0].split())


def rows(model: type[BaseModel], path: str, notes: Notes = NOTES) -> list[Row]:
    """Return the keys of a block that hold values, not blocks."""
    found = []
    for name, field in model.model_fields.items():
        if _block(field.annotation) is None and f"{path}.{name}" != ".algos":
            key = f"{path}.{name}".lstrip(".")
            shown = key if not key.startswith("<") else name
            unit, raising = _notes(field, key, notes)
            found.append(Row(f"`{shown}`", kind_of(field), default_of(field), unit, field.description or "", raising))
    return found


def _notes(field: FieldInfo, path: str, notes: Notes) -> tuple[str, str]:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get("raising"):
        return str(extra["unit"]), str(extra["raising"])
    for name in algos.names():
        path = path.replace(f"algos.{name}.", "<algo>.")
    numeric = any(part in (int, float) for part in (field.annotation, *get_args(field.annotation)))
    if numeric and path not in notes:
        name = "NOTES" if notes is NOTES else "LANGUAGE_NOTES"
        own = path.startswith(("<algo>.", "algos."))
        remedy = "give its `hyper(...)` a `unit` and say what `raising` it does" if own else f"add them to {name}"
        raise SystemExit(f"docs/make_parameters.py: {path} has no unit and effect: {remedy}")
    return notes.get(path, ("", ""))


def table(lines: list[Row]) -> str:
    """Return a table of keys, without the columns that are empty throughout."""
    if not lines:
        return ""
    heads = ("Key", "Type, range", "Default", "Unit", "What it does", "Raising it")
    used = [i for i in range(len(heads)) if any(line[i] for line in lines)]
    grid = [[heads[i] for i in used], ["---"] * len(used), *([line[i] for i in used] for line in lines)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in grid)


# --- one field --------------------------------------------------------------------------------------------------------

_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null", Any: "anything"}


def kind_of(field: FieldInfo) -> str:
    """Say a field's type and range in words."""
    return _kind(field.annotation, field.metadata)


def _kind(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner, *more = arguments
        return _kind(inner, [m for one in more for m in (one.metadata if isinstance(one, FieldInfo) else [one])])
    if origin is Literal:
        return _either([f"`{value}`" for value in arguments])
    if origin in (Union, types.UnionType):
        return _either([_kind(argument, metadata if argument in (int, float) else []) for argument in arguments])
    if origin is tuple:
        return f"list{_items(metadata)}, each {_keys(arguments[0])}"
    if origin is dict:
        return f"mapping from {_kind(arguments[0], [])} to {_kind(arguments[1], [])}"
    if _is_model(annotation):
        return "a block, see below"
    if annotation is str:
        return "text, not empty" if "min_length" in _bounds(metadata) else "text"
    return f"{_WORDS[annotation]}{_range(metadata)}"


def _keys(annotation: Any) -> str:
    """What each item of a list is; of a block, its keys."""
    if not _is_model(annotation):
        return _kind(annotation, [])
    return ", ".join(f"`{name}`: {kind_of(field)}" for name, field in annotation.model_fields.items())


def _either(kinds: list[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"


def _bounds(metadata: list[Any]) -> dict[str, Any]:
    names = ("gt", "ge", "lt", "le", "min_length", "max_length")
    return {name: getattr(m, name) for m in metadata for name in names if getattr(m, name, None) is not None}


def _range(metadata: list[Any]) -> str:
    """A range in words: ` ≥ 1`, ` in (0, 1]`."""
    bounds = _bounds(metadata)
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    if low is None or high is None:
        return f" {'≥' if 'ge' in bounds else '>'} {low:.10g}" if low is not None else ""
    return f" in {'[' if 'ge' in bounds else '('}{low:.10g}, {high:.10g}{']' if 'le' in bounds else ')'}"


def _items(metadata: list[Any]) -> str:
    bounds = _bounds(metadata)
    parts = [f"at least {bounds['min_length']}"] if "min_length" in bounds else []
    parts += [f"at most {bounds['max_length']}"] if "max_length" in bounds else []
    return f" of {' and '.join(parts)}" if parts else ""


def default_of(field: FieldInfo) -> str:
    """Return a field's default as one may write it in YAML."""
    if field.is_required():
        return "(none)"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, dict):
        value = {key: one.model_dump() if isinstance(one, BaseModel) else one for key, one in value.items()}
    if isinstance(value, str):
        return f"`{value}`" if value else '`""`'
    if isinstance(value, tuple):
        value = [one.model_dump() if isinstance(one, BaseModel) else one for one in value]
    if isinstance(value, dict) and any(isinstance(one, dict) for one in value.values()):
        return ", ".join(f"`{key}`: {one['min']:g} to {one['max']:g}" for key, one in value.items())
    return f"`{json.dumps(value)}`".replace('"', "")


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and not get_origin(annotation) and issubclass(annotation, BaseModel)


def _block(annotation: Any) -> type[BaseModel] | None:
    return annotation if _is_model(annotation) else None


# --- writing ----------------------------------------------------------------------------------------------------------


def publish(
    pages: dict[Path, str], description: str, arguments: list[str] | None = None, script: str = "make_parameters"
) -> int:
    """Write pages, or with `--check` compare them, and name the `script` that writes them; return the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is stale")
    check = parser.parse_args(arguments).check
    stale = [path for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            print(f"{path}: stale, run `python docs/{script}.py`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path], encoding="utf-8")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages."""
    pages = {PAGE: render(), LANGUAGE_PAGE: render_language()}
    return publish(pages, "Write the pages of parameters from the schema.", arguments)


if __name__ == "__main__":
    sys.exit(main())
