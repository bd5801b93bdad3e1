"""MLflow: a run for the training, and a nested run for every slot of the population.

A slot, not a member's id: ids live for a generation or two, and a population of 20 over 50 generations has some
hundreds of them. A slot has one line of fitness from the first step to the last; whose turn it was is there as the
metrics `id` and `parent`, and the whole descent as the artifact `lineage.jsonl`.

Nothing is remembered here of what MLflow holds: each delivery finds it by tags. Every row has the time and step of its
event, so that what is delivered twice is there once.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from evopipe.schema.blocks import TrackingConfig
from evopipe.storage.files import make_folder
from evopipe.track.run import (
    ELITE,
    EVALUATION,
    New,
    Run,
    TrackerError,
    evaluation_metrics,
    flat_params,
    member_metrics,
    population_metrics,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.entities import Run as Found

PACKAGE = "mlflow"
_KEY, _RESULT, _KIND, _SENT, _HELD, _SLOT, _EXPERIMENT = (
    f"evopipe.{name}" for name in ("key", "result", "kind", "generations", "files", "slot", "experiment")
)
_SQLITE = "sqlite:///"
_LONGEST_PARAM = 6000

# MLflow would retry for many minutes, and tell its makers that it is used.
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def connect(config: TrackingConfig, root: Path) -> _Mlflow:
    """Open the store, which is made where it is missing."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    uri = tracking_uri(root)
    if (database := _database(uri)) is not None:
        _make_database(database)
    return _Mlflow(config, MlflowClient(uri, registry_uri=uri), database)


def home(root: Path) -> Path:
    """Return the folder of the local database and its artifacts."""
    return root / ".evopipe" / "mlflow"


