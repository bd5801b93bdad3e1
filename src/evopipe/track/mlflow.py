"""MLflow: a run for the training, and a nested run for every slot of the population.

A slot, not a member's id: ids live for a generation or two, and a population of 20 over 50 generations has some
hundreds of them. A slot has one line of fitness from the first step to the last; whose turn it was is there as the
metrics `id` and `parent`, and the whole descent as the artifact `lineage.jsonl`.

Everything is found again by tags, and every row has the time and step of its event, so that what is delivered twice is
there once.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evopipe.schema.blocks import TrackingConfig
from evopipe.storage import safeio
from evopipe.track.run import (
    ELITE,
    EVALUATION,
    Kept,
    New,
    Run,
    TrackerError,
    chunks,
    evaluation_metrics,
    flat_params,
    member_metrics,
    member_words,
    population_metrics,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric

KEY, RESULT, KIND, SENT, HELD, SLOT, EXPERIMENT = (
    f"evopipe.{name}" for name in ("key", "result", "kind", "generations", "files", "slot", "experiment")
)
STATUS = {"running": "RUNNING", "finished": "FINISHED", "killed": "KILLED"}
SQLITE = "sqlite:///"
METRICS_AT_ONCE, PARAMS_AT_ONCE, LONGEST_PARAM = 1000, 100, 6000

# MLflow would retry for many minutes, and tell its makers that it is used.
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def home(root: Path) -> Path:
    """Return the folder of the local database and its artifacts."""
    return root / ".evopipe" / "mlflow"


def tracking_uri(root: Path) -> str:
    """Return `MLFLOW_TRACKING_URI` where it is set, else the database below the DVC root.

    A database's relative path is taken from the DVC root: processes in several folders must mean the same one.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{home(root) / 'mlflow.db'}"
    return f"{SQLITE}{root / uri.removeprefix(SQLITE)}" if _is_file(uri) else uri


def _is_file(uri: str) -> bool:
    return uri.startswith(SQLITE) and uri != SQLITE and ":memory:" not in uri


@dataclass
class _Place:
    """Where a run is in MLflow, and what of it is there."""

    run_id: str
    experiment_id: str
    artifacts: str
    status: str
    sent: int = 0
    held: dict[str, str] = field(default_factory=dict)
    result: str | None = None
    names: frozenset[str] = frozenset()
    params: set[str] = field(default_factory=set)
    slots: dict[int, str] = field(default_factory=dict)
    words: dict[int, dict[str, str]] = field(default_factory=dict)
    removed: bool = False


