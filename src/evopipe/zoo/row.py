"""The rows of the zoo: their list, the scores that others published, and the recorded results of each seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from evopipe import layout, searchers
from evopipe.errors import DataError, MissingInputError, UsageError, suggestion
from evopipe.params.load import AnyParams, load_params
from evopipe.policies.policy import Policy, TeamPolicy, described
from evopipe.schema.read import read_yaml
from evopipe.schema.stored import in_a_sentence
from evopipe.storage.files import parse_json, read_bytes, read_json, write_bytes, write_json
from evopipe.storage.keys import CODE, content_key
from evopipe.storage.tensors import load_tensors, note_of

ZOO, ROWS, PIPELINES = Path("zoo"), Path("rows.yaml"), Path("pipelines")
FORMAT = 1
SHARE = 0.95
"""A published score is reached where the interval's lower end is at least so much of it."""
_RESAMPLES = 10_000
_COMPUTED_BY = ("population", "train", "evaluate")  # the stages that a score comes from


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_Model = TypeVar("_Model", bound=BaseModel)


class Published(_Stored):
    """A score that others published for the same algorithm and environment.

    Attributes:
        by: the name of the publication, a key of `sources` in `zoo/rows.yaml`.
        score: the published score.
        deviation: the standard deviation of the score, as published; None if the publication does not say.
        steps: environment steps of one agent's training; None if the publication does not say.
    """

    by: str
    score: float
    deviation: float | None = None
    steps: int | None = None

    @property
    def bar(self) -> float:
        """The lowest score that counts as equal to the published one. It is the published score minus 5 % of its
        absolute value; the 5 % are 1 − `SHARE`."""
        return self.score - (1 - SHARE) * abs(self.score)


class Entry(_Stored):
    """The description of one row of the zoo in `zoo/rows.yaml`.

    Attributes:
        family: the family of environments, such as `classic control`.
        extra: the extra of evopipe that installs the environment; None if none is needed.
        package: the module that this extra installs; None if it has the extra's name.
        published: the scores that others published.
        tried: a text on what was tried, if the row does not reach the published scores; else empty.
    """

    family: str
    extra: str | None = None  # of evopipe, which installs what the environment needs
    package: str | None = None  # whose absence shows that the extra is not installed
    published: tuple[Published, ...] = ()
    tried: str = ""  # what was tried, of a row that does not reach what was published

    @property
    def best(self) -> Published | None:
        """The best published score, of equal ones that of the most steps; None if no score was published."""
        return max(self.published, key=lambda each: (each.score, each.steps or math.inf), default=None)

    def reached(self, over: Over | None) -> bool | None:
        """Return whether a row's score is as good as the best published score, in no more steps of one agent.

        `over` has the statistics of the row's results over seeds, among them the 95 % interval of the score. The score
        counts as good if the lower end of this interval is not below the published score minus its margin of 5 % (see
        `Published.bar`). The result is None if `over` is None, or if no score was published.
        """
        if over is None or self.best is None:
            return None
        return over.interval[0] >= self.best.bar and not self.longer(over)

    def longer(self, over: Over) -> bool:
        """Return whether the elite was trained for more environment steps than the best published score took; False
        if the publication does not say how many these were."""
        return self.best is not None and self.best.steps is not None and over.agent_steps > self.best.steps


class _File(_Stored):
    sources: dict[str, str]
    rows: dict[str, Entry]


class Curve(_Stored):
    """The learning curve of one seed's run. Every attribute has one entry per generation.

    Attributes:
        env_steps: the population's environment steps of training so far.
        eval_steps: the population's environment steps of evaluation so far.
        elite: the elite's fitness.
        seconds: the duration of the generation.
    """

    env_steps: tuple[int, ...]
    eval_steps: tuple[int, ...]
    elite: tuple[float, ...]
    seconds: tuple[float, ...]


