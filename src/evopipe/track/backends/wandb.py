"""Weights & Biases: one run for each training, with the members' metrics under `member-<slot>/`.

Without an API key, the run is written offline below the DVC root, for a later `wandb sync`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from evopipe.schema.tracking import TrackingConfig
from evopipe.storage.files import make_folder
from evopipe.track.backends import Appending
from evopipe.track.events import Generation
from evopipe.track.record import TrackedRun

PACKAGE = "evopipe[wandb]"
_STEPS = "env_steps"


def connect(config: TrackingConfig, root: Path) -> Appending:
    """Return a connection to Weights & Biases; without an API key, runs are written offline to `.evopipe/wandb/` below
    `root`.

    `config` is the block `tracking` of the parameters, and `root` the root of the DVC repository.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    home = root / ".evopipe" / "wandb"

    def begin(run: TrackedRun) -> _Writer:
        return _Writer((config.experiment or run.env).replace("/", "-").replace(":", "-"), home, run)

    return Appending(home / "delivered", ["lineage", "evaluation", "report", "elite"], begin)


class _Writer:
    def __init__(self, project: str, home: Path, run: TrackedRun) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False, verify=False) else "offline")
        make_folder(home)
        for old in home.glob(f"wandb/offline-run-*-{run.key}"):
            shutil.rmtree(old)
        self._run = wandb.init(
            project=project,
            id=run.key,
            name=run.name,
            dir=str(home),
            config=run.flat_params(),
            mode=mode,  # type: ignore[arg-type]
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(silent=True, console="off", init_timeout=30, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric=_STEPS)
        summary: Any = self._run.summary
        self.sent = int(summary.get("population/generation", 0)) if self._run.resumed else 0

    def write(self, clock: float, event: Generation) -> None:
        row: dict[str, Any] = {_STEPS: event.env_steps, "_timestamp": clock, **event.metrics()}
        for member in event.members:
            row |= {f"member-{member.slot}/{name}": value for name, value in member.metrics().items()}
        self._run.log(row)

    def finish(self, run: TrackedRun) -> None:
        import wandb

        self._run.summary.update(run.scores())
        for name in ("lineage", "elite"):
            if (kept := run.files.get(name)) is not None:
                artifact = wandb.Artifact(f"{name}-{run.key}", type="model" if name == "elite" else name)
                (artifact.add_dir if kept.path.is_dir() else artifact.add_file)(str(kept.path))
                self._run.log_artifact(artifact)
        if (report := run.files.get("report")) is not None:
            self._run.log({"report": wandb.Html(report.path.read_text(encoding="utf-8"), inject=False)})
        self._run.finish(exit_code=0 if run.status == "finished" else 1)

    def close(self) -> None:
        self._run.finish(exit_code=1)
