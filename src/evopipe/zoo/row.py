"""The rows of the zoo: which there are, what was published of them, and what their seeds came to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from evopipe import layout
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

    `steps` are those of one agent's training; None where the source does not say.
    """

    by: str
    score: float
    deviation: float | None = None
    steps: int | None = None

    @property
    def bar(self) -> float:
        """What is as good: `SHARE` of the score; of a negative one, as much below it."""
        return self.score - (1 - SHARE) * abs(self.score)


class Entry(_Stored):
    """What `zoo/rows.yaml` says of a row."""

    family: str
    extra: str | None = None  # of evopipe, which installs what the environment needs
    published: tuple[Published, ...] = ()
    tried: str = ""  # what was tried, of a row that does not reach what was published


class _File(_Stored):
    sources: dict[str, str]
    rows: dict[str, Entry]


class Curve(_Stored):
    """The elite's fitness by generation, over steps of the population and over measured seconds."""

    env_steps: tuple[int, ...]
    eval_steps: tuple[int, ...]
    elite: tuple[float, ...]
    seconds: tuple[float, ...]


class Seed(_Stored):
    """What one seed came to.

    `mean`, `interval`, `std` and `iqm` are of its elite over held-out episodes. Steps are the whole population's, of
    training and of the evaluations that chose the elite. `elite` is the SHA-256 of the elite's tensors in safetensors'
    format, `params` and `code` are hashes of what it depends on, `cpu_seconds` are those of all stages. `revision` is
    null where the code was not as committed.
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
        """All steps that it took to have the elite, evaluation's too."""
        return self.training_steps + self.evaluation_steps


class _Results(_Stored):
    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    seeds: dict[int, Seed]


@dataclass(frozen=True)
class Over:
    """A row's scores over its seeds: their interquartile mean with a 95 % interval, see `iqm_over_runs`; the means of
    what a seed cost."""

    seeds: int
    iqm: float
    interval: tuple[float, float]
    steps: float
    cpu_seconds: float


@dataclass(frozen=True)
class ZooRow:
    """A row: its name, what `zoo/rows.yaml` says of it, and the repository's folder."""

    name: str
    entry: Entry
    home: Path

    @property
    def folder(self) -> Path:
        """Its pipeline's folder."""
        return self.home / PIPELINES / self.name

    @property
    def file(self) -> Path:
        """Where its results are."""
        return self.home / ZOO / f"{self.name}.json"

    @property
    def archive(self) -> Path:
        """Where the elite of its best seed is."""
        return self.home / ZOO / f"{self.name}.safetensors"

    @cached_property
    def params(self) -> AnyParams:
        """Its parameters.

        Raises:
            MissingInputError, ParamsError: its pipeline's file is not there, or cannot be used.
        """
        return load_params(str(self.folder / "params.yaml"))

    @cached_property
    def key(self) -> str:
        """A hash of the parameters that its results depend on. It is of what differs from the defaults, so that a
        parameter which is new and has its default makes no other row of it."""
        params = self.params
        kept = params.model_dump(
            mode="json", exclude_defaults=True, exclude={"seed", "algos", "export", "tracking", "runtime"}
        )
        return content_key({**kept, "algo": params.algo_config.model_dump(mode="json", exclude_defaults=True)})

    def seeds(self) -> dict[int, Seed]:
        """Return the results that were recorded, by seed; those of other parameters too.

        Raises:
            DataError: they are damaged.
        """
        if not self.file.exists():
            return {}
        return dict(sorted(_parsed(_Results, read_json(self.file), self.file).seeds.items()))

    def trained(self) -> dict[int, Seed]:
        """Return the results that are of the parameters which the pipeline has now, by seed."""
        return {seed: found for seed, found in self.seeds().items() if found.params == self.key}

    def over(self) -> Over | None:
        """Return the scores over seeds; None where none was trained."""
        found = [*self.trained().values()]
        if not found:
            return None
        iqm, (low, high) = iqm_over_runs(np.array([[each.mean] for each in found]))
        steps, seconds = np.mean([(each.steps, each.cpu_seconds) for each in found], axis=0)
        return Over(len(found), iqm, (low, high), float(steps), float(seconds))

    def reached(self) -> bool | None:
        """Return whether the interval's lower end reaches every published score, see `Published.bar`; None where there
        is none to reach, or nothing was trained."""
        over = self.over()
        if over is None or not self.entry.published:
            return None
        return over.interval[0] >= max(each.bar for each in self.entry.published)

    def record(self, seed: int, result: Seed, archive: bytes) -> None:
        """Add the results of a seed, and keep its elite if no other seed's is better.

        Raises:
            DiskError: a file cannot be written.
        """
        found = {number: each for number, each in self.trained().items() if number != seed}
        if not self.archive.exists() or all(each.mean < result.mean for each in found.values()):
            write_bytes(self.archive, archive)
        every = {number: each.model_dump(mode="json") for number, each in {**found, seed: result}.items()}
        write_json(self.file, {"format": FORMAT, "seeds": {str(number): each for number, each in every.items()}})


def rows(folder: str | Path | None = None) -> dict[str, ZooRow]:
    """Return the rows by name, the cheapest first.

    Args:
        folder: of a clone of evopipe's repository; None: the working folder's, else that which this code lies in.

    Raises:
        MissingInputError: there is no clone: an installed package holds no rows.
        DataError: `zoo/rows.yaml` cannot be used.
    """
    home = _home(folder)
    return {name: ZooRow(name, entry, home) for name, entry in _read(home).rows.items()}


def sources(folder: str | Path | None = None) -> dict[str, str]:
    """Return where published scores stand, by who published them; arguments and errors are those of `rows`."""
    return dict(_read(_home(folder)).sources)


def find(name: str, folder: str | Path | None = None) -> ZooRow:
    """Return a row by its name; errors are those of `rows`, and `UsageError` where there is no such row."""
    known = rows(folder)
    if name not in known:
        raise UsageError(f"zoo: there is no row {name!r:.60}{suggestion(name, known)}")
    return known[name]


def load(name: str, folder: str | Path | None = None) -> Policy | TeamPolicy:
    """Load the elite of a row: that of its best seed.

    Args:
        name: the row, such as `ppo-cartpole`; `evopipe zoo list` lists them.
        folder: see `rows`.

    Raises:
        UsageError: there is no such row.
        MissingInputError: there is no clone of the repository, or nobody has trained the row.
        DataError: the archive is damaged.
    """
    row = find(name, folder)
    if not row.archive.exists():
        raise MissingInputError(f"zoo: {name} was not trained yet: `evopipe zoo train {name}`, or take another row")
    where, data = row.archive, read_bytes(row.archive)
    return described(parse_json(note_of(data, str(where)).encode(), str(where)), load_tensors(data, str(where)), where)


def code() -> str:
    """Return a hash of the code that a score depends on: what the stages up to it compute with."""
    found = {source for stage in layout.STAGES if stage.name in _COMPUTED_BY for source in stage.sources}
    return content_key({}, [CODE / source for source in sorted(found)])


def iqm_over_runs(scores: NDArray[np.float64], resamples: int = _RESAMPLES) -> tuple[float, tuple[float, float]]:
    """Return the interquartile mean of scores `[runs, tasks]`, and its 95 % stratified bootstrap interval (low, high):
    of every task runs are drawn anew, as many as it has (Agarwal et al., NeurIPS 2021, section 4.1).

    The mean is the trimmed one of its authors' library `rliable`: of n values n/4, rounded down, are left out at either
    end. `ops.statistics.interquartile_mean` counts the values at the border by shares, which is another number where
    runs are few.
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