class Seed(_Stored):
    """The recorded results of the run of a row's pipeline with one seed.

    Attributes:
        mean, interval, std, iqm: the elite's returns over held-out episodes: mean, 95 % confidence interval, standard
            deviation, and interquartile mean.
        episodes: the number of the held-out episodes.
        training_steps: environment steps in which the whole population was trained.
        evaluation_steps: environment steps of the evaluations that chose the elite.
        cpu_seconds: CPU time of all stages.
        elite: the SHA-256 hash of the elite's safetensors file.
        params: a hash of the parameters on which the results depend, see `ZooRow.key`.
        code: a hash of the code on which the results depend, see `code`.
        revision: the git commit of the code; null if the code had uncommitted changes.
        version: evopipe's version.
        fingerprint: properties of the machine and libraries, see `machine.fingerprint`.
        curve: the learning curve.
    """

    mean: float
    interval: tuple[float, float]
    std: float
    iqm: float
    episodes: int
    training_steps: int
    evaluation_steps: int
    cpu_seconds: float
    elite: str
    params: str
    code: str
    revision: str | None
    version: str
    fingerprint: dict[str, Any]
    curve: Curve

    @property
    def steps(self) -> int:
        """The population's environment steps until the elite was chosen: training steps plus evaluation steps."""
        return self.training_steps + self.evaluation_steps


class _Results(_Stored):
    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    seeds: dict[int, Seed]


@dataclass(frozen=True)
class Over:
    """Statistics of a row's results over its seeds.

    Attributes:
        seeds: the number of seeds.
        iqm: the interquartile mean of the seeds' mean returns, see `iqm_over_runs`.
        interval: the 95 % confidence interval of `iqm`.
        steps: the number of environment steps of a seed's whole population, as the mean over the seeds.
        agent_steps: the number of environment steps in which a seed's elite was trained, as the mean over the seeds;
            see `ZooRow.agent_steps`.
        cpu_seconds: the CPU time of a seed's run, as the mean over the seeds.
    """

    seeds: int
    iqm: float
    interval: tuple[float, float]
    steps: float
    agent_steps: float
    cpu_seconds: float


