"""The table of stages: what each is called and does, reads and writes, and on which parameters and code it depends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evopipe.errors import MissingInputError

DATASET = Path("data/dataset")
TRANSITIONS = Path("data/transitions.h5")
TEXT = Path("data/text.jsonl")
TOKENS = Path("data/tokens")
POPULATION = Path("models/population")
TRAINED = Path("models/trained")
ELITE = Path("models/elite")
LEAGUE = Path("models/league")  # of self-play
FETCHED = Path("reports/fetch.json")
BUFFERED = Path("reports/buffer.json")
LINEAGE = Path("reports/lineage.jsonl")
FITNESS = Path("reports/fitness.csv")
TIMING = Path("reports/timing.csv")  # a measurement: the one out that holds a clock
SIGNALS = Path("reports/signals.csv")
LAST = ".last"  # of a signal's name: the column of its last value
TRAIN = Path("reports/train.json")
EVALUATION = Path("reports/evaluation.json")
MEMBERS = Path("reports/members.json")
EPISODES = Path("reports/episodes.csv")
MEASURES = Path("reports/language.csv")
COMPLETIONS = Path("reports/completions.json")
SAMPLES = Path("reports/samples.jsonl")
REPORT = Path("reports/report.html")
REPLAY = Path("reports/replay.json")  # of no stage: `evopipe replay` writes it
EPISODES_PAGE = Path("reports/episodes.html")  # of agents, and of `SAMPLES`
EPISODES_FOLDER = Path("episodes")  # of agents

METRICS = frozenset({FETCHED, BUFFERED, TRAIN, EVALUATION})
"""Outs that DVC shows as metrics; `EPISODES` it draws."""


class Files(NamedTuple):
    """The inputs and outputs of one stage. A `Stage` has two such objects: one for runs in environments, one for runs
    of language models.

    `params` are the parameters that the stage depends on, `reads` the files and folders of earlier stages that it
    reads, and `writes` those that it writes, the most important first.
    """

    params: tuple[str, ...]
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]


class Stage(NamedTuple):
    """One stage of the pipeline, whose code is the module `evopipe.stages.NAME`.

    Attributes:
        name: the stage's name.
        help: the stage's purpose, in a few words.
        env: the stage's inputs and outputs, for members that act in environments.
        text: the stage's inputs and outputs, for members that are language models.
        code: parts of the package that the stage computes with, in addition to its module and to `CODE`, the parts that
            all stages use.
        dataset: whether the stage makes the dataset. Runs that learn only from their own steps skip the stage.
        light: whether the stage can run without torch; its command then imports torch only when needed.
    """

    name: str
    help: str
    env: Files
    text: Files
    code: tuple[str, ...] = ()
    dataset: bool = False
    light: bool = False

    @property
    def described(self) -> str:
        """A sentence with the stage's purpose and the path of its most important output."""
        return f"{self.help}: {self.env.writes[0]}."

    @property
    def sources(self) -> list[str]:
        """Paths, relative to the package, of the code that the stage computes with.

        A change of any other code cannot change the stage's output files. DVC tracks these paths as the stage's
        dependencies.
        """
        found = {*CODE, *self.code, f"stages/{self.name}.py"}
        return sorted(path for path in found if path.partition("/")[0] == path or path.partition("/")[0] not in found)


CODE = ("algos", "core", "envs", "machine.py", "native", "ops", "rng.py", "searchers/__init__.py", "types.py")
"""Code that every stage computes with: whole folders, and modules that are in none."""
_DATA = ("data", "problems")
_RUN = ("mutations", "problems", "run", "searchers", "storage/members.py")
_REGIMES = (*_RUN, "data", "memory", "regimes", "scale")
_ENV = ("env.id", "env.kwargs", "env.wrappers", "env.source")
_FETCHED = ("fetch.source", "fetch.${fetch.source}")
_ALGO = "algos.${train.algo}"
_SIZE = "population.size"  # by itself: DVC's run cache overlooks a key named `size` inside a mapping
_SEARCH = ("train", "evolution", "evolution.tournament.size", "search", _ALGO)  # the size as `_SIZE`
_MEMBERS = (_SIZE, "population.start", "train.algo", _ALGO, "evolution.mutation", "search", "runtime.threads")
_COMPUTED = ("runtime.device", "runtime.threads", "runtime.kernels", "runtime.cohorts")
_OF_TEXT = ("seed", "language", "fetch.source")
_WRITTEN = ("runtime.device", "runtime.threads", "runtime.cohorts", "runtime.rows_at_once")
_SPLIT = ("fetch.validation", "fetch.test")
_CURVES = (LINEAGE, FITNESS, SIGNALS, TIMING)
_SHOWN = (ELITE, EPISODES, EVALUATION, FITNESS, LINEAGE, MEMBERS, SIGNALS, TIMING, TRAIN)

