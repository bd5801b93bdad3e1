"""What the report and `evopipe doctor` say of whole runs that are ill on purpose, and of runs that are well.

`PYTHONPATH=src python tests/diagnosis.py` runs them all, in some ten minutes, and writes `docs/diagnosis.md`; after a
kill it goes on where it was, by `build/diagnosis.jsonl`. `… ill NAME …` and `… well NAME …` run some, and print what is
said.
"""

from __future__ import annotations

import html
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tiny
from evopipe import algos
from evopipe.doctor import examine
from evopipe.errors import DivergedError
from evopipe.formats import clean
from evopipe.params.load import load_params
from evopipe.report.page import compose
from evopipe.report.read import read
from evopipe.schema.evolution import MutationConfig, TournamentConfig
from evopipe.schema.write import dump_yaml
from evopipe.stages.report import _shown
from illnesses import ILL, WELL

sys.path.append(str(tiny.ROOT / "benchmarks"))

from harness import tournament

PAGE = tiny.ROOT / "docs/diagnosis.md"
KEPT = tiny.ROOT / "build/diagnosis.jsonl"
NAMED = 18  # illnesses of 20 that are to be named at least
IN_C = {"env.backend": "c"}
SHORT: dict[str, dict[str, Any]] = {
    "dqn-cartpole": {**IN_C, "train.max_steps": 8000, "train.evo_steps": 1000},
    "dqn-frozenlake": {**IN_C, "train.max_steps": 5000, "train.evo_steps": 500},
    "dqn-taxi": {**IN_C, "train.max_steps": 5000, "train.evo_steps": 500},
    "ppo-cartpole": {**IN_C, "train.max_steps": 16384, "train.evo_steps": 2048},
    "cqn-cartpole": {"train.max_steps": 2000, "train.evo_steps": 250, "fetch.collect.episodes": 40},
    "ippo-spread": {"train.max_steps": 48000, "env.num_envs": 64, "train.evo_steps": 6000},
    "maddpg-speaker-listener": {"train.max_steps": 8000, "train.evo_steps": 1000},
    "matd3-speaker-listener": {"train.max_steps": 8000, "train.evo_steps": 1000},
}
"""Pipelines that solve their task, and how their runs are made shorter here, of two members each. None ends at a
target, at which nothing would be said any more."""
SEEDS = (1, 2)


class Found(NamedTuple):
    """What is said of a run: by the terminal, rules and sentences, and by the page; None where there is no page."""

    rules: list[str]
    texts: list[str]
    page: list[str] | None
    seconds: float


def ill(name: str, folder: Path) -> Found:
    """Run what is ill in one way from its first stage to its report."""
    _, how = ILL[name]
    _write(folder, how)
    return _run(folder, ("population", "train", "evaluate", "export"))


def well(name: str, seed: int, folder: Path) -> Found:
    """Run what is well until it is trained: a pipeline made shorter, or a small run of the tests."""
    if name in WELL:
        _write(folder, {**WELL[name], "seed": seed})
        return _run(folder, ("population", "train"))
    data = tournament.of(tiny.ROOT / "pipelines" / name / "params.yaml")
    _set(
        data,
        {
            **SHORT[name],
            "population.size": 2,
            "seed": seed,
            "train.target": None,
            "tracking.backends": [],
            "train.eval_episodes": 4,
            "train.confirm_episodes": 8,
        },
    )
    (folder / "params.yaml").write_text(dump_yaml(data), encoding="utf-8")
    params = load_params(folder / "params.yaml")
    return _run(folder, (*(("fetch", "buffer") if params.needs_dataset else ()), "population", "train"))


def _write(folder: Path, how: Mapping[str, Any]) -> None:
    """Write the parameters of a run that `advised.facts` makes, with the defaults of `populations.problem`."""
    algo = algos.get(how["algo"])
    settings = {f"train.{key}": value for key, value in how["train"].items()}
    settings |= {f"env.{key}": value for key, value in how.get("env_config", {}).items()}
    sizes = {"batch_size": 32, "epochs": 2} if algos.on_policy(algo) else {"batch_size": 32}
    config = algo.Config.model_validate({**sizes, **how["config"]})  # type: ignore[attr-defined]
    tiny.write_params(folder, {
        "train.eval_steps": None, "evaluate.episodes": 10, "evaluate.steps": how["train"].get("eval_steps"),
        "seed": how.get("seed", 3), "env.id": how["env"], "env.kwargs": how.get("kwargs", {}),
        "env.num_envs": how.get("num_envs", 4), "population.size": how.get("members", 2), "train.algo": how["algo"],
        f"algos.{how['algo']}": config.model_dump(mode="json"), "runtime.cohorts": "exact",
        "train.replay.sharing": "own", "train.replay.capacity": 2000,
        "evolution.tournament": TournamentConfig().model_dump(mode="json"),
        "evolution.mutation": MutationConfig.model_validate(how.get("mutation", {})).model_dump(mode="json"),
        **settings,
    })  # fmt: skip