@dataclass(frozen=True)
class ZooRow:
    """A row of the zoo: an algorithm that was trained in one environment with several seeds.

    The results are in the repository, in the folder `zoo`.

    Attributes:
        name: the row's name, such as `ppo-cartpole`.
        entry: the row's description in `zoo/rows.yaml`.
        home: the root folder of the clone of evopipe's repository.
    """

    name: str
    entry: Entry
    home: Path

    @property
    def folder(self) -> Path:
        """The folder of the row's pipeline, `pipelines/NAME` in the clone."""
        return self.home / PIPELINES / self.name

    @property
    def file(self) -> Path:
        """The path of the file with the row's recorded results, `zoo/NAME.json` in the clone."""
        return self.home / ZOO / f"{self.name}.json"

    @property
    def archive(self) -> Path:
        """The path of the file with the elite of the row's best seed, `zoo/NAME.safetensors` in the clone."""
        return self.home / ZOO / f"{self.name}.safetensors"

    @cached_property
    def params(self) -> AnyParams:
        """The parameters of the row's pipeline.

        Raises:
            MissingInputError: the pipeline's `params.yaml` does not exist.
            ParamsError: the pipeline's `params.yaml` cannot be used.
        """
        return load_params(str(self.folder / "params.yaml"))

    @cached_property
    def key(self) -> str:
        """A hash of the parameters on which the row's results depend.

        Only parameters that differ from their defaults enter the hash. A new parameter with a default therefore does
        not change the hash.
        """
        params = self.params
        kept = params.model_dump(
            mode="json", exclude_defaults=True, exclude={"seed", "algos", "export", "tracking", "runtime"}
        )
        return content_key({**kept, "algo": params.algo_config.model_dump(mode="json", exclude_defaults=True)})

    def seeds(self) -> dict[int, Seed]:
        """Return all recorded results by seed; empty if nothing was recorded. Results of runs with former parameters of
        the row's pipeline are included.

        Raises:
            DataError: the file of results is damaged.
        """
        if not self.file.exists():
            return {}
        return dict(sorted(_parsed(_Results, read_json(self.file), self.file).seeds.items()))

    def trained(self) -> dict[int, Seed]:
        """Return the recorded results by seed, without results of runs with former parameters of the row's pipeline.

        Raises:
            DataError: the file of results is damaged.
        """
        return {seed: found for seed, found in self.seeds().items() if found.params == self.key}

    def over(self) -> Over | None:
        """Return statistics of the row's results over its seeds; None if there are no results.

        Only results of the pipeline's present parameters count, as the method `trained` returns them.
        """
        found = [*self.trained().values()]
        if not found:
            return None
        iqm, (low, high) = iqm_over_runs(np.array([[each.mean] for each in found]))
        costs = [(each.steps, self.agent_steps(each), each.cpu_seconds) for each in found]
        steps, alone, seconds = (float(mean) for mean in np.mean(costs, axis=0))
        return Over(len(found), iqm, (low, high), steps, alone, seconds)

    def agent_steps(self, seed: Seed) -> int:
        """Return the environment steps in which the elite of a run of this row was trained, its ancestors' included.

        They end with the generation that the curve's last elite comes from. Members that train side by side share
        steps equally. Of trials that follow each other (`RENEWS` of the search strategy) the one under way counts.
        """
        curve, params = seed.curve, self.params
        first = len(curve.elite) - 1
        while first and curve.elite[first - 1] == curve.elite[-1]:
            first -= 1
        each, life = curve.env_steps[first] // params.population.size, params.train.max_steps
        return (each - 1) % life + 1 if searchers.get(params.search.strategy).RENEWS else each

    def reached(self) -> bool | None:
        """Return whether the row's score is as good as the best published score, see `Entry.reached`.

        The result is None if the row has no results, or if no score was published.
        """
        return self.entry.reached(self.over())

    def record(self, seed: int, result: Seed, archive: bytes) -> None:
        """Add the results of one seed to the file of results.

        Results of runs with other parameters than the pipeline has now are dropped from the file. The seed's elite is
        written to the row's archive file if its mean return is higher than that of every other seed, or if there is no
        archive file yet.

        Args:
            seed: the seed.
            result: the results of the seed's run.
            archive: the content of the archive file with this seed's elite.

        Raises:
            DiskError: a file cannot be written.
        """
        found = {number: each for number, each in self.trained().items() if number != seed}
        if not self.archive.exists() or all(each.mean < result.mean for each in found.values()):
            write_bytes(self.archive, archive)
        every = {number: each.model_dump(mode="json") for number, each in {**found, seed: result}.items()}
        write_json(self.file, {"format": FORMAT, "seeds": {str(number): each for number, each in every.items()}})


def rows(folder: str | Path | None = None) -> dict[str, ZooRow]:
    """Return all rows of the zoo by name, in the order of `zoo/rows.yaml`, the cheapest first.

    Args:
        folder: a clone of evopipe's repository. None searches the working folder, the folders above it, and the clone
            that contains this code.

    Raises:
        MissingInputError: no clone was found; an installed package does not contain the zoo.
        DataError: `zoo/rows.yaml` cannot be used.
    """
    home = _home(folder)
    return {name: ZooRow(name, entry, home) for name, entry in _read(home).rows.items()}


def sources(folder: str | Path | None = None) -> dict[str, str]:
    """Return where each publication can be found, by the publication's name, as in `Published.by`.

    Args:
        folder: a clone of evopipe's repository; None searches for one as `rows` does.

    Raises:
        MissingInputError: no clone was found.
        DataError: `zoo/rows.yaml` cannot be used.
    """
    return dict(_read(_home(folder)).sources)