STAGES = (
    Stage(
        "fetch", "Collect, download or convert the dataset", code=_DATA, dataset=True, light=True,
        env=Files(("seed", *_ENV, "env.step_limit", *_FETCHED), (), (DATASET, FETCHED)),
        text=Files(("seed", "language.task", "language.kwargs", "train.algo", *_FETCHED), (), (TEXT, FETCHED)),
    ),
    Stage(
        "buffer", "Pack the dataset into transitions", code=_DATA, dataset=True, light=True,
        env=Files(_ENV, (DATASET,), (TRANSITIONS, BUFFERED)),
        text=Files(("seed", "language", "train.algo", "fetch.source", *_SPLIT), (TEXT,), (TOKENS, BUFFERED)),
    ),
    Stage(
        "population", "Make the initial members", code=_RUN,
        env=Files(("seed", *_ENV, *_MEMBERS), (), (POPULATION,)),
        text=Files((*_OF_TEXT, *_MEMBERS), (), (POPULATION,)),
    ),
    Stage(
        "train", "Evolve the population", code=_REGIMES,
        env=Files(
            ("seed", *_ENV, "env.num_envs", "env.backend", "env.step_limit", *_SEARCH, *_COMPUTED, "runtime.compile"),
            (TRANSITIONS, POPULATION), (TRAINED, *_CURVES, TRAIN),
        ),
        text=Files(
            (*_OF_TEXT, *_SEARCH, *_WRITTEN), (TOKENS, POPULATION), (TRAINED, *_CURVES, TRAIN, MEASURES, SAMPLES),
        ),
    ),
    Stage(
        "evaluate", "Score every member on held-out seeds", code=_REGIMES,
        env=Files(
            ("seed", *_ENV, "env.step_limit", "evaluate", *_COMPUTED), (TRAINED,), (EVALUATION, MEMBERS, EPISODES)
        ),
        text=Files(
            (*_OF_TEXT, "train.algo", _ALGO, "evaluate", *_WRITTEN), (TOKENS, TRAINED),
            (EVALUATION, MEMBERS, EPISODES, COMPLETIONS),
        ),
    ),
    Stage(
        "export", "Write the elite as files that run anywhere", code=(*_RUN, "policies", "formats.py"),
        env=Files(("export", *_ENV), (TRAINED, EVALUATION, LINEAGE), (ELITE,)),
        text=Files((*_OF_TEXT, "train.algo", _ALGO, "export"), (TRAINED, EVALUATION, LINEAGE), (ELITE,)),
    ),
    Stage(
        "report", "Show what happened, as one page",
        code=("mutations", "policies", "report", "searchers", "storage/members.py", "formats.py"), light=True,
        env=Files(  # all that it shows
            ("seed", *_ENV, "env.num_envs", "env.backend", "env.step_limit", *_FETCHED, _SIZE, *_SEARCH, "evaluate",
             "export", *_COMPUTED, "runtime.compile"),
            _SHOWN, (REPORT,),
        ),
        text=Files(
            (*_OF_TEXT, "fetch.${fetch.source}", *_SPLIT, "population", *_SEARCH, "evaluate", "export", *_WRITTEN),
            (*_SHOWN, COMPLETIONS, MEASURES), (REPORT,),
        ),
    ),
)  # fmt: skip
"""In the order in which they run. The command line, `evopipe.train`, every dvc.yaml and new projects follow from it."""

OUTS = {stage.name: stage.env.writes for stage in STAGES}
"""What each stage writes where members live in environments."""
TEXT_OUTS = {stage.name: stage.text.writes for stage in STAGES}
WRITER = {out: stage for every in (OUTS, TEXT_OUTS) for stage, outs in every.items() for out in outs}

SHOWN_BESIDE = dict.fromkeys(("language", "games"), (MEASURES, COMPLETIONS))
"""What a report reads beside, by the `kind` in a policy's description; nothing for one without."""

ABOUT = ("env.id", "language.task")
"""The parameters that say what a run is about, of which each has one."""

STATE = ".evopipe"
"""The folder below the DVC root that holds what is no out: runs that go on, and what trackers are told of them."""


def need(folder: Path, out: Path) -> Path:
    """Return the path, in a run's folder, of the file or folder `out` that an earlier stage writes.

    Raises:
        MissingInputError: it does not exist; the message names the command that writes it.
    """
    path, stage = folder / out, WRITER[out]
    if not path.exists():
        raise MissingInputError(f"{path}: not there; run `evopipe {stage}` or `dvc repro {stage}` first")
    return path


def program_files(agents: Sequence[str]) -> dict[str, str]:
    """Return the file name of each agent's exported program, `policy.NAME.pt2`, by the agent's name.

    Characters of an agent's name that a file name should not have become `_`. If two agents would then share a file
    name, agents' indices take the place of names.
    """
    names = [re.sub(r"[^A-Za-z0-9_-]", "_", name) for name in agents]
    if len({*names}) < len(names):
        names = [str(place) for place in range(len(names))]
    return {agent: f"policy.{name}.pt2" for agent, name in zip(agents, names, strict=True)}