def tracking_uri(root: Path) -> str:
    """Return `MLFLOW_TRACKING_URI` where it is set, else the database below the DVC root.

    A database's relative path is taken from the DVC root: processes in several folders must mean the same one.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{home(root) / 'mlflow.db'}"
    return uri if _database(uri) is None else f"{_SQLITE}{root / uri.removeprefix(_SQLITE)}"


def _database(uri: str) -> Path | None:
    """Return the file of a SQLite store; None where the store is something else."""
    name = uri.removeprefix(_SQLITE)
    return None if name in (uri, "") or ":memory:" in name else Path(name.partition("?")[0])


def _make_database(path: Path) -> None:
    """Make the local database where it is missing: one process at a time, and under another name until it is whole.

    MLflow makes its tables in dozens of steps. Two processes at once break it, and so does a full disk or a kill in
    between: what is half made can never be opened again.
    """
    from mlflow import MlflowClient

    if path.exists():
        return
    make_folder(path.parent)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            draft = path.with_name(f".{path.name}.new")
            draft.unlink(missing_ok=True)
            draft.with_name(f"{draft.name}-journal").unlink(missing_ok=True)
            MlflowClient(f"{_SQLITE}{draft}").search_experiments(max_results=1)
            os.replace(draft, path)


class _Mlflow:
    """Brings runs into an open store."""

    def __init__(self, config: TrackingConfig, client: Any, database: Path | None) -> None:
        self._config, self._client, self._database = config, client, database
        self._everywhere = self._experiments()

    def deliver(self, run: Run) -> New:
        """Bring what is not there yet."""
        found, new = self._find(run), New()
        if found is None:
            found, new["run"] = self._create(run), 1
        elif found.info.lifecycle_stage != "active":  # deleted by someone who did not want to see it
            return new
        nested = self._search(f"tags.`mlflow.parentRunId` = '{found.info.run_id}'")
        slots = {int(one.data.tags[_SLOT]): one for one in nested}
        held = json.loads(found.data.tags.get(_HELD, "{}"))
        new["generation"] = self._send(found, slots, run)
        new["file"] = self._attach(found, held, run)
        self._conclude([*slots.values(), found], run)
        if run.status == "finished" and self._config.register_as and ELITE in held:
            self._register(self._config.register_as, found, held[ELITE])
        return new

    def close(self) -> None:
        """Nothing is held open."""

    def _experiments(self) -> list[str]:
        from mlflow.entities import ViewType

        found, token = list[str](), None
        while True:
            page = self._client.search_experiments(view_type=ViewType.ALL, max_results=1000, page_token=token)
            found.extend(experiment.experiment_id for experiment in page)
            if not (token := page.token):
                return found

    def _find(self, run: Run) -> Found | None:
        for tag, value in ((_KEY, run.key), (_RESULT, run.result)):
            if value and (found := self._search(f"tags.`{tag}` = '{value}' and tags.`{_KIND}` = 'training'")):
                return min(found, key=lambda one: bool(one.info.lifecycle_stage != "active"))
        return None

    def _search(self, text: str) -> Sequence[Found]:
        from mlflow.entities import ViewType

        order = ["attributes.start_time ASC"]
        found: Sequence[Found] = self._client.search_runs(self._everywhere, text, ViewType.ALL, 5000, order)
        return found

    def _create(self, run: Run) -> Found:
        tags = {
            _KEY: run.key,
            _KIND: "training",
            _EXPERIMENT: run.experiment,
            "evopipe.env": run.env,
            "evopipe.algo": run.algo,
            "evopipe.version": run.version,
            "mlflow.source.name": "evopipe train",
            "mlflow.source.type": "JOB",
            "mlflow.source.git.commit": run.revision,
        }
        known = {tag: value for tag, value in tags.items() if value}
        return self._create_run(self._experiment(self._config.experiment or run.env), run, run.name, known)

    def _create_run(self, experiment: str, run: Run, name: str, tags: dict[str, str]) -> Found:
        made: Found = self._client.create_run(experiment, _milliseconds(run.started), tags, name)
        return made

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            place = (self._database.parent / "artifacts").as_uri() if self._database is not None else None
            try:
                self._client.create_experiment(name, artifact_location=place)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another process, which was quicker
                    raise
            found = self._client.get_experiment_by_name(name)
            self._everywhere.append(found.experiment_id)
        if found.lifecycle_stage != "active":
            raise TrackerError(
                f"the MLflow experiment {name!r} was deleted: restore it (`mlflow experiments restore "
                f"--experiment-id {found.experiment_id}`), or set tracking.experiment to another name"
            )
        return str(found.experiment_id)

    def _send(self, found: Found, slots: dict[int, Found], run: Run) -> int:
        """Send the generations that are not there: the members' first, so that the training's count is true."""
        from mlflow.entities import Metric, Param, RunTag

        params = [Param(name, value[:_LONGEST_PARAM]) for name, value in flat_params(run).items()]
        self._client.log_batch(found.info.run_id, params=[p for p in params if p.key not in found.data.params])
        fresh = run.after(int(found.data.tags.get(_SENT, 0)))
        if not fresh:
            return 0
        whole: list[Metric] = []
        members: dict[int, list[Metric]] = {}
        for clock, event in fresh:
            at = (_milliseconds(clock), event.env_steps)
            whole += [Metric(name, value, *at) for name, value in population_metrics(event).items()]
            for row in event.members:
                metrics = members.setdefault(row.slot, [])
                metrics += [Metric(name, value, *at) for name, value in member_metrics(row).items()]
        for row in fresh[-1][1].members:
            if row.slot not in slots:
                slots[row.slot] = self._create_run(
                    found.info.experiment_id,
                    run,
                    f"{run.name} · member {row.slot}",
                    {"mlflow.parentRunId": found.info.run_id, _SLOT: str(row.slot), _KIND: "member"},
                )
            words = {"network": row.architecture, "activation": row.activation, "mutation": row.mutation}
            tags = [RunTag(name, text[:5000]) for name, text in {**words, "change": row.change or "-"}.items()]
            self._client.log_batch(slots[row.slot].info.run_id, metrics=members[row.slot], tags=tags)
        self._client.log_batch(found.info.run_id, metrics=whole)
        self._client.set_tag(found.info.run_id, _SENT, str(fresh[-1][1].generation))
        return len(fresh)

    def _attach(self, found: Found, held: dict[str, str], run: Run) -> int:
        """Bring files, and add them to those that are held."""
        from mlflow.entities import Metric

        fresh = {
            name: kept
            for name, kept in run.files.items()
            if held.get(name) != kept.md5 and (run.replace or name not in held)
        }
        for name, kept in fresh.items():
            if kept.path.is_dir():
                self._client.log_artifacts(found.info.run_id, str(kept.path), name)
            else:
                self._client.log_artifact(found.info.run_id, str(kept.path))
            if name == EVALUATION:
                at = (_milliseconds(kept.time), run.env_steps)
                metrics = [Metric(name, value, *at) for name, value in evaluation_metrics(run).items()]
                self._client.log_batch(found.info.run_id, metrics=metrics)
            held[name] = kept.md5
        if fresh:
            self._client.set_tag(found.info.run_id, _HELD, json.dumps(held, sort_keys=True))
        return len(fresh)

    def _conclude(self, runs: Sequence[Found], run: Run) -> None:
        """Tell of the outcome, of the DVC experiments that have it, and whether the training goes on."""
        found = runs[-1]
        tags = found.data.tags
        names = {*tags.get(_EXPERIMENT, "").split(", "), run.experiment or ""} - {""}
        known = {_EXPERIMENT: ", ".join(sorted(names)), _RESULT: tags.get(_RESULT) or run.result}
        if run.ended is not None:
            known["evopipe.ended"] = tags.get("evopipe.ended") or run.ended[1]
        for tag, value in known.items():
            if value and tags.get(tag) != value:
                self._client.set_tag(found.info.run_id, tag, value)
        end = _milliseconds(run.ended[0] if run.ended else run.last_time)
        for one in runs:
            if one.info.status == run.status.upper():
                continue
            if run.status == "running":
                self._client.update_run(one.info.run_id, "RUNNING")
            else:
                self._client.set_terminated(one.info.run_id, run.status.upper(), end)

    def _register(self, name: str, found: Found, elite: str) -> None:
        """Register the elite once: the version knows by a tag which elite it is."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        run_id, source = found.info.run_id, f"{found.info.artifact_uri}/{ELITE}"
        versions = self._client.search_model_versions(f"name = '{name}'")
        if not any(v.run_id == run_id and v.tags.get("evopipe.elite") == elite for v in versions):
            tags = {"evopipe.elite": elite}
            self._client.create_model_version(name, source, run_id, tags=tags, await_creation_for=0)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