class Mlflow:
    """Brings runs into MLflow.

    Args:
        config: the `tracking` block.
        root: the DVC root.

    Raises:
        Exception: whatever MLflow raises where the store cannot be opened.
    """

    def __init__(self, config: TrackingConfig, root: Path) -> None:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        uri = tracking_uri(root)
        self._config = config
        self._database = Path(uri.removeprefix(SQLITE).partition("?")[0]) if _is_file(uri) else None
        self._places: dict[str, _Place] = {}
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        if self._database is not None:
            _make_database(self._database)
        self._client = MlflowClient(uri, registry_uri=uri)
        self._everywhere = self._experiments()

    def find(self, run: Run) -> bool:
        """Whether all generations of this training are there."""
        place = self._place(run)
        return place is not None and (place.removed or (place.result is not None and place.result == run.result))

    def deliver(self, run: Run) -> New:
        """Bring what is not there yet."""
        new = New()
        place = self._place(run)
        if place is None:
            place = self._places[run.key] = self._create(run)
            new.runs = 1
        if place.removed:  # by someone who did not want to see it
            return New()
        self._send_params(place, run)
        new.generations = self._send(place, run)
        new.files = self._attach(place, run)
        self._conclude(place, run)
        return new

    def close(self) -> None:
        """Nothing is held open."""

    # ------------------------------------------------------------------------------------------ finding

    def _experiments(self) -> list[str]:
        from mlflow.entities import ViewType

        found: list[str] = []
        token = None
        while True:
            page = self._client.search_experiments(view_type=ViewType.ALL, max_results=1000, page_token=token)
            found.extend(experiment.experiment_id for experiment in page)
            token = page.token
            if not token:
                return found

    def _place(self, run: Run) -> _Place | None:
        if run.key not in self._places:
            found = self._search(f"tags.`{KEY}` = '{run.key}' and tags.`{KIND}` = 'training'")
            if not found and run.result:
                found = self._search(f"tags.`{RESULT}` = '{run.result}' and tags.`{KIND}` = 'training'")
            if not found:
                return None
            self._places[run.key] = self._read(found[0])
        return self._places[run.key]

    def _search(self, text: str) -> Sequence[Any]:
        from mlflow.entities import ViewType

        if not self._everywhere:
            return []
        found: Sequence[Any] = self._client.search_runs(
            self._everywhere, text, run_view_type=ViewType.ALL, max_results=5000, order_by=["attributes.start_time ASC"]
        )
        return sorted(found, key=lambda run: bool(run.info.lifecycle_stage != "active"))

    def _read(self, found: Any) -> _Place:
        tags = found.data.tags
        place = _Place(
            found.info.run_id,
            found.info.experiment_id,
            found.info.artifact_uri,
            found.info.status,
            int(tags.get(SENT, 0)),
            json.loads(tags.get(HELD, "{}")),
            tags.get(RESULT),
            frozenset(filter(None, tags.get(EXPERIMENT, "").split(", "))),
            params=set(found.data.params),
            removed=found.info.lifecycle_stage != "active",
        )
        for nested in self._search(f"tags.`mlflow.parentRunId` = '{place.run_id}'"):
            place.slots[int(nested.data.tags[SLOT])] = nested.info.run_id
        return place

    # ------------------------------------------------------------------------------------------ making

    def _create(self, run: Run) -> _Place:
        experiment = self._experiment(self._config.experiment or run.env)
        tags = {
            KEY: run.key,
            KIND: "training",
            EXPERIMENT: run.experiment,
            "evopipe.env": run.env,
            "evopipe.algo": run.algo,
            "evopipe.version": run.version,
            "mlflow.source.name": "evopipe train",
            "mlflow.source.type": "JOB",
            "mlflow.source.git.commit": run.revision,
        }
        made = self._client.create_run(
            experiment,
            start_time=_milliseconds(run.started),
            tags={name: value for name, value in tags.items() if value},
            run_name=run.name,
        )
        names = frozenset(filter(None, [run.experiment]))
        return _Place(made.info.run_id, experiment, made.info.artifact_uri, made.info.status, names=names)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            found = self._client.get_experiment(self._create_experiment(name))
            self._everywhere.append(found.experiment_id)
        if found.lifecycle_stage != "active":
            raise TrackerError(
                f"the MLflow experiment {name!r} was deleted: restore it (`mlflow experiments restore "
                f"--experiment-id {found.experiment_id}`), or set tracking.experiment to another name"
            )
        return str(found.experiment_id)

    def _create_experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        place = (self._database.parent / "artifacts").as_uri() if self._database is not None else None
        try:
            return str(self._client.create_experiment(name, artifact_location=place))
        except MlflowException as error:
            # Another process was quicker.
            if error.error_code == "RESOURCE_ALREADY_EXISTS" and (found := self._client.get_experiment_by_name(name)):
                return str(found.experiment_id)
            raise

    def _slot(self, place: _Place, slot: int, run: Run) -> str:
        if slot not in place.slots:
            tags = {"mlflow.parentRunId": place.run_id, SLOT: str(slot), KIND: "member"}
            made = self._client.create_run(
                place.experiment_id,
                start_time=_milliseconds(run.started),
                tags=tags,
                run_name=f"{run.name} · member {slot}",
            )
            place.slots[slot] = made.info.run_id
            place.status = "RUNNING"  # so that the end is told to this one too
        return place.slots[slot]

    # ------------------------------------------------------------------------------------------ sending

    def _send_params(self, place: _Place, run: Run) -> None:
        from mlflow.entities import Param

        values = {name: value for name, value in flat_params(run).items() if name not in place.params}
        params = [Param(name, value[:LONGEST_PARAM]) for name, value in values.items()]
        for some in chunks(params, PARAMS_AT_ONCE):
            self._client.log_batch(place.run_id, params=some)
        place.params |= values.keys()

    def _send(self, place: _Place, run: Run) -> int:
        """Send the generations that are not there: the members' first, so that the training's count is true."""
        from mlflow.entities import Metric, RunTag

        fresh = [(clock, event) for clock, event in run.generations if event.generation > place.sent]
        if not fresh:
            return 0
        members: dict[int, list[Metric]] = {}
        words: dict[int, dict[str, str]] = {}
        whole: list[Metric] = []
        for clock, event in fresh:
            at = (_milliseconds(clock), event.env_steps)
            whole += [Metric(name, value, *at) for name, value in population_metrics(event).items()]
            for row in event.members:
                entries = members.setdefault(row.slot, [])
                entries += [Metric(name, value, *at) for name, value in member_metrics(row).items()]
                words[row.slot] = member_words(row)
        for slot, metrics in sorted(members.items()):
            told = place.words.get(slot, {})
            tags = [RunTag(name, text[:5000]) for name, text in words[slot].items() if told.get(name) != text]
            self._log(self._slot(place, slot, run), metrics, tags)
            place.words[slot] = words[slot]
        last = fresh[-1][1].generation
        self._log(place.run_id, whole, [RunTag(SENT, str(last))])
        place.sent = last
        return len(fresh)

    def _log(self, run_id: str, metrics: list[Metric], tags: Sequence[Any]) -> None:
        *before, rest = [*chunks(metrics, METRICS_AT_ONCE)] or [[]]
        for some in before:
            self._client.log_batch(run_id, metrics=some)
        self._client.log_batch(run_id, metrics=rest, tags=tags)

    def _attach(self, place: _Place, run: Run) -> int:
        fresh = {
            name: kept
            for name, kept in run.files.items()
            if place.held.get(name) != kept.md5 and (run.replace or name not in place.held)
        }
        for name, kept in fresh.items():
            if kept.path.is_dir():
                self._client.log_artifacts(place.run_id, str(kept.path), name)
            else:
                self._client.log_artifact(place.run_id, str(kept.path))
            if name == EVALUATION:
                self._send_evaluation(place, run, kept)
        if fresh:
            place.held |= {name: kept.md5 for name, kept in fresh.items()}
            self._client.set_tag(place.run_id, HELD, json.dumps(place.held, sort_keys=True))
        return len(fresh)

    def _send_evaluation(self, place: _Place, run: Run, kept: Kept) -> None:
        from mlflow.entities import Metric

        steps = run.generations[-1][1].env_steps if run.generations else 0
        at = (_milliseconds(kept.time), steps)
        self._log(place.run_id, [Metric(name, value, *at) for name, value in evaluation_metrics(run).items()], [])

    def _conclude(self, place: _Place, run: Run) -> None:
        """Tell what is known at the end: outcome, experiment, status; register the elite where that is asked for."""
        if run.result and place.result is None:
            self._client.set_tag(place.run_id, RESULT, run.result)
            place.result = run.result
        names = place.names | frozenset(filter(None, [run.experiment]))
        if names != place.names:
            self._client.set_tag(place.run_id, EXPERIMENT, ", ".join(sorted(names)))
            place.names = names
        if run.status == "finished" and self._config.register_as and ELITE in place.held:
            self._register(self._config.register_as, place)
        if place.status != STATUS[run.status]:
            self._set_status(place, run)

    def _set_status(self, place: _Place, run: Run) -> None:
        if run.ended:
            self._client.set_tag(place.run_id, "evopipe.ended", run.ended[1])
        status, ids = STATUS[run.status], [*place.slots.values(), place.run_id]
        end = run.ended[0] if run.ended else run.last_time
        for run_id in ids:
            if run.status == "running":
                self._client.update_run(run_id, status=status)
            else:
                self._client.set_terminated(run_id, status, _milliseconds(end))
        place.status = status

    def _register(self, name: str, place: _Place) -> None:
        """Register the elite once: the version knows by a tag which elite it is."""
        from mlflow.exceptions import MlflowException

        elite = place.held[ELITE]
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        versions = self._client.search_model_versions(f"name = '{name}'")
        if any(v.run_id == place.run_id and v.tags.get("evopipe.elite") == elite for v in versions):
            return
        self._client.create_model_version(
            name,
            f"{place.artifacts}/{ELITE}",
            place.run_id,
            tags={"evopipe.elite": elite},
            await_creation_for=0,
        )


def _make_database(path: Path) -> None:
    """Make the local database where it is missing: one process at a time, and under another name until it is whole.

    MLflow makes its tables in dozens of steps. Two processes at once break it, and so does a full disk or a kill in
    between: what is half made can never be opened again.
    """
    from mlflow import MlflowClient

    if path.exists():
        return
    safeio.make_folder(path.parent)
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not path.exists():
            draft = path.with_name(f".{path.name}.new")
            draft.unlink(missing_ok=True)
            draft.with_name(f"{draft.name}-journal").unlink(missing_ok=True)
            MlflowClient(f"{SQLITE}{draft}").search_experiments(max_results=1)
            os.replace(draft, path)
    finally:
        os.close(handle)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