def _set(data: Any, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        *blocks, name = key.split(".")
        place = data
        for block in blocks:
            place = place[block]
        place[name] = value


def _run(folder: Path, stages: tuple[str, ...]) -> Found:
    began = time.perf_counter()
    (folder / ".dvc").mkdir()
    for stage in stages:
        answer = tiny.call(folder, "--quiet", stage)
        if answer.code == DivergedError.exit_code:  # there is no elite, and so no page; the terminal knows why
            stages = ("train",)
            break
        if answer.code:
            raise SystemExit(f"{folder.name}: {stage} ended with {answer.code}: {answer.err}")
    _, advised = examine(folder)
    said = tiny.call(folder, "doctor")
    texts = [clean(advice.text) for advice in advised]
    if said.code or any(text not in said.out for text in texts):
        raise SystemExit(f"{folder.name}: doctor printed something else than it found: {said.out}{said.err}")
    page = None
    if "export" in stages:
        params = load_params(folder / "params.yaml")
        text = compose(read(folder), _shown(params), "No film.")
        section = html.unescape(text.partition('<section id="next"')[2].partition("</section>")[0])
        page = [part.partition(" <a ")[0] for part in section.split("<li>")[1:]]
    return Found([advice.rule for advice in advised], texts, page, time.perf_counter() - began)


def main(words: list[str]) -> None:
    """Run what is asked for, and write the page where that is all."""
    kind, names = (words[0], words[1:]) if words else ("", [])
    sick = {name: _in_a_folder(ill, name) for name in ILL if kind in ("", "ill") and (not names or name in names)}
    sound = {
        (name, seed): _in_a_folder(well, name, seed)
        for name in (*SHORT, *WELL)
        if kind in ("", "well") and (not names or name in names)
        for seed in SEEDS
    }
    if not kind:
        PAGE.write_text("\n".join(_page(sick, sound)) + "\n", encoding="utf-8")
    KEPT.unlink(missing_ok=True)


def _in_a_folder(make: Any, *what: Any) -> Found:
    kept = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    for of, values in kept:
        if of == [make.__name__, *what]:
            return Found(*values)
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as scratch:
        found: Found = make(*what, Path(scratch))
    print(f"{found.seconds:5.1f} s", *what, found.rules, flush=True)
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as stream:
        stream.write(json.dumps([[make.__name__, *what], found]) + "\n")
    return found


def _page(sick: Mapping[str, Found], sound: Mapping[tuple[str, int], Found]) -> Iterator[str]:
    named = sum(ILL[name][0] in found.rules for name, found in sick.items())
    told = [found for found in sick.values() if found.page is not None]
    alike = sum(found.page == found.texts for found in told)
    alarms = {of: found for of, found in sound.items() if found.rules}
    yield "# Diagnosis: does it find what is wrong?"
    yield ""
    yield f"""Every illness below was made on purpose, in a small run that goes through the whole pipeline, and
`evopipe doctor` and the report were asked [what next](report.md#what-next). {named} of {len(sick)} are named; in
{alike} of the {len(told)} that end with a report it says word for word what the terminal says.
`PYTHONPATH=src python tests/diagnosis.py` makes this page anew, in some ten minutes; the runs are in
[illnesses.py](../tests/illnesses.py). That leaders stand at a bound, that a lead was luck, and that groups of
completions say nothing is tested in `tests/unit/report/test_advice.py`."""
    yield ""
    yield "| what is wrong | named | place | what is said of it | what else is said |"
    yield "|---|---|---|---|---|"
    for name, found in sick.items():
        rule = ILL[name][0]
        place = found.rules.index(rule) if rule in found.rules else None
        text = "" if place is None else found.texts[place]
        others = ", ".join(f"`{each}`" for each in found.rules if each != rule)
        named_so, at = ("no", "") if place is None else ("yes", str(place + 1))
        yield f"| {name} | {named_so} | {at} | {text} | {others} |"
    yield ""
    yield "## False alarms"
    yield ""
    seeds = " and ".join(map(str, SEEDS))
    yield f"""{len(sound)} runs that are well: pipelines that solve their task, made shorter and without a target at
which nothing would be said any more, and small runs of the tests; seeds {seeds} each. A rule spoke in {len(alarms)}
of them."""
    yield ""
    yield """A run that has not begun to learn is no run that is well: `ppo-acrobot`, stopped after 32,768 of the
250,000 steps that it may take, has one return in all episodes, −500, and is told `members_alike` and `flat`."""
    yield ""
    yield "| run | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " |"
    yield "|---|" + "---|" * len(SEEDS)
    for name in dict.fromkeys(name for name, _ in sound):
        cells = (", ".join(f"`{rule}`" for rule in sound[name, seed].rules) or "nothing" for seed in SEEDS)
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main(sys.argv[1:])
