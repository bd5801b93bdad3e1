"""The settings of a sweep: a grid of values, or trials that draw them, each as the parameters of one run."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from evopipe import algos as registry
from evopipe.errors import ParamsError, UsageError, suggestion
from evopipe.formats import tails
from evopipe.layout import STAGES
from evopipe.params.load import AnyParams, load_params, parse_params
from evopipe.rng import Purpose, host
from evopipe.schema import spellings
from evopipe.schema.read import parse_value, read_yaml
from evopipe.schema.write import commented, dump_yaml
from evopipe.searchers.contract import Bound
from evopipe.searchers.propose import random_values, sobol_values
from evopipe.storage.keys import content_key

MOST = 10_000
"""Runs of one sweep."""
_LEAN: dict[str, Any] = {"export.film": False, "export.program": False, "tracking.backends": []}
"""What a sweep leaves out unless it is set: none of it changes a score."""
_DISTRIBUTION = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_DRAWN = ("uniform", "loguniform", "integers", "choice")
_LONGEST = 80  # characters of a folder's name before its hash

Values = dict[str, Any]
"""What one run wants otherwise than params.yaml, by dotted keys."""
Sampler = Literal["random", "sobol"]


@dataclass(frozen=True, eq=False)
class Setting:
    """The parameters of one run of a sweep.

    Attributes:
        values: the values that the sweep set, by dotted keys.
        params: all parameters, checked.
        text: the content of the run's params.yaml.
        name: the name of the run's folder; it contains a hash of what results depend on.
    """

    values: Values
    params: AnyParams
    text: str
    name: str

    @property
    def label(self) -> str:
        """A short text with the values that the sweep set, such as `algo=ppo seed=2`; `as in params.yaml` if the sweep
        set none."""
        return " ".join(f"{key}={_shown(value)}" for key, value in _short(self.values).items()) or "as in params.yaml"


def settings_of(
    file: str, sets: Sequence[str], samples: Sequence[str], trials: int | None, sampler: Sampler, dataset: bool
) -> list[Setting]:
    """Return the settings of a sweep over a params file, without duplicates.

    Each combination of the values in `sets` is paired with each draw from `samples`; every pair gives one setting.

    Args:
        file: the params file.
        sets: texts `KEY=V1,V2`; all combinations of the values are used.
        samples: texts such as `KEY=loguniform(1e-4,1e-2)`, from which values are drawn.
        trials: the number of draws; None without `samples`.
        sampler: the method of drawing.
        dataset: whether the runs also run the stages that make a dataset. If so, a run that does not read the dataset
            makes a small one, of one episode.

    Raises:
        UsageError: a text in `sets` or `samples` has another form, two texts name the same key, or there are too many
            runs.
        MissingInputError, ParamsError: the file, or the parameters of a run, cannot be used.
    """
    base, data = load_params(file), read_yaml(file).data
    grid, drawn = _pairs("--set", sets), _pairs("--sample", samples)
    if twice := grid.keys() & drawn.keys():
        raise UsageError(f"sweep: {min(twice)} stands in --set and in --sample: leave one of them out")
    if (trials is None) != (not drawn):
        raise UsageError(f"sweep: {'--sample needs --trials N' if drawn else '--trials needs --sample KEY=…'}")
    choices = {key: _listed(key, text) for key, text in grid.items()}
    combinations = [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]
    draws = list(_drawn(drawn, trials, sampler, base.seed)) if trials is not None else [{}]
    if len(combinations) * len(draws) > MOST:
        raise UsageError(
            f"sweep: {len(combinations) * len(draws)} runs, at most {MOST} are possible: name fewer values"
        )
    text = Path(file).read_text(encoding="utf-8-sig")
    found = (_setting(data, text, base, {**each, **draw}, dataset) for draw in draws for each in combinations)
    return list({setting.name: setting for setting in found}.values())


def _setting(data: Mapping[str, Any], text: str, base: AnyParams, values: Values, dataset: bool) -> Setting:
    full = {_full(key, values, base): value for key, value in values.items()}
    params = _parsed(data, full)
    lean = {key: value for key, value in _LEAN.items() if key not in full and _has(params, key)}
    if dataset and not params.needs_dataset:
        few = {"fetch.source": "collect", "fetch.collect.episodes": 1}
        lean |= {key: value for key, value in few.items() if key not in full}
    if params.tracking.register_as is not None:
        lean.pop("export.program", None)  # MLflow serves it
    params = _parsed(data, full | lean)
    changed = commented()
    document, out = changed.load(text), StringIO()
    for key, value in (full | lean).items():
        _put(document, key, value)
    algo = params.train.algo
    if algo not in document["algos"]:  # as in Python, a block that is missing has its defaults
        document["algos"][algo] = params.algo_config.model_dump(mode="json")
    changed.dump(document, out)
    label = ",".join(f"{key}={_shown(value)}" for key, value in _short(full).items())
    name = re.sub(r"[^\w=,+.-]+", "_", label, flags=re.ASCII)[:_LONGEST].strip("._-,") or "run"
    return Setting(full, params, out.getvalue(), f"{name}-{content_key(params.tracked())[:8]}")


def _full(key: str, values: Values, base: AnyParams) -> str:
    """Return a dotted key; a hyper-parameter of the chosen algorithm may stand without its block."""
    if "." in key or key in type(base).model_fields:
        return key
    algo = str(values.get("train.algo", base.train.algo))
    own = registry.get(algo).Config.model_fields if algo in base.known() else (key,)
    if key not in own:
        known = [*type(base).model_fields, *own]
        raise ParamsError(f"{key}: unknown key{spellings.here(key, known) or suggestion(key, known)}")
    return f"algos.{algo}.{key}"


def _has(params: AnyParams, key: str) -> bool:
    block, _, name = key.partition(".")
    return name in type(getattr(params, block)).model_fields


def _parsed(data: Mapping[str, Any], values: Values) -> AnyParams:
    changed = copy.deepcopy(dict(data))
    for key, value in values.items():
        _put(changed, key, value)
    return parse_params(changed)


def _put(data: Any, key: str, value: Any) -> None:
    """Set a value by its dotted key, in place; blocks that are missing on the way are made."""
    *blocks, last = key.split(".")
    for depth, block in enumerate(blocks):
        if data.get(block) is None:
            data[block] = {}
        data = data[block]
        if not isinstance(data, dict):
            raise ParamsError(f"{key}: {'.'.join(blocks[: depth + 1])} is a value and has no keys")
    data[last] = value


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Split `KEY=…`, each key once."""
    found: dict[str, str] = {}
    for each in given:
        key, equals, text = each.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")) or not text.strip():
            form = "KEY=V1,V2" if option == "--set" else "KEY=loguniform(1e-4,1e-2)"
            raise UsageError(f"sweep: {option} {each!r} names no key or no value: write {option} {form}")
        if key in found:
            raise UsageError(f"sweep: {option} names {key} twice: put all its values behind one")
        found[key] = text
    return found