def find(name: str, folder: str | Path | None = None) -> ZooRow:
    """Return the row of the zoo with this name.

    Args:
        name: the row's name, such as `ppo-cartpole`.
        folder: a clone of evopipe's repository; None searches for one as `rows` does.

    Raises:
        UsageError: there is no row of this name.
        MissingInputError: no clone was found.
        DataError: `zoo/rows.yaml` cannot be used.
    """
    known = rows(folder)
    if name not in known:
        raise UsageError(f"zoo: there is no row {name!r:.60}{suggestion(name, known)}")
    return known[name]


def load(name: str, folder: str | Path | None = None) -> Policy | TeamPolicy:
    """Return the policy of a row of the zoo. The policy is the elite (best member) of the best recorded seed.

    Args:
        name: the row's name, such as `ppo-cartpole`; `evopipe zoo list` lists the names.
        folder: a clone of evopipe's repository; None searches for one as `rows` does.

    Raises:
        UsageError: there is no row of this name.
        MissingInputError: no clone of the repository was found, or the row was not trained yet.
        DataError: the archive file is damaged.
    """
    row = find(name, folder)
    if not row.archive.exists():
        raise MissingInputError(f"zoo: {name} was not trained yet: `evopipe zoo train {name}`, or take another row")
    where, data = row.archive, read_bytes(row.archive)
    return described(parse_json(note_of(data, str(where)).encode(), str(where)), load_tensors(data, str(where)), where)


def code() -> str:
    """Return a hash of evopipe's code on which a score depends: the code of the stages `population`, `train` and
    `evaluate`."""
    found = {source for stage in layout.STAGES if stage.name in _COMPUTED_BY for source in stage.sources}
    return content_key({}, [CODE / source for source in sorted(found)])


def iqm_over_runs(scores: NDArray[np.float64], resamples: int = _RESAMPLES) -> tuple[float, tuple[float, float]]:
    """Return the interquartile mean of scores `[runs, tasks]`, and its 95 % stratified bootstrap interval (low, high).

    The mean leaves out n/4 of n scores, rounded down, at either end, as the library `rliable` does. The result differs
    from `ops.statistics.interquartile_mean` if runs are few, because that function weights the scores at the border.
    Each of the `resamples` bootstrap samples draws, for every task, as many runs as there are, with replacement
    (Agarwal et al., NeurIPS 2021, section 4.1).
    """
    runs, tasks = scores.shape
    drawn = np.random.default_rng(0).integers(0, runs, (resamples, runs, tasks))
    means = _trimmed_mean(np.take_along_axis(scores[None], drawn, axis=1).reshape(resamples, -1))
    low, high = np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return float(_trimmed_mean(scores.reshape(1, -1))[0]), (float(low), float(high))


def _trimmed_mean(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means `[m]` of rows `[m, n]` without a quarter of their values at either end, rounded down."""
    out = x.shape[1] // 4
    mean: NDArray[np.float64] = np.sort(x, axis=1)[:, out : x.shape[1] - out].mean(axis=1)
    return mean


def _home(folder: str | Path | None) -> Path:
    """Return the folder of a clone that has a zoo."""
    here = Path.cwd()
    asked = [Path(folder).absolute()] if folder is not None else [here, *here.parents, CODE.parents[1]]
    found = next((each for each in asked if (each / ZOO / ROWS).is_file()), None)
    if found is None:
        place = "here or above" if folder is None else f"in {folder}"
        raise MissingInputError(
            f"zoo: {ZOO / ROWS} is not {place}: the rows are in evopipe's repository, and an installed package holds "
            "none; run it in a clone of that"
        )
    return found


def _read(home: Path) -> _File:
    file = home / ZOO / ROWS
    found = _parsed(_File, read_yaml(file).data, file)
    unknown = {each.by for row in found.rows.values() for each in row.published} - found.sources.keys()
    if unknown:
        raise DataError(f"{file}: published by {', '.join(sorted(unknown))}, of which there is no source")
    return found


def _parsed(model: type[_Model], data: Any, file: Path) -> _Model:
    try:
        with in_a_sentence(model, data):
            return model.model_validate(data)
    except ValueError as error:
        raise DataError(f"{file}: {error}; restore it with git") from None
