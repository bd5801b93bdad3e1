"""MLflow: a run for each training, with a nested run for every slot of the population; and `evopipe track ui`.

The nested runs are slots, not members: members live for a generation or two, and a population of 20 has some hundreds
of them in 50 generations. A slot has one line of fitness from the first step to the last. The metrics `id` and `parent`
say which member had it, and the artifact `lineage.jsonl` holds the complete lineage.

Nothing is stored here of what MLflow has: each delivery finds it by tags. Every row has the time and step of its event,
so that a row that is delivered twice is stored once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from evopipe import layout
from evopipe.errors import MissingInputError, TrackerError, UsageError, need_package, redacted
from evopipe.schema.tracking import TrackingConfig
from evopipe.storage.files import make_folder
from evopipe.track.record import Kept, New, TrackedRun

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.entities import Run as Found

    from evopipe.track.events import MemberRow

PACKAGE = "evopipe[mlflow]"
_HOME = Path(".evopipe/mlflow")  # the local database and its artifacts, below the DVC root
_KEY, _RESULT, _KIND, _SENT, _HELD, _SLOT, _EXPERIMENT, _ELITE = (
    f"evopipe.{name}" for name in ("key", "result", "kind", "generations", "files", "slot", "experiment", "elite")
)
_TRAINS = {"mlflow.experimentKind": "custom_model_development"}  # else its pages ask whether it is about prompts
_SQLITE = "sqlite:///"
_LONGEST_PARAM, _LONGEST_TAG = 6000, 5000
_HOST, _PAGE = "127.0.0.1", "/#/experiments"

# MLflow would retry for many minutes, tell its makers that it is used, and print its address.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # with whatever password it holds
}


def connect(config: TrackingConfig, root: Path) -> _Mlflow:
    """Open MLflow's store for the project below `root`, the root of the DVC repository, and create the store if it is
    missing.

    `config` is the block `tracking` of the parameters.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    uri = _tracking_uri(root)
    if (database := _database(uri)) is not None:
        _make_database(database)
    return _Mlflow(config, MlflowClient(uri, registry_uri=uri), database)