def _listed(key: str, text: str) -> list[Any]:
    """Read `V1,V2`; a value may be a list or a mapping of YAML's."""
    try:
        values = parse_value(f"[{text}]", f"--set {key}")
    except ParamsError as error:
        raise UsageError(f"sweep: {error}") from None
    if not values:
        raise UsageError(f"sweep: --set {key} has no value: write --set {key}=V1,V2")
    return list(values)


# --- draws ------------------------------------------------------------------------------------------------------------


def _drawn(samples: Mapping[str, str], trials: int, sampler: Sampler, seed: int) -> Iterator[Values]:
    """Yield the values of each trial; they depend on the seed and the trial's number, not on how many there are."""
    read = {key: _distribution(key, text) for key, text in samples.items()}
    space = {key: bound for key, (bound, _) in read.items()}
    for trial in range(trials):
        if sampler == "sobol":
            values = sobol_values(space, seed, trial)
        else:
            values = random_values(space, host(seed, Purpose.PROPOSE, trial))
        yield {key: choices[int(values[key])] if choices else _rounded(space[key], values[key])
               for key, (_, choices) in read.items()}  # fmt: skip


def _distribution(key: str, text: str) -> tuple[Bound, list[Any]]:
    """Read `uniform(1, 2)`; of a choice, the bound is that of its index."""
    form = f"write --sample {key}=loguniform(1e-4,1e-2), or uniform, integers, choice"
    match = _DISTRIBUTION.fullmatch(text)
    if match is None:
        raise UsageError(f"sweep: --sample {key}: {text.strip()!r} is no distribution: {form}")
    name, ends = match[1], _listed(key, match[2]) if match[2].strip() else []
    if name not in _DRAWN:
        raise UsageError(f"sweep: --sample {key}: unknown distribution {name!r}{suggestion(name, _DRAWN)}")
    if name == "choice":
        if not ends:
            raise UsageError(f"sweep: --sample {key}: choice() has no value: {form}")
        return Bound(0, len(ends) - 1, whole=True), ends
    whole = name == "integers"
    kinds = int if whole else int | float
    if len(ends) != 2 or not all(isinstance(end, kinds) and not isinstance(end, bool) for end in ends):
        raise UsageError(f"sweep: --sample {key}: {name} takes two numbers, from and to, not ({match[2]}): {form}")
    low, high = ends
    if not low < high or (name == "loguniform" and low <= 0):
        least = " above 0" if name == "loguniform" else ""
        raise UsageError(
            f"sweep: --sample {key}: {name} goes from a smaller number{least} to a larger one, not ({match[2]})"
        )
    return Bound(low, high, log=name == "loguniform", whole=whole), []


def _rounded(bound: Bound, value: float) -> float | int:
    """Return a value with four significant digits, which are all that anybody would type, within its bound."""
    if bound.whole:
        return int(value)
    return min(max(float(f"{value:.4g}"), float(bound.low)), float(bound.high))


# --- names ------------------------------------------------------------------------------------------------------------


def _short(values: Values) -> Values:
    """Return values by the last word of their keys, by as many as tell them apart."""
    names = tails(values)
    return {names[key]: value for key, value in values.items()}


def _shown(value: Any) -> str:
    return dump_yaml(value, on_one_line=True).strip()


def makes_dataset(folder: Path) -> bool:
    """Return whether the `dvc.yaml` in a folder has stages that make a dataset."""
    path = folder / "dvc.yaml"
    stages = read_yaml(path).data.get("stages") if path.is_file() else None
    return isinstance(stages, dict) and any(stage.dataset and stage.name in stages for stage in STAGES)
