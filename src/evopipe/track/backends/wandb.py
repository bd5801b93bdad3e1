"""Weights & Biases: one run a training, the members' metrics under `member-<slot>/`.

Without an API key the run is written offline, below the DVC root, for `wandb sync` to upload some day. An offline run
can only be added to while it is open, so a delivery that was cut off is written anew by the next one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evopipe.storage import safeio
from evopipe.track.config import TrackingConfig
from evopipe.track.delivered import Delivered
from evopipe.track.run import (
    ELITE,
    EVALUATION,
    LINEAGE,
    REPORT,
    New,
    Run,
    evaluation_metrics,
    flat_params,
    member_metrics,
    population_metrics,
)

if TYPE_CHECKING:
    import wandb

PACKAGE = "evopipe[wandb]"
STEPS = "env_steps"


def connect(config: TrackingConfig, root: Path) -> _Wandb:
    """Make ready; offline runs go to `.evopipe/wandb/`."""
    return _Wandb(config, root / ".evopipe" / "wandb")


class _Wandb:
    """Brings one run after the other."""

    def __init__(self, config: TrackingConfig, home: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._config, self._home = config, home
        self._delivered = Delivered(home / "delivered", [LINEAGE, EVALUATION, REPORT, ELITE])
        self._open: wandb.Run | None = None
        self._key, self._sent = "", 0  # of the run that is open, and its last generation

    def deliver(self, run: Run) -> New:
        """Bring what is not there yet."""
        new = self._delivered.missing(run)
        if not new.total():
            return new
        if self._open is None or self._key != run.key:
            self.close()
            self._open, self._key = self._begin(run), run.key
            summary: Any = self._open.summary
            self._sent = int(summary.get("population/generation", 0)) if self._open.resumed else 0
        for clock, event in run.after(self._sent):
            row: dict[str, Any] = {STEPS: event.env_steps, "_timestamp": clock, **population_metrics(event)}
            for member in event.members:
                row |= {f"member-{member.slot}/{name}": value for name, value in member_metrics(member).items()}
            self._open.log(row)
            self._sent = event.generation
        if run.status != "running":
            self._attach(self._open, run)
            self._open.finish(exit_code=0 if run.status == "finished" else 1)
            self._open = None
            self._delivered.note(run)
        return new

    def close(self) -> None:
        """Finish what is open: it is not noted as delivered."""
        if self._open is not None:
            self._open.finish(exit_code=1)
        self._open = None

    def _begin(self, run: Run) -> wandb.Run:
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False, verify=False) else "offline")
        safeio.make_folder(self._home)
        for old in self._home.glob(f"wandb/offline-run-*-{run.key}"):
            shutil.rmtree(old)
        opened = wandb.init(
            project=(self._config.experiment or run.env).replace("/", "-").replace(":", "-"),
            id=run.key,
            name=run.name,
            dir=str(self._home),
            config=flat_params(run),
            mode=mode,  # type: ignore[arg-type]
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(silent=True, console="off", init_timeout=30, x_disable_stats=True),
        )
        opened.define_metric("*", step_metric=STEPS)
        return opened

    def _attach(self, opened: wandb.Run, run: Run) -> None:
        import wandb

        opened.summary.update(evaluation_metrics(run))
        for name in (LINEAGE, ELITE):
            if (kept := run.files.get(name)) is not None:
                artifact = wandb.Artifact(f"{name}-{run.key}", type="model" if name == ELITE else name)
                (artifact.add_dir if kept.path.is_dir() else artifact.add_file)(str(kept.path))
                opened.log_artifact(artifact)
        if (report := run.files.get(REPORT)) is not None:
            opened.log({REPORT: wandb.Html(report.path.read_text(encoding="utf-8"), inject=False)})