def _tracking_uri(root: Path) -> str:
    """Return `MLFLOW_TRACKING_URI` if it is set, else the database below the DVC root. A database's relative path is
    taken from the DVC root: processes in several folders must mean the same one."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{root / _HOME / 'mlflow.db'}"
    return uri if _database(uri) is None else f"{_SQLITE}{root / uri.removeprefix(_SQLITE)}"


def _database(uri: str) -> Path | None:
    """Return the file of a SQLite store; None if the store is something else."""
    name = uri.removeprefix(_SQLITE)
    return None if name in (uri, "") or ":memory:" in name else Path(name.partition("?")[0])


def _make_database(path: Path) -> None:
    """Make the local database if it is missing. MLflow makes its tables in dozens of steps. Two processes at once break
    it, and so does a full disk or a kill in between: so one process at a time makes it, and under another name until it
    is whole."""
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

    def deliver(self, run: TrackedRun) -> New:
        found, new = self._find(run), New()
        if found is None:
            found, new["run"] = self._create(run), 1
        elif found.info.lifecycle_stage != "active":  # deleted by someone who did not want to see it
            return new
        nested = self._search([found.info.experiment_id], f"tags.`mlflow.parentRunId` = '{found.info.run_id}'")
        slots = {int(one.data.tags[_SLOT]): one for one in nested}
        held = json.loads(found.data.tags.get(_HELD, "{}"))
        new["generation"] = self._send(found, slots, run)
        new["file"] = self._attach(found, held, run)
        self._conclude([*slots.values(), found], run)
        elite = run.files.get("elite")
        if run.status == "finished" and self._config.register_as and elite and held["elite"] == elite.md5:
            self._register(self._config.register_as, found, elite)
        return new

    def close(self) -> None:
        """Nothing is held open."""

    def _find(self, run: TrackedRun) -> Found | None:
        from mlflow.entities import ViewType

        everywhere, token = list[str](), None
        while token != "":
            page = self._client.search_experiments(ViewType.ALL, 1000, page_token=token)
            everywhere += [experiment.experiment_id for experiment in page]
            token = page.token or ""
        for tag, value in ((_KEY, run.key), (_RESULT, run.result)):
            training = f"tags.`{tag}` = '{value}' and tags.`{_KIND}` = 'training'"
            if value and (found := self._search(everywhere, training)):
                return min(found, key=lambda one: bool(one.info.lifecycle_stage != "active"))
        return None

    def _search(self, experiments: Sequence[str], text: str) -> Sequence[Found]:
        from mlflow.entities import ViewType

        oldest_first = ["attributes.start_time ASC"]
        found: Sequence[Found] = self._client.search_runs(experiments, text, ViewType.ALL, 5000, oldest_first)
        return found

    def _create(self, run: TrackedRun) -> Found:
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
        experiment = self._experiment(self._config.experiment or run.env)
        made: Found = self._client.create_run(experiment, round(1000 * run.started), known, run.name)
        return made

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            place = (self._database.parent / "artifacts").as_uri() if self._database is not None else None
            with _made_already():
                self._client.create_experiment(name, artifact_location=place, tags=_TRAINS)
            found = self._client.get_experiment_by_name(name)
        if found.lifecycle_stage != "active":
            raise TrackerError(
                f"the MLflow experiment {name!r} was deleted: restore it (`mlflow experiments restore "
                f"--experiment-id {found.experiment_id}`), or set tracking.experiment to another name"
            )
        return str(found.experiment_id)

    def _send(self, found: Found, slots: dict[int, Found], run: TrackedRun) -> int:
        """Send the generations that are not there: the members' first, so that the training's count is true."""
        from mlflow.entities import Param, RunTag

        params = [Param(name, value[:_LONGEST_PARAM]) for name, value in run.flat_params().items()]
        self._client.log_batch(found.info.run_id, params=[p for p in params if p.key not in found.data.params])
        fresh = run.after(int(found.data.tags.get(_SENT, 0)))
        if not fresh:
            return 0
        whole: list[Metric] = []
        members: dict[int, list[Metric]] = {}
        latest: dict[int, MemberRow] = {}  # by slot: others may wait in the last generation
        for clock, event in fresh:
            whole += _metrics(event.metrics(), clock, event.env_steps)
            for row in event.members:
                members.setdefault(row.slot, []).extend(_metrics(row.metrics(), clock, event.env_steps))
                latest[row.slot] = row
        for row in latest.values():
            if row.slot not in slots:
                tags = {"mlflow.parentRunId": found.info.run_id, _SLOT: str(row.slot), _KIND: "member"}
                at, name = round(1000 * run.started), f"{run.name} · member {row.slot}"
                slots[row.slot] = self._client.create_run(found.info.experiment_id, at, tags, name)
            words = {"network": row.architecture, "activation": row.activation, "mutation": row.mutation}
            now = [RunTag(name, text[:_LONGEST_TAG]) for name, text in {**words, "change": row.change or "-"}.items()]
            self._client.log_batch(slots[row.slot].info.run_id, metrics=members[row.slot], tags=now)
        self._client.log_batch(found.info.run_id, metrics=whole)
        self._client.set_tag(found.info.run_id, _SENT, str(fresh[-1][1].generation))
        return len(fresh)

    def _attach(self, found: Found, held: dict[str, str], run: TrackedRun) -> int:
        """Bring files, and add them to those that are held."""
        fresh = run.missing_files(held)
        for name, kept in fresh.items():
            if kept.path.is_dir():
                self._client.log_artifacts(found.info.run_id, str(kept.path), name)
            else:
                self._client.log_artifact(found.info.run_id, str(kept.path))
            if name == "evaluation":
                self._client.log_batch(found.info.run_id, metrics=_metrics(run.scores(), kept.time, run.last[1]))
            elif name == "train" and (dataset := run.dataset()) is not None:
                from mlflow.entities import Dataset, DatasetInput, InputTag

                told = Dataset(*dataset, "local", json.dumps({"uri": str(layout.TRANSITIONS)}))
                training = InputTag("mlflow.data.context", "training")
                self._client.log_inputs(found.info.run_id, [DatasetInput(told, [training])])
            held[name] = kept.md5
        if fresh:
            self._client.set_tag(found.info.run_id, _HELD, json.dumps(held, sort_keys=True))
        return len(fresh)

    def _conclude(self, runs: Sequence[Found], run: TrackedRun) -> None:
        """Write the result, the DVC experiments that have it, and whether the training goes on."""
        found = runs[-1]
        tags = found.data.tags
        names = {*tags.get(_EXPERIMENT, "").split(", "), run.experiment or ""} - {""}
        known = {_EXPERIMENT: ", ".join(sorted(names)), _RESULT: tags.get(_RESULT) or run.result}
        if run.ended is not None:
            known["evopipe.ended"] = tags.get("evopipe.ended") or run.ended[1]
        for tag, value in known.items():
            if value and tags.get(tag) != value:
                self._client.set_tag(found.info.run_id, tag, value)
        end = round(1000 * (run.ended[0] if run.ended else run.last[0]))
        for one in runs:
            if one.info.status == run.status.upper():
                continue
            if run.status == "running":
                self._client.update_run(one.info.run_id, "RUNNING")
            else:
                self._client.set_terminated(one.info.run_id, run.status.upper(), end)

    def _register(self, name: str, found: Found, elite: Kept) -> None:
        """Register the elite once, if it was exported with its program: a version knows by a tag which elite it is."""
        run_id, programs = found.info.run_id, _programs(elite.path)
        with _made_already():
            self._client.create_registered_model(name)
        versions = self._client.search_model_versions(f"name = '{name}'")
        if programs and not any(v.tags.get(_ELITE) == elite.md5 and v.run_id == run_id for v in versions):
            with tempfile.TemporaryDirectory(prefix="evopipe-model-") as folder:
                _write_model(programs, Path(folder) / "model")
                self._client.log_artifacts(run_id, str(Path(folder) / "model"), "model")
            source = f"{found.info.artifact_uri}/model"
            self._client.create_model_version(name, source, run_id, tags={_ELITE: elite.md5}, await_creation_for=0)


def _programs(elite: Path) -> dict[str, Path]:
    """Return an exported elite's programs, none where it was exported without: one by the name "", or each agent's."""
    told = elite / "policy.json"
    team = json.loads(told.read_bytes()).get("team") if told.is_file() else None
    files = layout.program_files([str(agent["id"]) for agent in team]) if team else {"": "policy.pt2"}
    found = {name: elite / file for name, file in files.items()}
    return found if all(path.is_file() for path in found.values()) else {}


def _write_model(programs: Mapping[str, Path], target: Path) -> None:
    """Write a model that MLflow loads and serves without evopipe: `track.served` and the programs, and no pickle."""
    import torch
    from mlflow.pyfunc import save_model

    example: dict[str, Any] = {}
    for name, path in programs.items():
        inputs, _ = torch.export.load(path).example_inputs
        words = (name, f"{name}.memory") if name else ("obs", "memory")
        example |= {word: each.numpy() for word, each in zip(words, inputs, strict=False)}
    save_model(
        str(target),
        python_model=str(Path(__file__).parents[1] / "served.py"),
        artifacts={name or "program": str(path) for name, path in programs.items()},
        input_example=example["obs"] if [*example] == ["obs"] else example,
        pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}", "numpy"],
    )


@contextlib.contextmanager
def _made_already() -> Iterator[None]:
    """Bear that what is to be made is there: another process was quicker, or an earlier delivery made it."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _metrics(values: Mapping[str, float], clock: float, step: int) -> list[Metric]:
    from mlflow.entities import Metric

    return [Metric(name, value, round(1000 * clock), step) for name, value in values.items()]


