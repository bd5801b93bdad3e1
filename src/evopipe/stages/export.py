"""Stage `export`: the elite as files that run anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evopipe
from evopipe import __version__, policy
from evopipe.algos import get
from evopipe.core import normalise
from evopipe.core.member import Member
from evopipe.envs.make import ActionSpace, make_env
from evopipe.envs.observations import Leaf, ObservationSpace
from evopipe.errors import DataError, MissingInputError
from evopipe.keys import content_key
from evopipe.machine import configure, fingerprint, git_revision
from evopipe.schema.blocks import NEUTRAL
from evopipe.schema.params import Params
from evopipe.stages import paths
from evopipe.stages.setup import make_spec, read_members
from evopipe.stages.tell import tell
from evopipe.storage import safeio


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `models/elite`: policy.safetensors, policy.json, policy.pt2 and a model card.

    Raises:
        MissingInputError: `models/trained` or `reports/evaluation.json` is not there.
        DataError: one of them is damaged.
    """
    configure(params.runtime)
    spec = make_spec(params)
    members, trained = read_members(folder / paths.TRAINED, spec, "train")
    score = _score(folder / paths.EVALUATION)
    elite = members[-1]
    about = {
        "observations": trained["observations"],
        "config": params.algo_config.model_dump(mode="json"),
        "env": {"id": params.env.id, "kwargs": params.env.kwargs},
        **_spaces(params),
        "preprocessing": normalise.describe(elite.tensors),
        "hyper": dict(elite.hyper),
        "training": trained["elite"],
        "evaluation": score,
        "lineage": _ancestry(folder, elite.id),
        "provenance": {
            "evopipe": __version__,
            "git_revision": git_revision(folder.absolute()),
            "code_hash": content_key({}, [Path(evopipe.__file__).parent]),
            "params_hash": _params_hash(params),
            "fingerprint": fingerprint(),
        },
    }
    card = _card(params, elite, about)
    policy.save(folder / paths.ELITE, params.train.algo, elite, about, params.export.program, card)
    network = f"{elite.arch.describe()} {elite.arch.activation}"
    tell(f"{paths.ELITE}: {network}, held-out mean {score['mean']:.1f}", quiet)


def _score(path: Path) -> dict[str, float]:
    """Return the elite's scores on held-out seeds."""
    if not path.exists():
        raise MissingInputError(f"{path}: not there; run `evopipe evaluate` or `dvc repro evaluate` first")
    report = safeio.read_json(path)
    score = report.get("elite") if isinstance(report, dict) else None
    if not isinstance(score, dict) or not score.keys() >= {"mean", "interval", "std", "median", "iqm"}:
        raise DataError(f"{path}: has no scores of the elite; run `evopipe evaluate` or `dvc repro evaluate` again")
    return score


def _params_hash(params: Params) -> str:
    """Return a hash of all parameters that any result depends on."""
    values = params.model_dump(mode="json", exclude={"algos": True, "tracking": True, "runtime": set(NEUTRAL)})
    return content_key({**values, "algo": params.algo_config.model_dump(mode="json")})


def _spaces(params: Params) -> dict[str, Any]:
    env = make_env(params.env)
    try:
        return {
            "observation_space": str(env.observation_space),
            "action_space": str(env.action_space),
            **ActionSpace.of(env.action_space).to_json(),
            **ObservationSpace.of(env.observation_space).to_json(),
        }
    finally:
        env.close()


def _ancestry(folder: Path, elite: int) -> list[dict[str, Any]]:
    """Return the elite's line of descent, youngest first: id, parent, generation, mutation."""
    path = folder / paths.LINEAGE
    births: dict[int, dict[str, Any]] = {}
    for text in safeio.read_bytes(path).splitlines():
        record = safeio.parse_json(text, str(path))
        try:
            for child in record["children"]:  # an elite that survives appears again: its first record is its birth
                birth = {name: child[name] for name in ("id", "parent", "mutation")}
                births.setdefault(child["id"], {**birth, "generation": record["generation"]})
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: is not a lineage ({error!r}); run `dvc repro train` again") from error
    line, current = [], elite
    while current in births:
        line.append(births[current])
        current = births[current]["parent"]
    return line


def _card(params: Params, elite: Member, about: dict[str, Any]) -> str:
    """Write the model card: what it is, how good, how to use it."""
    score = about["evaluation"]
    answers = "actions, values" if get(params.train.algo).values is not None else "actions"
    memory = policy.Policy(get(params.train.algo), params.algo_config, elite, about).memory
    use, program = "action = policy.act(obs)", f"{answers} = program(obs)"
    if memory:
        use = "action, memory = policy.step(obs)  # where an episode begins\naction, memory = policy.step(obs, memory)"
        program = (
            f"memory = torch.zeros(len(obs), {memory})  # where episodes begin\nactions, memory = program(obs, memory)"
        )
    low, high = score["interval"]
    scores = f"{score['mean']:.1f} | [{low:.1f}, {high:.1f}] | {score['std']:.1f} | {score['median']:.1f}"
    scores += f" | {score['iqm']:.1f}"
    hyper = "\n".join(f"| {name} | {value:g} |" for name, value in sorted(elite.hyper.items()))
    return f"""---
library_name: evopipe
tags: [reinforcement-learning, {params.train.algo}, {params.env.id}]
---

# {params.train.algo.upper()} on {params.env.id}

The elite of an evolved population: network {elite.arch.describe()} ({elite.arch.activation}).

| held-out episodes | mean | 95 % interval | std | median | IQM |
|---|---|---|---|---|---|
| {params.evaluate.episodes} | {scores} |

| hyper-parameter | value |
|---|---|
{hyper}

## Use

```python
import evopipe

policy = evopipe.load("models/elite")
{use}
```

Or with torch alone, for `obs` of shape `[B, {about["observations"]}]`:

```python
program = torch.export.load("models/elite/policy.pt2").module()
{program}
```
{_rows(ObservationSpace.from_json(about))}"""


def _rows(space: ObservationSpace) -> str:
    """Say how the program's rows are made of observations; nothing where they are vectors, which are rows already."""
    if space.plain:
        return ""
    lines = "\n".join(f"| {leaf.name} | {list(leaf.shape)} | {leaf.size} | {_columns(leaf)} |" for leaf in space.leaves)
    return f"""
Its rows are float32 and hold, in this order, each array row by row:

| part | shape | columns | what they are |
|---|---|---|---|
{lines}

`policy.observation_space.read(obs)[0]` makes them of what the environment gives, one observation or a batch.
"""


def _columns(leaf: Leaf) -> str:
    """Say how an array becomes columns."""
    if leaf.counts:
        firsts = set(leaf.firsts)
        begin = firsts.pop() if len(firsts) == 1 else list(leaf.firsts)
        each = "" if len(leaf.counts) == 1 else " each"
        return f"one-hot{each}, {', '.join(map(str, leaf.counts))} values from {begin} on"
    if leaf.channels is None:
        return "its numbers"
    first = "channels first" if leaf.channels == 0 else "its channels moved to the front"
    if (leaf.low, leaf.high) == (0.0, 1.0):
        return first
    above = "x" if leaf.low == 0.0 else f"(x {'-' if leaf.low > 0.0 else '+'} {abs(leaf.low):g})"
    return f"{first}, {above} / {leaf.high - leaf.low:g}"