# --- the pages --------------------------------------------------------------------------------------------------------


def serve(root: Path, port: int, browser: bool, tell: Callable[[str], None]) -> None:
    """Serve MLflow's pages of the project at `root`, the root of the DVC repository, on a local port, until SIGINT or
    SIGTERM. `tell` is called with the address.

    If `MLFLOW_TRACKING_URI` names a server, nothing is served, and `tell` is called with that server's address.
    `browser` opens the address in a browser.

    Raises:
        MissingInputError: nothing was tracked yet, or MLflow is not installed.
        UsageError: the port is taken.
        TrackerError: the server ended by itself.
    """
    uri, place = _tracking_uri(root), root / _HOME
    if uri.startswith(("http://", "https://")):
        page = redacted(uri).replace("***@", "", 1) + _PAGE  # a browser asks for the password
        tell(f"MLFLOW_TRACKING_URI names a server that has its own pages: {page}")
        if browser:
            webbrowser.open(page)
        return
    need_package("mlflow", "mlflow", "track ui")
    if uri.startswith(f"{_SQLITE}{place}") and not (place / "mlflow.db").exists():
        raise MissingInputError(
            f"{place}: nothing was tracked yet; train with `tracking.backends: [mlflow]`, or bring what was trained "
            "with `evopipe track sync`"
        )
    try:
        socket.create_server((_HOST, port)).close()
    except OSError as error:
        raise UsageError(
            f"track ui: port {port} cannot be used ({error.strerror}): choose another, such as --port {port + 1}"
        ) from None
    words = ["--host", _HOST, "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *words],
        cwd=place if place.exists() else root,
        env={  # everyone on the machine can read a command line, and the address may hold a password
            **_DEFAULTS,
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_BACKEND_STORE_URI": uri,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is ours: the server is then stopped as a whole
        text=True,
        errors="replace",
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it like Ctrl-C
    last = ""
    try:
        for line in server.stdout or ():
            last = line.strip() or last
            if "Uvicorn running" in line:
                tell(f"http://{_HOST}:{port}{_PAGE} (Ctrl-C ends it)")
                if browser:
                    webbrowser.open(f"http://{_HOST}:{port}{_PAGE}")
        raise TrackerError(f"the MLflow server ended by itself ({redacted(last) or server.wait()}); try another --port")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one must not leave the server behind
    finally:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(server.pid, signum)  # its workers too
                server.communicate(timeout=5.0)
